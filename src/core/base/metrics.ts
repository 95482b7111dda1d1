import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import type { CellIdentity } from './current-cell.ts'

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
  help: 'Database connections that this process ended: unresponsive server, dead or lost connection, statement over its limit, read-only server',
  labelNames: ['reason'],
  registers,
})

export const replicaReads = new Counter({
  name: 'muster_replica_reads_total',
  help: 'Statements that may run on the replica, by place (replica, primary) and reason: current, or why the primary: unavailable, lag, replay, busy, error',
  labelNames: ['place', 'reason'],
  registers,
})

export const replicaUp = new Gauge({
  name: 'muster_replica_up',
  help: 'Whether this process reads the replica',
  registers,
})

export const replicaLag = new Gauge({
  name: 'muster_replica_lag_seconds',
  help: 'Time for which the replica has not replayed a position of the primary',
  registers,
})

// Shown only with a replica.
replicaUp.remove()
replicaLag.remove()

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

/** A read for gauges, of the database of a cell in a deployment with several. */
export type CellRead<T> = { cell?: string; read(): Promise<readonly T[]> }

type OfCell<T> = T & { cell?: string }

/** Returns the label of a cell; none in a deployment without cells. */
const labelOf = (cell: string | undefined): { cell?: string } => (cell === undefined ? {} : { cell })

/**
 * Returns a source that reads the databases: concurrent gauges share one read of each. A scrape does not wait for an unresponsive
 * database; its gauges are omitted if the read fails or exceeds READ_BUDGET_MS.
 */
function databaseSource<T>() {
  let source: () => readonly CellRead<T>[] = () => []
  const reading = new Map<string | undefined, Promise<readonly T[] | null>>()
  const readCell = ({ cell, read }: CellRead<T>): Promise<readonly T[] | null> => {
    const running =
      reading.get(cell) ??
      read()
        .catch(() => null)
        .finally(() => reading.delete(cell))
    reading.set(cell, running)
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<null>(resolve => {
      timer = setTimeout(() => resolve(null), READ_BUDGET_MS)
    })
    return Promise.race([running, late]).finally(() => clearTimeout(timer))
  }
  const cells = () => Promise.all(source().map(async each => ({ cell: each.cell, rows: await readCell(each) })))
  return {
    set(reads: () => readonly CellRead<T>[]): void {
      source = reads
    },
    /** The rows of each cell; null if it does not answer in time. */
    cells,
    rows: async (): Promise<OfCell<T>[]> =>
      (await cells()).flatMap(({ cell, rows }) => (rows ?? []).map(row => ({ ...row, ...labelOf(cell) }))),
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
  labelNames: ['queue', 'state', 'cell'],
  registers,
  async collect() {
    const rows = await depths.rows()
    this.reset()
    for (const { cell, queue, ...row } of rows)
      for (const state of ['waiting', 'delayed', 'active'] as const)
        this.set({ queue, state, ...labelOf(cell) }, row[state])
  },
})

// The second name is deprecated and ends with release 0.3.
for (const name of ['muster_queue_age_seconds', 'muster_queue_oldest_seconds'])
  new Gauge({
    name,
    help: 'Age of the oldest due message of a queue, from its due time',
    labelNames: ['queue', 'cell'],
    registers,
    async collect() {
      const rows = await depths.rows()
      this.reset()
      for (const { cell, queue, oldest_seconds } of rows) this.set({ queue, ...labelOf(cell) }, oldest_seconds)
    },
  })

new Gauge({
  name: 'muster_dead_letters',
  help: 'Messages in the dead-letter queue of a queue',
  labelNames: ['queue', 'cell'],
  registers,
  async collect() {
    const rows = await depths.rows()
    this.reset()
    for (const { cell, queue, dead } of rows) this.set({ queue, ...labelOf(cell) }, dead)
  },
})

new Gauge({
  name: 'muster_cell_up',
  help: 'Whether the database of a cell answers this process, in a deployment with cells',
  labelNames: ['cell'],
  registers,
  async collect() {
    const cells = await depths.cells()
    this.reset()
    for (const { cell, rows } of cells) if (cell !== undefined) this.set({ cell }, rows === null ? 0 : 1)
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

/** Pools of cells and of the replica. */
type OfDatabase<T> = OfCell<T> & { database?: 'replica' }

/** Returns the labels of a pool. */
const poolLabels = ({ cell, database }: OfDatabase<object>) => ({ ...labelOf(cell), ...(database && { database }) })

let readPools: () => readonly OfDatabase<PoolUse>[] = () => []

/** Sets the source of the pool gauges, one for each cell and one for the replica. */
export function reportPools(read: () => readonly OfDatabase<PoolUse>[]): void {
  readPools = read
}

new Gauge({
  name: 'muster_database_connections',
  help: 'Database connections of this process by state: in_use, idle, and max, the maximum',
  labelNames: ['state', 'cell', 'database'],
  registers,
  collect() {
    this.reset()
    for (const { in_use, idle, most, ...pool } of readPools())
      for (const [state, value] of Object.entries({ in_use, idle, max: most }))
        this.set({ state, ...poolLabels(pool) }, value)
  },
})

new Gauge({
  name: 'muster_database_waiting',
  help: 'Work of this process waiting for a connection, because none is free (pool) or its project uses its share (project)',
  labelNames: ['reason', 'cell', 'database'],
  registers,
  collect() {
    this.reset()
    for (const { waiting, held_back, ...pool } of readPools()) {
      this.set({ reason: 'pool', ...poolLabels(pool) }, waiting)
      this.set({ reason: 'project', ...poolLabels(pool) }, held_back)
    }
  },
})

/** Slots of a queue in this process: total, held, and held by work with a valid lease. */
export type Slots = { queue: string; total: number; held: number; working: number }

const slotReaders = new Set<() => readonly OfCell<Slots>[]>()

/** Adds a source of the slot gauge, of the cell of `services`. Returns a function that removes it. */
export function reportSlots(services: { cell?: CellIdentity | null }, read: () => readonly Slots[]): () => void {
  const ofCell = () => read().map(slots => ({ ...slots, ...labelOf(services.cell?.name) }))
  slotReaders.add(ofCell)
  return () => slotReaders.delete(ofCell)
}

new Gauge({
  name: 'muster_worker_slots',
  help: 'Slots of this process by queue and state: total, held, and working (held by work with a valid lease)',
  labelNames: ['queue', 'state', 'cell'],
  registers,
  collect() {
    this.reset()
    for (const { cell, queue, ...states } of [...slotReaders].flatMap(read => read()))
      for (const state of ['total', 'held', 'working'] as const)
        this.set({ queue, state, ...labelOf(cell) }, states[state])
  },
})

// Declared after the pool gauges, because its read uses a connection.
new Gauge({
  name: 'muster_work_oldest_seconds',
  help: 'Age of the oldest work of a concern that waits for a worker, as a due message or as a row',
  labelNames: ['concern', 'cell'],
  registers,
  async collect() {
    const [messages, rows] = await Promise.all([depths.rows(), ages.rows()])
    this.reset()
    const found = [...messages.map(({ oldest_seconds: seconds, ...row }) => ({ ...row, seconds })), ...rows]
    for (const all of Map.groupBy(found, ({ cell, concern }) => `${cell} ${concern}`).values()) {
      const [{ cell, concern }] = all
      this.set({ concern, ...labelOf(cell) }, Math.max(0, ...all.map(({ seconds }) => seconds)))
    }
  },
})

new Gauge({
  name: 'muster_retention_backlog_records',
  help: 'Expired records that the last retention sweeps left, by setting',
  labelNames: ['setting', 'cell'],
  registers,
  async collect() {
    const rows = await backlogs.rows()
    this.reset()
    for (const { cell, setting, records } of rows) this.set({ setting, ...labelOf(cell) }, records)
  },
})
