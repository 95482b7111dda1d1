import { module } from '#core/modules/module.ts'
import { savedViewKind } from './model.ts'
import { savedViewOperations } from './operations.ts'

export default module('saved views', {
  kinds: [savedViewKind],
  tags: { 'Saved views': 'Filters of lists that a user has saved, each visible to its user alone.' },
  // The views of a person are of no use to a model.
  operations: savedViewOperations.map(operation => ({ ...operation, internal: true, mcp: false })),
})
