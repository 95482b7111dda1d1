import { module } from '../../core/api/module.ts'
import { memoryStoreKind } from './model.ts'
import { memoryStoreOperations } from './operations.ts'

export default module('memory-stores', { kinds: [memoryStoreKind], operations: memoryStoreOperations })
