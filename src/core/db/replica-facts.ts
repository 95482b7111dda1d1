import { z } from 'zod'
import { type Queryable, sql } from './sql.ts'

const place = { system: z.string(), timeline: z.int(), database: z.string(), schema: z.string().nullable() }

const PrimaryFacts = z.strictObject({ ...place, position: z.number() })

/** Identity of a primary, and a position in its log. */
export type PrimaryFacts = z.output<typeof PrimaryFacts>

export const ReplicaFacts = z.strictObject({ ...place, is_standby: z.boolean(), position: z.number().nullable() })

/** Identity of a replica, and the position up to which it has replayed the log. */
export type ReplicaFacts = z.output<typeof ReplicaFacts>

const named = sql.fragment`
  (select system_identifier from pg_control_system())::text as system,
  current_database()::text as database, current_schema()::text as schema`

/**
 * Reads a position that is after every change that is visible on the primary. A commit that does not wait for the disk is
 * visible before it is flushed: with `synchronous_commit=off` the position includes the records in memory. Otherwise it does
 * not, because no one flushes them before the next commit.
 */
export const readPrimaryFacts = (db: Queryable): Promise<PrimaryFacts> =>
  db.one(sql.type(PrimaryFacts)`
    select ${named},
      ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int as timeline,
      pg_wal_lsn_diff(case current_setting('synchronous_commit') when 'off' then pg_current_wal_insert_lsn()
        else pg_current_wal_flush_lsn() end, '0/0')::float8 as position`)

/** Statement that reads the facts of a replica. Its timeline is from the last restart point, so never too high. */
export const replicaFacts = sql.type(ReplicaFacts)`
  select ${named}, pg_is_in_recovery() as is_standby,
    (select timeline_id from pg_control_checkpoint()) as timeline,
    pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::float8 as position`

/**
 * Returns why a server is not read in place of a primary; null for a standby of it. Positions of different timelines are not
 * comparable: after a failover, a standby may have replayed changes that the new primary has not.
 */
export function replicaProblem(primary: PrimaryFacts, replica: ReplicaFacts): string | null {
  if (replica.system !== primary.system) return 'is not a replica of the server of DATABASE_URL'
  if (!replica.is_standby) return 'is not a standby'
  if (replica.database !== primary.database) return `has the database ${replica.database}, not ${primary.database}`
  if (replica.schema !== primary.schema) return `has the schema ${replica.schema}, not ${primary.schema}`
  if (replica.timeline !== primary.timeline)
    return `has timeline ${replica.timeline}, not ${primary.timeline}, since its last restart point`
  return null
}
