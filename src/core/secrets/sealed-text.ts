import { deflateSync, inflateSync } from 'node:zlib'
import type { Services } from '../base/services.ts'
import type { SealedFor } from './secretbox.ts'

/** JSON texts sealed for their row, compressed if that pays. */

type Box = Pick<Services, 'secrets'>

/** Sizes in bytes that are compressed, and the level: less does not pay; more would block the event loop. */
const COMPRESSED = { from: 1024, to: 256 * 1024, level: 1 }
/** First byte of a JSON object, which zlib data never has. */
const BRACE = 0x7b

/** Seals a text that begins with a JSON object. */
export function sealText({ secrets }: Box, text: string, row: SealedFor): string {
  const { from, to, level } = COMPRESSED
  const size = Buffer.byteLength(text)
  return secrets.seal(size >= from && size <= to ? deflateSync(text, { level }) : text, row)
}

/** Most bytes of a sealed text in a notification: PostgreSQL takes less than 8,000 bytes, with the rest of the payload. */
const MAX_SEALED = 6900
/** Most characters of a text that may fit compressed. */
const MAX_TEXT = 64 * 1024

/**
 * Seals a text for a notification; null if it does not fit. Every session of the database may listen and notify: only
 * processes with the key of the deployment read the text, and none accepts a forged one, or one for another row.
 */
export function sealForNotification(box: Box, text: string, row: SealedFor): string | null {
  if (text.length > MAX_TEXT) return null
  const sealed = sealText(box, text, row)
  return sealed.length > MAX_SEALED ? null : sealed
}

/** Returns a text sealed by `sealText`; null if it cannot be decrypted. */
export function openText({ secrets }: Box, sealed: string, row: SealedFor): string | null {
  const opened = secrets.openBytes(sealed, row)
  if (!opened.ok) return null
  const { value } = opened
  return (value[0] === BRACE ? value : inflateSync(value)).toString('utf8')
}
