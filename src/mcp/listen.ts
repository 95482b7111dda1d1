import { z } from 'zod'
import { revisionsOf } from '../core/api/long-work.ts'
import { Batcher } from '../core/db/batcher.ts'
import { processSingleton } from '../core/process/process-singleton.ts'
import type { Services } from '../core/process/services.ts'
import { SseWriter } from './events.ts'
import { invalidParams, type McpClientSession, type PendingAnswer, RpcError } from './session.ts'
import { recordIn } from './task-id.ts'
import { getTask, requireExtension } from './tasks.ts'

/** Streams that say when tasks change. */

const MOST_TASKS = 50
const MOST_STREAMS = 20
const LONGEST_MS = 3_600_000
/** How often the records of the tasks of a stream are asked whether they have changed. */
const LOOK_MS = 1000
/** How often a task is looked at whose record has not changed: it may wait for others, such as approvals. */
const RENEW_MS = 5000

const SUBSCRIPTION = 'io.modelcontextprotocol/subscriptionId'

const Params = z.object({
  notifications: z.looseObject({ taskIds: z.array(z.string().max(200)).max(MOST_TASKS).optional() }),
})

/** Streams that are open, by credential. */
const open = processSingleton(() => new Map<string, number>())

/** Answers `subscriptions/listen` with a stream that acknowledges the tasks it follows, and nothing else. */
export async function listenToServer(session: McpClientSession, { id, params, signal }: PendingAnswer): Promise<null> {
  const { data } = Params.safeParse(params)
  if (!data) return invalidParams(`notifications is required, with at most ${MOST_TASKS} taskIds`)
  const { taskIds } = data.notifications
  if (taskIds !== undefined) requireExtension(session)
  // Of a signal that is aborted already no more is heard, and the stream would count as open for good.
  signal.throwIfAborted()
  const { credential } = session.caller
  const streams = open(session.services)
  const count = streams.get(credential.id) ?? 0
  if (count >= MOST_STREAMS) throw new RpcError(-32000, `At most ${MOST_STREAMS} streams of a credential may be open`)
  streams.set(credential.id, count + 1)
  signal.addEventListener('abort', () => {
    const left = (streams.get(credential.id) ?? 1) - 1
    if (left > 0) streams.set(credential.id, left)
    else streams.delete(credential.id)
  })
  const events = new SseWriter(session.exchange)
  const _meta = { [SUBSCRIPTION]: id }
  const send = (method: string, params: object) => events.send({ jsonrpc: '2.0', method, params: { ...params, _meta } })
  send('notifications/subscriptions/acknowledged', { notifications: taskIds?.length ? { taskIds } : {} })
  void follow(session, taskIds ?? [], signal, task => send('notifications/tasks', task)).finally(() => {
    send('notifications/cancelled', { requestId: id })
    events.end()
  })
  return null
}

/** Revisions of records, which are read for all streams of the process at once. */
const revisions = processSingleton(
  ({ pool }: Services) =>
    new Batcher<string, string | undefined>(async ids => {
      const found = await revisionsOf(pool, ids)
      return ids.map(id => found.get(id))
    }),
)

/** Tells of each task when it has changed, until all have ended, the time is over or the client leaves. */
async function follow(
  session: McpClientSession,
  taskIds: readonly string[],
  signal: AbortSignal,
  tell: (task: object) => void,
): Promise<void> {
  const { services, caller } = session
  const until = Date.now() + LONGEST_MS
  const told = new Map<string, string>()
  const looked = new Map<string, { revision: string | undefined; until: number }>()
  const left = new Set(taskIds)
  const revisionOf = async (taskId: string) => {
    const record = recordIn(services, taskId, caller)
    return { taskId, revision: record === null ? undefined : await revisions(services).add(record) }
  }
  const lookAt = async (taskId: string): Promise<void> => {
    const task = await taskOf(session, taskId)
    if (!task) return void left.delete(taskId)
    const text = JSON.stringify([task.status, task.statusMessage])
    if (told.get(taskId) !== text) tell(task)
    told.set(taskId, text)
    if (['completed', 'cancelled', 'failed'].includes(task.status as string)) left.delete(taskId)
  }
  const lookAtAll = async (): Promise<void> => {
    for (const { taskId, revision } of await Promise.all([...left].map(revisionOf))) {
      const last = looked.get(taskId)
      if (last && last.revision === revision && Date.now() < last.until) continue
      await lookAt(taskId)
      looked.set(taskId, { revision, until: Date.now() + RENEW_MS })
    }
  }
  while (left.size > 0 && !signal.aborted && Date.now() < until) {
    try {
      await lookAtAll()
    } catch (error) {
      services.log.debug({ err: error }, 'tasks of a stream could not be read')
    }
    if (left.size > 0) await new Promise(resolve => setTimeout(resolve, LOOK_MS))
  }
}

/** A task as it stands; null for what the caller may not see, or see no longer. */
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
