import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { StepLogprobs } from '#execution/generations/request/turn-result.ts'
import type { VoidText } from '#execution/generations/streams/frame-store.ts'
import { STEP_SETTLED } from '#execution/generations/streams/frames.ts'
import type { TurnFormat } from '#execution/generations/streams/stream.ts'
import type { Annotation, TokenLogprob } from '#execution/providers/model-messages.ts'
import { answerOfResult, frameFailure, type TurnAnswer, type TurnResult, textsOfResult } from './turn-answer.ts'

/** The end of a step in a stream, with what its text cites and the probabilities of its tokens. */
export type StepEnd = {
  step?: number
  finish_reason?: string | null
  annotations?: Annotation[]
  logprobs?: TokenLogprob[]
}

/** Formats the parts of a streamed turn for a client. */
export type TurnChunks = {
  /** Receives the version of the agent, before the first text. */
  version?(version: number | null): void
  text(delta: string): string
  /** Formats reasoning; without it, reasoning is omitted. */
  reasoning?(delta: string): string
  /** Ends the text of a step; without it, a blank line separates the texts of steps. */
  step?(end: StepEnd): Iterable<string>
  end(answer: TurnAnswer): Iterable<string>
  /** Null before the first bytes: the error is then the response. */
  failed(error: unknown): string | null
}

/** A turn as one response presents it. */
type PresentedTurn = {
  generation_id: string
  model: string
  afterStep: number
  /** Texts that were void before the response began, which it omits. */
  voids?: readonly VoidText[]
}

type Delta = { choices: { delta: { content: string } }[] }

/** Returns the format of a turn's frames: the texts of all steps as one, without the tools of the agent. */
export function turnFormat(
  out: TurnChunks,
  { generation_id, model, afterStep, voids = [] }: PresentedTurn,
): TurnFormat {
  const texts: string[] = []
  const logprobs: StepLogprobs[] = []
  let current = ''
  let hasReasoning = false
  let reasoningSeparator = ''
  let calledTools = afterStep > 0
  let isStreamed = true
  let ended = false
  const failWith = (error: AppError): string => {
    const message = out.failed(error)
    if (message === null) throw error
    return message
  }
  const isVoid = (seq: number): boolean => voids.some(({ after, before }) => seq > after && seq < before)
  const textChunk = (content: string): string => {
    const separator = !out.step && current === '' && texts.some(text => text !== '') ? '\n\n' : ''
    current += content
    return out.text(`${separator}${content}`)
  }
  const endStep = function* (end: StepEnd = {}) {
    texts.push(current)
    current = ''
    if (out.step) yield* out.step(end)
    else if (end.logprobs) logprobs.push({ step: end.step ?? 0, tokens: end.logprobs })
    if (hasReasoning) reasoningSeparator = '\n\n'
  }
  /** Yields the texts of a result, of a turn that was not streamed or whose frames were deleted. */
  const storedTexts = function* (result: TurnResult) {
    const stored = textsOfResult(result).slice(afterStep)
    for (const [index, text] of stored.entries()) {
      if (text !== '') yield textChunk(text)
      if (index < stored.length - 1) yield* endStep()
    }
  }
  return {
    found({ agent_version, streamed }) {
      out.version?.(agent_version)
      isStreamed = streamed
    },
    ended: () => ended,
    refused: refusal => out.failed(frameFailure(refusal, generation_id, calledTools)) ?? '',
    *frame({ seq, event, data }) {
      if (isVoid(seq)) return
      switch (event) {
        case 'started':
          out.version?.((JSON.parse(data) as { agent_version?: number }).agent_version ?? null)
          break
        case 'reasoning':
          hasReasoning = true
          if (out.reasoning) yield out.reasoning(reasoningSeparator + (JSON.parse(data) as { text: string }).text)
          reasoningSeparator = ''
          break
        case 'delta':
          if (isStreamed) yield textChunk((JSON.parse(data) as Delta).choices[0].delta.content)
          break
        case 'step':
        case STEP_SETTLED: {
          const end = parseExactJson(data) as StepEnd
          // The step that a resumed turn had paused in was presented before the pause.
          if ((end.step ?? 0) > afterStep) yield* endStep(end)
          break
        }
        case 'tool_call':
          calledTools = true
          break
        case 'step_restarted':
          // Text that was sent cannot be taken back; a retry of the request attaches to the turn.
          if (current === '') break
          ended = true
          yield failWith(
            new AppError('GENERATION_FAILED', {
              message: 'The worker of the step was lost after a part of its text was sent; the turn continues',
              meta: { generation_id, reason: 'step_restarted' },
            }),
          )
          break
        case 'completed':
        case 'requires_action': {
          const result = parseExactJson(data) as TurnResult
          if (current === '' && texts.every(text => text === '')) {
            texts.length = 0
            yield* storedTexts(result)
          }
          // The last step of a completed turn has settled before, so that its text is the last one already.
          const all = current === '' && texts.length > 0 ? texts : [...texts, current]
          const answer = answerOfResult(generation_id, model, result, all, afterStep)
          yield* out.end({ ...answer, logprobs: [...logprobs, ...answer.logprobs] })
          break
        }
        case 'error':
          yield failWith(frameFailure(JSON.parse(data) as RecordedFailure, generation_id, calledTools))
      }
    },
  }
}
