import { TextDecoder } from 'node:util'
import { analyse } from 'chardet'

/** Bytes that are examined, from the first byte that is not ASCII. */
const SAMPLE_BYTES = 16_384

/**
 * Confidence of the detector in percent, and its distance to the next charset, from which a charset counts as detected. A
 * charset of several bytes per character is recognized by the structure of its bytes, which few characters do not show;
 * others by the frequency of letters.
 */
const SURE = { multiByte: { confidence: 90, lead: 15 }, singleByte: { confidence: 40, lead: 20 } }
const MULTI_BYTE = ['GB18030', 'Big5', 'Shift_JIS', 'EUC-JP', 'EUC-KR']
/** Guesses for texts that are no candidates: the text has bytes that neither allows. */
const EXCLUDED = ['ASCII', 'UTF-8']

/** Control characters and private characters, which a text in another charset consists of. */
const IMPLAUSIBLE = /[\x80-\x9f\ue000-\uf8ff\ufffd]/

/** Collects the bytes of a stream by which its charset is detected. */
export class CharsetSample {
  #bytes = Buffer.alloc(0)

  get full(): boolean {
    return this.#bytes.length >= SAMPLE_BYTES
  }

  add(piece: Uint8Array): void {
    if (this.full) return
    const from = this.#bytes.length > 0 ? 0 : piece.findIndex(byte => byte >= 0x80)
    if (from < 0) return
    this.#bytes = Buffer.concat([this.#bytes, piece.subarray(from, from + SAMPLE_BYTES - this.#bytes.length)])
  }

  /** Returns the charset of bytes that are not UTF-8, as the standard of encodings names it; null if it is uncertain. */
  detect(): string | null {
    if (this.#isDamagedUtf8()) return null
    const [first, second] = analyse(this.#bytes).filter(({ name }) => !EXCLUDED.includes(name))
    if (!first) return null
    const { confidence, lead } = MULTI_BYTE.includes(first.name) ? SURE.multiByte : SURE.singleByte
    if (first.confidence < confidence || first.confidence - (second?.confidence ?? 0) < lead) return null
    try {
      const decoder = new TextDecoder(first.name, { fatal: true })
      // The last character may be incomplete.
      return IMPLAUSIBLE.test(decoder.decode(this.#bytes, { stream: true })) ? null : decoder.encoding
    } catch {
      return null
    }
  }

  /** Whether more characters than not are valid UTF-8, which other charsets are only by chance. */
  #isDamagedUtf8(): boolean {
    const text = new TextDecoder().decode(this.#bytes, { stream: true })
    const invalid = text.split('\ufffd').length - 1
    const valid = (text.match(/[^\0-\x7f]/g)?.length ?? 0) - invalid
    return valid > invalid
  }
}
