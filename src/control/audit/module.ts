import { readAudit } from '#core/invoke/hooks.ts'
import { module } from '#core/modules/module.ts'
import { auditEntryKind } from './model.ts'
import { auditOperations } from './operations.ts'
import { auditReadsDropped, readAuditOf } from './read-audit.ts'
import { pruneAudit } from './retention.ts'
import { mergeSeals, sealHandler, sealSchedules } from './seal.ts'

export default module('audit', {
  tags: { Audit: 'Append-only, verifiable log of actions.' },
  kinds: [auditEntryKind],
  operations: auditOperations,
  handlers: [sealHandler],
  extensions: [readAudit.with(readAuditOf)],
  metrics: [auditReadsDropped],
  schedules: sealSchedules,
  sweeps: [
    { name: 'audit entries', when: '31 3 * * *', run: pruneAudit },
    { name: 'audit seals', when: '1 4 * * *', run: mergeSeals },
  ],
})
