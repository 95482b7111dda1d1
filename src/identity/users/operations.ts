import { z } from 'zod'
import { passesAdminGate } from '#core/api/access.ts'
import { NEWEST_FIRST } from '#core/api/across.ts'
import { columnFilter, containsFilter } from '#core/api/filters.ts'
import { srn } from '#core/api/kind.ts'
import { pageOf, pageOfArray, textFilter } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { requireNoMoves } from '#core/services/project-entries.ts'
import { principalsChanged } from '../principals/principals.ts'
import { AuthoredDefinition, listAuthoredDefinitions } from './authored.ts'
import { bootstrapAdmin } from './bootstrap.ts'
import { deleteUser, endConsoleSignIns, updateUserFields } from './change.ts'
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
import { OwnPermission, permissionsOfUser } from './permissions.ts'
import { checkOwnPassword, codeSignIn, issueUserToken, signIn } from './sign-in.ts'
import { redeemSignInLink } from './sign-in-link.ts'
import { changePassword, clearFailures, insertUser, revokeTokens, setPassword } from './store.ts'

const tag = 'Users'

const users = resource(userKind, { path: '/users', tag })

/** Admits the user with the ID, and admins. @throws FORBIDDEN for all others, whether or not the user exists */
export function ownOrAdmin(action: string) {
  return (caller: Caller, params: Record<string, string>): void => {
    const row = { id: params.user_id, project_id: null }
    if (caller.user.id !== params.user_id && !passesAdminGate(caller, action, { kind: userKind as never, row }))
      raise('FORBIDDEN', { meta: { action } })
  }
}

/** Admits only user tokens: keys and grants must not manage the sign-in of their user. @throws FORBIDDEN */
const userTokensOnly = (action: string) => (caller: Caller) => {
  if (caller.credential.type !== 'user') raise('FORBIDDEN', { meta: { action } })
}

export const userOperations: Operation[] = [
  operation({
    id: 'bootstrapUser',
    method: 'post',
    path: '/users/bootstrap',
    summary: 'Create the first admin',
    description: 'Possible only while the deployment has no user. The new user can sign in immediately.',
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
      'Accepts a username and password, the one-time code and verifier of a sign-in with a company account, or the token of a sign-in link. Returns a token with the permissions of the user that is valid until it expires, the password changes, or the tokens of the user are revoked.',
    tag,
    gate: 'public',
    transaction: false,
    body: SignInInput,
    answers: { 200: SignedIn },
    raises: ['UNAUTHORIZED'],
    run({ body, services, request }) {
      if (body.sign_in_link !== undefined) return redeemSignInLink(services, body.sign_in_link, request)
      if (body.oidc_code === undefined) return signIn(services, body as z.output<typeof Credentials>, request)
      return codeSignIn.only()?.(services, body as SignInCode, request) ?? raise('UNAUTHORIZED')
    },
  }),
  operation({
    id: 'getMe',
    command: ['users', 'me'],
    method: 'get',
    path: '/users/me',
    summary: 'Get the current user and credential',
    description: 'Returns the user of the credential, its type, and the project to which it is bound.',
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
    summary: 'List own permissions',
    description: 'Returns for each action whether the credential may use it on all, some or no resources.',
    tag,
    gate: 'any',
    paged: true,
    timed: false,
    query: z.object({
      project_id: textFilter.describe('ID of the project. Default the project of the credential, or all projects.'),
    }),
    answers: { 200: pageOf(OwnPermission) },
    raises: ['API_KEY_PROJECT_SCOPE', 'RESOURCE_NOT_FOUND'],
    run: async ({ db, caller, query, page }) =>
      pageOfArray(await permissionsOfUser(db, caller, query.project_id), page),
  }),
  operation({
    id: 'changeOwnPassword',
    command: ['users', 'change-password'],
    method: 'put',
    path: '/users/me/password',
    mcp: false,
    summary: 'Change own password',
    description:
      'Ends all tokens of the user and all other sign-ins in the console, and returns a new token. Project keys stay valid. A wrong current password counts as a failed sign-in.',
    tag,
    action: 'users:ChangeOwnPassword',
    gate: 'owner',
    about: userKind,
    admit: userTokensOnly('users:ChangeOwnPassword'),
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
    async run({ prepared: { user, hash }, services, caller, tx }) {
      const token_version = await changePassword(tx, user, hash, services.clock.now())
      if (token_version === null) return raise('UNAUTHORIZED')
      await endConsoleSignIns(tx, user.id, caller.credential.id)
      principalsChanged(tx, `user:${user.id}`)
      return issueUserToken(services, { ...user, token_version })
    },
  }),
  operation({
    id: 'revokeOwnTokens',
    command: ['users', 'revoke-own-tokens'],
    method: 'post',
    path: '/users/me/revoke-tokens',
    summary: 'Revoke own tokens',
    description:
      'Ends all tokens of the caller from the next request on in every process, including the token of this request, and the sign-ins in the console. Project keys stay valid.',
    tag,
    action: 'users:ChangeOwnPassword',
    gate: 'owner',
    about: userKind,
    admit: userTokensOnly('users:ChangeOwnPassword'),
    answers: { 204: null },
    async run({ caller, tx, audit }) {
      audit.resource_srn = srn(null, userKind.name, caller.user.id)
      audit.resource_public_id = caller.user.id
      await revokeTokens(tx, caller.user.id)
      await endConsoleSignIns(tx, caller.user.id)
      principalsChanged(tx, `user:${caller.user.id}`)
    },
  }),
  // No index: the table is small.
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
    description: 'The user has only the permissions of every user until policies are attached.',
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
      const { username, role, display_name } = body
      const created = await insertUser(tx, { id: newId(userKind.prefix), username, role, display_name, password_hash })
      if (!created)
        return raise('NAME_CONFLICT', { message: `Username ${username} is already in use`, meta: { username } })
      return userKind.present(created)
    },
  }),
  users.get({ gate: 'owner', admit: ownOrAdmin('users:GetUser') }),
  itemOperation(userKind, {
    id: 'listAuthoredDefinitions',
    method: 'get',
    path: '/users/{user_id}/authored',
    summary: 'List authored definitions',
    description:
      "Returns tools, agents, graphs and other definitions last written by the user or one of the user's keys, newest first. They act with at most the permissions of their author; once the author is deleted, their calls are refused until another user adopts them. A key or grant sees only the projects that it may see.",
    tag,
    action: 'users:GetUser',
    gate: 'owner',
    admit: ownOrAdmin('users:GetUser'),
    paged: true,
    across: { order: NEWEST_FIRST },
    answers: { 200: pageOf(AuthoredDefinition) },
    run: ({ caller, db, page, resource }) => listAuthoredDefinitions(db, caller, page, resource.id),
  }),
  itemOperation(userKind, {
    id: 'updateUser',
    method: 'patch',
    path: '/users/{user_id}',
    summary: 'Update a user',
    description: 'A new username or role ends the tokens of the user. All credentials of a disabled user are refused.',
    tag,
    action: 'users:UpdateUser',
    gate: 'admin',
    body: UserPatch,
    answers: { 200: User },
    raises: ['NAME_CONFLICT', 'LAST_ADMIN_REQUIRED'],
    run: async ({ resource, body, tx, services }) =>
      userKind.present(await updateUserFields(tx, services.clock, resource.id, body)),
  }),
  itemOperation(userKind, {
    id: 'deleteUser',
    method: 'delete',
    path: '/users/{user_id}',
    summary: 'Delete a user',
    description:
      'Also deletes the keys and policy attachments of the user. The keys are refused immediately. Resources that the user created in projects remain.',
    tag,
    action: 'users:DeleteUser',
    gate: 'admin',
    answers: { 204: null },
    raises: ['LAST_ADMIN_REQUIRED'],
    async run({ resource, tx, services }) {
      await requireNoMoves(services, tx)
      await deleteUser(tx, resource.id)
    },
  }),
  itemOperation(userKind, {
    id: 'resetUserPassword',
    command: ['users', 'reset-password'],
    method: 'put',
    path: '/users/{user_id}/password',
    mcp: false,
    summary: 'Reset a user password',
    description: 'Ends all tokens of the user, the sign-ins in the console and a lockout of the username.',
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
      await endConsoleSignIns(tx, id)
      principalsChanged(tx, `user:${id}`)
    },
  }),
  itemOperation(userKind, {
    id: 'revokeUserTokens',
    method: 'post',
    path: '/users/{user_id}/revoke-tokens',
    summary: 'Revoke user tokens',
    description:
      'Ends all tokens of the user and the sign-ins in the console, from the next request on in every process. Project keys stay valid.',
    tag,
    action: 'users:ResetPassword',
    gate: 'admin',
    answers: { 204: null },
    async run({ resource, tx }) {
      await revokeTokens(tx, resource.id)
      await endConsoleSignIns(tx, resource.id)
      principalsChanged(tx, `user:${resource.id}`)
    },
  }),
]
