import type { IncomingMessage } from 'node:http'
import type { StreamedRequest } from '#core/api/operation.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { limitJson } from '#core/base/json-limits.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { countAnonymous } from '#core/http/anonymous-bodies.ts'
import { CLIENT_GONE } from '#core/http/body.ts'

const BODY_BYTES = 1024 * 1024

const payloadTooLarge = () => new AppError('HOOK_PAYLOAD_TOO_LARGE', { meta: { max_bytes: BODY_BYTES } })

/**
 * Refuses a body whose declared length exceeds the limit.
 * @throws HOOK_PAYLOAD_TOO_LARGE
 */
export function refuseDeclared(req: IncomingMessage): void {
  if (Number(req.headers['content-length'] ?? 0) > BODY_BYTES) throw payloadTooLarge()
}

/**
 * Reads the bytes of a body, whatever its content type. They count toward the memory for anonymous requests until the
 * response ends.
 * @param sender called resource, whose bodies share a part of that memory
 * @throws HOOK_PAYLOAD_TOO_LARGE as soon as the limit is exceeded, SERVICE_NOT_READY, REQUEST_REJECTED when the
 *   client disconnects
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
        if (size > BODY_BYTES) throw payloadTooLarge()
        count(chunk.length)
        chunks.push(chunk)
      } catch (error) {
        req.off('data', add)
        reject(error)
      }
    }
    req.on('data', add)
    req.once('end', resolve)
    for (const event of ['error', 'close']) req.once(event, () => reject(CLIENT_GONE))
  })
  return chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)
}

/**
 * Parses a JSON body; an empty body is an empty object.
 * @throws HOOK_INVALID_JSON, VALIDATION_FAILED if it is nested too deeply or has too many values
 */
export function hookJson(body: Buffer): unknown {
  if (body.length === 0) return {}
  limitJson(body)
  try {
    return storableValue(parseExactJson(new TextDecoder('utf-8', { fatal: true }).decode(body)))
  } catch {
    return raise('HOOK_INVALID_JSON')
  }
}
