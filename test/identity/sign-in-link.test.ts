import assert from 'node:assert/strict'
import { systemClock } from '#core/base/clock.ts'
import { issueSignInLink } from '#identity/users/sign-in-link.ts'
import { findFirstAdmin } from '#operator/store.ts'
import { ADMIN, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

describe('sign-in links', () => {
  const app = forSuite(startApp)

  const link = async (clock = systemClock) => {
    const admin = await findFirstAdmin(app.pool)
    assert.ok(admin)
    return issueSignInLink({ config: app.config, clock }, admin)
  }
  const use = async (token: string) => app.anonymous.post('/users/login', { sign_in_link: token })

  it('sign in once, for the first of many callers', async () => {
    const token = await link()
    const answers = await Promise.all(Array.from({ length: 5 }, () => use(token)))
    assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 401, 401, 401, 401])
    const { body } = answers.find(({ status }) => status === 200) as { body: { token: string; username: string } }
    assert.equal(body.username, ADMIN.username)
    assert.equal((await app.as(body.token).get('/users/me')).status, 200)
    const entries = (await app.admin.get('/audit-log?action=users:Login&status=200')).body.data
    assert.deepEqual(entries[0].detail, { username: ADMIN.username, kind: 'link' })
  })

  it('end with any other sign-in, with the time, and with the tokens of the user', async () => {
    const replaced = await link()
    assert.equal((await app.anonymous.post('/users/login', ADMIN)).status, 200)
    assert.equal((await use(replaced)).status, 401)
    const past = new Date(Date.now() - 16 * 60_000)
    assert.equal((await use(await link({ ...systemClock, now: () => past }))).status, 401)
    const revoked = await link()
    const { token } = (await app.anonymous.post('/users/login', ADMIN)).body
    assert.equal((await app.as(token).post('/users/me/revoke-tokens')).status, 204)
    assert.equal((await use(revoked)).status, 401)
  })

  it('are no tokens, and tokens are no links', async () => {
    const token = await link()
    assert.equal((await app.as(token).get('/users/me')).status, 401)
    const { body } = await use(token)
    assert.equal((await use(body.token)).status, 401)
    for (const wrong of ['x', `${token}x`, token.split('.').reverse().join('.')])
      assert.equal((await use(wrong)).status, 401)
  })

  it('are combined with nothing', async () => {
    const refused = await app.anonymous.post('/users/login', { ...ADMIN, sign_in_link: await link() })
    assert.equal(refused.status, 400)
    assert.deepEqual(
      refused.body.error.meta.problems.map(({ path }: { path: string }) => path),
      ['username', 'password'],
    )
  })

  it('do not lock the name of the user when they are used again', async () => {
    const token = await link()
    await use(token)
    for (let n = 0; n < 12; n++) assert.equal((await use(token)).status, 401)
    assert.equal((await app.anonymous.post('/users/login', ADMIN)).status, 200)
  })
})
