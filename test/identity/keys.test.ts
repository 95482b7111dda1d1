import { strict as assert } from 'node:assert'
import { manualClock } from '#core/base/clock.ts'
import { AT_HOME, eventually, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'

const allow = (action: string, resource: string) => ({
  statement: [{ effect: 'Allow', action: [action], resource: [resource] }],
})

describe('project keys', () => {
  const app = forSuite(() => startApp({ clock }))
  const clock = manualClock()
  const policy = async (document: object) => (await app.admin.post('/policies', { document })).body.id as string
  const works = async (secret: string) => (await app.as(secret).get('/projects')).status === 200
  const ids = (reply: { body: { data: { id: string }[] } }) => reply.body.data.map(item => item.id)
  const unknown = 'key_00000000000000000000000000'

  describe('create', () => {
    it('answers the record and the key, in snake case, for the documented camel-case body', async () => {
      const { id: project_id } = await app.project()
      const p1 = await policy(allow('*', '*'))
      const made = await app.admin.post('/project-keys', { projectPublicId: project_id, policyIds: [p1] })
      assert.equal(made.status, 201)
      assert.match(made.body.secret, /^sk_[0-9A-Za-z]{43}$/)
      assert.equal(made.body.key, made.body.secret)
      assert.match(made.body.id, /^key_[0-9a-z]{26}$/)
      const { id, secret, key: _, created_at, updated_at, user_id, ...rest } = made.body
      assert.deepEqual(rest, {
        name: null,
        key_prefix: secret.slice(0, 11),
        project_id,
        policy_ids: [p1],
        allowed_ips: null,
        expires_at: null,
        last_used_at: null,
        rotated_at: null,
      })
      const read = await app.admin.get(`/project-keys/${id}`)
      assert.deepEqual(read.body, { id, user_id, created_at, updated_at, ...rest })
      const snake = await app.admin.post('/project-keys', { project_id, policy_ids: [p1] })
      assert.deepEqual([snake.body.project_id, snake.body.policy_ids], [project_id, [p1]])
    })

    it('accepts both spellings of a field if they agree', async () => {
      const [a, b] = await Promise.all([app.project(), app.project()])
      const same = { project_id: a.id, projectId: a.id, projectPublicId: a.id }
      assert.equal((await app.admin.post('/project-keys', same)).status, 201)
      const differing = await app.admin.post('/project-keys', { project_id: a.id, projectPublicId: b.id })
      assert.equal(differing.status, 400)
      assert.equal(differing.body.error.meta.problems[0].path, 'projectPublicId')
      const expires = new Date(clock.now().getTime() + 60_000).toISOString()
      assert.equal((await app.admin.post('/project-keys', { expiresAt: expires })).body.expires_at, expires)
    })

    it('refuses unknown fields and wrong values', async () => {
      for (const body of [
        { nope: 1 },
        { user_id: 'x' },
        { name: '' },
        { name: 'x'.repeat(256) },
        { project_id: 3 },
        { policy_ids: 'x' },
        { policy_ids: Array.from({ length: 21 }, (_, index) => `pol_${index}`) },
        { expires_at: 'soon' },
        { expires_at: clock.now().toISOString() },
        { allowed_ips: ['300.1.1.1'] },
        { allowed_ips: ['10.0.0.0/33'] },
      ])
        assert.equal((await app.admin.post('/project-keys', body)).status, 400, JSON.stringify(body))
    })

    it('needs a user credential', async () => {
      const { key, id } = await app.project()
      for (const body of [{ project_id: id }, { nope: 1 }])
        assert.equal((await key.post('/project-keys', body)).status, 403)
    })

    it('needs no policy, and reaches only projects the user can see', async () => {
      const { id } = await app.project()
      const nobody = await app.user()
      assert.equal((await nobody.post('/project-keys', {})).status, 201)
      assert.equal((await nobody.post('/project-keys', { project_id: id })).status, 403)
      assert.equal((await nobody.post('/project-keys', { project_id: 'proj_00000000000000000000000000' })).status, 403)
      const missing = await app.admin.post('/project-keys', { project_id: 'proj_00000000000000000000000000' })
      assert.deepEqual([missing.status, missing.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
      const seer = await app.user(undefined, [allow('secrets:ListSecrets', `srn:${id}:*:*`)])
      assert.equal((await seer.post('/project-keys', { project_id: id })).status, 201)
      const wide = await app.user(undefined, [allow('*', '*')])
      assert.equal((await wide.post('/project-keys', { project_id: 'proj_00000000000000000000000000' })).status, 403)
    })

    it('collapses duplicate policies and names a missing one', async () => {
      const [p1, p2] = [await policy(allow('*', '*')), await policy(allow('secrets:*', '*'))]
      const made = await app.admin.post('/project-keys', { policy_ids: [p2, p1, p2] })
      assert.deepEqual(made.body.policy_ids, [p2, p1])
      const often = await app.admin.post('/project-keys', { policy_ids: Array(21).fill(p1) })
      assert.deepEqual([often.status, often.body.policy_ids], [201, [p1]])
      const many = Array.from({ length: 21 }, (_, index) => `pol_${index}`)
      const refused = await app.admin.post('/project-keys', { policy_ids: many })
      assert.deepEqual([refused.status, refused.body.error.meta.problems[0].path], [400, 'policy_ids'])
      const missing = await app.admin.post('/project-keys', { policyIds: [p1, 'pol_00000000000000000000000000'] })
      assert.deepEqual([missing.status, missing.body.error.code], [400, 'POLICY_NOT_FOUND'])
      const id = 'pol_00000000000000000000000000'
      assert.deepEqual(missing.body.error.meta, { id, missing: [id] })
    })

    it('returns the same key for a repeated request, and stores the response encrypted', async () => {
      const headers = { 'idempotency-key': 'mint-once' }
      const first = await app.admin.post('/project-keys', { name: 'once' }, headers)
      const again = await app.admin.post('/project-keys', { name: 'once' }, headers)
      assert.equal(again.headers.get('idempotency-replayed'), 'true')
      assert.deepEqual(again.body, first.body)
      const [kept] = await app.rows(`select body, sealed_body from idempotency_keys where key = 'mint-once'`)
      assert.equal(kept.body, null)
      assert.ok(!kept.sealed_body.includes(first.body.secret))
    })
  })

  describe('rights', () => {
    it('binds a key to its project', async () => {
      const [a, b] = await Promise.all([app.project(), app.project()])
      assert.equal((await a.key.post('/secrets', { name: 's', value: 'v' })).body.project_id, a.id)
      const other = await a.key.post('/secrets', { project_id: b.id, name: 's', value: 'v' })
      assert.deepEqual([other.status, other.body.error.code], [403, 'API_KEY_PROJECT_SCOPE'])
      assert.deepEqual(other.body.error.meta, { scoped_project: a.id, requested_project: b.id })
    })

    it('never lets a key exceed its owner', async () => {
      const { id, key } = await app.project()
      const secret = (await key.post('/secrets', { name: 's', value: 'v' })).body.id
      const owner = await app.user(undefined, [allow('secrets:GetSecret', `srn:${id}:*:*`)])
      const all = await policy(allow('*', '*'))
      const made = await owner.post('/project-keys', { project_id: id, policy_ids: [all] })
      const mine = app.as(made.body.secret)
      assert.equal((await mine.get(`/secrets/${secret}`)).status, 200)
      assert.equal((await mine.delete(`/secrets/${secret}`)).status, 403)
    })

    it('never lets a key exceed its policies', async () => {
      const { id, key } = await app.project()
      const secret = (await key.post('/secrets', { name: 's', value: 'v' })).body.id
      const owner = await app.user(undefined, [allow('*', '*')])
      const read = await policy(allow('secrets:GetSecret', '*'))
      const mine = app.as((await owner.post('/project-keys', { project_id: id, policy_ids: [read] })).body.secret)
      assert.equal((await mine.get(`/secrets/${secret}`)).status, 200)
      assert.equal((await mine.delete(`/secrets/${secret}`)).status, 403)
    })

    it('lets an unscoped key read every project of its owner, and makes it name one on create', async () => {
      const [a, b, c] = await Promise.all([app.project(), app.project(), app.project()])
      for (const { key } of [a, b, c]) await key.post('/secrets', { name: 'span', value: 'v' })
      const owner = await app.user(undefined, [
        allow('secrets:*', `srn:${a.id}:*:*`),
        allow('secrets:*', `srn:${b.id}:*:*`),
      ])
      const mine = app.as((await owner.post('/project-keys', {})).body.secret)
      const list = await mine.get('/secrets?name=span')
      assert.deepEqual(
        list.body.data.map((item: { project_id: string }) => item.project_id).sort(),
        [a.id, b.id].sort(),
      )
      assert.equal((await mine.post('/secrets', { name: 's', value: 'v' })).status, 400)
      assert.equal((await mine.post('/secrets', { project_id: a.id, name: 's', value: 'v' })).status, 201)
    })

    it('gives a key the rights that its owner has now', async () => {
      const { id, key } = await app.project()
      const secret = (await key.post('/secrets', { name: 's', value: 'v' })).body.id
      const owner = await app.user(undefined, [allow('secrets:*', `srn:${id}:*:*`)])
      const mine = app.as((await owner.post('/project-keys', { project_id: id })).body.secret)
      assert.equal((await mine.get(`/secrets/${secret}`)).status, 200)
      await app.admin.put(`/users/${owner.id}/policies`, { policy_ids: [] })
      assert.equal((await mine.get(`/secrets/${secret}`)).status, 403)
    })

    it('refuses a key from an address outside its ranges', async () => {
      const { id } = await app.project()
      const away = await app.admin.post('/project-keys', {
        project_id: id,
        allowed_ips: ['10.0.0.0/8', '2001:db8::/32'],
      })
      assert.deepEqual(away.body.allowed_ips, ['10.0.0.0/8', '2001:db8::/32'])
      assert.equal((await app.as(away.body.secret).get('/projects')).status, 401)
      await app.admin.patch(`/project-keys/${away.body.id}`, { allowed_ips: ['127.0.0.1'] })
      assert.equal((await app.as(away.body.secret).get('/projects')).status, 200)
      const cleared = await app.admin.patch(`/project-keys/${away.body.id}`, { allowed_ips: [] })
      assert.equal(cleared.body.allowed_ips, null)
    })
  })

  describe('access to a key', () => {
    it('is limited to its owner and admins; others get 404', async () => {
      const [a, b] = [await app.user(), await app.user()]
      const made = await a.post('/project-keys', { name: 'a' })
      const path = `/project-keys/${made.body.id}`
      for (const method of ['get', 'delete'] as const) {
        const hidden = await b[method](path)
        assert.deepEqual([hidden.status, hidden.body.error.meta.id], [404, made.body.id])
      }
      assert.equal((await b.patch(path, { nope: 1 })).status, 404)
      assert.equal((await b.post(`${path}/rotate`)).status, 404)
      assert.equal((await b.get(`/project-keys/${unknown}`)).status, 404)
      assert.ok(await works(made.body.secret))
      assert.equal((await a.get(path)).status, 200)
      assert.equal((await app.admin.get(path)).status, 200)
      assert.equal((await app.admin.delete(path)).status, 204)
      assert.ok(!(await works(made.body.secret)))
    })

    it('stays with an owner who no longer sees the project', async () => {
      const { id } = await app.project()
      const owner = await app.user(undefined, [allow('*', `srn:${id}:*:*`)])
      const made = await owner.post('/project-keys', { project_id: id })
      await app.admin.put(`/users/${owner.id}/policies`, { policy_ids: [] })
      assert.equal((await owner.get(`/project-keys/${made.body.id}`)).status, 200)
      assert.equal((await owner.delete(`/project-keys/${made.body.id}`)).status, 204)
    })

    it('lets a key only read keys of its owner in its project', async () => {
      const [p, q] = await Promise.all([app.project(), app.project()])
      const sibling = await app.admin.post('/project-keys', { project_id: p.id })
      assert.equal((await p.key.get(`/project-keys/${sibling.body.id}`)).status, 200)
      assert.equal((await p.key.patch(`/project-keys/${sibling.body.id}`, { name: 'x' })).status, 403)
      assert.equal((await p.key.delete(`/project-keys/${sibling.body.id}`)).status, 403)
      assert.equal((await p.key.post(`/project-keys/${sibling.body.id}/rotate`)).status, 403)
      assert.equal((await p.key.get(`/project-keys/${q.keyId}`)).status, 404)
      const user = await app.user(undefined, [allow('*', `srn:${p.id}:*:*`)])
      const foreign = await user.post('/project-keys', { project_id: p.id })
      assert.equal((await p.key.get(`/project-keys/${foreign.body.id}`)).status, 404)
    })

    it('lets a key with policies read the keys that its policies allow', async () => {
      const { id, keyId } = await app.project()
      const one = await policy(allow('project-keys:GetProjectKey', `srn:${id}:project_key:${keyId}`))
      const narrow = await app.admin.post('/project-keys', { project_id: id, policy_ids: [one] })
      const mine = app.as(narrow.body.secret)
      assert.equal((await mine.get(`/project-keys/${keyId}`)).status, 200)
      assert.equal((await mine.get(`/project-keys/${narrow.body.id}`)).status, 403)
      assert.equal((await mine.get('/project-keys')).body.total, 0)
    })
  })

  describe('list', () => {
    it('shows users their own keys and admins all', async () => {
      const [a, b] = [await app.user(), await app.user()]
      const mine = (await a.post('/project-keys', {})).body.id
      const other = (await b.post('/project-keys', {})).body.id
      assert.deepEqual(ids(await a.get('/project-keys')), [mine])
      const all = ids(await app.admin.get('/project-keys'))
      assert.ok(all.includes(mine) && all.includes(other))
      assert.deepEqual(ids(await app.admin.get(`/project-keys?user_id=${b.id}`)), [other])
      const foreign = await a.get(`/project-keys?user_id=${b.id}`)
      assert.deepEqual([foreign.status, foreign.body.total], [200, 0])
    })

    it('shows a bound key the keys of its owner in its project', async () => {
      const [p, q] = await Promise.all([app.project(), app.project()])
      assert.deepEqual(ids(await p.key.get('/project-keys')), [p.keyId])
      assert.deepEqual(ids(await app.admin.get(`/project-keys?project_id=${q.id}`)), [q.keyId])
      assert.equal((await p.key.get(`/project-keys?project_id=${q.id}`)).body.error.code, 'API_KEY_PROJECT_SCOPE')
    })

    it('finds keys that were not used since a time', async () => {
      const owner = await app.user()
      const idle = (await owner.post('/project-keys', {})).body
      const used = (await owner.post('/project-keys', {})).body
      await app.rows('update project_keys set created_at = $2 where id = any($1)', [
        [idle.id, used.id],
        new Date(Date.now() - 10 * 86_400_000).toISOString(),
      ])
      assert.ok(await works(used.secret))
      await eventually(async () => (await owner.get(`/project-keys/${used.id}`)).body.last_used_at)
      const since = new Date(Date.now() - 86_400_000).toISOString()
      assert.deepEqual(ids(await owner.get(`/project-keys?unused_since=${since}`)), [idle.id])
      assert.equal((await owner.get('/project-keys?unused_since=yesterday')).status, 400)
    })
  })

  describe('update', () => {
    it('binds, re-binds, unbinds and replaces policies, from the next request on', async () => {
      const made = await app.admin.post('/project-keys', { name: 'moving' })
      const [a, b] = await Promise.all([1, 2].map(() => app.project(undefined, AT_HOME)))
      const none = await policy(allow('secrets:GetSecret', '*'))
      const mine = app.as(made.body.secret)
      const path = `/project-keys/${made.body.id}`
      assert.equal((await mine.get(`/projects/${a.id}`)).status, 200)
      assert.equal((await app.admin.patch(path, { projectId: b.id })).body.project_id, b.id)
      assert.equal((await mine.get(`/projects/${a.id}`)).status, 403)
      assert.equal((await mine.get(`/projects/${b.id}`)).status, 200)
      assert.deepEqual((await app.admin.put(path, { policy_ids: [none] })).body.policy_ids, [none])
      assert.equal((await mine.get(`/projects/${b.id}`)).status, 403)
      const open = await app.admin.patch(path, { policy_ids: [], project_id: null })
      assert.deepEqual([open.body.policy_ids, open.body.project_id, open.body.name], [[], null, 'moving'])
      assert.equal((await mine.get(`/projects/${a.id}`)).status, 200)
    })

    it('changes nothing without fields, and emits no event', async () => {
      const project = await app.project()
      const { id } = (await app.admin.post('/project-keys', { project_id: project.id })).body
      const { body } = await app.admin.patch(`/project-keys/${id}`, { name: 'moved' })
      for (const method of ['patch', 'put'] as const) {
        const reply = await app.admin[method](`/project-keys/${id}`, {})
        assert.deepEqual([reply.status, reply.body], [200, body])
      }
      assert.equal((await app.rows('select 1 from events where resource_id = $1', [id])).length, 2)
    })

    it('refuses what create refuses', async () => {
      const { body } = await app.admin.post('/project-keys', {})
      const path = `/project-keys/${body.id}`
      assert.equal((await app.admin.patch(path, { user_id: 'x' })).status, 400)
      assert.equal((await app.admin.patch(path, { expires_at: '2001-01-01T00:00:00Z' })).status, 400)
      assert.equal((await app.admin.patch(path, { policy_ids: ['pol_x'] })).body.error.code, 'POLICY_NOT_FOUND')
      assert.equal((await app.admin.patch(path, { project_id: 'proj_x' })).status, 404)
      const { id } = await app.project()
      const owner = await app.user()
      const own = (await owner.post('/project-keys', {})).body.id
      assert.equal((await owner.patch(`/project-keys/${own}`, { project_id: id })).status, 403)
    })

    it('ends a key that expires or is deleted', async () => {
      const expires_at = new Date(clock.now().getTime() + 60_000).toISOString()
      const made = await app.admin.post('/project-keys', { expires_at })
      assert.ok(await works(made.body.secret))
      clock.advance(61_000)
      assert.ok(!(await works(made.body.secret)))
    })
  })

  describe('rotate', () => {
    it('invalidates the old string immediately', async () => {
      const made = (await app.admin.post('/project-keys', {})).body
      const rotated = await app.admin.post(`/project-keys/${made.id}/rotate`)
      assert.equal(rotated.status, 200)
      assert.notEqual(rotated.body.secret, made.secret)
      assert.equal(rotated.body.key_prefix, rotated.body.secret.slice(0, 11))
      assert.ok(rotated.body.rotated_at)
      assert.ok(!(await works(made.secret)))
      assert.ok(await works(rotated.body.secret))
    })

    it('keeps the old string valid during its grace period', async () => {
      const made = (await app.admin.post('/project-keys', {})).body
      const rotated = (await app.admin.post(`/project-keys/${made.id}/rotate`, { grace_seconds: 60 })).body
      assert.ok(await works(made.secret))
      assert.ok(await works(rotated.secret))
      clock.advance(61_000)
      assert.ok(!(await works(made.secret)))
      assert.ok(await works(rotated.secret))
    })

    it('bounds the grace of the old secret', async () => {
      const { id } = (await app.admin.post('/project-keys', {})).body
      for (const grace_seconds of [-1, 604_801, 1.5, '60'])
        assert.equal((await app.admin.post(`/project-keys/${id}/rotate`, { grace_seconds })).status, 400)
    })

    it('may be done by the key itself', async () => {
      const { id } = await app.project()
      const nothing = await policy(allow('secrets:GetSecret', `srn:${id}:secret:*`))
      const made = (await app.admin.post('/project-keys', { project_id: id, policy_ids: [nothing] })).body
      const rotated = await app.as(made.secret).post(`/project-keys/${made.id}/rotate`)
      assert.equal(rotated.status, 200)
      assert.ok(await works(rotated.body.secret))
      const [entry] = await app.rows(
        `select principal_type, principal_id, project_id from audit_entries where action = 'project-keys:RotateProjectKey' and resource_public_id = $1`,
        [made.id],
      )
      assert.deepEqual({ ...entry }, { principal_type: 'api_key', principal_id: made.id, project_id: id })
    })

    it('leaves exactly the last of concurrent rotations as the key, and one before it in grace', async () => {
      const made = (await app.admin.post('/project-keys', {})).body
      const replies = await Promise.all(
        Array.from({ length: 6 }, () => app.admin.post(`/project-keys/${made.id}/rotate`, { grace_seconds: 600 })),
      )
      assert.deepEqual([...new Set(replies.map(reply => reply.status))], [200])
      const alive = []
      for (const { body } of replies) if (await works(body.secret)) alive.push(body.secret)
      assert.equal(alive.length, 2)
      assert.ok(!(await works(made.secret)))
    })
  })

  describe('effects of a key', () => {
    it('emits events of bound keys only, without the key', async () => {
      const { id } = await app.project()
      const made = (await app.admin.post('/project-keys', { project_id: id })).body
      const path = `/project-keys/${made.id}`
      const changed = await app.admin.patch(path, { name: 'n' })
      const rotated = (await app.admin.post(`${path}/rotate`)).body
      await app.admin.delete(path)
      const events = await storedEvents(app.pool, { resource: made.id })
      assert.deepEqual(
        events.map(event => event.name),
        ['project_keys.created', 'project_keys.updated', 'project_keys.updated', 'project_keys.deleted'],
      )
      assert.deepEqual(events[1].data, changed.body)
      const unscoped = (await app.admin.post('/project-keys', {})).body
      assert.deepEqual(await app.rows('select 1 from events where resource_id = $1', [unscoped.id]), [])
      const traces = JSON.stringify([
        events,
        await app.rows('select * from audit_entries'),
        await app.rows('select * from project_keys'),
        app.logs,
      ])
      for (const secret of [made.secret, rotated.secret, unscoped.secret]) assert.ok(!traces.includes(secret))
    })

    it('is audited in the project of the key, or of the deployment', async () => {
      const { id } = await app.project()
      const bound = (await app.admin.post('/project-keys', { project_id: id })).body.id
      const free = (await app.admin.post('/project-keys', {})).body.id
      const entries = await app.rows(
        'select project_id, resource_srn, resource_public_id as key from audit_entries where resource_public_id = any($1) order by id',
        [[bound, free]],
      )
      assert.deepEqual(
        entries.map(entry => ({ ...entry })),
        [
          { project_id: id, resource_srn: `srn:${id}:project_key:${bound}`, key: bound },
          { project_id: null, resource_srn: `srn:*:project_key:${free}`, key: free },
        ],
      )
    })

    it('is deleted with its owner', async () => {
      const owner = await app.user()
      const made = (await owner.post('/project-keys', {})).body
      assert.ok(await works(made.secret))
      assert.equal((await app.admin.delete(`/users/${owner.id}`)).status, 204)
      assert.ok(!(await works(made.secret)))
      assert.equal((await app.admin.get(`/project-keys/${made.id}`)).status, 404)
    })

    it('shows how a key was used, from the audit log', async () => {
      const { key, keyId } = await app.project()
      for (let index = 0; index < 3; index++) await key.post('/secrets', { name: 's', value: 'v' })
      const usage = await key.get(`/project-keys/${keyId}/usage`)
      assert.equal(usage.status, 200)
      assert.deepEqual(
        usage.body.days.map((day: { requests: number }) => day.requests),
        [3],
      )
      assert.deepEqual([usage.body.last_action.action, usage.body.last_action.status], ['secrets:CreateSecret', 201])
    })
  })

  it('answers under /api-keys too', async () => {
    const made = await app.admin.post('/api-keys', { name: 'alias' })
    assert.equal(made.status, 201)
    const path = `/api-keys/${made.body.id}`
    assert.deepEqual((await app.admin.get(path)).body, (await app.admin.get(`/project-keys/${made.body.id}`)).body)
    assert.equal((await app.admin.patch(path, { name: 'b' })).status, 200)
    assert.equal((await app.admin.put(path, { name: 'c' })).status, 200)
    assert.equal((await app.admin.post(`${path}/rotate`)).status, 200)
    assert.equal((await app.admin.get(`${path}/usage`)).status, 200)
    assert.ok((await app.admin.get('/api-keys')).body.total > 0)
    assert.equal((await app.admin.delete(path)).status, 204)
  })
})

describe('project keys with KEY_MAX_TTL_DAYS', () => {
  it('must expire within it', async () => {
    const app = await startApp({ env: { KEY_MAX_TTL_DAYS: '30' } })
    const inDays = (days: number) => new Date(Date.now() + days * 86_400_000).toISOString()
    assert.equal((await app.admin.post('/project-keys', {})).status, 400)
    assert.equal((await app.admin.post('/project-keys', { expires_at: inDays(31) })).status, 400)
    const made = await app.admin.post('/project-keys', { expires_at: inDays(29) })
    assert.equal(made.status, 201)
    const path = `/project-keys/${made.body.id}`
    assert.equal((await app.admin.patch(path, { expires_at: null })).status, 400)
    assert.equal((await app.admin.patch(path, { name: 'still inside' })).status, 200)
    await app.close()
  })
})
