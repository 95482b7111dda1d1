import { triggerTargets } from '#automation/triggers/targets.ts'
import { longWork } from '#core/api/long-work.ts'
import { module } from '#core/modules/module.ts'
import { formationWork } from './deploys/long-work.ts'
import { operationWork } from './deploys/operate.ts'
import { formationTarget } from './drift/drift-trigger.ts'
import { formationOperations } from './operations.ts'
import { formationErrors } from './records/errors.ts'
import { formationKind } from './records/model.ts'
import { sealedFormationColumns } from './records/store.ts'
import { sealedPlanColumns, sweepFormations } from './requests/saved-plans.ts'
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
