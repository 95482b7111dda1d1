import assert from 'node:assert/strict'
import { type Client, type Reply, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'
import { statementsOf } from './documents-support.ts'

describe('metadata schemas', () => {
  const app = forSuite(startApp)
  let project: { id: string; key: Client; keyId: string }
  const unknown = 'mdschema_00000000000000000000000000'
  const quarterly = { type: 'object', required: ['quarter'], properties: { quarter: { enum: ['Q1', 'Q2'] } } }
  const events = async (id: string) =>
    (await storedEvents(app.pool, { resource: id })).map(({ name, data }) => ({ name, data }))
  const declare = (fields: object = {}, key = project.key) =>
    key.post('/metadata-schemas', { resource_type: 'document', path_prefix: '/reports', schema: quarterly, ...fields })
  const declared = async (fields: object = {}) => {
    const made = await declare(fields)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body
  }
  const write = (path: string, fields: object = {}) => project.key.post('/documents', { content: 'x', path, ...fields })
  const refused = (reply: Reply, code: string, status = 400) =>
    assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
  beforeEach(async () => {
    project = await app.project()
  })

  describe('records', () => {
    it('are created, read, listed, changed and deleted, each with its event and audit entry', async () => {
      const made = await declared({ path_prefix: 'reports//2026/../', schema: { title: 'T', ...quarterly } })
      const { id, created_at, updated_at, ...rest } = made
      assert.match(id, /^mdschema_[0-9a-z]{26}$/)
      assert.equal(created_at, updated_at)
      assert.deepEqual(rest, {
        project_id: project.id,
        resource_type: 'document',
        path_prefix: '/reports',
        schema: { title: 'T', ...quarterly },
      })
      const read = await project.key.get(`/metadata-schemas/${id}`)
      assert.deepEqual(read.body, made)
      // Stored unchanged: keys in their order.
      assert.equal(JSON.stringify(read.body.schema), JSON.stringify({ title: 'T', ...quarterly }))
      const patched = await project.key.patch(`/metadata-schemas/${id}`, { path_prefix: '/', schema: {} })
      assert.equal(patched.status, 200)
      assert.deepEqual([patched.body.path_prefix, patched.body.schema], ['/', {}])
      // A write that changes nothing emits nothing.
      assert.equal((await project.key.patch(`/metadata-schemas/${id}`, { path_prefix: '/' })).status, 200)
      assert.equal((await project.key.patch(`/metadata-schemas/${id}`, {})).status, 200)
      assert.equal((await project.key.delete(`/metadata-schemas/${id}`)).status, 204)
      refused(await project.key.get(`/metadata-schemas/${id}`), 'RESOURCE_NOT_FOUND', 404)
      assert.deepEqual(await events(id), [
        { name: 'metadata_schemas.created', data: made },
        { name: 'metadata_schemas.updated', data: patched.body },
        { name: 'metadata_schemas.deleted', data: patched.body },
      ])
      const entries = await app.rows(
        `select action from audit_entries where resource_public_id = $1 and status < 300 order by id`,
        [id],
      )
      assert.deepEqual(
        entries.map(({ action }) => action),
        [
          'metadata-schemas:CreateMetadataSchema',
          'metadata-schemas:UpdateMetadataSchema',
          'metadata-schemas:UpdateMetadataSchema',
          'metadata-schemas:UpdateMetadataSchema',
          'metadata-schemas:DeleteMetadataSchema',
        ],
      )
    })

    it('are refused with an invalid schema, an invalid selector or an unknown field', async () => {
      for (const fields of [
        { schema: { type: 'nope' } },
        { schema: undefined },
        { schema: null },
        { schema: [] },
        { schema: 'x' },
        { schema: true },
        { schema: { $ref: 'https://example.com/x' } },
        { schema: { $schema: 'http://json-schema.org/draft-04/schema#' } },
        { schema: { pattern: '(a)\\1' } },
        { schema: { description: 'x'.repeat(65_536) } },
        { path_prefix: undefined },
        { path_prefix: null },
        { path_prefix: 7 },
        { path_prefix: '/..' },
        { path_prefix: `/${'x'.repeat(1024)}` },
        { path_prefix: '/a\u0001' },
        { resource_type: 'agent' },
        { resource_type: undefined },
        { nonsense: 1 },
      ])
        refused(await declare(fields), 'VALIDATION_FAILED')
      for (const path_prefix of ['/.system', '.system/traces', '/a/../.system']) {
        const reply = await declare({ path_prefix })
        refused(reply, 'VALIDATION_FAILED')
        assert.equal(reply.body.error.meta.problems[0].code, 'RESERVED_PATH')
      }
      const problem = (await declare({ schema: { type: 'nope' } })).body.error.meta.problems[0]
      assert.equal(problem.path, 'schema')
      const { id } = await declared()
      for (const patch of [
        { resource_type: 'file' },
        { schema: { type: 'nope' } },
        { path_prefix: '/.system' },
        { schema: null },
      ])
        refused(await project.key.patch(`/metadata-schemas/${id}`, patch), 'VALIDATION_FAILED')
      assert.equal((await project.key.get(`/metadata-schemas/${id}`)).body.resource_type, 'document')
    })

    it('keep a schema with keys that JavaScript treats specially', async () => {
      const text = `{"resource_type":"document","path_prefix":"/p","schema":{"properties":{"__proto__":{"type":"string"},"constructor":{"type":"integer"}}}}`
      const made = await project.key.post('/metadata-schemas', text)
      assert.equal(made.status, 201)
      const raw = await app.rows('select schema from metadata_schemas where id = $1', [made.body.id])
      assert.ok(raw[0].schema.includes('"__proto__":{"type":"string"}'))
      assert.equal((await write('/p/a', { metadata: {} })).status, 201)
      refused(await write('/p/b', { metadata: { constructor: 'x' } }), 'VALIDATION_FAILED')
    })

    it('have one declaration for each kind of resource and path, also under twenty concurrent creates', async () => {
      const made = await declared()
      const again = await declare({ path_prefix: 'reports/' })
      refused(again, 'NAME_CONFLICT', 409)
      assert.deepEqual(again.body.error.meta, { resource_type: 'document', path_prefix: '/reports' })
      assert.equal((await declare({ resource_type: 'file' })).status, 201)
      const other = await app.project()
      assert.equal((await declare({}, other.key)).status, 201)
      const moved = await declared({ path_prefix: '/drafts' })
      refused(
        await project.key.patch(`/metadata-schemas/${moved.id}`, { path_prefix: '/reports' }),
        'NAME_CONFLICT',
        409,
      )
      assert.equal((await project.key.delete(`/metadata-schemas/${made.id}`)).status, 204)
      const answers = await Promise.all(Array.from({ length: 20 }, () => declare()))
      assert.deepEqual(answers.map(({ status }) => status).sort(), [201, ...Array(19).fill(409)])
    })

    it('are listed oldest first, by resource type and in pages, in one statement', async () => {
      const ids: string[] = []
      for (const path_prefix of ['/c', '/a', '/b']) ids.push((await declared({ path_prefix })).id)
      const file = await declared({ resource_type: 'file' })
      const list = async (query: string) => (await project.key.get(`/metadata-schemas?${query}`)).body
      assert.deepEqual(
        (await list('')).data.map(({ id }: { id: string }) => id),
        [...ids, file.id],
      )
      assert.deepEqual(await list('resource_type=file'), { data: [file], total: 1, limit: 50, offset: 0 })
      assert.deepEqual(
        (await list('limit=1&offset=1')).data.map(({ id }: { id: string }) => id),
        [ids[1]],
      )
      assert.equal((await project.key.get('/metadata-schemas?resource_type=agent')).status, 400)
      assert.equal((await statementsOf(app, () => list(''))).length, 1)
    })

    it('are not there for other projects, and need their permissions', async () => {
      const { id } = await declared()
      const other = await app.project()
      for (const reply of [
        await other.key.get(`/metadata-schemas/${id}`),
        await other.key.patch(`/metadata-schemas/${id}`, { path_prefix: '/x' }),
        await other.key.delete(`/metadata-schemas/${id}`),
        await other.key.post(`/metadata-schemas/${id}/audit`),
        await project.key.get(`/metadata-schemas/${unknown}`),
        await project.key.get('/metadata-schemas/nonsense'),
      ])
        refused(reply, 'RESOURCE_NOT_FOUND', 404)
      assert.equal((await other.key.get('/metadata-schemas')).body.total, 0)
      refused(await declare({ project_id: project.id }, other.key), 'API_KEY_PROJECT_SCOPE', 403)
      const reader = await app.user(undefined, [
        {
          statement: [
            {
              effect: 'Allow',
              action: ['metadata-schemas:GetMetadataSchema', 'metadata-schemas:ListMetadataSchemas'],
              resource: [`srn:${project.id}:metadata_schema:*`],
            },
          ],
        },
      ])
      assert.equal((await reader.get(`/metadata-schemas/${id}`)).status, 200)
      assert.equal((await reader.get(`/metadata-schemas?project_id=${project.id}`)).body.total, 1)
      refused(await reader.patch(`/metadata-schemas/${id}`, { path_prefix: '/x' }), 'FORBIDDEN', 403)
      refused(await reader.delete(`/metadata-schemas/${id}`), 'FORBIDDEN', 403)
      refused(await declare({ project_id: project.id }, reader), 'FORBIDDEN', 403)
    })

    it('are deleted with their project, and are copied by a clone of it', async () => {
      const first = await declared()
      const second = await declared({ path_prefix: '/', resource_type: 'file', schema: { maxProperties: 2 } })
      const clone = await app.admin.post(`/projects/${project.id}/clone`, {
        name: `copy of ${project.id}`,
        include: ['metadata_schemas'],
      })
      assert.equal(clone.status, 201, JSON.stringify(clone.body))
      const copies = (await app.admin.get(`/metadata-schemas?project_id=${clone.body.project.id}`)).body.data
      assert.deepEqual(
        copies.map(({ resource_type, path_prefix, schema }: any) => ({ resource_type, path_prefix, schema })),
        [first, second].map(({ resource_type, path_prefix, schema }) => ({ resource_type, path_prefix, schema })),
      )
      assert.deepEqual(await events(copies[0].id), [{ name: 'metadata_schemas.created', data: copies[0] }])
      assert.equal((await app.admin.delete(`/projects/${project.id}?force=true`)).status, 204)
      assert.equal((await app.rows('select 1 from metadata_schemas where project_id = $1', [project.id])).length, 0)
    })
  })

  describe('writes', () => {
    it('are checked at and below the path, and not next to it', async () => {
      const { id } = await declared()
      const reply = await write('/reports/a', { metadata: {} })
      refused(reply, 'VALIDATION_FAILED')
      assert.equal(
        reply.body.error.message,
        "metadata violates the schema of '/reports': (root) must have required property 'quarter'",
      )
      const { problems, ...meta } = reply.body.error.meta
      assert.deepEqual(meta, { metadata_schema_id: id, resource_type: 'document', path_prefix: '/reports' })
      assert.equal(problems[0].path, 'metadata')
      const several = await write('/reports/a/b', { metadata: { quarter: 7, 'a/b': 1 } })
      assert.match(several.body.error.message, /: \/quarter must be equal to one of the allowed values$/)
      refused(await write('/reports', { metadata: {} }), 'VALIDATION_FAILED')
      assert.equal((await write('/reports-x/a', { metadata: {} })).status, 201)
      assert.equal((await write('/report', { metadata: {} })).status, 201)
      assert.equal((await write('/Reports/a', { metadata: {} })).status, 201)
      assert.equal((await write('/reports/a', { metadata: { quarter: 'Q1' } })).status, 201)
      assert.equal((await project.key.get('/documents?path_prefix=/reports')).body.total, 1)
    })

    it('report every problem, up to the length of a message', async () => {
      const properties = Object.fromEntries(
        Array.from({ length: 100 }, (_, n) => [`field${n}${'x'.repeat(100)}`, { type: 'string' }]),
      )
      await declared({ schema: { required: ['quarter'], properties } })
      const [first] = Object.keys(properties)
      const told = async (metadata: object) => (await write('/reports/a', { metadata })).body.error.message as string
      assert.equal(
        await told({ [first]: 1 }),
        "metadata violates the schema of '/reports': (root) must have required property 'quarter'; " +
          `/${first} must be string`,
      )
      const many = await told(Object.fromEntries(Object.keys(properties).map(name => [name, 1])))
      assert.equal(many.length, 2000)
      assert.ok(many.endsWith('…'))
    })

    it('without metadata are let in, and a null that is sent counts as an empty bag', async () => {
      await declared()
      const made = await write('/reports/a')
      assert.equal(made.status, 201)
      refused(await project.key.patch(`/documents/${made.body.id}`, { metadata: null }), 'VALIDATION_FAILED')
      refused(await write('/reports/b', { metadata: null }), 'VALIDATION_FAILED')
      assert.equal((await project.key.patch(`/documents/${made.body.id}`, { metadata: { quarter: 'Q2' } })).status, 200)
    })

    it('are held to the formats that a schema names', async () => {
      await declared({ path_prefix: '/', schema: { properties: { due: { type: 'string', format: 'date' } } } })
      refused(await write('/a', { metadata: { due: 'soon' } }), 'VALIDATION_FAILED')
      assert.equal((await write('/a', { metadata: { due: '2030-01-31' } })).status, 201)
    })

    it('obey the nearest declaration alone', async () => {
      await declared({ path_prefix: '/', schema: { required: ['owner'] } })
      await declared()
      await declared({ path_prefix: '/reports/legal', schema: { required: ['counsel'] } })
      assert.equal((await write('/reports/legal/a', { metadata: { counsel: 'x' } })).status, 201)
      assert.equal((await write('/reports/a', { metadata: { quarter: 'Q1' } })).status, 201)
      assert.equal((await write('/elsewhere', { metadata: { owner: 'x' } })).status, 201)
      refused(await write('/reports/legal/b', { metadata: { quarter: 'Q1' } }), 'VALIDATION_FAILED')
      refused(await write('/elsewhere/b', { metadata: { quarter: 'Q1' } }), 'VALIDATION_FAILED')
    })

    it('that move a document are judged by where it goes', async () => {
      await declared()
      const made = await write('/drafts/a', { metadata: { draft: true } })
      refused(await project.key.patch(`/documents/${made.body.id}`, { path: '/reports/a' }), 'VALIDATION_FAILED')
      assert.equal((await project.key.get(`/documents/${made.body.id}`)).body.path, '/drafts/a')
      const both = { path: '/reports/a', metadata: { quarter: 'Q1' } }
      assert.equal((await project.key.patch(`/documents/${made.body.id}`, both)).status, 200)
      const bare = await write('/drafts/bare')
      assert.equal((await project.key.patch(`/documents/${bare.body.id}`, { path: '/reports/bare' })).status, 200)
    })

    it('that touch neither metadata nor path are not judged, however the schema was tightened', async () => {
      const { id } = await declared({ schema: {} })
      const made = await write('/reports/a', { metadata: {} })
      await project.key.patch(`/metadata-schemas/${id}`, { schema: quarterly })
      assert.equal((await project.key.patch(`/documents/${made.body.id}`, { title: 'New' })).status, 200)
      refused(await project.key.patch(`/documents/${made.body.id}`, { metadata: { a: 1 } }), 'VALIDATION_FAILED')
      await project.key.delete(`/metadata-schemas/${id}`)
      assert.equal((await project.key.patch(`/documents/${made.body.id}`, { metadata: { a: 1 } })).status, 200)
    })

    it('that restore a version are judged', async () => {
      const { id } = (await write('/reports/a', { metadata: { old: true } })).body
      await project.key.patch(`/documents/${id}`, { metadata: { quarter: 'Q1' } })
      await declared()
      refused(await project.key.post(`/documents/${id}/versions/1/restore`), 'VALIDATION_FAILED')
      assert.deepEqual((await project.key.get(`/documents/${id}`)).body.metadata, { quarter: 'Q1' })
    })

    it('of files are judged by declarations for files, and of documents by theirs', async () => {
      await declared({ resource_type: 'file' })
      assert.equal((await write('/reports/document', { metadata: {} })).status, 201)
      const file = (fields: object) => project.key.post('/files', { prefix: '/reports', filename: 'a.txt', ...fields })
      refused(await file({ metadata: {} }), 'VALIDATION_FAILED')
      const upload = { filename: 'a.txt', prefix: '/reports', content: 'eA==' }
      refused(await project.key.post('/files/upload/base64', { ...upload, metadata: {} }), 'VALIDATION_FAILED')
      assert.equal((await project.key.get('/files?path_prefix=/reports/a.txt')).body.total, 0)
      const made = await file({ metadata: { quarter: 'Q1' } })
      assert.equal(made.status, 201)
      refused(await project.key.patch(`/files/${made.body.id}/metadata`, { metadata: null }), 'VALIDATION_FAILED')
    })

    it('of other projects are not judged', async () => {
      await declared({ path_prefix: '/' })
      const other = await app.project()
      assert.equal((await other.key.post('/documents', { content: 'x', path: '/reports/a', metadata: {} })).status, 201)
    })

    it('cost one statement to be judged', async () => {
      await declared({ path_prefix: '/' })
      const deep = `/${Array.from({ length: 200 }, (_, index) => index % 10).join('/')}`
      await write(deep, { metadata: { quarter: 'Q1' } })
      const before = app.statements.length
      assert.equal((await write(`${deep}/x`, { metadata: { quarter: 'Q1' } })).status, 201)
      const asked = app.statements.slice(before).filter(text => text.includes('metadata_schemas'))
      assert.equal(asked.length, 1)
    })

    it('are refused in time by a schema that would never end', async () => {
      const defs: Record<string, object> = { d40: { type: 'string' } }
      for (let index = 0; index < 40; index++)
        defs[`d${index}`] = { allOf: [{ $ref: `#/$defs/d${index + 1}` }, { $ref: `#/$defs/d${index + 1}` }] }
      await declared({ path_prefix: '/slow', schema: { $ref: '#/$defs/d0', $defs: defs } })
      await declared({ path_prefix: '/endless', schema: { allOf: [{ $ref: '#' }] } })
      await declared({ path_prefix: '/pattern', schema: { additionalProperties: { pattern: '^(a+)+$' } } })
      const slow = await write('/slow/a', { metadata: {} })
      assert.match(slow.body.error.message, /\(root\) takes longer than 50 ms to check$/)
      const endless = await write('/endless/a', { metadata: {} })
      assert.match(endless.body.error.message, /\(root\) makes the schema recurse without end$/)
      refused(await write('/pattern/a', { metadata: { a: `${'a'.repeat(60_000)}!` } }), 'VALIDATION_FAILED')
      assert.equal((await write('/elsewhere', { metadata: {} })).status, 201)
    })
  })

  describe('validate', () => {
    const validate = (body: object) => project.key.post('/metadata-schemas/validate', body)

    it('returns the problems that a write would report, and writes nothing', async () => {
      const { id } = await declared()
      const body = { path: 'reports/a', metadata: { quarter: 'Q9' } }
      const before = await app.rows('select count(*)::int as n from audit_entries where project_id = $1', [project.id])
      const reply = await validate(body)
      assert.equal(reply.status, 200)
      assert.deepEqual(reply.body, {
        valid: false,
        resource_type: 'document',
        metadata_schema_id: id,
        path_prefix: '/reports',
        error: (await write('/reports/a', body)).body.error.message,
      })
      assert.equal((await project.key.get('/documents')).body.total, 0)
      const valid = { valid: true, metadata_schema_id: null, path_prefix: null, error: null }
      assert.deepEqual((await validate({ path: '/reports/a', metadata: { quarter: 'Q1' } })).body, {
        ...valid,
        resource_type: 'document',
      })
      assert.deepEqual((await validate({ path: '/x', metadata: {} })).body, { ...valid, resource_type: 'document' })
      assert.deepEqual((await validate({ path: '/reports/a', resource_type: 'file' })).body, {
        ...valid,
        resource_type: 'file',
      })
      for (const metadata of [null, undefined, {}])
        assert.equal((await validate({ path: '/reports', metadata })).body.valid, false)
      // A read: its only entries are of the refused write.
      const after = await app.rows('select action from audit_entries where project_id = $1 order by id', [project.id])
      assert.deepEqual(
        after.slice(before[0].n).map(({ action }) => action),
        ['documents:CreateDocument'],
      )
    })

    it('leaves an entry where reads are audited', async () => {
      await app.admin.patch(`/projects/${project.id}`, { audit_reads_enabled: true })
      await validate({ path: '/a' })
      for (let round = 0; round < 100; round++) {
        const found = await app.rows(
          `select 1 from audit_entries where project_id = $1 and action = 'metadata-schemas:ListMetadataSchemas'`,
          [project.id],
        )
        if (found.length > 0) return
        await new Promise(resolve => setTimeout(resolve, 50))
      }
      assert.fail('no entry')
    })

    it('refuses invalid requests', async () => {
      for (const body of [
        {},
        { path: null },
        { path: 7 },
        { path: '/..' },
        { path: '/a', metadata: [] },
        { path: '/a', metadata: 'x' },
        { path: '/a', resource_type: 'agent' },
        { path: '/a', metadata: { a: 'x'.repeat(65_536) } },
        { path: '/a', nonsense: 1 },
      ])
        refused(await validate(body), 'VALIDATION_FAILED')
      refused(await app.admin.post('/metadata-schemas/validate', { path: '/a' }), 'VALIDATION_FAILED')
    })
  })

  describe('audit', () => {
    it('names the stored resources that the schema would refuse, in the order of their paths', async () => {
      const ids: Record<string, string> = {}
      for (const [path, metadata] of Object.entries({
        '/reports/c': { quarter: 'Q9' },
        '/reports/a': { quarter: 'Q1' },
        '/reports/b': { other: 1 },
        '/reports/legal/x': { other: 1 },
        '/reports-x/a': { other: 1 },
        '/z': { other: 1 },
      }))
        ids[path] = (await write(path, { metadata })).body.id
      ids['/reports/d'] = (await write('/reports/d')).body.id
      const { id } = await declared()
      await declared({ path_prefix: '/reports/legal', schema: {} })
      const audit = async (body?: object) => project.key.post(`/metadata-schemas/${id}/audit`, body)
      const prefix = "metadata violates the schema of '/reports': "
      assert.deepEqual((await audit()).body, {
        data: [
          {
            resource_id: ids['/reports/b'],
            path: '/reports/b',
            error: `${prefix}(root) must have required property 'quarter'`,
          },
          {
            resource_id: ids['/reports/c'],
            path: '/reports/c',
            error: `${prefix}/quarter must be equal to one of the allowed values`,
          },
          {
            resource_id: ids['/reports/d'],
            path: '/reports/d',
            error: `${prefix}(root) must have required property 'quarter'`,
          },
        ],
        scanned: 4,
      })
      const first = (await audit({ limit: 1 })).body
      assert.deepEqual([first.data.length, first.scanned], [1, 2])
      for (const body of [{ limit: 0 }, { limit: 101 }, { limit: 'x' }, { nonsense: 1 }])
        refused(await audit(body), 'VALIDATION_FAILED')
      // A declaration for the root governs what no other does.
      const root = await declared({ path_prefix: '/', schema: { required: ['owner'] } })
      const all = (await project.key.post(`/metadata-schemas/${root.id}/audit`)).body
      assert.deepEqual(
        all.data.map(({ path }: { path: string }) => path),
        ['/reports-x/a', '/z'],
      )
    })

    it('leaves what a nested declaration governs to that one, whatever their paths are spelled with', async () => {
      const outer = await declared({ path_prefix: '/🎉🎉🎉🎉' })
      await declared({ path_prefix: '/🎉🎉🎉🎉/ab', schema: {} })
      await write('/🎉🎉🎉🎉/ab/x', { metadata: { other: 1 } })
      const found = (await project.key.post(`/metadata-schemas/${outer.id}/audit`)).body
      assert.deepEqual(found, { data: [], scanned: 0 })
    })

    it('reads more rows than one page, and reads files for declarations of files', async () => {
      await app.rows(
        `insert into files (id, project_id, path, filename, metadata)
         select 'file_' || $1 || n, $1, '/many/' || lpad(n::text, 4, '0'), n::text, case when n = 430 then null else '{"quarter":"Q1"}'::jsonb end
         from generate_series(1, 450) n returning id`,
        [project.id],
      )
      await app.rows(
        `insert into files (id, project_id, path, filename) values ('file_' || $1 || 'trace', $1, '/.system/traces/a.json', 'a') returning id`,
        [project.id],
      )
      const { id } = await declared({ resource_type: 'file', path_prefix: '/' })
      const found = (await project.key.post(`/metadata-schemas/${id}/audit`)).body
      assert.deepEqual([found.scanned, found.data.map(({ path }: { path: string }) => path)], [450, ['/many/0430']])
    })

    it('passes over what the caller may not read', async () => {
      await write('/reports/open', { metadata: {} })
      await write('/reports/closed', { metadata: {} })
      const { id } = await declared()
      const reader = await app.user(undefined, [
        {
          statement: [
            {
              effect: 'Allow',
              action: ['metadata-schemas:GetMetadataSchema'],
              resource: [`srn:${project.id}:metadata_schema:*`],
            },
            {
              effect: 'Allow',
              action: ['documents:GetDocument'],
              resource: [`srn:${project.id}:document:/reports/open`],
            },
          ],
        },
      ])
      const found = (await reader.post(`/metadata-schemas/${id}/audit`)).body
      assert.deepEqual([found.scanned, found.data.map(({ path }: { path: string }) => path)], [1, ['/reports/open']])
    })
  })
})
