import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { AppError, raise } from '../../core/api/errors.ts'
import { isStorable } from '../../core/api/validate.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import type { Callable, ToolCall } from './call-types.ts'
import { connectTo, logMcpCall, type McpSession } from './mcp-client.ts'

/** What servers of mcp tools list: cached for a minute, and not asked of servers that do not answer. */

const MAX_PAGES = 20
const MAX_TOOLS = 500
const MAX_NAME = 255

/** How long a listing is used, in milliseconds. */
const FRESH_MS = 60_000
/** Characters of JSON of the listings of a process, and of one: larger ones are asked for each time. */
const CACHED_CHARS = 32 * 1024 * 1024
const LISTING_CHARS = 1024 * 1024
/** Failures in a row after which a server is not asked, and for how long. */
const MOST_FAILURES = 2
const COOLDOWN_MS = 60_000
const MAX_BREAKERS = 10_000

const ListedTool = z.object({
  // What the database could not hold would keep records of its calls from being written.
  name: z.string().min(1).max(MAX_NAME).refine(isStorable),
  description: z.string().nullish().catch(null),
  inputSchema: z.record(z.string(), z.unknown()).catch({ type: 'object' }),
})
export type ListedTool = z.output<typeof ListedTool>

/** Failures in a row of a server, and until when it is not asked. */
type Breaker = { failures: number; until: number }

const stateOf = processSingleton(() => ({
  listings: new LRUCache<string, { tools: readonly ListedTool[]; until: number; chars: number }>({
    maxSize: CACHED_CHARS,
    maxEntrySize: LISTING_CHARS,
    sizeCalculation: ({ chars }) => Math.max(1, chars),
  }),
  breakers: new LRUCache<string, Breaker>({ max: MAX_BREAKERS }),
}))

const hashOf = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('base64')

/**
 * Returns up to 500 tools out of 20 pages of the list of a tool's server. A listing is used for a minute by requests that
 * would be sent the same way: of the same revision of the tool, to the same address, with the same headers and secrets, in the
 * name of the same project. A server that gave no answer twice in a row is not asked for a minute.
 * @param options.fresh asks the server whatever is known
 * @throws what requests to the server do; TOOL_HTTP_ERROR while the server is not asked
 */
export async function toolsListed(
  services: Services,
  tool: Callable,
  call: ToolCall,
  { fresh = false }: { fresh?: boolean } = {},
): Promise<readonly ListedTool[]> {
  const { listings, breakers } = stateOf(services)
  const now = () => services.clock.now().getTime()
  const link = await connectTo(services, tool, call)
  const key = hashOf(link.identity())
  const cached = fresh ? undefined : listings.get(key)
  if (cached && now() < cached.until) return cached.tools
  const server = hashOf([tool.project_id, tool.id, tool.mcp])
  const breaker = breakers.get(server) ?? { failures: 0, until: 0 }
  const isOpen = breaker.failures >= MOST_FAILURES
  if (isOpen && !fresh && now() < breaker.until) refuse(tool, breaker)
  // One request tries a server again; others are refused until it is known how that went.
  if (isOpen) breaker.until = now() + COOLDOWN_MS
  try {
    const tools = await logMcpCall(services, tool, null, () => link.use(readList))
    breakers.delete(server)
    listings.set(key, { tools, until: now() + FRESH_MS, chars: JSON.stringify(tools).length })
    return tools
  } catch (error) {
    if (call.limits.signal?.aborted) breaker.until = 0
    else if (isUnanswered(error)) breakers.set(server, { failures: breaker.failures + 1, until: now() + COOLDOWN_MS })
    else breakers.delete(server)
    throw error
  }
}

/** Whether a server gave no answer, or none that it could help. */
function isUnanswered(error: unknown): boolean {
  if (!(error instanceof AppError)) return false
  const { tool_status_code: status, reason } = error.meta ?? {}
  if (error.code === 'TOOL_AUTH_FAILED') return reason === 'timeout'
  return error.code === 'TOOL_HTTP_ERROR' && (status === null || Number(status) >= 500)
}

function refuse({ name, mcp }: Callable, { failures, until }: Breaker): never {
  const retry_at = new Date(until).toISOString()
  return raise('TOOL_HTTP_ERROR', {
    message: `The server of the tool ${name} gave no answer ${failures} times in a row and is not asked before ${retry_at}`,
    meta: { tool_status_code: null, reason: 'unavailable', tool_url: mcp?.url, tool_method: 'POST', retry_at },
  })
}

async function readList(link: McpSession): Promise<ListedTool[]> {
  const found = new Map<string, ListedTool>()
  let cursor: unknown
  for (let page = 0; page < MAX_PAGES; page++) {
    const result = await link.ask('tools/list', cursor === undefined ? {} : { cursor })
    const { tools, nextCursor } = Object(result)
    if (!Array.isArray(tools))
      return link.refuse('The server of the tool answered no list of tools', JSON.stringify(result))
    for (const each of tools) {
      const { data } = ListedTool.safeParse(each)
      if (data && !found.has(data.name)) found.set(data.name, data)
      if (found.size === MAX_TOOLS) return [...found.values()]
    }
    if (typeof nextCursor !== 'string') break
    cursor = nextCursor
  }
  return [...found.values()]
}
