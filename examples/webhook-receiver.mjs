// Webhook receiver: MUSTER_WEBHOOK_SECRET=whsec_... PORT=8090 node examples/webhook-receiver.mjs
import { createServer } from 'node:http'
import { bodyOf, verified } from './signature.mjs'

const { MUSTER_WEBHOOK_SECRET: secret, PORT = '8090' } = process.env
if (!secret) throw new Error('MUSTER_WEBHOOK_SECRET is not set')

// Deliveries arrive at least once and in any order. A real receiver stores the event IDs in the transaction with its data.
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
  // Any 2xx completes the delivery. The response must be sent within ten seconds; do slow work after it.
  response.writeHead(204).end()
})

server.listen(Number(PORT), () => console.log(`listening on port ${server.address().port}`))
