import { module } from '../../core/api/module.ts'
import { stalledIngestion } from '../documents/hooks.ts'
import { ingestionErrors } from './errors.ts'
import { ingestionHandlers, ingestionSchedules } from './handler.ts'
import { ingestionOperations, withoutStalled } from './operations.ts'

export default module('ingestion', {
  errors: ingestionErrors,
  operations: ingestionOperations,
  handlers: ingestionHandlers,
  schedules: ingestionSchedules,
  extensions: [stalledIngestion.with(withoutStalled)],
})
