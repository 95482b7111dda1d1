import { module } from '../../core/api/module.ts'
import { retentionErrors } from './errors.ts'
import { pruneHeartbeats, pruneIdempotencyKeys } from './sweep.ts'

export default module('retention', {
  errors: retentionErrors,
  sweeps: [
    { name: 'idempotency keys', when: '7 * * * *', run: pruneIdempotencyKeys },
    { name: 'worker heartbeats', when: '17 3 * * *', run: pruneHeartbeats },
  ],
})
