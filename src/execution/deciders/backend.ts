import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type AgentRow, agentKind } from '../agents/model.ts'
import { findAgentVersion } from '../agents/served-version.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'

/** Agent or tool that answers the questions; exactly one is set. */
export type BackendRef = { agent_id?: string | null; tool_id?: string | null }

export type DeciderBackend =
  | { agent: AgentRow; agent_version: number; tool: null }
  | { agent: null; agent_version: null; tool: ToolRow }

/** Arguments of a tool call that its presets must not fix. */
const ARGUMENTS = ['input', 'questions']

/** Raises DECIDER_TOOL_NOT_CALLABLE for a tool that cannot answer a decider. */
export function requireCallableBackend(tool: ToolRow): void {
  const refuse = (message: string) => raise('DECIDER_TOOL_NOT_CALLABLE', { message, meta: { tool_id: tool.id } })
  if (tool.type !== 'http' && tool.type !== 'pipeline')
    refuse(`Tool ${tool.id} is of type ${tool.type}; a decider requires type http or pipeline`)
  const pinned = ARGUMENTS.find(name => Object.hasOwn(tool.preset_parameters ?? {}, name))
  if (pinned) refuse(`Presets of tool ${tool.id} fix ${pinned}, which a decider sets`)
}

/** Returns the tool ids and inline tool names that an agent may call; empty for an agent that only answers. */
function callableTools({ tool_bindings, active_tool_ids, knowledge_config }: AgentRow): string[] {
  const isActive = (id: string): boolean => !active_tool_ids?.length || active_tool_ids.includes(id)
  const writing = knowledge_config?.write_memory_store_id == null ? [] : ['write_memory']
  const bound = (tool_bindings ?? []).flatMap(({ tool_id, tool }) => {
    if (tool_id === undefined) return tool ? [tool.name] : []
    return isActive(tool_id) ? [tool_id] : []
  })
  return [...writing, ...bound]
}

/** Raises DECIDER_AGENT_NOT_TOOL_LESS for an agent that may call a tool. */
function requireToolLess(agent: AgentRow): void {
  const tools = callableTools(agent)
  if (tools.length > 0) raise('DECIDER_AGENT_NOT_TOOL_LESS', { meta: { agent_id: agent.id, tools } })
}

async function requireAgent(db: Queryable, projectId: string, id: string): Promise<DeciderBackend> {
  const current = isIdOf(agentKind, id) ? await agentKind.find(db, id) : null
  if (current?.project_id !== projectId) return raise('AGENT_NOT_FOUND', { meta: { id } })
  // A canary is assigned by end user; decisions have none and use the stable version.
  const agent_version = current.active_release?.stable_version ?? current.version
  const agent = agent_version === current.version ? current : await findAgentVersion(db, id, agent_version)
  if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id } })
  requireToolLess(agent)
  return { agent, agent_version, tool: null }
}

async function requireTool(db: Queryable, projectId: string, id: string): Promise<DeciderBackend> {
  const tool = isIdOf(toolKind, id) ? await toolKind.find(db, id) : null
  if (tool?.project_id !== projectId) return raise('TOOL_NOT_FOUND', { meta: { id } })
  requireCallableBackend(tool)
  return { agent: null, agent_version: null, tool }
}

/** Raises VALIDATION_FAILED unless exactly one of an agent and a tool is set. */
export function checkBackendFields({ agent_id, tool_id }: BackendRef): void {
  if ((agent_id == null) === (tool_id == null))
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'tool_id',
      message: 'exactly one of tool_id and agent_id must be set',
    })
}

/**
 * Returns the backend of a decider or decision; an agent in its served version.
 * @throws VALIDATION_FAILED unless exactly one is set, AGENT_NOT_FOUND, TOOL_NOT_FOUND, DECIDER_AGENT_NOT_TOOL_LESS,
 *   DECIDER_TOOL_NOT_CALLABLE
 */
export async function resolveBackend(
  db: Queryable,
  projectId: string,
  { agent_id, tool_id }: BackendRef,
): Promise<DeciderBackend> {
  checkBackendFields({ agent_id, tool_id })
  return tool_id == null ? requireAgent(db, projectId, agent_id as string) : requireTool(db, projectId, tool_id)
}

/**
 * Requires the caller's permission to use the agent or call the tool.
 * @throws FORBIDDEN
 */
export function requireBackendPermission(allow: Context['allow'], { agent, tool }: DeciderBackend): void {
  if (agent) allow('agents:CreateAgentGeneration', { kind: agentKind, row: agent })
  else allow('tools:CallTool', { kind: toolKind, row: tool })
}
