import { triggerTargets } from '../automation/triggers/targets.ts'
import { longWork } from '../core/api/long-work.ts'
import { module } from '../core/api/module.ts'
import { leaseHolding } from '../core/jobs/takeover.ts'
import { formationTarget } from './drift-work.ts'
import { formationErrors } from './errors.ts'
import { formationHandlers, formationSchedules } from './handlers.ts'
import { formationWork } from './long-work.ts'
import { formationKind } from './model.ts'
import { formationOperations } from './operations.ts'
import { sealedPlanColumns, sweepFormations } from './saved-plans.ts'
import { formationAttempts, sealedFormationColumns } from './store.ts'
import { checkRegisteredTypes } from './types/registered.ts'

export default module('formations', {
  tags: { Formations: 'Sets of resources that one template declares, deployed and deleted together.' },
  errors: formationErrors,
  kinds: [formationKind],
  operations: formationOperations,
  handlers: formationHandlers,
  schedules: formationSchedules,
  sealedColumns: [...sealedFormationColumns, ...sealedPlanColumns],
  extensions: [
    leaseHolding.with(formationAttempts.endLeases),
    longWork.with(formationWork),
    triggerTargets.with(formationTarget),
  ],
  sweeps: [{ name: 'formations', when: '17 4 * * *', run: sweepFormations }],
  start: checkRegisteredTypes,
})
