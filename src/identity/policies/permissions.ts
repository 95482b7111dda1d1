import { z } from 'zod'
import { pageOf, pageOfArray } from '../../core/api/lists.ts'
import { type Operation, operation, operations } from '../../core/api/operation.ts'
import { actionCatalogue } from '../../core/iam/catalogue.ts'

const PermissionModule = z
  .object({
    module: z.string().describe('Part of the API'),
    actions: z.array(
      z.object({
        action: z.string(),
        description: z.string(),
        resource_type: z.string().nullable(),
        gate: z.string().describe('What decides: policies, the admin role, ownership, or nothing'),
        operation_ids: z.array(z.string()),
      }),
    ),
  })
  .meta({ id: 'PermissionModule' })

export const permissionOperations: Operation[] = [
  operation({
    id: 'listPermissions',
    method: 'get',
    path: '/permissions',
    summary: 'List the actions that policies may name',
    description:
      'By module, with the operations that ask for each action and the type of resource that it is decided on.',
    tag: 'Policies',
    gate: 'any',
    paged: true,
    timed: false,
    answers: { 200: pageOf(PermissionModule) },
    run: async ({ page }) => pageOfArray(actionCatalogue(operations.all()), page),
  }),
]
