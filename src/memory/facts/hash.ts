import { createHash } from 'node:crypto'

/** Returns the SHA-256 in hex of a text after NFC normalization and collapsing of white space; case-sensitive. */
export const contentHash = (content: string): string =>
  createHash('sha256').update(content.normalize('NFC').replaceAll(/\s+/g, ' ').trim()).digest('hex')
