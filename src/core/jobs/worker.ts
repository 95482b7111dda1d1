import { createHash } from 'node:crypto'
import { schedule } from 'node-cron'
import type { Config } from '../../config.ts'
import type { Notifications } from '../db/notify.ts'
import type { Services } from '../process/services.ts'
import type { Handler, Schedule } from './handler.ts'
import { QueuePoller } from './poller.ts'
import { delayedChannel, IDLE_POLL_MS, wakeChannel } from './queue.ts'
import { QueueLoop } from './queue-loop.ts'

export type Workers = {
  /** Messages being handled. */
  running(): number
  /**
   * Stops: takes no more messages, signals the handlers (`stopping`), waits up to `graceMs`, or as long as a handler says for
   * itself, then aborts (`signal`) what still runs, waits a second for it to leave and gives its messages back. Returns how many
   * were given back.
   */
  stop(graceMs: number): Promise<{ handedBack: number }>
}

/**
 * Runs handlers and schedules in this process until stopped. `concurrency` is the number of slots of a handler that names
 * none; with a `projectShare` below 1 one project holds at most that share of a handler's slots while messages of others
 * wait, and all but one when none do. `listen` wakes the loops. All queues are polled together every `pollMs` (default
 * 1 s), or down to every `idleMs` (default 5 s) while notifications arrive and nothing is due. `onPoll` is called
 * after a successful poll.
 */
export async function startWorkers(options: {
  services: Pick<Services, 'queues' | 'log' | 'config'>
  handlers: readonly Handler[]
  schedules?: readonly Schedule[]
  concurrency: number
  projectShare?: number
  listen?: Notifications
  onPoll?: () => unknown
  pollMs?: number
  idleMs?: number
}): Promise<Workers> {
  const { services, handlers, schedules = [], listen } = options
  const stopping = new AbortController()

  const hears = () => listen?.healthy() ?? false
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
        slots: slotsOf(handler, services.config) ?? options.concurrency,
        projectShare: options.projectShare ?? 1,
        hears,
        takeSlotOf: (queue, project) => loops.get(queue.name)?.takeSlot(project) ?? null,
      }),
    )
  }

  const poller = new QueuePoller({
    services,
    loops,
    pollMs: options.pollMs ?? 1000,
    idleMs: options.idleMs ?? IDLE_POLL_MS,
    hears,
    onPoll: options.onPoll,
  })
  const unlisten = [
    listen?.listen(
      wakeChannel,
      name => {
        loops.get(name)?.claimNow()
        if (loops.has(name)) poller.pollSoon()
      },
      {
        onDown: () => poller.pollSoon(),
        onReconnect: () => {
          for (const loop of loops.values()) loop.claimNow()
          poller.pollSoon()
        },
      },
    ),
    listen?.listen(delayedChannel, name => loops.has(name) && poller.pollSoon()),
  ]
  await Promise.all(unlisten.map(end => end?.ready))
  for (const loop of loops.values()) loop.start()
  if (loops.size > 0) poller.start()
  const stopSchedules = schedules.map(schedule => startSchedule(schedule, services as Services))

  return {
    running: () => [...loops.values()].reduce((sum, loop) => sum + loop.running, 0),
    async stop(graceMs) {
      for (const stopSchedule of stopSchedules) stopSchedule()
      stopping.abort(new Error('worker stops'))
      poller.stop()
      const counts = await Promise.all([...loops.values()].map(loop => loop.stop(graceMs)))
      for (const end of unlisten) end?.()
      return { handedBack: counts.reduce((sum, count) => sum + count, 0) }
    },
  }
}

const SEND_RETRY_MS = [0, 1000, 5000, 15_000, 60_000]

function startSchedule(declared: Schedule, services: Services): () => void {
  const { config, queues, log } = services
  const { name, queue, data, isDue } = declared
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
        if (!isDue || (await isDue(services))) await queues.send([{ queue, data: data(instant), id }])
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

const slotsOf = ({ concurrency }: Handler, config: Config): number | undefined =>
  typeof concurrency === 'function' ? concurrency(config) : concurrency
