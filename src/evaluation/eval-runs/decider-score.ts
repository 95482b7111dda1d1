import { AppError, type ErrorCode, raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import { evaluate } from '../../core/expressions/evaluate.ts'
import { RequeueError } from '../../core/jobs/handler.ts'
import type { Services } from '../../core/process/services.ts'
import { insertDecisions, waitForDecision } from '../../execution/deciders/create-decisions.ts'
import { inputTexts } from '../../execution/deciders/input.ts'
import { isDecisionSettled } from '../../execution/deciders/model.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import type { ScorerOf } from '../evals/scorers.ts'
import { type OpenItem, type PinnedDecider, runPermission, type Score } from './model.ts'
import { factsOf, requireScore, scoreOf, unscoredResult } from './score.ts'

/**
 * Has a decider say what an answer is worth, in the name of who started the run: one decision, which a later worker finds.
 * @param known the decision that an earlier worker asked for
 * @param keep notes the decision in the transaction that asks for it
 * @throws what refuses or fails a decision, EVAL_SCORING_FAILED for what is no score, HandBack when the worker stops
 */
export async function scoreByDecider(
  services: Services,
  scorer: ScorerOf<'decider'>,
  item: OpenItem,
  options: {
    known: string | undefined
    keep: (tx: Tx, decisionId: string) => Promise<void>
    signal: AbortSignal
    stopping: AbortSignal
  },
): Promise<Score> {
  const { known, keep, signal, stopping } = options
  const id = known ?? (await request(services, scorer, item, keep))
  const decision = await waitForDecision(
    services,
    id,
    AbortSignal.any([signal, stopping]),
    services.config.GENERATION_MAX_SECONDS * 1000,
  )
  signal.throwIfAborted()
  if (!decision) throw unscoredResult('The decision is gone')
  if (!isDecisionSettled(decision))
    throw stopping.aborted ? new RequeueError('the worker stops') : unscoredResult('The decision takes too long')
  if (decision.status === 'failed') {
    const { code, message, meta } = decision.error ?? { code: 'EVAL_SCORING_FAILED', message: 'The decision failed' }
    throw new AppError(code as ErrorCode, { message, meta: { ...meta, decision_id: id } })
  }
  const { answers, answers_by_name } = decision
  const score = requireScore(evaluate(scorer.score, { answers, answers_by_name }))
  return scoreOf(scorer, score, score >= scorer.pass_threshold, { decision_id: id })
}

async function request(
  services: Services,
  scorer: ScorerOf<'decider'>,
  item: OpenItem,
  keep: (tx: Tx, decisionId: string) => Promise<void>,
): Promise<string> {
  const { run, project_id } = item
  const pinned = run.deciders?.[scorer.name] as PinnedDecider
  const facts = factsOf(item)
  const input = scorer.input === undefined ? facts : evaluate(scorer.input, facts)
  const [text] = inputTexts([input ?? null], () => 'input')
  const caller = await callerForPrincipal(services, run.authority, project_id)
  if (!caller) return raise('FORBIDDEN')
  return services.write(async tx => {
    const asking = {
      project_id,
      decider: { id: pinned.id, version: pinned.version, author: pinned.author },
      questions: pinned.questions,
      backend: { agent_id: pinned.agent_id, tool_id: pinned.tool_id },
    }
    const metadata = { eval_id: run.eval_id, eval_run_id: run.id, dataset_item_id: item.item_id }
    const [{ id }] = await insertDecisions(tx, { services, caller }, asking, [{ text, metadata }], {
      permission: () => runPermission(run.eval_id),
    })
    await keep(tx, id)
    return id
  })
}
