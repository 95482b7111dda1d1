import { jsonb, type Queryable, sql, substring } from '../../core/db.ts'
import { between, page } from '../../core/lists.ts'
import type { Page } from '../../core/operation.ts'
import { type PolicyRow, policyColumns, presentPolicy } from './model.ts'

type Fields = { name: string | null; description: string | null; document: unknown }

/** Makes a policy and its first version. */
export const insertPolicy = (db: Queryable, policy: Fields & { id: string; by: string }): Promise<PolicyRow> =>
  db.one(sql.unsafe`
    with t as (
      insert into policies (id, name, description, document)
      values (${policy.id}, ${policy.name}, ${policy.description}, ${jsonb(policy.document)})
      returning *
    ), first as (
      insert into policy_versions (policy_id, version, name, description, document, created_by)
      select id, version, name, description, document, ${policy.by}::text from t
    )
    select ${policyColumns} from t`) as Promise<PolicyRow>

/** Writes a policy as its next version. The caller holds the row's lock. */
export const updatePolicy = (db: Queryable, id: string, policy: Fields & { by: string }): Promise<PolicyRow> =>
  db.one(sql.unsafe`
    with t as (
      update policies set name = ${policy.name}, description = ${policy.description}, document = ${jsonb(policy.document)},
        version = version + 1, updated_at = now()
      where id = ${id}
      returning *
    ), next as (
      insert into policy_versions (policy_id, version, name, description, document, created_by)
      select id, version, name, description, document, ${policy.by}::text from t
    )
    select ${policyColumns} from t`) as Promise<PolicyRow>

export const deletePolicy = (db: Queryable, id: string) => db.query(sql.unsafe`delete from policies where id = ${id}`)

/** The page of policies, filtered by part of the name. Primary key: ids rise with time. */
export const listPolicies = (db: Queryable, bounds: Page, filter: { user_id?: string; name?: string }) =>
  page<PolicyRow>(
    { db, page: bounds },
    {
      columns: policyColumns,
      from: sql.fragment`policies t`,
      where: [
        filter.user_id !== undefined &&
          sql.fragment`exists (select 1 from user_policies a where a.user_id = ${filter.user_id} and a.policy_id = t.id)`,
        filter.name !== undefined && sql.fragment`t.name ilike ${substring(filter.name)}`,
        between(sql.fragment`t.created_at`, bounds),
      ],
      order: sql.fragment`t.created_at desc, t.id desc`,
      present: presentPolicy,
    },
  )

/** The page of a user's policies in attach order. Primary key of user_policies. */
export const listUserPolicies = (db: Queryable, bounds: Page, userId: string) =>
  page<PolicyRow>(
    { db, page: bounds },
    {
      columns: policyColumns,
      from: sql.fragment`user_policies a join policies t on t.id = a.policy_id`,
      where: [sql.fragment`a.user_id = ${userId}`],
      order: sql.fragment`a.position, t.id`,
      present: presentPolicy,
    },
  )

/** Those of the ids that name a policy; they cannot go before the transaction ends. */
export const lockExistingPolicies = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(sql.unsafe`
    select id from policies where id = any(${sql.array([...ids], 'text')}) order by id for key share`) as Promise<
    readonly string[]
  >

/** Replaces the policies of a user. The caller holds the user's row lock. */
export const replaceUserPolicies = (db: Queryable, userId: string, policyIds: readonly string[]) =>
  db.query(sql.unsafe`
    with wanted as (
      select policy_id, position from unnest(${sql.array([...policyIds], 'text')}) with ordinality as w (policy_id, position)
    ), removed as (
      delete from user_policies where user_id = ${userId} and policy_id not in (select policy_id from wanted)
    ), touched as (
      update users set updated_at = now() where id = ${userId}
    )
    insert into user_policies (user_id, policy_id, position)
    select ${userId}, policy_id, position from wanted
    on conflict (user_id, policy_id) do update set position = excluded.position`)

export type Attachment = { type: 'user' | 'project_key'; id: string }

const attachments = (policyId: string) => sql.fragment`(
  select 'user' as type, user_id as id from user_policies where policy_id = ${policyId}
  union all select 'project_key', key_id from project_key_policies where policy_id = ${policyId}
) t`

/** The page of what a policy is attached to. Indexes user_policies_policy, project_key_policies_policy. */
export const listAttachments = (db: Queryable, bounds: Page, policyId: string) =>
  page<Attachment>(
    { db, page: bounds },
    {
      columns: sql.fragment`t.type, t.id`,
      from: attachments(policyId),
      where: [],
      order: sql.fragment`t.type desc, t.id`,
      present: attachment => attachment,
    },
  )

/** How many hold a policy, by kind, and a few of their ids. */
export const policyHolders = async (
  db: Queryable,
  policyId: string,
): Promise<{ counts: { users: number; project_keys: number }; sample_ids: string[] }> =>
  (await db.one(sql.unsafe`
    select jsonb_build_object('users', count(*) filter (where type = 'user'), 'project_keys', count(*) filter (where type = 'project_key')) as counts,
      coalesce((array_agg(id order by id))[1:10], '{}') as sample_ids
    from ${attachments(policyId)}`)) as { counts: { users: number; project_keys: number }; sample_ids: string[] }
