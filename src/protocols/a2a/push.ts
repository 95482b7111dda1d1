import { z } from 'zod'
import { runKind } from '#automation/orchestrations/runs/model.ts'
import { eventKind } from '#control/events/model.ts'
import type { EventSubscriber } from '#control/webhooks/event-subscribers.ts'
import { newWebhookSecret, sealedForWebhook, type WebhookRow, webhookKind } from '#control/webhooks/model.ts'
import { notifyWorkers, reloadWebhook } from '#control/webhooks/operations.ts'
import { insertTaskDeliveries, insertWebhook, listTaskWebhooks, removeTaskWebhook } from '#control/webhooks/store.ts'
import { sessionKind } from '#conversation/sessions/kind.ts'
import type { Kind } from '#core/api/kind.ts'
import { type Context, itemOperation } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { addressProblems } from '#core/net/refused-address.ts'
import type { Tx } from '#core/writes/writer.ts'
import { callOperation } from '../call.ts'
import { refuse } from './fault.ts'
import {
  hasAddress,
  listAddresses,
  listConcernedTasks,
  listTasksById,
  lockTasks,
  recordNotified,
  type TaskRow,
} from './store.ts'
import type { A2aRequest } from './target.ts'
import { requireTask, statusUpdate } from './task.ts'
import type { PushConfig } from './wire.ts'

/** Notifications of the changes of tasks: addresses are webhooks of a task, and use their deliveries. */

const MAX_ADDRESSES = 5

const TOKEN_HEADER = 'X-A2A-Notification-Token'

/** Returns the headers of the notifications to an address. */
const headersOf = ({ token, authentication }: PushConfig): Record<string, string> => ({
  ...(token && { [TOKEN_HEADER]: token }),
  ...(authentication && {
    Authorization: [authentication.scheme, authentication.credentials].filter(Boolean).join(' '),
  }),
})

/** An address as clients see it, without its credentials. */
const presentAddress = ({ task_id, name, url }: Pick<WebhookRow, 'task_id' | 'name' | 'url'>) => ({
  id: name,
  taskId: task_id,
  url,
})

type AddressBody = { task_id: string; config: PushConfig }

/** Adds an address to a task, or replaces the one with the same ID. A client without an ID has one address. */
async function setAddress({ tx, services, body, resource, audit }: Context<unknown, AddressBody, any>) {
  const { task_id, config } = body
  const { project_id } = resource
  const name = config.id ?? task_id
  audit.detail.task_id = task_id
  const [task] = await lockTasks(tx, [task_id])
  if (!task) return refuse('TASK_NOT_FOUND', `Task ${task_id} not found`, { id: task_id })
  const existing = await listTaskWebhooks(tx, task_id)
  const same = existing.find(address => address.name === name)
  if (!same && existing.length >= MAX_ADDRESSES)
    raiseInvalid({ code: 'LIMIT_REACHED', path: '', message: `A task has at most ${MAX_ADDRESSES} addresses` })
  const id = same?.id ?? newId(webhookKind.prefix)
  const headers = headersOf(config)
  const seal = (text: string) => services.secrets.seal(text, sealedForWebhook(id, project_id))
  const values = {
    url: config.url,
    sealed_headers: Object.keys(headers).length > 0 ? seal(JSON.stringify(headers)) : null,
  }
  const row = same
    ? await webhookKind.update(tx, id, values)
    : await insertWebhook(tx, {
        ...values,
        id,
        project_id,
        task_id,
        name,
        events: [],
        active: false,
        sealed_secret: seal(newWebhookSecret()),
      })
  reloadWebhook(tx, row)
  return presentAddress(row)
}

async function removeAddress({ tx, body, audit }: Context<unknown, { task_id: string; name: string }, any>) {
  audit.detail.task_id = body.task_id
  const row = await removeTaskWebhook(tx, body.task_id, body.name)
  if (!row) return refuse('TASK_NOT_FOUND', `Push notification config ${body.name} not found`, { id: body.name })
  reloadWebhook(tx, row)
  return {}
}

/** Returns the operations of the addresses of tasks that work in rows of a kind. */
function addressOperations(kind: Kind<any>, action: string) {
  const common = { method: 'post', tag: 'A2A', action, answers: { 200: null } } as const
  const path = `/a2a/{${kind.name}_id}/addresses`
  return {
    set: itemOperation(kind, {
      ...common,
      id: 'setA2aAddress',
      path,
      summary: 'Set an address of a task',
      body: z.custom<AddressBody>(),
      run: setAddress,
    }),
    remove: itemOperation(kind, {
      ...common,
      id: 'removeA2aAddress',
      path: `${path}/remove`,
      summary: 'Remove an address of a task',
      body: z.custom<{ task_id: string; name: string }>(),
      run: removeAddress,
    }),
  }
}

const ofSession = addressOperations(sessionKind, 'sessions:SendSessionMessage')
const ofRun = addressOperations(runKind, 'orchestrations:GetRun')

async function callAddressOperation(request: A2aRequest, task: TaskRow, name: 'set' | 'remove', body: object) {
  const { run_id, session_id } = task
  if (run_id === null && session_id === null)
    return refuse('UNSUPPORTED_OPERATION', `Task ${task.id} was refused and does not change`)
  const operation = (run_id === null ? ofSession : ofRun)[name]
  const params: Record<string, string> =
    run_id === null ? { session_id: session_id as string } : { orchestration_run_id: run_id }
  return (await callOperation(request, 'a2a', operation, { params, body: { ...body } })).body as object
}

/** Refuses an address inside the network. @throws VALIDATION_FAILED */
export function checkAddress({ services }: Pick<A2aRequest, 'services'>, { url }: PushConfig): void {
  const parsed = URL.parse(url)
  const isWeb = parsed !== null && /^https?:$/.test(parsed.protocol) && parsed.username === '' && parsed.password === ''
  const problems = isWeb
    ? addressProblems(services, 'url', url)
    : [{ code: 'INVALID_VALUE', path: 'url', message: 'must be an absolute http or https URL without credentials' }]
  if (problems.length > 0) raiseInvalid(problems)
}

/** Sets an address of a task, which is notified immediately if the task has changed meanwhile. */
export async function setPushConfig(request: A2aRequest, task: TaskRow, config: PushConfig): Promise<object> {
  checkAddress(request, config)
  const shown = await callAddressOperation(request, task, 'set', { task_id: task.id, config })
  await request.services.write(tx => notifyTasks(tx, [task.id]))
  return shown
}

export const deletePushConfig = (request: A2aRequest, task: TaskRow, name: string): Promise<object> =>
  callAddressOperation(request, task, 'remove', { task_id: task.id, name })

export async function listPushConfigs(request: A2aRequest, taskId: string) {
  const { id } = await requireTask(request, taskId)
  return (await listTaskWebhooks(request.services.pool, id)).map(presentAddress)
}

/** State of a task before its first change. */
const FIRST_STATE = 'TASK_STATE_SUBMITTED'

/** Queues a notification for each task whose state differs from the last one of which its addresses were notified. */
async function notifyTasks(tx: Tx, ids: readonly string[]): Promise<void> {
  const locked = await lockTasks(tx, ids)
  const tasks = await listTasksById(tx, locked)
  const changed = tasks.filter(({ state, notified_state }) => state !== (notified_state ?? FIRST_STATE))
  if (changed.length === 0) return
  await recordNotified(tx, changed)
  const byId = new Map(changed.map(task => [task.id, task]))
  const addresses = await listAddresses(tx, [...byId.keys()])
  const event_id = newId(eventKind.prefix)
  await insertTaskDeliveries(
    tx,
    addresses.map(({ id, task_id }) => {
      const task = byId.get(task_id) as TaskRow
      const body = statusUpdate(task, { state: task.state, timestamp: task.updated_at })
      return { webhook_id: id, event_id, event_type: 'a2a.status_update', body: JSON.stringify(body) }
    }),
  )
  for (const address of addresses) notifyWorkers(tx, address)
}

/**
 * Notifies the addresses of tasks when their sessions, approvals or runs have changed, in the transaction that marks the
 * events of the change as dispatched.
 */
export const taskNotifier: EventSubscriber = {
  active: hasAddress,
  async take(tx: Tx, _services: Services, events) {
    const of = (type: string) => [
      ...new Set(events.filter(event => event.resource_type === type).map(event => event.resource_id)),
    ]
    const changes = { sessions: of('session'), approvals: of('approval'), runs: of('orchestration_run') }
    if (Object.values(changes).every(ids => ids.length === 0)) return
    const ids = await listConcernedTasks(tx, changes)
    if (ids.length > 0) await notifyTasks(tx, ids)
  },
}
