import { calculateJwkThumbprint, EmbeddedJWK, type JWK, jwtVerify } from 'jose'
import type { Proof } from '../../core/invoke/hooks.ts'
import type { Services } from '../../core/process/services.ts'
import { sha256Of } from '../../core/secrets/digest.ts'
import { noteProof } from './store.ts'

/** Proofs of possession that come with requests to the API (RFC 9449). Those at the token endpoint are the library's. */

export const PROOF_ALGORITHMS = ['ES256', 'EdDSA', 'Ed25519', 'PS256', 'RS256']

const MAX_AGE_SECONDS = 60

/**
 * Whether a proof is made now, for this token and this request, by the key that the token is bound to, and was not seen
 * before.
 * @param thumbprint of the key that the token is bound to
 */
export async function isProven(
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
    // Proofs may be as old as new: twice their age is how long one could come again.
    const until = new Date(now.getTime() + 2 * MAX_AGE_SECONDS * 1000)
    proof.accepted = await noteProof(pool, `${thumbprint} ${payload.jti}`, until)
    return proof.accepted
  } catch (error) {
    if ((error as { code?: unknown }).code?.toString().startsWith('ERR_J')) return false
    throw error
  }
}

/** An address without query and fragment, as URLs are compared; null for what is none. */
function addressOf(text: unknown): string | null {
  const url = typeof text === 'string' ? URL.parse(text) : null
  return url && `${url.origin}${url.pathname}`
}
