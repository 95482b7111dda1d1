import assert from 'node:assert/strict'
import { createHash, scryptSync } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { decodeJwt } from 'jose'
import { loadConfig } from '#config.ts'
import { manualClock } from '#core/base/clock.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { sweeps } from '#core/work/sweeps.ts'
import { bootstrapFromSettings } from '#identity/users/bootstrap.ts'
import { type HashRequester, hashPassword } from '#identity/users/passwords.ts'
import {
  ADMIN,
  type Client,
  cheapPasswords,
  client,
  eventually,
  type Reply,
  realPasswords,
  startApp,
  type TestApp,
} from '../support/app.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const PASSWORD = 'a fine password'

/** Audit entries of an action, oldest first. */
const entries = (app: TestApp, action: string) =>
  app.pool.any(sql.unsafe`select * from audit_entries where action = ${action} order by created_at, id`) as Promise<
    readonly any[]
  >

describe('users', () => {
  const app = forSuite(() => startApp({ clock }))
  const clock = manualClock()
  afterEach(cheapPasswords)

  const login = (username: string, password = PASSWORD) => app.anonymous.post('/users/login', { username, password })
  const make = async (username: string, more: object = {}) =>
    (await app.admin.post('/users', { username, password: PASSWORD, ...more })).body

  describe('bootstrap', () => {
    it('succeeds for exactly one of ten concurrent calls', async () => {
      const empty = await startApp()
      try {
        await empty.pool.query(sql.unsafe`delete from users`)
        const body = { username: 'root', password: PASSWORD }
        const replies = await Promise.all(
          Array.from({ length: 10 }, () => empty.anonymous.post('/users/bootstrap', body)),
        )
        const made = replies.filter(reply => reply.status === 201)
        const refused = replies.filter(reply => reply.body.error?.code === 'BOOTSTRAP_ALREADY_COMPLETED')
        assert.equal(made.length, 1)
        assert.equal(refused.length, 9)
        assert.ok(refused.every(reply => reply.status === 409))
        assert.equal(made[0].body.role, 'admin')
        assert.equal((await entries(empty, 'users:Bootstrap')).at(-1).principal_id, made[0].body.id)
      } finally {
        await empty.close()
      }
    })

    it('answers 409 to a valid body and 400 to an invalid one once it is done', async () => {
      assert.equal((await app.anonymous.post('/users/bootstrap', ADMIN)).status, 409)
      assert.equal((await app.anonymous.post('/users/bootstrap', {})).status, 400)
      assert.equal((await app.anonymous.post('/users/bootstrap', { username: 'x', password: 'short' })).status, 400)
    })

    it('is done at boot from ADMIN_USERNAME and ADMIN_PASSWORD, and silently nothing later', async () => {
      const empty = await startApp()
      try {
        await empty.pool.query(sql.unsafe`delete from users`)
        const config = { ...loadConfig(), ...empty.config, ADMIN_USERNAME: 'boot', ADMIN_PASSWORD: PASSWORD }
        const services = { ...empty.services, config }
        await Promise.all([bootstrapFromSettings(services), bootstrapFromSettings(services)])
        await bootstrapFromSettings(services)
        const signedIn = await empty.anonymous.post('/users/login', { username: 'boot', password: PASSWORD })
        assert.equal(signedIn.body.role, 'admin')
        assert.equal((await client(empty.url, signedIn.body.token).get('/users')).body.total, 1)
      } finally {
        await empty.close()
      }
    })
  })

  describe('login', () => {
    it('answers a token of seven days that authenticates', async () => {
      const user = await make('carol')
      const reply = await login('carol')
      assert.equal(reply.status, 200)
      assert.deepEqual(Object.keys(reply.body).sort(), ['expires_at', 'id', 'role', 'token', 'username'])
      const claims = decodeJwt(reply.body.token)
      assert.equal((claims.exp as number) - (claims.iat as number), 604_800)
      assert.deepEqual([claims.sub, claims.typ, claims.role], [user.id, 'user', 'user'])
      const me = await app.as(reply.body.token).get('/users/me')
      assert.equal(me.status, 200)
      assert.equal(me.body.id, user.id)
      assert.equal(me.body.last_login_at, clock.now().toISOString())
      const { credential } = me.body
      assert.deepEqual(credential, {
        type: 'user',
        id: user.id,
        project_id: null,
        expires_at: reply.body.expires_at,
        scopes: null,
      })
    })

    it('accepts the name in any case', async () => {
      await make('MixedCase')
      assert.equal((await login('mixedcase')).body.username, 'MixedCase')
    })

    it('returns the same 401 for a wrong password and an unknown name, and 400 for an invalid body', async () => {
      const wrong = await login(ADMIN.username, 'not the password')
      const unknown = await login('nobody at all', 'not the password')
      assert.equal(wrong.status, 401)
      assert.deepEqual(wrong.body, unknown.body)
      assert.equal(wrong.headers.get('www-authenticate'), 'Bearer')
      for (const body of [{}, { username: 1, password: 2 }, { username: 'a', password: '' }, { username: 'a' }])
        assert.equal((await app.anonymous.post('/users/login', body)).status, 400)
    })

    it('ignores a bad bearer', async () => {
      assert.equal((await app.as('nonsense').post('/users/login', ADMIN)).status, 200)
    })

    it('leaves a global audit entry with the name, signed in or refused', async () => {
      const user = await make('audited')
      await login('audited')
      await login('audited', 'wrong password')
      const [good, bad] = (await entries(app, 'users:Login')).filter(entry => entry.detail.username === 'audited')
      assert.deepEqual([good.status, good.principal_id, good.project_id], [200, user.id, null])
      assert.deepEqual([bad.status, bad.principal_id, bad.project_id], [401, null, null])
    })

    it('rewrites a hash with older parameters', async () => {
      realPasswords()
      const user = await make('oldhash')
      const salt = Buffer.from('0123456789abcdef')
      const key = scryptSync(PASSWORD, salt, 32, { N: 1024, r: 8, p: 1 })
      const text = (bytes: Buffer) => bytes.toString('base64').replace(/=+$/, '')
      const phc = `$scrypt$ln=10,r=8,p=1$${text(salt)}$${text(key)}`
      const stored = () => app.pool.oneFirst(sql.unsafe`select password_hash from users where id = ${user.id}`)
      await app.pool.query(sql.unsafe`update users set password_hash = ${phc} where id = ${user.id}`)
      assert.equal((await login('oldhash', 'wrong password')).status, 401)
      assert.equal(await stored(), phc)
      assert.equal((await login('oldhash')).status, 200)
      assert.match(String(await stored()), /^\$scrypt\$ln=15,r=8,p=1\$/)
      assert.equal((await login('oldhash')).status, 200)
    })

    it('locks a name, known or not, for fifteen minutes after ten failures in a row', async () => {
      await make('locked')
      for (const name of ['locked', 'ghost']) {
        for (let round = 0; round < 10; round++) assert.equal((await login(name, 'wrong password')).status, 401)
      }
      assert.equal((await login('LOCKED')).status, 401)
      clock.advance(15 * 60_000 + 1000)
      assert.equal((await login('locked')).status, 200)
    })

    it('handles concurrent guesses like sequential ones', async () => {
      await make('burst')
      const guesses = Array.from({ length: 40 }, (_, at) => login('burst', at === 39 ? PASSWORD : `guess number ${at}`))
      for (const reply of await Promise.all(guesses)) assert.equal(reply.status, 401)
      assert.equal((await login('burst')).status, 401)
    })

    it('leaves threads to other requests while passwords wait to be hashed', async () => {
      realPasswords()
      const olga = await app.user('olga-busy')
      let done = 0
      const sent = Array.from({ length: 40 }, (_, at) =>
        hashPassword(app.services, `password ${at}`, { ip: '192.0.2.1' }).then(() => done++),
      )
      assert.equal((await olga.get('/users/me')).status, 200)
      const before = done
      await Promise.all(sent)
      assert.ok(before < 30, `${before} hashes came first`)
    })

    it('resets failures at a success, at an admin reset and after the window', async () => {
      const user = await make('forgetful')
      const fail = async (times: number) => {
        for (let round = 0; round < times; round++) await login('forgetful', 'wrong password')
      }
      await fail(9)
      assert.equal((await login('forgetful')).status, 200)
      await fail(9)
      clock.advance(15 * 60_000 + 1000)
      await fail(1)
      assert.equal((await login('forgetful')).status, 200)
      await fail(10)
      assert.equal((await login('forgetful')).status, 401)
      await app.admin.put(`/users/${user.id}/password`, { new_password: 'another password' })
      assert.equal((await login('forgetful', 'another password')).status, 200)
    })
  })

  describe('refused sign-ins in the audit log', () => {
    const MINUTE = 60_000
    const refused = async (at: TestApp, name: string | null, action = 'users:Login') =>
      (await entries(at, action)).filter(entry => entry.status === 401 && entry.detail.username === name)
    /** How many attempts the entries stand for that count several. */
    const counted = (found: readonly any[]): number => found.reduce((sum, entry) => sum + (entry.detail?.count ?? 0), 0)
    const lock = async (name: string, at: TestApp = app) => {
      for (let round = 0; round < 10; round++)
        await at.anonymous.post('/users/login', { username: name, password: 'wrong password' })
    }
    /** Attempts with the right password, for a name that is locked. */
    const attempts = (name: string, count: number, at: TestApp = app) =>
      Promise.all(
        Array.from({ length: count }, () => at.anonymous.post('/users/login', { username: name, password: PASSWORD })),
      )
    /** Waits until `count` attempts are audited or stored for the next entry. */
    const gathered = (name: string, count: number, at: TestApp = app) =>
      eventually(async () => {
        const held = await at.pool.maybeOneFirst(
          sql.unsafe`select attempts from refused_attempts where action = 'users:Login' and username = ${name}`,
        )
        return counted(await refused(at, name || null)) + Number(held ?? 0) === count
      })

    it('are one entry a minute with a count while the name is locked', async () => {
      await make('besieged')
      await lock('besieged')
      assert.equal((await refused(app, 'besieged')).length, 10)
      for (let round = 0; round < 3; round++) {
        for (const reply of await attempts('BESIEGED', 20)) assert.equal(reply.status, 401)
        await gathered('besieged', 20 * (round + 1))
      }
      const [single] = (await refused(app, 'besieged')).slice(10)
      assert.equal((await refused(app, 'besieged')).length, 11)
      assert.deepEqual(
        [single.action, single.status, single.principal_id, single.project_id, single.ip],
        ['users:Login', 401, null, null, '127.0.0.1'],
      )
      clock.advance(MINUTE)
      await attempts('besieged', 1)
      await eventually(async () => counted(await refused(app, 'besieged')) === 61)
      assert.equal((await refused(app, 'besieged')).length, 12)
    })

    it('are one entry a minute in any number of processes', async () => {
      const second = await startApp({ databaseUrl: app.databaseUrl, clock })
      try {
        await make('surrounded')
        await lock('surrounded')
        for (let round = 1; round <= 3; round++) {
          await Promise.all([attempts('surrounded', 5), attempts('surrounded', 5, second)])
          await gathered('surrounded', 10 * round)
        }
        assert.equal((await refused(app, 'surrounded')).length, 11)
        clock.advance(MINUTE)
        await attempts('surrounded', 1, second)
        await eventually(async () => counted(await refused(app, 'surrounded')) === 31)
        assert.equal((await refused(app, 'surrounded')).length, 12)
      } finally {
        await second.close()
      }
    })

    it('of a killed process are written by another', async () => {
      const process = await startProcess('web', app.databaseUrl)
      const victim = { ...app, anonymous: client(process.url, null) }
      try {
        await make('orphaned')
        await lock('orphaned', victim)
        await attempts('orphaned', 5, victim)
        await gathered('orphaned', 5)
        await attempts('orphaned', 7, victim)
        await gathered('orphaned', 12)
      } finally {
        await process.kill()
      }
      assert.ok(counted(await refused(app, 'orphaned')) < 12)
      clock.advance(2 * MINUTE)
      await sweeps.get('refused attempts').run(app.services, new AbortController().signal)
      assert.equal(counted(await refused(app, 'orphaned')), 12)
    })

    it('are written when a process stops', async () => {
      const second = await startApp({ databaseUrl: app.databaseUrl, clock })
      await make('left')
      await lock('left', second)
      await attempts('left', 9, second)
      await second.close()
      await gathered('left', 9)
    })

    it('count guesses sent before the lock that arrive after it', async () => {
      await make('stormed')
      const guesses = Array.from({ length: 25 }, (_, at) => login('stormed', `guess ${at}`))
      await Promise.all(guesses)
      await gathered('stormed', 15)
      assert.equal((await refused(app, 'stormed')).filter(entry => !entry.detail.count).length, 10)
    })

    it('count changes of the own password while the name is locked', async () => {
      const tess = await app.user('tess')
      const change = () =>
        tess.put('/users/me/password', { current_password: 'wrong password', new_password: 'quite another one' })
      for (let round = 0; round < 25; round++) assert.equal((await change()).status, 401)
      const found = async () =>
        (await entries(app, 'users:ChangeOwnPassword')).filter(entry => entry.principal_id === tess.id)
      await eventually(async () => counted(await found()) > 0)
      clock.advance(MINUTE)
      await change()
      await eventually(async () => counted(await found()) === 16)
      const [first] = (await found()).filter(entry => entry.detail?.count)
      assert.equal((await found()).length, 12)
      assert.deepEqual([first.status, first.principal_type, first.resource_srn], [401, 'user', `srn:*:user:${tess.id}`])
    })

    it('are limited for guesses of unknown names', async () => {
      clock.advance(MINUTE)
      await Promise.all(Array.from({ length: 25 }, (_, at) => login(`nobody ${at}`)))
      await gathered('', 5)
      clock.advance(MINUTE)
      await Promise.all(Array.from({ length: 21 }, (_, at) => login(`no one ${at}`)))
      await eventually(async () => counted(await refused(app, null)) === 6)
      const named = (await entries(app, 'users:Login')).filter(entry =>
        /^(nobody|no one) \d/.test(entry.detail.username),
      )
      assert.deepEqual([named.length, (await refused(app, null)).length], [20 + 20, 1 + 1])
    })
  })

  describe('records', () => {
    it('are created by admins, with 409 for a name that differs in case only', async () => {
      const made = await app.admin.post('/users', { username: ' alice ', password: PASSWORD })
      assert.equal(made.status, 201)
      assert.deepEqual(Object.keys(made.body), [
        'id',
        'username',
        'role',
        'display_name',
        'policy_ids',
        'last_login_at',
        'disabled_at',
        'created_at',
        'updated_at',
      ])
      assert.deepEqual([made.body.username, made.body.role, made.body.policy_ids], ['alice', 'user', []])
      const second = await app.admin.post('/users', { username: 'Alice', password: PASSWORD })
      assert.equal(second.status, 409)
      assert.equal(second.body.error.code, 'NAME_CONFLICT')
    })

    it('refuse names and passwords that break the rules, naming the field', async () => {
      for (const [path, body] of [
        ['username', { username: '  ', password: PASSWORD }],
        ['username', { username: 'a\u0007b', password: PASSWORD }],
        ['username', { username: 'x'.repeat(129), password: PASSWORD }],
        ['password', { username: 'shorty', password: '1234567' }],
        ['password', { username: 'longy', password: 'é'.repeat(513) }],
        ['role', { username: 'roly', password: PASSWORD, role: 'root' }],
        ['color', { username: 'coly', password: PASSWORD, color: 'red' }],
      ] as const) {
        const reply = await app.admin.post('/users', body)
        assert.equal(reply.status, 400, path)
        assert.equal(reply.body.error.meta.problems[0].path, path)
      }
      assert.equal((await app.admin.post('/users', { username: 'longest', password: 'é'.repeat(512) })).status, 201)
    })

    it('are listed without password material, filtered by part of the name and by role', async () => {
      await make('dora-lists')
      await make('100%_sure')
      const all = await app.admin.get('/users?limit=3')
      assert.equal(all.status, 200)
      assert.equal(all.body.data.length, 3)
      assert.ok(all.body.total > 3)
      assert.doesNotMatch(JSON.stringify(all.body), /scrypt|hash|token_version/)
      assert.equal((await app.admin.get('/users?username=DORA')).body.total, 1)
      assert.equal((await app.admin.get('/users?username=%25_')).body.total, 1)
      assert.deepEqual(
        (await app.admin.get('/users?role=admin')).body.data.map((user: any) => user.username),
        ['admin'],
      )
      assert.equal((await app.admin.get('/users?role=root')).status, 400)
    })

    it('are readable by admins and by the user, with an entity tag', async () => {
      const dave = await app.user('dave')
      const own = await dave.get(`/users/${dave.id}`)
      assert.equal(own.status, 200)
      assert.ok(own.headers.get('etag'))
      assert.equal((await app.admin.get(`/users/${dave.id}`)).status, 200)
      const missing = await app.admin.get('/users/user_00000000000000000000000000')
      assert.equal(missing.body.error.code, 'RESOURCE_NOT_FOUND')
    })

    it('refuse non-admins whatever the id, the body or the policy', async () => {
      const eve = await app.user('eve', [{ statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] }])
      const ids = [(await app.admin.get('/users/me')).body.id, 'user_00000000000000000000000000', 'x']
      for (const id of ids) {
        for (const reply of [
          await eve.get(`/users/${id}`),
          await eve.get(`/users/${id}/policies`),
          await eve.patch(`/users/${id}`, { nonsense: 1 }),
          await eve.delete(`/users/${id}`),
          await eve.put(`/users/${id}/password`, {}),
          await eve.put(`/users/${id}/policies`, {}),
          await eve.post(`/users/${id}/revoke-tokens`),
        ]) {
          assert.equal(reply.status, 403)
          assert.equal(reply.body.error.message, 'Forbidden')
        }
      }
      assert.equal((await eve.get('/users')).status, 403)
      assert.equal((await eve.post('/users', { username: 'x', password: PASSWORD })).status, 403)
    })

    it('honour If-Match in an update', async () => {
      const user = await make('etagged')
      const { headers } = await app.admin.get(`/users/${user.id}`)
      const tag = { 'if-match': headers.get('etag') as string }
      assert.equal((await app.admin.patch(`/users/${user.id}`, { username: 'etagged2' }, tag)).status, 200)
      assert.equal((await app.admin.patch(`/users/${user.id}`, { username: 'etagged3' }, tag)).status, 412)
    })
  })

  describe('changes', () => {
    it('rename, promote and demote, each ending existing tokens', async () => {
      const frank = await app.user('frank')
      const renamed = await app.admin.patch(`/users/${frank.id}`, { username: 'Frank' })
      assert.equal(renamed.body.username, 'Frank')
      assert.equal((await frank.get('/users/me')).status, 401)
      let again = app.as((await login('frank')).body.token)
      assert.equal((await app.admin.patch(`/users/${frank.id}`, { role: 'admin' })).body.role, 'admin')
      assert.equal((await again.get('/users/me')).status, 401)
      again = app.as((await login('frank')).body.token)
      assert.equal((await again.get('/users')).status, 200)
      await app.admin.patch(`/users/${frank.id}`, { role: 'user' })
      assert.equal((await again.get('/users')).status, 401)
      assert.equal(
        (await app.admin.patch(`/users/${frank.id}`, { username: 'ADMIN' })).body.error.code,
        'NAME_CONFLICT',
      )
    })

    it('have a display name, whose change keeps their tokens', async () => {
      const made = await app.admin.post('/users', {
        username: 'dora',
        password: 'a fine password',
        display_name: ' Dora ',
      })
      assert.deepEqual([made.status, made.body.display_name], [201, 'Dora'])
      const { token } = (await app.anonymous.post('/users/login', { username: 'dora', password: 'a fine password' }))
        .body
      const patch = (body: object) => app.admin.patch(`/users/${made.body.id}`, body)
      assert.equal((await patch({ display_name: 'Dora from support' })).body.display_name, 'Dora from support')
      assert.equal((await app.as(token).get('/users/me')).body.display_name, 'Dora from support')
      assert.equal((await patch({ display_name: null })).body.display_name, null)
      for (const display_name of ['', 'x'.repeat(121), 'a\nb'])
        assert.equal((await patch({ display_name })).status, 400)
    })

    it('keep tokens when nothing changes', async () => {
      const gina = await app.user('gina')
      assert.equal((await app.admin.patch(`/users/${gina.id}`, { username: 'gina', role: 'user' })).status, 200)
      const before = (await gina.get('/users/me')).body.updated_at
      assert.deepEqual((await app.admin.patch(`/users/${gina.id}`, {})).body.updated_at, before)
      assert.equal((await gina.get('/users/me')).status, 200)
    })

    it('never leave the deployment without an admin', async () => {
      const { id } = (await app.admin.get('/users/me')).body
      for (const reply of [
        await app.admin.patch(`/users/${id}`, { role: 'user' }),
        await app.admin.patch(`/users/${id}`, { disabled: true }),
        await app.admin.delete(`/users/${id}`),
      ]) {
        assert.equal(reply.status, 409)
        assert.equal(reply.body.error.code, 'LAST_ADMIN_REQUIRED')
      }
    })

    it('let one of two admins who demote each other succeed', async () => {
      const pair = await startApp()
      try {
        const first = (await pair.admin.get('/users/me')).body.id
        const credentials = { username: 'second', password: PASSWORD }
        const second = (await pair.admin.post('/users', { ...credentials, role: 'admin' })).body.id
        const other = pair.as((await pair.anonymous.post('/users/login', credentials)).body.token)
        // Both are past authentication and wait for the same rows.
        const replies = await pair.services.write(async tx => {
          await tx.any(sql.unsafe`select id from users for update`)
          const waiting = [
            pair.admin.patch(`/users/${second}`, { role: 'user' }),
            other.patch(`/users/${first}`, { role: 'user' }),
          ]
          const blocked = () =>
            pair.pool.oneFirst(sql.unsafe`
              select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
          await eventually(async () => (await onSeparateConnection(blocked)) === 2)
          return { waiting }
        })
        assert.deepEqual((await Promise.all(replies.waiting)).map(reply => reply.status).sort(), [200, 409])
        const left = await pair.pool.oneFirst(sql.unsafe`select count(*) from users where role = 'admin'`)
        assert.equal(left, 1)
      } finally {
        await pair.close()
      }
    })

    it('disable a user with every credential until enabled again', async () => {
      const harry = await app.user('harry')
      const key = app.as((await harry.post('/project-keys', {})).body.secret)
      assert.equal((await key.get('/users/me')).status, 200)
      const disabled = await app.admin.patch(`/users/${harry.id}`, { disabled: true })
      assert.equal(disabled.body.disabled_at, clock.now().toISOString())
      assert.equal((await harry.get('/users/me')).status, 401)
      assert.equal((await key.get('/users/me')).status, 401)
      assert.equal((await login('harry')).status, 401)
      assert.equal((await app.admin.patch(`/users/${harry.id}`, { disabled: false })).body.disabled_at, null)
      assert.equal((await harry.get('/users/me')).status, 200)
      assert.equal((await key.get('/users/me')).status, 200)
    })

    it('delete a user with keys and attachments: token and key are 401', async () => {
      const iris = await app.user('iris', [{ statement: [{ effect: 'Allow', action: ['*'] }] }])
      const key = app.as((await iris.post('/project-keys', {})).body.secret)
      assert.equal((await key.get('/users/me')).status, 200)
      assert.equal((await app.admin.delete(`/users/${iris.id}`)).status, 204)
      assert.equal((await iris.get('/users/me')).status, 401)
      assert.equal((await key.get('/users/me')).status, 401)
      assert.equal((await app.admin.delete(`/users/${iris.id}`)).status, 404)
    })
  })

  describe('passwords', () => {
    it('change by their owner: the old token is 401, the new one and the keys work', async () => {
      const jane = await app.user('jane')
      const key = app.as((await jane.post('/project-keys', {})).body.secret)
      const change = { current_password: PASSWORD, new_password: 'quite another one' }
      const wrong = await jane.put('/users/me/password', { ...change, current_password: 'not the password' })
      assert.equal(wrong.status, 401)
      assert.equal((await jane.put('/users/me/password', { ...change, new_password: 'short' })).status, 400)
      assert.equal((await key.put('/users/me/password', change)).status, 403)
      assert.equal((await jane.get('/users/me')).status, 200)
      const changed = await jane.put('/users/me/password', change)
      assert.equal(changed.status, 200)
      assert.deepEqual(Object.keys(changed.body).sort(), ['expires_at', 'token'])
      assert.equal((await jane.get('/users/me')).status, 401)
      assert.equal((await app.as(changed.body.token).get('/users/me')).status, 200)
      assert.equal((await key.get('/users/me')).status, 200)
      assert.equal((await login('jane')).status, 401)
      assert.equal((await login('jane', 'quite another one')).status, 200)
    })

    it('are reset by an admin, and never show in the audit log', async () => {
      const kim = await app.user('kim')
      const reset = await app.admin.put(`/users/${kim.id}/password`, { new_password: 'reset by an admin' })
      assert.equal(reset.status, 204)
      assert.equal((await kim.get('/users/me')).status, 401)
      assert.equal((await login('kim', 'reset by an admin')).status, 200)
      const [entry] = (await entries(app, 'users:ResetPassword')).filter(found => found.resource_public_id === kim.id)
      assert.deepEqual([entry.status, entry.resource_srn, entry.project_id], [204, `srn:*:user:${kim.id}`, null])
      assert.doesNotMatch(JSON.stringify(await entries(app, 'users:ResetPassword')), /reset by an admin/)
      assert.doesNotMatch(app.logs.join(''), /reset by an admin|scrypt/)
    })

    it('changed four times concurrently leave the one whose token works', async () => {
      const lena = await app.user('lena')
      const replies = await Promise.all(
        Array.from({ length: 4 }, (_, index) =>
          lena.put('/users/me/password', { current_password: PASSWORD, new_password: `new password ${index}` }),
        ),
      )
      const changed = replies.filter(reply => reply.status === 200)
      assert.equal(changed.length, 1)
      assert.ok(replies.every(reply => reply.status === 200 || reply.status === 401))
      assert.equal((await app.as(changed[0].body.token).get('/users/me')).status, 200)
    })

    it('given wrong for a change count as failed logins of the user, whose name the tenth locks', async () => {
      const nina = await app.user('nina')
      const change = (current_password: string) =>
        nina.put('/users/me/password', { current_password, new_password: 'quite another one' })
      for (let round = 0; round < 5; round++) {
        assert.equal((await change('wrong password')).status, 401)
        assert.equal((await login('Nina', 'wrong password')).status, 401)
      }
      const refused = await change(PASSWORD)
      assert.equal(refused.status, 401)
      assert.deepEqual(refused.body, (await change('wrong password')).body)
      assert.equal((await login('nina')).status, 401)
      assert.equal((await nina.get('/users/me')).status, 200)
      clock.advance(15 * 60_000 + 1000)
      assert.equal((await change(PASSWORD)).status, 200)
      assert.equal((await login('nina', 'quite another one')).status, 200)
    })

    it('given right for a change end the count of failures', async () => {
      const ines = await app.user('ines')
      const change = (as: Client, current_password: string, new_password: string) =>
        as.put('/users/me/password', { current_password, new_password })
      for (let round = 0; round < 9; round++) await change(ines, 'wrong password', 'never set at all')
      const changed = await change(ines, PASSWORD, 'quite another one')
      assert.equal(changed.status, 200)
      const renewed = app.as(changed.body.token)
      for (let round = 0; round < 9; round++) await change(renewed, 'wrong password', 'never set at all')
      assert.equal((await change(renewed, 'quite another one', PASSWORD)).status, 200)
    })

    it('guessed concurrently for a change are refused like sequential guesses', async () => {
      const rosa = await app.user('rosa')
      const guesses = Array.from({ length: 40 }, (_, at) =>
        rosa.put('/users/me/password', {
          current_password: at === 39 ? PASSWORD : `guess number ${at}`,
          new_password: 'set by a thief',
        }),
      )
      for (const reply of await Promise.all(guesses)) assert.equal(reply.status, 401)
      assert.equal((await login('rosa', 'set by a thief')).status, 401)
      assert.equal((await rosa.get('/users/me')).status, 200)
    })

    /** Whether a transaction stayed open while a request waited for three other hashes. */
    async function opensTransaction(sender: HashRequester, send: () => Promise<{ status: number }>): Promise<boolean> {
      let done = 0
      const others = Promise.all(
        Array.from({ length: 9 }, () => hashPassword(app.services, PASSWORD, sender).then(() => done++)),
      )
      const reply = send()
      const seen = new Map<string, number>()
      let open = false
      while (!open && done < 8) {
        const idle = (await app.pool.anyFirst(sql.unsafe`
          select pid || ' ' || xact_start from pg_stat_activity
          where datname = current_database() and state = 'idle in transaction'`)) as readonly string[]
        for (const transaction of idle) {
          if (!seen.has(transaction)) seen.set(transaction, done)
          open ||= done - (seen.get(transaction) as number) >= 3
        }
        await sleep(5)
      }
      await others
      assert.ok((await reply).status < 300)
      return open
    }

    it('are hashed and compared outside of transactions', async () => {
      realPasswords()
      const pia = await app.user('pia')
      const new_password = 'quite another one'
      const credentials = { username: 'hashed-outside', password: PASSWORD }
      const admin = { user: (await app.admin.get('/users/me')).body.id }
      for (const [sender, send] of [
        [{ user: pia.id }, () => pia.put('/users/me/password', { current_password: PASSWORD, new_password })],
        [admin, () => app.admin.put(`/users/${pia.id}/password`, { new_password })],
        [admin, () => app.admin.post('/users', credentials, { 'idempotency-key': 'hashed-outside' })],
        [{ ip: '127.0.0.1' }, () => login('pia', new_password)],
      ] as const)
        assert.equal(await opensTransaction(sender, send), false, send.toString())
      const again = await app.admin.post('/users', credentials, { 'idempotency-key': 'hashed-outside' })
      assert.deepEqual([again.status, again.headers.get('idempotency-replayed')], [201, 'true'])
    })

    it('reset while the old one is compared keep the reset value', async () => {
      realPasswords()
      const vera = await app.user('vera')
      const sender = { user: vera.id }
      const reset = await hashPassword(app.services, 'set in between', sender)
      const others = Promise.all(Array.from({ length: 12 }, () => hashPassword(app.services, PASSWORD, sender)))
      const from = app.statements.length
      const change = vera.put('/users/me/password', { current_password: PASSWORD, new_password: 'too late for this' })
      await eventually(() => app.statements.slice(from).some(text => text.includes('password_hash')), { every: 1 })
      await app.pool.query(sql.unsafe`
        update users set password_hash = ${reset}, token_version = token_version + 1 where id = ${vera.id}`)
      await others
      assert.equal((await change).status, 401)
      assert.equal((await login('vera', 'set in between')).status, 200)
    })

    /** The sign-in of an unknown user, which ends with null when the client leaves. */
    const signInUnless = async (leaving: AbortController, username: string): Promise<Reply | null> => {
      try {
        const response = await fetch(`${app.url}/api/v1/users/login`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ username, password: PASSWORD }),
          signal: leaving.signal,
        })
        return { status: response.status, headers: response.headers, body: await response.json() }
      } catch (error) {
        if (leaving.signal.aborted) return null
        throw error
      }
    }

    it('wait for at most a hundred others, and for signed-in users not for a flood of sign-ins', async () => {
      realPasswords()
      const rita = await app.user('rita-flooded')
      const leaving = new AbortController()
      const settled: Reply[] = []
      const flood = Array.from({ length: 130 }, async (_, at) => {
        const reply = await signInUnless(leaving, `flood ${at}`)
        if (reply) settled.push(reply)
      })
      const change = rita.put('/users/me/password', { current_password: PASSWORD, new_password: 'quite another one' })
      const before = await change.then(reply => {
        assert.equal(reply.status, 200)
        return settled.length
      })
      assert.ok(before < 100, `${before} of the flood were answered first`)
      const refused = () => settled.filter(reply => reply.status !== 401)
      await eventually(() => refused().length >= 20, { what: '20 refused' })
      // To hash for those that wait takes seconds.
      leaving.abort()
      await Promise.all(flood)
      for (const { status, body, headers } of refused()) {
        assert.deepEqual(
          [status, body.error.code, body.error.meta],
          [503, 'SERVICE_NOT_READY', { checks: { passwords: 'busy' } }],
        )
        assert.equal(headers.get('retry-after'), '5')
      }
    })

    it('are not hashed for clients that have left the queue', async () => {
      realPasswords()
      const leaving = new AbortController()
      const left = Array.from({ length: 60 }, (_, at) => signInUnless(leaving, `leaving ${at}`))
      const counted = async () =>
        Number(await app.pool.oneFirst(sql.unsafe`select count(*) from login_failures where username like 'leaving %'`))
      await eventually(async () => (await counted()) > 0, { every: 1 })
      leaving.abort()
      await Promise.all(left)
      // Waits for the remaining requests.
      assert.equal((await login('behind those who left')).status, 401)
      const compared = await counted()
      assert.ok(compared < 50, `${compared} were compared`)
    })

    it('are stored as scrypt PHC strings with a salt each', async () => {
      realPasswords()
      await make('salt1')
      await make('salt2')
      const hashes = (await app.pool.anyFirst(
        sql.unsafe`select password_hash from users where username in ('salt1', 'salt2')`,
      )) as readonly string[]
      assert.notEqual(hashes[0], hashes[1])
      for (const hash of hashes) {
        assert.match(hash, /^\$scrypt\$ln=15,r=8,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/)
        assert.ok(!hash.includes(createHash('sha256').update(PASSWORD).digest('base64').slice(0, 20)))
      }
    })
  })

  describe('tokens', () => {
    it('end together when the user or an admin revokes them', async () => {
      const mona = await app.user('mona')
      const second = app.as((await login('mona')).body.token)
      assert.equal((await mona.post('/users/me/revoke-tokens')).status, 204)
      assert.equal((await mona.get('/users/me')).status, 401)
      assert.equal((await second.get('/users/me')).status, 401)
      const third = app.as((await login('mona')).body.token)
      assert.equal((await app.admin.post(`/users/${mona.id}/revoke-tokens`)).status, 204)
      assert.equal((await third.get('/users/me')).status, 401)
    })

    it('of users expire after seven days', async () => {
      const nora = await app.user('nora')
      clock.advance(7 * 24 * 3_600_000 - 5000)
      assert.equal((await nora.get('/users/me')).status, 200)
      clock.advance(10_000)
      assert.equal((await nora.get('/users/me')).status, 401)
      clock.advance(-7 * 24 * 3_600_000)
    })
  })

  describe('own permissions', () => {
    const of = (reply: any, action: string) => reply.body.data.find((item: any) => item.action === action)?.allowed
    /** All pages as one. */
    async function permissions(client: Client, filter = '') {
      const first = await client.get(`/users/me/permissions?limit=100${filter}`)
      for (let offset = 100; offset < first.body.total; offset += 100) {
        const { body } = await client.get(`/users/me/permissions?limit=100&offset=${offset}${filter}`)
        first.body.data.push(...body.data)
      }
      return first
    }

    it('return all, some or none for every action of the catalogue', async () => {
      const project = await app.project()
      const other = await app.project()
      const user = await app.user('olga', [
        {
          statement: [
            { effect: 'Allow', action: ['actors:*'], resource: [`srn:${project.id}:actor:*`] },
            { effect: 'Deny', action: ['actors:DeleteActor'] },
            {
              effect: 'Deny',
              action: ['actors:UpdateActor'],
              condition: { StringEquals: { 'svc:ResourceTag/locked': 'yes' } },
            },
          ],
        },
      ])
      const anywhere = await permissions(user)
      assert.equal(anywhere.status, 200)
      assert.equal(anywhere.body.total, anywhere.body.data.length)
      assert.equal(of(anywhere, 'actors:GetActor'), 'some')
      assert.equal(of(anywhere, 'users:CreateUser'), 'none')
      assert.equal(of(anywhere, 'projects:GetProject'), 'none')
      const here = await permissions(user, `&project_id=${project.id}`)
      assert.equal(of(here, 'actors:GetActor'), 'all')
      assert.equal(of(here, 'actors:UpdateActor'), 'some')
      assert.equal(of(here, 'actors:DeleteActor'), 'none')
      assert.equal((await user.get(`/users/me/permissions?project_id=${other.id}`)).status, 403)
      const scope = await project.key.get(`/users/me/permissions?project_id=${other.id}`)
      assert.equal(scope.body.error.code, 'API_KEY_PROJECT_SCOPE')
      const bound = await permissions(project.key)
      assert.equal(of(bound, 'actors:DeleteActor'), 'all')
      assert.equal(of(bound, 'users:CreateUser'), 'none')
      const admin = await permissions(app.admin)
      assert.equal(of(admin, 'users:CreateUser'), 'all')
      const missing = await app.admin.get('/users/me/permissions?project_id=proj_00000000000000000000000000')
      assert.equal(missing.status, 404)
      const everywhere = await app.user('omar', [{ statement: [{ effect: 'Allow', action: ['*'] }] }])
      const named = await everywhere.get('/users/me/permissions?project_id=proj_00000000000000000000000000')
      assert.deepEqual([named.status, named.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    })
  })
})
