import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { columnFilter, containsFilter } from '../../core/api/filters.ts'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import { pageOf, pageOfArray, textFilter } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { passesAdminGate } from '../../core/iam/access.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { principalsChanged } from '../principals.ts'
import { AuthoredPage, authoredBy } from './authored.ts'
import { bootstrapAdmin } from './bootstrap.ts'
import { changeUser, removeUser } from './change.ts'
import {
  Credentials,
  checkNewPassword,
  Me,
  OwnPasswordInput,
  PasswordInput,
  roles,
  SignedIn,
  type SignInCode,
  SignInInput,
  Token,
  User,
  UserInput,
  UserPatch,
  userKind,
} from './model.ts'
import { hashPassword } from './passwords.ts'
import { OwnPermission, ownPermissions } from './permissions.ts'
import { checkOwnPassword, codeSignIn, issueUserToken, signIn } from './sign-in.ts'
import { changePassword, clearFailures, insertUser, revokeTokens, setPassword } from './store.ts'

const tag = 'Users'

const users = resource(userKind, { path: '/users', tag })

/** Admits the user of an id and admins; anyone else is refused whatever the id. Raises FORBIDDEN. */
export function ownOrAdmin(action: string) {
  return (caller: Caller, params: Record<string, string>): void => {
    const row = { id: params.user_id, project_id: null }
    if (caller.user.id !== params.user_id && !passesAdminGate(caller, action, { kind: userKind as never, row }))
      raise('FORBIDDEN', { meta: { action } })
  }
}

/** Admits user tokens only: keys and grants do not manage the sign-in of their user. Raises FORBIDDEN. */
const userTokenOnly = (action: string) => (caller: Caller) => {
  if (caller.credential.type !== 'user') raise('FORBIDDEN', { meta: { action } })
}

export const userOperations: Operation[] = [
  operation({
    id: 'bootstrapUser',
    method: 'post',
    path: '/users/bootstrap',
    summary: 'Create the first admin of a deployment',
    description:
      'Works once, while the deployment has no user; afterwards it is refused. The new user is an admin and may sign in at once.',
    tag,
    gate: 'public',
    transaction: false,
    body: Credentials,
    answers: { 201: User },
    raises: ['BOOTSTRAP_ALREADY_COMPLETED'],
    run: async ({ body, services, request }) => userKind.present(await bootstrapAdmin(services, body, request)),
  }),
  operation({
    id: 'loginUser',
    method: 'post',
    path: '/users/login',
    summary: 'Sign in',
    description:
      'Takes a username with its password, or the one-time code of a sign-in with a company account with its verifier. Answers a token that acts as the user until it expires, the password changes, or the tokens of the user are revoked.',
    tag,
    gate: 'public',
    transaction: false,
    body: SignInInput,
    answers: { 200: SignedIn },
    raises: ['UNAUTHORIZED'],
    run({ body, services, request }) {
      if (body.oidc_code === undefined) return signIn(services, body as z.output<typeof Credentials>, request)
      return codeSignIn.only()?.(services, body as SignInCode, request) ?? raise('UNAUTHORIZED')
    },
  }),
  operation({
    id: 'getMe',
    command: ['users', 'me'],
    method: 'get',
    path: '/users/me',
    summary: 'Read the calling user and credential',
    description: 'Says who the credential acts as, of which type it is, and to which project it is bound.',
    tag,
    gate: 'any',
    answers: { 200: Me },
    async run({ caller, db }) {
      const user = await userKind.find(db, caller.user.id)
      if (!user) return raise('UNAUTHORIZED')
      const { type, id, expires_at, scopes } = caller.credential
      return { ...userKind.present(user), credential: { type, id, project_id: caller.project_id, expires_at, scopes } }
    },
  }),
  operation({
    id: 'listOwnPermissions',
    command: ['users', 'permissions'],
    method: 'get',
    path: '/users/me/permissions',
    summary: 'List what the calling credential may do',
    description: 'For each action whether the credential may use it on everything, on some resources, or nowhere.',
    tag,
    gate: 'any',
    paged: true,
    timed: false,
    query: z.object({ project_id: textFilter.describe('Project to look at; default all, or that of the credential') }),
    answers: { 200: pageOf(OwnPermission) },
    raises: ['API_KEY_PROJECT_SCOPE', 'RESOURCE_NOT_FOUND'],
    run: async ({ db, caller, query, page }) => pageOfArray(await ownPermissions(db, caller, query.project_id), page),
  }),
  operation({
    id: 'changeOwnPassword',
    command: ['users', 'change-password'],
    method: 'put',
    path: '/users/me/password',
    mcp: false,
    summary: 'Change the own password',
    description:
      'Ends every token of the user; the answer holds a new one. Project keys stay. A wrong current password counts as a failed sign-in.',
    tag,
    action: 'users:ChangeOwnPassword',
    gate: 'owner',
    about: userKind,
    admit: userTokenOnly('users:ChangeOwnPassword'),
    body: OwnPasswordInput,
    answers: { 200: Token },
    secretAnswer: true,
    raises: ['UNAUTHORIZED'],
    async prepare(context) {
      const { audit, body, caller, services } = context
      audit.resource_srn = srn(null, userKind.name, caller.user.id)
      audit.resource_public_id = caller.user.id
      checkNewPassword(body.new_password, services.config.PASSWORD_MIN_LENGTH, 'new_password')
      return checkOwnPassword(context, body)
    },
    async run({ prepared: { user, hash }, services, tx }) {
      const token_version = await changePassword(tx, user, hash, services.clock.now())
      if (token_version === null) return raise('UNAUTHORIZED')
      principalsChanged(tx, `user:${user.id}`)
      return issueUserToken(services, { ...user, token_version })
    },
  }),
  operation({
    id: 'revokeOwnTokens',
    command: ['users', 'revoke-own-tokens'],
    method: 'post',
    path: '/users/me/revoke-tokens',
    summary: 'End every token of the calling user',
    description:
      'Binds at the next request in every process, also for the token that made the call. Project keys of the user stay valid.',
    tag,
    action: 'users:ChangeOwnPassword',
    gate: 'owner',
    about: userKind,
    admit: userTokenOnly('users:ChangeOwnPassword'),
    answers: { 204: null },
    async run({ caller, tx, audit }) {
      audit.resource_srn = srn(null, userKind.name, caller.user.id)
      audit.resource_public_id = caller.user.id
      await revokeTokens(tx, caller.user.id)
      principalsChanged(tx, `user:${caller.user.id}`)
    },
  }),
  // The table is small and read as a whole.
  users.list({
    gate: 'admin',
    visible: () => sql.fragment`true`,
    filters: {
      username: containsFilter('username'),
      role: columnFilter(
        z.enum(roles).optional().describe('Exact match of `role`'),
        role => sql.fragment`t.role = ${role}`,
      ),
    },
  }),
  operation({
    id: 'createUser',
    method: 'post',
    path: '/users',
    summary: 'Create a user',
    description: 'The user has no rights beyond those of every user until policies are attached.',
    tag,
    action: 'users:CreateUser',
    gate: 'admin',
    creates: userKind,
    body: UserInput,
    answers: { 201: User },
    raises: ['NAME_CONFLICT'],
    prepare({ body, caller, request, services }) {
      checkNewPassword(body.password, services.config.PASSWORD_MIN_LENGTH, 'password')
      return hashPassword(services, body.password, { user: caller.user.id, closed: request.closed })
    },
    async run({ body, prepared: password_hash, tx }) {
      const { username, role } = body
      const made = await insertUser(tx, { id: newId('user'), username, role, password_hash })
      if (!made) return raise('NAME_CONFLICT', { message: `The username ${username} is taken`, meta: { username } })
      return userKind.present(made)
    },
  }),
  users.get({ gate: 'owner', admit: ownOrAdmin('users:GetUser') }),
  itemOperation(userKind, {
    id: 'listAuthoredDefinitions',
    method: 'get',
    path: '/users/{user_id}/authored',
    summary: 'List the definitions that a user is the author of',
    description:
      'Tools, agents, graphs and other definitions that the user or a key of the user wrote last, newest first. What they do on the platform is bounded by the rights of their author; once that is deleted it is refused, until somebody adopts them.',
    tag,
    action: 'users:GetUser',
    gate: 'owner',
    admit: ownOrAdmin('users:GetUser'),
    paged: true,
    answers: { 200: pageOf(AuthoredPage) },
    run: ({ db, page, resource }) => authoredBy(db, page, resource.id),
  }),
  itemOperation(userKind, {
    id: 'updateUser',
    method: 'patch',
    path: '/users/{user_id}',
    summary: 'Rename, promote, demote, disable or enable a user',
    description: 'A new name or role ends the tokens of the user. A disabled user is refused with every credential.',
    tag,
    action: 'users:UpdateUser',
    gate: 'admin',
    body: UserPatch,
    answers: { 200: User },
    raises: ['NAME_CONFLICT', 'LAST_ADMIN_REQUIRED'],
    run: async ({ resource, body, tx, services }) =>
      userKind.present(await changeUser(tx, services.clock, resource.id, body)),
  }),
  itemOperation(userKind, {
    id: 'deleteUser',
    method: 'delete',
    path: '/users/{user_id}',
    summary: 'Delete a user with keys and attachments',
    description: 'Its keys stop working at once. What the user made in projects stays.',
    tag,
    action: 'users:DeleteUser',
    gate: 'admin',
    answers: { 204: null },
    raises: ['LAST_ADMIN_REQUIRED'],
    run: ({ resource, tx }) => removeUser(tx, resource.id),
  }),
  itemOperation(userKind, {
    id: 'resetUserPassword',
    command: ['users', 'reset-password'],
    method: 'put',
    path: '/users/{user_id}/password',
    mcp: false,
    summary: 'Set the password of a user',
    description: 'Ends every token of the user and a lockout of the name.',
    tag,
    action: 'users:ResetPassword',
    gate: 'admin',
    body: PasswordInput,
    answers: { 204: null },
    prepare({ body, caller, request, services }) {
      checkNewPassword(body.new_password, services.config.PASSWORD_MIN_LENGTH, 'new_password')
      return hashPassword(services, body.new_password, { user: caller.user.id, closed: request.closed })
    },
    async run({ resource, prepared: hash, tx }) {
      const { id } = resource
      if (!(await setPassword(tx, id, hash))) raise(userKind.notFound, { meta: { id } })
      await clearFailures(tx, resource.username)
      principalsChanged(tx, `user:${id}`)
    },
  }),
  itemOperation(userKind, {
    id: 'revokeUserTokens',
    method: 'post',
    path: '/users/{user_id}/revoke-tokens',
    summary: 'End every token of a user',
    description: 'Binds at the next request in every process. Project keys of the user stay valid.',
    tag,
    action: 'users:ResetPassword',
    gate: 'admin',
    answers: { 204: null },
    async run({ resource, tx }) {
      await revokeTokens(tx, resource.id)
      principalsChanged(tx, `user:${resource.id}`)
    },
  }),
]
