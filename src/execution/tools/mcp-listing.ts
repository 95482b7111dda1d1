import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { z } from 'zod'
import { isStorable } from '#core/api/validate.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Callable, ToolCall } from './call-types.ts'
import { connectTo, logMcpCall, type McpSession } from './mcp-client.ts'

/** Tool listings of mcp servers: cached for a minute, with a breaker for servers that do not respond. */

const MAX_PAGES = 20
const MAX_TOOLS = 500
const MAX_NAME = 255

/** Time for which a listing is used, in milliseconds. */
const FRESH_MS = 60_000
/** Maximum number of JSON characters cached by a process, and of one listing; larger listings are not cached. */
const MAX_CACHE_CHARS = 32 * 1024 * 1024
const MAX_LISTING_CHARS = 1024 * 1024
/** Consecutive failures after which a server is not called, and for how long. */
const MAX_FAILURES = 2
const COOLDOWN_MS = 60_000
const MAX_BREAKERS = 10_000

const ListedTool = z.object({
  // A name that the database cannot store would prevent records of its calls.
  name: z.string().min(1).max(MAX_NAME).refine(isStorable),
  description: z.string().nullish().catch(null),
  inputSchema: z.record(z.string(), z.unknown()).catch({ type: 'object' }),
})
export type ListedTool = z.output<typeof ListedTool>

/** Consecutive failures of a server, and the end of its cooldown. */
type Breaker = { failures: number; until: number }

const listingState = processSingleton(() => ({
  listings: new LRUCache<string, { tools: readonly ListedTool[]; until: number; chars: number }>({
    maxSize: MAX_CACHE_CHARS,
    maxEntrySize: MAX_LISTING_CHARS,
    sizeCalculation: ({ chars }) => Math.max(1, chars),
  }),
  breakers: new LRUCache<string, Breaker>({ max: MAX_BREAKERS }),
}))

const hashOf = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('base64')

/**
 * Returns up to 500 tools from up to 20 pages of a server's list. A listing is cached for a minute for requests that
 * would be equal: same tool revision, URL, headers, secrets and calling project. A server that fails twice in a row is
 * not called for a minute.
 * @param options.fresh whether to call the server regardless of cache and breaker
 * @throws the errors of requests to the server; TOOL_HTTP_ERROR during the cooldown
 */
export async function listServerTools(
  services: Services,
  tool: Callable,
  call: ToolCall,
  { fresh = false }: { fresh?: boolean } = {},
): Promise<readonly ListedTool[]> {
  const { listings, breakers } = listingState(services)
  const now = () => services.clock.now().getTime()
  const link = await connectTo(services, tool, call)
  const key = hashOf(link.identity())
  const cached = fresh ? undefined : listings.get(key)
  if (cached && now() < cached.until) return cached.tools
  const server = hashOf([tool.project_id, tool.id, tool.mcp])
  const breaker = breakers.get(server) ?? { failures: 0, until: 0 }
  const isOpen = breaker.failures >= MAX_FAILURES
  if (isOpen && !fresh && now() < breaker.until) refuseOpenBreaker(tool, breaker)
  // One request probes the server; others are refused until its outcome is known.
  if (isOpen) breaker.until = now() + COOLDOWN_MS
  try {
    const tools = await logMcpCall(services, tool, null, () => link.use(readList))
    breakers.delete(server)
    listings.set(key, { tools, until: now() + FRESH_MS, chars: JSON.stringify(tools).length })
    return tools
  } catch (error) {
    if (call.limits.signal?.aborted) breaker.until = 0
    else if (isServerFailure(error))
      breakers.set(server, { failures: breaker.failures + 1, until: now() + COOLDOWN_MS })
    else breakers.delete(server)
    throw error
  }
}

/** Whether a server did not respond, or failed by its own fault. */
function isServerFailure(error: unknown): boolean {
  if (!(error instanceof AppError)) return false
  const { tool_status_code: status, reason } = error.meta ?? {}
  if (error.code === 'TOOL_AUTH_FAILED') return reason === 'timeout'
  return error.code === 'TOOL_HTTP_ERROR' && (status === null || Number(status) >= 500)
}

function refuseOpenBreaker({ name, mcp }: Callable, { failures, until }: Breaker): never {
  const retry_at = new Date(until).toISOString()
  return raise('TOOL_HTTP_ERROR', {
    message: `Server of tool ${name} failed ${failures} times in a row and is not called before ${retry_at}`,
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
      return link.refuse('Server of the tool returned no list of tools', JSON.stringify(result))
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
