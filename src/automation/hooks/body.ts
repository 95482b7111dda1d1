import type { IncomingMessage } from 'node:http'
import { AppError, raise } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/text.ts'
import { boundJson } from '../../core/http/body.ts'

/** Bodies of calls from outside, read as bytes whatever their type says. */

const BODY_BYTES = 1024 * 1024

const tooLarge = () => new AppError('HOOK_PAYLOAD_TOO_LARGE', { meta: { max_bytes: BODY_BYTES } })

/** The bytes of a body as they came. Raises HOOK_PAYLOAD_TOO_LARGE as soon as there are too many. */
export async function hookBytes(req: IncomingMessage): Promise<Buffer> {
  if (Number(req.headers['content-length'] ?? 0) > BODY_BYTES) throw tooLarge()
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let size = 0
    req.on('data', (chunk: Buffer) => {
      size += chunk.length
      if (size > BODY_BYTES) return reject(tooLarge())
      chunks.push(chunk)
    })
    req.once('end', () => resolve(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)))
    req.once('error', reject)
    req.once('close', () => reject(new AppError('REQUEST_REJECTED', { status: 400, message: 'The client went away' })))
  })
}

/**
 * What a body says; an empty one is an empty object. Raises HOOK_INVALID_JSON, VALIDATION_FAILED for what is nested too deep
 * or holds too many values.
 */
export function hookJson(body: Buffer): unknown {
  if (body.length === 0) return {}
  boundJson(body)
  try {
    return storableValue(JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body)))
  } catch {
    return raise('HOOK_INVALID_JSON')
  }
}
