import { type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import type { DefaultRouteUsers } from '../../identity/projects/default-model-route.ts'
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

/** Records the eval run that promoted a version, unless one is recorded. */
export const setEvalRun = (db: Queryable, agentId: string, version: number, runId: string): Promise<unknown> =>
  db.query(voidStatement`
    update agent_versions set eval_run_id = ${runId}
    where agent_id = ${agentId} and version = ${version} and eval_run_id is null`)
