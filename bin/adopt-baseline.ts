#!/usr/bin/env node
/**
 * Moves a database of the last release before the baseline to the files of sql/, while web and worker are stopped:
 * changes its tables, replaces its functions and triggers, moves messages of renamed queues, and
 * records the files as applied. One transaction. `npm run adopt-baseline [data directory]`.
 */
import { readFileSync } from 'node:fs'
import path from 'node:path'
import type pg from 'pg'
import { z } from 'zod'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { loadModules } from '#core/modules/module.ts'
import { MIGRATION_LOCK, migrationNames } from '#core/queues/migrate.ts'
import { createQueuesInDatabase, deadLetterQueue, queues } from '#core/queues/queue.ts'
import { modules } from '#modules.ts'
import { DATA_DIRECTORY, withConfig } from '#operator/environment.ts'
import { describeError } from '#operator/output.ts'

/** The last migration before the baseline. */
const LAST_MIGRATION = '0241_rule_firings'

/** Functions that sql/ no longer has. */
const REMOVED_FUNCTIONS = [
  'audit_entries_append_only',
  'audit_seals_append_only',
  'delivery_envelope',
  'hold_agent_of_turn',
  'refuse_other_scope',
  'refuse_usage_change',
  'usage_shard',
]

/** Earlier names of queues. */
const RENAMED_QUEUES: Record<string, string> = {
  conversation: 'conversation.process',
  'embeddings.missing': 'embedding.fill_missing',
  'embeddings.reindex': 'embedding.reindex',
  'eval-run': 'eval.complete_run',
  file_blob_delete: 'storage.delete_bytes',
  file_blob_staged: 'storage.delete_staged',
  file_blob_sweep: 'storage.sweep',
  'generation-run': 'turn.execute',
  'generation-sweep': 'turn.sweep',
  'ingestion.document': 'ingestion.process',
  'memory-embed': 'memory.embed',
  'memory-rule': 'memory_rule.fire',
  'orchestration-below': 'run.control_descendants',
  'orchestration-project': 'run.wake_project',
  'orchestration-removal': 'run.remove',
  'orchestration-run': 'run.advance',
  'orchestration-told': 'run.wake',
  'orchestration.attempt': 'node.execute',
  'orchestration.sweep': 'run.sweep',
  'playbook.event': 'execution.match_event',
  'playbook.event-came': 'execution.complete_event_wait',
  'playbook.export': 'export.build',
  'playbook.overdue': 'execution.mark_overdue',
  'session-expiry': 'session.expire',
  'storage.delete': 'storage.delete_project',
  'task-project': 'task.release_project',
  'task-settle': 'task.settle',
  'trace-write': 'trace.flush',
  'usage.thresholds': 'usage.check_thresholds',
  'usage.thresholds.rearm': 'usage.rearm_thresholds',
  'vector.index': 'vector.build_index',
}

const sqlFile = (...names: string[]): string => readFileSync(path.join(import.meta.dirname, ...names), 'utf8')

/** Statements of sql/ that create functions and triggers, or drop triggers, in order. */
const baselineStatements = (): string[] =>
  migrationNames().flatMap(
    name =>
      sqlFile('../sql', `${name}.sql`).match(
        /^(create (function|procedure|(constraint )?trigger)|drop trigger|call count_table)\b[^;]*?(\$\$[\s\S]*?\$\$;|;)/gm,
      ) ?? [],
  )

async function replaceFunctions(client: pg.Client): Promise<void> {
  const statements = baselineStatements()
  const names = statements.flatMap(statement => /^create (?:function|procedure) (\w+)/.exec(statement)?.[1] ?? [])
  const { rows } = await client.query(
    `select oid::regprocedure as routine from pg_proc where pronamespace = current_schema()::regnamespace and proname = any($1)`,
    [[...names, ...REMOVED_FUNCTIONS]],
  )
  // Drops their triggers.
  for (const { routine } of rows) await client.query(`drop routine if exists ${routine} cascade`)
  // count_table counts the existing rows.
  await client.query('truncate row_counts')
  for (const statement of statements) await client.query(statement)
}

async function moveMessages(client: pg.Client): Promise<void> {
  const withDeadLetters = (names: string[]) => names.flatMap(name => [name, deadLetterQueue(name)])
  const renames = `select * from unnest($1::text[], $2::text[]) as r (old, new)`
  const values = [Object.keys(RENAMED_QUEUES), Object.values(RENAMED_QUEUES)].map(withDeadLetters)
  // A mailbox has one waiting and one active message per key.
  await client.query(
    `delete from pgboss.job j using (${renames}) r
     where j.name = r.old and j.state <= 'active' and j.policy = 'stately' and exists (
       select from pgboss.job k where k.name = r.new and k.state = j.state
         and coalesce(k.singleton_key, '') = coalesce(j.singleton_key, ''))`,
    values,
  )
  await client.query(
    `update pgboss.job j set name = r.new, dead_letter = q.dead_letter, policy = q.policy,
       source_name = coalesce((select s.new from (${renames}) s where s.old = j.source_name), j.source_name)
     from (${renames}) r join pgboss.queue q on q.name = r.new where j.name = r.old`,
    values,
  )
  // Wake-ups in an earlier form; the sweeps send them again.
  const work = queues.all().filter(({ message }) => message instanceof z.ZodObject && 'work_id' in message.shape)
  await client.query(`delete from pgboss.job where name = any($1) and state <= 'active' and not data ? 'work_id'`, [
    work.map(({ name }) => name),
  ])
  const declared = withDeadLetters(queues.all().map(({ name }) => name))
  await client.query('delete from pgboss.job where name <> all($1)', [declared])
  await client.query('delete from pgboss.queue where name <> all($1)', [declared])
}

/** @throws Error if the database is neither of the last release nor already moved */
async function adoptBaseline(databaseUrl: string): Promise<string> {
  const client = new DatabaseClient({ connectionString: databaseUrl, application_name: 'muster adopt-baseline' })
  await client.connect()
  try {
    await client.query(`select pg_advisory_lock(${MIGRATION_LOCK})`)
    const { rows } = await client.query('select name from migrations order by id desc limit 1')
    const last: string | undefined = rows[0]?.name
    if (last && migrationNames().includes(last)) return 'the database has the baseline already'
    if (last !== LAST_MIGRATION) throw new Error(`the last migration is ${last ?? 'missing'}, not ${LAST_MIGRATION}`)
    await createQueuesInDatabase(databaseUrl)
    await client.query('begin')
    await client.query(sqlFile('adopt-baseline.sql'))
    await replaceFunctions(client)
    await moveMessages(client)
    await client.query('delete from migrations')
    await client.query('insert into migrations (name, run_on) select unnest($1::text[]), now()', [migrationNames()])
    await client.query('commit')
    return 'the database has the baseline'
  } finally {
    await client.end()
  }
}

loadModules(modules)
try {
  console.log(await withConfig(process.argv[2] ?? DATA_DIRECTORY, config => adoptBaseline(config.DATABASE_LISTEN_URL)))
} catch (error) {
  console.error(`the baseline was not adopted: ${describeError(error)}`)
  process.exitCode = 1
}
