import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'

/** The registry of /metrics. Core metrics are declared here, metrics of a module in its module.ts. */
export const registry = new Registry()

const registers = [registry]

export const httpRequests = new Counter({
  name: 'muster_requests_total',
  help: 'Completed HTTP requests',
  labelNames: ['method', 'route', 'status'],
  registers,
})

export const requestDuration = new Histogram({
  name: 'muster_request_duration_seconds',
  help: 'Time from request to response',
  labelNames: ['method', 'route', 'status'],
  buckets: [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300],
  registers,
})

export const messageAttempts = new Counter({
  name: 'muster_attempts_total',
  help: 'Message attempts by outcome: done, retry, dead, requeued',
  labelNames: ['queue', 'outcome'],
  registers,
})

export const leasesLost = new Counter({
  name: 'muster_leases_lost_total',
  help: 'Attempts whose lease expired while their handler was running in this process',
  labelNames: ['queue'],
  registers,
})

export const databaseConnectionsEnded = new Counter({
  name: 'muster_database_connections_ended_total',
  help: 'Database connections that this process ended: unresponsive server, dead or lost connection, statement over its limit',
  labelNames: ['reason'],
  registers,
})

export const loopsRestarted = new Counter({
  name: 'muster_loops_restarted_total',
  help: 'Runs of a loop of this process that were abandoned because they made no progress for two periods',
  labelNames: ['loop'],
  registers,
})

export const telemetryDropped = new Counter({
  name: 'muster_telemetry_dropped_total',
  help: 'Spans that were not exported, by reason (buffer, limit, queue, export, shutdown, unit); exports of metrics that failed (metrics)',
  labelNames: ['reason'],
  registers,
})

let processCollected = false

/** Interval of event loop delay measurements. At 10 ms they cost an idle process 4 ms of CPU time per second. */
const LAG_PRECISION_MS = 50

/** Registers metrics of memory, CPU time, garbage collection, open files and event loop delay, once per process. */
export function collectProcess(): void {
  if (processCollected) return
  processCollected = true
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: LAG_PRECISION_MS })
}

type Depth = {
  queue: string
  concern: string
  waiting: number
  delayed: number
  active: number
  dead: number
  oldest_seconds: number
}

const READ_BUDGET_MS = 2000

/**
 * Returns a source that reads the database: concurrent gauges share one read. A scrape does not wait for an unresponsive
 * database; gauges are omitted if the read fails or exceeds READ_BUDGET_MS.
 */
function databaseSource<T>() {
  let read: () => Promise<readonly T[]> = async () => []
  let reading: Promise<readonly T[]> | undefined
  return {
    set(source: () => Promise<readonly T[]>): void {
      read = source
    },
    async rows(): Promise<readonly T[]> {
      reading ??= read()
        .catch(() => [])
        .finally(() => {
          reading = undefined
        })
      let timer: NodeJS.Timeout | undefined
      const late = new Promise<readonly T[]>(resolve => {
        timer = setTimeout(() => resolve([]), READ_BUDGET_MS)
      })
      return Promise.race([reading, late]).finally(() => clearTimeout(timer))
    },
  }
}

const depths = databaseSource<Depth>()
const ages = databaseSource<{ concern: string; seconds: number }>()

const backlogs = databaseSource<{ setting: string; records: number }>()

/** Sets the source of the gauge of retention backlogs. */
export const reportBacklogs = backlogs.set

/** Sets the source of the queue gauges. */
export const setQueueDepthSource = depths.set

/** Sets the source of the age of rows that wait for a worker but have no message. */
export const reportWaitingRows = ages.set

new Gauge({
  name: 'muster_queue_messages',
  help: 'Messages by queue and state: waiting, delayed, active',
  labelNames: ['queue', 'state'],
  registers,
  async collect() {
    const rows = await depths.rows()
    this.reset()
    for (const row of rows) {
      for (const state of ['waiting', 'delayed', 'active'] as const) this.set({ queue: row.queue, state }, row[state])
    }
  },
})

// The second name is deprecated and ends with release 0.3.
for (const name of ['muster_queue_age_seconds', 'muster_queue_oldest_seconds'])
  new Gauge({
    name,
    help: 'Age of the oldest due message of a queue, from its due time',
    labelNames: ['queue'],
    registers,
    async collect() {
      const rows = await depths.rows()
      this.reset()
      for (const row of rows) this.set({ queue: row.queue }, row.oldest_seconds)
    },
  })

new Gauge({
  name: 'muster_dead_letters',
  help: 'Messages in the dead-letter queue of a queue',
  labelNames: ['queue'],
  registers,
  async collect() {
    const rows = await depths.rows()
    this.reset()
    for (const row of rows) this.set({ queue: row.queue }, row.dead)
  },
})

/** Use of the database connections of a process. */
export type PoolUse = {
  most: number
  in_use: number
  idle: number
  /** Work waiting for a connection. */
  waiting: number
  /** Work waiting because its project uses its share of the connections. */
  held_back: number
}

let readPool: () => PoolUse | null = () => null

/** Sets the source of the pool gauges. */
export function reportPool(read: () => PoolUse): void {
  readPool = read
}

new Gauge({
  name: 'muster_database_connections',
  help: 'Database connections of this process by state: in_use, idle, and max, the maximum',
  labelNames: ['state'],
  registers,
  collect() {
    this.reset()
    const use = readPool()
    if (!use) return
    this.set({ state: 'in_use' }, use.in_use)
    this.set({ state: 'idle' }, use.idle)
    this.set({ state: 'max' }, use.most)
  },
})

new Gauge({
  name: 'muster_database_waiting',
  help: 'Work of this process waiting for a connection, because none is free (pool) or its project uses its share (project)',
  labelNames: ['reason'],
  registers,
  collect() {
    this.reset()
    const use = readPool()
    if (!use) return
    this.set({ reason: 'pool' }, use.waiting)
    this.set({ reason: 'project' }, use.held_back)
  },
})

/** Slots of a queue in this process: total, held, and held by work with a valid lease. */
export type Slots = { queue: string; total: number; held: number; working: number }

const slotReaders = new Set<() => readonly Slots[]>()

/** Adds a source of the slot gauge. Returns a function that removes it. */
export function reportSlots(read: () => readonly Slots[]): () => void {
  slotReaders.add(read)
  return () => slotReaders.delete(read)
}

new Gauge({
  name: 'muster_worker_slots',
  help: 'Slots of this process by queue and state: total, held, and working (held by work with a valid lease)',
  labelNames: ['queue', 'state'],
  registers,
  collect() {
    this.reset()
    for (const { queue, ...states } of [...slotReaders].flatMap(read => read()))
      for (const state of ['total', 'held', 'working'] as const) this.set({ queue, state }, states[state])
  },
})

// Declared after the pool gauges, because its read uses a connection.
new Gauge({
  name: 'muster_work_oldest_seconds',
  help: 'Age of the oldest work of a concern that waits for a worker, as a due message or as a row',
  labelNames: ['concern'],
  registers,
  async collect() {
    const [messages, rows] = await Promise.all([depths.rows(), ages.rows()])
    this.reset()
    const oldest = new Map<string, number>()
    const found = [...messages.map(({ concern, oldest_seconds: seconds }) => ({ concern, seconds })), ...rows]
    for (const { concern, seconds } of found) oldest.set(concern, Math.max(oldest.get(concern) ?? 0, seconds))
    for (const [concern, seconds] of oldest) this.set({ concern }, seconds)
  },
})

new Gauge({
  name: 'muster_retention_backlog_records',
  help: 'Expired records that the last retention sweeps left, by setting',
  labelNames: ['setting'],
  registers,
  async collect() {
    const rows = await backlogs.rows()
    this.reset()
    for (const { setting, records } of rows) this.set({ setting }, records)
  },
})
