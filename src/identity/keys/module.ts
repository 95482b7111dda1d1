import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { projectKeyKind } from './model.ts'
import { keyOperations } from './operations.ts'

export default module('keys', {
  tags: { 'Project keys': 'Credentials of programs, with the permissions of the user that created them.' },
  kinds: [projectKeyKind],
  resourceTypes: [
    resourceType(projectKeyKind, {
      name: 'api_key',
      aliases: ['project_key'],
      required: ['name'],
      exportedWith: 'named',
      attributes: { secret: { once: 'secret' } },
    }),
  ],
  operations: keyOperations,
})
