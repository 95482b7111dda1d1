import { randomInt } from 'node:crypto'
import { type Fragment, type Queryable, rawFragment, sql } from '../../core/db/sql.ts'
import { readConfig } from './archive.ts'
import { type AgentRow, agentKind } from './model.ts'

/** Whose turn it is: what a release goes by. */
export type TurnOwner = { actor_id?: string | null; session_id?: string | null; conversation_id?: string | null }

/**
 * What keeps its version through a release: an end user, else a session, else a conversation; null for a turn of nobody,
 * whose version is drawn.
 */
export const ownerKey = ({ actor_id, session_id, conversation_id }: TurnOwner): string | null =>
  actor_id ?? session_id ?? conversation_id ?? null

/** Fields of an archived configuration that is from before some of them. */
const EMPTY_CONFIG = rawFragment(`'${JSON.stringify(readConfig({}))}'::jsonb`)

/**
 * The version that the release of the agent `live` gives a key, null without a release. A key stays below a percentage
 * that is raised, so that an end user never goes back to the stable version then.
 */
const splitBy = (key: Fragment): Fragment => {
  const hash = sql.fragment`encode(sha256(convert_to(live.id || ':' || ${key}::text, 'UTF8')), 'hex')`
  const bucket = sql.fragment`coalesce(('x' || left(${hash}, 8))::bit(32)::bigint % 100, ${randomInt(100)}::int)`
  return sql.fragment`case when live.active_release is not null then (live.active_release ->> (
    case when ${bucket} < (live.active_release ->> 'canary_percent')::int then 'canary_version' else 'stable_version' end))::int end`
}

/**
 * The row of an agent as a turn is served it, for a `from`: with a version of its own (`version`), else the one that a
 * release gives `key`, else as it stands. The configuration and its number are those of the version; how many messages
 * there are for the context, and how many sessions, is as the agent stands. Nothing is read beside the agent where that
 * is the version anyway.
 */
export const servedAgent = (id: Fragment, turn: { version: Fragment; key: Fragment }): Fragment => sql.fragment`
  lateral (
    select served.* from agents live
    cross join lateral (select coalesce(${turn.version}::int, ${splitBy(turn.key)}) as version) chosen
    left join agent_versions kept on kept.agent_id = live.id and kept.version = chosen.version and chosen.version <> live.version
    cross join lateral jsonb_populate_record(live, case when kept.id is null then '{}' else
      ${EMPTY_CONFIG} || kept.config::jsonb || jsonb_build_object('version', kept.version,
        'max_context_messages', live.max_context_messages, 'single_session_per_actor', live.single_session_per_actor) end) served
    where live.id = ${id}
  )`

/** The agent of an id as a turn is served it, whatever its project; null when there is none. */
export const findServedAgent = (db: Queryable, id: string, owner: TurnOwner): Promise<AgentRow | null> =>
  db.maybeOne(agentKind.sql`
    select ${agentKind.columns}
    from ${servedAgent(sql.fragment`${id}`, { version: sql.fragment`null`, key: sql.fragment`${ownerKey(owner)}` })} t`)
