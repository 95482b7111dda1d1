import { z } from 'zod'
import { isIdOf, kinds } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { requireAll } from '#core/api/references.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { GLOBAL_PRICES, usageChannel } from './price-cache.ts'
import { type PriceInput, type PriceRow, priceKind } from './prices-model.ts'
import { countPrices, deletePrice, findBackdatedPrice, lockPrices, priceIdentity, writePrices } from './prices-store.ts'

/** Most current and future prices of a project, or global ones; every process caches them. */
const MAX_ACTIVE_PRICES = 10_000

/** Raises VALIDATION_FAILED for a price of a batch, identified in `meta` by its fields. */
function raiseInvalidPrice(
  { provider, model, component, effective_from }: PriceInput,
  position: number,
  field: string,
  message: string,
) {
  const path = `prices[${position}]${field && `.${field}`}`
  raise('VALIDATION_FAILED', {
    message: `${path}: ${message}`,
    meta: { provider, model, component, effective_from, problems: [{ code: 'INVALID_VALUE', path, message }] },
  })
}

/**
 * Writes prices, all or none. Recorded usage is never repriced: once a price is in effect, its successor must start in
 * the future.
 * @throws VALIDATION_FAILED, TOOL_NOT_FOUND, AGENT_NOT_FOUND
 */
export async function putPrices(tx: Tx, services: Services, rows: readonly PriceInput[]): Promise<PriceRow[]> {
  const identities = new Set<string>()
  for (const [position, row] of rows.entries()) {
    const identity = priceIdentity(row)
    if (identities.has(identity)) raiseInvalidPrice(row, position, '', 'is a duplicate')
    identities.add(identity)
  }
  await requireResources(tx, rows)
  const projects = [...new Set(rows.map(({ project_id }) => project_id))]
  const keys = projects.map(id => id ?? GLOBAL_PRICES)
  await lockPrices(tx, keys)
  const now = services.clock.now()
  const position = await findBackdatedPrice(tx, rows, now)
  if (position !== null)
    raiseInvalidPrice(
      rows[position],
      position,
      'effective_from',
      'must be in the future because a price is already in effect, or not before the end of an ended one',
    )
  const written = await writePrices(tx, rows)
  for (const project of projects)
    if ((await countPrices(tx, project, now)) > MAX_ACTIVE_PRICES)
      raiseInvalidPrice(rows[0], 0, '', `would exceed ${MAX_ACTIVE_PRICES} current and future prices`)
  for (const key of keys) invalidateOnCommit(tx, usageChannel, key)
  return written
}

const SRN = /^srn:([^:]+):(tool|agent):([^:]+)$/

/** Requires the resource of each price to be a tool or agent of its project. */
async function requireResources(tx: Tx, rows: readonly PriceInput[]): Promise<void> {
  const references = rows.flatMap((row, position) => {
    if (row.resource === null) return []
    const [, project, kind, id] = SRN.exec(row.resource) ?? []
    if (id === undefined || project !== row.project_id)
      raiseInvalidPrice(row, position, 'resource', 'must be the SRN of a tool or agent of this project')
    return [{ kind, id, project_id: row.project_id }]
  })
  for (const [kind, group] of Map.groupBy(references, ({ kind }) => kind))
    await requireAll(tx, kinds.get(kind), group[0].project_id, [...new Set(group.map(({ id }) => id))])
}

/**
 * Deletes a future price. With `end`, a price in effect ends instead.
 * @throws RESOURCE_NOT_FOUND, PRICE_IN_EFFECT
 */
export async function removePrice(
  { tx, services, query }: Pick<Context<{ end?: boolean }>, 'tx' | 'services' | 'query'>,
  id: string,
  scope: Fragment,
): Promise<void> {
  const when = { now: services.clock.now(), end: query.end === true }
  const removed = isIdOf(priceKind, id) ? await deletePrice(tx, id, scope, when) : null
  if (removed === null) raise('RESOURCE_NOT_FOUND', { meta: { id } })
  if (removed === 'in_effect') raise('PRICE_IN_EFFECT', { meta: { id } })
  invalidateOnCommit(tx, usageChannel, removed.project_id ?? GLOBAL_PRICES)
}

const PricedProvider = z.object({ id: z.string(), project_id: z.string(), provider: z.string() })

/**
 * Returns AI providers by id and locks them against deletion until the transaction ends.
 * @throws AI_PROVIDER_NOT_FOUND
 */
export async function lockPricedProviders(tx: Queryable, ids: readonly string[]) {
  const kind = kinds.get('ai_provider')
  const rows = await tx.any(sql.type(PricedProvider)`
    select t.id, t.project_id, t.provider from ${sql.identifier([kind.table])} t
    where t.id = any(${sql.array([...ids], 'text')}) for key share of t`)
  const found = new Map(rows.map(row => [row.id, row]))
  const missing = ids.find(id => !found.has(id))
  return missing === undefined ? found : raise(kind.missing, { meta: { id: missing } })
}

export const globalScope = sql.fragment`t.project_id is null`
export const projectScope = (id: string) => sql.fragment`t.project_id = ${id} and t.ai_provider_id is null`
export const providerScope = (id: string) => sql.fragment`t.ai_provider_id = ${id}`
