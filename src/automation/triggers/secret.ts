import { randomBytes } from 'node:crypto'

/** A new secret: 32 random bytes. */
export const newTriggerSecret = (): string => randomBytes(32).toString('hex')
