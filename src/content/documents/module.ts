import { footprints } from '#control/storage/footprint.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { chunkFootprint } from '../footprint.ts'
import { chunkFields } from '../index/chunks/model.ts'
import { type DocumentRow, documentKind } from './model.ts'
import { documentOperations } from './operations.ts'
import { findDocumentWithText } from './store.ts'

export default module('documents', {
  tags: { Documents: 'Versioned texts, split into searchable chunks.' },
  kinds: [documentKind],
  resourceTypes: [
    resourceType(documentKind, {
      without: ['append'],
      together: Object.keys(chunkFields),
      defaults: { chunk_strategy: 'whole' },
      exportedWith: 'content',
      exported: ({ kind }) => kind === 'document',
      owns: ({ file_id }) => [file_id],
      find: findDocumentWithText,
      present: row => ({
        ...documentKind.present(row as DocumentRow),
        content: (row as { content?: string | null }).content,
      }),
    }),
  ],
  operations: documentOperations,
  extensions: [footprints.with(chunkFootprint)],
})
