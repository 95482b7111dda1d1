import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { eventually, startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { muster, runWorker } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'

describe('muster reprocess work', function () {
  this.timeout(60_000)
  const app = forSuite(startApp)

  let projectId: string
  const reprocess = (...args: string[]) =>
    muster(['reprocess', 'work', ...args, '--json'], testEnvironment(app.databaseUrlOf(projectId)))
  const foundBy = async (...args: string[]) => {
    const { code, stdout, stderr } = await reprocess(...args)
    assert.equal(code, 0, stderr)
    return JSON.parse(stdout)
  }

  it('wakes overdue items without a message, of one kind or all', async () => {
    const { id, key } = await app.projectWith(['cases:*'])
    projectId = id
    const { id: subject_id } = (await key.post('/cases', { title: 'A claim' })).body
    const started = []
    for (let n = 0; n < 3; n++)
      started.push((await key.post('/playbook-exports', { subject_type: 'case', subject_id })).body.id)
    await app.pool.query(sql.unsafe`update playbook_export_attempts set due_at = now() - interval '1 minute'`)
    assert.equal((await foundBy()).found, 0, 'items with a message')
    await app.pool.query(sql.unsafe`delete from pgboss.job_common`)
    const dry = await foundBy('--dry-run')
    assert.deepEqual([dry.found, dry.woken], [3, 0])
    assert.equal((await foundBy('--kind', 'decision.evaluate')).found, 0)
    assert.equal((await foundBy('--limit', '1')).woken, 1)
    assert.deepEqual(await foundBy('--kind', 'export.build'), {
      found: 2,
      woken: 2,
      dry_run: false,
      kinds: [{ kind: 'export.build', found: 2 }],
    })
    const worker = await runWorker(app.databaseUrl, {}, ['orchestration'])
    for (const id of started)
      await eventually(async () => (await key.get(`/playbook-exports/${id}`)).body.status === 'completed')
    await worker.stop()
    assert.equal((await foundBy()).found, 0)
  })

  it('finds items beyond the first page of a long backlog', async () => {
    const { id: project_id, key } = await app.projectWith(['triggers:*', 'orchestrations:*'])
    projectId = project_id
    const nodes = [{ id: 'a', type: 'transform', expression: 1 }]
    const { id: target_id } = (await key.post('/orchestrations', { name: 'o', nodes, edges: [] })).body
    const trigger = { name: 't', type: 'manual', target_type: 'orchestration', target_id }
    const { id: trigger_id } = (await key.post('/triggers', trigger)).body
    await app.pool.query(sql.unsafe`
      insert into trigger_firings (id, project_id, trigger_id, source, target_type, input, due_at)
      select 'trg_fire_' || lpad(n::text, 26, '0'), ${project_id}, ${trigger_id}, 'manual', 'orchestration', '{}',
        now() - interval '1 hour'
      from generate_series(1, 10050) n`)
    assert.equal((await foundBy('--kind', 'trigger.fire', '--limit', '100000', '--dry-run')).found, 10_050)
    assert.equal((await foundBy('--kind', 'trigger.fire', '--limit', '10020')).woken, 10_020)
    assert.equal((await foundBy('--kind', 'trigger.fire')).woken, 30)
  })

  it('refuses an unknown kind and lists the known ones', async () => {
    const { code, stderr } = await reprocess('--kind', 'export.delete')
    assert.equal(code, 1)
    assert.match(stderr, /no kind of work is called export\.delete[\s\S]*export\.build/)
  })
})
