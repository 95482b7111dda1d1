import { randomUUID } from 'node:crypto'
import {
  estimatedTokens,
  recordUsage,
  type TokenCounts,
  tokenComponents,
  type UsageDraft,
} from '../../control/usage/meter.ts'
import type { Services } from '../../core/process/services.ts'
import { callRoute, routingRecorder } from '../../execution/model-routes/call.ts'
import { callModel } from '../../execution/providers/call.ts'
import type { ModelAnswer, ModelRequest } from '../../execution/providers/model-messages.ts'
import type { ServedTarget } from './store.ts'

/** What a completion goes to. `model` null is that of the provider, or of the target of the route. */
export type CompletionTarget = ServedTarget & { project_id: string; model: string | null }

/** The model that is asked first. */
export const modelOf = ({ provider, route, model }: CompletionTarget): string =>
  provider ? (model ?? provider.default_model) : (route?.route.targets[0].model ?? '')

/**
 * Asks a model once and meters what it used. A streamed call that its caller leaves is metered with an estimate of what it
 * was asked and had said.
 * @throws what a model call raises; the reason of the signal
 */
export async function runCompletion(
  services: Services,
  target: CompletionTarget,
  request: ModelRequest,
): Promise<ModelAnswer> {
  const { provider, route } = target
  const routing = route && routingRecorder(route, null)
  let said = 0
  const { onDelta } = request
  const counted: ModelRequest = onDelta
    ? {
        ...request,
        onDelta(text) {
          said += text.length
          onDelta(text)
        },
      }
    : request
  try {
    const answer =
      route && routing
        ? await callRoute(services, route, counted, { step: 1, routing })
        : await callModel(services, provider as NonNullable<typeof provider>, modelOf(target), counted)
    await meter(services, target, answer, answer.usage ?? estimate(request, answer.text.length))
    return answer
  } catch (error) {
    // What failed after it had begun to answer is paid for, too.
    if (said > 0) {
      const last = routing?.attempts.at(-1)
      const by = { ai_provider_id: last?.ai_provider_id ?? provider?.id ?? null, model: last?.model ?? modelOf(target) }
      await meter(services, target, by, estimate(request, said))
    }
    throw error
  }
}

function estimate({ system, messages }: ModelRequest, said: number): TokenCounts {
  const asked = messages.reduce((sum, { content }) => sum + textLength(content), system?.length ?? 0)
  return {
    input_tokens: estimatedTokens(asked),
    output_tokens: estimatedTokens(said),
    cached_tokens: 0,
    cache_write_tokens: 0,
    reasoning_tokens: 0,
  }
}

/** Characters of what a message says; files are not counted. */
function textLength(content: ModelRequest['messages'][number]['content']): number {
  if (typeof content === 'string') return content.length
  return content.reduce((sum, part) => {
    if (part.type === 'text') return sum + part.text.length
    if (part.type === 'tool_call') return sum + JSON.stringify(part.args).length
    return part.type === 'tool_result' ? sum + String(part.result).length : sum
  }, 0)
}

/** What goes wrong is logged: usage never fails the work. */
async function meter(
  services: Services,
  { project_id, provider, route }: CompletionTarget,
  { ai_provider_id, model }: { ai_provider_id: string | null; model: string },
  counts: TokenCounts,
): Promise<void> {
  const served = [provider, ...(route?.providers ?? [])].find(row => row?.id === ai_provider_id)
  const draft: UsageDraft = {
    idempotency_key: `completion:chat:${randomUUID()}`,
    project_id,
    meter_type: 'llm_tokens',
    provider: served?.provider ?? 'unknown',
    model,
    ai_provider_id,
    source: 'chat',
    components: tokenComponents(counts),
  }
  await recordUsage(services, [draft]).catch(error =>
    services.log.error({ err: error, project_id }, 'usage of a completion not recorded'),
  )
}
