import type { DatabaseClient } from '../db/pg-client.ts'
import { rowsOf } from './replication.ts'

/**
 * The rows of a project: in the tables that reach `projects` by foreign keys, and in tables that are declared here because they
 * belong to a project without one.
 */

/** A table with rows of projects. */
export type ProjectTable = {
  name: string
  /** Condition of the rows `t` of the project `$1`. */
  where: string
  /** Whether the condition reads its rows, so that they are deleted after the rows of the tables that use them. */
  isParent: boolean
}

/** Table of the messages. */
const MESSAGES = 'pgboss.job_common'

const WEBHOOKS = '(select id from webhooks where project_id = $1)'
const BLOBS = `(select location::uuid from files where project_id = $1 and storage = 'postgres')`

/** Rows of projects without a foreign key, as conditions. They are read before the rows that the conditions name. */
const DECLARED: Record<string, string> = {
  // Messages about events and about the bytes of files have no project.
  [MESSAGES]: `(t.group_id = $1 or (t.group_id = '*' and (t.data ->> 'project_id' = $1
    or t.data ->> 'event_id' in (select id from events where project_id = $1)
    or t.data ->> 'location' in (select location from files where project_id = $1))))
    and (t.state <= 'active' or t.completed_on > now() - interval '1 hour')`,
  actor_limits: 't.subject in (select id from actors where project_id = $1)',
  audit_chain_starts: 't.chain = $1',
  audit_entries: 't.project_id = $1',
  audit_seal_batches: 't.chain = $1',
  file_blob_chunks: `t.blob_id in ${BLOBS}`,
  file_blobs: `t.id in ${BLOBS}`,
  folded_run_usage: 't.project_id = $1',
  quota_counters: 't.quota_id in (select id from quotas where project_id = $1)',
  row_count_shards: `(t.scope = $1 or t.scope in ${WEBHOOKS})`,
  task_state_counts: 't.workflow_id in (select id from workflows where project_id = $1)',
  unfolded_usage: 't.project_id = $1',
}

/** Tables without rows of projects: of the deployment, of a cell, and of its processes. */
const OTHERS: ReadonlySet<string> = new Set([
  'audit_sealing',
  'audit_verifications',
  'breaking_migrations',
  'cell_moves',
  'cells',
  'embedding_spaces',
  'login_failures',
  'migrations',
  'moving_projects',
  'moving_rows',
  'oauth_clients',
  'oauth_grants',
  'oauth_keys',
  'oauth_limits',
  'oauth_objects',
  'oidc_logins',
  'open_streams',
  'policies',
  'policy_versions',
  'project_cells',
  'refused_attempts',
  'retrieval_settings',
  'user_identities',
  'user_policies',
  'users',
  'worker_heartbeats',
  'write_probe',
])

type ForeignKey = { child: string; column: string; parent: string; key: string; required: boolean }

const FOREIGN_KEYS = `
  select conrelid::regclass::text as child, quote_ident(a.attname) as "column", confrelid::regclass::text as parent,
    quote_ident(k.attname) as key, a.attnotnull and confdeltype = 'c' as required
  from pg_constraint join pg_attribute a on a.attrelid = conrelid and a.attnum = conkey[1]
  join pg_attribute k on k.attrelid = confrelid and k.attnum = confkey[1]
  where contype = 'f' and conparentid = 0 and cardinality(conkey) = 1 and connamespace = current_schema()::regnamespace
  order by 1, 2`

const TABLES = `
  select relname::text as name from pg_class c where relkind in ('r', 'p') and relnamespace = current_schema()::regnamespace
    and relname not like 'job%' and relname not in ('version', 'queue', 'schedule', 'subscription', 'bam', 'warning')
    and relname not like 'queue_stats%' and relname <> 'muster_suspect_time' and not relispartition
    and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
  order by 1`

/** Returns the tables with rows of projects, in the order in which the rows of a project are deleted. */
export async function tablesOfProject(client: DatabaseClient): Promise<ProjectTable[]> {
  const keys = (await rowsOf(client, FOREIGN_KEYS)) as ForeignKey[]
  const found = new Map<string, { where: (alias: string) => string; depth: number; isParent: boolean }>()
  found.set('projects', { where: alias => `${alias}.id = $1`, depth: 0, isParent: true })
  const direct = keys.filter(({ parent, column }) => parent === 'projects' && column === 'project_id')
  for (const { child } of direct)
    found.set(child, { where: alias => `${alias}.project_id = $1`, depth: 1, isParent: false })
  for (let depth = 2, size = 0; size < found.size; depth++) {
    size = found.size
    for (const { child, column, parent, key, required } of keys) {
      const above = found.get(parent)
      if (!required || found.has(child) || above?.depth !== depth - 1) continue
      const alias = `p${depth}`
      found.set(child, {
        where: of => `${of}.${column} in (select ${alias}.${key} from ${parent} ${alias} where ${above.where(alias)})`,
        depth,
        isParent: false,
      })
      above.isParent = true
    }
  }
  const names = (await rowsOf(client, TABLES)).map(({ name }) => name as string)
  const unknown = names.filter(name => !found.has(name) && !(name in DECLARED) && !OTHERS.has(name))
  if (unknown.length > 0) throw new Error(`project-rows.ts does not declare whose rows are in ${unknown.join(', ')}`)
  return [
    ...Object.entries(DECLARED).map(([name, where]) => ({ name, where, isParent: false })),
    ...[...found]
      .sort(([, a], [, b]) => b.depth - a.depth)
      .map(([name, { where, isParent }]) => ({ name, where: where('t'), isParent })),
  ]
}

/** Holder of the leases of a project that was moved, of which no process has the name. */
export const MOVED_HOLDER = 'moved'

/** Values of columns in the cell that gets a row `x.r`; null leaves a column to its default. */
const VALUES: Record<string, Record<string, string | null>> = {
  [MESSAGES]: {
    // As after the loss of the worker.
    state: `case (x.r).state when 'active' then 'retry' else (x.r).state end`,
    start_after: `case (x.r).state when 'active' then now() else (x.r).start_after end`,
    heartbeat_on: 'null',
    group_tier: `case (x.r).state when 'active' then null else (x.r).group_tier end`,
  },
  idempotency_keys: {
    leased_until: `case when (x.r).status is null then least((x.r).leased_until, now()) else (x.r).leased_until end`,
  },
  // Readers compare it with the transactions of their database.
  knowledge_vectors: { id: null, written_in: null },
}

/** Treatment of rows that the cell has already: copies, counts of rows written after a move, wake-ups. */
const ON_CONFLICT: Record<string, string> = {
  [MESSAGES]: 'on conflict do nothing',
  idempotency_keys: 'on conflict do nothing',
  project_key_policies: 'on conflict do nothing',
  actor_limits: 'on conflict do nothing',
  quota_counters: 'on conflict (quota_id, window_key) do update set count = c.count + excluded.count',
  row_count_shards: 'on conflict (scope, table_name, shard) do update set count = c.count + excluded.count',
  task_state_counts: 'on conflict (workflow_id, state, shard) do update set count = c.count + excluded.count',
}

/** Returns the clause by which rows are added to those that the cell has; empty if there are none. */
export const onConflictOf = (name: string): string => ON_CONFLICT[name] ?? ''

/** Whether the rows of a table are the same in both cells. */
export const isUnchanged = (name: string, columns: readonly Column[]): boolean =>
  !(name in VALUES) && !(name in ON_CONFLICT) && !columns.some(isChanged)

/** Whether each row of a table is inserted. */
export const isComplete = (name: string): boolean => !(name in ON_CONFLICT)

export type Column = { name: string; type: string; generated: boolean }

const isChanged = ({ name }: Column): boolean => name === 'holder' || name === 'space_id'

/** Returns the columns of a table, in their order. */
export const columnsOf = async (client: DatabaseClient, table: string): Promise<Column[]> =>
  rowsOf(
    client,
    `select attname::text as name, typname || ' ' || atttypmod as type, attgenerated <> '' as generated
     from pg_attribute join pg_type y on y.oid = atttypid where attrelid = '${table}'::regclass and attnum > 0 and not attisdropped order by attnum`,
  )

/**
 * Returns the statement that inserts the rows of a table, which have been staged as text for the project `$1` under the name `$2`.
 * @param spaces IDs of embedding spaces by their IDs in the source
 */
export function insertOf(table: string, columns: readonly Column[], spaces: ReadonlyMap<number, number>): string {
  const chosen = columns.flatMap(({ name, generated }) => {
    const value = generated ? null : valueIn(table, name, spaces)
    return value === null ? [] : [{ name: `"${name}"`, value }]
  })
  return `
    insert into ${table} as c (${chosen.map(({ name }) => name).join(', ')}) overriding system value
    select ${chosen.map(({ value }) => value).join(', ')} from (
      select line::${table} as r from moving_rows where project_id = $1 and table_name = $2 order by position offset 0) x
    ${onConflictOf(table)}`
}

function valueIn(table: string, column: string, spaces: ReadonlyMap<number, number>): string | null {
  const plain = `(x.r)."${column}"`
  const own = VALUES[table]?.[column]
  if (own !== undefined) return own
  if (column === 'holder') return `case when ${plain} is not null then '${MOVED_HOLDER}' end`
  if (column !== 'space_id' || spaces.size === 0) return plain
  return `case ${plain} ${[...spaces].map(([from, to]) => `when ${from} then ${to}`).join(' ')} else ${plain} end`
}
