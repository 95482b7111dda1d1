import { z } from 'zod'
import { canSeeProject } from '#core/api/access.ts'
import { isIdOf, kinds, srn } from '#core/api/kind.ts'
import { type Context, type Operation, operation } from '#core/api/operation.ts'
import type { Config } from '#core/base/config.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { idStatement, type Queryable, sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { readEverywhere } from '#core/services/copies.ts'
import { CONSOLE } from '../grants/built-in-clients.ts'
import {
  ACT_AS_USER,
  ConsentModule,
  consentCatalogue,
  MCP_ACCESS,
  OPENID_SCOPES,
  policyOf,
  ScopeSelection,
  scopesOf,
} from '../grants/scopes.ts'
import { insertGrant, lockObject, recordConsent, rewriteObject } from '../grants/store.ts'
import { kindOfClient } from './client-kinds.ts'
import { grantKind } from './model.ts'
import { type AuthorizationRequest, ConsentRequest, loadRequest, presentRequest } from './request.ts'
import { openObject, sealObject } from './seal.ts'

/** Decisions of users on authorization requests. */

export const OAUTH_TAG = 'OAuth'

/** Admits only users: no key, project token or work on their behalf can consent. @throws FORBIDDEN */
export const usersOnly =
  (action: string) =>
  ({ credential }: Caller): void => {
    if (credential.type !== 'user') raise('FORBIDDEN', { meta: { action } })
  }

const MAX_PROJECTS = 1000

const requestId = z.string().max(100).describe('ID of an authorization request started by this browser')

const ConsentInfo = z
  .object({
    projects: z
      .array(
        z.object({ id: z.string().describe('ID of the project'), name: z.string().describe('Name of the project') }),
      )
      .describe(`Projects to which the caller may grant access, by name. At most ${MAX_PROJECTS}.`),
    modules: z.array(ConsentModule).describe('Modules and actions that can be granted'),
    request: ConsentRequest.nullable().describe('Authorization request. Null without request_id.'),
  })
  .meta({ id: 'OauthConsentInfo' })

const ConsentInput = z
  .strictObject({
    request_id: requestId
      .optional()
      .describe('Authorization request to decide on. If omitted, the response is a preview of the grant.'),
    decision: z
      .enum(['approve', 'deny'])
      .default('approve')
      .describe('approve – creates a grant; deny – refuses the client. Default approve.'),
    project_id: z.string().min(1).max(64).optional().describe('ID of the project to which the grant is bound'),
    selection: ScopeSelection.optional().describe('Scopes to grant'),
    expires_in_days: z
      .int()
      .min(1)
      .max(365)
      .optional()
      .describe('Lifetime of the grant in days, limited by the deployment settings. At most 365.'),
  })
  .meta({ id: 'OauthConsentInput' })
type ConsentInput = z.output<typeof ConsentInput>

const ConsentResult = z
  .object({
    project_id: z.string().nullable().describe('ID of the project of the grant'),
    scopes: z.array(z.string()).describe('Scopes of the grant'),
    policy: z
      .unknown()
      .describe('Permissions of the grant as a policy document. Null if the grant is not bound to a project.'),
    redirect_to: z.string().nullable().describe('URL at which the browser continues. Null without request_id.'),
  })
  .meta({ id: 'OauthConsentResult' })

const projectRow = sql.type(z.object({ id: z.string(), name: z.string() }))

/** Returns the projects visible to a user, by name; without projects of cells that do not answer. */
async function visibleProjects(
  services: Services,
  db: Queryable,
  caller: Caller,
): Promise<{ id: string; name: string }[]> {
  const named = namedProjects(caller)
  const where = named ? sql.fragment`id = any(${sql.array(named, 'text')})` : sql.fragment`true`
  const parts = await readEverywhere(
    services,
    db,
    db => db.any(projectRow`select id, name from projects where ${where} order by name, id limit ${MAX_PROJECTS}`),
    { partial: true },
  )
  const found = parts.length > 1 ? parts.flat().sort(byName).slice(0, MAX_PROJECTS) : parts[0]
  return found.filter(({ id }) => canSeeProject(caller, id))
}

const byName = (left: { id: string; name: string }, right: { id: string; name: string }): number =>
  left.name.localeCompare(right.name) || (left.id < right.id ? -1 : 1)

/** Returns the projects that a user's policies name; null if a policy applies to all projects. */
function namedProjects({ layers }: Caller): string[] | null {
  if (layers.length === 0) return null
  const allowing = layers
    .flatMap(({ documents }) => documents.flatMap(({ statements }) => statements))
    .filter(({ deny }) => !deny)
  const projects = allowing.flatMap(({ resources }) => resources?.map(({ project }) => project) ?? [null])
  return projects.includes(null) ? null : [...new Set(projects as string[])]
}

type ConsentedScopes = { project_id: string | null; scopes: string[] }

/** Returns the project and scopes that a body grants. @throws VALIDATION_FAILED, FORBIDDEN, RESOURCE_NOT_FOUND */
async function resolveConsent(
  { services, caller, db, body }: Pick<Context<unknown, ConsentInput>, 'services' | 'caller' | 'db' | 'body'>,
  request: AuthorizationRequest | null,
): Promise<ConsentedScopes> {
  const { project_id, selection } = body
  if (request?.actsAsUser || request?.isSignIn) {
    // A caller that selects scopes must not get a grant that ignores the selection.
    const chosen = Object.entries({ project_id, selection }).filter(([, value]) => value !== undefined)
    const message = 'cannot be chosen for this request'
    if (chosen.length > 0) raiseInvalid(chosen.map(([path]) => ({ code: 'INVALID_VALUE', path, message })))
    return { project_id: null, scopes: request.actsAsUser ? [ACT_AS_USER] : [] }
  }
  const missing = Object.entries({ project_id, selection }).filter(([, value]) => value === undefined)
  if (missing.length > 0) raiseInvalid(missing.map(([path]) => ({ code: 'REQUIRED', path, message: 'is required' })))
  await requireProject(services, db, caller, project_id as string)
  return {
    project_id: project_id as string,
    scopes: [MCP_ACCESS, ...requireActionScopes(services, selection as ScopeSelection)],
  }
}

/** Returns the action scopes of a selection. @throws VALIDATION_FAILED for an empty selection and for unknown scopes */
export function requireActionScopes(services: Pick<Services, 'state'>, selection: ScopeSelection): string[] {
  const { scopes, unknown } = scopesOf(services, selection)
  if (unknown.length > 0)
    raise('VALIDATION_FAILED', {
      message: `selection contains unknown scopes: ${unknown.slice(0, 5).join(', ')}`,
      meta: {
        unknown: unknown.slice(0, 100),
        problems: [{ code: 'INVALID_VALUE', path: 'selection', message: 'contains unknown scopes' }],
      },
    })
  if (scopes.length === 0)
    raise('VALIDATION_FAILED', {
      message: 'selection must not be empty',
      meta: { unknown: [], problems: [{ code: 'TOO_SMALL', path: 'selection', message: 'must not be empty' }] },
    })
  return scopes
}

async function requireProject(services: Services, db: Queryable, caller: Caller, id: string): Promise<void> {
  if (!canSeeProject(caller, id)) raise('FORBIDDEN', { meta: { action: 'oauth:GrantConsent' } })
  const isIn = (reader: Queryable) => reader.exists(idStatement`select id from projects where id = ${id} for key share`)
  const cell = services.cells?.ofProject(id)
  const isHere = !cell || cell === services.cells?.home
  // The lock in another cell ends with the statement; a sweep deletes grants of projects that are deleted there.
  const exists =
    isIdOf(kinds.get('project'), id) && (await (isHere ? isIn(db) : onSeparateConnection(() => isIn(cell.pool))))
  if (!exists) raise('RESOURCE_NOT_FOUND', { meta: { id } })
}

const DAY_MS = 86_400_000
/** A page of the console reports its input: a thief could prolong a stolen sign-in forever. */
const MAX_CONSOLE_MS = 2 * DAY_MS

/** Returns the longest life of a grant to a client in milliseconds. */
function longestLife({ OAUTH_GRANT_MAX_SECONDS, CONSOLE_IDLE_MINUTES }: Config, clientId: string): number {
  const most = OAUTH_GRANT_MAX_SECONDS * 1000
  return clientId === CONSOLE && CONSOLE_IDLE_MINUTES > 0 ? Math.min(most, MAX_CONSOLE_MS) : most
}

/** Inserts the grant and stores the decision in the request, which the library then resumes. */
async function recordDecision(
  {
    services,
    caller,
    body,
    tx,
    audit,
  }: Pick<Context<unknown, ConsentInput>, 'services' | 'caller' | 'body' | 'tx' | 'audit'>,
  request: AuthorizationRequest,
  { project_id, scopes }: ConsentedScopes,
): Promise<string> {
  const { config, clock } = services
  const { client, uid } = request
  const sealed = await lockObject(tx, 'Interaction', uid)
  const stored = sealed && openObject(services, 'Interaction', sha256Of(uid).toString('hex'), sealed)
  if (!stored || stored.result) return raise('RESOURCE_NOT_FOUND', { meta: { id: body.request_id } })
  audit.project_id = project_id
  audit.detail = { ...audit.detail, client_id: client.clientId, client_name: client.clientName ?? null, scopes }
  if (body.decision === 'deny') {
    audit.detail.decision = 'deny'
    stored.result = { error: 'access_denied', error_description: 'the user denied the request' }
  } else {
    const now = clock.now().getTime()
    const id = newId(grantKind.prefix)
    const chosen = body.expires_in_days === undefined ? Number.POSITIVE_INFINITY : body.expires_in_days * DAY_MS
    const endsAt = now + Math.min(longestLife(config, client.clientId), chosen)
    const life = Math.max(config.OAUTH_REFRESH_TOKEN_TTL_SECONDS, config.OAUTH_ACCESS_TOKEN_TTL_SECONDS)
    const openid_scopes = request.scopes.filter(scope => OPENID_SCOPES.includes(scope))
    await insertGrant(tx, {
      id,
      user_id: caller.user.id,
      project_id,
      client_id: client.clientId,
      client_name: client.clientName ?? null,
      scopes,
      openid_scopes,
      endsAt: new Date(endsAt),
      expiresAt: new Date(Math.min(endsAt, now + life * 1000)),
    })
    const isDocument = kindOfClient(client.clientId) === 'metadata_document'
    await recordConsent(tx, {
      id: client.clientId,
      name: client.clientName ?? null,
      document: isDocument ? client.metadata() : null,
    })
    audit.resource_srn = srn(project_id, grantKind.name, id)
    audit.resource_public_id = id
    stored.result = { login: { accountId: caller.user.id, remember: false }, consent: { grantId: id } }
    // The scopes chosen by the user replace the scopes requested by the client.
    stored.params = { ...stored.params, scope: [...openid_scopes, ...scopes].join(' ') }
  }
  await rewriteObject(tx, 'Interaction', uid, sealObject(services, 'Interaction', uid, stored))
  return stored.returnTo as string
}

export const consentOperations: Operation[] = [
  operation({
    id: 'getOauthConsentInfo',
    method: 'get',
    path: '/oauth/consent-info',
    summary: 'Get consent options',
    description:
      'Returns the projects and actions that the calling user may grant, and the given authorization request. A request is visible only to the browser that started it.',
    tag: OAUTH_TAG,
    action: 'oauth:GrantConsent',
    gate: 'owner',
    internal: true,
    admit: usersOnly('oauth:GrantConsent'),
    query: z.object({ request_id: requestId.optional() }),
    answers: { 200: ConsentInfo },
    raises: ['RESOURCE_NOT_FOUND'],
    async run({ services, caller, db, query, request }) {
      const found =
        query.request_id === undefined ? null : await loadRequest(services, query.request_id, request.headers)
      return {
        projects: await visibleProjects(services, db, caller),
        modules: consentCatalogue(services).modules,
        request: found && presentRequest(services, found),
      }
    },
  }),
  operation({
    id: 'grantOauthConsent',
    method: 'post',
    path: '/oauth/consent',
    summary: 'Decide on an authorization request',
    description:
      'Records the decision once and returns the URL at which the browser continues. Each approval creates a new grant. Without request_id nothing is stored and the response is a preview of the grant.',
    tag: OAUTH_TAG,
    action: 'oauth:GrantConsent',
    gate: 'owner',
    about: grantKind,
    internal: true,
    admit: usersOnly('oauth:GrantConsent'),
    body: ConsentInput,
    answers: { 200: ConsentResult },
    raises: ['RESOURCE_NOT_FOUND'],
    prepare: ({ services, body, request }) =>
      body.request_id === undefined ? Promise.resolve(null) : loadRequest(services, body.request_id, request.headers),
    async run(context) {
      const { body, prepared: request, audit } = context
      const isDenied = request !== null && body.decision === 'deny'
      const consented = isDenied ? { project_id: null, scopes: [] } : await resolveConsent(context, request)
      const { project_id, scopes } = consented
      if (!request) audit.counted = true
      return {
        ...consented,
        policy: project_id === null ? null : policyOf(scopes, project_id),
        redirect_to: request && (await recordDecision(context, request, consented)),
      }
    },
  }),
]
