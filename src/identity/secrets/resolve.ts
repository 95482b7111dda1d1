import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { cachedValue, readExternalValue } from './external.ts'
import { sealedForSecret } from './model.ts'
import { listSealedValues, listStoredValues, lockReferencedSecrets } from './store.ts'

/** Secret reference inside a string: `{{secret:<id>}}`. */
const TOKEN = /\{\{secret:(sec_[A-Za-z0-9]+)\}\}/g

/** A transaction requires a value that is not cached: it does not wait for an external store. */
export class ExternalValueRequired extends Error {}

/** Returns every `{{...}}` of a text in linear time; a pattern would search for an end from each start. */
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

/** Returns the distinct IDs of the secrets referenced in the texts. */
export const tokenIds = (texts: readonly string[]): string[] => [
  ...new Set(texts.flatMap(text => [...text.matchAll(TOKEN)].map(match => match[1]))),
]

/**
 * Returns the values of secrets by ID, in one query (none without IDs). Values in external stores are read at most once
 * a minute. Never store, log or forward the values.
 * @param db the transaction of a caller that has one open
 * @throws SECRET_NOT_FOUND or SECRET_NOT_DECRYPTABLE with `meta.secret_id`; ExternalValueRequired in a transaction
 */
export async function openSecrets(
  db: Queryable,
  services: Services,
  projectId: string,
  ids: readonly string[],
): Promise<Map<string, string>> {
  if (ids.length === 0) return new Map()
  const stored = new Map((await listStoredValues(db, projectId, ids)).map(row => [row.id, row]))
  const rows = ids.map(id => stored.get(id) ?? raise('SECRET_NOT_FOUND', { meta: { secret_id: id } }))
  const values = await Promise.all(
    rows.map(({ id, sealed_value, source }) =>
      source
        ? readFromStore(db, services, { id, project_id: projectId, source })
        : openValue(services, projectId, id, sealed_value as string),
    ),
  )
  return new Map(rows.map(({ id }, index) => [id, values[index]]))
}

function openValue(services: Services, projectId: string, id: string, sealed: string): string {
  const value = services.secrets.open(sealed, sealedForSecret(id, projectId))
  return value.ok
    ? value.value
    : raise('SECRET_NOT_DECRYPTABLE', { message: `Secret ${id} cannot be decrypted`, meta: { secret_id: id } })
}

function readFromStore(
  db: Queryable,
  services: Services,
  secret: Parameters<typeof readExternalValue>[1],
): Promise<string> | string {
  if (db === services.pool) return readExternalValue(services, secret)
  const cached = cachedValue(services, secret.project_id, secret.source)
  if (cached !== null) return cached
  throw new ExternalValueRequired(`value of secret ${secret.id} is not cached`)
}

/**
 * Returns the value of a secret, for immediate use: never store it, log it or put it into a message.
 * @throws SECRET_NOT_FOUND or SECRET_NOT_DECRYPTABLE with `meta.secret_id`
 */
export async function openSecret(
  db: Queryable,
  services: Services,
  projectId: string,
  secretId: string,
): Promise<string> {
  return (await openSecrets(db, services, projectId, [secretId])).get(secretId) as string
}

/** Most secrets of a project that are masked in content. */
const MAX_MASKED = 1000

/** Returns the values of a project's secrets in the database, to mask them in content. Never store, log or forward the values. */
export async function valuesToMask(services: Services, projectId: string): Promise<string[]> {
  const rows = await listSealedValues(services.pool, projectId, MAX_MASKED)
  return rows.flatMap(({ id, sealed_value }) => {
    const opened = services.secrets.open(sealed_value, sealedForSecret(id, projectId))
    return opened.ok ? [opened.value] : []
  })
}

/**
 * Replaces secret references in texts with the values of the project's secrets, in one query for all texts (none
 * without references). Makes one pass: references inside values are not resolved.
 * @returns the texts in their order, and the used values for `maskSecrets`
 * @throws SECRET_NOT_FOUND or SECRET_NOT_DECRYPTABLE with `meta.secret_id`
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
 * Validates that all referenced secrets exist in the project, and prevents their deletion until the transaction ends.
 * @param texts with secret references
 * @param ids of further secrets
 * @throws SECRET_NOT_FOUND with `meta.secret_id`
 */
export async function checkTokens(
  tx: Queryable,
  projectId: string,
  texts: readonly string[],
  ids: readonly string[] = [],
): Promise<void> {
  const referenced = [...new Set([...ids, ...tokenIds(texts)])]
  if (referenced.length === 0) return
  const found = new Set(await lockReferencedSecrets(tx, projectId, referenced))
  const missing = referenced.find(id => !found.has(id))
  if (missing !== undefined) raise('SECRET_NOT_FOUND', { meta: { secret_id: missing } })
}
