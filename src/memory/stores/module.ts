import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { memoryStoreKind } from './model.ts'
import { memoryStoreOperations } from './operations.ts'

export default module('memory-stores', {
  tags: {
    Memory: 'Facts about end users and the world, the rules that extract them, and the ledger of submitted facts.',
  },
  kinds: [memoryStoreKind],
  resourceTypes: [resourceType(memoryStoreKind)],
  operations: memoryStoreOperations,
})
