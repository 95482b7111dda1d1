import { module } from '../../core/api/module.ts'
import { activityErrors } from './errors.ts'
import { activityKind } from './model.ts'
import { activityOperations } from './operations.ts'
import { entriesDropped } from './record.ts'
import { pruneActivity } from './retention.ts'

export default module('activity', {
  tags: { Activity: 'The feed of what agents and automation did.' },
  errors: activityErrors,
  kinds: [activityKind],
  operations: activityOperations,
  metrics: [entriesDropped],
  sweeps: [{ name: 'activity', when: '47 3 * * *', run: pruneActivity }],
})
