import type { AgentRow, StepRule, ToolChoice } from '#execution/agents/model.ts'
import type { StepSettings, TurnData } from '../model.ts'

type Settings = { tool_choice: ToolChoice | null; active: ReadonlySet<string> | null }
type AgentSettings = Pick<AgentRow, 'tool_choice' | 'active_tool_ids' | 'step_rules' | 'stop_conditions'>
type TurnSettings = Pick<TurnData, 'overrides' | 'resumed'>

const ruleOf = (rules: readonly StepRule[] | null | undefined, step: number): StepSettings | undefined =>
  rules?.find(rule => rule.step === step)

/** Returns the settings of a step in order of precedence. */
function settingLayers(
  agent: AgentSettings,
  { overrides, resumed }: TurnSettings,
  step: number,
): (StepSettings | undefined)[] {
  return [
    resumed.next?.step === step ? resumed.next : undefined,
    ruleOf(resumed.step_rules, step),
    ruleOf(overrides.step_rules, step),
    ruleOf(agent.step_rules, step),
    resumed.defaults,
    overrides,
    { tool_choice: agent.tool_choice ?? undefined, active_tool_ids: agent.active_tool_ids ?? undefined },
  ]
}

const toolRestriction = (ids: readonly string[] | undefined): ReadonlySet<string> | null =>
  ids === undefined || ids.length === 0 ? null : new Set(ids)

/** Returns the settings of a step, by its number from 1. `active` null is unrestricted. */
export function stepSettings(agent: AgentSettings, data: TurnSettings, step: number): Settings {
  const found = settingLayers(agent, data, step)
  const tool_choice = found.find(layer => layer?.tool_choice !== undefined)?.tool_choice ?? null
  const ids = found.find(layer => layer?.active_tool_ids !== undefined)?.active_tool_ids
  return { tool_choice, active: toolRestriction(ids) }
}

/** Returns the ids of the tools that steps from `from` on may call; null is unrestricted. */
export function reachableTools(agent: AgentSettings, data: TurnSettings, from: number): ReadonlySet<string> | null {
  const { overrides, resumed } = data
  const rules = [resumed.step_rules, overrides.step_rules, agent.step_rules].flatMap(each => each ?? [])
  // All steps after the last rule have the same settings.
  const steps = [...rules.map(({ step }) => step), resumed.next?.step ?? 0].filter(step => step >= from)
  const sets = [...steps, Number.MAX_SAFE_INTEGER].map(step => stepSettings(agent, data, step).active)
  return sets.includes(null) ? null : new Set(sets.flatMap(set => [...(set as ReadonlySet<string>)]))
}

/** Returns the JSON Schema of the answer; null for text. */
export const outputSchemaOf = (agent: Pick<AgentRow, 'output_schema'>, { overrides }: Pick<TurnData, 'overrides'>) =>
  overrides.output_schema ?? agent.output_schema

/** Returns the names of the tools whose calls end the turn. */
export const stoppingTools = (agent: AgentSettings, { overrides }: Pick<TurnData, 'overrides'>): ReadonlySet<string> =>
  new Set(
    (overrides.stop_conditions ?? agent.stop_conditions ?? []).flatMap(condition =>
      condition.type === 'has_tool_call' ? condition.tool_name : [],
    ),
  )
