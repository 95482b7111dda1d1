import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { schemaChecks } from '#core/json-schema/checks.ts'
import { client, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

/** A schema whose compilation takes a while. */
const schemaOf = (name: string) => ({
  type: 'object',
  properties: Object.fromEntries(
    Array.from({ length: 500 }, (_, n) => [`${name}_${n}`, { type: 'string', minLength: n, pattern: `^${name}` }]),
  ),
})

describe('the restore of a version whose schemas are not compiled', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ workers: [] }))
  const later = forSuite(() => startApp({ databaseUrl: app.databaseUrl, workers: [] }))

  it('holds no transaction while they wait for a thread', async () => {
    const states = [
      { name: 'a', initial: true },
      { name: 'b', terminal: true },
    ]
    const kinds: [path: string, body: object, field: string][] = [
      ['/agents', { name: 'a', ai_provider_id: app.providerId }, 'output_schema'],
      [
        '/orchestrations',
        { name: 'o', nodes: [{ id: 'a', type: 'transform', expression: 1 }], edges: [] },
        'state_schema',
      ],
      ['/playbooks', { name: 'p', steps: [{ key: 'call', title: 'x', type: 'manual' }] }, 'input_schema'],
      ['/workflows', { name: 'w', states, transitions: [{ name: 't', from: ['a'], to: 'b' }] }, 'payload_schema'],
    ]
    const rows: string[] = []
    for (const [path, body, field] of kinds) {
      const made = await app.key.post(path, { ...body, [field]: schemaOf(field) })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.equal((await app.key.patch(`${path}/${made.body.id}`, { [field]: null })).body.version, 2)
      rows.push(`${path}/${made.body.id}`)
    }
    const busy = schemaChecks(later.services).refusals(
      Array.from({ length: 30 }, (_, n) => ({
        project: app.projectId,
        text: JSON.stringify(schemaOf(`busy${n}`)),
        rules: { strict: false },
      })),
    )
    const key = client(later.url, app.key.token)
    let areRestored = false
    const restored = Promise.all(rows.map(row => key.post(`${row}/versions/1/restore`))).finally(() => {
      areRestored = true
    })
    let longest = 0
    while (!areRestored) {
      const { rows } = await app.pool.query(
        rawQuery(`
          select coalesce(max(extract(epoch from clock_timestamp() - state_change)), 0)::float as seconds
          from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`),
      )
      longest = Math.max(longest, (rows[0] as { seconds: number }).seconds)
      await new Promise(resolve => setTimeout(resolve, 20))
    }
    for (const { status, body } of await restored)
      assert.deepEqual([status, body.version], [200, 3], JSON.stringify(body))
    await busy
    assert.ok(longest < 0.5, `a transaction was idle for ${longest} s`)
  })
})
