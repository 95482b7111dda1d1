import { module } from '../../core/api/module.ts'
import { sweepDeferredDeletes } from './delete.ts'
import { projectErrors } from './errors.ts'
import { project } from './model.ts'
import { projectOperations } from './operations.ts'

export default module('projects', {
  errors: projectErrors,
  kinds: [project],
  operations: projectOperations,
  sweeps: [{ name: 'deferred project deletes', when: '11 * * * *', run: sweepDeferredDeletes }],
})
