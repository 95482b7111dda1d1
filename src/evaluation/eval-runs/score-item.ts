import { recordUsage, type UsageDraft } from '../../control/usage/meter.ts'
import { AppError } from '../../core/api/errors.ts'
import { isDatabaseError } from '../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../core/db/retry.ts'
import type { Tx } from '../../core/db/writer.ts'
import { ClaimLostError, type JobContext, RequeueError } from '../../core/jobs/handler.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { outputProblems } from '../../execution/agents/schema.ts'
import { findAgentVersion } from '../../execution/agents/served-version.ts'
import { refusalToStart } from '../../execution/generations/loop/prepare-turn.ts'
import { PAUSE_HOLD_MS } from '../../identity/projects/pause.ts'
import { type Scorer, type ScorerOf, scorerKey } from '../evals/scorers.ts'
import { type OpenItem, runPermission, type Score } from './model.ts'
import type { EvalItemMessage } from './queue.ts'
import { scoreByDecider, scoreByModel, scoreBySimilarity, scoreByTool } from './remote-scorers.ts'
import { ScorerFailed, scoreLocally, scoreVerdict, scoringFailure, toScorerFailure } from './score.ts'
import { claimAnswered, deferItem, storeScores } from './store.ts'
import { exhaustedScoringFailure, storeEvalResult } from './store-result.ts'

/** State of scoring an item; `stored` contains the stored scores and decisions. */
type ScoringState = {
  services: Services
  item: OpenItem
  stored: OpenItem['scores']
  signal: AbortSignal
  stopping: AbortSignal
}

/**
 * Runs the scorers of an item in order and stores its result. Scores with a cost are stored immediately, so that they
 * are not computed again after a lost worker.
 */
export async function scoreItem({ result_id }: EvalItemMessage, context: JobContext): Promise<void> {
  const { services, signal, stopping, log } = context
  const item = await claimAnswered(services.pool, result_id)
  if (!item) return
  if (item.paused) return void (await deferItem(services.pool, item.id, PAUSE_HOLD_MS))
  await injectFault(services, 'eval_item_answered')
  const started = performance.now()
  const output = item.content_mode === 'none' ? null : item.output
  const store = (outcome: {
    scores: readonly Score[]
    error: AppError['recorded'] extends () => infer R ? R | null : never
  }) =>
    retryWhileUnavailable(() => services.write(tx => storeEvalResult(tx, item, 'answered', { output, ...outcome })), {
      signal,
    })
  try {
    // The output was purged, or its unlogged row was lost in a database crash.
    if (item.output === null)
      throw new AppError('GENERATION_CONTENT_UNAVAILABLE', { message: 'Output to be scored was erased' })
    const scores = await runScorers({ services, item, stored: [...item.scores], signal, stopping })
    await injectFault(services, 'eval_item_scored')
    await store({ scores, error: null })
    log.info(
      { result_id, attempt: item.claims, outcome: 'scored', duration_ms: Math.round(performance.now() - started) },
      'eval item scored',
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
    log.info({ result_id, attempt: item.claims, outcome: 'failed', code: failure.code }, 'eval item failed')
  }
}

async function runScorers(state: ScoringState): Promise<Score[]> {
  const scores: Score[] = []
  for (const scorer of state.item.run.scorers) {
    state.signal.throwIfAborted()
    if (state.stopping.aborted) throw new RequeueError('worker is stopping')
    scores.push(await runScorer(state, scorer))
  }
  return scores
}

/**
 * Returns the score of one scorer.
 * @throws ScorerFailed, ClaimLostError, RequeueError, and errors that are not failures of the scorer
 */
async function runScorer(state: ScoringState, scorer: Scorer): Promise<Score> {
  const { item, stored, signal } = state
  const previous = stored.find(score => score.scorer === scorerKey(scorer))
  if (previous?.score !== undefined) return previous as Score
  const local = scoreLocally(scorer, item)
  if (local) return local
  try {
    await requireRunPermission(state, scorer)
    return await callScorer(state, scorer, previous?.decision_id)
  } catch (error) {
    const isInternal =
      error instanceof ClaimLostError || error instanceof RequeueError || signal.aborted || isDatabaseError(error)
    if (isInternal || (error instanceof AppError && error.code === 'SERVICE_NOT_READY')) throw error
    throw toScorerFailure(scorer, error)
  }
}

/** @throws FORBIDDEN if the principal that started the run no longer has the permission to run the eval */
async function requireRunPermission({ services, item }: ScoringState, { type }: Scorer): Promise<void> {
  const { run, project_id } = item
  const permission = runPermission(run.eval_id)
  if (type === 'output_schema') return
  const { authority } = run
  const forbidden = await refusalToStart(services, { authority, permission, project_id, agent_id: null })
  if (forbidden) throw forbidden
}

async function callScorer(state: ScoringState, scorer: Scorer, decisionId: string | undefined): Promise<Score> {
  const { services, item, signal, stopping } = state
  const key = `${item.id}:${scorerKey(scorer)}:${item.claims}`
  switch (scorer.type) {
    case 'output_schema':
      return scoreVerdict(scorer, await isValidOutput(services, scorer, item, signal))
    case 'embedding_similarity':
      return scoreAndStore(state, () => scoreBySimilarity(services, scorer, item, signal))
    case 'llm_judge':
      return scoreAndStore(state, addUsage => scoreByModel(services, scorer, item, { key, addUsage, signal }))
    case 'tool':
      return scoreAndStore(state, addUsage => scoreByTool(services, scorer, item, { key, addUsage, signal }))
    case 'decider':
      return scoreByDecider(services, scorer, item, {
        decisionId,
        signal,
        stopping,
        async storeDecision(tx, decision_id) {
          state.stored.push({ scorer: scorerKey(scorer), decision_id })
          if (!(await storeScores(tx, item, state.stored))) throw new ClaimLostError()
        },
      })
    default:
      throw new Error(`Unknown scorer type ${scorer.type}`)
  }
}

/** Makes a scorer call and stores its score and usage in one transaction; usage is recorded also on failure. */
async function scoreAndStore(
  state: ScoringState,
  call: (addUsage: (draft: UsageDraft) => void) => Promise<Score>,
): Promise<Score> {
  const { services, item } = state
  const usage: UsageDraft[] = []
  try {
    const score = await call(draft => void usage.push(draft))
    const scores = [...state.stored, score]
    const write = async (tx: Tx) => {
      await recordUsage(services, usage, tx)
      return storeScores(tx, item, scores)
    }
    const isStored = await retryWhileUnavailable(() => services.write(write), state)
    usage.length = 0
    if (!isStored) throw new ClaimLostError()
    state.stored.push(score)
    return score
  } finally {
    if (usage.length > 0) await recordUsage(services, usage)
  }
}

/** Whether the structured output is valid against the schema; false without structured output. */
async function isValidOutput(
  services: Services,
  { schema }: ScorerOf<'output_schema'>,
  { object, project_id, run }: OpenItem,
  signal: AbortSignal,
): Promise<boolean> {
  if (object == null) return false
  const outputSchema = schema ?? (await findAgentVersion(services.pool, run.agent_id, run.agent_version))?.output_schema
  return outputSchema != null && (await outputProblems(services, project_id, outputSchema, object, signal)).length === 0
}

/** Fails an item whose scoring attempts are exhausted. */
export const failAnswered = (services: Services, { result_id }: EvalItemMessage, error: unknown): Promise<unknown> =>
  services.write(async tx => {
    const item = await claimAnswered(tx, result_id)
    if (!item) return
    const output = item.content_mode === 'none' ? null : item.output
    await storeEvalResult(tx, item, 'answered', { output, scores: [], error: exhaustedScoringFailure(error) })
  })
