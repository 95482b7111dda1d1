import type { DoubleRequest } from './request.ts'
import { isJsonObject } from './request.ts'

const token = /\{\{([^{}]*)\}\}/g
const soleToken = /^\{\{([^{}]*)\}\}$/

/** Fills the tokens of a text (`{{user}}`, `{{tool.<name>.<path>}}`, …); unknown tokens become "". */
export function fillText(text: string, request: DoubleRequest): string {
  if (!text.includes('{{')) return text
  return text.replace(token, (_, name: string) => asText(tokenValue(name.trim(), request)))
}

/** Fills the strings of a JSON value, at any depth. A string that is one token keeps the JSON type of its value. */
export function fillValue(value: unknown, request: DoubleRequest): unknown {
  if (typeof value === 'string') {
    const sole = soleToken.exec(value)
    return sole ? (tokenValue(sole[1].trim(), request) ?? '') : fillText(value, request)
  }
  if (Array.isArray(value)) return value.map(each => fillValue(each, request))
  if (!isJsonObject(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, fillValue(each, request)]))
}

function asText(value: unknown): string {
  if (value === undefined) return ''
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function tokenValue(name: string, request: DoubleRequest): unknown {
  if (name === 'user') return request.user
  if (name === 'system') return request.system
  if (name === 'call') return request.call
  if (name === 'model') return request.requested
  if (name === 'count') return request.messages.length
  if (name.startsWith('header.')) return request.headers[name.slice(7).toLowerCase()]
  if (name.startsWith('tool.')) return toolValue(name.slice(5), request)
  return undefined
}

/** Reads `<name>` or `<name>.<path>` from the latest result of that tool. */
function toolValue(address: string, request: DoubleRequest): unknown {
  const result = request.messages.findLast(
    each => each.name !== undefined && (address === each.name || address.startsWith(`${each.name}.`)),
  )
  if (!result) return undefined
  if (address === result.name) return result.text
  let value: unknown
  try {
    value = JSON.parse(result.text)
  } catch {
    return undefined
  }
  for (const key of address.slice(result.name!.length + 1).split('.')) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) return undefined
    value = (value as Record<string, unknown>)[key]
  }
  return value
}
