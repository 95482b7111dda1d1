import { recordUsage, type UsageDraft } from '../../control/usage/meter.ts'
import { AppError } from '../../core/api/errors.ts'
import { isDatabaseError } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import type { Tx } from '../../core/db/writer.ts'
import { type JobContext, RequeueError } from '../../core/jobs/handler.ts'
import { ClaimLostError } from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { outputProblems } from '../../execution/agents/schema.ts'
import { findAgentVersion } from '../../execution/agents/served-version.ts'
import { refusalToStart } from '../../execution/generations/loop/prepare-turn.ts'
import { PAUSE_HOLD_MS } from '../../identity/projects/pause.ts'
import { keyOf, type Scorer, type ScorerOf } from '../evals/scorers.ts'
import { scoreByDecider } from './decider-score.ts'
import { type OpenItem, runPermission, type Score } from './model.ts'
import { scoreByModel } from './model-judge.ts'
import type { EvalItemMessage } from './queue.ts'
import { failedScorer, ScorerFailed, scoreLocally, scoreVerdict, scoringFailure } from './score.ts'
import { textSimilarity } from './similarity.ts'
import { claimAnswered, deferItem, storeScores } from './store.ts'
import { notScored, storeEvalResult } from './store-result.ts'
import { scoreByTool } from './tool-score.ts'

/** What a worker holds while it scores an item. */
type Scoring = {
  services: Services
  item: OpenItem
  said: OpenItem['scores']
  signal: AbortSignal
  stopping: AbortSignal
}

/**
 * Has the scorers judge what was answered to an item, in their order, and stores its result. What a scorer said that costs
 * something is kept, so that it is not asked again after its worker was lost.
 */
export async function scoreItem({ result_id }: EvalItemMessage, context: JobContext): Promise<void> {
  const { services, signal, stopping, log } = context
  const item = await claimAnswered(services.pool, result_id)
  if (!item) return
  if (item.paused) return void (await deferItem(services.pool, item.id, PAUSE_HOLD_MS))
  await injectFault(services, 'eval_item_answered')
  const started = performance.now()
  const shown = item.content_mode === 'none' ? null : item.output
  const store = (end: {
    scores: readonly Score[]
    error: AppError['recorded'] extends () => infer R ? R | null : never
  }) =>
    retryWhileUnavailable(
      () => services.write(tx => storeEvalResult(tx, item, 'answered', { output: shown, ...end })),
      {
        signal,
      },
    )
  try {
    // Purged meanwhile, or lost with a crash of the database.
    if (item.output === null)
      throw new AppError('GENERATION_CONTENT_UNAVAILABLE', { message: 'The answer to be scored is not there any more' })
    const scores = await allScores({ services, item, said: [...item.scores], signal, stopping })
    await injectFault(services, 'eval_item_scored')
    await store({ scores, error: null })
    log.info(
      { result_id, attempt: item.claims, outcome: 'scored', duration_ms: Math.round(performance.now() - started) },
      'eval item',
    )
  } catch (error) {
    if (error instanceof ClaimLostError) return
    if (error instanceof ScorerFailed && error.failure.code === 'PROJECT_PAUSED') {
      await deferItem(services.pool, item.id, PAUSE_HOLD_MS)
      return
    }
    const failure =
      scoringFailure(error) ??
      (error instanceof AppError && error.code !== 'SERVICE_NOT_READY' ? error.recorded() : null)
    if (!failure) throw error
    await store({ scores: [], error: failure })
    log.info({ result_id, attempt: item.claims, outcome: 'failed', code: failure.code }, 'eval item')
  }
}

async function allScores(scoring: Scoring): Promise<Score[]> {
  const scores: Score[] = []
  for (const scorer of scoring.item.run.scorers) {
    scoring.signal.throwIfAborted()
    if (scoring.stopping.aborted) throw new RequeueError('the worker stops')
    scores.push(await oneScore(scoring, scorer))
  }
  return scores
}

/** What one scorer says. Raises ScorerFailed, Superseded, HandBack, and what is no failure of the scorer. */
async function oneScore(scoring: Scoring, scorer: Scorer): Promise<Score> {
  const { item, said, signal } = scoring
  const known = said.find(each => each.scorer === keyOf(scorer))
  if (known?.score !== undefined) return known as Score
  const instant = scoreLocally(scorer, item)
  if (instant) return instant
  try {
    await requireStarter(scoring, scorer)
    return await asked(scoring, scorer, known?.decision_id)
  } catch (error) {
    const own =
      error instanceof ClaimLostError || error instanceof RequeueError || signal.aborted || isDatabaseError(error)
    if (own || (error instanceof AppError && error.code === 'SERVICE_NOT_READY')) throw error
    throw failedScorer(scorer, error)
  }
}

/** Raises FORBIDDEN for a call in the name of somebody who may not run the eval any more. */
async function requireStarter({ services, item }: Scoring, { type }: Scorer): Promise<void> {
  const { run, project_id } = item
  const permission = runPermission(run.eval_id)
  if (type === 'output_schema') return
  const { authority } = run
  const forbidden = await refusalToStart(services, { authority, permission, project_id, agent_id: null })
  if (forbidden) throw forbidden
}

async function asked(scoring: Scoring, scorer: Scorer, decisionId: string | undefined): Promise<Score> {
  const { services, item, signal, stopping } = scoring
  const key = `${item.id}:${keyOf(scorer)}:${item.claims}`
  switch (scorer.type) {
    case 'output_schema':
      return scoreVerdict(scorer, await satisfies(services, scorer, item, signal))
    case 'embedding_similarity':
      return keeping(scoring, () => textSimilarity(services, scorer, item, signal))
    case 'llm_judge':
      return keeping(scoring, use => scoreByModel(services, scorer, item, { key, use, signal }))
    case 'tool':
      return keeping(scoring, use => scoreByTool(services, scorer, item, { key, use, signal }))
    case 'decider':
      return scoreByDecider(services, scorer, item, {
        known: decisionId,
        signal,
        stopping,
        async keep(tx, decision_id) {
          scoring.said.push({ scorer: keyOf(scorer), decision_id })
          if (!(await storeScores(tx, item, scoring.said))) throw new ClaimLostError()
        },
      })
    default:
      throw new Error(`no scorer ${scorer.type}`)
  }
}

/** Makes a call that costs something, and keeps what it said together with its cost; its cost also when it fails. */
async function keeping(scoring: Scoring, work: (use: (draft: UsageDraft) => void) => Promise<Score>): Promise<Score> {
  const { services, item } = scoring
  const used: UsageDraft[] = []
  try {
    const score = await work(draft => void used.push(draft))
    const said = [...scoring.said, score]
    const keep = async (tx: Tx) => {
      await recordUsage(services, used, tx)
      return storeScores(tx, item, said)
    }
    const kept = await retryWhileUnavailable(() => services.write(keep), scoring)
    used.length = 0
    if (!kept) throw new ClaimLostError()
    scoring.said.push(score)
    return score
  } finally {
    if (used.length > 0) await recordUsage(services, used)
  }
}

/** Whether the object of an answer is as a schema asks for; an answer without one is not. */
async function satisfies(
  services: Services,
  { schema }: ScorerOf<'output_schema'>,
  { object, project_id, run }: OpenItem,
  signal: AbortSignal,
): Promise<boolean> {
  if (object == null) return false
  const asked = schema ?? (await findAgentVersion(services.pool, run.agent_id, run.agent_version))?.output_schema
  return asked != null && (await outputProblems(services, project_id, asked, object, signal)).length === 0
}

/** Ends an item whose scoring failed again and again for reasons of ours. */
export const failAnswered = (services: Services, { result_id }: EvalItemMessage, error: unknown): Promise<unknown> =>
  services.write(async tx => {
    const item = await claimAnswered(tx, result_id)
    if (!item) return
    const output = item.content_mode === 'none' ? null : item.output
    await storeEvalResult(tx, item, 'answered', { output, scores: [], error: notScored(error) })
  })
