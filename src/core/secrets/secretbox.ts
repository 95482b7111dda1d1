import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  createSecretKey,
  type KeyObject,
  randomBytes,
  timingSafeEqual,
} from 'node:crypto'

/**
 * Encryption of stored secret values: AES-256-GCM, stored as `v1.<key_id>.<iv>.<tag>.<ciphertext>`, parts
 * base64url. The row a value belongs to is authenticated with it, so a ciphertext copied to another row does not open.
 */

/** Key of deployments outside production that set none. Public, hence no protection at all. */
export const DEVELOPMENT_KEY = '6d75737465722d646576656c6f706d656e742d6b65792d6e6f742d7365637265'

/** The row a value is sealed for. `project_id` is null for rows of the deployment. */
export type SealedFor = { kind: string; id: string; project_id: string | null }

/**
 * Why a value does not open: not in the stored form, sealed under a key that is not configured, or altered or sealed for
 * another row.
 */
export type OpenFailure = 'malformed' | 'unknown_key' | 'not_authentic'

export type OpenedSecret<T> = { ok: true; value: T } | { ok: false; reason: OpenFailure }

export type SecretBox = {
  /** id of the key that seals */
  keyId: string
  /** Encrypts under the current key with a fresh IV. */
  seal(plaintext: string | Buffer, aad: SealedFor): string
  /** Decrypts with whichever configured key sealed. Never throws for the stored text. */
  open(sealed: string, aad: SealedFor): OpenedSecret<string>
  /** The same for what is no text. */
  openBytes(sealed: string, aad: SealedFor): OpenedSecret<Buffer>
  /** Id of the key that sealed, or null for a text that is not sealed. */
  keyIdOf(sealed: string): string | null
  /** Whether a reencryption has to rewrite this text: it is not sealed under the current key. */
  needsReseal(sealed: string): boolean
  /** A keyed hash, `<key_id>.<hmac>`, to recognise a text by that must not be stored, nor be guessed from its hash. */
  fingerprint(text: string): string
  /**
   * Secrets of 256 bits for a purpose and a subject that need not be stored, one of each configured key, that of the
   * current one first.
   */
  derived(purpose: string, subject: string): string[]
  /** Whether a fingerprint, made under any configured key, is that of the text. */
  recognises(fingerprint: string, text: string): boolean
}

const VERSION = 'v1'
const IV_BYTES = 12
const TAG_BYTES = 16
const HMAC_BYTES = 32

/**
 * @param keys.key 64 hex characters; seals and opens
 * @param keys.previous older keys in the same form; open only
 * @throws Error for a malformed key, without showing it
 */
export function createSecretBox(keys: { key: string; previous?: readonly string[] }): SecretBox {
  const current = readKey(keys.key, 'the secrets encryption key')
  const currentId = idOf(current)
  const byId = new Map<string, KeyObject>()
  for (const previous of keys.previous ?? []) {
    const key = readKey(previous, 'a previous secrets encryption key')
    byId.set(idOf(key), key)
  }
  byId.set(currentId, current)

  const keyIdOf = (sealed: string) => read(sealed)?.keyId ?? null
  const openBytes: SecretBox['openBytes'] = (sealed, aad) => {
    const parts = read(sealed)
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
      const iv = randomBytes(IV_BYTES)
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
        derivation(key, purpose, subject).toString('base64url'),
      ),
    recognises(fingerprint, text) {
      const [keyId, hmac = ''] = fingerprint.split('.')
      const key = byId.get(keyId)
      const given = Buffer.from(hmac, 'base64url')
      return key !== undefined && given.length === HMAC_BYTES && timingSafeEqual(given, hmacOf(key, text))
    },
  }
}

function readKey(hex: string, what: string): KeyObject {
  if (!/^[0-9a-fA-F]{64}$/.test(hex)) throw new Error(`${what} must be 64 hex characters`)
  return createSecretKey(hex, 'hex')
}

function idOf(key: KeyObject): string {
  return createHash('sha256').update(key.export()).digest('hex').slice(0, 8)
}

const hmacOf = (key: KeyObject, text: string): Buffer => derivation(key, 'fingerprint', text)

/** Under a key of its own purpose, derived from the encryption key. */
function derivation(key: KeyObject, purpose: string, text: string): Buffer {
  const derived = createHmac('sha256', key).update(`muster ${purpose}`).digest()
  return createHmac('sha256', derived).update(text).digest()
}

function aadBytes({ kind, id, project_id }: SealedFor): Buffer {
  return Buffer.from(`${kind}:${id}:${project_id ?? '*'}`, 'utf8')
}

function read(sealed: string): { keyId: string; iv: Buffer; tag: Buffer; ciphertext: Buffer } | null {
  const match = /^v1\.([0-9a-f]{8})\.([\w-]+)\.([\w-]+)\.([\w-]*)$/.exec(sealed)
  if (!match) return null
  const [iv, tag, ciphertext] = match.slice(2).map(part => Buffer.from(part, 'base64url'))
  return iv.length === IV_BYTES && tag.length === TAG_BYTES ? { keyId: match[1], iv, tag, ciphertext } : null
}
