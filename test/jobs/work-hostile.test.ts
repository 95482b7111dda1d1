import assert from 'node:assert/strict'
import { purgeWork } from '#conversation/actors/purge.ts'
import { age, sweep, upload } from '../content/ingestion-support.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { forSuite } from '../support/suite.ts'

describe('durable work that cannot be settled', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ actions: ['actors:*', 'files:*', 'documents:*'] }))
  const steady = steadyWorkers()
  afterEach(() => steady.stop())

  it('is not abandoned if it is retried until it succeeds: a requested erasure', async () => {
    const actor = (await app.key.post('/actors', { name: 'Ann' })).body.id
    const isPassing = `new.until is distinct from old.until`
    await refusingUpdates(
      app.services,
      'actor_purges',
      isPassing,
      async refused => {
        await app.key.post(`/actors/${actor}/purge-content`)
        await app.rows(`update pgboss.job_common set retry_limit = 1 where name = 'actor.purge'`)
        await steady.start(app.databaseUrl, {}, ['snapshot'])
        await refused(2)
        await eventually(
          async () =>
            (await app.rows(`select from pgboss.job where name = 'actor.purge' and state <= 'active'`)).length === 0,
        )
      },
      { state: '57014' },
    )
    assert.equal((await app.rows('select from actor_purges')).length, 1)
    await app.rows(`update actor_purges set due_at = now() - interval '1 minute'`)
    await purgeWork.sweep(app.services, new AbortController().signal)
    await eventually(async () => (await app.rows('select from actor_purges')).length === 0)
    const { body } = await app.admin.get(`/audit-log?project_id=${app.projectId}&resource_public_id=${actor}`)
    assert.equal(body.data.filter(({ detail }: any) => detail?.kind === 'actor_purge').length, 1)
  })

  it('is logged as such, with the error, if it cannot be requeued either', async () => {
    const actor = (await app.key.post('/actors', { name: 'Bea' })).body.id
    await refusingUpdates(
      app.services,
      'actor_purges',
      `new.until is distinct from old.until or new.state = 'queued'`,
      async refused => {
        await app.key.post(`/actors/${actor}/purge-content`)
        const { output } = await steady.start(app.databaseUrl, { LOG_LEVEL: 'info' }, ['snapshot'])
        await refused(2)
        const attempted = await eventually(() => output.find(line => line.includes('"outcome":"requeue_failed"')))
        const { work, err } = JSON.parse(attempted)
        assert.equal(work, 'actor.purge')
        assert.match(err.message, /refused/)
      },
      { state: '57014' },
    )
  })

  it('does not keep a sweep from later items', async () => {
    const documents: string[] = []
    for (const name of ['first', 'second']) {
      const file_id = await upload(app.key, name)
      const { status, body } = await app.key.post('/documents/ingest', { file_id })
      assert.equal(status, 202, JSON.stringify(body))
      documents.push(body.id)
    }
    const [first, second] = documents
    await age(app, first, 200_000)
    await age(app, second, 100_000)
    await refusingUpdates(app.services, 'documents', `new.id = '${first}'`, async () => {
      await sweep(app)
      const states = await app.rows(
        `select id, status from documents where id in ('${first}', '${second}') order by id`,
      )
      assert.deepEqual(Object.fromEntries(states.map(({ id, status }) => [id, status])), {
        [first]: 'pending',
        [second]: 'failed',
      })
    })
    await sweep(app)
    assert.equal((await app.key.get(`/documents/${first}/status`)).body.status, 'failed')
  })
})
