import { Worker } from 'node:worker_threads'
import { LRUCache } from 'lru-cache'
import { type AppError, serviceNotReady } from '../api/errors.ts'
import type { Logger } from '../process/log.ts'
import type { SchemaAnswer, SchemaJob } from './check-worker.ts'

/** What became of a job: its answer, or what it did to its threads. */
export type SchemaOutcome = Exclude<SchemaAnswer, { starved: true }> | { broke: 'time' | 'memory' }

/** What may wait of one project in a process: jobs, and characters of them. */
const MAX_WAITING = 1000
const MAX_WAITING_LENGTH = 16 * 1024 * 1024
/** Longest wait for a thread. */
const WAIT_MS = 30_000
/**
 * Processor time that a project may use at once, and what comes back to it each second: all of it in 20 seconds without
 * a job.
 */
const BURST_MS = 5000
const SHARE = 0.25
/** A thread that is busy for longer with one job is stuck: what it runs ends itself long before. */
const STUCK_MS = 120_000
/** What a job is charged at most whose thread has ended. */
const MAX_CHARGE_MS = 2000
/** Heap of a thread. What it keeps, and what the limits of time let a schema allocate, stay far below. */
const HEAP_MB = 256

type Job = {
  ask: SchemaJob
  /** Threads that ran out of memory with it. */
  deaths: number
  end(outcome: SchemaOutcome | Error): void
}

type Thread = {
  worker: Worker
  job: Job | null
  since: number
  timer: NodeJS.Timeout | undefined
  stuck: boolean
  /** What it ended with. */
  error: (Error & { code?: string }) | null
  /** Schemas it has compiled, by key. */
  known: LRUCache<string, true>
}

const busy = (message: string): AppError => serviceNotReady({ schemas: 'busy' }, { message, retryAfterSeconds: 5 })

/**
 * The threads of a process that compile and run schemas of callers. Each project has a queue, and the one that has most
 * of its processor time left goes first. One project never has all threads, where there are several.
 */
export class SchemaWorkerPool {
  readonly #log: Logger
  readonly #most: number
  readonly #program: URL
  readonly #waitMs: number
  readonly #stuckMs: number
  readonly #threads: Thread[] = []
  /** By project; no queue is empty. */
  readonly #waiting = new Map<string, Job[]>()
  /** Processor time that is left to a project, as of a time; whoever is not here has all of it. */
  readonly #left = new LRUCache<string, { ms: number; at: number }>({ max: 10_000, ttl: BURST_MS / SHARE })
  #refill: NodeJS.Timeout | undefined
  #closed = false

  /** @param options.program what its threads run; default thread.ts */
  constructor(options: { threads: number; log: Logger; program?: URL; waitMs?: number; stuckMs?: number }) {
    this.#log = options.log
    this.#most = options.threads
    this.#program = options.program ?? new URL('./check-worker.ts', import.meta.url)
    this.#waitMs = options.waitMs ?? WAIT_MS
    this.#stuckMs = options.stuckMs ?? STUCK_MS
  }

  /** Whether a value would be checked at once against a schema that is compiled already. */
  isReady({ project, key }: Pick<SchemaJob, 'project' | 'key'>): boolean {
    return (
      this.#waiting.size === 0 &&
      !this.#isFull(project) &&
      this.#leftTo(project) > 0 &&
      (this.#idle(key)?.known.has(key) ?? false)
    )
  }

  /**
   * Carries out a job when it is its turn.
   * @param signal takes a job out of its queue; its reason is thrown
   * @throws SERVICE_NOT_READY when too much of the project waits, or it has waited for too long
   */
  run(ask: SchemaJob, signal?: AbortSignal): Promise<SchemaOutcome> {
    signal?.throwIfAborted()
    const queue = this.#waiting.get(ask.project) ?? []
    const length = queue.reduce((sum, { ask }) => sum + lengthOf(ask), lengthOf(ask))
    if (queue.length > 0 && (queue.length >= MAX_WAITING || length > MAX_WAITING_LENGTH))
      return Promise.reject(busy(`${queue.length} checks against JSON Schemas of the project are waiting`))
    return new Promise<SchemaOutcome>((resolve, reject) => {
      const end = (outcome: SchemaOutcome | Error) => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', leave)
        if (outcome instanceof Error) reject(outcome)
        else resolve(outcome)
      }
      const job: Job = { ask, deaths: 0, end }
      const leave = () => {
        this.#take(job)
        end(signal?.reason)
      }
      const timer = setTimeout(() => {
        if (this.#take(job)) end(busy('The JSON Schemas of the project have used up their processor time'))
      }, this.#waitMs)
      signal?.addEventListener('abort', leave, { once: true })
      this.#waiting.set(ask.project, [...queue, job])
      this.#dispatch()
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#refill)
    for (const queue of this.#waiting.values()) for (const job of queue) job.end(busy('The process is stopping'))
    this.#waiting.clear()
    await Promise.all(this.#threads.map(({ worker }) => worker.terminate()))
  }

  /** Gives jobs to threads. */
  #dispatch(): void {
    while (!this.#closed && (this.#threads.length < this.#most || this.#idle())) {
      const job = this.#next()
      if (!job) return
      this.#begin(this.#idle(job.ask.key) ?? this.#start(), job)
    }
  }

  /** A thread without a job, best one that knows a schema. */
  #idle(key?: string): Thread | undefined {
    const idle = this.#threads.filter(({ job, stuck, error }) => job === null && !stuck && error === null)
    return idle.find(({ known }) => key !== undefined && known.has(key)) ?? idle[0]
  }

  /** Whether a project has all the threads that one may have. */
  #isFull(project: string): boolean {
    const most = Math.max(1, this.#most - 1)
    return this.#threads.filter(({ job }) => job?.ask.project === project).length >= most
  }

  /** Takes the next job out of its queue. */
  #next(): Job | null {
    let first: { project: string; left: number } | null = null
    for (const project of this.#waiting.keys()) {
      if (this.#isFull(project)) continue
      const left = this.#leftTo(project)
      if (!first || left > first.left) first = { project, left }
    }
    if (!first) return null
    if (first.left <= 0) {
      clearTimeout(this.#refill)
      this.#refill = setTimeout(() => this.#dispatch(), 1 - first.left / SHARE)
      return null
    }
    const [job] = this.#waiting.get(first.project) as Job[]
    this.#take(job)
    return job
  }

  /** Takes a job out of its queue; false when it is no longer there. */
  #take(job: Job): boolean {
    const { project } = job.ask
    const queue = this.#waiting.get(project) ?? []
    const left = queue.filter(other => other !== job)
    if (left.length > 0) this.#waiting.set(project, left)
    else this.#waiting.delete(project)
    return left.length < queue.length
  }

  #leftTo(project: string): number {
    const left = this.#left.get(project)
    return left ? Math.min(BURST_MS, left.ms + SHARE * (performance.now() - left.at)) : BURST_MS
  }

  #begin(thread: Thread, job: Job): void {
    const { worker } = thread
    thread.job = job
    thread.since = performance.now()
    thread.timer = setTimeout(() => {
      thread.stuck = true
      void worker.terminate()
    }, this.#stuckMs)
    worker.ref()
    worker.postMessage(job.ask)
  }

  /** The job that a thread is done with, charged to its project. */
  #end(thread: Thread, ms: number): Job | null {
    clearTimeout(thread.timer)
    const { job } = thread
    thread.job = null
    if (job) {
      const { project } = job.ask
      this.#left.set(project, { ms: this.#leftTo(project) - ms, at: performance.now() })
    }
    return job
  }

  #start(): Thread {
    const worker = new Worker(this.#program, {
      name: 'schemas',
      env: {},
      resourceLimits: { maxOldGenerationSizeMb: HEAP_MB, maxYoungGenerationSizeMb: 16 },
    })
    const known = new LRUCache<string, true>({ max: 500 })
    const thread: Thread = { worker, job: null, since: 0, timer: undefined, stuck: false, error: null, known }
    worker.on('message', (answer: SchemaAnswer) => {
      const job = this.#end(thread, answer.ms)
      worker.unref()
      if (job && !('refused' in answer)) known.set(job.ask.key, true)
      job?.end('starved' in answer ? busy('The machine is too busy to check JSON Schemas') : answer)
      this.#dispatch()
    })
    worker.on('error', error => {
      thread.error = error
    })
    worker.on('exit', () => {
      this.#threads.splice(this.#threads.indexOf(thread), 1)
      this.#bury(thread)
      this.#dispatch()
    })
    this.#threads.push(thread)
    return thread
  }

  /** What becomes of the job of a thread that has ended. */
  #bury(thread: Thread): void {
    const { error, stuck } = thread
    const job = this.#end(thread, Math.min(MAX_CHARGE_MS, performance.now() - thread.since))
    if (!this.#closed)
      this.#log.warn({ err: error, stuck, project_id: job?.ask.project }, 'a thread for JSON Schemas is replaced')
    if (!job) return
    job.deaths++
    if (this.#closed) job.end(busy('The process is stopping'))
    else if (stuck) job.end({ broke: 'time' })
    else if (error && error.code !== 'ERR_WORKER_OUT_OF_MEMORY') job.end(error)
    else if (job.deaths > 1) job.end({ broke: 'memory' })
    else {
      // What other jobs have left in the thread may have been too much.
      const { project } = job.ask
      this.#waiting.set(project, [job, ...(this.#waiting.get(project) ?? [])])
    }
  }
}

const lengthOf = ({ text, values }: SchemaJob): number => values.reduce((sum, { length }) => sum + length, text.length)
