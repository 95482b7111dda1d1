import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { closeMatter, fileExceptionInTx } from '../exceptions/file-exception.ts'

/** Expired records that a sweep left, by project and setting. */

/** Project settings for retention in days. */
export type RetentionSetting =
  | 'trace_content_retention_days'
  | 'trace_retention_days'
  | 'conversation_retention_days'
  | 'run_retention_days'

/** Largest number of records that is counted. */
const MAX_COUNTED = 1_000_000
/** Smallest backlog that is reported: a sweep leaves some records that are locked. */
const MIN_REPORTED = 100

const Backlog = z.object({ records: z.int(), previous: z.int().nullable() })

/**
 * Counts the expired records of a project that remain. Files an exception when they are more than at the previous
 * measurement, because retention does not keep up with new records; resolves it when none are left.
 * @param expired select of the records
 */
export async function measureBacklog(
  { pool, write }: Pick<Services, 'pool' | 'write'>,
  projectId: string,
  setting: RetentionSetting,
  expired: Fragment,
): Promise<void> {
  const { records, previous } = await pool.one(sql.type(Backlog)`
    select count(*) as records, (
      select records from retention_backlogs where project_id = ${projectId} and setting = ${setting}) as previous
    from (select from (${expired}) t limit ${MAX_COUNTED}) t`)
  if (records === 0 && previous === null) return
  await write(async tx => {
    if (records === 0) {
      await tx.query(voidStatement`
        delete from retention_backlogs where project_id = ${projectId} and setting = ${setting}`)
      return closeMatter(tx, projectId, 'retention_backlog', setting)
    }
    await tx.query(voidStatement`
      insert into retention_backlogs (project_id, setting, records) values (${projectId}, ${setting}, ${records})
      on conflict (project_id, setting) do update set records = excluded.records, measured_at = now()`)
    if (previous === null || records <= previous || records < MIN_REPORTED) return
    fileExceptionInTx(tx, {
      project_id: projectId,
      kind: 'retention_backlog',
      title: `Retention by ${setting} does not keep up: ${records} expired records remain`,
      detail: { setting, records, previous },
      dedup_key: setting,
    })
  })
}

const BacklogSum = z.object({ setting: z.string(), records: z.int() })

/** Returns the expired records that sweeps left, by setting. */
export const listBacklogs = (db: Queryable): Promise<readonly z.output<typeof BacklogSum>[]> =>
  db.any(sql.type(BacklogSum)`
    select setting, sum(records)::int8 as records from retention_backlogs group by setting`)
