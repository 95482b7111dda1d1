import { checkSpend } from '#control/quotas/spend.ts'
import { type Attribution, recordUsage } from '#control/usage/meter.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { callHelper, type HelperModel, type HelperUsage } from '../model-routes/helper-call.ts'
import { findRoute } from '../model-routes/store.ts'
import { aiProviderKind } from '../providers/model.ts'
import type { ModelAnswer } from '../providers/model-messages.ts'
import type { AgentRow } from './model.ts'

/** A call of an agent's model besides its turns, on whose behalf it is metered, and as what. */
export type AgentModelCall = Required<Pick<Attribution, 'actor_id' | 'session_id'>> & {
  /** In the version whose model is called. */
  agent: AgentRow
  /** Route to call instead of the model of the agent. */
  model_route_id?: string | null
  source: 'summary' | 'title'
  /** Idempotency key of the usage, unique for each call. */
  key: string
  system: string
  content: string
  /** Beyond the tokens of a helper. */
  max_output_tokens?: number
  signal: AbortSignal
}

/**
 * Makes a call without tools of an agent's model, and meters it.
 * @throws QUOTA_EXCEEDED, QUOTA_UNENFORCEABLE, PROJECT_PAUSED, AI_PROVIDER_NOT_FOUND, MODEL_ROUTE_NOT_FOUND, errors of a
 *   model call; the reason of the signal
 */
export async function callAgentModel(services: Services, call: AgentModelCall): Promise<ModelAnswer> {
  const { agent, actor_id, system, content, max_output_tokens, signal } = call
  const model = await findModel(services, call)
  await checkSpend(services, { project_id: agent.project_id, agent_id: agent.id, actor_id })
  return callHelper(services, model, {
    helper: call.source,
    key: `${call.source}:${call.key}`,
    request: { system, messages: [{ role: 'user', content }], max_output_tokens, signal },
    meter: usage => recordCallUsage(services, call, usage),
  })
}

/** Returns the route of the call, else the provider or route of the agent, else the default route of the project. */
async function findModel({ pool }: Services, { agent, model_route_id = null }: AgentModelCall): Promise<HelperModel> {
  if (model_route_id === null && agent.ai_provider_id !== null) {
    const provider =
      (await aiProviderKind.find(pool, agent.ai_provider_id)) ??
      raise('AI_PROVIDER_NOT_FOUND', { meta: { id: agent.ai_provider_id } })
    return { provider, model: agent.model ?? provider.default_model, route: null }
  }
  const consumer = {
    ai_provider_id: null,
    model_route_id: model_route_id ?? agent.model_route_id,
    project_id: agent.project_id,
  }
  const route = await findRoute(pool, consumer)
  return {
    provider: null,
    model: null,
    route: route ?? raise('MODEL_ROUTE_NOT_FOUND', { meta: { id: consumer.model_route_id } }),
  }
}

const recordCallUsage = (
  services: Services,
  { agent, actor_id, session_id }: AgentModelCall,
  usage: HelperUsage,
): Promise<unknown> =>
  recordUsage(services, [{ ...usage, project_id: agent.project_id, agent_id: agent.id, actor_id, session_id }])
