import { raise } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import type { RequestFacts } from '../../core/invoke/call.ts'
import { inBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'
import { signToken } from '../tokens.ts'
import { signInEntry } from './entries.ts'
import { hashPassword, verifyPassword } from './passwords.ts'
import { refusedAttempts } from './refused.ts'
import { countFailure, deleteFailures, noteSignIn, passwordFacts, type SignInRow, signInFacts } from './store.ts'

const TOKEN_TTL_SECONDS = 7 * 24 * 3600
const LOCKOUT = { limit: 10, windowSeconds: 15 * 60 }

/** A user token; raising the user's version ends it. */
export const userToken = (
  services: Pick<Services, 'config' | 'clock'>,
  user: { id: string; role: string; token_version: number },
) => signToken(services, 'user', user.id, { ver: user.token_version, role: user.role }, TOKEN_TTL_SECONDS)

/**
 * Signs a user in. An unknown name, a wrong password, a disabled user and a locked name are one and the same
 * UNAUTHORIZED. The tenth failure in a row within 15 minutes locks the name, known or not, for 15 minutes.
 */
export async function signIn(
  services: Services,
  credentials: { username: string; password: string },
  request: RequestFacts,
) {
  const { pool, clock } = services
  const { name, user, locked } = await signInFacts(pool, credentials.username, clock.now())
  const refused = refusedAttempts(services)
  const named = user !== null || refused.auditsByName(name)
  if (!locked) {
    const { matches, outdated } = await verifyPassword(
      services,
      credentials.password,
      user?.password_hash ?? null,
      request,
    )
    if (user && matches && user.disabled_at === null) {
      const newHash = outdated ? await hashPassword(services, credentials.password, request) : null
      const noted = await services.write(async tx => {
        const still = await noteSignIn(tx, user, clock.now(), newHash)
        if (still) tx.audit(signInEntry('users:Login', 200, credentials.username, user.id, request))
        return still
      })
      if (noted) {
        const signed = await userToken(services, user)
        return { ...signed, id: user.id, username: user.username, role: user.role }
      }
    }
    const audited = await services.write(async tx => {
      const failures = await countFailure(tx, name, { now: clock.now(), ...LOCKOUT })
      // Guesses that were sent before the lock may come after it.
      const alone = named && failures <= LOCKOUT.limit
      if (alone) tx.audit(signInEntry('users:Login', 401, credentials.username, null, request))
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
    const failures = await countFailure(db, name, { now: clock.now(), ...LOCKOUT })
    if (failures <= LOCKOUT.limit) return raise('UNAUTHORIZED')
  }
  audit.counted = true
  refusedAttempts(services).count({ action: audit.action, username: name, user_id: user.id, ip: request.ip })
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
  return inBatches(limit => deleteFailures(pool, { before, now, limit }), stopping)
}
