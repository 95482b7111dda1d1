import { AppError, serviceNotReady } from '../../core/api/errors.ts'
import { PING } from '../../core/api/event-stream.ts'
import type { Context } from '../../core/api/operation.ts'
import { withoutTenant } from '../../core/db/tenant-context.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { Tally } from '../../core/process/tally.ts'
import { liveTurns } from '../../execution/generations/streams/live-turns.ts'
import { streamLimitReached } from '../actors/limits.ts'
import { SESSION_CHANNEL } from '../conversations/frames.ts'
import { findStreamState, listWatchedSessions, markStreamed } from './frame-store.ts'
import { findSession } from './kind.ts'
import type { SessionRow } from './model.ts'
import { gapEvent, readyEvent } from './stream-events.ts'
import { SessionFeed } from './stream-feed.ts'
import { SessionReader } from './stream-reader.ts'

/** Readers whose permissions are checked with one statement. */
const CHECK_BATCH = 500
const RETRY_AFTER_SECONDS = 10

type OpenContext = Pick<Context<unknown, undefined, SessionRow>, 'caller' | 'recheck' | 'resource'>

/** The open session streams of this process: one subscription and one timer for all of them. */
class SessionStreams {
  readonly #services: Services
  readonly #feeds = new Map<string, SessionFeed>()
  readonly #readers = new Set<SessionReader>()
  /** Open streams by project; streams of end users are counted with their calls. */
  readonly #open = new Tally()
  readonly #unlisten: (() => void) & { ready: Promise<void> }
  #timer: NodeJS.Timeout | undefined
  #checking = false

  constructor(services: Services) {
    this.#services = services
    // Before the own subscription, which is confirmed after this one.
    liveTurns(services)
    this.#unlisten = services.notifications.listen(SESSION_CHANNEL, payload => this.#onNotified(payload), {
      onReconnect: () => void this.#check(false),
    })
  }

  /**
   * Opens a stream after a stored event, or from now on without one.
   * @throws STREAM_LIMIT_EXCEEDED, SERVICE_NOT_READY
   */
  async open({ caller, recheck, resource }: OpenContext, after: number | null): Promise<SessionReader> {
    const { pool } = this.#services
    this.#requireSlot(resource.project_id)
    const reader = new SessionReader(resource, { caller, recheck }, closed => this.#close(closed))
    this.#readers.add(reader)
    this.#open.add(resource.project_id)
    this.#timer ??= withoutTenant(() =>
      setInterval(() => void this.#check(true), this.#services.config.STREAM_PING_INTERVAL_MS),
    ).unref()
    try {
      await this.#unlisten.ready
      await markStreamed(pool, resource.conversation_id)
      const state = await findStreamState(pool, resource.id, { shownOnly: reader.access.hidden })
      // Read after the state: later events contain later changes.
      const session = await findSession(pool, resource.id)
      if (!state || !session) throw new AppError('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
      const isKept =
        after !== null && after <= state.head && (after === state.head || after + 1 >= (state.oldest ?? Infinity))
      reader.position = isKept ? after : state.head
      const { generation_id, position } = state
      reader.send(readyEvent({ session, generation_id, position }, reader.access, reader.position))
      if (after !== null && !isKept) reader.send(gapEvent(after))
      this.#feedOf(reader, state).add(reader)
      return reader
    } catch (error) {
      reader.output.destroy()
      throw error
    }
  }

  #requireSlot(projectId: string): void {
    const { STREAMS_MAX, STREAMS_PER_PROJECT } = this.#services.config
    if (this.#readers.size >= STREAMS_MAX)
      throw serviceNotReady({ streams: 'limit reached' }, { retryAfterSeconds: RETRY_AFTER_SECONDS })
    if (this.#open.count(projectId) >= STREAMS_PER_PROJECT) throw streamLimitReached('project', STREAMS_PER_PROJECT)
  }

  #feedOf({ session }: SessionReader, state: ConstructorParameters<typeof SessionFeed>[2]): SessionFeed {
    const found = this.#feeds.get(session.id)
    if (found) return found
    const feed = new SessionFeed(this.#services, session, state)
    this.#feeds.set(session.id, feed)
    return feed
  }

  #close(reader: SessionReader): void {
    const { id, project_id } = reader.session
    if (!this.#readers.delete(reader)) return
    this.#open.remove(project_id)
    const feed = this.#feeds.get(id)
    feed?.remove(reader)
    if (feed?.isEmpty) {
      feed.close()
      this.#feeds.delete(id)
    }
    if (this.#readers.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }

  /** `<session id>` announces stored events, `<session id> <JSON>` is an event of typing. */
  #onNotified(payload: string): void {
    const space = payload.indexOf(' ')
    const feed = this.#feeds.get(space < 0 ? payload : payload.slice(0, space))
    if (!feed) return
    if (space < 0) feed.wake()
    else feed.showTyping(JSON.parse(payload.slice(space + 1)))
  }

  /**
   * Checks the permissions of all readers, with one statement for many, and reads events whose notifications were lost.
   * @param ping whether to send a ping too
   */
  async #check(ping: boolean): Promise<void> {
    if (this.#checking) return
    this.#checking = true
    const { pool, log } = this.#services
    try {
      const readers = [...this.#readers]
      for (let start = 0; start < readers.length; start += CHECK_BATCH) {
        const batch = readers.slice(start, start + CHECK_BATCH)
        if (ping) for (const reader of batch) reader.send(PING)
        const ids = [...new Set(batch.map(({ session }) => session.id))]
        const sessions = new Map((await listWatchedSessions(pool, ids)).map(row => [row.id, row]))
        await Promise.all(batch.map(reader => this.#checkReader(reader, sessions.get(reader.session.id) ?? null)))
        for (const [id, { head }] of sessions) this.#feeds.get(id)?.catchUp(head)
      }
    } catch (error) {
      log.warn({ err: error }, 'session streams check failed')
    } finally {
      this.#checking = false
    }
  }

  async #checkReader(reader: SessionReader, session: SessionRow | null): Promise<void> {
    try {
      const caller = await reader.recheck(session)
      if (session) reader.admit(caller, session)
    } catch (error) {
      if (!(error instanceof AppError) || error.status >= 500) throw error
      reader.fail(error.recorded())
    }
  }

  close(): void {
    this.#unlisten()
    clearInterval(this.#timer)
    for (const reader of this.#readers) reader.end()
    for (const feed of this.#feeds.values()) feed.close()
  }
}

/** Returns the session streams of this process. */
export const sessionStreams = processSingleton(
  services => new SessionStreams(services),
  streams => streams.close(),
)
