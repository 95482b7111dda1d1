import { footprints } from '../../control/storage/footprint.ts'
import { module } from '../../core/api/module.ts'
import { datasetErrors } from './errors.ts'
import { datasetItemKind, datasetKind } from './model.ts'
import { datasetOperations } from './operations.ts'
import { datasetFootprint } from './store.ts'

export default module('datasets', {
  errors: datasetErrors,
  kinds: [datasetKind, datasetItemKind],
  operations: datasetOperations,
  extensions: [footprints.with(datasetFootprint)],
})
