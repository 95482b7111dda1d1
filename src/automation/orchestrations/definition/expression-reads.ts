import { rootReadsOf } from '#core/expressions/references.ts'
import type { Node } from './definition.ts'
import { isMapping, nodeFields } from './fields.ts'
import { stateSubpath } from './state-paths.ts'

/** An expression in a field of a node. */
export type ExpressionSite = {
  field: string
  /** Key of the entry, for fields with several expressions. */
  key: string | null
  expression: unknown
}

/** A read of the state of a run by an expression. */
export type StateRead = {
  /** Key of the state, artifact of a node, or a root that does not exist. */
  what: 'key' | 'node' | 'nothing'
  name: string
  /** Whether the expression provides a default or only tests for presence. */
  optional: boolean
}

/** Lists the expressions in the fields that a node of its type uses. */
export function expressionSites(node: Node): ExpressionSite[] {
  const sites: ExpressionSite[] = []
  for (const [field, { types, expression }] of nodeFields) {
    const value = (node as Record<string, unknown>)[field]
    if (!expression || value == null || (types && !(types as readonly string[]).includes(node.type))) continue
    if (expression === 'value') sites.push({ field, key: null, expression: value })
    else if (isMapping(value)) for (const key in value) sites.push({ field, key, expression: value[key] })
  }
  return sites
}

/** Returns the distinct state reads of an expression. Computed paths cannot be determined. */
export function stateReads({ field, expression }: ExpressionSite): StateRead[] {
  const reads = new Map<string, StateRead>()
  for (const { path, by, defaulted } of rootReadsOf(expression)) {
    const read = path === null ? null : readOf(field, path)
    if (!read) continue
    const id = `${read.what} ${read.name}`
    const optional = (reads.get(id)?.optional ?? true) && (defaulted || by !== 'var')
    reads.set(id, { ...read, optional })
  }
  return [...reads.values()]
}

/** Returns the state read of `collection` of a loop. */
export const readOfCollection = (path: string): StateRead | null => {
  const read = readOf('collection', stateSubpath(path))
  return read && { ...read, optional: false }
}

type RequiredRead = Omit<StateRead, 'optional'>

function readOf(field: string, path: string): RequiredRead | null {
  if (path === '') return null
  if (field !== 'state_mapping') return readOfState(field, path)
  const [root, rest] = splitAtDot(path)
  if (root === 'output') return null
  if (root !== 'state') return { what: 'nothing', name: root }
  return rest === null || rest === '' ? null : readOfState(field, rest)
}

function readOfState(field: string, path: string): RequiredRead | null {
  const [key, rest] = splitAtDot(path)
  if (key === 'input') return null
  if (field === 'exit_condition' && (key === 'response' || key === 'attempt')) return null
  if (key !== 'nodes') return { what: 'key', name: key }
  return rest === null ? null : { what: 'node', name: splitAtDot(rest)[0] }
}

/** Splits a path at its first dot. */
function splitAtDot(path: string): [string, string | null] {
  const dot = path.indexOf('.')
  return dot < 0 ? [path, null] : [path.slice(0, dot), path.slice(dot + 1)]
}
