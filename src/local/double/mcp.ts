import type { RequestBody } from './request.ts'
import { isJsonObject } from './request.ts'

const TOOLS = [
  {
    name: 'add',
    description: 'Adds two numbers',
    inputSchema: {
      type: 'object',
      properties: { a: { type: 'number' }, b: { type: 'number' } },
      required: ['a', 'b'],
    },
  },
  { name: 'echo', description: 'Returns its arguments', inputSchema: { type: 'object' } },
]

/** Answers an MCP message like a server with two tools and without sessions. Returns null for a notification. */
export function answerMcp(body: Buffer): RequestBody | null {
  let message: unknown
  try {
    message = JSON.parse(body.toString())
  } catch {
    message = null
  }
  if (!isJsonObject(message)) return { jsonrpc: '2.0', id: null, error: { code: -32_700, message: 'Parse error' } }
  const { id, method, params } = message
  if (id === undefined) return null
  const result = resultOf(String(method), isJsonObject(params) ? params : {})
  return { jsonrpc: '2.0', id, ...result }
}

function resultOf(method: string, params: RequestBody): RequestBody {
  if (method === 'initialize') {
    const { protocolVersion = '2025-06-18' } = params
    const serverInfo = { name: 'llm-double', version: '1' }
    return { result: { protocolVersion, capabilities: { tools: {} }, serverInfo } }
  }
  if (method === 'tools/list') return { result: { tools: TOOLS } }
  const args = isJsonObject(params.arguments) ? params.arguments : {}
  if (method !== 'tools/call') return { error: { code: -32_601, message: `Method not found: ${method}` } }
  if (params.name === 'echo') return { result: { content: [{ type: 'text', text: JSON.stringify(args) }] } }
  if (params.name !== 'add') return { error: { code: -32_602, message: `Unknown tool: ${params.name}` } }
  const sum = Number(args.a) + Number(args.b)
  if (Number.isNaN(sum)) return { result: { content: [{ type: 'text', text: 'a and b are numbers' }], isError: true } }
  return { result: { content: [{ type: 'text', text: String(sum) }], structuredContent: { sum } } }
}
