import { setTimeout as sleep } from 'node:timers/promises'
import { subscribeRun } from '#automation/orchestrations/runs/engine/run-notifications.ts'
import { runKind } from '#automation/orchestrations/runs/model.ts'
import type { ClientInput } from '#core/api/call.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { newId } from '#core/base/ids.ts'
import { generationKind } from '#execution/generations/model.ts'
import { subscribeTurn } from '#execution/generations/request/wait-for-turn.ts'
import { callOperation } from '../call.ts'
import { openTranslated, type TranslatedStream } from '../event-format.ts'
import { refuse } from './fault.ts'
import { dataOf, messageBody, requireNoFiles, textOf } from './parts.ts'
import {
  findContext,
  findTaskOfMessage,
  type MessageKey,
  messageKey,
  REFUSALS,
  recordMessage,
  recordTask,
  type TaskRow,
} from './store.ts'
import type { A2aRequest } from './target.ts'
import { agentMessage, ownerOf, readTask, requireTask } from './task.ts'
import { isTerminal, type Message, type WireMessage } from './wire.ts'

/** What a message led to: a task, with the stream of its turn if it was started to be streamed, or a message. */
export type Sent = { task: TaskRow; turn?: TranslatedStream } | { message: WireMessage }

type Started = { task_id: string; turn?: TranslatedStream } | { message: WireMessage }

/**
 * Sends a message: starts a task, or continues the task that it names. A repeated message leads to the task of the first.
 * @param streamed whether the text is streamed while it is generated
 * @throws TASK_NOT_FOUND for an unknown task or context, UNSUPPORTED_OPERATION for a task that takes no message
 */
export async function sendMessage(request: A2aRequest, message: Message, streamed: boolean): Promise<Sent> {
  const key = messageKey(ownerOf(request), message)
  const known = await findTaskOfMessage(request.services.pool, key)
  if (known !== null) return { task: await requireTask(request, known) }
  const started =
    message.taskId === null
      ? await startTask(request, message, key, streamed)
      : await continueTask(request, await requireTask(request, message.taskId), message, key, streamed)
  if ('message' in started) return started
  return { task: await readTask(request, started.task_id), turn: started.turn }
}

/** Waits until a task rests, or for the longest time of a request. Returns its state then. */
export async function waitForTask(request: A2aRequest, task: TaskRow): Promise<TaskRow> {
  const { services, exchange } = request
  const { closed } = exchange.request
  if (task.run_id !== null) await subscribeRun(services, task.run_id).wait(closed)
  else if (task.turn_id !== null && task.state !== 'TASK_STATE_INPUT_REQUIRED')
    await subscribeTurn(services, task.turn_id).wait({ closed })
  return readTask(request, task.id)
}

const isRefusal = (error: unknown): error is AppError => error instanceof AppError && REFUSALS.includes(error.code)

async function startTask(request: A2aRequest, message: Message, key: MessageKey, streamed: boolean): Promise<Started> {
  const context = message.contextId === null ? null : await requireContext(request, message.contextId)
  return request.target.kind === 'agent'
    ? startTurn(request, message, key, context?.session_id ?? (await createSession(request, key)), streamed)
    : startRun(request, message, key)
}

/** Returns a context of the caller. @throws TASK_NOT_FOUND for any other */
const requireContext = async (request: A2aRequest, id: string) =>
  (await findContext(request.services.pool, ownerOf(request), id)) ??
  refuse('TASK_NOT_FOUND', `Context ${id} not found`, { id })

/** Creates the session of a message without a context; a repeat finds it. */
async function createSession(request: A2aRequest, key: MessageKey): Promise<string> {
  const { body } = await callOperation(request, 'a2a', 'createSession', {
    body: {
      agent_id: request.target.id,
      ...(request.caller.project_id === null && { project_id: request.project_id }),
    },
    client: { session_key: `a2a:${key.message.toString('hex')}` },
  })
  return (body as { id: string }).id
}

/** Starts or resumes a turn. The effect is the claim of the message in its transaction. */
async function generate(
  request: A2aRequest,
  operation: string,
  input: { session_id: string; body: object; claim: ClientInput['claim']; streamed: boolean },
): Promise<TranslatedStream | undefined> {
  const client = { queue: true, claim: input.claim }
  const params = { session_id: input.session_id }
  const background = () =>
    callOperation(request, 'a2a', operation, { params, query: { wait: 'false' }, body: { ...input.body }, client })
  if (!input.streamed) return void (await background())
  try {
    return await openTranslated(request, 'a2a', operation, { params, body: { ...input.body, stream: true }, client })
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED') throw error
    return void (await background())
  }
}

async function startTurn(
  request: A2aRequest,
  message: Message,
  key: MessageKey,
  session_id: string,
  streamed: boolean,
): Promise<Started> {
  const { pool } = request.services
  const idempotency_key = key.message.toString('hex')
  await callOperation(request, 'a2a', 'sendSessionMessage', {
    params: { session_id },
    body: { ...(await messageBody(request, message, idempotency_key)), idempotency_key },
  })
  let task_id = ''
  const claim: ClientInput['claim'] = async (tx, { generation_id }) => {
    const task = { id: generation_id, context_id: session_id, session_id, generation_id }
    if (!(await recordTask(tx, key, task))) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id } })
    task_id = generation_id
  }
  try {
    const turn = await generate(request, 'generateSessionReply', { session_id, body: {}, claim, streamed })
    return { task_id, turn }
  } catch (error) {
    // A concurrent request may have sent the same message.
    const known = await findTaskOfMessage(pool, key)
    if (known !== null) return { task_id: known }
    if (isRefusal(error)) return refusedTask(request, key, session_id, error)
    if (error instanceof AppError && error.code === 'SESSION_UNDER_OPERATOR')
      return { message: operatorMessage(idempotency_key, session_id) }
    throw error
  }
}

const operatorMessage = (id: string, contextId: string): WireMessage =>
  agentMessage(`operator_${id.slice(0, 32)}`, { contextId }, [
    { text: 'A person has taken over the conversation. The message is stored.' },
  ])

/** Records a task of a message that was refused before it started anything. */
async function refusedTask(
  request: A2aRequest,
  key: MessageKey,
  session_id: string | null,
  error: AppError,
): Promise<Started> {
  const { pool } = request.services
  const id = newId(session_id === null ? runKind.prefix : generationKind.prefix)
  const { code, message } = error
  const context = session_id === null ? { context_id: id } : { context_id: session_id, session_id }
  await recordTask(pool, key, { id, ...context, refusal: { code, message } })
  return { task_id: (await findTaskOfMessage(pool, key)) ?? raise('INTERNAL_ERROR') }
}

const CONCURRENT_WAIT_MS = 100
const CONCURRENT_WAITS = 50

async function startRun(request: A2aRequest, message: Message, key: MessageKey): Promise<Started> {
  requireNoFiles(message)
  const { pool } = request.services
  const text = textOf(message)
  const data = dataOf(message) ?? {}
  if (!isObject(data))
    return refuse('INVALID_PARAMS', 'The data of the message must be an object, the input of the run')
  const body = { orchestration_id: request.target.id, input: { ...data, ...(text !== '' && { message: text }) } }
  const idempotencyKey = `a2a:run:${key.message.toString('hex')}`
  for (let wait = 1; ; wait++)
    try {
      const started = await callOperation(request, 'a2a', 'startRun', { body, idempotencyKey })
      const { id } = started.body as { id: string }
      await recordTask(pool, key, { id, context_id: message.contextId ?? id, run_id: id })
      return { task_id: id }
    } catch (error) {
      if (isRefusal(error)) return refusedTask(request, key, null, error)
      // A concurrent request sends the same message.
      if (!(error instanceof AppError) || error.code !== 'IDEMPOTENCY_IN_PROGRESS' || wait === CONCURRENT_WAITS)
        throw error
      await sleep(CONCURRENT_WAIT_MS)
    }
}

/** Gives a task the input that it waits for. @throws UNSUPPORTED_OPERATION unless it waits for input of the client */
async function continueTask(
  request: A2aRequest,
  task: TaskRow,
  message: Message,
  key: MessageKey,
  streamed: boolean,
): Promise<Started> {
  if (message.contextId !== null && message.contextId !== task.context_id)
    refuse('INVALID_PARAMS', 'The contextId of the message is not the context of its task')
  if (isTerminal(task.state)) refuse('UNSUPPORTED_OPERATION', `Task ${task.id} has ended`)
  requireNoFiles(message)
  if (task.run_id !== null) return submitInput(request, task, message, key)
  if (task.turn_status === 'requires_action') return submitOutputs(request, task, message, key, streamed)
  return refuse('UNSUPPORTED_OPERATION', `Task ${task.id} takes no message in state ${task.state}`)
}

/** Submits the outputs of the calls that a paused turn waits for. */
async function submitOutputs(
  request: A2aRequest,
  { id, turn_id, session_id, tool_calls }: TaskRow,
  message: Message,
  key: MessageKey,
  streamed: boolean,
): Promise<Started> {
  const tool_outputs = outputsOf(message, tool_calls ?? [])
  const claim: ClientInput['claim'] = async tx => {
    if (!(await recordMessage(tx, key, id)))
      raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: turn_id } })
  }
  try {
    const input = { session_id: session_id as string, body: { generation_id: turn_id, tool_outputs }, claim, streamed }
    return { task_id: id, turn: await generate(request, 'submitSessionToolOutputs', input) }
  } catch (error) {
    const known = await findTaskOfMessage(request.services.pool, key)
    if (known !== null) return { task_id: known }
    throw error
  }
}

/** Returns the outputs in a message: all of them by the IDs of the calls, or the output of the only call. */
function outputsOf(message: Message, calls: readonly { id: string }[]): unknown {
  const data = dataOf(message)
  const { tool_outputs } = (data ?? {}) as { tool_outputs?: unknown }
  if (Array.isArray(tool_outputs)) return tool_outputs
  if (calls.length === 1) return [{ tool_call_id: calls[0].id, output: data ?? textOf(message) }]
  return refuse('INVALID_PARAMS', 'The message must have a data part { tool_outputs: [{ tool_call_id, output }] }')
}

/** Submits the input that a node of a run waits for. */
async function submitInput(
  request: A2aRequest,
  { id, actions }: TaskRow,
  message: Message,
  key: MessageKey,
): Promise<Started> {
  const waiting = (actions ?? []).filter(({ type }) => type === 'human_input')
  const data = dataOf(message) as { node_id?: unknown; output?: unknown } | undefined
  const named = typeof data === 'object' && data !== null && typeof data.node_id === 'string' ? data.node_id : null
  const node = named === null && waiting.length === 1 ? waiting[0] : waiting.find(({ node_id }) => node_id === named)
  if (!node) {
    if (waiting.length === 0) refuse('UNSUPPORTED_OPERATION', `Task ${id} waits for no input of the client`)
    return refuse(
      'INVALID_PARAMS',
      'The message must have a data part { node_id, output } of a node that waits for input',
    )
  }
  const text = textOf(message)
  const answer = node.options === null ? { text } : { choice: text }
  const output = named === null ? (data ?? answer) : (data?.output ?? answer)
  await callOperation(request, 'a2a', 'submitHumanInput', {
    params: { orchestration_run_id: id },
    body: { node_id: node.node_id, output, wait: false },
    idempotencyKey: `a2a:input:${key.message.toString('hex')}`,
  })
  await recordMessage(request.services.pool, key, id)
  return { task_id: id }
}
