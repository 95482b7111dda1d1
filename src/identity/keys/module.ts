import { module } from '../../core/api/module.ts'
import { projectKey } from './model.ts'
import { keyOperations } from './operations.ts'

export default module('keys', {
  kinds: [projectKey],
  operations: keyOperations,
})
