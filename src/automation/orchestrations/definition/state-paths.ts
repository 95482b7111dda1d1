import { isReservedName } from '#core/expressions/evaluate.ts'

/** Paths into the state of a run, as used by state_mapping and `collection`. */

/** Keys of the state written by the engine. */
const RESERVED = ['input', 'nodes']

/** Limit of nesting levels created by one write: stored JSON must remain parsable. */
const MAX_SEGMENTS = 32

/** Returns a path without its optional prefix `state.`. */
export const stateSubpath = (path: string): string => (path.startsWith('state.') ? path.slice('state.'.length) : path)

/** Returns the problem code of a key of state_mapping; null if it is valid. */
export function statePathProblem(key: string): 'STATE_PATH_INVALID' | 'STATE_NAMESPACE_RESERVED' | null {
  const segments = stateSubpath(key).split('.')
  if (segments.length > MAX_SEGMENTS || segments.some(segment => segment === '' || isReservedName(segment)))
    return 'STATE_PATH_INVALID'
  return RESERVED.includes(segments[0]) ? 'STATE_NAMESPACE_RESERVED' : null
}

/** Returns the path that a key of state_mapping writes; null if the key is invalid. */
export const statePath = (key: string): string[] | null =>
  statePathProblem(key) === null ? stateSubpath(key).split('.') : null
