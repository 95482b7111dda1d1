import { module } from '../../core/api/module.ts'
import { projectKeyKind } from './model.ts'
import { keyOperations } from './operations.ts'

export default module('keys', {
  tags: { 'Project keys': 'Credentials of programs, which act for the user who made them.' },
  kinds: [projectKeyKind],
  operations: keyOperations,
})
