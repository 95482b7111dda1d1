import { z } from 'zod'
import { revisionsOf } from '#core/api/long-work.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { Batcher } from '#core/db/batcher.ts'
import { servicesOfId } from '#core/services/cells.ts'
import { SseWriter } from './events.ts'
import { invalidParams, type McpClientSession, type PendingAnswer, RpcError } from './session.ts'
import { recordOfTaskId } from './task-id.ts'
import { getTask, requireExtension } from './tasks.ts'

/** Streams of task changes. */

const MAX_TASKS = 50
const MAX_STREAMS = 20
const MAX_DURATION_MS = 3_600_000
/** Interval at which the revisions of a stream's records are polled. */
const POLL_MS = 1000
/**
 * Interval at which a task is read again although its record has not changed: its state may depend on others, such as
 * approvals.
 */
const RENEW_MS = 5000

const SUBSCRIPTION = 'io.modelcontextprotocol/subscriptionId'

const Params = z.object({
  notifications: z.looseObject({ taskIds: z.array(z.string().max(200)).max(MAX_TASKS).optional() }),
})

/** Number of open streams by credential. */
const openStreams = processSingleton(() => new Map<string, number>())

/** Handles `subscriptions/listen` with a stream that acknowledges and follows only tasks. */
export async function listenToServer(session: McpClientSession, { id, params, signal }: PendingAnswer): Promise<null> {
  const { data } = Params.safeParse(params)
  if (!data) return invalidParams(`notifications is required, with at most ${MAX_TASKS} taskIds`)
  const { taskIds } = data.notifications
  if (taskIds !== undefined) requireExtension(session)
  // An already aborted signal fires no event, so that the stream would count as open forever.
  signal.throwIfAborted()
  const { credential } = session.caller
  const streams = openStreams(session.services)
  const count = streams.get(credential.id) ?? 0
  if (count >= MAX_STREAMS) throw new RpcError(-32000, `Credential already has ${MAX_STREAMS} open streams`)
  streams.set(credential.id, count + 1)
  signal.addEventListener('abort', () => {
    const openCount = (streams.get(credential.id) ?? 1) - 1
    if (openCount > 0) streams.set(credential.id, openCount)
    else streams.delete(credential.id)
  })
  const events = new SseWriter(session.exchange)
  const _meta = { [SUBSCRIPTION]: id }
  const send = (method: string, params: object) => events.send({ jsonrpc: '2.0', method, params: { ...params, _meta } })
  send('notifications/subscriptions/acknowledged', { notifications: taskIds?.length ? { taskIds } : {} })
  void followTasks(session, taskIds ?? [], signal, task => send('notifications/tasks', task)).finally(() => {
    send('notifications/cancelled', { requestId: id })
    events.end()
  })
  return null
}

/** Revisions of records, read in batches for all streams of the process. */
const revisions = processSingleton(
  ({ pool }: Services) =>
    new Batcher<string, string | undefined>(async ids => {
      const found = await revisionsOf(pool, ids)
      return ids.map(id => found.get(id))
    }),
)

/**
 * Notifies about each task when it changes, until all have ended, the time limit is reached or the client disconnects.
 */
async function followTasks(
  session: McpClientSession,
  taskIds: readonly string[],
  signal: AbortSignal,
  notify: (task: object) => void,
): Promise<void> {
  const { services, caller } = session
  const until = Date.now() + MAX_DURATION_MS
  const sent = new Map<string, string>()
  const lastReads = new Map<string, { revision: string | undefined; until: number }>()
  const remaining = new Set(taskIds)
  const revisionOf = async (taskId: string) => {
    const record = recordOfTaskId(services, taskId, caller)
    return {
      taskId,
      revision: record === null ? undefined : await revisions(await servicesOfId(services, record)).add(record),
    }
  }
  const readTask = async (taskId: string): Promise<void> => {
    const task = await taskOf(session, taskId)
    if (!task) return void remaining.delete(taskId)
    const text = JSON.stringify([task.status, task.statusMessage])
    if (sent.get(taskId) !== text) notify(task)
    sent.set(taskId, text)
    if (['completed', 'cancelled', 'failed'].includes(task.status as string)) remaining.delete(taskId)
  }
  const readChangedTasks = async (): Promise<void> => {
    for (const { taskId, revision } of await Promise.all([...remaining].map(revisionOf))) {
      const last = lastReads.get(taskId)
      if (last && last.revision === revision && Date.now() < last.until) continue
      await readTask(taskId)
      lastReads.set(taskId, { revision, until: Date.now() + RENEW_MS })
    }
  }
  while (remaining.size > 0 && !signal.aborted && Date.now() < until) {
    try {
      await readChangedTasks()
    } catch (error) {
      services.log.debug({ err: error }, 'task stream poll failed')
    }
    if (remaining.size > 0) await new Promise(resolve => setTimeout(resolve, POLL_MS))
  }
}

/** Returns the current state of a task; null if the caller may not read it (any more). */
async function taskOf(session: McpClientSession, taskId: string): Promise<Record<string, unknown> | null> {
  const caller = await session.exchange.identify()
  if (!caller) return null
  try {
    return (await getTask({ ...session, caller }, { params: { taskId } })) as Record<string, unknown>
  } catch (error) {
    if (error instanceof RpcError) return null
    throw error
  }
}
