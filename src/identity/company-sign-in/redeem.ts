import type { RequestFacts } from '#core/api/call.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { failedSignInBuffer } from '../users/failed-sign-in-audit.ts'
import type { SignedIn, SignInCode } from '../users/model.ts'
import { refuseSignIn, toSignedIn } from '../users/sign-in.ts'
import { signInEntry } from '../users/sign-in-audit.ts'
import { findPasswordFacts, recordSignIn } from '../users/store.ts'
import { consumeCode, findCode, recordIdentityLogin } from './store.ts'

/**
 * Signs in the user of a one-time code; only one request can redeem it. A code with a wrong verifier counts as a failed
 * sign-in of its user.
 * @throws UNAUTHORIZED
 */
export async function redeemCode(
  services: Services,
  { oidc_code, code_verifier }: SignInCode,
  request: RequestFacts,
): Promise<SignedIn> {
  const { clock, pool } = services
  const codeHash = sha256Of(oidc_code)
  const found = await findCode(pool, codeHash, clock.now())
  const facts = found && (await findPasswordFacts(pool, found.user_id, clock.now()))
  if (!found || !facts) {
    failedSignInBuffer(services).count({ action: 'users:Login', username: '', user_id: null, ip: request.ip })
    return raise('UNAUTHORIZED')
  }
  const { name, user, locked } = facts
  const { username } = user
  const { issuer, subject, code_challenge } = found
  const detail = { kind: 'oidc', issuer, subject }
  const isVerified = sha256Of(code_verifier).toString('base64url') === code_challenge
  if (isVerified) {
    // Also refuses locked usernames and disabled users.
    const recorded = await services.write(async tx => {
      const now = clock.now()
      if (!(await consumeCode(tx, codeHash)) || !(await recordSignIn(tx, user, now, null))) return false
      await recordIdentityLogin(tx, found, now)
      tx.audit(signInEntry('users:Login', 200, username, user.id, request, detail))
      return true
    })
    if (recorded) return toSignedIn(services, user)
  }
  return refuseSignIn(services, { name, username, locked, known: true, detail }, request)
}
