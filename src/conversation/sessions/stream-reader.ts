import { Readable } from 'node:stream'
import type { Context } from '#core/api/operation.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { SessionRow } from './model.ts'
import { failureEvent, type ReaderAccess, readerAccess } from './stream-events.ts'

/** Unsent bytes of a reader beyond which it is closed; it resumes with its last event. */
const MAX_UNSENT_BYTES = 256 * 1024
/** Unsent bytes beyond which stored events wait for the client. */
const HIGH_WATER_BYTES = 16 * 1024

/** One open stream of a session. */
export class SessionReader {
  readonly session: Pick<SessionRow, 'id' | 'project_id' | 'conversation_id'>
  readonly output: Readable
  readonly recheck: Context['recheck']
  #access: ReaderAccess
  #position = 0
  #turn: string | null = null
  #counted = false
  #closed = false
  #onDrained: (() => void) | null = null

  constructor(
    session: SessionRow,
    { caller, recheck }: Pick<Context, 'caller' | 'recheck'>,
    onClosed: (reader: SessionReader) => void,
  ) {
    const { id, project_id, conversation_id } = session
    this.session = { id, project_id, conversation_id }
    this.recheck = recheck
    this.#access = readerAccess(caller, session)
    this.output = new Readable({ highWaterMark: HIGH_WATER_BYTES, read: () => this.#drain() })
    this.output.once('close', () => {
      this.#closed = true
      this.#drain()
      onClosed(this)
    })
  }

  get access(): ReaderAccess {
    return this.#access
  }

  /** Number of the last stored event that was sent. */
  get position(): number {
    return this.#position
  }

  /** Turn whose text the reader has from its beginning. */
  get turn(): string | null {
    return this.#turn
  }

  /** Whether it counts as an open stream of its project. */
  get counted(): boolean {
    return this.#counted
  }

  /** Whether nothing more is sent. */
  get closed(): boolean {
    return this.#closed
  }

  /** Records that the events up to a number were sent, or are not sent at all. */
  moveTo(position: number): void {
    this.#position = position
  }

  /** Records that the reader has the text of a turn from its beginning. */
  follow(turn: string): void {
    this.#turn = turn
  }

  /** Records that it counts as an open stream of its project. */
  markCounted(): void {
    this.#counted = true
  }

  /** Sends events, or closes the stream of a client that reads too slowly. */
  send(text: string | Buffer | null): void {
    if (text === null || this.closed) return
    if (this.output.readableLength > MAX_UNSENT_BYTES) this.output.destroy()
    else this.output.push(text)
  }

  /** Waits until the client has read most of the sent events. */
  async drained(): Promise<void> {
    // Below the mark the consumer has requested more already.
    if (this.closed || this.output.readableLength < HIGH_WATER_BYTES) return
    await new Promise<void>(resolve => {
      this.#onDrained = resolve
    })
  }

  #drain(): void {
    this.#onDrained?.()
    this.#onDrained = null
  }

  /** Applies the current permissions of the caller. */
  admit(caller: Caller, session: SessionRow): void {
    this.#access = readerAccess(caller, session)
  }

  /** Ends the stream with a refusal. */
  fail(failure: RecordedFailure): void {
    this.send(failureEvent(failure, this.position))
    this.end()
  }

  /** Ends the stream after the sent events. */
  end(): void {
    if (this.closed) return
    this.#closed = true
    this.#drain()
    this.output.push(null)
  }
}
