import type { OpenServices } from '../core/process/services-lifecycle.ts'
import { createSecretBox } from '../core/secrets/secretbox.ts'
import { type KeyCount, reencryptSecrets, verifySecrets } from '../identity/secrets/reencrypt.ts'
import { withServices } from './environment.ts'
import { print, printJson, printProgress, table } from './output.ts'

type Options = { data: string; json?: boolean }

/** `current` seals, `previous` only opens, `unknown` is not configured: its values cannot be opened. */
export type KeyState = 'current' | 'previous' | 'unknown'

/** How many values each key sealed, and whether that key is configured. */
export async function keyStates(
  services: Pick<OpenServices, 'config' | 'pool' | 'secrets'>,
): Promise<(KeyCount & { state: KeyState })[]> {
  const previous = services.config.SECRETS_ENCRYPTION_KEY_PREVIOUS.map(key => createSecretBox({ key }).keyId)
  return (await verifySecrets(services)).map(count => ({
    ...count,
    state: count.current ? 'current' : previous.includes(count.key_id) ? 'previous' : 'unknown',
  }))
}

/** `muster secrets verify`: opens nothing, counts by key. Sets exit code 1 when a key is not configured. */
export const verifyCommand = ({ data, json }: Options): Promise<void> =>
  withServices(data, async services => {
    const counts = await keyStates(services)
    const lost = counts.filter(({ state }) => state === 'unknown').reduce((sum, { count }) => sum + count, 0)
    if (json) printJson({ current_key_id: services.secrets.keyId, counts, undecryptable: lost })
    else {
      const rows = counts.map(({ table, column, key_id, state, count }) => [`${table}.${column}`, key_id, state, count])
      print(table(['column', 'key', 'state', 'values'], rows, 'nothing is encrypted yet'))
    }
    if (lost === 0) return
    printProgress(`${lost} values cannot be opened: put the key that sealed them into SECRETS_ENCRYPTION_KEY_PREVIOUS`)
    process.exitCode = 1
  })

/** `muster secrets reencrypt`: sets exit code 1 when values are left under another key. */
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
      print(table(['column', 'reencrypted', 'undecryptable'], rows, 'no column is encrypted'))
    }
    if (remaining === 0) return
    printProgress(`${remaining} values are left under other keys; muster secrets verify names the keys`)
    process.exitCode = 1
  })
