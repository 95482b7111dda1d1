import { isDeepStrictEqual } from 'node:util'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { requireAll, requireReferences } from '#core/api/references.ts'
import { raise, raiseInvalidValue } from '#core/base/errors.ts'
import { type AgentRow, agentKind } from '../agents/model.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { type MemoryRuleRow, memoryRuleKind } from './model.ts'

/** Arguments that the platform sets and that presets must not fix. */
const RESERVED = ['event', 'memory_rule_id', 'agent_id', 'generation_id', 'conversation_id', 'transcript']

/** Tool types whose calls select one of several operations. */
const BY_ACTION = ['mcp', 'platform']

type RuleSettings = Pick<
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

/** Refuses invalid combinations of fields. */
export function checkFields(rule: Omit<RuleSettings, 'project_id'>): void {
  const { on, agent_id, tool_id, action, preset_parameters } = rule
  if (agent_id !== null && tool_id !== null) raiseInvalidValue('tool_id', 'cannot be combined with agent_id')
  if (tool_id === null && action !== null) raiseInvalidValue('action', 'is allowed only with tool_id')
  if (tool_id === null && preset_parameters !== null)
    raiseInvalidValue('preset_parameters', 'is allowed only with tool_id')
  const hasHandler = agent_id !== null || tool_id !== null
  for (const name of ['prompt', 'ai_provider_id', 'model'] as const)
    if (hasHandler && rule[name] !== null) raiseInvalidValue(name, 'cannot be combined with agent_id or tool_id')
  if (!hasHandler && on === 'conversation_messages.generated') raiseInvalidValue('on', 'requires agent_id or tool_id')
  const reserved = RESERVED.find(name => Object.hasOwn(preset_parameters ?? {}, name))
  if (reserved) raiseInvalidValue(`preset_parameters.${reserved}`, 'is set by the platform')
}

function checkTool({ type }: ToolRow, action: string | null): void {
  if (type === 'client') raiseInvalidValue('tool_id', 'is a client tool, which the platform cannot call')
  if (BY_ACTION.includes(type) && action === null) raiseInvalidValue('action', `is required for ${type} tools`)
  if (!BY_ACTION.includes(type) && action !== null)
    raiseInvalidValue('action', `is not allowed for tools of type ${type}`)
}

/**
 * Validates a rule as it would be stored. Setting an agent or tool, or changing its turns or arguments, requires the
 * caller's permission to use it.
 * @param stored null for a new rule
 * @returns whether the handler changes, after which the rule runs as the caller
 * @throws VALIDATION_FAILED, AGENT_NOT_FOUND, TOOL_NOT_FOUND, AI_PROVIDER_NOT_FOUND, FORBIDDEN
 */
export async function checkMemoryRule(
  { tx, allow }: Pick<Context, 'tx' | 'allow'>,
  rule: RuleSettings,
  stored: MemoryRuleRow | null,
): Promise<{ newHandler: boolean }> {
  checkFields(rule)
  const { project_id, agent_id, tool_id, action, preset_parameters, source_agent_ids } = rule
  await requireReferences(tx, memoryRuleKind, project_id, { agent_id, tool_id, ai_provider_id: rule.ai_provider_id })
  if (source_agent_ids && !isDeepStrictEqual(source_agent_ids, stored?.source_agent_ids))
    await requireAll(tx, agentKind, project_id, source_agent_ids)
  const tool = tool_id === null ? null : await requireRow<ToolRow>(tx, toolKind, tool_id)
  if (tool) checkTool(tool, action)
  const handlerFields = { agent_id, tool_id, action, preset_parameters, source_agent_ids, on: rule.on }
  const newHandler =
    !stored ||
    Object.entries(handlerFields).some(
      ([name, value]) => !isDeepStrictEqual(value, stored[name as keyof typeof handlerFields]),
    )
  if (newHandler) {
    if (agent_id !== null) await requireRow<AgentRow>(tx, agentKind, agent_id)
    allowHandler({ allow }, rule)
  }
  return { newHandler }
}

/** Raises FORBIDDEN unless the caller may use the handler of a rule. */
export function allowHandler({ allow }: Pick<Context, 'allow'>, { project_id, agent_id, tool_id }: RuleSettings): void {
  if (tool_id !== null) allow('tools:CallTool', { kind: toolKind, row: { id: tool_id, project_id } })
  if (agent_id !== null) allow('agents:CreateAgentGeneration', { kind: agentKind, row: { id: agent_id, project_id } })
}

async function requireRow<Row>(tx: Context['tx'], kind: typeof agentKind | typeof toolKind, id: string): Promise<Row> {
  const row = isIdOf(kind, id) ? await kind.find(tx, id) : null
  return (row as Row | null) ?? raise(kind.missing, { meta: { id } })
}
