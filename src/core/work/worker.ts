import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { schedule } from 'node-cron'
import { z } from 'zod'
import { systemClock } from '../base/clock.ts'
import { settledWithin } from '../base/event-loop.ts'
import { reportSlots } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import type { Notifications } from '../db/notify.ts'
import { sql } from '../db/sql.ts'
import { delayedChannel, IDLE_POLL_MS, type QueueMessage, wakeChannel } from '../queues/queue.ts'
import { type BackgroundTask, type Handler, type Schedule, slotsOf } from './handler.ts'
import { filterUnstored } from './message-claims.ts'
import { QueuePoller } from './poller.ts'
import { messageSuspects, Quarantine } from './quarantine.ts'
import { QueueConsumer } from './queue-consumer.ts'

export type Workers = {
  /** Number of messages in handlers. */
  running(): number
  /**
   * Stops claiming, signals the handlers (`stopping`) and waits up to `graceMs`, or the handler's own grace period.
   * Then aborts the running handlers (`signal`), waits one more second and requeues their messages. Stops the background
   * tasks meanwhile. Returns the number of requeued messages. No grace period is longer than `mostMs`.
   */
  stop(graceMs: number, mostMs?: number): Promise<{ requeued: number }>
}

/**
 * Runs handlers, schedules and background tasks in this process until stopped. `concurrency` is the default number of slots per handler.
 * With a `projectShare` below 1, one project holds at most that share of a handler's slots while messages of other
 * projects wait, and all but one slot otherwise. Notifications of `listen` wake the consumers. All queues are polled
 * together every `pollMs` (default 1 s), and less often, down to every `idleMs` (default 5 s), while notifications
 * arrive and nothing is due. `onPoll` is called after each successful poll. `strictMs` is the longest time for which a
 * suspect at its limit of lost workers runs alone (quarantine.ts), `workers` returns the number of live workers.
 */
export async function startWorkers(options: {
  services: Pick<Services, 'queues' | 'log' | 'config'> & Partial<Pick<Services, 'cell'>>
  handlers: readonly Handler[]
  schedules?: readonly Schedule[]
  background?: readonly BackgroundTask[]
  concurrency: number
  projectShare?: number
  listen?: Notifications
  onPoll?: () => unknown
  pollMs?: number
  idleMs?: number
  strictMs?: number
  workers?: () => number
}): Promise<Workers> {
  const { services, handlers, schedules = [], background = [], listen } = options
  const stopping = new AbortController()

  const notificationsHealthy = () => listen?.healthy() ?? false
  const consumers = new Map<string, QueueConsumer>()
  for (const handler of handlers) {
    const { name } = handler.queue
    if (consumers.has(name)) throw new Error(`Queue ${name} has two handlers`)
    consumers.set(
      name,
      new QueueConsumer({
        services,
        handler,
        stopping: stopping.signal,
        slots: slotsOf(handler, services.config, {
          slots: options.concurrency,
          projectShare: options.projectShare ?? 1,
        }),
        notificationsHealthy,
        tryAcquireSlotOf: (queue, project) => consumers.get(queue.name)?.tryAcquireSlot(project) ?? null,
      }),
    )
  }

  const stopReport = reportSlots(services, () => [...consumers.values()].map(consumer => consumer.slots))
  const { strictMs, workers } = options
  const quarantine = new Quarantine(services, { stopping: stopping.signal, strictMs, workers })
  quarantine.add(messageSuspects(services, consumers))
  const poller = new QueuePoller({
    services,
    consumers,
    onSuspects: () => quarantine.check(),
    pollMs: options.pollMs ?? 1000,
    idleMs: options.idleMs ?? IDLE_POLL_MS,
    notificationsHealthy,
    onPoll: options.onPoll,
  })
  const subscriptions = [
    listen?.listen(
      wakeChannel,
      name => {
        consumers.get(name)?.claimNow()
        if (consumers.has(name)) poller.pollSoon()
      },
      {
        onDown: () => poller.pollSoon(),
        onReconnect: () => {
          for (const consumer of consumers.values()) consumer.claimNow()
          poller.pollSoon()
        },
      },
    ),
    listen?.listen(delayedChannel, name => consumers.has(name) && poller.pollSoon()),
  ]
  await Promise.all(subscriptions.map(unsubscribe => unsubscribe?.ready))
  for (const consumer of consumers.values()) consumer.start()
  if (consumers.size > 0) poller.start()
  const tasks = background.map(({ start }) => start(services as Services, () => quarantine.check()))
  for (const task of tasks) if (task?.suspects) quarantine.add(task.suspects)
  const stopSchedules = startSchedules(schedules, services as Services, name => {
    const consumer = consumers.get(name)
    if (consumer) consumer.claimNow()
    return consumer !== undefined
  })

  return {
    running: () => [...consumers.values()].reduce((sum, consumer) => sum + consumer.running, 0),
    async stop(graceMs, mostMs) {
      const schedulesStopped = stopSchedules()
      stopping.abort(new Error('worker stopping'))
      poller.stop()
      const closing = Promise.all(tasks.map(task => task?.close(mostMs)))
      const counts = await Promise.all([...consumers.values()].map(consumer => consumer.stop(graceMs, mostMs)))
      await Promise.all([closing, schedulesStopped])
      await quarantine.end()
      for (const unsubscribe of subscriptions) unsubscribe?.()
      stopReport()
      return { requeued: counts.reduce((sum, count) => sum + count, 0) }
    },
  }
}

/** Longest wait of a stop for a message in progress. */
const STOP_MS = 1000

/** Delays of the tries to send an instant: the last one repeats, until the next instant or the time is over. */
const SEND_RETRY_MS = [0, 1000, 5000]
const SEND_FOR_MS = 900_000

/** Period over which workers spread their sends for an instant, so that most of them find its messages already stored. */
const SPREAD_MS = 250

/**
 * Makes the consumer of a queue in this process claim. Returns false if there is none. Other workers are not notified: claiming
 * and polling after each message of a schedule would be most of the work of idle ones. Their next poll finds a message that this
 * process cannot claim.
 */
type WakeHere = (queue: string) => boolean

/**
 * Sends the messages of schedules at their instants, and returns a function that stops after messages in progress. Equal
 * instants share one statement.
 */
function startSchedules(
  schedules: readonly Schedule[],
  services: Services,
  wakeHere: WakeHere,
): () => Promise<unknown> {
  const { config } = services
  const instants = Map.groupBy(schedules, ({ when }) => (typeof when === 'function' ? when(config) : when))
  const stops = [...instants].map(([when, group]) => startScheduleGroup(when, group, services, wakeHere))
  return () => Promise.all(stops.map(stop => stop()))
}

/** Starts the schedules of a group, which have the same instants. */
function startScheduleGroup(
  when: number | string,
  group: readonly Schedule[],
  services: Services,
  wakeHere: WakeHere,
): () => Promise<void> {
  const { queues, log } = services
  const stopping = new AbortController()
  const { signal } = stopping
  let timer: NodeJS.Timeout | undefined
  let sending = Promise.resolve()
  let latest = 0

  const send = async (instant: Date) => {
    latest = instant.getTime()
    const until = performance.now() + SEND_FOR_MS
    for (let tries = 0; performance.now() < until; tries++) {
      const delay = SEND_RETRY_MS[Math.min(tries, SEND_RETRY_MS.length - 1)] + Math.random() * SPREAD_MS
      await sleep(delay, undefined, { signal, ref: false }).catch(() => {})
      if (signal.aborted || (tries > 0 && latest > instant.getTime())) return
      try {
        const messages = (await filterDue(group, services)).map(({ name, queue, data }) => ({
          queue,
          data: data(instant),
          // Every worker computes the same ID, so the message is stored once.
          id: uuidOf(`${queue.name} ${name} ${instant.toISOString()}`),
        }))
        if (messages.length > 0 && !signal.aborted) await sendUnstored(messages)
        return
      } catch (error) {
        if (tries === 0)
          log.error({ err: error, schedules: group.map(({ name }) => name), instant }, 'schedule send failed')
      }
    }
  }

  const sendUnstored = async (messages: (QueueMessage & { id: string })[]) => {
    const unstored = await filterUnstored(queues.db, messages)
    if (unstored.length === 0) return
    // No message of a schedule is delayed: each notification is about a due one.
    for (const { payload } of await queues.insert(queues.db, unstored))
      if (!wakeHere(payload)) queues.wake(payload, 'now')
  }

  const fire = (instant: Date) => {
    const previous = sending
    sending = send(instant).then(() => previous)
  }
  const stop = async () => {
    stopping.abort()
    clearTimeout(timer)
    await settledWithin(STOP_MS, sending)
  }

  if (typeof when === 'string') {
    const task = schedule(when, ({ date }) => fire(new Date(Math.floor(date.getTime() / 1000) * 1000)), {
      timezone: 'UTC',
      name: group.map(({ name }) => name).join(', '),
    })
    return async () => {
      void task.destroy()
      await stop()
    }
  }
  if (when === 0) return stop

  const period = when * 1000
  const next = () => {
    timer = setTimeout(
      () => {
        fire(new Date(Math.floor(systemClock.now().getTime() / period) * period))
        next()
      },
      period - (systemClock.now().getTime() % period),
    )
  }
  next()
  return stop
}

const conditionsRow = sql.type(z.record(z.string(), z.boolean()))

/** Returns the schedules whose `dueIf` is true or absent. */
async function filterDue(schedules: readonly Schedule[], services: Services): Promise<Schedule[]> {
  const conditions = schedules.flatMap(({ name, dueIf }) =>
    typeof dueIf === 'object' ? sql.fragment`${dueIf} as ${sql.identifier([name])}` : [],
  )
  const results: Record<string, boolean> =
    conditions.length > 0
      ? await services.pool.one(conditionsRow`select ${sql.join(conditions, sql.fragment`, `)}`)
      : {}
  const isDue = await Promise.all(
    schedules.map(({ name, dueIf }) => (typeof dueIf === 'function' ? dueIf(services) : (results[name] ?? true))),
  )
  return schedules.filter((_, index) => isDue[index])
}

function uuidOf(text: string): string {
  const hex = createHash('sha256').update(text).digest('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20, 32)}`
}
