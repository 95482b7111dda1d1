import { module } from '../../core/api/module.ts'
import { projectKeyKind } from './model.ts'
import { keyOperations } from './operations.ts'

export default module('keys', {
  kinds: [projectKeyKind],
  operations: keyOperations,
})
