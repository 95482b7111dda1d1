import { onDelete } from '#core/api/dependents.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { defaultRouteInheritors } from '#identity/projects/default-model-route.ts'
import { datasetKind } from '../datasets/model.ts'
import { evalKind } from './model.ts'
import { evalOperations } from './operations.ts'
import { listDefaultRouteEvals, removeEvalsOfDataset } from './store.ts'

export default module('evals', {
  tags: { Evals: 'Evaluations of agents on datasets, with their runs and results.' },
  kinds: [evalKind],
  resourceTypes: [resourceType(evalKind)],
  operations: evalOperations,
  extensions: [onDelete(datasetKind, removeEvalsOfDataset), defaultRouteInheritors.with(listDefaultRouteEvals)],
})
