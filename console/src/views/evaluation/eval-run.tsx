import { Alert, Button, Card, Group, Stack, Table, Text } from '@mantine/core'
import type { Eval, EvalResult, EvalRun } from '@muster/client'
import {
  createDatasetItemFromGeneration,
  getEval,
  getEvalRun,
  getGeneration,
  listEvalResults,
  updateDatasetItem,
} from '@muster/client/operations'
import { IconChartBar, IconX } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api, every } from '#api.ts'
import { ActionButton } from '#components/actions.tsx'
import { CommandButton } from '#components/command-form.tsx'
import { ChoiceField, type Column, ListView, TableHead, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Facts, Section } from '#components/record.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { statusText } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { inputText } from './dataset.tsx'
import {
  type Aggregates,
  aggregatesOf,
  CancelRunButton,
  deltaText,
  isActive,
  OutcomeBadge,
  outcomeOf,
  pollOf,
  RunProgress,
  runName,
  Scores,
  Verdict,
} from './eval-run-parts.tsx'
import { percentText } from './evals.tsx'

const texts = strings.evals

const FILTERS = { passed: { passed: true }, failed: { passed: false, errored: false }, error: { errored: true } }

/** A run of an evaluation: its figures and the result of each item. */
export function EvalRunView() {
  const { evalId, evalRunId } = useIds()
  const run = useQuery<EvalRun>({
    queryKey: ['eval', evalId, 'run', evalRunId],
    queryFn: async ({ signal }) => getEvalRun(api, { eval_id: evalId, eval_run_id: evalRunId }, { signal }),
    refetchInterval: query => every(pollOf(query.state.data && isActive(query.state.data)))(query),
  })
  const evaluation = useQuery<Eval>({
    queryKey: ['eval', evalId],
    queryFn: async ({ signal }) => getEval(api, { eval_id: evalId }, { signal }),
  })
  return (
    <Loaded query={run} operation={getEvalRun}>
      {record => <RunPage run={record} evaluation={evaluation.data} />}
    </Loaded>
  )
}

function RunPage({ run, evaluation }: { run: EvalRun; evaluation: Eval | undefined }) {
  const projectId = useProjectId()
  const figures = aggregatesOf(run)
  const { pass_rate_interval: interval } = figures ?? {}
  return (
    <Page
      title={evaluation ? evaluation.name : run.id}
      intro={runName(run)}
      actions={
        <>
          <CancelRunButton run={run} />
          <Button component={Link} to={`/p/${projectId}/evals/${run.eval_id}`} variant="default">
            {texts.runs}
          </Button>
        </>
      }
    >
      {run.error && (
        <Alert color="red" icon={<IconX />} title={visible(run.error.code)}>
          {visible(run.error.message)}
        </Alert>
      )}
      <Section title={texts.score} actions={<Verdict run={run} />}>
        {isActive(run) && <RunProgress run={run} />}
        <Facts
          facts={[
            [strings.status, statusText(run.status)],
            [
              texts.passRate,
              figures?.pass_rate != null && (
                <>
                  <Text fw={650} size="xl" component="div">
                    {percentText(figures.pass_rate)}
                  </Text>
                  {interval && (
                    <Text size="sm" c="dimmed">
                      {texts.interval(percentText(interval.low), percentText(interval.high))}
                    </Text>
                  )}
                </>
              ),
            ],
            [texts.items, texts.of(run.completed_count, run.item_count)],
            [texts.outcomes.error, run.errored_count > 0 && run.errored_count],
            [texts.version, run.agent_version],
            [strings.started, <When key="started" at={run.started_at ?? run.created_at} />],
          ]}
        />
        {figures?.baseline && <Baseline run={run} baseline={figures.baseline} />}
      </Section>
      {figures && <FiguresTable figures={figures} />}
      <Results run={run} datasetId={evaluation?.dataset_id} />
    </Page>
  )
}

function Baseline({ run, baseline }: { run: EvalRun; baseline: NonNullable<Aggregates['baseline']> }) {
  const { run_id, pass_rate_delta, flipped, p_value } = baseline
  const to = `/p/${useProjectId()}/evals/${run.eval_id}?tab=compare&before=${run_id}&after=${run.id}`
  return (
    <Stack gap="xs">
      <Facts
        facts={[
          [texts.baseline, pass_rate_delta !== null && deltaText(pass_rate_delta)],
          [texts.regressed, flipped.regressed],
          [texts.improved, flipped.improved],
          [texts.chance, p_value !== null && percentText(p_value)],
        ]}
      />
      <Group>
        <Button component={Link} to={to} size="xs" variant="default">
          {texts.openBaseline}
        </Button>
      </Group>
    </Stack>
  )
}

/** The figures by scorer, and by group where the evaluation has groups. */
function FiguresTable({ figures }: { figures: Aggregates }) {
  const shown = (part: number | null | undefined) => (part == null ? strings.none : percentText(part))
  const groups = Object.entries(figures.grouping?.groups ?? {})
  const rows: [name: string, count: string, rate: string][] = [
    ...Object.entries(figures.scorers).map(([name, { mean, pass_rate }]): (typeof rows)[number] => [
      visible(name),
      shown(mean),
      shown(pass_rate),
    ]),
  ]
  const head = (titles: string[]) => <TableHead titles={titles} />
  const body = (titles: string[], cells: string[][]) => (
    <Table.Tbody>
      {cells.map(([name, ...values]) => (
        <Table.Tr key={name}>
          <Table.Td>
            <Text fw={600}>{name}</Text>
          </Table.Td>
          {values.map((value, index) => (
            <Table.Td key={titles[index + 1]} data-title={titles[index + 1]}>
              {value}
            </Table.Td>
          ))}
        </Table.Tr>
      ))}
    </Table.Tbody>
  )
  const scorerTitles = [texts.scorers, texts.mean, texts.passRate]
  const groupTitles = [texts.group, texts.items, texts.passRate]
  return (
    <Card withBorder padding={0} radius="lg">
      <Table className="rows" verticalSpacing="sm" horizontalSpacing="md" layout="fixed" aria-label={texts.scorers}>
        {head(scorerTitles)}
        {body(scorerTitles, rows)}
      </Table>
      {groups.length > 0 && (
        <Table className="rows" verticalSpacing="sm" horizontalSpacing="md" layout="fixed" aria-label={texts.groups}>
          {head(groupTitles)}
          {body(
            groupTitles,
            groups.map(([name, each]) => [visible(name), String(each.scored_item_count), shown(each.pass_rate)]),
          )}
        </Table>
      )}
    </Card>
  )
}

function Results({ run, datasetId }: { run: EvalRun; datasetId: string | undefined }) {
  const list = useList<EvalResult>(
    ['eval', run.eval_id, 'run', run.id, 'results'],
    async ({ outcome }, bounds, signal) =>
      listEvalResults(
        api,
        {
          eval_id: run.eval_id,
          eval_run_id: run.id,
          ...FILTERS[outcome as keyof typeof FILTERS],
          ...bounds,
        },
        { signal },
      ).page(),
    { pollMs: () => pollOf(isActive(run)) },
  )
  const columns: Column<EvalResult>[] = [
    {
      title: texts.items,
      isWide: true,
      cell: result => <ResultContent result={result} />,
    },
    {
      title: strings.status,
      cell: result => <OutcomeBadge outcome={outcomeOf(result)} />,
    },
    { title: '', cell: result => <Promotion result={result} datasetId={datasetId} /> },
  ]
  return (
    <ListView
      label={texts.results}
      list={list}
      operation={listEvalResults}
      columns={columns}
      fields={
        <ChoiceField
          name="outcome"
          label={texts.filter}
          choices={Object.keys(FILTERS).map(value => ({ value, label: texts.outcomes[value] }))}
        />
      }
      empty={
        <Notice icon={<IconChartBar />} title={texts.noResults}>
          {texts.noResultsText}
        </Notice>
      }
    />
  )
}

function ResultContent({ result: { input, expected_output, output, error, scores } }: { result: EvalResult }) {
  return (
    <Stack gap="xs" py={4}>
      <Text fw={600} className="wrap" lineClamp={4}>
        {visible(inputText(input))}
      </Text>
      {error ? (
        <Text size="sm">
          <span className="mono">{visible(error.code)}</span> {visible(error.message)}
        </Text>
      ) : (
        <Value value={output ?? texts.noOutput} label={texts.output} />
      )}
      {expected_output !== null && (
        <Text size="sm" className="wrap" lineClamp={4}>
          {texts.expected}: {visible(expected_output)}
        </Text>
      )}
      <Scores results={[{ label: texts.score, scores }]} />
    </Stack>
  )
}

/** Makes the output of a result a part of a dataset. */
function Promotion({ result, datasetId }: { result: EvalResult; datasetId: string | undefined }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { dataset_item_id, generation_id, output } = result
  if (!isAllowed(createDatasetItemFromGeneration) || output === null) return null
  return (
    <Stack gap="xs" align="flex-start">
      {datasetId && dataset_item_id && (
        <ActionButton
          label={texts.promote}
          question={texts.promoteText}
          message={texts.promoted}
          run={async () =>
            updateDatasetItem(api, { dataset_id: datasetId, item_id: dataset_item_id, expected_output: output })
          }
          stale={[['dataset', datasetId]]}
        />
      )}
      {generation_id && isAllowed(getGeneration) && (
        <CommandButton
          size="xs"
          label={texts.copyItem}
          schema={{
            properties: { dataset_id: { type: 'string', title: texts.dataset, 'x-refers': 'dataset' } },
            required: ['dataset_id'],
          }}
          run={async ({ dataset_id }) =>
            createDatasetItemFromGeneration(api, { dataset_id: dataset_id as string, generation_id })
          }
          stale={[['dataset']]}
        />
      )}
    </Stack>
  )
}
