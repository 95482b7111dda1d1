import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { schemaChecks } from '#core/json-schema/checks.ts'
import { client, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { upload } from './file-support.ts'

/** A schema that takes about 300 ms of a processor to compile. */
const costly = (number: number) => ({
  patternProperties: Object.fromEntries(
    Array.from({ length: 800 }, (_, index) => [`^a${index}x${number}.*b$`, { type: 'string' }]),
  ),
})

describe('writes of metadata whose schema waits for a thread', function () {
  this.timeout(90_000)
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  const later = forSuite(() => startApp({ databaseUrl: app.databaseUrl }))

  it('hold no transaction while they wait', async () => {
    const made = async (path: string, body: object) => (await createdBy(project.key, path, body)).id as string
    const document = await made('/documents', { content: 'x', path: '/d/a.txt' })
    const file = await made('/files', { filename: 'a.txt', prefix: '/f' })
    const moved = await made('/files', { filename: 'b.txt', prefix: '/f', metadata: { n: 1 } })
    const source = await upload(app.url, project.key, { bytes: 'x', name: 'c.txt', type: 'text/plain' })
    assert.equal((await project.key.patch(`/files/${source.body.id}/metadata`, { metadata: { n: 1 } })).status, 200)
    const schema = { type: 'object', required: ['n'], properties: { n: { type: 'integer' } } }
    for (const resource_type of ['document', 'file'])
      await made('/metadata-schemas', { resource_type, path_prefix: '/', schema })

    const busy = schemaChecks(later.services).refusals(
      Array.from({ length: 20 }, (_, number) => ({
        project: project.id,
        text: JSON.stringify(costly(number)),
        rules: { strict: true },
      })),
    )
    const key = client(later.url, project.key.token)
    const metadata = { n: 1 }
    const started = performance.now()
    let areWritten = false
    const written = Promise.all([
      key.post('/documents', { content: 'x', path: '/d/b.txt', metadata }),
      key.post('/documents', { content: 'x', path: '/d/c.txt', metadata: { n: 'x' } }),
      key.patch(`/documents/${document}`, { metadata }),
      key.post('/files', { filename: 'd.txt', prefix: '/f', metadata }),
      key.post('/files', { filename: 'e.txt', prefix: '/f', metadata: null }),
      upload(later.url, key, { bytes: 'x', name: 'f.txt' }, { metadata: JSON.stringify(metadata) }),
      key.patch(`/files/${file}/metadata`, { metadata }),
      key.patch(`/files/${moved}/metadata`, { prefix: '/g' }),
      key.post('/documents/ingest', { file_id: source.body.id, path_prefix: '/h', metadata }),
    ]).finally(() => {
      areWritten = true
    })
    let longest = 0
    while (!areWritten) {
      const { rows } = await app.pool.query(
        rawQuery(`
          select coalesce(max(extract(epoch from clock_timestamp() - state_change)), 0)::float as seconds
          from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`),
      )
      longest = Math.max(longest, (rows[0] as { seconds: number }).seconds)
      await new Promise(resolve => setTimeout(resolve, 20))
    }
    const replies = await written
    assert.deepEqual(
      replies.map(({ status }) => status),
      [201, 400, 200, 201, 400, 201, 200, 200, 202],
      JSON.stringify(replies.map(({ body }) => body)),
    )
    const waited = performance.now() - started
    assert.ok(waited > 1000, `the writes waited only ${waited} ms`)
    assert.ok(longest < 0.5, `a transaction was idle for ${longest} s`)
    for (const { body } of [replies[1], replies[4]])
      assert.match(body.error.message, /^metadata violates the schema of '\/'/)
    const { rows } = await app.pool.query(
      rawQuery(`select detail from audit_entries where action = 'documents:IngestDocument'`),
    )
    assert.deepEqual(
      (rows as unknown as { detail: { additional_checks: unknown[] } }[]).map(
        ({ detail }) => detail.additional_checks.length,
      ),
      [1],
    )
    await busy
  })
})
