import assert from 'node:assert/strict'
import pg from 'pg'
import { z } from 'zod'
import { usageOfRun, usageOfRuns } from '#automation/orchestrations/runs/reads/usage.ts'
import { rebuildSums, sumsMatchEvents } from '#control/usage/rebuild.ts'
import { rollUpUsage } from '#control/usage/roll-up.ts'
import { usedByRun } from '#control/usage/sums.ts'
import { TOKEN_PART_NAMES, wholeOf } from '#control/usage/usage-draft.ts'
import { inTransaction, type Transaction } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'
import { foldUsage, insertUsage, tokenUse } from '../support/usage.ts'
import { set, startRunApp } from './fixtures.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const READERS = 3
const WRITERS = 5
const FOLDERS = 3
/** Reads during writes, folds and their ends. */
const READS = rounds('RUN_USAGE_READS', 60, 5000)

const FIGURES = [
  'events',
  'tokens',
  'cost_usd',
  'metered',
  'priced',
  'tool_calls',
  'input_tokens',
  'cached_tokens',
  'cache_write_tokens',
  'output_tokens',
  'reasoning_tokens',
]
const sums = FIGURES.map(name => `coalesce(sum(${name}), 0)::float as ${name}`).join(', ')
/** Usage of the runs of a project, and the same by their events, in one snapshot. */
const SNAPSHOT = `
  select to_json(kept) as kept, to_json(counted) as counted
  from (select ${sums} from orchestration_runs r cross join lateral run_usage(r.id) u where r.project_id = $1) kept,
    (select ${sums} from (
       select q.* from usage_events e cross join lateral usage_figures(e) q
       where e.project_id = $1 and e.orchestration_run_id in (select id from orchestration_runs)) u) counted`

describe('usage of runs', function () {
  this.timeout(120_000)
  const app = forSuite(() => startRunApp({ together: true }))
  const clients: pg.Client[] = []
  const connected = async (): Promise<pg.Client> => {
    const client = new pg.Client({
      connectionString: app.databaseUrlOf(app.projectId),
      application_name: 'run usage test',
    })
    client.on('error', () => {})
    await client.connect()
    clients.push(client)
    return client
  }
  afterEach(() => Promise.all(clients.splice(0).map(client => client.end().catch(() => {}))))

  /** A project with runs of an orchestration; those with a parent are nested. */
  async function makeRuns(count: number, parent: string | null = null): Promise<{ id: string; runs: string[] }> {
    const { id } = await app.project()
    const made = await app.rows(
      `with o as (insert into orchestrations (id, project_id, name, nodes, edges) values ('o ' || $1, $1, 'o', '[]', '[]') returning id)
       insert into orchestration_runs (id, project_id, orchestration_id, orchestration_version, root_id, parent_id, authority, permission)
       select $1 || ' run ' || n, $1, o.id, 1, coalesce($3, $1 || ' run ' || n), $3, '{}', '{}' from o, generate_series(1, $2::int) n returning id`,
      [id, count, parent],
    )
    return { id, runs: made.map(({ id }) => id) }
  }
  const used = (runId: string, fields: object = {}) => ({
    ...tokenUse({ cost: 0.5 }),
    orchestration_run_id: runId,
    ...fields,
  })
  const fold = (project: string) => foldUsage(app, project)
  const snapshot = async (project: string) => (await app.rows(SNAPSHOT, [project]))[0]
  const rowOf = async (runId: string) =>
    (await app.rows('select * from folded_run_usage where run_id = $1', [runId]))[0]
  const span = (project_id: string) => ({
    project_id,
    from: new Date(Date.now() - DAY_MS),
    to: new Date(Date.now() + DAY_MS),
  })
  const insert = (client: pg.Client, project: string, runId: string, id: string) =>
    client.query(
      `insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, orchestration_run_id, tokens, cost_usd, components)
       values ($1, $2, $1, 'llm_tokens', 'p', 'm', $3, 7, 0.01, '[{"component":"input_tokens","unit":"token","quantity":7,"billable":true}]')`,
      [id, project, runId],
    )

  it('have every component of an event, with its parts', async () => {
    const { id, runs } = await makeRuns(1)
    const names = ['input_tokens', 'cached_tokens', 'cache_write_tokens', 'output_tokens', 'reasoning_tokens']
    const all = [...names, ...TOKEN_PART_NAMES]
    const components = all.map((component, n) => ({ component, unit: 'token', quantity: 10 ** n, billable: true }))
    const wholes = Object.fromEntries(
      names.map(name => [name, all.reduce((sum, part, n) => (wholeOf(part) === name ? sum + 10 ** n : sum), 0)]),
    )
    await insertUsage(app, id, [used(runs[0], { components })])
    for (const isFolded of [false, true]) {
      if (isFolded) await fold(id)
      assert.equal((await rowOf(runs[0])) !== undefined, isFolded)
      const usage = (await usageOfRun(app.pool, { id: runs[0] })).usage_own
      assert.deepEqual(
        [
          usage?.uncached_input_tokens,
          usage?.cached_tokens,
          usage?.cache_write_tokens,
          usage?.output_tokens,
          usage?.reasoning_tokens,
        ],
        names.map(name => wholes[name]),
      )
    }
  })

  it('are the same before and after folds, with nested runs and without, to callers and guardrails', async () => {
    const { run } = app
    const { id: runId, project_id } = await run([{ id: 'a', type: 'agent', agent_id: app.agentId }, set('x')])
    await fold(project_id)
    const before = await app.read(runId)
    const more = { input: 100, output: 50 }
    await insertUsage(app, project_id, [
      used(runId),
      used(runId, { ...tokenUse({ cost: null, ...more }), source: 'embedding' }),
      used(runId, { meter_type: 'tool_execution', tokens: 0, cost_usd: null, components: [] }),
    ])
    const read = async () => {
      const { usage, usage_own } = await app.read(runId)
      return [usage, usage_own, await usedByRun(app.pool, project_id, runId)]
    }
    const unfolded = await read()
    assert.equal(unfolded[0].input_tokens, before.usage.input_tokens + 200)
    assert.equal(unfolded[2].tool_calls, 1)
    await fold(project_id)
    assert.deepEqual(await read(), unfolded)
    await insertUsage(app, project_id, [used(runId)])
    assert.equal((await read())[0].input_tokens, unfolded[0].input_tokens + 100)
  })

  it('read no event that is folded, however many runs are listed', async () => {
    const { id, runs } = await makeRuns(100)
    const nested = await app.rows(
      `insert into orchestration_runs (id, project_id, orchestration_id, orchestration_version, root_id, parent_id, authority, permission)
       select id || ' nested', project_id, orchestration_id, 1, id, id, '{}', '{}' from orchestration_runs where project_id = $1 returning id`,
      [id],
    )
    const each = [...runs, ...nested.map(row => row.id)]
    for (let n = 0; n < 10; n++)
      await insertUsage(
        app,
        id,
        each.map(runId => used(runId)),
      )
    /** Events that the connection has read. */
    const countRead = (tx: Transaction): Promise<number> =>
      tx.oneFirst(sql.type(z.object({ count: z.int() }))`
        select (pg_stat_get_xact_tuples_fetched('usage_events'::regclass) + pg_stat_get_xact_tuples_returned('usage_events'::regclass))::int as count`)
    /** Usage of the runs, and the number of events that were read for it. */
    const read = () =>
      inTransaction(app.services.pool, async tx => {
        const before = await countRead(tx)
        const usage = await usageOfRuns(tx, runs)
        const { usage: tree, usage_own: own } = usage.get(runs[7])!
        return [usage.size, tree?.input_tokens, own?.input_tokens, (await countRead(tx)) - before]
      })
    assert.deepEqual((await read()).slice(0, 3), [100, 2000, 1000])
    assert.ok(((await read())[3] as number) >= 2000)
    await fold(id)
    assert.deepEqual(await read(), [100, 2000, 1000, 0])
    await insertUsage(app, id, [used(runs[7]), used(runs[8])])
    const [, tree, own, fetched] = await read()
    assert.deepEqual([tree, own], [2100, 1100])
    assert.ok((fetched as number) <= 4, `read ${fetched} events`)
  })

  it('of before the first fold are in the first row, and are counted from events without one', async () => {
    const { id, runs } = await makeRuns(2)
    await insertUsage(app, id, [used(runs[0]), used(runs[0]), used(runs[1])])
    await fold(id)
    // As left by a release without the table.
    await app.rows('delete from folded_run_usage where project_id = $1', [id])
    const exact = async () => {
      const { kept, counted } = await snapshot(id)
      assert.deepEqual(kept, counted)
      return kept.events
    }
    assert.equal(await exact(), 3)
    await insertUsage(app, id, [used(runs[0])])
    assert.equal(await exact(), 4)
    await fold(id)
    assert.equal(await exact(), 4)
    assert.equal(Number((await rowOf(runs[0])).events), 3)
    assert.equal(await rowOf(runs[1]), undefined)
  })

  it('include an event that commits after a later one was folded', async () => {
    const { id, runs } = await makeRuns(1)
    const late = await connected()
    await late.query('begin')
    await insert(late, id, runs[0], 'late of a run')
    await insertUsage(app, id, [used(runs[0])])
    await fold(id)
    await late.query('commit')
    for (const isFolded of [false, true]) {
      if (isFolded) await fold(id)
      const { kept, counted } = await snapshot(id)
      assert.deepEqual([kept.events, kept.tokens, kept], [2, 157, counted])
    }
  })

  it('are exact in every snapshot while folds and writers are cut off', async () => {
    const { id, runs } = await makeRuns(5)
    let isDone = false
    let written = 0
    /** Repeats work on a connection, on another one when the server has ended it. */
    const repeat = async (work: (client: pg.Client) => Promise<unknown>): Promise<void> => {
      while (!isDone) {
        const client = await connected()
        try {
          while (!isDone) await work(client)
        } catch (error) {
          if (error instanceof pg.DatabaseError && error.code !== '57P01') throw error
        }
      }
    }
    const write = async (client: pg.Client) => {
      const n = written++
      await client.query('begin')
      for (let of = 0; of <= n % 3; of++) await insert(client, id, runs[(n + of) % runs.length], `run cut ${n} ${of}`)
      await client.query(n % 5 === 0 ? 'rollback' : 'commit')
    }
    const work = Promise.all([
      ...Array.from({ length: WRITERS }, () => repeat(write)),
      ...Array.from({ length: FOLDERS }, () => repeat(client => client.query('select fold_usage($1, 20)', [id]))),
    ])
    const seen = new Set<number>()
    const readers = Array.from({ length: READERS }, async () => {
      const client = await connected()
      for (let n = 0; n < READS; n++) {
        const { kept, counted } = (await client.query(SNAPSHOT, [id])).rows[0]
        assert.deepEqual(
          { ...kept, cost_usd: kept.cost_usd.toFixed(6) },
          { ...counted, cost_usd: counted.cost_usd.toFixed(6) },
        )
        seen.add(kept.events)
        if (n % 5 === 0)
          await app.rows(
            `select pg_terminate_backend(pid) from (select pid from pg_stat_activity where datname = current_database()
               and application_name = 'run usage test' and query ~ '^(select fold_usage|insert into usage_events)' order by random() limit 2) p`,
          )
      }
    })
    await Promise.all(readers).finally(() => {
      isDone = true
    })
    await work
    assert.ok(seen.size > 2, 'the readers saw different snapshots')
    await fold(id)
    assert.ok(await sumsMatchEvents(app.pool, span(id)))
    const [{ folded }] = await app.rows(
      'select sum(events)::int as folded from folded_run_usage where project_id = $1',
      [id],
    )
    assert.equal(folded, (await snapshot(id)).counted.events)
  })

  it('are deleted with the run, while others write and fold', async () => {
    const { id, runs } = await makeRuns(20)
    const [folder, writer] = await Promise.all([connected(), connected()])
    let next = 0
    let isDone = false
    const others = [
      (async () => {
        while (!isDone) await folder.query('select fold_usage($1, 5)', [id])
      })(),
      (async () => {
        for (let n = 0; !isDone; n++) await insert(writer, id, runs[Math.min(next, runs.length - 1)], `deleted ${n}`)
      })(),
    ]
    for (; next < runs.length; next++) {
      await insertUsage(app, id, [used(runs[next])])
      await app.rows('delete from orchestration_runs where id = $1', [runs[next]])
    }
    isDone = true
    await Promise.all(others)
    await fold(id)
    assert.deepEqual(await app.rows('select from folded_run_usage where project_id = $1', [id]), [])
    assert.ok((await app.rows('select from usage_events where project_id = $1', [id])).length >= runs.length)
  })

  it('make no row of a run whose deletion is about to commit', async () => {
    const { id, runs } = await makeRuns(2)
    await insertUsage(app, id, [used(runs[0]), used(runs[1])])
    const [deleting, folder] = await Promise.all([connected(), connected()])
    await folder.query(`set statement_timeout = '5s'`)
    await deleting.query('begin')
    await deleting.query('delete from orchestration_runs where id = $1', [runs[0]])
    const folded = async () => (await folder.query('select fold_usage($1, 10) as folded', [id])).rows[0].folded
    assert.equal(await folded(), null)
    await deleting.query('commit')
    assert.equal(await folded(), 2)
    assert.deepEqual([await rowOf(runs[0]), Number((await rowOf(runs[1])).events)], [undefined, 1])
  })

  it('stay as they are when their events are rolled up', async () => {
    const { id, runs } = await makeRuns(1)
    const at = new Date(Math.floor((Date.now() - 90 * DAY_MS) / HOUR_MS) * HOUR_MS).toISOString()
    await insertUsage(
      app,
      id,
      Array.from({ length: 10 }, (_, n) => used(runs[0], { ...tokenUse({ cost: n % 2 ? 1 : null }), created_at: at })),
    )
    await fold(id)
    const { kept } = await snapshot(id)
    await rollUpUsage(
      { ...app.services, config: { ...app.services.config, USAGE_ROLLUP_DAYS: 60 } },
      new AbortController().signal,
    )
    assert.equal((await app.rows('select from usage_events where project_id = $1', [id])).length, 2)
    assert.deepEqual(await snapshot(id), { kept, counted: kept })
    await insertUsage(app, id, [used(runs[0])])
    await fold(id)
    assert.equal((await snapshot(id)).kept.events, 11)
  })

  it('are made again from the events by a rebuild of their day', async () => {
    const { id, runs } = await makeRuns(2)
    await insertUsage(app, id, [used(runs[0]), used(runs[1])])
    await fold(id)
    assert.ok(await sumsMatchEvents(app.pool, span(id)))
    await app.rows('update folded_run_usage set output_tokens = output_tokens + 1 where run_id = $1', [runs[0]])
    assert.ok(!(await sumsMatchEvents(app.pool, span(id))))
    await inTransaction(app.services.pool, tx => rebuildSums(tx, span(id)))
    const { kept, counted } = await snapshot(id)
    assert.deepEqual(kept, counted)
    assert.ok(await sumsMatchEvents(app.pool, span(id)))
  })
})
