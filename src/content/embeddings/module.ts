import { footprints } from '#control/storage/footprint.ts'
import { module } from '#core/api/module.ts'
import { vectorFootprint } from '../footprint.ts'
import { indexHandler, indexSchedule, requireVectorIndex } from '../vectors/pgvector.ts'
import { embeddingCallDuration } from './call.ts'
import { embeddingErrors } from './errors.ts'
import { adoptSettingsOnStart, embeddingHandlers, embeddingSchedules, rebuildOnLanguageChange } from './handler.ts'
import { embeddingOperations } from './operations.ts'

export default module('embeddings', {
  tags: { Embeddings: 'Vectors of texts from the embedding model of the deployment.' },
  errors: embeddingErrors,
  operations: embeddingOperations,
  handlers: [...embeddingHandlers, indexHandler],
  schedules: [...embeddingSchedules, indexSchedule],
  background: [adoptSettingsOnStart, rebuildOnLanguageChange],
  metrics: [embeddingCallDuration],
  extensions: [footprints.with(vectorFootprint)],
  start: requireVectorIndex,
})
