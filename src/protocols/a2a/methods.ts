import { Readable } from 'node:stream'
import { z } from 'zod'
import { runKind } from '#automation/orchestrations/runs/model.ts'
import { sessionKind } from '#conversation/sessions/kind.ts'
import { requirePermitted } from '#core/api/access.ts'
import { dataMessage } from '#core/api/event-stream.ts'
import { AppError } from '#core/base/errors.ts'
import { callOperation } from '../call.ts'
import { refuse } from './fault.ts'
import { checkAddress, deletePushConfig, listPushConfigs, setPushConfig } from './push.ts'
import { type Sent, sendMessage, waitForTask } from './send.ts'
import { countTasks, listTasks } from './store.ts'
import { type Present, taskUpdates } from './stream.ts'
import type { A2aRequest } from './target.ts'
import { ownerOf, presentTask, requireTask } from './task.ts'
import {
  CreatePushConfigRequest,
  isTerminal,
  ListPushConfigsRequest,
  ListTasksRequest,
  PushConfigRequest,
  SendMessageRequest,
  TaskRequest,
} from './wire.ts'

/** The methods of the protocol, for both bindings. */

/** A method that responds with an object, or with a stream of updates. */
type Handler<P> =
  | { call(request: A2aRequest, params: P): Promise<object> }
  | { stream(request: A2aRequest, params: P, present: Present): Promise<AsyncIterable<string | Buffer>> }

export type Method<P = any> = { params: z.ZodType<P> } & Handler<P>

const method = <S extends z.ZodType>(params: S, handler: Handler<z.output<S>>): Method => ({ params, ...handler })

/** Sends a message and sets the address that the request contains. */
async function send(
  request: A2aRequest,
  { message, configuration }: SendMessageRequest,
  streamed: boolean,
): Promise<Sent> {
  const config = configuration?.taskPushNotificationConfig
  if (config) checkAddress(request, config)
  const sent = await sendMessage(request, message, streamed)
  if ('task' in sent) {
    request.exchange.noted.task_id = sent.task.id
    if (config && (sent.task.run_id ?? sent.task.turn_id) !== null) await setPushConfig(request, sent.task, config)
  }
  return sent
}

const PAGE_SIZE = 50

async function listOwnTasks(request: A2aRequest, query: ListTasksRequest): Promise<object> {
  const { services, caller, project_id, target } = request
  if (target.kind === 'agent')
    requirePermitted(caller, 'sessions:SendSessionMessage', { kind: sessionKind, project_id })
  else requirePermitted(caller, 'orchestrations:GetRun', { kind: runKind, project_id })
  const owner = ownerOf(request)
  const limit = query.pageSize ?? PAGE_SIZE
  const offset = Number(query.pageToken ?? 0)
  const filter = {
    context_id: query.contextId,
    status: query.status,
    updated_after: query.statusTimestampAfter == null ? null : new Date(query.statusTimestampAfter),
  }
  const total = await countTasks(services.pool, owner, filter)
  const withAnswers = query.includeArtifacts === true
  const tasks = await listTasks(services.pool, owner, filter, { limit, offset, withAnswers })
  return {
    tasks: tasks.map(presentTask),
    nextPageToken: offset + limit < total ? String(offset + limit) : '',
    pageSize: limit,
    totalSize: total,
  }
}

async function cancelTask(request: A2aRequest, id: string): Promise<object> {
  const task = await requireTask(request, id)
  const refuseCancel = () => refuse('TASK_NOT_CANCELABLE', `Task ${id} cannot be cancelled in state ${task.state}`)
  if (isTerminal(task.state) || task.turn_status === 'completed') refuseCancel()
  const [operation, params]: [string, Record<string, string>] =
    task.run_id === null
      ? ['cancelGeneration', { generation_id: task.turn_id as string }]
      : ['cancelRun', { orchestration_run_id: task.run_id }]
  try {
    await callOperation(request, 'a2a', operation, { params })
  } catch (error) {
    if (error instanceof AppError && error.status === 409) refuseCancel()
    throw error
  }
  // Waits in any state, because the cancel also ends a task that requires input.
  return presentTask(await waitForTask(request, { ...task, state: 'TASK_STATE_WORKING' }))
}

/** @throws TASK_NOT_FOUND for an unknown config */
async function getPushConfig(request: A2aRequest, taskId: string, id: string): Promise<object> {
  const found = (await listPushConfigs(request, taskId)).find(config => config.id === id)
  return found ?? refuse('TASK_NOT_FOUND', `Push notification config ${id} not found`, { id })
}

export const methods: Record<string, Method> = {
  SendMessage: method(SendMessageRequest, {
    async call(request, params) {
      const sent = await send(request, params, false)
      if ('message' in sent) return { message: sent.message }
      const isAwaited = params.configuration?.returnImmediately !== true
      return { task: presentTask(isAwaited ? await waitForTask(request, sent.task) : sent.task) }
    },
  }),
  SendStreamingMessage: method(SendMessageRequest, {
    async stream(request, params, present) {
      const sent = await send(request, params, true)
      if ('message' in sent) return Readable.from([dataMessage(present(sent))])
      return taskUpdates(request, sent.task, present, sent.turn)
    },
  }),
  GetTask: method(TaskRequest, {
    call: async (request, { id }) => presentTask(await requireTask(request, id)),
  }),
  ListTasks: method(ListTasksRequest, { call: listOwnTasks }),
  CancelTask: method(TaskRequest, { call: (request, { id }) => cancelTask(request, id) }),
  SubscribeToTask: method(TaskRequest, {
    async stream(request, { id }, present) {
      const task = await requireTask(request, id)
      if (isTerminal(task.state)) refuse('UNSUPPORTED_OPERATION', `Task ${id} has ended`)
      return taskUpdates(request, task, present)
    },
  }),
  CreateTaskPushNotificationConfig: method(CreatePushConfigRequest, {
    call: async (request, { taskId, ...config }) => setPushConfig(request, await requireTask(request, taskId), config),
  }),
  GetTaskPushNotificationConfig: method(PushConfigRequest, {
    call: (request, { taskId, id }) => getPushConfig(request, taskId, id),
  }),
  ListTaskPushNotificationConfigs: method(ListPushConfigsRequest, {
    call: async (request, { taskId }) => ({ configs: await listPushConfigs(request, taskId), nextPageToken: '' }),
  }),
  DeleteTaskPushNotificationConfig: method(PushConfigRequest, {
    call: async (request, { taskId, id }) => deletePushConfig(request, await requireTask(request, taskId), id),
  }),
  GetExtendedAgentCard: method(z.unknown(), {
    call: async () => refuse('EXTENDED_AGENT_CARD_NOT_CONFIGURED', 'The card is the same for all callers'),
  }),
}

type Route = { method: string; path: RegExp; name: string; params: readonly string[] }
const route = (verb: string, path: RegExp, name: string, ...params: string[]): Route => ({
  method: verb,
  path,
  name,
  params,
})

const CONFIGS = '^/tasks/([^/:]+)/pushNotificationConfigs'

/** Routes of the HTTP+JSON binding, with the parameters in their paths. */
export const routes: readonly Route[] = [
  route('POST', /^\/message:send$/, 'SendMessage'),
  route('POST', /^\/message:stream$/, 'SendStreamingMessage'),
  route('GET', /^\/tasks$/, 'ListTasks'),
  route('GET', /^\/tasks\/([^/:]+)$/, 'GetTask', 'id'),
  route('POST', /^\/tasks\/([^/:]+):cancel$/, 'CancelTask', 'id'),
  route('POST', /^\/tasks\/([^/:]+):subscribe$/, 'SubscribeToTask', 'id'),
  route('GET', /^\/tasks\/([^/:]+):subscribe$/, 'SubscribeToTask', 'id'),
  route('POST', new RegExp(`${CONFIGS}$`), 'CreateTaskPushNotificationConfig', 'taskId'),
  route('GET', new RegExp(`${CONFIGS}$`), 'ListTaskPushNotificationConfigs', 'taskId'),
  route('GET', new RegExp(`${CONFIGS}/([^/]+)$`), 'GetTaskPushNotificationConfig', 'taskId', 'id'),
  route('DELETE', new RegExp(`${CONFIGS}/([^/]+)$`), 'DeleteTaskPushNotificationConfig', 'taskId', 'id'),
  route('GET', /^\/extendedAgentCard$/, 'GetExtendedAgentCard'),
]
