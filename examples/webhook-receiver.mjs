// A receiver of webhooks: MUSTER_WEBHOOK_SECRET=whsec_... PORT=8090 node examples/webhook-receiver.mjs
import { createServer } from 'node:http'
import { bodyOf, verified } from './signature.mjs'

const { MUSTER_WEBHOOK_SECRET: secret, PORT = '8090' } = process.env
if (!secret) throw new Error('MUSTER_WEBHOOK_SECRET is not set')

// Deliveries come at least once and in any order. A real receiver keeps the ids with its data, in the same transaction.
const seen = new Set()

const server = createServer(async (request, response) => {
  const body = await bodyOf(request)
  if (!body) return response.writeHead(413).end()
  if (!verified(secret, request.headers['x-svc-signature'], body)) return response.writeHead(401).end()
  const event = JSON.parse(body.toString('utf8'))
  if (!seen.has(event.id)) {
    seen.add(event.id)
    console.log(`${event.timestamp} ${event.event} ${event.resource_id}`)
  }
  // Any 2xx ends the delivery. Work that takes long belongs behind the answer: it has to come within ten seconds.
  response.writeHead(204).end()
})

server.listen(Number(PORT), () => console.log(`listening on port ${server.address().port}`))
