// A receiver of webhooks: MUSTER_WEBHOOK_SECRET=whsec_... PORT=8090 node examples/webhook-receiver.mjs
import { createHmac, timingSafeEqual } from 'node:crypto'
import { createServer } from 'node:http'

const { MUSTER_WEBHOOK_SECRET: secret, PORT = '8090' } = process.env
if (!secret) throw new Error('MUSTER_WEBHOOK_SECRET is not set')

const MAX_BYTES = 10 * 1024 * 1024
const TOLERANCE_SECONDS = 300

/** Whether the body, as received and before any parsing, was signed with the secret a short time ago. */
function verified(header, body) {
  const parts = (header ?? '').split(',').map(part => part.split('='))
  const t = parts.find(([name]) => name === 't')?.[1] ?? ''
  if (!/^\d+$/.test(t) || Math.abs(Date.now() / 1000 - Number(t)) > TOLERANCE_SECONDS) return false
  const expected = createHmac('sha256', secret).update(`${t}.`).update(body).digest()
  // While a secret is being rotated there are two signatures; either will do.
  return parts.some(([name, value]) => {
    const given = Buffer.from(value ?? '', 'hex')
    return name === 'v1' && given.length === expected.length && timingSafeEqual(given, expected)
  })
}

// Deliveries come at least once and in any order. A real receiver keeps the ids with its data, in the same transaction.
const seen = new Set()

const server = createServer(async (request, response) => {
  const chunks = []
  let size = 0
  for await (const chunk of request) {
    size += chunk.length
    if (size > MAX_BYTES) return response.writeHead(413).end()
    chunks.push(chunk)
  }
  const body = Buffer.concat(chunks)
  if (!verified(request.headers['x-svc-signature'], body)) return response.writeHead(401).end()
  const event = JSON.parse(body.toString('utf8'))
  if (!seen.has(event.id)) {
    seen.add(event.id)
    console.log(`${event.timestamp} ${event.event} ${event.resource_id}`)
  }
  // Any 2xx ends the delivery. Work that takes long belongs behind the answer: it has to come within ten seconds.
  response.writeHead(204).end()
})

server.listen(Number(PORT), () => console.log(`listening on port ${server.address().port}`))
