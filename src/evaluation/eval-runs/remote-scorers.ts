import { embedderOf } from '#content/index/embeddings/embedder.ts'
import { checkSpend } from '#control/quotas/spend.ts'
import type { UsageDraft } from '#control/usage/meter.ts'
import { AppError, type ErrorCode, raise } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { evaluate } from '#core/expressions/evaluation.ts'
import { RequeueError } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { insertDecisions, waitForDecision } from '#execution/deciders/create-decisions.ts'
import { inputTexts } from '#execution/deciders/input.ts'
import { isDecisionSettled } from '#execution/deciders/model.ts'
import { callHelper, type HelperModel } from '#execution/model-routes/helper-call.ts'
import { findRoute } from '#execution/model-routes/store.ts'
import { aiProviderKind } from '#execution/providers/model.ts'
import { callTool, openCall } from '#execution/tools/call.ts'
import { toolKind } from '#execution/tools/model.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import type { ScorerOf } from '../evals/scorers.ts'
import { evalToolContext } from './context.ts'
import { type OpenItem, type PinnedDecider, runPermission, type Score } from './model.ts'
import { buildScore, parseEmbeddedObject, requireScore, scoringData, scoringError, storableReasoning } from './score.ts'

/**
 * Scores an output by the cosine similarity of its embedding with the expected output, from 0 to 1. Without a text on
 * either side the score is 0 and no call is made.
 * @throws EMBEDDING_NOT_CONFIGURED, AI_PROVIDER_ERROR
 */
export async function scoreBySimilarity(
  services: Services,
  scorer: ScorerOf<'embedding_similarity'>,
  { id, project_id, output, expected_output }: OpenItem,
  signal: AbortSignal,
): Promise<Score> {
  const toScore = (score: number) => buildScore(scorer, score, score >= scorer.pass_threshold)
  const texts = [output ?? '', expected_output ?? ''].map(text =>
    truncateChars(text, services.config.EMBEDDING_MAX_INPUT_CHARS),
  )
  if (texts.some(text => text.trim() === '')) return toScore(0)
  const [outputVector, expectedVector] = await embedderOf(services).embed(texts, {
    project_id,
    purpose: { kind: 'eval', ref: id },
    signal,
    complete: true,
  })
  const cosine = (outputVector as Float32Array).reduce(
    (sum, value, index) => sum + value * (expectedVector as Float32Array)[index],
    0,
  )
  return toScore(Math.min(1, Math.max(0, cosine)))
}

/** Most characters of a filled-in prompt, twice an item with its output. A template may repeat a value 7,000 times. */
const MAX_PROMPT_CHARS = 8 * 1024 * 1024

const PLACEHOLDERS = /\{\{(input|output|expected)\}\}/g

/**
 * Fills in the prompt of a model scorer; placeholders within values are not replaced.
 * @throws EVAL_SCORING_FAILED if the prompt is too long
 */
function buildPrompt({ prompt }: Pick<ScorerOf<'llm_judge'>, 'prompt'>, item: OpenItem): string {
  const { input, output, expected } = scoringData(item)
  const texts: Record<string, string> = { input: JSON.stringify(input), output: output ?? '', expected: expected ?? '' }
  const length = [...prompt.matchAll(PLACEHOLDERS)].reduce((sum, [, name]) => sum + texts[name].length, prompt.length)
  if (length > MAX_PROMPT_CHARS)
    throw scoringError(`Prompt has ${length} characters, at most ${MAX_PROMPT_CHARS} are allowed`)
  return prompt.replaceAll(PLACEHOLDERS, (_match, name: string) => texts[name])
}

/**
 * Scores an output by a model, with one completion without tools.
 * @param key idempotency key of the usage
 * @throws QUOTA_EXCEEDED, QUOTA_UNENFORCEABLE, AI_PROVIDER_NOT_FOUND, MODEL_ROUTE_NOT_FOUND, EVAL_SCORING_FAILED for an
 *   invalid reply, AI_PROVIDER_ERROR for one without text, the error of the model call, the reason of the signal
 */
export async function scoreByModel(
  services: Services,
  scorer: ScorerOf<'llm_judge'>,
  item: OpenItem,
  { key, addUsage, signal }: { key: string; addUsage: (draft: UsageDraft) => void; signal: AbortSignal },
): Promise<Score> {
  const { project_id, run } = item
  await checkSpend(services, { project_id, agent_id: run.agent_id, actor_id: null })
  const answer = await callHelper(services, await findScoringModel(services, scorer, project_id), {
    helper: 'eval_judge',
    key: `eval_judge:${key}`,
    request: { system: null, messages: [{ role: 'user', content: buildPrompt(scorer, item) }], signal },
    async meter(usage) {
      addUsage({
        ...usage,
        project_id,
        agent_id: run.agent_id,
        generation_id: item.generation_id,
        trigger_id: run.trigger_id,
      })
    },
  })
  const { score, reasoning } = parseEmbeddedObject(answer.text)
  const value = requireScore(score)
  return buildScore(scorer, value, value >= scorer.pass_threshold, storableReasoning(reasoning, item))
}

/** Returns the model of a scorer, or the default model route of the project. */
async function findScoringModel(
  services: Services,
  { ai_provider_id, model }: ScorerOf<'llm_judge'>,
  project_id: string,
): Promise<HelperModel> {
  if (ai_provider_id !== undefined) {
    const provider = await aiProviderKind.find(services.pool, ai_provider_id)
    if (provider?.project_id !== project_id) return raise('AI_PROVIDER_NOT_FOUND', { meta: { id: ai_provider_id } })
    return { provider, model: model ?? provider.default_model, route: null }
  }
  const route = await findRoute(services.pool, { ai_provider_id: null, model_route_id: null, project_id })
  if (!route)
    return raise('MODEL_ROUTE_NOT_FOUND', {
      message: 'No model configured: set ai_provider_id on the scorer or a default model route on the project',
    })
  return { provider: null, model: null, route }
}

/**
 * Scores an output by a tool, with the permissions of the principal that started the run and under its guardrails.
 * @param key key of the usage record
 * @throws TOOL_NOT_FOUND, EVAL_SCORING_FAILED for an invalid result, the error of the call
 */
export async function scoreByTool(
  services: Services,
  scorer: ScorerOf<'tool'>,
  item: OpenItem,
  { key, addUsage, signal }: { key: string; addUsage: (draft: UsageDraft) => void; signal: AbortSignal },
): Promise<Score> {
  const { project_id, run } = item
  const tool = await toolKind.find(services.pool, scorer.tool_id)
  if (tool?.project_id !== project_id) return raise('TOOL_NOT_FOUND', { meta: { id: scorer.tool_id } })
  const call = openCall(services, {
    action: scorer.action,
    input: { ...scorer.preset_parameters, ...scoringData(item) },
    caller: () => callerForPrincipal(services, run.authority, project_id),
    context: evalToolContext(services, run) ?? undefined,
    // Identical for the repeated call after a lost worker.
    idempotencyKey: `${item.id}:${scorer.name}`,
    metering: {
      source: 'evaluation',
      record: key,
      agent_id: run.agent_id,
      generation_id: item.generation_id,
      trigger_id: run.trigger_id,
      add: addUsage,
    },
    signal,
  })
  const response = await callTool(services, tool, call)
  const verdict = typeof response === 'string' ? parseEmbeddedObject(response) : response
  if (!isObject(verdict)) throw scoringError('Tool did not return an object with a score')
  const score = requireScore(verdict.score)
  const { pass_threshold } = scorer
  if (verdict.passed !== undefined && typeof verdict.passed !== 'boolean')
    throw scoringError('Tool returned passed that is neither true nor false')
  const passed = verdict.passed ?? (pass_threshold === undefined ? null : score >= pass_threshold)
  if (passed === null) throw scoringError('Tool did not return passed, and the scorer has no pass_threshold')
  return buildScore(scorer, score, passed as boolean, storableReasoning(verdict.reasoning, item))
}

/**
 * Scores an output by a decider with the permissions of the principal that started the run. Creates one decision, which
 * a later worker reuses.
 * @param decisionId decision created by an earlier worker
 * @param storeDecision stores the new decision in the transaction that creates it
 * @throws the error of the decision, EVAL_SCORING_FAILED for an invalid score, RequeueError when the worker stops
 */
export async function scoreByDecider(
  services: Services,
  scorer: ScorerOf<'decider'>,
  item: OpenItem,
  options: {
    decisionId: string | undefined
    storeDecision: (tx: Tx, id: string) => Promise<void>
    signal: AbortSignal
    stopping: AbortSignal
  },
): Promise<Score> {
  const { decisionId, storeDecision, signal, stopping } = options
  const id = decisionId ?? (await createDecision(services, scorer, item, storeDecision))
  const decision = await waitForDecision(
    services,
    id,
    AbortSignal.any([signal, stopping]),
    services.config.GENERATION_MAX_SECONDS * 1000,
  )
  signal.throwIfAborted()
  if (!decision) throw scoringError('Decision was deleted')
  if (!isDecisionSettled(decision))
    throw stopping.aborted ? new RequeueError('worker is stopping') : scoringError('Decision timed out')
  if (decision.status === 'failed') {
    const { code, message, meta } = decision.error ?? { code: 'EVAL_SCORING_FAILED', message: 'Decision failed' }
    throw new AppError(code as ErrorCode, { message, meta: { ...meta, decision_id: id } })
  }
  const { answers, answers_by_name } = decision
  const score = requireScore(await evaluate(services, item.project_id, scorer.score, { answers, answers_by_name }))
  return buildScore(scorer, score, score >= scorer.pass_threshold, { decision_id: id })
}

async function createDecision(
  services: Services,
  scorer: ScorerOf<'decider'>,
  item: OpenItem,
  storeDecision: (tx: Tx, id: string) => Promise<void>,
): Promise<string> {
  const { run, project_id } = item
  const pinned = run.deciders?.[scorer.name] as PinnedDecider
  const data = scoringData(item)
  const input = scorer.input === undefined ? data : await evaluate(services, project_id, scorer.input, data)
  const [text] = inputTexts([input ?? null], () => 'input')
  const caller = await callerForPrincipal(services, run.authority, project_id)
  if (!caller) return raise('FORBIDDEN')
  return services.write(async tx => {
    const batch = {
      project_id,
      decider: { id: pinned.id, version: pinned.version, author: pinned.author },
      questions: pinned.questions,
      backend: { agent_id: pinned.agent_id, tool_id: pinned.tool_id },
    }
    const metadata = { eval_id: run.eval_id, eval_run_id: run.id, dataset_item_id: item.item_id }
    const [{ id }] = await insertDecisions(tx, { services, caller }, batch, [{ text, metadata }], {
      permission: () => runPermission(run.eval_id),
    })
    await storeDecision(tx, id)
    return id
  })
}
