import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type ToolRunner, toolRunners } from '#content/tools.ts'
import { loadModules, module } from '#core/modules/module.ts'
import { type ToolType, toolKind } from '#execution/tools/model.ts'
import { toolRunner } from '#execution/tools/runner.ts'
import { modules } from '#modules.ts'
import type { TestApp } from './app.ts'

/** A call that a tool got: its body, and with which headers. */
export type ToolRequest = { input: any; headers: IncomingHttpHeaders; signal: AbortSignal }

/** What a tool answers: a value with 200, a status with a value, or a function that does it itself. */
type Answer = { status?: number; body: unknown } | ((request: ToolRequest, response: ServerResponse) => unknown)

export type TestTools = {
  /** Makes a tool of a project and answers its id. */
  add(app: Pick<TestApp, 'inCellOf'>, projectId: string, type?: ToolType): Promise<string>
  /** Takes a tool away, as the end of a share does: without a check of references. */
  remove(app: Pick<TestApp, 'inCellOf'>, id: string): Promise<void>
  /** Where a tool is called. */
  url(id: string): string
  /** The answer of a tool from now on; `{ body: 'text' }` by default. */
  answer(id: string, answer: Answer): void
  /** Every call of a tool ends in a fault of the platform's own from now on. */
  break(id: string, message: string): void
  /** Calls of a tool in the order they came. */
  calls(id: string): ToolRequest[]
  /** The arguments that content passed to the runner of tools, next to the input. */
  handed: { tool_id: string; action: string | null; principal: unknown; timeout_ms: number }[]
  close(): Promise<void>
}

/**
 * Http tools of the product, each with a separate address on a server of the test. The runner that content calls is the
 * product's; its arguments are recorded.
 */
export async function startTools(): Promise<TestTools> {
  const tools = new Map<string, { answer: Answer; calls: ToolRequest[] }>()
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
  const faults = new Map<string, string>()

  const noting: ToolRunner = {
    find: toolRunner.find,
    call(services, call) {
      const { tool_id, action, principal, timeout_ms } = call
      handed.push({ tool_id, action, principal, timeout_ms })
      const fault = faults.get(tool_id)
      if (fault !== undefined) throw new Error(fault)
      return toolRunner.call(services, call)
    },
  }
  const others = modules.map(({ extensions, ...each }) => ({
    ...each,
    extensions: extensions?.filter(({ point }) => point.name !== toolRunners.name),
  }))
  loadModules([...others, module('tools of a test', { extensions: [toolRunners.with(noting)] })])

  const of = (id: string) => {
    const tool = tools.get(id)
    if (!tool) throw new Error(`no tool ${id}`)
    return tool
  }
  return {
    add: (app, project_id, type = 'http') =>
      app.inCellOf(project_id, async ({ pool }) => {
        const { id } = await toolKind.insert(pool, { project_id, name: 'test', type })
        await toolKind.update(pool, id, { execute: { url: `${url}/${id}` } })
        tools.set(id, { answer: { body: 'text' }, calls: [] })
        return id
      }),
    async remove(app, id) {
      await app.inCellOf(id, ({ pool }) => toolKind.delete(pool, id))
    },
    url: id => `${url}/${id}`,
    answer(id, answer) {
      of(id).answer = answer
    },
    break: (id, message) => void faults.set(id, message),
    calls: id => of(id).calls,
    handed,
    async close() {
      loadModules(modules)
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
