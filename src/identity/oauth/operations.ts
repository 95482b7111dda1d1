import { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { equalsFilter } from '../../core/api/filters.ts'
import { srn } from '../../core/api/kind.ts'
import { type GateVerdict, itemOperation, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'
import { type Caller, isAdmin } from '../../core/iam/caller.ts'
import { principalsChanged } from '../principals.ts'
import { chosenScopes, consentOperations, OAUTH_TAG, usersOnly } from './consent.ts'
import { clientKind, Grant, type GrantRow, grantKind } from './model.ts'
import { revokeGrant } from './revoke.ts'
import { areWithin, MCP_ACCESS, ScopeSelection } from './scopes.ts'
import { deleteClient, narrowGrant } from './store.ts'

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

const live = sql.fragment`t.revoked_at is null and t.expires_at > now()`

/** A grant that has not ended. */
const findLive = async (db: Queryable, id: string): Promise<GrantRow | null> =>
  db.maybeOne(grantKind.sql`select ${grantKind.columns} from oauth_grants t where t.id = ${id} and ${live}`)

/** Owners and admins know of a grant. */
const ownOrAdmin = (caller: Caller, { user_id }: GrantRow): GateVerdict =>
  user_id === caller.user.id || isAdmin(caller) ? 'allow' : 'hide'

/** Which grants a list shows: own ones, to an admin all. */
const visibleGrants = (caller: Caller) =>
  isAdmin(caller) ? sql.fragment`true` : sql.fragment`t.user_id = ${caller.user.id}`

const ofGrant = { tag: OAUTH_TAG, gate: 'owner', param: 'grant_id', find: findLive, decide: ownOrAdmin } as const

export const oauthOperations: Operation[] = [
  ...consentOperations,
  grants.list({
    id: 'listOauthGrants',
    summary: 'List OAuth grants',
    description:
      'Live grants of the calling user, newest first; of an admin those of all users. One entry per consent.',
    gate: 'owner',
    admit: usersOnly('oauth:ListGrants'),
    visible: ({ caller }) => visibleGrants(caller),
    where: () => [live],
    filters: {
      user_id: equalsFilter('user_id'),
      project_id: equalsFilter('project_id'),
      client_id: equalsFilter('client_id'),
    },
    // Ids rise with creation time; oauth_grants_user has the order for one user.
    order: () => sql.fragment`t.id desc`,
  }),
  itemOperation(grantKind, {
    ...ofGrant,
    id: 'narrowOauthGrant',
    method: 'patch',
    path: '/oauth/grants/{grant_id}',
    summary: 'Narrow an OAuth grant',
    description:
      'Replaces what was consented to by less of it. Binds the tokens of the grant, and work that they started, at the next request.',
    action: 'oauth:NarrowGrant',
    admit: usersOnly('oauth:NarrowGrant'),
    body: z
      .strictObject({ selection: ScopeSelection.describe('What remains, a part of what was granted') })
      .meta({ id: 'OauthGrantPatch' }),
    answers: { 200: Grant },
    async run({ resource: { id }, services, tx, body }) {
      const scopes = chosenScopes(services, body.selection)
      const known = await grantKind.lock(tx, id)
      if (known.revoked_at !== null) raise('RESOURCE_NOT_FOUND', { meta: { id } })
      if (!areWithin(scopes, known.scopes))
        raiseInvalid({ code: 'INVALID_VALUE', path: 'selection', message: 'must be a part of what was granted' })
      await narrowGrant(tx, id, [MCP_ACCESS, ...scopes])
      principalsChanged(tx, `grant:${id}`)
      return grantKind.present({ ...known, scopes: [MCP_ACCESS, ...scopes] })
    },
  }),
  itemOperation(grantKind, {
    ...ofGrant,
    id: 'revokeOauthGrant',
    method: 'delete',
    path: '/oauth/grants/{grant_id}',
    summary: 'Revoke an OAuth grant',
    description: 'Ends the grant: its tokens, and work that they started, are refused from the next request on.',
    action: 'oauth:RevokeGrant',
    admit: usersOnly('oauth:RevokeGrant'),
    answers: { 204: null },
    async run({ resource: { id, user_id }, caller, tx }) {
      const ended = await revokeGrant(tx, id, user_id === caller.user.id ? 'owner' : 'admin')
      if (!ended) raise('RESOURCE_NOT_FOUND', { meta: { id } })
    },
  }),
  clients.list({
    id: 'listOauthClients',
    summary: 'List OAuth clients',
    description: 'Clients that registered themselves, and clients with a metadata document that a user consented to.',
    gate: 'admin',
    visible: () => sql.fragment`true`,
  }),
  operation({
    id: 'deleteOauthClient',
    method: 'delete',
    path: '/oauth/clients/{client_id}',
    summary: 'Delete an OAuth client',
    description:
      'Deletes a client with its grants; client_id is an `oac_` ID, or the percent-encoded address of a metadata document. A client with a document may come back by another consent.',
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
