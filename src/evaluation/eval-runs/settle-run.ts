import { type RecordedFailure, recordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { Tx } from '../../core/db/writer.ts'
import { triggerChainOf } from '../../core/iam/caller.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { aggregateScores, verdictOf } from './aggregate.ts'
import { type EvalRunRow, evalRunKind, isLive, RUN_CHANNEL } from './model.ts'
import { deleteAnswers, hasOpenItems, outcomesOf } from './store.ts'

/**
 * What ends a run has in common: its time, the notice for those who wait, and no tool context any more, which a run that is
 * canceled keeps for the items that are under way.
 */
export async function endRun(
  tx: Tx,
  run: EvalRunRow,
  end: Pick<EvalRunRow, 'status'> & Partial<EvalRunRow>,
): Promise<EvalRunRow> {
  const context = end.status === 'canceled' && (await hasOpenItems(tx, run.id)) ? run.context : null
  const ended = await evalRunKind.update(tx, run.id, { ...end, context, finished_at: new Date().toISOString() })
  tx.notify(RUN_CHANNEL, run.id)
  return ended
}

/** Works in the name of what led to a run. */
const onBehalf = <T>({ authority }: EvalRunRow, work: () => Promise<T>): Promise<T> =>
  withTriggerChain(triggerChainOf(authority), work)

/** Completes a run of which every item has a result: its figures, its verdict, its event. Nothing for any other run. */
export async function settleRun(services: Services, runId: string): Promise<boolean> {
  const found = await evalRunKind.find(services.pool, runId)
  if (!found) return false
  return onBehalf(found, () =>
    services.write(async tx => {
      const run = await evalRunKind.find(tx, runId, true)
      if (!run || !isLive(run) || run.completed_count + run.errored_count < run.item_count) return false
      await injectFault(services, 'eval_run_settling')
      const outcomes = await outcomesOf(tx, run.id, run.group_by)
      const baseline =
        run.baseline_run_id === null
          ? null
          : { run_id: run.baseline_run_id, outcomes: await outcomesOf(tx, run.baseline_run_id, null) }
      const aggregate_scores = aggregateScores(run, outcomes, baseline)
      const passed = verdictOf(run, { pass_rate: aggregate_scores.pass_rate, errored: run.errored_count })
      const ended = await endRun(tx, run, { status: 'completed', aggregate_scores, passed })
      tx.emit(evalRunKind, 'completed', ended)
      services.log.info({ eval_run_id: run.id, outcome: 'completed', passed }, 'eval run')
      return true
    }),
  )
}

/** Fails a run that cannot be completed. Nothing for one that has ended. */
export async function failRun(services: Services, runId: string, error: unknown): Promise<void> {
  const failure = storableValue(recordedFailure(error)) as RecordedFailure
  const found = await evalRunKind.find(services.pool, runId)
  if (!found) return
  await onBehalf(found, () =>
    services.write(async tx => {
      const run = await evalRunKind.find(tx, runId, true)
      if (!run || !isLive(run)) return
      await deleteAnswers(tx, run.id)
      tx.emit(evalRunKind, 'failed', await endRun(tx, run, { status: 'failed', error: failure }))
      services.log.info({ eval_run_id: runId, outcome: 'failed', code: failure.code }, 'eval run')
    }),
  )
}
