import { recordUsageInTx } from '#control/usage/meter.ts'
import { systemClock } from '#core/base/clock.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { isDatabaseError } from '#core/db/database-errors.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { ignoredSettings } from '#execution/providers/ignored-params.ts'
import { isRefused, type ModelMessage } from '#execution/providers/model-messages.ts'
import { phasedParts } from '#execution/providers/vendor-parts.ts'
import { settledStep, storedStep } from '../journal/step.ts'
import { type GenerationRow, type JournalStepRow, storedForm, type TurnData } from '../model.ts'
import { agentResult, clientParts, laterMessages } from '../request/turn-result.ts'
import type { StreamEvent } from '../tools/tool-calls.ts'
import { traceFlusher } from '../traces/flush.ts'
import { commitAttempt } from './commit-attempt.ts'
import { contextUse, type RequestSize } from './context-bound.ts'
import { priceTurn } from './metering.ts'
import { outputSchemaOf } from './step-settings.ts'
import { parseStructuredOutput, stripCodeFence } from './structured-output.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { completionHooksFor, loadTurnMemoryIfWritten } from './turn-hooks.ts'
import type { TurnOutcome } from './turn-owner.ts'
import { settlementParts } from './turn-store.ts'

const DEPTH_LIMIT_TEXT = 'The maximum depth of nested calls was reached; this agent was not run.'

/** Why a turn ends after a step with tool calls. */
export type StopReason = 'max_steps' | 'tool-calls'

/** What the last step of a turn leaves: events of its calls, and the size of its model request with a context policy. */
type StepEnd = { events?: StreamEvent[]; request?: RequestSize | null }

type TurnEnd =
  | (Pick<GenerationRow, 'stop_reason' | 'output'> & { status: 'completed'; error: null })
  | (Pick<GenerationRow, 'stop_reason'> & { status: 'failed'; error: RecordedFailure; output: null })

/** Returns the recorded form of an error. Texts of database errors are only logged. */
export function recordTurnFailure(error: unknown): RecordedFailure {
  if (error instanceof AppError) return error.recorded()
  const message = isDatabaseError(error) ? 'The turn could not be written' : String((error as Error)?.message ?? error)
  return { code: 'GENERATION_FAILED', message }
}

const failedEnd = (error: RecordedFailure, stop_reason = 'error'): TurnEnd => ({
  status: 'failed',
  stop_reason,
  error,
  output: null,
})

/** Settles the turn with its last step; it fails if the answer is invalid. @throws TurnClaimLost, TurnAborted */
export async function completeTurn(
  turn: TurnAttempt,
  step: JournalStepRow,
  signal: AbortSignal,
  { stop = null, ...more }: { stop?: StopReason | null } & StepEnd = {},
): Promise<'settled'> {
  const text = step.text ?? ''
  const read = await readAnswer(turn, text, step, stop, signal)
  if ('failure' in read) return settleTurn(turn, failedEnd(read.failure), step, more)
  const finish_reason = step.finish_reason as string
  const { annotations } = step
  const output = {
    model: step.model as string,
    content: text,
    finish_reason,
    object: read.object,
    ...(annotations && annotations.length > 0 && { annotations }),
  }
  return settleTurn(turn, { status: 'completed', stop_reason: stop ?? finish_reason, error: null, output }, step, more)
}

/** Returns the object of a structured answer, null without a schema, or the failure of an invalid answer. */
async function readAnswer(
  { services, agent, data, tools }: TurnAttempt,
  text: string,
  { finish_reason }: JournalStepRow,
  stop: StopReason | null,
  signal: AbortSignal,
): Promise<{ object: unknown } | { failure: RecordedFailure }> {
  const schema = outputSchemaOf(agent, data as TurnData)
  if (schema && stop !== 'tool-calls') {
    const read = stop
      ? { ok: false as const, problems: [NO_ANSWER] }
      : await parseStructuredOutput(services, agent.project_id, { text, schema, signal })
    if (read.ok) return { object: read.object }
    const message = 'The answer does not satisfy the output schema'
    const meta = { problems: read.problems, finish_reason }
    return { failure: { code: 'OUTPUT_SCHEMA_VALIDATION_FAILED', message, meta } }
  }
  const tool_name = stop ? null : textEncodedCall(text, new Set(tools.tools.keys()))
  if (tool_name === null) return { object: null }
  const message = `The model wrote a call of tool ${tool_name} as text`
  return { failure: { code: 'TEXT_ENCODED_TOOL_CALL', message, meta: { tool_name } } }
}

const NO_ANSWER = { code: 'NO_ANSWER', path: '', message: 'Turn reached max_steps without a final answer' }

/** Completes a turn at the maximum depth without a model call. @throws TurnClaimLost, TurnAborted */
export function settleAtDepthLimit(turn: TurnAttempt): Promise<'settled'> {
  const { agent, loaded, data } = turn
  const first = loaded.provider?.default_model ?? loaded.route?.route.targets[0].model
  const model = (data as TurnData).model ?? agent.model ?? first ?? ''
  const output = { model, content: DEPTH_LIMIT_TEXT, finish_reason: 'other', object: null }
  return settleTurn(turn, { status: 'completed', stop_reason: 'depth_guard', error: null, output }, null)
}

/** Settles the turn as failed. @throws TurnClaimLost */
export const failTurn = (turn: TurnAttempt, failure: RecordedFailure, stop_reason?: string) =>
  settleTurn(turn, failedEnd(publicFailure(turn.generation, failure), stop_reason), null)

/** Returns a failure without the provider's identity and message if another project shares the agent. */
function publicFailure({ publisher_project_id }: GenerationRow, { code, message, meta }: RecordedFailure) {
  if (publisher_project_id === null || !PROVIDER_ERRORS.includes(code))
    return { code, message, ...(meta ? { meta } : {}) }
  const status = meta?.provider_status_code
  const problem = typeof status === 'number' ? `responded with ${status}` : 'cannot be used'
  return {
    code,
    message: `The AI provider of the shared agent ${problem}`,
    meta: Object.fromEntries(PUBLIC_META.flatMap(key => (meta && key in meta ? [[key, meta[key]]] : []))),
  }
}

const PROVIDER_ERRORS = [
  'AI_PROVIDER_ERROR',
  'AI_PROVIDER_MISCONFIGURED',
  'AI_PROVIDER_NOT_FOUND',
  'MODEL_ROUTE_NOT_FOUND',
]
const PUBLIC_META = ['provider_status_code', 'model', 'reason']

/** Settles the turn: record, journal, turn data, frames and events in one transaction fenced by the attempt. */
async function settleTurn(
  turn: TurnAttempt,
  end: TurnEnd,
  lastStep: JournalStepRow | null,
  { events = [], request = null }: StepEnd = {},
): Promise<'settled'> {
  const { services, generation, context, data, agent } = turn
  const { source } = context
  await injectFault(services, 'before_settle')
  // Outcomes of a step in progress are stored, so that a retry does not repeat its calls.
  const step = lastStep ?? interruptedStep(turn)
  const frames = await turn.buildFrames(events, step)
  const steps = step ? [...turn.steps, step] : turn.steps
  // A model answer whose step has not settled is billed too.
  const answered = step ?? turn.lastAnswer
  const used = await retryWhileUnavailable(
    () =>
      priceTurn(services, generation, {
        steps: answered ? [...turn.steps, answered] : turn.steps,
        providerTypes: turn.providerTypes,
        call: { input: data?.messages ?? null, output: end.output },
      }),
    context,
  )
  if (!lastStep && turn.startedStep) turn.addLostCalls(turn.startedStep)
  const calls = await turn.priceCalls()
  const sent = turn.requests.unwritten(step === null)
  const now = systemClock.now().toISOString()
  const settled: GenerationRow = {
    ...generation,
    ...end,
    input: data?.messages?.map(withoutMarks) ?? null,
    usage: used.usage,
    step_count: steps.length,
    completed_at: now,
    last_activity_at: now,
    updated_at: now,
  }
  const after = storedForm(settled, now)
  const stored = step ? storedStep(step, generation.content_mode) : null
  const isRefusedTurn = steps.some(isRefused)
  const outcome = () => ({
    status: end.status,
    content: end.output?.content ?? null,
    texts: steps.map(({ text }) => text ?? ''),
    history: isRefusedTurn ? [] : laterHistory(generation, steps),
    partial: turn.partial === '' ? null : turn.partial.toWellFormed(),
    model: end.output?.model ?? null,
    annotations: end.output?.annotations ?? null,
    object: end.output?.object ?? null,
    error: end.error,
    ignored_params: ignoredSettings(steps),
    notes: data?.notes ?? {},
    context: end.status === 'completed' ? contextOf(turn, request, answered) : null,
    names_session: end.status === 'completed' && agent.auto_title && !isRefusedTurn && mayStoreDerived(turn),
  })
  const emitHooks = await retryWhileUnavailable(
    () => completionHooksFor(services, settled, { isRefused: isRefusedTurn }),
    context,
  )
  const memory = await retryWhileUnavailable(() => loadTurnMemoryIfWritten(services.pool, generation, steps), context)
  await commitAttempt(turn, {
    after,
    frames,
    last: result =>
      end.status === 'completed'
        ? { event: 'completed', data: { ...(result ?? agentResult(settled, steps)), ...clientParts(turn) } }
        : { event: 'error', data: end.error },
    isRecorded: isRecorded(turn, settled, steps),
    parts: frames =>
      settlementParts({
        generation,
        after,
        step: stored,
        frames,
        journalled: turn.journalled,
        request: sent,
      }),
    addWrites(outbox) {
      emitHooks(outbox, after, memory)
      recordUsageInTx(services, outbox, [...used.rated, ...calls.rated])
    },
    inSource: source?.settle && (tx => source.settle?.(tx, after, outcome())),
    interruptible: end.status === 'completed',
  })
  calls.written()
  if (after.step_count > 0) traceFlusher(services).add(after)
  return turn.reportOutcome(end.status, end.error)
}

/**
 * Whether the record of a turn that is not streamed gives its readers the same end as its last frame. False in content mode
 * `none`, for turns of conversations, with parts for the client, and with objects or tool calls, whose keys the record stores
 * in another order.
 */
function isRecorded(
  turn: TurnAttempt,
  { streamed, content_mode, shape, output, error }: GenerationRow,
  steps: readonly JournalStepRow[],
): boolean {
  if (streamed || content_mode === 'none') return false
  if (error) return true
  const isText = output?.object === null && steps.every(({ tool_calls }) => tool_calls.length === 0)
  return isText && shape === 'agent' && Object.keys(clientParts(turn)).length === 0
}

/** Returns a message as the record of its turn shows it. */
function withoutMarks(message: ModelMessage): ModelMessage {
  if (message.role !== 'assistant' || !(message.vendor || message.reasoning)) return message
  const { vendor: _, reasoning: __, ...shown } = message
  return shown
}

/** Returns the messages that later turns read in place of the text of a turn; null for the text. */
function laterHistory({ content_mode }: GenerationRow, steps: readonly JournalStepRow[]): ModelMessage[] | null {
  const isMoreThanText = steps.some(
    ({ tool_calls, vendor_parts }) => tool_calls.length > 0 || phasedParts(vendor_parts),
  )
  return content_mode === 'full' && isMoreThanText ? steps.flatMap(laterMessages) : null
}

/**
 * Whether the agent's model may be called for texts derived from the turn: its content is stored, and the agent is not of
 * another project, whose model is called only for turns.
 */
export const mayStoreDerived = ({ agent, generation }: TurnAttempt): boolean =>
  generation.content_mode === 'full' && agent.project_id === generation.project_id

/** Returns the use of the context by the last request of a turn; null if its size is unknown. */
function contextOf(
  turn: TurnAttempt,
  request: RequestSize | null,
  answered: Pick<JournalStepRow, 'n' | 'usage' | 'text'> | null,
): TurnOutcome['context'] {
  const { agent } = turn
  if (!agent.context_policy || !request || !answered) return null
  const { usage } = answered
  // The vendor may have read the prompt in several calls.
  const prompt = usage?.details?.largest_prompt_tokens ?? usage?.input_tokens ?? null
  const metered = request.step === answered.n ? prompt : null
  const { bytes_per_token, full } = contextUse(agent.context_policy, request, metered, answered.text ?? '')
  const summarizes = full && mayStoreDerived(turn) && agent.context_policy.strategy === 'summarize'
  return { bytes_per_token, summarize: summarizes ? { history_tokens: request.capacity } : null }
}

/** Returns the step in progress as settled by the end of the turn; null if none of its calls has started. */
function interruptedStep({ startedStep }: TurnAttempt): JournalStepRow | null {
  return startedStep && settledStep(startedStep.step, startedStep.outcomes, startedStep.started)
}

/** Keys of a tool call that a model wrote as text. */
const KEYS = new Set([
  ...['name', 'tool', 'tool_name', 'toolName', 'function'],
  ...['arguments', 'args', 'parameters', 'input', 'id', 'tool_call_id', 'type'],
])
const NAME_KEYS = ['name', 'tool', 'tool_name', 'toolName', 'function']

/**
 * Returns the tool of an answer that consists only of tool calls written as text: a JSON object, or an array of
 * objects, each with the name of a tool of the turn and only keys of calls. Null for any other answer.
 */
function textEncodedCall(text: string, tools: ReadonlySet<string>): string | null {
  if (tools.size === 0) return null
  const json = stripCodeFence(text)
  if (!/^[{[]/.test(json)) return null
  let value: unknown
  try {
    value = parseExactJson(json)
  } catch {
    return null
  }
  const calls = Array.isArray(value) ? value : [value]
  const names = calls.map(call => calledTool(call, tools))
  return names.length > 0 && names.every(name => name !== null) ? names[0] : null
}

function calledTool(call: unknown, tools: ReadonlySet<string>): string | null {
  if (typeof call !== 'object' || call === null || Array.isArray(call)) return null
  const entries = Object.entries(call)
  if (!entries.every(([key]) => KEYS.has(key))) return null
  const [, name] = entries.find(([key, value]) => NAME_KEYS.includes(key) && tools.has(value as string)) ?? []
  return (name as string | undefined) ?? null
}
