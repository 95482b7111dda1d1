import { Counter } from 'prom-client'
import { answerUsage, type UsageDraft } from '#control/usage/meter.ts'
import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { callModel } from '../providers/call.ts'
import type { ProviderRow } from '../providers/model.ts'
import type { ModelAnswer, ModelRequest, UnusedAnswer } from '../providers/model-messages.ts'
import { findingsOf } from '../providers/profile.ts'
import { callRoute, routingRecorder } from './call.ts'
import type { LoadedRoute } from './store.ts'

/** Calls of models that are no step of a turn: titles, summaries, extraction, judges, descriptions of media. */

const helperFailures = new Counter({
  name: 'muster_helper_failures_total',
  help: 'Failed model calls for titles, summaries, memory extraction, judges and media descriptions',
  labelNames: ['helper'],
  registers: [],
})
export const helperMetrics = [helperFailures]

export type Helper = 'title' | 'summary' | 'memory_extraction' | 'eval_judge' | 'media_description'

/** The model of a helper. */
export type HelperModel =
  | { provider: ProviderRow; model: string; route: null }
  | { provider: null; model: null; route: LoadedRoute }

/** The usage of an answer, without its attribution. */
export type HelperUsage = Pick<
  UsageDraft,
  | 'idempotency_key'
  | 'meter_type'
  | 'provider'
  | 'model'
  | 'served_model'
  | 'service_tier'
  | 'ai_provider_id'
  | 'source'
  | 'components'
>

/** Output tokens of a helper, besides its thinking. */
const OUTPUT_TOKENS = 4096
/** Output tokens for the thinking of a model that cannot leave it off. */
const THINKING_TOKENS = 16_384

type HelperCall = {
  helper: Helper
  /** Idempotency key of the usage of the first answer; those that follow have a number too. */
  key: string
  request: Pick<ModelRequest, 'messages' | 'signal'> & { system: string | null; max_output_tokens?: number }
  /** Records the usage of each answer. Its failure does not fail the call. */
  meter: (usage: HelperUsage) => Promise<unknown>
}

/**
 * Makes a call without tools, sampling settings and thinking, and returns its text. An answer that is cut before its text is
 * requested once more with tokens for thinking.
 * @throws AI_PROVIDER_ERROR, also for an answer without text; other errors of the model call, the reason of the signal
 */
export async function callHelper(services: Services, model: HelperModel, call: HelperCall): Promise<ModelAnswer> {
  try {
    return await answerOf(services, model, call)
  } catch (error) {
    if (!call.request.signal.aborted) helperFailures.inc({ helper: call.helper })
    throw error
  }
}

async function answerOf(
  services: Services,
  model: HelperModel,
  { helper, key, request, meter }: HelperCall,
): Promise<ModelAnswer> {
  const providers = model.route ? model.route.providers : [model.provider]
  const findings = (id: string, name: string) => {
    const provider = providers.find(each => each.id === id)
    return provider && findingsOf(services, provider, name)
  }
  const targets = model.route ? model.route.route.targets : [{ ai_provider_id: model.provider.id, model: model.model }]
  const billed: UnusedAnswer[] = []
  const attempt = async (thinks: boolean) => {
    const answer = await callModelOf(services, model, {
      ...request,
      temperature: null,
      tools: [],
      tool_choice: null,
      output_schema: null,
      prompt_caching: false,
      reasoning: 'none',
      store: false,
      max_output_tokens: Math.max(OUTPUT_TOKENS, request.max_output_tokens ?? 0) + (thinks ? THINKING_TOKENS : 0),
      onUnused: unused => void billed.push(unused),
    })
    billed.push(answer)
    return answer
  }
  try {
    const knownToThink = targets.some(({ ai_provider_id, model }) => findings(ai_provider_id, model)?.has('thinks'))
    let answer = await attempt(knownToThink)
    if (isCutWhileThinking(answer) && !knownToThink) {
      findings(answer.ai_provider_id, answer.model)?.add(['thinks'])
      answer = await attempt(true)
    }
    return answer.text.trim() === '' ? raiseEmpty(helper, answer) : answer
  } finally {
    for (const [n, answer] of billed.entries()) {
      const { model, ai_provider_id } = answer
      const provider = providers.find(({ id }) => id === ai_provider_id)?.provider ?? 'unknown'
      await meter({
        idempotency_key: n === 0 ? key : `${key}:${n}`,
        meter_type: 'llm_tokens',
        provider,
        model,
        ai_provider_id,
        source: helper,
        ...answerUsage(answer),
      }).catch(error => services.log.error({ err: error, helper }, 'usage of a helper not recorded'))
    }
  }
}

function callModelOf(services: Services, model: HelperModel, request: ModelRequest): Promise<ModelAnswer> {
  if (model.provider) return callModel(services, model.provider, model.model, request)
  return callRoute(services, model.route, request, { step: 1, routing: routingRecorder(model.route, null) })
}

const isCutWhileThinking = ({ text, finish_reason }: ModelAnswer): boolean =>
  text.trim() === '' && finish_reason === 'length'

function raiseEmpty(helper: Helper, answer: ModelAnswer): never {
  const { finish_reason } = answer
  const problem = isCutWhileThinking(answer)
    ? 'was cut off before its text'
    : finish_reason === 'content-filter'
      ? 'was withheld'
      : 'is empty'
  return raise('AI_PROVIDER_ERROR', {
    message: `The answer of the model ${problem}`,
    meta: { reason: 'no_answer', helper, finish_reason, ai_provider_id: answer.ai_provider_id, model: answer.model },
  })
}

/** Returns the failure of a helper whose answer cannot be read, and counts it. */
export function unreadableAnswer(helper: Helper, message: string): AppError {
  helperFailures.inc({ helper })
  return new AppError('OUTPUT_SCHEMA_VALIDATION_FAILED', { message, meta: { helper } })
}
