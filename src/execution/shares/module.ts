import { grantSources } from '#core/api/grants.ts'
import { module } from '#core/modules/module.ts'
import { projectDeleteHooks } from '#identity/projects/delete.ts'
import { shareErrors } from './errors.ts'
import { pruneShares, shareExpiryHandler, shareExpirySchedule } from './expire.ts'
import { notifyProjectDeletion, shareKind } from './kind.ts'
import { shareOperations } from './operations.ts'
import { sharedResourceGrants, shareGrants } from './share-grants.ts'

export default module('shares', {
  tags: { Shares: 'Tools and agents shared with other projects.' },
  errors: shareErrors,
  kinds: [shareKind],
  operations: shareOperations,
  handlers: [shareExpiryHandler],
  schedules: [shareExpirySchedule],
  sweeps: [{ name: 'share counters', when: '27 3 * * *', run: pruneShares }],
  extensions: [
    grantSources.with(sharedResourceGrants),
    grantSources.with(shareGrants),
    projectDeleteHooks.with(notifyProjectDeletion),
  ],
})
