import { module } from '#core/modules/module.ts'
import { activityErrors } from './errors.ts'
import { activityKind } from './model.ts'
import { activityOperations } from './operations.ts'
import { activityDropped } from './record.ts'
import { pruneActivity } from './retention.ts'

export default module('activity', {
  tags: { Activity: 'Feed of actions taken by agents and automation.' },
  errors: activityErrors,
  kinds: [activityKind],
  operations: activityOperations,
  metrics: [activityDropped],
  sweeps: [{ name: 'activity', when: '47 3 * * *', run: pruneActivity }],
})
