import ipaddr from 'ipaddr.js'
import { isAllowed } from '#core/api/access.ts'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { toWireTime } from '#core/base/clock.ts'
import { raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { noteUser } from '#core/base/telemetry.ts'
import { Batcher } from '#core/db/batcher.ts'
import { narrowAuthority } from '#core/iam/authority.ts'
import {
  type Bound,
  type Caller,
  type CallerDefinition,
  type EndUser,
  type PrincipalRecord,
  type PrincipalRef,
  principalRecord,
  type TriggerScope,
} from '#core/iam/caller.ts'
import type { Layer } from '#core/iam/decide.ts'
import { compileDocument } from '#core/iam/policy.ts'
import type { PresentedCredential } from '#core/invoke/hooks.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { isProofValid } from '../grants/dpop.ts'
import { ACT_AS_USER, actionScopes, areWithin, policyOf } from '../grants/scopes.ts'
import { recordGrantUse } from '../grants/store.ts'
import { type Claims, verifyToken } from '../tokens/tokens.ts'
import { boundaryLayer } from './boundaries.ts'
import { keyUsageLog } from './key-usage-log.ts'
import { policyLayer } from './policy-layer.ts'
import { PrincipalCache, type PrincipalSource, principalChannel, registerCache } from './principal-cache.ts'
import {
  findActorPrincipals,
  findAttachedPolicy,
  findGrantPrincipal,
  findKeyPrincipal,
  findKeyPrincipalByHash,
  findUserPrincipal,
  type PrincipalGrant,
  type PrincipalKey,
  type PrincipalUser,
  recordBrowserUse,
  recordKeyUse,
} from './principal-store.ts'

export { principalsChanged } from './principal-cache.ts'

type Network = [ipaddr.IPv4 | ipaddr.IPv6, number]

/**
 * Key of a principal; `string_expires_at` is the end of the grace period of a rotated string, null for the current one.
 */
type Key = Omit<PrincipalKey, 'policies' | 'allowed_ips'> & {
  string_expires_at: string | null
  networks: Network[] | null
}

type Principal = {
  user: Omit<PrincipalUser, 'policies'>
  key: Key | null
  grant: PrincipalGrant | null
  layers: Layer[]
  sources: PrincipalSource[]
}

/** Format of key strings; others are refused without a query. */
const KEY = /^sk_[0-9A-Za-z]{20,100}$/

function parseNetwork(text: string): Network[] {
  try {
    return [ipaddr.parseCIDR(text.includes('/') ? text : `${text}/${ipaddr.parse(text).kind() === 'ipv4' ? 32 : 128}`)]
  } catch {
    // An invalid range matches no address.
    return []
  }
}

function isInNetworks(networks: Network[], ip: string | null): boolean {
  if (ip === null || !ipaddr.isValid(ip)) return false
  const address = ipaddr.process(ip)
  return networks.some(([range, bits]) => range.kind() === address.kind() && address.match(range as never, bits))
}

/** Returns the layer of a grant for action scopes in a project. */
const scopeLayer = (scopes: readonly string[], projectId: string): Layer => ({
  kind: 'grant',
  documents: actionScopes(scopes).length === 0 ? [] : [compileDocument(policyOf(scopes, projectId))],
})

/** Builds the layers of a user, key or grant, and lists their sources. */
function principalOf(
  row: { user: PrincipalUser; key?: PrincipalKey; string_expires_at?: string | null; grant?: PrincipalGrant },
  log: Services['log'],
): Principal {
  const { policies, ...user } = row.user
  const layers: Layer[] = user.role === 'admin' ? [] : [policyLayer('user', policies, log)]
  const sources: PrincipalSource[] = [`user:${user.id}`, ...policies.map(({ id }): PrincipalSource => `policy:${id}`)]
  const { grant = null } = row
  if (grant) {
    sources.push(`grant:${grant.id}`, `client:${grant.client_id}`)
    if (grant.project_id === null) return { user, key: null, grant, layers, sources }
    sources.push(`project:${grant.project_id}`)
    return { user, key: null, grant, layers: [...layers, scopeLayer(grant.scopes, grant.project_id)], sources }
  }
  if (!row.key) return { user, key: null, grant, layers, sources }
  const { policies: boundary, allowed_ips, ...key } = row.key
  if (boundary.length > 0) layers.push(policyLayer('key', boundary, log))
  sources.push(`key:${key.id}`, ...boundary.map(({ id }): PrincipalSource => `policy:${id}`))
  if (key.project_id) sources.push(`project:${key.project_id}`)
  return {
    user,
    key: {
      ...key,
      string_expires_at: row.string_expires_at ?? null,
      networks: allowed_ips?.flatMap(parseNetwork) ?? null,
    },
    grant,
    layers,
    sources,
  }
}

const isPast = (time: string | null, now: Date): boolean =>
  time !== null && (time === '-infinity' || new Date(time).getTime() <= now.getTime())

type Resolver = {
  resolve<T extends { sources: PrincipalSource[] }>(name: string, load: () => Promise<T | null>): Promise<T | null>
  close(): void
}

/** Principal cache of the process: entries live at most 5 s and are dropped when a change is announced. */
const resolverOf = processSingleton(openResolver, resolver => resolver.close())

function openResolver(services: Services): Resolver {
  const { notifications } = services
  const cache = new PrincipalCache<{ sources: PrincipalSource[] }>()
  const unregister = registerCache(cache as never)
  const unlisten = notifications.listen(principalChannel, source => cache.drop(source as PrincipalSource), {
    onReconnect: () => cache.clear(),
  })
  let listening = false
  void unlisten.ready.then(() => {
    cache.clear()
    listening = true
  })
  return {
    resolve<T extends { sources: PrincipalSource[] }>(name: string, load: () => Promise<T | null>) {
      // Notifications are lost while the connection is down.
      if (listening && notifications.healthy()) return cache.get(name, load) as Promise<T | null>
      cache.clear()
      return load()
    },
    close() {
      unlisten()
      unregister()
    },
  }
}

/** Records the use of keys by this process. */
const keyUses = processSingleton(
  services => keyUsageLog((ids, now) => recordKeyUse(services.pool, ids, now), services),
  uses => uses.close(),
)

/** Records keys that browsers send: a page gives its key to everybody who opens it. */
const browserUses = processSingleton(
  services =>
    keyUsageLog((ids, now) => {
      services.log.warn({ key_ids: ids }, 'keys sent by browsers')
      return recordBrowserUse(services.pool, ids, now)
    }, services),
  uses => uses.close(),
)

/** Records the use of OAuth grants by this process. */
const grantUses = processSingleton(
  services => keyUsageLog((ids, now) => recordGrantUse(services.pool, ids, now), services),
  uses => uses.close(),
)

const callerOf = (
  { user, layers }: Pick<Principal, 'user' | 'layers'>,
  as: Omit<Caller, 'user' | 'layers'>,
): Caller => ({
  user: { id: user.id, username: user.username, role: user.role },
  layers,
  ...as,
})

async function callerByKey(
  services: Services,
  token: string,
  { ip, origin, byTicket }: PresentedCredential,
): Promise<Caller | null> {
  const { pool, clock, log } = services
  const hash = sha256Of(token)
  const found = await resolverOf(services).resolve(`key ${hash.toString('base64url')}`, async () => {
    const row = await findKeyPrincipalByHash(pool, hash)
    return row && principalOf(row, log)
  })
  if (!found?.key) return null
  const { user, key } = found
  const now = clock.now()
  if (user.disabled_at !== null || isPast(key.expires_at, now) || isPast(key.string_expires_at, now)) return null
  if (key.networks && !isInNetworks(key.networks, ip)) return null
  keyUses(services).note(key.id)
  if (origin !== undefined && !byTicket) browserUses(services).note(key.id)
  return callerOf(found, {
    credential: { type: 'api_key', id: key.id, expires_at: toWireTime(key.expires_at), scopes: null },
    principal: { type: 'api_key', id: key.id },
    project_id: key.project_id,
  })
}

/** Returns a grant that is valid now; null if it is revoked or expired, or if its user is deleted or disabled. */
async function usableGrant(services: Services, id: string): Promise<(Principal & { grant: PrincipalGrant }) | null> {
  const { pool, clock, log } = services
  const load = async () => {
    const row = await findGrantPrincipal(pool, id)
    return row && principalOf(row, log)
  }
  let found = await resolverOf(services).resolve(`grant ${id}`, load)
  // A refresh moves the end of a grant, which is announced to no process.
  if (isPast(found?.grant?.expires_at ?? null, clock.now())) found = await load()
  if (!found?.grant || found.user.disabled_at !== null || isPast(found.grant.expires_at, clock.now())) return null
  return { ...found, grant: found.grant }
}

/** Audiences of tokens for the API, which clients may use as `resource`. */
export const acceptedAudiences = (baseUrl: string): string[] => [baseUrl, `${baseUrl}/mcp`]

async function callerByGrant(
  services: Services,
  token: string,
  claims: Claims,
  { proof }: PresentedCredential,
): Promise<Caller | null> {
  const { BASE_URL } = services.config
  const { gid, iss, aud, scope, cnf } = claims as Claims & { gid?: unknown; scope?: unknown; cnf?: { jkt?: unknown } }
  if (iss !== BASE_URL || typeof aud !== 'string' || !acceptedAudiences(BASE_URL).includes(aud)) return null
  if (typeof gid !== 'string') return null
  const found = await usableGrant(services, gid)
  if (found?.user.id !== claims.sub || found.grant.client_id !== claims.client_id) return null
  if (cnf === undefined ? proof !== undefined : typeof cnf.jkt !== 'string' || !proof) return null
  if (proof && !(await isProofValid(services, token, proof, cnf?.jkt as string))) return null
  grantUses(services).note(gid)
  const { user, grant, layers } = found
  const expires_at = new Date(claims.exp * 1000).toISOString()
  const principal = { type: 'user', id: user.id } as const
  if (grant.project_id === null) {
    if (!grant.scopes.includes(ACT_AS_USER)) return null
    const credential = { type: 'user', id: gid, expires_at, scopes: grant.scopes, client_id: grant.client_id } as const
    return callerOf(found, { credential, principal, project_id: null })
  }
  // A refresh may request fewer scopes than were granted; a token without the claim has all of them.
  const tokenScopes = typeof scope === 'string' ? scope.split(' ') : grant.scopes
  const narrowed = areWithin(grant.scopes, tokenScopes)
    ? null
    : tokenScopes.filter(each => areWithin([each], grant.scopes))
  const scopes = narrowed ?? grant.scopes
  return callerOf(narrowed ? { user, layers: [...layers, scopeLayer(narrowed, grant.project_id)] } : found, {
    credential: { type: 'oauth_token', id: gid, expires_at, scopes, client_id: grant.client_id },
    principal,
    project_id: grant.project_id,
    bounds: [{ kind: 'grant', id: gid, scopes: narrowed }],
  })
}

/** Reads of actors with their issuers: the checks of open streams arrive by the hundred, and share statements. */
const actorReads = processSingleton(
  ({ pool }) =>
    new Batcher(
      async (references: { actor_id: string; issuer_id: string }[]) => [
        ...(await findActorPrincipals(pool, references)),
      ],
      { max: 500 },
    ),
  reads => reads.close(),
)

/** Claims of an end-user token: its project, issuer and limits. */
export type ActorClaims = Claims & {
  jti: string
  prj: string
  key?: string
  usr?: string
  ver: number
  agt: string[]
  ses: string[] | null
  scp: EndUser['scopes']
  org: string[] | null
  lim: EndUser['limits']
}

/** Action that the issuer of an end-user token must still be allowed on the actor. */
export const ISSUE_TOKENS = 'actors:CreateActorToken'

/**
 * Returns the end user of a token, with the permissions of its issuer; null if the actor or the issuer is deleted, the
 * tokens are revoked, or the issuer is expired, disabled or no longer allowed to issue tokens.
 * @throws FORBIDDEN for a page of an origin that the token does not list
 */
async function callerByActorToken(
  services: Services,
  claims: ActorClaims,
  { proof, origin }: PresentedCredential,
): Promise<Caller | null> {
  if (proof) return null
  const { sub, prj, key: keyId, usr, ver, agt, ses, scp, org, lim, jti, exp } = claims
  const issuer: PrincipalRef =
    keyId === undefined ? { type: 'user', id: usr as string } : { type: 'api_key', id: keyId }
  const found = await resolverOf(services).resolve(`actor ${sub} of ${issuer.id}`, async () => {
    const { user, key, actor } = await actorReads(services).add({ actor_id: sub, issuer_id: issuer.id })
    if (!user || !actor || (issuer.type === 'api_key') !== (key !== null)) return null
    const principal = principalOf({ user, key: key ?? undefined }, services.log)
    const facts = { principal: issuer, layers: principal.layers, credential: issuer }
    const mayIssue = isAllowed(facts, ISSUE_TOKENS, { kind: kinds.get('actor'), row: actor })
    return { ...principal, actor, mayIssue, sources: [...principal.sources, `actor:${actor.id}` as const] }
  })
  if (!found?.mayIssue || found.user.disabled_at !== null) return null
  const { actor, key } = found
  if (actor.project_id !== prj || actor.token_version !== ver) return null
  if (key && (key.project_id !== prj || isPast(key.expires_at, services.clock.now()))) return null
  if (org && origin !== undefined && !org.includes(origin)) raise('FORBIDDEN')
  noteUser(actor.external_id)
  return callerOf(found, {
    credential: { type: 'actor_token', id: actor.id, expires_at: new Date(exp * 1000).toISOString(), scopes: null },
    principal: issuer,
    project_id: prj,
    end_user: { actor_id: actor.id, agent_ids: agt, session_ids: ses, scopes: scp, limits: lim, jti },
  })
}

async function callerByToken(
  services: Services,
  token: string,
  presented: PresentedCredential,
): Promise<Caller | null> {
  const { pool, log } = services
  const claims = await verifyToken(services, ['user', 'oauth', 'actor'], token)
  if (claims?.typ === 'oauth') return callerByGrant(services, token, claims, presented)
  if (claims?.typ === 'actor') {
    const actor = claims as unknown as ActorClaims
    return callerByActorToken(services.cells?.ofProject(actor.prj) ?? services, actor, presented)
  }
  if (!claims || presented.proof || !isIdOf(kinds.get('user'), claims.sub)) return null
  const found = await resolverOf(services).resolve(`user ${claims.sub}`, async () => {
    const row = await findUserPrincipal(pool, claims.sub)
    return row && principalOf(row, log)
  })
  if (!found) return null
  const { user } = found
  if (user.disabled_at !== null || claims.ver !== user.token_version) return null
  return callerOf(found, {
    credential: { type: 'user', id: user.id, expires_at: new Date(claims.exp * 1000).toISOString(), scopes: null },
    principal: { type: 'user', id: user.id },
    project_id: null,
  })
}

/** Resolves a token to its caller; null means 401, regardless of the reason. */
export function authenticate(
  services: Services,
  token: string,
  presented: PresentedCredential,
): Promise<Caller | null> {
  if (!token.startsWith('sk_')) return callerByToken(services, token, presented)
  return KEY.test(token) && !presented.proof ? callerByKey(services, token, presented) : Promise.resolve(null)
}

const triggerRun = ({ id, policy_id, chain }: TriggerScope) => ({ trigger_id: id, policy_id, chain })

/**
 * Returns a user or key that is valid now; null if it is deleted, disabled or expired, or if the key is bound to
 * another project.
 */
async function usablePrincipal(services: Services, ref: PrincipalRef, projectId: string): Promise<Principal | null> {
  const { pool, clock, log } = services
  const found = await resolverOf(services).resolve(`${ref.type} of ${ref.id}`, async () => {
    const row = await (ref.type === 'user' ? findUserPrincipal(pool, ref.id) : findKeyPrincipal(pool, ref.id))
    return row && principalOf(row, log)
  })
  if (!found || found.user.disabled_at !== null) return null
  const { key } = found
  if (key && (isPast(key.expires_at, clock.now()) || (key.project_id !== null && key.project_id !== projectId)))
    return null
  return found
}

/** Returns a policy as a layer; a deleted policy allows nothing. */
async function storedPolicyLayer(services: Services, id: string): Promise<Layer> {
  const found = await resolverOf(services).resolve(`policy ${id}`, async () => {
    const policy = await findAttachedPolicy(services.pool, id)
    return { layer: policyLayer('trigger', policy ? [policy] : [], services.log), sources: [`policy:${id}` as const] }
  })
  return (found as { layer: Layer }).layer
}

/** Returns the current layers of a definition's author. An unavailable author allows nothing. */
async function authorLayers(
  services: Services,
  { author, of }: BoundOf<'author'>,
  projectId: string,
): Promise<Layer[]> {
  const principal = author && (await usablePrincipal(services, author, projectId))
  if (!principal) return [{ kind: 'user', documents: [], author_of: { definition: of, unavailable: true } }]
  return principal.layers.map(layer => ({ ...layer, author_of: { definition: of, unavailable: false } }))
}

/** Returns the current layers of a grant. A grant that has ended or belongs to another project allows nothing. */
async function grantLayers(services: Services, { id, scopes }: BoundOf<'grant'>, projectId: string): Promise<Layer[]> {
  const found = await usableGrant(services, id)
  if (found?.grant.project_id !== projectId) return [{ kind: 'grant', documents: [] }]
  return [scopeLayer(found.grant.scopes, projectId), ...(scopes ? [scopeLayer(scopes, projectId)] : [])]
}

type BoundOf<K extends Bound['kind']> = Extract<Bound, { kind: K }>

async function boundLayers(services: Services, bounds: readonly Bound[], projectId: string): Promise<Layer[]> {
  if (bounds.length === 0) return []
  const layers = await Promise.all(
    bounds.map(bound => {
      if (bound.kind === 'author') return authorLayers(services, bound, projectId)
      // Not a permission layer: memory queries apply it.
      if (bound.kind === 'memory') return []
      if (bound.kind === 'grant') return grantLayers(services, bound, projectId)
      return bound.kind === 'policy' ? storedPolicyLayer(services, bound.id) : boundaryLayer(services, bound)
    }),
  )
  return layers.flat()
}

/**
 * Returns the caller for work that was started earlier: the principal that started it, with its current permissions,
 * bound to the project of the work and restricted by the policy of the trigger that started it (admins too) and by the
 * bounds of its authority. Null if the user, key or grant is deleted, disabled, expired or no longer valid for the
 * project. Uses the principal cache: a change applies once it has been announced.
 */
export async function callerForPrincipal(
  services: Services,
  record: PrincipalRecord,
  projectId: string,
  run?: Caller['run'],
): Promise<Caller | null> {
  const { via, bounds = [], starters } = record
  const found = await usablePrincipal(services, record, projectId)
  if (!found) return null
  if (via?.type === 'oauth_grant' && (await usableGrant(services, via.id))?.grant.project_id !== projectId) return null
  const trigger = via?.type === 'trigger' ? via : null
  const policy = trigger?.policy_id ?? null
  const restrictions = [
    ...(policy === null ? [] : [await storedPolicyLayer(services, policy)]),
    ...(await boundLayers(services, bounds, projectId)),
  ]
  return callerOf(restrictions.length === 0 ? found : { ...found, layers: [...found.layers, ...restrictions] }, {
    credential: {
      type: 'run',
      id: run?.work_id ?? record.id,
      expires_at: toWireTime(found.key?.expires_at ?? null),
      scopes: null,
    },
    principal: { type: record.type, id: record.id },
    project_id: projectId,
    bounds,
    starters,
    run: trigger ? { work_type: 'trigger', work_id: trigger.id, ...run, ...triggerRun(trigger) } : run,
  })
}

/**
 * Returns the caller for actions of a project's definitions: bound to the project regardless of the credential, and
 * therefore without the admin gate, and restricted by the current permissions of the definitions' authors.
 */
export async function effectiveCaller(
  services: Services,
  caller: Caller,
  projectId: string,
  ...definitions: readonly CallerDefinition[]
): Promise<Caller> {
  const current = caller.bounds ?? []
  const { bounds = [] } = narrowAuthority(principalRecord(caller), ...definitions)
  const added = await boundLayers(services, bounds.slice(current.length), projectId)
  return {
    ...caller,
    credential: { ...caller.credential, type: 'run' },
    // Definitions act with the permissions of the issuer, as in turns.
    end_user: undefined,
    project_id: projectId,
    layers: [...caller.layers, ...added],
    bounds,
  }
}

/**
 * Returns a user or key as a caller, with the sources of each of its layers, to explain decisions; null if it does not
 * exist. One statement, never cached.
 */
export async function resolveSubject(
  { pool, log }: Pick<Services, 'pool' | 'log'>,
  subject: { user_id?: string; key_id?: string },
): Promise<{ caller: Caller; layerIds: string[]; policyIds: string[][] } | null> {
  const row: { user: PrincipalUser; key?: PrincipalKey } | null =
    subject.key_id !== undefined
      ? await findKeyPrincipal(pool, subject.key_id)
      : await findUserPrincipal(pool, subject.user_id as string)
  if (!row) return null
  const principal = principalOf(row, log)
  const { user, key } = row
  const { layers } = principal
  const type = key ? 'api_key' : 'user'
  const id = key?.id ?? user.id
  return {
    caller: callerOf(principal, {
      credential: { type, id, expires_at: toWireTime(key?.expires_at ?? null), scopes: null },
      principal: { type, id },
      project_id: key?.project_id ?? null,
    }),
    layerIds: layers.map(({ kind }) => (kind === 'key' ? id : user.id)),
    policyIds: layers.map(({ kind }) => (kind === 'key' && key ? key : user).policies.map(policy => policy.id)),
  }
}
