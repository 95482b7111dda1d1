import assert from 'node:assert/strict'
import { reportExpiring } from '#control/exceptions/secret-expiry.ts'
import { retentionSweepQueue } from '#core/work/sweeps.ts'
import { eventually, startApp, type TestProject } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const DAY_MS = 86_400_000
const inDays = (days: number): string => new Date(Date.now() + days * DAY_MS).toISOString()

describe('secrets that expire', () => {
  const app = forSuite(() => startApp({ workers: ['delivery', 'snapshot'] }))
  let project: TestProject
  beforeEach(async () => {
    project = await app.projectWith(['secrets:*', 'exceptions:*'])
  })

  const secret = (expires_at: string | null, name = 'key of the bank') =>
    createdBy(project.key, '/secrets', { name, value: 'v', expires_at })
  const items = async (query = '') => (await project.key.get(`/exceptions?kind=secret_expiring${query}`)).body.data
  /** Items, once they were counted so often together. */
  const occurrences = (count: number) =>
    eventually(async () => {
      const found = await items()
      return found.reduce((sum: number, { occurrence_count }: any) => sum + occurrence_count, 0) === count
        ? found
        : null
    })

  it('show the time in UTC, and take null for never', async () => {
    const made = await secret('2099-05-01T12:00:00+02:00')
    assert.equal(made.expires_at, '2099-05-01T10:00:00.000Z')
    const cleared = await project.key.patch(`/secrets/${made.id}`, { expires_at: null })
    assert.equal(cleared.body.expires_at, null)
    const set = await project.key.patch(`/secrets/${made.id}`, { expires_at: '2099-05-02' })
    assert.deepEqual([set.body.expires_at, set.body.name], ['2099-05-02T00:00:00.000Z', made.name])
    const valued = await project.key.patch(`/secrets/${made.id}`, { value: 'other' })
    assert.equal(valued.body.expires_at, '2099-05-02T00:00:00.000Z')
    for (const expires_at of ['soon', 5, '2099-02-30'])
      assert.equal((await project.key.patch(`/secrets/${made.id}`, { expires_at })).status, 400)
    const updated = await storedEvents(app.pool, { resource: made.id, name: 'secrets.updated' })
    assert.deepEqual(
      updated.map(({ data }) => data.expires_at),
      [null, '2099-05-02T00:00:00.000Z', '2099-05-02T00:00:00.000Z'],
    )
  })

  it('are reported 14 days ahead, once for each date, however many sweeps find them', async () => {
    const soon = await secret(inDays(13))
    await secret(inDays(15), 'later')
    await secret(null, 'never')
    const counts = await Promise.all(Array.from({ length: 4 }, () => reportExpiring(app.servicesOf(project.id))))
    assert.equal(
      counts.reduce((sum, count) => sum + count, 0),
      1,
    )
    const [item] = await occurrences(1)
    assert.deepEqual(
      [item.severity, item.detail],
      ['warning', { secret_id: soon.id, name: soon.name, expires_at: soon.expires_at }],
    )
    assert.match(item.title, /^Secret key of the bank expires on \d{4}-\d\d-\d\d$/)
    assert.equal(await reportExpiring(app.servicesOf(project.id)), 0)
    await project.key.patch(`/secrets/${soon.id}`, { name: 'renamed' })
    assert.equal(await reportExpiring(app.servicesOf(project.id)), 0)

    await project.key.patch(`/secrets/${soon.id}`, { expires_at: inDays(12) })
    assert.equal(await reportExpiring(app.servicesOf(project.id)), 1)
    const [folded] = await occurrences(2)
    assert.equal(folded.id, item.id)
    await project.key.post(`/exceptions/${item.id}/resolve`)
    await project.key.patch(`/secrets/${soon.id}`, { expires_at: inDays(-1) })
    assert.equal(await reportExpiring(app.servicesOf(project.id)), 1)
    const [expired] = await eventually(async () => {
      const open = await items('&status=open')
      return open.length > 0 ? open : null
    })
    assert.match(expired.title, /^Secret renamed expired on /)
    assert.equal(expired.detail.secret_id, soon.id)
  })

  it('are found by a sweep of the worker', async () => {
    await secret(inDays(1))
    await app.servicesOf(project.id).write(async tx => tx.send(retentionSweepQueue, { sweep: 'expiring secrets' }))
    assert.equal((await occurrences(1)).length, 1)
  })
})
