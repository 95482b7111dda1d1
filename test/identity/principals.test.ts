import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { loadConfig } from '#config.ts'
import { manualClock } from '#core/base/clock.ts'
import { createLog } from '#core/base/log.ts'
import { sql } from '#core/db/sql.ts'
import { decide } from '#core/iam/decide.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { PrincipalCache, type PrincipalSource } from '#identity/principals/principal-cache.ts'
import { authenticate, callerForPrincipal } from '#identity/principals/principals.ts'
import { signToken, type TokenKind } from '#identity/tokens/tokens.ts'
import { ADMIN, eventually, startApp, type TestApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'

const allowAll = { statement: [{ effect: 'Allow', action: ['*'] }] }

describe('credentials', () => {
  let app: TestApp
  const clock = manualClock()
  before(async () => {
    app = await startApp({ clock, env: { JWT_SECRET_PREVIOUS: 'the secret of the year before this one' } })
  })
  after(() => app.close())

  const status = async (token: string | null) => (await app.as(token).get('/users/me')).status
  const key = async (body: object = {}, by = app.admin) => (await by.post('/project-keys', body)).body

  it('that are missing or wrong give the same 401 with WWW-Authenticate', async () => {
    const replies = [
      await app.anonymous.get('/users/me'),
      await app.as('nonsense').get('/users/me'),
      await app.as(`sk_${'a'.repeat(43)}`).get('/users/me'),
      await app.as('sk_short').get('/users/me'),
      await app.as(`sk_${'a'.repeat(5000)}`).get('/users/me'),
      await app.as('a.b.c').get('/users/me'),
      await app.anonymous.get('/users/me', { authorization: `Basic ${app.admin.token}` }),
      await app.anonymous.get(`/users/me?access_token=${app.admin.token}`),
    ]
    for (const reply of replies) {
      assert.equal(reply.status, 401)
      assert.deepEqual(reply.body, replies[0].body)
      assert.equal(reply.body.error.message, 'Unauthorized')
      assert.equal(reply.headers.get('www-authenticate'), 'Bearer')
    }
  })

  it('accept the scheme in any case', async () => {
    assert.equal((await app.anonymous.get('/users/me', { authorization: `bEaReR ${app.admin.token}` })).status, 200)
  })

  describe('user tokens', () => {
    let admin: { id: string }
    before(async () => {
      admin = (await app.admin.get('/users/me')).body
    })
    const forge = (header: object, claims: object, secret: string, hash = 'sha256') => {
      const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
      const signed = `${part(header)}.${part(claims)}`
      return `${signed}.${createHmac(hash, secret).update(signed).digest('base64url')}`
    }
    const claims = (more: object = {}) => {
      const now = Math.floor(clock.now().getTime() / 1000)
      return { sub: admin.id, typ: 'user', ver: 1, role: 'admin', iat: now, exp: now + 600, jti: 'x', ...more }
    }

    it('verify by the current and the previous secret, in HS256 only', async () => {
      const { JWT_SECRET, JWT_SECRET_PREVIOUS } = app.config
      const HS256 = { alg: 'HS256', typ: 'JWT' }
      assert.equal(await status(forge(HS256, claims(), JWT_SECRET)), 200)
      assert.equal(await status(forge(HS256, claims(), JWT_SECRET_PREVIOUS as string)), 200)
      assert.equal(await status(forge(HS256, claims(), 'another secret')), 401)
      assert.equal(await status(forge({ alg: 'HS512' }, claims(), JWT_SECRET, 'sha512')), 401)
      assert.equal(await status(forge({ alg: 'none' }, claims(), JWT_SECRET).replace(/[^.]+$/, '')), 401)
      assert.equal(await status(forge(HS256, claims({ exp: undefined }), JWT_SECRET)), 401)
      assert.equal(await status(forge(HS256, claims({ sub: undefined }), JWT_SECRET)), 401)
      assert.equal(await status(forge(HS256, claims({ sub: { toString: 1 } }), JWT_SECRET)), 401)
      assert.equal(await status(forge(HS256, claims({ sub: 'user_\u0000' }), JWT_SECRET)), 401)
      assert.equal(await status(forge(HS256, claims({ ver: 2 }), JWT_SECRET)), 401)
      assert.equal(await status(forge(HS256, claims({ ver: '1' }), JWT_SECRET)), 401)
      assert.equal(await status(forge(HS256, claims({ exp: claims().iat - 1 }), JWT_SECRET)), 401)
    })

    it('of any other kind are 401, never 500', async () => {
      for (const kind of ['oauth', 'run', 'download', 'upload', 'ingestion'] satisfies TokenKind[]) {
        const { token } = await signToken(app.services, kind, admin.id, { ver: 1 }, 600)
        assert.equal(await status(token), 401, kind)
      }
      assert.equal(await status((await signToken(app.services, 'user', admin.id, { ver: 1 }, 600)).token), 200)
    })

    it('keep no role: a demotion binds the next request', async () => {
      const made = await app.admin.post('/users', { username: 'deputy', password: 'a fine password', role: 'admin' })
      const login = { username: 'deputy', password: 'a fine password' }
      const deputyKey = app.as(
        (await key({}, app.as((await app.anonymous.post('/users/login', login)).body.token))).secret,
      )
      assert.equal((await deputyKey.get('/users')).status, 200)
      await app.admin.patch(`/users/${made.body.id}`, { role: 'user' })
      assert.equal((await deputyKey.get('/users')).status, 403)
      assert.equal((await deputyKey.get('/users/me')).body.role, 'user')
    })
  })

  describe('keys', () => {
    it('return their ID, binding and expiry', async () => {
      const project = await app.project()
      const expires_at = new Date(clock.now().getTime() + 3_600_000).toISOString()
      const made = await key({ project_id: project.id, expires_at })
      const me = (await app.as(made.secret).get('/users/me')).body
      assert.deepEqual(me.credential, {
        type: 'api_key',
        id: made.id,
        project_id: project.id,
        expires_at,
        scopes: null,
      })
      assert.equal(me.username, ADMIN.username)
    })

    it('expire at their time, also when cached', async () => {
      const expires_at = new Date(clock.now().getTime() + 60_000).toISOString()
      const { secret } = await key({ expires_at })
      assert.equal(await status(secret), 200)
      clock.advance(61_000)
      assert.equal(await status(secret), 401)
    })

    it('are refused from the next request after deletion, and follow their owner', async () => {
      const user = await app.user(undefined, [allowAll])
      const project = await app.project()
      const made = await key({}, user)
      const client = app.as(made.secret)
      assert.equal((await client.get(`/projects/${project.id}`)).status, 200)
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })
      assert.equal((await client.get(`/projects/${project.id}`)).status, 403)
      assert.equal((await user.delete(`/project-keys/${made.id}`)).status, 204)
      assert.equal(await status(made.secret), 401)
    })

    it('bound to a project are 401 once it is deleted', async () => {
      const project = await app.project()
      assert.equal((await project.key.get('/users/me')).status, 200)
      assert.equal((await app.admin.delete(`/projects/${project.id}`)).status, 204)
      assert.equal((await project.key.get('/users/me')).status, 401)
    })

    it('rotated with a grace period accept both strings until it ends', async () => {
      const made = await key()
      const rotated = (await app.admin.post(`/project-keys/${made.id}/rotate`, { grace_seconds: 60 })).body
      assert.equal(await status(made.secret), 200)
      assert.equal(await status(rotated.secret), 200)
      clock.advance(61_000)
      assert.equal(await status(made.secret), 401)
      assert.equal(await status(rotated.secret), 200)
      const again = (await app.admin.post(`/project-keys/${made.id}/rotate`, {})).body
      assert.equal(await status(rotated.secret), 401)
      assert.equal(await status(again.secret), 200)
    })

    it('with allowed addresses are 401 from elsewhere', async () => {
      const made = await key({ allowed_ips: ['10.0.0.0/8'] })
      assert.equal(await status(made.secret), 401)
      await app.admin.patch(`/project-keys/${made.id}`, { allowed_ips: ['10.0.0.0/8', '127.0.0.0/8'] })
      assert.equal(await status(made.secret), 200)
      const from = async (ip: string | null) => (await authenticate(app.services, made.secret, { ip })) !== null
      assert.deepEqual(
        [
          await from('10.1.2.3'),
          await from('::ffff:10.1.2.3'),
          await from('::1'),
          await from('8.8.8.8'),
          await from(null),
        ],
        [true, true, false, false, false],
      )
    })

    it('show their last use a moment later, at most once a minute', async () => {
      const made = await key()
      const shown = async () => (await app.admin.get(`/project-keys/${made.id}`)).body.last_used_at
      assert.equal(await status(made.secret), 200)
      const first = await eventually(shown)
      assert.equal(await status(made.secret), 200)
      assert.equal(await shown(), first)
    })
  })

  describe('resolution', () => {
    it('takes one statement, none for a while, one more after a change', async () => {
      let statements = 0
      const config = loadConfig(testEnvironment(app.databaseUrl))
      const log = createLog({ level: 'silent' })
      const services = await openServices(config, { log, role: 'web', clock, onRoundTrip: () => statements++ })
      try {
        const user = await app.user(undefined, [allowAll, allowAll])
        const made = await key({ policy_ids: [(await app.admin.get('/policies')).body.data[0].id] }, user)
        await eventually(async () => {
          // Until the process listens it does not cache.
          await authenticate(services, made.secret, { ip: null })
          statements = 0
          await authenticate(services, made.secret, { ip: null })
          return statements === 0
        })
        const count = async (token: string) => {
          statements = 0
          const caller = await authenticate(services, token, { ip: null })
          return { statements, layers: caller?.layers.map(layer => [layer.kind, layer.documents.length]) ?? null }
        }
        assert.deepEqual(await count(user.token as string), { statements: 1, layers: [['user', 2]] })
        assert.deepEqual(await count(user.token as string), { statements: 0, layers: [['user', 2]] })
        const layers = [
          ['user', 2],
          ['key', 1],
        ]
        assert.deepEqual(await count(made.secret), { statements: 0, layers })
        await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })
        const seen = await eventually(async () => {
          const now = await count(made.secret)
          return now.layers?.[0][1] === 0 ? now : null
        })
        assert.equal(seen.statements, 1)
        assert.equal((await count(`sk_${'b'.repeat(43)}`)).statements, 1)
        assert.equal((await count('sk_not a key')).statements, 0)
        statements = 0
        const secret = (await key({}, user)).secret
        await Promise.all(Array.from({ length: 20 }, () => authenticate(services, secret, { ip: null })))
        assert.equal(statements, 1)
      } finally {
        await services.close()
      }
    })

    it('does not use its cache while notifications are down', async () => {
      const user = await app.user(undefined, [allowAll])
      const project = await app.project()
      assert.equal((await user.get(`/projects/${project.id}`)).status, 200)
      await app.pool.query(sql.unsafe`delete from user_policies where user_id = ${user.id}`)
      assert.equal(
        (await user.get(`/projects/${project.id}`)).status,
        200,
        'an unannounced change is not visible immediately',
      )
      await app.pool.query(sql.unsafe`
        select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'muster-listen'`)
      await eventually(async () => (await user.get(`/projects/${project.id}`)).status === 403, { within: 4000 })
    })

    it('denies everything in a layer with an invalid stored policy, and logs it once a minute', async () => {
      const project = await app.project()
      const user = await app.user(undefined, [allowAll])
      const policy = (await app.admin.get(`/users/${user.id}`)).body.policy_ids[0]
      await app.pool.query(sql.unsafe`
        update policies set document = '{"statement": "none"}', version = version + 1 where id = ${policy}`)
      // Any announced change makes the process read again.
      for (let round = 0; round < 3; round++) {
        await app.admin.post(`/users/${user.id}/policies/${policy}`)
        await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [policy] })
        assert.equal((await user.get(`/projects/${project.id}`)).status, 403)
      }
      assert.equal(app.logs.filter(line => line.includes('stored policy invalid') && line.includes(policy)).length, 1)
    })
  })

  describe('work that runs later', () => {
    const record = (type: 'user' | 'api_key', id: string) => ({ type, id, via: null })
    const at = (principal: Parameters<typeof callerForPrincipal>[1], project: string) =>
      callerForPrincipal(app.servicesOf(project), principal, project)

    it('runs as the caller that started it, bound to its project and with current permissions', async () => {
      const project = await app.project()
      const user = await app.user(undefined, [allowAll])
      const caller = await at(record('user', user.id), project.id)
      assert.ok(caller)
      assert.equal(caller.project_id, project.id)
      assert.deepEqual(caller.principal, { type: 'user', id: user.id })
      assert.equal(caller.credential.type, 'run')
      const allowed = (layers = caller.layers) =>
        decide(layers, {
          action: 'actors:GetActor',
          names: [`srn:${project.id}:actor:x`],
          type: 'actor',
          facts: { principal_id: user.id, principal_type: 'user', credential_type: 'run' },
        })
      assert.equal(allowed(), true)
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })
      assert.equal(allowed((await at(record('user', user.id), project.id))?.layers), false)
      const ofAdmin = (await app.admin.post('/project-keys', { project_id: project.id })).body.id
      assert.deepEqual((await at(record('api_key', ofAdmin), project.id))?.layers, [])
    })

    it('has no caller once the user or key is deleted, disabled, expired or bound elsewhere', async () => {
      const project = await app.project()
      const other = await app.project()
      const user = await app.user(undefined, [allowAll])
      const made = await key({ expires_at: new Date(clock.now().getTime() + 60_000).toISOString() }, user)
      assert.ok(await at(record('api_key', made.id), project.id))
      assert.equal(await at(record('api_key', other.keyId), project.id), null)
      const granted = { type: 'oauth_grant', id: 'grant_x' } as const
      assert.equal(await at({ ...record('user', user.id), via: granted }, project.id), null)
      await app.admin.patch(`/users/${user.id}`, { disabled: true })
      assert.equal(await at(record('user', user.id), project.id), null)
      assert.equal(await at(record('api_key', made.id), project.id), null)
      await app.admin.patch(`/users/${user.id}`, { disabled: false })
      clock.advance(61_000)
      assert.equal(await at(record('api_key', made.id), project.id), null)
      await app.admin.delete(`/users/${user.id}`)
      assert.equal(await at(record('user', user.id), project.id), null)
    })
  })
})

describe('the cache of principals', () => {
  const value = (source: PrincipalSource) => ({ sources: [source] })

  it('drops loads that began before a change', async () => {
    const cache = new PrincipalCache<ReturnType<typeof value>>()
    let release: () => void = () => {}
    const loads: number[] = []
    const load = (number: number) => async () => {
      loads.push(number)
      if (number === 1)
        await new Promise<void>(resolve => {
          release = resolve
        })
      return value('user:a')
    }
    const first = cache.get('a', load(1))
    cache.drop('user:a')
    const second = cache.get('a', load(2))
    await second
    release()
    await first
    await cache.get('a', load(3))
    assert.deepEqual(loads, [1, 2])
    cache.drop('user:a')
    await cache.get('a', load(4))
    cache.clear()
    await cache.get('a', load(5))
    await cache.get('a', load(6))
    assert.deepEqual(loads, [1, 2, 4, 5])
  })

  it('never caches an unknown token', async () => {
    const cache = new PrincipalCache<ReturnType<typeof value>>()
    let loads = 0
    for (let round = 0; round < 3; round++)
      await cache.get('x', async () => {
        loads++
        return null
      })
    assert.equal(loads, 3)
  })
})
