import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { CallToolRequestSchema, ListToolsRequestSchema, McpError } from '@modelcontextprotocol/sdk/types.js'

/**
 * A server of the official SDK. `/stateful` has sessions, `/json` too and answers JSON in place of event streams,
 * `/stateless` has none; `/many` lists 700 tools over pages of 60, `/pages` one on each of endless pages. `/seen` returns the
 * requests since the last read. Prints its port.
 */

const PAGE = 60
const MANY = 700

const object = (properties: object, required: string[] = []) => ({ type: 'object' as const, properties, required })
const text = (value: string) => ({ type: 'text' as const, text: value })

const TOOLS = [
  {
    name: 'echo',
    description: 'Says what it got',
    inputSchema: object({ city: { type: 'string' }, unit: { type: 'string' } }, ['city', 'unit']),
  },
  ...['say', 'structured', 'parts', 'nothing', 'fail', 'throw', 'slow', 'die', 'odd name!'].map(name => ({
    name,
    inputSchema: object({}),
  })),
]

const RESULTS: Record<string, () => object | Promise<object>> = {
  say: () => ({ content: [text('not { JSON')] }),
  structured: () => ({ content: [text('"text"')], structuredContent: { degrees: 21, list: [1] } }),
  parts: () => ({ content: [text('1'), { type: 'image', data: 'aGk=', mimeType: 'image/png' }] }),
  nothing: () => ({ content: [] }),
  'odd name!': () => ({ content: [text('odd')] }),
  slow: () => new Promise(() => {}),
}

/** What a tool says: pages and many have others in the list. */
function mcpServer(path: string): Server {
  const server = new Server({ name: 'test', version: '1' }, { capabilities: { tools: {} } })
  server.setRequestHandler(ListToolsRequestSchema, ({ params }) => {
    const page = Number(params?.cursor ?? 0)
    const named = (n: number) => ({ name: `tool_${n}`, inputSchema: object({}) })
    if (path === '/pages') return { tools: [named(page)], nextCursor: String(page + 1) }
    if (path !== '/many') return { tools: TOOLS }
    const left = Math.min(PAGE, MANY - page * PAGE)
    const tools = Array.from({ length: left }, (_, n) => named(page * PAGE + n))
    return { tools, ...(left === PAGE ? { nextCursor: String(page + 1) } : {}) }
  })
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, { requestInfo }) => {
    const { name, arguments: args } = params
    if (name === 'echo') return { content: [text(JSON.stringify(args))] }
    if (name === 'fail')
      return { isError: true, content: [text(`cannot: ${requestInfo?.headers.authorization ?? ''}`)] }
    if (name === 'throw') throw new McpError(-32_050, `unknown: ${requestInfo?.headers.authorization ?? ''}`)
    const result = RESULTS[name]
    if (!result) throw new McpError(-32_602, `Unknown tool: ${name}`)
    return result()
  })
  return server
}

const sessions = new Map<string, StreamableHTTPServerTransport>()
const seen: object[] = []

async function transportOf(path: string, session: string | undefined): Promise<StreamableHTTPServerTransport | null> {
  if (session !== undefined) return sessions.get(session) ?? null
  const stateless = path === '/stateless'
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: stateless ? undefined : () => crypto.randomUUID(),
    enableJsonResponse: path === '/json',
    onsessioninitialized: id => void sessions.set(id, transport),
    onsessionclosed: id => void sessions.delete(id),
  })
  await mcpServer(path).connect(transport as never)
  return transport
}

async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk)
  const body = chunks.length > 0 ? JSON.parse(Buffer.concat(chunks).toString()) : undefined
  const { method, url = '', headers } = request
  if (url === '/seen') {
    response.writeHead(200, { 'content-type': 'application/json' })
    return void response.end(JSON.stringify({ requests: seen.splice(0), sessions: sessions.size }))
  }
  seen.push({ method, url, headers, body })
  if (body?.params?.name === 'die') {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write('event: message\ndata: {"jsonrpc":"2.0",')
    return void setTimeout(() => response.destroy(), 20)
  }
  const transport = await transportOf(url, headers['mcp-session-id'] as string | undefined)
  if (!transport) return void response.writeHead(404).end()
  await transport.handleRequest(request, response, body)
}

const server = createServer((request, response) => {
  handle(request, response).catch(error => response.destroy(error as Error))
})
server.listen(0, '127.0.0.1', () => process.stdout.write(`${(server.address() as AddressInfo).port}\n`))
