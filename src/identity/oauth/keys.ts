import { randomUUID } from 'node:crypto'
import { exportJWK, generateKeyPair, type JWK } from 'jose'
import type { Services } from '#core/base/services.ts'
import { openJson, sealJson } from '#core/secrets/json.ts'
import { listLiveKeys, lockKeys, replaceKey } from '../grants/store.ts'
import { KEY_SEAL } from './model.ts'

/** RS256 keys that sign id_tokens, stored in the database and shared by all processes. */

/** Channel that announces a new key. */
export const keysChannel = 'muster_oauth_keys'

type KeyServices = Pick<Services, 'write' | 'pool' | 'secrets'>

const sealedFor = (kid: string) => ({ kind: KEY_SEAL, id: kid, project_id: null })

async function makeKey(): Promise<{ kid: string; jwk: JWK }> {
  const { privateKey } = await generateKeyPair('RS256', { extractable: true })
  const kid = randomUUID()
  return { kid, jwk: { ...(await exportJWK(privateKey)), kid, alg: 'RS256', use: 'sig' } }
}

/** Returns the keys, the signing key first; the first call in a deployment creates one. */
export async function signingKeys(services: KeyServices): Promise<JWK[]> {
  const rows = await listLiveKeys(services.pool)
  if (rows.length === 0) {
    await addKey(services, { ifNone: true })
    return signingKeys(services)
  }
  return rows.map(({ kid, sealed }) => openJson<JWK>(services, sealed, sealedFor(kid), 'The signing key'))
}

/** Replaces the signing key; the previous one verifies for another day. Returns the ID of the new key. */
export const rotateSigningKey = (services: KeyServices): Promise<string> => addKey(services, { ifNone: false })

async function addKey(services: KeyServices, { ifNone }: { ifNone: boolean }): Promise<string> {
  // Generated before the lock is taken: it takes 100 ms.
  const { kid, jwk } = await makeKey()
  await services.write(async tx => {
    await lockKeys(tx)
    if (ifNone && (await listLiveKeys(tx)).length > 0) return
    await replaceKey(tx, kid, sealJson(services, jwk, sealedFor(kid)))
    tx.invalidate(keysChannel, '')
  })
  return kid
}
