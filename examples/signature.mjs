import { createHmac, timingSafeEqual } from 'node:crypto'

const TOLERANCE_SECONDS = 300

/** Whether the raw body was signed with the secret within the last 300 seconds. */
export function verified(secret, header, body) {
  const parts = (header ?? '').split(',').map(part => part.split('='))
  const t = parts.find(([name]) => name === 't')?.[1] ?? ''
  if (!/^\d+$/.test(t) || Math.abs(Date.now() / 1000 - Number(t)) > TOLERANCE_SECONDS) return false
  const expected = createHmac('sha256', secret).update(`${t}.`).update(body).digest()
  // During a secret rotation the header has two signatures; one valid signature is enough.
  return parts.some(([name, value]) => {
    const signature = Buffer.from(value ?? '', 'hex')
    return name === 'v1' && signature.length === expected.length && timingSafeEqual(signature, expected)
  })
}

const MAX_BYTES = 10 * 1024 * 1024

/** Reads the body of a request; null if it is larger than 10 MiB, the maximum that the service sends. */
export async function bodyOf(request) {
  const chunks = []
  let size = 0
  for await (const chunk of request) {
    size += chunk.length
    if (size > MAX_BYTES) return null
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}
