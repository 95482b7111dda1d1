import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { formOf, sendForm, upload } from '../content/file-support.ts'
import { type Client, eventually, type Reply, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

describe('writes under a storage quota', () => {
  const app = forSuite(startApp)
  let project: { id: string; key: Client; keyId: string }
  const eleven = 'x'.repeat(11)
  const ten = 'x'.repeat(10)
  const base64 = (text: string) => Buffer.from(text).toString('base64')
  const run = (text: string, values: unknown[] = []) => app.pool.query(rawQuery(text, values))
  const limit = (fields: object = {}) =>
    createdBy(app.admin, '/quotas', {
      project_id: project.id,
      scope: 'project',
      metric: 'storage_bytes',
      window: 'current',
      limit: 10,
      ...fields,
    })
  /** The project as a snapshot of today found it. */
  const measured = (bytes: number) =>
    run(
      `insert into storage_snapshots (project_id, day, bytes, chunk_count) values ($1, current_date, $2, 0)
       on conflict (project_id, day) do update set bytes = excluded.bytes`,
      [project.id, bytes],
    )
  const refused = (reply: Reply, quota: { id: string }, current_bytes: number) => {
    assert.deepEqual(
      [reply.status, reply.body?.error?.code],
      [409, 'QUOTA_STORAGE_EXCEEDED'],
      JSON.stringify(reply.body),
    )
    assert.deepEqual(reply.body.error.meta, { quota_id: quota.id, metric: 'storage_bytes', limit: 10, current_bytes })
    assert.equal(reply.headers.get('retry-after'), null)
  }
  const token = async () =>
    (await project.key.post('/files/presigned-url', { filename: 'token.txt' })).body.upload_token
  /** Every way to store bytes of a text. */
  const writes: Record<string, (text: string) => Promise<Reply>> = {
    'POST /files': text => project.key.post('/files', { filename: 'declared.bin', size: text.length }),
    'POST /files/upload': text => upload(app.url, project.key, { bytes: text, name: 'form.txt' }),
    'POST /files/upload/base64': text =>
      project.key.post('/files/upload/base64', { filename: 'base64.txt', content: base64(text) }),
    'POST /files/upload/{token}': async text =>
      sendForm(app.url, null, `/files/upload/${await token()}`, formOf([{ bytes: text, name: 'token.txt' }])),
    'POST /documents': text => project.key.post('/documents', { content: text, path: '/document.txt' }),
  }
  const counts = async () => [
    (await project.key.get('/files')).body.total,
    (await project.key.get('/documents')).body.total,
  ]
  beforeEach(async () => {
    project = await app.project()
  })

  for (const [name, write] of Object.entries(writes)) {
    it(`${name} stores up to the limit and nothing beyond it`, async () => {
      const quota = await limit()
      refused(await write(eleven), quota, 11)
      assert.deepEqual(await counts(), [0, 0])
      const told = await app.pool.oneFirst(
        rawQuery(
          `select count(*)::int from events where project_id = $1 and name in ('files.created', 'documents.created')`,
          [project.id],
        ),
      )
      assert.equal(told, 0)
      assert.equal((await write(ten)).status, 201)
      assert.notDeepEqual(await counts(), [0, 0])
    })

    it(`${name} is refused in a project that is over its limit already, whatever it stores`, async () => {
      const quota = await limit()
      await measured(11)
      refused(await write('x'), quota, name === 'POST /files' || name === 'POST /documents' ? 12 : 11)
    })

    it(`${name} passes a monitored limit, which emits one event`, async () => {
      await limit({ mode: 'monitor' })
      assert.equal((await write(eleven)).status, 201)
      const entries = async () =>
        (await app.admin.get(`/audit-log?project_id=${project.id}&action=quotas:MonitorBreach`)).body.data
      await eventually(async () => (await entries()).length === 1)
    })
  }

  it('measures the bytes of a text, not its characters', async () => {
    const quota = await limit()
    refused(await writes['POST /documents']('ä'.repeat(6)), quota, 12)
    assert.equal((await writes['POST /documents']('ä'.repeat(5))).status, 201)
  })

  it('lets a declared file of no size through while the project is not over', async () => {
    const quota = await limit()
    await measured(10)
    assert.equal((await project.key.post('/files', { filename: 'a' })).status, 201)
    await measured(11)
    refused(await project.key.post('/files', { filename: 'b' }), quota, 11)
  })

  it('leaves an upload token unused by a refused upload', async () => {
    const quota = await limit()
    const kept = await token()
    const send = (text: string) =>
      sendForm(app.url, null, `/files/upload/${kept}`, formOf([{ bytes: text, name: 'token.txt' }]))
    refused(await send(eleven), quota, 11)
    assert.equal((await send(ten)).status, 201)
  })

  it('drops the bytes that a refused upload had staged', async () => {
    const quota = await limit()
    const text = 'refused once it was staged'
    refused(await writes['POST /files/upload'](text), quota, text.length)
    const kept = () =>
      app.pool.oneFirst(rawQuery('select count(*)::int from file_blob_chunks where bytes = $1', [Buffer.from(text)]))
    await eventually(async () => (await kept()) === 0)
  })

  it('refuses to ingest, first or again, once the project is over; and never what takes away or changes', async () => {
    const file = (await upload(app.url, project.key, { bytes: 'some text', name: 'a.txt' })).body
    const other = (await upload(app.url, project.key, { bytes: 'more text', name: 'b.txt' })).body
    const ingested = (await project.key.post('/documents/ingest', { file_id: other.id })).body
    const document = (await project.key.post('/documents', { content: 'x', path: '/d' })).body
    const quota = await limit()
    await measured(10)
    const reingested = await project.key.post(`/documents/${ingested.id}/ingest`, {})
    assert.equal(reingested.status, 202, JSON.stringify(reingested.body))
    await measured(11)
    refused(await project.key.post('/documents/ingest', { file_id: file.id }), quota, 11)
    refused(await project.key.post(`/documents/${ingested.id}/ingest`, {}), quota, 11)
    const long = 'y'.repeat(100)
    for (const reply of [
      await project.key.patch(`/documents/${document.id}`, { content: long }),
      await project.key.patch(`/documents/${document.id}`, { append: long }),
      await project.key.patch(`/documents/${document.id}`, { metadata: { a: long } }),
      await project.key.put(`/documents/${document.id}/tags`, { a: 'b' }),
      await project.key.patch(`/files/${file.id}/metadata`, { metadata: { a: long } }),
      await project.key.put(`/files/${file.id}/tags`, { a: 'b' }),
      await project.key.post(`/documents/${document.id}/versions/1/restore`),
      await project.key.post(`/documents/${document.id}/withdraw`),
    ])
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
    assert.equal((await project.key.delete(`/documents/${document.id}`)).status, 204)
    assert.equal((await project.key.delete(`/files/${file.id}`)).status, 204)
  })

  it('queries nothing for a project that is cached as having no quota', async () => {
    const asked = () => app.statements.filter(text => text.includes(`'storage_bytes'`)).length
    await eventually(async () => {
      const before = asked()
      assert.equal((await project.key.post('/files', { filename: `${before}.bin`, size: 1 })).status, 201)
      return asked() === before
    })
  })

  it('refuses a burst of writes that breach, and reports each once', async () => {
    const quota = await limit()
    await measured(5)
    const replies = await Promise.all(
      Array.from({ length: 60 }, (_, index) =>
        index % 2
          ? project.key.post('/documents', { content: ten, path: `/d${index}` })
          : project.key.post('/files/upload/base64', { filename: `f${index}`, content: base64(ten) }),
      ),
    )
    for (const reply of replies) refused(reply, quota, 15)
    const exceeded = () =>
      app.pool.oneFirst(
        rawQuery(`select count(*)::int from events where project_id = $1 and name = 'quota.exceeded'`, [project.id]),
      )
    await eventually(async () => (await exceeded()) === 1)
  })
})
