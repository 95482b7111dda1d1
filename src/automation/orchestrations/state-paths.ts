import { isReservedName } from '../../core/expressions/evaluate.ts'

/** Paths into the state of a run, as state_mapping and `collection` write them. */

/** What the engine itself keeps at the top of the state. */
const RESERVED = ['input', 'nodes']

/** Levels that one write may make: what is kept as JSON has to be read again. */
const MAX_SEGMENTS = 32

/** A path below the state, without the prefix `state.` that it may have. */
export const stateSubpath = (path: string): string => (path.startsWith('state.') ? path.slice('state.'.length) : path)

/** What is wrong with the key of a state_mapping as a validator's code; null when nothing is. */
export function statePathProblem(key: string): 'STATE_PATH_INVALID' | 'STATE_NAMESPACE_RESERVED' | null {
  const segments = stateSubpath(key).split('.')
  if (segments.length > MAX_SEGMENTS || segments.some(segment => segment === '' || isReservedName(segment)))
    return 'STATE_PATH_INVALID'
  return RESERVED.includes(segments[0]) ? 'STATE_NAMESPACE_RESERVED' : null
}

/** Where the key of a state_mapping writes, from the top of the state; null for a key that may not be written. */
export const statePath = (key: string): string[] | null =>
  statePathProblem(key) === null ? stateSubpath(key).split('.') : null
