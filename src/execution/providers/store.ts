import { z } from 'zod'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { aiProviderKind, Matrix, type ProviderProfile, type ProviderRow } from './model.ts'

/** Lists the providers of a project, oldest first. */
export const listProjectProviders = (db: Queryable, projectId: string): Promise<readonly ProviderRow[]> =>
  db.any(aiProviderKind.sql`
    select ${aiProviderKind.columns} from ai_providers t where t.project_id = ${projectId} order by t.id`)

/** Models of a provider about which findings are stored; callers may call any. */
const MAX_MODELS = 100

/** Findings about a model, to be stored with its provider unless the provider has changed since it was read. */
type NewFindings = { model: string; findings: ProviderProfile[string]; at: string }

/** Returns the valid findings about the models other than this one, at most MAX_MODELS: of checks first, which no call replaces, then the newest. */
const otherFindings = ({ model, at }: NewFindings): Fragment => sql.fragment`
  coalesce((select jsonb_object_agg(key, value) from (
    select key, value from jsonb_each(profile)
    where key <> ${model} and exists (select 1 from jsonb_each(value) f
      where f.value ->> 'by' = 'check' or (f.value ->> 'at')::timestamptz > ${at}::timestamptz - interval '1 day')
    order by (select row(bool_or(f.value ->> 'by' = 'check'), max(f.value ->> 'at')) from jsonb_each(value) f) desc limit ${MAX_MODELS - 1}) others), '{}')`

/** Condition that a provider has the settings that were read. Writes of its profile keep `updated_at`, their version. */
const isUnchanged = ({ id, updated_at }: Pick<ProviderRow, 'id' | 'updated_at'>): Fragment =>
  sql.fragment`id = ${id} and updated_at = ${updated_at}::timestamptz`

/** Adds findings of calls to the profile of a provider. */
export const addFindings = (db: Queryable, provider: ProviderRow, found: NewFindings) =>
  db.query(voidStatement`
    update ai_providers set profile = ${otherFindings(found)} || jsonb_build_object(${found.model}::text,
      coalesce(profile -> ${found.model}, '{}') || ${sql.jsonb(found.findings)})
    where ${isUnchanged(provider)}`)

/** Stores a check, and its findings in place of earlier ones about the model. */
export const saveCheck = (db: Queryable, provider: ProviderRow, found: NewFindings, check: Matrix) =>
  db.query(voidStatement`
    update ai_providers set last_check = ${sql.jsonb(check)},
      profile = ${otherFindings(found)} || jsonb_build_object(${found.model}::text, ${sql.jsonb(found.findings)})
    where ${isUnchanged(provider)}`)

const lastCheckRow = sql.type(z.object({ last_check: Matrix.nullable() }))

/** Returns the last check of a provider by capabilities; null without one. */
export const findLastCheck = async (db: Queryable, id: string): Promise<Matrix | null> =>
  (await db.maybeOne(lastCheckRow`select last_check from ai_providers where id = ${id}`))?.last_check ?? null

/** Deletes the last check of a provider. */
export const dropLastCheck = (db: Queryable, id: string) =>
  db.query(voidStatement`update ai_providers set last_check = null where id = ${id}`)
