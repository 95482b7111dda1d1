import { Counter } from 'prom-client'
import { onSeparateConnection } from '../../core/db/pool.ts'
import { sql } from '../../core/db/sql.ts'
import { withoutTenant } from '../../core/db/tenant-context.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import { queueMessage } from '../../core/jobs/queue.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { WriteBehind } from '../../core/process/write-behind.ts'
import { recordActivityInTx, recordActivityLater } from '../activity/record.ts'
import { countUsage } from './metrics.ts'
import { type PricedUsage, priceUsage } from './price-usage.ts'
import { usageRows } from './store.ts'
import { thresholdQueue } from './threshold-queue.ts'
import type { UsageDraft } from './usage-draft.ts'

export type { Attribution, TokenCounts, UsageComponent, UsageDraft } from './usage-draft.ts'
export { estimatedTokens, tokenComponents } from './usage-draft.ts'

/** Writes rated usage with what it is part of, and what follows from it: it costs no round trip of its own. */
export function recordUsageInTx(outgoing: Outbox, rated: readonly PricedUsage[]): void {
  if (rated.length === 0) return
  outgoing.alongside(guard => usageRows(rated, guard))
  followUsage(outgoing, rated)
}

function followUsage(outgoing: Outbox, rated: readonly PricedUsage[]): void {
  outgoing.afterCommit(() => countUsage(rated))
  for (const project_id of watchedOf(rated)) outgoing.send(thresholdQueue, { project_id })
  for (const { invalid } of rated) for (const entry of invalid) recordActivityInTx(outgoing, entry)
}

/** What follows from usage that a statement without an outbox has written. */
export function checkThresholdsLater(services: Services, rated: readonly PricedUsage[]): void {
  countUsage(rated)
  for (const { invalid } of rated) for (const entry of invalid) recordActivityLater(services, entry)
  const messages = watchedOf(rated).map(project_id => queueMessage(thresholdQueue, { project_id }))
  if (messages.length > 0)
    services.queues
      .send(messages)
      .catch(error => services.log.error({ err: error }, 'usage not compared with thresholds'))
}

/** Projects with thresholds. */
const watchedOf = (rated: readonly PricedUsage[]): string[] => [
  ...new Set(rated.flatMap(({ row, watched }) => (watched ? [row.project_id] : []))),
]

/**
 * Writes usage, in the transaction of the work where one is given, with its last statement. The caller of one without logs
 * what it raises, which never fails its work.
 */
export async function recordUsage(services: Services, drafts: readonly UsageDraft[], tx?: Tx): Promise<void> {
  const rated = await priceUsage(services, drafts, tx)
  if (tx) recordUsageInTx(tx, rated)
  else await writeUsage(services, rated)
}

async function writeUsage(services: Services, rated: readonly PricedUsage[]): Promise<void> {
  if (rated.length === 0) return
  const always = sql.fragment`true`
  const ctes = [sql.fragment`used as (${usageRows(rated, always)})`]
  await services.writeOne(outgoing => {
    followUsage(outgoing, rated)
    return { ctes, guard: always, columns: sql.fragment`1 as written` }
  })
}

/** Usage that waits to be written, rated or, while the database is away, not yet. */
type Waiting = { rated: PricedUsage } | { draft: UsageDraft }

/** Most that waits: 20 MB. */
const MOST = 20_000
const GATHER_MS = 20
const BATCH = 500
const RETRY_MS = 1000

export const usageDropped = new Counter({
  name: 'muster_usage_dropped_total',
  help: 'Usage events dropped: the buffer was full, or the database refused them',
  registers: [],
})

function openBuffer(services: Services) {
  const { log } = services
  const buffer = new WriteBehind<Waiting>({
    what: 'usage events',
    log,
    most: MOST,
    gatherMs: GATHER_MS,
    batch: BATCH,
    retryMs: RETRY_MS,
    async write(waiting) {
      const rated = waiting.flatMap(item => ('rated' in item ? item.rated : []))
      const drafts = waiting.flatMap(item => ('draft' in item ? item.draft : []))
      await writeUsage(services, [...rated, ...(await priceUsage(services, drafts))])
    },
    dropped: count => usageDropped.inc(count),
  })
  const rating = new Set<Promise<void>>()

  /** Rates at once: what quantities are computed from, which may be megabytes, does not wait. */
  async function take(drafts: readonly UsageDraft[]): Promise<void> {
    try {
      const rated = await onSeparateConnection(() => withoutTenant(() => priceUsage(services, drafts)))
      for (const one of rated) buffer.add({ rated: one })
    } catch (error) {
      log.warn({ err: error }, 'usage not priced yet')
      for (const { call: _, ...draft } of drafts) buffer.add({ draft })
    }
  }

  return {
    add(drafts: readonly UsageDraft[]): void {
      const taken = take(drafts).finally(() => rating.delete(taken))
      rating.add(taken)
    },
    async close(): Promise<void> {
      await Promise.all(rating)
      await buffer.close()
    },
  }
}

/** Usage of this process that waits to be written. */
export const usageBuffer = processSingleton(openBuffer, buffer => buffer.close())

/**
 * Records usage of work that has no transaction: it is written with other such within a few hundredths of a second. Never
 * throws and is never waited for. A process that is killed loses what it had not written yet.
 */
export function recordUsageLater(services: Services, drafts: readonly UsageDraft[]): void {
  if (drafts.length > 0) usageBuffer(services).add(drafts)
}
