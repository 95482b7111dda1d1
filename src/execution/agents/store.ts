import { type Queryable, sql } from '../../core/db/sql.ts'
import type { Inheritors } from '../../identity/projects/default-route.ts'
import { type AgentRow, agentKind } from './model.ts'

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
