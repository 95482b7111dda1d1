import type { AuditEntry } from '../api/audit.ts'
import { extensionPoint } from '../declarations.ts'
import type { Caller } from '../iam/caller.ts'
import type { Services } from '../process/services.ts'

/** A proof of possession that came with a token of the DPoP scheme (RFC 9449). */
export type Proof = {
  /** The `DPoP` header; undefined without one. */
  jwt: string | undefined
  method: string
  /** Path of the request, without its query. */
  path: string
  /** Set once it was accepted: within its request it is not checked again, when it would count as replayed. */
  accepted: boolean
}

/** What a credential came with; `proof` where its scheme is DPoP. */
export type PresentedCredential = { ip: string | null; proof?: Proof }

/** Resolves a token; null is 401. */
export const authentication =
  extensionPoint<(services: Services, token: string, presented: PresentedCredential) => Promise<Caller | null>>(
    'authentication',
  )

/** Counts one request of a project key in a project: for its quotas, for what it is billed. Raises QUOTA_EXCEEDED. */
export const requestCounting =
  extensionPoint<(services: Services, caller: Caller, projectId: string) => Promise<void> | void>('request counting')

/** Has all who count do so, in the order of the modules. */
export async function countRequest(services: Services, caller: Caller, projectId: string): Promise<void> {
  for (const count of requestCounting.all()) await count(services, caller, projectId)
}

export type ReadAudit = {
  /** Whether reads of the project are audited. */
  enabledFor(projectId: string): boolean | Promise<boolean>
  /** Takes the entry of a read; never waits. */
  record(entry: AuditEntry): void
}

export const readAudit = extensionPoint<(services: Services) => ReadAudit>('audit of reads')
