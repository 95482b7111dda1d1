import { pageOf } from '#core/api/lists.ts'
import { itemOperation, type Operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { userKind } from '../users/model.ts'
import { ownOrAdmin } from '../users/operations.ts'
import { UserIdentity, UserIdentityInput, UserIdentityQuery } from './model.ts'
import { linkIdentity, listIdentities, unlinkIdentity } from './store.ts'

const path = '/users/{user_id}/identities'
const tag = 'Users'

export const identityOperations: Operation[] = [
  itemOperation(userKind, {
    id: 'listUserIdentities',
    method: 'get',
    path,
    summary: 'List linked company accounts',
    description:
      'Returns the identity provider accounts that sign the user in, newest first. Users can list their own.',
    tag,
    action: 'users:ListUserIdentities',
    gate: 'owner',
    admit: ownOrAdmin('users:ListUserIdentities'),
    paged: true,
    answers: { 200: pageOf(UserIdentity) },
    run: ({ db, page, resource }) => listIdentities(db, page, resource.id),
  }),
  itemOperation(userKind, {
    id: 'createUserIdentity',
    method: 'post',
    path,
    summary: 'Link a company account',
    description:
      'The account can then sign the user in. If it is already linked to this user, the existing link is returned.',
    tag,
    action: 'users:CreateUserIdentity',
    gate: 'admin',
    body: UserIdentityInput,
    answers: { 201: UserIdentity },
    raises: ['NAME_CONFLICT'],
    async run({ audit, body, resource, tx }) {
      Object.assign(audit.detail, body)
      await userKind.lock(tx, resource.id)
      const linked = await linkIdentity(tx, { ...body, user_id: resource.id, label: null })
      const { subject } = body
      return (
        linked ?? raise('NAME_CONFLICT', { message: `Account ${subject} is linked to another user`, meta: { ...body } })
      )
    },
  }),
  itemOperation(userKind, {
    id: 'deleteUserIdentity',
    method: 'delete',
    path,
    summary: 'Unlink a company account',
    description: 'Prevents new sign-ins with the account. Existing tokens remain valid.',
    tag,
    action: 'users:DeleteUserIdentity',
    gate: 'admin',
    query: UserIdentityQuery,
    answers: { 204: null },
    async run({ audit, query, resource, tx }) {
      Object.assign(audit.detail, query)
      if (!(await unlinkIdentity(tx, query, resource.id)))
        raise('RESOURCE_NOT_FOUND', { meta: { id: resource.id, ...query } })
    },
  }),
]
