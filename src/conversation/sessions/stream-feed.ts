import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { retryWhileUnavailable } from '#core/db/retry.ts'
import { withTenant } from '#core/db/tenant-context.ts'
import { liveTurns } from '#execution/generations/streams/live-turns.ts'
import { TurnFollower, type TurnProgress } from '#execution/generations/streams/turn-text.ts'
import { type StreamState, sessionFramesAfter } from './frame-store.ts'
import { findSession } from './kind.ts'
import type { SessionRow } from './model.ts'
import {
  frameEvent,
  progressEvent,
  type ReaderAccess,
  type ResolvedFrame,
  resolveFrame,
  type Typing,
  turnTextEvent,
  typingEvent,
} from './stream-events.ts'
import type { SessionReader } from './stream-reader.ts'

const PAGE = 50
/** Small, because each message may have a megabyte. */
const REPLAY_PAGE = 20

const ENDS = new Set(['turn_completed', 'turn_failed', 'requires_action'])

/** Whether the agent writes text after a step of its turn; null if that does not change. */
const typesAfter = (progress: TurnProgress): boolean | null =>
  progress.type === 'tool' ? false : progress.text !== '' ? true : null

/** The events of one session for all its readers in this process: each is read once. */
export class SessionFeed {
  readonly #services: Services
  readonly #session: Pick<SessionRow, 'id' | 'project_id' | 'conversation_id'>
  readonly #members = new Set<SessionReader>()
  /** Members that follow the head. */
  readonly #readers = new Set<SessionReader>()
  /** Members that have received everything up to the head and begin to follow. */
  readonly #joining = new Set<SessionReader>()
  readonly #closing = new AbortController()
  /** Number of the last event that was sent to all readers. */
  #head: number
  #turn: { follower: TurnFollower; unwatch: () => void } | null = null
  #framesDue = false
  #progressDue = false
  #running = false
  /** Whether the agent is writing text of the turn. */
  #agentTypes = false

  /** Turn that was running when the feed began. */
  #first: string | null

  constructor(
    services: Services,
    session: SessionReader['session'],
    state: Pick<StreamState, 'head' | 'generation_id'>,
  ) {
    this.#services = services
    this.#session = session
    this.#head = state.head
    this.#first = state.generation_id
  }

  /** Whether it has no readers. */
  get isEmpty(): boolean {
    return this.#members.size === 0
  }

  /** Sends a reader the stored events after its position, and then all later events. */
  add(reader: SessionReader): void {
    this.#members.add(reader)
    void this.#replay(reader).catch(error => this.#fail(error))
  }

  remove(reader: SessionReader): void {
    this.#members.delete(reader)
    this.#readers.delete(reader)
    this.#joining.delete(reader)
  }

  close(): void {
    this.#closing.abort()
    this.#endTurn()
  }

  /** Reads and sends stored events. */
  wake(): void {
    this.#framesDue = true
    this.#run()
  }

  /** Reads what lost notifications may have announced. */
  catchUp(head: number): void {
    if (head > this.#head) this.#framesDue = true
    if (this.#turn) this.#progressDue = true
    if (this.#framesDue || this.#progressDue) this.#run()
  }

  /** Shows typing to the other sides. */
  showTyping(typing: Typing): void {
    this.#sendAll(
      () => typingEvent(typing),
      ({ access }) => access.side !== typing.who,
    )
  }

  async #replay(reader: SessionReader): Promise<void> {
    while (!reader.closed && reader.position < this.#head) {
      const before = reader.position
      for await (const frame of this.#read(before, REPLAY_PAGE)) {
        await reader.drained()
        reader.send(frameEvent(frame, reader.access))
        reader.moveTo(frame.seq)
      }
      // The last events may have been deleted meanwhile.
      if (reader.position === before) reader.moveTo(this.#head)
    }
    if (reader.closed) return
    this.#joining.add(reader)
    this.#run()
  }

  /** Reads a page of stored events with their records. */
  async *#read(after: number, limit: number): AsyncGenerator<ResolvedFrame> {
    const { pool } = this.#services
    const frames = await this.#retried(() => sessionFramesAfter(pool, this.#session, after, limit))
    for (const frame of frames) yield await this.#retried(() => resolveFrame(this.#services, this.#session.id, frame))
  }

  /** Reads on behalf of the project, while the database is unavailable again. */
  #retried<T>(read: () => Promise<T>): Promise<T> {
    const tenant = { tenant: this.#session.project_id, patienceMs: Number.POSITIVE_INFINITY }
    return withTenant(tenant, () => retryWhileUnavailable(read, { signal: this.#closing.signal }))
  }

  #run(): void {
    if (this.#running || this.#closing.signal.aborted) return
    this.#running = true
    this.#runPasses()
      .catch(error => this.#fail(error))
      .finally(() => {
        this.#running = false
        // Woken after the last pass.
        if (this.#isDue()) this.#run()
      })
  }

  #isDue(): boolean {
    return this.#framesDue || this.#progressDue || this.#joining.size > 0
  }

  async #runPasses(): Promise<void> {
    while (this.#isDue() && !this.#closing.signal.aborted) {
      if (this.#first !== null) await this.#followFirst(this.#first)
      if (this.#framesDue) await this.#sendFrames()
      if (this.#progressDue) await this.#sendProgress()
      for (const reader of [...this.#joining]) this.#join(reader)
    }
  }

  async #followFirst(generationId: string): Promise<void> {
    this.#first = null
    await this.#startTurn(generationId)
    const { follower } = this.#turn ?? {}
    for (let more = follower !== undefined; more && follower; ) {
      const page = await this.#retried(() => follower.read())
      more = page.more
      for (const progress of page.progress) this.#agentTypes = typesAfter(progress) ?? this.#agentTypes
    }
  }

  async #sendFrames(): Promise<void> {
    this.#framesDue = false
    const before = this.#head
    let count = 0
    for await (const frame of this.#read(before, PAGE)) {
      count += 1
      const { event, generation_id, message } = frame
      const turn = this.#turn?.follower.id
      const ends = turn !== undefined && generation_id === turn && ENDS.has(event)
      const isReply = turn !== undefined && message?.role === 'assistant' && message.generation_id === turn
      // The text was committed before its end or with it.
      if (ends || isReply) {
        await this.#sendProgress()
        this.#showAgentTyping(false)
      }
      this.#sendAll(
        access => frameEvent(frame, access),
        reader => reader.position < frame.seq,
      )
      for (const reader of this.#readers) if (reader.position < frame.seq) reader.moveTo(frame.seq)
      this.#head = frame.seq
      if (ends) this.#endTurn()
      if (event === 'turn_started' && generation_id !== null) {
        await this.#startTurn(generation_id)
        for (const reader of this.#readers) if (reader.position === frame.seq) reader.follow(generation_id)
        this.#progressDue = true
      }
    }
    if (count === PAGE) this.#framesDue = true
    if (count > 0) return
    // A reader may have begun after events that no longer exist.
    for (const reader of this.#joining) this.#head = Math.max(this.#head, reader.position)
    if (!(await this.#retried(() => findSession(this.#services.pool, this.#session.id))))
      this.#failAll(new AppError('RESOURCE_NOT_FOUND', { meta: { id: this.#session.id } }))
  }

  #failAll(error: AppError): void {
    for (const reader of [...this.#members]) reader.fail(error.recorded())
  }

  async #startTurn(generationId: string): Promise<void> {
    this.#endTurn()
    const follower = await this.#retried(() => TurnFollower.open(this.#services, generationId))
    if (!follower || this.#closing.signal.aborted) return
    const unwatch = liveTurns(this.#services).watch(generationId, () => {
      this.#progressDue = true
      this.#run()
    })
    this.#turn = { follower, unwatch }
  }

  #endTurn(): void {
    this.#turn?.unwatch()
    this.#turn = null
    this.#agentTypes = false
  }

  #showAgentTyping(types: boolean): void {
    if (types === this.#agentTypes) return
    this.#agentTypes = types
    this.showTyping({ who: 'agent', state: types ? 'started' : 'stopped' })
  }

  async #sendProgress(): Promise<void> {
    this.#progressDue = false
    const { follower } = this.#turn ?? {}
    if (!follower) return
    for (let more = true; more; ) {
      const page = await this.#retried(() => follower.read())
      more = page.more
      // A reader that came in between has no earlier text.
      const late = [...this.#readers].filter(reader => reader.turn !== follower.id)
      for (const progress of page.progress) {
        this.#showAgentTyping(typesAfter(progress) ?? this.#agentTypes)
        this.#sendAll(
          access => progressEvent(follower.id, progress, access),
          reader => progress.type === 'tool' || reader.turn === follower.id,
        )
      }
      if (page.progress.every(({ type }) => type === 'tool')) continue
      for (const reader of late) this.#sendText(reader, follower)
    }
  }

  #sendText(reader: SessionReader, { id, text }: TurnFollower): void {
    reader.follow(id)
    reader.send(turnTextEvent(id, text))
  }

  #join(reader: SessionReader): void {
    this.#joining.delete(reader)
    if (reader.closed) return
    if (reader.position < this.#head) {
      this.add(reader)
      return
    }
    if (reader.position > this.#head) {
      this.#joining.add(reader)
      this.#framesDue = true
      return
    }
    this.#readers.add(reader)
    const { follower } = this.#turn ?? {}
    if (follower) this.#sendText(reader, follower)
    if (this.#agentTypes) reader.send(typingEvent({ who: 'agent', state: 'started' }))
  }

  /** Formats an event once for all readers with the same access. */
  #sendAll(format: (access: ReaderAccess) => string | null, accepts: (reader: SessionReader) => boolean): void {
    const formatted = new Map<string, Buffer | null>()
    for (const reader of this.#readers) {
      if (!accepts(reader)) continue
      const key = Object.values(reader.access).join()
      let bytes = formatted.get(key)
      if (bytes === undefined) {
        const text = format(reader.access)
        bytes = text === null ? null : Buffer.from(text)
        formatted.set(key, bytes)
      }
      reader.send(bytes)
    }
  }

  /** Closes all readers after an unexpected failure; they resume. */
  #fail(error: unknown): void {
    if (this.#closing.signal.aborted) return
    this.#services.log.error({ err: error, session_id: this.#session.id }, 'session stream failed')
    this.#framesDue = false
    this.#progressDue = false
    for (const reader of [...this.#members]) reader.end()
  }
}
