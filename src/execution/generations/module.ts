import { module } from '../../core/api/module.ts'
import { generationErrors } from './errors.ts'
import { generationHandlers, generationSchedules, sdkLoading } from './handler.ts'
import { generationKind, sealedWork } from './model.ts'
import { generationOperations, traceOperations } from './operations.ts'
import { traceKind } from './trace-kind.ts'
import { turnsTotal } from './turn-attempt.ts'

export default module('generations', {
  errors: generationErrors,
  kinds: [generationKind, traceKind],
  operations: [...generationOperations, ...traceOperations],
  handlers: generationHandlers,
  schedules: generationSchedules,
  background: [sdkLoading],
  sealedColumns: sealedWork,
  metrics: [turnsTotal],
})
