import { module } from '../../core/api/module.ts'
import { readAudit } from '../../core/invoke/hooks.ts'
import { auditEntry } from './model.ts'
import { auditOperations } from './operations.ts'
import { readAuditOf } from './reads.ts'
import { pruneAudit } from './retention.ts'
import { sealHandler, sealSchedules } from './seal.ts'

export default module('audit', {
  kinds: [auditEntry],
  operations: auditOperations,
  handlers: [sealHandler],
  extensions: [readAudit.with(readAuditOf)],
  schedules: sealSchedules,
  sweeps: [{ name: 'audit entries', when: '31 3 * * *', run: pruneAudit }],
})
