import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import type { Client, MusterError } from '../../client/dist/index.js'

/**
 * Sends the ordinary requests of some test files through the typed client, so that these tests also test it: the client
 * builds the request from flat arguments, and its answer must be the response it received.
 */

const root = path.resolve(import.meta.dirname, '../..')

export type Reply = { status: number; body: any; headers: Headers }

/** One in `ONE_IN` files, by a hash of the name that is the same in every run. */
const ONE_IN = 3

/** Whether the requests of a file are sent by the client. */
export const isDriven = (file: string): boolean =>
  process.env.TEST_CLIENT === 'true' || createHash('sha256').update(file).digest()[0] % ONE_IN === 0

/** Chooses the driver of each file. TEST_CLIENT=true in the environment chooses the client for all. */
export const mochaHooks = {
  beforeAll(this: Mocha.Context) {
    const file = this.test?.parent?.suites[0]?.file
    process.env.TEST_CLIENT_DRIVER = String(file !== undefined && isDriven(path.relative(root, file)))
  },
}

export const drivesClient = (): boolean => process.env.TEST_CLIENT_DRIVER === 'true'

type Field = { name: string; in: 'path' | 'query' | 'body' }
type Command = { id: string; method: string; path: string; fields: Field[]; stream?: { selected_by: unknown } }
type Route = { command: Command; pattern: RegExp; names: string[] }
type Functions = Record<string, (client: Client, args: object, options: object) => any>

let loaded: Promise<{ routes: Route[]; Client: typeof Client; functions: Functions }> | undefined

/** Loads the built client on the first request that it sends. */
async function load() {
  const { Client } = await import('../../client/dist/index.js')
  const functions = (await import('../../client/dist/generated/operations.js')) as unknown as Functions
  const { commands } = JSON.parse(fs.readFileSync(path.join(root, 'client/commands.json'), 'utf8'))
  const routes = (commands as Command[]).map(command => ({
    command,
    pattern: new RegExp(`^${command.path.replace(/\{\w+\}/g, '([^/]+)')}$`),
    names: [...command.path.matchAll(/\{(\w+)\}/g)].map(match => match[1]),
  }))
  // A fixed segment goes before a parameter.
  routes.sort((a, b) => a.names.length - b.names.length)
  return { routes, Client, functions }
}

type Sent = { method: string; path: string; body?: unknown; headers: Record<string, string> }

/** Returns the flat arguments of a request; null if it has none. */
function argumentsOf({ command, pattern, names }: Route, { path: target, body }: Sent): Record<string, unknown> | null {
  const [pathname, search = ''] = target.split('?')
  const args: Record<string, unknown> = {}
  for (const [name, value] of new URLSearchParams(search)) {
    const [, field, key] = /^([^[]+)\[(.*)\]$/.exec(name) ?? []
    if (field) args[field] = { ...(args[field] as object), [key]: value }
    else if (name in args) args[name] = [args[name], value].flat()
    else args[name] = value
  }
  for (const [index, value] of pattern.exec(pathname)!.slice(1).entries())
    args[names[index]] = decodeURIComponent(value)
  if (body === undefined) return args
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return null
  const outside = command.fields.filter(each => each.in !== 'body').map(each => each.name)
  for (const [name, value] of Object.entries(body)) args[outside.includes(name) ? `body_${name}` : name] = value
  return args
}

const queryOf = (url: string): string[] => [...new URL(url, 'http://service').searchParams].map(String).sort()

/** Whether the client sends the request of the test. */
function isSame(url: string, sentBody: unknown, request: Sent, base: string): boolean {
  const wanted = new URL(`${base}/api/v1${request.path}`)
  const bodyOf = (value: unknown) => (typeof value === 'string' ? JSON.parse(value) : value)
  return (
    new URL(url).pathname === wanted.pathname &&
    isDeepStrictEqual(queryOf(url), queryOf(wanted.href)) &&
    isDeepStrictEqual(
      bodyOf(sentBody),
      request.body === undefined ? undefined : JSON.parse(JSON.stringify(request.body)),
    )
  )
}

const DIFFERENT = new Error('the flat call has another request')

/** Sends a request through the client; null, without a request, if no flat call has the request. */
export async function sendByClient(base: string, token: string | null, request: Sent): Promise<Reply | null> {
  loaded ??= load()
  const { routes, Client, functions } = await loaded
  const [pathname] = request.path.split('?')
  const route = routes.find(each => each.command.method === request.method && each.pattern.test(pathname))
  if (!route || Object.keys(request.headers).some(name => /^(authorization|content-type)$/i.test(name))) return null
  const given = argumentsOf(route, request)
  if (!given) return null
  const { stream, ...withoutStream } = given
  const isStreamed = route.command.stream?.selected_by ? stream === true : route.command.stream !== undefined
  const { id } = route.command
  const name = isStreamed && route.command.stream?.selected_by ? `${id}Stream` : id
  let failure: unknown
  let received: { response: Response; content: string } | undefined
  const client = new Client({
    baseUrl: base,
    token: token ?? undefined,
    maxRetries: 0,
    timeoutMs: 600_000,
    async fetch(url, init) {
      try {
        if (!isSame(String(url), init?.body ?? undefined, request, base)) throw DIFFERENT
        const response = await fetch(url, init)
        const content = await response.text()
        received = { response, content }
        const { status, headers } = response
        return new Response(status === 204 ? null : content, { status, headers })
      } catch (error) {
        failure = error
        throw error
      }
    },
  })
  const options = { headers: request.headers }
  let outcome: { data: unknown } | { error: MusterError }
  try {
    const call = functions[name](client, isStreamed ? withoutStream : given, options)
    outcome = { data: isStreamed ? await eventsOf(call) : await dataOf(call) }
  } catch (error) {
    outcome = { error: error as MusterError }
  }
  if (failure === DIFFERENT) return null
  if (failure !== undefined) throw failure
  // Refused before a request: the flat call does not have it.
  if (!received) return null
  const { response, content } = received
  const { status, headers } = response
  const type = headers.get('content-type') ?? ''
  const body = content && type.includes('json') && !type.includes('ndjson') ? JSON.parse(content) : content || null
  const what = `${request.method} ${request.path}: ${status} ${content.slice(0, 500)}`
  if ('error' in outcome) {
    const { error } = outcome
    if (!('code' in error)) throw error
    if (status < 400) throw error
    const { code, message, hint, docs_url, meta = {} } = body.error
    assert.deepEqual(
      [error.status, error.code, error.message, error.hint, error.docsUrl, error.meta],
      [status, code, message, hint, docs_url, meta],
      what,
    )
  } else if (isStreamed) assert.ok(status < 300 && (outcome.data as unknown[]).length > 0, what)
  else if (outcome.data instanceof Downloaded) assert.equal(outcome.data.text, content, what)
  else assert.deepEqual(outcome.data ?? null, body, what)
  return { status, body, headers }
}

async function eventsOf(events: AsyncIterable<unknown>): Promise<unknown[]> {
  const all: unknown[] = []
  for await (const event of events) all.push(event)
  return all
}

/** Text of an answer that the client does not parse, whatever its type: a file may have JSON. */
class Downloaded {
  readonly text: string
  constructor(text: string) {
    this.text = text
  }
}

/** Returns the data of a call: of a list its page. */
async function dataOf(call: any): Promise<unknown> {
  const data = await ('page' in call ? call.page() : call)
  return typeof data?.bytes === 'function' ? new Downloaded(await data.text()) : data
}
