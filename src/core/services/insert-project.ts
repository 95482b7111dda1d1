import { LOCK_PAST_MONTHS } from '../db/months.ts'
import { requireCell } from './cell.ts'
import { untilReplayedHome } from './copies.ts'
import {
  describeCount,
  dropStaged,
  hasProject,
  isSameCount,
  notifyMoved,
  type ProjectMove,
  type ProjectSession,
  type RowCount,
  refuse,
  requireStaged,
  setReplicaRole,
} from './moving-project.ts'
import { type Column, insertOf, isComplete, isUnchanged } from './project-rows.ts'
import { rowsOf } from './replication.ts'

/** The target of a project that is moved: its staged rows are inserted in one transaction, and compared with the source. */

/** Inserts the staged rows of a project at the target. Returns their number; null if an earlier command has inserted them. */
export async function insertStagedRows(move: ProjectMove): Promise<number | null> {
  const { cells, id, target } = move
  const { client } = target
  // Until then, replication may delete copies of rows that left home.
  if (!(await untilReplayedHome(cells.home, target.cell, requireCell(target.cell).config.DATABASE_LISTEN_URL)))
    refuse(
      `cell ${target.cell.name} has not replayed the changes at home: repeat the move once muster cells check passes`,
    )
  await client.query('begin')
  await client.query(LOCK_PAST_MONTHS)
  await setReplicaRole(target, 'local')
  const [staged] = await rowsOf(client, 'select tables, spaces from moving_projects where project_id = $1 for update', [
    id,
  ])
  if (!staged) {
    await client.query('rollback')
    if (await hasProject(target, id)) return null
    await move.directory.query('delete from project_cells where project_id = $1', [id])
    refuse(`project ${id} was deleted`)
  }
  const tables = staged.tables as Record<string, RowCount>
  await requireStaged(target, id, tables)
  const spaces = await mapSpaces(target, staged.spaces, tables)
  // Seals of entries that were written here after an earlier move: they are sealed again, in the chain that comes back.
  for (const name of ['audit_seal_batches', 'audit_chain_starts'])
    await client.query(`delete from ${name} where chain = $1`, [id])
  for (const [name, { rows }] of Object.entries(tables)) {
    const columns = target.columns.get(name) as Column[]
    const { rowCount } = await client.query(insertOf(name, columns, spaces), [id, name])
    if (isComplete(name) && rowCount !== rows) throw new Error(`${rowCount} of ${rows} rows of ${name} were inserted`)
  }
  await requireInserted(target, id, tables)
  await requireReferences(target, id, Object.keys(tables))
  await client.query(`select setval(pg_get_serial_sequence('case_timeline', 'seq'),
    (select greatest(max(seq), (select last_value from case_timeline_seq_seq)) from case_timeline))
    where exists (select from case_timeline)`)
  await dropStaged(target, id)
  await notifyMoved(target, id)
  await client.query('commit')
  return Object.values(tables).reduce((sum, { rows }) => sum + rows, 0)
}

/** @throws if rows at the target differ from those that left the source */
async function requireInserted(
  { client, tables, columns }: ProjectSession,
  id: string,
  staged: Record<string, RowCount>,
) {
  for (const { name, where } of tables) {
    if (!isUnchanged(name, columns.get(name) as Column[])) continue
    const [found] = await rowsOf(
      client,
      `select count(*)::int as rows, coalesce(sum(hashtextextended(t::text, 0)), 0)::text as hash from ${name} t where ${where}`,
      [id],
    )
    const expected = staged[name] ?? { rows: 0, hash: '0' }
    if (!isSameCount(found as RowCount, expected))
      throw new Error(
        `rows of ${name} differ from the source: ${describeCount(expected)}, then ${describeCount(found as RowCount)}`,
      )
  }
}

const REFERENCES_TO_HOME = `
  select conrelid::regclass::text as child, quote_ident(attname) as "column", confrelid::regclass::text as parent
  from pg_constraint join pg_attribute on attrelid = conrelid and attnum = conkey[1]
  where contype = 'f' and confrelid in ('users'::regclass, 'policies'::regclass)`

/** @throws CellRefusal if a user or policy that rows reference does not exist: a key would lose its boundary */
async function requireReferences(
  { client, tables }: ProjectSession,
  id: string,
  names: readonly string[],
): Promise<void> {
  for (const { child, column, parent } of await rowsOf(client, REFERENCES_TO_HOME)) {
    const table = tables.find(({ name }) => name === child && names.includes(name))
    if (!table) continue
    const [missing] = await rowsOf(
      client,
      `select t.${column} as id from ${child} t
       where ${table.where} and t.${column} is not null and not exists (select from ${parent} p where p.id = t.${column}) limit 1`,
      [id],
    )
    if (missing) refuse(`rows of ${child} reference ${missing.id}, which does not exist at home`)
  }
}

type Space = { id: number; provider: string; model: string; dimensions: number; code_version: number }

/** Returns the IDs of embedding spaces at the target by their IDs at the source, and creates those that are missing. */
async function mapSpaces(
  { client }: ProjectSession,
  spaces: readonly Space[],
  tables: Record<string, RowCount>,
): Promise<ReadonlyMap<number, number>> {
  const map = new Map<number, number>()
  if (!['documents', 'memories', 'knowledge_vectors'].some(name => name in tables)) return map
  for (const { id, ...space } of spaces) {
    const [row] = await rowsOf(
      client,
      `with made as (
         insert into embedding_spaces (provider, model, dimensions, code_version) values ($1, $2, $3, $4)
         on conflict (provider, model, dimensions, code_version) do nothing returning id)
       select id from made union all
       select id from embedding_spaces where (provider, model, dimensions, code_version) = ($1, $2, $3, $4) limit 1`,
      [space.provider, space.model, space.dimensions, space.code_version],
    )
    map.set(id, row.id)
  }
  return map
}
