import { footprints } from '../../control/storage/footprint.ts'
import { module } from '../../core/api/module.ts'
import { chunkFootprint } from '../footprint.ts'
import { documentKind } from './model.ts'
import { documentOperations } from './operations.ts'

export default module('documents', {
  tags: { Documents: 'Texts with versions, cut into chunks that searches find.' },
  kinds: [documentKind],
  operations: documentOperations,
  extensions: [footprints.with(chunkFootprint)],
})
