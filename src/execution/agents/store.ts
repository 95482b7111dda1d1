import type { Queryable } from '../../core/db/sql.ts'
import { type AgentRow, agentKind } from './model.ts'

/** The agents of a project, oldest first. */
export const agentsOf = (db: Queryable, projectId: string): Promise<readonly AgentRow[]> =>
  db.any(agentKind.sql`
    select ${agentKind.columns} from agents t where t.project_id = ${projectId} order by t.id`)
