import running from 'fields:createEvalRun'
import changing from 'fields:updateEval'
import { Button, Group, Stack, Text } from '@mantine/core'
import type { Eval, EvalPatch, EvalRun } from '@muster/client'
import { createEvalRun, deleteEval, getEval, listEvalRuns, updateEval } from '@muster/client/operations'
import { IconEdit, IconPlayerPlay } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useAgents, useDatasets } from '#choices.ts'
import { FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { Notice } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Comparison } from './eval-comparison.tsx'
import {
  aggregatesOf,
  CancelRunButton,
  isActive,
  pollOf,
  RunProgress,
  runName,
  useCompletedRuns,
  Verdict,
} from './eval-run-parts.tsx'
import { EVAL_FIELDS, percentText } from './evals.tsx'

const texts = strings.evals

/** An evaluation: its runs, and two of them next to each other. */
export function EvalView() {
  const { evalId } = useIds()
  return (
    <RecordPage queryKey={['eval', evalId]} get={getEval} ids={{ eval_id: evalId }}>
      {record => <EvalPage evaluation={record} />}
    </RecordPage>
  )
}

function EvalActions({ evaluation }: { evaluation: Eval }) {
  const { id, project_id } = evaluation
  const isAllowed = usePermissions(project_id)
  return (
    <>
      <RemoveButton
        operation={deleteEval}
        ids={{ eval_id: id }}
        question={texts.deleteText}
        stale={[['evals', project_id]]}
        list="evals"
      />
      {isAllowed(updateEval) && (
        <FormButton
          label={strings.edit}
          variant="default"
          leftSection={<IconEdit size={16} />}
          form={close => <EditForm evaluation={evaluation} onDone={close} />}
        />
      )}
      {isAllowed(createEvalRun) && (
        <FormButton
          label={texts.run}
          leftSection={<IconPlayerPlay size={16} />}
          form={close => <RunForm evaluation={evaluation} onDone={close} />}
        />
      )}
    </>
  )
}

function EvalPage({ evaluation }: { evaluation: Eval }) {
  const { name, project_id, agent_id, dataset_id, pass_threshold, max_error_rate, group_by } = evaluation
  const agents = useAgents(project_id)
  const datasets = useDatasets(project_id)
  return (
    <Page title={name} actions={<EvalActions evaluation={evaluation} />}>
      <Section title={strings.cases.details}>
        <Facts
          facts={[
            [
              texts.agent,
              <RecordLink key="agent" to={`/p/${project_id}/agents/${agent_id}`}>
                {agents.nameOf(agent_id)}
              </RecordLink>,
            ],
            [
              texts.dataset,
              <RecordLink key="dataset" to={`/p/${project_id}/datasets/${dataset_id}`}>
                {datasets.nameOf(dataset_id)}
              </RecordLink>,
            ],
            [texts.threshold, pass_threshold !== null && percentText(pass_threshold)],
            [texts.errorRate, max_error_rate !== null && percentText(max_error_rate)],
            [texts.groupBy, group_by && visible(group_by)],
            [texts.revision, evaluation.revision],
          ]}
        />
      </Section>
      <AddressTabs
        tabs={[
          { value: 'runs', title: texts.runs, content: () => <Runs evaluation={evaluation} /> },
          { value: 'compare', title: texts.compare, content: () => <Comparison evaluation={evaluation} /> },
          {
            value: 'scorers',
            title: texts.scorers,
            content: () => <Value value={evaluation.scorers} label={texts.scorers} />,
          },
        ]}
      />
    </Page>
  )
}

function EditForm({ evaluation, onDone }: { evaluation: Eval; onDone: () => void }) {
  const { id, project_id } = evaluation
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {texts.editText}
      </Text>
      <CommandForm
        label={strings.save}
        schema={changing}
        only={EVAL_FIELDS}
        initial={evaluation}
        run={async (values: EvalPatch) => updateEval(api, { eval_id: id, ...values })}
        stale={[
          ['eval', id],
          ['evals', project_id],
        ]}
        onDone={onDone}
      />
    </Stack>
  )
}

function RunForm({ evaluation: { id }, onDone }: { evaluation: Eval; onDone: () => void }) {
  const { data = [] } = useCompletedRuns(id)
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {texts.runText}
      </Text>
      <CommandForm
        label={texts.run}
        schema={running}
        only={['agent_version', 'baseline_run_id']}
        options={{ baseline_run_id: data.map(run => ({ value: run.id, label: runName(run) })) }}
        run={async values => createEvalRun(api, { eval_id: id, ...values })}
        stale={[['eval', id]]}
        onDone={onDone}
      />
    </Stack>
  )
}

const evalRunColumns = (projectId: string, id: string): Column<EvalRun>[] => [
  {
    title: strings.started,
    isWide: true,
    cell: run => (
      <Stack gap={2}>
        <RecordLink to={`/p/${projectId}/evals/${id}/runs/${run.id}`}>{runName(run)}</RecordLink>
        {isActive(run) && <RunProgress run={run} />}
        {run.errored_count > 0 && (
          <Text size="sm" c="dimmed">
            {texts.errored(run.errored_count)}
          </Text>
        )}
      </Stack>
    ),
  },
  {
    title: strings.status,
    cell: run => (
      <Group gap={6}>
        <StatusBadge status={run.status} />
        <Verdict run={run} />
      </Group>
    ),
  },
  {
    title: texts.passRate,
    cell: run => {
      const rate = aggregatesOf(run)?.pass_rate
      return rate === undefined || rate === null ? strings.none : percentText(rate)
    },
  },
  {
    title: '',
    cell: run => (
      <Group gap="xs" justify="flex-end">
        <CancelRunButton run={run} />
        {run.baseline_run_id && run.status === 'completed' && (
          <Button
            component={Link}
            size="xs"
            variant="default"
            to={`/p/${projectId}/evals/${id}?tab=compare&before=${run.baseline_run_id}&after=${run.id}`}
          >
            {texts.compare}
          </Button>
        )}
      </Group>
    ),
  },
]

function Runs({ evaluation: { id } }: { evaluation: Eval }) {
  const projectId = useProjectId()
  const list = useList<EvalRun>(
    ['eval', id, 'runs'],
    async (_, bounds, signal) => listEvalRuns(api, { eval_id: id, ...bounds }, { signal }).page(),
    { pollMs: rows => pollOf(rows.some(isActive)) },
  )
  const columns = evalRunColumns(projectId, id)
  return (
    <ListView
      label={texts.runs}
      list={list}
      operation={listEvalRuns}
      columns={columns}
      empty={
        <Notice icon={<IconPlayerPlay />} title={texts.noRuns} color="indigo">
          {texts.noRunsText}
        </Notice>
      }
    />
  )
}
