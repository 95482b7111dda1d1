import { type Fragment, type Queryable, sql } from '../../core/db.ts'
import type { Space } from './space.ts'

/** Statements that find what vectors are missing, and note what was added. */

/**
 * How many documents have chunks without vectors of the space, among those a condition over the alias `t` lets through;
 * documents_space counts them.
 */
export const countOutside = async (db: Queryable, space: Space, visible: Fragment): Promise<number> =>
  (await db.oneFirst(sql.unsafe`
    select count(*) from documents t
    where t.chunk_count > 0 and (t.space_id < ${space.id} or t.space_id > ${space.id}) and ${visible}`)) as number
