import { createHash } from 'node:crypto'
import { schedule } from 'node-cron'
import { z } from 'zod'
import type { Config } from '../../config.ts'
import type { Notifications } from '../db/notify.ts'
import { sql } from '../db/sql.ts'
import { reportSlots } from '../process/metrics.ts'
import type { Services } from '../process/services.ts'
import type { Handler, Schedule } from './handler.ts'
import { QueuePoller } from './poller.ts'
import { delayedChannel, IDLE_POLL_MS, wakeChannel } from './queue.ts'
import { QueueConsumer } from './queue-consumer.ts'

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
  const loops = new Map<string, QueueConsumer>()
  for (const handler of handlers) {
    const { name } = handler.queue
    if (loops.has(name)) throw new Error(`queue ${name} has two handlers`)
    loops.set(
      name,
      new QueueConsumer({
        services,
        handler,
        stopping: stopping.signal,
        slots: slotsOf(handler, services.config) ?? options.concurrency,
        projectShare: options.projectShare ?? 1,
        notificationsHealthy: hears,
        takeSlotOf: (queue, project) => loops.get(queue.name)?.tryAcquireSlot(project) ?? null,
      }),
    )
  }

  reportSlots(() => [...loops.values()].map(loop => loop.slots))
  const poller = new QueuePoller({
    services,
    loops,
    pollMs: options.pollMs ?? 1000,
    idleMs: options.idleMs ?? IDLE_POLL_MS,
    notificationsHealthy: hears,
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
  const stopSchedules = startSchedules(schedules, services as Services)

  return {
    running: () => [...loops.values()].reduce((sum, loop) => sum + loop.running, 0),
    async stop(graceMs) {
      stopSchedules()
      stopping.abort(new Error('worker stops'))
      poller.stop()
      const counts = await Promise.all([...loops.values()].map(loop => loop.stop(graceMs)))
      for (const end of unlisten) end?.()
      return { handedBack: counts.reduce((sum, count) => sum + count, 0) }
    },
  }
}

const SEND_RETRY_MS = [0, 1000, 5000, 15_000, 60_000]

/** Sends the messages of schedules at their instants; the result ends it. Those with the same instants are one statement. */
function startSchedules(schedules: readonly Schedule[], services: Services): () => void {
  const { config } = services
  const instants = Map.groupBy(schedules, ({ when }) => (typeof when === 'function' ? when(config) : when))
  const stops = [...instants].map(([when, together]) => startTogether(when, together, services))
  return () => {
    for (const stop of stops) stop()
  }
}

function startTogether(when: number | string, together: readonly Schedule[], services: Services): () => void {
  const { queues, log } = services
  let stopped = false
  let timer: NodeJS.Timeout | undefined

  const send = async (instant: Date) => {
    for (const delay of SEND_RETRY_MS) {
      await new Promise(resolve => setTimeout(resolve, delay).unref())
      if (stopped) return
      try {
        const messages = (await dueOf(together, services)).map(({ name, queue, data }) => ({
          queue,
          data: data(instant),
          // Makes it one message: every worker computes the same.
          id: uuidOf(`${queue.name} ${name} ${instant.toISOString()}`),
        }))
        if (messages.length > 0) await queues.send(messages)
        return
      } catch (error) {
        log.error({ err: error, schedules: together.map(({ name }) => name), instant }, 'scheduled messages not sent')
      }
    }
  }

  if (typeof when === 'string') {
    const task = schedule(when, ({ date }) => send(new Date(Math.floor(date.getTime() / 1000) * 1000)), {
      timezone: 'UTC',
      name: together.map(({ name }) => name).join(', '),
    })
    return () => {
      stopped = true
      void task.destroy()
    }
  }
  if (when === 0) return () => {}

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

const conditions = sql.type(z.record(z.string(), z.boolean()))

/** Those that have something to do. */
async function dueOf(schedules: readonly Schedule[], services: Services): Promise<Schedule[]> {
  const answers = schedules.flatMap(({ name, dueIf }) =>
    typeof dueIf === 'object' ? sql.fragment`${dueIf} as ${sql.identifier([name])}` : [],
  )
  const holds: Record<string, boolean> =
    answers.length > 0 ? await services.pool.one(conditions`select ${sql.join(answers, sql.fragment`, `)}`) : {}
  const isDue = await Promise.all(
    schedules.map(({ name, dueIf }) => (typeof dueIf === 'function' ? dueIf(services) : (holds[name] ?? true))),
  )
  return schedules.filter((_, index) => isDue[index])
}

function uuidOf(text: string): string {
  const hex = createHash('sha256').update(text).digest('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`
}

const slotsOf = ({ concurrency }: Handler, config: Config): number | undefined =>
  typeof concurrency === 'function' ? concurrency(config) : concurrency
