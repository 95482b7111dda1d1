import { type Adapter, type AdapterPayload, errors, type KoaContextWithOIDC, Provider } from 'oidc-provider'
import { isIdOf } from '#core/api/kind.ts'
import { timeIn } from '#core/base/clock.ts'
import type { Services } from '#core/base/services.ts'
import type { Pool } from '#core/db/pool.ts'
import { isForeignKeyViolation } from '#core/db/sql.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { actionScopes, areWithin, consentCatalogue } from '../grants/scopes.ts'
import {
  consumeObject,
  deleteObject,
  findClient,
  findGrant,
  findObject,
  type GrantState,
  insertClient,
  type Lookup,
  pollDeviceCode,
  putRefreshToken,
  recordProof,
  upsertObject,
} from '../grants/store.ts'
import { acceptedAudiences } from '../principals/principals.ts'
import { withBudget as withSignInBudget } from '../sign-in/budget.ts'
import { CAPACITY, refundLimit, senderIp, senderNetwork, sessionSubject, spendLimit } from './limits.ts'
import { clientKind } from './model.ts'
import { type RevokedBy, revokeByProtocol } from './revoke.ts'
import { openObject, sealObject } from './seal.ts'

/** Storage adapters of the library, one per model. */

const grants = new WeakMap<object, GrantState>()

/** The grant of the current token request. */
export const currentGrant = (): GrantState | undefined => Provider.ctx && grants.get(Provider.ctx)

/** Returns the resources for which a client may request tokens; a client may append a slash. */
export const resourcesOf = (baseUrl: string): string[] => [...acceptedAudiences(baseUrl), `${baseUrl}/`]

/** Runs database work of the current request under the connection budget of its sender. */
const withBudget = <T>(services: Services, work: (db: Pool) => Promise<T>): Promise<T> =>
  withSignInBudget(services, senderNetwork(Provider.ctx), work)

const currentRoute = (): string | undefined => Provider.ctx?.oidc.route

/**
 * Returns the scopes of a grant as the library must see them: a refresh may request part of one, for example an action
 * of a module, while the library compares names.
 */
function scopesForLibrary(services: Services, scopes: readonly string[]): string {
  const { grant_type: type, scope } = Provider.ctx?.oidc.params ?? {}
  const requested = type === 'refresh_token' && typeof scope === 'string' ? actionScopes(scope.split(' ')) : []
  const known = requested.filter(each => consentCatalogue(services).scopes.has(each))
  return [...new Set([...scopes, ...known.filter(each => areWithin([each], scopes))])].join(' ')
}

export function adapterOf(services: Services): (model: string) => Adapter {
  return model =>
    model === 'Client'
      ? new ClientAdapter(services)
      : model === 'Grant'
        ? new GrantAdapter(services)
        : new ObjectAdapter(services, model)
}

const unusedMethod = (): never => {
  throw new Error('adapter method is not used by the library')
}

class ObjectAdapter implements Adapter {
  readonly services: Services
  readonly model: string

  constructor(services: Services, model: string) {
    this.services = services
    this.model = model
  }

  async find(id: string) {
    if (this.model === 'DeviceCode' && currentRoute() === 'token') return this.poll(id)
    return this.lookUp({ by: 'id', value: id })
  }

  findByUid(uid: string) {
    return this.lookUp({ by: 'uid', value: uid })
  }

  /** Counts a guess before the lookup, so that concurrent guesses get no more answers than sequential ones. */
  async findByUserCode(userCode: string) {
    const { ctx } = Provider
    const sender = senderNetwork(ctx)
    const session = sessionSubject(ctx?.oidc.session?.jti ?? '')
    if (
      (await spendLimit(this.services, 'user_code', sender)) !== null ||
      (await spendLimit(this.services, 'user_code_session', session, sender)) !== null
    )
      throw new errors.OIDCProviderError(429, 'temporarily_unavailable')
    const found = await this.lookUp({ by: 'user_code', value: userCode })
    if (found) {
      await refundLimit(this.services, 'user_code', sender)
      await refundLimit(this.services, 'user_code_session', session, sender)
    }
    return found
  }

  private async lookUp(lookup: Lookup): Promise<AdapterPayload | undefined> {
    const row = await withBudget(this.services, db => findObject(db, this.model, lookup))
    return row ? this.opened(row) : undefined
  }

  /** Polls a device code; polls that are too frequent are refused before the code is evaluated. */
  private async poll(id: string): Promise<AdapterPayload | undefined> {
    const row = await withBudget(this.services, db => pollDeviceCode(db, id))
    const payload = row && this.opened(row)
    if (payload && row.too_fast && !payload.accountId && !payload.error) throw new errors.SlowDown()
    return payload ?? undefined
  }

  private opened(row: {
    id_hash: string
    sealed: string
    consumed: number | null
    consumed_seconds_ago: number | null
    scopes: readonly string[] | null
  }): AdapterPayload | undefined {
    const payload = openObject(this.services, this.model, row.id_hash, row.sealed)
    if (!payload) return undefined
    // To the library a refresh token is unused until its grace ends: `consume` decides.
    const isRefresh = this.model === 'RefreshToken' && currentRoute() === 'token'
    const { OAUTH_REFRESH_REUSE_GRACE_SECONDS: graceSeconds } = this.services.config
    const isRepeatable = isRefresh && row.consumed_seconds_ago !== null && row.consumed_seconds_ago < graceSeconds
    return {
      ...payload,
      // The grant may have been narrowed since the token was issued.
      ...(row.scopes && payload.scope !== undefined && { scope: scopesForLibrary(this.services, row.scopes) }),
      ...(row.consumed !== null && !isRepeatable && { consumed: row.consumed }),
    }
  }

  async upsert(id: string, payload: AdapterPayload, expiresIn: number): Promise<void> {
    const { uid, userCode, grantId } = payload
    const expiresAt = timeIn(expiresIn * 1000)
    if (this.model === 'ReplayDetection') {
      if (await withBudget(this.services, db => recordProof(db, id, expiresAt))) return
      throw new errors.InvalidDpopProof('DPoP proof has already been used')
    }
    const values = { sealed: sealObject(this.services, this.model, id, payload), uid, userCode, grantId, expiresAt }
    if (this.model === 'RefreshToken' && grantId) {
      const isStored = await withBudget(this.services, db => putRefreshToken(db, id, { ...values, grantId }))
      if (!isStored) throw new errors.InvalidGrant('grant not found')
      return
    }
    try {
      await withBudget(this.services, db => upsertObject(db, this.model, id, values))
    } catch (error) {
      // The user or the project was deleted after the grant was read.
      if (isForeignKeyViolation(error, 'grant_id')) throw new errors.InvalidGrant('grant not found')
      throw error
    }
  }

  /**
   * Consumes an object for one of several concurrent requests; replaying a consumed code revokes its grant. A refresh
   * token can be consumed again in its grace.
   */
  async consume(id: string): Promise<void> {
    const graceSeconds = this.model === 'RefreshToken' ? this.services.config.OAUTH_REFRESH_REUSE_GRACE_SECONDS : 0
    if (await withBudget(this.services, db => consumeObject(db, this.model, id, graceSeconds))) return
    const grantId = this.model === 'RefreshToken' ? undefined : (await this.lookUp({ by: 'id', value: id }))?.grantId
    if (grantId) await revokeForRequest(this.services, grantId)
    throw new errors.InvalidGrant('has already been used')
  }

  /** Deletes an object; a decided authorization request can be resumed only once. */
  async destroy(id: string): Promise<void> {
    const isThere = await withBudget(this.services, db => deleteObject(db, this.model, id))
    if (!isThere && this.model === 'Interaction')
      throw new errors.SessionNotFound('authorization request has already been completed')
  }

  /** Does nothing: deleting the grant, which follows, deletes its objects. */
  async revokeByGrantId(): Promise<void> {}
}

/** Revokes a grant for the reason that the current request implies. */
async function revokeForRequest(services: Services, id: string): Promise<void> {
  const ctx = Provider.ctx as KoaContextWithOIDC
  const type = ctx.oidc.params?.grant_type
  const reason: RevokedBy =
    currentRoute() === 'revocation'
      ? 'client'
      : type === 'refresh_token'
        ? 'refresh_reuse'
        : type === 'authorization_code'
          ? 'code_reuse'
          : 'device_code_reuse'
  await revokeInRequest(services, ctx, id, reason)
}

/** Revokes a grant in a request to a protocol endpoint. */
export async function revokeInRequest(
  services: Services,
  ctx: KoaContextWithOIDC,
  id: string,
  reason: RevokedBy,
): Promise<void> {
  const request = {
    id: ctx.res.getHeader('X-Request-Id') as string,
    ip: senderIp(ctx) || null,
    userAgent: ctx.get('user-agent') || null,
  }
  await withSignInBudget(services, senderNetwork(ctx), () =>
    services.write(tx => revokeByProtocol(tx, id, reason, request)),
  )
}

/** Grants are stored in our own table and written by consent. */
class GrantAdapter implements Adapter {
  readonly services: Services

  constructor(services: Services) {
    this.services = services
  }

  async find(id: string): Promise<AdapterPayload | undefined> {
    const row = await withBudget(this.services, db => findGrant(db, id))
    if (!row) return undefined
    if (Provider.ctx) grants.set(Provider.ctx, row)
    const scope = scopesForLibrary(this.services, row.scopes)
    const resources = resourcesOf(this.services.config.BASE_URL)
    return {
      jti: id,
      kind: 'Grant',
      iat: row.created,
      exp: row.ends,
      accountId: row.user_id,
      clientId: row.client_id,
      openid: { scope: row.openid_scopes.join(' ') },
      resources: Object.fromEntries(resources.map(resource => [resource, scope])),
    } as AdapterPayload
  }

  destroy(id: string): Promise<void> {
    return revokeForRequest(this.services, id)
  }

  readonly upsert = unusedMethod
  readonly consume = unusedMethod
  readonly findByUid = unusedMethod
  readonly findByUserCode = unusedMethod
  readonly revokeByGrantId = unusedMethod
}

/** Stores dynamically registered clients. */
class ClientAdapter implements Adapter {
  readonly services: Services

  constructor(services: Services) {
    this.services = services
  }

  async find(id: string): Promise<AdapterPayload | undefined> {
    if (!isIdOf(clientKind, id)) return undefined
    const row = await withBudget(this.services, db => findClient(db, id))
    if (!row) return undefined
    return { ...row.metadata, ...(row.secret_hash !== null && { client_secret: row.secret_hash }) } as AdapterPayload
  }

  async upsert(id: string, { client_secret: secret, ...metadata }: AdapterPayload): Promise<void> {
    const client = {
      id,
      name: metadata.client_name ?? null,
      metadata,
      secretHash: secret === undefined ? null : sha256Of(secret),
    }
    if (Buffer.byteLength(JSON.stringify(metadata)) > MAX_METADATA_BYTES)
      throw new errors.InvalidClientMetadata(`client metadata must be at most ${MAX_METADATA_BYTES} bytes`)
    const isStored = await withBudget(this.services, db => insertClient(db, client, CAPACITY.unusedClients))
    if (!isStored) throw new errors.TemporarilyUnavailable('too many registered clients have no consent yet')
  }

  readonly consume = unusedMethod
  readonly destroy = unusedMethod
  readonly findByUid = unusedMethod
  readonly findByUserCode = unusedMethod
  readonly revokeByGrantId = unusedMethod
}

const MAX_METADATA_BYTES = 16_000
