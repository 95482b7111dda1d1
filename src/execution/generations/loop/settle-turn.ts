import { recordUsageInTx } from '../../../control/usage/meter.ts'
import { AppError, type RecordedFailure } from '../../../core/api/errors.ts'
import { isDatabaseError } from '../../../core/db/database-errors.ts'
import { retryWhileUnavailable } from '../../../core/db/retry.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import { settledStep } from '../journal/open-step.ts'
import { type GenerationRow, type JournalStepRow, storedForm, type TurnData } from '../model.ts'
import { agentResult } from '../request/turn-result.ts'
import type { StreamEvent } from '../tools/tool-calls.ts'
import { traceFlusher } from '../traces/flush.ts'
import { commitAttempt } from './commit-attempt.ts'
import { storedStep } from './history.ts'
import { rateTurn } from './metering.ts'
import { outputSchemaOf } from './step-settings.ts'
import { parseStructuredOutput } from './structured-output.ts'
import { textEncodedCall } from './text-encoded-call.ts'
import type { TurnAttempt } from './turn-attempt.ts'
import { completionHooksFor, rememberedBy } from './turn-hooks.ts'
import { settlementParts } from './turn-store.ts'

const DEPTH_GUARD_TEXT = 'The largest depth of nested calls is reached; this agent was not asked.'

/** Why a turn ends behind a step whose calls the model would have gone on from. */
export type StopReason = 'max_steps' | 'tool-calls'

type End =
  | (Pick<GenerationRow, 'stop_reason' | 'output'> & { status: 'completed'; error: null })
  | (Pick<GenerationRow, 'stop_reason'> & { status: 'failed'; error: RecordedFailure; output: null })

/** What is recorded of a failure. Texts of the database are for the log alone. */
export function recordTurnFailure(error: unknown): RecordedFailure {
  if (error instanceof AppError) return error.recorded()
  const message = isDatabaseError(error) ? 'The turn could not be written' : String((error as Error)?.message ?? error)
  return { code: 'GENERATION_FAILED', message }
}

const failed = (error: RecordedFailure, stop_reason = 'error'): End => ({
  status: 'failed',
  stop_reason,
  error,
  output: null,
})

/** Ends the turn with its last step, completed unless the answer is not what it has to be. Raises TurnLost, TurnAborted. */
export async function completeTurn(
  turn: TurnAttempt,
  step: JournalStepRow,
  signal: AbortSignal,
  { stop = null, told }: { stop?: StopReason | null; told?: StreamEvent[] } = {},
): Promise<'settled'> {
  const text = step.text ?? ''
  const read = await readAnswer(turn, text, step, stop, signal)
  if ('failure' in read) return settle(turn, failed(read.failure), step, told)
  const finish_reason = step.finish_reason as string
  const output = { model: step.model as string, content: text, finish_reason, object: read.object }
  return settle(turn, { status: 'completed', stop_reason: stop ?? finish_reason, error: null, output }, step, told)
}

/** The answer as its schema asks for it, null without one; or why it is no answer. */
async function readAnswer(
  { services, agent, work, tools }: TurnAttempt,
  text: string,
  { finish_reason }: JournalStepRow,
  stop: StopReason | null,
  signal: AbortSignal,
): Promise<{ object: unknown } | { failure: RecordedFailure }> {
  const schema = outputSchemaOf(agent, work as TurnData)
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
  const message = `The model wrote a call of ${tool_name} as text`
  return { failure: { code: 'TEXT_ENCODED_TOOL_CALL', message, meta: { tool_name } } }
}

const NO_ANSWER = { code: 'NO_ANSWER', path: '', message: 'the turn ended at max_steps without an answer' }

/** The end of a chain of nested calls: a completed turn without a model call. Raises TurnLost, TurnAborted. */
export function settleAtDepthLimit(turn: TurnAttempt): Promise<'settled'> {
  const { agent, loaded, work } = turn
  const first = loaded.provider?.default_model ?? loaded.route?.route.targets[0].model
  const model = (work as TurnData).model ?? agent.model ?? first ?? ''
  const output = { model, content: DEPTH_GUARD_TEXT, finish_reason: 'other', object: null }
  return settle(turn, { status: 'completed', stop_reason: 'depth_guard', error: null, output }, null)
}

/** Ends the turn as failed. Raises TurnLost. */
export const failTurn = (turn: TurnAttempt, failure: RecordedFailure, stop_reason?: string) =>
  settle(turn, failed(shownFailure(turn.generation, failure), stop_reason), null)

/** What is told of a failure: of a provider that a project shares with its agent, neither which one it is nor what it says. */
function shownFailure({ publisher_project_id }: GenerationRow, { code, message, meta }: RecordedFailure) {
  if (publisher_project_id === null || !OF_PROVIDER.includes(code)) return { code, message, ...(meta ? { meta } : {}) }
  const status = meta?.provider_status_code
  const said = typeof status === 'number' ? `answered ${status}` : 'cannot be used'
  return {
    code,
    message: `The AI provider of the shared agent ${said}`,
    meta: Object.fromEntries(SHOWN.flatMap(key => (meta && key in meta ? [[key, meta[key]]] : []))),
  }
}

const OF_PROVIDER = ['AI_PROVIDER_ERROR', 'AI_PROVIDER_MISCONFIGURED', 'AI_PROVIDER_NOT_FOUND', 'MODEL_ROUTE_NOT_FOUND']
const SHOWN = ['provider_status_code', 'model', 'reason']

/** Ends the turn: record, journal, working state, frames and events in one transaction guarded by the attempt. */
async function settle(
  turn: TurnAttempt,
  end: End,
  given: JournalStepRow | null,
  told: StreamEvent[] = [],
): Promise<'settled'> {
  const { services, generation, run, work } = turn
  const { source } = run
  await injectFault(services, 'before_settle')
  // What was done of the step under way stays, so that a retry does not do it again.
  const step = given ?? cutOff(turn)
  const frames = await turn.framesOf(told, step)
  const steps = step ? [...turn.steps, step] : turn.steps
  // An answer that has not become a step when the turn ends is paid for all the same.
  const answered = step ?? turn.answered
  const used = await retryWhileUnavailable(
    () =>
      rateTurn(services, generation, {
        steps: answered ? [...turn.steps, answered] : turn.steps,
        slugs: turn.slugs,
        call: { input: work?.messages ?? null, output: end.output },
      }),
    run,
  )
  if (!given && turn.begun) turn.leaveUnknown(turn.begun)
  const calls = await turn.rateCalls()
  const now = new Date().toISOString()
  const shown: GenerationRow = {
    ...generation,
    ...end,
    input: work?.messages ?? null,
    usage: used.usage,
    step_count: steps.length,
    completed_at: now,
    last_activity_at: now,
    updated_at: now,
  }
  const after = storedForm(shown, now)
  const stored = step ? storedStep(step, generation.content_mode) : null
  const outcome = () => ({
    status: end.status,
    content: end.output?.content ?? null,
    partial: turn.partial === '' ? null : turn.partial.toWellFormed(),
    model: end.output?.model ?? null,
    object: end.output?.object ?? null,
    error: end.error,
    notes: work?.notes ?? {},
  })
  const follow = await retryWhileUnavailable(() => completionHooksFor(services, shown), run)
  const memory = await retryWhileUnavailable(() => rememberedBy(services.pool, generation, steps), run)
  await commitAttempt(turn, {
    after,
    frames,
    last: result =>
      end.status === 'completed'
        ? turn.frames.next('completed', result ?? agentResult(shown, steps))
        : turn.frames.next('error', end.error),
    parts: frames => settlementParts({ generation, after, step: stored, frames, journalled: turn.journalled }),
    follow(outgoing) {
      follow(outgoing, after, memory)
      recordUsageInTx(outgoing, [...used.rated, ...calls.rated])
    },
    add: source?.settle && (tx => source.settle?.(tx, after, outcome())),
    yields: end.status === 'completed',
  })
  calls.written()
  if (after.step_count > 0) traceFlusher(services).add(after)
  return turn.ended(end.status, end.error)
}

/** The step under way as it is when the turn ends in the middle of it; null when none of its calls was started. */
function cutOff({ begun }: TurnAttempt): JournalStepRow | null {
  return begun && settledStep(begun.step, begun.outcomes, begun.started)
}
