import { z } from 'zod'
import { referencesTo } from '#core/api/dependents.ts'
import { mergedPage, type PageBody, pageResult, partOfPage } from '#core/api/lists.ts'
import type { Page } from '#core/api/operation.ts'
import type { Services } from '#core/base/services.ts'
import { idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { readEverywhere } from '#core/services/copies.ts'
import { type PolicyRow, PolicyVersion, policyKind } from './model.ts'

type PolicyFields = Pick<PolicyRow, 'name' | 'description' | 'document'>

/** Inserts a policy with its first version, in one statement. */
export const insertPolicy = (db: Queryable, policy: PolicyFields & { id: string; by: string }): Promise<PolicyRow> =>
  db.one(policyKind.sql`
    with t as (
      insert into policies (id, name, description, document)
      values (${policy.id}, ${policy.name}, ${policy.description}, ${jsonb(policy.document)})
      returning *
    ), first as (
      insert into policy_versions (policy_id, version, name, description, document, created_by)
      select id, version, name, description, document, ${policy.by}::text from t
    )
    select ${policyKind.columns} from t`)

/** Updates a policy and inserts its next version. The caller holds the row lock. */
export const updatePolicy = (db: Queryable, id: string, policy: PolicyFields & { by: string }): Promise<PolicyRow> =>
  db.one(policyKind.sql`
    with t as (
      update policies set name = ${policy.name}, description = ${policy.description}, document = ${jsonb(policy.document)},
        version = version + 1, updated_at = now()
      where id = ${id}
      returning *
    ), next as (
      insert into policy_versions (policy_id, version, name, description, document, created_by)
      select id, version, name, description, document, ${policy.by}::text from t
    )
    select ${policyKind.columns} from t`)

/** Returns a page of a user's policies in attachment order. Primary key of user_policies. */
export const listUserPolicies = (db: Queryable, bounds: Page, userId: string) =>
  pageResult<PolicyRow>(
    { db, page: bounds },
    {
      columns: policyKind.columns,
      from: sql.fragment`user_policies a join policies t on t.id = a.policy_id`,
      rows: sql.fragment`a.user_id = ${userId}`,
      order: sql.fragment`a.position, t.id`,
      present: policyKind.present,
    },
  )

const policyIdRow = sql.type(z.object({ policy_id: z.string() }))

/** Returns the IDs of a user's policies in attachment order. Primary key of user_policies. */
export const listAttachedPolicyIds = (db: Queryable, userId: string): Promise<readonly string[]> =>
  db.anyFirst(policyIdRow`select policy_id from user_policies where user_id = ${userId} order by position`)

/** Replaces the policies of a user. The caller holds the user's row lock. */
export const replaceUserPolicies = (db: Queryable, userId: string, policyIds: readonly string[]) =>
  db.query(voidStatement`
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

/** Returns the given IDs that exist. Primary key. */
export const findPolicies = (db: Queryable, ids: readonly string[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`select id from policies where id = any(${sql.array([...ids], 'text')})`)

type Attachment = { type: string; id: string }

/** Users, and keys without a project, are counted at home. */
const attachments = (policyIdRow: string, isHome: boolean) => {
  const references = referencesTo(policyKind, policyIdRow)
  return sql.fragment`(
    select 'user' as type, user_id as id from user_policies where policy_id = ${policyIdRow} and ${isHome}
    union all select 'project_key', key_id from project_key_policies a where policy_id = ${policyIdRow}
      and (${isHome} or exists (select from project_keys k where k.id = a.key_id and k.project_id is not null))
    ${references ? sql.fragment`union all select named.type, named.id from ${references} as named` : sql.fragment``}
  ) t`
}

/**
 * Returns a page of a policy's attachments in all cells. Indexes user_policies_policy, project_key_policies_policy and the
 * indexes of the referring kinds.
 */
export const listAttachments = async (services: Services, db: Queryable, bounds: Page, policyIdRow: string) => {
  const parts = await readEverywhere(services, db, (db, isHome) =>
    pageResult<Attachment>(
      { db, page: services.cells ? partOfPage(bounds) : bounds },
      {
        columns: sql.fragment`t.type, t.id`,
        from: attachments(policyIdRow, isHome),
        order: sql.fragment`t.type collate "C", t.id collate "C"`,
        present: attachment => attachment,
      },
    ),
  )
  if (!services.cells) return parts[0]
  const name = ({ type, id }: Attachment) => `${type} ${id}`
  return mergedPage(parts as PageBody<Attachment>[], bounds, (left, right) => (name(left) < name(right) ? -1 : 1))
}

const holderRow = sql.type(z.object({ type: z.string(), count: z.int(), ids: z.array(z.string()) }))

/** Counts the holders of a policy in all cells by kind, with the IDs of at most five of each in a cell. */
export const listPolicyHolders = async (services: Services, db: Queryable, policyIdRow: string) =>
  (
    await readEverywhere(services, db, (db, isHome) =>
      db.any(holderRow`
        select type, count(*) as count, (array_agg(id order by id desc))[1:5] as ids
        from ${attachments(policyIdRow, isHome)} group by type`),
    )
  ).flat()

const versionColumns = sql.fragment`t.policy_id, t.version, t.name, t.description, t.document, t.created_by, t.created_at`

/** Returns a page of a policy's versions, newest first. Primary key of policy_versions. */
export const listPolicyVersions = (db: Queryable, bounds: Page, policyIdRow: string) =>
  pageResult<PolicyVersion>(
    { db, page: bounds },
    {
      columns: versionColumns,
      from: sql.fragment`policy_versions t`,
      rows: sql.fragment`t.policy_id = ${policyIdRow}`,
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.version desc`,
      present: versionRow => versionRow,
    },
  )

const versionRow = sql.type(PolicyVersion)

/** Returns the given versions that exist. Primary key of policy_versions. */
export const findPolicyVersions = (
  db: Queryable,
  policyIdRow: string,
  versions: readonly number[],
): Promise<readonly PolicyVersion[]> =>
  db.any(versionRow`
    select ${versionColumns} from policy_versions t
    where t.policy_id = ${policyIdRow} and t.version = any(${sql.array([...versions], 'int4')})`)

/** Inserts or updates a managed policy; null if it is already up to date. */
export const putManagedPolicy = (db: Queryable, policy: PolicyFields & { id: string }): Promise<PolicyRow | null> =>
  db.maybeOne(policyKind.sql`
    with t as (
      insert into policies as kept (id, name, description, document, managed)
      values (${policy.id}, ${policy.name}, ${policy.description}, ${jsonb(policy.document)}, true)
      on conflict (id) do update
        set name = excluded.name, description = excluded.description, document = excluded.document,
          version = kept.version + 1, updated_at = now()
        where kept.document <> excluded.document or kept.name is distinct from excluded.name
          or kept.description is distinct from excluded.description
      returning *
    ), next as (
      insert into policy_versions (policy_id, version, name, description, document)
      select id, version, name, description, document from t
    )
    select ${policyKind.columns} from t`)
