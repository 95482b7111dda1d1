import { createHash } from 'node:crypto'
import { schedule } from 'node-cron'
import type { Logger } from 'pino'
import type { Config } from '../../config.ts'
import type { Notifications } from '../db/notify.ts'
import type { Services } from '../process/services.ts'
import type { Handler, Schedule } from './handler.ts'
import { type Queues, wakeChannel } from './queue.ts'
import { QueueLoop } from './queue-loop.ts'

export type Workers = {
  /** When a queue was last polled with success; null before the first time. */
  lastPoll(): Date | null
  /** Messages being handled. */
  running(): number
  /**
   * Stops: takes no more messages, signals the handlers (`stopping`), waits up to `graceMs`, then aborts (`signal`) what
   * still runs, waits a second for it to leave and gives its messages back. Returns how many were given back.
   */
  stop(graceMs: number): Promise<{ handedBack: number }>
}

/**
 * Runs handlers and schedules in this process until stopped. `concurrency` is the number of slots of a handler that names
 * none; with a `projectShare` below 1 one project holds at most that share of a handler's slots while messages of others
 * wait, and all but one when none do. `listen` wakes the loops; without it they poll every `pollMs` (default 1 s).
 * `onPoll` is called after a successful poll, at most once per `onPollMs` (default 5 s).
 */
export async function startWorkers(options: {
  services: Pick<Services, 'queues' | 'log' | 'config'>
  handlers: readonly Handler[]
  schedules?: readonly Schedule[]
  concurrency: number
  projectShare?: number
  listen?: Notifications
  onPoll?: () => unknown
  onPollMs?: number
  pollMs?: number
}): Promise<Workers> {
  const { services, handlers, schedules = [], listen, onPollMs = 5000 } = options
  const { queues, log, config } = services
  const stopping = new AbortController()
  let lastPoll: Date | null = null
  let lastReport = 0

  const polled = () => {
    lastPoll = new Date()
    if (!options.onPoll || lastPoll.getTime() - lastReport < onPollMs) return
    lastReport = lastPoll.getTime()
    const failed = (error: unknown) => log.error({ err: error }, 'poll report failed')
    try {
      Promise.resolve(options.onPoll()).catch(failed)
    } catch (error) {
      failed(error)
    }
  }

  const loops = new Map<string, QueueLoop>()
  for (const handler of handlers) {
    const { name } = handler.queue
    if (loops.has(name)) throw new Error(`queue ${name} has two handlers`)
    loops.set(
      name,
      new QueueLoop({
        services,
        handler,
        stopping: stopping.signal,
        slots: handler.concurrency ?? options.concurrency,
        projectShare: options.projectShare ?? 1,
        pollMs: options.pollMs ?? 1000,
        polled,
      }),
    )
  }

  const unlisten = listen?.listen(wakeChannel, name => loops.get(name)?.wake(), {
    onReconnect: () => {
      for (const loop of loops.values()) loop.wake()
    },
  })
  await unlisten?.ready
  for (const loop of loops.values()) loop.start()
  const stopSchedules = schedules.map(schedule => startSchedule(schedule, config, queues, log))

  return {
    lastPoll: () => lastPoll,
    running: () => [...loops.values()].reduce((sum, loop) => sum + loop.running, 0),
    async stop(graceMs) {
      for (const stopSchedule of stopSchedules) stopSchedule()
      stopping.abort(new Error('worker stops'))
      const counts = await Promise.all([...loops.values()].map(loop => loop.stop(graceMs)))
      unlisten?.()
      return { handedBack: counts.reduce((sum, count) => sum + count, 0) }
    },
  }
}

const SEND_RETRY_MS = [0, 1000, 5000, 15_000, 60_000]

function startSchedule(declared: Schedule, config: Config, queues: Queues, log: Logger): () => void {
  const { name, queue, data } = declared
  const when = typeof declared.when === 'function' ? declared.when(config) : declared.when
  let stopped = false
  let timer: NodeJS.Timeout | undefined

  const send = async (instant: Date) => {
    // The id makes it one message: every worker computes the same.
    const id = uuidOf(`${queue.name} ${name} ${instant.toISOString()}`)
    for (const delay of SEND_RETRY_MS) {
      await new Promise(resolve => setTimeout(resolve, delay).unref())
      if (stopped) return
      try {
        await queues.send([{ queue, data: data(instant), id }])
        return
      } catch (error) {
        log.error({ err: error, schedule: name, instant }, 'scheduled message not sent')
      }
    }
  }

  if (typeof when === 'string') {
    const task = schedule(when, ({ date }) => send(new Date(Math.floor(date.getTime() / 1000) * 1000)), {
      timezone: 'UTC',
      name,
    })
    return () => {
      stopped = true
      void task.destroy()
    }
  }

  const period = when * 1000
  const next = () => {
    timer = setTimeout(
      () => {
        void send(new Date(Math.floor(Date.now() / period) * period))
        next()
      },
      period - (Date.now() % period),
    )
  }
  next()
  return () => {
    stopped = true
    clearTimeout(timer)
  }
}

function uuidOf(text: string): string {
  const hex = createHash('sha256').update(text).digest('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`
}
