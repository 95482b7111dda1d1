import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import * as functions from '../../client/dist/generated/operations.js'
import { Client, type EventStream, MusterError } from '../../client/dist/index.js'
import { startApp } from '../support/app.ts'
import { type Reply, sendByClient } from '../support/client-driver.ts'
import { populate } from '../support/populate.ts'
import { forSuite } from '../support/suite.ts'

type Command = {
  id: string
  method: string
  path: string
  stream?: { selected_by: unknown }
  wait?: { parameter: string }
  fields: { in: string }[]
}

const file = path.resolve(import.meta.dirname, '../../client/commands.json')
const commands: Command[] = JSON.parse(fs.readFileSync(file, 'utf8')).commands

describe('every operation through the client', function () {
  this.timeout(120_000)
  const app = forSuite(startApp)
  let ids: Record<string, string>
  before(async () => {
    // Creates are requests of the client too.
    process.env.TEST_CLIENT_DRIVER = 'true'
    ids = await populate(app)
  })

  const filled = (template: string): string =>
    template.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(ids[name] ?? 'none'))

  /** Sends a request that the client must be able to send. */
  const send = async ({ id, method, path: template, wait }: Command, body?: object): Promise<Reply> => {
    // There is no worker to wait for.
    const query = wait && method !== 'GET' ? `?${wait.parameter}=false` : ''
    const request = { method, path: `${filled(template)}${query}`, body, headers: {} }
    const reply = await sendByClient(app.url, app.admin.token, request)
    assert.ok(reply, `${id}: the client has another request`)
    assert.notEqual(reply.body?.error?.code, 'INTERNAL_ERROR', id)
    return reply
  }

  it('reads: lists and records, exports and files, as the service sends them', async () => {
    const reads = commands.filter(({ method, stream }) => method === 'GET' && !stream)
    const refused: string[] = []
    for (const command of reads) if ((await send(command)).status >= 300) refused.push(command.id)
    assert.ok(reads.length >= 200, String(reads.length))
    assert.ok(refused.length < reads.length / 10, refused.join(' '))
  })

  it('streams: each is requested as one, and answered as one or refused', async () => {
    for (const { id, path: template, stream, method } of commands.filter(each => each.stream)) {
      const names = [...template.matchAll(/\{(\w+)\}/g)].map(match => match[1])
      const args: Record<string, unknown> = Object.fromEntries(names.map(name => [name, ids[name] ?? 'none']))
      if (method === 'POST' && id.startsWith('createAgent')) args.prompt = 'hello'
      const controller = new AbortController()
      let type: string | null = null
      const client = new Client({
        baseUrl: app.url,
        token: app.admin.token as string,
        maxRetries: 0,
        async fetch(url, init) {
          const response = await fetch(url, init)
          type = response.headers.get('content-type')
          if (response.ok) controller.abort(new Error('left'))
          return response
        },
      })
      const name = stream?.selected_by ? `${id}Stream` : id
      const events: EventStream<any> = (functions as any)[name](client, args, { signal: controller.signal })
      const error = (await events.result().catch(each => each)) as Error
      assert.ok(error.message === 'left' || error instanceof MusterError, `${name}: ${error}`)
      if (error.message === 'left') assert.match(type ?? '', /^text\/event-stream/, name)
    }
  })

  it('changes and deletes', async () => {
    const changes = commands.filter(({ method }) => method === 'PATCH')
    for (const command of changes) await send(command, {})
    const deletes = commands.filter(({ method }) => method === 'DELETE')
    for (const command of deletes) await send(command)
    assert.ok(changes.length > 40 && deletes.length > 45, `${changes.length} ${deletes.length}`)
  })
})
