import { isDeepStrictEqual } from 'node:util'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { requireAll, requireReferences } from '../../core/api/references.ts'
import { type AgentRow, agentKind } from '../agents/model.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { type MemoryRuleRow, memoryRuleKind } from './model.ts'

/** What a tool is told of a turn, which presets must leave alone. */
const RESERVED = ['event', 'memory_rule_id', 'agent_id', 'generation_id', 'conversation_id', 'transcript']

/** Tools whose calls name one of several operations. */
const BY_ACTION = ['mcp', 'platform']

type Settings = Pick<
  MemoryRuleRow,
  | 'project_id'
  | 'on'
  | 'source_agent_ids'
  | 'agent_id'
  | 'tool_id'
  | 'action'
  | 'preset_parameters'
  | 'prompt'
  | 'ai_provider_id'
  | 'model'
>

const wrong = (path: string, message: string): never => raiseInvalid({ code: 'INVALID_VALUE', path, message })

/** Refuses fields that do not go together. */
function checkFields(rule: Settings): void {
  const { on, agent_id, tool_id, action, preset_parameters } = rule
  if (agent_id !== null && tool_id !== null) wrong('tool_id', 'does not go with agent_id; clear one')
  if (tool_id === null && action !== null) wrong('action', 'is for tools only')
  if (tool_id === null && preset_parameters !== null) wrong('preset_parameters', 'is for tools only')
  const handled = agent_id !== null || tool_id !== null
  for (const name of ['prompt', 'ai_provider_id', 'model'] as const)
    if (handled && rule[name] !== null) wrong(name, 'is for rules without agent_id and tool_id')
  if (!handled && on === 'conversation_messages.generated') wrong('on', 'needs agent_id or tool_id')
  const reserved = RESERVED.find(name => Object.hasOwn(preset_parameters ?? {}, name))
  if (reserved) wrong(`preset_parameters.${reserved}`, 'is filled in by the platform')
}

function checkTool({ type }: ToolRow, action: string | null): void {
  if (type === 'client') wrong('tool_id', 'a client tool cannot be called by the platform')
  if (BY_ACTION.includes(type) && action === null) wrong('action', `is required for ${type} tools`)
  if (!BY_ACTION.includes(type) && action !== null) wrong('action', `a tool of type ${type} has one operation`)
}

/**
 * Validates a rule as a write would leave it. A writer who has an agent or a tool asked, about other turns or with other
 * arguments, must be allowed to ask it.
 * @param stored null for a rule that does not exist yet
 * @returns whether what is asked of the handler changes: the rule acts as its writer from then on
 * @throws VALIDATION_FAILED, AGENT_NOT_FOUND, TOOL_NOT_FOUND, AI_PROVIDER_NOT_FOUND, FORBIDDEN
 */
export async function checkMemoryRule(
  { tx, allow }: Pick<Context, 'tx' | 'allow'>,
  rule: Settings,
  stored: MemoryRuleRow | null,
): Promise<{ newHandler: boolean }> {
  checkFields(rule)
  const { project_id, agent_id, tool_id, action, preset_parameters, source_agent_ids } = rule
  await requireReferences(tx, memoryRuleKind, project_id, { agent_id, tool_id, ai_provider_id: rule.ai_provider_id })
  if (source_agent_ids && !isDeepStrictEqual(source_agent_ids, stored?.source_agent_ids))
    await requireAll(tx, agentKind, project_id, source_agent_ids)
  const tool = tool_id === null ? null : await rowOf<ToolRow>(tx, toolKind, tool_id)
  if (tool) checkTool(tool, action)
  const given = { agent_id, tool_id, action, preset_parameters, source_agent_ids, on: rule.on }
  const newHandler =
    !stored ||
    Object.entries(given).some(([name, value]) => !isDeepStrictEqual(value, stored[name as keyof typeof given]))
  if (newHandler) {
    if (agent_id !== null) await rowOf<AgentRow>(tx, agentKind, agent_id)
    allowHandler({ allow }, rule)
  }
  return { newHandler }
}

/** Raises FORBIDDEN for a caller who may not ask the handler of a rule. */
export function allowHandler({ allow }: Pick<Context, 'allow'>, { project_id, agent_id, tool_id }: Settings): void {
  if (tool_id !== null) allow('tools:CallTool', { kind: toolKind, row: { id: tool_id, project_id } })
  if (agent_id !== null) allow('agents:CreateAgentGeneration', { kind: agentKind, row: { id: agent_id, project_id } })
}

async function rowOf<Row>(tx: Context['tx'], kind: typeof agentKind | typeof toolKind, id: string): Promise<Row> {
  const row = isIdOf(kind, id) ? await kind.find(tx, id) : null
  return (row as Row | null) ?? raise(kind.missing, { meta: { id } })
}
