import { injectFault } from '../base/fault-injection.ts'
import { sqlStateOf } from '../db/database-errors.ts'
import { LOCK_PAST_MONTHS } from '../db/months.ts'
import {
  dropStaged,
  hasProject,
  notifyMoved,
  type ProjectMove,
  type ProjectSession,
  type RowCount,
  requireStaged,
  requireUnshared,
  setReplicaRole,
} from './moving-project.ts'
import { type Column, onConflictOf, type ProjectTable } from './project-rows.ts'
import { insertTexts, inTransactionOf, readBatches, rowsOf } from './replication.ts'

/** The source of a project that is moved: its rows leave it in one transaction. */

const BATCH_BYTES = 4_000_000
const BATCH_ROWS = 1000

/** Tries of the transaction at the source, which a deadlock with a writer may end. */
const TRIES = 10
const CONFLICTS = new Set<string | null>(['40P01', '40001', '55P03'])

/** Takes the rows from the source into the staging of the target; false if they have left it before. */
export async function takeRowsWithRetries(move: ProjectMove): Promise<boolean> {
  for (let attempt = 1; ; attempt++)
    try {
      return await takeRows(move)
    } catch (error) {
      if (attempt === TRIES || !CONFLICTS.has(sqlStateOf(error))) throw error
      for (const { client } of [move.source, move.target]) await client.query('rollback')
    }
}

async function takeRows({ cells, directory, id, source, target }: ProjectMove): Promise<boolean> {
  await source.client.query('begin')
  await source.client.query(LOCK_PAST_MONTHS)
  await setReplicaRole(source, 'local')
  // Rows before their project, as writers lock them; then those that were inserted until the project was locked.
  await lockParents(source, id)
  if (!(await hasProject(source, id, 'for update'))) {
    await source.client.query('rollback')
    return false
  }
  await lockParents(source, id)
  await requireUnshared(source, id)
  await target.client.query('begin')
  await dropStaged(target, id)
  const tables: Record<string, RowCount> = {}
  const spaces = await rowsOf(
    source.client,
    'select id, provider, model, dimensions, code_version from embedding_spaces order by id',
  )
  for (const table of source.tables) {
    const counted = await stageTable(source, target, id, table)
    if (counted.rows > 0) tables[table.name] = counted
    if (table.name === 'row_count_shards') await injectFault(cells.home, 'move_taking')
  }
  await target.client.query(
    'insert into moving_projects (project_id, source, tables, spaces) values ($1, $2, $3::jsonb, $4::jsonb)',
    [id, source.cell.name, JSON.stringify(tables), JSON.stringify(spaces)],
  )
  await requireStaged(target, id, tables)
  await target.client.query('commit')
  await injectFault(cells.home, 'move_staged')
  await notifyMoved(source, id)
  // Without its session at home, the command has lost the lock of the move.
  await rowsOf(directory, 'select')
  await source.client.query('commit')
  return true
}

/** Locks the rows that other rows belong to, so that none can be added to them. */
async function lockParents({ client, tables }: ProjectSession, id: string): Promise<void> {
  for (const { name, where } of tables.filter(({ isParent, name }) => isParent && name !== 'projects').reverse())
    await client.query(`select count(*) from (select from ${name} t where ${where} for update) locked`, [id])
}

/** Deletes the rows of a table at the source and stages them, in batches of a size that memory holds. */
async function stageTable(
  source: ProjectSession,
  target: ProjectSession,
  id: string,
  table: ProjectTable,
): Promise<RowCount> {
  let rows = 0
  let hash = 0n
  // Rows may have been changed after the cursor was opened, and counters been inserted.
  for (let found = true; found; ) {
    found = false
    for await (const batch of deleteInBatches(source, id, table)) {
      found = true
      if (batch.length === 0) continue
      await target.client.query(
        `insert into moving_rows (project_id, table_name, line)
         select $1, $2, value from json_array_elements_text($3::json)`,
        [id, table.name, JSON.stringify(batch.map(({ line }) => line))],
      )
      rows += batch.length
      for (const row of batch) hash += BigInt(row.hash)
    }
  }
  return { rows, hash: hash.toString() }
}

type DeletedRow = { line: string; hash: string }

/** Yields the rows of each batch, of which some may have been changed meanwhile: these are found by a further pass. */
async function* deleteInBatches(
  { client }: ProjectSession,
  id: string,
  { name, where }: ProjectTable,
): AsyncGenerator<DeletedRow[]> {
  // Partitions have rows at equal places.
  const text = `
    select t.tableoid as partition, t.ctid::text as place, octet_length(t::text) as bytes from ${name} t where ${where}`
  for await (const found of readBatches(client, { text, values: [id] }, { size: BATCH_ROWS }))
    for (const { partition, places } of batchesOf(found as Found[]))
      yield await rowsOf(
        client,
        `with gone as (
           delete from ${name} t where t.tableoid = $1 and t.ctid = any ($2::tid[]) returning t::text as line)
         select line, hashtextextended(line, 0)::text as hash from gone`,
        [partition, places],
      )
}

type Found = { partition: number; place: string; bytes: number }

/** Divides rows into batches of one partition and at most BATCH_BYTES, or of one row. */
function batchesOf(rows: readonly Found[]): { partition: number; places: string[] }[] {
  const batches: { partition: number; places: string[] }[] = []
  let rest = 0
  for (const { partition, place, bytes } of rows) {
    if (bytes > rest || batches.at(-1)?.partition !== partition) {
      batches.push({ partition, places: [] })
      rest = BATCH_BYTES
    }
    batches.at(-1)?.places.push(place)
    rest -= bytes
  }
  return batches
}

/** Tables whose rows of after the move are added to the target, and of those that are deleted. */
const ADDED = ['audit_entries', 'row_count_shards']
const DISCARDED = ['audit_seal_batches', 'audit_chain_starts', 'unfolded_usage', 'folded_run_usage']

/** Takes rows without a foreign key that processes wrote at the source before they received the change of the directory. */
export async function takeLateRows({ id, source, target }: ProjectMove): Promise<void> {
  const conditionOf = (name: string) => (source.tables.find(table => table.name === name) as ProjectTable).where
  await inTransactionOf(source.client, async () => {
    await source.client.query(LOCK_PAST_MONTHS)
    await setReplicaRole(source, 'local')
    for (const name of ADDED) {
      const taken = await rowsOf(
        source.client,
        `with gone as (delete from ${name} t where ${conditionOf(name)} returning t::text as line) select line from gone`,
        [id],
      )
      const columns = (target.columns.get(name) as Column[]).map(column => `"${column.name}"`)
      const onConflict = onConflictOf(name) || 'on conflict do nothing'
      await insertTexts(
        target.client,
        { table: name, columns, onConflict },
        taken.map(({ line }) => line),
      )
    }
    for (const name of DISCARDED) await source.client.query(`delete from ${name} t where ${conditionOf(name)}`, [id])
  })
}
