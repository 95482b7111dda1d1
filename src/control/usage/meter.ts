import { Counter } from 'prom-client'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { batchByKey } from '#core/db/batcher.ts'
import { databaseErrorKind, isTransient } from '#core/db/database-errors.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'
import { currentTriggerChain, withTriggerChain } from '#core/db/trigger-chain.ts'
import { WriteBehind } from '#core/db/write-behind.ts'
import { queueMessage } from '#core/queues/queue.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { recordActivityInTx, recordActivityLater } from '../activity/record.ts'
import { foldSoon } from './folds.ts'
import { countUsage } from './metrics.ts'
import { type PricedUsage, priceUsage } from './price-usage.ts'
import { usageInsert } from './store.ts'
import { thresholdQueue } from './threshold-queue.ts'
import type { UsageDraft } from './usage-draft.ts'

export type { Attribution, TokenCounts, UsageComponent, UsageDetails, UsageDraft, UsedAnswer } from './usage-draft.ts'
export { answerUsage, estimatedTokens, sumAnswer, tokenComponents, UNREPORTED, wholeOf } from './usage-draft.ts'

/** Writes priced usage and its effects with the transaction, without an extra round trip. */
export function recordUsageInTx(services: Services, outbox: Outbox, priced: readonly PricedUsage[]): void {
  if (priced.length === 0) return
  outbox.alongside(guard => usageInsert(priced, guard))
  addUsageEffects(services, outbox, priced)
}

function addUsageEffects(services: Services, outbox: Outbox, priced: readonly PricedUsage[]): void {
  outbox.afterCommit(() => onUsageCommitted(services, priced))
  for (const project_id of projectsWithThresholds(priced)) outbox.send(thresholdQueue, { project_id })
  recordActivityInTx(outbox, ...priced.flatMap(({ invalid }) => invalid))
}

function onUsageCommitted(services: Services, priced: readonly PricedUsage[]): void {
  countUsage(priced)
  foldSoon(services, new Set(priced.map(({ row }) => row.project_id)))
}

/** Counts and folds usage, records invalid quantities and queues threshold checks after a write without an outbox. */
export function addUsageEffectsLater(services: Services, priced: readonly PricedUsage[]): void {
  onUsageCommitted(services, priced)
  for (const { invalid } of priced) for (const entry of invalid) recordActivityLater(services, entry)
  const messages = projectsWithThresholds(priced).map(project_id => queueMessage(thresholdQueue, { project_id }))
  if (messages.length > 0)
    services.queues.send(messages).catch(error => services.log.error({ err: error }, 'threshold check enqueue failed'))
}

const projectsWithThresholds = (priced: readonly PricedUsage[]): string[] => [
  ...new Set(priced.flatMap(({ row, watched }) => (watched ? [row.project_id] : []))),
]

/** Prices and writes usage, with the last statement of `tx` if given. Without `tx`, the caller must log errors. */
export async function recordUsage(services: Services, drafts: readonly UsageDraft[], tx?: Tx): Promise<void> {
  if (tx) return recordUsageInTx(services, tx, await priceUsage(services, drafts, tx))
  await recordUsageWith(services, drafts)
}

/**
 * Prices and writes usage, and in the same statement what `add` puts into its outbox; nothing if there is no usage.
 * Usage is written without it if it is refused. The caller must log errors.
 * @param add may be called again after a failed write
 */
export async function recordUsageWith(
  services: Services,
  drafts: readonly UsageDraft[],
  add?: (outbox: Outbox) => void,
): Promise<void> {
  const priced = await priceUsage(services, drafts)
  if (priced.length > 0) await usageWriter(services)(priced, add)
}

/** Maximum calls per statement. */
const MAX_CALLS = 100

type UsageOfCall = {
  priced: readonly PricedUsage[]
  chain: readonly string[]
  add?: (outbox: Outbox) => void
}

/**
 * Writes usage of concurrent calls of a project in one statement: a separate commit for each would be the largest part
 * of a completion.
 */
const usageWriter = processSingleton(services => {
  async function writeAll(calls: readonly UsageOfCall[]): Promise<unknown[]> {
    try {
      const [{ chain }] = calls
      await withTriggerChain(chain, () =>
        writeUsage(
          services,
          calls.flatMap(({ priced }) => priced),
          outbox => {
            for (const { add } of calls) add?.(outbox)
          },
        ),
      )
      return calls.map(() => null)
    } catch (error) {
      if (calls.some(({ add }) => add) && databaseErrorKind(error) !== 'unavailable')
        return writeAll(calls.map(({ add: _, ...usage }) => usage))
      // Written individually, so that one failing call does not affect the others.
      if (calls.length > 1 && !isTransient(error))
        return (await Promise.all(calls.map(call => writeAll([call])))).flat()
      return calls.map(() => error)
    }
  }
  const write = batchByKey<string, UsageOfCall, unknown>((_key, calls) => writeAll(calls), { max: MAX_CALLS })
  return async (priced: readonly PricedUsage[], add: UsageOfCall['add']): Promise<void> => {
    const chain = currentTriggerChain()
    const failure = await write(JSON.stringify([priced[0].row.project_id, chain]), { priced, chain, add })
    if (failure !== null) throw failure
  }
})

async function writeUsage(
  services: Services,
  priced: readonly PricedUsage[],
  add: UsageOfCall['add'] = () => {},
): Promise<void> {
  if (priced.length === 0) return
  const always = sql.fragment`true`
  const ctes = [sql.fragment`used as (${usageInsert(priced, always)})`]
  await services.writeOne(outbox => {
    addUsageEffects(services, outbox, priced)
    add(outbox)
    return { ctes, guard: always, columns: sql.fragment`1 as written` }
  })
}

/** Buffered usage, unpriced while prices cannot be loaded. */
type BufferedUsage = { priced: PricedUsage } | { draft: UsageDraft }

/** Most buffered events, at most 20 MB. */
const MAX_BUFFERED = 20_000
const GATHER_MS = 20
const BATCH = 500
const RETRY_MS = 1000

export const usageDropped = new Counter({
  name: 'muster_usage_dropped_total',
  help: 'Usage events dropped because the buffer was full or the database rejected them',
  registers: [],
})

function openBuffer(services: Services) {
  const { log } = services
  const buffer = new WriteBehind<BufferedUsage>({
    what: 'usage events',
    log,
    most: MAX_BUFFERED,
    gatherMs: GATHER_MS,
    batch: BATCH,
    retryMs: RETRY_MS,
    async write(items) {
      const priced = items.flatMap(item => ('priced' in item ? item.priced : []))
      const drafts = items.flatMap(item => ('draft' in item ? item.draft : []))
      await writeUsage(services, [...priced, ...(await priceUsage(services, drafts))])
    },
    dropped: count => usageDropped.inc(count),
  })
  const pricing = new Set<Promise<void>>()

  /** Prices usage immediately, so that call inputs and outputs of several megabytes are not buffered. */
  async function priceAndBuffer(drafts: readonly UsageDraft[]): Promise<void> {
    try {
      const priced = await onSeparateConnection(() => withoutTenant(() => priceUsage(services, drafts)))
      for (const usage of priced) buffer.add({ priced: usage })
    } catch (error) {
      log.warn({ err: error }, 'usage pricing postponed')
      for (const { call: _, ...draft } of drafts) buffer.add({ draft })
    }
  }

  return {
    add(drafts: readonly UsageDraft[]): void {
      const task = priceAndBuffer(drafts).finally(() => pricing.delete(task))
      pricing.add(task)
    },
    async close(): Promise<void> {
      await Promise.all(pricing)
      await buffer.close()
    },
  }
}

export const usageBuffer = processSingleton(openBuffer, buffer => buffer.close())

/**
 * Buffers usage, which is written in a batch within a few hundredths of a second. For work without a transaction. Never
 * throws. A killed process loses its buffered usage.
 */
export function recordUsageLater(services: Services, drafts: readonly UsageDraft[]): void {
  if (drafts.length > 0) usageBuffer(services).add(drafts)
}
