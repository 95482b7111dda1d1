import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { AnswerLimitError } from './failure.ts'
import type { ModelUsage } from './model-messages.ts'

/**
 * Limits of an answer. A piece takes 20 microseconds of processor time, and up to ten times that when it arrives by itself.
 */
const MAX_CALLS = 256
const MAX_ARGUMENT_PIECES = 50_000
const MAX_PIECES = 250_000
/** Characters of a streamed answer: several times what any model writes. An answer that pauses has ten times as many. */
const MAX_CHARACTERS = 4 * 1024 * 1024

/** What has arrived of an answer. */
export class CallProgress {
  readonly #started = performance.now()
  #firstPieceMs: number | null = null
  #characters = 0
  #usage: ModelUsage | null = null
  #isShown = false
  #responseId: string | null = null
  #pieces = 0
  #argumentPieces = 0
  #begunCalls = 0
  #calls = 0

  get durationMs(): number {
    return performance.now() - this.#started
  }

  /** Milliseconds to the first piece of a stream; null without one. */
  get firstPieceMs(): number | null {
    return this.#firstPieceMs
  }

  get characters(): number {
    return this.#characters
  }

  /** Tokens that the vendor reported. */
  get usage(): ModelUsage | null {
    return this.#usage
  }

  /** Whether the caller received a part of the answer. */
  get isShown(): boolean {
    return this.#isShown
  }

  /** The vendor's ID of the answer; null if it names none. */
  get responseId(): string | null {
    return this.#responseId
  }

  nameResponse(id: string | undefined): void {
    this.#responseId = id ?? this.#responseId
  }

  /** Records that the caller received a part of the answer. */
  markShown(): void {
    this.#isShown = true
  }

  /** Records the tokens that the vendor reported. */
  addUsage(usage: ModelUsage | null): void {
    this.#usage = usage
  }

  /** Counts a part of a stream. @throws AnswerLimitError */
  count(part: LanguageModelV4StreamPart): void {
    if ('delta' in part) {
      limit(++this.#pieces, MAX_PIECES, 'pieces')
      this.#characters += part.delta.length
      limit(this.#characters, MAX_CHARACTERS, 'characters')
      if (part.type === 'tool-input-delta') limit(++this.#argumentPieces, MAX_ARGUMENT_PIECES, 'pieces of arguments')
      else if (part.delta !== '') this.#markPiece()
    } else if (part.type === 'tool-input-start') {
      limit(++this.#begunCalls, MAX_CALLS, 'tool calls')
      this.#markPiece()
    } else if (part.type === 'tool-call') this.countCalls(1)
  }

  /** @throws AnswerLimitError */
  countCalls(count: number): void {
    this.#calls += count
    limit(this.#calls, MAX_CALLS, 'tool calls')
  }

  #markPiece(): void {
    this.#firstPieceMs ??= this.durationMs
  }
}

/** @throws AnswerLimitError for an answer with more parts than allowed */
function limit(count: number, max: number, what: string): void {
  if (count > max) throw new AnswerLimitError(`the answer has more than ${max} ${what}`)
}
