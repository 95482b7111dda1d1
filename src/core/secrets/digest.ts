import { createHash } from 'node:crypto'

/** SHA-256 of a text: what is stored in place of a credential, and looked up by. */
export const sha256Of = (text: string): Buffer => createHash('sha256').update(text).digest()
