import assert from 'node:assert/strict'
import { idFloor } from '#core/base/ids.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { client, eventually } from '../support/app.ts'
import { muster } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

/** A clock five minutes ahead, for the whole process. */
const AHEAD_MS = 300_000
const AHEAD = `--import=data:text/javascript,${encodeURIComponent(`
  const Real = Date
  globalThis.Date = class extends Real {
    constructor(...values) { values.length ? super(...values) : super(Real.now() + ${AHEAD_MS}) }
    static now() { return Real.now() + ${AHEAD_MS} }
  }`)}`

describe('a process', function () {
  this.timeout(120_000)
  const app = forSuite(() => startAgentApp({ workers: [] }))
  const processes: TestProcess[] = []
  const start = async (kind: 'web' | 'worker', env: Record<string, string>, kinds: string[] = []) => {
    const made = await startProcess(kind, app.databaseUrl, env, kinds)
    processes.push(made)
    return made
  }
  after(async () => {
    await Promise.all(processes.map(each => (each.child.exitCode ?? each.child.signalCode) === null && each.kill()))
  })

  it('whose clock is ahead reports it, and writes no rows in the future', async () => {
    const worker = await start('worker', { NODE_OPTIONS: AHEAD }, ['generation'])
    await eventually(() => worker.output.some(line => line.includes('clock differs from the database')))
    const [{ clock_ahead_ms, late }] = await app.rows(
      `select clock_ahead_ms, started_at > now() + interval '1 minute' as late from worker_heartbeats
       where abs(clock_ahead_ms) > 1000`,
    )
    assert.ok(Math.abs(clock_ahead_ms - AHEAD_MS) < 60_000, `${clock_ahead_ms}`)
    assert.equal(late, false)
    const turn = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
    assert.equal(turn.status, 200, JSON.stringify(turn.body))
    await worker.kill('SIGTERM')
    for (const table of ['generations', 'traces', 'events', 'usage_events', 'audit_entries']) {
      const found = await app.rows(`select to_jsonb(t) as row from ${table} t`)
      const soon = Date.now() + 60_000
      for (const { row } of found)
        for (const [column, value] of Object.entries(row))
          if (/_at$/.test(column) && value !== null)
            assert.ok(Date.parse(value as string) < soon, `${table}.${column} ${value}`)
    }
  })

  it('of the web whose clock is ahead writes the time of the database, and the doctor names it', async () => {
    const web = await start('web', { NODE_OPTIONS: AHEAD, WORKER_HEARTBEAT_INTERVAL_MS: '200' })
    const worker = await start('worker', { NODE_OPTIONS: AHEAD }, ['generation', 'delivery'])
    const key = client(web.url, app.key.token)
    const made = (path: string, body: object = {}) => postedBy(key, path, body)
    const receiver = await startReceiver()
    try {
      const hook = await made('/webhooks', { name: 'w', url: receiver.url, events: ['agents.*'] })
      await made(`/webhooks/${hook.id}/test`)
      await made('/agents', { name: 'a', ai_provider_id: app.providerId })
      await eventually(() => receiver.requests.length > 1)
      // A deadline in the future of a clock that is ahead would never come; one of five minutes ago has passed already.
      const turn = await made(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello', timeout_seconds: 60 })
      assert.equal(turn.status, 'completed', JSON.stringify(turn))
      await key.get('/agents/agent_00000000000000000000000000')
      await eventually(async () => (await app.rows('select from worker_heartbeats where beat_at > now()')).length === 0)
    } finally {
      await receiver.close()
    }
    const found = await muster(['doctor', '--json'], { DATABASE_URL: app.databaseUrl })
    const clocks = JSON.parse(found.stdout).checks.filter(({ name }: { name: string }) => name.startsWith('clock of '))
    assert.equal(clocks.length, 2, JSON.stringify(clocks))
    assert.ok(clocks.some(({ name }: { name: string }) => name.includes(':web:')))
    for (const { status, detail } of clocks) {
      assert.equal(status, 'fail')
      assert.match(detail, /^(29\d|30\d)\.\d s fast compared to the database$/)
    }
    const columns = await app.rows(
      `select table_name, column_name from information_schema.columns
       where table_schema = 'public' and data_type like 'timestamp%' and column_name not in ('expires_at', 'resets_at')`,
    )
    assert.ok(columns.length > 150, `${columns.length}`)
    const counts = columns.map(
      ({ table_name, column_name }) =>
        `select '${table_name}.${column_name}' as name from ${table_name} where ${column_name} > now() + interval '90 s' group by 1`,
    )
    assert.deepEqual(await app.rows(counts.join(' union all ')), [])
    // IDs contain the time of their creation.
    const late = idFloor('evt', new Date(Date.now() + 60_000))
    assert.deepEqual(await app.rows(`select id from events where id > '${late}'`), [])
    await Promise.all([web.kill('SIGTERM'), worker.kill('SIGTERM')])
    assert.deepEqual(await app.rows(`select from worker_heartbeats where kinds = '{}'`), [])
  })

  it('that is stopped with a short grace refuses the requests that still wait', async () => {
    const web = await start('web', { SHUTDOWN_GRACE_MS: '300' })
    const waiting = client(web.url, app.key.token).post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'x' })
    await eventually(async () => (await app.rows(`select from generations where status = 'pending'`)).length > 0)
    const exited = web.kill('SIGTERM')
    const { status, body, headers } = await waiting
    assert.deepEqual([status, body.error.code], [503, 'SERVICE_NOT_READY'])
    assert.equal(headers.get('retry-after'), '1')
    assert.equal((await exited).code, 0)
  })
})
