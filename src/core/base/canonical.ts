import { ExactNumber } from './exact-json.ts'

/** Returns a value as JSON with sorted keys, so that equal values have equal texts. */
export const canonicalJson = (value: unknown): string => JSON.stringify(sortKeys(value))

function sortKeys(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return value
  if (Array.isArray(value)) return value.map(sortKeys)
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, inner]) => [key, sortKeys(inner)]),
  )
}
