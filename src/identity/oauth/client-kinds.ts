import type { ClientKind } from './model.ts'

/** Built-in clients. */
export const CONSOLE = 'muster-console'
export const CLI = 'muster-cli'

export const isFirstParty = (clientId: string): boolean => clientId === CONSOLE || clientId === CLI

/** Returns the origin of a client by its ID. */
export const kindOfClient = (clientId: string): ClientKind =>
  isFirstParty(clientId) ? 'first_party' : clientId.startsWith('https:') ? 'metadata_document' : 'registered'
