import assert from 'node:assert/strict'
import { auditReadsDropped, openReadAudit } from '#control/audit/read-audit.ts'
import { mergeSeals, sealEntries } from '#control/audit/seal.ts'
import { findSealHash } from '#control/audit/store.ts'
import { type Clock, systemClock } from '#core/base/clock.ts'
import { idFloor, newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { inTransaction } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { workForConcerns } from '#core/modules/module.ts'
import { retentionSweepQueue, sweeps } from '#core/work/sweeps.ts'
import type { AuditEntry } from '#core/writes/audit-entry.ts'
import { client, eventually, startApp, type TestApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const DAY = 86_400_000

describe('the audit log', () => {
  const app = forSuite(() => startApp({ clock, workers: ['snapshot'] }))
  let offset = 0
  const clock: Clock = { now: () => new Date(systemClock.now().getTime() + offset) }

  const quota = async (projectId: string, window = 'rolling_24h') =>
    (
      await app.admin.post('/quotas', {
        project_id: projectId,
        scope: 'project',
        metric: 'requests',
        window,
        limit: 1000,
      })
    ).body.id as string

  const entriesOf = async (projectId: string, query = ''): Promise<AuditEntry[]> =>
    (await app.admin.get(`/audit-log?project_id=${projectId}&limit=200${query}`)).body.data
  const rows = async (projectId: string) =>
    Number(await app.pool.oneFirst(sql.unsafe`select count(*) from audit_entries where project_id = ${projectId}`))

  /** Adds entries as the database would hold them, `count` of them a second apart from `start` on. */
  async function backfill(
    projectId: string | null,
    count: number,
    start: Date,
    { at = app, ids = Array.from({ length: count }, () => newId('audit')) }: { at?: TestApp; ids?: string[] } = {},
  ): Promise<string[]> {
    const insert = (services: Services) =>
      services.write(async tx => {
        for (const [index, id] of ids.entries()) {
          tx.audit({
            id,
            project_id: projectId,
            principal_type: 'user',
            principal_id: 'user_of_old',
            action: 'quotas:UpdateQuota',
            resource_srn: `srn:${projectId ?? '*'}:quota:quota_${index}`,
            resource_public_id: `quota_${index}`,
            status: 200,
            request_id: `request-${index}`,
            ip: '192.0.2.1',
            user_agent: 'backfill',
            detail: { b: index, a: { d: [1, { f: 2, e: 1 }], c: null } },
            created_at: new Date(start.getTime() + index * 1000).toISOString(),
          })
        }
      })
    await (projectId === null ? insert(at.services) : at.inCellOf(projectId, insert))
    return ids
  }

  /** Runs statements as a user who bypasses the triggers. */
  const tamper = (...statements: ReturnType<typeof sql.unsafe>[]) => tamperAt(app, ...statements)
  const tamperAt = (at: TestApp, ...statements: ReturnType<typeof sql.unsafe>[]) =>
    at.inEachCell(({ pool }) =>
      inTransaction(pool, async tx => {
        await tx.query(sql.unsafe`set local session_replication_role = replica`)
        for (const statement of statements) await tx.query(statement)
      }),
    )

  describe('entries', () => {
    it('a delete leaves one entry with its action, exact name and status, readable with the answer', async () => {
      const project = await app.project()
      const id = await quota(project.id)
      const from = Date.now()
      const deleted = await project.key.delete(`/quotas/${id}`, {
        'user-agent': 'a test',
        'x-request-id': 'request-of-the-delete',
      })
      const to = Date.now()
      assert.equal(deleted.status, 204)
      const entries = await entriesOf(project.id, '&action=quotas:DeleteQuota')
      assert.equal(entries.length, 1)
      const { id: entryId, created_at, ...entry } = entries[0]
      assert.match(entryId, /^audit_/)
      assert.ok(Date.parse(created_at) >= from && Date.parse(created_at) <= to, created_at)
      assert.deepEqual(entry, {
        project_id: project.id,
        principal_type: 'api_key',
        principal_id: project.keyId,
        action: 'quotas:DeleteQuota',
        resource_srn: `srn:${project.id}:quota:${id}`,
        resource_public_id: id,
        status: 204,
        request_id: 'request-of-the-delete',
        ip: entry.ip,
        user_agent: 'a test',
        detail: null,
      })
      assert.match(entry.ip as string, /127\.0\.0\.1/)
      assert.equal(deleted.headers.get('x-request-id'), entry.request_id)
      assert.deepEqual((await app.admin.get(`/audit-log/${entryId}`)).body, entries[0])
    })

    it('a create names the new resource', async () => {
      const project = await app.project()
      const id = await quota(project.id)
      const [entry] = await entriesOf(project.id, '&action=quotas:CreateQuota')
      assert.equal(entry.resource_srn, `srn:${project.id}:quota:*`)
      assert.equal(entry.resource_public_id, id)
      assert.equal(entry.status, 201)
      assert.equal(entry.principal_type, 'user')
    })

    it('an update names the fields that changed, without their values', async () => {
      const project = await app.project()
      const id = await quota(project.id)
      await app.admin.patch(`/quotas/${id}`, { limit: 77, mode: 'enforce', warn_at: [0.5] })
      await app.admin.patch(`/quotas/${id}`, { limit: 77 })
      const entries = await entriesOf(project.id, '&action=quotas:UpdateQuota')
      assert.deepEqual(
        entries.map(({ detail }) => detail),
        [null, { changes: ['limit', 'warn_at'] }],
      )
    })

    it('a refused attempt leaves one entry with status 403 and the denied action', async () => {
      const project = await app.project()
      const id = await quota(project.id)
      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['quotas:GetQuota'], resource: [`srn:${project.id}:*:*`] }] },
      ])
      assert.equal((await reader.delete(`/quotas/${id}`)).status, 403)
      const entries = await app.admin.get(`/audit-log?principal_id=${reader.id}&action=quotas:DeleteQuota`)
      assert.equal(entries.body.total, 1)
      assert.equal(entries.body.data[0].status, 403)
    })

    it('a request without a credential adds nothing', async () => {
      const before = await app.pool.oneFirst(sql.unsafe`select count(*) from audit_entries`)
      assert.equal((await app.anonymous.post('/quotas', {})).status, 401)
      assert.equal(await app.pool.oneFirst(sql.unsafe`select count(*) from audit_entries`), before)
    })

    it('every entry of a project emits audit_entries.created, which adds no entry', async () => {
      const project = await app.project()
      await quota(project.id)
      const entries = await entriesOf(project.id)
      const events = await storedEvents(app.pool, { project: project.id, name: 'audit_entries.created' })
      assert.deepEqual(events.map(({ data }) => data).reverse(), entries)
    })
  })

  describe('reading', () => {
    it('has no route that writes', async () => {
      const project = await app.project()
      await quota(project.id)
      const [{ id }] = await entriesOf(project.id)
      for (const reply of [
        await app.admin.patch(`/audit-log/${id}`, { status: 200 }),
        await app.admin.put(`/audit-log/${id}`, { status: 200 }),
        await app.admin.delete(`/audit-log/${id}`),
        await app.admin.post('/audit-log', {}),
      ]) {
        assert.equal(reply.status, 404)
        assert.equal(reply.body.error.code, 'RESOURCE_NOT_FOUND')
      }
    })

    it('pages 25 by default, at most 200, newest first', async () => {
      assert.equal((await app.admin.get('/audit-log')).body.limit, 25)
      assert.equal((await app.admin.get('/audit-log?limit=500')).body.limit, 200)
      assert.equal((await app.admin.get('/audit-log?limit=0')).status, 400)
      assert.equal((await app.admin.get('/audit-log?from=abc')).status, 400)
      const project = await app.project()
      await backfill(project.id, 5, new Date('2026-01-01T00:00:00Z'))
      const page = (await app.admin.get(`/audit-log?project_id=${project.id}&limit=2&offset=2`)).body
      assert.equal(page.data.length, 2)
      const times = (await entriesOf(project.id)).map(({ created_at }) => created_at)
      assert.deepEqual(times, [...times].sort().reverse())
    })

    it('filters by action, principal, resource, name prefix, statuses and time', async () => {
      const project = await app.project()
      await backfill(project.id, 12, new Date('2026-01-01T00:00:00Z'))
      const ids = [await quota(project.id), await quota(project.id, 'rolling_1h')]
      await app.admin.post('/quotas', { project_id: project.id })
      const total = async (query: string) =>
        (await app.admin.get(`/audit-log?project_id=${project.id}&${query}`)).body.total
      assert.equal(await total('action=quotas:UpdateQuota'), 12)
      assert.equal(await total('principal_id=user_of_old'), 12)
      assert.equal(await total('resource_public_id=quota_3'), 1)
      assert.equal(await total(`resource_public_id=${ids[0]}`), 1)
      assert.equal(await total(`resource_srn=srn:${project.id}:quota:quota_1`), 3)
      assert.equal(await total(`resource_srn=srn:${project.id}:quota:quota%25`), 0)
      assert.equal(await total(`resource_srn=srn:${project.id}:quotaX`), 0)
      assert.equal(await total(`resource_srn=srn:${project.id}:quota:quotaX1`), 0)
      assert.equal(await total('status=201&action=quotas:CreateQuota'), 2)
      assert.equal(await total('status=201&status=400&action=quotas:CreateQuota'), 3)
      assert.equal(await total('from=2026-01-01T00:00:02Z&to=2026-01-01T00:00:04Z'), 3)
      for (const query of ['status=abc', 'status=', 'status=2000', 'action=', 'to=abc'])
        assert.equal((await app.admin.get(`/audit-log?${query}`)).status, 400, query)
    })

    it('shows global entries to admins with an unbound credential only', async () => {
      const project = await app.project()
      const found = await app.admin.get('/audit-log?action=projects:DeleteProject')
      const gone = await app.project()
      await app.admin.delete(`/projects/${gone.id}?force=true`)
      const after = await app.admin.get('/audit-log?action=projects:DeleteProject')
      assert.equal(after.body.total, found.body.total + 1)
      const entry = after.body.data[0]
      assert.equal(entry.project_id, null)
      assert.equal((await app.admin.get(`/audit-log/${entry.id}`)).status, 200)

      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['audit:*'], resource: ['*'] }] },
      ])
      assert.equal((await reader.get(`/audit-log?action=projects:DeleteProject`)).body.total, 0)
      assert.ok((await reader.get('/audit-log')).body.total > 0)
      assert.equal((await reader.get(`/audit-log/${entry.id}`)).status, 404)
      assert.equal((await project.key.get('/audit-log?action=projects:DeleteProject')).body.total, 0)
      assert.equal((await project.key.get(`/audit-log/${entry.id}`)).status, 404)
    })

    it('answers a limited caller for a global entry as for a missing one', async () => {
      await app.admin.post('/users', { username: 'leaves-a-global-entry', password: 'a fine password' })
      const { data } = (await app.admin.get('/audit-log?action=users:CreateUser&limit=1')).body
      const { key } = await app.projectWith(['audit:*'])
      const answers = await Promise.all(
        [data[0].id, 'audit_00000000000000000000000000'].map(id => key.get(`/audit-log/${id}`)),
      )
      for (const { status, body } of answers) assert.deepEqual([status, body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    })

    it('shows a bound key its project only, and answers 404 for entries of others', async () => {
      const [mine, other] = [await app.project(), await app.project()]
      await quota(other.id)
      const [foreign] = await entriesOf(other.id)
      assert.equal((await mine.key.get(`/audit-log/${foreign.id}`)).status, 404)
      const seen = (await mine.key.get('/audit-log?limit=200')).body.data as AuditEntry[]
      assert.ok(seen.every(entry => entry.project_id === mine.id))
      assert.equal((await mine.key.get(`/audit-log?project_id=${other.id}`)).status, 403)
      const stranger = await app.user()
      assert.equal((await stranger.get('/audit-log')).status, 403)
    })

    it('keeps the entries of a project that was deleted', async () => {
      const project = await app.project()
      await quota(project.id)
      const count = await rows(project.id)
      await app.admin.delete(`/projects/${project.id}?force=true`)
      assert.ok(count > 0)
      assert.equal(await rows(project.id), count)
    })
  })

  describe('export', () => {
    it('needs a project unless the credential is bound', async () => {
      const refused = await app.admin.get('/audit-log/export')
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.meta.problems[0].path, 'project_id')
      const project = await app.project()
      assert.equal((await project.key.get('/audit-log/export')).status, 200)
      assert.equal((await app.admin.get(`/audit-log/export?project_id=${project.id}&from=abc`)).status, 400)
      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['audit:ListAuditEntries'], resource: ['*'] }] },
      ])
      assert.equal((await reader.get(`/audit-log/export?project_id=${project.id}`)).status, 403)
    })

    it('streams every entry as a line of JSON, oldest first, over page bounds and equal times', async () => {
      const project = await app.project()
      const start = new Date('2026-01-01T00:00:00Z')
      for (let part = 0; part < 3; part++) await backfill(project.id, 450, start)
      const reply = await app.admin.get(`/audit-log/export?project_id=${project.id}&to=2026-02-01T00:00:00Z`)
      assert.equal(reply.headers.get('content-type'), 'application/x-ndjson')
      const name = `audit-log-${project.id}.ndjson`
      assert.equal(reply.headers.get('content-disposition'), `attachment; filename="${name}"`)
      const lines = (reply.body as string).trimEnd().split('\n')
      const entries = lines.map(line => JSON.parse(line) as AuditEntry)
      assert.equal(entries.length, 1350)
      const order = entries.map(({ created_at, id }) => `${created_at} ${id}`)
      assert.deepEqual(order, [...order].sort())
      assert.equal(new Set(order).size, 1350)
      const [newest] = await entriesOf(project.id, '&to=2026-02-01T00:00:00Z')
      assert.deepEqual(entries.at(-1), newest)
    })

    it('takes the filters of the list', async () => {
      const project = await app.project()
      await backfill(project.id, 20, new Date('2026-01-01T00:00:00Z'))
      const lines = async (query: string) => {
        const { body } = await app.admin.get(`/audit-log/export?project_id=${project.id}&${query}`)
        return body === null ? 0 : (body as string).trimEnd().split('\n').length
      }
      assert.equal(await lines('resource_public_id=quota_3'), 1)
      assert.equal(await lines(`resource_srn=srn:${project.id}:quota:quota_1`), 11)
      assert.equal(await lines('status=404'), 0)
      assert.equal(await lines('from=2026-01-01T00:00:05Z&to=2026-01-01T00:00:09Z'), 5)
    })
  })

  describe('reads', () => {
    const read = async (projectId: string, enabled: boolean) =>
      assert.equal((await app.admin.patch(`/projects/${projectId}`, { audit_reads_enabled: enabled })).status, 200)

    it('are recorded in a project that enables it, from its change on, and nowhere else', async () => {
      const project = await app.project()
      const id = await quota(project.id)
      const before = await rows(project.id)
      assert.equal((await app.admin.get(`/quotas/${id}`)).status, 200)
      await new Promise(resolve => setTimeout(resolve, 250))
      assert.equal(await rows(project.id), before)

      await read(project.id, true)
      const reply = await project.key.get(`/quotas/${id}`)
      await eventually(async () => (await rows(project.id)) === before + 2)
      const [entry] = await entriesOf(project.id, '&action=quotas:GetQuota')
      assert.equal(entry.status, 200)
      assert.equal(entry.resource_srn, `srn:${project.id}:quota:${id}`)
      assert.equal(entry.principal_id, project.keyId)
      assert.equal(entry.request_id, reply.headers.get('x-request-id'))
      // A list names its project; a refused read is one too.
      assert.equal((await app.admin.get(`/quotas?project_id=${project.id}`)).status, 200)
      assert.equal((await app.admin.get('/quotas')).status, 200)
      const stranger = await app.user(undefined, [
        {
          statement: [
            { effect: 'Allow', action: ['quotas:GetQuota', 'audit:*'], resource: [`srn:${project.id}:audit_entry:*`] },
          ],
        },
      ])
      assert.equal((await stranger.get(`/quotas/${id}`)).status, 403)
      const refused = await eventually(async () => {
        const found = await app.pool.anyFirst(sql.unsafe`
          select status from audit_entries where project_id = ${project.id} and principal_id = ${stranger.id}`)
        return found.length > 0 && found
      })
      assert.deepEqual(refused, [403])
      const lists = await app.pool.oneFirst(sql.unsafe`
        select count(*) from audit_entries where project_id = ${project.id} and action = 'quotas:ListQuotas'`)
      assert.equal(lists, 1)
      const named = await app.pool.oneFirst(sql.unsafe`
        select count(*) from audit_entries where project_id is null and action = 'quotas:ListQuotas'`)
      assert.equal(named, 0)

      await read(project.id, false)
      await new Promise(resolve => setTimeout(resolve, 250))
      const settled = await rows(project.id)
      await app.admin.get(`/quotas/${id}`)
      await new Promise(resolve => setTimeout(resolve, 250))
      assert.equal(await rows(project.id), settled)
    })

    const entry = (projectId: string): AuditEntry => ({
      id: newId('audit'),
      project_id: projectId,
      principal_type: 'user',
      principal_id: 'user_reading',
      action: 'quotas:GetQuota',
      resource_srn: null,
      resource_public_id: null,
      status: 200,
      request_id: null,
      ip: null,
      user_agent: null,
      detail: null,
      created_at: new Date().toISOString(),
    })

    it('beyond the buffer are dropped and counted; buffered entries are written at the close', async () => {
      const project = await app.project()
      const before = await rows(project.id)
      const reads = openReadAudit({
        ...app.servicesOf(project.id),
        config: { ...app.config, AUDIT_QUEUE_MAX_SIZE: 10 },
      })
      const dropped = async () => (await auditReadsDropped.get()).values[0]?.value ?? 0
      const droppedBefore = await dropped()
      for (let index = 0; index < 25; index++) reads.record(entry(project.id))
      assert.equal((await dropped()) - droppedBefore, 15)
      await reads.close()
      assert.equal(await rows(project.id), before + 10)
      const events = await storedEvents(app.pool, { project: project.id, name: 'audit_entries.created' })
      assert.equal(events.filter(({ data }) => data.principal_id === 'user_reading').length, 10)
    })

    it('of a project that is gone are kept without it and lose no entry of others', async () => {
      const gone = await app.project()
      const stays = await app.project(undefined, gone.id)
      const before = await rows(stays.id)
      const reads = openReadAudit(app.servicesOf(gone.id))
      const lost = app.inCellOf(gone.id, () => entry(gone.id))
      await app.admin.delete(`/projects/${gone.id}?force=true`)
      reads.record(entry(stays.id))
      reads.record(lost)
      await reads.close()
      assert.equal(await rows(stays.id), before + 1)
      assert.equal((await app.admin.get(`/audit-log/${lost.id}`)).body.project_id, null)
    })
  })

  describe('append-only', () => {
    it('refuses UPDATE, DELETE and TRUNCATE in the database', async () => {
      const project = await app.project()
      await quota(project.id)
      const before = await rows(project.id)
      const { pool } = app.servicesOf(project.id)
      await assert.rejects(
        pool.query(sql.unsafe`update audit_entries set status = 200 where project_id = ${project.id}`),
        /append-only/,
      )
      await assert.rejects(
        pool.query(sql.unsafe`delete from audit_entries where project_id = ${project.id}`),
        /append-only/,
      )
      await assert.rejects(pool.query(sql.unsafe`truncate audit_entries`), /append-only/)
      await sealEntries(pool, { full: true })
      const seals = sql.identifier(['audit_seal_batches'])
      await assert.rejects(pool.query(sql.unsafe`update ${seals} set position = position + 1000000`), /append-only/)
      await assert.rejects(pool.query(sql.unsafe`delete from ${seals}`), /append-only/)
      await assert.rejects(pool.query(sql.unsafe`truncate ${seals}`), /append-only/)
      assert.equal(await rows(project.id), before)
    })
  })

  describe('hash chain', () => {
    const verify = async (projectId: string) =>
      (await app.admin.get(`/audit-log/verify?project_id=${projectId}`)).body as {
        valid: boolean
        checked: number
        first_broken_id: string | null
      }

    const seals = async (chain: string) =>
      (await app.pool.one(sql.unsafe`
        select count(*) as batches, coalesce(sum(count), 0)::int8 as entries from audit_seal_batches where chain = ${chain}`)) as {
        batches: number
        entries: number
      }

    it('verifies every entry of a project, also unsealed ones', async () => {
      const project = await app.project()
      await backfill(project.id, 1200, new Date('2026-01-01T00:00:00Z'))
      const count = await rows(project.id)
      assert.deepEqual(await verify(project.id), { valid: true, checked: count, first_broken_id: null })
      await quota(project.id)
      assert.deepEqual(await verify(project.id), { valid: true, checked: count + 1, first_broken_id: null })
      assert.equal((await project.key.get('/audit-log/verify')).body.checked, count + 1)
    })

    it('is sealed and verified to an end while the project continues to write', async () => {
      const project = await app.project()
      let writing = true
      const write = async () => {
        while (writing) await project.key.post('/actors', { name: 'one of many' })
      }
      const writers = Array.from({ length: 6 }, write)
      try {
        const before = app.statements.filter(text => text.includes('insert into audit_seal_batches')).length
        for (let round = 0; round < 3; round++) {
          await sealEntries(app.servicesOf(project.id).pool, { full: true })
          assert.equal((await verify(project.id)).valid, true)
        }
        const sealed = app.statements.filter(text => text.includes('insert into audit_seal_batches')).length - before
        assert.ok(sealed < 20, `sealed ${sealed} pages in six rounds`)
      } finally {
        writing = false
        await Promise.all(writers)
      }
    })

    it('is written by a worker every few seconds', async () => {
      const tick = workForConcerns(['snapshot']).schedules.find(({ name }) => name === 'seal audit entries')
      assert.equal(tick?.when, 5)
      const project = await app.project()
      await quota(project.id)
      await eventually(
        async () =>
          (await app.pool.oneFirst(sql.unsafe`
            select sum(count)::int8 from audit_seal_batches where chain = ${project.id}`)) === (await rows(project.id)),
        { every: 200 },
      )
    })

    it('is sealed by the sweep, without messages, while nothing is written', async () => {
      const { pool } = app
      const read = (value: ReturnType<typeof sql.fragment>) => pool.oneFirst(sql.unsafe`select ${value}`)
      const unsealed = sql.fragment`(select count(*) from audit_entries t
        where not exists (select from audit_seal_batches b where t.id = any(b.entry_ids)))`
      const messages = sql.fragment`(select count(*) from pgboss.job_common where name = 'audit.seal')`
      const pass = sql.fragment`(select passed_at from audit_sealing)`
      await eventually(async () => (await read(unsealed)) === 0, { every: 200 })
      const sent = await read(messages)
      for (let passes = 0; passes < 2; passes++) {
        const before = await read(pass)
        await eventually(async () => (await read(pass)) !== before, { every: 200 })
      }
      assert.equal(await read(messages), sent)
    })

    it('has one row for the entries of a project that are sealed together', async () => {
      const project = await app.project()
      await backfill(project.id, 300, new Date('2026-01-01T00:00:00Z'))
      await verify(project.id)
      assert.equal((await seals(project.id)).batches <= 3, true, JSON.stringify(await seals(project.id)))
    })

    it('continues a chain, which is verified from any position', async () => {
      const project = await app.project()
      const ids = await backfill(project.id, 40, new Date('2026-01-01T00:00:00Z'))
      const count = await rows(project.id)
      await verify(project.id)
      await backfill(project.id, 20, new Date('2026-01-02T00:00:00Z'))
      assert.deepEqual(await verify(project.id), { valid: true, checked: count + 20, first_broken_id: null })
      const from = async (after: number) =>
        (await app.admin.get(`/audit-log/verify?project_id=${project.id}&after=${after}`)).body
      for (const after of [0, 10, count - 1, count, count + 1, count + 19, count + 20])
        assert.deepEqual(await from(after), { valid: true, checked: count + 20, first_broken_id: null })
      assert.equal((await from(count + 21)).valid, false)
      await tamper(sql.unsafe`update audit_entries set status = 500 where id = ${ids[7]}`)
      assert.equal((await verify(project.id)).first_broken_id, ids[7])
    })

    it('merges the seals of a quiet chain without a change of positions and hashes', async () => {
      const project = await app.project()
      const old = Date.now() - 5 * 86_400_000
      const ids = Array.from({ length: 60 }, (_, n) => idFloor('audit', new Date(old + n)))
      for (let n = 0; n < 60; n += 5) {
        await backfill(project.id, 5, new Date(old), { ids: ids.slice(n, n + 5) })
        await sealEntries(app.servicesOf(project.id).pool, { full: true })
      }
      const before = await seals(project.id)
      assert.ok(before.batches >= 12)
      const all = await verify(project.id)
      const hashAt = () => findSealHash(app.pool, project.id, 33)
      const hash = await hashAt()
      await mergeSeals(app.servicesOf(project.id))
      const after = await seals(project.id)
      assert.ok(after.batches <= 3, JSON.stringify(after))
      assert.equal(after.entries, before.entries)
      assert.deepEqual(await verify(project.id), all)
      assert.deepEqual(await hashAt(), hash)
      await tamper(sql.unsafe`update audit_entries set status = 500 where id = ${ids[41]}`)
      assert.equal((await verify(project.id)).first_broken_id, ids[41])
    })

    it('names the first entry that was changed', async () => {
      const project = await app.project()
      const ids = await backfill(project.id, 30, new Date('2026-01-01T00:00:00Z'))
      assert.equal((await verify(project.id)).valid, true)
      await tamper(sql.unsafe`update audit_entries set status = 500 where id = ${ids[7]}`)
      const broken = await verify(project.id)
      assert.equal(broken.valid, false)
      assert.equal(broken.first_broken_id, ids[7])
      await tamper(sql.unsafe`update audit_entries set status = 200 where id = ${ids[7]}`)
      assert.equal((await verify(project.id)).valid, true)
      await tamper(sql.unsafe`update audit_entries set detail = jsonb_set(detail, '{a,d,0}', '2') where id = ${ids[9]}`)
      assert.equal((await verify(project.id)).first_broken_id, ids[9])
    })

    it('names an entry that was deleted, and the one after a seal that was deleted with its entry', async () => {
      const project = await app.project()
      const ids = await backfill(project.id, 10, new Date('2026-01-01T00:00:00Z'))
      await verify(project.id)
      await tamper(sql.unsafe`delete from audit_entries where id = ${ids[4]}`)
      assert.equal((await verify(project.id)).first_broken_id, ids[4])
      await tamper(
        sql.unsafe`
          insert into audit_seal_batches (chain, position, count, first_id, last_id, entry_ids, hashes)
          select chain, position - count + p - 1, p - 1, first_id, last_id, entry_ids[:p - 1], substring(hashes for 32 * (p - 1))
          from audit_seal_batches cross join lateral array_position(entry_ids, ${ids[4]}) p where p is not null`,
        sql.unsafe`
          update audit_seal_batches set count = count - p, entry_ids = entry_ids[p + 1:], hashes = substring(hashes from 32 * p + 1)
          from (
            select position as at, array_position(entry_ids, ${ids[4]}) as p from audit_seal_batches where chain = ${project.id}) f
          where p is not null and at = position and chain = ${project.id}`,
      )
      assert.equal((await verify(project.id)).first_broken_id, ids[5])
    })

    it('keeps a chain for the entries without a project, which admins check', async () => {
      const all = await app.admin.get('/audit-log/verify')
      assert.equal(all.status, 200)
      assert.equal(all.body.valid, true)
      assert.ok(all.body.checked > 0)
      const reader = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['audit:*'], resource: ['*'] }] },
      ])
      const refused = await reader.get('/audit-log/verify')
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.meta.problems[0].path, 'project_id')
    })

    it('grows without a fork when several processes seal it concurrently', async () => {
      const projects = await Promise.all([1, 2, 3].map(() => app.project()))
      for (const { id } of projects) await backfill(id, 200, new Date('2026-01-01T00:00:00Z'))
      const { pool } = app.services
      await Promise.all([
        sealEntries(pool, { full: true }),
        sealEntries(pool, { full: false }),
        sealEntries(pool, { full: true }),
        ...projects.map(({ id }) => verify(id)),
      ])
      for (const { id } of projects)
        assert.deepEqual(await verify(id), { valid: true, checked: await rows(id), first_broken_id: null })
    })
  })

  describe('verification of a long chain', () => {
    const quiet = forSuite(startApp)

    /** A project with `count` entries that are not sealed yet. */
    async function written(count: number) {
      const project = await quiet.project()
      await backfill(project.id, count, new Date('2026-01-01T00:00:00Z'), { at: quiet })
      return project
    }
    /** Keeps the chain of a project from being sealed until `release` is called. */
    async function keepUnsealed(projectId: string) {
      let release = () => {}
      const released = new Promise<void>(resolve => {
        release = resolve
      })
      let held = () => {}
      const holding = new Promise<void>(resolve => {
        held = resolve
      })
      const done = inTransaction(quiet.servicesOf(projectId).pool, async tx => {
        await tx.query(sql.unsafe`select pg_advisory_xact_lock(hashtextextended(${`audit chain ${projectId}`}, 0))`)
        held()
        await released
      })
      await holding
      return async () => {
        release()
        await done
      }
    }
    const sealing = (at: TestApp, from: number) =>
      at.statements.slice(from).filter(text => text.includes('advisory_xact_lock')).length
    const pages = (at: TestApp, from: number) =>
      at.statements
        .slice(from)
        .filter(text => text.includes('from audit_seal_batches') && text.includes('order by s.position')).length
    const intact = (checked: number) => ({ valid: true, checked, first_broken_id: null })

    it('waits without a connection for a chain that is being sealed, and runs once for concurrent callers', async () => {
      const [project, other] = [await written(20), await quiet.project()]
      const release = await keepUnsealed(project.id)
      const from = quiet.statements.length
      const asked = Array.from({ length: 24 }, () => project.key.get('/audit-log/verify'))
      await eventually(() => sealing(quiet, from) > 0)
      for (let round = 0; round < 20; round++) assert.equal((await other.key.get(`/projects/${other.id}`)).status, 200)
      const waiting = await quiet.pool.oneFirst(sql.unsafe`
        select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`)
      await release()
      assert.equal(waiting, 0)
      for (const { body } of await Promise.all(asked)) assert.deepEqual(body, intact(22))
      // One for the first caller, another for all who came during it.
      assert.ok(pages(quiet, from) <= 3, `${pages(quiet, from)} verifications`)
    })

    it('takes one connection at a time, for however many callers and projects', async () => {
      const projects = await Promise.all([600, 600, 600, 600].map(written))
      for (const { key } of projects) await key.get('/audit-log?limit=1')
      let most = 0
      const sample = () => {
        most = Math.max(most, (quiet.services.pool.state() as { acquiredConnections: number }).acquiredConnections)
      }
      const sampler = setInterval(sample, 1)
      try {
        const asked = projects.flatMap(({ key }) => Array.from({ length: 24 }, () => key.get('/audit-log/verify')))
        for (const { body } of await Promise.all(asked)) assert.deepEqual(body, intact(602))
      } finally {
        clearInterval(sampler)
      }
      // One more for queries of a request itself, such as who its caller is.
      assert.ok(most <= 2, `${most} connections`)
    })

    it('is done by one process at a time', async () => {
      const project = await written(30)
      const second = await startApp({ databaseUrl: quiet.databaseUrl })
      try {
        const release = await keepUnsealed(project.id)
        const from = quiet.statements.length
        const first = project.key.get('/audit-log/verify')
        await eventually(() => sealing(quiet, from) > 0)
        const elsewhere = second.as(project.key.token).get('/audit-log/verify')
        await eventually(() => second.statements.some(text => text.includes('audit_verifications')))
        await eventually(() => sealing(quiet, from) > 3)
        assert.deepEqual([sealing(second, 0), pages(second, 0)], [0, 0])
        await release()
        assert.deepEqual((await first).body, intact(32))
        assert.deepEqual((await elsewhere).body, intact(32))
      } finally {
        await second.close()
      }
    })

    it('is taken over from a process that was killed', async () => {
      const project = await written(30)
      const process = await startProcess('web', quiet.databaseUrl)
      const release = await keepUnsealed(project.id)
      try {
        void client(process.url, project.key.token)
          .get('/audit-log/verify')
          .catch(() => {})
        await eventually(() =>
          quiet.pool.exists(sql.unsafe`select 1 from audit_verifications where chain = ${project.id}`),
        )
      } finally {
        await process.kill()
        await release()
      }
      assert.deepEqual((await project.key.get('/audit-log/verify')).body, intact(32))
    })

    it('ends when no caller waits for it', async () => {
      const project = await written(30)
      const release = await keepUnsealed(project.id)
      const from = quiet.statements.length
      const leave = new AbortController()
      const asked = [1, 2].map(() =>
        fetch(`${quiet.url}/api/v1/audit-log/verify`, {
          headers: { authorization: `Bearer ${project.key.token}` },
          signal: leave.signal,
        }).catch(() => null),
      )
      await eventually(() => sealing(quiet, from) > 0)
      leave.abort()
      await Promise.all(asked)
      await eventually(
        async () =>
          !(await quiet.pool.exists(sql.unsafe`select 1 from audit_verifications where chain = ${project.id}`)),
      )
      await release()
      assert.equal(pages(quiet, from), 0)
    })

    it('continues from a position, and stops after a number of entries', async () => {
      const project = await written(600)
      const verify = async (query: string) => (await project.key.get(`/audit-log/verify${query}`)).body
      assert.deepEqual(await verify('?max_entries=100'), intact(100))
      assert.deepEqual(await verify('?after=100&max_entries=300'), intact(400))
      assert.deepEqual(await verify('?after=400'), intact(602))
      assert.deepEqual(await verify('?after=602'), intact(602))
      const broken = await quiet.pool.oneFirst(
        sql.unsafe`
          select entry_ids[200 - position + count] from audit_seal_batches
          where chain = ${project.id} and position >= 200 order by position limit 1`,
      )
      await tamperAt(quiet, sql.unsafe`update audit_entries set status = 500 where id = ${broken as string}`)
      const found = { valid: false, checked: 200, first_broken_id: broken }
      assert.deepEqual(await verify(''), found)
      assert.deepEqual(await verify('?after=150'), found)
      assert.deepEqual(await verify('?after=200'), intact(602))
      for (const query of ['?after=-1', '?after=x', '?max_entries=0', '?max_entries=1.5', '?after=1&after=2'])
        assert.equal((await project.key.get(`/audit-log/verify${query}`)).status, 400, query)
    })

    it('finds out that the end of a chain is missing from the position it had reached', async () => {
      const project = await written(40)
      const verify = async (query = '') => (await project.key.get(`/audit-log/verify${query}`)).body
      assert.deepEqual(await verify(), intact(42))
      await tamperAt(
        quiet,

        sql.unsafe`delete from audit_entries where id in (
          select unnest(entry_ids[31:]) from audit_seal_batches where chain = ${project.id})`,
        sql.unsafe`
          update audit_seal_batches set position = 30, count = 30, entry_ids = entry_ids[:30], hashes = substring(hashes for 960)
          where chain = ${project.id}`,
      )
      assert.deepEqual(await verify(), intact(30))
      assert.deepEqual(await verify('?after=42'), { valid: false, checked: 42, first_broken_id: null })
    })

    it('seals from the last pass over all chains on; entries that were committed much later wait for the nightly pass', async () => {
      const project = await written(10)
      await sealEntries(quiet.servicesOf(project.id).pool, { full: true })
      const late = idFloor('audit', new Date(Date.now() - 3_600_000))
      await backfill(project.id, 1, new Date(Date.now() - 3_600_000), { at: quiet, ids: [late] })
      assert.deepEqual((await project.key.get('/audit-log/verify')).body, intact(12))
      await sealEntries(quiet.servicesOf(project.id).pool, { full: true })
      assert.deepEqual((await project.key.get('/audit-log/verify')).body, intact(13))
    })
  })

  describe('retention', () => {
    const sweep = () =>
      app.inEachCell(({ queues }) => queues.send([{ queue: retentionSweepQueue, data: { sweep: 'audit entries' } }]))

    it('deletes entries older than AUDIT_RETENTION_DAYS daily and leaves the chain valid', async () => {
      const tick = workForConcerns(['snapshot']).schedules.find(({ name }) => name === 'sweep audit entries')
      assert.equal(tick?.when, '31 3 * * *')
      const project = await app.project()
      await backfill(project.id, 40, new Date(Date.now() - 366 * DAY))
      await quota(project.id)
      const total = await rows(project.id)
      assert.equal((await app.admin.get(`/audit-log/verify?project_id=${project.id}`)).body.checked, total)
      await sweep()
      await eventually(async () => (await rows(project.id)) === total - 40)
      assert.deepEqual((await app.admin.get(`/audit-log/verify?project_id=${project.id}`)).body, {
        valid: true,
        checked: total,
        first_broken_id: null,
      })
      offset = 370 * DAY
      try {
        await sweep()
        await eventually(async () => (await rows(project.id)) === 0)
      } finally {
        offset = 0
      }
      assert.equal((await app.admin.get(`/audit-log/verify?project_id=${project.id}`)).body.valid, true)
    })

    it('deletes the seals at the beginning of a chain, which continues from the last of them', async () => {
      const project = await app.project()
      const services = app.servicesOf(project.id)
      const { pool } = services
      await backfill(project.id, 1200, new Date())
      await backfill(project.id, 3, new Date(Date.now() + 180 * DAY))
      await sealEntries(pool, { full: true })
      const verify = async (query = '') =>
        (await app.admin.get(`/audit-log/verify?project_id=${project.id}${query}`)).body
      const total = await rows(project.id)
      const intact = { valid: true, checked: total, first_broken_id: null }
      assert.deepEqual(await verify(), intact)
      const sealed = async () =>
        pool.oneFirst(sql.unsafe`
          select coalesce(sum(count), 0) from audit_seal_batches where chain = ${project.id}`) as Promise<number>
      assert.equal(Number(await sealed()), total)

      const runIn = (days: number) => {
        const later: Clock = { now: () => new Date(Date.now() + days * DAY) }
        return sweeps.get('audit entries').run({ ...services, clock: later }, new AbortController().signal)
      }
      let isPruning = true
      const pruning = runIn(370).finally(() => {
        isPruning = false
      })
      while (isPruning) assert.deepEqual(await verify('&after=1'), intact)
      await pruning
      // The third batch has entries that remain.
      const left = Number(await sealed())
      assert.ok(left < total - 900 && left >= total - 1200, `${left} of ${total}`)
      const start = total - left
      for (const after of [0, 10, start - 1, start, start + 1, total])
        assert.deepEqual(await verify(`&after=${after}`), intact)
      assert.equal((await verify(`&after=${total + 1}`)).valid, false)
      assert.deepEqual(await verify('&max_entries=10'), { ...intact, checked: start })
      const [newest] = await entriesOf(project.id)
      await tamper(sql.unsafe`update audit_entries set status = 500 where id = ${newest.id}`)
      assert.equal((await verify()).first_broken_id, newest.id)
      await tamper(sql.unsafe`update audit_entries set status = ${newest.status} where id = ${newest.id}`)

      await runIn(740)
      assert.equal(Number(await sealed()), 0)
      assert.deepEqual(await verify(), intact)
      await quota(project.id, 'rolling_1h')
      assert.deepEqual(await verify(), { ...intact, checked: total + 1 })
      assert.deepEqual(await verify(`&after=${total}`), { ...intact, checked: total + 1 })
      for (const statement of [
        sql.unsafe`delete from audit_chain_starts where chain = ${project.id}`,
        sql.unsafe`update audit_chain_starts set position = position + 1 where chain = ${project.id}`,
        sql.unsafe`insert into audit_chain_starts (chain, position, hash) select 'x', 1, hash from audit_chain_starts limit 1`,
        sql.unsafe`delete from audit_seal_batches where chain = ${project.id}`,
      ])
        await assert.rejects(pool.query(statement), /append-only/)
    })

    it('keeps everything with 0 days or when the sweep is disabled', async () => {
      const settings: Record<string, string>[] = [
        { AUDIT_RETENTION_DAYS: '0' },
        { AUDIT_RETENTION_SWEEP_DISABLED: 'true' },
      ]
      for (const env of settings) {
        const keeping = await startApp({
          env,
          workers: ['snapshot'],
          clock: { now: () => new Date(Date.now() + 1000 * DAY) },
        })
        try {
          const { pool, queues } = keeping.services
          await keeping.services.write(async tx =>
            tx.audit({
              id: newId('audit'),
              project_id: null,
              principal_type: null,
              principal_id: null,
              action: 'quotas:UpdateQuota',
              resource_srn: null,
              resource_public_id: null,
              status: 200,
              request_id: null,
              ip: null,
              user_agent: null,
              detail: null,
              created_at: new Date(0).toISOString(),
            }),
          )
          await queues.send([{ queue: retentionSweepQueue, data: { sweep: 'audit entries' } }])
          await eventually(() => keeping.logs.some(line => line.includes('sweep completed')))
          assert.ok(
            await pool.exists(sql.unsafe`select 1 from audit_entries where created_at = ${new Date(0).toISOString()}`),
          )
        } finally {
          await keeping.close()
        }
      }
    })

    it('of kept answers and failed logins deletes in batches, until the worker stops', async () => {
      const { pool } = app
      await pool.query(sql.unsafe`
        insert into idempotency_keys (credential_id, path, key, request_hash, created_at)
        select 'many', '/', n, '', now() - interval '3 days' from generate_series(1, 10001) n`)
      await pool.query(sql.unsafe`
        insert into login_failures (username, failures, first_failed_at)
        select 'many ' || n, 1, now() - interval '3 days' from generate_series(1, 10001) n`)
      for (const [name, table] of [
        ['idempotency keys', 'idempotency_keys'],
        ['login failures', 'login_failures'],
      ]) {
        const deletes = () => app.statements.filter(text => text.includes(`delete from ${table}`)).length
        const { run } = sweeps.get(name)
        assert.equal(await run(app.services, AbortSignal.abort()), 0)
        const before = deletes()
        assert.ok((await run(app.services, new AbortController().signal)) >= 10001)
        assert.ok(deletes() - before >= 3, name)
      }
    })

    it('deletes overdue stored responses, failed logins and heartbeats', async () => {
      const { pool, queues } = app.services
      const names = ['idempotency keys', 'login failures', 'worker heartbeats', 'deferred project deletes']
      const ticks = workForConcerns(['snapshot']).schedules.map(({ name }) => name)
      for (const name of names) assert.ok(ticks.includes(`sweep ${name}`))
      await pool.query(sql.unsafe`
        insert into idempotency_keys (credential_id, path, key, request_hash, created_at)
        values ('old', '/', 'old', '', now() - interval '25 hours'), ('new', '/', 'new', '', now())`)
      await pool.query(sql.unsafe`
        insert into login_failures (username, failures, first_failed_at, locked_until)
        values ('stale', 3, now() - interval '2 days', null), ('fresh', 3, now(), null),
          ('locked', 30, now() - interval '2 days', now() + interval '1 hour')`)
      await pool.query(sql.unsafe`
        insert into worker_heartbeats (instance_id, kinds, started_at, beat_at)
        values ('ended', '{delivery}', now() - interval '9 days', now() - interval '8 days'),
          ('alive', '{delivery}', now(), now())`)
      await queues.send(names.map(sweep => ({ queue: retentionSweepQueue, data: { sweep } })))
      const left = async () => [
        await pool.anyFirst(sql.unsafe`select key from idempotency_keys where key in ('old', 'new')`),
        await pool.anyFirst(sql.unsafe`
          select username from login_failures where username in ('stale', 'fresh', 'locked') order by 1`),
        await pool.anyFirst(sql.unsafe`
          select instance_id from worker_heartbeats where instance_id in ('ended', 'alive')`),
      ]
      await eventually(async () => JSON.stringify(await left()) === '[["new"],["fresh","locked"],["alive"]]')
    })
  })
})
