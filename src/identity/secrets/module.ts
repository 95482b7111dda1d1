import { module } from '../../core/api/module.ts'
import { secretErrors } from './errors.ts'
import { sealedValues, secret } from './model.ts'
import { secretOperations, sweepReplacedValues } from './operations.ts'

export default module('secrets', {
  errors: secretErrors,
  kinds: [secret],
  operations: secretOperations,
  policyActions: [
    {
      action: 'secrets:UseSecret',
      description: 'Name a secret in what sends it out, and change where it is sent',
      resource_type: 'secret',
    },
  ],
  sealedColumns: sealedValues,
  sweeps: [{ name: 'replaced secret values', when: '29 * * * *', run: sweepReplacedValues }],
})
