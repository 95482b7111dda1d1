import { endUserContent } from '../../control/retention/erasure.ts'
import { module } from '../../core/api/module.ts'
import { memoryContent } from './erase.ts'
import { memoryEntryKind } from './model.ts'
import { memoryEntryOperations } from './operations.ts'
import { memoryEntryType } from './resource-type.ts'

const IMMUTABLE = 'No effect: entries are immutable'

export default module('memory-entries', {
  kinds: [memoryEntryKind],
  resourceTypes: [memoryEntryType],
  operations: memoryEntryOperations,
  extensions: [endUserContent.with(memoryContent)],
  // For compatibility with policies of other systems.
  policyActions: ['memories:UpdateMemoryEntry', 'memories:DeleteMemoryEntry'].map(action => ({
    action,
    description: IMMUTABLE,
    resource_type: 'memory_store',
  })),
})
