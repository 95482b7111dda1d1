import type { Queryable } from '../../core/db/sql.ts'
import { agentVersions, readConfig } from '../agents/archive.ts'
import { findAgent } from '../agents/model.ts'
import { grantingShares } from '../shares/grants.ts'
import type { Callable } from '../tools/call-model.ts'
import { complete } from '../tools/model.ts'
import { actionSchema, platformActions } from '../tools/platform.ts'
import { resolveSharedTool } from '../tools/resolve.ts'
import type { ApprovalRow } from './model.ts'

/** The tool of an item as it is now; of one that a binding defines, as the version of the agent had it. Null when it is gone. */
export async function toolOf(db: Queryable, row: ApprovalRow): Promise<Callable | null> {
  const { proposed_action, project_id, agent_id } = row
  if (!proposed_action) return null
  const { tool_id } = proposed_action
  const agent = agent_id === null ? null : await findAgent(db, agent_id)
  const owner = agent?.project_id ?? project_id
  const shared = owner !== project_id
  if (shared && !(await grantingShares(db, 'agent', project_id, [agent_id as string])).has(agent_id as string))
    return null
  const found = tool_id !== null ? await resolveSharedTool(db, owner, tool_id) : await ownTool(db, owner, row)
  // A shared agent calls its own tools in the name of the project that it runs in.
  return found && shared && !found.consumer ? { ...found, consumer: { project_id, share: null } } : found
}

/** A tool that a binding of the agent defines. */
async function ownTool(db: Queryable, project_id: string, row: ApprovalRow): Promise<Callable | null> {
  const { agent_id, agent_version, proposed_action } = row
  if (agent_id === null || agent_version === null) return null
  const [version] = await agentVersions.find(db, agent_id, [agent_version])
  const bindings = version ? readConfig(version.config).tool_bindings : null
  const definition = bindings?.find(({ tool }) => tool?.name === proposed_action?.tool_name)?.tool
  return definition ? { ...complete(definition), id: null, project_id, guardrail_ids: null } : null
}

/** The operation that a platform tool calls; null for any other tool. */
const operationOf = ({ type }: Callable, action: string | undefined) =>
  (type === 'platform' && action !== undefined && platformActions().get(action)) || null

/** The schema that the arguments of a call satisfy; null where none is known. */
export const argumentsSchema = (tool: Callable, action: string | undefined): object | null => {
  const operation = operationOf(tool, action)
  return operation ? actionSchema(operation) : tool.parameters
}

/** Whether a call that may have been made can be made again. */
export const isRepeatable = (tool: Callable, action: string | undefined): boolean =>
  tool.idempotent || (operationOf(tool, action)?.reads ?? false)
