import { createHmac, randomBytes } from 'node:crypto'
import { storableText, truncateChars } from '../../core/api/storable-text.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Tx } from '../../core/db/writer.ts'
import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { sha256Of } from '../../core/secrets/digest.ts'
import { withBudget } from '../budget.ts'
import { networkOf } from '../networks.ts'
import { type SignInRequest, signInEntry } from '../users/sign-in-audit.ts'
import type { AccountClaims, SignInError } from './model.ts'
import { authorizationUrl, exchangeAnswer, isRefusal, type LoginSecrets, providerError } from './provider.ts'
import { ProvisioningError, provisionUser } from './provision.ts'
import { claimLogin, deleteExpiredLogins, findLinkedUser, insertCode, insertLogin, lockAccount } from './store.ts'

/** From the redirect to the provider to its answer. */
export const LOGIN_MS = 600_000
/** From the answer to the redemption of its one-time code. */
const CODE_MS = 60_000
/** Unfinished sign-ins of one network: those that ended in a token do not count. */
const MAX_UNFINISHED = 60
const MAX_LABEL_LENGTH = 255

/** Does database work of a sign-in. */
const withConnection = <T>(services: Services, request: SignInRequest, work: () => Promise<T>): Promise<T> =>
  withBudget(services, networkOf(request.ip), work)

const randomText = (): string => randomBytes(32).toString('base64url')

/**
 * What binds a sign-in is derived from the cookie of its browser, which alone holds it: with the rows of the database
 * nobody can answer for the browser.
 */
function secretsOf(cookie: string, state: string): LoginSecrets {
  const derive = (purpose: string) => createHmac('sha256', cookie).update(`${purpose} ${state}`).digest('base64url')
  return { state, nonce: derive('nonce'), verifier: derive('verifier') }
}

type StartedLogin =
  | { kind: 'started'; url: URL; cookie: string }
  | { kind: 'unavailable'; error: unknown }
  | { kind: 'too_many' }

/** Begins a sign-in: the address at the provider, and the cookie that its answer has to come with. */
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

/** Processes the answer of the provider; null where the browser has no sign-in that waits for one. */
export async function answerLogin(
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
  const ended = (outcome: LoginOutcome) => ({ returnTo: login.return_to, outcome })
  if (login.is_expired) return ended({ error: 'expired' })
  let account: AccountClaims
  try {
    account = await exchangeAnswer(services, query, secretsOf(cookie, state))
  } catch (error) {
    if (isRefusal(error)) return ended({ error: 'access_denied' })
    log.warn({ request_id: request.id, err: error, reason: providerError(error) }, 'company sign-in failed')
    return ended({ error: 'provider_error' })
  }
  try {
    return ended(
      await withConnection(services, request, () =>
        services.write(tx => admitAccount(tx, services, { account, stateHash, request })),
      ),
    )
  } catch (error) {
    if (!(error instanceof ProvisioningError)) throw error
    log.error({ request_id: request.id, err: error }, 'company account provisioning failed')
    return ended({ error: 'provider_error' })
  }
}

/** Gives an account that may sign in a one-time code; a refusal is audited with the account, so that it can be linked. */
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
  if (required && !holds(claims[required.name], required.value)) return refuse('access_denied')
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

/** Whether a claim is a text, or a list with it. Any other type does not hold. */
const holds = (claim: unknown, value: string): boolean =>
  claim === value || (Array.isArray(claim) && claim.includes(value))

/** Deletes sign-ins and one-time codes whose time is over. Returns how many. */
export const sweepLogins = ({ clock, pool }: Services, stopping: AbortSignal): Promise<number> =>
  deleteInBatches(limit => deleteExpiredLogins(pool, { now: clock.now(), limit }), stopping)
