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

/** Returns a text sealed by `sealText`; null if it cannot be decrypted. */
export function openText({ secrets }: Box, sealed: string, row: SealedFor): string | null {
  const opened = secrets.openBytes(sealed, row)
  if (!opened.ok) return null
  const { value } = opened
  return (value[0] === BRACE ? value : inflateSync(value)).toString('utf8')
}
