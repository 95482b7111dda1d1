import { createSecretBox } from '#core/secrets/secretbox.ts'
import { listDirectory } from '#core/services/cell-directory.ts'
import type { OpenServices } from '#core/services/lifecycle.ts'
import { rotateSigningKey } from '#identity/oauth/keys.ts'
import { type KeyCount, type ReencryptCount, reencryptSecrets, verifySecrets } from '#identity/secrets/reencrypt.ts'
import { withCell } from './cell-services.ts'
import { withServices } from './environment.ts'
import { describeError, print, printJson, printProgress, table } from './output.ts'

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

/** A count of a cell; without `cell`, of home. */
type InCell<Count> = Count & { cell?: string }

const columnName = ({ cell, table, column }: InCell<{ table: string; column: string }>): string =>
  `${cell === undefined ? '' : `${cell} `}${table}.${column}`

/** Runs work on home, then on each other cell. Sets exit code 1 if a cell cannot be opened. */
async function everywhere(
  home: OpenServices,
  work: (services: OpenServices, label: { cell?: string }) => Promise<void>,
): Promise<void> {
  await work(home, {})
  for (const each of await listDirectory(home.pool, home)) {
    try {
      await withCell(home, each, services => work(services, { cell: each.name }))
    } catch (error) {
      printProgress(`cell ${each.name} is omitted: ${describeError(error)}`)
      process.exitCode = 1
    }
  }
}

/**
 * `muster secrets verify`: counts values by key without decrypting them. Sets exit code 1 if a key is not configured.
 */
export const verifyCommand = ({ data, json }: Options): Promise<void> =>
  withServices(data, async services => {
    const counts: (InCell<KeyCount> & { state: KeyState })[] = []
    await everywhere(services, async (cell, label) => {
      counts.push(...(await countValuesByKey(cell)).map(count => ({ ...label, ...count })))
    })
    const lost = counts.filter(({ state }) => state === 'unknown').reduce((sum, { count }) => sum + count, 0)
    if (json) printJson({ current_key_id: services.secrets.keyId, counts, undecryptable: lost })
    else {
      const rows = counts.map(({ key_id, state, count, ...column }) => [columnName(column), key_id, state, count])
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
    const counts: InCell<ReencryptCount>[] = []
    let remaining = 0
    await everywhere(services, async (cell, label) => {
      const outcome = await reencryptSecrets(cell, ({ reencrypted, ...column }) =>
        printProgress(`${columnName({ ...label, ...column })}: ${reencrypted}`),
      )
      counts.push(...outcome.counts.map(count => ({ ...label, ...count })))
      remaining += outcome.remaining
    })
    if (json) printJson({ current_key_id: services.secrets.keyId, counts, remaining })
    else {
      const rows = counts.map(({ reencrypted, undecryptable, ...column }) => [
        columnName(column),
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
