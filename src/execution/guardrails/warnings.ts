import type { Problem } from '../../core/api/errors.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { isObject } from '../../core/expressions/evaluate.ts'
import type { RootRead } from '../../core/expressions/references.ts'
import type { GuardedTool } from '../tools/guardrail-gate.ts'
import { withToolDefaults } from '../tools/model.ts'
import { type GuardrailRule, ruleOf } from './document.ts'
import type { GuardrailRow } from './model.ts'
import { agentsGuardedBy, guardrailsOfIds, toolsGuardedBy } from './store.ts'

/** Most warnings of one write. */
const MAX_WARNINGS = 50

/** Tools whose schema says which arguments a call has. What platform and mcp tools take depends on the action. */
const DECLARING = ['http', 'client', 'pipeline']

/**
 * Arguments that a rule compares and that calls of a tool need not have: without one a call gets the default class, or
 * fails the guard, which the author may not expect.
 * @param path the field of the written record that a warning is about
 */
function warningsOf(rule: GuardrailRule, tool: GuardedTool, path?: string): Problem[] {
  if (!DECLARING.includes(tool.type)) return []
  const { class: classReads, guard } = rule.reads
  const needed = [
    { at: 'document.class', reads: classReads.filter(({ ordered }) => ordered), effect: 'gets the default class' },
    { at: 'document.guard', reads: guard, effect: 'fails the guard' },
  ]
  // An author who asks whether it is there knows that it may not be.
  const asked = [...classReads, ...guard].flatMap(({ by, path }) => (by === 'missing' ? path : []))
  return needed.flatMap(({ at, reads, effect }) =>
    absentable(
      reads.filter(({ path, defaulted }) => !defaulted && !asked.includes(path)),
      tool,
    ).map(argument => ({
      code: 'ARGUMENT_NOT_REQUIRED',
      path: path ?? at,
      message: `${at} of the guardrail ${rule.guardrail_id} compares ${argument}, which the parameters of the tool ${tool.id ?? tool.name} do not require: a call without it ${effect}`,
    })),
  )
}

function absentable(reads: readonly RootRead[], { parameters, preset_parameters }: GuardedTool): string[] {
  const names = reads.flatMap(({ path, by }) => (by === 'var' && path?.startsWith('args.') ? path : []))
  return [...new Set(names)].filter(name => {
    const [first, ...rest] = name.split('.').slice(1)
    if (Object.hasOwn(preset_parameters ?? {}, first)) return false
    return !isRequired(parameters, [first, ...rest])
  })
}

/** Whether a JSON Schema of an object requires what stands at a path. */
function isRequired(schema: unknown, [name, ...rest]: readonly string[]): boolean {
  if (name === undefined) return true
  if (!isObject(schema) || !Array.isArray(schema.required) || !schema.required.includes(name)) return false
  return isRequired(isObject(schema.properties) ? schema.properties[name] : null, rest)
}

/** What guardrails by their ids have to warn of, of each tool. */
export async function warningsFor(
  db: Queryable,
  guardrailIds: readonly string[],
  tools: readonly { tool: GuardedTool; path: string }[],
): Promise<Problem[]> {
  if (guardrailIds.length === 0 || tools.length === 0) return []
  const rules = (await guardrailsOfIds(db, guardrailIds)).map(ruleOf)
  return tools.flatMap(({ tool, path }) => rules.flatMap(rule => warningsOf(rule, tool, path))).slice(0, MAX_WARNINGS)
}

/** What a guardrail has to warn of, of the tools that it is attached to and that agents which have it may call. */
export async function warningsOfGuardrail(db: Queryable, row: GuardrailRow): Promise<Problem[]> {
  const rule = ruleOf(row)
  if (rule.paths.length === 0) return []
  const agents = await agentsGuardedBy(db, row.id, MAX_WARNINGS)
  const bindings = agents.flatMap(({ tool_bindings }) => tool_bindings ?? [])
  const bound = bindings.flatMap(({ tool_id }) => tool_id ?? [])
  const tools = await toolsGuardedBy(db, row, bound, MAX_WARNINGS)
  const inline = bindings.flatMap(({ tool }) => (tool ? withToolDefaults(tool) : []))
  return [...tools, ...inline].flatMap(tool => warningsOf(rule, tool)).slice(0, MAX_WARNINGS)
}
