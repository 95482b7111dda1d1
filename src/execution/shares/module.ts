import { grantings } from '../../core/api/grants.ts'
import { module } from '../../core/api/module.ts'
import { projectLeavings } from '../../identity/projects/delete.ts'
import { shareErrors } from './errors.ts'
import { expiryHandler, expirySchedule, pruneShares } from './expire.ts'
import { shareKind, tellOfProject } from './kind.ts'
import { shareOperations } from './operations.ts'
import { resourceGranting, shareGranting } from './reach.ts'

export default module('shares', {
  tags: { Shares: 'Tools and agents that other projects may use.' },
  errors: shareErrors,
  kinds: [shareKind],
  operations: shareOperations,
  handlers: [expiryHandler],
  schedules: [expirySchedule],
  sweeps: [{ name: 'share counters', when: '27 3 * * *', run: pruneShares }],
  extensions: [grantings.with(resourceGranting), grantings.with(shareGranting), projectLeavings.with(tellOfProject)],
})
