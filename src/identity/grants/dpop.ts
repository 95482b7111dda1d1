import { calculateJwkThumbprint, EmbeddedJWK, type JWK, jwtVerify } from 'jose'
import type { Services } from '#core/base/services.ts'
import type { Proof } from '#core/invoke/hooks.ts'
import { sha256Of } from '#core/secrets/digest.ts'
import { recordProof } from './store.ts'

/** DPoP proofs of API requests (RFC 9449). The library checks the proofs of token requests. */

export const PROOF_ALGORITHMS = ['ES256', 'EdDSA', 'Ed25519', 'PS256', 'RS256']

const MAX_AGE_SECONDS = 60

/**
 * Whether a proof is recent, unused and made for this token and request with the key to which the token is bound.
 * @param thumbprint of the key to which the token is bound
 */
export async function isProofValid(
  services: Pick<Services, 'config' | 'clock' | 'pool'>,
  token: string,
  proof: Proof,
  thumbprint: string,
): Promise<boolean> {
  if (proof.accepted) return true
  if (proof.jwt === undefined) return false
  const { config, clock, pool } = services
  const now = clock.now()
  try {
    const { payload, protectedHeader } = await jwtVerify(proof.jwt, EmbeddedJWK, {
      algorithms: PROOF_ALGORITHMS,
      typ: 'dpop+jwt',
      currentDate: now,
      requiredClaims: ['iat', 'jti', 'htm', 'htu', 'ath'],
    })
    const age = Math.abs(now.getTime() / 1000 - (payload.iat as number))
    const matches =
      age <= MAX_AGE_SECONDS &&
      payload.htm === proof.method &&
      addressOf(payload.htu) === addressOf(config.BASE_URL + proof.path) &&
      payload.ath === sha256Of(token).toString('base64url') &&
      (await calculateJwkThumbprint(protectedHeader.jwk as JWK)) === thumbprint
    if (!matches) return false
    // A proof is valid from 60 s before to 60 s after its time, so it could be replayed for twice that time.
    const until = new Date(now.getTime() + 2 * MAX_AGE_SECONDS * 1000)
    proof.accepted = await recordProof(pool, `${thumbprint} ${payload.jti}`, until)
    return proof.accepted
  } catch (error) {
    if ((error as { code?: unknown }).code?.toString().startsWith('ERR_J')) return false
    throw error
  }
}

/** Returns a URL without query and fragment, in normal form; null for an invalid one. */
function addressOf(text: unknown): string | null {
  const url = typeof text === 'string' ? URL.parse(text) : null
  return url && `${url.origin}${url.pathname}`
}
