import assert from 'node:assert/strict'
import pg from 'pg'
import { sumsMatchEvents } from '#control/usage/rebuild.ts'
import { rollUpUsage } from '#control/usage/roll-up.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { eventually, startApp } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'
import { foldUsage, insertUsage, tokenUse } from '../support/usage.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const READERS = 4
const WRITERS = 6
const FOLDERS = 4
/** Reads during writes, folds and their ends. */
const READS = rounds('USAGE_FOLD_READS', 60, 5000)

/** Sums of a project, its events and its counts, in one snapshot. */
const SNAPSHOT = `
  select (select coalesce(sum(tokens), 0)::int from usage_sums where project_id = $1 and scope = 'project') as sums,
    (select coalesce(sum(tokens), 0)::int from usage_sums where project_id = $1 and scope = 'agent') as agents,
    (select coalesce(sum(input_tokens + output_tokens), 0)::int from usage_rollups where project_id = $1) as rollups,
    (select coalesce(sum(count), 0)::int from row_counts where scope = $1 and table_name = 'usage_events') as counted,
    (select coalesce(sum(tokens), 0)::int from usage_events where project_id = $1) as tokens,
    (select count(*)::int from usage_events where project_id = $1) as events`

describe('folds of usage', function () {
  this.timeout(120_000)
  const app = forSuite(startApp)
  const clients: pg.Client[] = []
  const connected = async (project: string): Promise<pg.Client> => {
    const client = new pg.Client({ connectionString: app.databaseUrlOf(project), application_name: 'fold test' })
    client.on('error', () => {})
    await client.connect()
    clients.push(client)
    return client
  }
  afterEach(() => Promise.all(clients.splice(0).map(client => client.end().catch(() => {}))))

  const unfolded = async (project: string): Promise<number> =>
    (await app.rows('select from unfolded_usage where project_id = $1', [project])).length
  const fold = async (client: pg.Client, project: string, most = 1000): Promise<number | null> =>
    (await client.query('select fold_usage($1, $2) as folded', [project, most])).rows[0].folded
  const insert = (client: pg.Client, project: string, id: string) =>
    client.query(
      `insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, agent_id, tokens, components)
       values ($1, $2, $1, 'llm_tokens', 'p', 'm', 'agent_1', 7,
         '[{"component":"input_tokens","unit":"token","quantity":7,"billable":true}]')`,
      [id, project],
    )
  const wait = (project: string) => eventually(async () => (await unfolded(project)) === 0)

  it('leave sums, roll-ups and counts as they are', async () => {
    const { id } = await app.project()
    await insertUsage(app, id, [
      tokenUse({ cost: 0.5, agent_id: 'agent_1', actor_id: 'actor_1', cached: 20 }),
      tokenUse({ cost: null, agent_id: 'agent_1', source: 'embedding' }),
      tokenUse({ cost: null, agent_id: 'agent_2', created_at: new Date(Date.now() - 3 * HOUR_MS).toISOString() }),
      { meter_type: 'storage', provider: 'platform', model: 'gb-day', cost_usd: '2', tokens: 0, components: [] },
    ])
    const read = () =>
      Promise.all(
        [
          'select scope, ref, hour, meter_type, sum(events)::int as events, sum(tokens)::int as tokens, sum(cost_usd)::float as cost, sum(metered)::int as metered, sum(priced)::int as priced, sum(unpriced)::int as unpriced from usage_sums where project_id = $1 group by 1, 2, 3, 4 order by 1, 2, 3, 4',
          'select hour, meter_type, model, agent_id, source, component, sum(events)::int as events, sum(input_tokens)::int as input, sum(cached_tokens)::int as cached, sum(input_cost)::float as cost from usage_rollups where project_id = $1 group by 1, 2, 3, 4, 5, 6 order by 1, 2, 3, 4, 5, 6',
          `select sum(count)::int as count from row_counts where scope = $1 and table_name = 'usage_events'`,
        ].map(text => app.rows(text, [id])),
      )
    const before = await read()
    assert.equal(await unfolded(id), 4)
    await foldUsage(app, id)
    assert.equal(await unfolded(id), 0)
    assert.deepEqual(await read(), before)
    assert.equal(before[0].length, 6)
  })

  it('take many events of one commit in several folds', async () => {
    const { id } = await app.project()
    await insertUsage(
      app,
      id,
      Array.from({ length: 2300 }, () => tokenUse({ cost: null })),
    )
    const client = await connected(id)
    assert.equal(await fold(client, id), 1000)
    assert.equal(await unfolded(id), 1300)
    await foldUsage(app, id)
    const [{ tokens, sums, counted }] = await app.rows(SNAPSHOT, [id])
    assert.deepEqual([tokens, sums, counted], [2300 * 150, 2300 * 150, 2300])
  })

  it('miss no event that commits late', async () => {
    const { id } = await app.project()
    const [late, folder] = await Promise.all([connected(id), connected(id)])
    await late.query('begin')
    await insert(late, id, 'late')
    await insertUsage(app, id, [tokenUse({ cost: null }), tokenUse({ cost: null })])
    assert.equal(await fold(folder, id), 2)
    await late.query('commit')
    assert.equal((await app.rows(SNAPSHOT, [id]))[0].sums, 307)
    assert.equal(await fold(folder, id), 1)
    assert.equal((await app.rows(SNAPSHOT, [id]))[0].sums, 307)
  })

  it('of a project are made by one transaction at a time, for which no other waits', async () => {
    const { id } = await app.project()
    await insertUsage(app, id, [tokenUse({ cost: null })])
    const [one, other] = await Promise.all([connected(id), connected(id)])
    await one.query('begin')
    assert.equal(await fold(one, id), 1)
    await other.query(`set statement_timeout = '5s'`)
    assert.equal(await fold(other, id), null)
    await one.query('rollback')
    assert.equal(await fold(other, id), 1)
  })

  it('and writers that are cut off leave readers exact in every snapshot', async () => {
    const { id } = await app.project()
    let isDone = false
    let written = 0
    /** Repeats work on a connection, on another one when the server has ended it. */
    const repeat = async (work: (client: pg.Client) => Promise<unknown>): Promise<void> => {
      while (!isDone) {
        const client = await connected(id)
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
      for (let of = 0; of <= n % 3; of++) await insert(client, id, `cut ${n} ${of}`)
      await client.query(n % 5 === 0 ? 'rollback' : 'commit')
    }
    const work = Promise.all([
      ...Array.from({ length: WRITERS }, () => repeat(write)),
      ...Array.from({ length: FOLDERS }, () => repeat(client => fold(client, id, 20))),
    ])
    let different = 0
    const readers = Array.from({ length: READERS }, async () => {
      const client = await connected(id)
      let last = -1
      for (let n = 0; n < READS; n++) {
        const { sums, agents, rollups, counted, tokens, events } = (await client.query(SNAPSHOT, [id])).rows[0]
        assert.deepEqual([sums, agents, rollups, counted], [tokens, tokens, tokens, events])
        if (events !== last) different++
        last = events
        if (n % 5 === 0)
          await app.rows(
            `select pg_terminate_backend(pid) from (select pid from pg_stat_activity where datname = current_database()
               and application_name = 'fold test' and query ~ '^(select fold_usage|insert into usage_events)' order by random() limit 2) p`,
          )
      }
    })
    await Promise.all(readers).finally(() => {
      isDone = true
    })
    await work
    assert.ok(different > READERS, 'the readers saw different snapshots')
    await foldUsage(app, id)
    const span = { project_id: id, from: new Date(Date.now() - DAY_MS), to: new Date(Date.now() + DAY_MS) }
    assert.ok(await sumsMatchEvents(app.pool, span))
    const [{ folded }] = await app.rows(
      `select sum(events)::int as folded from folded_usage_sums where project_id = $1 and scope = 'project'`,
      [id],
    )
    assert.equal(folded, (await app.rows('select from usage_events where project_id = $1', [id])).length)
  })

  it('count events that were deleted before their fold as deleted', async () => {
    const { id } = await app.project()
    await insertUsage(app, id, [tokenUse({ cost: null }), tokenUse({ cost: null })])
    await app.rows('delete from usage_events where id = (select min(id) from usage_events where project_id = $1)', [id])
    const counted = async () => (await app.rows(SNAPSHOT, [id]))[0].counted
    assert.equal(await counted(), 1)
    await foldUsage(app, id)
    assert.equal(await counted(), 1)
  })

  it('leave nothing of a deleted project, while others fold and write', async () => {
    for (let n = 0; n < 10; n++) {
      const { id } = await app.project()
      const [folder, writer] = await Promise.all([connected(id), connected(id)])
      await insertUsage(
        app,
        id,
        Array.from({ length: 30 }, () => tokenUse({ cost: null })),
      )
      let isDeleted = false
      const others = [
        (async () => {
          while (!isDeleted) await fold(folder, id, 3)
        })(),
        (async () => {
          for (let of = 0; !isDeleted; of++)
            await insert(writer, id, `gone ${n} ${of}`).catch(error => assert.equal(error.code, '23503'))
        })(),
      ]
      const { status } = await app.admin.delete(`/projects/${id}?force=true`)
      isDeleted = true
      await Promise.all(others)
      assert.equal(status, 204)
      assert.equal(await unfolded(id), 0)
      for (const table of ['folded_usage_sums', 'folded_usage_rollups'])
        assert.deepEqual(await app.rows(`select from ${table} where project_id = $1`, [id]), [])
      assert.deepEqual(
        await app.rows(`select * from row_counts where scope = $1 and table_name = 'usage_events'`, [id]),
        [],
      )
    }
  })

  it('wait for no delete of their project, which waits for them, and fold the others', async () => {
    const { id } = await app.project()
    const { id: neighbour } = await app.project(undefined, id)
    for (const each of [id, neighbour]) await insertUsage(app, each, [tokenUse({ cost: null })])
    const [deleting, folder] = await Promise.all([connected(id), connected(id)])
    await folder.query(`set statement_timeout = '5s'`)
    await deleting.query('begin')
    await deleting.query('select from projects where id = $1 for update', [id])
    const { rows } = await folder.query('select fold_usage(p, 10) as folded from unnest($1::text[]) p', [
      [id, neighbour],
    ])
    assert.deepEqual(rows, [{ folded: null }, { folded: 1 }])
    await deleting.query('delete from projects where id = $1', [id])
    await deleting.query('commit')
    assert.equal(await unfolded(id), 0)
    await insertUsage(app, neighbour, [tokenUse({ cost: null })])
    await folder.query('begin')
    assert.equal(await fold(folder, neighbour), 1)
    const deleted = deleting.query('delete from projects where id = $1', [neighbour])
    await eventually(
      async () =>
        (
          await app.rows(
            `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like 'delete from projects%'`,
          )
        ).length > 0,
    )
    await folder.query('commit')
    assert.equal((await deleted).rowCount, 1)
  })

  it('are made at night by release 0.1.0, which deletes old sums too', async () => {
    const { id } = await app.project()
    const at = new Date(Date.now() - 45 * DAY_MS).toISOString()
    await insertUsage(app, id, [tokenUse({ cost: null }), tokenUse({ cost: null, created_at: at })])
    await app.rows('select fold_usage($1::timestamptz) as count', [new Date().toISOString()])
    assert.equal(await unfolded(id), 0)
    const count = async () => (await app.rows('select from usage_sums where project_id = $1', [id])).length
    assert.equal(await count(), 2)
    await app.rows(`
      delete from usage_sums where (project_id, scope, ref, hour, meter_type, shard) in (
        select project_id, scope, ref, hour, meter_type, shard from usage_sums where hour < now() - interval '40 days' order by hour limit 5000)`)
    assert.equal(await count(), 1)
  })

  it('add to the rows that several transactions of release 0.1.0 wrote', async () => {
    const { id } = await app.project()
    const client = await connected(id)
    const hour = `date_trunc('hour', now(), 'UTC')`
    for (const shard of [0, 3, -1])
      await client.query(
        `insert into folded_usage_sums values ($1, 'project', '', ${hour}, 'llm_tokens', $2, 1, 100, 0.5, 1, 1, 0)`,
        [id, shard],
      )
    await insert(client, id, 'after the upgrade')
    const sums = async () => (await app.rows(SNAPSHOT, [id]))[0].sums
    assert.equal(await sums(), 307)
    await fold(client, id)
    assert.equal(await sums(), 307)
  })

  it('that are due when a process is lost are made by a sweep of a worker', async () => {
    const { id } = await app.project()
    await insertUsage(app, id, [tokenUse({ cost: null }), tokenUse({ cost: null })])
    assert.equal(await unfolded(id), 2)
    const worker = await runWorker(app.databaseUrl, {}, ['delivery'])
    await wait(id).finally(() => worker.stop())
    assert.equal((await app.rows(SNAPSHOT, [id]))[0].sums, 300)
  })

  it('come before roll-ups, which leave a project to the next night while another transaction folds it', async () => {
    const { id } = await app.project()
    const at = new Date(Math.floor((Date.now() - 90 * DAY_MS) / HOUR_MS) * HOUR_MS).toISOString()
    const use = () =>
      insertUsage(app, id, [tokenUse({ cost: 1, created_at: at }), tokenUse({ cost: 1, created_at: at })])
    const rollUp = () =>
      rollUpUsage(
        { ...app.servicesOf(id), config: { ...app.config, USAGE_ROLLUP_DAYS: 60 } },
        new AbortController().signal,
      )
    await use()
    const folder = await connected(id)
    await folder.query('begin')
    await fold(folder, id, 1)
    await rollUp()
    assert.equal((await app.rows('select from usage_events where project_id = $1', [id])).length, 2)
    await folder.query('rollback')
    await rollUp()
    const [{ events, rollups }] = await app.rows(SNAPSHOT, [id])
    assert.deepEqual([events, rollups], [1, 300])
    assert.equal((await app.rows(SNAPSHOT, [id]))[0].counted, 1)
  })
})

describe('usage of turns', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp())

  it('is folded by the process that wrote it, without a worker of the sweep', async () => {
    for (let n = 0; n < 3; n++) {
      const { status } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
      assert.equal(status, 200)
    }
    await eventually(async () => {
      const rows = await app.rows(
        `select sum(events)::int as folded from folded_usage_sums s where project_id = $1 and scope = 'agent'
         and not exists (select from unfolded_usage u where u.project_id = s.project_id)`,
        [app.projectId],
      )
      return rows[0].folded === 3
    })
  })
})
