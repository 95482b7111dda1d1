import { module } from '../../core/api/module.ts'
import { secretErrors } from './errors.ts'
import { sealedValues, secret } from './model.ts'
import { secretOperations, sweepReplacedValues } from './operations.ts'

export default module('secrets', {
  errors: secretErrors,
  kinds: [secret],
  operations: secretOperations,
  sealedColumns: sealedValues,
  sweeps: [{ name: 'replaced secret values', when: '29 * * * *', run: sweepReplacedValues }],
})
