import { module } from '../../core/api/module.ts'
import { sweepDeferredDeletes } from './delete.ts'
import { projectErrors } from './errors.ts'
import { projectKind } from './model.ts'
import { projectOperations } from './operations.ts'

export default module('projects', {
  tags: { Projects: 'The unit everything belongs to: configuration, pause, clone, summary.' },
  errors: projectErrors,
  kinds: [projectKind],
  operations: projectOperations,
  sweeps: [{ name: 'deferred project deletes', when: '11 * * * *', run: sweepDeferredDeletes }],
})
