import { module } from '#core/modules/module.ts'
import { spanContent } from '#core/writes/span-outbox.ts'
import { exportHandler, projectSpans, schedules, sweepHandler } from './export.ts'
import { targetHeaders } from './model.ts'
import { telemetryOperations } from './operations.ts'
import { targetDirectory } from './target-directory.ts'

export default module('telemetry', {
  operations: telemetryOperations,
  handlers: [exportHandler, sweepHandler],
  schedules,
  sealedColumns: [targetHeaders, spanContent],
  metrics: [projectSpans],
  start: services => targetDirectory(services).open(),
})
