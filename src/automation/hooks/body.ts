import type { IncomingMessage } from 'node:http'
import { AppError, raise } from '../../core/api/errors.ts'
import type { StreamedRequest } from '../../core/api/operation.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { countAnonymous } from '../../core/http/anonymous-bodies.ts'
import { CLIENT_GONE, limitJson } from '../../core/http/body.ts'

/** Bodies of calls from outside, read as bytes whatever their type says. */

const BODY_BYTES = 1024 * 1024

const tooLarge = () => new AppError('HOOK_PAYLOAD_TOO_LARGE', { meta: { max_bytes: BODY_BYTES } })

/** Raises HOOK_PAYLOAD_TOO_LARGE for a body that declares more than it may have. */
export function refuseDeclared(req: IncomingMessage): void {
  if (Number(req.headers['content-length'] ?? 0) > BODY_BYTES) throw tooLarge()
}

/**
 * Returns the bytes of a body as they came. They count as anonymous until the answer ends.
 * @param sender what is called, whose bodies share a part of the memory for anonymous ones
 * @throws HOOK_PAYLOAD_TOO_LARGE as soon as there are too many, SERVICE_NOT_READY, REQUEST_REJECTED when the client leaves
 */
export async function hookBytes({ req, services, closed }: StreamedRequest, sender: string): Promise<Buffer> {
  if (req.destroyed) throw CLIENT_GONE
  const count = countAnonymous(services, sender, closed)
  const chunks: Buffer[] = []
  let size = 0
  await new Promise<void>((resolve, reject) => {
    const add = (chunk: Buffer) => {
      try {
        size += chunk.length
        if (size > BODY_BYTES) throw tooLarge()
        count(chunk.length)
        chunks.push(chunk)
      } catch (error) {
        req.off('data', add)
        reject(error)
      }
    }
    req.on('data', add)
    req.once('end', resolve)
    for (const broken of ['error', 'close']) req.once(broken, () => reject(CLIENT_GONE))
  })
  return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)
}

/**
 * What a body says; an empty one is an empty object. Raises HOOK_INVALID_JSON, VALIDATION_FAILED for what is nested too deep
 * or holds too many values.
 */
export function hookJson(body: Buffer): unknown {
  if (body.length === 0) return {}
  limitJson(body)
  try {
    return storableValue(JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body)))
  } catch {
    return raise('HOOK_INVALID_JSON')
  }
}
