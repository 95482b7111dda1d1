import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { secretErrors } from './errors.ts'
import { sealedSecretValues, secretKind } from './model.ts'
import { secretOperations } from './operations.ts'
import { dropReplacedValues } from './store.ts'

export default module('secrets', {
  tags: { Secrets: 'Encrypted values that other resources reference; never returned.' },
  errors: secretErrors,
  kinds: [secretKind],
  resourceTypes: [
    resourceType(secretKind, {
      writeOnly: ['value'],
      // External secrets have no stored value.
      hides: ({ source }) => (source === null ? ['value'] : []),
      deleteWith: { force: true },
    }),
  ],
  operations: secretOperations,
  policyActions: [
    {
      action: 'secrets:UseSecret',
      description: 'Reference a secret in a resource that sends it, and change its destination',
      resource_type: 'secret',
    },
  ],
  sealedColumns: sealedSecretValues,
  sweeps: [{ name: 'replaced secret values', when: '29 * * * *', run: ({ pool }) => dropReplacedValues(pool) }],
})
