import type { AuditEntry } from '../../core/audit.ts'
import type { Services } from '../../core/operation.ts'

export type ReadAudit = {
  enabledFor(projectId: string): boolean | Promise<boolean>
  record(entry: AuditEntry): void
  close(): Promise<void>
}

export const createReadAudit = (_services: Services): ReadAudit => ({
  enabledFor: () => false,
  record: () => {},
  close: async () => {},
})
