import { module } from '#core/modules/module.ts'
import { vectorSearches } from '../index/vectors/scan.ts'
import { codeCacheBytes, vectorCacheBytes } from '../index/vectors/vector-memory.ts'
import { documentSource } from './documents.ts'
import { knowledgeOperations } from './operations.ts'
import { searchSources } from './sources.ts'
import { warnMissingTextSearch } from './text-search.ts'

export default module('knowledge', {
  tags: { Knowledge: 'Search in documents and memories.' },
  operations: knowledgeOperations,
  extensions: [searchSources.with(documentSource)],
  // Policies may name the knowledge of a project, which has no rows of this type.
  policyTypes: ['knowledge'],
  metrics: [vectorSearches, codeCacheBytes, vectorCacheBytes],
  start: warnMissingTextSearch,
})
