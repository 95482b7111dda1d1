import type { ClientKind } from './model.ts'

/** Clients that are built in. */
export const CONSOLE = 'muster-console'
export const CLI = 'muster-cli'

export const isFirstParty = (clientId: string): boolean => clientId === CONSOLE || clientId === CLI

/** Where a client comes from, by its id. */
export const kindOfClient = (clientId: string): ClientKind =>
  isFirstParty(clientId) ? 'first_party' : clientId.startsWith('https:') ? 'metadata_document' : 'registered'
