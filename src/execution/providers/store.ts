import { jsonb, type Queryable, sql } from '../../core/db/sql.ts'
import { aiProviderKind, type ProviderRow } from './model.ts'

/** What a write decides; the database adds the times. */
export type ProviderValues = Pick<
  ProviderRow,
  'name' | 'provider' | 'default_model' | 'secret_id' | 'base_url' | 'config' | 'sealed_credentials'
> & { secret_ids: string[] }

export const insertProvider = (
  db: Queryable,
  id: string,
  projectId: string,
  values: ProviderValues,
): Promise<ProviderRow> =>
  db.one(sql.unsafe`
    insert into ai_providers as t (id, project_id, name, provider, default_model, secret_id, base_url, config,
      sealed_credentials, secret_ids)
    values (${id}, ${projectId}, ${values.name}, ${values.provider}, ${values.default_model}, ${values.secret_id},
      ${values.base_url}, ${jsonb(values.config)}, ${values.sealed_credentials}, ${sql.array(values.secret_ids, 'text')})
    returning ${aiProviderKind.columns}`) as Promise<ProviderRow>

/** Writes a provider whose lock the caller holds. */
export const updateProvider = (db: Queryable, id: string, values: ProviderValues): Promise<ProviderRow> =>
  db.one(sql.unsafe`
    update ai_providers t set name = ${values.name}, provider = ${values.provider},
      default_model = ${values.default_model}, secret_id = ${values.secret_id}, base_url = ${values.base_url},
      config = ${jsonb(values.config)}, sealed_credentials = ${values.sealed_credentials},
      secret_ids = ${sql.array(values.secret_ids, 'text')}, updated_at = now()
    where t.id = ${id} returning ${aiProviderKind.columns}`) as Promise<ProviderRow>

/** Whether a project has a provider, which cannot be deleted before the transaction ends. */
export const lockProvider = (db: Queryable, projectId: string, id: string): Promise<boolean> =>
  db.exists(sql.unsafe`select 1 from ai_providers where id = ${id} and project_id = ${projectId} for key share`)

/** The providers of a project, oldest first. */
export const providersOf = (db: Queryable, projectId: string): Promise<readonly ProviderRow[]> =>
  db.any(
    sql.unsafe`select ${aiProviderKind.columns} from ai_providers t where t.project_id = ${projectId} order by t.id`,
  ) as Promise<readonly ProviderRow[]>
