import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { defaultRouteInheritors } from '../../identity/projects/default-route.ts'
import { datasetEnds } from '../datasets/ends.ts'
import { evalKind } from './model.ts'
import { evalOperations } from './operations.ts'
import { inheritingEvals, removeEvalsOf } from './store.ts'

export default module('evals', {
  tags: { Evals: 'Scorers and thresholds over a dataset, with their runs and results.' },
  kinds: [evalKind],
  resourceTypes: [resourceType(evalKind)],
  operations: evalOperations,
  extensions: [datasetEnds.with(removeEvalsOf), defaultRouteInheritors.with(inheritingEvals)],
})
