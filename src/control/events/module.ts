import { module } from '#core/modules/module.ts'
import { eventKind } from './model.ts'
import { eventOperations } from './operations.ts'
import { pruneEvents } from './retention.ts'

export default module('events', {
  tags: { Events: 'Resource events, as delivered to webhooks and triggers.' },
  kinds: [eventKind],
  operations: eventOperations,
  sweeps: [{ name: 'events', when: '47 3 * * *', run: pruneEvents }],
})
