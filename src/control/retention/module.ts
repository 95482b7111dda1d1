import { module } from '#core/modules/module.ts'
import { footprints } from '../storage/footprint.ts'
import { retentionErrors } from './errors.ts'
import { idempotencyFootprint } from './store.ts'
import { pruneHeartbeats, pruneIdempotencyKeys } from './sweep.ts'

export default module('retention', {
  errors: retentionErrors,
  extensions: [footprints.with(idempotencyFootprint)],
  sweeps: [
    { name: 'idempotency keys', when: '7 * * * *', run: pruneIdempotencyKeys },
    { name: 'worker heartbeats', when: '17 3 * * *', run: pruneHeartbeats },
  ],
})
