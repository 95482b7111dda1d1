import { z } from 'zod'
import { lockPastMonths, type MonthlyTable } from '#core/db/months.ts'
import type { Transaction } from '#core/db/pool.ts'
import { allOf, type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { AUDIT_PREFIX, type AuditEntry as Entry } from '#core/writes/audit-entry.ts'
import { AuditRecord, auditEntryKind } from './model.ts'

/**
 * Lists up to `limit` entries after one (null: from the first), oldest first. Backward scan of audit_entries_project or
 * audit_entries_created.
 */
export const listAuditEntriesAfter = (
  db: Queryable,
  where: Fragment,
  after: Pick<Entry, 'created_at' | 'id'> | null,
  limit: number,
): Promise<readonly Entry[]> =>
  db.any(auditEntryKind.sql`
    select ${auditEntryKind.columns} from audit_entries t
    where ${where} ${after ? sql.fragment`and (t.created_at, t.id) > (${after.created_at}::timestamptz, ${after.id})` : sql.fragment``}
    order by t.created_at, t.id limit ${limit}`)

/** Name of the chain of entries without a project; other chains are named by project id. */
export const GLOBAL_CHAIN = 'global'

const chainExpr = sql.fragment`coalesce(t.project_id, ${GLOBAL_CHAIN})`

const auditFlagRow = sql.type(z.object({ id: z.string(), audit_reads_enabled: z.boolean() }))

/** Returns whether reads are audited, by project; deleted projects are omitted. */
export const readAuditFlags = (
  db: Queryable,
  projectIds: string[],
): Promise<readonly { id: string; audit_reads_enabled: boolean }[]> =>
  db.any(auditFlagRow`select id, audit_reads_enabled from projects where id = any(${sql.array(projectIds, 'text')})`)

/**
 * Deletes up to `limit` entries older than `before` and marks their seals (indexes audit_entries_created,
 * audit_seal_batches_unpruned). Requires a transaction: it sets the local setting that the append-only triggers check. Returns their number.
 */
export async function deleteAuditEntries(tx: Transaction, before: Date, limit: number): Promise<number> {
  await lockPastMonths(tx)
  await setForTransaction(tx, { 'muster.audit_retention': 'on' })
  const { rowCount } = await tx.query(sql.type(z.object({ id: z.string() }))`
    with gone as (
      delete from audit_entries t where id in (
        select id from audit_entries where created_at < ${before.toISOString()}::timestamptz
        order by created_at, id limit ${limit})
      returning id, ${chainExpr} as chain
    ), marked as (
      update audit_seal_batches b set pruned = b.pruned || p.places
      from (
        select b.chain, b.position, array_agg(u.place::int order by u.place) as places
        from (select chain, min(id) as first_id, max(id) as last_id from gone group by chain) c
        join audit_seal_batches b on b.chain = c.chain and cardinality(b.pruned) < b.count
          and b.first_id <= c.last_id and b.last_id >= c.first_id
        cross join lateral unnest(b.entry_ids) with ordinality u (id, place)
        where u.id in (select id from gone) group by b.chain, b.position) p
      where b.chain = p.chain and b.position = p.position
    )
    select id from gone`)
  return rowCount
}

/** A month of entries is dropped with marks in their seals; the seal of an entry that was not there remains unmarked. */
export const auditMonths: MonthlyTable = {
  table: 'audit_entries',
  prefix: AUDIT_PREFIX,
  async expire(tx, partition) {
    await setForTransaction(tx, { 'muster.audit_retention': 'on' })
    await tx.query(voidStatement`
      update audit_seal_batches b set pruned = b.pruned || p.places
      from (
        select b.chain, b.position, array_agg(u.place::int order by u.place) as places
        from audit_seal_batches b cross join lateral unnest(b.entry_ids) with ordinality u (id, place)
        where cardinality(b.pruned) < b.count and b.first_id <= (select max(id) from ${partition})
          and u.id in (select id from ${partition})
        group by b.chain, b.position) p
      where b.chain = p.chain and b.position = p.position`)
    return true
  },
}

/** Most recent entries of a project that changesSince reads, and most changes that it returns. */
const MAX_SEARCHED = 20_000
const MAX_CHANGES = 2000

const Change = z.strictObject({
  resource_public_id: z.string(),
  principal_id: z.string().nullable(),
  created_at: z.string(),
  fields: z.array(z.string()).nullable(),
})
export type RecordedChange = z.output<typeof Change>

/**
 * Lists changes of resources since a time that did not come from a formation, newest first, with the changed fields.
 * Reads at most the last 20,000 entries of the project: the index audit_entries_project does not contain resources.
 */
export const changesSince = (
  db: Queryable,
  projectId: string,
  ids: readonly string[],
  since: string,
): Promise<readonly RecordedChange[]> =>
  db.any(sql.type(Change)`
    select resource_public_id, principal_id, created_at, fields from (
      select resource_public_id, principal_id, created_at, id, status, detail ->> 'surface' as surface, detail -> 'changes' as fields
      from audit_entries
      where project_id = ${projectId} and created_at >= ${since}::timestamptz
      order by created_at desc, id desc limit ${MAX_SEARCHED}) as t
    where resource_public_id = any(${sql.array([...ids], 'text')}) and status < 300 and surface is distinct from 'formation'
    order by created_at desc, id desc limit ${MAX_CHANGES}`)

/**
 * Returns the condition for entries without a seal. audit_seal_batches_recent serves the anti-join; the batches since a
 * floor are few and are hashed.
 */
function unsealedCondition(scope: { chain?: string; floor?: string | null }): Fragment {
  const { chain, floor } = scope
  return allOf([
    chain === GLOBAL_CHAIN && sql.fragment`t.project_id is null`,
    chain !== undefined && chain !== GLOBAL_CHAIN && sql.fragment`t.project_id = ${chain}`,
    floor ? sql.fragment`t.id >= ${floor}` : null,
    sql.fragment`not exists (
      select 1 from audit_seal_batches b cross join lateral unnest(b.entry_ids) as u (id)
      where u.id = t.id ${floor ? sql.fragment`and b.last_id >= ${floor}` : sql.fragment``})`,
  ])
}

/** Lists the chains of the first `limit` unsealed entries. */
export const listUnsealedChains = (db: Queryable, floor: string | null, limit: number): Promise<readonly string[]> =>
  db.anyFirst(sql.type(z.object({ chain: z.string() }))`
    select distinct chain from (
      select ${chainExpr} as chain from audit_entries t where ${unsealedCondition({ floor })} order by t.id limit ${limit}) as first`)

/** Locks chains until the transaction ends; false when another transaction holds one of the locks. Never waits. */
export const tryLockChains = (db: Queryable, chains: readonly string[]): Promise<boolean> =>
  db.oneFirst(sql.type(z.object({ locked: z.boolean() }))`
    select bool_and(pg_try_advisory_xact_lock(hashtextextended('audit chain ' || chain, 0))) as locked
    from ${sql.unnest(
      chains.map(chain => [chain]),
      ['text'],
    )} as c (chain)`)

/** Lists up to `limit` unsealed entries of chains by id. */
export const listUnsealedEntries = (
  db: Queryable,
  chains: readonly string[],
  scope: { chain?: string; floor?: string | null },
  limit: number,
): Promise<readonly Entry[]> =>
  db.any(auditEntryKind.sql`
    select ${auditEntryKind.columns} from audit_entries t
    where ${unsealedCondition(scope)} and ${chainExpr} = any(${sql.array([...chains], 'text')})
    order by t.id limit ${limit}`)

const Seal = z.object({
  entry_id: z.string(),
  chain: z.string(),
  position: z.int(),
  hash: z.instanceof(Buffer),
})
export type Seal = z.output<typeof Seal>

/** Returns the hash at a place, from 1, of a batch `b`. */
const hashAt = (place: Fragment): Fragment =>
  sql.fragment`substring(b.hashes from (32 * (${place} - 1) + 1)::int for 32)`

/**
 * Lists the last position of each chain that has one, with its hash (unique index of each table on chain and position, one
 * lookup per chain).
 */
export const listChainHeads = (
  db: Queryable,
  chains: readonly string[],
): Promise<readonly Pick<Seal, 'chain' | 'position' | 'hash'>[]> =>
  db.any(sql.type(Seal.omit({ entry_id: true }))`
    select c.chain, s.position, s.hash from ${sql.unnest(
      chains.map(chain => [chain]),
      ['text'],
    )} as c (chain)
    cross join lateral (
      (select b.position, ${hashAt(sql.fragment`b.count`)} as hash from audit_seal_batches b
       where b.chain = c.chain order by b.position desc limit 1)
      union all
      select position, hash from audit_chain_starts where chain = c.chain
      order by position desc limit 1) as s`)

/** Inserts seals, one row for each chain. Seals of a chain have consecutive positions, in ascending order. */
export const insertSeals = (db: Queryable, seals: readonly Seal[]): Promise<unknown> => {
  const batches = [...Map.groupBy(seals, ({ chain }) => chain)].map(([chain, batch]) => ({
    chain,
    position: batch[batch.length - 1].position,
    entry_ids: batch.map(({ entry_id }) => entry_id),
    hashes: Buffer.concat(batch.map(({ hash }) => hash)).toString('hex'),
  }))
  return db.query(voidStatement`
    insert into audit_seal_batches (chain, position, count, first_id, last_id, entry_ids, hashes)
    select b.chain, b.position, cardinality(b.entry_ids), (select min(id) from unnest(b.entry_ids) id),
      (select max(id) from unnest(b.entry_ids) id), b.entry_ids, decode(b.hashes, 'hex')
    from json_to_recordset(${JSON.stringify(batches)}::json) as b (chain text, position bigint, entry_ids text[], hashes text)`)
}

/** Positions of a chain whose batches are merged into one. */
const MERGED_POSITIONS = 500

/**
 * Replaces the batches of up to `limit` ranges of positions by one batch per range, for batches whose entries all
 * have ids below `before`. Skips batches across two ranges and ranges with pruned entries or a missing seal. Requires a
 * transaction: it sets the local setting that the append-only triggers check. Returns the number of merged ranges.
 * Reads the whole table, except its arrays.
 */
export async function mergeSealBatches(tx: Queryable, before: string, limit: number): Promise<number> {
  await setForTransaction(tx, { 'muster.audit_retention': 'on' })
  const range = sql.fragment`(b.position - 1) / ${MERGED_POSITIONS}`
  const isMergeable = sql.fragment`b.last_id < ${before} and b.pruned = '{}'
    and (b.position - b.count) / ${MERGED_POSITIONS} = ${range}`
  const { rowCount } = await tx.query(voidStatement`
    with ranges as (
      select b.chain, ${range} as range from audit_seal_batches b where ${isMergeable}
      group by 1, 2 having count(*) > 1 and sum(b.count) = max(b.position) - min(b.position - b.count) limit ${limit}
    ), parts as (
      delete from audit_seal_batches b using ranges r
      where b.chain = r.chain and ${range} = r.range and ${isMergeable}
      returning b.*, r.range
    ), merged as (
      select chain, range, max(position) as position, sum(count) as count, min(first_id) as first_id, max(last_id) as last_id,
        string_agg(hashes, ''::bytea order by position) as hashes
      from parts group by chain, range
    ), ids as (
      select p.chain, p.range, array_agg(u.id order by p.position, u.place) as entry_ids
      from parts p cross join lateral unnest(p.entry_ids) with ordinality u (id, place) group by p.chain, p.range
    )
    insert into audit_seal_batches (chain, position, count, first_id, last_id, entry_ids, hashes)
    select m.chain, m.position, m.count, m.first_id, m.last_id, i.entry_ids, m.hashes
    from merged m join ids i on i.chain = m.chain and i.range = m.range`)
  return rowCount
}

/** Chains, and batches of each, that one statement deletes. */
const PRUNED_CHAINS = 100
const PRUNED_PER_CHAIN = 500

/** Lists chains with batches of deleted entries, after one (index audit_seal_batches_pruned). */
export const listPrunedChains = (db: Queryable, after: string): Promise<readonly string[]> => {
  const next = (chain: Fragment): Fragment => sql.fragment`select (
      select b.chain from audit_seal_batches b where cardinality(b.pruned) = b.count and b.chain > ${chain}
      order by b.chain limit 1) as chain`
  return db.anyFirst(sql.type(z.object({ chain: z.string() }))`
    with recursive found as (
      (${next(sql.fragment`${after}::text`)})
      union all
      select n.chain from found f cross join lateral (${next(sql.fragment`f.chain`)}) n where f.chain is not null
    )
    select chain from found where chain is not null limit ${PRUNED_CHAINS}`)
}

/**
 * Deletes the first seals of chains as far as retention deleted their entries, and moves the starts of the chains after
 * them. Requires a transaction: it sets the local setting that the append-only triggers check. Returns the number of
 * deleted batches, at most PRUNED_PER_CHAIN of each chain.
 */
export async function pruneSeals(tx: Queryable, chains: readonly string[]): Promise<number> {
  await setForTransaction(tx, { 'muster.audit_retention': 'on' })
  return tx.oneFirst(sql.type(z.object({ count: z.int() }))`
    with due as (
      select c.chain, coalesce(s.position, 0) as start, b.*
      from unnest(${sql.array([...chains], 'text')}) as c (chain)
      left join audit_chain_starts s on s.chain = c.chain
      cross join lateral (
        select b.position - b.count as before, b.position, ${hashAt(sql.fragment`b.count`)} as hash from audit_seal_batches b
        where b.chain = c.chain and cardinality(b.pruned) = b.count order by b.position limit ${PRUNED_PER_CHAIN}
      ) b
    ), placed as (
      select *, before = coalesce(lag(position) over in_order, start) as continues from due
      window in_order as (partition by chain order by position)
    ), prefix as materialized (
      select * from (select *, bool_and(continues) over (partition by chain order by position) as is_first from placed) p
      where is_first
    ), batches as (
      delete from audit_seal_batches b using prefix f where b.chain = f.chain and b.position = f.position returning 1
    ), starts as (
      insert into audit_chain_starts as s (chain, position, hash)
      select distinct on (chain) chain, position, hash from prefix order by chain, position desc
      on conflict (chain) do update set position = excluded.position, hash = excluded.hash
      where s.position < excluded.position
    )
    select count(*)::int as count from batches`)
}

/** Returns the position and hash of the last seal that retention deleted from a chain; null if it deleted none. */
export const findChainStart = (db: Queryable, chain: string): Promise<Pick<Seal, 'position' | 'hash'> | null> =>
  db.maybeOne(sql.type(Seal.pick({ position: true, hash: true }))`
    select position, hash from audit_chain_starts where chain = ${chain}`)

const sealColumns = Seal.omit({ chain: true }).extend({ pruned: z.boolean() })

/** A seal with the columns of its entry, all null if the entry is missing. */
const SealedEntry = z.union([sealColumns.extend(AuditRecord.shape), sealColumns.extend({ id: z.null() })])
export type SealedEntry = z.output<typeof SealedEntry>

/**
 * Lists up to `limit` seals of a chain after a position, each with its current entry. Seals are limited before the join
 * (primary key of the batches); otherwise every page would read the whole log. Of batches only
 * those are unpacked that contain the first `limit` entries.
 */
export const listSealsAfter = (
  db: Queryable,
  chain: string,
  position: number,
  limit: number,
): Promise<readonly SealedEntry[]> =>
  db.any(sql.type(SealedEntry)`
    select s.entry_id, s.position, s.hash, s.pruned, ${auditEntryKind.columns}
    from (
      select u.id as entry_id, b.position - b.count + u.place as position, ${hashAt(sql.fragment`u.place`)} as hash,
        u.place = any(b.pruned) as pruned
      from (
        select *, sum(count) over (order by position) - count as earlier from (
          select * from audit_seal_batches where chain = ${chain} and position > ${position} order by position limit ${limit}) n
      ) b cross join lateral unnest(b.entry_ids) with ordinality u (id, place)
      where b.earlier < ${limit + MERGED_POSITIONS} and b.position - b.count + u.place > ${position} order by 2 limit ${limit}) as s
    left join audit_entries t on t.id = s.entry_id
    order by s.position`)

/** Returns the hash at a position of a chain; null without a seal (primary key of the batches). */
export const findSealHash = (db: Queryable, chain: string, position: number): Promise<Buffer | null> =>
  db.maybeOneFirst(
    sql.type(Seal.pick({ hash: true }))`
      select ${hashAt(sql.fragment`${position} - b.position + b.count`)} as hash from (
        select * from audit_seal_batches where chain = ${chain} and position >= ${position} order by position limit 1) b
      where b.position - b.count < ${position}`,
  )

/** Acquires or renews the verification lease of a chain; false while another holder has it. */
export const acquireVerificationLease = async (
  db: Queryable,
  chain: string,
  holder: string,
  seconds: number,
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      insert into audit_verifications as v (chain, holder, held_until)
      values (${chain}, ${holder}, now() + make_interval(secs => ${seconds}))
      on conflict (chain) do update set holder = excluded.holder, held_until = excluded.held_until
        where v.holder = excluded.holder or v.held_until < now()`)
  ).rowCount > 0

export const releaseVerificationLease = (db: Queryable, chain: string, holder: string): Promise<unknown> =>
  db.query(voidStatement`delete from audit_verifications where chain = ${chain} and holder = ${holder}`)

/** Returns the start of the last complete sealing pass; null before the first. */
export const lastSealingPass = (db: Queryable): Promise<string | null> =>
  db.maybeOneFirst(sql.type(z.object({ passed_at: z.string() }))`select passed_at from audit_sealing`)

/** Returns the start of the last pass and the newest entry id (primary keys). */
export const readSealingState = (db: Queryable): Promise<{ passed_at: string | null; newest: string | null }> =>
  db.one(sql.type(z.object({ passed_at: z.string().nullable(), newest: z.string().nullable() }))`
    select (select passed_at from audit_sealing) as passed_at, (select max(id) from audit_entries) as newest`)

/**
 * Records a pass if no entry from `floor` on is unsealed, in one statement; returns whether it did. The newest entry is
 * checked first: in a busy deployment it is unsealed and ends the search.
 */
export async function recordPassIfSealed(db: Queryable, floor: string | null, began: Date): Promise<boolean> {
  const { rowCount } = await db.query(voidStatement`
    with waiting as materialized (
      select from audit_entries t where ${unsealedCondition({ floor })} order by t.id desc limit 1)
    insert into audit_sealing (passed_at)
    select ${began.toISOString()}::timestamptz where not exists (select from waiting)
    on conflict (singleton) do update set passed_at = greatest(audit_sealing.passed_at, excluded.passed_at)`)
  return rowCount > 0
}

export const recordSealingPass = (db: Queryable, began: Date): Promise<unknown> =>
  db.query(voidStatement`
    insert into audit_sealing (passed_at) values (${began.toISOString()}::timestamptz)
    on conflict (singleton) do update set passed_at = greatest(audit_sealing.passed_at, excluded.passed_at)`)

/** Most entries of a turn or run that a search returns. */
const MAX_OF_WORK = 100

/** Condition of the index audit_entries_work, which a statement must repeat. */
const isOfWork = sql.fragment`
  (starts_with(resource_public_id, 'gen_') or starts_with(resource_public_id, 'orch_run_'))`

const resourceEntryRow = sql.type(auditEntryKind.row.extend({ hash: z.string().nullable() }))
type ResourceEntry = z.output<typeof auditEntryKind.row> & { hash: string | null }

/**
 * Lists the newest entries of a turn or run, oldest first, with their hashes; null until an entry is sealed. By audit_entries_work, and
 * the seals by audit_seal_batches_recent.
 */
export const listEntriesOfWork = (
  db: Queryable,
  { id, project_id }: { id: string; project_id: string },
): Promise<readonly ResourceEntry[]> =>
  db.any(resourceEntryRow`
    select ${auditEntryKind.columns}, (
        select encode(substring(b.hashes from 32 * (array_position(b.entry_ids, t.id) - 1) + 1 for 32), 'hex')
        from audit_seal_batches b
        where b.last_id >= t.id and b.first_id <= t.id and b.chain = t.project_id and t.id = any(b.entry_ids)
        order by b.last_id limit 1) as hash
    from (
      select * from audit_entries
      where resource_public_id = ${id} and ${isOfWork} and project_id = ${project_id}
      order by created_at desc, id desc limit ${MAX_OF_WORK}) t
    order by t.created_at, t.id`)
