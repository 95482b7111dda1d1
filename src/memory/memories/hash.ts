import { createHash } from 'node:crypto'

/** SHA-256 in hex of what makes two texts the same: NFC, every run of whitespace one space, case kept. */
export const contentHash = (content: string): string =>
  createHash('sha256').update(content.normalize('NFC').replaceAll(/\s+/g, ' ').trim()).digest('hex')
