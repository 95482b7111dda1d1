import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { policyErrors } from './errors.ts'
import { syncManagedPolicies } from './managed.ts'
import { policyKind } from './model.ts'
import { permissionOperations, policyOperations } from './operations.ts'

export default module('policies', {
  tags: { Policies: 'Documents that allow and deny actions, their attachments, and simulation of decisions.' },
  errors: policyErrors,
  kinds: [policyKind],
  resourceTypes: [resourceType(policyKind)],
  operations: [...policyOperations, ...permissionOperations],
  start: async (services, role) =>
    role === 'web' && !services.cell?.number ? syncManagedPolicies(services) : undefined,
})
