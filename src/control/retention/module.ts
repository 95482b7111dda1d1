import { module } from '../../core/api/module.ts'
import { pruneHeartbeats, pruneIdempotencyKeys } from './sweep.ts'

export default module('retention', {
  sweeps: [
    { name: 'idempotency keys', when: '7 * * * *', run: pruneIdempotencyKeys },
    { name: 'worker heartbeats', when: '17 3 * * *', run: pruneHeartbeats },
  ],
})
