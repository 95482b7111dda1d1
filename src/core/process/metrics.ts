import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'

/** What /metrics prints. Metrics of core are declared here, those of a module in its module.ts. */
export const registry = new Registry()

const registers = [registry]

export const httpRequests = new Counter({
  name: 'muster_requests_total',
  help: 'HTTP requests answered',
  labelNames: ['method', 'route', 'status'],
  registers,
})

export const requestDuration = new Histogram({
  name: 'muster_request_duration_seconds',
  help: 'Time from the request to its answer',
  labelNames: ['method', 'route', 'status'],
  buckets: [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300],
  registers,
})

export const messageAttempts = new Counter({
  name: 'muster_attempts_total',
  help: 'Attempts at messages by what became of them: done, retry, dead, handed_back',
  labelNames: ['queue', 'outcome'],
  registers,
})

export const leasesLost = new Counter({
  name: 'muster_leases_lost_total',
  help: 'Attempts whose lease ran out while their handler was running here',
  labelNames: ['queue'],
  registers,
})

let processCollected = false

/**
 * Milliseconds between two measurements of the event loop's delay: at 10 they take 4 ms of processor time a second, which an idle
 * process does not take otherwise.
 */
const LAG_PRECISION_MS = 50

/** Adds memory, processor time, garbage collection, open files and the delay of the event loop of this process, once. */
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
 * A source that reads the database: once for all gauges of a scrape, and not again while it is under way. A scrape does not
 * wait for a silent database; a read that fails or is late leaves its gauges out.
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

/** Sets the source of the queue gauges. */
export const setQueueDepthSource = depths.set

/** Sets the source of the age of rows that wait for a worker without a message. */
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

new Gauge({
  name: 'muster_queue_oldest_seconds',
  help: 'How long the oldest due message of a queue has been due',
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
  help: 'Messages in the dead letter queue of a queue',
  labelNames: ['queue'],
  registers,
  async collect() {
    const rows = await depths.rows()
    this.reset()
    for (const row of rows) this.set({ queue: row.queue }, row.dead)
  },
})

/** How the connections of a process to the database are used. */
export type PoolUse = {
  most: number
  in_use: number
  idle: number
  /** Work that waits for a connection. */
  waiting: number
  /** Work that waits because its project holds as many as it may. */
  held_back: number
}

let readPool: () => PoolUse | null = () => null

/** Sets the source of the gauges of the pool. */
export function reportPool(read: () => PoolUse): void {
  readPool = read
}

new Gauge({
  name: 'muster_database_connections',
  help: 'Connections of the pool of this process by state: in_use, idle, and max, how many there may be',
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
  help: 'Work of this process that waits for a connection, because none is free (pool) or its project has its part (project)',
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

/** Slots of a queue in this process: how many there are, those held, and those of them whose work is alive. */
export type Slots = { queue: string; total: number; held: number; working: number }

let readSlots: () => readonly Slots[] = () => []

/** Sets the source of the gauge of slots. */
export function reportSlots(read: () => readonly Slots[]): void {
  readSlots = read
}

new Gauge({
  name: 'muster_worker_slots',
  help: 'Slots of this process by queue and state: total, held, and working, those held by work that still has its lease',
  labelNames: ['queue', 'state'],
  registers,
  collect() {
    this.reset()
    for (const { queue, ...states } of readSlots())
      for (const state of ['total', 'held', 'working'] as const) this.set({ queue, state }, states[state])
  },
})

// Collected behind the gauges of the pool, which its read takes a connection of.
new Gauge({
  name: 'muster_work_oldest_seconds',
  help: 'How long the oldest work of a concern has waited for a worker, as a due message or as a row',
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
