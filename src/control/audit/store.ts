import { z } from 'zod'
import type { AuditEntry as Entry } from '../../core/api/audit.ts'
import { setForTransaction } from '../../core/db/settings.ts'
import { allOf, type Fragment, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
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

const auditFlagRow = sql.type(z.object({ id: z.string(), audit_reads_enabled: z.boolean() }))

/** Returns whether reads are audited, by project; deleted projects are omitted. */
export const readAuditFlags = (
  db: Queryable,
  projectIds: string[],
): Promise<readonly { id: string; audit_reads_enabled: boolean }[]> =>
  db.any(auditFlagRow`select id, audit_reads_enabled from projects where id = any(${sql.array(projectIds, 'text')})`)

/**
 * Deletes up to `limit` entries older than `before` and marks their seals (index audit_entries_created). Requires a
 * transaction: it sets the local setting that the append-only triggers check. Returns their number.
 */
export async function deleteAuditEntries(tx: Queryable, before: Date, limit: number): Promise<number> {
  await setForTransaction(tx, { 'muster.audit_retention': 'on' })
  const { rowCount } = await tx.query(sql.type(z.object({ id: z.string() }))`
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

/** Name of the chain of entries without a project; other chains are named by project id. */
export const GLOBAL_CHAIN = 'global'

const chainExpr = sql.fragment`coalesce(t.project_id, ${GLOBAL_CHAIN})`

/** Returns the condition for entries without a seal. Primary keys of both tables serve the anti-join. */
function unsealedCondition(scope: { chain?: string; floor?: string | null }): Fragment {
  const { chain, floor } = scope
  return allOf([
    chain === GLOBAL_CHAIN && sql.fragment`t.project_id is null`,
    chain !== undefined && chain !== GLOBAL_CHAIN && sql.fragment`t.project_id = ${chain}`,
    floor ? sql.fragment`t.id >= ${floor}` : null,
    sql.fragment`not exists (select 1 from audit_seals s where s.entry_id = t.id
      ${floor ? sql.fragment`and s.entry_id >= ${floor}` : sql.fragment``})`,
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

/** Lists the last seal of each chain that has seals (unique index on chain and position, one lookup per chain). */
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
      select position, hash from audit_seals where chain = c.chain order by position desc limit 1) as s`)

export const insertSeals = (db: Queryable, seals: Seal[]): Promise<unknown> =>
  db.query(voidStatement`
    insert into audit_seals (entry_id, chain, position, hash)
    select * from ${sql.unnest(
      seals.map(seal => [seal.entry_id, seal.chain, seal.position, seal.hash]),
      ['text', 'text', 'int8', 'bytea'],
    )}`)

const sealColumns = Seal.omit({ chain: true }).extend({ pruned: z.boolean() })

/** A seal with the columns of its entry, all null if the entry is missing. */
const SealedEntry = z.union([sealColumns.extend(AuditRecord.shape), sealColumns.extend({ id: z.null() })])
export type SealedEntry = z.output<typeof SealedEntry>

/**
 * Lists up to `limit` seals of a chain after a position, each with its current entry. Seals are limited before the join
 * (unique index on chain and position); otherwise every page would read the whole log.
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
      select entry_id, position, hash, pruned from audit_seals
      where chain = ${chain} and position > ${position} order by position limit ${limit}) as s
    left join audit_entries t on t.id = s.entry_id
    order by s.position`)

/** Returns the hash at a position of a chain; null without a seal (unique index on chain and position). */
export const findSealHash = (db: Queryable, chain: string, position: number): Promise<Buffer | null> =>
  db.maybeOneFirst(
    sql.type(Seal.pick({ hash: true }))`
      select hash from audit_seals where chain = ${chain} and position = ${position}`,
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
