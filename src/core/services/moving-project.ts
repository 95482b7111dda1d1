import { sqlStateOf } from '../db/database-errors.ts'
import type { DatabaseClient } from '../db/pg-client.ts'
import { DISPATCH_CHANNEL } from '../writes/writer.ts'
import { type Cell, requireCell } from './cell.ts'
import { CellRefusal } from './cell-directory.ts'
import type { Cells } from './cells.ts'
import { type Column, columnsOf, type ProjectTable, tablesOfProject } from './project-rows.ts'
import { connect, FORMATS, rowsOf } from './replication.ts'

/** The databases of a project that is moved, and its rows in the staging tables of the target. */

/** A session of a cell, with the tables of projects and their columns. */
export type ProjectSession = {
  cell: Cell
  client: DatabaseClient
  tables: ProjectTable[]
  columns: Map<string, Column[]>
}

/** A move: its project, and sessions of the directory, the source and the target. */
export type ProjectMove = {
  cells: Cells
  directory: DatabaseClient
  id: string
  source: ProjectSession
  target: ProjectSession
}

const INSUFFICIENT_PRIVILEGE = '42501'

/** Settings of sessions that wait for locks, and for the other side. */
const SETTINGS = `set statement_timeout = 0; set lock_timeout = '30s'; set synchronous_commit = on;
  set idle_in_transaction_session_timeout = '10min'`

/** Opens a session of a cell for a move. */
export async function connectTo(cell: Cell): Promise<DatabaseClient> {
  const client = await connect(requireCell(cell).config.DATABASE_LISTEN_URL, { purpose: 'move' })
  await client.query(FORMATS)
  await client.query(SETTINGS)
  return client
}

/** Reads the tables of projects of a session. */
export async function openSession(cell: Cell, client: DatabaseClient): Promise<ProjectSession> {
  const tables = await tablesOfProject(client)
  const columns = new Map<string, Column[]>()
  for (const { name } of tables) columns.set(name, await columnsOf(client, name))
  return { cell, client, tables, columns }
}

/** @throws CellRefusal */
export const refuse = (message: string): never => {
  throw new CellRefusal(message)
}

/** Whether a cell has a project. */
export const hasProject = async ({ client }: ProjectSession, id: string, lock = ''): Promise<boolean> =>
  (await rowsOf(client, `select id from projects where id = $1 ${lock}`, [id])).length > 0

/** @throws CellRefusal if the project shares with another one, which would remain in its cell */
export async function requireUnshared({ client, cell }: ProjectSession, id: string): Promise<void> {
  const shared = await rowsOf(
    client,
    `select distinct s.id from shares s where exists (
       select from (select share_id, project_id from share_acceptances union all select share_id, project_id from share_usage) u
       where u.share_id = s.id and u.project_id <> s.project_id and $1 in (u.project_id, s.project_id)) order by s.id limit 10`,
    [id],
  )
  if (shared.length > 0)
    refuse(`project ${id} shares with projects of ${cell.name}: delete ${shared.map(row => row.id).join(', ')} first`)
}

/** Turns triggers and foreign keys of the session off. */
export async function setReplicaRole({ client, cell }: ProjectSession, scope = ''): Promise<void> {
  await client.query(`set ${scope} session_replication_role = replica`).catch((error: unknown) => {
    if (sqlStateOf(error) !== INSUFFICIENT_PRIVILEGE) throw error
    const grant = 'grant set on parameter session_replication_role to the user'
    refuse(`the user of cell ${cell.name} may not set session_replication_role: ${grant}, or use a superuser`)
  })
}

/** Deletes the staged rows of a project. */
export async function dropStaged({ client }: ProjectSession, id: string): Promise<void> {
  for (const table of ['moving_rows', 'moving_projects'])
    await client.query(`delete from ${table} where project_id = $1`, [id])
}

/** Rows of a table that left the source: number and sum of the hashes of their texts. */
export type RowCount = { rows: number; hash: string }

/** @throws if the staged rows are not those that left the source */
export async function requireStaged(
  { client }: ProjectSession,
  id: string,
  tables: Record<string, RowCount>,
): Promise<void> {
  const staged = await rowsOf(
    client,
    `select table_name as name, count(*)::int as rows, sum(hashtextextended(line, 0))::text as hash
     from moving_rows where project_id = $1 group by 1`,
    [id],
  )
  const found = Object.fromEntries(staged.map(({ name, rows, hash }) => [name, { rows, hash }]))
  const names = new Set([...Object.keys(tables), ...Object.keys(found)])
  for (const name of names)
    if (!isSameCount(tables[name], found[name]))
      throw new Error(
        `rows of ${name} were changed on the way: ${describeCount(tables[name])}, then ${describeCount(found[name])}`,
      )
}

/** Whether two tables have the same rows. */
export const isSameCount = (one: RowCount | undefined, other: RowCount | undefined): boolean =>
  one?.rows === other?.rows && one?.hash === other?.hash

/** Describes the rows of a table. */
export const describeCount = (counted: RowCount | undefined): string =>
  counted ? `${counted.rows} with the sum ${counted.hash}` : 'none'

/** Notifies the processes of a cell: of keys that ended, of events and webhooks that wait, of prices and telemetry targets. */
export const notifyMoved = ({ client }: ProjectSession, id: string): Promise<unknown> =>
  client.query(
    `select pg_notify(cell_channel(current_schema()::name, c.channel), c.payload) from (
       values ('muster_principals', 'project:' || $1), ('muster_usage', ''), ('muster_telemetry_targets', $1),
         ('${DISPATCH_CHANNEL}', '')
       union all select 'muster_webhooks', id || ' ' || project_id from webhooks where project_id = $1) c (channel, payload)`,
    [id],
  )
