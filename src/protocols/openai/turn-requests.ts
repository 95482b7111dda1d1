import { type Queryable, voidStatement } from '../../core/db/sql.ts'
import { deleteInBatches } from '../../core/jobs/sweeps.ts'
import type { Services } from '../../core/process/services.ts'

const deleteOld = async (db: Queryable, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from turn_requests where ctid = any (array(
        select ctid from turn_requests where created_at < now() - interval '10 minutes' limit ${limit}))`)
  ).rowCount

/** Deletes the requests of turns that retries no longer attach to. By turn_requests_created. */
export const sweepTurnRequests = ({ pool }: Services, stopping: AbortSignal): Promise<number> =>
  deleteInBatches(limit => deleteOld(pool, limit), stopping)
