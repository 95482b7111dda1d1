import type { AuditEntry } from '../../core/api/audit.ts'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { srn } from '../../core/api/kind.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { RequestFacts } from '../../core/invoke/call.ts'
import type { Services } from '../../core/process/services.ts'
import { signToken } from '../tokens.ts'
import { hashPassword, verifyPassword } from './passwords.ts'
import { countFailure, noteSignIn, passwordFacts, type SignInRow, signInFacts } from './store.ts'

const TOKEN_TTL_SECONDS = 7 * 24 * 3600
const LOCKOUT = { limit: 10, windowSeconds: 15 * 60 }

/** A user token; raising the user's version ends it. */
export const userToken = (
  services: Pick<Services, 'config' | 'clock'>,
  user: { id: string; role: string; token_version: number },
) => signToken(services, 'user', user.id, { ver: user.token_version, role: user.role }, TOKEN_TTL_SECONDS)

/** The entry of a sign-in: there is no caller yet, so the pipeline writes none. */
export const signInEntry = (
  action: 'users:Login' | 'users:Bootstrap',
  status: number,
  username: string,
  userId: string | null,
  request: Pick<RequestFacts, 'id' | 'ip' | 'userAgent'> | null,
): AuditEntry => ({
  id: newId('audit'),
  project_id: null,
  principal_type: userId ? 'user' : null,
  principal_id: userId,
  action,
  resource_srn: userId && srn(null, 'user', userId),
  resource_public_id: userId,
  status,
  request_id: request?.id ?? null,
  ip: request?.ip ?? null,
  user_agent: request?.userAgent?.slice(0, 512) ?? null,
  detail: { username },
  created_at: new Date().toISOString(),
})

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
  const { user, locked } = await signInFacts(pool, credentials.username, clock.now())
  if (!locked) {
    const { matches, outdated } = await verifyPassword(credentials.password, user?.password_hash ?? null)
    if (user && matches && user.disabled_at === null) {
      const newHash = outdated ? await hashPassword(credentials.password) : null
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
  }
  await services.write(async tx => {
    if (!locked) await countFailure(tx, credentials.username, { now: clock.now(), ...LOCKOUT })
    tx.audit(signInEntry('users:Login', 401, credentials.username, null, request))
  })
  return raise('UNAUTHORIZED')
}

/**
 * Checks a user's own password before it is changed, and hashes the new one. A wrong one counts as a failed sign-in, so
 * that a stolen token is no way around the lockout; while the name is locked nothing is compared. Raises UNAUTHORIZED.
 */
export async function checkOwnPassword(
  db: Queryable,
  { clock }: Pick<Services, 'clock'>,
  userId: string,
  given: { current_password: string; new_password: string },
): Promise<{ user: SignInRow; hash: string }> {
  const facts = await passwordFacts(db, userId, clock.now())
  if (!facts || facts.locked) return raise('UNAUTHORIZED')
  const { user } = facts
  const { matches } = await verifyPassword(given.current_password, user.password_hash)
  if (matches) return { user, hash: await hashPassword(given.new_password) }
  await countFailure(db, user.username, { now: clock.now(), ...LOCKOUT })
  return raise('UNAUTHORIZED')
}
