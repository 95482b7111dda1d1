import { module } from '../../core/api/module.ts'
import { pruneHeartbeats, pruneIdempotencyKeys, pruneLoginFailures } from './sweep.ts'

export default module('retention', {
  sweeps: [
    { name: 'idempotency keys', when: '7 * * * *', run: pruneIdempotencyKeys },
    { name: 'login failures', when: '13 3 * * *', run: pruneLoginFailures },
    { name: 'worker heartbeats', when: '17 3 * * *', run: pruneHeartbeats },
  ],
})
