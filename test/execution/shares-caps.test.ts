import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, startApp, type TestApp, type TestProject } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { accepted, eventsOf, PUBLISHING, shared, statuses, USING } from './share-support.ts'
import { call, made, refused, refusedAt, startTarget } from './tool-target.ts'

const CALLS = 200
const CAP = 50

describe('caps of shares', () => {
  let app: TestApp
  /** Another web process on the same database. */
  let second: TestApp
  const target = forSuite(startTarget)
  let publisher: TestProject
  let grantee: TestProject
  let elsewhere: Client

  before(async () => {
    const env = { SHARES_ALLOW_PUBLIC: 'true' }
    app = await startApp({ env, together: true, workers: ['snapshot'] })
    second = await startApp({ env, together: true, databaseUrl: app.databaseUrl })
    publisher = await app.projectWith(PUBLISHING)
    grantee = await app.projectWith(USING)
    elsewhere = second.as(grantee.key.token)
  })
  after(async () => {
    await second?.close()
    await app?.close()
  })

  async function offered(terms: Record<string, unknown> = {}) {
    const { id } = await made(publisher.key, { execute: { url: target.url } })
    const resource = `srn:${publisher.id}:tool:${id}`
    return { id, share: await shared(publisher.key, resource, { grantee: grantee.id, ...terms }) }
  }
  async function usable(terms: Record<string, unknown> = {}) {
    const { id, share } = await offered(terms)
    await accepted(grantee.key, share.id)
    return { id, share }
  }
  const usageOf = async (share: { id: string }, query = '') =>
    (await publisher.key.get(`/shares/${share.id}/usage${query}`)).body.data

  it('are exact under concurrent callers anywhere; refused calls reach nothing', async () => {
    const { id, share } = await usable({ cap: { calls: CAP, window: 'calendar_month' } })
    const before = target.requests.length
    const replies = await Promise.all(
      Array.from({ length: CALLS }, (_, index) => call(index % 2 ? elsewhere : grantee.key, id)),
    )
    assert.deepEqual(statuses(replies), { 200: CAP, 429: CALLS - CAP })
    assert.equal(target.requests.length - before, CAP)
    await eventually(async () => {
      const [usage] = await usageOf(share)
      return usage?.refused === CALLS - CAP && usage.calls === CAP && usage.project_id === grantee.id
    })
    // The publisher's own calls are free.
    assert.equal((await call(publisher.key, id)).status, 200)
  })

  it('state when the next window begins', async () => {
    const { id, share } = await usable({ cap: { calls: 1, window: 'rolling_24h' } })
    assert.equal((await call(grantee.key, id)).status, 200)
    const reply = await call(grantee.key, id)
    const { meta } = refused(reply, 429, 'SHARE_CAP_EXCEEDED')
    const { retry_after, resets_at, ...terms } = meta
    assert.deepEqual(terms, { share_id: share.id, calls: 1, window: 'rolling_24h' })
    assert.equal(reply.headers.get('retry-after'), String(retry_after))
    assert.match(resets_at, /T00:00:00\.000Z$/)
  })

  it('act changed on the next call; another window starts a new count', async () => {
    const { id, share } = await usable({ cap: { calls: 1, window: 'rolling_24h' } })
    const patch = (cap: object | null) => publisher.key.patch(`/shares/${share.id}`, { cap })
    await call(grantee.key, id)
    refused(await call(grantee.key, id), 429, 'SHARE_CAP_EXCEEDED')
    assert.deepEqual((await patch({ calls: 2, window: 'rolling_24h' })).body.cap, { calls: 2, window: 'rolling_24h' })
    assert.equal((await call(grantee.key, id)).status, 200)
    refused(await call(grantee.key, id), 429, 'SHARE_CAP_EXCEEDED')
    await patch({ calls: 1, window: 'calendar_month' })
    assert.equal((await call(grantee.key, id)).status, 200)
    refused(await call(grantee.key, id), 429, 'SHARE_CAP_EXCEEDED')
    await patch(null)
    assert.equal((await call(grantee.key, id)).status, 200)
    refusedAt(await publisher.key.patch(`/shares/${share.id}`, { grantee: grantee.id }), 'grantee')
    assert.equal((await eventsOf(app, publisher.id, share.id)).filter(event => event === 'shares.updated').length, 3)
  })

  it('are not spent by calls that are refused before', async () => {
    const { id } = await usable({ cap: { calls: 1, window: 'calendar_month' } })
    await publisher.key.patch(`/tools/${id}`, {
      parameters: { type: 'object', required: ['a'], properties: { a: {} } },
    })
    refused(await call(grantee.key, id), 400, 'VALIDATION_FAILED')
    assert.equal((await call(grantee.key, id, { a: 1 })).status, 200)
    refused(await call(grantee.key, id, { a: 1 }), 429, 'SHARE_CAP_EXCEEDED')
  })

  it('count by the share for the project before one for everybody, and alone', async () => {
    const { id } = await made(publisher.key, { execute: { url: target.url } })
    const resource = `srn:${publisher.id}:tool:${id}`
    const open = await shared(publisher.key, resource, { grantee: '*', cap: { calls: 5, window: 'calendar_month' } })
    await accepted(grantee.key, open.id)
    const own = await shared(publisher.key, resource, {
      grantee: grantee.id,
      cap: { calls: 1, window: 'calendar_month' },
    })
    await accepted(grantee.key, own.id)
    assert.equal((await call(grantee.key, id)).status, 200)
    assert.equal(refused(await call(grantee.key, id), 429, 'SHARE_CAP_EXCEEDED').meta.share_id, own.id)
    await publisher.key.post(`/shares/${own.id}/suspend`)
    assert.equal((await call(grantee.key, id)).status, 200)
    assert.deepEqual(await usageOf(open), [{ project_id: grantee.id, calls: 1, refused: 0 }])
  })

  it('are of each project by itself, of a share with every project', async () => {
    const { id } = await made(publisher.key, { execute: { url: target.url } })
    const share = await shared(publisher.key, `srn:${publisher.id}:tool:${id}`, {
      grantee: '*',
      cap: { calls: 1, window: 'calendar_month' },
    })
    const other = await app.projectWith(USING)
    refused(await call(other.key, id), 403, 'API_KEY_PROJECT_SCOPE')
    assert.equal((await other.key.get('/shares?role=grantee')).body.total, 0)
    for (const { key } of [grantee, other]) {
      await accepted(key, share.id)
      assert.equal((await call(key, id)).status, 200)
      refused(await call(key, id), 429, 'SHARE_CAP_EXCEEDED')
    }
    assert.equal((await other.key.get('/shares?role=grantee')).body.total, 1)
    const calls = (await usageOf(share)).map(({ project_id }: { project_id: string }) => project_id)
    assert.deepEqual(calls, [grantee.id, other.id].sort())
  })

  it('are taken once for a step of a pipeline, and its failure names them', async () => {
    const { id } = await usable({ cap: { calls: 1, window: 'calendar_month' } })
    const steps = ['a', 'b'].map(step => ({ id: step, tool_id: id }))
    const pipeline = await made(grantee.key, { type: 'pipeline', pipeline: { steps } })
    const error = refused(await call(grantee.key, pipeline.id), 422, 'PIPELINE_STEP_FAILED')
    assert.deepEqual([error.meta.step_id, error.meta.cause.code], ['b', 'SHARE_CAP_EXCEEDED'])
  })

  it('are counted by the hour, for the publisher alone', async () => {
    const { id, share } = await usable()
    await call(grantee.key, id)
    await call(grantee.key, id)
    assert.deepEqual(await usageOf(share), [{ project_id: grantee.id, calls: 2, refused: 0 }])
    const now = new Date().toISOString()
    assert.equal((await usageOf(share, `?from=${now}`)).length, 1)
    assert.deepEqual(await usageOf(share, '?from=2100-01-01'), [])
    assert.deepEqual(await usageOf(share, '?to=2020-01-01'), [])
    refused(await grantee.key.get(`/shares/${share.id}/usage`), 403, 'API_KEY_PROJECT_SCOPE')
  })

  it('end with the time of the share, which is then revoked once', async () => {
    const { id, share } = await usable({ expires_at: '2100-01-01T00:00:00.000Z' })
    assert.equal((await call(grantee.key, id)).status, 200)
    await app.pool.query(sql.unsafe`update shares set expires_at = now() - interval '1 second' where id = ${share.id}`)
    refused(await call(grantee.key, id), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await grantee.key.post(`/shares/${share.id}/accept`), 403, 'SHARE_REVOKED')
    refused(await publisher.key.patch(`/shares/${share.id}`, { expires_at: null }), 403, 'SHARE_REVOKED')
    await eventually(async () => (await publisher.key.get(`/shares/${share.id}`)).body.revoked_at, { within: 90_000 })
    const { acceptance } = (await grantee.key.get(`/shares/${share.id}`)).body
    assert.deepEqual([acceptance.status, acceptance.revoked_by], ['revoked', 'publisher'])
    const ends = (await eventsOf(app, publisher.id, share.id)).filter(event => event === 'shares.revoked')
    assert.equal(ends.length, 1)
  })
})
