import assert from 'node:assert/strict'
import { sql, voidStatement } from '#core/db/sql.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const LIMIT = 100_000

describe('responses stored for the Idempotency-Keys of a project', () => {
  const app = forSuite(() => startApp({ together: true, env: { IDEMPOTENCY_PROJECT_MAX_BYTES: String(LIMIT) } }))

  it('are shared by its credentials: a credential that uses most of them does not make others fail', async () => {
    const project = await app.project()
    const small = app.as((await app.admin.post('/project-keys', { project_id: project.id })).body.secret)
    const create = (key: Client, name: string) => key.post('/actors', { name }, { 'idempotency-key': name })
    assert.equal((await create(small, 'early')).status, 201)
    let count = 0
    while ((await create(project.key, `large-${count}`)).status === 201) count++
    assert.ok(count < 2000, `${count}`)
    assert.equal((await create(project.key, 'refused')).body.error.code, 'IDEMPOTENCY_LIMIT_EXCEEDED')
    for (let index = 0; index < 20; index++) {
      const { status, body } = await create(small, `small-${index}`)
      assert.equal(status, 201, JSON.stringify(body))
    }
    // Only the responses of the large one are deleted early.
    await app.services.pool.query(voidStatement`
      update idempotency_keys set created_at = now() - interval '2 hours' where project_id = ${project.id}`)
    await eventually(async () => (await create(project.key, 'later')).status === 201)
    const { headers } = await create(small, 'early')
    assert.equal(headers.get('idempotency-replayed'), 'true')
  })
})

describe('responses stored for Idempotency-Keys', () => {
  const app = forSuite(() => startApp({ together: true, env: { IDEMPOTENCY_CREDENTIAL_MAX_BYTES: String(LIMIT) } }))
  let project: Awaited<ReturnType<TestApp['project']>>
  beforeEach(async () => {
    project = await app.project()
  })

  const create = (key: Client, name: string) => key.post('/actors', { name }, { 'idempotency-key': name })
  const rows = (key: string) =>
    app.services.pool.any(sql.unsafe`select 1 from idempotency_keys where credential_id = ${key}`)

  /** Creates actors until a request is refused, and returns their names. */
  const fill = async (): Promise<string[]> => {
    const names: string[] = []
    for (let count = 0; count < 5000; count++) {
      const name = `actor ${count}`.replace(' ', '-')
      const { status, body, headers } = await create(project.key, name)
      if (status === 429) {
        assert.equal(body.error.code, 'IDEMPOTENCY_LIMIT_EXCEEDED')
        assert.equal(headers.get('retry-after'), '60')
        return names
      }
      assert.equal(status, 201, JSON.stringify(body))
      names.push(name)
    }
    throw new Error('no request was refused')
  }

  it('of operations that only read are not stored', async () => {
    const query = { query: 'anything' }
    const headers = { 'idempotency-key': 'search' }
    const results = [await project.key.post('/knowledge/search', query, headers)]
    results.push(await project.key.post('/knowledge/search', { query: 'something else' }, headers))
    for (const { status, headers: sent } of results)
      assert.deepEqual([status, sent.get('idempotency-replayed')], [200, null])
    assert.equal((await rows(project.keyId)).length, 0)
  })

  it('are bounded for a credential: new keys are refused, known ones answered, other credentials served', async () => {
    const names = await fill()
    assert.ok(names.length < 2000, `${names.length}`)
    const { total } = (await project.key.get('/actors')).body
    assert.equal(total, names.length)
    const repeated = await create(project.key, names[0])
    assert.deepEqual([repeated.status, repeated.headers.get('idempotency-replayed')], [201, 'true'])
    assert.equal((await create(project.key, 'refused')).status, 429)
    assert.equal((await project.key.post('/actors', { name: 'without a key' })).status, 201)
    const other = await app.admin.post('/project-keys', { project_id: project.id })
    assert.equal((await create(app.as(other.body.secret), 'of-another-key')).status, 201)
  })

  it('are deleted, the oldest first, when they are older than an hour and above the limit', async () => {
    const names = await fill()
    await app.services.pool.query(voidStatement`
      update idempotency_keys set created_at = now() - interval '2 hours' where credential_id = ${project.keyId}`)
    await eventually(async () => (await create(project.key, 'later')).status === 201)
    assert.ok((await rows(project.keyId)).length < names.length)
  })

  it('are counted as stored bytes of their project', async () => {
    const quota = { project_id: project.id, scope: 'project', metric: 'storage_bytes', window: 'current', limit: 1e12 }
    const { id } = (await app.admin.post('/quotas', quota)).body
    const names = await fill()
    const { snapshotProjects } = await import('#control/storage/snapshot.ts')
    await snapshotProjects(app.services, { all: true })
    const used = (await app.admin.get(`/quotas/${id}/usage`)).body.observed_value
    assert.ok(used > names.length * 200, `${used}`)
  })
})
