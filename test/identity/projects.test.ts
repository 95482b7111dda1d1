import { strict as assert } from 'node:assert'
import { setTimeout as sleep } from 'node:timers/promises'
import { kinds } from '#core/api/kind.ts'
import { manualClock } from '#core/base/clock.ts'
import { AppError } from '#core/base/errors.ts'
import { rawQuery } from '#core/db/sql.ts'
import { cloneables } from '#identity/projects/clone.ts'
import { sweepDeferredDeletes } from '#identity/projects/delete.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import { startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { loadBeside } from '../support/modules.ts'
import { forSuite } from '../support/suite.ts'

const DAY = 86_400_000

describe('projects', () => {
  const app = forSuite(() => startApp({ clock }))
  const clock = manualClock()
  const eventsOf = async (id: string) =>
    (await storedEvents(app.pool, { project: id })).filter(event => event.name.startsWith('projects.'))

  describe('create', () => {
    it('answers the record with its defaults', async () => {
      const made = await app.admin.post('/projects', { name: '  Support  ', description: 'd', max_run_depth: 3 })
      assert.equal(made.status, 201)
      const { id, created_at, updated_at, ...rest } = made.body
      assert.match(id, /^proj_[0-9a-z]{26}$/)
      assert.match(created_at, /^\d{4}-.*Z$/)
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        name: 'Support',
        description: 'd',
        guardrail_ids: [],
        default_model_route_id: null,
        max_run_depth: 3,
        max_concurrent_runs: null,
        max_chain_generations: null,
        audit_reads_enabled: false,
        trace_content_retention_days: null,
        trace_retention_days: null,
        conversation_retention_days: null,
        run_retention_days: null,
        trace_content_mode: 'full',
        require_priced_model: false,
        search_language: null,
        content_hold_until: null,
        tags: {},
        paused_at: null,
        pause_reason: null,
        delete_at: null,
      })
      assert.deepEqual((await app.admin.get(`/projects/${id}`)).body, made.body)
    })

    it('refuses unknown fields and values out of range', async () => {
      for (const body of [
        {},
        { name: '' },
        { name: '   ' },
        { name: 'x'.repeat(256) },
        { name: null },
        { name: 'x', nope: 1 },
        { name: 'x', guardrail_ids: [] },
        { name: 'x', default_model_route_id: null },
        { name: 'x', paused_at: null },
        { name: 'x', require_priced_model: null },
        { name: 'x', search_language: 'klingon' },
        { name: 'x', search_language: '' },
        { name: 'x', description: 'd'.repeat(2001) },
        { name: 'x', max_concurrent_runs: 0 },
        { name: 'x', trace_content_mode: 'some' },
        { name: 'x', audit_reads_enabled: null },
      ])
        assert.equal((await app.admin.post('/projects', body)).status, 400, JSON.stringify(body).slice(0, 60))
    })

    it('is for admins with an unbound credential', async () => {
      const nobody = await app.user()
      assert.equal((await nobody.post('/projects', { name: 'x' })).status, 403)
      const allowed = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] }])
      assert.equal((await allowed.post('/projects', { name: 'x' })).status, 403)
      const { key } = await app.project()
      assert.equal((await key.post('/projects', { name: 'x' })).status, 403)
      const unscoped = await app.admin.post('/project-keys', {})
      assert.equal((await app.as(unscoped.body.secret).post('/projects', { name: 'x' })).status, 201)
    })

    it('is audited under the id of the new project and emits nothing', async () => {
      const { id } = (await app.admin.post('/projects', { name: 'audited' })).body
      const [entry] = await app.rows(
        `select * from audit_entries where action = 'projects:CreateProject' and project_id = $1`,
        [id],
      )
      assert.equal(entry.resource_public_id, id)
      assert.equal(entry.resource_srn, `srn:${id}:project:${id}`)
      assert.equal(entry.status, 201)
      assert.deepEqual(await eventsOf(id), [])
    })
  })

  describe('list', () => {
    it('shows nothing to a user without policies', async () => {
      const nobody = await app.user()
      const list = await nobody.get('/projects')
      assert.equal(list.status, 200)
      assert.equal(list.body.total, 0)
    })

    it('shows the projects where the caller may list or read', async () => {
      const [a, b, c] = await Promise.all([app.project(), app.project(), app.project()])
      const reader = await app.user(undefined, [
        {
          statement: [
            { effect: 'Allow', action: ['projects:GetProject'], resource: [`srn:${a.id}:project:*`] },
            { effect: 'Allow', action: ['projects:ListProjects'], resource: [`srn:${b.id}:*:*`] },
            { effect: 'Allow', action: ['secrets:*'], resource: [`srn:${c.id}:*:*`] },
          ],
        },
      ])
      const list = await reader.get('/projects')
      assert.deepEqual(list.body.data.map((item: { id: string }) => item.id).sort(), [a.id, b.id].sort())
      assert.equal(list.body.total, 2)
    })

    it('shows a bound key only its own project, regardless of the owner', async () => {
      const [a, b] = await Promise.all([app.project(), app.project()])
      const list = await a.key.get('/projects')
      assert.deepEqual(
        list.body.data.map((item: { id: string }) => item.id),
        [a.id],
      )
      const other = await a.key.get(`/projects/${b.id}`)
      assert.equal(other.status, 403)
      assert.equal(other.body.error.code, 'API_KEY_PROJECT_SCOPE')
      assert.deepEqual(other.body.error.meta, { scoped_project: a.id, requested_project: b.id })
      assert.equal((await a.key.get('/projects/proj_00000000000000000000000000')).status, 403)
    })

    it('notes the refusal of a bound key under its own project', async () => {
      const [a, b] = await Promise.all([app.project(), app.project()])
      assert.equal((await a.key.patch(`/projects/${b.id}`, { name: 'taken over' })).status, 403)
      const [entry] = (await app.admin.get(`/audit-log?project_id=${a.id}&action=projects:UpdateProject`)).body.data
      assert.equal(entry.status, 403)
      assert.equal(entry.principal_id, a.keyId)
      assert.deepEqual(entry.detail, { requested_project: b.id })
    })

    it('filters by name, newest first, page by page', async () => {
      for (const name of ['Zebra 100%', 'zebra two', 'other']) await app.admin.post('/projects', { name })
      const list = await app.admin.get('/projects?name=ZEBRA')
      assert.deepEqual(
        list.body.data.map((item: { name: string }) => item.name),
        ['zebra two', 'Zebra 100%'],
      )
      assert.equal((await app.admin.get('/projects?name=0%25')).body.total, 1)
      const second = await app.admin.get('/projects?name=zebra&limit=1&offset=1')
      assert.deepEqual([second.body.total, second.body.data[0].name], [2, 'Zebra 100%'])
      assert.equal((await app.admin.get('/projects?limit=0')).status, 400)
    })
  })

  describe('update', () => {
    it('changes the given fields and emits the record', async () => {
      const { id } = await app.project()
      const changed = await app.admin.patch(`/projects/${id}`, {
        name: 'new',
        max_run_depth: 4,
        trace_content_mode: 'none',
      })
      assert.equal(changed.status, 200)
      assert.deepEqual(
        [changed.body.name, changed.body.max_run_depth, changed.body.trace_content_mode],
        ['new', 4, 'none'],
      )
      const cleared = await app.admin.patch(`/projects/${id}`, { max_run_depth: null, description: null })
      assert.equal(cleared.body.max_run_depth, null)
      const events = await eventsOf(id)
      assert.deepEqual(
        events.map(event => event.name),
        ['projects.updated', 'projects.updated'],
      )
      assert.deepEqual(events[1].data, cleared.body)
    })

    it('changes nothing without fields, and emits no event', async () => {
      const { id } = await app.project()
      const { body } = await app.admin.patch(`/projects/${id}`, { name: 'moved' })
      const reply = await app.admin.patch(`/projects/${id}`, {})
      assert.deepEqual([reply.status, reply.body], [200, body])
      assert.equal((await eventsOf(id)).length, 1)
    })

    it('does not wait for writes in the project', async () => {
      const project = await app.project()
      const path = `/projects/${project.id}`
      const etag = (await app.admin.get(path)).headers.get('etag') ?? ''
      await app.servicesOf(project.id).write(async tx => {
        await tx.query(rawQuery('select 1 from projects where id = $1 for key share', [project.id]))
        assert.equal((await app.admin.patch(path, { name: 'moved' }, { 'if-match': etag })).status, 200)
        assert.equal((await app.admin.put(`${path}/tags`, { team: 'red' })).status, 200)
      })
    })

    it('refuses unknown fields and wrong values', async () => {
      const { id } = await app.project()
      for (const body of [
        { nope: 1 },
        { id: 'x' },
        { paused_at: null },
        { name: null },
        { audit_reads_enabled: null },
        { trace_content_mode: null },
        { max_run_depth: 0 },
        { max_run_depth: -1 },
        { max_run_depth: 1.5 },
        { max_run_depth: '3' },
        { max_run_depth: 2 ** 31 },
      ])
        assert.equal((await app.admin.patch(`/projects/${id}`, body)).status, 400, JSON.stringify(body))
    })

    it('names guardrails and routes that do not exist with their own codes', async () => {
      const { id } = await app.project()
      const guardrail = await app.admin.patch(`/projects/${id}`, { guardrail_ids: ['guard_x'] })
      assert.deepEqual([guardrail.status, guardrail.body.error.code], [400, 'GUARDRAIL_NOT_FOUND'])
      const route = await app.admin.patch(`/projects/${id}`, { default_model_route_id: 'route_x' })
      assert.deepEqual([route.status, route.body.error.code], [400, 'MODEL_ROUTE_NOT_FOUND'])
      const none = await app.admin.patch(`/projects/${id}`, { guardrail_ids: null, default_model_route_id: null })
      assert.deepEqual(none.body.guardrail_ids, [])
    })

    it('follows policies, not the role', async () => {
      const { id } = await app.project()
      const editor = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['projects:UpdateProject'], resource: [`srn:${id}:project:${id}`] }] },
      ])
      assert.equal((await editor.patch(`/projects/${id}`, { name: 'mine' })).status, 200)
      assert.equal((await editor.get(`/projects/${id}`)).status, 403)
      assert.equal((await editor.patch(`/projects/${(await app.project()).id}`, { name: 'x' })).status, 404)
    })

    it('refuses a write that was based on another version', async () => {
      const { id } = await app.project()
      const read = await app.admin.get(`/projects/${id}`)
      const etag = read.headers.get('etag') as string
      assert.equal((await app.admin.patch(`/projects/${id}`, { name: 'a' }, { 'if-match': etag })).status, 200)
      assert.equal((await app.admin.patch(`/projects/${id}`, { name: 'b' }, { 'if-match': etag })).status, 412)
    })
  })

  describe('pause', () => {
    it('keeps the first reason and emits one event', async () => {
      const { id } = await app.project()
      const first = await app.admin.post(`/projects/${id}/pause`, { reason: 'one' })
      assert.equal(first.status, 200)
      assert.equal(first.body.pause_reason, 'one')
      assert.ok(first.body.paused_at)
      assert.deepEqual((await app.admin.post(`/projects/${id}/pause`, { reason: 'two' })).body, first.body)
      assert.equal((await eventsOf(id)).filter(event => event.name === 'projects.paused').length, 1)
    })

    it('keeps one reason of many concurrent pauses', async () => {
      const { id } = await app.project()
      const replies = await Promise.all(
        Array.from({ length: 8 }, (_, index) => app.admin.post(`/projects/${id}/pause`, { reason: `r${index}` })),
      )
      assert.deepEqual([...new Set(replies.map(reply => reply.status))], [200])
      assert.equal(new Set(replies.map(reply => reply.body.pause_reason)).size, 1)
      assert.equal((await eventsOf(id)).filter(event => event.name === 'projects.paused').length, 1)
    })

    it('needs no body and takes a reason of at most 256 characters', async () => {
      const { id } = await app.project()
      assert.equal((await app.admin.post(`/projects/${id}/pause`, { reason: 'x'.repeat(257) })).status, 400)
      assert.equal((await app.admin.post(`/projects/${id}/pause`, { why: 'x' })).status, 400)
      assert.equal((await app.admin.post(`/projects/${id}/pause`)).body.pause_reason, null)
    })

    it('does not affect reads, configuration and deletes', async () => {
      const { id } = await app.project()
      await app.admin.post(`/projects/${id}/pause`)
      assert.equal((await app.admin.get(`/projects/${id}`)).status, 200)
      assert.equal((await app.admin.patch(`/projects/${id}`, { name: 'still' })).status, 200)
      assert.equal((await app.admin.delete(`/projects/${id}`)).status, 204)
    })

    it('is lifted by resume, which a running project refuses', async () => {
      const { id } = await app.project()
      assert.equal((await app.admin.post(`/projects/${id}/resume`)).body.error.code, 'PROJECT_NOT_PAUSED')
      await app.admin.post(`/projects/${id}/pause`, { reason: 'r' })
      const resumed = await app.admin.post(`/projects/${id}/resume`)
      assert.deepEqual([resumed.body.paused_at, resumed.body.pause_reason], [null, null])
      assert.equal((await app.admin.post(`/projects/${id}/resume`)).status, 409)
      assert.deepEqual(
        (await eventsOf(id)).map(event => event.name),
        ['projects.paused', 'projects.resumed'],
      )
    })

    it('refuses work that starts, with the reason', async () => {
      const { id } = await app.project()
      await app.servicesOf(id).write(tx => lockUnpaused(tx, id))
      await app.admin.post(`/projects/${id}/pause`, { reason: 'audit' })
      await assert.rejects(
        app.servicesOf(id).write(tx => lockUnpaused(tx, id)),
        (error: AppError) =>
          error instanceof AppError &&
          error.code === 'PROJECT_PAUSED' &&
          error.meta?.project_id === id &&
          error.meta?.pause_reason === 'audit',
      )
      await app.admin.post(`/projects/${id}/resume`)
      await app.servicesOf(id).write(tx => lockUnpaused(tx, id))
    })

    it('answers a pause only after the starts it meets have committed', async () => {
      const { id } = await app.project()
      let answered = false
      let entered = () => {}
      const admitted = new Promise<void>(resolve => {
        entered = resolve
      })
      const start = app.servicesOf(id).write(async tx => {
        await lockUnpaused(tx, id)
        entered()
        await sleep(200)
        return answered
      })
      await admitted
      const pause = app.admin.post(`/projects/${id}/pause`).then(reply => {
        answered = true
        return reply
      })
      assert.equal(await start, false)
      assert.equal((await pause).status, 200)
      await assert.rejects(app.servicesOf(id).write(tx => lockUnpaused(tx, id)))
    })
  })

  describe('delete', () => {
    it('refuses while the project has resources, and deletes them when forced', async () => {
      const { id, key } = await app.project()
      const secret = (await key.post('/secrets', { name: 's', value: 'v' })).body.id
      const refused = await app.admin.delete(`/projects/${id}`)
      assert.equal(refused.status, 409)
      assert.equal(refused.body.error.code, 'PROJECT_HAS_DEPENDENTS')
      assert.deepEqual(refused.body.error.meta, {
        counts: { secrets: 1 },
        sample_ids: { secrets: [secret] },
        forcible: true,
      })
      assert.equal((await app.admin.delete(`/projects/${id}?force=maybe`)).status, 400)
      assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
      assert.equal((await app.admin.get(`/secrets/${secret}`)).status, 404)
      assert.equal((await app.admin.get(`/projects/${id}`)).status, 404)
      assert.equal((await app.admin.delete(`/projects/${id}`)).status, 404)
    })

    it('shows at most five ids a kind', async () => {
      const { id, key } = await app.project()
      for (let index = 0; index < 7; index++) await key.post('/secrets', { name: 's', value: 'v' })
      const { meta } = (await app.admin.delete(`/projects/${id}`)).body.error
      assert.equal(meta.counts.secrets, 7)
      assert.equal(meta.sample_ids.secrets.length, 5)
    })

    it('deletes keys and webhooks without force', async () => {
      const { id, key } = await app.project()
      const hook = await key.post('/webhooks', { name: 'h', url: 'http://127.0.0.1:9/hook', events: ['*'] })
      assert.equal(hook.status, 201, JSON.stringify(hook.body))
      assert.equal((await key.get('/projects')).status, 200)
      assert.equal((await app.admin.delete(`/projects/${id}`)).status, 204)
      assert.equal((await key.get('/projects')).status, 401)
    })

    it('is refused to callers who are no admins', async () => {
      const { id, key } = await app.project()
      const allowed = await app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] }])
      assert.equal((await allowed.delete(`/projects/${id}`)).status, 403)
      assert.equal((await key.delete(`/projects/${id}`)).status, 403)
    })

    it('keeps the audit entries; its own entry belongs to the deployment', async () => {
      const { id, key } = await app.project()
      await key.post('/secrets', { name: 's', value: 'v' })
      await app.admin.delete(`/projects/${id}?force=true`)
      const kept = await app.rows('select action, project_id, status from audit_entries where project_id = $1', [id])
      assert.ok(kept.some(entry => entry.action === 'secrets:CreateSecret'))
      const [own] = await app.rows(
        `select project_id, status from audit_entries where action = 'projects:DeleteProject' and resource_public_id = $1`,
        [id],
      )
      assert.deepEqual({ ...own }, { project_id: null, status: 204 })
    })

    it('leaves no rows of concurrent creates', async () => {
      for (let round = 0; round < 4; round++) {
        const { id } = await app.project()
        const creates = Array.from({ length: 24 }, async (_, index) => {
          await sleep(index)
          return app.admin.post('/secrets', { project_id: id, name: `s${index}`, value: 'v' })
        })
        const removed = sleep(8).then(() => app.admin.delete(`/projects/${id}?force=true`))
        const replies = await Promise.all(creates)
        assert.equal((await removed).status, 204)
        for (const reply of replies) assert.ok([201, 404].includes(reply.status), JSON.stringify(reply.body))
        assert.deepEqual(await app.rows('select 1 from secrets where project_id = $1', [id]), [])
        assert.deepEqual(await app.rows('select 1 from events where project_id = $1', [id]), [])
      }
    })

    it('survives updates of its rows at the same time', async () => {
      const { id, key } = await app.project()
      const ids: string[] = []
      for (let index = 0; index < 6; index++) ids.push((await key.post('/secrets', { name: 's', value: 'v' })).body.id)
      const updates = ids.flatMap(secret =>
        Array.from({ length: 3 }, (_, index) => app.admin.patch(`/secrets/${secret}`, { name: `n${index}` })),
      )
      const removed = app.admin.delete(`/projects/${id}?force=true`)
      const replies = await Promise.all(updates)
      assert.equal((await removed).status, 204)
      for (const reply of replies) assert.ok([200, 404].includes(reply.status), JSON.stringify(reply.body))
    })

    it('reaches every table with a project, by the schema', async () => {
      const reached = await app.rows(`
        with recursive reached as (
          select 'projects'::regclass::oid as id
          union
          select c.conrelid from pg_constraint c join reached r on c.confrelid = r.id
          where c.contype = 'f' and c.confdeltype = 'c')
        select id::regclass::text as table_name from reached`)
      const named = await app.rows(`
        select c.table_name from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
        where table_schema = 'public' and column_name = 'project_id' and table_type = 'BASE TABLE'
          and not (select relispartition from pg_class where oid = format('%I.%I', table_schema, table_name)::regclass) order by 1`)
      const goes = new Set(reached.map(row => row.table_name))
      // Audit entries outlive their project; usage to fold is deleted at the commit (`drop_row_counts`), usage of runs
      // with the runs (`drop_run_usage`), grants by `projects_grants`; `project_cells` is a directory of all cells, and
      // `moving_projects` and `moving_rows` have projects that are in no cell.
      const stays = new Set(['audit_entries', 'unfolded_usage', 'folded_run_usage', 'oauth_grants'])
      for (const name of ['project_cells', 'moving_projects', 'moving_rows']) stays.add(name)
      const left = named.map(row => row.table_name).filter(table => !goes.has(table) && !stays.has(table))
      assert.deepEqual(left, [])
      for (const kind of kinds.all().filter(item => !item.global && !stays.has(item.table)))
        assert.ok(goes.has(kind.table), kind.table)
    })
  })

  describe('deferred delete', () => {
    /** Deletes due projects in all cells; returns their number. */
    const sweep = async (stopping = new AbortController().signal) =>
      (await app.inEachCell(services => sweepDeferredDeletes(services, stopping))).reduce((sum, count) => sum + count)

    it('continues with other projects after a failure', async () => {
      const ids = []
      for (let count = 0; count < 3; count++) {
        const { id } = await app.project()
        await app.admin.delete(`/projects/${id}?force=true&grace_days=1`)
        clock.advance(1000)
        ids.push(id)
      }
      const [stuck, ...others] = ids
      await app.rows(
        `create function refuse_delete() returns trigger language plpgsql as $$ begin raise exception 'stuck'; end $$`,
      )
      await app.rows(`create trigger refuse_delete before delete on projects for each row when (old.id = '${stuck}')
        execute function refuse_delete()`)
      clock.advance(2 * DAY)
      try {
        assert.equal(await sweep(AbortSignal.abort()), 0)
        assert.equal(await sweep(), 2)
        for (const id of others) assert.equal((await app.admin.get(`/projects/${id}`)).status, 404)
        assert.equal((await app.admin.get(`/projects/${stuck}`)).status, 200)
        const line = app.logs.find(text => text.includes('deferred project deletion failed') && text.includes(stuck))
        assert.match(line ?? '', /stuck/)
      } finally {
        await app.rows('drop function refuse_delete() cascade')
      }
      assert.equal(await sweep(), 1)
    })

    it('pauses immediately and deletes when due', async () => {
      const { id, key } = await app.project()
      await key.post('/secrets', { name: 's', value: 'v' })
      assert.equal((await app.admin.delete(`/projects/${id}?force=true&grace_days=2`)).status, 204)
      const waiting = (await app.admin.get(`/projects/${id}`)).body
      assert.ok(waiting.paused_at)
      assert.equal(waiting.delete_at, new Date(clock.now().getTime() + 2 * DAY).toISOString())
      assert.equal(await sweep(), 0)
      clock.advance(2 * DAY)
      const swept = await Promise.all([sweep(), sweep()])
      assert.equal(swept[0] + swept[1], 1)
      assert.equal((await app.admin.get(`/projects/${id}`)).status, 404)
      const [entry] = await app.rows(
        `select principal_id, detail from audit_entries where action = 'projects:DeleteProject'
           and resource_public_id = $1 and detail is not null`,
        [id],
      )
      assert.equal(entry.principal_id, null)
      assert.equal(entry.detail.deferred, true)
    })

    it('is cancelled by a resume', async () => {
      const { id } = await app.project()
      await app.admin.delete(`/projects/${id}?force=true&grace_days=1`)
      assert.equal((await app.admin.post(`/projects/${id}/resume`)).body.delete_at, null)
      clock.advance(2 * DAY)
      assert.equal(await sweep(), 0)
      assert.equal((await app.admin.get(`/projects/${id}`)).status, 200)
    })

    it('requires force and a valid number of days', async () => {
      const { id } = await app.project()
      for (const query of [
        'grace_days=7',
        'force=true&grace_days=-1',
        'force=true&grace_days=366',
        'force=true&grace_days=x',
      ])
        assert.equal((await app.admin.delete(`/projects/${id}?${query}`)).status, 400, query)
      assert.equal((await app.admin.get(`/projects/${id}`)).status, 200)
    })
  })

  describe('summary', () => {
    it('counts what a project holds', async () => {
      const { id, key } = await app.project()
      await key.post('/secrets', { name: 's', value: 'v' })
      await key.post('/secrets', { name: 's', value: 'v' })
      const summary = await key.get(`/projects/${id}/summary`)
      assert.equal(summary.status, 200)
      assert.deepEqual(summary.body.counts, { secrets: 2 })
      assert.ok(summary.body.last_activity_at)
    })
  })

  describe('clone', () => {
    it('copies settings, tags and the included kinds', async () => {
      const parts = cloneables.with({
        name: 'test_parts',
        async copy(_tx, from, to, ids) {
          ids.set(from, to)
        },
      })
      const unload = loadBeside({ extensions: [parts] })
      const { id, key } = await app.project()
      await key.post('/secrets', { name: 's', value: 'v' })
      await app.admin.patch(`/projects/${id}`, { max_run_depth: 5 })
      await app.admin.put(`/projects/${id}/tags`, { team: 'a' })
      const made = await app.admin.post(`/projects/${id}/clone`, { name: 'copy', include: ['test_parts'] })
      unload()
      assert.equal(made.status, 201)
      const { project, ids } = made.body
      assert.deepEqual([project.name, project.max_run_depth, project.tags], ['copy', 5, { team: 'a' }])
      assert.deepEqual(ids, { [id]: project.id })
      assert.deepEqual((await app.admin.get(`/projects/${project.id}/summary`)).body.counts, {})
    })

    it('refuses kinds that cannot be copied, and callers who are not admins', async () => {
      const { id, key } = await app.project()
      const refused = await app.admin.post(`/projects/${id}/clone`, { name: 'copy', include: ['secrets'] })
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.meta.problems[0].path, 'include[0]')
      assert.equal((await app.admin.post(`/projects/${id}/clone`, {})).status, 400)
      assert.equal((await key.post(`/projects/${id}/clone`, { name: 'copy' })).status, 403)
    })
  })
})
