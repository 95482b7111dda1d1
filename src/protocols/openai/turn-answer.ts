import { countsOf, type UsageSums } from '#control/usage/totals.ts'
import { joinedTexts } from '#conversation/dialog/mailbox/reply-hash.ts'
import { AppError, isErrorCode, type RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { GenerationRow } from '#execution/generations/model.ts'
import type { StepLogprobs } from '#execution/generations/request/turn-result.ts'
import { raiseFailure, raiseRecorded } from '#execution/generations/request/wait-for-turn.ts'
import type { TurnEnd, TurnEndState } from '#execution/generations/streams/turn-end.ts'
import type { Annotation, ModelAnswer, ModelMessage } from '#execution/providers/model-messages.ts'
import { UnrepeatableTurnError } from './error-body.ts'
import { readPausedSteps } from './stored-steps.ts'

/** The result of an agent's turn, as its last frame contains it. */
export type TurnResult = {
  agent_version: number | null
  output?: {
    content: string
    finish_reason: string
    annotations?: Annotation[]
    response_messages?: ModelMessage[]
  } | null
  /** Message of a turn that began in a session. */
  message?: { annotations: Annotation[] | null }
  /** Text of a turn that began in a session, which has no output. */
  content?: string | null
  required_action: { tool_calls?: { id: string; tool_name: string; args: unknown }[] } | null
  usage: UsageSums | null
  reasoning?: string
  /** Of steps of a turn that was not streamed, and of a step that paused. */
  logprobs?: StepLogprobs[]
  ignored_params?: string[]
}

/** The answer of a turn, whose texts are given by step. */
export type TurnAnswer = Omit<ModelAnswer, 'ai_provider_id' | 'logprobs'> & {
  generation_id: string
  agent_version: number | null
  /** The last one has the annotations. */
  texts: string[]
  /** Steps of the turn before the request. */
  afterStep: number
  /** Of the tokens of the texts. */
  logprobs: StepLogprobs[]
  ignored_params?: string[]
}

/** Returns the texts of steps by the messages of a turn. */
const textsOf = (messages: readonly ModelMessage[]): string[] =>
  messages.flatMap(message =>
    message.role === 'assistant' && typeof message.content !== 'string'
      ? message.content.flatMap(part => (part.type === 'text' ? part.text : [])).join('\n\n')
      : [],
  )

/** Returns the texts of all steps of a completed turn by its result; its output alone if the result has no messages. */
export const textsOfResult = ({ output, content }: TurnResult): string[] =>
  output?.response_messages ? textsOf(output.response_messages) : [output?.content ?? content ?? '']

/** Returns the answer of a turn that completed or paused. @param texts of its steps after the request */
export const answerOfResult = (
  generation_id: string,
  model: string,
  { agent_version, output, message, required_action, usage, reasoning, logprobs = [], ignored_params }: TurnResult,
  texts: string[],
  afterStep: number,
): TurnAnswer => ({
  logprobs: logprobs.filter(({ step }) => step > afterStep),
  generation_id,
  afterStep,
  agent_version,
  model,
  texts,
  text: joinedTexts(texts),
  reasoning,
  ignored_params,
  tool_calls: (required_action?.tool_calls ?? []).map(({ id, tool_name, args }) => ({ id, tool_name, args })),
  finish_reason: (output?.finish_reason ?? 'stop') as ModelAnswer['finish_reason'],
  usage: usage && countsOf(usage),
  annotations: output?.annotations ?? message?.annotations ?? undefined,
})

/**
 * Returns the answer of a settled or paused turn.
 * @param afterStep steps before the request
 * @throws the failure of the turn
 */
export async function readTurnAnswer(
  services: Services,
  ended: TurnEnd,
  { model, afterStep }: { model: string; afterStep: number },
): Promise<TurnAnswer> {
  if (ended.failure) throw turnFailure(ended)
  const result = ended.result as TurnResult
  const texts =
    ended.status === 'requires_action'
      ? (await readPausedSteps(services, ended.id)).map(({ text }) => text ?? '')
      : textsOfResult(result)
  return answerOfResult(ended.id, model, result, texts.slice(afterStep), afterStep)
}

const INVALID_ANSWER = ['OUTPUT_SCHEMA_VALIDATION_FAILED', 'TEXT_ENCODED_TOOL_CALL']

/** Whether a failed turn has a step with tool calls; an invalid answer is a step too. */
const hasCalledTools = ({ step_count }: GenerationRow, { code }: RecordedFailure): boolean =>
  step_count > (INVALID_ANSWER.includes(code) ? 1 : 0)

/** Returns the failure of a turn as an error, of which no client repeats one after a tool call. */
function turnFailure(ended: TurnEndState): AppError {
  try {
    return raiseFailure(ended)
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    return hasCalledTools(ended, ended.failure as RecordedFailure) ? unrepeatable(error) : error
  }
}

const unrepeatable = ({ code, message, meta, headers }: AppError): AppError =>
  new UnrepeatableTurnError(code, { message, meta, headers })

/** Returns the failure in the last frame of a turn as an error. */
export function frameFailure(failure: RecordedFailure, generation_id: string, calledTools: boolean): AppError {
  try {
    return raiseRecorded(
      { ...failure, code: isErrorCode(failure.code) ? failure.code : 'GENERATION_FAILED' },
      { generation_id },
    )
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    return calledTools ? unrepeatable(error) : error
  }
}
