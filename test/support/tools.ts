import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type ToolRunner, toolRunners } from '../../src/content/tools.ts'
import { newId } from '../../src/core/api/ids.ts'
import { loadBeside } from './modules.ts'

/** A call that a tool got: what it was sent, and with which headers. */
export type ToolRequest = { input: any; headers: IncomingHttpHeaders; signal: AbortSignal }

/** What a tool answers: a value with 200, a status with a value, or a function that does it itself. */
type Answer = { status?: number; body: unknown } | ((request: ToolRequest, response: ServerResponse) => unknown)

export type TestTools = {
  /** Makes a tool of a project and answers its id. */
  add(projectId: string, type?: string): string
  /** Takes a tool away, as the end of a share does: nothing asks what names it. */
  remove(id: string): void
  /** What a tool answers from now on; `{ body: 'text' }` until told. */
  answer(id: string, answer: Answer): void
  /** Calls of a tool in the order they came. */
  calls(id: string): ToolRequest[]
  /** What the runner itself was handed, beside the input. */
  handed: { tool_id: string; action: string | null; principal: unknown; timeout_ms: number }[]
  close(): Promise<void>
}

/**
 * Tools for tests: the product has none yet, so the hook that they will fill is filled here. Each is an http tool as it
 * will be: its input goes as JSON to an address of its own, a 2xx answer is its output (JSON, or else text) and anything
 * else its failure.
 */
export async function startTools(): Promise<TestTools> {
  const tools = new Map<string, { projectId: string; type: string; answer: Answer; calls: ToolRequest[] }>()
  const server = createServer((request, response) => {
    const tool = tools.get(String(request.url).slice(1))
    const gone = new AbortController()
    const chunks: Buffer[] = []
    request.on('error', () => {})
    response.on('close', () => gone.abort())
    request.on('data', chunk => chunks.push(chunk))
    request.on('end', () => {
      if (!tool) return response.writeHead(404).end()
      const input = JSON.parse(Buffer.concat(chunks).toString('utf8'))
      const call = { input, headers: request.headers, signal: gone.signal }
      tool.calls.push(call)
      if (typeof tool.answer === 'function') return tool.answer(call, response)
      response.statusCode = tool.answer.status ?? 200
      reply(response, tool.answer.body)
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const handed: TestTools['handed'] = []

  const runner: ToolRunner = {
    async find(_db, projectId, toolId) {
      const tool = tools.get(toolId)
      return tool?.projectId === projectId ? { id: toolId, type: tool.type } : null
    },
    async call({ egress }, { tool_id, action, input, principal, idempotency_key, timeout_ms, signal }) {
      handed.push({ tool_id, action, principal, timeout_ms })
      const outcome = await egress.request({
        url: `${url}/${tool_id}`,
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          ...(idempotency_key ? { 'idempotency-key': idempotency_key } : {}),
        },
        body: JSON.stringify(input),
        timeoutMs: timeout_ms,
        maxRedirects: 0,
        redirectMode: 'none',
        maxBytes: 64 * 1024 * 1024,
        signal,
      })
      if (outcome.kind !== 'answer') {
        const message = outcome.kind === 'failed' ? outcome.message : outcome.reason
        return { ok: false, error: { code: 'TOOL_HTTP_ERROR', message } }
      }
      const text = outcome.body.toString('utf8')
      const meta = { status: outcome.status, body: text }
      if (outcome.status < 200 || outcome.status > 299)
        return { ok: false, error: { code: 'TOOL_HTTP_ERROR', message: `answered ${outcome.status}`, meta } }
      return { ok: true, output: outcome.headers['content-type']?.includes('json') ? JSON.parse(text) : text }
    },
  }
  const unload = loadBeside({ extensions: [toolRunners.with(runner)] })

  const of = (id: string) => {
    const tool = tools.get(id)
    if (!tool) throw new Error(`no tool ${id}`)
    return tool
  }
  return {
    add(projectId, type = 'http') {
      const id = newId('tool')
      tools.set(id, { projectId, type, answer: { body: 'text' }, calls: [] })
      return id
    },
    remove: id => void tools.delete(id),
    answer(id, answer) {
      of(id).answer = answer
    },
    calls: id => of(id).calls,
    handed,
    async close() {
      unload()
      await new Promise(resolve => {
        server.close(resolve)
        server.closeAllConnections()
      })
    },
  }
}

/** Ends an answer of a tool: text as text, anything else as JSON. */
export function reply(response: ServerResponse, body: unknown): void {
  response.setHeader('content-type', typeof body === 'string' ? 'text/plain; charset=utf-8' : 'application/json')
  response.end(typeof body === 'string' ? body : JSON.stringify(body))
}
