import { PING } from '#core/api/event-stream.ts'
import type { Context } from '#core/api/operation.ts'
import { AppError, serviceNotReady } from '#core/base/errors.ts'
import { exclusiveLoop } from '#core/base/loop.ts'
import { processSingleton, sharedSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { withoutTenant } from '#core/db/tenant-context.ts'
import { liveTurns } from '#execution/generations/streams/live-turns.ts'
import { openStreams } from '../actors/open-streams.ts'
import { SESSION_CHANNEL } from '../dialog/messages/frames.ts'
import { findStreamState, listWatchedSessions, markStreamed, type StreamState } from './frame-store.ts'
import { findSession } from './kind.ts'
import type { SessionRow } from './model.ts'
import { gapEvent, readyEvent } from './stream-events.ts'
import { SessionFeed } from './stream-feed.ts'
import { SessionReader } from './stream-reader.ts'

/** Readers whose permissions are checked with one statement. */
const CHECK_BATCH = 500
const RETRY_AFTER_SECONDS = 10

type OpenContext = Pick<Context<unknown, undefined, SessionRow>, 'caller' | 'recheck' | 'resource' | 'request'>

/** The streams of all cells, which the limit of the process counts. */
const streamsOfProcess = sharedSingleton(() => new Set<SessionReader>())

/** The open session streams of a cell in this process: one subscription and one timer for all of them. */
class SessionStreams {
  readonly #services: Services
  readonly #feeds = new Map<string, SessionFeed>()
  readonly #readers = new Set<SessionReader>()
  readonly #processReaders: Set<SessionReader>
  /** Counts streams by project; streams of end users are also counted with their calls. */
  readonly #open: ReturnType<typeof openStreams>
  readonly #unlisten: (() => void) & { ready: Promise<void> }
  #timer: NodeJS.Timeout | undefined
  /** Whether the next check sends pings. */
  #pings = false
  readonly #checkAll: () => Promise<void>

  constructor(services: Services) {
    this.#services = services
    const { config, log } = services
    const periodMs = config.STREAM_PING_INTERVAL_MS
    this.#checkAll = exclusiveLoop('session streams', { periodMs, log }, () => this.#checkReaders())
    this.#open = openStreams(services)
    this.#processReaders = streamsOfProcess(services)
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
  async open({ caller, recheck, resource, request }: OpenContext, after: number | null): Promise<SessionReader> {
    const { pool, config } = this.#services
    if (this.#processReaders.size >= config.STREAMS_MAX)
      throw serviceNotReady({ streams: 'limit reached' }, { retryAfterSeconds: RETRY_AFTER_SECONDS })
    const reader = new SessionReader(resource, { caller, recheck }, closed => this.#close(closed))
    this.#readers.add(reader)
    this.#processReaders.add(reader)
    request.onRevoked = () => void this.#checkRevoked(reader)
    this.#timer ??= withoutTenant(() =>
      setInterval(() => void this.#check(true), config.STREAM_PING_INTERVAL_MS),
    ).unref()
    try {
      await this.#open.open('project', resource.project_id, config.STREAMS_PER_PROJECT)
      reader.markCounted()
      await this.#unlisten.ready
      const state = await this.#beginState(reader)
      // Read after the state: later events contain later changes.
      const session = await findSession(pool, resource.id)
      if (!state || !session) throw new AppError('RESOURCE_NOT_FOUND', { meta: { id: resource.id } })
      const isKept =
        after !== null && after <= state.head && (after === state.head || after + 1 >= (state.oldest ?? Infinity))
      reader.moveTo(isKept ? after : state.head)
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

  /** Returns the state from which a reader continues; with the first stream of a session its events begin. */
  async #beginState({ session, access }: SessionReader): Promise<StreamState | null> {
    const { pool } = this.#services
    const read = () => findStreamState(pool, session.id, { shownOnly: access.hidden })
    const state = await read()
    if (!state || state.streamed) return state
    await markStreamed(pool, session.conversation_id)
    return read()
  }

  #feedOf({ session }: SessionReader, state: StreamState): SessionFeed {
    const found = this.#feeds.get(session.id)
    if (found) return found
    const feed = new SessionFeed(this.#services, session, state)
    this.#feeds.set(session.id, feed)
    return feed
  }

  #close(reader: SessionReader): void {
    const { id, project_id } = reader.session
    if (!this.#readers.delete(reader)) return
    this.#processReaders.delete(reader)
    if (reader.counted) this.#open.end(project_id)
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
  #check(ping: boolean): Promise<void> {
    this.#pings = ping
    return this.#checkAll()
  }

  async #checkReaders(): Promise<void> {
    const { pool, log } = this.#services
    const ping = this.#pings
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
    }
  }

  /** Checks a reader whose token may have been revoked. */
  async #checkRevoked(reader: SessionReader): Promise<void> {
    const { pool, log } = this.#services
    try {
      await this.#checkReader(reader, await findSession(pool, reader.session.id))
    } catch (error) {
      // The next ping repeats it.
      log.warn({ err: error, session_id: reader.session.id }, 'session stream check failed')
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
