import { createHmac, randomBytes } from 'node:crypto'
import { isStorable } from '#core/api/validate.ts'
import { AppError } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { storableText, truncateChars } from '#core/base/storable-text.ts'
import type { Queryable } from '#core/db/sql.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import type { Tx } from '#core/writes/writer.ts'
import { setUserPolicies } from '../policies/attach.ts'
import { withBudget } from '../sign-in/budget.ts'
import { networkOf } from '../sign-in/networks.ts'
import { Username, type UserRow, userKind } from '../users/model.ts'
import { type SignInRequest, signInEntry } from '../users/sign-in-audit.ts'
import { findFreeUsername, hasUsers, insertUser } from '../users/store.ts'
import type { AccountClaims, SignInError } from './model.ts'
import { authorizationUrl, exchangeResponse, isRefusal, type LoginSecrets, providerError } from './provider.ts'
import {
  claimLogin,
  deleteExpiredLogins,
  findLinkedUser,
  insertCode,
  insertLogin,
  type LinkedUser,
  linkIdentity,
  lockAccount,
} from './store.ts'

/** Leaves space for the number that makes a username unique. */
const MAX_BASE_LENGTH = 120
/** Attempts to insert a free username that a concurrent request may take first. */
const MAX_NAME_RACES = 10

/** Account that cannot be provisioned for a reason that the operator can fix. */
class ProvisioningError extends Error {}

/**
 * Creates a user for an account, with the default policies and without a password. Null if unknown accounts are
 * refused: by OIDC_AUTO_PROVISION, or because the deployment has no user yet.
 * @throws ProvisioningError for an account without a usable name and for unknown policies
 */
async function provisionUser(
  tx: Tx,
  { config }: Pick<Services, 'config'>,
  { issuer, subject, claims }: AccountClaims,
  { label, request }: { label: string | null; request: SignInRequest },
): Promise<LinkedUser | null> {
  if (!config.OIDC_AUTO_PROVISION || !(await hasUsers(tx))) return null
  const user = await insertWithFreeName(
    tx,
    baseUsername(claims[config.OIDC_USERNAME_CLAIM], config.OIDC_USERNAME_CLAIM),
  )
  await linkIdentity(tx, { issuer, subject, user_id: user.id, label })
  await attachDefaultPolicies(tx, user.id, config.OIDC_DEFAULT_POLICY_IDS)
  const detail = { kind: 'oidc', issuer, subject }
  tx.audit(signInEntry('users:CreateUser', 201, user.username, user.id, request, detail))
  return { user_id: user.id, username: user.username, is_disabled: false }
}

function baseUsername(claim: unknown, name: string): string {
  const text = typeof claim === 'string' ? truncateChars(claim.trim(), MAX_BASE_LENGTH) : ''
  const username = Username.safeParse(text)
  if (!username.success || !isStorable(text)) throw new ProvisioningError(`claim ${name} is not a valid username`)
  return username.data
}

async function insertWithFreeName(tx: Tx, base: string): Promise<UserRow> {
  for (let attempt = 0; attempt < MAX_NAME_RACES; attempt++) {
    const username = await findFreeUsername(tx, base)
    const user =
      username && (await insertUser(tx, { id: newId(userKind.prefix), username, role: 'user', password_hash: null }))
    if (user) return user
  }
  throw new ProvisioningError(`no free username found for ${base}`)
}

async function attachDefaultPolicies(tx: Tx, userId: string, policyIds: readonly string[]): Promise<void> {
  try {
    await setUserPolicies(tx, userId, policyIds)
  } catch (error) {
    if (error instanceof AppError && error.status < 500)
      throw new ProvisioningError(`OIDC_DEFAULT_POLICY_IDS: ${error.message}`)
    throw error
  }
}

/** Time from the redirect to the provider until its response. */
export const LOGIN_MS = 600_000
/** Lifetime of the one-time code. */
const CODE_MS = 60_000
/** Unfinished sign-ins per network; sign-ins that ended in a token do not count. */
const MAX_UNFINISHED = 60
const MAX_LABEL_LENGTH = 255

const withConnection = <T>(services: Services, request: SignInRequest, work: () => Promise<T>): Promise<T> =>
  withBudget(services, networkOf(request.ip), work)

const randomText = (): string => randomBytes(32).toString('base64url')

/**
 * Derives the secrets of a sign-in from its browser cookie, which only the browser holds: read access to the database
 * is not enough to complete the sign-in.
 */
function secretsOf(cookie: string, state: string): LoginSecrets {
  const derive = (purpose: string) => createHmac('sha256', cookie).update(`${purpose} ${state}`).digest('base64url')
  return { state, nonce: derive('nonce'), verifier: derive('verifier') }
}

type StartedLogin =
  | { kind: 'started'; url: URL; cookie: string }
  | { kind: 'unavailable'; error: unknown }
  | { kind: 'too_many' }

/** Starts a sign-in and returns the provider's URL and the cookie that its response requires. */
export async function startLogin(
  services: Services,
  login: { returnTo: string; challenge: string; prompt: string | null },
  request: SignInRequest,
): Promise<StartedLogin> {
  const state = randomText()
  const cookie = randomText()
  let url: URL
  try {
    url = await authorizationUrl(services, secretsOf(cookie, state), login.prompt)
  } catch (error) {
    return { kind: 'unavailable', error }
  }
  const now = services.clock.now()
  const row = {
    state_hash: sha256Of(state),
    cookie_hash: sha256Of(cookie),
    network: networkOf(request.ip),
    return_to: login.returnTo,
    code_challenge: login.challenge,
    expires_at: new Date(now.getTime() + LOGIN_MS),
  }
  const isStarted = await withConnection(services, request, () =>
    insertLogin(services.pool, row, { now, limit: MAX_UNFINISHED }),
  )
  return isStarted ? { kind: 'started', url, cookie } : { kind: 'too_many' }
}

type LoginOutcome = { code: string } | { error: SignInError }

/** Processes the provider's response; null if the browser has no pending sign-in for it. */
export async function processLoginResponse(
  services: Services,
  { query, cookie }: { query: URLSearchParams; cookie: string },
  request: SignInRequest,
): Promise<{ returnTo: string; outcome: LoginOutcome } | null> {
  const [state, ...others] = query.getAll('state')
  if (state === undefined || others.length > 0) return null
  const { clock, log, pool } = services
  const stateHash = sha256Of(state)
  const claim = { stateHash, cookieHash: sha256Of(cookie), now: clock.now() }
  const login = await withConnection(services, request, () => claimLogin(pool, claim))
  if (!login) return null
  const endLogin = (outcome: LoginOutcome) => ({ returnTo: login.return_to, outcome })
  if (login.is_expired) return endLogin({ error: 'expired' })
  let account: AccountClaims
  try {
    account = await exchangeResponse(services, query, secretsOf(cookie, state))
  } catch (error) {
    if (isRefusal(error)) return endLogin({ error: 'access_denied' })
    log.warn({ request_id: request.id, err: error, reason: providerError(error) }, 'company sign-in failed')
    return endLogin({ error: 'provider_error' })
  }
  try {
    return endLogin(
      await withConnection(services, request, () =>
        services.write(tx => admitAccount(tx, services, { account, stateHash, request })),
      ),
    )
  } catch (error) {
    if (!(error instanceof ProvisioningError)) throw error
    log.error({ request_id: request.id, err: error }, 'company account provisioning failed')
    return endLogin({ error: 'provider_error' })
  }
}

/**
 * Issues a one-time code to an admitted account. A refusal is audited with the account, so that an admin can link it.
 */
async function admitAccount(
  tx: Tx,
  services: Services,
  { account, stateHash, request }: { account: AccountClaims; stateHash: Buffer; request: SignInRequest },
): Promise<LoginOutcome> {
  const { issuer, subject, claims } = account
  const { OIDC_REQUIRED_CLAIM: required, OIDC_USERNAME_CLAIM } = services.config
  const name = claims[OIDC_USERNAME_CLAIM]
  const label = typeof name === 'string' ? storableText(truncateChars(name, MAX_LABEL_LENGTH)) : null
  const refuse = (error: SignInError): LoginOutcome => {
    const detail = { kind: 'oidc', reason: error, issuer, subject }
    tx.audit(signInEntry('users:Login', 401, label, null, request, detail))
    return { error }
  }
  if (required && !claimMatches(claims[required.name], required.value)) return refuse('access_denied')
  const linked = await findOrProvision(tx, services, { account, label, request })
  if (!linked) return refuse('no_account')
  if (linked.is_disabled) return refuse('access_denied')
  const code = randomText()
  const expires_at = new Date(services.clock.now().getTime() + CODE_MS)
  await insertCode(tx, stateHash, { code_hash: sha256Of(code), issuer, subject, expires_at })
  return { code }
}

async function findOrProvision(
  tx: Tx,
  services: Services,
  { account, label, request }: { account: AccountClaims; label: string | null; request: SignInRequest },
) {
  const find = (db: Queryable) => findLinkedUser(db, account, label)
  const linked = await find(tx)
  if (linked) return linked
  await lockAccount(tx, account)
  return (await find(tx)) ?? provisionUser(tx, services, account, { label, request })
}

/** Whether a claim equals the value or is a list that contains it. */
const claimMatches = (claim: unknown, value: string): boolean =>
  claim === value || (Array.isArray(claim) && claim.includes(value))

/** Deletes expired sign-ins and one-time codes, and returns their number. */
export const sweepLogins = ({ clock, pool }: Services, stopping: AbortSignal): Promise<number> =>
  deleteInBatches(limit => deleteExpiredLogins(pool, { now: clock.now(), limit }), stopping)
