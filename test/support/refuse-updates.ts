import { rawQuery } from '../../src/core/db/sql.ts'
import type { TestApp } from './app.ts'

/** Has the database refuse updates of a table, of rows for which a condition over `old` and `new` holds, while work goes on. */
export async function refusingUpdates(
  { pool }: Pick<TestApp['services'], 'pool'>,
  table: string,
  when: string,
  work: () => Promise<void>,
): Promise<void> {
  await pool.query(
    rawQuery(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`),
  )
  await pool.query(
    rawQuery(`create trigger refuse before update on ${table} for each row when (${when}) execute function refuse()`),
  )
  try {
    await work()
  } finally {
    await pool.query(rawQuery('drop function refuse cascade'))
  }
}
