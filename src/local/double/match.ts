import type { DoubleMessage, DoubleRequest } from './request.ts'
import type { Match, TextCondition } from './script.ts'

/** Whether a request satisfies every key of a rule's `when`. Without `when` every chat request matches. */
export function ruleMatches(when: Match | undefined, request: DoubleRequest): boolean {
  const expected = when ?? {}
  if ((expected.kind ?? 'chat') !== request.kind) return false
  return (
    (expected.model === undefined || globPatternMatches(expected.model, request.model)) &&
    (expected.call === undefined || inRange(expected.call, request.call)) &&
    (expected.messages === undefined || inRange(expected.messages, request.messages.length)) &&
    (expected.last_role === undefined || request.messages.at(-1)?.role === expected.last_role) &&
    (expected.stream === undefined || expected.stream === request.stream) &&
    (expected.json === undefined || expected.json === request.json) &&
    (expected.temperature === undefined || expected.temperature === request.body.temperature) &&
    (expected.tools === undefined || toolsOffered(expected.tools, request)) &&
    (expected.tool_choice === undefined || isSameChoice(expected.tool_choice, request.toolChoice)) &&
    (expected.user === undefined || textMatches(expected.user, request.user)) &&
    (expected.system === undefined || textMatches(expected.system, request.system)) &&
    (expected.any === undefined || request.messages.some(each => textMatches(expected.any!, each.text))) &&
    (expected.tool_result === undefined || resultMatches(expected.tool_result, request.messages)) &&
    (expected.header === undefined || headersMatch(expected.header, request))
  )
}

/** Whether a text satisfies a condition, that is all keys of it. */
function textMatches(condition: TextCondition, text: string): boolean {
  if (typeof condition === 'string') return text.includes(condition)
  return (
    (condition.equals === undefined || text === condition.equals) &&
    (condition.contains === undefined || text.includes(condition.contains)) &&
    (condition.regex === undefined || new RegExp(condition.regex, condition.flags).test(text))
  )
}

/** Whether a text equals a pattern in which each `*` matches any characters. */
function globPatternMatches(pattern: string, text: string): boolean {
  const parts = pattern.split('*')
  if (parts.length === 1) return pattern === text
  const first = parts[0]
  const last = parts[parts.length - 1]
  if (text.length < first.length + last.length || !text.startsWith(first) || !text.endsWith(last)) return false
  let at = first.length
  for (const part of parts.slice(1, -1)) {
    const found = text.indexOf(part, at)
    if (found < 0) return false
    at = found + part.length
  }
  return at <= text.length - last.length
}

type Range = number | { from?: number; to?: number; min?: number; max?: number }

function inRange(range: Range, value: number): boolean {
  if (typeof range === 'number') return value === range
  return value >= (range.from ?? range.min ?? 0) && value <= (range.to ?? range.max ?? Infinity)
}

function toolsOffered(names: string[], request: DoubleRequest): boolean {
  if (names.length === 0) return request.tools.length === 0
  return names.every(name => request.tools.some(tool => tool.name === name))
}

function isSameChoice(expected: string | { name: string }, actual: string | { name: string }): boolean {
  if (typeof expected === 'string') return expected === actual
  return typeof actual === 'object' && actual.name === expected.name
}

function resultMatches(expected: NonNullable<Match['tool_result']>, messages: DoubleMessage[]): boolean {
  const trailing = messages.slice(messages.findLastIndex(each => each.role !== 'tool') + 1)
  return trailing.some(
    each =>
      (expected.name === undefined || each.name === expected.name) &&
      (expected.contains === undefined || each.text.includes(expected.contains)) &&
      (expected.equals === undefined || each.text === expected.equals),
  )
}

function headersMatch(expected: Record<string, TextCondition>, request: DoubleRequest): boolean {
  return Object.entries(expected).every(([name, condition]) => {
    const value = request.headers[name.toLowerCase()]
    return value !== undefined && textMatches(condition, String(value))
  })
}
