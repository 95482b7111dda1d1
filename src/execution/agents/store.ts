import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { DefaultRouteUsers } from '#identity/projects/default-model-route.ts'
import { type AgentRow, agentKind } from './model.ts'

/** Lists the agents of a project, oldest first. */
export const listProjectAgents = (db: Queryable, projectId: string): Promise<readonly AgentRow[]> =>
  db.any(agentKind.sql`
    select ${agentKind.columns} from agents t where t.project_id = ${projectId} order by t.id`)

/** Agents that use the default route of their project (index agents_inheriting). */
export const listDefaultRouteAgents: DefaultRouteUsers = {
  kind: 'agent',
  ids: project =>
    sql.fragment`select id from agents where project_id = ${project} and ai_provider_id is null and model_route_id is null`,
}

/** Agents whose release serves a version that uses the default route of their project (index agents_released). */
export const listDefaultRouteReleases: DefaultRouteUsers = {
  kind: 'agent',
  ids: project => sql.fragment`
    select a.id from agents a join agent_versions v on v.agent_id = a.id
      and v.version in ((a.active_release ->> 'stable_version')::int, (a.active_release ->> 'canary_version')::int)
    where a.project_id = ${project} and a.active_release is not null
      and v.config ->> 'ai_provider_id' is null and v.config ->> 'model_route_id' is null`,
}

const tokenAgentRow = sql.type(z.object({ id: z.string(), unbounded: z.boolean() }))

/**
 * Returns agents of a project. `unbounded`: the configuration or a version of the release has platform tools, possibly as
 * steps of a pipeline, and no boundary policy. By the primary keys.
 */
export const findTokenAgents = (db: Queryable, projectId: string, ids: readonly string[]) =>
  db.any(tokenAgentRow`
    with chosen as (
      select id, tool_bindings::jsonb as bindings, boundary_policy is null as free, active_release from agents
      where project_id = ${projectId} and id = any(${sql.array([...new Set(ids)], 'text')})),
    configs as (
      select id, bindings, free from chosen
      union all
      select c.id, v.config::jsonb -> 'tool_bindings', coalesce(v.config ->> 'boundary_policy', '') = ''
      from chosen c join agent_versions v on v.agent_id = c.id
        and v.version in ((c.active_release ->> 'stable_version')::int, (c.active_release ->> 'canary_version')::int))
    select id, bool_or(free and exists (
        select from jsonb_array_elements(case jsonb_typeof(bindings) when 'array' then bindings else '[]' end) b
        left join tools o on o.id = b ->> 'tool_id'
        left join lateral jsonb_array_elements(coalesce(o.pipeline::jsonb -> 'steps', '[]')) s on true
        left join tools p on p.id = s ->> 'tool_id'
        where 'platform' in (b -> 'tool' ->> 'type', o.type, s -> 'tool' ->> 'type', p.type)
      )) as unbounded
    from configs group by id`)

/** Records the eval run that promoted a version, unless one is recorded. */
export const setEvalRun = (db: Queryable, agentId: string, version: number, runId: string): Promise<unknown> =>
  db.query(voidStatement`
    update agent_versions set eval_run_id = ${runId}
    where agent_id = ${agentId} and version = ${version} and eval_run_id is null`)

/**
 * Select of the ids of the memory stores that agents read, by the versions that they serve: the given ones, or all of the
 * project for tags alone. Primary keys of agents and agent_versions; memory_stores_project.
 */
export const readStores = (agentIds: readonly string[]): Fragment => sql.fragment`
  select s.id from (
    select a.project_id, a.knowledge_config from agents a
    where a.id = any(${sql.array([...agentIds], 'text')}) and a.active_release is null
    union all
    select a.project_id, v.config::jsonb -> 'knowledge_config' from agents a join agent_versions v on v.agent_id = a.id
      and v.version in ((a.active_release ->> 'stable_version')::int, (a.active_release ->> 'canary_version')::int)
    where a.id = any(${sql.array([...agentIds], 'text')}) and a.active_release is not null
  ) served join memory_stores s on s.project_id = served.project_id
  where served.knowledge_config -> 'memory_store_ids' @> to_jsonb(s.id)
    or (coalesce(served.knowledge_config -> 'memory_store_ids', '[]') = '[]'
      and coalesce(served.knowledge_config -> 'tags', '{}') <> '{}')`
