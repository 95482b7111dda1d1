import { raise, raiseInvalid } from '#core/base/errors.ts'
import { secretKind } from '#identity/secrets/model.ts'
import { checkTokens, tokenIds } from '#identity/secrets/resolve.ts'
import { checkDefinition, type DefinitionCheck } from '../tools/check-definition.ts'
import { toolKind, withToolDefaults } from '../tools/model.ts'
import { resolveSharedTools } from '../tools/resolve.ts'
import { secretTextsOf } from '../tools/tokens.ts'
import type { AgentConfig, AgentRow, StepRule, StopCondition, ToolBinding, ToolChoice } from './model.ts'

type BoundIds = Partial<Pick<AgentRow, 'tool_ids' | 'secret_ids'>>

/** Returns the bindings with duplicates of project tools removed. */
export const uniqueBindings = (bindings: readonly ToolBinding[]): ToolBinding[] =>
  bindings.filter(
    ({ tool_id }, index) => tool_id === undefined || bindings.findIndex(each => each.tool_id === tool_id) === index,
  )

/** Returns the tool and secret IDs that bindings reference, as columns of the agent. */
export function boundIds(bindings: readonly ToolBinding[] | null): Required<BoundIds> {
  const tool_ids = (bindings ?? []).flatMap(({ tool_id }) => tool_id ?? [])
  const secret_ids = tokenIds(
    (bindings ?? []).flatMap(({ tool }) => (tool ? secretTextsOf(withToolDefaults(tool)) : [])),
  )
  return { tool_ids: tool_ids.length > 0 ? tool_ids : null, secret_ids: secret_ids.length > 0 ? secret_ids : null }
}

/**
 * Validates the bindings that a write would store. Writing an agent must not give access to tools or secrets that the
 * caller may not use, so each tool that was not bound before, and each secret, requires its permission.
 * @throws VALIDATION_FAILED, TOOL_NOT_FOUND, FORBIDDEN, SECRET_NOT_FOUND, and the errors of a tool definition
 */
export async function checkBindings(
  checking: DefinitionCheck,
  bindings: readonly ToolBinding[],
  stored: BoundIds,
): Promise<void> {
  const { tx, allow, project_id } = checking
  for (const [index, { tool_id, tool }] of bindings.entries())
    if ((tool_id === undefined) === (tool === undefined))
      raiseInvalid({
        code: 'INVALID_VALUE',
        path: `tool_bindings[${index}]`,
        message: 'exactly one of tool_id and tool must be set',
      })
  const referenced = boundIds(bindings)
  if (referenced.tool_ids) {
    const found = await resolveSharedTools(tx, project_id, referenced.tool_ids, true)
    const missing = referenced.tool_ids.find(id => !found.has(id))
    if (missing !== undefined) raise('TOOL_NOT_FOUND', { meta: { id: missing } })
  }
  for (const id of referenced.tool_ids ?? [])
    if (!stored.tool_ids?.includes(id)) allow('tools:CallTool', { kind: toolKind, row: { id, project_id } })
  const texts: string[] = []
  for (const [index, { tool }] of bindings.entries()) {
    if (!tool) continue
    const definition = withToolDefaults(tool)
    await checkDefinition(checking, definition, `tool_bindings[${index}].tool.`)
    texts.push(...secretTextsOf(definition))
  }
  for (const id of referenced.secret_ids ?? [])
    allow('secrets:UseSecret', { kind: secretKind, row: { id, project_id } })
  await checkTokens(tx, project_id, texts)
}

type ToolSettings = {
  tool_choice?: ToolChoice | null
  active_tool_ids?: string[] | null
  step_rules?: StepRule[] | null
  stop_conditions?: StopCondition[] | null
}

/**
 * Validates tool settings against the bindings.
 * @throws TOOL_NOT_FOUND for a tool that is not bound, FORCED_TOOL_CHOICE_CANNOT_STOP
 */
export function checkToolSettings(settings: ToolSettings, bindings: AgentConfig['tool_bindings']): void {
  const bound = new Set((bindings ?? []).flatMap(({ tool_id }) => tool_id ?? []))
  const ids = [settings.active_tool_ids, ...(settings.step_rules ?? []).map(rule => rule.active_tool_ids)].flatMap(
    each => each ?? [],
  )
  const unbound = ids.find(id => !bound.has(id))
  if (unbound !== undefined)
    raise('TOOL_NOT_FOUND', { message: `Tool ${unbound} is not bound to the agent`, meta: { id: unbound } })
  const { tool_choice, stop_conditions } = settings
  const forces =
    typeof tool_choice === 'object' && tool_choice !== null
      ? tool_choice.type === 'tool' || tool_choice.mode === 'required'
      : tool_choice === 'required'
  if (forces && !stop_conditions?.some(({ type }) => type === 'has_tool_call')) raise('FORCED_TOOL_CHOICE_CANNOT_STOP')
}
