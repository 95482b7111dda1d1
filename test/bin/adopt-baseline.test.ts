import assert from 'node:assert/strict'
import fs from 'node:fs'
import pg from 'pg'
import { migrationNames } from '#core/queues/migrate.ts'
import { run } from '../support/commands.ts'
import { testEnvironment } from '../support/environment.ts'
import { cloneTemplate } from '../support/postgres.ts'

describe('adopt-baseline', function () {
  this.timeout(60_000)
  let database: Awaited<ReturnType<typeof cloneTemplate>>
  let client: pg.Client
  before(async () => {
    database = await cloneTemplate()
    client = new pg.Client({ connectionString: database.url })
    await client.connect()
  })
  after(async () => {
    await client.end()
    await database.drop()
  })

  const query = async (text: string, values: unknown[] = []) => (await client.query(text, values)).rows
  const adopt = () => run('bin/adopt-baseline.ts', [], testEnvironment(database.url))
  const recorded = async () => (await query('select name from migrations order by id')).map(({ name }) => name)
  const record = async (names: string[]) => {
    await query('delete from migrations')
    await query('insert into migrations (name, run_on) select unnest($1::text[]), now()', [names])
  }
  /** Functions that migrations after the baseline replace, and that a database with only the baseline has in its form. */
  const replacedLater = migrationNames()
    .filter(name => name > '0012')
    .flatMap(name => [
      ...fs.readFileSync(`sql/${name}.sql`, 'utf8').matchAll(/create or replace (?:function|procedure) (\w+)/g),
    ])
    .map(([, name]) => name)
  const catalogue = () =>
    query(`
      select pg_get_functiondef(oid) as definition from pg_proc
      where pronamespace = 'public'::regnamespace and proname <> all (array['${replacedLater.join("', '")}'])
      union all
      select pg_get_triggerdef(oid) from pg_trigger where not tgisinternal and tgrelid::regclass::text !~ '[.]'
      order by 1`)

  const columns = () =>
    query(`
      select table_name, column_name, data_type, is_nullable, column_default
      from information_schema.columns where table_schema = 'public' order by 1, 2`)
  /** Columns of the last migration before the baseline. */
  const restoreColumns = () =>
    query(`
      alter table ingestion_attempts add column holder text, add column heartbeat_at timestamptz(3);
      alter table trigger_firings add column holder text, add column heartbeat_at timestamptz(3);
      alter table task_dispatches add column holder text, add column heartbeat_at timestamptz(3),
        add column look_at timestamptz(3);
      alter table eval_results add column held_until timestamptz(3), drop column due_at, drop column losses,
        drop column failures`)

  it('refuses another state and changes nothing', async () => {
    for (const names of [[], ['0230_formations', '0240_work']]) {
      await record(names)
      const { code, stderr } = await adopt()
      assert.equal(code, 1)
      assert.match(stderr, /the last migration is (missing|0240_work), not 0241_rule_firings/)
      assert.deepEqual(await recorded(), names)
    }
  })

  it('changes tables, replaces functions and triggers, counts rows, moves messages and records the files', async () => {
    await record(['0240_work', '0241_rule_firings'])
    await query(`insert into projects (id, name) values ('proj_1', 'p')`)
    await query(`insert into actors (id, project_id, name) values ('actor_1', 'proj_1', 'a')`)
    const expected = [await columns(), await catalogue()]
    await restoreColumns()
    await query('drop function count_rows cascade')
    await query(`create function usage_shard() returns smallint language sql return 0`)
    await query(`insert into actors (id, project_id, name) values ('actor_2', 'proj_1', 'a')`)
    await query(`
      insert into pgboss.job (name, data, singleton_key, policy) values
        ('eval-run', '{"run_id": "a"}', 'a', 'stately'), ('eval-run', '{"run_id": "b"}', 'b', 'stately'),
        ('eval.complete_run', '{"run_id": "a"}', 'a', 'stately'), ('eval-run.dead', '{"run_id": "c"}', null, 'standard'),
        ('memory-rule', '{"firing_id": "a"}', 'a', 'stately'), ('decision.sweep', '{}', null, 'standard')`)
    const { code, stdout, stderr } = await adopt()
    assert.deepEqual([code, stdout], [0, 'the database has the baseline\n'], stderr)
    assert.deepEqual([await columns(), await catalogue()], expected)
    assert.deepEqual(await query(`select scope, table_name, count::int from row_counts`), [
      { scope: 'proj_1', table_name: 'actors', count: 2 },
    ])
    assert.deepEqual(await query(`select name, data, dead_letter from pgboss.job order by data ->> 'run_id'`), [
      { name: 'eval.complete_run', data: { run_id: 'a' }, dead_letter: null },
      { name: 'eval.complete_run', data: { run_id: 'b' }, dead_letter: 'eval.complete_run.dead' },
      { name: 'eval.complete_run.dead', data: { run_id: 'c' }, dead_letter: null },
    ])
    assert.deepEqual(await recorded(), migrationNames())
    const again = await adopt()
    assert.deepEqual([again.code, again.stdout], [0, 'the database has the baseline already\n'])
  })
})
