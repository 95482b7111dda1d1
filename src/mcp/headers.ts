import type { McpMessage } from './session.ts'

/** The headers by which intermediaries route a request of 2026-07-28; they repeat what its body says. */

/** Parameter that Mcp-Name repeats, by method. */
const NAMED_BY: Record<string, string> = {
  'tools/call': 'name',
  'resources/read': 'uri',
  'tasks/get': 'taskId',
  'tasks/update': 'taskId',
  'tasks/cancel': 'taskId',
}

const MISMATCH = -32020
const ENCODED = /^=\?base64\?([A-Za-z0-9+/]*={0,2})\?=$/

type Mismatch = { code: number; message: string; data: { mismatch: { header: string; value: string | null } } }

const mismatch = (header: string, value: string | undefined, message: string): Mismatch => ({
  code: MISMATCH,
  message: `${header} ${message}`,
  data: { mismatch: { header, value: value ?? null } },
})

/** What is wrong with the headers of a request; null when they agree with its body. */
export function requireHeaders(
  { method, params }: Pick<McpMessage, 'method' | 'params'>,
  given: { version?: string; method?: string; name?: string },
): Mismatch | null {
  if (given.version === undefined) return mismatch('MCP-Protocol-Version', undefined, 'is required')
  if (given.method?.trim() !== method)
    return mismatch('Mcp-Method', given.method, `must be ${method}, as the body says`)
  const named = Object.hasOwn(NAMED_BY, method) ? params?.[NAMED_BY[method]] : undefined
  // A body without the name is refused for that.
  if (typeof named !== 'string') return null
  if (given.name === undefined || decoded(given.name.trim()) !== named)
    return mismatch('Mcp-Name', given.name, `must repeat params.${NAMED_BY[method]}`)
  return null
}

function decoded(value: string): string {
  const found = ENCODED.exec(value)
  return found ? Buffer.from(found[1], 'base64').toString('utf8') : value
}
