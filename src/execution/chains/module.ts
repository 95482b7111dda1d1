import { module } from '../../core/api/module.ts'
import { chainErrors } from './errors.ts'
import { chainKind } from './model.ts'
import { chainOperations } from './operations.ts'

export default module('chains', { errors: chainErrors, kinds: [chainKind], operations: chainOperations })
