import assert from 'node:assert/strict'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Client, Reply } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'

export type TargetRequest = {
  method: string
  url: string
  headers: IncomingHttpHeaders
  rawHeaders: string[]
  body: string
  bytes: Buffer
}

type Answer = (request: TargetRequest, response: ServerResponse) => unknown

export type Target = {
  url: string
  port: number
  requests: TargetRequest[]
  /** The request that came last. */
  last(): TargetRequest
  /** The answer to requests from now on; `{"ok":true}` by default. */
  answer: Answer
  connections: number
  close(): Promise<void>
}

/** Ends an answer with JSON. */
export const json =
  (value: unknown, status = 200): Answer =>
  (_request, response) =>
    response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value))

/** The target of tools: a server on 127.0.0.1, or another address, that keeps the requests. */
export async function startTarget(address = '127.0.0.1'): Promise<Target> {
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('error', () => {})
    request.on('data', chunk => chunks.push(chunk))
    request.on('end', () => {
      const bytes = Buffer.concat(chunks)
      const { method = '', url = '', headers, rawHeaders } = request
      const got = { method, url, headers, rawHeaders, body: bytes.toString('utf8'), bytes }
      target.requests.push(got)
      target.answer(got, response)
    })
  })
  server.on('connection', () => {
    target.connections++
  })
  await new Promise<void>(resolve => server.listen(0, address, resolve))
  const { port } = server.address() as AddressInfo
  const target: Target = {
    url: `http://127.0.0.1:${port}`,
    port,
    requests: [],
    last: () => target.requests.at(-1) ?? assert.fail('no request came'),
    answer: json({ ok: true }),
    connections: 0,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return target
}

/** Makes a tool and answers its record. */
export async function made(key: Client, fields: Record<string, unknown>): Promise<any> {
  return createdBy(key, '/tools', { name: 'tool', ...fields })
}

export const secretOf = async (key: Client, value: string): Promise<string> =>
  (await key.post('/secrets', { name: 's', value })).body.id

export const call = (key: Client, id: string, input?: object, more: object = {}): Promise<Reply> =>
  key.post(`/tools/${id}/call`, { ...(input ? { input } : {}), ...more })

/** The error of a refusal. */
export function refused(reply: Reply, status: number, code: string): any {
  assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
  return reply.body.error
}

/** VALIDATION_FAILED that names a field. */
export function refusedAt(reply: Reply, path: string): any {
  const error = refused(reply, 400, 'VALIDATION_FAILED')
  const paths = error.meta.problems.map((problem: { path: string }) => problem.path)
  assert.ok(paths.includes(path), JSON.stringify(error))
  return error
}

/** The record that a write returns, with a warning about the address at a path. */
export function warnedAt({ status, body }: Reply, path: string): any {
  assert.ok(status === 200 || status === 201, JSON.stringify(body))
  assert.deepEqual(
    body.warnings?.map(({ code, path }: { code: string; path: string }) => [code, path]),
    [['ADDRESS_BLOCKED', path]],
    JSON.stringify(body),
  )
  return body
}
