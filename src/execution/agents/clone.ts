import { copyAuthor } from '#core/resources/version.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { projectKind } from '#identity/projects/model.ts'
import { copyRoutes } from '../model-routes/clone.ts'
import { copyProviders } from '../providers/clone.ts'
import { withoutSecretsOf } from '../tools/clone.ts'
import { guardrailCopies } from '../tools/guardrail-gate.ts'
import { type AgentRow, agentKind } from './model.ts'
import { listProjectAgents } from './store.ts'
import { agentVersions } from './versions.ts'

/**
 * Copies agents together with the providers, model routes and guardrails that they use, including the default route.
 * Versions, releases and avatars are not copied. Tools are bound if they are copied as well; inline definitions lose the
 * fields that reference secrets.
 */
export const agentCloning: Cloneable = {
  name: 'agents',
  async copy(tx, from, to, ids, by) {
    const agents = await listProjectAgents(tx, from)
    const inherited = (await projectKind.find(tx, from))?.default_model_route_id ?? null
    const routes = agents.flatMap(agent => [
      agent.model_route_id ?? (agent.ai_provider_id === null ? inherited : null),
      agent.summary_model_route_id,
    ])
    await copyProviders(tx, from, to, ids, new Set(agents.map(agent => agent.ai_provider_id)))
    const describers = agents.map(({ media }) => media?.describe_model_route_id ?? null)
    await copyRoutes(tx, from, to, ids, new Set([...routes, ...describers]))
    await guardrailCopies.only()?.(tx, from, to, ids, by)
    for (const agent of agents) {
      const copied = (id: string | null) => id && (ids.get(id) as string)
      const bound = { ai_provider_id: copied(agent.ai_provider_id), model_route_id: copied(agent.model_route_id) }
      const guardrail_ids = agent.guardrail_ids?.map(id => ids.get(id) as string) ?? null
      const describer = agent.media?.describe_model_route_id
      const media =
        describer == null ? agent.media : { ...agent.media, describe_model_route_id: ids.get(describer) ?? null }
      const config = {
        ...agentVersions.configOf(agent),
        ...bound,
        ...copiedTools(agent, ids),
        guardrail_ids,
        media,
        context_policy: copiedPolicy(agent, ids),
        avatar_file_id: null,
      }
      const copy = await agentVersions.insert(tx, { ...config, project_id: to }, copyAuthor(by.caller))
      ids.set(agent.id, copy.id)
      tx.emit(agentKind, 'created', copy)
    }
  },
}

/** Returns the context policy of an agent with the copy of its route. */
const copiedPolicy = ({ context_policy }: AgentRow, ids: ReadonlyMap<string, string>): AgentRow['context_policy'] =>
  context_policy?.summary_model_route_id == null
    ? context_policy
    : { ...context_policy, summary_model_route_id: ids.get(context_policy.summary_model_route_id) ?? null }

/**
 * Returns the bindings and tool settings of an agent with tool IDs replaced by their copies; tools without a copy are
 * dropped.
 */
function copiedTools(agent: AgentRow, ids: ReadonlyMap<string, string>) {
  const copied = (originals: string[] | null | undefined) => originals?.flatMap(id => ids.get(id) ?? [])
  return {
    tool_bindings:
      agent.tool_bindings?.flatMap(({ tool_id, tool }) => {
        if (tool) return { tool: { ...tool, ...withoutSecretsOf(tool) } }
        const copy = ids.get(tool_id as string)
        return copy === undefined ? [] : { tool_id: copy }
      }) ?? null,
    active_tool_ids: copied(agent.active_tool_ids) ?? null,
    step_rules:
      agent.step_rules?.map(rule => ({
        ...rule,
        ...(rule.active_tool_ids && { active_tool_ids: copied(rule.active_tool_ids) }),
      })) ?? null,
  }
}
