import { raise } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { RequestFacts } from '../../core/invoke/call.ts'
import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { signToken } from '../tokens.ts'
import { failedSignInBuffer } from './failed-sign-in-audit.ts'
import type { SignedIn, SignInCode } from './model.ts'
import { hashPassword, verifyPassword } from './passwords.ts'
import { signInEntry } from './sign-in-audit.ts'
import {
  countSignInFailure,
  deleteFailures,
  passwordFacts,
  recordSignIn,
  type SignInRow,
  signInFacts,
} from './store.ts'

const TOKEN_TTL_SECONDS = 7 * 24 * 3600
const LOCKOUT = { limit: 10, windowSeconds: 15 * 60 }

/** Redeems the one-time code of a sign-in elsewhere. Raises UNAUTHORIZED. */
export const codeSignIn =
  extensionPoint<(services: Services, code: SignInCode, request: RequestFacts) => Promise<SignedIn>>('code sign-in')

/** A user token; raising the user's version ends it. */
export const issueUserToken = (
  services: Pick<Services, 'config' | 'clock'>,
  user: { id: string; role: string; token_version: number },
) => signToken(services, 'user', user.id, { ver: user.token_version, role: user.role }, TOKEN_TTL_SECONDS)

/**
 * Signs a user in. An unknown name, a wrong password, a disabled user, a user without a password and a locked name are one
 * and the same UNAUTHORIZED. The tenth failure in a row within 15 minutes locks the name, known or not, for 15 minutes.
 */
export async function signIn(
  services: Services,
  credentials: { username: string; password: string },
  request: RequestFacts,
): Promise<SignedIn> {
  const { pool, clock } = services
  const { username, password } = credentials
  const { name, user, locked } = await signInFacts(pool, username, clock.now())
  if (!locked) {
    const { matches, outdated } = await verifyPassword(services, password, user?.password_hash ?? null, request)
    if (user && matches && user.disabled_at === null) {
      const newHash = outdated ? await hashPassword(services, password, request) : null
      const noted = await services.write(async tx => {
        const still = await recordSignIn(tx, user, clock.now(), newHash)
        if (still) tx.audit(signInEntry('users:Login', 200, username, user.id, request))
        return still
      })
      if (noted) return signedIn(services, user)
    }
  }
  return refuseSignIn(services, { name, username, locked, known: user !== null }, request)
}

/** What a sign-in answers. */
export const signedIn = async (
  services: Pick<Services, 'config' | 'clock'>,
  user: Pick<SignInRow, 'id' | 'username' | 'role' | 'token_version'>,
): Promise<SignedIn> => ({
  ...(await issueUserToken(services, user)),
  id: user.id,
  username: user.username,
  role: user.role,
})

/**
 * Counts a refused sign-in against its name and audits it: with others of its minute where the name is locked or nobody
 * has it. Raises UNAUTHORIZED.
 */
export async function refuseSignIn(
  services: Services,
  attempt: { name: string; username: string; locked: boolean; known: boolean; detail?: Record<string, unknown> },
  request: RequestFacts,
): Promise<never> {
  const { name, username, locked, known, detail } = attempt
  const refused = failedSignInBuffer(services)
  const named = known || refused.auditsByName(name)
  if (!locked) {
    const audited = await services.write(async tx => {
      const failures = await countSignInFailure(tx, name, { now: services.clock.now(), ...LOCKOUT })
      // Guesses that were sent before the lock may come after it.
      const alone = named && failures <= LOCKOUT.limit
      if (alone) tx.audit(signInEntry('users:Login', 401, username, null, request, detail))
      return alone
    })
    if (audited) return raise('UNAUTHORIZED')
  }
  refused.count({ action: 'users:Login', username: named ? name : '', user_id: null, ip: request.ip })
  return raise('UNAUTHORIZED')
}

/**
 * Checks a user's own password before it is changed, and hashes the new one. A wrong one counts as a failed sign-in, so
 * that a stolen token is no way around the lockout; while the name is locked nothing is compared. Raises UNAUTHORIZED.
 */
export async function checkOwnPassword(
  { audit, caller, db, request, services }: Pick<Context, 'audit' | 'caller' | 'db' | 'request' | 'services'>,
  given: { current_password: string; new_password: string },
): Promise<{ user: SignInRow; hash: string }> {
  const { clock } = services
  const facts = await passwordFacts(db, caller.user.id, clock.now())
  if (!facts) return raise('UNAUTHORIZED')
  const { name, user, locked } = facts
  const sender = { user: user.id, closed: request.closed }
  if (!locked) {
    const { matches } = await verifyPassword(services, given.current_password, user.password_hash, sender)
    if (matches) return { user, hash: await hashPassword(services, given.new_password, sender) }
    const failures = await countSignInFailure(db, name, { now: clock.now(), ...LOCKOUT })
    if (failures <= LOCKOUT.limit) return raise('UNAUTHORIZED')
  }
  audit.counted = true
  failedSignInBuffer(services).count({ action: audit.action, username: name, user_id: user.id, ip: request.ip })
  return raise('UNAUTHORIZED')
}

const FAILURES_KEPT_MS = 24 * 3_600_000

/** Deletes failed sign-ins of yesterday that no longer lock a name. Returns how many. */
export function pruneFailures(
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping: AbortSignal,
): Promise<number> {
  const now = clock.now()
  const before = new Date(now.getTime() - FAILURES_KEPT_MS)
  return deleteInBatches(limit => deleteFailures(pool, { before, now, limit }), stopping)
}
