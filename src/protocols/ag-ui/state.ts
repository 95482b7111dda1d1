import { isDeepStrictEqual } from 'node:util'
import { findSession } from '#conversation/sessions/kind.ts'
import { setSessionState } from '#conversation/sessions/state.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type StateChange, stateDigest } from '#execution/generations/tools/update-state.ts'
import type { AgUiEvent } from './events.ts'
import type { RunInput } from './input.ts'
import type { Thread } from './store.ts'

/** The state of a client, next to the state of its session. A client without one has an empty object. */
const clientState = ({ state }: Pick<RunInput, 'state'>): unknown => state ?? {}
const sessionState = ({ state }: Pick<Thread, 'state'>): unknown => state ?? {}

const isEmptyObject = (value: unknown): boolean => isDeepStrictEqual(value, {})

/**
 * Whether the state of the client replaces the state of the session. The empty state of a client without any message of
 * the session is its default, not a change.
 */
export function replacesState(thread: Thread, input: RunInput): boolean {
  if (input.state == null || isDeepStrictEqual(clientState(input), sessionState(thread))) return false
  const isNew = thread.stored_ids.length === 0 && !input.messages.some(({ role }) => role === 'assistant')
  return !(isNew && isEmptyObject(input.state))
}

/** Replaces the state of the session, in the transaction of the run. Requires the conversation's lock. */
export async function replaceState(tx: Tx, sessionId: string, { state }: RunInput): Promise<void> {
  const session = await findSession(tx, sessionId)
  if (session) await setSessionState(tx, session, state)
}

const stateSnapshot = (snapshot: unknown): AgUiEvent => ({ type: 'STATE_SNAPSHOT', snapshot })

/** The state that the client has in the course of a run, as its digest. Patches of the agent are not repeated. */
export class ClientState {
  /** Null if it is unknown. */
  private digest: string | null

  constructor(input: RunInput) {
    this.digest = stateDigest(clientState(input))
  }

  /** Returns a snapshot of the session's state, unless the client has it. */
  sync(state: unknown): AgUiEvent[] {
    return stateDigest(state) === this.digest ? [] : [this.snapshot(state)]
  }

  /** Returns a snapshot of the session's state. */
  snapshot(state: unknown): AgUiEvent {
    this.digest = stateDigest(state)
    return stateSnapshot(state ?? {})
  }

  /** Returns a change of the session's state by the agent. */
  change({ patch, before, after }: StateChange): AgUiEvent[] {
    // If the state has changed otherwise as well, a snapshot follows at the end of the run.
    this.digest = before === this.digest ? after : null
    return [{ type: 'STATE_DELTA', delta: patch }]
  }
}

/** Returns the current state of a session. */
export const readState = async (db: Queryable, sessionId: string): Promise<unknown> =>
  (await findSession(db, sessionId))?.state ?? null
