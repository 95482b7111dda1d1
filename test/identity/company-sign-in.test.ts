import assert from 'node:assert/strict'
import { loadConfig } from '#config.ts'
import { ConfigError } from '#core/base/config.ts'
import { sql } from '#core/db/sql.ts'
import companySignIn from '#identity/company-sign-in/module.ts'
import { hashPassword } from '#identity/users/passwords.ts'
import { ADMIN, cheapPasswords, client, eventually, realPasswords, startApp } from '../support/app.ts'
import { Browser } from '../support/browser.ts'
import { startNameServer } from '../support/dns.ts'
import { CLIENT, REFUSING, startIdentityProvider } from '../support/identity-provider.ts'
import { forSuite } from '../support/suite.ts'
import { BASE, CALLBACK, challengeOf, type Fixture, openFixture, startAddress } from './company-sign-in-support.ts'

const ACTION = 'projects:GetProject'

describe('sign-in with a company account', () => {
  const fixture = forSuite(openFixture)

  describe('of linked users', () => {
    it('signs the user of the account in', async () => {
      const { app, clock, provider } = fixture
      const user = await fixture.linked('alice')
      provider.accounts.set('alice', { preferred_username: 'Alice at work', email: 'alice@example.com' })
      const returned = await fixture.signIn('alice')
      assert.deepEqual([returned.address, returned.error], [`${BASE}/app/callback`, null])
      assert.ok(provider.requests.includes('/token') && provider.requests.includes('/me as Bearer'))
      clock.advance(1000)
      const reply = await fixture.redeem(returned)
      assert.equal(reply.status, 200)
      assert.deepEqual(Object.keys(reply.body).sort(), ['expires_at', 'id', 'role', 'token', 'username'])
      assert.deepEqual([reply.body.id, reply.body.username, reply.body.role], [user.id, 'alice', 'user'])
      const me = await app.as(reply.body.token).get('/users/me')
      assert.equal(me.body.id, user.id)
      assert.equal(me.body.credential.type, 'user')
      assert.equal(me.body.last_login_at, clock.now().toISOString())
      const { data } = (await app.as(reply.body.token).get(`/users/${user.id}/identities`)).body
      assert.equal(data.length, 1)
      const { created_at, ...identity } = data[0]
      assert.deepEqual(identity, {
        issuer: provider.issuer,
        subject: 'alice',
        label: 'Alice at work',
        last_login_at: clock.now().toISOString(),
      })
      const entry = (await fixture.entries('users:Login')).at(-1)
      assert.deepEqual([entry.status, entry.principal_id, entry.project_id], [200, user.id, null])
      assert.deepEqual(entry.detail, {
        username: 'alice',
        kind: 'oidc',
        issuer: provider.issuer,
        subject: 'alice',
      })
    })

    it('sends the browser to the provider with state, nonce and challenge', async () => {
      const query = { return_to: '/app/callback', code_challenge: challengeOf('x'), prompt: 'select_account' }
      const replies = [
        await fixture.browser().get(startAddress(query)),
        await fixture.browser().get(startAddress(query)),
      ]
      const [first, second] = replies.map(({ location }) => new URL(location as string))
      assert.equal(first.origin, fixture.provider.issuer)
      const { state, nonce, code_challenge, ...sent } = Object.fromEntries(first.searchParams)
      assert.deepEqual(sent, {
        client_id: CLIENT.id,
        redirect_uri: CALLBACK,
        response_type: 'code',
        scope: 'openid profile email',
        code_challenge_method: 'S256',
        prompt: 'select_account',
      })
      for (const [name, value] of Object.entries({ state, nonce, code_challenge })) {
        assert.match(value, /^[\w-]{43}$/, name)
        assert.notEqual(second.searchParams.get(name), value, name)
      }
      assert.notEqual(code_challenge, query.code_challenge)
    })

    it('returns to the consent page on which it started', async () => {
      await fixture.linked('consenting')
      const returned = await fixture.signIn('consenting', '/oauth/consent?request_id=oar_V1StGXR8_Z5jdHi6B-myT')
      assert.equal(returned.address, `${BASE}/oauth/consent?request_id=oar_V1StGXR8_Z5jdHi6B-myT`)
      assert.equal((await fixture.redeem(returned)).status, 200)
    })

    it('reports a refusal of the account holder', async () => {
      const returned = await fixture.signIn(REFUSING)
      assert.deepEqual([returned.code, returned.error], [null, 'access_denied'])
    })

    it('refuses an unlinked account, and audits the data to link it', async () => {
      const before = await fixture.users()
      fixture.provider.accounts.set('stranger', { preferred_username: 'A stranger' })
      const returned = await fixture.signIn('stranger')
      assert.deepEqual([returned.code, returned.error], [null, 'no_account'])
      assert.deepEqual(await fixture.users(), before)
      const entry = (await fixture.entries('users:Login')).at(-1)
      assert.deepEqual([entry.status, entry.principal_id], [401, null])
      assert.deepEqual(entry.detail, {
        username: 'A stranger',
        kind: 'oidc',
        reason: 'no_account',
        issuer: fixture.provider.issuer,
        subject: 'stranger',
      })
    })

    it('links by issuer and subject only, never by a name or an address', async () => {
      const { app, provider } = fixture
      await app.user('boss@example.com')
      const claims = { preferred_username: ADMIN.username, name: ADMIN.username, email: 'boss@example.com' }
      provider.accounts.set('impostor', claims)
      assert.equal((await fixture.signIn('impostor')).error, 'no_account')
      // The subject of another provider is another account.
      const other = await app.user('linked elsewhere')
      const identity = { issuer: 'https://login.example', subject: 'impostor' }
      assert.equal((await app.admin.post(`/users/${other.id}/identities`, identity)).status, 201)
      assert.equal((await fixture.signIn('impostor')).error, 'no_account')
      assert.equal(
        (await app.admin.post(`/users/${other.id}/identities`, { ...identity, issuer: provider.issuer })).status,
        201,
      )
      assert.equal((await fixture.redeem(await fixture.signIn('impostor'))).body.id, other.id)
    })

    it('does not bypass a locked name', async () => {
      await fixture.linked('locked')
      const returned = await fixture.signIn('locked')
      for (let tries = 0; tries < 10; tries++)
        await fixture.app.anonymous.post('/users/login', { username: 'locked', password: 'wrong' })
      assert.equal((await fixture.redeem(returned)).status, 401)
    })

    it('continues in another process at each step', async () => {
      const user = await fixture.linked('wandering')
      const others = [0, 1].map(() =>
        openFixture({ databaseUrl: fixture.app.databaseUrl, use: fixture.provider, clock: fixture.clock }),
      )
      const [second, third] = await Promise.all(others)
      try {
        const begun = await fixture.begin('wandering')
        const moved = second.browser('wandering')
        moved.keep(BASE, ...begun.browser.cookies(BASE))
        const returned = await second.end({ ...begun, browser: moved })
        const reply = await third.redeem(returned)
        assert.deepEqual([reply.status, reply.body.id], [200, user.id])
      } finally {
        await Promise.all([second.close(), third.close()])
      }
    })
  })

  describe('identities', () => {
    const { issuer, subject } = { issuer: 'https://id.example/realm', subject: 'someone' }
    const query = `?${new URLSearchParams({ issuer, subject })}`

    it('are linked, listed and unlinked by admins', async () => {
      const { admin } = fixture.app
      const user = await fixture.app.user('linked-by-admin')
      const path = `/users/${user.id}/identities`
      const made = await admin.post(path, { issuer, subject })
      assert.equal(made.status, 201)
      assert.deepEqual([made.body.label, made.body.last_login_at], [null, null])
      const entry = (await fixture.entries('users:CreateUserIdentity')).at(-1)
      assert.deepEqual([entry.project_id, entry.resource_public_id, entry.detail], [null, user.id, { issuer, subject }])
      assert.deepEqual((await admin.post(path, { issuer, subject })).body, made.body)
      assert.equal((await admin.post(path, { issuer, subject: 'SOMEONE' })).status, 201)
      const listed = (await admin.get(`${path}?limit=1`)).body
      assert.deepEqual([listed.total, listed.data.length], [2, 1])
      assert.equal((await admin.delete(`${path}${query}`)).status, 204)
      assert.deepEqual((await fixture.entries('users:DeleteUserIdentity')).at(-1).detail, { issuer, subject })
      assert.equal((await admin.delete(`${path}${query}`)).body.error.code, 'RESOURCE_NOT_FOUND')
      assert.deepEqual(
        (await admin.get(path)).body.data.map((identity: { subject: string }) => identity.subject),
        ['SOMEONE'],
      )
    })

    it('belong to one user each', async () => {
      const { admin } = fixture.app
      const [first, second] = [await fixture.app.user(), await fixture.app.user()]
      const identity = { issuer, subject: 'fought over' }
      const replies = await Promise.all(
        [first, second].map(({ id }) => admin.post(`/users/${id}/identities`, identity)),
      )
      assert.deepEqual(replies.map(({ status }) => status).sort(), [201, 409])
      const loser = replies.find(({ status }) => status === 409)
      assert.deepEqual([loser?.body.error.code, loser?.body.error.meta], ['NAME_CONFLICT', identity])
      const losing = replies[0].status === 409 ? first : second
      // Who does not have it cannot unlink it either.
      const unlinked = await admin.delete(`/users/${losing.id}/identities?${new URLSearchParams(identity)}`)
      assert.equal(unlinked.status, 404)
    })

    it('are readable only by their user and by admins', async () => {
      const everything = { statement: [{ effect: 'Allow', action: ['*'] }] }
      const user = await fixture.app.user('reads-own', [everything])
      const other = await fixture.app.user('reads-others', [everything])
      const path = `/users/${user.id}/identities`
      assert.equal((await user.get(path)).status, 200)
      assert.equal((await other.get(path)).status, 403)
      assert.equal((await other.get('/users/user_nobody/identities')).status, 403)
      assert.equal((await fixture.app.admin.get('/users/user_nobody/identities')).status, 404)
      for (const caller of [user, other]) {
        assert.equal((await caller.post(path, { issuer, subject: 'taken over' })).status, 403)
        assert.equal((await caller.delete(`${path}${query}`)).status, 403)
      }
      assert.equal((await fixture.app.anonymous.get(path)).status, 401)
    })

    it('require an issuer and a subject', async () => {
      const { id } = await fixture.app.user()
      const invalid: [object, string][] = [
        [{ subject }, 'issuer'],
        [{ issuer }, 'subject'],
        [{ issuer: 'login.example', subject }, 'issuer'],
        [{ issuer: 'https://login.example?x=1', subject }, 'issuer'],
        [{ issuer, subject: '' }, 'subject'],
        [{ issuer, subject: 'x'.repeat(256) }, 'subject'],
        [{ issuer, subject, label: 'x' }, 'label'],
      ]
      for (const [body, field] of invalid) {
        const reply = await fixture.app.admin.post(`/users/${id}/identities`, body)
        assert.deepEqual([reply.status, reply.body.error.meta.problems[0].path], [400, field], JSON.stringify(body))
      }
      const unlinked = await fixture.app.admin.delete(`/users/${id}/identities?issuer=${encodeURIComponent(issuer)}`)
      assert.deepEqual([unlinked.status, unlinked.body.error.meta.problems[0].path], [400, 'subject'])
    })
  })

  it('accepts a password or a code, each with its required fields', async () => {
    const verifier = 'v'.repeat(43)
    const invalid: [object, string][] = [
      [{ oidc_code: 'x' }, 'code_verifier'],
      [{ code_verifier: verifier }, 'oidc_code'],
      [{ oidc_code: 'x', code_verifier: 'short' }, 'code_verifier'],
      [{ oidc_code: '', code_verifier: verifier }, 'oidc_code'],
      [{ oidc_code: 'x', code_verifier: verifier, username: 'alice' }, 'username'],
      [{ ...ADMIN, oidc_code: 'x', code_verifier: verifier }, 'username'],
      [{ username: 'alice' }, 'password'],
    ]
    for (const [body, field] of invalid) {
      const reply = await fixture.app.anonymous.post('/users/login', body)
      assert.deepEqual([reply.status, reply.body.error.meta.problems[0].path], [400, field], JSON.stringify(body))
    }
  })

  describe('with provisioning', () => {
    let policyId: string
    let provisioning: Fixture
    before(async () => {
      const statement = [{ effect: 'Allow', action: [ACTION] }]
      policyId = (await fixture.app.admin.post('/policies', { document: { statement } })).body.id
      provisioning = await openFixture({
        databaseUrl: fixture.app.databaseUrl,
        clock: fixture.clock,
        use: fixture.provider,
        env: {
          OIDC_AUTO_PROVISION: 'true',
          OIDC_DEFAULT_POLICY_IDS: policyId,
          OIDC_REQUIRED_CLAIM: 'groups=staff=eu',
        },
      })
    })
    after(() => provisioning?.close())

    const account = (subject: string, claims: Record<string, unknown>) =>
      fixture.provider.accounts.set(subject, { groups: ['staff=eu'], ...claims })

    it('creates a separate user for an unknown account, with the default policies', async () => {
      const { app, entries, redeem, signIn } = provisioning
      const namesake = await app.user('bob', [{ statement: [{ effect: 'Allow', action: ['*'] }] }])
      await app.admin.patch(`/users/${namesake.id}`, { role: 'admin' })
      account('subject of bob', { preferred_username: 'bob', email: 'bob@example.com' })
      const { status, body } = await redeem(await signIn('subject of bob'))
      assert.deepEqual([status, body.username, body.role], [200, 'bob-2', 'user'])
      assert.notEqual(body.id, namesake.id)
      const own = app.as(body.token)
      const me = (await own.get('/users/me')).body
      assert.deepEqual(me.policy_ids, [policyId])
      assert.equal((await own.get('/users')).status, 403)
      const project = await app.admin.post('/projects', { name: 'private' })
      assert.equal((await own.get(`/projects/${project.body.id}`)).status, 200)
      assert.equal((await own.patch(`/projects/${project.body.id}`, { name: 'mine' })).status, 403)
      const entry = (await entries('users:CreateUser')).at(-1)
      assert.deepEqual([entry.status, entry.resource_public_id, entry.project_id], [201, body.id, null])
      assert.equal(entry.detail.kind, 'oidc')
      assert.equal(entry.detail.username, 'bob-2')

      const users = await provisioning.users()
      assert.equal((await redeem(await signIn('subject of bob'))).body.id, body.id)
      assert.deepEqual(await provisioning.users(), users)
    })

    it('creates one user for concurrent sign-ins of one account', async () => {
      account('eager', { preferred_username: 'eager' })
      const begun = await Promise.all(Array.from({ length: 6 }, () => provisioning.begin('eager')))
      const returned = await Promise.all(begun.map(each => provisioning.end(each)))
      const replies = await Promise.all(returned.map(each => provisioning.redeem(each)))
      assert.deepEqual(
        replies.map(({ status }) => status),
        [200, 200, 200, 200, 200, 200],
      )
      assert.equal(new Set(replies.map(({ body }) => body.id)).size, 1)
      assert.equal((await provisioning.users()).filter(({ username }) => username.startsWith('eager')).length, 1)
    })

    it('gives concurrent accounts with equal names distinct usernames, regardless of case', async () => {
      await provisioning.app.user('Carol')
      const subjects = ['c1', 'c2', 'c3', 'c4']
      for (const subject of subjects) account(subject, { preferred_username: subject === 'c1' ? 'CAROL' : 'carol' })
      const begun = await Promise.all(subjects.map(subject => provisioning.begin(subject)))
      const returned = await Promise.all(begun.map(each => provisioning.end(each)))
      const names = await Promise.all(returned.map(async each => (await provisioning.redeem(each)).body.username))
      assert.deepEqual(names.map(name => name.toLowerCase()).sort(), ['carol-2', 'carol-3', 'carol-4', 'carol-5'])
    })

    it('refuses accounts whose name cannot be a username', async () => {
      const before = await provisioning.users()
      const names = [undefined, null, 7, {}, ['list'], '', '  ', 'line\nbreak', 'nul\0', '\ud800half']
      for (const [index, preferred_username] of names.entries()) {
        account(`unnamed ${index}`, { preferred_username })
        assert.equal(
          (await provisioning.signIn(`unnamed ${index}`)).error,
          'provider_error',
          String(preferred_username),
        )
      }
      assert.deepEqual(await provisioning.users(), before)
    })

    it('truncates a long name to leave space for a number', async () => {
      for (const subject of ['long 1', 'long 2']) account(subject, { preferred_username: ` ${'n'.repeat(300)}` })
      const name = async (subject: string) =>
        (await provisioning.redeem(await provisioning.signIn(subject))).body.username
      assert.equal(await name('long 1'), 'n'.repeat(120))
      assert.equal(await name('long 2'), `${'n'.repeat(120)}-2`)
    })

    describe('and a required claim', () => {
      const claims: [string, unknown, boolean][] = [
        ['that is the value', 'staff=eu', true],
        ['that is a list with the value', ['guests', 'staff=eu'], true],
        ['that is missing', undefined, false],
        ['that is null', null, false],
        ['of another value', 'staff', false],
        ['that begins with the value', 'staff=eu2', false],
        ['of another case', 'Staff=EU', false],
        ['that is an empty list', [], false],
        ['whose list holds a list', [['staff=eu']], false],
        ['that is an object with the value', { 'staff=eu': true }, false],
        ['that is true', true, false],
      ]
      for (const [index, [what, groups, isAdmitted]] of claims.entries())
        it(`${isAdmitted ? 'admits' : 'refuses'} one ${what}`, async () => {
          const subject = `claimed ${index}`
          account(subject, { preferred_username: subject, groups })
          const before = (await provisioning.users()).length
          const { code, error } = await provisioning.signIn(subject)
          assert.equal(error, isAdmitted ? null : 'access_denied')
          assert.equal(code !== null, isAdmitted)
          assert.equal((await provisioning.users()).length, before + (isAdmitted ? 1 : 0))
        })

      it('is checked at every sign-in, and keeps existing tokens', async () => {
        account('leaving', { preferred_username: 'leaving' })
        const { token } = (await provisioning.redeem(await provisioning.signIn('leaving'))).body
        account('leaving', { preferred_username: 'leaving', groups: ['guests'] })
        assert.equal((await provisioning.signIn('leaving')).error, 'access_denied')
        assert.deepEqual((await provisioning.entries('users:Login')).at(-1).detail.reason, 'access_denied')
        assert.equal((await provisioning.app.as(token).get('/users/me')).status, 200)
      })
    })

    it('sets no password: each attempt is refused at the cost of a wrong password', async () => {
      const { app } = provisioning
      account('without password', { preferred_username: 'without-password' })
      const { token, id } = (await provisioning.redeem(await provisioning.signIn('without password'))).body
      const login = (password: string) => app.anonymous.post('/users/login', { username: 'without-password', password })
      const unknown = await app.anonymous.post('/users/login', { username: 'no such user', password: 'wrong' })
      realPasswords()
      let hashed = 0
      const others = Array.from({ length: 8 }, (_value, index) =>
        hashPassword(app.services, `password ${index}`, { ip: '127.0.0.1' }).then(() => hashed++),
      )
      try {
        // Waits for the hashes of earlier requests.
        const refused = await login('wrong')
        assert.ok(hashed >= 7, `answered after ${hashed} hashes of 8`)
        assert.equal(refused.status, 401)
        assert.deepEqual(refused.body, unknown.body)
      } finally {
        await Promise.all(others)
        cheapPasswords()
      }
      for (const password of ['null', 'undefined', '$scrypt$']) assert.equal((await login(password)).status, 401)
      const own = app.as(token)
      const change = await own.put('/users/me/password', { current_password: 'null', new_password: 'a fine password' })
      assert.equal(change.status, 401)
      assert.equal((await app.admin.put(`/users/${id}/password`, { new_password: 'a fine password' })).status, 204)
      assert.equal((await login('a fine password')).status, 200)
    })
  })

  describe('depends on the provider', () => {
    it('and fails without affecting password sign-in while it is unavailable', async () => {
      const provider = await startIdentityProvider({ redirectUri: CALLBACK })
      const port = Number(new URL(provider.issuer).port)
      await provider.close()
      const lonely = await openFixture({ use: provider })
      const start = startAddress({ return_to: '/app/callback', code_challenge: challengeOf('x') })
      try {
        const reply = await lonely.browser().get(start)
        assert.equal(reply.location, `${BASE}/app/callback#error=provider_error`)
        assert.equal(reply.headers.getSetCookie().length, 0)
        assert.equal((await lonely.app.admin.get('/users/me')).status, 200)
        assert.equal((await lonely.app.anonymous.post('/users/login', ADMIN)).status, 200)
        assert.equal((await lonely.app.anonymous.get('//readyz')).status, 200)
        const back = await startIdentityProvider({ redirectUri: CALLBACK, port })
        try {
          await eventually(async () => (await lonely.browser().get(start)).location?.startsWith(back.issuer), {
            every: 100,
          })
        } finally {
          await back.close()
        }
      } finally {
        await lonely.close()
      }
    })

    it('and reaches no internal address that is not allowed', async () => {
      const fenced = await openFixture({ use: fixture.provider, env: { EGRESS_ALLOW_HOSTS: '' } })
      try {
        const before = fixture.provider.requests.length
        const start = startAddress({ return_to: '/app/callback', code_challenge: challengeOf('x') })
        assert.equal((await fenced.browser().get(start)).location, `${BASE}/app/callback#error=provider_error`)
        assert.equal(fixture.provider.requests.length, before)
        assert.ok(fenced.app.logs.some(line => line.includes('identity provider unavailable')))
      } finally {
        await fenced.close()
      }
    })

    it('and supports claims in the id_token and client_secret_basic', async () => {
      const other = await openFixture({ provider: { claimsInToken: true, authMethod: 'client_secret_basic' } })
      try {
        const user = await other.linked('dora')
        const start = startAddress({ return_to: '/app/callback', code_challenge: challengeOf('x') })
        await Promise.all(Array.from({ length: 10 }, () => other.browser().get(start)))
        // Read once, by sign-ins that begin at the same moment too.
        assert.deepEqual(other.provider.requests, ['/.well-known/openid-configuration'])
        other.provider.accounts.set('dora', { preferred_username: 'Dora' })
        assert.equal((await other.redeem(await other.signIn('dora'))).body.id, user.id)
        const { data } = (await user.get(`/users/${user.id}/identities`)).body
        assert.equal(data[0].label, 'Dora')
        assert.ok(other.provider.requests.includes('/token as Basic'))
        assert.ok(!other.provider.requests.some(path => path.startsWith('/me')))
      } finally {
        await other.close()
      }
    })

    it('and works as a public client, below a path, and without TLS outside of production', async () => {
      const base = 'http://muster.example/agents'
      const other = await openFixture({
        base,
        provider: { authMethod: 'none' },
        env: { OIDC_CLIENT_SECRET: '' },
      })
      try {
        const user = await other.linked('emil')
        const begun = await other.begin('emil')
        assert.deepEqual(
          begun.browser.cookies('http://muster.example').map(({ name, path }) => [name, path]),
          [
            ['oidc_login', '/agents/oauth/oidc'],
            ['oidc_login.sig', '/agents/oauth/oidc'],
          ],
        )
        const returned = await other.end(begun)
        assert.equal(returned.address, `${base}/app/callback`)
        assert.equal((await other.redeem(returned)).body.id, user.id)
      } finally {
        await other.close()
      }
    })

    it('and refuses an issuer that differs from the settings', async () => {
      const { port } = new URL(fixture.provider.issuer)
      const names = await startNameServer((_name, type) => (type === 'A' ? ['127.0.0.1'] : []))
      const start = startAddress({ return_to: '/app/callback', code_challenge: challengeOf('x') })
      try {
        // The library trusts some hosts to name another one.
        for (const host of ['company.example', 'company.b2clogin.com']) {
          const misnamed = await openFixture({
            use: fixture.provider,
            env: { OIDC_ISSUER: `http://${host}:${port}`, EGRESS_DNS_SERVERS: names.address },
          })
          const { length } = fixture.provider.requests
          try {
            assert.equal((await misnamed.browser().get(start)).location, `${BASE}/app/callback#error=provider_error`)
            assert.equal(fixture.provider.requests.length, length + 1)
          } finally {
            await misnamed.close()
          }
        }
      } finally {
        await names.close()
      }
    })
  })

  describe('settings', () => {
    it('disable it if they are incomplete', async () => {
      const off = await startApp({ env: { BASE_URL: BASE, OIDC_ISSUER: fixture.provider.issuer } })
      try {
        const browser = new Browser({ served: { [BASE]: off.url } })
        for (const address of [
          startAddress({ return_to: '/app/callback', code_challenge: challengeOf('x') }),
          CALLBACK,
        ]) {
          const reply = await browser.get(address)
          assert.deepEqual([reply.status, JSON.parse(reply.body).error.code], [404, 'RESOURCE_NOT_FOUND'])
        }
        const code = { oidc_code: 'x', code_verifier: 'v'.repeat(43) }
        assert.equal((await off.anonymous.post('/users/login', code)).status, 401)
        await companySignIn.start?.(off.services, 'web')
        assert.ok(off.logs.some(line => line.includes('company sign-in disabled')))
      } finally {
        await off.close()
      }
    })

    it('log a warning for unknown policies, and then provision no user', async () => {
      const env = { OIDC_AUTO_PROVISION: 'true', OIDC_DEFAULT_POLICY_IDS: 'pol_gone, pol_managed_read_only' }
      const wrong = await openFixture({ use: fixture.provider, env })
      try {
        await companySignIn.start?.(wrong.app.services, 'web')
        const warning = wrong.app.logs.find(line => line.includes('unknown policies'))
        assert.ok(warning?.includes('pol_gone'), warning)
        const before = await wrong.users()
        fixture.provider.accounts.set('unlucky', { preferred_username: 'unlucky' })
        assert.equal((await wrong.signIn('unlucky')).error, 'provider_error')
        assert.deepEqual(await wrong.users(), before)
      } finally {
        await wrong.close()
      }
    })

    it('provision no user before the first admin', async () => {
      const empty = await openFixture({ use: fixture.provider, env: { OIDC_AUTO_PROVISION: 'true' } })
      try {
        await empty.app.pool.query(sql.unsafe`delete from users`)
        fixture.provider.accounts.set('early', { preferred_username: 'early' })
        assert.equal((await empty.signIn('early')).error, 'no_account')
        assert.equal((await client(empty.app.url, null).post('/users/bootstrap', ADMIN)).status, 201)
        assert.notEqual((await empty.signIn('early')).code, null)
      } finally {
        await empty.close()
      }
    })

    const invalid: [string, Record<string, string>][] = [
      ['OIDC_ISSUER', { OIDC_ISSUER: 'login.example' }],
      ['OIDC_ISSUER', { OIDC_ISSUER: 'https://login.example/.well-known/openid-configuration' }],
      ['OIDC_SCOPES', { OIDC_SCOPES: 'profile email' }],
      ['OIDC_REQUIRED_CLAIM', { OIDC_REQUIRED_CLAIM: 'groups' }],
      ['OIDC_REQUIRED_CLAIM', { OIDC_REQUIRED_CLAIM: 'groups=' }],
      ['OIDC_REQUIRED_CLAIM', { OIDC_REQUIRED_CLAIM: '=staff' }],
    ]
    for (const [variable, env] of invalid)
      it(`stop the boot with ${JSON.stringify(env)}`, () => {
        assert.throws(
          () => loadConfig(env),
          error => error instanceof ConfigError && error.variable === variable,
        )
      })

    it('require TLS in production', () => {
      const production = {
        NODE_ENV: 'production',
        BASE_URL: BASE,
        JWT_SECRET: 'x'.repeat(32),
        SECRETS_ENCRYPTION_KEY: 'a'.repeat(64),
      }
      const loaded = (issuer: string) => loadConfig({ ...production, OIDC_ISSUER: issuer })
      assert.throws(() => loaded('http://login.example'), ConfigError)
      assert.equal(loaded('https://login.example').OIDC_ISSUER, 'https://login.example')
    })
  })
})
