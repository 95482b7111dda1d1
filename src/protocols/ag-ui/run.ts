import type { ClientInput } from '#core/api/call.ts'
import { RequestCount } from '#core/api/request-count.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { resolvedName } from '#execution/tools/actions.ts'
import { openTranslated } from '../event-format.ts'
import { callOperation, type Run, type ShownTurn } from './call.ts'
import {
  contextBlock,
  isUnstreamed,
  type Message,
  type Resume,
  type SubmittedOutputs,
  type UserMessage,
} from './input.ts'
import { resolveInterrupts } from './interrupts.ts'
import { messageBody } from './media.ts'
import { replaceState, replacesState } from './state.ts'
import { findRun, recordRun, type Thread } from './store.ts'

/** What a run shows: a turn, with the refusal of new messages next to the outputs that resume it, or why there is none. */
export type RunOutcome =
  | { turn: ShownTurn; unstored?: AppError }
  /** Approvals that the end user has decided. */
  | { decided: readonly string[] }
  /** The session is under an operator: the messages are stored. */
  | { operator: Record<string, unknown> }
  /** A refusal that the client receives in the stream. */
  | { refused: AppError }

/** Statuses of refusals that are answered in place of a stream. */
export const HTTP_REFUSALS: readonly number[] = [401, 403, 404, 429]

/**
 * Begins or repeats a run. A repeated run shows the turn that the first one started, whether or not it has ended.
 * @param outputs of a paused turn
 * @throws refusals that are answered in place of the stream
 */
export async function beginRun(run: Run, outputs: SubmittedOutputs | null): Promise<RunOutcome> {
  const { thread } = run
  if (thread.run) {
    // The first request may have been lost between the outputs and the messages.
    const unstored = outputs ? await storeNextToOutputs(run) : undefined
    return { ...(await showRecorded(run, thread.run)), unstored }
  }
  const [taken] = takenToolNames(run)
  // To an end user, a refusal would show the names of the agent's tools. The tools of the agent win.
  if (taken !== undefined && !run.request.caller.end_user) return { refused: nameTaken(taken) }
  try {
    if (run.input.resume?.length) return await resumeInterrupts(run, run.input.resume)
    if (outputs) return await resumeTurn(run, outputs)
    await storeMessages(run)
    return await startTurn(run)
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    // A concurrent request may have begun the run.
    const recorded = await findRun(run.request.services.pool, keyOf(run))
    if (recorded) return showRecorded(run, recorded)
    if (isUnderOperator(error)) return recordOperator(run, error)
    if (HTTP_REFUSALS.includes(error.status) && !outputs) throw error
    return { refused: error }
  }
}

/** Returns the names of a client's tools that the agent's own tools have; none if the agent takes no client tools. */
function takenToolNames({ thread, input }: Run): string[] {
  if (!thread.accept_client_tools) return []
  const names = new Set(thread.tool_names.map(resolvedName))
  return (input.tools ?? []).map(({ name }) => name).filter(name => names.has(resolvedName(name)))
}

const nameTaken = (name: string): AppError =>
  new AppError('VALIDATION_FAILED', {
    message: `The agent has a tool named ${name}`,
    meta: { problems: [{ code: 'INVALID_VALUE', path: 'tools', message: `must not contain ${name}` }] },
  })

const keyOf = ({ sessionId, input }: Run) => ({ session_id: sessionId, run_id: input.runId })

/** Records the run with its turn and the client's state, in the transaction that starts or resumes the turn. */
const claimFor = (run: Run): ClientInput['claim'] =>
  async function claim(tx, { generation_id, after }) {
    if (!(await recordRun(tx, keyOf(run), { generation_id, after })))
      raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id } })
    if (replacesState(run.thread, run.input)) await replaceState(tx, run.sessionId, run.input)
  }

const isUnderOperator = ({ code }: { code: string }): boolean => code === 'SESSION_UNDER_OPERATOR'

async function recordOperator(run: Run, { meta }: AppError): Promise<RunOutcome> {
  await recordRun(run.request.services.pool, keyOf(run), { generation_id: null, after: 0 })
  return { operator: { control: 'operator', ...meta } }
}

/** Shows the turn of a recorded run. */
async function showRecorded(run: Run, { generation_id, after_frame }: NonNullable<Thread['run']>): Promise<RunOutcome> {
  if (generation_id === null) return { operator: { control: 'operator' } }
  return { turn: await attach(run, generation_id, after_frame) }
}

/** Streams a turn of the session from a frame on. */
export async function attach({ request, sessionId }: Run, generation_id: string, after: number): Promise<ShownTurn> {
  const stream = await openTranslated(request, request.mount.surface, 'generateSessionReply', {
    params: { session_id: sessionId },
    body: { stream: true },
    client: { attach: { generation_id, after } },
  })
  return { generation_id, ...stream }
}

const isUser = (message: Message): message is UserMessage => message.role === 'user'

/**
 * Stores the messages of the end user that the session does not have, in their order. Returns their number. Each after the
 * first counts as a request of the key, because a body may have ten thousand.
 */
async function storeMessages(run: Run): Promise<number> {
  const { request, sessionId, thread, input } = run
  const stored = new Set(thread.stored_ids)
  const last = input.messages.findLastIndex(({ id }) => stored.has(id))
  const messages = input.messages.slice(last + 1).filter(isUser)
  for (const [index, message] of messages.entries()) {
    if (index > 0) await new RequestCount(request.services).in(request.caller, thread.project_id)
    await callOperation(request, 'sendSessionMessage', {
      params: { session_id: sessionId },
      body: { ...(await messageBody(run, message)), idempotency_key: message.id },
    })
  }
  run.counted ||= messages.length > 0
  return messages.length
}

/** Starts a turn. A turn of an agent with an output schema cannot be streamed, and is shown when it ends. */
async function startTurn(run: Run): Promise<RunOutcome> {
  if (isUnstreamed(run.input)) return startUnstreamed(run)
  try {
    return await startStreamed(run)
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED') throw error
    run.counted = true
    return startUnstreamed(run)
  }
}

const clientOf = (run: Run, noteTurn?: (id: string) => void): ClientInput => {
  const claim = claimFor(run) as NonNullable<ClientInput['claim']>
  const taken = takenToolNames(run)
  return {
    queue: true,
    counted: run.counted,
    context: contextBlock(run.input),
    tools: run.input.tools
      ?.filter(({ name }) => !taken.includes(name))
      .map(({ name, description, parameters }) => ({
        name,
        description: description ?? '',
        parameters: parameters ?? { type: 'object' },
      })),
    async claim(tx, turn) {
      await claim(tx, turn)
      noteTurn?.(turn.generation_id)
    },
  }
}

async function startStreamed(run: Run): Promise<RunOutcome> {
  let generation_id = ''
  const client = clientOf(run, id => {
    generation_id = id
  })
  const stream = await openTranslated(run.request, run.request.mount.surface, 'generateSessionReply', {
    params: { session_id: run.sessionId },
    body: { stream: true },
    client,
  })
  return { turn: { generation_id, ...stream } }
}

async function startUnstreamed(run: Run): Promise<RunOutcome> {
  const { body } = await callOperation(run.request, 'generateSessionReply', {
    params: { session_id: run.sessionId },
    query: { wait: 'false' },
    body: {},
    client: clientOf(run),
  })
  const { generation_id } = body as { generation_id: string }
  return { turn: await attach(run, generation_id, 0) }
}

/**
 * Resolves interrupts; new messages of the end user are stored after it. A cancelled interrupt that has expired leads to no
 * turn, and a new message to one.
 */
async function resumeInterrupts(run: Run, resume: readonly Resume[]): Promise<RunOutcome> {
  const decided = await resolveInterrupts(run, resume)
  const count = await storeMessages(run)
  return decided.length === 0 && count > 0 ? startTurn(run) : { decided }
}

/** Submits the outputs of a paused turn; new messages of the end user are stored after it. */
async function resumeTurn(run: Run, { generation_id, outputs }: SubmittedOutputs): Promise<RunOutcome> {
  const stream = await openTranslated(run.request, run.request.mount.surface, 'submitSessionToolOutputs', {
    params: { session_id: run.sessionId },
    body: {
      generation_id,
      stream: true,
      tool_outputs: outputs,
    },
    client: { claim: claimFor(run) },
  })
  return { turn: { generation_id, ...stream }, unstored: await storeNextToOutputs(run) }
}

/** Stores new messages after outputs, which stay accepted if the messages are refused. Returns the refusal. */
async function storeNextToOutputs(run: Run): Promise<AppError | undefined> {
  try {
    await storeMessages(run)
    return undefined
  } catch (error) {
    if (error instanceof AppError) return error
    throw error
  }
}
