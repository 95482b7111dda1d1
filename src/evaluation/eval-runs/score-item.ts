import { recordUsage, type UsageDraft } from '#control/usage/meter.ts'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { isDatabaseError } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import type { AttemptFields } from '#core/work/attempt.ts'
import { ClaimLostError, RequeueError } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { outputProblems } from '#execution/agents/schema.ts'
import { findAgentVersion } from '#execution/agents/served-version.ts'
import { refusalToStart } from '#execution/generations/loop/prepare-turn.ts'
import { type Scorer, type ScorerOf, scorerKey } from '../evals/scorers.ts'
import { type ItemAttempt, type OpenItem, runPermission, type Score } from './model.ts'
import { scoreByDecider, scoreByModel, scoreBySimilarity, scoreByTool } from './remote-scorers.ts'
import { scoreLocally, scoreVerdict, toScorerFailure } from './score.ts'
import { storeEvalResult } from './store-result.ts'

/** State of scoring an item; `stored` contains the stored scores and decisions. */
type ScoringState = { attempt: ItemAttempt; stored: OpenItem['scores'] }

/**
 * Runs the scorers of an item in order and stores its result. Scores with a cost are stored immediately, so that they
 * are not computed again after a lost worker.
 */
export async function scoreItem(attempt: ItemAttempt): Promise<AttemptFields> {
  const { entity: item, signal, stopping, settle } = attempt
  // The output was purged, or its unlogged row was lost in a database crash.
  if (item.output === null)
    throw new AppError('GENERATION_CONTENT_UNAVAILABLE', { message: 'Output to be scored was erased' })
  const state = { attempt, stored: [...item.scores] }
  const scores: Score[] = []
  for (const scorer of item.run.scorers) {
    signal.throwIfAborted()
    if (stopping.aborted) throw new RequeueError('worker is stopping')
    scores.push(await runScorer(state, scorer))
  }
  await settle(tx => storeEvalResult(tx, item, { scores, error: null }))
  return { outcome: 'scored' }
}

/**
 * Returns the score of one scorer.
 * @throws the failure of the scorer, ClaimLostError, RequeueError, and errors that are not failures of the scorer
 */
async function runScorer(state: ScoringState, scorer: Scorer): Promise<Score> {
  const { attempt, stored } = state
  const previous = stored.find(score => score.scorer === scorerKey(scorer))
  if (previous?.score !== undefined) return previous as Score
  const local = await scoreLocally(attempt.services, scorer, attempt.entity)
  if (local) return local
  try {
    await requireRunPermission(attempt, scorer)
    return await callScorer(state, scorer, previous?.decision_id)
  } catch (error) {
    const isInternal =
      error instanceof ClaimLostError ||
      error instanceof RequeueError ||
      attempt.signal.aborted ||
      isDatabaseError(error)
    if (isInternal || (error instanceof AppError && error.code === 'SERVICE_NOT_READY')) throw error
    throw toScorerFailure(scorer, error)
  }
}

/** @throws FORBIDDEN if the principal that started the run no longer has the permission to run the eval */
async function requireRunPermission({ services, entity: item }: ItemAttempt, { type }: Scorer): Promise<void> {
  const { run, project_id } = item
  const permission = runPermission(run.eval_id)
  if (type === 'output_schema') return
  const { authority } = run
  const forbidden = await refusalToStart(services, { authority, permission, project_id, agent_id: null })
  if (forbidden) throw forbidden
}

async function callScorer(state: ScoringState, scorer: Scorer, decisionId: string | undefined): Promise<Score> {
  const { services, entity: item, claim, signal, stopping, set } = state.attempt
  const key = `${item.id}:${scorerKey(scorer)}:${claim.claims}`
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
          await set(tx, storedScores(state.stored))
        },
      })
    default:
      throw new Error(`Unknown scorer type ${scorer.type}`)
  }
}

const storedScores = (scores: OpenItem['scores']): Fragment => sql.fragment`scores = ${JSON.stringify(scores)}`

/** Makes a scorer call and stores its score and usage in one transaction; usage is recorded also on failure. */
async function scoreAndStore(
  state: ScoringState,
  call: (addUsage: (draft: UsageDraft) => void) => Promise<Score>,
): Promise<Score> {
  const { services, set, signal } = state.attempt
  const usage: UsageDraft[] = []
  try {
    const score = await call(draft => void usage.push(draft))
    const write = async (tx: Tx) => {
      await recordUsage(services, usage, tx)
      await set(tx, storedScores([...state.stored, score]))
    }
    await retryWhileUnavailable(() => services.write(write), { signal })
    usage.length = 0
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
