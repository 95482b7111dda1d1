import assert from 'node:assert/strict'
import { describe, it } from 'mocha'
import { openRequestQuotas } from '#control/quotas/requests.ts'
import { manualClock } from '#core/base/clock.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { workForConcerns } from '#core/modules/module.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { retentionSweepQueue } from '#core/work/sweeps.ts'
import { client, eventually, type Reply, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'

describe('quotas', () => {
  const app = forSuite(() => startApp({ clock, workers: ['snapshot'] }))
  // Fixed inside a minute, an hour, a day and a month.
  const clock = manualClock(new Date('2026-07-07T12:31:20.500Z'))

  const requestsQuota = (project: { id: string }, fields: object = {}) =>
    app.admin.post('/quotas', {
      project_id: project.id,
      scope: 'project',
      metric: 'requests',
      window: 'rolling_1m',
      limit: 5,
      ...fields,
    })

  const statuses = (replies: Reply[]) => {
    const counts: Record<number, number> = {}
    for (const { status } of replies) counts[status] = (counts[status] ?? 0) + 1
    return counts
  }
  const times = <T>(count: number, call: () => Promise<T>) => Promise.all(Array.from({ length: count }, call))

  /** Events of a project by name, oldest first, as their envelopes. */
  const events = async (projectId: string, name: string) =>
    (await storedEvents(app.pool, { project: projectId, name })).map(({ envelope }) => envelope)

  const monitored = async (projectId: string) =>
    (await app.admin.get(`/audit-log?project_id=${projectId}&action=quotas:MonitorBreach`)).body.data

  const counters = async (quotaId: string) =>
    Number(await app.pool.oneFirst(sql.unsafe`select count(*) from quota_counters where quota_id = ${quotaId}`))

  const advanceToNextMinute = () => clock.set(new Date((Math.floor(clock.now().getTime() / 60_000) + 1) * 60_000 + 500))

  describe('records', () => {
    it('creates a quota with its defaults, reads, lists, changes and deletes it', async () => {
      const project = await app.project()
      const made = await requestsQuota(project)
      assert.equal(made.status, 201)
      const { id, created_at, updated_at, ...rest } = made.body
      assert.match(id, /^quota_/)
      assert.deepEqual(rest, {
        project_id: project.id,
        scope: 'project',
        scope_ref: null,
        metric: 'requests',
        window: 'rolling_1m',
        limit: 5,
        mode: 'enforce',
        meter_type: null,
        on_unpriced: null,
        warn_at: [],
        reserve: false,
        current_usage: { window_key: '2026-07-07T12:31Z', count: 0, resets_at: '2026-07-07T12:32:00.000Z' },
      })
      assert.deepEqual((await app.admin.get(`/quotas/${id}`)).body, made.body)
      assert.deepEqual((await events(project.id, 'quotas.created'))[0].data, made.body)

      const list = await app.admin.get(`/quotas?project_id=${project.id}`)
      assert.equal(list.body.total, 1)
      assert.deepEqual(list.body.data, [{ ...made.body, current_usage: null }])

      const patched = await app.admin.patch(`/quotas/${id}`, { limit: 7, mode: 'monitor' })
      assert.equal(patched.status, 200)
      assert.deepEqual(patched.body, { ...made.body, limit: 7, mode: 'monitor', updated_at: patched.body.updated_at })
      assert.deepEqual((await events(project.id, 'quotas.updated'))[0].data, patched.body)

      assert.equal((await app.admin.delete(`/quotas/${id}`)).status, 204)
      assert.equal((await app.admin.get(`/quotas/${id}`)).status, 404)
      assert.deepEqual((await events(project.id, 'quotas.deleted'))[0].data, patched.body)
    })

    it('keys windows by UTC and says when they reset', async () => {
      const project = await app.project()
      const usage = async (window: string) => (await requestsQuota(project, { window })).body.current_usage
      assert.deepEqual(await usage('rolling_1h'), {
        window_key: '2026-07-07T12Z',
        count: 0,
        resets_at: '2026-07-07T13:00:00.000Z',
      })
      assert.deepEqual(await usage('rolling_24h'), {
        window_key: '2026-07-07Z',
        count: 0,
        resets_at: '2026-07-08T00:00:00.000Z',
      })
      assert.deepEqual(await usage('calendar_month'), {
        window_key: '2026-07',
        count: 0,
        resets_at: '2026-08-01T00:00:00.000Z',
      })
    })

    it('refuses combinations that cannot be measured, naming the field', async () => {
      const project = await app.project()
      const cases: [object, string][] = [
        [{ scope: 'agent' }, 'scope'],
        [{ scope: 'actor' }, 'scope'],
        [{ metric: 'tokens', scope: 'api_key' }, 'scope'],
        [{ metric: 'cost_usd', scope: 'api_key' }, 'scope'],
        [{ metric: 'storage_bytes', scope: 'agent', window: 'current' }, 'scope'],
        [{ metric: 'storage_bytes' }, 'window'],
        [{ metric: 'tokens', window: 'current' }, 'window'],
        [{ window: 'current' }, 'window'],
        [{ metric: 'tokens', meter_type: 'llm_tokens' }, 'meter_type'],
        [{ on_unpriced: 'allow' }, 'on_unpriced'],
        [{ metric: 'cost_usd', meter_type: 'x' }, 'meter_type'],
        [{ metric: 'cost_usd', meter_type: 'tool_execution' }, 'meter_type'],
        [{ limit: 0 }, 'limit'],
        [{ limit: -1 }, 'limit'],
        [{ limit: '5' }, 'limit'],
        [{ limit: 1.5 }, 'limit'],
        [{ limit: 1.5, metric: 'tokens' }, 'limit'],
        [{ limit: null }, 'limit'],
        [{ mode: 'warn' }, 'mode'],
        [{ window: 'rolling_1d' }, 'window'],
        [{ scope_ref: project.keyId }, 'scope_ref'],
        [{ warn_at: [0] }, 'warn_at[0]'],
        [{ warn_at: [1.1] }, 'warn_at[0]'],
        [{ warn_at: [0.5, 0.5] }, 'warn_at'],
        [{ reserve: true }, 'reserve'],
        [{ name: 'mine' }, 'name'],
      ]
      for (const [fields, path] of cases) {
        const refused = await requestsQuota(project, fields)
        assert.equal(refused.status, 400, JSON.stringify(fields))
        assert.equal(refused.body.error.code, 'VALIDATION_FAILED')
        assert.ok(
          refused.body.error.meta.problems.some((problem: { path: string }) => problem.path === path),
          `${JSON.stringify(fields)}: ${JSON.stringify(refused.body.error.meta)}`,
        )
      }
      for (const missing of ['scope', 'metric', 'window', 'limit'])
        assert.equal((await requestsQuota(project, { [missing]: undefined })).status, 400)
      assert.equal((await app.admin.get(`/quotas?project_id=${project.id}`)).body.total, 0)
    })

    it('takes every metric with the scopes and fields that belong to it', async () => {
      const project = await app.project()
      const cost = await requestsQuota(project, { metric: 'cost_usd', limit: 0.25, window: 'calendar_month' })
      assert.equal(cost.status, 201)
      assert.equal(cost.body.on_unpriced, 'block')
      assert.equal(cost.body.current_usage, null)
      const narrowed = await requestsQuota(project, {
        metric: 'cost_usd',
        scope: 'agent',
        meter_type: 'compute_execution',
        on_unpriced: 'allow',
      })
      assert.equal(narrowed.body.meter_type, 'compute_execution')
      assert.equal(narrowed.body.on_unpriced, 'allow')
      assert.equal((await requestsQuota(project, { metric: 'tokens', scope: 'actor' })).status, 201)
      assert.equal((await requestsQuota(project, { metric: 'storage_bytes', window: 'current' })).status, 201)
      assert.equal((await requestsQuota(project, { scope: 'api_key' })).status, 201)
    })

    it('answers 409 for a second quota of the same identity, and 201 for one of two concurrent creates', async () => {
      const project = await app.project()
      const replies = await times(2, () => requestsQuota(project))
      assert.deepEqual(statuses(replies), { 201: 1, 409: 1 })
      assert.equal(replies.find(reply => reply.status === 409)?.body.error.code, 'QUOTA_CONFLICT')
      assert.equal((await requestsQuota(project, { limit: 9, mode: 'monitor' })).status, 409)
      assert.equal((await requestsQuota(project, { window: 'rolling_1h' })).status, 201)
    })

    it('takes a scope_ref that names a bound key of the project only', async () => {
      const project = await app.project()
      const other = await app.project()
      const unscoped = await app.admin.post('/project-keys', {})
      for (const scope_ref of [
        'key_00000000000000000000000000',
        'nonsense',
        other.keyId,
        unscoped.body.id,
        project.id,
      ]) {
        const refused = await requestsQuota(project, { scope: 'api_key', scope_ref })
        assert.equal(refused.status, 400, scope_ref)
        assert.equal(refused.body.error.code, 'VALIDATION_FAILED')
        assert.equal(refused.body.error.meta.problems[0].path, 'scope_ref')
      }
      const agent = await requestsQuota(project, {
        scope: 'agent',
        metric: 'tokens',
        scope_ref: 'agent_00000000000000000000000000',
      })
      assert.equal(agent.status, 400)
      assert.equal(agent.body.error.meta.problems[0].path, 'scope_ref')
      const made = await requestsQuota(project, { scope: 'api_key', scope_ref: project.keyId })
      assert.equal(made.status, 201)
      assert.equal(made.body.scope_ref, project.keyId)
    })

    it('stays readable and deletable when the key it names is deleted', async () => {
      const project = await app.project()
      const made = await requestsQuota(project, { scope: 'api_key', scope_ref: project.keyId })
      assert.equal((await app.admin.delete(`/project-keys/${project.keyId}`)).status, 204)
      assert.equal((await app.admin.get(`/quotas/${made.body.id}`)).body.scope_ref, project.keyId)
      assert.equal((await app.admin.delete(`/quotas/${made.body.id}`)).status, 204)
    })

    it('refuses to change fixed fields, and changes nothing then', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project)
      for (const patch of [
        { window: 'rolling_1h' },
        { scope: 'api_key' },
        { scope_ref: null },
        { metric: 'tokens' },
        { meter_type: null },
        { limit: 9, window: 'rolling_1m' },
        { limit: 1.5 },
        { limit: 0 },
        { limit: '9' },
        { on_unpriced: 'allow' },
        { project_id: project.id },
      ]) {
        const refused = await app.admin.patch(`/quotas/${body.id}`, patch)
        assert.equal(refused.status, 400, JSON.stringify(patch))
        assert.equal(refused.body.error.code, 'VALIDATION_FAILED')
      }
      assert.deepEqual((await app.admin.get(`/quotas/${body.id}`)).body, body)
    })

    it('is unchanged by a change without fields, which emits no event', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project)
      const unchanged = await app.admin.patch(`/quotas/${body.id}`, {})
      assert.deepEqual([unchanged.status, unchanged.body], [200, body])
      assert.deepEqual(await events(project.id, 'quotas.updated'), [])
    })

    it('changes on_unpriced of a cost quota', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { metric: 'cost_usd', limit: 0.5 })
      assert.equal((await app.admin.patch(`/quotas/${body.id}`, { on_unpriced: 'allow' })).body.on_unpriced, 'allow')
      assert.equal((await app.admin.patch(`/quotas/${body.id}`, { limit: 0.75 })).body.on_unpriced, 'allow')
      assert.equal((await app.admin.patch(`/quotas/${body.id}`, { on_unpriced: null })).body.on_unpriced, 'block')
    })

    it('filters lists by scope, scope_ref, metric and mode', async () => {
      const project = await app.project()
      await requestsQuota(project)
      await requestsQuota(project, { scope: 'api_key', scope_ref: project.keyId, mode: 'monitor' })
      await requestsQuota(project, { metric: 'storage_bytes', window: 'current' })
      const total = async (query: string) =>
        (await app.admin.get(`/quotas?project_id=${project.id}&${query}`)).body.total
      assert.equal(await total('limit=10'), 3)
      assert.equal(await total('scope=api_key'), 1)
      assert.equal(await total(`scope_ref=${project.keyId}`), 1)
      assert.equal(await total('metric=requests'), 2)
      assert.equal(await total('metric=requests&metric=storage_bytes'), 3)
      assert.equal(await total('mode=monitor'), 1)
      assert.equal((await app.admin.get('/quotas?metric=x')).status, 400)
    })

    it('is governed by the quota permissions', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project)
      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['quotas:GetQuota'], resource: [`srn:${project.id}:quota:*`] }] },
      ])
      assert.equal((await reader.get(`/quotas/${body.id}`)).status, 200)
      assert.equal((await reader.get(`/quotas/${body.id}/usage`)).status, 200)
      assert.equal((await reader.patch(`/quotas/${body.id}`, { limit: 9 })).status, 403)
      assert.equal((await reader.delete(`/quotas/${body.id}`)).status, 403)
      const stranger = await app.user()
      assert.equal((await stranger.get(`/quotas/${body.id}`)).status, 403)
    })

    it('may be named by a policy although no route requires MonitorBreach', async () => {
      const document = { statement: [{ effect: 'Allow', action: ['quotas:MonitorBreach'], resource: ['*'] }] }
      assert.equal((await app.admin.post('/policies', { document })).status, 201)
    })
  })

  describe('requests', () => {
    it('lets exactly the limit through of a concurrent burst and admits again in the next window', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { scope: 'api_key', scope_ref: project.keyId })
      const replies = await times(20, () => project.key.get('/quotas'))
      const refused = replies.filter(({ status }) => status === 429)
      assert.equal(replies.length - refused.length, 5)
      for (const reply of refused) {
        assert.equal(reply.body.error.code, 'QUOTA_EXCEEDED')
        const resets = new Date((Math.floor(clock.now().getTime() / 60_000) + 1) * 60_000)
        assert.deepEqual(reply.body.error.meta, {
          quota_id: body.id,
          metric: 'requests',
          limit: 5,
          window: 'rolling_1m',
          resets_at: resets.toISOString(),
        })
        const seconds = Math.ceil((resets.getTime() - clock.now().getTime()) / 1000)
        assert.equal(reply.headers.get('retry-after'), String(seconds))
      }
      const usage = await app.admin.get(`/quotas/${body.id}`)
      assert.equal(usage.body.current_usage.count, 20)
      advanceToNextMinute()
      const next = await times(20, () => project.key.get('/quotas'))
      assert.equal(next.filter(({ status }) => status !== 429).length, 5)
    })

    it('never counts user tokens', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project)
      const replies = await times(20, () => app.admin.get(`/quotas?project_id=${project.id}`))
      assert.deepEqual(statuses(replies), { 200: 20 })
      assert.equal((await app.admin.get(`/quotas/${body.id}`)).body.current_usage.count, 0)
    })

    it('counts refused requests and unknown routes of a bound key, before routing', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 4 })
      assert.equal((await project.key.get('/quotas/quota_00000000000000000000000000')).status, 404)
      assert.equal((await project.key.get('/no-such-route')).status, 404)
      assert.equal((await project.key.post('/quotas', { nonsense: true })).status, 400)
      assert.equal((await project.key.get('/quotas?project_id=proj_00000000000000000000000000')).status, 403)
      assert.equal((await project.key.get('/no-such-route')).status, 429)
      assert.equal((await app.admin.get(`/quotas/${body.id}`)).body.current_usage.count, 5)
    })

    it('counts an unscoped key where its request was authorised, once, and not where it was denied', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 2 })
      const key = client(app.url, (await app.admin.post('/project-keys', {})).body.secret)
      const denied = client(
        app.url,
        (
          await app.admin.post('/project-keys', {
            policy_ids: [
              (
                await app.admin.post('/policies', {
                  document: { statement: [{ effect: 'Allow', action: ['secrets:*'], resource: ['*'] }] },
                })
              ).body.id,
            ],
          })
        ).body.secret,
      )
      const count = async () => (await app.admin.get(`/quotas/${body.id}`)).body.current_usage.count
      assert.equal((await denied.get(`/quotas/${body.id}`)).status, 403)
      assert.equal((await key.get('/quotas')).status, 200)
      assert.equal(await count(), 0)
      assert.equal((await key.get(`/quotas/${body.id}`)).status, 200)
      assert.equal((await key.get(`/quotas?project_id=${project.id}`)).status, 200)
      assert.equal(await count(), 2)
      assert.equal((await key.get(`/quotas/${body.id}`)).status, 429)
    })

    it('counts a key quota for its key only, and one without a ref for all keys together', async () => {
      const project = await app.project()
      const second = client(app.url, (await app.admin.post('/project-keys', { project_id: project.id })).body.secret)
      await requestsQuota(project, { scope: 'api_key', scope_ref: project.keyId, limit: 2 })
      const all = await requestsQuota(project, { scope: 'api_key', limit: 100, window: 'rolling_1h' })
      const replies = await times(4, () => project.key.get('/quotas'))
      assert.deepEqual(statuses(replies), { 200: 2, 429: 2 })
      assert.deepEqual(statuses(await times(4, () => second.get('/quotas'))), { 200: 4 })
      assert.equal((await app.admin.get(`/quotas/${all.body.id}`)).body.current_usage.count, 8)
    })

    it('names the most specific scope, then the lowest id, and a looser specific quota loosens nothing', async () => {
      const project = await app.project()
      const first = await requestsQuota(project, { limit: 1, window: 'rolling_1h' })
      await requestsQuota(project, { limit: 1 })
      const loose = await requestsQuota(project, { scope: 'api_key', scope_ref: project.keyId, limit: 2 })
      const refusal = async () => (await project.key.get('/quotas')).body.error.meta.quota_id
      assert.equal((await project.key.get('/quotas')).status, 200)
      assert.equal(await refusal(), first.body.id)
      assert.equal(await refusal(), loose.body.id)
    })

    it('binds a lowered and lifts a raised limit with the next request', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 2 })
      await times(3, () => project.key.get('/quotas'))
      assert.equal((await project.key.get('/quotas')).status, 429)
      await app.admin.patch(`/quotas/${body.id}`, { limit: 10 })
      assert.equal((await project.key.get('/quotas')).status, 200)
      await app.admin.patch(`/quotas/${body.id}`, { limit: 3 })
      assert.equal((await project.key.get('/quotas')).status, 429)
      await app.admin.patch(`/quotas/${body.id}`, { mode: 'monitor' })
      assert.equal((await project.key.get('/quotas')).status, 200)
    })

    it('binds from the answer of the create on until the answer of the delete', async () => {
      const project = await app.project()
      assert.equal((await project.key.get('/quotas')).status, 200)
      const { body } = await requestsQuota(project, { limit: 1 })
      assert.equal((await project.key.get('/quotas')).status, 200)
      assert.equal((await project.key.get('/quotas')).status, 429)
      assert.equal(await counters(body.id), 1)
      await app.admin.delete(`/quotas/${body.id}`)
      assert.equal((await project.key.get('/quotas')).status, 200)
      assert.equal(await counters(body.id), 0)
    })

    it('costs no statement for a project without requests quotas, and one for a request that is counted', async () => {
      const statements: string[] = []
      const free = await app.project()
      const capped = await app.project(undefined, free.id)
      const url = app.databaseUrlOf(free.id)
      const config = { ...app.config, DATABASE_URL: url, DATABASE_LISTEN_URL: url }
      const services = await openServices(config, {
        log: app.services.log,
        role: 'web',
        clock,
        onRoundTrip: text => statements.push(text),
      })
      const quotas = openRequestQuotas(services)
      try {
        const caller = { credential: { id: 'key_of_nobody' } } as Caller
        await requestsQuota(capped)
        for (const project of [free, capped]) {
          await quotas.count(caller, project.id)
          await eventually(async () => {
            statements.length = 0
            await quotas.count(caller, project.id)
            return statements.length === (project === free ? 0 : 1)
          })
        }
        statements.length = 0
        await times(50, () => quotas.count(caller, free.id))
        assert.equal(statements.length, 0)
      } finally {
        await quotas.close()
        await services.close()
      }
    })

    it('queries the database while notifications cannot arrive', async () => {
      const project = await app.project()
      const services = app.servicesOf(project.id)
      const { notifications } = services
      const down: typeof notifications = Object.create(notifications, {
        listen: { value: notifications.listen.bind(notifications) },
        healthy: { value: () => false },
      })
      const deaf = { ...services, state: new Map(), notifications: down }
      const quotas = openRequestQuotas(deaf)
      try {
        const caller = { credential: { id: 'key_of_nobody' } } as Caller
        await quotas.count(caller, project.id)
        // A change that announces nothing, as a change made while the connection is down.
        await app.pool.query(sql.unsafe`
          insert into quotas (id, project_id, scope, metric, "window", "limit", mode)
          values ('quota_0000000000000000000000silent', ${project.id}, 'project', 'requests', 'rolling_1h', 1, 'enforce')`)
        await quotas.count(caller, project.id)
        await assert.rejects(quotas.count(caller, project.id), { code: 'QUOTA_EXCEEDED' })
      } finally {
        await quotas.close()
      }
    })
  })

  describe('reports', () => {
    it('emits quota.exceeded once per window with exactly its fields', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 2 })
      await times(10, () => project.key.get('/quotas'))
      const fired = await events(project.id, 'quota.exceeded')
      assert.equal(fired.length, 1)
      assert.equal(fired[0].resource_type, 'quota')
      assert.equal(fired[0].resource_id, body.id)
      assert.deepEqual(fired[0].data, {
        quota_id: body.id,
        project_id: project.id,
        metric: 'requests',
        meter_type: null,
        scope: 'project',
        scope_ref: null,
        window: 'rolling_1m',
        window_key: (await app.admin.get(`/quotas/${body.id}`)).body.current_usage.window_key,
        limit: 2,
        observed_value: 3,
        mode: 'enforce',
      })
      // A change of the limit does not arm it again inside the window.
      await app.admin.patch(`/quotas/${body.id}`, { limit: 1 })
      assert.equal((await project.key.get('/quotas')).status, 429)
      assert.equal((await events(project.id, 'quota.exceeded')).length, 1)
      advanceToNextMinute()
      await times(3, () => project.key.get('/quotas'))
      assert.equal((await events(project.id, 'quota.exceeded')).length, 2)
    })

    it('never blocks in monitor mode; a breach leaves one event and one audit entry per window', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 2, mode: 'monitor' })
      assert.deepEqual(statuses(await times(10, () => project.key.get('/quotas'))), { 200: 10 })
      const fired = await events(project.id, 'quota.exceeded')
      assert.equal(fired.length, 1)
      assert.equal(fired[0].data.mode, 'monitor')
      const entries = await monitored(project.id)
      assert.equal(entries.length, 1)
      const { id, created_at, detail, ...entry } = entries[0]
      assert.deepEqual(entry, {
        project_id: project.id,
        principal_type: null,
        principal_id: null,
        action: 'quotas:MonitorBreach',
        resource_srn: `srn:${project.id}:quota:${body.id}`,
        resource_public_id: body.id,
        status: 200,
        request_id: null,
        ip: null,
        user_agent: null,
      })
      assert.deepEqual(detail, {
        kind: 'quota_monitor_breach',
        metric: 'requests',
        meter_type: null,
        scope: 'project',
        scope_ref: null,
        window: 'rolling_1m',
        window_key: fired[0].data.window_key,
        limit: 2,
        observed_value: 3,
      })
    })

    it('audits a monitored breach although the window already fired in enforce mode', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 1 })
      await times(2, () => project.key.get('/quotas'))
      assert.equal((await monitored(project.id)).length, 0)
      await app.admin.patch(`/quotas/${body.id}`, { mode: 'monitor' })
      await times(3, () => project.key.get('/quotas'))
      assert.equal((await monitored(project.id)).length, 1)
      assert.equal((await events(project.id, 'quota.exceeded')).length, 1)
    })

    it('warns once per window and fraction with the record and the observed value', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 10, warn_at: [0.8, 0.5] })
      await times(4, () => project.key.get('/quotas'))
      assert.equal((await events(project.id, 'quotas.warned')).length, 0)
      await times(2, () => project.key.get('/quotas'))
      const warned = await eventually(async () => {
        const found = await events(project.id, 'quotas.warned')
        return found.length > 0 ? found : null
      })
      assert.equal(warned.length, 1)
      const { window_key, observed_value, fraction, ...record } = warned[0].data
      assert.equal(fraction, 0.5)
      assert.equal(observed_value, 5)
      assert.deepEqual(
        { ...record, current_usage: null },
        (await app.admin.get(`/quotas?project_id=${project.id}`)).body.data[0],
      )
      assert.equal(record.id, body.id)
      await times(10, () => project.key.get('/quotas'))
      await eventually(async () => (await events(project.id, 'quotas.warned')).length === 2)
      assert.equal((await events(project.id, 'quotas.warned'))[1].data.fraction, 0.8)
      assert.equal((await events(project.id, 'quota.exceeded')).length, 1)
      advanceToNextMinute()
      await times(9, () => project.key.get('/quotas'))
      await eventually(async () => (await events(project.id, 'quotas.warned')).length === 4)
      const fractions = (await events(project.id, 'quotas.warned')).map(event => event.data.fraction)
      assert.deepEqual(fractions, [0.5, 0.8, 0.5, 0.8])
    })
  })

  describe('entity tags', () => {
    it('follow the settings: counting neither fails an If-Match nor is hidden by a 304', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 100 })
      const tag = (await project.key.get(`/quotas/${body.id}`)).headers.get('etag') as string
      const again = await project.key.get(`/quotas/${body.id}`, { 'if-none-match': tag })
      assert.equal(again.status, 200)
      assert.equal(again.body.current_usage.count, 2)
      assert.equal((await project.key.patch(`/quotas/${body.id}`, { limit: 90 }, { 'if-match': tag })).status, 200)
      assert.equal((await project.key.patch(`/quotas/${body.id}`, { limit: 80 }, { 'if-match': tag })).status, 412)
    })
  })

  describe('usage', () => {
    it('measures the running window now', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { limit: 3 })
      await times(2, () => project.key.get('/quotas'))
      const { current_usage } = (await app.admin.get(`/quotas/${body.id}`)).body
      assert.deepEqual((await app.admin.get(`/quotas/${body.id}/usage`)).body, {
        window_key: current_usage.window_key,
        observed_value: 2,
        limit: 3,
        remaining: 1,
        resets_at: current_usage.resets_at,
        actors: null,
      })
      await times(5, () => project.key.get('/quotas'))
      assert.equal((await app.admin.get(`/quotas/${body.id}/usage`)).body.remaining, 0)
    })

    it('says that a metric is not metered instead of inventing a value', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project, { metric: 'storage_bytes', window: 'current', limit: 10 })
      assert.deepEqual((await app.admin.get(`/quotas/${body.id}/usage`)).body, {
        window_key: `${clock.now().toISOString().slice(0, 10)}Z`,
        observed_value: null,
        limit: 10,
        remaining: null,
        resets_at: null,
        actors: null,
      })
    })
  })

  describe('pruning', () => {
    const prune = () =>
      app.inEachCell(({ queues }) => queues.send([{ queue: retentionSweepQueue, data: { sweep: 'quota counters' } }]))

    it('is due every day', () => {
      const tick = workForConcerns(['snapshot']).schedules.find(({ name }) => name === 'sweep quota counters')
      assert.equal(tick?.when, '23 3 * * *')
    })

    it('drops counters of windows older than 40 days and of quotas that are gone', async () => {
      const project = await app.project()
      const { body } = await requestsQuota(project)
      await project.key.get('/quotas')
      const gone = await app.project()
      const { body: orphan } = await requestsQuota(gone)
      await gone.key.get('/quotas')
      await app.admin.delete(`/projects/${gone.id}?force=true`)
      await prune()
      await eventually(async () => (await counters(orphan.id)) === 0)
      assert.equal(await counters(body.id), 1)
      clock.advance(41 * 86_400_000)
      await prune()
      await eventually(async () => (await counters(body.id)) === 0)
    })
  })
})
