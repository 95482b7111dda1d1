import type { Queryable } from '#core/db/sql.ts'
import { findAgent, readConfig } from '../agents/model.ts'
import { agentVersions } from '../agents/versions.ts'
import { findGrantingShares } from '../grants/grants.ts'
import type { Callable } from '../tools/call-types.ts'
import { withToolDefaults } from '../tools/model.ts'
import { actionSchema, platformActions } from '../tools/platform.ts'
import { resolveSharedTool } from '../tools/resolve.ts'
import type { ApprovalRow } from './model.ts'

/**
 * Returns the current tool of an approval; an inline tool from the version of the agent that proposed the call. For an
 * agent of another project the tool runs as in its turns: with the agent's project as owner, not with the caller's
 * permissions. Null if the tool was deleted or the agent is no longer shared.
 */
export async function approvedTool(db: Queryable, row: ApprovalRow): Promise<Callable | null> {
  const { project_id, agent_id } = row
  if (!row.proposed_action) return null
  const agent = agent_id === null ? null : await findAgent(db, agent_id)
  const owner = agent?.project_id ?? project_id
  if (agent && owner !== project_id && !(await findGrantingShares(db, 'agent', project_id, [agent.id])).has(agent.id))
    return null
  const found = await proposedTool(db, row, owner)
  return found && owner !== project_id && !found.consumer ? { ...found, consumer: { project_id, share: null } } : found
}

async function proposedTool(
  db: Queryable,
  { proposed_action, agent_id, agent_version }: ApprovalRow,
  project_id: string,
): Promise<Callable | null> {
  const { tool_id = null } = proposed_action ?? {}
  if (tool_id !== null) return resolveSharedTool(db, project_id, tool_id)
  if (agent_id === null || agent_version === null) return null
  const [version] = await agentVersions.find(db, agent_id, [agent_version])
  const bindings = version ? readConfig(version.config).tool_bindings : null
  const definition = bindings?.find(({ tool }) => tool?.name === proposed_action?.tool_name)?.tool
  return definition ? { ...withToolDefaults(definition), id: null, project_id, guardrail_ids: null } : null
}

/** Returns the operation that a platform tool calls; null for any other tool. */
const platformOperation = ({ type }: Callable, action: string | undefined) =>
  (type === 'platform' && action !== undefined && platformActions().get(action)) || null

/** Returns the parameter schema of a call; null if unknown. */
export const approvedArgumentsSchema = (tool: Callable, action: string | undefined): object | null => {
  const operation = platformOperation(tool, action)
  return operation ? actionSchema(operation) : tool.parameters
}

/** Whether a call that may have been made can be repeated. */
export const isRepeatable = (tool: Callable, action: string | undefined): boolean =>
  tool.idempotent || (platformOperation(tool, action)?.reads ?? false)
