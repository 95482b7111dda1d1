import { Server, type ServerContext } from '@modelcontextprotocol/server'
import { AppError } from '../core/api/errors.ts'
import { release } from '../core/process/release.ts'
import { callTool } from './call.ts'
import { listTools } from './list.ts'
import { type Answering, RpcError, type Session } from './session.ts'
import { MODERN, OLD, TASKS } from './versions.ts'

/** The protocol of a request: what it may ask for, and who answers it. */

type Handler = (session: Session, answering: Answering) => Promise<object>

const handlers: Record<string, Handler> = {
  'tools/list': listTools,
  'tools/call': callTool,
}

const INSTRUCTIONS = `Every operation of the platform is a tool. Few are listed; find the others:
1. search-tools with a few words about the task, such as "upload a file".
2. describe-tools with the names found, for their arguments.
3. call-tool with a name and its arguments. Any tool may also be called by its own name.
Lists are paged by limit and offset and may be narrowed by filters. Work that takes long is waited for; \`wait: false\` answers at once with its record. get-docs lists the pages of the manual.`

const INTERNAL = new RpcError(-32603, 'Internal Server Error')

/** Nothing is asked of clients, so nothing that they answer is validated. */
const validator = {
  getValidator() {
    throw new Error('no schema of a client is validated')
  },
}

/** The server of one request, which knows the method of the request alone. */
export function serverFor(session: Session, method: string): Server {
  const { config } = session.services
  const server = new Server(
    { name: config.MCP_SERVER_NAME, version: release },
    {
      capabilities: {
        tools: {},
        resources: {},
        ...(session.modern ? { extensions: { [TASKS]: {} } } : {}),
      },
      instructions: INSTRUCTIONS,
      supportedProtocolVersions: [MODERN, ...OLD],
      jsonSchemaValidator: validator,
      cacheHints: { 'server/discover': { ttlMs: 300_000, cacheScope: 'public' } },
    },
  )
  const handler = Object.hasOwn(handlers, method) ? handlers[method] : undefined
  if (handler) server.fallbackRequestHandler = (request, context) => answer(session, handler, request.params, context)
  return server
}

/** Has a request answered. What was not foreseen is logged, and told apart from what the protocol refuses. */
async function answer(
  session: Session,
  handler: Handler,
  params: Record<string, unknown> | undefined,
  { mcpReq }: ServerContext,
): Promise<never> {
  try {
    return (await handler(session, {
      params: { ...params, ...(mcpReq._meta ? { _meta: mcpReq._meta } : {}) },
      signal: mcpReq.signal,
      inputResponses: mcpReq.inputResponses ?? {},
      notify: (method, params) => mcpReq.notify({ method, params } as never),
    })) as never
  } catch (error) {
    if (error instanceof RpcError || session.refused) throw error
    if (error instanceof AppError && error.status === 503) {
      session.refused = error
      throw error
    }
    const { services, exchange } = session
    services.log.error({ err: error, request_id: exchange.request.id }, 'mcp request failed')
    throw INTERNAL
  }
}
