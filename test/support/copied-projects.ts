import { DatabaseClient } from '#core/db/pg-client.ts'
import { CANARY } from './canaries.ts'

/**
 * Characters of IDs before the mark of a copy: those have the time, and those after it differ within a millisecond. Marks after
 * 10 characters begin with the number of a cell.
 */
const BEFORE = 12
const LENGTH = 26
const DIGIT = '[0-9a-hjkmnp-tv-z]'

/** Prefixes of the IDs of records without a project, which copies share. */
const SHARED = ['user', 'pol', 'oac', 'ogr']

/** Patterns of the parts of an ID before and after a mark. */
const partsAround = ([{ length }]: readonly string[], before: number) => ({
  start: `_${DIGIT}{${before}}`,
  length,
  end: `${DIGIT}{${LENGTH - before - length}}\\M`,
})

/** Returns the ID that an ID has in the copies of a mark; the same one for records that copies share. */
export function copiedId(id: string, mark: string, before = BEFORE): string {
  const at = id.length - LENGTH + before
  return SHARED.includes(id.slice(0, -LENGTH - 1)) ? id : id.slice(0, at) + mark + id.slice(at + mark.length)
}

const COST = `('x' || left(md5(mark), 7))::bit(28)::int / 1e9`
/** Time between a row and its copy. */
const DELAY = `('x' || left(md5(mark || t::text), 4))::bit(16)::int * interval '1 ms'`
/** One of the first two users. */
const USER = '(select id from users order by id offset right(mark, 1)::int % 3 % 2 limit 1)'

/** Values of copies in columns that are unique without an ID, or whose sums tests compare. */
const VALUES: Record<string, string> = {
  project_keys: `'key_hash', sha256(convert_to(mark || t.id, 'UTF8'))`,
  usage_events: `'idempotency_key', mark || t.idempotency_key, 'cost_usd', ${COST}`,
  folded_usage_rollups: `'cost_usd', case t.component when '' then ${COST} else t.cost_usd end`,
  orchestration_node_executions: `'started_at', t.created_at + ${DELAY} + right(mark, 1)::int * interval '7 ms',
    'deliveries', 1, 'attempt', 1, 'parked', false`,
  // Pages of these are cut.
  cases: `'description', case substr(mark, 3, 1) when '3' then repeat('text ', 500000) end`,
  feedback: `'score', right(mark, 1)::int % 5 / 4.0, 'labels', json_build_array('good', 'label ' || right(mark, 1))`,
  sessions: `'control', 'operator', 'assigned_to', ${USER}`,
}

type Table = { name: string; columns: string; deferred: boolean; dated: boolean; owned: boolean }

const TABLES = `
  select table_name as name, bool_or(column_name = 'created_at') as dated, bool_or(column_name = 'project_id') as owned,
    exists (select from pg_constraint where conrelid = quote_ident(table_name)::regclass and condeferrable
      and contype in ('p', 'u')) as deferred,
    string_agg(quote_ident(column_name), ', ' order by ordinal_position) as columns
  from information_schema.columns join information_schema.tables using (table_schema, table_name)
  where table_schema = 'public' and table_type = 'BASE TABLE' and is_generated = 'NEVER'
    and not (select relispartition from pg_class where oid = format('%I.%I', table_schema, table_name)::regclass)
    and table_name not in ('migrations', 'cells', 'project_cells', 'cell_moves')
  group by table_name order by table_name`

/** Runs a statement for each table, without foreign keys and triggers. */
async function forTables(url: string, statement: (table: Table) => string): Promise<void> {
  const client = new DatabaseClient({ connectionString: url })
  await client.connect()
  try {
    await client.query('set session_replication_role = replica')
    const { rows } = await client.query(TABLES)
    for (const table of rows as Table[]) await client.query(statement(table))
  } finally {
    await client.end()
  }
}

/**
 * Adds copies of the rows of all projects, as rows of other projects: with a mark in their IDs and after each canary, and at other
 * times, so that copies of different marks follow each other in no order.
 */
export function copyProjects(url: string, marks: readonly string[], before = BEFORE): Promise<void> {
  const { start, length, end } = partsAround(marks, before)
  const marked = `(?<!\\m(?:${SHARED.join('|')}))(${start})${DIGIT}{${length}}(${end})`
  return forTables(url, ({ name, columns, deferred, dated, owned }) => {
    const text = `regexp_replace(row_to_json(t)::text, '${marked}', '\\1' || mark || '\\2', 'g')`
    const row = `replace(${text}, '${CANARY}', '${CANARY}' || mark)::json`
    const populated = `json_populate_record(null::${name}, ${row})`
    const others = [
      ...(dated ? [`'created_at', t.created_at + ${DELAY}`] : []),
      ...(VALUES[name] ? [VALUES[name]] : []),
    ]
    const copy = `json_populate_record(${populated}, json_build_object(${others.join(', ')}))`
    return `
      insert into ${name} (${columns}) overriding system value
      select ${columns} from (
        select (copy).* from (
          select ${copy} as copy from ${name} t cross join unnest('{${marks.join(',')}}'::text[]) mark
          where ${owned ? 't.project_id is not null and' : ''} row_to_json(t)::text ~ '${marked}' offset 0) made) copies
      ${deferred ? '' : 'on conflict do nothing'}`
  })
}

/** Tables of which each cell has all rows. */
const COPIED = ['users', 'policies', 'policy_versions', 'user_policies']

/** Moves the copies of some marks to the schema of a cell. */
export async function moveCopies(
  url: string,
  schema: string,
  marks: readonly string[],
  before = BEFORE,
): Promise<void> {
  const { start, end } = partsAround(marks, before)
  const moved = `row_to_json(t)::text ~ '${start}(?:${marks.join('|')})${end}'`
  await forTables(
    url,
    ({ name, columns }) => `
      insert into ${schema}.${name} (${columns}) overriding system value
      select ${columns} from ${name} t ${COPIED.includes(name) ? 'on conflict do nothing' : `where ${moved}`};
      ${COPIED.includes(name) ? '' : `delete from ${name} t where ${moved}`}`,
  )
}
