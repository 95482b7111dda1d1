import fields from 'fields:createEval'
import { Anchor, Stack, Text } from '@mantine/core'
import type { Eval, EvalInput } from '@muster/client'
import { createEval, listEvals } from '@muster/client/operations'
import { IconChartBar, IconPlus } from '@tabler/icons-react'
import { Link, useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { useAgents, useDatasets } from '#choices.ts'
import { FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

/** The fields of an evaluation that people edit. */
export const EVAL_FIELDS = ['name', 'agent_id', 'dataset_id', 'scorers', 'pass_threshold', 'max_error_rate', 'group_by']

/** Returns a part of 1 as a percentage. */
export const percentText = (part: number): string =>
  part.toLocaleString(undefined, { style: 'percent', maximumFractionDigits: 1 })

/** Evaluations of a project. */
export function Evals() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const agents = useAgents(projectId)
  const datasets = useDatasets(projectId)
  const list = useList<Eval>(['evals', projectId], async (_, bounds, signal) =>
    listEvals(api, { project_id: projectId, ...bounds }, { signal }).page(),
  )
  const columns: Column<Eval>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name }) => <RecordLink to={`/p/${projectId}/evals/${id}`}>{visible(name)}</RecordLink>,
    },
    { title: strings.evals.agent, cell: ({ agent_id }) => agents.nameOf(agent_id) },
    { title: strings.evals.dataset, cell: ({ dataset_id }) => datasets.nameOf(dataset_id) },
    {
      title: strings.evals.threshold,
      cell: ({ pass_threshold }) => (pass_threshold === null ? strings.none : percentText(pass_threshold)),
    },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createEval) && (
    <FormButton
      label={strings.evals.create}
      leftSection={<IconPlus size={16} />}
      form={close => <EvalForm onDone={close} />}
    />
  )
  return (
    <Page title={strings.nav.evals} intro={strings.evals.intro} actions={create}>
      <ListView
        label={strings.nav.evals}
        list={list}
        operation={listEvals}
        columns={columns}
        empty={
          <Notice icon={<IconChartBar />} title={strings.evals.empty} action={create} color="indigo">
            {strings.evals.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

function EvalForm({ onDone }: { onDone: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const datasets = useDatasets(projectId)
  return (
    <Stack gap="md">
      {datasets.rows?.length === 0 && (
        <Text size="sm">
          {strings.evals.noDataset}{' '}
          <Anchor component={Link} to={`/p/${projectId}/datasets`} underline="always">
            {strings.nav.datasets}
          </Anchor>
        </Text>
      )}
      <CommandForm
        label={strings.create}
        schema={fields}
        only={EVAL_FIELDS}
        start={{ scorers: [{ type: 'exact_match' }] }}
        run={async values => createEval(api, { ...(values as EvalInput), project_id: projectId })}
        stale={[['evals', projectId]]}
        onResult={({ id }) => void navigate({ to: `/p/${projectId}/evals/${id}` })}
        onDone={onDone}
      />
    </Stack>
  )
}
