import { module } from '../../core/api/module.ts'
import { auditEntry } from './model.ts'
import { auditOperations } from './operations.ts'
import { pruneAudit } from './retention.ts'
import { sealHandler, sealSchedules } from './seal.ts'

export default module('audit', {
  kinds: [auditEntry],
  operations: auditOperations,
  handlers: [sealHandler],
  schedules: sealSchedules,
  sweeps: [{ name: 'audit entries', when: '31 3 * * *', run: pruneAudit }],
})
