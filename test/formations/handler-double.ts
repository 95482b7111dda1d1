import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'

type Call = { request_type: string; key: string; body: any; signature: string }

/** The handler of the registered type `thing`: it makes one thing for a key, however often it is called. */
export async function startHandler() {
  const things = new Map<string, Record<string, unknown>>()
  const made = new Map<string, string>()
  const calls: Call[] = []
  const answer = (key: string, { request_type, physical_resource_id: id, properties }: any): object => {
    if (request_type === 'read') {
      const known = things.get(id)
      return known ? { exists: true, physical_resource_id: id, properties: known } : { exists: false }
    }
    if (request_type === 'delete') {
      things.delete(id)
      return {}
    }
    const thing = request_type === 'update' ? id : (made.get(key) ?? `thing-${made.size + 1}`)
    if (request_type === 'create' && !made.has(key)) {
      made.set(key, thing)
      things.set(thing, properties)
    }
    if (request_type === 'update') things.set(thing, properties)
    return { physical_resource_id: thing, outputs: { label: `the ${properties.label}` } }
  }
  const server = createServer((request, response) => {
    let text = ''
    request.on('data', chunk => {
      text += chunk
    })
    request.on('end', () => {
      const body = JSON.parse(text)
      const header = (name: string) => String(request.headers[name])
      const key = header('x-svc-idempotency-key')
      calls.push({ request_type: body.request_type, key, body, signature: header('x-svc-signature') })
      const refused = body.properties?.label === 'refused'
      response.writeHead(refused ? 500 : 200, { 'content-type': 'application/json' })
      response.end(JSON.stringify(refused ? { message: 'no such thing' } : answer(key, body)))
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const folder = await mkdtemp(path.join(tmpdir(), 'muster-types-'))
  const file = path.join(folder, 'types.json')
  const type = {
    name: 'thing',
    handler: {
      url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
      secret_env: 'THING_SECRET',
      timeout_seconds: 20,
    },
    capabilities: ['read'],
    schema: {
      type: 'object',
      properties: { label: { type: 'string' }, owner: { type: 'string' }, password: { type: 'string' } },
      required: ['label'],
    },
    write_only_properties: ['password'],
  }
  await writeFile(file, JSON.stringify({ resource_types: [type] }))
  // The application of the test reads the secret from its own environment.
  process.env.THING_SECRET = 'the secret of the handler'
  return {
    things,
    calls,
    /** Settings of the processes. */
    env: { FORMATION_RESOURCE_TYPES_CONFIG: file, THING_SECRET: 'the secret of the handler' },
    async close(): Promise<void> {
      delete process.env.THING_SECRET
      await new Promise(resolve => {
        server.close(resolve)
        server.closeAllConnections()
      })
      await rm(folder, { recursive: true })
    },
  }
}
