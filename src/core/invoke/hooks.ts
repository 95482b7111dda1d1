import { extensionPoint } from '../base/declarations.ts'
import type { Services } from '../base/services.ts'
import type { Caller, EndUser } from '../iam/caller.ts'
import type { AuditEntry } from '../writes/audit-entry.ts'

/** A proof of possession sent with a token of the DPoP scheme (RFC 9449). */
export type Proof = {
  /** The `DPoP` header, if present. */
  jwt: string | undefined
  method: string
  /** Path of the request, without its query. */
  path: string
  /** Whether it was accepted. A second check in the same request would report a replay. */
  accepted: boolean
}

/**
 * The context of a presented credential; `proof` is set for the DPoP scheme, `origin` by browsers. `byTicket`: the client has
 * only a ticket that stands for it.
 */
export type PresentedCredential = { ip: string | null; origin?: string; proof?: Proof; byTicket?: boolean }

/** Resolves a token to a caller, or null for 401. */
export const authentication = extensionPoint<
  (services: Services, token: string, presented: PresentedCredential) => Promise<Caller | null>
>({
  name: 'authentication',
  folder: 'core/invoke',
  description: 'Finds the caller of a credential',
})

/** What a call spends of the limits of an end-user token, besides a request. */
export type EndUserSpend = { messages?: number; chars?: number }

/** Counts a call against the limits of an end-user token. Raises ACTOR_LIMIT_EXCEEDED. */
export const endUserLimits = extensionPoint<
  (services: Services, endUser: EndUser, spend: EndUserSpend) => Promise<void>
>({
  name: 'end user limits',
  folder: 'core/invoke',
  description: 'Counts a call against the limits of the token of an end user',
})

/**
 * Takes one of the open streams of an end user and returns its release. `onRevoked` is called when the tokens of the end
 * user may have ended. Raises STREAM_LIMIT_EXCEEDED.
 */
export const endUserStreams = extensionPoint<
  (services: Services, endUser: EndUser, onRevoked: () => void) => Promise<() => void>
>({
  name: 'end user streams',
  folder: 'core/invoke',
  description: 'Takes and releases an open stream of an end user',
})

export type ReadAudit = {
  /** Whether reads of the project are audited. */
  enabledFor(projectId: string): boolean | Promise<boolean>
  /** Buffers the entry of a read without waiting. */
  record(entry: AuditEntry): void
}

export const readAudit = extensionPoint<(services: Services) => ReadAudit>({
  name: 'read audit',
  folder: 'core/invoke',
  description: 'Says whether reads of a project are audited, and writes their entries',
})
