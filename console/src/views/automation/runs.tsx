import { Button, Text } from '@mantine/core'
import type { OrchestrationRun } from '@muster/client'
import { listOrchestrations, listRuns } from '@muster/client/operations'
import { IconHierarchy, IconPlayerTrackNext } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { api, POLL_MS } from '#api.ts'
import { useOrchestrations } from '#choices.ts'
import { ChoiceField, type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { Status, statusText } from '#components/status.tsx'
import { durationText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.runs

const RUN_STATUSES = [
  'queued',
  'running',
  'sleeping',
  'awaiting_input',
  'succeeded',
  'failed',
  'cancelled',
  'expired',
] as const

/** Returns the columns of a list of runs. */
export function runColumns(projectId: string, nameOf: (id: string) => string): Column<OrchestrationRun>[] {
  return [
    {
      title: texts.orchestration,
      isWide: true,
      cell: ({ id, orchestration_id, parent_node_id }) => (
        <>
          <RecordLink to={`/p/${projectId}/runs/${id}`}>{nameOf(orchestration_id)}</RecordLink>
          <Text size="xs" c="dimmed">
            <span className="mono">{id}</span>
            {parent_node_id && ` · ${texts.nestedIn(visible(parent_node_id))}`}
          </Text>
        </>
      ),
    },
    { title: strings.status, cell: ({ status }) => <Status status={status} /> },
    { title: strings.version, cell: ({ orchestration_version }) => orchestration_version },
    { title: strings.started, cell: ({ started_at, created_at }) => <When at={started_at ?? created_at} /> },
    {
      title: texts.time,
      cell: ({ started_at, completed_at }) =>
        started_at && completed_at ? durationText(Date.parse(completed_at) - Date.parse(started_at)) : strings.none,
    },
  ]
}

const useRuns = (projectId: string) =>
  useList<OrchestrationRun>(
    ['runs', projectId],
    async ({ status, orchestration, nested }, bounds, signal) => {
      const args = {
        project_id: projectId,
        status: RUN_STATUSES.filter(each => each === status),
        orchestration_id: orchestration,
        nested: nested === undefined ? undefined : nested === 'true',
        view: 'summary' as const,
        ...bounds,
      }
      return listRuns(api, args, { signal }).page()
    },
    { pollMs: POLL_MS },
  )

/** Runs of a project. */
export function Runs() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { nameOf, choices = [] } = useOrchestrations(projectId)
  const list = useRuns(projectId)
  return (
    <Page title={strings.nav.runs} intro={texts.intro}>
      <ListView
        label={strings.nav.runs}
        list={list}
        operation={listRuns}
        columns={runColumns(projectId, nameOf)}
        fields={
          <>
            <ChoiceField
              name="status"
              label={strings.status}
              choices={RUN_STATUSES.map(value => ({ value, label: statusText(value) }))}
            />
            {choices.length > 0 && <ChoiceField name="orchestration" label={texts.orchestration} choices={choices} />}
            <ChoiceField
              name="nested"
              label={texts.level}
              choices={[
                { value: 'false', label: texts.roots },
                { value: 'true', label: texts.nestedRuns },
              ]}
            />
          </>
        }
        view="runs"
        empty={
          <Notice
            icon={<IconPlayerTrackNext />}
            title={texts.empty}
            color="indigo"
            action={
              isAllowed(listOrchestrations) && (
                <Button
                  component={Link}
                  to={`/p/${projectId}/orchestrations`}
                  leftSection={<IconHierarchy size={16} />}
                >
                  {texts.toOrchestrations}
                </Button>
              )
            }
          >
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
