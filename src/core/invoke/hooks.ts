import type { AuditEntry } from '../api/audit.ts'
import { extensionPoint } from '../declarations.ts'
import type { Caller } from '../iam/caller.ts'
import type { Services } from '../process/services.ts'

/** Resolves a bearer token; null is 401. */
export const authentication =
  extensionPoint<(services: Services, token: string, request: { ip: string | null }) => Promise<Caller | null>>(
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
