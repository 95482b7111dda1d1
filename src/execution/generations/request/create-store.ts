import { z } from 'zod'
import { type Fragment, jsonb, type Queryable, sql } from '#core/db/sql.ts'
import type { StatementWrite } from '#core/writes/writer.ts'
import { agentKind } from '#execution/agents/model.ts'
import { type ReleaseSubject, releaseKey, servedAgent } from '#execution/agents/served-version.ts'
import { loadedRoute, routeOfRow } from '#execution/model-routes/store.ts'
import { aiProviderKind, type ProviderRow, secretStamp } from '#execution/providers/model.ts'
import type { GenerationRow } from '../model.ts'

/** Values of a new turn. */
export type NewTurn = Pick<
  GenerationRow,
  | 'id'
  | 'project_id'
  | 'agent_id'
  | 'agent_version'
  | 'trace_id'
  | 'conversation_id'
  | 'session_id'
  | 'actor_id'
  | 'initiator_generation_id'
  | 'chain_id'
  | 'started_by_principal_type'
  | 'started_by_principal_id'
  | 'action_id'
  | 'trigger_id'
  | 'orchestration_run_id'
  | 'node_id'
  | 'node_attempt'
  | 'source'
  | 'metadata'
  | 'authority'
  | 'permission'
  | 'streamed'
  | 'shape'
  | 'deadline_at'
  | 'created_at'
> & {
  newTrace: boolean
  /** Whether the agent version is assigned now. */
  assigned: boolean
  parent_trace_id: string | null
  root_trace_id: string | null
  /** Whether the request forbids storing its content. */
  unstored: boolean
  sealedData: string
  /** Revision of the agent without which the turn is not inserted; null for any. */
  agent_revision: string | null
  /** The process that executes the turn from now on; null for a turn that waits for a worker. */
  holder: string | null
  trace_context: string | null
}

/**
 * Additions to the statement that inserts a turn: a condition under which the turn is not inserted, and further ctes,
 * which read from `runnable` whether it is.
 */
export type ExtraCtes = { unless?: Fragment; ctes: readonly Fragment[] }

/** The project of a new turn as read by its insert; nothing was written if it is paused. */
const ProjectFound = z.object({
  project_id: z.string().nullable(),
  paused_at: z.string().nullable(),
  pause_reason: z.string().nullable(),
})
export type ProjectFound = z.output<typeof ProjectFound>

/** A provider as jsonb in the row of another kind. */
const provider = z.custom<ProviderRow>().nullable()
/** The provider or else the model route of an agent, and whether models must have prices. */
const AgentBinding = z.object({
  provider,
  route: loadedRoute,
  /** Model of the agent, with a provider. */
  model: z.string().nullable(),
  vendor_tools: agentKind.row.shape.vendor_tools,
  require_priced_model: z.boolean(),
})
export type AgentBinding = z.output<typeof AgentBinding>

const insertedTurnRow = sql.type(
  ProjectFound.extend({ ...AgentBinding.shape, made: z.boolean(), publisher_project_id: z.string().nullable() }),
)

/** Subquery of the agent of a turn, in its version or in the version assigned now. */
const servedAgentOf = (turn: ReleaseSubject & { agent_id: string; agent_version?: number | null }): Fragment =>
  servedAgent(sql.fragment`${turn.agent_id}`, {
    version: sql.fragment`${turn.agent_version ?? null}`,
    key: sql.fragment`${releaseKey(turn)}`,
  })

/**
 * Expression for the revision of the served agent `a`: of its row, its project, and its provider or route with their
 * secrets. Each change of a row has a new `xmin`. By the primary keys, 0.03 ms.
 */
const AGENT_REVISION: Fragment = sql.fragment`(
  select concat_ws(' ', x.xmin, p.xmin, r.xmin, (
    select string_agg(concat_ws(' ', t.xmin, ${secretStamp}), ' ' order by t.id) from ai_providers t
    where t.id = any(coalesce(r.ai_provider_ids, array[a.ai_provider_id]))))
  from agents x join projects p on p.id = x.project_id
    left join model_routes r on a.ai_provider_id is null and r.id = coalesce(a.model_route_id, p.default_model_route_id)
  where x.id = a.id)`

/**
 * Returns the statement that inserts a generation, its trace if it is new, and its sealed turn data, with a share lock on
 * the project against a pause. With a holder the turn is in progress, in its first attempt; otherwise it is pending. The
 * ctes `project` and `runnable` contain the rows read; nothing is written in a paused project, or for another revision of
 * the agent.
 */
export function newTurnParts(turn: NewTurn, extra: ExtraCtes = { ctes: [] }): StatementWrite {
  const unless = extra.unless ? sql.fragment`and not (${extra.unless})` : sql.fragment``
  const revision =
    turn.agent_revision === null ? sql.fragment`` : sql.fragment`and ${AGENT_REVISION} = ${turn.agent_revision}`
  const started = turn.holder !== null
  const startedAt = started ? turn.created_at : null
  const ctes = [
    sql.fragment`project as (select id, paused_at, pause_reason, trace_content_mode, require_priced_model from projects where id = ${turn.project_id} for share)`,
    // The stricter mode of project and agent, as in startedRow (create.ts); for an agent of another project, the mode of the
    // project.
    sql.fragment`runnable as (
      select case when project.trace_content_mode = 'none' or ${turn.unstored} then 'none' when p.id is not null then 'full'
          else coalesce(a.trace_content_mode, 'full') end as mode,
        a.version, a.project_id, a.ai_provider_id, a.model, a.model_route_id, a.vendor_tools, p.id as publisher_project_id
      from project left join ${servedAgentOf(turn)} a on true
        left join lateral (select a.project_id as id where a.project_id <> project.id) p on true
      where paused_at is null ${unless} ${revision})`,
    sql.fragment`new_trace as (
      insert into traces (id, project_id, agent_id, parent_trace_id, root_trace_id, created_at, updated_at, publisher_project_id)
      select ${turn.trace_id}, ${turn.project_id}, ${turn.agent_id}, ${turn.parent_trace_id}, ${turn.root_trace_id}, ${turn.created_at}::timestamptz, ${turn.created_at}::timestamptz,
        publisher_project_id
      from runnable where ${turn.newTrace})`,
    sql.fragment`new_generation as (
      insert into generations (id, project_id, agent_id, trace_id, conversation_id, session_id, actor_id, initiator_generation_id, chain_id, started_by_principal_type,
        started_by_principal_id, action_id, source, metadata, authority, permission, streamed, shape, content_mode, deadline_at, assigned_version, created_at, updated_at,
        publisher_project_id, trigger_id, orchestration_run_id, node_id, node_attempt, status, attempt, agent_version, started_at, last_activity_at)
      select ${turn.id}, ${turn.project_id}, ${turn.agent_id}, ${turn.trace_id}, ${turn.conversation_id}, ${turn.session_id}, ${turn.actor_id},
        ${turn.initiator_generation_id}, ${turn.chain_id}, ${turn.started_by_principal_type}, ${turn.started_by_principal_id}, ${turn.action_id}, ${turn.source},
        case when mode = 'full' then ${jsonb(turn.metadata)} end, ${jsonb(turn.authority)}, ${jsonb(turn.permission)}, ${turn.streamed}, ${turn.shape}, mode,
        ${turn.deadline_at}::timestamptz, case when ${turn.assigned} then version end,
        ${turn.created_at}::timestamptz, ${turn.created_at}::timestamptz, publisher_project_id, ${turn.trigger_id}, ${turn.orchestration_run_id}, ${turn.node_id}, ${turn.node_attempt}::int,
        ${started ? 'in_progress' : 'pending'}, ${started ? 1 : 0}::int, case when ${started} then version end, ${startedAt}::timestamptz, ${startedAt}::timestamptz
      from runnable)`,
    sql.fragment`open as (
      insert into generation_work (generation_id, sealed, holder, trace_context)
      select ${turn.id}, case when mode = 'full' then ${turn.sealedData} end, ${turn.holder}, ${turn.trace_context} from runnable)`,
    sql.fragment`hidden as (insert into generation_work_unlogged (generation_id, sealed) select ${turn.id}, ${turn.sealedData} from runnable where mode = 'none')`,
    ...extra.ctes,
  ]
  return {
    ctes,
    guard: sql.fragment`exists (select 1 from runnable)`,
    columns: sql.fragment`(select id from project) as project_id, (select paused_at from project) as paused_at, (select pause_reason from project) as pause_reason`,
  }
}

/** Inserts a turn in a transaction and returns the agent's provider or route. */
export async function insertTurn(
  db: Queryable,
  turn: NewTurn,
  extra: ExtraCtes | undefined,
): Promise<ProjectFound & AgentBinding & { made: boolean; publisher_project_id: string | null }> {
  const { ctes, columns, guard } = newTurnParts(turn, extra)
  return db.one(insertedTurnRow`
    with ${sql.join(ctes, sql.fragment`, `)} select ${columns}, ${guard} as made,
      (select to_jsonb(pr) from runnable cross join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = runnable.ai_provider_id) pr) as provider,
      (select ${routeOfRow('runnable')} from runnable) as route, (select model from runnable) as model,
      (select vendor_tools from runnable) as vendor_tools,
      (select publisher_project_id from runnable) as publisher_project_id,
      coalesce((select require_priced_model from project), false) as require_priced_model`)
}

/** An agent with its provider or route, and the revision of all of it. */
const RunnableAgent = agentKind.row.extend({
  ...AgentBinding.shape,
  /** Trace content mode of the agent's project. */
  project_content_mode: z.enum(['full', 'none']),
  revision: z.string(),
})
export type RunnableAgent = z.output<typeof RunnableAgent> & {
  /** Whether it is from the cache of the process. */
  cached?: true
  /** Whether a turn is created with it even if it has changed again, after two changes. */
  mayHaveChanged?: true
}
const runnableAgentRow = sql.type(RunnableAgent)

/** Returns a runnable agent in the version that its release assigns to a subject, in one round trip, or null. */
export const findRunnableAgent = (
  db: Queryable,
  id: string,
  subject: ReleaseSubject = {},
): Promise<RunnableAgent | null> =>
  db.maybeOne(runnableAgentRow`
    select a.*, ${AGENT_REVISION} as revision, to_jsonb(pr) as provider, ${routeOfRow('a')} as route,
      pj.require_priced_model, pj.trace_content_mode as project_content_mode from (select ${agentKind.columns} from ${servedAgentOf({ ...subject, agent_id: id })} t) a
    left join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = a.ai_provider_id) pr on true
    join projects pj on pj.id = a.project_id`)
