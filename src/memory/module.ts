import { searchSources } from '#content/knowledge/sources.ts'
import { endUserContent } from '#control/retention/erasure.ts'
import { footprints } from '#control/storage/footprint.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { memoryContent } from './entries/erase.ts'
import { memoryEntryKind } from './entries/model.ts'
import { memoryEntryOperations } from './entries/operations.ts'
import { memoryEntryType } from './entries/resource-type.ts'
import { expireMemories } from './facts/expire.ts'
import { adoptModelOnStart, memoryHandlers, memorySchedules, rebuildOnLanguageChange } from './facts/handlers.ts'
import { memoryKind } from './facts/model.ts'
import { memoryOperations } from './facts/operations.ts'
import { memorySource } from './facts/search.ts'
import { memoryFootprint } from './footprint.ts'
import { memoryStoreKind } from './stores/model.ts'
import { memoryStoreOperations } from './stores/operations.ts'

const IMMUTABLE = 'No effect: entries are immutable'

export default module('memory', {
  tags: {
    Memory: 'Facts about end users and the world, the rules that extract them, and the ledger of submitted facts.',
  },
  kinds: [memoryStoreKind, memoryEntryKind, memoryKind],
  resourceTypes: [resourceType(memoryStoreKind), memoryEntryType],
  operations: [...memoryStoreOperations, ...memoryEntryOperations, ...memoryOperations],
  handlers: memoryHandlers,
  schedules: memorySchedules,
  background: [adoptModelOnStart, rebuildOnLanguageChange],
  sweeps: [{ name: 'expired memories', when: '*/5 * * * *', run: expireMemories }],
  // For compatibility with policies of other systems.
  policyActions: ['memories:UpdateMemoryEntry', 'memories:DeleteMemoryEntry'].map(action => ({
    action,
    description: IMMUTABLE,
    resource_type: 'memory_store',
  })),
  extensions: [endUserContent.with(memoryContent), searchSources.with(memorySource), footprints.with(memoryFootprint)],
})
