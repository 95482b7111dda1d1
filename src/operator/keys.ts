import { createSecretBox } from '#core/secrets/secretbox.ts'
import type { OpenServices } from '#core/services/lifecycle.ts'
import { rotateSigningKey } from '#identity/oauth/keys.ts'
import { type KeyCount, reencryptSecrets, verifySecrets } from '#identity/secrets/reencrypt.ts'
import { withServices } from './environment.ts'
import { print, printJson, printProgress, table } from './output.ts'

type Options = { data: string; json?: boolean }

/** `current` encrypts and decrypts, `previous` only decrypts, `unknown` is not configured. */
export type KeyState = 'current' | 'previous' | 'unknown'

/** Counts the encrypted values by key, with the state of the key. */
export async function countValuesByKey(
  services: Pick<OpenServices, 'config' | 'pool' | 'secrets'>,
): Promise<(KeyCount & { state: KeyState })[]> {
  const previous = services.config.SECRETS_ENCRYPTION_KEY_PREVIOUS.map(key => createSecretBox({ key }).keyId)
  return (await verifySecrets(services)).map(count => ({
    ...count,
    state: count.current ? 'current' : previous.includes(count.key_id) ? 'previous' : 'unknown',
  }))
}

/**
 * `muster secrets verify`: counts values by key without decrypting them. Sets exit code 1 if a key is not configured.
 */
export const verifyCommand = ({ data, json }: Options): Promise<void> =>
  withServices(data, async services => {
    const counts = await countValuesByKey(services)
    const lost = counts.filter(({ state }) => state === 'unknown').reduce((sum, { count }) => sum + count, 0)
    if (json) printJson({ current_key_id: services.secrets.keyId, counts, undecryptable: lost })
    else {
      const rows = counts.map(({ table, column, key_id, state, count }) => [`${table}.${column}`, key_id, state, count])
      print(table(['column', 'key', 'state', 'values'], rows, 'no encrypted values'))
    }
    if (lost === 0) return
    printProgress(`${lost} values cannot be decrypted: add their key to SECRETS_ENCRYPTION_KEY_PREVIOUS`)
    process.exitCode = 1
  })

/**
 * `muster secrets reencrypt`: encrypts all values with the current key. Sets exit code 1 if values of other keys
 * remain.
 */
export const reencryptCommand = ({ data, json }: Options): Promise<void> =>
  withServices(data, async services => {
    const { counts, remaining } = await reencryptSecrets(services, ({ table, column, reencrypted }) =>
      printProgress(`${table}.${column}: ${reencrypted}`),
    )
    if (json) printJson({ current_key_id: services.secrets.keyId, counts, remaining })
    else {
      const rows = counts.map(({ table, column, reencrypted, undecryptable }) => [
        `${table}.${column}`,
        reencrypted,
        undecryptable,
      ])
      print(table(['column', 'reencrypted', 'undecryptable'], rows, 'no encrypted columns'))
    }
    if (remaining === 0) return
    printProgress(`${remaining} values remain encrypted with other keys; run muster secrets verify to list the keys`)
    process.exitCode = 1
  })

/** `muster oauth rotate-keys`: all processes sign their next id_token with the new key. */
export const rotateKeysCommand = ({ data, json }: Options): Promise<void> =>
  withServices(data, async services => {
    const kid = await rotateSigningKey(services)
    if (json) printJson({ kid })
    else print(`id_tokens are signed with ${kid}; the previous key verifies for one day`)
  })
