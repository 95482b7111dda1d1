import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { z } from 'zod'
import { manualClock } from '#core/base/clock.ts'
import { rawQuery, sql, voidStatement } from '#core/db/sql.ts'
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
  const newKey = () => randomBytes(32).toString('base64url')
  /** The key that the pages of each browser store. */
  const keys = new WeakMap<Browser, string>()
  /** Headers of a request of the page, most of which browsers add. */
  const page = (browser: Browser, more: Record<string, string> = {}): Record<string, string> => ({
    origin: app.base,
    'sec-fetch-site': 'same-origin',
    'content-type': 'application/x-www-form-urlencoded',
    'muster-console-key': keys.get(browser) ?? '',
    ...more,
  })
  /** Sends a form to an endpoint of the console with the cookies of a browser. */
  const send = async (browser: Browser, name: string, fields: Record<string, string>, headers = page(browser)) => {
    const body = new URLSearchParams({ client_id: CLIENT, ...fields })
    const response = await browser.send(`${app.base}/oauth/console/${name}`, { method: 'POST', body, headers })
    const text = await response.text()
    return { status: response.status, headers: response.headers, body: text ? JSON.parse(text) : null }
  }
  const renew = (browser: Browser, more: Record<string, string> = {}, headers = page(browser)) =>
    send(browser, 'token', { grant_type: 'refresh_token', refresh_token: 'cookie', ...more }, headers)
  const revoke = (browser: Browser, more: Record<string, string> = {}) =>
    send(browser, 'revoke', { token: 'cookie', ...more })
  const signIn = async (more: Record<string, string> = {}) => {
    const browser = new Browser()
    keys.set(browser, newKey())
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
  /** A browser with the cookies that another one has at this moment, and its key. */
  const copyOf = (browser: Browser, key = keys.get(browser)) => {
    const copy = new Browser()
    if (key) keys.set(copy, key)
    copy.keep(app.base, ...browser.cookies(app.base))
    return copy
  }
  const status = async (token: string) => (await app.as(token).get('/users/me')).status
  const grants = async () => (await app.admin.get(`/oauth/grants?user_id=${user.id}`)).body.total
  const isRefused = ({ status, headers, body }: Awaited<ReturnType<typeof send>>) => {
    assert.equal(status, 400)
    assert.equal(body?.error, 'invalid_grant')
    isCleared(headers)
  }
  const isCleared = (headers: Headers) => {
    const [line, ...others] = headers.getSetCookie()
    assert.match(line, /^console_refresh_\d+=; Path=\/oauth\/console; Expires=Thu, 01 Jan 1970/)
    assert.deepEqual(others, [])
  }

  it('keeps the refresh token in a cookie that no script reads and no other site sends, and rotates it', async () => {
    const { browser, answer, token } = await signIn()
    assert.deepEqual(Object.keys(answer.body).sort(), ['access_token', 'expires_in', 'scope', 'token_type'])
    const [cookie, ...others] = answer.headers.getSetCookie()
    assert.deepEqual(others, [])
    const { port } = new URL(app.base)
    assert.match(cookie, new RegExp(`^console_refresh_${port}=v1\\.[\\w.-]{100,}; `))
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
      const { status, body, headers: answered } = await renew(browser, {}, page(browser, headers))
      assert.equal(status, 403, JSON.stringify(headers))
      assert.equal(body.error, 'access_denied')
      assert.equal(answered.get('access-control-allow-origin'), null)
      assert.deepEqual(answered.getSetCookie(), [])
    }
    const { origin: _, ...withoutOrigin } = page(browser)
    assert.equal((await renew(browser, {}, withoutOrigin)).status, 403)
    assert.equal((await browser.send(`${app.base}/oauth/console/token`, { headers: page(browser) })).status, 404)
    const preflight = await fetch(`${app.base}/oauth/console/token`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://evil.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'muster-console-key',
      },
    })
    assert.equal(preflight.headers.get('access-control-allow-origin'), null)
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

  it('has a cookie that only the key of the page opens: another port gets the cookie, and is refused', async () => {
    const { browser } = await signIn()
    const { name, value } = cookieOf(browser)
    // The server of another port forges every header but the key, which it never gets.
    for (const key of ['', 'x', newKey(), `${keys.get(browser)}A`, value.slice(0, 43)]) {
      const { status, body, headers } = await renew(copyOf(browser, key))
      assert.deepEqual([status, body], [204, null], key)
      isCleared(headers)
    }
    const { 'muster-console-key': _, ...withoutKey } = page(browser)
    assert.equal((await renew(copyOf(browser), {}, withoutKey)).status, 204)
    // The key alone, and a cookie that was altered.
    const keyOnly = new Browser()
    keys.set(keyOnly, keys.get(browser) as string)
    assert.equal((await renew(keyOnly)).status, 204)
    const altered = copyOf(browser)
    altered.keep(app.base, { ...cookieOf(browser), value: `${value.slice(0, -2)}AA` })
    assert.equal((await renew(altered)).status, 204)
    // A cookie without the key ends nothing either.
    assert.equal((await revoke(copyOf(browser, newKey()))).status, 200)
    assert.equal(name, `console_refresh_${new URL(app.base).port}`)
    assert.equal((await renew(browser)).status, 200)
  })

  it('issues no tokens to a page without a key, whose code stays unused', async () => {
    const browser = new Browser()
    const { code, verifier } = await codeOf(app.base, flow())
    const fields = { grant_type: 'authorization_code', code, code_verifier: verifier }
    const exchanged = () => send(browser, 'token', { ...fields, redirect_uri: flow().redirect_uri })
    const { status, body, headers } = await exchanged()
    assert.deepEqual([status, body.error, headers.getSetCookie()], [400, 'invalid_request', []])
    keys.set(browser, newKey())
    assert.equal((await exchanged()).status, 200)
  })

  it('ignores a cookie that another port or a subdomain planted', async () => {
    const { browser } = await signIn()
    const { browser: attacker } = await signIn()
    const planted = { ...cookieOf(attacker), path: '/oauth/console/token' }
    const victim = new Browser()
    keys.set(victim, keys.get(browser) as string)
    victim.keep(app.base, planted)
    const { status, headers } = await renew(victim)
    assert.equal(status, 204, 'it signs no user in')
    isCleared(headers)
    // The one with the longer path comes first.
    victim.keep(app.base, planted, cookieOf(browser))
    assert.match(victim.header(`${app.base}/oauth/console/token`), new RegExp(`^${planted.name}=${planted.value}; `))
    const before = cookieOf(browser).value
    const renewed = await renew(victim)
    assert.equal(renewed.status, 200, 'it signs no user out')
    assert.ok(!renewed.headers.getSetCookie()[0].includes(before))
    assert.equal((await renew(attacker)).status, 200)
  })

  it('gives tabs that refresh at the same time one line of tokens', async () => {
    const { browser } = await signIn()
    const tabs = Array.from({ length: 5 }, () => copyOf(browser))
    const answers = await Promise.all(tabs.map(tab => renew(tab)))
    assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200]))
    const unused = await app.pool.oneFirst(
      sql.type(z.object({ count: z.int() }))`
        select count(*)::int as count from oauth_objects o join oauth_grants g on g.id = o.grant_id
        where g.user_id = ${user.id} and o.model = 'RefreshToken' and o.consumed_at is null`,
    )
    assert.equal(unused, 1)
    assert.equal((await renew(tabs[4])).status, 200)
  })

  it('ends when a cookie that was replaced is used after the grace', async () => {
    const { browser } = await signIn()
    const thief = copyOf(browser)
    const { body } = await renew(browser)
    assert.equal((await renew(copyOf(thief))).status, 200, 'within the grace')
    await app.pool.query(
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
    isCleared(headers)
    assert.equal((await renew(browser)).status, 204)
    isRefused(await renew(copy))
    assert.equal(await status(token), 401)
    assert.equal(await grants(), 0)
  })

  it('ends by the access token when the browser has deleted the cookie, which a copy outlived', async () => {
    const [{ browser, token }, other] = [await signIn(), await signIn()]
    const withoutCookie = new Browser()
    const nothing = await revoke(withoutCookie)
    assert.equal(nothing.status, 200)
    assert.equal(await status(token), 200)
    for (const access_token of ['x', `${token}A`, `${token.slice(0, -20)}${'A'.repeat(20)}`])
      assert.equal((await revoke(withoutCookie, { access_token })).status, 200)
    assert.equal(await status(token), 200)
    // Tokens of programs are no sign-ins of the console.
    const cli = await tokensOf(app.base, {
      client_id: 'muster-cli',
      redirect_uri: 'http://127.0.0.1:4711/callback',
      user,
      consent: {},
      asked: { scope: SCOPE },
    })
    assert.equal((await revoke(withoutCookie, { access_token: cli.access_token })).status, 200)
    assert.equal(await status(cli.access_token), 200)
    assert.equal((await revoke(withoutCookie, { access_token: token })).status, 200)
    assert.equal(await status(token), 401)
    isRefused(await renew(browser))
    // The cookie of a sign-in and the token of another end both.
    const third = await signIn()
    assert.equal((await revoke(other.browser, { access_token: third.token })).status, 200)
    assert.deepEqual([await status(other.token), await status(third.token)], [401, 401])
    const { data } = (await app.admin.get(`/audit-log?action=oauth:RevokeGrant`)).body
    assert.equal(
      data.filter((entry: any) => entry.detail.user_id === user.id && entry.detail.kind === 'client').length,
      3,
    )
  })

  it('ends by an access token that has expired', async () => {
    const front = await startFront()
    const clock = manualClock()
    const own = await startOauthApp({ front, clock, env: { OAUTH_ACCESS_TOKEN_TTL_SECONDS: '60' } })
    try {
      const person = await own.user()
      const redirect_uri = `${own.base}/app/callback`
      const { code, verifier } = await codeOf(own.base, { ...flow(), redirect_uri, user: person })
      const headers = { origin: own.base, 'muster-console-key': newKey() }
      const form = { grant_type: 'authorization_code', code, code_verifier: verifier, client_id: CLIENT, redirect_uri }
      const { body } = await postForm(`${own.base}/oauth/console/token`, form, headers)
      // The library takes the time of the system.
      clock.set(new Date(Date.now() + 61_000))
      assert.equal((await own.as(body.access_token).get('/users/me')).status, 401)
      const total = async () => (await own.admin.get(`/oauth/grants?user_id=${person.id}`)).body.total
      assert.equal(await total(), 1)
      const sent = { client_id: CLIENT, token: 'cookie', access_token: body.access_token }
      assert.equal((await postForm(`${own.base}/oauth/console/revoke`, sent, headers)).status, 200)
      assert.equal(await total(), 0)
    } finally {
      await own.close()
    }
  })

  it('does not count as guessing when it has ended', async () => {
    const { browser, token } = await signIn()
    await revoke(new Browser(), { access_token: token })
    for (let attempt = 0; attempt < 65; attempt++) isRefused(await renew(copyOf(browser)))
    const next = await signIn()
    assert.equal((await renew(next.browser)).status, 200)
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
    const { headers } = await renew(browser, { idle_seconds: '-600' })
    assert.match(headers.getSetCookie()[0], /Max-Age=1800;/, 'input in the future is input at this moment')
    await new Promise(resolve => setTimeout(resolve, 4500))
    assert.equal(await status(token), 200)
    assert.equal((await renew(browser, { idle_seconds: 'many' })).status, 200)
  })

  it('ends after two days, whatever input the page reports', async () => {
    const { browser } = await signIn()
    const grant = sql.fragment`user_id = ${user.id} and revoked_at is null`
    const { seconds } = await app.pool.one(
      sql.type(z.object({ seconds: z.int() }))`
        select extract(epoch from ends_at - created_at)::int as seconds from oauth_grants where ${grant}`,
    )
    assert.ok(Math.abs(seconds - 2 * 86_400) < 5, String(seconds))
    await app.pool.query(voidStatement`update oauth_grants set ends_at = now() + interval '1 second' where ${grant}`)
    const { body } = await renew(browser, { idle_seconds: '0' })
    const ends = Date.now() + 1500
    while (Date.now() < ends) await new Promise(resolve => setTimeout(resolve, 100))
    assert.equal(await status(body.access_token), 401)
    isRefused(await renew(browser))
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
      const { status, headers } = await postForm(`${own.base}/oauth/console/token`, form, {
        origin: own.base,
        'muster-console-key': newKey(),
      })
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
