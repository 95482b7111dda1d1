import { type Fragment, type Queryable, rawFragment, sql } from '#core/db/sql.ts'
import { type AgentRow, agentKind, readConfig } from './model.ts'

/** Owner of a turn, which determines its version during a release. */
export type ReleaseSubject = { actor_id?: string | null; session_id?: string | null; conversation_id?: string | null }

/**
 * Returns the id that keeps its version during a release: the end user, else the session, else the conversation. Null
 * draws a version at random for the turn.
 */
export const releaseKey = ({ actor_id, session_id, conversation_id }: ReleaseSubject): string | null =>
  actor_id ?? session_id ?? conversation_id ?? null

/** A configuration with all fields unset. */
const UNSET = rawFragment(`'${JSON.stringify(readConfig({}))}'::jsonb`)

/**
 * Returns a `from` item with the agent row that serves a turn: configuration and number of `version` if set, else of
 * the version that the active release gives `key`, else the current ones. Counters such as context messages and
 * sessions are always current. Reads no version row when the agent already has that version.
 */
export const servedAgent = (id: Fragment, turn: { version: Fragment; key: Fragment }): Fragment =>
  sql.fragment`served_agent(${id}, ${turn.version}::integer, ${turn.key}::text, floor(random() * 100)::integer, ${UNSET})`

/** Returns the agent of any project as served to this owner, or null. */
export const findServedAgent = (db: Queryable, id: string, owner: ReleaseSubject): Promise<AgentRow | null> =>
  db.maybeOne(agentKind.sql`
    select ${agentKind.columns}
    from ${servedAgent(sql.fragment`${id}`, { version: sql.fragment`null`, key: sql.fragment`${releaseKey(owner)}` })} t`)

/** Returns the agent with the configuration of one of its versions, or null. */
export const findAgentVersion = (db: Queryable, id: string, version: number): Promise<AgentRow | null> =>
  db.maybeOne(agentKind.sql`
    select ${agentKind.columns}
    from ${servedAgent(sql.fragment`${id}`, { version: sql.fragment`${version}`, key: sql.fragment`null` })} t`)
