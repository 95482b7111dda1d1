import { raise } from '../../core/api/errors.ts'
import { RerunAfter } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { cachedValue, readExternalValue } from './external.ts'
import { sealedForSecret } from './model.ts'
import { referencedSecrets, storedValues } from './store.ts'

/** `{{secret:<id>}}` inside a string. */
const TOKEN = /\{\{secret:(sec_[A-Za-z0-9]+)\}\}/g

/** Every `{{...}}` of a text, in time linear in it: a pattern would search for an end from each beginning. */
export function tokensIn(text: string): string[] {
  const tokens: string[] = []
  for (let start = text.indexOf('{{'); start >= 0; ) {
    const end = text.indexOf('}}', start + 2)
    if (end < 0) break
    tokens.push(text.slice(start, end + 2))
    start = text.indexOf('{{', end + 2)
  }
  return tokens
}

/** Ids of the secrets that tokens in the texts name, each once. */
export const tokenIds = (texts: readonly string[]): string[] => [
  ...new Set(texts.flatMap(text => [...text.matchAll(TOKEN)].map(match => match[1]))),
]

/**
 * Values of secrets by id, in one query; none for no id. Those in external stores are read there, at most once a minute.
 * Never keep, log or send them on as such. Raises SECRET_NOT_FOUND or SECRET_NOT_DECRYPTABLE with `meta.secret_id`.
 * @param db the transaction of a caller that has one open. It does not wait for a store: it is rolled back and run again
 *   when the value is there (RunFirst).
 */
export async function openSecrets(
  db: Queryable,
  services: Services,
  projectId: string,
  ids: readonly string[],
): Promise<Map<string, string>> {
  if (ids.length === 0) return new Map()
  const stored = new Map((await storedValues(db, projectId, ids)).map(row => [row.id, row]))
  const rows = ids.map(id => stored.get(id) ?? raise('SECRET_NOT_FOUND', { meta: { secret_id: id } }))
  const values = await Promise.all(
    rows.map(({ id, sealed_value, source }) =>
      source
        ? fromStore(db, services, { id, project_id: projectId, source })
        : opened(services, projectId, id, sealed_value as string),
    ),
  )
  return new Map(rows.map(({ id }, index) => [id, values[index]]))
}

function opened(services: Services, projectId: string, id: string, sealed: string): string {
  const value = services.secrets.open(sealed, sealedForSecret(id, projectId))
  return value.ok
    ? value.value
    : raise('SECRET_NOT_DECRYPTABLE', { message: `The secret ${id} cannot be decrypted`, meta: { secret_id: id } })
}

function fromStore(
  db: Queryable,
  services: Services,
  secret: Parameters<typeof readExternalValue>[1],
): Promise<string> | string {
  if (db === services.pool) return readExternalValue(services, secret)
  const kept = cachedValue(services, secret.project_id, secret.source)
  if (kept !== null) return kept
  throw new RerunAfter(() => readExternalValue(services, secret))
}

/**
 * The value of a secret of a project, for use at once: never keep it, log it or put it into a message.
 * Raises SECRET_NOT_FOUND or SECRET_NOT_DECRYPTABLE with `meta.secret_id`.
 */
export async function openSecret(
  db: Queryable,
  services: Services,
  projectId: string,
  secretId: string,
): Promise<string> {
  return (await openSecrets(db, services, projectId, [secretId])).get(secretId) as string
}

/**
 * Replaces the tokens in texts by the values of the project's secrets, with one query for all texts (none when no text
 * has a token). One pass: what a value holds is never read as a token. Raises SECRET_NOT_FOUND or SECRET_NOT_DECRYPTABLE
 * with `meta.secret_id`.
 * @returns the texts in their order, and the values that were used, for `mask`
 */
export async function resolveTokens(
  db: Queryable,
  services: Services,
  projectId: string,
  texts: readonly string[],
): Promise<{ texts: string[]; values: string[] }> {
  const values = await openSecrets(db, services, projectId, tokenIds(texts))
  return {
    texts: texts.map(text => text.replace(TOKEN, (_token, id: string) => values.get(id) as string)),
    values: [...values.values()],
  }
}

/**
 * Checks at a write that every token of the texts, and every id of `ids`, names a secret of the project, and keeps those
 * from being deleted until the transaction ends. Raises SECRET_NOT_FOUND with `meta.secret_id`.
 */
export async function checkTokens(
  tx: Queryable,
  projectId: string,
  texts: readonly string[],
  ids: readonly string[] = [],
): Promise<void> {
  const named = [...new Set([...ids, ...tokenIds(texts)])]
  if (named.length === 0) return
  const found = await referencedSecrets(tx, projectId, named)
  const missing = named.find(id => !found.includes(id))
  if (missing !== undefined) raise('SECRET_NOT_FOUND', { meta: { secret_id: missing } })
}
