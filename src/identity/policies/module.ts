import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { policyErrors } from './errors.ts'
import { syncManagedPolicies } from './managed.ts'
import { policyKind } from './model.ts'
import { policyOperations } from './operations.ts'
import { permissionOperations } from './permissions.ts'

export default module('policies', {
  tags: { Policies: 'Documents that allow and deny actions, what they are attached to, and how they decide.' },
  errors: policyErrors,
  kinds: [policyKind],
  resourceTypes: [resourceType(policyKind)],
  operations: [...policyOperations, ...permissionOperations],
  start: async (services, role) => (role === 'web' ? syncManagedPolicies(services) : undefined),
})
