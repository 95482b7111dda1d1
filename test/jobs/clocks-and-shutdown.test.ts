import assert from 'node:assert/strict'
import { rawQuery } from '../../src/core/db/sql.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { client, eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

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
  let app: AgentApp
  const processes: TestProcess[] = []
  const start = async (kind: 'web' | 'worker', env: Record<string, string>, kinds: string[] = []) => {
    const made = await startProcess(kind, app.databaseUrl, env, kinds)
    processes.push(made)
    return made
  }
  before(async () => {
    app = await startAgentApp({ workers: [] })
  })
  after(async () => {
    await Promise.all(processes.map(each => (each.child.exitCode ?? each.child.signalCode) === null && each.kill()))
    await app?.close()
  })
  const rows = async (text: string): Promise<any[]> => [...(await app.services.pool.query(rawQuery(text))).rows]

  it('whose clock is ahead reports it, and writes no rows in the future', async () => {
    const worker = await start('worker', { NODE_OPTIONS: AHEAD }, ['generation'])
    await eventually(() => worker.output.some(line => line.includes('clock differs from the database')))
    const [{ clock_ahead_ms, late }] = await rows(
      `select clock_ahead_ms, started_at > now() + interval '1 minute' as late from worker_heartbeats
       where abs(clock_ahead_ms) > 1000`,
    )
    assert.ok(Math.abs(clock_ahead_ms - AHEAD_MS) < 60_000, `${clock_ahead_ms}`)
    assert.equal(late, false)
    const turn = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })
    assert.equal(turn.status, 200, JSON.stringify(turn.body))
    await worker.kill('SIGTERM')
    for (const table of ['generations', 'traces', 'events', 'usage_events', 'audit_entries']) {
      const found = await rows(`select to_jsonb(t) as row from ${table} t`)
      const soon = Date.now() + 60_000
      for (const { row } of found)
        for (const [column, value] of Object.entries(row))
          if (/_at$/.test(column) && value !== null)
            assert.ok(Date.parse(value as string) < soon, `${table}.${column} ${value}`)
    }
  })

  it('that is stopped with a short grace refuses the requests that still wait', async () => {
    const web = await start('web', { SHUTDOWN_GRACE_MS: '300' })
    const waiting = client(web.url, app.key.token).post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'x' })
    await eventually(async () => (await rows(`select from generations where status = 'pending'`)).length > 0)
    const exited = web.kill('SIGTERM')
    const { status, body, headers } = await waiting
    assert.deepEqual([status, body.error.code], [503, 'SERVICE_NOT_READY'])
    assert.equal(headers.get('retry-after'), '1')
    assert.equal((await exited).code, 0)
  })
})
