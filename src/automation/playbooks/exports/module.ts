import { caseKind } from '#automation/cases/model.ts'
import { onDelete } from '#core/api/dependents.ts'
import { longWork } from '#core/api/long-work.ts'
import { module } from '#core/modules/module.ts'
import { exportWork } from './build.ts'
import { exportLongWork } from './long-work.ts'
import { exportKind } from './model.ts'
import { exportOperations } from './operations.ts'
import { expireExports, removeCaseExports } from './remove.ts'

export default module('exports', {
  tags: { Exports: 'Exports of cases and playbook executions as files.' },
  kinds: [exportKind],
  operations: exportOperations,
  work: [exportWork],
  sweeps: [{ name: 'exports', when: '37 * * * *', run: expireExports }],
  extensions: [longWork.with(exportLongWork), onDelete(caseKind, removeCaseExports)],
})
