import { newId } from '../../core/api/ids.ts'
import { page } from '../../core/api/lists.ts'
import type { Page } from '../../core/api/operation.ts'
import { type Queryable, sql, statement } from '../../core/db/sql.ts'
import type { Inheritors } from '../../identity/projects/default-route.ts'
import { type AgentRow, AgentVersion, agentKind } from './model.ts'

/** The agents of a project, oldest first. */
export const agentsOf = (db: Queryable, projectId: string): Promise<readonly AgentRow[]> =>
  db.any(agentKind.sql`
    select ${agentKind.columns} from agents t where t.project_id = ${projectId} order by t.id`)

/** Agents that go by the default route of their project (index agents_inheriting). */
export const inheritingAgents: Inheritors = {
  kind: 'agent',
  ids: project =>
    sql.fragment`select id from agents where project_id = ${project} and ai_provider_id is null and model_route_id is null`,
}

/** Agents whose release serves a version that goes by the default route of their project (index agents_released). */
export const inheritingReleases: Inheritors = {
  kind: 'agent',
  ids: project => sql.fragment`
    select a.id from agents a join agent_versions v on v.agent_id = a.id
      and v.version in ((a.active_release ->> 'stable_version')::int, (a.active_release ->> 'canary_version')::int)
    where a.project_id = ${project} and a.active_release is not null
      and v.config ->> 'ai_provider_id' is null and v.config ->> 'model_route_id' is null`,
}

/** Adds a version of an agent. */
export const insertVersion = (
  db: Queryable,
  made: Omit<AgentVersion, 'id' | 'created_at'> & { config: object },
): Promise<unknown> =>
  db.query(statement`
    insert into agent_versions (id, agent_id, version, config, label, eval_run_id, created_by)
    values (${newId('agver')}, ${made.agent_id}, ${made.version}, ${JSON.stringify(made.config)}, ${made.label},
      ${made.eval_run_id}, ${made.created_by})`)

/** Notes the run that let a version go live, once. */
export const setEvalRun = (db: Queryable, agentId: string, version: number, runId: string): Promise<unknown> =>
  db.query(statement`
    update agent_versions set eval_run_id = ${runId}
    where agent_id = ${agentId} and version = ${version} and eval_run_id is null`)

const versionColumns = sql.fragment`t.id, t.agent_id, t.version, t.config, t.label, t.eval_run_id, t.created_by, t.created_at`
const version = sql.type(AgentVersion)

/** Those of the numbered versions that exist. Unique index of agent and version. */
export const findVersions = (
  db: Queryable,
  agentId: string,
  versions: readonly number[],
): Promise<readonly AgentVersion[]> =>
  db.any(version`
    select ${versionColumns} from agent_versions t
    where t.agent_id = ${agentId} and t.version = any(${sql.array([...versions], 'int4')})`)

/** The page of an agent's versions, newest first. The same index serves filter and order. */
export const listVersions = (db: Queryable, bounds: Page, agentId: string, label: string | undefined) =>
  page<AgentVersion>(
    { db, page: bounds },
    {
      columns: versionColumns,
      from: sql.fragment`agent_versions t`,
      rows: sql.fragment`t.agent_id = ${agentId}`,
      filters: [label !== undefined && sql.fragment`t.label = ${label}`],
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.version desc`,
      key: sql.fragment`t.id`,
      present: found => found,
    },
  )
