import { Counter, Gauge, Histogram, Registry } from 'prom-client'

/** What /metrics prints. Metrics of core are declared here, those of a module in its module.ts. */
export const registry = new Registry()

const registers = [registry]

export const requests = new Counter({
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

export const attempts = new Counter({
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

type Depth = {
  queue: string
  waiting: number
  delayed: number
  active: number
  dead: number
  oldest_seconds: number
}

let readDepths: () => Promise<Depth[]> = async () => []
let reading: Promise<Depth[]> | undefined

/** Sets the source of the queue gauges: read once per scrape. A failing read leaves them out of that scrape. */
export function reportQueues(read: () => Promise<Depth[]>): void {
  readDepths = read
}

const READ_BUDGET_MS = 2000

/** One read for the three gauges, which are collected side by side. A scrape does not wait for a silent database. */
async function depths(): Promise<Depth[]> {
  reading ??= readDepths()
    .catch(() => [])
    .finally(() => {
      reading = undefined
    })
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<Depth[]>(resolve => {
    timer = setTimeout(() => resolve([]), READ_BUDGET_MS)
  })
  return Promise.race([reading, late]).finally(() => clearTimeout(timer))
}

new Gauge({
  name: 'muster_queue_messages',
  help: 'Messages by queue and state: waiting, delayed, active',
  labelNames: ['queue', 'state'],
  registers,
  async collect() {
    const rows = await depths()
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
    const rows = await depths()
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
    const rows = await depths()
    this.reset()
    for (const row of rows) this.set({ queue: row.queue }, row.dead)
  },
})
