import { module } from '#core/modules/module.ts'
import { sweepDeferredDeletes } from './delete.ts'
import { projectErrors } from './errors.ts'
import { projectKind } from './model.ts'
import { projectOperations } from './operations.ts'

export default module('projects', {
  tags: { Projects: 'Containers of all other resources, with settings, pausing, cloning and a summary.' },
  errors: projectErrors,
  kinds: [projectKind],
  operations: projectOperations,
  sweeps: [{ name: 'deferred project deletes', when: '11 * * * *', run: sweepDeferredDeletes }],
})
