import { raise } from '../../../core/api/errors.ts'
import type { Services } from '../../../core/process/services.ts'
import type { AgentRow } from '../../agents/model.ts'
import { callRoute, routingRecorder } from '../../model-routes/call.ts'
import type { LoadedRoute } from '../../model-routes/store.ts'
import { callModel } from '../../providers/call.ts'
import type { ProviderRow } from '../../providers/model.ts'
import type { ModelAnswer, ModelRequest, PromptMessage } from '../../providers/model-messages.ts'
import type { GenerationRow, TurnData } from '../model.ts'
import type { Toolbox, TurnTool } from '../tools/toolbox.ts'
import { outputSchemaOf, type stepSettings } from './step-settings.ts'

type Settings = ReturnType<typeof stepSettings>

/** The tools that a step may call: of those that the turn has, the active ones and the definitions of the agent's own. */
export const activeTools = ({ tools }: Toolbox, { active }: Settings): ReadonlyMap<string, TurnTool> =>
  active === null
    ? tools
    : new Map([...tools].filter(([, { callable }]) => callable.id === null || active.has(callable.id)))

/** What the model is told about its tools: nothing without any, and no forced call of one that is not there. */
export function offeredTools(
  tools: ReadonlyMap<string, TurnTool>,
  { tool_choice }: Settings,
): Pick<ModelRequest, 'tools' | 'tool_choice'> {
  if (tools.size === 0) return { tools: [], tool_choice: null }
  const unknown = typeof tool_choice === 'object' && tool_choice !== null && !tools.has(tool_choice.tool_name)
  return {
    tools: [...tools.values()].map(({ name, description, schema }) => ({ name, description, parameters: schema })),
    tool_choice: unknown ? 'auto' : tool_choice,
  }
}

type Asked = {
  generation: GenerationRow
  agent: AgentRow
  work: TurnData
  provider: ProviderRow | null
  /** Without a provider. */
  route: LoadedRoute | null
  step: number
  messages: PromptMessage[]
  /** What stands at the end of the system text. */
  note: string | null
  offered: Pick<ModelRequest, 'tools' | 'tool_choice'>
  signal: AbortSignal
  /** Given: the answer is streamed. */
  onDelta?: (text: string) => void
}

/**
 * Asks the model of an agent for the next step. With a route, how the call went is noted in the `routing` of the generation
 * while it is made.
 * @throws MODEL_ROUTE_NOT_FOUND, AI_PROVIDER_NOT_FOUND when what the served version names is gone; what a model call raises
 */
export function requestStep(
  services: Services,
  { generation, agent, work, provider, route, step, messages, note, offered, signal, onDelta }: Asked,
): { generation: GenerationRow; answer: Promise<ModelAnswer> } {
  const system = [agent.instructions ?? '', ...work.system_extra, note ?? '']
    .map(part => part.trim())
    .filter(part => part !== '')
  const request: ModelRequest = {
    system: system.length > 0 ? system.join('\n\n') : null,
    messages,
    temperature: agent.temperature,
    ...offered,
    output_schema: outputSchemaOf(agent, work),
    prompt_caching: agent.prompt_caching?.enabled ?? false,
    max_output_tokens: agent.max_output_tokens,
    top_p: agent.top_p,
    seed: agent.seed,
    provider_options: agent.provider_options,
    signal,
    ...(onDelta ? { onDelta } : {}),
  }
  if (provider) {
    const model = work.model ?? agent.model ?? provider.default_model
    return { generation, answer: callModel(services, provider, model, request) }
  }
  // Of an agent that has changed since, what its version names may be gone.
  if (!route)
    raise(agent.ai_provider_id === null ? 'MODEL_ROUTE_NOT_FOUND' : 'AI_PROVIDER_NOT_FOUND', {
      meta: { id: agent.ai_provider_id ?? agent.model_route_id ?? undefined },
    })
  // Noted while the call is made, and written with its step or with the failure of the turn.
  const routing = routingRecorder(route, generation.routing, generation.publisher_project_id)
  return { generation: { ...generation, routing }, answer: callRoute(services, route, request, { step, routing }) }
}
