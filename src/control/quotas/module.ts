import { module } from '../../core/api/module.ts'
import { quota } from './model.ts'
import { quotaOperations } from './operations.ts'
import { pruneCounters } from './prune.ts'

export default module('quotas', {
  kinds: [quota],
  operations: quotaOperations,
  sweeps: [{ name: 'quota counters', when: '23 3 * * *', run: pruneCounters }],
})
