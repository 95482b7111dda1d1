import { columnFilter, equalsFilter } from '../../core/api/filters.ts'
import { enumListQuery } from '../../core/api/lists.ts'
import type { Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { CHAIN_STATUSES, Chain, chainKind, chainStatus } from './model.ts'
import { stopChain } from './store.ts'

const chains = resource(chainKind, { path: '/chains', tag: 'Chains' })

export const chainOperations: Operation[] = [
  // chains_project serves the order, chains_agent the filter by an agent.
  chains.list({
    summary: 'List chains of turns that carried on after one another',
    description:
      'A chain holds the turns that came of one another, by approvals and continuations, and the budget that bounds them.',
    filters: {
      status: columnFilter(
        enumListQuery(CHAIN_STATUSES).describe('One status or several, by repeating it'),
        statuses => (statuses ? sql.fragment`${chainStatus} = any(${sql.array([...statuses], 'text')})` : null),
      ),
      agent_id: equalsFilter('agent_id'),
    },
  }),
  chains.get(),
  chains.action('stop', {
    summary: 'Let no further turn carry on in a chain',
    description: 'Turns that run go on to their end. What would carry on is refused from now on.',
    answers: { 200: Chain },
    run: async ({ resource, tx }) => chainKind.present(await stopChain(tx, resource.id)),
  }),
]
