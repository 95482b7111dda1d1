import { z } from 'zod'
import { perProcess } from '../core/process/per-process.ts'
import { EventStream } from './events.ts'
import { type Answering, invalidParams, RpcError, type Session } from './session.ts'
import { getTask, requireExtension } from './tasks.ts'

/** Streams that say when tasks change. */

const MOST_TASKS = 50
const MOST_STREAMS = 20
const LONGEST_MS = 3_600_000
/** How often the tasks of a stream are looked at. */
const LOOK_MS = 1000

const SUBSCRIPTION = 'io.modelcontextprotocol/subscriptionId'

const Params = z.object({
  notifications: z.looseObject({ taskIds: z.array(z.string().max(200)).max(MOST_TASKS).optional() }),
})

/** Streams that are open, by credential. */
const open = perProcess(() => new Map<string, number>())

/** Answers `subscriptions/listen` with a stream that acknowledges the tasks it follows, and nothing else. */
export async function listen(session: Session, { id, params, signal }: Answering): Promise<null> {
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
  const events = new EventStream(session.exchange)
  const _meta = { [SUBSCRIPTION]: id }
  const send = (method: string, params: object) => events.send({ jsonrpc: '2.0', method, params: { ...params, _meta } })
  send('notifications/subscriptions/acknowledged', { notifications: taskIds?.length ? { taskIds } : {} })
  void follow(session, taskIds ?? [], signal, task => send('notifications/tasks', task)).finally(() => {
    send('notifications/cancelled', { requestId: id })
    events.end()
  })
  return null
}

/** Tells of each task when it has changed, until all have ended, the time is over or the client leaves. */
async function follow(
  session: Session,
  taskIds: readonly string[],
  signal: AbortSignal,
  tell: (task: object) => void,
): Promise<void> {
  const until = Date.now() + LONGEST_MS
  const told = new Map<string, string>()
  const left = new Set(taskIds)
  while (left.size > 0 && !signal.aborted && Date.now() < until) {
    for (const taskId of left) {
      const task = await taskOf(session, taskId)
      if (!task) left.delete(taskId)
      if (!task || told.get(taskId) === JSON.stringify([task.status, task.statusMessage])) continue
      told.set(taskId, JSON.stringify([task.status, task.statusMessage]))
      tell(task)
      if (['completed', 'cancelled', 'failed'].includes(task.status as string)) left.delete(taskId)
    }
    if (left.size > 0) await new Promise(resolve => setTimeout(resolve, LOOK_MS))
  }
}

/** A task as it stands; null for what the caller may not see, or see no longer. */
async function taskOf(session: Session, taskId: string): Promise<Record<string, unknown> | null> {
  try {
    const caller = await session.exchange.identify()
    if (!caller) return null
    const answering = { params: { taskId } } as unknown as Answering
    return (await getTask({ ...session, caller }, answering)) as Record<string, unknown>
  } catch {
    return null
  }
}
