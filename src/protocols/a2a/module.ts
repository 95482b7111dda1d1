import { eventSubscribers } from '#control/webhooks/event-subscribers.ts'
import { mounts } from '#core/http/mounts.ts'
import { module } from '#core/modules/module.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { subscriberConditions } from '#core/writes/writer.ts'
import { serveA2a } from './endpoint.ts'
import { taskNotifier } from './push.ts'
import { deleteOldRefusals, hasAddress } from './store.ts'

const MEGABYTE = 1024 * 1024

export default module('a2a', {
  extensions: [
    mounts.with({
      path: '/a2a/:target_id{/*route}',
      // Messages may contain files.
      bodyLimit: 32 * MEGABYTE,
      // Identified to be refused.
      endUsers: true,
      serve: serveA2a,
    }),
    eventSubscribers.with(taskNotifier),
    subscriberConditions.with(hasAddress),
  ],
  sweeps: [
    {
      name: 'a2a refusals',
      when: '23 4 * * *',
      run: ({ pool }, stopping) => deleteInBatches(limit => deleteOldRefusals(pool, limit), stopping),
    },
  ],
})
