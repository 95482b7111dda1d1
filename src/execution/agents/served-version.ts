import { randomInt } from 'node:crypto'
import { type Fragment, type Queryable, rawFragment, sql } from '../../core/db/sql.ts'
import { readConfig } from './agent-archive.ts'
import { type AgentRow, agentKind } from './model.ts'

/** Whose turn it is: what a release goes by. */
export type ReleaseSubject = { actor_id?: string | null; session_id?: string | null; conversation_id?: string | null }

/**
 * What keeps its version through a release: an end user, else a session, else a conversation; null for a turn of nobody,
 * whose version is drawn.
 */
export const releaseKey = ({ actor_id, session_id, conversation_id }: ReleaseSubject): string | null =>
  actor_id ?? session_id ?? conversation_id ?? null

/** A configuration in which nothing is set. */
const UNSET = rawFragment(`'${JSON.stringify(readConfig({}))}'::jsonb`)

/**
 * The row of an agent as a turn is served it, for a `from`: with a version of its own (`version`), else the one that a
 * release gives `key`, else as it stands. The configuration and its number are those of the version; how many messages
 * there are for the context, and how many sessions, is as the agent stands. Nothing is read beside the agent where that
 * is the version anyway.
 */
export const servedAgent = (id: Fragment, turn: { version: Fragment; key: Fragment }): Fragment =>
  sql.fragment`served_agent(${id}, ${turn.version}::integer, ${turn.key}::text, ${randomInt(100)}::integer, ${UNSET})`

/** The agent of an id as a turn is served it, whatever its project; null when there is none. */
export const findServedAgent = (db: Queryable, id: string, owner: ReleaseSubject): Promise<AgentRow | null> =>
  db.maybeOne(agentKind.sql`
    select ${agentKind.columns}
    from ${servedAgent(sql.fragment`${id}`, { version: sql.fragment`null`, key: sql.fragment`${releaseKey(owner)}` })} t`)

/** An agent with the configuration of one of its versions; null when there is none of the id. */
export const findAgentVersion = (db: Queryable, id: string, version: number): Promise<AgentRow | null> =>
  db.maybeOne(agentKind.sql`
    select ${agentKind.columns}
    from ${servedAgent(sql.fragment`${id}`, { version: sql.fragment`${version}`, key: sql.fragment`null` })} t`)
