import { randomUUID } from 'node:crypto'
import { answerUsage, recordUsageWith, type UsageDraft, type UsedAnswer } from '#control/usage/meter.ts'
import type { Services } from '#core/base/services.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { callRoute, routingRecorder } from '#execution/model-routes/call.ts'
import { callModel } from '#execution/providers/call.ts'
import { estimatedUsage } from '#execution/providers/estimated-usage.ts'
import type { ModelAnswer, ModelRequest, UnusedAnswer } from '#execution/providers/model-messages.ts'
import type { ServedTarget } from './store.ts'

/** Target of a completion. `model` null is the default of the provider or of the target of the route. */
export type CompletionTarget = ServedTarget & { project_id: string; model: string | null }

/** Returns the model that is called first. */
export const modelOf = ({ provider, route, model }: CompletionTarget): string =>
  provider ? (model ?? provider.default_model) : (route?.route.targets[0].model ?? '')

/**
 * Makes one model call and meters its usage, and the usage of answers that it did not return, also of those that were aborted.
 * @param onAnswer adds to the statement that writes the usage of an answer
 * @throws errors of the model call; the reason of the signal
 */
export async function runCompletion(
  services: Services,
  target: CompletionTarget,
  request: ModelRequest,
  onAnswer?: (outbox: Outbox) => void,
): Promise<ModelAnswer> {
  const { provider, route } = target
  const routing = route && routingRecorder(route, null)
  const unused: UnusedAnswer[] = []
  const counted: ModelRequest = {
    ...request,
    ...(target.project?.trace_content_mode === 'none' && { store: false }),
    onUnused: answer => void unused.push(answer),
  }
  try {
    const answer =
      route && routing
        ? await callRoute(services, route, counted, { step: 1, routing })
        : await callModel(services, provider as NonNullable<typeof provider>, modelOf(target), counted)
    const usage = answer.usage ?? estimatedUsage(request, answer.text.length)
    await meterCompletion(services, target, { ...answer, usage }, onAnswer)
    return answer
  } finally {
    for (const answer of unused) await meterCompletion(services, target, answer)
  }
}

/** Records the usage of a completion. Errors are only logged, because usage never fails the work. */
async function meterCompletion(
  services: Services,
  { project_id, provider, route }: CompletionTarget,
  answer: UsedAnswer & { ai_provider_id: string | null; model: string },
  add?: (outbox: Outbox) => void,
): Promise<void> {
  const { ai_provider_id, model } = answer
  const served = [provider, ...(route?.providers ?? [])].find(row => row?.id === ai_provider_id)
  const draft: UsageDraft = {
    idempotency_key: `completion:chat:${randomUUID()}`,
    project_id,
    meter_type: 'llm_tokens',
    provider: served?.provider ?? 'unknown',
    model,
    ai_provider_id,
    source: 'chat',
    ...answerUsage(answer),
  }
  await recordUsageWith(services, [draft], add).catch(error =>
    services.log.error({ err: error, project_id }, 'completion usage not recorded'),
  )
}
