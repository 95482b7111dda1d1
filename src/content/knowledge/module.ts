import { module } from '../../core/api/module.ts'
import { codeCacheBytes, vectorCacheBytes } from '../vectors/memory.ts'
import { vectorSearches } from '../vectors/scan.ts'
import { documentSource } from './documents.ts'
import { knowledgeOperations } from './operations.ts'
import { sources } from './sources.ts'
import { tellMissingTextSearch } from './text-search.ts'

export default module('knowledge', {
  tags: { Knowledge: 'Searches over documents and memories.' },
  operations: knowledgeOperations,
  extensions: [sources.with(documentSource)],
  metrics: [vectorSearches, codeCacheBytes, vectorCacheBytes],
  start: tellMissingTextSearch,
})
