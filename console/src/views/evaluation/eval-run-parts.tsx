import { Badge, Progress, Table, Text } from '@mantine/core'
import type { EvalResult, EvalRun } from '@muster/client'
import { cancelEvalRun, listEvalRuns } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api, BUSY_MS, every } from '#api.ts'
import { ActionButton } from '#components/actions.tsx'
import { visible } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { percentText } from './evals.tsx'

const texts = strings.evals

/** Runs that a form or a comparison offers. */
const OFFERED_RUNS = 50
const IDLE_MS = 10_000

/** Returns the completed runs of an evaluation, the newest first. */
export function useCompletedRuns(evalId: string) {
  return useQuery<EvalRun[]>({
    queryKey: ['eval', evalId, 'completed'],
    queryFn: async ({ signal }) => {
      const args = { eval_id: evalId, status: ['completed' as const], limit: OFFERED_RUNS }
      return (await listEvalRuns(api, args, { signal }).page()).data
    },
    staleTime: 0,
    refetchInterval: every(IDLE_MS),
  })
}

const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'short' })

/** Returns a name of a run for people. */
export const runName = ({ agent_version, created_at }: EvalRun): string =>
  texts.runName(agent_version, DATE.format(new Date(created_at)))

type ScorerFigures = { mean: number | null; pass_rate: number | null }
type Figures = {
  pass_rate: number | null
  scored_item_count: number
  pass_rate_interval?: { low: number; high: number } | null
  scorers: Record<string, ScorerFigures>
}
/** The figures of a completed run. */
export type Aggregates = Figures & {
  grouping?: { group_by: string; groups: Record<string, Figures>; ungrouped_item_count: number }
  baseline?: {
    run_id: string
    compared_item_count: number
    pass_rate_delta: number | null
    flipped: { improved: number; regressed: number }
    p_value: number | null
  }
}

/** Returns the figures of a run; null until it has completed. */
export const aggregatesOf = (run: EvalRun): Aggregates | null => run.aggregate_scores as Aggregates | null

/** Whether a run is queued or running. */
export const isActive = ({ status }: Pick<EvalRun, 'status'>): boolean => status === 'queued' || status === 'running'

/** Returns the interval in which runs are read again. */
export const pollOf = (active: boolean | undefined): number => (active ? BUSY_MS : IDLE_MS)

export type Outcome = 'passed' | 'failed' | 'error' | 'missing'

/** Returns how an item ended in a run. */
export const outcomeOf = (result: Pick<EvalResult, 'passed' | 'error'> | null | undefined): Outcome => {
  if (!result) return 'missing'
  if (result.error) return 'error'
  return result.passed ? 'passed' : 'failed'
}

const OUTCOME_COLORS: Record<Outcome, string> = { passed: 'teal', failed: 'red', error: 'orange', missing: 'gray' }

/** How an item ended. */
export const OutcomeBadge = ({ outcome }: { outcome: Outcome }) => (
  <Badge variant="dot" color={OUTCOME_COLORS[outcome]}>
    {texts.outcomes[outcome]}
  </Badge>
)

/** Whether a run passed; nothing without a threshold. */
export function Verdict({ run: { passed } }: { run: EvalRun }) {
  if (passed === null) return null
  return (
    <Badge variant={passed ? 'default' : 'filled'} color="red.9">
      {passed ? texts.passed : texts.notPassed}
    </Badge>
  )
}

/** The part of a run that is done. */
export function RunProgress({ run: { item_count, completed_count, errored_count } }: { run: EvalRun }) {
  const done = completed_count + errored_count
  return (
    <>
      <Progress value={item_count > 0 ? (100 * done) / item_count : 0} aria-label={texts.progress} />
      <Text size="sm" c="dimmed">
        {texts.of(done, item_count)}
      </Text>
    </>
  )
}

/** Cancels an active run. */
export function CancelRunButton({ run }: { run: EvalRun }) {
  const isAllowed = usePermissions(useProjectId())
  if (!isActive(run) || !isAllowed(cancelEvalRun)) return null
  return (
    <ActionButton
      label={texts.cancel}
      run={async () => cancelEvalRun(api, { eval_id: run.eval_id, eval_run_id: run.id })}
      stale={[['eval', run.eval_id]]}
    />
  )
}

/** The scores of one or two results by scorer, with their reasons. */
export function Scores({ results }: { results: { label: string; scores: EvalResult['scores'] }[] }) {
  const names = [...new Set(results.flatMap(({ scores }) => scores.map(({ scorer }) => scorer)))]
  if (names.length === 0) return null
  const reasons = results.flatMap(({ scores }) => scores.flatMap(({ reasoning }) => (reasoning ? [reasoning] : [])))
  return (
    <Table className="rows" verticalSpacing={4} aria-label={texts.scorers} layout="fixed">
      <Table.Thead>
        <Table.Tr>
          <Table.Th>{texts.scorers}</Table.Th>
          {results.map(({ label }) => (
            <Table.Th key={label}>{label}</Table.Th>
          ))}
          {reasons.length > 0 && <Table.Th>{texts.reasoning}</Table.Th>}
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {names.map(name => {
          const found = results.map(({ label, scores }) => ({
            label,
            score: scores.find(({ scorer }) => scorer === name),
          }))
          return (
            <Table.Tr key={name}>
              <Table.Td>{visible(name)}</Table.Td>
              {found.map(({ label, score }) => (
                <Table.Td key={label} data-title={label}>
                  {score
                    ? `${score.score.toLocaleString(undefined, { maximumFractionDigits: 2 })} ${
                        score.passed ? texts.passed : texts.notPassed
                      }`
                    : strings.none}
                </Table.Td>
              ))}
              {reasons.length > 0 && (
                <Table.Td>
                  {found.flatMap(({ score }) => (score?.reasoning ? [visible(score.reasoning)] : [])).at(-1)}
                </Table.Td>
              )}
            </Table.Tr>
          )
        })}
      </Table.Tbody>
    </Table>
  )
}

/** Returns a difference of two parts of 1, with its sign. */
export const deltaText = (delta: number): string => `${delta > 0 ? '+' : ''}${percentText(delta)}`
