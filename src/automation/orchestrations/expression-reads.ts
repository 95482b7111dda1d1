import { rootReadsOf } from '../../core/expressions/references.ts'
import type { Node } from './definition.ts'
import { isMapping, nodeFields } from './fields.ts'
import { stateSubpath } from './state-paths.ts'

/** An expression of a node, where it stands below the node, and what it reads. */
export type ExpressionSite = {
  field: string
  /** Of an expression that is one entry of a field. */
  key: string | null
  expression: unknown
}

/** What an expression reads of the state of its run. */
export type StateRead = {
  /** `key` of the state, artifact of a `node`, or what its root does not have. */
  what: 'key' | 'node' | 'nothing'
  name: string
  /** A value is given for what is not there, or it is only asked whether it is there. */
  optional: boolean
}

/** Every expression of the fields that a node reads. */
export function expressionSites(node: Node): ExpressionSite[] {
  const surfaces: ExpressionSite[] = []
  for (const [field, { types, expression }] of nodeFields) {
    const value = (node as Record<string, unknown>)[field]
    if (!expression || value == null || (types && !(types as readonly string[]).includes(node.type))) continue
    if (expression === 'value') surfaces.push({ field, key: null, expression: value })
    else if (isMapping(value)) for (const key in value) surfaces.push({ field, key, expression: value[key] })
  }
  return surfaces
}

/** What an expression of a field reads, each once. Paths that are computed are not known. */
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

/** What `collection` of a loop reads. */
export const readOfCollection = (path: string): StateRead | null => {
  const read = readOf('collection', stateSubpath(path))
  return read && { ...read, optional: false }
}

type Known = Omit<StateRead, 'optional'>

function readOf(field: string, path: string): Known | null {
  if (path === '') return null
  if (field !== 'state_mapping') return readOfState(field, path)
  const [root, rest] = cut(path)
  if (root === 'output') return null
  if (root !== 'state') return { what: 'nothing', name: root }
  return rest === null || rest === '' ? null : readOfState(field, rest)
}

function readOfState(field: string, path: string): Known | null {
  const [key, rest] = cut(path)
  if (key === 'input') return null
  if (field === 'exit_condition' && (key === 'response' || key === 'attempt')) return null
  if (key !== 'nodes') return { what: 'key', name: key }
  return rest === null ? null : { what: 'node', name: cut(rest)[0] }
}

/** A path before and behind its first dot. */
function cut(path: string): [string, string | null] {
  const dot = path.indexOf('.')
  return dot < 0 ? [path, null] : [path.slice(0, dot), path.slice(dot + 1)]
}
