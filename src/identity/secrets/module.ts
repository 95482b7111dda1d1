import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { secretErrors } from './errors.ts'
import { sealedSecretValues, secretKind } from './model.ts'
import { secretOperations } from './operations.ts'
import { dropReplacedValues } from './store.ts'

export default module('secrets', {
  tags: { Secrets: 'Sealed values that other resources refer to; never shown again.' },
  errors: secretErrors,
  kinds: [secretKind],
  resourceTypes: [
    resourceType(secretKind, {
      writeOnly: ['value'],
      // An external one has none.
      hides: ({ source }) => (source === null ? ['value'] : []),
      deleteWith: { force: true },
    }),
  ],
  operations: secretOperations,
  policyActions: [
    {
      action: 'secrets:UseSecret',
      description: 'Name a secret in what sends it out, and change where it is sent',
      resource_type: 'secret',
    },
  ],
  sealedColumns: sealedSecretValues,
  sweeps: [{ name: 'replaced secret values', when: '29 * * * *', run: ({ pool }) => dropReplacedValues(pool) }],
})
