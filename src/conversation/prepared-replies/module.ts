import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { preparedReplyCloning } from './clone.ts'
import { preparedReplyKind } from './model.ts'
import { preparedReplyOperations } from './operations.ts'

export default module('prepared replies', {
  tags: { 'Prepared replies': 'Texts that operators insert into their messages.' },
  kinds: [preparedReplyKind],
  resourceTypes: [resourceType(preparedReplyKind)],
  operations: preparedReplyOperations,
  extensions: [cloneables.with(preparedReplyCloning)],
})
