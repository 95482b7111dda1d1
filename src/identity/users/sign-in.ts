import type { RequestFacts } from '#core/api/call.ts'
import type { Context } from '#core/api/operation.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { signToken } from '../tokens/tokens.ts'
import { failedSignInBuffer } from './failed-sign-in-audit.ts'
import type { SignedIn, SignInCode } from './model.ts'
import { hashPassword, verifyPassword } from './passwords.ts'
import { signInEntry } from './sign-in-audit.ts'
import {
  countSignInFailure,
  deleteFailures,
  findPasswordFacts,
  loadSignInFacts,
  recordSignIn,
  type SignInRow,
} from './store.ts'

const TOKEN_TTL_SECONDS = 7 * 24 * 3600
const LOCKOUT = { limit: 10, windowSeconds: 15 * 60 }

/** Redeems the one-time code of a sign-in elsewhere. @throws UNAUTHORIZED */
export const codeSignIn = extensionPoint<
  (services: Services, code: SignInCode, request: RequestFacts) => Promise<SignedIn>
>({
  name: 'code sign-in',
  folder: 'identity/users',
  description: 'Redeems the one-time code of a sign-in at the identity provider of a company',
})

/** Signs a user token; incrementing the user's token version ends it. */
export const issueUserToken = (
  services: Pick<Services, 'config' | 'clock'>,
  user: { id: string; role: string; token_version: number },
) => signToken(services, 'user', user.id, { ver: user.token_version, role: user.role }, TOKEN_TTL_SECONDS)

/**
 * Signs a user in. Unknown names, wrong passwords, disabled users, users without a password and locked names all raise
 * the same UNAUTHORIZED. The tenth consecutive failure within 15 minutes locks the name, known or not, for 15 minutes.
 */
export async function signIn(
  services: Services,
  credentials: { username: string; password: string },
  request: RequestFacts,
): Promise<SignedIn> {
  const { pool, clock } = services
  const { username, password } = credentials
  const { name, user, locked } = await loadSignInFacts(pool, username, clock.now())
  if (!locked) {
    const { matches, outdated } = await verifyPassword(services, password, user?.password_hash ?? null, request)
    if (user && matches && user.disabled_at === null) {
      const newHash = outdated ? await hashPassword(services, password, request) : null
      const recorded = await services.write(async tx => {
        const isRecorded = await recordSignIn(tx, user, clock.now(), newHash)
        if (isRecorded) tx.audit(signInEntry('users:Login', 200, username, user.id, request))
        return isRecorded
      })
      if (recorded) return toSignedIn(services, user)
    }
  }
  return refuseSignIn(services, { name, username, locked, known: user !== null }, request)
}

/** Returns the response of a sign-in. */
export const toSignedIn = async (
  services: Pick<Services, 'config' | 'clock'>,
  user: Pick<SignInRow, 'id' | 'username' | 'role' | 'token_version'>,
): Promise<SignedIn> => ({
  ...(await issueUserToken(services, user)),
  id: user.id,
  username: user.username,
  role: user.role,
})

/**
 * Counts a refused sign-in against its name and audits it: together with other attempts of the same minute if the name
 * is locked or unknown.
 * @throws UNAUTHORIZED
 */
export async function refuseSignIn(
  services: Services,
  attempt: { name: string; username: string; locked: boolean; known: boolean; detail?: Record<string, unknown> },
  request: RequestFacts,
): Promise<never> {
  const { name, username, locked, known, detail } = attempt
  const buffer = failedSignInBuffer(services)
  const isNamed = known || buffer.auditsByName(name)
  if (!locked) {
    const audited = await services.write(async tx => {
      const failures = await countSignInFailure(tx, name, { now: services.clock.now(), ...LOCKOUT })
      // Guesses that were sent before the lock may arrive after it.
      const isSeparate = isNamed && failures <= LOCKOUT.limit
      if (isSeparate) tx.audit(signInEntry('users:Login', 401, username, null, request, detail))
      return isSeparate
    })
    if (audited) return raise('UNAUTHORIZED')
  }
  buffer.count({ action: 'users:Login', username: isNamed ? name : '', user_id: null, ip: request.ip })
  return raise('UNAUTHORIZED')
}

/**
 * Checks a user's own password before a change, and hashes the new one. A wrong password counts as a failed sign-in, so
 * that a stolen token does not bypass the lockout; while the name is locked, nothing is compared.
 * @throws UNAUTHORIZED
 */
export async function checkOwnPassword(
  { audit, caller, db, request, services }: Pick<Context, 'audit' | 'caller' | 'db' | 'request' | 'services'>,
  passwords: { current_password: string; new_password: string },
): Promise<{ user: SignInRow; hash: string }> {
  const { clock } = services
  const facts = await findPasswordFacts(db, caller.user.id, clock.now())
  if (!facts) return raise('UNAUTHORIZED')
  const { name, user, locked } = facts
  const sender = { user: user.id, closed: request.closed }
  if (!locked) {
    const { matches } = await verifyPassword(services, passwords.current_password, user.password_hash, sender)
    if (matches) return { user, hash: await hashPassword(services, passwords.new_password, sender) }
    const failures = await countSignInFailure(db, name, { now: clock.now(), ...LOCKOUT })
    if (failures <= LOCKOUT.limit) return raise('UNAUTHORIZED')
  }
  audit.counted = true
  failedSignInBuffer(services).count({ action: audit.action, username: name, user_id: user.id, ip: request.ip })
  return raise('UNAUTHORIZED')
}

const FAILURE_RETENTION_MS = 24 * 3_600_000

/** Deletes failed sign-ins older than a day that no longer lock a name, and returns their number. */
export function pruneFailures(
  { clock, pool }: Pick<Services, 'clock' | 'pool'>,
  stopping: AbortSignal,
): Promise<number> {
  const now = clock.now()
  const before = new Date(now.getTime() - FAILURE_RETENTION_MS)
  return deleteInBatches(limit => deleteFailures(pool, { before, now, limit }), stopping)
}
