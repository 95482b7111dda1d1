import { isIdOf, kinds } from '#core/api/kind.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { release } from '#core/base/release.ts'
import type { Services } from '#core/base/services.ts'
import { telemetryStatus } from '#core/base/telemetry.ts'
import type { Queryable } from '#core/db/sql.ts'
import { readinessHandler } from '#core/http/health.ts'
import { workForConcerns } from '#core/modules/module.ts'
import { migrationNames } from '#core/queues/breaking-migrations.ts'
import { deadLetterQueue, queues as declared, type Queue } from '#core/queues/queue.ts'
import { countMessages, listWorkers, type MessageRow, type WorkerRow } from '#core/work/inspection.ts'
import { WORKER_KINDS } from '#core/work/settings.ts'
import type { QueueMessage, SystemStatus } from './model.ts'
import { recentRead } from './recent-read.ts'

/** Counts the turns of the last minute in all projects, and how many of them failed. */
export const turnRates = extensionPoint<(db: Queryable) => Promise<{ turns: number; failed: number }>>({
  name: 'rates of turns',
  folder: 'control/system',
  description: 'Counts recent turns and their failures in all projects, for the status of the deployment',
})

/** Age of a heartbeat from which a worker does not count as live: two are missing, as for other workers. */
export const silentMs = (config: Services['config']): number => Math.max(2 * config.WORKER_HEARTBEAT_INTERVAL_MS, 2000)

const BUSIEST = 20
const startedAt = new Date(Date.now() - process.uptime() * 1000).toISOString()

/** The slots of a queue in the live workers. */
export type LiveSlots = { workers: number; slots: number; share: number }

/** Returns the slots of a queue in the live workers. The slots of batches are the messages of a batch. */
export function liveSlots(queue: string, workers: readonly WorkerRow[], staleMs: number): LiveSlots {
  const found = workers.flatMap(({ age_ms, queues }) => (age_ms < staleMs && queues?.[queue] ? [queues[queue]] : []))
  return {
    workers: found.length,
    slots: found.reduce((sum, { slots, share }) => sum + Math.max(slots, share), 0),
    share: found.reduce((sum, { share }) => sum + share, 0),
  }
}

async function readStatus(services: Services): Promise<SystemStatus> {
  const { pool, config } = services
  const rates = turnRates.only()
  const [checks, messages, workers, { turns, failed }] = await Promise.all([
    readinessHandler(services, migrationNames()),
    countMessages(pool),
    listWorkers(pool),
    rates ? rates(pool) : { turns: 0, failed: 0 },
  ])
  const staleMs = silentMs(config)
  const byQueue = Map.groupBy(messages, ({ queue }) => queue)
  const sum = (queue: string, field: 'waiting' | 'delayed' | 'active') =>
    (byQueue.get(queue) ?? []).reduce((total, row) => total + row[field], 0)
  const queues = declared.all().map(({ name }) => ({
    name,
    waiting: sum(name, 'waiting'),
    delayed: sum(name, 'delayed'),
    active: sum(name, 'active'),
    dead: sum(deadLetterQueue(name), 'waiting'),
    oldest_seconds: Math.max(0, ...(byQueue.get(name) ?? []).map(({ oldest_seconds }) => oldest_seconds ?? 0)),
    ...liveSlots(name, workers, staleMs),
  }))
  const shares = new Map(queues.map(({ name, share }) => [name, share]))
  const projects = [...Map.groupBy(messages, ({ project_id }) => project_id)]
    .flatMap(([project_id, all]) => {
      const rows = all.filter(({ queue, active, waiting }) => shares.has(queue) && active + waiting > 0)
      if (project_id === null || rows.length === 0) return []
      const total = (field: 'active' | 'waiting') => rows.reduce((count, row) => count + row[field], 0)
      const share = rows.reduce((count, { queue }) => count + (shares.get(queue) ?? 0), 0)
      return [{ project_id, active: total('active'), waiting: total('waiting'), share }]
    })
    .toSorted((one, other) => other.active + other.waiting - one.active - one.waiting)
    .slice(0, BUSIEST)
  const own = {
    instance_id: config.INSTANCE_ID,
    kind: 'web' as const,
    concerns: [],
    version: release,
    started_at: startedAt,
    heartbeat_at: new Date().toISOString(),
    stale: false,
  }
  return {
    version: release,
    started_at: startedAt,
    checks,
    processes: [
      own,
      ...workers.map(({ instance_id, kinds: concerns, version, started_at, heartbeat_at, age_ms }) => ({
        instance_id,
        kind: 'worker' as const,
        concerns,
        version,
        started_at,
        heartbeat_at,
        stale: age_ms >= staleMs,
      })),
    ],
    queues: queues.map(({ share: _, ...queue }) => queue),
    projects,
    turns_per_minute: turns,
    errors_per_minute: failed,
    telemetry: telemetryStatus(),
  }
}

/** Returns the status of the deployment, at most two seconds old. */
export const systemStatus = recentRead(readStatus)

/** Why a message is not claimed. */
export function waitReason(
  message: Pick<MessageRow, 'state' | 'attempts' | 'project_id' | 'entity_busy'>,
  { workers, slots, share }: LiveSlots,
  active: { all: number; ofProject: (project: string) => number },
): QueueMessage['waits_for'] {
  const { state, attempts, project_id, entity_busy } = message
  if (state === 'delayed') return attempts > 0 ? 'backoff' : null
  if (state !== 'waiting') return null
  if (workers === 0) return 'no_worker'
  if (entity_busy) return 'entity'
  if (project_id !== null && share < slots && active.ofProject(project_id) >= share) return 'project_share'
  return active.all >= slots ? 'slot' : null
}

/** Returns the seconds of the lease of a message. */
export const leaseSeconds = ({ queue, config }: { queue: Queue<any>; config: Services['config'] }): number =>
  workForConcerns(WORKER_KINDS)
    .handlers.find(handler => handler.queue.name === queue.name)
    ?.leaseSeconds?.(config) ?? queue.leaseSeconds

/** Returns what a message is about: the entity of a mailbox, otherwise the first ID in the data that names a record. */
export function messageEntity({ key, data }: Pick<MessageRow, 'key' | 'data'>): { kind: string; id: string } | null {
  const named = ([name, value]: [string, unknown]) =>
    name !== 'project_id' && typeof value === 'string' ? [value] : []
  for (const id of [key?.split('@')[0] ?? '', ...Object.entries(data).flatMap(named)]) {
    const kind = kinds.all().find(each => isIdOf(each, id))
    if (kind) return { kind: kind.name, id }
  }
  return null
}
