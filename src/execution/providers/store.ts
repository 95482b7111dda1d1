import type { Queryable } from '../../core/db/sql.ts'
import { aiProviderKind, type ProviderRow } from './model.ts'

/** Lists the providers of a project, oldest first. */
export const listProjectProviders = (db: Queryable, projectId: string): Promise<readonly ProviderRow[]> =>
  db.any(aiProviderKind.sql`
    select ${aiProviderKind.columns} from ai_providers t where t.project_id = ${projectId} order by t.id`)
