import type { Chain } from '@muster/client'
import { listChains } from '@muster/client/operations'
import { IconLink } from '@tabler/icons-react'
import { api, POLL_MS } from '#api.ts'
import { useAgents } from '#choices.ts'
import { ChoiceField, type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { When } from '#components/text.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.chains

const STATUSES = ['active', 'concluded', 'expired', 'budget_exhausted'] as const

/** The status of a chain. */
export const ChainStatus = ({ status }: Pick<Chain, 'status'>) => (
  <StatusBadge status={status} label={texts.statuses[status]} />
)

/** Chains of turns of a project. */
export function Chains() {
  const projectId = useProjectId()
  const { choices = [], nameOf } = useAgents(projectId)
  const list = useList<Chain>(
    ['chains', projectId],
    async ({ status, agent }, bounds, signal) => {
      const chosen = STATUSES.filter(each => each === status)
      return listChains(api, { project_id: projectId, status: chosen, agent_id: agent, ...bounds }, { signal }).page()
    },
    { pollMs: POLL_MS },
  )
  const columns: Column<Chain>[] = [
    {
      title: texts.agent,
      isWide: true,
      cell: ({ id, agent_id }) => <RecordLink to={`/p/${projectId}/chains/${id}`}>{nameOf(agent_id)}</RecordLink>,
    },
    { title: strings.status, cell: ({ status }) => <ChainStatus status={status} /> },
    { title: texts.turns, cell: ({ generation_count, limit }) => texts.turnsOf(generation_count, limit) },
    { title: texts.last, cell: ({ last_generation_at }) => <When at={last_generation_at} /> },
  ]
  return (
    <Page title={strings.nav.chains} intro={texts.intro}>
      <ListView
        label={strings.nav.chains}
        list={list}
        operation={listChains}
        columns={columns}
        fields={
          <>
            <ChoiceField
              name="status"
              label={strings.status}
              choices={STATUSES.map(value => ({ value, label: texts.statuses[value] }))}
            />
            {choices.length > 0 && <ChoiceField name="agent" label={strings.playground.agent} choices={choices} />}
          </>
        }
        empty={
          <Notice icon={<IconLink />} title={texts.empty} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
