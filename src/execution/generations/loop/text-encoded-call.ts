import { stripCodeFence } from './structured-output.ts'

/** Keys of a call that a model wrote as text in place of making it. */
const KEYS = new Set([
  ...['name', 'tool', 'tool_name', 'toolName', 'function'],
  ...['arguments', 'args', 'parameters', 'input', 'id', 'tool_call_id', 'type'],
])
const NAMING = ['name', 'tool', 'tool_name', 'toolName', 'function']

/**
 * The tool of an answer that is nothing but calls written as text: one JSON object, or several in an array, each of which
 * names a tool of the turn and says nothing else. Null for any other answer.
 */
export function textEncodedCall(text: string, tools: ReadonlySet<string>): string | null {
  if (tools.size === 0) return null
  const json = stripCodeFence(text)
  if (!/^[{[]/.test(json)) return null
  let value: unknown
  try {
    value = JSON.parse(json)
  } catch {
    return null
  }
  const calls = Array.isArray(value) ? value : [value]
  const named = calls.map(call => namedTool(call, tools))
  return named.length > 0 && named.every(name => name !== null) ? named[0] : null
}

function namedTool(call: unknown, tools: ReadonlySet<string>): string | null {
  if (typeof call !== 'object' || call === null || Array.isArray(call)) return null
  const entries = Object.entries(call)
  if (!entries.every(([key]) => KEYS.has(key))) return null
  const [, name] = entries.find(([key, value]) => NAMING.includes(key) && tools.has(value as string)) ?? []
  return (name as string | undefined) ?? null
}
