// Handler of a registered resource type: MAILBOX_SECRET=... PORT=8091 node examples/mailbox-handler.mjs
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { bodyOf, verified } from './signature.mjs'

const { MAILBOX_SECRET: secret, PORT = '8091' } = process.env
if (!secret) throw new Error('MAILBOX_SECRET is not set')

// A real handler calls the API of a mail server and stores idempotency keys in its database.
const mailboxes = new Map()
const created = new Map()

class Refusal extends Error {}

const requests = {
  // A repeated create has the same key and returns the existing mailbox.
  create({ properties }, key) {
    const id = created.get(key) ?? randomUUID()
    created.set(key, id)
    mailboxes.set(id, properties)
    return { physical_resource_id: id, outputs: { address: properties.address } }
  },
  update({ physical_resource_id: id, properties }) {
    if (!mailboxes.has(id)) throw new Refusal(`mailbox ${id} not found`)
    mailboxes.set(id, properties)
    return { physical_resource_id: id, outputs: { address: properties.address } }
  },
  delete({ physical_resource_id: id }) {
    mailboxes.delete(id)
    return {}
  },
  read({ physical_resource_id: id }) {
    const properties = mailboxes.get(id)
    return properties ? { exists: true, physical_resource_id: id, properties } : { exists: false }
  },
  validate({ properties: { address } }) {
    const errors = address.endsWith('@example.com') ? [] : [{ path: 'address', message: 'must end with @example.com' }]
    return { errors }
  },
}

const server = createServer(async (request, response) => {
  const body = await bodyOf(request)
  if (!body) return response.writeHead(413).end()
  if (!verified(secret, request.headers['x-svc-signature'], body)) return response.writeHead(401).end()
  const call = JSON.parse(body.toString('utf8'))
  console.log(`${call.request_type} ${call.logical_id}`)
  try {
    const answer = requests[call.request_type](call, request.headers['x-svc-idempotency-key'])
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(answer))
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
    response.writeHead(409, { 'content-type': 'application/json' }).end(JSON.stringify({ message: error.message }))
  }
})

server.listen(Number(PORT), () => console.log(`listening on port ${server.address().port}`))
