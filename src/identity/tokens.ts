import { randomUUID } from 'node:crypto'
import { type JWTPayload, jwtVerify, SignJWT } from 'jose'
import { LRUCache } from 'lru-cache'
import type { Services } from '../core/process/services.ts'
import { sha256Of } from '../core/secrets/digest.ts'

/** What a token is for. Every consumer accepts its own kind only, so one replayed elsewhere is worth nothing. */
export type TokenKind = 'user' | 'oauth' | 'run' | 'download' | 'upload' | 'ingestion'

export type SignedClaims = { token: string; expires_at: string }
export type Claims = JWTPayload & { sub: string; exp: number; iat: number }

type Signer = Pick<Services, 'config' | 'clock'>

const keyOf = (secret: string): Uint8Array => Buffer.from(secret, 'utf8')

/** Signs a token of a kind for a subject with further claims; it lives `ttlSeconds` from now. */
export async function signToken(
  { config, clock }: Signer,
  kind: TokenKind,
  subject: string,
  claims: Record<string, unknown>,
  ttlSeconds: number,
): Promise<SignedClaims> {
  const issued = Math.floor(clock.now().getTime() / 1000)
  const token = await new SignJWT({ ...claims, typ: kind })
    .setProtectedHeader({ alg: 'HS256', typ: 'JWT' })
    .setSubject(subject)
    .setIssuedAt(issued)
    .setExpirationTime(issued + ttlSeconds)
    .setJti(randomUUID())
    .sign(keyOf(config.JWT_SECRET))
  return { token, expires_at: new Date((issued + ttlSeconds) * 1000).toISOString() }
}

type KindClaims = Claims & { typ: TokenKind }

/** Claims of tokens whose signature was checked, by the hash of the token: checking one takes as long as the rest of a request. */
const verified = new WeakMap<Signer['config'], LRUCache<string, KindClaims>>()
const MAX_VERIFIED = 10_000

/** The claims of a token of one of these kinds; null for any other, one that has expired, and one that we did not sign. */
export async function verifyToken(
  { config, clock }: Signer,
  kinds: readonly TokenKind[],
  token: string,
): Promise<KindClaims | null> {
  const known = verified.get(config) ?? new LRUCache({ max: MAX_VERIFIED })
  verified.set(config, known)
  const name = sha256Of(token).toString('base64url')
  const claims = known.get(name) ?? (await signedClaims(config, clock.now(), token))
  if (!claims || claims.exp * 1000 <= clock.now().getTime()) return null
  known.set(name, claims)
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
      // Whatever is wrong with it, it is the same 401; the previous secret gets its try.
    }
  }
  return null
}
