import type { DoubleMessage, DoubleRequest } from './request.ts'
import type { Match, TextCondition } from './script.ts'

/** Returns whether a request fulfils every key of a rule's `when`; no `when` takes every chat request. */
export function ruleMatches(when: Match | undefined, request: DoubleRequest): boolean {
  const asked = when ?? {}
  if ((asked.kind ?? 'chat') !== request.kind) return false
  return (
    (asked.model === undefined || globPatternMatches(asked.model, request.model)) &&
    (asked.call === undefined || inRange(asked.call, request.call)) &&
    (asked.messages === undefined || inRange(asked.messages, request.messages.length)) &&
    (asked.last_role === undefined || request.messages.at(-1)?.role === asked.last_role) &&
    (asked.stream === undefined || asked.stream === request.stream) &&
    (asked.json === undefined || asked.json === request.json) &&
    (asked.temperature === undefined || asked.temperature === request.body.temperature) &&
    (asked.tools === undefined || toolsOffered(asked.tools, request)) &&
    (asked.tool_choice === undefined || sameChoice(asked.tool_choice, request.toolChoice)) &&
    (asked.user === undefined || textMatches(asked.user, request.user)) &&
    (asked.system === undefined || textMatches(asked.system, request.system)) &&
    (asked.any === undefined || request.messages.some(each => textMatches(asked.any!, each.text))) &&
    (asked.tool_result === undefined || resultMatches(asked.tool_result, request.messages)) &&
    (asked.header === undefined || headersMatch(asked.header, request))
  )
}

/** Returns whether a text fulfils a condition; of an object all given keys must hold. */
function textMatches(condition: TextCondition, text: string): boolean {
  if (typeof condition === 'string') return text.includes(condition)
  return (
    (condition.equals === undefined || text === condition.equals) &&
    (condition.contains === undefined || text.includes(condition.contains)) &&
    (condition.regex === undefined || new RegExp(condition.regex, condition.flags).test(text))
  )
}

/** Returns whether a text equals a pattern in which each `*` stands for any characters. */
export function globPatternMatches(pattern: string, text: string): boolean {
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

function sameChoice(asked: string | { name: string }, given: string | { name: string }): boolean {
  if (typeof asked === 'string') return asked === given
  return typeof given === 'object' && given.name === asked.name
}

function resultMatches(asked: NonNullable<Match['tool_result']>, messages: DoubleMessage[]): boolean {
  const trailing = messages.slice(messages.findLastIndex(each => each.role !== 'tool') + 1)
  return trailing.some(
    each =>
      (asked.name === undefined || each.name === asked.name) &&
      (asked.contains === undefined || each.text.includes(asked.contains)) &&
      (asked.equals === undefined || each.text === asked.equals),
  )
}

function headersMatch(asked: Record<string, TextCondition>, request: DoubleRequest): boolean {
  return Object.entries(asked).every(([name, condition]) => {
    const value = request.headers[name.toLowerCase()]
    return value !== undefined && textMatches(condition, String(value))
  })
}
