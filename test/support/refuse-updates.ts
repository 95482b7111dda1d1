import { rawQuery, sql } from '#core/db/sql.ts'
import { eventually, type TestApp } from './app.ts'

type Refusing = {
  /** SQLSTATE of the refusal; default the SQLSTATE of `raise exception`. */
  state?: string
}

/**
 * Has the database refuse updates of a table, of rows for which a condition over `old` and `new` holds, during work.
 * `refused` waits for a number of refusals.
 */
export async function refusingUpdates(
  { pool }: Pick<TestApp['services'], 'pool'>,
  table: string,
  when: string,
  work: (refused: (count: number) => Promise<unknown>) => Promise<void>,
  { state = 'P0001' }: Refusing = {},
): Promise<void> {
  // A sequence counts whatever is rolled back.
  await pool.query(rawQuery('create sequence refusals'))
  await pool.query(
    rawQuery(`create function refuse() returns trigger language plpgsql as $$
      begin perform nextval('refusals'); raise exception 'refused' using errcode = '${state}'; end $$`),
  )
  await pool.query(
    rawQuery(`create trigger refuse before update on ${table} for each row when (${when}) execute function refuse()`),
  )
  const count = sql.unsafe`select case when is_called then last_value else 0 end from refusals`
  try {
    await work(least =>
      eventually(async () => Number(await pool.oneFirst(count)) >= least, { what: `${least} refusals of ${table}` }),
    )
  } finally {
    await pool.query(rawQuery('drop function refuse cascade'))
    await pool.query(rawQuery('drop sequence refusals'))
  }
}
