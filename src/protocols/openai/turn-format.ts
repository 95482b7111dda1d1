import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import type { TurnFormat } from '../../execution/generations/streams/stream.ts'
import { answerOfResult, frameFailure, type TurnAnswer, type TurnResult } from './turn-answer.ts'

/** Formats the parts of a streamed turn for a client. */
export type TurnChunks = {
  text(delta: string): string
  /** Ends the text of a step; without it, a blank line separates the texts of steps. */
  step?(): Iterable<string>
  end(answer: TurnAnswer): Iterable<string>
  /** Null before the first bytes: the error is then the response. */
  failed(error: unknown): string | null
}

/** A turn as one response presents it. */
export type PresentedTurn = { generation_id: string; model: string; afterStep: number }

type Delta = { choices: { delta: { content: string } }[] }

/** Returns the format of a turn's frames: the texts of all steps as one, without the tools of the agent. */
export function turnFormat(out: TurnChunks, { generation_id, model, afterStep }: PresentedTurn): TurnFormat {
  const texts: string[] = []
  let current = ''
  let calledTools = afterStep > 0
  let ended = false
  const failWith = (error: AppError): string => {
    const message = out.failed(error)
    if (message === null) throw error
    return message
  }
  return {
    ended: () => ended,
    refused: refusal => out.failed(frameFailure(refusal, generation_id, calledTools)) ?? '',
    *frame({ event, data }) {
      switch (event) {
        case 'delta': {
          const { content } = (JSON.parse(data) as Delta).choices[0].delta
          const separator = !out.step && current === '' && texts.some(text => text !== '') ? '\n\n' : ''
          current += content
          yield out.text(`${separator}${content}`)
          break
        }
        case 'step':
          texts.push(current)
          current = ''
          if (out.step) yield* out.step()
          break
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
        case 'requires_action':
          yield* out.end(
            answerOfResult(generation_id, model, JSON.parse(data) as TurnResult, [...texts, current], afterStep),
          )
          break
        case 'error':
          yield failWith(frameFailure(JSON.parse(data) as RecordedFailure, generation_id, calledTools))
      }
    },
  }
}
