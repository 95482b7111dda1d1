import { z } from 'zod'
import { newCompletionHeader } from '#conversation/chats/completion.ts'
import { type Context, itemOperation, operations } from '#core/api/operation.ts'
import { AppError, type Problem, type RecordedFailure, raise, raiseInvalid } from '#core/base/errors.ts'
import { generationAccess } from '#execution/generations/end-user.ts'
import { type GenerationRow, generationKind } from '#execution/generations/model.ts'
import { stepMessages } from '#execution/generations/request/turn-result.ts'
import { findLastPart, listVoidTexts } from '#execution/generations/streams/frame-store.ts'
import { streamTurn } from '#execution/generations/streams/stream.ts'
import type { ModelAnswer, ModelMessage } from '#execution/providers/model-messages.ts'
import type { ClientChatRequest } from './client-request.ts'
import { answerOf, completionOperation, ignoredBy } from './completion.ts'
import { endUserOf } from './identity.ts'
import { modelNotFound, parseModelId } from './models.ts'
import { findOwnTurn } from './own-turn.ts'
import { errorFrame, sendJson, sendStream, setIgnored, setReport, visibilityFor } from './response.ts'
import {
  answerId,
  messageItem,
  outputItems,
  parseItemId,
  parseResponseId,
  type ResponseHead,
  requestEcho,
  responseEvents,
  responseObject,
  seconds,
  statusOf,
  suffixOf,
  usageOfTotals,
} from './responses-format.ts'
import {
  type Item,
  messagesOfItems,
  type ParsedResponse,
  parseResponseRequest,
  type ResolvedItem,
} from './responses-request.ts'
import { type AgentModel, runAgent, turnAnswerOf } from './run-agent.ts'
import { invokeOperation, isEndUser, type OpenAiSession } from './session.ts'
import { readStoredSteps, type StoredSteps } from './stored-steps.ts'
import type { AgentTurnCall, PreviousResponse } from './turn-call.ts'
import { type TurnChunks, turnFormat } from './turn-format.ts'

const notFound = (param: string, id: string): AppError =>
  new AppError('RESOURCE_NOT_FOUND', {
    message: `Item ${id.slice(0, 200)} not found`,
    meta: { id: id.slice(0, 200), param },
  })

/** Handles POST /responses. */
export const createResponse = (session: OpenAiSession): Promise<void> =>
  respond(session).catch((error: unknown) => {
    throw withOwnPaths(error)
  })

/** Returns an error that names the fields of this route: messages of the platform are made of the items of `input`. */
function withOwnPaths(error: unknown): unknown {
  if (!(error instanceof AppError) || error.code !== 'VALIDATION_FAILED') return error
  const problems = (error.meta?.problems ?? []) as Problem[]
  const isOther = ({ path }: Problem) => /^messages\b/.test(path)
  if (!problems.some(isOther)) return error
  return raiseInvalid(problems.map(problem => (isOther(problem) ? { ...problem, path: 'input' } : problem)))
}

async function respond(session: OpenAiSession): Promise<void> {
  const parsed = parseResponseRequest(await session.exchange.readJson())
  const model = parseModelId(parsed.request.model)
  const { generation, previous, references } = await resolveReferences(session, parsed)
  const { instructions, messages } = messagesOfItems(parsed.items, references, previous)
  const texts = [parsed.instructions, instructions].filter(text => text !== null)
  const request: ClientChatRequest = {
    ...parsed.request,
    messages,
    instructions: texts.length > 0 ? texts.join('\n\n') : null,
  }
  if (model.kind === 'agent' || model.kind === 'agent_name') {
    const continued = generation && { generation, message_count: previous.length }
    return respondByAgent(session, model, request, { ...parsed, previous: continued })
  }
  if (isEndUser(session)) throw modelNotFound(request.model)
  const visible = visibilityFor(session)
  const id = newCompletionHeader().id.replace(/^[a-z]+_/, 'resp_')
  const head = headOf(request.model, { ...parsed, store: false }, id)
  const answer = await invokeOperation(session, completionOperation, {
    body: {
      model,
      request,
      stream: request.stream
        ? (_first: string, state: { started: boolean }) =>
            responseEvents(head, visible, { failed: error => (state.started ? errorFrame(session, error) : null) })
        : null,
    },
  })
  setIgnored(session, [...parsed.ignored, ...ignoredBy(answer)])
  if (answer.stream) return sendStream(session, answer)
  const { text, finish_reason, usage, ...parts } = answerOf(answer)
  const output = outputItems(suffixOf(id), { ...parts, texts: [text], finish_reason, usage }, 0)
  sendJson(session, responseObject(head, { status: statusOf(finish_reason), output, usage }, visible))
}

const headOf = (
  model: string,
  { previous_response_id, store, background, echo }: Omit<ParsedResponse, 'items' | 'request'>,
  id: string,
): ResponseHead => ({ id, created_at: seconds(), model, previous_response_id, store, background, ...echo })

async function respondByAgent(
  session: OpenAiSession,
  model: AgentModel,
  request: ClientChatRequest,
  parsed: ParsedResponse & { previous: PreviousResponse | null },
): Promise<void> {
  const visible = visibilityFor(session)
  const stream: AgentTurnCall['stream'] = request.stream
    ? (generationId, state, afterStep) =>
        responseEvents(headOf(request.model, parsed, answerId('resp', generationId, afterStep)), visible, {
          failed: error => (state.started ? errorFrame(session, error) : null),
          afterStep,
        })
    : null
  const { store, background, conversation, previous, ignored } = parsed
  const options = { key: conversation, previous, store, background }
  const { answer, report } = await runAgent(session, model, request, stream, options)
  setReport(session, report, [...ignored, ...ignoredBy(answer)])
  if (answer.stream) return sendStream(session, answer)
  const { queued } = answer.body as { queued?: string }
  if (queued !== undefined)
    return sendJson(
      session,
      responseObject(
        headOf(request.model, parsed, answerId('resp', queued, 0)),
        { status: 'queued', output: [] },
        visible,
      ),
    )
  const turn = turnAnswerOf(answer)
  const id = answerId('resp', turn.generation_id, turn.afterStep)
  const output = outputItems(suffixOf(id), turn, turn.afterStep)
  const status = statusOf(turn.finish_reason)
  sendJson(session, responseObject(headOf(request.model, parsed, id), { status, output, usage: turn.usage }, visible))
}

/** Returns the stored items that a request names, and the messages of its previous response. */
async function resolveReferences(
  session: OpenAiSession,
  { items, previous_response_id, request }: ParsedResponse,
): Promise<{ generation: GenerationRow | null; previous: ModelMessage[]; references: Map<string, ResolvedItem> }> {
  const references = new Map<string, ResolvedItem>()
  const steps = new Map<string, StoredSteps>()
  const endUser = endUserOf(session, request)
  const read = async (generationId: string, param: string, id: string): Promise<StoredSteps> => {
    const known = steps.get(generationId)
    if (known) return known
    const turn = await findOwnTurn(session, generationId, endUser)
    if (!turn) throw notFound(param, id)
    const stored = { generation: turn, steps: await readStoredSteps(session.services, turn) }
    steps.set(generationId, stored)
    return stored
  }
  for (const [index, item] of items.entries()) {
    if (!isReference(item)) continue
    const param = `input[${index}]`
    const named = parseItemId(item.id)
    if (!named) throw notFound(param, item.id)
    const stored = await read(named.generation_id, param, item.id)
    const call = stored.steps.flatMap(step => step.tool_calls).find(({ id }) => id === named.call_id)
    const text = named.step === undefined ? null : stored.steps.find(({ n }) => n === named.step)?.text
    if (call)
      references.set(item.id, { type: 'call', id: call.id, name: call.tool_name, arguments: JSON.stringify(call.args) })
    else if (text) references.set(item.id, { type: 'text', text })
    else throw notFound(param, item.id)
  }
  if (previous_response_id === null) return { generation: null, previous: [], references }
  const named = parseResponseId(previous_response_id)
  if (!named) throw notFound('previous_response_id', previous_response_id)
  const { generation, steps: own } = await read(named.generation_id, 'previous_response_id', previous_response_id)
  // The input of a paused turn is not in its record; only results of its calls continue it.
  const input = generation.input ?? (generation.status === 'requires_action' ? [] : null)
  if (!input) throw notFound('previous_response_id', previous_response_id)
  return { generation, previous: [...input, ...own.flatMap(stepMessages)], references }
}

const isReference = (item: Item): item is Extract<Item, { type: 'item_reference' }> =>
  'type' in item && item.type === 'item_reference'

/** Reads a generation, for the routes of one response. */
const readOperation = itemOperation(generationKind, {
  id: 'getOpenAiResponse',
  method: 'get',
  path: '/openai/v1/responses/{generation_id}',
  summary: 'Get a response',
  tag: 'OpenAI',
  action: 'generations:GetGeneration',
  query: z.object({ starting_after: z.string().optional() }),
  endUser: { ...generationAccess, query: ['starting_after'], presented: true },
  answers: { 200: null },
  run: async ({ resource, services }) => ({ generation: resource, steps: await readStoredSteps(services, resource) }),
})

/** Returns the format of a generation as a stream. @param afterStep steps before the part that the response shows */
type PresentResponse = (generation: GenerationRow, afterStep: number) => TurnChunks

/** Streams a generation as the events of its response: of a resumed one, as the response that resumed it. */
const streamOperation = itemOperation(generationKind, {
  id: 'streamOpenAiResponse',
  method: 'post',
  path: '/openai/v1/responses/{generation_id}/stream',
  summary: 'Stream a response',
  tag: 'OpenAI',
  action: 'generations:GetGeneration',
  reads: true,
  body: z.custom<{ present: PresentResponse }>(),
  endUser: { ...generationAccess, fields: ['present'], streams: () => true, presented: true },
  answers: { 200: null },
  run: async (context: Context<Record<string, never>, { present: PresentResponse }, GenerationRow>) => {
    const { resource, body, services } = context
    const { after, steps: afterStep } = await findLastPart(services.pool, resource.id)
    const voids = await listVoidTexts(services.pool, resource.id)
    const turn = { generation_id: resource.id, model: resource.agent_id, afterStep, voids }
    return streamTurn(context, resource, after, turnFormat(body.present(resource, afterStep), turn))
  },
})

const idIn = ([, id]: RegExpExecArray): string => namedBy(id).generation_id

function namedBy(id: string) {
  const named = parseResponseId(id)
  if (!named) throw notFound('response_id', id)
  return named
}

async function readResponse(session: OpenAiSession, match: RegExpExecArray): Promise<StoredSteps> {
  const generation_id = idIn(match)
  const { body } = await invokeOperation(session, readOperation, { params: { generation_id } })
  const stored = body as StoredSteps
  const { content_mode, content_redacted_at } = stored.generation
  if (content_mode === 'none' || content_redacted_at !== null) throw notFound('response_id', match[1])
  return stored
}

const STATUSES = {
  pending: 'queued',
  in_progress: 'in_progress',
  requires_action: 'completed',
  completed: 'completed',
  failed: 'failed',
} as const

/** Returns a generation as one of its responses: the first one has all steps. */
function present(session: OpenAiSession, id: string, { generation, steps }: StoredSteps) {
  const { afterStep } = namedBy(id)
  const suffix = suffixOf(generation.id)
  const { status, stop_reason, error, output } = generation
  const pending = (generation.required_action as { tool_calls?: { id: string }[] } | null)?.tool_calls ?? []
  const pendingIds = new Set(pending.map(({ id }) => id))
  const calls = steps.flatMap(step => step.tool_calls).filter(({ id }) => pendingIds.has(id))
  const finish_reason = (output?.finish_reason ?? 'stop') as ModelAnswer['finish_reason']
  const items = outputItems(
    suffix,
    {
      texts: steps.slice(afterStep).map(({ text }) => text ?? ''),
      tool_calls: calls,
      finish_reason,
      usage: null,
      annotations: output?.annotations,
    },
    afterStep,
  )
  const shown =
    status === 'failed' && stop_reason === 'cancelled'
      ? 'cancelled'
      : status === 'completed'
        ? statusOf(finish_reason)
        : STATUSES[status]
  const failure = status === 'failed' && error ? errorFrame(session, failureOf(error)).error : null
  return responseObject(
    headOfGeneration(generation, afterStep),
    {
      status: shown,
      output: items,
      usage: usageOfTotals(generation.usage),
      completed_at: generation.completed_at,
      error: failure as { code: string; message: string } | null,
    },
    visibilityFor(session),
  )
}

const failureOf = ({ code, message, meta }: RecordedFailure): AppError =>
  new AppError(code as AppError['code'], { message, meta })

const headOfGeneration = ({ id, agent_id, created_at }: GenerationRow, afterStep: number): ResponseHead => ({
  id: answerId('resp', id, afterStep),
  created_at: seconds(created_at),
  model: agent_id,
  previous_response_id: null,
  store: true,
  background: false,
  ...requestEcho({}),
})

/** Handles GET /responses/{id}, as a whole or as a stream after an event. */
export async function getResponse(session: OpenAiSession, match: RegExpExecArray): Promise<void> {
  const { stream, starting_after } = session.exchange.req.query
  if (stream !== 'true') return sendJson(session, present(session, match[1], await readResponse(session, match)))
  const after = typeof starting_after === 'string' && /^\d{1,9}$/.test(starting_after) ? Number(starting_after) : -1
  const visible = visibilityFor(session)
  const answer = await invokeOperation(session, streamOperation, {
    params: { generation_id: idIn(match) },
    body: {
      present: (generation: GenerationRow, afterStep: number) =>
        responseEvents(headOfGeneration(generation, afterStep), visible, {
          failed: error => errorFrame(session, error),
          after,
          afterStep,
          completed_at: generation.completed_at,
        }),
    },
  })
  sendStream(session, answer)
}

/** Handles DELETE /responses/{id}: erases the content of the turn. */
export async function deleteResponse(session: OpenAiSession, match: RegExpExecArray): Promise<void> {
  const generation_id = idIn(match)
  await invokeOperation(session, operations.get('purgeGenerationContent'), { params: { generation_id } })
  sendJson(session, { id: match[1], object: 'response', deleted: true })
}

/** Handles POST /responses/{id}/cancel. */
export async function cancelResponse(session: OpenAiSession, match: RegExpExecArray): Promise<void> {
  const generation_id = idIn(match)
  await invokeOperation(session, operations.get('cancelGeneration'), { params: { generation_id } })
  sendJson(session, present(session, match[1], await readResponse(session, match)))
}

/** Handles GET /responses/{id}/input_items: what the turn was given, newest first. */
export async function listInputItems(session: OpenAiSession, match: RegExpExecArray): Promise<void> {
  // It contains results of tools and messages of the team.
  if (isEndUser(session)) raise('FORBIDDEN')
  const { generation } = await readResponse(session, match)
  const data = (generation.input ?? []).map((message, index) => inputItem(generation.id, message, index)).reverse()
  sendJson(session, {
    object: 'list',
    data,
    first_id: data.at(0)?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: false,
  })
}

function inputItem(generationId: string, { role, content }: ModelMessage, index: number) {
  const suffix = `${suffixOf(generationId)}_in${index}`
  const text =
    typeof content === 'string' ? content : content.map(part => (part.type === 'text' ? part.text : '')).join('\n\n')
  if (role === 'assistant') return messageItem(suffix, 0, text)
  if (role === 'tool') {
    const [first] = content
    return {
      id: `fco_${suffix}`,
      type: 'function_call_output',
      status: 'completed',
      call_id: first.tool_call_id,
      output: typeof first.result === 'string' ? first.result : JSON.stringify(first.result),
    }
  }
  return { id: `msg_${suffix}`, type: 'message', status: 'completed', role, content: [{ type: 'input_text', text }] }
}
