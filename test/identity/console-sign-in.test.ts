import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { rawQuery } from '#core/db/sql.ts'
import type { Client } from '../support/app.ts'
import {
  allowing,
  Browser,
  codeOf,
  exchange,
  postForm,
  refresh,
  startFront,
  startOauthApp,
  tokensOf,
} from '../support/oauth.ts'
import { forSuite } from '../support/suite.ts'

const CLIENT = 'muster-console'
const SCOPE = 'muster:user offline_access'

describe('the sign-in of the console over HTTP', () => {
  const app = forSuite(() => startOauthApp())
  const project = forSuite(() => app.project())
  let user: Client & { id: string }

  beforeEach(async () => {
    user = await app.user(undefined, [allowing(project.id)])
  })

  const flow = () => ({
    client_id: CLIENT,
    redirect_uri: `${app.base}/app/callback`,
    user,
    consent: {},
    asked: { scope: SCOPE },
  })
  /** Headers that browsers add to a request of the page. */
  const page = (more: Record<string, string> = {}) => ({
    origin: app.base,
    'sec-fetch-site': 'same-origin',
    'content-type': 'application/x-www-form-urlencoded',
    ...more,
  })
  /** Sends a form to an endpoint of the console with the cookies of a browser. */
  const send = async (browser: Browser, name: string, fields: Record<string, string>, headers = page()) => {
    const body = new URLSearchParams({ client_id: CLIENT, ...fields })
    const response = await browser.send(`${app.base}/oauth/console/${name}`, { method: 'POST', body, headers })
    const text = await response.text()
    return { status: response.status, headers: response.headers, body: text ? JSON.parse(text) : null }
  }
  const renew = (browser: Browser, more: Record<string, string> = {}, headers = page()) =>
    send(browser, 'token', { grant_type: 'refresh_token', refresh_token: 'cookie', ...more }, headers)
  const revoke = (browser: Browser) => send(browser, 'revoke', { token: 'cookie' })
  const signIn = async (more: Record<string, string> = {}) => {
    const browser = new Browser()
    const { code, verifier } = await codeOf(app.base, flow())
    const fields = { grant_type: 'authorization_code', code, code_verifier: verifier, ...more }
    const answer = await send(browser, 'token', { ...fields, redirect_uri: flow().redirect_uri })
    assert.equal(answer.status, 200, JSON.stringify(answer.body))
    return { browser, answer, token: answer.body.access_token as string }
  }
  const cookieOf = (browser: Browser) => {
    const found = browser.cookies(app.base).find(({ name }) => name.startsWith('console_refresh'))
    assert.ok(found)
    return found
  }
  /** A browser with the cookies that another one has at this moment. */
  const copyOf = (browser: Browser) => {
    const copy = new Browser()
    copy.keep(app.base, ...browser.cookies(app.base))
    return copy
  }
  const status = async (token: string) => (await app.as(token).get('/users/me')).status
  const grants = async () => (await app.admin.get(`/oauth/grants?user_id=${user.id}`)).body.total
  const isRefused = ({ status, body }: { status: number; body: { error?: string } | null }) => {
    assert.equal(status, 400)
    assert.equal(body?.error, 'invalid_grant')
  }

  it('keeps the refresh token in a cookie that no script reads and no other site sends, and rotates it', async () => {
    const { browser, answer, token } = await signIn()
    assert.deepEqual(Object.keys(answer.body).sort(), ['access_token', 'expires_in', 'scope', 'token_type'])
    const [cookie, ...others] = answer.headers.getSetCookie()
    assert.deepEqual(others, [])
    const { port } = new URL(app.base)
    assert.match(cookie, new RegExp(`^console_refresh_${port}=ort_[\\w-]{40,}; `))
    const attributes = cookie
      .split('; ')
      .slice(1)
      .filter(each => !each.startsWith('Expires='))
    assert.deepEqual(attributes.sort(), [
      'HttpOnly',
      'Max-Age=1800',
      'Path=/oauth/console',
      'SameSite=Strict',
      'Secure',
    ])
    assert.equal(await status(token), 200)
    const first = cookieOf(browser).value
    const renewed = await renew(browser)
    assert.equal(renewed.status, 200)
    assert.equal(renewed.body.refresh_token, undefined)
    assert.notEqual(cookieOf(browser).value, first)
    assert.equal(await status(renewed.body.access_token), 200)
    assert.equal(await grants(), 1)
  })

  it('is no failure without the cookie, and sends no statement', async () => {
    const count = app.statements.length
    for (let attempt = 0; attempt < 70; attempt++) {
      const { status, body, headers } = await renew(new Browser())
      assert.deepEqual([status, body, headers.getSetCookie()], [204, null, []])
    }
    assert.deepEqual(
      app.statements.slice(count).filter(statement => JSON.stringify(statement).includes('oauth_objects')),
      [],
    )
  })

  it('answers pages of the deployment alone', async () => {
    const { browser } = await signIn()
    const strangers: Record<string, string>[] = [
      { origin: 'https://evil.example' },
      { origin: 'null' },
      { origin: `${app.base}.evil.example` },
      // Another port is another origin of the same site.
      { origin: 'http://127.0.0.1:1', 'sec-fetch-site': 'same-site' },
      { 'sec-fetch-site': 'cross-site' },
      { 'sec-fetch-site': 'same-site' },
      { 'sec-fetch-site': 'none' },
    ]
    for (const headers of strangers) {
      const { status, body, headers: answered } = await renew(browser, {}, page(headers))
      assert.equal(status, 403, JSON.stringify(headers))
      assert.equal(body.error, 'access_denied')
      assert.equal(answered.get('access-control-allow-origin'), null)
      assert.deepEqual(answered.getSetCookie(), [])
    }
    const { origin: _, ...withoutOrigin } = page()
    assert.equal((await renew(browser, {}, withoutOrigin as never)).status, 403)
    assert.equal((await browser.send(`${app.base}/oauth/console/token`, { headers: page() })).status, 404)
    assert.equal((await renew(browser)).status, 200)
  })

  it('issues its tokens nowhere else, and no tokens of other clients', async () => {
    const code = await codeOf(app.base, flow())
    const elsewhere = await exchange(app.base, flow(), code)
    assert.deepEqual([elsewhere.status, elsewhere.body.error], [400, 'invalid_request'])
    const { browser } = await signIn()
    const stolen = cookieOf(browser).value
    const refused = await refresh(app.base, CLIENT, stolen)
    assert.deepEqual([refused.status, refused.body.error], [400, 'invalid_request'])
    const other = await renew(browser, { client_id: 'muster-cli' })
    assert.deepEqual([other.status, other.body.error], [400, 'invalid_request'])
    assert.equal((await renew(browser)).status, 200)
    // Only the cookie counts, whatever the form contains.
    assert.equal((await renew(new Browser(), { refresh_token: cookieOf(browser).value })).status, 204)
  })

  it('gives tabs that refresh at the same time one line of tokens', async () => {
    const { browser } = await signIn()
    const tabs = Array.from({ length: 5 }, () => copyOf(browser))
    const answers = await Promise.all(tabs.map(tab => renew(tab)))
    assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200]))
    assert.equal(new Set(tabs.map(tab => cookieOf(tab).value)).size, 1)
    assert.equal((await renew(tabs[4])).status, 200)
  })

  it('ends when a cookie that was replaced is used after the grace', async () => {
    const { browser } = await signIn()
    const thief = copyOf(browser)
    const { body } = await renew(browser)
    assert.equal((await renew(copyOf(thief))).status, 200, 'within the grace')
    await app.services.pool.query(
      rawQuery(
        `update oauth_objects set consumed_at = consumed_at - interval '61 seconds' where model = 'RefreshToken'`,
      ),
    )
    isRefused(await renew(thief))
    isRefused(await renew(browser))
    assert.equal(await status(body.access_token), 401)
    assert.equal(await grants(), 0)
  })

  it('ends when the user signs out, whose cookie is cleared', async () => {
    const { browser, token } = await signIn()
    const copy = copyOf(browser)
    const { status: code, headers } = await revoke(browser)
    assert.equal(code, 200)
    assert.match(headers.getSetCookie()[0], /Expires=Thu, 01 Jan 1970/)
    assert.equal((await renew(browser)).status, 204)
    isRefused(await renew(copy))
    assert.equal(await status(token), 401)
    assert.equal(await grants(), 0)
  })

  it('ends when the grant is revoked', async () => {
    const { browser, token } = await signIn()
    const { data } = (await app.admin.get(`/oauth/grants?user_id=${user.id}`)).body
    await app.admin.delete(`/oauth/grants/${data[0].id}`)
    isRefused(await renew(browser))
    assert.equal(await status(token), 401)
  })

  it('ends when the user is disabled, and does not come back', async () => {
    const { browser, token } = await signIn()
    await app.admin.patch(`/users/${user.id}`, { disabled: true })
    isRefused(await renew(browser))
    assert.equal(await status(token), 401)
    await app.admin.patch(`/users/${user.id}`, { disabled: false })
    assert.equal(await status(token), 401)
    assert.equal(await grants(), 0)
  })

  it('ends with a new name or role, as other tokens of the user do, and not with a new display name', async () => {
    const changes = [{ username: `renamed-${randomBytes(4).toString('hex')}` }, { role: 'admin' }, { disabled: true }]
    for (const change of changes) {
      user = await app.user(undefined, [allowing(project.id)])
      const { browser, token } = await signIn()
      await app.admin.patch(`/users/${user.id}`, { display_name: `Before ${Object.keys(change)}` })
      assert.equal((await renew(browser)).status, 200)
      assert.equal((await app.admin.patch(`/users/${user.id}`, change)).status, 200)
      assert.equal(await grants(), 0)
      await app.admin.patch(`/users/${user.id}`, { disabled: false })
      isRefused(await renew(browser))
      assert.equal(await status(token), 401)
    }
  })

  it('ends in other browsers when the user changes the password, and everywhere when an admin does', async () => {
    const [own, other] = [await signIn(), await signIn()]
    const cli = await tokensOf(app.base, {
      client_id: 'muster-cli',
      redirect_uri: 'http://127.0.0.1:4711/callback',
      user,
      consent: {},
      asked: { scope: SCOPE },
    })
    const passwords = { current_password: 'a fine password', new_password: 'another fine password' }
    const changed = await app.as(own.token).put('/users/me/password', passwords)
    assert.equal(changed.status, 200, JSON.stringify(changed.body))
    assert.equal((await renew(own.browser)).status, 200)
    isRefused(await renew(other.browser))
    assert.deepEqual([await status(own.token), await status(other.token)], [200, 401])
    await app.admin.put(`/users/${user.id}/password`, { new_password: 'a third fine password' })
    isRefused(await renew(own.browser))
    assert.equal(await status(own.token), 401)
    assert.equal(await status(cli.access_token), 200, 'grants to programs stay')
  })

  it('ends with the tokens of the user that are revoked', async () => {
    const { browser, token } = await signIn()
    await app.admin.post(`/users/${user.id}/revoke-tokens`)
    isRefused(await renew(browser))
    assert.equal(await status(token), 401)
  })

  it('ends after the idle time since the last input, also for access tokens that have not expired', async () => {
    const { browser, answer } = await signIn({ idle_seconds: '1798.5' })
    assert.ok(answer.body.expires_in > 3000)
    const ends = Date.now() + 2500
    while (Date.now() < ends) await new Promise(resolve => setTimeout(resolve, 100))
    assert.equal(await status(answer.body.access_token), 401)
    isRefused(await renew(browser))
  })

  it('lasts longer with each refresh after input, in every process', async () => {
    const { browser, token } = await signIn({ idle_seconds: '1796' })
    assert.equal(await status(token), 200, 'the end of the grant is known to the process')
    assert.equal((await renew(browser, { idle_seconds: '-5' })).status, 200)
    await new Promise(resolve => setTimeout(resolve, 4500))
    assert.equal(await status(token), 200)
    assert.equal((await renew(browser, { idle_seconds: 'many' })).status, 200)
  })

  it('lasts as long as a refresh token where the console has no idle time', async () => {
    const front = await startFront()
    const own = await startOauthApp({ front, env: { CONSOLE_IDLE_MINUTES: '0' } })
    try {
      const person = await own.user()
      const redirect_uri = `${own.base}/app/callback`
      const asked = { client_id: CLIENT, redirect_uri, user: person, consent: {}, asked: { scope: SCOPE } }
      const { code, verifier } = await codeOf(own.base, asked)
      const form = { grant_type: 'authorization_code', code, code_verifier: verifier, client_id: CLIENT, redirect_uri }
      const { status, headers } = await postForm(`${own.base}/oauth/console/token`, form, { origin: own.base })
      assert.equal(status, 200)
      assert.match(headers.getSetCookie()[0], /Max-Age=2592000;/)
    } finally {
      await own.close()
    }
  })

  it('has no endpoints without the console', async () => {
    const own = await startOauthApp({ env: { CONSOLE_ENABLED: 'false' } })
    try {
      const { status } = await postForm(`${own.base}/oauth/console/token`, { client_id: CLIENT }, { origin: own.base })
      assert.equal(status, 404)
    } finally {
      await own.close()
    }
  })
})
