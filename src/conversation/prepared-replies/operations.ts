import { containsFilter } from '#core/api/filters.ts'
import type { Operation } from '#core/api/operation.ts'
import { resource } from '#core/resources/resource.ts'
import { PreparedReplyInput, PreparedReplyPatch, preparedReplyKind } from './model.ts'

const replies = resource(preparedReplyKind, { path: '/prepared-replies', tag: 'Prepared replies' })

export const preparedReplyOperations: Operation[] = [
  // Order by prepared_replies_project.
  replies.list({ filters: { name: containsFilter('name') } }),
  replies.create({ body: PreparedReplyInput, raises: ['NAME_CONFLICT'] }),
  replies.get(),
  replies.update({ body: PreparedReplyPatch, raises: ['NAME_CONFLICT'] }),
  replies.remove(),
]
