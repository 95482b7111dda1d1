import { searchSources } from '../../content/knowledge/sources.ts'
import { footprints } from '../../control/storage/footprint.ts'
import { module } from '../../core/api/module.ts'
import { memoryFootprint } from '../footprint.ts'
import { expireMemories } from './expire.ts'
import { adoptModelOnStart, memoryHandlers, memorySchedules, rebuildOnLanguageChange } from './handlers.ts'
import { memoryKind } from './model.ts'
import { memoryOperations } from './operations.ts'
import { memorySource } from './search.ts'

export default module('memories', {
  kinds: [memoryKind],
  operations: memoryOperations,
  handlers: memoryHandlers,
  schedules: memorySchedules,
  background: [adoptModelOnStart, rebuildOnLanguageChange],
  sweeps: [{ name: 'expired memories', when: '*/5 * * * *', run: expireMemories }],
  extensions: [searchSources.with(memorySource), footprints.with(memoryFootprint)],
})
