import type { Queryable } from '../../core/db/sql.ts'
import { agentVersions, readConfig } from '../agents/archive.ts'
import type { Callable } from '../tools/call-model.ts'
import { complete } from '../tools/model.ts'
import { actionSchema, platformActions } from '../tools/platform.ts'
import { resolveSharedTool } from '../tools/resolve.ts'
import type { ApprovalRow } from './model.ts'

/** The tool of an item as it is now; of one that a binding defines, as the version of the agent had it. Null when it is gone. */
export async function toolOf(
  db: Queryable,
  { proposed_action, project_id, agent_id, agent_version }: ApprovalRow,
): Promise<Callable | null> {
  if (!proposed_action) return null
  const { tool_id, tool_name } = proposed_action
  if (tool_id !== null) return resolveSharedTool(db, project_id, tool_id)
  if (agent_id === null || agent_version === null) return null
  const [version] = await agentVersions.find(db, agent_id, [agent_version])
  const bindings = version ? readConfig(version.config).tool_bindings : null
  const definition = bindings?.find(({ tool }) => tool?.name === tool_name)?.tool
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
