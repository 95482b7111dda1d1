import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  createSecretKey,
  type KeyObject,
  timingSafeEqual,
} from 'node:crypto'
import type { Config } from '../base/config.ts'
import { uniqueBytes } from '../base/random-block.ts'

declare module '../base/services.ts' {
  interface Services {
    secrets: SecretBox
  }
}

/**
 * Encryption of stored secrets with AES-256-GCM, in the form `v1.<key_id>.<iv>.<tag>.<ciphertext>` with base64url parts. The
 * row of a value is authenticated with it, so a ciphertext copied to another row cannot be opened.
 */

/** Default key outside production. It is public and provides no protection. */
export const DEVELOPMENT_KEY = '6d75737465722d646576656c6f706d656e742d6b65792d6e6f742d7365637265'

/** The row a value is sealed for. `project_id` is null for rows of the deployment. */
export type SealedFor = { kind: string; id: string; project_id: string | null }

/** Reason why a value cannot be opened: malformed, sealed with an unconfigured key, or altered or sealed for another row. */
export type OpenFailure = 'malformed' | 'unknown_key' | 'not_authentic'

export type OpenedSecret<T> = { ok: true; value: T } | { ok: false; reason: OpenFailure }

export type SecretBox = {
  /** Id of the current key. */
  keyId: string
  /** Encrypts with the current key and a new IV. */
  seal(plaintext: string | Buffer, aad: SealedFor): string
  /** Decrypts text with the configured key that sealed it. Never throws. */
  open(sealed: string, aad: SealedFor): OpenedSecret<string>
  /** Decrypts bytes with the configured key that sealed them. Never throws. */
  openBytes(sealed: string, aad: SealedFor): OpenedSecret<Buffer>
  /** Returns the id of the key that sealed a text, or null if it is not sealed. */
  keyIdOf(sealed: string): string | null
  /** Whether a reencryption must rewrite a text because it is not sealed with the current key. */
  needsReseal(sealed: string): boolean
  /** Returns a keyed hash, `<key_id>.<hmac>`, to recognize a text that must not be stored or guessed from its hash. */
  fingerprint(text: string): string
  /** Returns derived 256-bit secrets for a purpose and subject, one per configured key, the current key first. */
  derived(purpose: string, subject: string): string[]
  /** Whether a fingerprint, made with any configured key, matches a text. */
  recognises(fingerprint: string, text: string): boolean
}

const VERSION = 'v1'
const IV_BYTES = 12
const TAG_BYTES = 16
const HMAC_BYTES = 32

/** Creates the secret box of a process. */
export const secretBoxOf = (
  config: Pick<Config, 'SECRETS_ENCRYPTION_KEY' | 'SECRETS_ENCRYPTION_KEY_PREVIOUS'>,
): SecretBox =>
  createSecretBox({
    key: config.SECRETS_ENCRYPTION_KEY[0] ?? DEVELOPMENT_KEY,
    previous: config.SECRETS_ENCRYPTION_KEY_PREVIOUS,
  })

/**
 * Creates a secret box.
 * @param keys.key 64 hex characters; seals and opens
 * @param keys.previous previous keys in the same form; only open
 * @throws Error for a malformed key, without its value
 */
export function createSecretBox(keys: { key: string; previous?: readonly string[] }): SecretBox {
  const current = parseKey(keys.key, 'the secrets encryption key')
  const currentId = idOf(current)
  const byId = new Map<string, KeyObject>()
  for (const previous of keys.previous ?? []) {
    const key = parseKey(previous, 'a previous secrets encryption key')
    byId.set(idOf(key), key)
  }
  byId.set(currentId, current)

  const keyIdOf = (sealed: string) => parseSealed(sealed)?.keyId ?? null
  const openBytes: SecretBox['openBytes'] = (sealed, aad) => {
    const parts = parseSealed(sealed)
    if (!parts) return { ok: false, reason: 'malformed' }
    const key = byId.get(parts.keyId)
    if (!key) return { ok: false, reason: 'unknown_key' }
    const decipher = createDecipheriv('aes-256-gcm', key, parts.iv, { authTagLength: TAG_BYTES })
    decipher.setAAD(aadBytes(aad))
    decipher.setAuthTag(parts.tag)
    try {
      return { ok: true, value: Buffer.concat([decipher.update(parts.ciphertext), decipher.final()]) }
    } catch {
      return { ok: false, reason: 'not_authentic' }
    }
  }
  return {
    keyId: currentId,
    seal(plaintext, aad) {
      const iv = uniqueBytes(IV_BYTES)
      const cipher = createCipheriv('aes-256-gcm', current, iv, { authTagLength: TAG_BYTES })
      cipher.setAAD(aadBytes(aad))
      const text = typeof plaintext === 'string' ? Buffer.from(plaintext, 'utf8') : plaintext
      const ciphertext = Buffer.concat([cipher.update(text), cipher.final()])
      return [
        VERSION,
        currentId,
        ...[iv, cipher.getAuthTag(), ciphertext].map(part => part.toString('base64url')),
      ].join('.')
    },
    open(sealed, aad) {
      const opened = openBytes(sealed, aad)
      return opened.ok ? { ok: true, value: opened.value.toString('utf8') } : opened
    },
    openBytes,
    keyIdOf,
    needsReseal: sealed => keyIdOf(sealed) !== currentId,
    fingerprint: text => `${currentId}.${hmacOf(current, text).toString('base64url')}`,
    derived: (purpose, subject) =>
      [current, ...[...byId.values()].filter(key => key !== current)].map(key =>
        derive(key, purpose, subject).toString('base64url'),
      ),
    recognises(fingerprint, text) {
      const [keyId, hmac = ''] = fingerprint.split('.')
      const key = byId.get(keyId)
      const bytes = Buffer.from(hmac, 'base64url')
      return key !== undefined && bytes.length === HMAC_BYTES && timingSafeEqual(bytes, hmacOf(key, text))
    },
  }
}

function parseKey(hex: string, what: string): KeyObject {
  if (!/^[0-9a-fA-F]{64}$/.test(hex)) throw new Error(`${what} must be 64 hex characters`)
  return createSecretKey(hex, 'hex')
}

function idOf(key: KeyObject): string {
  return createHash('sha256').update(key.export()).digest('hex').slice(0, 8)
}

const hmacOf = (key: KeyObject, text: string): Buffer => derive(key, 'fingerprint', text)

/** Returns an HMAC with a key derived from the encryption key for a purpose. */
function derive(key: KeyObject, purpose: string, text: string): Buffer {
  const derived = createHmac('sha256', key).update(`muster ${purpose}`).digest()
  return createHmac('sha256', derived).update(text).digest()
}

function aadBytes({ kind, id, project_id }: SealedFor): Buffer {
  return Buffer.from(`${kind}:${id}:${project_id ?? '*'}`, 'utf8')
}

function parseSealed(sealed: string): { keyId: string; iv: Buffer; tag: Buffer; ciphertext: Buffer } | null {
  const match = /^v1\.([0-9a-f]{8})\.([\w-]+)\.([\w-]+)\.([\w-]*)$/.exec(sealed)
  if (!match) return null
  const [iv, tag, ciphertext] = match.slice(2).map(part => Buffer.from(part, 'base64url'))
  return iv.length === IV_BYTES && tag.length === TAG_BYTES ? { keyId: match[1], iv, tag, ciphertext } : null
}
