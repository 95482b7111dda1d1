import type { AuditEntry } from '../../core/api/audit.ts'
import { all, type Fragment, prefix, type Queryable, sql } from '../../core/db/sql.ts'
import type { AuditFilters } from './model.ts'

const entryColumns = sql.fragment`t.id, t.project_id, t.principal_type, t.principal_id, t.action, t.resource_srn,
  t.resource_public_id, t.status, t.request_id, t.ip, t.user_agent, t.detail, t.created_at`

/** The filters of lists and exports over the alias `t`; a resource name is a literal prefix. */
export const filterConditions = (filters: AuditFilters): Fragment =>
  all([
    filters.action !== undefined && sql.fragment`t.action = ${filters.action}`,
    filters.principal_id !== undefined && sql.fragment`t.principal_id = ${filters.principal_id}`,
    filters.resource_public_id !== undefined && sql.fragment`t.resource_public_id = ${filters.resource_public_id}`,
    filters.resource_srn !== undefined && sql.fragment`t.resource_srn like ${prefix(filters.resource_srn)}`,
    filters.status && sql.fragment`t.status = any(${sql.array(filters.status, 'int4')})`,
  ])

/**
 * Up to `limit` entries after one (null: from the first), oldest first. Indexes audit_entries_project and
 * audit_entries_created, read backwards.
 */
export const entriesAfter = (
  db: Queryable,
  where: Fragment,
  after: Pick<AuditEntry, 'created_at' | 'id'> | null,
  limit: number,
): Promise<readonly AuditEntry[]> =>
  db.any(sql.unsafe`
    select ${entryColumns} from audit_entries t
    where ${where} ${after ? sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})` : sql.fragment``}
    order by t.created_at, t.id limit ${limit}`) as Promise<readonly AuditEntry[]>

/** Whether reads of projects are audited, by project id; a project that is gone is left out. */
export const readSwitches = (
  db: Queryable,
  projectIds: string[],
): Promise<readonly { id: string; audit_reads_enabled: boolean }[]> =>
  db.any(sql.unsafe`
    select id, audit_reads_enabled from projects where id = any(${sql.array(projectIds, 'text')})`) as Promise<
    readonly { id: string; audit_reads_enabled: boolean }[]
  >

/**
 * Deletes up to `limit` entries older than a time and marks their seals (index audit_entries_created). Only inside a
 * transaction: the switch that the append-only triggers ask for ends with it. Answers how many.
 */
export async function deleteEntries(tx: Queryable, before: Date, limit: number): Promise<number> {
  await tx.query(sql.unsafe`select set_config('muster.audit_retention', 'on', true)`)
  const { rowCount } = await tx.query(sql.unsafe`
    with gone as (
      delete from audit_entries where id in (
        select id from audit_entries where created_at < ${before.toISOString()}::timestamptz
        order by created_at, id limit ${limit})
      returning id
    ), marked as (
      update audit_seals set pruned = true where entry_id in (select id from gone)
    )
    select id from gone`)
  return rowCount
}

/** The name of a project's chain; entries without a project form one of their own. */
export const GLOBAL_CHAIN = 'global'

const chainOf = sql.fragment`coalesce(t.project_id, ${GLOBAL_CHAIN})`

/** Entries without a seal: of one chain, or with ids from a floor on. Primary keys of both tables serve the anti-join. */
function unsealed(scope: { chain?: string; floor?: string | null }): Fragment {
  const { chain, floor } = scope
  return all([
    chain === GLOBAL_CHAIN && sql.fragment`t.project_id is null`,
    chain !== undefined && chain !== GLOBAL_CHAIN && sql.fragment`t.project_id = ${chain}`,
    floor ? sql.fragment`t.id >= ${floor}` : null,
    sql.fragment`not exists (select 1 from audit_seals s where s.entry_id = t.id
      ${floor ? sql.fragment`and s.entry_id >= ${floor}` : sql.fragment``})`,
  ])
}

/** Chains that have entries to seal, out of the first `limit` such entries. */
export const unsealedChains = (db: Queryable, floor: string | null, limit: number): Promise<readonly string[]> =>
  db.anyFirst(sql.unsafe`
    select distinct chain from (
      select ${chainOf} as chain from audit_entries t where ${unsealed({ floor })} order by t.id limit ${limit}) as first`) as Promise<
    readonly string[]
  >

/** Takes the lock of every chain until the transaction ends; false when somebody else has one of them. Never waits. */
export const tryLockChains = (db: Queryable, chains: readonly string[]): Promise<boolean> =>
  db.oneFirst(sql.unsafe`
    select bool_and(pg_try_advisory_xact_lock(hashtextextended('audit chain ' || chain, 0)))
    from ${sql.unnest(
      chains.map(chain => [chain]),
      ['text'],
    )} as c (chain)`) as Promise<boolean>

/** Up to `limit` entries of some chains that have no seal, in the order of their ids. */
export const unsealedEntries = (
  db: Queryable,
  chains: readonly string[],
  scope: { chain?: string; floor?: string | null },
  limit: number,
): Promise<readonly AuditEntry[]> =>
  db.any(sql.unsafe`
    select ${entryColumns} from audit_entries t
    where ${unsealed(scope)} and ${chainOf} = any(${sql.array([...chains], 'text')})
    order by t.id limit ${limit}`) as Promise<readonly AuditEntry[]>

/** The last seal of each chain that has one (unique index on chain and position, one lookup per chain). */
export const chainHeads = (
  db: Queryable,
  chains: readonly string[],
): Promise<readonly { chain: string; position: number; hash: Buffer }[]> =>
  db.any(sql.unsafe`
    select c.chain, s.position, s.hash from ${sql.unnest(
      chains.map(chain => [chain]),
      ['text'],
    )} as c (chain)
    cross join lateral (
      select position, hash from audit_seals where chain = c.chain order by position desc limit 1) as s`) as Promise<
    readonly { chain: string; position: number; hash: Buffer }[]
  >

export type Seal = { entry_id: string; chain: string; position: number; hash: Buffer }

export const insertSeals = (db: Queryable, seals: Seal[]): Promise<unknown> =>
  db.query(sql.unsafe`
    insert into audit_seals (entry_id, chain, position, hash)
    select * from ${sql.unnest(
      seals.map(seal => [seal.entry_id, seal.chain, seal.position, seal.hash]),
      ['text', 'text', 'int8', 'bytea'],
    )}`)

/** A seal with the entry it is for; the entry's columns are null when it is missing. */
export type SealedEntry = Omit<Seal, 'chain'> & { pruned: boolean; entry: AuditEntry | null }

/**
 * Up to `limit` seals of a chain after a position, each with its entry as it stands. The seals are cut to the page before
 * the join (unique index on chain and position), else every page would read the whole log.
 */
export async function sealsAfter(
  db: Queryable,
  chain: string,
  position: number,
  limit: number,
): Promise<SealedEntry[]> {
  const rows = (await db.any(sql.unsafe`
    select s.entry_id, s.position, s.hash, s.pruned, ${entryColumns}
    from (
      select entry_id, position, hash, pruned from audit_seals
      where chain = ${chain} and position > ${position} order by position limit ${limit}) as s
    left join audit_entries t on t.id = s.entry_id
    order by s.position`)) as readonly (AuditEntry & Omit<SealedEntry, 'entry' | 'id'> & { id: string | null })[]
  return rows.map(({ entry_id, position, hash, pruned, ...entry }) => ({
    entry_id,
    position,
    hash,
    pruned,
    entry: entry.id === null ? null : (entry as AuditEntry),
  }))
}

/** The hash at a position of a chain; null where there is no seal (unique index on chain and position). */
export const sealHash = (db: Queryable, chain: string, position: number): Promise<Buffer | null> =>
  db.maybeOneFirst(
    sql.unsafe`select hash from audit_seals where chain = ${chain} and position = ${position}`,
  ) as Promise<Buffer | null>

/** Takes or renews the right to verify a chain; false while somebody else has it. */
export const holdVerification = async (
  db: Queryable,
  chain: string,
  holder: string,
  seconds: number,
): Promise<boolean> =>
  (await db.maybeOneFirst(sql.unsafe`
    insert into audit_verifications as v (chain, holder, held_until)
    values (${chain}, ${holder}, now() + make_interval(secs => ${seconds}))
    on conflict (chain) do update set holder = excluded.holder, held_until = excluded.held_until
      where v.holder = excluded.holder or v.held_until < now()
    returning true`)) !== null

export const releaseVerification = (db: Queryable, chain: string, holder: string): Promise<unknown> =>
  db.query(sql.unsafe`delete from audit_verifications where chain = ${chain} and holder = ${holder}`)

/** When the last complete sealing pass began; null before the first. */
export const lastPass = (db: Queryable): Promise<string | null> =>
  db.maybeOneFirst(sql.unsafe`select passed_at from audit_sealing`) as Promise<string | null>

export const notePass = (db: Queryable, began: Date): Promise<unknown> =>
  db.query(sql.unsafe`
    insert into audit_sealing (passed_at) values (${began.toISOString()}::timestamptz)
    on conflict (singleton) do update set passed_at = greatest(audit_sealing.passed_at, excluded.passed_at)`)
