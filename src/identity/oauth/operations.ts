import { z } from 'zod'
import { equalsFilter } from '#core/api/filters.ts'
import { srn } from '#core/api/kind.ts'
import { type GateVerdict, itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { type Caller, isAdmin } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { areWithin, MCP_ACCESS, ScopeSelection } from '../grants/scopes.ts'
import { deleteClient, narrowGrant } from '../grants/store.ts'
import { principalsChanged } from '../principals/principals.ts'
import { consentOperations, OAUTH_TAG, requireActionScopes, usersOnly } from './consent.ts'
import { clientKind, Grant, type GrantRow, grantKind } from './model.ts'
import { revokeGrant } from './revoke.ts'

const grants = resource(grantKind, {
  path: '/oauth/grants',
  tag: OAUTH_TAG,
  module: 'oauth',
  noun: 'Grant',
  nouns: 'Grants',
  param: 'grant_id',
})
const clients = resource(clientKind, {
  path: '/oauth/clients',
  tag: OAUTH_TAG,
  module: 'oauth',
  noun: 'Client',
  nouns: 'Clients',
  param: 'client_id',
})

const isLiveGrant = sql.fragment`t.revoked_at is null and t.expires_at > now()`

/** Returns a live grant. */
const findLiveGrant = async (db: Queryable, id: string): Promise<GrantRow | null> =>
  db.maybeOne(grantKind.sql`select ${grantKind.columns} from oauth_grants t where t.id = ${id} and ${isLiveGrant}`)

/** Grants are visible to their owners and to admins. */
const ownOrAdmin = (caller: Caller, { user_id }: GrantRow): GateVerdict =>
  user_id === caller.user.id || isAdmin(caller) ? 'allow' : 'hide'

/** Condition for visible grants: a user's own, all for an admin. */
const visibleGrants = (caller: Caller) =>
  isAdmin(caller) ? sql.fragment`true` : sql.fragment`t.user_id = ${caller.user.id}`

const grantOptions = {
  tag: OAUTH_TAG,
  gate: 'owner',
  param: 'grant_id',
  find: findLiveGrant,
  decide: ownOrAdmin,
} as const

export const oauthOperations: Operation[] = [
  ...consentOperations,
  grants.list({
    id: 'listOauthGrants',
    summary: 'List OAuth grants',
    description:
      'Returns the live grants of the caller, or of all users for an admin, newest first. Each consent has its own entry.',
    gate: 'owner',
    admit: usersOnly('oauth:ListGrants'),
    visible: ({ caller }) => visibleGrants(caller),
    where: () => [isLiveGrant],
    filters: {
      user_id: equalsFilter('user_id'),
      project_id: equalsFilter('project_id'),
      client_id: equalsFilter('client_id'),
    },
    // IDs are ordered by creation time; oauth_grants_user provides the order for one user.
    order: () => sql.fragment`t.id desc`,
    // Grants are kept with their users.
    across: null,
  }),
  itemOperation(grantKind, {
    ...grantOptions,
    id: 'narrowOauthGrant',
    method: 'patch',
    path: '/oauth/grants/{grant_id}',
    summary: 'Narrow an OAuth grant',
    description:
      'Replaces the granted scopes with a subset. Applies to the tokens of the grant, and to work that they started, from the next request on.',
    action: 'oauth:NarrowGrant',
    admit: usersOnly('oauth:NarrowGrant'),
    body: z
      .strictObject({ selection: ScopeSelection.describe('Remaining scopes; a subset of the granted scopes') })
      .meta({ id: 'OauthGrantPatch' }),
    answers: { 200: Grant },
    async run({ resource: { id }, services, tx, body }) {
      const scopes = requireActionScopes(services, body.selection)
      const grant = await grantKind.lock(tx, id)
      if (grant.revoked_at !== null) raise('RESOURCE_NOT_FOUND', { meta: { id } })
      if (!areWithin(scopes, grant.scopes))
        raiseInvalid({ code: 'INVALID_VALUE', path: 'selection', message: 'must be a subset of the granted scopes' })
      await narrowGrant(tx, id, [MCP_ACCESS, ...scopes])
      principalsChanged(tx, `grant:${id}`)
      return grantKind.present({ ...grant, scopes: [MCP_ACCESS, ...scopes] })
    },
  }),
  itemOperation(grantKind, {
    ...grantOptions,
    id: 'revokeOauthGrant',
    method: 'delete',
    path: '/oauth/grants/{grant_id}',
    summary: 'Revoke an OAuth grant',
    description: 'Ends the grant. Its tokens, and work that they started, are refused from the next request on.',
    action: 'oauth:RevokeGrant',
    admit: usersOnly('oauth:RevokeGrant'),
    answers: { 204: null },
    async run({ resource: { id, user_id }, caller, tx }) {
      const revoked = await revokeGrant(tx, id, user_id === caller.user.id ? 'owner' : 'admin')
      if (!revoked) raise('RESOURCE_NOT_FOUND', { meta: { id } })
    },
  }),
  clients.list({
    id: 'listOauthClients',
    summary: 'List OAuth clients',
    description: 'Returns dynamically registered clients, and clients with a metadata document that have user consent.',
    gate: 'admin',
    visible: () => sql.fragment`true`,
  }),
  operation({
    id: 'deleteOauthClient',
    method: 'delete',
    path: '/oauth/clients/{client_id}',
    summary: 'Delete an OAuth client',
    description:
      'Deletes a client and its grants. The client_id is an `oac_` ID or the percent-encoded URL of a metadata document. A client with a metadata document is listed again after another consent.',
    tag: OAUTH_TAG,
    action: 'oauth:DeleteClient',
    gate: 'admin',
    about: clientKind,
    answers: { 204: null },
    raises: ['RESOURCE_NOT_FOUND'],
    async run({ params: { client_id: id }, tx, audit }) {
      audit.resource_srn = srn(null, clientKind.name, id)
      audit.resource_public_id = id
      if (!(await deleteClient(tx, id))) raise('RESOURCE_NOT_FOUND', { meta: { id: id.slice(0, 200) } })
      principalsChanged(tx, `client:${id}`)
    },
  }),
]
