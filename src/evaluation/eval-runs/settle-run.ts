import { z } from 'zod'
import { systemClock } from '#core/base/clock.ts'
import { type RecordedFailure, recordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { triggerChainOf } from '#core/iam/caller.ts'
import { entityMailbox } from '#core/queues/queue.ts'
import { handler } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { aggregateScores, runVerdict } from './aggregate.ts'
import { type EvalRunRow, evalRunKind, isLive, RUN_CHANNEL } from './model.ts'
import { hasUnsettledItems, listOutcomes } from './store.ts'

/**
 * Writes the terminal state of a run, notifies waiters and removes the tool context, except from a canceled run with
 * active items.
 */
export async function endRun(
  tx: Tx,
  run: EvalRunRow,
  end: Pick<EvalRunRow, 'status'> & Partial<EvalRunRow>,
): Promise<EvalRunRow> {
  const context = end.status === 'canceled' && (await hasUnsettledItems(tx, run.id)) ? run.context : null
  const ended = await evalRunKind.update(tx, run.id, { ...end, context, finished_at: systemClock.now().toISOString() })
  tx.notify(RUN_CHANNEL, run.id)
  return ended
}

/** Runs `work` with the trigger chain of a run. */
const withRunTriggerChain = <T>({ authority }: EvalRunRow, work: () => Promise<T>): Promise<T> =>
  withTriggerChain(triggerChainOf(authority), work)

/** Completes a live run with a result for every item: aggregates scores, sets the verdict and emits the event. */
async function settleRun(services: Services, runId: string): Promise<void> {
  const found = await evalRunKind.find(services.pool, runId)
  if (!found) return
  return withRunTriggerChain(found, () =>
    services.write(async tx => {
      const run = await evalRunKind.find(tx, runId, true)
      if (!run || !isLive(run) || run.completed_count + run.errored_count < run.item_count) return
      await injectFault(services, 'eval_run_settling')
      const outcomes = await listOutcomes(tx, run.id, run.group_by)
      const baseline =
        run.baseline_run_id === null
          ? null
          : { run_id: run.baseline_run_id, outcomes: await listOutcomes(tx, run.baseline_run_id, null) }
      const aggregate_scores = aggregateScores(run, outcomes, baseline)
      const passed = runVerdict(run, { pass_rate: aggregate_scores.pass_rate, errored: run.errored_count })
      const ended = await endRun(tx, run, { status: 'completed', aggregate_scores, passed })
      tx.emit(evalRunKind, 'completed', ended)
      services.log.info({ eval_run_id: run.id, outcome: 'completed', passed }, 'eval run completed')
    }),
  )
}

/** Fails a live run that could not be completed. */
export async function failRun(services: Services, runId: string, error: unknown): Promise<void> {
  const failure = storableValue(recordedFailure(error)) as RecordedFailure
  const found = await evalRunKind.find(services.pool, runId)
  if (!found) return
  await withRunTriggerChain(found, () =>
    services.write(async tx => {
      const run = await evalRunKind.find(tx, runId, true)
      if (!run || !isLive(run)) return
      tx.emit(evalRunKind, 'failed', await endRun(tx, run, { status: 'failed', error: failure }))
      services.log.info({ eval_run_id: runId, outcome: 'failed', code: failure.code }, 'eval run failed')
    }),
  )
}

/** Runs with a result for every item. */
export const evalRunQueue = entityMailbox('eval.complete_run', {
  message: z.object({ eval_run_id: z.string(), project_id: z.string() }),
  key: message => message.eval_run_id,
  project: message => message.project_id,
  concern: 'evaluation',
  retry: { limit: 4 },
})

export const evalRunHandler = handler(
  evalRunQueue,
  {
    leaseSeconds: ({ EVAL_TASK_LEASE_TTL_MS }) => Math.ceil(EVAL_TASK_LEASE_TTL_MS / 1000),
    onExhausted: ({ eval_run_id }, error, services) => failRun(services, eval_run_id, error),
  },
  ({ eval_run_id }, { services }) => settleRun(services, eval_run_id),
)
