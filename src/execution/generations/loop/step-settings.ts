import type { AgentRow, StepRule, ToolChoice } from '../../agents/model.ts'
import type { StepSettings, TurnData } from '../model.ts'

type Settings = { tool_choice: ToolChoice | null; active: ReadonlySet<string> | null }
type Configured = Pick<AgentRow, 'tool_choice' | 'active_tool_ids' | 'step_rules' | 'stop_conditions'>
type Given = Pick<TurnData, 'overrides' | 'resumed'>

const ruleOf = (rules: readonly StepRule[] | null | undefined, step: number): StepSettings | undefined =>
  rules?.find(rule => rule.step === step)

/** Where the settings of a step are looked for, the first that says something counts. */
function layers(agent: Configured, { overrides, resumed }: Given, step: number): (StepSettings | undefined)[] {
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

const restriction = (ids: readonly string[] | undefined): ReadonlySet<string> | null =>
  ids === undefined || ids.length === 0 ? null : new Set(ids)

/** The settings of a step, by its number in the turn from 1. `active` null is no restriction. */
export function stepSettings(agent: Configured, work: Given, step: number): Settings {
  const found = layers(agent, work, step)
  const tool_choice = found.find(layer => layer?.tool_choice !== undefined)?.tool_choice ?? null
  const ids = found.find(layer => layer?.active_tool_ids !== undefined)?.active_tool_ids
  return { tool_choice, active: restriction(ids) }
}

/** Ids of the tools that any step from one on may call; null is no restriction. */
export function reachableTools(agent: Configured, work: Given, from: number): ReadonlySet<string> | null {
  const { overrides, resumed } = work
  const rules = [resumed.step_rules, overrides.step_rules, agent.step_rules].flatMap(each => each ?? [])
  // Behind the last rule all steps are alike.
  const steps = [...rules.map(({ step }) => step), resumed.next?.step ?? 0].filter(step => step >= from)
  const sets = [...steps, Number.MAX_SAFE_INTEGER].map(step => stepSettings(agent, work, step).active)
  return sets.includes(null) ? null : new Set(sets.flatMap(set => [...(set as ReadonlySet<string>)]))
}

/** JSON Schema that the answer satisfies; null for text. */
export const outputSchemaOf = (agent: Pick<AgentRow, 'output_schema'>, { overrides }: Pick<TurnData, 'overrides'>) =>
  overrides.output_schema ?? agent.output_schema

/** Names of the tools whose calls end the turn. */
export const stoppingTools = (agent: Configured, { overrides }: Pick<TurnData, 'overrides'>): ReadonlySet<string> =>
  new Set(
    (overrides.stop_conditions ?? agent.stop_conditions ?? []).flatMap(condition =>
      condition.type === 'has_tool_call' ? condition.tool_name : [],
    ),
  )
