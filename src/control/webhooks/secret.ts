import { randomBytes } from 'node:crypto'

/** A new signing secret: `whsec_` and 43 base64url characters, 256 random bits. */
export const newWebhookSecret = (): string => `whsec_${randomBytes(32).toString('base64url')}`
