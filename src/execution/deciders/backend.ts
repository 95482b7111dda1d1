import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { type AgentRow, agentKind } from '../agents/model.ts'
import { findAgentVersion } from '../agents/served-version.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { toolsOfAgent } from './agent-tools.ts'

/** Who answers the questions: an agent or a tool, never both. */
export type BackendRef = { agent_id?: string | null; tool_id?: string | null }

export type DeciderBackend =
  | { agent: AgentRow; agent_version: number; tool: null }
  | { agent: null; agent_version: null; tool: ToolRow }

/** What a call of a tool is given, which its presets must leave alone. */
const ARGUMENTS = ['input', 'questions']

/** Raises DECIDER_TOOL_NOT_CALLABLE for a tool that could not answer. */
export function requireCallableBackend(tool: ToolRow): void {
  const refuse = (message: string) => raise('DECIDER_TOOL_NOT_CALLABLE', { message, meta: { tool_id: tool.id } })
  if (tool.type !== 'http' && tool.type !== 'pipeline') refuse('The tool of a decider is of type http or pipeline')
  const pinned = ARGUMENTS.find(name => Object.hasOwn(tool.preset_parameters ?? {}, name))
  if (pinned) refuse(`The presets of the tool fix ${pinned}, which a decider fills in`)
}

/** Raises DECIDER_AGENT_NOT_TOOL_LESS for an agent that may call something. */
function requireToolLess(agent: AgentRow): void {
  const tools = toolsOfAgent(agent)
  if (tools.length > 0) raise('DECIDER_AGENT_NOT_TOOL_LESS', { meta: { agent_id: agent.id, tools } })
}

async function requireAgent(db: Queryable, projectId: string, id: string): Promise<DeciderBackend> {
  const live = isIdOf(agentKind, id) ? await agentKind.find(db, id) : null
  if (live?.project_id !== projectId) return raise('AGENT_NOT_FOUND', { meta: { id } })
  // Whom a release serves its canary is drawn by end users; decisions have none.
  const agent_version = live.active_release?.stable_version ?? live.version
  const agent = agent_version === live.version ? live : await findAgentVersion(db, id, agent_version)
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

/**
 * The backend that a row names, as it is asked now; an agent in the version that is served.
 * @throws VALIDATION_FAILED unless exactly one is named, AGENT_NOT_FOUND, TOOL_NOT_FOUND, DECIDER_AGENT_NOT_TOOL_LESS,
 *   DECIDER_TOOL_NOT_CALLABLE
 */
export async function resolveBackend(
  db: Queryable,
  projectId: string,
  { agent_id, tool_id }: BackendRef,
): Promise<DeciderBackend> {
  if ((agent_id == null) === (tool_id == null))
    return raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'tool_id',
      message: 'exactly one of tool_id and agent_id must be set',
    })
  return tool_id == null ? requireAgent(db, projectId, agent_id as string) : requireTool(db, projectId, tool_id)
}

/** Who has an agent or a tool asked must be allowed to ask it. Raises FORBIDDEN. */
export function requireBackendPermission(allow: Context['allow'], { agent, tool }: DeciderBackend): void {
  if (agent) allow('agents:CreateAgentGeneration', { kind: agentKind, row: agent })
  else allow('tools:CallTool', { kind: toolKind, row: tool })
}
