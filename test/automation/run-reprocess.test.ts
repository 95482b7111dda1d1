import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { startRunApp } from './fixtures.ts'

describe('muster reprocess runs', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ workers: [] }))

  const reprocess = async (...args: string[]) => {
    const env = testEnvironment(app.databaseUrlOf(app.projectId))
    const { code, stdout, stderr } = await muster(['reprocess', 'runs', ...args, '--json'], env)
    assert.equal(code, 0, stderr)
    return JSON.parse(stdout)
  }

  it('wakes runs that can continue and have no message, and only those', async () => {
    const id = await app.orchestration([{ id: 'a', type: 'transform', expression: 1 }])
    const runs: string[] = []
    for (let n = 0; n < 3; n++) runs.push((await app.start(id, { wait: false })).id)
    assert.equal((await reprocess()).found, 0)
    await app.pool.query(sql.unsafe`delete from pgboss.job_common`)
    const dry = await reprocess('--dry-run')
    assert.deepEqual([dry.found, dry.woken, dry.runs.sort()], [3, 0, [...runs].sort()])
    assert.equal((await reprocess('--id', runs[0])).woken, 1)
    assert.equal((await reprocess('--project', (await app.project()).id)).found, 0)
    await app.admin.post(`/projects/${app.projectId}/pause`)
    assert.equal((await reprocess('--id', runs[1])).found, 0, 'paused runs wait intentionally')
    await app.admin.post(`/projects/${app.projectId}/resume`)
    assert.deepEqual((await reprocess()).runs.sort(), runs.slice(1).sort())
    assert.equal((await reprocess()).found, 0)
    const working = await startApp({ databaseUrl: app.databaseUrl, workers: ['orchestration'] })
    try {
      for (const run of runs) assert.equal((await app.until(run)).status, 'succeeded')
    } finally {
      await working.close()
    }
    assert.equal((await reprocess()).found, 0)
  })
})
