import { setTimeout as sleep } from 'node:timers/promises'
import { injectFault } from '../base/fault-injection.ts'
import { cellOfId } from '../base/ids.ts'
import { sqlStateOf } from '../db/database-errors.ts'
import { type DatabaseClient, withStatementLimit } from '../db/pg-client.ts'
import { sql } from '../db/sql.ts'
import { withoutTenant } from '../db/tenant-context.ts'
import { queues } from '../queues/queue.ts'
import { leaseHolding } from '../work/takeover.ts'
import { DISPATCH_CHANNEL } from '../writes/writer.ts'
import { type Cell, HOME, inCellOf, requireCell } from './cell.ts'
import { CellRefusal } from './cell-directory.ts'
import type { Cells } from './cells.ts'

import { untilReplayedHome } from './copies.ts'
import {
  type Column,
  columnsOf,
  insertOf,
  isComplete,
  isUnchanged,
  MOVED_HOLDER,
  onConflictOf,
  type ProjectTable,
  tablesOfProject,
} from './project-rows.ts'
import { connect, FORMATS, insertTexts, rowsOf } from './replication.ts'

/**
 * Moves a project to another cell. For the source a move is the deletion of the project, for the target the recovery of its work
 * after the loss of the workers. One transaction at the source takes the rows, which are in staging tables of the target when it
 * commits: from then on no process finds the project until the target has the rows. A repeat after a crash begins again, or ends
 * what began.
 */

/** Rows of a table that left the source: number and sum of the hashes of their texts. */
type Counted = { rows: number; hash: string }

/** A project whose move has ended, at its target or, if it was cancelled, at its source. */
export type MovedProject = {
  project_id: string
  from: string
  to: string
  /** Number of the inserted rows; null if this command has inserted none. */
  rows: number | null
  cancelled: boolean
}

type Session = { cell: Cell; client: DatabaseClient; tables: ProjectTable[]; columns: Map<string, Column[]> }

type Move = { cells: Cells; directory: DatabaseClient; id: string; source: Session; target: Session }

/** Time in which processes receive a change of the directory. A later one does no harm, but answers 404 instead of 503. */
const HEARD_MS = 1000

const BATCH_BYTES = 4_000_000
const BATCH_ROWS = 1000

/** Tries of the transaction at the source, which a deadlock with a writer may end. */
const TRIES = 10
const CONFLICTS = new Set<string | null>(['40P01', '40001', '55P03'])

const INSUFFICIENT_PRIVILEGE = '42501'

/** Settings of sessions that wait for locks, and for the other side. */
const SETTINGS = `set statement_timeout = 0; set lock_timeout = '30s'; set synchronous_commit = on;
  set idle_in_transaction_session_timeout = '10min'`

async function connectTo(cell: Cell): Promise<DatabaseClient> {
  const client = await connect(requireCell(cell).config.DATABASE_LISTEN_URL, { purpose: 'move' })
  await client.query(FORMATS)
  await client.query(SETTINGS)
  return client
}

async function openSession(cell: Cell, client: DatabaseClient): Promise<Session> {
  const tables = await tablesOfProject(client)
  const columns = new Map<string, Column[]>()
  for (const { name } of tables) columns.set(name, await columnsOf(client, name))
  return { cell, client, tables, columns }
}

/**
 * Moves a project to the cell of a name, or ends a move that was interrupted.
 * @throws CellRefusal
 */
export const moveProject = (
  cells: Cells,
  id: string,
  target: string,
  onStep: (text: string) => void = () => {},
): Promise<MovedProject> =>
  withoutTenant(() => withStatementLimit(Number.POSITIVE_INFINITY, () => runMove(cells, id, target, onStep)))

async function runMove(cells: Cells, id: string, name: string, onStep: (text: string) => void): Promise<MovedProject> {
  const target = cells.named(name) ?? refuse(`no cell is called ${name}`)
  const directory = await connectTo(cells.all()[0])
  const opened: DatabaseClient[] = [directory]
  try {
    const [{ locked }] = await rowsOf(
      directory,
      `select pg_try_advisory_lock(hashtextextended('muster move ' || $1, 0)) as locked`,
      [id],
    )
    if (!locked) refuse(`another command moves the project ${id}`)
    const entry = await entryOf(cells, directory, id)
    const source = cells.named(entry.cell) ?? refuse(`no cell is called ${entry.cell}`)
    // A move back to the source of an interrupted one ends it where nothing has left the source.
    const resumed = entry.moving_to !== null
    const other = resumed ? (cells.named(entry.moving_to as string) ?? target) : target
    if (resumed && name !== other.name && name !== source.name)
      refuse(`project ${id} is on the way to ${other.name}: repeat the move to ${other.name}`)
    if (source.name === other.name) refuse(`project ${id} is in ${source.name}`)
    for (const cell of [source, other]) requireServed(cell)
    if (!resumed && other.state !== 'open') refuse(`cell ${other.name} is ${other.state}`)
    for (const cell of [source, other]) opened.push(await connectTo(cell))
    const [, from, to] = opened
    await requireSameMigrations(from, to)
    const move: Move = {
      cells,
      directory,
      id,
      source: await openSession(source, from),
      target: await openSession(other, to),
    }
    if (!resumed) await requireMovable(move)
    else if (name === source.name) return await cancelMove(move)
    return await carryOut(move, onStep)
  } finally {
    await Promise.all(opened.map(client => client.end()))
  }
}

const refuse = (message: string): never => {
  throw new CellRefusal(message)
}

function requireServed({ name, state, services }: Cell): void {
  if (state === 'down' || state === 'moving') refuse(`cell ${name} is ${state}`)
  if (!services) refuse(`cell ${name} does not answer`)
}

type Entry = { cell: string; moving_to: string | null }

async function entryOf(cells: Cells, directory: DatabaseClient, id: string): Promise<Entry> {
  const [entry] = await rowsOf(
    directory,
    `select coalesce(cell, '${HOME.name}') as cell, moving_to from project_cells where project_id = $1`,
    [id],
  )
  const made = cells.all().find(({ number }) => number === cellOfId(id))
  return entry ?? { cell: made?.name ?? HOME.name, moving_to: null }
}

const hasProject = async ({ client }: Session, id: string, lock = ''): Promise<boolean> =>
  (await rowsOf(client, `select id from projects where id = $1 ${lock}`, [id])).length > 0

/** @throws CellRefusal if the project does not exist, is shared across projects, or the databases do not permit it */
async function requireMovable({ id, source, target }: Move): Promise<void> {
  if (!(await hasProject(source, id))) refuse(`no project is called ${id}`)
  await requireSameSchema(source, target)
  await requireUnshared(source, id)
  for (const session of [source, target]) {
    await setReplicaRole(session)
    await session.client.query('reset session_replication_role')
  }
}

/** @throws CellRefusal if the project shares with another one, which would remain in its cell */
async function requireUnshared({ client, cell }: Session, id: string): Promise<void> {
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

async function requireSameMigrations(...clients: [DatabaseClient, DatabaseClient]): Promise<void> {
  const statement = `select string_agg(name, ',' order by name) as names from migrations`
  const [[here], [there]] = await Promise.all(clients.map(client => rowsOf(client, statement)))
  if (here.names !== there.names) refuse('the cells are not migrated alike: run muster migrate')
}

async function requireSameSchema(source: Session, target: Session): Promise<void> {
  for (const { name } of source.tables) {
    const [own, others] = [source, target].map(({ columns }) => JSON.stringify(columns.get(name)))
    if (own !== others) refuse(`the columns of ${name} differ between ${source.cell.name} and ${target.cell.name}`)
  }
  const config = 'select text_search_config as name from retrieval_settings'
  const [[ours], [theirs]] = await Promise.all([source, target].map(({ client }) => rowsOf(client, config)))
  if (ours && theirs && ours.name !== theirs.name)
    refuse(`searches use ${ours.name} in ${source.cell.name}, and ${theirs.name} in ${target.cell.name}`)
}

/** Turns triggers and foreign keys of the session off. */
async function setReplicaRole({ client, cell }: Session, scope = ''): Promise<void> {
  await client.query(`set ${scope} session_replication_role = replica`).catch((error: unknown) => {
    if (sqlStateOf(error) !== INSUFFICIENT_PRIVILEGE) throw error
    const grant = 'grant set on parameter session_replication_role to the user'
    refuse(`the user of cell ${cell.name} may not set session_replication_role: ${grant}, or use a superuser`)
  })
}

/** Writes where a project is, or where it is on the way to, and the numbers of the cells in which it has been. */
const writeEntry = ({ directory, id, source, target }: Move, cell: Cell, movingTo: Cell | null): Promise<unknown> =>
  directory.query(
    `insert into project_cells as p (project_id, cell, moving_to, numbers) values ($1, $2, $3, $4)
     on conflict (project_id) do update set cell = excluded.cell, moving_to = excluded.moving_to,
       numbers = array(select distinct n from unnest(p.numbers || excluded.numbers) n order by n)`,
    [
      id,
      cell.number === 0 ? null : cell.name,
      movingTo?.name ?? null,
      [cellOfId(id), source.cell.number, target.cell.number],
    ],
  )

/** Ends a move before its rows have left the source. */
async function cancelMove(move: Move): Promise<MovedProject> {
  const { id, source, target } = move
  // Waits for a transaction of a lost command.
  if (!(await hasProject(source, id, 'for update')))
    refuse(`project ${id} has left ${source.cell.name}: repeat the move to ${target.cell.name}`)
  await dropStaged(target, id)
  await writeEntry(move, source.cell, null)
  return { project_id: id, from: target.cell.name, to: source.cell.name, rows: null, cancelled: true }
}

async function dropStaged({ client }: Session, id: string): Promise<void> {
  for (const table of ['moving_rows', 'moving_projects'])
    await client.query(`delete from ${table} where project_id = $1`, [id])
}

async function carryOut(move: Move, onStep: (text: string) => void): Promise<MovedProject> {
  const { cells, id, source, target } = move
  await writeEntry(move, source.cell, target.cell)
  onStep(`project ${id} takes no requests`)
  await sleep(HEARD_MS)
  try {
    if (await takeRows(move)) onStep(`its rows have left ${source.cell.name}`)
  } catch (error) {
    for (const { client } of [source, target]) await client.query('rollback').catch(() => {})
    // Without an answer of the source it is not known whether the rows have left it.
    if (await hasProject(source, id, 'for update').catch(() => false)) await cancelMove(move)
    throw error
  }
  await injectFault(cells.home, 'move_taken')
  const rows = await placeRows(move)
  onStep(`its rows are in ${target.cell.name}`)
  await injectFault(cells.home, 'move_placed')
  await recoverWork(target)
  await writeEntry(move, target.cell, null)
  await sleep(HEARD_MS)
  await takeStragglers(move)
  return { project_id: id, from: source.cell.name, to: target.cell.name, rows, cancelled: false }
}

/** Takes the rows from the source into the staging of the target; false if they have left it before. */
async function takeRows(move: Move): Promise<boolean> {
  for (let attempt = 1; ; attempt++)
    try {
      return await takeOnce(move)
    } catch (error) {
      if (attempt === TRIES || !CONFLICTS.has(sqlStateOf(error))) throw error
      for (const { client } of [move.source, move.target]) await client.query('rollback')
    }
}

async function takeOnce({ cells, directory, id, source, target }: Move): Promise<boolean> {
  await source.client.query('begin')
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
  const tables: Record<string, Counted> = {}
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
async function lockParents({ client, tables }: Session, id: string): Promise<void> {
  for (const { name, where } of tables.filter(({ isParent, name }) => isParent && name !== 'projects').reverse())
    await client.query(`select count(*) from (select from ${name} t where ${where} for update) locked`, [id])
}

/** Notifies the processes of a cell: of keys that ended, of events and webhooks that wait, of prices and telemetry targets. */
const notifyMoved = ({ client }: Session, id: string): Promise<unknown> =>
  client.query(
    `select pg_notify(cell_channel(current_schema()::name, c.channel), c.payload) from (
       values ('muster_principals', 'project:' || $1), ('muster_usage', ''), ('muster_telemetry_targets', $1),
         ('${DISPATCH_CHANNEL}', '')
       union all select 'muster_webhooks', id || ' ' || project_id from webhooks where project_id = $1) c (channel, payload)`,
    [id],
  )

/** Deletes the rows of a table at the source and stages them, in batches of a size that memory holds. */
async function stageTable(source: Session, target: Session, id: string, table: ProjectTable): Promise<Counted> {
  let rows = 0
  let hash = 0n
  // Rows may have been changed after the cursor was opened, and counters been inserted.
  for (let found = true; found; ) {
    found = false
    for await (const batch of takeBatches(source, id, table)) {
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

type Taken = { line: string; hash: string }

/** Yields the rows of each batch, of which some may have been changed meanwhile: these are found by a further pass. */
async function* takeBatches({ client }: Session, id: string, { name, where }: ProjectTable): AsyncGenerator<Taken[]> {
  await client.query(
    `declare taken no scroll cursor for
     select t.ctid::text as place, octet_length(t::text) as bytes from ${name} t where ${where}`,
    [id],
  )
  for (;;) {
    const found = await rowsOf(client, `fetch ${BATCH_ROWS} from taken`)
    if (found.length === 0) break
    for (const places of batchesOf(found))
      yield await rowsOf(
        client,
        `with gone as (delete from ${name} t where t.ctid = any ($1::tid[]) returning t::text as line)
         select line, hashtextextended(line, 0)::text as hash from gone`,
        [places],
      )
  }
  await client.query('close taken')
}

/** Divides rows into batches of at most BATCH_BYTES, or of one row. */
function batchesOf(rows: readonly { place: string; bytes: number }[]): string[][] {
  const batches: string[][] = []
  let rest = 0
  for (const { place, bytes } of rows) {
    if (bytes > rest) {
      batches.push([])
      rest = BATCH_BYTES
    }
    batches.at(-1)?.push(place)
    rest -= bytes
  }
  return batches
}

/** @throws if the staged rows are not those that left the source */
async function requireStaged({ client }: Session, id: string, tables: Record<string, Counted>): Promise<void> {
  const staged = await rowsOf(
    client,
    `select table_name as name, count(*)::int as rows, sum(hashtextextended(line, 0))::text as hash
     from moving_rows where project_id = $1 group by 1`,
    [id],
  )
  const found = Object.fromEntries(staged.map(({ name, rows, hash }) => [name, { rows, hash }]))
  const names = new Set([...Object.keys(tables), ...Object.keys(found)])
  for (const name of names)
    if (!isSame(tables[name], found[name]))
      throw new Error(
        `rows of ${name} were changed on the way: ${describe(tables[name])}, then ${describe(found[name])}`,
      )
}

const isSame = (one: Counted | undefined, other: Counted | undefined): boolean =>
  one?.rows === other?.rows && one?.hash === other?.hash

const describe = (counted: Counted | undefined): string =>
  counted ? `${counted.rows} with the sum ${counted.hash}` : 'none'

/** Inserts the staged rows of a project at the target. Returns their number; null if an earlier command has inserted them. */
async function placeRows(move: Move): Promise<number | null> {
  const { cells, id, target } = move
  const { client } = target
  // Until then, replication may delete copies of rows that left home.
  if (!(await untilReplayedHome(cells.home, target.cell, requireCell(target.cell).config.DATABASE_LISTEN_URL)))
    refuse(
      `cell ${target.cell.name} has not replayed the changes at home: repeat the move once muster cells check passes`,
    )
  await client.query('begin')
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
  const tables = staged.tables as Record<string, Counted>
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
  await requirePlaced(target, id, tables)
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
async function requirePlaced({ client, tables, columns }: Session, id: string, staged: Record<string, Counted>) {
  for (const { name, where } of tables) {
    if (!isUnchanged(name, columns.get(name) as Column[])) continue
    const [found] = await rowsOf(
      client,
      `select count(*)::int as rows, coalesce(sum(hashtextextended(t::text, 0)), 0)::text as hash from ${name} t where ${where}`,
      [id],
    )
    const expected = staged[name] ?? { rows: 0, hash: '0' }
    if (!isSame(found as Counted, expected))
      throw new Error(
        `rows of ${name} differ from the source: ${describe(expected)}, then ${describe(found as Counted)}`,
      )
  }
}

const REFERENCES_TO_HOME = `
  select conrelid::regclass::text as child, quote_ident(attname) as "column", confrelid::regclass::text as parent
  from pg_constraint join pg_attribute on attrelid = conrelid and attnum = conkey[1]
  where contype = 'f' and confrelid in ('users'::regclass, 'policies'::regclass)`

/** @throws CellRefusal if a user or policy that rows reference does not exist: a key would lose its boundary */
async function requireReferences({ client, tables }: Session, id: string, names: readonly string[]): Promise<void> {
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
  { client }: Session,
  spaces: readonly Space[],
  tables: Record<string, Counted>,
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

/** Ends the leases of the source, sends the wake-ups of work without a message, and wakes the workers. */
async function recoverWork({ cell }: Session): Promise<void> {
  const services = requireCell(cell)
  await inCellOf(services, () =>
    services.write(async tx => {
      for (const endLeases of leaseHolding.all())
        await endLeases(tx, holder => sql.fragment`${holder} = ${MOVED_HOLDER}`, services)
    }),
  )
  for (const { name } of queues.all()) services.queues.wake(name, 'now')
}

/** Tables whose rows of after the move are added to the target, and of those that are deleted. */
const ADDED = ['audit_entries', 'row_count_shards']
const DISCARDED = ['audit_seal_batches', 'audit_chain_starts', 'unfolded_usage', 'folded_run_usage']

/** Takes rows without a foreign key that processes wrote at the source before they received the change of the directory. */
async function takeStragglers({ id, source, target }: Move): Promise<void> {
  const conditionOf = (name: string) => (source.tables.find(table => table.name === name) as ProjectTable).where
  await source.client.query('begin')
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
  await source.client.query('commit')
}
