import { createHmac, timingSafeEqual } from 'node:crypto'

const TOLERANCE_SECONDS = 300

/** Whether the body, as received and before any parsing, was signed with the secret a short time ago. */
export function verified(secret, header, body) {
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

const MAX_BYTES = 10 * 1024 * 1024

/** The body of a request; null when it is larger than any that the service sends. */
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
