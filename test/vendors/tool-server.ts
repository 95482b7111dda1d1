import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

export type ToolServer = {
  url: string
  /** Sets the content that the tool of the MCP server returns; null: a small image. */
  returns(content: object[] | null): void
  /** Bodies of the requests whose path contains a text, in their order. */
  received(part: string): string[]
  close(): Promise<void>
}

/** Pixels of a small image, as a tool returns it. */
export const PIXELS = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

/** The result of each method of an MCP server with one tool that returns an image. */
const methods: Record<string, unknown> = {
  initialize: {
    protocolVersion: '2025-06-18',
    capabilities: { tools: {} },
    serverInfo: { name: 'pictures', version: '1' },
  },
  'tools/list': { tools: [{ name: 'look', inputSchema: { type: 'object', properties: { at: { type: 'string' } } } }] },
  'tools/call': { content: [{ type: 'image', data: PIXELS, mimeType: 'image/png' }] },
}

/** Starts a server of tools: http tools that return `sun`, the body as received, or a blank text, and an MCP server at `/mcp`. */
export async function startToolServer(): Promise<ToolServer> {
  let content: object[] | null = null
  const seen: { path: string; body: string }[] = []
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', piece => {
      body += piece
    })
    request.on('end', () => {
      const path = request.url ?? ''
      seen.push({ path, body })
      const json = (status: number, text: string) =>
        response.writeHead(status, { 'content-type': 'application/json' }).end(text)
      if (!path.startsWith('/mcp'))
        return json(200, path.startsWith('/echo') ? body : path.startsWith('/blank') ? '""' : '{"weather":"sun"}')
      const { id, method } = body === '' ? {} : JSON.parse(body)
      if (request.method !== 'POST') return response.writeHead(405).end()
      if (id === undefined) return response.writeHead(202).end()
      const result = method === 'tools/call' && content ? { content } : (methods[method] ?? {})
      json(200, JSON.stringify({ jsonrpc: '2.0', id, result }))
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    returns: given => {
      content = given
    },
    received: part => seen.filter(({ path }) => path.includes(part)).map(({ body }) => body),
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
