import { randomUUID } from 'node:crypto'
import { exportJWK, generateKeyPair, type JWK } from 'jose'
import type { Services } from '../../core/process/services.ts'
import { openJson, sealJson } from '../../core/secrets/json.ts'
import { KEY_SEAL } from './model.ts'
import { liveKeys, lockKeys, replaceKey } from './store.ts'

/** RS256 keys that sign id_tokens. The database has them for all processes. */

/** Channel on which a new key is announced. */
export const keysChannel = 'muster_oauth_keys'

type Writing = Pick<Services, 'write' | 'pool' | 'secrets'>

const sealedFor = (kid: string) => ({ kind: KEY_SEAL, id: kid, project_id: null })

async function makeKey(): Promise<{ kid: string; jwk: JWK }> {
  const { privateKey } = await generateKeyPair('RS256', { extractable: true })
  const kid = randomUUID()
  return { kid, jwk: { ...(await exportJWK(privateKey)), kid, alg: 'RS256', use: 'sig' } }
}

/** The keys, the one that signs first; made at the first call in the deployment. */
export async function signingKeys(services: Writing): Promise<JWK[]> {
  const rows = await liveKeys(services.pool)
  if (rows.length === 0) {
    await addKey(services, { unlessThere: true })
    return signingKeys(services)
  }
  return rows.map(({ kid, sealed }) => openJson<JWK>(services, sealed, sealedFor(kid), 'The signing key'))
}

/** Replaces the key that signs; the one before verifies for a day. Returns the id of the new key. */
export const rotateSigningKey = (services: Writing): Promise<string> => addKey(services, { unlessThere: false })

async function addKey(services: Writing, { unlessThere }: { unlessThere: boolean }): Promise<string> {
  // Takes a tenth of a second, which no lock should wait for.
  const { kid, jwk } = await makeKey()
  await services.write(async tx => {
    await lockKeys(tx)
    if (unlessThere && (await liveKeys(tx)).length > 0) return
    await replaceKey(tx, kid, sealJson(services, jwk, sealedFor(kid)))
    tx.invalidate(keysChannel, '')
  })
  return kid
}
