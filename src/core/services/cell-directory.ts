import { randomInt } from 'node:crypto'
import { z } from 'zod'
import type { Services } from '../base/services.ts'
import type { Pool } from '../db/pool.ts'
import { sealedColumn } from '../db/sealed.ts'
import { idStatement, type Queryable, sql, voidStatement } from '../db/sql.ts'
import type { SealedFor } from '../secrets/secretbox.ts'
import { CELL_STATES, type CellState, HOME } from './cell.ts'

/**
 * The directory of cells, which is at home. The table `cells` of each other cell has one row, of the cell itself, by which
 * a database is recognized that is in use.
 */

/** The directory does not permit a change; the message is for the operator. */
export class CellRefusal extends Error {}

type Home = Pick<Services, 'pool' | 'secrets'>

/** Data that the URL of a cell is sealed with. */
export const sealedForCell = (name: string): SealedFor => ({ kind: 'cell', id: name, project_id: null })

export const sealedCellUrls = sealedColumn({
  table: 'cells',
  column: 'url',
  kind: 'cell',
  id: sql.fragment`name`,
  project: sql.fragment`null::text`,
})

const CellRow = z.strictObject({ name: z.string(), number: z.int(), url: z.string(), state: z.enum(CELL_STATES) })

/** A row of the directory; `url` is sealed. */
export type CellRow = z.output<typeof CellRow>

/** Reads the cells besides home, in the order of their numbers. */
export const readCells = ({ pool }: Pick<Services, 'pool'>): Promise<readonly CellRow[]> =>
  pool.any(sql.type(CellRow)`select name, number, url, state from cells order by number`)

const NAME = /^[a-z][a-z0-9-]{0,29}$/

/** Numbers of 10 bits. */
const MAX_NUMBER = 1023

const DirectoryRow = z.strictObject({
  name: z.string(),
  number: z.int(),
  url: z.string(),
  state: z.enum(CELL_STATES),
  created_at: z.string(),
  updated_at: z.string(),
})

/** A cell besides home. `url` is null if no configured key opens it. */
export type DirectoryCell = Omit<z.output<typeof DirectoryRow>, 'url'> & { url: string | null }

/** Why a cell has no URL. */
export const NO_KEY = 'its URL is encrypted with a key that is not configured'

/** Lists the cells besides home, in the order of their numbers. */
export async function listDirectory(db: Queryable, { secrets }: Pick<Services, 'secrets'>): Promise<DirectoryCell[]> {
  const rows = await db.any(sql.type(DirectoryRow)`
    select name, number, url, state, created_at, updated_at from cells order by number`)
  return rows.map(row => {
    const opened = secrets.open(row.url, sealedForCell(row.name))
    return { ...row, url: opened.ok ? opened.value : null }
  })
}

/** Returns the cell of a name besides home, undefined for an unknown one. */
export const findCell = async (
  db: Queryable,
  home: Pick<Services, 'secrets'>,
  name: string,
): Promise<DirectoryCell | undefined> => (await listDirectory(db, home)).find(cell => cell.name === name)

/** Message for a name that no cell has. */
export const unknownCellMessage = (name: string | undefined): string => `no cell is called ${name}`

/** @throws CellRefusal if a cell cannot have the name */
export function requireName(name: string): void {
  if (!NAME.test(name) || name === HOME.name)
    throw new CellRefusal(
      'a name begins with a lower case letter, has at most 30 lower case letters, digits and -, and is not home',
    )
}

/** @throws CellRefusal if a complete cell has the name */
export async function requireUnused(db: Queryable, home: Home, name: string): Promise<void> {
  const cell = await findCell(db, home, name)
  if (cell && cell.state !== 'down') throw new CellRefusal(`cell ${name} exists`)
}

const tableCount = sql.type(z.strictObject({ tables: z.int(), migrated: z.boolean() }))
const currentSchema = sql.type(
  z.strictObject({ schema: z.string().nullable() }),
)`select current_schema()::text as schema`
const condition = sql.type(z.strictObject({ holds: z.boolean() }))
const ownRow = sql.type(z.strictObject({ name: z.string(), url: z.string() }))

/**
 * Checks that a database has no tables, or no rows in its tables, or that an interrupted command has made it the cell.
 * @throws CellRefusal otherwise
 */
export async function requireEmpty(home: Home, target: Pool, name: string): Promise<void> {
  if (await isSameSchema(home.pool, target)) throw new CellRefusal('home uses the database')
  const { tables, migrated } = await target.one(tableCount`
    select count(*)::int as tables, count(*) filter (where relname = 'migrations') > 0 as migrated
    from pg_class c where relkind in ('r', 'p') and relnamespace = to_regnamespace(quote_ident(current_schema()))
      and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')`)
  if (tables === 0) return
  if (!migrated) throw new CellRefusal('the database has tables of another program')
  const own = (await hasTable(target, 'cells')) ? await target.any(ownRow`select name, url from cells`) : []
  for (const row of own) {
    const isOurs = home.secrets.open(row.url, sealedForCell(row.name)).ok
    if (isOurs && row.name === name) return
    throw new CellRefusal(isOurs ? `cell ${row.name} uses the database` : 'the database belongs to another deployment')
  }
  // An interrupted migration has created some of the tables.
  for (const table of ['users', 'projects', 'worker_heartbeats'])
    if (
      (await hasTable(target, table)) &&
      (await target.oneFirst(condition`select exists (select from ${sql.identifier([table])}) as holds`))
    )
      throw new CellRefusal('the database belongs to another deployment')
}

const hasTable = (db: Queryable, name: string): Promise<boolean> =>
  db.oneFirst(condition`select to_regclass(${name}) is not null as holds`)

/** Whether two pools are connected to the same schema: advisory locks are of a database of a server. */
export function isSameSchema(one: Pool, other: Pool): Promise<boolean> {
  const key = randomInt(2 ** 47)
  return one.transaction(async tx => {
    await tx.query(voidStatement`select pg_advisory_xact_lock(${key})`)
    if (await other.oneFirst(condition`select pg_try_advisory_xact_lock(${key}) as holds`)) return false
    return (await tx.oneFirst(currentSchema)) === (await other.oneFirst(currentSchema))
  })
}

/**
 * Writes a cell in state `down`, in which no process opens it, and its row in its own database. Its number is above all others;
 * an interrupted command has given it one already. Concurrent calls wait for each other.
 * @throws CellRefusal if the name or the database is taken
 */
export async function writeCell(
  home: Home,
  target: Pool,
  { name, url }: { name: string; url: string },
): Promise<{ number: number }> {
  const sealed = home.secrets.seal(url, sealedForCell(name))
  return home.pool.transaction(async tx => {
    await tx.query(voidStatement`lock table cells in share row exclusive mode`)
    await requireUnused(tx, home, name)
    await requireEmpty(home, target, name)
    const { number } = await tx.one(sql.type(z.strictObject({ number: z.int() }))`
      select coalesce((select number from cells where name = ${name}), (select max(number) from cells) + 1, 1) as number`)
    if (number > MAX_NUMBER) throw new CellRefusal(`a deployment has at most ${MAX_NUMBER} cells`)
    for (const db of [target, tx])
      await db.query(voidStatement`
        insert into cells (name, number, url, state) values (${name}, ${number}, ${sealed}, 'down')
        on conflict (name) do update set number = excluded.number, url = excluded.url, updated_at = now()`)
    return { number }
  })
}

/**
 * Sets the state of a cell.
 * @param from states that it may have before
 * @returns whether it had one of them
 */
export const setCellState = async (
  { pool }: Pick<Services, 'pool'>,
  name: string,
  state: CellState,
  from: readonly CellState[],
): Promise<boolean> =>
  (await pool.maybeOneFirst(idStatement`
    update cells set state = ${state}, updated_at = now()
    where name = ${name} and state = any(${sql.array([...from], 'text')}) returning name as id`)) !== null
