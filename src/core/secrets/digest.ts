import { createHash } from 'node:crypto'

/** Returns the SHA-256 of a text, stored and looked up in place of a credential. */
export const sha256Of = (text: string): Buffer => createHash('sha256').update(text).digest()
