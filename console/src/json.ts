import { ExactNumber, parseExactJson } from '@muster/client'

/** Whether a value of JSON is an object. */
export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof ExactNumber)

/** Returns the value that a person means by a text: numbers, true, false, lists and objects are written as JSON. */
export function meant(text: unknown): unknown {
  if (typeof text !== 'string') return text
  try {
    return parseExactJson(text)
  } catch {
    return text
  }
}

/** Longest line of a value that is written in one line. */
const LINE = 64

/** Returns a value as JSON; a short value stays in one line. */
export function jsonText(value: unknown, indent = ''): string {
  const line = JSON.stringify(value, null, 1)?.replaceAll(/\n\s*/g, ' ')
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return line
  if (indent.length + line.length <= LINE) return line
  const inner = `${indent}  `
  const entries = Array.isArray(value)
    ? value.map(entry => jsonText(entry, inner))
    : Object.entries(value).map(([key, entry]) => `${JSON.stringify(key)}: ${jsonText(entry, inner)}`)
  const [open, close] = Array.isArray(value) ? '[]' : '{}'
  return `${open}\n${inner}${entries.join(`,\n${inner}`)}\n${indent}${close}`
}
