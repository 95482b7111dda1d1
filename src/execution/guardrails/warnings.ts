import type { Problem } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { RootRead } from '#core/expressions/references.ts'
import type { GuardedTool } from '../tools/guardrail-gate.ts'
import { withToolDefaults } from '../tools/model.ts'
import { type GuardrailRule, ruleOf } from './document.ts'
import type { GuardrailRow } from './model.ts'
import { listAgentsWithGuardrail, listGuardrailsById, listToolsWithGuardrail } from './store.ts'

/** Maximum number of warnings for one write. */
const MAX_WARNINGS = 50

/**
 * Tool types whose schema declares the arguments of a call. Arguments of platform and mcp tools depend on the action.
 */
const DECLARING = ['http', 'client', 'pipeline']

/**
 * Returns warnings about arguments that a rule compares but that a tool does not require: a call without one gets the
 * default class or fails the guard.
 * @param path field of the written record for the warnings
 */
function ruleWarnings(rule: GuardrailRule, tool: GuardedTool, path?: string): Problem[] {
  if (!DECLARING.includes(tool.type)) return []
  const { class: classReads, guard } = rule.reads
  const needed = [
    { at: 'document.class', reads: classReads.filter(({ ordered }) => ordered), effect: 'gets the default class' },
    { at: 'document.guard', reads: guard, effect: 'fails the guard' },
  ]
  // An expression that tests for absence handles it.
  const checkedPaths = [...classReads, ...guard].flatMap(({ by, path }) => (by === 'missing' ? path : []))
  return needed.flatMap(({ at, reads, effect }) =>
    optionalArguments(
      reads.filter(({ path, defaulted }) => !defaulted && !checkedPaths.includes(path)),
      tool,
    ).map(argument => ({
      code: 'ARGUMENT_NOT_REQUIRED',
      path: path ?? at,
      message: `${at} of guardrail ${rule.guardrail_id} compares ${argument}, which the parameters of tool ${tool.id ?? tool.name} do not require: a call without it ${effect}`,
    })),
  )
}

function optionalArguments(reads: readonly RootRead[], { parameters, preset_parameters }: GuardedTool): string[] {
  const names = reads.flatMap(({ path, by }) => (by === 'var' && path?.startsWith('args.') ? path : []))
  return [...new Set(names)].filter(name => {
    const [first, ...rest] = name.split('.').slice(1)
    if (Object.hasOwn(preset_parameters ?? {}, first)) return false
    return !isRequired(parameters, [first, ...rest])
  })
}

/** Whether an object schema requires the value at a path. */
function isRequired(schema: unknown, [name, ...rest]: readonly string[]): boolean {
  if (name === undefined) return true
  if (!isObject(schema) || !Array.isArray(schema.required) || !schema.required.includes(name)) return false
  return isRequired(isObject(schema.properties) ? schema.properties[name] : null, rest)
}

/** Returns the warnings of guardrails for each tool. */
export async function warningsFor(
  db: Queryable,
  guardrailIds: readonly string[],
  tools: readonly { tool: GuardedTool; path: string }[],
): Promise<Problem[]> {
  if (guardrailIds.length === 0 || tools.length === 0) return []
  const rules = (await listGuardrailsById(db, guardrailIds)).map(ruleOf)
  return tools.flatMap(({ tool, path }) => rules.flatMap(rule => ruleWarnings(rule, tool, path))).slice(0, MAX_WARNINGS)
}

/** Returns the warnings of a guardrail for the tools that it is attached to and the tools of agents that have it. */
export async function warningsOfGuardrail(db: Queryable, row: GuardrailRow): Promise<Problem[]> {
  const rule = ruleOf(row)
  if (rule.paths.length === 0) return []
  const agents = await listAgentsWithGuardrail(db, row.id, MAX_WARNINGS)
  const bindings = agents.flatMap(({ tool_bindings }) => tool_bindings ?? [])
  const bound = bindings.flatMap(({ tool_id }) => tool_id ?? [])
  const tools = await listToolsWithGuardrail(db, row, bound, MAX_WARNINGS)
  const inline = bindings.flatMap(({ tool }) => (tool ? withToolDefaults(tool) : []))
  return [...tools, ...inline].flatMap(tool => ruleWarnings(rule, tool)).slice(0, MAX_WARNINGS)
}
