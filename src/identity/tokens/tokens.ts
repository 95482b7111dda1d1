import { randomUUID } from 'node:crypto'
import { type JWTPayload, jwtVerify, SignJWT } from 'jose'
import { LRUCache } from 'lru-cache'
import type { Services } from '#core/base/services.ts'
import { sha256Of } from '#core/secrets/digest.ts'

/** Purpose of a token. Each consumer accepts only its own kind, so that a token cannot be replayed elsewhere. */
export type TokenKind = 'user' | 'oauth' | 'actor' | 'run' | 'download' | 'upload' | 'ingestion' | 'sign-in link'

export type SignedClaims = { token: string; expires_at: string }
export type Claims = JWTPayload & { sub: string; exp: number; iat: number }

type Signer = Pick<Services, 'config' | 'clock'>

const keyOf = (secret: string): Uint8Array => Buffer.from(secret, 'utf8')

/** Signs a token of a kind for a subject with further claims; it is valid for `ttlSeconds`. */
export async function signToken(
  { config, clock }: Signer,
  kind: TokenKind,
  subject: string,
  claims: Record<string, unknown>,
  ttlSeconds: number,
): Promise<SignedClaims> {
  const issuedAt = Math.floor(clock.now().getTime() / 1000)
  const token = await new SignJWT({ ...claims, typ: kind })
    .setProtectedHeader({ alg: 'HS256', typ: 'JWT' })
    .setSubject(subject)
    .setIssuedAt(issuedAt)
    .setExpirationTime(issuedAt + ttlSeconds)
    .setJti(typeof claims.jti === 'string' ? claims.jti : randomUUID())
    .sign(keyOf(config.JWT_SECRET))
  return { token, expires_at: new Date((issuedAt + ttlSeconds) * 1000).toISOString() }
}

type KindClaims = Claims & { typ: TokenKind }

/** Claims of verified tokens by token hash: verifying a token costs as much as the rest of a request. */
const verifiedTokens = new WeakMap<Signer['config'], LRUCache<string, KindClaims>>()
const MAX_VERIFIED = 10_000

/** Returns the claims of a token of one of the kinds; null for other kinds, expired tokens and invalid signatures. */
export async function verifyToken(
  { config, clock }: Signer,
  kinds: readonly TokenKind[],
  token: string,
): Promise<KindClaims | null> {
  const cache = verifiedTokens.get(config) ?? new LRUCache({ max: MAX_VERIFIED })
  verifiedTokens.set(config, cache)
  const name = sha256Of(token).toString('base64url')
  const claims = cache.get(name) ?? (await signedClaims(config, clock.now(), token))
  if (!claims || claims.exp * 1000 <= clock.now().getTime()) return null
  cache.set(name, claims)
  return kinds.includes(claims.typ) ? claims : null
}

async function signedClaims(config: Signer['config'], now: Date, token: string): Promise<KindClaims | null> {
  for (const secret of [config.JWT_SECRET, config.JWT_SECRET_PREVIOUS]) {
    if (!secret) continue
    try {
      const { payload } = await jwtVerify(token, keyOf(secret), {
        algorithms: ['HS256'],
        currentDate: now,
        requiredClaims: ['sub', 'exp', 'iat'],
      })
      return typeof payload.sub === 'string' ? (payload as KindClaims) : null
    } catch {
      // Every failure leads to the same 401; the previous secret is tried next.
    }
  }
  return null
}
