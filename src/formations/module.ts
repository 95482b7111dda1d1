import { triggerTargets } from '../automation/triggers/targets.ts'
import { longWork } from '../core/api/long-work.ts'
import { module } from '../core/api/module.ts'
import { formationTarget } from './drift-trigger.ts'
import { formationErrors } from './errors.ts'
import { formationWork } from './long-work.ts'
import { formationKind } from './model.ts'
import { operationWork } from './operate.ts'
import { formationOperations } from './operations.ts'
import { sealedPlanColumns, sweepFormations } from './saved-plans.ts'
import { sealedFormationColumns } from './store.ts'
import { checkRegisteredTypes } from './types/registered.ts'

export default module('formations', {
  tags: { Formations: 'Sets of resources that are declared by a template, deployed and deleted together.' },
  errors: formationErrors,
  kinds: [formationKind],
  operations: formationOperations,
  work: [operationWork],
  sealedColumns: [...sealedFormationColumns, ...sealedPlanColumns],
  extensions: [longWork.with(formationWork), triggerTargets.with(formationTarget)],
  sweeps: [{ name: 'formations', when: '17 4 * * *', run: sweepFormations }],
  start: checkRegisteredTypes,
})
