import { Button, Text } from '@mantine/core'
import type { GenerationListed } from '@muster/client'
import { createAgentGeneration, listGenerations } from '@muster/client/operations'
import { IconPlayerPlay, IconTimeline } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { api, POLL_MS } from '#api.ts'
import { useAgents } from '#choices.ts'
import { EndUserLink } from '#components/end-user-link.tsx'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { Status, statusText } from '#components/status.tsx'
import { costText, durationText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const STATUSES = ['pending', 'in_progress', 'requires_action', 'completed', 'failed'] as const
const SOURCES = ['eval', 'decider', 'memory_rule', 'ingestion']

const between = (from: string | null, to: string | null): number | null =>
  from && to ? Math.max(0, Date.parse(to) - Date.parse(from)) : null

const generationColumns = (projectId: string): Column<GenerationListed>[] => [
  {
    title: strings.traces.turn,
    isWide: true,
    cell: ({ id, agent_id, agent_name, source }) => (
      <>
        <RecordLink to={`/p/${projectId}/traces/${id}`}>{visible(agent_name ?? agent_id)}</RecordLink>
        <Text size="xs" c="dimmed">
          <span className="mono">{id}</span>
          {source && ` · ${visible(strings.traces.sources[source] ?? source)}`}
        </Text>
      </>
    ),
  },
  { title: strings.endUsers.one, cell: turn => <EndUserLink entry={turn} /> },
  { title: strings.status, cell: ({ status }) => <Status status={status} /> },
  {
    title: strings.runs.tokens,
    cell: ({ usage }) => (usage ? (usage.input_tokens + usage.output_tokens).toLocaleString() : strings.none),
  },
  { title: strings.runs.cost, cell: ({ usage }) => (usage ? costText(usage.cost_usd) : strings.none) },
  {
    title: strings.runs.time,
    cell: ({ started_at, completed_at }) => {
      const ms = between(started_at, completed_at)
      return ms === null ? strings.none : durationText(ms)
    },
  },
  { title: strings.started, cell: ({ created_at }) => <When at={created_at} /> },
]

const useTraces = (projectId: string) =>
  useList<GenerationListed>(
    ['generations', projectId],
    async ({ status, agent, source, session }, bounds, signal) => {
      const args = {
        project_id: projectId,
        status: STATUSES.filter(each => each === status),
        agent_id: agent,
        source,
        session_id: session?.trim(),
        ...bounds,
      }
      return listGenerations(api, args, { signal }).page()
    },
    { pollMs: POLL_MS },
  )

/** Turns of a project. */
export function Traces() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { choices = [] } = useAgents(projectId)
  const list = useTraces(projectId)
  const columns = generationColumns(projectId)
  return (
    <Page title={strings.nav.traces} intro={strings.traces.intro}>
      <ListView
        label={strings.nav.traces}
        list={list}
        operation={listGenerations}
        columns={columns}
        fields={
          <>
            <ChoiceField
              name="status"
              label={strings.status}
              choices={STATUSES.map(value => ({ value, label: statusText(value) }))}
            />
            {choices.length > 0 && <ChoiceField name="agent" label={strings.playground.agent} choices={choices} />}
            <ChoiceField
              name="source"
              label={strings.traces.source}
              choices={SOURCES.map(value => ({ value, label: strings.traces.sources[value] }))}
            />
            <SearchField name="session" label={strings.traces.session} />
          </>
        }
        empty={
          <Notice
            icon={<IconTimeline />}
            title={strings.traces.empty}
            color="indigo"
            action={
              isAllowed(createAgentGeneration) && (
                <Button component={Link} to={`/p/${projectId}/playground`} leftSection={<IconPlayerPlay size={16} />}>
                  {strings.agents.try}
                </Button>
              )
            }
          >
            {strings.traces.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
