import { module } from '../../core/api/module.ts'
import { event } from './model.ts'
import { eventOperations } from './operations.ts'
import { pruneEvents } from './retention.ts'

export default module('events', {
  kinds: [event],
  operations: eventOperations,
  sweeps: [{ name: 'events', when: '47 3 * * *', run: pruneEvents }],
})
