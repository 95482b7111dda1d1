import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { sql } from '#core/db/sql.ts'
import { sweeps } from '#core/work/sweeps.ts'
import { eventually } from '../support/app.ts'
import { Browser } from '../support/browser.ts'
import type { IdToken } from '../support/identity-provider.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { forSuite } from '../support/suite.ts'
import { BASE, CALLBACK, challengeOf, type Fixture, openFixture, startAddress } from './company-sign-in-support.ts'

const NETWORK = '203.0.113.7'

describe('attacks on sign-in with a company account', () => {
  // Only the id_token identifies the account.
  const fixture = forSuite(() =>
    openFixture({
      provider: { claimsInToken: true },
      env: { OIDC_AUTO_PROVISION: 'true', TRUST_PROXY: '1' },
    }),
  )
  afterEach(() => {
    fixture.provider.forge = null
  })

  const logins = () => fixture.app.pool.oneFirst(sql.unsafe`select count(*) from oidc_logins`)

  describe('begins', () => {
    const challenge = challengeOf('x')
    const refused: [string, Record<string, string>][] = [
      ['another origin', { return_to: 'https://evil.example', code_challenge: challenge }],
      ['an address relative to the scheme', { return_to: '//evil.example', code_challenge: challenge }],
      ['a backslash', { return_to: '/\\evil.example', code_challenge: challenge }],
      ['a scheme that runs', { return_to: 'javascript:alert(1)', code_challenge: challenge }],
      ['the whole address of a page', { return_to: `${BASE}/app/callback`, code_challenge: challenge }],
      ['user info', { return_to: '/app/callback@evil.example', code_challenge: challenge }],
      ['a path below a page', { return_to: '/app/callback/x', code_challenge: challenge }],
      ['a path that climbs', { return_to: '/app/callback/../../docs', code_challenge: challenge }],
      [
        'a query of a page that takes none',
        { return_to: '/app/callback?next=//evil.example', code_challenge: challenge },
      ],
      ['a fragment', { return_to: '/app/callback#x', code_challenge: challenge }],
      ['a line break', { return_to: '/app/callback\n', code_challenge: challenge }],
      ['a consent page without a request', { return_to: '/oauth/consent', code_challenge: challenge }],
      ['a consent page with more', { return_to: '/oauth/consent?request_id=oar_a&x=1', code_challenge: challenge }],
      [
        'a consent page of something else',
        { return_to: '/oauth/consent?request_id=user_a', code_challenge: challenge },
      ],
      ['no page', { code_challenge: challenge }],
      ['no challenge', { return_to: '/app/callback' }],
      ['a challenge of another length', { return_to: '/app/callback', code_challenge: `${challenge}a` }],
      ['an unknown prompt', { return_to: '/app/callback', code_challenge: challenge, prompt: 'none' }],
    ]
    for (const [what, query] of refused)
      it(`refuses ${what}`, async () => {
        const before = await logins()
        const reply = await fixture.browser().get(startAddress(query))
        assert.equal(reply.status, 400)
        assert.match(reply.headers.get('content-type') ?? '', /^text\/html/)
        assert.equal(reply.location, null)
        assert.equal(reply.headers.getSetCookie().length, 0)
        assert.ok(!reply.body.includes('evil'))
        assert.equal(await logins(), before)
      })

    it('refuses two return addresses', async () => {
      const once = startAddress({ return_to: '/app/callback', code_challenge: challenge })
      assert.equal((await fixture.browser().get(`${once}&return_to=/app/callback`)).status, 400)
    })

    it('forbids framing, caching, referrers and cross-origin reads', async () => {
      const start = startAddress({ return_to: '/app/callback', code_challenge: challenge })
      for (const address of [start, CALLBACK, startAddress({})]) {
        const { status, headers, body } = await fixture.browser().get(address)
        if (status >= 400) assert.match(body, /<link rel="icon" href="data:/)
        assert.match(headers.get('content-security-policy') ?? '', /default-src 'none'; frame-ancestors 'none'/)
        assert.equal(headers.get('x-frame-options'), 'DENY')
        assert.equal(headers.get('cache-control'), 'no-store')
        assert.equal(headers.get('referrer-policy'), 'no-referrer')
        assert.equal(headers.get('access-control-allow-origin'), null)
      }
    })

    it('sets a cookie limited to its path and site, and hidden from scripts', async () => {
      const browser = fixture.browser()
      const { headers } = await browser.get(startAddress({ return_to: '/app/callback', code_challenge: challenge }))
      const cookies = headers.getSetCookie()
      assert.deepEqual(
        cookies.map(cookie => cookie.split('=', 1)[0]),
        ['__Secure-oidc_login', '__Secure-oidc_login.sig'],
      )
      for (const cookie of cookies)
        for (const attribute of ['Max-Age=600', 'Path=/oauth/oidc', 'HttpOnly', 'Secure', 'SameSite=Lax'])
          assert.ok(cookie.split('; ').includes(attribute), `${cookie}: ${attribute}`)
    })

    it('limits unfinished sign-ins of a network for ten minutes', async () => {
      const start = startAddress({ return_to: '/app/callback', code_challenge: challenge })
      const from = (ip: string) =>
        new Browser({ served: { [BASE]: fixture.app.url }, headers: { 'x-forwarded-for': ip } }).get(start)
      // Addresses of one network of IPv6 are one sender.
      const replies = []
      for (let count = 0; count < 62; count++) replies.push(await from(`2001:db8:1:2::${count}`))
      assert.deepEqual(
        replies.map(({ status }) => status),
        Array.from({ length: 62 }, (_value, index) => (index < 60 ? 302 : 429)),
      )
      assert.ok(Number(replies.at(-1)?.headers.get('retry-after')) > 0)
      assert.equal((await from('2001:db8:1:3::1')).status, 302)
      fixture.clock.advance(601_000)
      assert.equal((await from('2001:db8:1:2::1')).status, 302)
    })

    it('uses at most two connections while the database is slow', async () => {
      const { pool } = fixture.app.home
      const blocked = () =>
        pool.oneFirst(sql.unsafe`
          select count(*) from pg_stat_activity
          where wait_event_type = 'Lock' and query like '%insert into oidc_logins%' and datname = current_database()`)
      const start = startAddress({ return_to: '/app/callback', code_challenge: challenge })
      const [locked, done] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      const lock = pool.transaction(async tx => {
        await tx.query(sql.unsafe`lock table oidc_logins in exclusive mode`)
        locked.resolve()
        await done.promise
      })
      await locked.promise
      const flood = Array.from({ length: 30 }, (_value, index) => {
        const headers = { 'x-forwarded-for': `198.51.100.${index}` }
        return new Browser({ served: { [BASE]: fixture.app.url }, headers }).get(start)
      })
      try {
        await eventually(async () => (await blocked()) === 2)
        for (let count = 0; count < 30; count++) assert.equal((await fixture.app.admin.get('/users/me')).status, 200)
        assert.equal(await blocked(), 2)
      } finally {
        done.resolve()
        await lock
      }
      assert.ok((await Promise.all(flood)).every(({ status }) => status === 302))
    })

    it('does not count sign-ins that ended in a token', async () => {
      const finished = async () => {
        const at = new Browser({
          served: { [BASE]: fixture.app.url },
          headers: { 'x-forwarded-for': NETWORK, 'x-account': 'often' },
        })
        fixture.provider.accounts.set('often', { preferred_username: 'often' })
        return fixture.redeem(await fixture.end(await fixture.begin('often', undefined, at)))
      }
      assert.equal((await finished()).status, 200)
      const left = await fixture.app.pool.oneFirst(
        sql.unsafe`select count(*) from oidc_logins where network = ${NETWORK}`,
      )
      assert.equal(left, 0)
    })
  })

  describe('is answered', () => {
    before(async () => {
      await fixture.linked('victim')
      for (const name of ['victim', 'thief']) fixture.provider.accounts.set(name, { preferred_username: name })
    })

    /** What a browser gets for an answer, which must not be a sign-in. */
    const refusedPage = async (browser: Browser, address: string) => {
      const reply = await browser.get(address)
      assert.equal(reply.status, 400, reply.location ?? '')
      assert.equal(reply.location, null)
    }

    it('only by the browser that started it', async () => {
      const begun = await fixture.begin('victim')
      await refusedPage(fixture.browser(), begun.callback)
      const other = await fixture.begin('victim')
      await refusedPage(other.browser, begun.callback)
      assert.notEqual((await fixture.end(begun)).code, null)
    })

    it('not with a forged cookie', async () => {
      const begun = await fixture.begin('victim')
      const own = begun.browser.cookie(BASE, '__Secure-oidc_login')
      const signature = begun.browser.cookie(BASE, '__Secure-oidc_login.sig')
      const forger = fixture.browser()
      const forge = (value: string, sig: string) => {
        forger.keep(BASE, { ...own, value }, { ...signature, value: sig })
      }
      const swapped = signature.value.replace(/^./, first => (first === 'A' ? 'B' : 'A'))
      for (const sig of ['', 'AAAA', swapped]) {
        forge(own.value, sig)
        await refusedPage(forger, begun.callback)
      }
      forge(randomBytes(32).toString('base64url'), signature.value)
      await refusedPage(forger, begun.callback)
      assert.notEqual((await fixture.end(begun)).code, null)
    })

    it('once', async () => {
      const begun = await fixture.begin('victim')
      const cookies = begun.browser.cookies(BASE)
      const [first, second] = await Promise.all([begun.browser.get(begun.callback), begun.browser.get(begun.callback)])
      assert.deepEqual([first.status, second.status].sort(), [302, 400])
      // The cookie was cleared; a browser that kept it has no sign-in left.
      assert.equal(begun.browser.cookies(BASE).length, 0)
      begun.browser.keep(BASE, ...cookies)
      await refusedPage(begun.browser, begun.callback)
    })

    it('not for a sign-in of another state, or of two', async () => {
      const begun = await fixture.begin('victim')
      const url = new URL(begun.callback)
      url.searchParams.append('state', 'another')
      await refusedPage(begun.browser, url.href)
      // Another site that sends the browser there does not end the sign-in.
      await refusedPage(begun.browser, `${CALLBACK}?state=made-up&code=x`)
      assert.notEqual((await fixture.end(begun)).code, null)
      const again = await fixture.begin('victim')
      const other = new URL(again.callback)
      other.searchParams.set('state', url.searchParams.get('state') as string)
      await refusedPage(again.browser, other.href)
    })

    it('in time', async () => {
      const begun = await fixture.begin('victim')
      fixture.clock.advance(600_000)
      assert.deepEqual(await fixture.end(begun), {
        address: `${BASE}/app/callback`,
        code: null,
        error: 'expired',
        verifier: begun.verifier,
      })
    })

    const changed: [string, (url: URL) => void][] = [
      ['another issuer', url => url.searchParams.set('iss', 'https://evil.example')],
      ['no issuer, though the provider names itself', url => url.searchParams.delete('iss')],
      ['two codes', url => url.searchParams.append('code', 'another')],
      ['a made-up code', url => url.searchParams.set('code', 'made-up')],
      ['no code', url => url.searchParams.delete('code')],
      ['an id_token in its address', url => url.searchParams.set('id_token', 'a.b.c')],
    ]
    for (const [what, change] of changed)
      it(`not with ${what}`, async () => {
        const begun = await fixture.begin('victim')
        const url = new URL(begun.callback)
        change(url)
        const requests = fixture.provider.requests.length
        const returned = await fixture.end({ ...begun, callback: url.href })
        assert.deepEqual([returned.code, returned.error], [null, 'provider_error'])
        // A code of an answer that may be of another provider is sent nowhere.
        if (what.includes('issuer')) assert.equal(fixture.provider.requests.length, requests)
      })

    it('not with the code of another browser', async () => {
      const thief = await fixture.begin('thief')
      const victim = await fixture.begin('victim')
      const url = new URL(thief.callback)
      url.searchParams.set('code', new URL(victim.callback).searchParams.get('code') as string)
      const returned = await fixture.end({ ...thief, callback: url.href })
      assert.deepEqual([returned.code, returned.error], [null, 'provider_error'])
    })

    const { own, foreign } = { own: 'own', foreign: 'foreign' } as const
    const now = () => Math.floor(Date.now() / 1000)
    const forged: [string, (token: IdToken) => Promise<string> | string][] = [
      ['of another issuer', token => resign(token, { iss: 'https://evil.example' })],
      ['for another audience', token => resign(token, { aud: 'another-client' })],
      ['for several audiences without saying for whom', token => resign(token, { aud: ['muster', 'another'] })],
      ['with another nonce', token => resign(token, { nonce: 'another' })],
      ['without a nonce', token => resign(token, { nonce: undefined })],
      ['that is over', token => resign(token, { iat: now() - 7200, exp: now() - 3600 })],
      ['that is issued in the future', token => resign(token, { iat: now() + 3600, exp: now() + 7200 })],
      ['that is valid in the future', token => resign(token, { nbf: now() + 3600, exp: now() + 7200 })],
      ['without a subject', token => resign(token, { sub: undefined })],
      ['with an empty subject', token => resign(token, { sub: '' })],
      ['with a subject of 256 characters', token => resign(token, { sub: 'x'.repeat(256) })],
      ['with a NUL character in its subject', token => resign(token, { sub: 'a\0' })],
      ['with the signature of another key', token => fixture.provider.sign(token, foreign)],
      [
        'of an unknown key',
        token => fixture.provider.sign({ ...token, header: { ...token.header, kid: 'unknown' } }, own),
      ],
      [
        'without a signature',
        ({ claims }) => {
          const text = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url')
          return `${text({ alg: 'none' })}.${text(claims)}.`
        },
      ],
      [
        'that was changed after it was signed',
        async token => {
          const [header, , signature] = (await fixture.provider.sign(token)).split('.')
          const claims = Buffer.from(JSON.stringify({ ...token.claims, sub: 'victim' })).toString('base64url')
          return `${header}.${claims}.${signature}`
        },
      ],
      ['that is none', () => 'nonsense'],
    ]
    const resign = (token: IdToken, claims: Record<string, unknown>) =>
      fixture.provider.sign({ ...token, claims: { ...token.claims, ...claims } as IdToken['claims'] })

    for (const [what, forge] of forged)
      it(`not with an id_token ${what}`, async () => {
        fixture.provider.forge = async token => forge(token)
        // Whose id_token it would be does without anything else of the provider.
        const returned = await fixture.signIn(what.includes('changed') ? 'thief' : 'victim')
        assert.deepEqual([returned.code, returned.error], [null, 'provider_error'])
      })

    it('with an equal id_token with a new signature', async () => {
      fixture.provider.forge = token => resign(token, { iat: now() - 20 })
      assert.notEqual((await fixture.signIn('victim')).code, null)
    })
  })

  describe('ends in a code that', () => {
    let victim: Awaited<ReturnType<Fixture['linked']>>
    beforeEach(async () => {
      victim = await fixture.linked(`holder-${randomBytes(4).toString('hex')}`)
    })

    const codeOf = async () => fixture.signIn((await fixture.app.as(victim.token).get('/users/me')).body.username)

    it('requires its verifier', async () => {
      const returned = await codeOf()
      assert.equal((await fixture.app.anonymous.post('/users/login', { oidc_code: returned.code })).status, 400)
      const wrong = await fixture.redeem({ ...returned, verifier: randomBytes(32).toString('base64url') })
      assert.equal(wrong.status, 401)
      // The challenge was in an address, so it must not do in place of the verifier.
      assert.equal((await fixture.redeem({ ...returned, verifier: challengeOf(returned.verifier) })).status, 401)
      assert.equal((await fixture.redeem(returned)).status, 200)
    })

    it('is redeemed once, even by two concurrent requests', async () => {
      const returned = await codeOf()
      const replies = await Promise.all(Array.from({ length: 4 }, () => fixture.redeem(returned)))
      assert.deepEqual(replies.map(({ status }) => status).sort(), [200, 401, 401, 401])
      assert.equal((await fixture.redeem(returned)).status, 401)
    })

    it('expires after a minute', async () => {
      const [late, inTime] = [await codeOf(), await codeOf()]
      fixture.clock.advance(59_000)
      assert.equal((await fixture.redeem(inTime)).status, 200)
      fixture.clock.advance(1000)
      assert.equal((await fixture.redeem(late)).status, 401)
    })

    it('is refused with the same response as a wrong password', async () => {
      const unknown = await fixture.redeem({ code: 'made-up', verifier: randomBytes(32).toString('base64url') })
      const password = await fixture.app.anonymous.post('/users/login', { username: 'nobody', password: 'wrong' })
      assert.equal(unknown.status, 401)
      assert.deepEqual(unknown.body, password.body)
    })

    it('is refused after its account was unlinked, or its user deleted or disabled', async () => {
      const unlinked = await codeOf()
      const { data } = (await fixture.app.admin.get(`/users/${victim.id}/identities`)).body
      const query = new URLSearchParams({ issuer: data[0].issuer, subject: data[0].subject })
      assert.equal((await fixture.app.admin.delete(`/users/${victim.id}/identities?${query}`)).status, 204)
      assert.equal((await fixture.redeem(unlinked)).status, 401)

      victim = await fixture.linked('disabled-later')
      const disabled = await codeOf()
      await fixture.app.admin.patch(`/users/${victim.id}`, { disabled: true })
      assert.equal((await fixture.redeem(disabled)).status, 401)
      assert.equal((await fixture.signIn('disabled-later')).error, 'access_denied')

      victim = await fixture.linked('deleted-later')
      const deleted = await codeOf()
      assert.equal((await fixture.app.admin.delete(`/users/${victim.id}`)).status, 204)
      assert.equal((await fixture.redeem(deleted)).status, 401)
    })

    it('counts with a wrong verifier as a failed sign-in, which locks the name', async () => {
      const returned = await codeOf()
      for (let tries = 0; tries < 10; tries++)
        await fixture.redeem({ ...returned, verifier: randomBytes(32).toString('base64url') })
      assert.equal((await fixture.redeem(returned)).status, 401)
      fixture.clock.advance(15 * 60_000 + 1000)
      assert.equal((await fixture.redeem(await codeOf())).status, 200)
    })
  })

  it('stores nothing that allows completing or redeeming a sign-in', async () => {
    const user = await fixture.linked('stored')
    const begun = await fixture.begin('stored')
    const cookie = begun.browser.cookie(BASE, '__Secure-oidc_login').value
    const query = new URL(begun.callback).searchParams
    const secrets = [cookie, query.get('state') as string, query.get('code') as string]
    const returned = await fixture.end(begun)
    secrets.push(returned.code as string, begun.verifier)
    for (const secret of secrets) assert.deepEqual(await placesOf(fixture.app, secret), [], secret)
    for (const secret of secrets)
      assert.ok(!fixture.app.logs.some(line => line.includes(secret)), `${secret} is in the log`)
    const { status, body } = await fixture.redeem(returned)
    assert.deepEqual([status, body.id], [200, user.id])
    assert.deepEqual(await placesOf(fixture.app, body.token), [])
  })

  it('leaves rows that the sweep deletes after they expire', async () => {
    await fixture.linked('swept')
    await fixture.begin('swept')
    fixture.clock.advance(599_000)
    const sweep = () => sweeps.get('identity.sweep').run(fixture.app.services, new AbortController().signal)
    const live = await fixture.begin('swept')
    await sweep()
    const left = await logins()
    assert.ok(Number(left) >= 2, `${left} left`)
    fixture.clock.advance(1000)
    await sweep()
    assert.equal(await logins(), 1)
    assert.notEqual((await fixture.end(live)).code, null)
  })
})
