import { checkSpend } from '../../control/quotas/spend.ts'
import { tokenComponents, type UsageDraft } from '../../control/usage/meter.ts'
import { raise } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import { findRoute } from '../../execution/memory-rules/store.ts'
import { callRoute, routingRecorder } from '../../execution/model-routes/call.ts'
import { callModel } from '../../execution/providers/call.ts'
import { aiProviderKind, type ProviderRow } from '../../execution/providers/model.ts'
import type { ModelAnswer, ModelRequest } from '../../execution/providers/model-messages.ts'
import type { ScorerOf } from '../evals/scorers.ts'
import type { OpenItem, Score } from './model.ts'
import { factsOf, parseFirstObject, reasoningOf, requireScore, scoreOf, unscoredResult } from './score.ts'

/** Characters that a judge is asked at most: an item with its answer, and as much again. A prompt can name each value 7,000 times. */
const MOST_ASKED = 8 * 1024 * 1024

const PLACES = /\{\{(input|output|expected)\}\}/g

/** What a judge is asked. Values are filled in once, whatever they hold. Raises EVAL_SCORING_FAILED for too much of it. */
function promptOf({ prompt }: Pick<ScorerOf<'llm_judge'>, 'prompt'>, item: OpenItem): string {
  const { input, output, expected } = factsOf(item)
  const texts: Record<string, string> = { input: JSON.stringify(input), output: output ?? '', expected: expected ?? '' }
  const filled = [...prompt.matchAll(PLACES)].reduce((sum, [, name]) => sum + texts[name].length, prompt.length)
  if (filled > MOST_ASKED)
    throw unscoredResult(`The prompt has ${filled} characters with its values, more than ${MOST_ASKED}`)
  return prompt.replaceAll(PLACES, (_match, name: string) => texts[name])
}

/**
 * Has a model judge an answer: one completion without tools.
 * @param key what the use is recorded under
 * @throws QUOTA_EXCEEDED, QUOTA_UNENFORCEABLE, AI_PROVIDER_NOT_FOUND, MODEL_ROUTE_NOT_FOUND, EVAL_SCORING_FAILED for a reply that
 *   is no verdict, what a model call fails with; the reason of the signal
 */
export async function scoreByModel(
  services: Services,
  scorer: ScorerOf<'llm_judge'>,
  item: OpenItem,
  { key, use, signal }: { key: string; use: (draft: UsageDraft) => void; signal: AbortSignal },
): Promise<Score> {
  const { project_id, run } = item
  await checkSpend(services, { project_id, agent_id: run.agent_id, actor_id: null })
  const request: ModelRequest = {
    system: null,
    messages: [{ role: 'user', content: promptOf(scorer, item) }],
    temperature: 0,
    tools: [],
    tool_choice: null,
    output_schema: null,
    prompt_caching: false,
    signal,
  }
  const { answer, provider } = await ask(services, scorer, project_id, request)
  if (answer.usage)
    use({
      idempotency_key: `eval_judge:${key}`,
      project_id,
      meter_type: 'llm_tokens',
      provider: provider?.provider ?? 'unknown',
      model: answer.model,
      source: 'eval_judge',
      components: tokenComponents(answer.usage),
      ai_provider_id: answer.ai_provider_id,
      agent_id: run.agent_id,
      generation_id: item.generation_id,
      trigger_id: run.trigger_id,
    })
  const { score, reasoning } = parseFirstObject(answer.text)
  const value = requireScore(score)
  return scoreOf(scorer, value, value >= scorer.pass_threshold, reasoningOf(reasoning, item))
}

/** Asks the provider that a judge names, else what the project goes by. */
async function ask(
  services: Services,
  { ai_provider_id, model }: ScorerOf<'llm_judge'>,
  project_id: string,
  request: ModelRequest,
): Promise<{ answer: ModelAnswer; provider: ProviderRow | undefined }> {
  if (ai_provider_id !== undefined) {
    const provider = await aiProviderKind.find(services.pool, ai_provider_id)
    if (provider?.project_id !== project_id) return raise('AI_PROVIDER_NOT_FOUND', { meta: { id: ai_provider_id } })
    return { provider, answer: await callModel(services, provider, model ?? provider.default_model, request) }
  }
  const route = await findRoute(services.pool, { ai_provider_id: null, model_route_id: null, project_id })
  if (!route) return raise('MODEL_ROUTE_NOT_FOUND', { message: 'Nothing says which model judges the answer' })
  const answer = await callRoute(services, route, request, { step: 1, routing: routingRecorder(route, null) })
  return { answer, provider: route.providers.find(({ id }) => id === answer.ai_provider_id) }
}
