import { Worker } from 'node:worker_threads'
import { LRUCache } from 'lru-cache'
import { type AppError, serviceNotReady } from '../base/errors.ts'
import type { Logger } from '../base/log.ts'
import { threadEnvironment } from '../base/thread-environment.ts'
import type { ThreadAnswer, ThreadRequest } from './worker.ts'

/**
 * A kind of pure work that runs in threads: a module that exports the function `run`. The function bounds its processor
 * time itself (cpu-limit.ts); its input and output are structured clones.
 */
export type ThreadTask<Input, Output> = {
  /** Name in errors and logs, plural. */
  name: string
  module: string
  run?: (input: Input) => Output
}

/** Declares a task by the URL of its module, which is loaded only in threads. */
export const threadTask = <Module extends { run(input: never): unknown }>(
  name: string,
  module: URL,
): ThreadTask<Parameters<Module['run']>[0], ReturnType<Module['run']>> => ({ name, module: module.href })

/** A run of a task for a project. */
export type ThreadJob<Input, Output> = {
  task: ThreadTask<Input, Output>
  project: string
  /** Identifies what a thread caches. */
  key?: string
  input: Input
  /** Approximate characters of the input. */
  length: number
}

/** Outcome of a job: its output and processor time, or the limit that ended it. */
export type ThreadOutcome<Output> = { output: Output; ms: number } | { broke: 'time' | 'memory' }

export type WaitOptions = {
  /** Removes a waiting job from its queue and rejects with the reason. */
  signal?: AbortSignal
  /** Longest wait for a thread, default 30 s. */
  waitMs?: number
}

/** Most waiting jobs of one project in a process, and most characters of them. */
const MAX_WAITING = 1000
const MAX_WAITING_LENGTH = 16 * 1024 * 1024
/** Longest wait for a thread. */
const WAIT_MS = 30_000
/** Processor time budget of a project, and the fraction of real time by which it refills: fully in 20 seconds. */
const BURST_MS = 5000
const SHARE = 0.25
/** Time after which a thread counts as stuck: every job is interrupted long before. */
const STUCK_MS = 120_000
/** Highest charge for a job whose thread has exited. */
const MAX_CHARGE_MS = 2000
/** Heap of a thread, far above its caches and the allocations possible within the time limits. */
const HEAP_MB = 256

type PendingJob = {
  request: ThreadJob<any, any>
  /** Number of threads that ran out of memory with this job. */
  crashes: number
  settle(outcome: ThreadOutcome<any> | Error): void
}

type Thread = {
  worker: Worker
  job: PendingJob | null
  since: number
  timer: NodeJS.Timeout | undefined
  stuck: boolean
  /** Error by which the thread ended. */
  error: (Error & { code?: string }) | null
  /** Keys of its jobs. */
  keys: LRUCache<string, true>
}

const busyError = ({ task }: ThreadJob<any, any>, message: string): AppError =>
  serviceNotReady({ [task.name]: 'busy' }, { message, retryAfterSeconds: 5 })

const stoppingError = (request: ThreadJob<any, any>): AppError => busyError(request, 'The process is stopping')

/**
 * Worker threads of a process for work on data of callers that takes too long for the event loop. Each project has a
 * queue; the project with the largest remaining budget of processor time is served first. With several threads one
 * project never occupies all of them.
 */
export class ThreadPool {
  readonly #log: Logger
  readonly #maxThreads: number
  readonly #program: URL
  readonly #waitMs: number
  readonly #stuckMs: number
  readonly #threads: Thread[] = []
  /** By project; no queue is empty. */
  readonly #waiting = new Map<string, PendingJob[]>()
  /** Remaining processor time of a project at a time; a project without an entry has its full budget. */
  readonly #budgets = new LRUCache<string, { ms: number; at: number }>({ max: 10_000, ttl: BURST_MS / SHARE })
  #refill: NodeJS.Timeout | undefined
  #closed = false

  /** @param options.program program of the threads, default worker.ts */
  constructor(options: { threads: number; log: Logger; program?: URL; waitMs?: number; stuckMs?: number }) {
    this.#log = options.log
    this.#maxThreads = options.threads
    this.#program = options.program ?? new URL('./worker.ts', import.meta.url)
    this.#waitMs = options.waitMs ?? WAIT_MS
    this.#stuckMs = options.stuckMs ?? STUCK_MS
  }

  /**
   * Runs a job in the turn of its project.
   * @throws SERVICE_NOT_READY if too many jobs of the project are waiting, the job has waited too long, or the pool is closed
   */
  run<Input, Output>(
    request: ThreadJob<Input, Output>,
    { signal, waitMs = this.#waitMs }: WaitOptions = {},
  ): Promise<ThreadOutcome<Output>> {
    signal?.throwIfAborted()
    if (this.#closed) return Promise.reject(stoppingError(request))
    const queue = this.#waiting.get(request.project) ?? []
    const length = queue.reduce((sum, { request }) => sum + request.length, request.length)
    if (queue.length > 0 && (queue.length >= MAX_WAITING || length > MAX_WAITING_LENGTH))
      return Promise.reject(busyError(request, `${queue.length} jobs of the project are waiting for a thread`))
    return new Promise((resolve, reject) => {
      const settle: PendingJob['settle'] = outcome => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', onAbort)
        if (outcome instanceof Error) reject(outcome)
        else resolve(outcome)
      }
      const job: PendingJob = { request, crashes: 0, settle }
      const onAbort = () => {
        this.#dequeue(job)
        settle(signal?.reason)
      }
      const timer = setTimeout(() => {
        if (this.#dequeue(job)) settle(busyError(request, 'The project has used up its processor time in threads'))
      }, waitMs)
      signal?.addEventListener('abort', onAbort, { once: true })
      this.#waiting.set(request.project, [...queue, job])
      this.#dispatch()
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#refill)
    for (const queue of this.#waiting.values()) for (const job of queue) job.settle(stoppingError(job.request))
    this.#waiting.clear()
    await Promise.all(this.#threads.map(({ worker }) => worker.terminate()))
  }

  /** Assigns waiting jobs to threads. */
  #dispatch(): void {
    while (!this.#closed && (this.#threads.length < this.#maxThreads || this.#findIdle())) {
      const job = this.#dequeueNext()
      if (!job) return
      this.#assign(this.#findIdle(job.request.key) ?? this.#startThread(), job)
    }
  }

  /** Returns an idle thread, preferably a thread that has run a job with the same key. */
  #findIdle(key?: string): Thread | undefined {
    const idle = this.#threads.filter(({ job, stuck, error }) => job === null && !stuck && error === null)
    return idle.find(({ keys }) => key !== undefined && keys.has(key)) ?? idle[0]
  }

  /** Whether a project occupies all the threads that one project may have. */
  #isFull(project: string): boolean {
    const limit = Math.max(1, this.#maxThreads - 1)
    return this.#threads.filter(({ job }) => job?.request.project === project).length >= limit
  }

  /** Removes the next job from its queue. */
  #dequeueNext(): PendingJob | null {
    let first: { project: string; left: number } | null = null
    for (const project of this.#waiting.keys()) {
      if (this.#isFull(project)) continue
      const left = this.#remainingMs(project)
      if (!first || left > first.left) first = { project, left }
    }
    if (!first) return null
    if (first.left <= 0) {
      clearTimeout(this.#refill)
      this.#refill = setTimeout(() => this.#dispatch(), 1 - first.left / SHARE)
      return null
    }
    const [job] = this.#waiting.get(first.project) as PendingJob[]
    this.#dequeue(job)
    return job
  }

  /** Removes a job from its queue. Returns false if it is no longer there. */
  #dequeue(job: PendingJob): boolean {
    const { project } = job.request
    const queue = this.#waiting.get(project) ?? []
    const remaining = queue.filter(other => other !== job)
    if (remaining.length > 0) this.#waiting.set(project, remaining)
    else this.#waiting.delete(project)
    return remaining.length < queue.length
  }

  #remainingMs(project: string): number {
    const budget = this.#budgets.get(project)
    return budget ? Math.min(BURST_MS, budget.ms + SHARE * (performance.now() - budget.at)) : BURST_MS
  }

  #assign(thread: Thread, job: PendingJob): void {
    const { worker } = thread
    thread.job = job
    thread.since = performance.now()
    thread.timer = setTimeout(() => {
      thread.stuck = true
      void worker.terminate()
    }, this.#stuckMs)
    worker.ref()
    const { task, input } = job.request
    worker.postMessage({ module: task.module, input } satisfies ThreadRequest)
  }

  /** Removes the finished job from its thread, charges its project and returns it. */
  #finish(thread: Thread, ms: number): PendingJob | null {
    clearTimeout(thread.timer)
    const { job } = thread
    thread.job = null
    if (job) {
      const { project } = job.request
      this.#budgets.set(project, { ms: this.#remainingMs(project) - ms, at: performance.now() })
    }
    return job
  }

  #startThread(): Thread {
    const worker = new Worker(this.#program, {
      name: 'threads',
      env: threadEnvironment(),
      resourceLimits: { maxOldGenerationSizeMb: HEAP_MB, maxYoungGenerationSizeMb: 16 },
    })
    const keys = new LRUCache<string, true>({ max: 500 })
    const thread: Thread = { worker, job: null, since: 0, timer: undefined, stuck: false, error: null, keys }
    worker.on('message', (answer: ThreadAnswer) => {
      const job = this.#finish(thread, answer.ms)
      worker.unref()
      if (job?.request.key) keys.set(job.request.key, true)
      job?.settle('starved' in answer ? busyError(job.request, 'The machine is too busy') : answer)
      this.#dispatch()
    })
    worker.on('error', error => {
      thread.error = error
    })
    worker.on('exit', () => {
      this.#threads.splice(this.#threads.indexOf(thread), 1)
      this.#onExit(thread)
      this.#dispatch()
    })
    this.#threads.push(thread)
    return thread
  }

  /** Settles or repeats the job of a thread that has exited. */
  #onExit(thread: Thread): void {
    const { error, stuck } = thread
    const job = this.#finish(thread, Math.min(MAX_CHARGE_MS, performance.now() - thread.since))
    if (!this.#closed)
      this.#log.warn(
        { err: error, stuck, project_id: job?.request.project, task: job?.request.task.name },
        'thread replaced',
      )
    if (!job) return
    job.crashes++
    if (this.#closed) job.settle(stoppingError(job.request))
    else if (stuck) job.settle({ broke: 'time' })
    else if (error && error.code !== 'ERR_WORKER_OUT_OF_MEMORY') job.settle(error)
    else if (job.crashes > 1) job.settle({ broke: 'memory' })
    else {
      // Repeated once: the memory may have been used by previous jobs of the thread.
      const { project } = job.request
      this.#waiting.set(project, [job, ...(this.#waiting.get(project) ?? [])])
    }
  }
}
