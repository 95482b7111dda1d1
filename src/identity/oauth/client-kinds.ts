import { isFirstParty } from '../grants/built-in-clients.ts'
import type { ClientKind } from './model.ts'

/** Returns the origin of a client by its ID. */
export const kindOfClient = (clientId: string): ClientKind =>
  isFirstParty(clientId) ? 'first_party' : clientId.startsWith('https:') ? 'metadata_document' : 'registered'
