import { footprints } from '#control/storage/footprint.ts'
import { module } from '#core/modules/module.ts'
import { vectorFootprint } from '../footprint.ts'
import { embeddingCallDuration } from './embeddings/call.ts'
import { embeddingErrors } from './embeddings/errors.ts'
import {
  adoptSettingsOnStart,
  embeddingHandlers,
  embeddingSchedules,
  rebuildOnLanguageChange,
} from './embeddings/handler.ts'
import { embeddingOperations } from './embeddings/operations.ts'
import { indexHandler, indexSchedule, requireVectorIndex } from './vectors/pgvector.ts'

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
