import { longWork } from '../../core/api/long-work.ts'
import { module } from '../../core/api/module.ts'
import { leaseHolding } from '../../core/jobs/takeover.ts'
import { caseDeleteHooks } from '../cases/executions.ts'
import { exportHandlers, exportSchedules } from './handlers.ts'
import { exportWork } from './long-work.ts'
import { exportKind } from './model.ts'
import { exportOperations } from './operations.ts'
import { expireExports, removeCaseExports } from './remove.ts'
import { exportAttempts } from './store.ts'

export default module('exports', {
  tags: { Exports: 'Exports of cases and playbook executions as files.' },
  kinds: [exportKind],
  operations: exportOperations,
  handlers: exportHandlers,
  schedules: exportSchedules,
  sweeps: [{ name: 'exports', when: '37 * * * *', run: expireExports }],
  extensions: [
    longWork.with(exportWork),
    leaseHolding.with(exportAttempts.endLeases),
    caseDeleteHooks.with(removeCaseExports),
  ],
})
