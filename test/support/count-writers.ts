import pg from 'pg'

/**
 * Random writes to the tables whose rows are counted, until it is killed: creates, deletes, bulk deletes, cascades and
 * rollbacks, in transactions of one to four writes. Prints a line for every ten writes.
 * Usage: node count-writers.ts <database url> <connections>
 */
const [databaseUrl, connections] = process.argv.slice(2)
/** Writers that delete what others do meet in deadlocks; a second to notice each would be most of the time. */
const OPTIONS = '-c deadlock_timeout=20ms'

const pick = <T>(values: readonly T[]): T => values[Math.floor(Math.random() * values.length)]
const PROJECTS = ['proj_0', 'proj_1', 'proj_2', 'proj_3']
const id = () => crypto.randomUUID()

/** Some rows of a table that no other transaction deletes. */
const some = (table: string, limit: string): string =>
  `(select id from ${table} where project_id = $1 limit ${limit} for update skip locked)`

/** One write to a project; its parameters are the project and an id. Deletes take none, one or many rows. */
const WRITES = [
  `insert into actors (id, project_id, name) values ($2, $1, 'one')`,
  `insert into actors (id, project_id, name) select $2 || n, case when n % 2 = 0 then $1 else 'proj_0' end, 'many' from generate_series(1, 20) n`,
  `insert into actors (id, project_id, name) values ('twice', $1, $2) on conflict do nothing`,
  `update actors set name = $2 where project_id = $1 and id in ${some('actors', '5')}`,
  `with gone as (delete from actors where id in ${some('actors', '3')} returning 1)
   insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at)
   select $2 || n, $1, 'actors.deleted', 'actor', 'x', '{}', now() from generate_series(1, 3) n`,
  `delete from actors where $2 <> '' and id in ${some('actors', '100')}`,
  `with p as (insert into ai_providers (id, project_id, name, provider, default_model) values ($2, $1, 'p', 'openai', 'm') returning id),
   a as (insert into agents (id, project_id, ai_provider_id) select $2, $1, id from p returning id),
   t as (insert into traces (id, project_id, agent_id) select $2, $1, id from a returning id)
   insert into generations (id, project_id, agent_id, trace_id, created_at, updated_at, authority)
   select $2 || n, $1, $2, $2, now(), now(), '{}' from t, generate_series(1, 5) n`,
  `delete from generations where $2 <> '' and id in ${some('generations', '2')}`,
  `delete from agents where $2 <> '' and id in ${some('agents', '3')}`,
  `delete from events where $2 <> '' and id in ${some('events', '50')}`,
  `with w as (insert into webhooks (id, project_id, name, url, events, sealed_secret)
     values ($2, $1, 'w', 'http://x', '{}', '') returning id)
   insert into webhook_deliveries (id, webhook_id, project_id, event_id, event_type)
   select $2 || n, w.id, $1, $2 || n, 'x' from w, generate_series(1, 10) n`,
  `delete from webhook_deliveries where $2 <> '' and id in ${some('webhook_deliveries', '4')}`,
  `delete from webhooks where $2 <> '' and id in ${some('webhooks', '2')}`,
  `insert into guardrail_evaluations (id, project_id, guardrail_id, scope, class, decision, context_source, context_snapshot)
   select $2 || n, $1, 'g', 'tool', 'A', 'execute', 'none', '{}' from generate_series(1, 4) n`,
  `delete from guardrail_evaluations where $2 <> '' and id in ${some('guardrail_evaluations', '3')}`,
  `insert into audit_entries (id, project_id, action, status, created_at)
   select $2 || n, nullif($1, 'proj_0'), 'x', 200, now() from generate_series(1, 2) n`,
  `insert into decisions (id, project_id, asked) select $2 || n, $1, '[]' from generate_series(1, 4) n`,
  `delete from decisions where $2 <> '' and id in ${some('decisions', '3')}`,
  `with o as (insert into orchestrations (id, project_id, name, nodes, edges) values ($2, $1, 'o', '[]', '[]') returning id)
   insert into orchestration_runs (id, project_id, orchestration_id, orchestration_version, root_id, authority, permission)
   select $2 || n, $1, o.id, 1, $2 || n, '{}', '{}' from o, generate_series(1, 4) n`,
  `delete from orchestration_runs where $2 <> '' and id in ${some('orchestration_runs', '3')}`,
  `delete from orchestrations where $2 <> '' and id in ${some('orchestrations', '2')}`,
  `with c as (insert into case_numbers as n (project_id, last) values ($1, 3) on conflict (project_id)
     do update set last = n.last + 3 returning last)
   insert into cases (id, project_id, number, title) select $2 || n, $1, last - n, 'c' from c, generate_series(0, 2) n`,
  `with c as (select id from cases where project_id = $1 limit 1)
   insert into playbook_exports (id, project_id, case_id, subject_type, subject_id, formats, requested_by)
     select $2 || n, $1, c.id, 'case', c.id, '{json}', '{}' from c, generate_series(1, 3) n`,
  `delete from playbook_exports where $2 <> '' and id in ${some('playbook_exports', '2')}`,
  `delete from cases where $2 <> '' and id in ${some('cases', '3')}`,
  `with w as (insert into workflows (id, project_id, name, states, transitions) values ($2, $1, $2, '[]', '[]') returning id)
   insert into tasks (id, project_id, workflow_id, workflow_version, title, state, status, payload, automation_chain_depth,
     entered_state_at, revision, entry_seq, authority, created_at, updated_at)
   select $2 || n, $1, w.id, 1, 't', 's', 'open', '{}', 0, now(), 1, 1, '{}', now(), now() from w, generate_series(1, 4) n`,
  `update tasks set state = 's2' where $2 <> '' and id in ${some('tasks', '3')}`,
  `delete from tasks where $2 <> '' and id in ${some('tasks', '3')}`,
  `delete from workflows where $2 <> '' and id in ${some('workflows', '2')}`,
  `delete from audit_entries where $2 <> '' and id in ${some('audit_entries', '3')}`,
  `insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, components)
   select $2 || n, $1, $2 || n, 'tool_execution', 'p', 'm', '[]' from generate_series(1, 4) n`,
  `delete from usage_events where $2 <> '' and id in ${some('usage_events', '3')}`,
  `select fold_usage($1, 5) where $2 <> ''`,
]
const DELETE_PROJECT = `delete from projects where id = $1 and $2 <> ''`
const MAKE_PROJECT = `insert into projects (id, name) values ($1, $2) on conflict do nothing`

async function transaction(client: pg.Client): Promise<number> {
  const writes = 1 + Math.floor(Math.random() * 4)
  await client.query(Math.random() < 0.1 ? 'begin isolation level repeatable read' : 'begin')
  await client.query(`set local muster.audit_retention = 'on'`)
  for (let n = 0; n < writes; n++) {
    const undone = Math.random() < 0.2
    if (undone) await client.query('savepoint s')
    const write = Math.random() < 0.02 ? DELETE_PROJECT : Math.random() < 0.1 ? MAKE_PROJECT : pick(WRITES)
    await client.query(write, [pick(PROJECTS), id()])
    if (undone) await client.query('rollback to savepoint s')
  }
  await client.query(Math.random() < 0.15 ? 'rollback' : 'commit')
  return writes
}

/**
 * A project that is gone, a deadlock of two who delete, a snapshot that is too old, or too old for a delete of a
 * project or webhook, a connection that was ended.
 */
const EXPECTED = ['23503', '40P01', '40001', '25000', '57P01']

let done = 0
async function write(): Promise<never> {
  for (;;) {
    const client = new pg.Client({ connectionString: databaseUrl, application_name: 'count writer', options: OPTIONS })
    let lost = false
    client.on('error', () => {
      lost = true
    })
    await client.connect().catch(() => {
      lost = true
    })
    while (!lost) {
      try {
        const changed = await transaction(client)
        const before = done
        done += changed
        if (Math.floor(before / 10) < Math.floor(done / 10)) console.log('ten')
      } catch (error) {
        // Other errors are of the connection, which the rollback finds lost.
        if (error instanceof pg.DatabaseError && !EXPECTED.includes(error.code as string)) {
          console.error(error.code, error.message)
          process.exit(1)
        }
        await client.query('rollback').catch(() => {
          lost = true
        })
      }
    }
    await client.end().catch(() => {})
  }
}

await Promise.all(Array.from({ length: Number(connections) }, write))
