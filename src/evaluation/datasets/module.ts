import { endUserContent } from '../../control/retention/erasure.ts'
import { footprints } from '../../control/storage/footprint.ts'
import { actorMergeHooks } from '../../conversation/actors/merge.ts'
import { module } from '../../core/api/module.ts'
import { resourceType } from '../../core/api/resource-type.ts'
import { itemContent } from './erase.ts'
import { datasetErrors } from './errors.ts'
import { datasetItemKind, datasetKind } from './model.ts'
import { datasetOperations } from './operations.ts'
import { datasetFootprint, moveItems } from './store.ts'

export default module('datasets', {
  tags: { Datasets: 'Items that agents are evaluated on.' },
  errors: datasetErrors,
  kinds: [datasetKind, datasetItemKind],
  resourceTypes: [resourceType(datasetKind), resourceType(datasetItemKind)],
  operations: datasetOperations,
  extensions: [
    footprints.with(datasetFootprint),
    endUserContent.with(itemContent),
    actorMergeHooks.with((tx, from, to) => moveItems(tx, from.id, to.id).then(() => {})),
  ],
})
