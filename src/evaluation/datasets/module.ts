import { endUserContent } from '#control/retention/erasure.ts'
import { footprints } from '#control/storage/footprint.ts'
import { actorMergeHooks } from '#conversation/actors/merge.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { itemContent } from './erase.ts'
import { datasetErrors } from './errors.ts'
import { datasetItemKind, datasetKind } from './model.ts'
import { datasetOperations } from './operations.ts'
import { datasetFootprint, reassignItems } from './store.ts'

export default module('datasets', {
  tags: { Datasets: 'Datasets of items for evaluating agents.' },
  errors: datasetErrors,
  kinds: [datasetKind, datasetItemKind],
  resourceTypes: [resourceType(datasetKind), resourceType(datasetItemKind, { exportedWith: 'content' })],
  operations: datasetOperations,
  extensions: [
    footprints.with(datasetFootprint),
    endUserContent.with(itemContent),
    actorMergeHooks.with((tx, from, to) => reassignItems(tx, from.id, to.id).then(() => {})),
  ],
})
