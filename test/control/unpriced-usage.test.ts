import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { rebuildSums, sumsMatchEvents } from '#control/usage/rebuild.ts'
import { rollUpUsage } from '#control/usage/roll-up.ts'
import { MIGRATIONS } from '#core/queues/breaking-migrations.ts'
import { migrate } from '#core/queues/migrate.ts'
import { startApp, type TestProject } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { createDatabase, dropDatabase } from '../support/postgres.ts'
import { forSuite } from '../support/suite.ts'
import { foldUsage, insertUsage, tokenUse } from '../support/usage.ts'

const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000
const MIGRATION = '0019_watched_turns.sql'

describe('usage without a price', function () {
  this.timeout(120_000)
  const app = forSuite(() => startApp({ env: { USAGE_ROLLUP_DAYS: '60' } }))

  const token = (component: string, quantity: number, price: number | null, billable = true) => ({
    component,
    quantity,
    unit: 'token',
    billable,
    unit_price: price,
    cost_usd: price === null ? null : price * quantity,
    price_id: price === null ? null : 'price_1',
  })
  /** A model call with the tokens of an answer with reasoning, of which only some may have prices. */
  const call = (input: number | null, output: number | null, fields: object = {}) => ({
    ...tokenUse({ cost: null }),
    model: 'm1',
    agent_id: 'agent_1',
    cost_usd: input === null && output === null ? null : String((input ?? 0) * 100 + (output ?? 0) * 50),
    tokens: 150,
    components: [
      token('input_tokens', 100, input),
      token('output_tokens', 50, output),
      token('reasoning_tokens', 40, null, false),
    ],
    ...fields,
  })
  /** A priced call, one without any price, one without a price of its answer, a call of a tool, and a free model. */
  const uses = (fields: object = {}) => [
    call(0.001, 0.002, fields),
    call(null, null, fields),
    call(0.001, null, fields),
    call(0, 0, { model: 'free', agent_id: 'agent_2', ...fields }),
    {
      meter_type: 'tool_execution',
      provider: 'platform',
      model: 'tool-call',
      agent_id: 'agent_2',
      tokens: 0,
      components: [
        { component: 'tool_call', quantity: 1, unit: 'call', billable: true, unit_price: null, cost_usd: null },
      ],
      ...fields,
    },
  ]
  /** Quantities and their parts without a price, by component. */
  const unpricedOf = ({ components, unpriced_tokens, unpriced_share }: any) => [
    unpriced_tokens,
    unpriced_share,
    ...components.map((each: any) => [each.component, each.quantity, each.unpriced_quantity, each.unpriced_share]),
  ]
  const read = async ({ key }: TestProject, query = '') => {
    const { status, body } = await key.get(`/usage/aggregate?group_by=model&${query}`)
    assert.equal(status, 200, JSON.stringify(body))
    return [body.totals, ...body.groups.data].map(unpricedOf)
  }
  const EXPECTED: any[][] = [
    [
      200,
      200 / 600,
      ['input_tokens', 400, 100, 0.25],
      ['output_tokens', 200, 100, 0.5],
      ['reasoning_tokens', 160, 0, 0],
      ['tool_call', 1, 1, 1],
    ],
    [
      200,
      200 / 450,
      ['input_tokens', 300, 100, 1 / 3],
      ['output_tokens', 150, 100, 2 / 3],
      ['reasoning_tokens', 120, 0, 0],
    ],
    [0, 0, ['input_tokens', 100, 0, 0], ['output_tokens', 50, 0, 0], ['reasoning_tokens', 40, 0, 0]],
    [0, 0, ['tool_call', 1, 1, 1]],
  ]

  it('is shown by component of each group, though others of the group have a price', async () => {
    const project = await app.project()
    await insertUsage(app, project.id, uses())
    assert.deepEqual(await read(project), EXPECTED)
    await foldUsage(app, project.id)
    assert.deepEqual(await read(project), EXPECTED)
    // By events, which roll-ups do not have the sessions of.
    const { body } = await project.key.get('/usage/aggregate?group_by=session')
    assert.deepEqual(unpricedOf(body.groups.data[0]), EXPECTED[0])
    const to = new Date().toISOString()
    const from = new Date(Date.now() - 2 * HOUR_MS).toISOString()
    const series = await project.key.get(`/usage/timeseries?interval=day&group_by=agent&from=${from}&to=${to}`)
    const point = series.body.points.at(-1)
    assert.deepEqual(unpricedOf(point.totals), EXPECTED[0])
    assert.equal(point.groups.find(({ key }: any) => key === 'agent_1').unpriced_tokens, 200)
    const stranger = await app.project()
    assert.deepEqual(await read(stranger), [[0, 0]])
  })

  it('stays exact when events fold in parts and are rolled up', async () => {
    const project = await app.project()
    const at = Math.floor((Date.now() - 90 * DAY_MS) / HOUR_MS) * HOUR_MS
    const created_at = new Date(at + 1000).toISOString()
    await insertUsage(app, project.id, [...uses({ created_at }), ...uses({ created_at })])
    const twice = EXPECTED.map(([tokens, share, ...parts]) => [
      2 * tokens,
      share,
      ...parts.map(([name, quantity, unpriced, part]) => [name, 2 * quantity, 2 * unpriced, part]),
    ])
    await app.rows('select fold_usage($1, 3)', [project.id])
    assert.deepEqual(await read(project), twice)
    await rollUpUsage(app.servicesOf(project.id), new AbortController().signal)
    assert.equal((await app.rows('select from usage_events where project_id = $1', [project.id])).length, 5)
    assert.deepEqual(await read(project), twice)
    const edge = new Date(at + 500).toISOString()
    assert.deepEqual(await read(project, `from=${edge}&to=${new Date(at + 2000).toISOString()}`), twice)
  })

  it('is found and computed again where the roll-ups differ from the events', async () => {
    const project = await app.project()
    await insertUsage(app, project.id, uses())
    await foldUsage(app, project.id)
    const from = new Date(Math.floor(Date.now() / DAY_MS) * DAY_MS - DAY_MS)
    const span = { project_id: project.id, from, to: new Date(from.getTime() + 3 * DAY_MS) }
    assert.equal(await sumsMatchEvents(app.pool, span), true)
    for (const column of ['unpriced_output_tokens', 'unpriced_quantity']) {
      await app.rows(`update folded_usage_rollups set ${column} = ${column} + 1 where project_id = $1`, [project.id])
      assert.equal(await sumsMatchEvents(app.pool, span), false, column)
      await app.servicesOf(project.id).write(tx => rebuildSums(tx, span))
      assert.equal(await sumsMatchEvents(app.pool, span), true, column)
    }
    assert.deepEqual(await read(project), EXPECTED)
  })

  it('of events that an earlier release folded is added when usage is reprocessed', async () => {
    const name = `unpriced_${process.pid}`
    const older = fs.mkdtempSync(path.join(tmpdir(), 'muster-older-'))
    const url = await createDatabase(name)
    const [client, folder] = [new pg.Client(url), new pg.Client(url)]
    try {
      for (const file of fs.readdirSync(MIGRATIONS))
        if (file < MIGRATION) fs.copyFileSync(path.join(MIGRATIONS, file), path.join(older, file))
      await migrate(url, { directory: older })
      await Promise.all([client.connect(), folder.connect()])
      await client.query(`insert into projects (id, name) values ('proj_1', 'old')`)
      const insert = (id: string, use: any) =>
        client.query(
          `insert into usage_events (id, project_id, idempotency_key, meter_type, provider, model, agent_id, cost_usd, tokens, components, created_at)
           values ($1, 'proj_1', $1, 'llm_tokens', 'p', 'm', 'agent_1', $2, 150, $3, '2026-05-01T10:20:00Z')`,
          [id, use.cost_usd, JSON.stringify(use.components)],
        )
      await insert('ue_1', call(0.001, null))
      await insert('ue_2', call(null, null))
      await client.query(`select fold_usage('proj_1', 10)`)
      // As release 0.1.0 summed usage, in shards of transactions.
      await client.query(`update folded_usage_rollups set shard = 3`)
      await insert('ue_3', call(0.001, null))
      await folder.query('begin')
      await folder.query(`select fold_usage('proj_1', 10)`)
      const migrated = migrate(url)
      await folder.query('commit')
      await migrated
      await insert('ue_4', call(null, 0.002))
      const sums = async () =>
        (
          await client.query(`select sum(events)::int as events, sum(input_tokens)::int as input, sum(unpriced_input_tokens)::int as unpriced_input,
            sum(unpriced_output_tokens)::int as unpriced_output from usage_rollups where hour = '2026-05-01T10:00:00Z'`)
        ).rows[0]
      const all = { events: 4, input: 400 }
      assert.deepEqual(await sums(), { ...all, unpriced_input: 100, unpriced_output: 0 })
      await client.query(`select fold_usage('proj_1', 10)`)
      assert.deepEqual(await sums(), { ...all, unpriced_input: 100, unpriced_output: 0 })
      const reprocessed = await muster(['reprocess', 'usage', '--json'], testEnvironment(url))
      assert.equal(JSON.parse(reprocessed.stdout).rebuilt, 1, reprocessed.stderr)
      assert.deepEqual(await sums(), { ...all, unpriced_input: 200, unpriced_output: 150 })
      await assert.rejects(
        client.query(`insert into folded_usage_rollups (project_id, hour, meter_type, model, ai_provider_id, agent_id, source,
          publisher_project_id, component, unit, shard, events, quantity, input_tokens, cached_tokens, cache_write_tokens, output_tokens, reasoning_tokens)
          values ('proj_1', now(), 'llm_tokens', 'm', '', '', '', '', '', '', -1, 1, 0, 1, 0, 0, 0, 0)`),
        /unpriced_quantity/,
        'a fold of the earlier function fails',
      )
    } finally {
      await Promise.all([client.end(), folder.end()])
      await dropDatabase(name)
      fs.rmSync(older, { recursive: true })
    }
  })
})
