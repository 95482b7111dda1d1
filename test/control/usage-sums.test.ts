import assert from 'node:assert/strict'
import { describe, it } from 'mocha'
import pg from 'pg'
import { pruneSums } from '#control/usage/sums.ts'
import { sql } from '#core/db/sql.ts'
import { eventually, startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { foldUsage, insertUsage, tokenUse } from '../support/usage.ts'

const HOUR_MS = 3_600_000

describe('sums of usage', function () {
  this.timeout(60_000)
  const app = forSuite(startApp)

  const rows = async (text: string, projectId: string): Promise<any[]> => {
    const client = new pg.Client(app.databaseUrlOf(projectId))
    await client.connect()
    try {
      return (await client.query(text, [projectId])).rows
    } finally {
      await client.end()
    }
  }
  const sums = (projectId: string) =>
    rows(
      `select scope, ref, sum(events)::int as events, sum(tokens)::int as tokens, sum(cost_usd)::float as cost, sum(metered)::int as metered,
         sum(priced)::int as priced, sum(unpriced)::int as unpriced
       from usage_sums where project_id = $1 group by 1, 2 order by 1, 2`,
      projectId,
    )
  const rolled = async (projectId: string) =>
    (
      await rows(
        `select sum(events)::int as events, sum(input_tokens)::int as input, sum(input_cost)::float as cost from usage_rollups where project_id = $1`,
        projectId,
      )
    )[0]
  it('say by project, agent and actor what their events say', async () => {
    const { id } = await app.project()
    await insertUsage(app, id, [
      tokenUse({ cost: 0.5, agent_id: 'agent_1', actor_id: 'actor_1' }),
      tokenUse({ cost: null, agent_id: 'agent_1' }),
      tokenUse({ cost: null, source: 'embedding' }),
      { meter_type: 'storage', provider: 'platform', model: 'gb-day', cost_usd: '2', tokens: 0, components: [] },
    ])
    const of = (
      scope: string,
      ref: string,
      events: number,
      tokens: number,
      cost: number,
      metered: number,
      priced: number,
      unpriced: number,
    ) => ({
      scope,
      ref,
      events,
      tokens,
      cost,
      metered,
      priced,
      unpriced,
    })
    assert.deepEqual(await sums(id), [
      of('actor', 'actor_1', 1, 150, 0.5, 1, 1, 1),
      of('agent', 'agent_1', 2, 300, 0.5, 2, 1, 2),
      of('project', '', 4, 450, 2.5, 2, 1, 2),
    ])
  })

  it('commit and roll back with their events, and let writers at the same rows pass each other', async () => {
    const { id } = await app.project()
    const client = new pg.Client(app.databaseUrlOf(id))
    await client.connect()
    const insert = (key: string) =>
      client.query(
        `insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, tokens, components)
         values ($1, $2, $1, 'llm_tokens', 'p', 'm', 7, '[]') on conflict (idempotency_key) do nothing`,
        [key, id],
      )
    try {
      await client.query('begin')
      await insert('held')
      // While that transaction is open no caller waits for it.
      await Promise.all(Array.from({ length: 30 }, () => insertUsage(app, id, [tokenUse({ cost: 0.001 })])))
      assert.equal((await sums(id))[0].tokens, 30 * 150)
      await client.query('rollback')
      assert.equal((await sums(id))[0].tokens, 30 * 150)
      await insert('kept')
      await insert('kept')
      const [{ events, tokens, cost }] = await sums(id)
      assert.deepEqual([events, tokens, Math.round(cost * 1000)], [31, 30 * 150 + 7, 30])
      assert.equal((await rolled(id)).events, 31)
    } finally {
      await client.end()
    }
  })

  it('lose nothing when a writer is cut off', async () => {
    const { id } = await app.project()
    const client = new pg.Client(app.databaseUrlOf(id))
    client.on('error', () => {})
    await client.connect()
    const { rows: own } = await client.query('select pg_backend_pid() as pid')
    await client.query('begin')
    await client.query(
      `insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, tokens, components)
       values ('cut', $1, 'cut', 'llm_tokens', 'p', 'm', 7, '[]')`,
      [id],
    )
    await insertUsage(app, id, [tokenUse({ cost: null })])
    await app.pool.query(sql.unsafe`select pg_terminate_backend(${own[0].pid})`)
    await eventually(
      async () =>
        (await app.pool.any(sql.unsafe`select 1 from pg_stat_activity where pid = ${own[0].pid}`)).length === 0,
    )
    await insertUsage(app, id, [tokenUse({ cost: null })])
    assert.equal((await sums(id))[0].tokens, 300)
    await client.end().catch(() => {})
  })

  it('are kept for 40 days', async () => {
    const { id } = await app.project()
    const days = (count: number) => new Date(Date.now() - count * 24 * HOUR_MS).toISOString()
    await insertUsage(app, id, [
      tokenUse({ cost: null, created_at: days(42) }),
      tokenUse({ cost: null, created_at: days(38) }),
    ])
    await foldUsage(app, id)
    assert.ok((await pruneSums(app.servicesOf(id), new AbortController().signal)) >= 1)
    assert.equal((await sums(id))[0].events, 1)
    assert.equal((await rolled(id)).events, 2)
  })

  it('are added up again by `muster reprocess usage` where they are not what the events say', async () => {
    const { id } = await app.project()
    await insertUsage(app, id, [
      tokenUse({ cost: 0.5, agent_id: 'agent_1', created_at: new Date(Date.now() - 30 * HOUR_MS).toISOString() }),
      tokenUse({ cost: null, agent_id: 'agent_1', actor_id: 'actor_1' }),
    ])
    const reprocess = async (...args: string[]) => {
      const done = await muster(
        ['reprocess', 'usage', '--project', id, ...args, '--json'],
        testEnvironment(app.databaseUrlOf(id)),
      )
      assert.equal(done.code, 0, done.stderr)
      return JSON.parse(done.stdout)
    }
    const before = [await sums(id), await rolled(id)]
    await foldUsage(app, id)
    assert.deepEqual(await reprocess(), { days: 2, wrong: 0, rebuilt: 0, dry_run: false })
    await rows(`update folded_usage_sums set tokens = tokens + 1 where project_id = $1 and scope = 'actor'`, id)
    await rows(`delete from folded_usage_rollups where project_id = $1 and hour < now() - interval '20 hours'`, id)
    const broken = [await sums(id), await rolled(id)]
    assert.deepEqual(await reprocess('--dry-run'), { days: 2, wrong: 2, rebuilt: 0, dry_run: true })
    assert.deepEqual([await sums(id), await rolled(id)], broken)
    // Next to a writer that is at work, which is waited for and counted once.
    const writing = Promise.all(
      Array.from({ length: 20 }, () => insertUsage(app, id, [tokenUse({ cost: 1, agent_id: 'agent_2' })])),
    )
    assert.deepEqual(await reprocess(), { days: 2, wrong: 2, rebuilt: 2, dry_run: false })
    await writing
    assert.deepEqual(
      (await sums(id)).filter(({ scope, ref }) => scope === 'actor' || ref === 'agent_1'),
      before[0].filter(({ scope }: any) => scope !== 'project'),
    )
    assert.equal((await rolled(id)).events, 22)
    assert.deepEqual(await reprocess('--dry-run'), { days: 2, wrong: 0, rebuilt: 0, dry_run: true })
  })

  it('sums of usage are deleted with their project', async () => {
    const { id } = await app.project()
    await insertUsage(app, id, [tokenUse({ cost: 1, agent_id: 'agent_1' })])
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.deepEqual(await sums(id), [])
    assert.equal((await rolled(id)).events, null)
  })
})
