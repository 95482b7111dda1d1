import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { expireExports } from '#automation/playbooks/exports/remove.ts'
import { sql, voidStatement } from '#core/db/sql.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

/** Short leases, so that a lost worker is detected quickly. */
const FAST = { SHUTDOWN_GRACE_MS: '2000', PLAYBOOK_EXPORT_LEASE_SECONDS: '1' }

const HOSTILE = '# <script>alert(1)</script> ](javascript:alert(1)) `x` | \u202egpj.exe'

describe('exports', () => {
  const app = forSuite(() => startApp({ env: FAST }))
  const project = forSuite(() => app.projectWith(['cases:*', 'files:*', 'documents:*', 'webhooks:*']))
  let worker: Awaited<ReturnType<typeof runWorker>> | null = null
  after(async () => {
    await worker?.stop()
  })

  const made = (path: string, body: object, by: Client = project.key) => postedBy(by, path, body)
  const aCase = (body: object = {}, by?: Client) => made('/cases', { title: 'A claim', ...body }, by)
  const ask = (id: string, body: object = {}, by?: Client) =>
    made('/playbook-exports', { subject_type: 'case', subject_id: id, ...body }, by)
  const ended = (id: string) =>
    eventually(async () => {
      const { body } = await app.admin.get(`/playbook-exports/${id}`)
      return ['completed', 'failed'].includes(body.status) && body
    })
  const content = async (fileId: string): Promise<Buffer> =>
    Buffer.from((await project.key.get(`/files/${fileId}/download/base64`)).body.content, 'base64')
  const built = async (id: string, body: object = {}, by?: Client) => {
    const done = await ended((await ask(id, body, by)).id)
    assert.equal(done.status, 'completed', JSON.stringify(done.error))
    return done
  }
  const filesOf = async (exportId: string) =>
    (await app.admin.get(`/files?project_id=${project.id}&limit=100`)).body.data.filter(({ path }: any) =>
      path?.startsWith(`/exports/${exportId}`),
    )

  it('leaves no partial files and completes once after a worker is killed', async () => {
    const about = await aCase()
    const queued = await project.key.post('/playbook-exports', { subject_type: 'case', subject_id: about.id })
    assert.equal(queued.status, 202)
    assert.deepEqual([queued.body.status, queued.body.formats, queued.body.files], ['queued', ['json', 'markdown'], []])
    for (const point of ['export.build/claimed', 'export_staged']) {
      const doomed = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: `${point}=kill` }, [
        'orchestration',
      ])
      await doomed.exited
      assert.deepEqual(await filesOf(queued.body.id), [])
      assert.equal((await project.key.get(`/playbook-exports/${queued.body.id}`)).body.status, 'running')
    }
    worker = await runWorker(app.databaseUrl, FAST, ['orchestration'])
    const done = await ended(queued.body.id)
    assert.equal(done.status, 'completed', JSON.stringify(done.error))
    assert.equal((await filesOf(done.id)).length, 2)
    const { data } = (await project.key.get(`/cases/${about.id}/timeline?kind=exported`)).body
    assert.deepEqual(
      data.map((row: any) => [row.data.export_id, row.principal_kind, row.principal_id]),
      [[done.id, 'api_key', project.keyId]],
    )
    const told = await storedEvents(app.pool, { resource: done.id })
    assert.deepEqual(
      told.map(({ name }) => name),
      ['playbook_exports.completed'],
    )
  })

  it('creates project files that match their hashes', async () => {
    const about = await aCase({ title: HOSTILE, fields: { amount: 20 } })
    await made(`/cases/${about.id}/comments`, { body: HOSTILE })
    const evidence = await made(`/cases/${about.id}/evidence`, { name: HOSTILE, kind: 'note', content: 'x' })
    await made(`/cases/${about.id}/close`, {})
    const done = await built(about.id, { formats: ['json', 'markdown', 'html'] })
    const texts: string[] = []
    for (const { format, file_id, size_bytes, sha256 } of done.files) {
      const bytes = await content(file_id)
      assert.equal(bytes.length, size_bytes)
      assert.equal(createHash('sha256').update(bytes).digest('hex'), sha256)
      const file = (await project.key.get(`/files/${file_id}`)).body
      const [extension, type] = {
        json: ['json', 'application/json'],
        markdown: ['md', 'text/markdown'],
        html: ['html', 'text/html'],
      }[format as 'json']
      assert.deepEqual([file.path, file.content_type], [`/exports/${done.id}.${extension}`, type])
      texts.push(bytes.toString())
    }
    const json = JSON.parse(texts[0])
    assert.equal(json.export_version, 1)
    assert.equal(json.case.title, HOSTILE)
    assert.deepEqual(json.case.fields, { amount: 20 })
    assert.deepEqual(
      json.timeline.map(({ kind }: any) => kind),
      ['created', 'comment', 'evidence_added', 'status_changed'],
    )
    assert.equal(json.evidence[0].sha256, evidence.sha256)
    assert.ok(done.expires_at > done.completed_at)
    for (const text of texts.slice(1)) {
      assert.ok(text.includes(evidence.sha256))
      assert.doesNotMatch(text, /(?<!\\)<script|\u202e/)
    }
  })

  it('omits records that are deleted or not readable by the requester when it is built', async () => {
    const about = await aCase()
    const other = await aCase({ title: 'Another' })
    const file = await made('/files/upload/base64', { filename: 'a.txt', content: 'aGk=' })
    const lost = await made('/files/upload/base64', { filename: 'b.txt', content: 'aGk=' })
    const link = (type: string, target_id: string) => made(`/cases/${about.id}/links`, { type, target_id })
    await link('case', other.id)
    await link('file', file.id)
    await link('file', lost.id)
    await project.key.delete(`/files/${lost.id}`)
    const statement = (action: string[], resource: string) => ({ effect: 'Allow', action, resource: [resource] })
    const reader = await app.user('exporter', [
      { statement: [statement(['cases:GetCase', 'cases:ExportCase'], `srn:${project.id}:case:*`)] },
    ])
    const done = await built(about.id, { formats: ['json'] }, reader)
    assert.deepEqual(done.omitted, [
      { type: 'file', id: file.id, reason: 'forbidden' },
      { type: 'file', id: lost.id, reason: 'not_found' },
    ])
    const json = JSON.parse((await content(done.files[0].file_id)).toString())
    assert.deepEqual(json.omitted, done.omitted)
    assert.deepEqual(json.files, [])
    assert.deepEqual(
      json.cases.map(({ title }: any) => title),
      ['Another'],
    )
    const own = await built(about.id, { formats: ['json'] })
    assert.deepEqual(own.omitted, [{ type: 'file', id: lost.id, reason: 'not_found' }])
  })

  it('refuses an export of an invisible subject or without formats', async () => {
    const about = await aCase()
    const stranger = (await app.projectWith(['cases:*'])).key
    const post = async (by: Client, body: object) => {
      const { status, body: answer } = await by.post('/playbook-exports', { subject_type: 'case', ...body })
      return [status, answer.error?.code]
    }
    const missing = [404, 'RESOURCE_NOT_FOUND']
    assert.deepEqual(await post(stranger, { subject_id: about.id }), missing)
    assert.deepEqual(await post(project.key, { subject_id: 'case_none' }), missing)
    assert.deepEqual(await post(project.key, { subject_id: about.id, subject_type: 'playbook_execution' }), missing)
    for (const formats of [[], ['pdf'], ['json', 'json'], 'json'])
      assert.deepEqual(await post(project.key, { subject_id: about.id, formats }), [400, 'VALIDATION_FAILED'])
    // A caller with the export permission only would otherwise read by an export.
    const blind = await app.projectWith(['cases:ExportCase', 'cases:CreateCase'])
    const hidden = await aCase({}, blind.key)
    assert.deepEqual(await post(blind.key, { subject_id: hidden.id }), missing)
    const queued = await ask(about.id)
    for (const reply of [
      await stranger.get(`/playbook-exports/${queued.id}`),
      await stranger.delete(`/playbook-exports/${queued.id}`),
    ])
      assert.deepEqual([reply.status, reply.body.error.code], missing)
    assert.equal((await project.key.get(`/playbook-exports?subject_id=${about.id}&subject_type=case`)).body.total, 1)
    assert.equal((await stranger.get('/playbook-exports')).body.total, 0)
    await ended(queued.id)
  })

  it('removes files on delete, on expiry and with the case', async () => {
    const about = await aCase()
    const [one, two, three] = await Promise.all([built(about.id), built(about.id), built(about.id)])
    assert.equal((await project.key.delete(`/playbook-exports/${one.id}`)).status, 204)
    assert.equal((await project.key.get(`/playbook-exports/${one.id}`)).status, 404)
    assert.deepEqual(await filesOf(one.id), [])
    await app.pool.query(voidStatement`
      update playbook_exports set expires_at = now() - interval '1 s' where id = ${two.id}`)
    assert.equal(await expireExports(app.services, new AbortController().signal), 1)
    const expired = (await project.key.get(`/playbook-exports/${two.id}`)).body
    assert.deepEqual([expired.status, expired.files], ['expired', []])
    assert.deepEqual(await filesOf(two.id), [])
    assert.equal((await filesOf(three.id)).length, 2)
    assert.equal((await project.key.delete(`/cases/${about.id}`)).status, 204)
    assert.equal((await project.key.get(`/playbook-exports/${three.id}`)).status, 404)
    assert.deepEqual(await filesOf(three.id), [])
  })

  it('keeps files without expiry when no TTL is set', async () => {
    await worker?.stop()
    worker = await runWorker(app.databaseUrl, { ...FAST, PLAYBOOK_EXPORT_TTL_DAYS: '0' }, ['orchestration'])
    const kept = await built((await aCase()).id)
    assert.equal(kept.expires_at, null)
    assert.equal(await expireExports(app.services, new AbortController().signal), 0)
    assert.equal((await filesOf(kept.id)).length, 2)
    await worker.stop()
    worker = await runWorker(app.databaseUrl, FAST, ['orchestration'])
  })

  it('removes other expired exports when some cannot be removed', async () => {
    const about = await aCase()
    const [stuck, sound] = await Promise.all([built(about.id), built(about.id)])
    const { pool } = app
    await pool.query(voidStatement`
      update playbook_exports set expires_at = now() - interval '1 day' where id = any(array[${stuck.id}, ${sound.id}])`)
    const statusOf = async ({ id }: any) => (await project.key.get(`/playbook-exports/${id}`)).body.status
    await refusingUpdates(app.services, 'playbook_exports', `new.id = '${stuck.id}'`, async () => {
      assert.equal(await expireExports(app.services, new AbortController().signal), 1)
      assert.deepEqual([await statusOf(stuck), await statusOf(sound)], ['completed', 'expired'])
    })
    assert.equal(await expireExports(app.services, new AbortController().signal), 1)
  })

  it('fails with an error, an event and no file when it cannot be built', async () => {
    const about = await aCase()
    // No worker builds it before the requester has lost its permissions.
    const user = await app.user('leaver', [
      {
        statement: [
          { effect: 'Allow', action: ['cases:GetCase', 'cases:ExportCase'], resource: [`srn:${project.id}:case:*`] },
        ],
      },
    ])
    await worker?.stop()
    const queued = await ask(about.id, {}, user)
    assert.equal((await app.admin.patch(`/users/${user.id}`, { disabled: true })).status, 200)
    worker = await runWorker(app.databaseUrl, FAST, ['orchestration'])
    const failed = await ended(queued.id)
    assert.deepEqual([failed.status, failed.error.code, failed.files], ['failed', 'FORBIDDEN', []])
    assert.deepEqual(await filesOf(queued.id), [])
    const told = await storedEvents(app.pool, { resource: queued.id })
    assert.deepEqual(
      told.map(({ name }) => name),
      ['playbook_exports.failed'],
    )
    assert.equal(await app.pool.oneFirst(sql.unsafe`select count(*)::int from playbook_export_attempts`), 0)
  })

  it('contains executions with steps and pinned definition', async () => {
    const steps = [{ key: 'look', title: 'Look at it', type: 'manual' }]
    const playbook = await made('/playbooks', { project_id: project.id, name: 'Looking', steps }, app.admin)
    const about = await aCase()
    const started = await made('/playbook-executions', { case_id: about.id, playbook_id: playbook.id }, app.admin)
    const waits = async () => (await app.admin.get(`/playbook-executions/${started.id}`)).body.status === 'waiting'
    await eventually(waits)
    await made(`/playbook-executions/${started.id}/steps/look/complete`, { result: { seen: true } }, app.admin)
    const of = async (body: object) => {
      const queued = await made('/playbook-exports', { formats: ['json'], ...body }, app.admin)
      const { status, files, error } = await ended(queued.id)
      assert.equal(status, 'completed', JSON.stringify(error))
      return JSON.parse((await content(files[0].file_id)).toString())
    }
    const whole = await of({ subject_type: 'case', subject_id: about.id })
    const alone = await of({ subject_type: 'playbook_execution', subject_id: started.id })
    for (const { executions } of [whole, alone]) {
      assert.deepEqual(
        executions.map(({ id, steps, definition }: any) => [id, steps[0].output, definition.steps[0].title]),
        [[started.id, { seen: true }, 'Look at it']],
      )
    }
    assert.ok(whole.timeline.some(({ kind }: any) => kind === 'created'))
    assert.ok(alone.timeline.every((row: any) => row.playbook_execution_id === started.id))
    const into = await aCase()
    await made(`/cases/${about.id}/merge`, { into_case_id: into.id })
    for (const _again of [1, 2]) {
      const merged = await of({ subject_type: 'playbook_execution', subject_id: started.id })
      const kinds = merged.timeline.map(({ kind }: any) => kind).filter((kind: string) => kind !== 'exported')
      assert.deepEqual(
        kinds,
        alone.timeline.map(({ kind }: any) => kind).filter((kind: string) => kind !== 'exported'),
      )
      assert.deepEqual(
        merged.evidence,
        alone.evidence.map((each: any) => ({ ...each, case_id: into.id })),
      )
    }
    const reads = (action: string[], id: string) => ({
      effect: 'Allow',
      action,
      resource: [`srn:${project.id}:case:${id}`],
    })
    const may = ['cases:GetCase', 'cases:ExportCase', 'playbooks:GetExecution']
    const limited = await app.user('of one case', [{ statement: [reads(may, about.id)] }])
    const asked = await made(
      '/playbook-exports',
      { subject_type: 'playbook_execution', subject_id: started.id },
      limited,
    )
    assert.equal((await ended(asked.id)).error.code, 'FORBIDDEN')
    const missing = { subject_type: 'playbook_execution', subject_id: `${started.id.slice(0, -4)}0000` }
    assert.equal((await app.admin.post('/playbook-exports', missing)).status, 404)
  })

  it('refuses an export when the storage quota is exceeded', async () => {
    const full = await app.projectWith(['cases:*'])
    const about = await aCase({}, full.key)
    await made(
      '/quotas',
      { project_id: full.id, scope: 'project', metric: 'storage_bytes', limit: 1, window: 'current' },
      app.admin,
    )
    await app.pool.query(voidStatement`
      insert into storage_snapshots (project_id, day, bytes, chunk_count) values (${full.id}, current_date, 10, 0)`)
    const refused = await full.key.post('/playbook-exports', { subject_type: 'case', subject_id: about.id })
    assert.deepEqual([refused.status, refused.body.error?.code], [409, 'QUOTA_STORAGE_EXCEEDED'])
    assert.equal((await full.key.get('/playbook-exports')).body.total, 0)
  })
})
