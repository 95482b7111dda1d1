import type { RequestFacts } from '#core/api/call.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { signToken, verifyToken } from '../tokens/tokens.ts'
import { failedSignInBuffer } from './failed-sign-in-audit.ts'
import type { SignedIn } from './model.ts'
import { toSignedIn } from './sign-in.ts'
import { signInEntry } from './sign-in-audit.ts'
import { findPasswordFacts, recordSignIn } from './store.ts'

const TTL_SECONDS = 15 * 60

/**
 * Returns a token that signs a user in once, within 15 minutes. It names the user's last sign-in, so that any sign-in
 * ends it, and nothing is stored.
 */
export const issueSignInLink = async (
  services: Pick<Services, 'config' | 'clock'>,
  user: { id: string; token_version: number; last_login_at: string | null },
): Promise<string> => {
  const claims = { ver: user.token_version, last: user.last_login_at }
  return (await signToken(services, 'sign-in link', user.id, claims, TTL_SECONDS)).token
}

/** Signs in the user of a sign-in link. @throws UNAUTHORIZED if it expired or the user has signed in since */
export async function redeemSignInLink(services: Services, token: string, request: RequestFacts): Promise<SignedIn> {
  const { clock, pool } = services
  const claims = await verifyToken(services, ['sign-in link'], token)
  const facts = claims && (await findPasswordFacts(pool, claims.sub, clock.now()))
  if (facts && facts.user.token_version === claims.ver) {
    const { user } = facts
    const recorded = await services.write(async tx => {
      const lastAt = claims.last as string | null
      if (!(await recordSignIn(tx, user, clock.now(), null, { lastAt }))) return false
      tx.audit(signInEntry('users:Login', 200, user.username, user.id, request, { kind: 'link' }))
      return true
    })
    if (recorded) return toSignedIn(services, user)
  }
  // Not counted against the name, which the holder of an old link could lock by that.
  failedSignInBuffer(services).count({ action: 'users:Login', username: '', user_id: null, ip: request.ip })
  return raise('UNAUTHORIZED')
}
