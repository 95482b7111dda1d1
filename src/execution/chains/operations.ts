import { columnFilter, equalsFilter } from '#core/api/filters.ts'
import { enumListQuery } from '#core/api/lists.ts'
import type { Operation } from '#core/api/operation.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { CHAIN_STATUSES, Chain, chainKind, chainStatus } from './model.ts'
import { stopChain } from './store.ts'

const chains = resource(chainKind, { path: '/chains', tag: 'Chains' })

export const chainOperations: Operation[] = [
  // chains_project serves the order, chains_agent the filter by an agent.
  chains.list({
    summary: 'List chains',
    description:
      'A chain contains the turns that continue one another through approvals and continuations, and the limit on their number.',
    filters: {
      status: columnFilter(enumListQuery(CHAIN_STATUSES).describe('Status; repeat for several'), statuses =>
        statuses ? sql.fragment`${chainStatus} = any(${sql.array([...statuses], 'text')})` : null,
      ),
      agent_id: equalsFilter('agent_id'),
    },
  }),
  chains.get(),
  chains.action('stop', {
    summary: 'Stop a chain',
    description: 'Running turns finish; further continuations are refused.',
    answers: { 200: Chain },
    run: async ({ resource, tx }) => chainKind.present(await stopChain(tx, resource.id)),
  }),
]
