import assert from 'node:assert/strict'
import { snapshotProjects } from '#control/storage/snapshot.ts'
import { newId } from '#core/base/ids.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'
import { contents, expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

const allow = (action: string[], resource = ['*']) => ({ statement: [{ effect: 'Allow', action, resource }] })

describe('documents of messages', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startSessionApp({
      actions: ['conversations', 'documents', 'events', 'files', 'generations', 'knowledge', 'quotas', 'sessions'].map(
        module => `${module}:*`,
      ),
      env: { PROVIDER_MAX_RETRIES: '0' },
    }),
  )
  const conversation = async () => expectStatus(await app.key.post('/conversations', {}), 201).id as string
  const post = (id: string, body: object) => app.key.post(`/conversations/${id}/messages`, { role: 'user', ...body })
  const say = async (id: string, message: string) => expectStatus(await post(id, { message }), 201)
  const texts = async (id: string) =>
    contents(expectStatus(await app.key.get(`/conversations/${id}/messages?limit=100`), 200).data)
  const document = async (body: object = {}) =>
    expectStatus(await app.key.post('/documents', { content: 'a page', ...body }), 201)

  describe('that messages own', () => {
    it('hold the text, with a file below the reserved root whose bytes are the same text', async () => {
      const id = await conversation()
      const text = 'Grüße, 世界\n'
      const { document_id } = await say(id, text)
      const read = expectStatus(await app.key.get(`/documents/${document_id}`), 200)
      const where = `/.system/conversations/${id}/${document_id}.txt`
      assert.deepEqual(
        { ...read, file_id: 0, created_at: 0, updated_at: 0 },
        {
          id: document_id,
          project_id: app.projectId,
          file_id: 0,
          path: where,
          filename: `${document_id}.txt`,
          content_type: 'text/plain',
          size: Buffer.byteLength(text),
          kind: 'message',
          status: 'ready',
          version: 1,
          title: null,
          metadata: null,
          charset: null,
          tags: {},
          chunk_strategy: 'whole',
          chunk_unit: null,
          chunk_size: null,
          chunk_overlap: null,
          chunk_count: 0,
          embedding: null,
          error: null,
          content: text,
          created_at: 0,
          updated_at: 0,
        },
      )
      const file = expectStatus(await app.key.get(`/files/${read.file_id}`), 200)
      assert.deepEqual(
        [file.path, file.size, file.document_id, file.has_content],
        [where, read.size, document_id, true],
      )
      const bytes = await app.key.get(`/files/${read.file_id}/download`)
      assert.equal(bytes.body, text)
      assert.equal(bytes.headers.get('etag'), `"${file.checksum_sha256}"`)
      const version = expectStatus(await app.key.get(`/documents/${document_id}/versions/1`), 200)
      assert.deepEqual([version.content, version.path, version.created_by], [text, where, { type: 'system', id: null }])
      const status = expectStatus(await app.key.get(`/documents/${document_id}/status`), 200)
      assert.deepEqual([status.status, status.progress, status.total_chunks], ['ready', 100, 0])
    })

    it('are in the events of the message only', async () => {
      const id = await conversation()
      const { document_id } = await say(id, 'quiet')
      const { file_id } = (await app.key.get(`/documents/${document_id}`)).body
      await app.key.delete(`/conversations/${id}/messages/${document_id}`)
      const told = await app.rows('select name from events where resource_id = any($1) order by id', [
        [document_id, file_id],
      ])
      assert.deepEqual(
        told.map(({ name }) => name),
        ['conversation_messages.created', 'conversation_messages.deleted'],
      )
    })

    it('are in no list and no search', async () => {
      const id = await conversation()
      const { document_id } = await say(id, 'sesquipedalian')
      const { file_id } = (await app.key.get(`/documents/${document_id}`)).body
      for (const query of ['', '&path_prefix=/.system', `&path_prefix=/.system/conversations/${id}`]) {
        const documents = expectStatus(await app.key.get(`/documents?limit=100${query}`), 200).data
        assert.ok(!documents.some((each: { id: string }) => each.id === document_id))
        const files = expectStatus(await app.key.get(`/files?limit=100${query}`), 200).data
        assert.ok(!files.some((each: { id: string }) => each.id === file_id))
      }
      const { path } = (await app.key.get(`/documents/${document_id}`)).body
      expectRefusal(await app.key.get(`/documents/by-path?path=${path}`), 404, 'RESOURCE_NOT_FOUND')
      const found = expectStatus(await app.key.post('/knowledge/search', { query: 'sesquipedalian' }), 200)
      assert.deepEqual(found.results, [])
    })

    it('are written by the platform only', async () => {
      const id = await conversation()
      const { document_id } = await say(id, 'mine')
      const { file_id } = (await app.key.get(`/documents/${document_id}`)).body
      const base = `/documents/${document_id}`
      const refused = [
        await app.key.patch(base, { content: 'other' }),
        await app.key.patch(base, { path: '/elsewhere' }),
        await app.key.put(`${base}/tags`, { a: 'b' }),
        await app.key.post(`${base}/withdraw`, {}),
        await app.key.post(`${base}/ingest`, {}),
        await app.key.post(`${base}/versions/1/restore`, {}),
        await app.key.delete(base),
        await app.key.patch(`/files/${file_id}/metadata`, { prefix: '/elsewhere' }),
        await app.key.put(`/files/${file_id}/tags`, { a: 'b' }),
      ]
      for (const reply of refused) {
        const { meta } = expectRefusal(reply, 400, 'VALIDATION_FAILED')
        assert.equal(meta.problems[0].code, 'RESERVED_PATH')
      }
      const held = expectRefusal(await app.key.delete(`/files/${file_id}`), 409, 'FILE_HAS_DEPENDENTS')
      assert.deepEqual(held.meta.counts, { documents: 1 })
      expectRefusal(await app.key.post('/documents/ingest', { file_id }), 409, 'FILE_ALREADY_INGESTED')
      assert.deepEqual(await texts(id), ['mine'])
    })

    it('are deleted with their message and with their file', async () => {
      const id = await conversation()
      const { document_id } = await say(id, 'short-lived')
      const { file_id } = (await app.key.get(`/documents/${document_id}`)).body
      expectStatus(await app.key.delete(`/conversations/${id}/messages/${document_id}`), 204)
      expectRefusal(await app.key.get(`/documents/${document_id}`), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(await app.key.get(`/files/${file_id}`), 404, 'RESOURCE_NOT_FOUND')
    })

    it('are retained while a fork uses them, and deleted with the last session, also concurrently', async () => {
      for (let round = 0; round < 6; round++) {
        const parent = await app.session()
        const { document_id } = await app.say(parent, 'shared')
        const { file_id } = (await app.key.get(`/documents/${document_id}`)).body
        const fork = expectStatus(await app.key.post(`/sessions/${parent.id}/fork`), 201)
        if (round === 0) {
          expectStatus(await app.key.delete(`/sessions/${parent.id}`), 204)
          assert.deepEqual(contents(await app.messages(fork)), ['shared'])
          expectStatus(await app.key.delete(`/sessions/${fork.id}`), 204)
        } else {
          const both = await Promise.all([parent, fork].map(({ id }) => app.key.delete(`/sessions/${id}`)))
          for (const reply of both) expectStatus(reply, 204)
        }
        expectRefusal(await app.key.get(`/documents/${document_id}`), 404, 'RESOURCE_NOT_FOUND')
        assert.deepEqual(await app.rows('select 1 from files where id = $1', [file_id]), [])
      }
    })

    it('do not count as stored bytes', async () => {
      const { id: project_id, key } = await app.project()
      const { id } = (await key.post('/conversations', {})).body
      const quota = { project_id, scope: 'project', metric: 'storage_bytes', window: 'current', limit: 500 }
      expectStatus(await app.admin.post('/quotas', quota), 201)
      const message = { role: 'user', message: 'x'.repeat(1000) }
      expectStatus(await key.post(`/conversations/${id}/messages`, message), 201)
      await snapshotProjects(app.servicesOf(project_id), { all: true })
      expectStatus(await key.post(`/conversations/${id}/messages`, message), 201)
      expectStatus(await key.post('/documents', { content: 'x' }), 201)
      expectRefusal(await key.post('/documents', { content: message.message }), 409, 'QUOTA_STORAGE_EXCEEDED')
    })

    it('are written in the one statement that adds the message', async () => {
      const id = await conversation()
      await say(id, 'warm')
      const from = app.statements.length
      await say(id, 'counted')
      const sent = app.statements.slice(from)
      assert.equal(sent.filter(text => text.includes('insert into document_texts')).length, 1)
      const writing = sent.filter(text =>
        /\b(into|update|from) (files|documents|document_texts|conversation_messages)\b/.test(
          text.replace(/\(select coalesce\(max\(position\).*?\) as next_position/, ''),
        ),
      )
      assert.equal(writing.length, 1, writing.join('\n'))
    })
  })

  describe('that a caller names', () => {
    it('give their text to the message and to the model', async () => {
      const { agentId, requests } = await app.scripted([{ reply: { text: 'read' } }])
      const { id: document_id } = await document({ content: 'the whole report' })
      const id = await conversation()
      const stored = expectStatus(await post(id, { document_id, metadata: { source: 'upload' } }), 201)
      assert.deepEqual(
        [stored.document_id, stored.content, stored.position, stored.metadata],
        [document_id, 'the whole report', 0, { source: 'upload' }],
      )
      const told = { resource: document_id, name: 'conversation_messages.created' }
      const [event] = await storedEvents(app.pool, told)
      assert.deepEqual(event.data, stored)
      expectStatus(await app.key.post(`/conversations/${id}/generate?wait=true`, { agent_id: agentId }), 200)
      const [{ body }] = await requests()
      assert.equal(JSON.stringify(body.messages.at(-1)).includes('the whole report'), true)
      assert.deepEqual(await texts(id), ['the whole report', 'read'])
      const exported = await app.key.get(`/conversations/${id}/export`)
      assert.equal(JSON.parse(String(exported.body).split('\n')[0]).content, 'the whole report')
    })

    it('are messages of sessions too, and request an automatic reply', async () => {
      const { agentId } = await app.scripted([{ reply: { text: 'noted' } }])
      const session = await app.session({ agent_id: agentId, auto_generate: true })
      const { id: document_id } = await document({ content: 'minutes' })
      const path = `/sessions/${session.id}/messages`
      const stored = expectStatus(await app.key.post(`${path}?wait=true`, { document_id }), 201)
      assert.deepEqual([stored.document_id, stored.content, stored.reply.content], [document_id, 'minutes', 'noted'])
      assert.deepEqual(contents(await app.messages(session)), ['minutes', 'noted'])
      const { meta } = expectRefusal(await app.key.post(path, { document_id }), 409, 'NAME_CONFLICT')
      assert.deepEqual(meta, { field: 'document_id' })
      for (const body of [{}, { message: 'x', document_id }])
        expectRefusal(await app.key.post(path, body), 400, 'VALIDATION_FAILED')
    })

    it('cannot be combined with a text', async () => {
      const id = await conversation()
      const { id: document_id } = await document()
      for (const body of [
        {},
        { message: 'x', document_id },
        { document_id: null },
        { document_id: 7 },
        { document_id: '' },
      ])
        expectRefusal(await post(id, body), 400, 'VALIDATION_FAILED')
      expectRefusal(await post(id, { document_id, role: 'system' }), 400, 'SYSTEM_MESSAGE_NOT_ALLOWED')
    })

    it('must be of the project, and there', async () => {
      const id = await conversation()
      const other = await app.project()
      const foreign = expectStatus(await other.key.post('/documents', { content: 'foreign' }), 201)
      for (const document_id of [foreign.id, newId('doc'), newId('file'), 'doc_1', 'x'.repeat(255)])
        expectRefusal(await post(id, { document_id }), 404, 'RESOURCE_NOT_FOUND')
      expectRefusal(
        await app.admin.post(`/conversations/${id}/messages`, { role: 'user', document_id: foreign.id }),
        404,
        'RESOURCE_NOT_FOUND',
      )
      assert.deepEqual(await texts(id), [])
    })

    it('need the permission to read them, by id or by path', async () => {
      const id = await conversation()
      const session = await app.session()
      const open = await document({ path: `/open/${newId('doc')}` })
      const closed = await document({ path: `/closed/${newId('doc')}` })
      const user = await app.user(undefined, [
        allow(['conversations:*', 'sessions:*']),
        allow(['documents:GetDocument'], [`srn:${app.projectId}:document:/open/*`]),
      ])
      for (const [path, role] of [
        [`/conversations/${id}/messages`, { role: 'user' }],
        [`/sessions/${session.id}/messages`, {}],
      ] as const) {
        expectStatus(await user.post(path, { ...role, document_id: open.id }), 201)
        expectRefusal(await user.post(path, { ...role, document_id: closed.id }), 403, 'FORBIDDEN')
      }
      assert.deepEqual(await texts(id), ['a page'])
      const [entry] = await app.rows(
        `select detail from audit_entries where resource_public_id = $1 and status = 403 order by id desc limit 1`,
        [id],
      )
      assert.match(JSON.stringify(entry), new RegExp(`documents:GetDocument.*${closed.id}`))
    })

    it('are one message per conversation, also for concurrent requests, and may be messages of several conversations', async () => {
      const { id: document_id } = await document()
      const id = await conversation()
      const replies = await Promise.all(Array.from({ length: 8 }, () => post(id, { document_id })))
      assert.deepEqual(replies.map(({ status }) => status).sort(), [201, ...Array(7).fill(409)])
      for (const reply of replies.filter(({ status }) => status === 409))
        assert.deepEqual(expectRefusal(reply, 409, 'NAME_CONFLICT').meta, { field: 'document_id' })
      assert.equal((await app.key.get(`/conversations/${id}`)).body.message_count, 1)
      expectStatus(await post(await conversation(), { document_id }), 201)
    })

    it('are stored once by an idempotency key, whatever becomes of them', async () => {
      const { id: document_id } = await document()
      const id = await conversation()
      const body = { document_id, idempotency_key: 'once' }
      const first = expectStatus(await post(id, body), 201)
      assert.deepEqual(expectStatus(await post(id, body), 200), first)
      assert.deepEqual(expectStatus(await post(id, { ...body, document_id: newId('doc') }), 200), first)
      assert.deepEqual(expectStatus(await post(id, { message: 'x', idempotency_key: 'once' }), 200), first)
    })

    it('are inserted at a position like any message', async () => {
      const id = await conversation()
      await say(id, 'a')
      await say(id, 'b')
      const { id: document_id } = await document()
      assert.equal(expectStatus(await post(id, { document_id, position: 1 }), 201).position, 1)
      assert.deepEqual(await texts(id), ['a', 'a page', 'b'])
    })

    it('stay when their message or its conversation goes', async () => {
      const { id: document_id } = await document()
      const one = await conversation()
      await post(one, { document_id })
      expectStatus(await app.key.delete(`/conversations/${one}/messages/${document_id}`), 204)
      expectStatus(await app.key.get(`/documents/${document_id}`), 200)
      expectStatus(await post(one, { document_id }), 201)
      expectStatus(await app.key.delete(`/conversations/${one}`), 204)
      const kept = expectStatus(await app.key.get(`/documents/${document_id}`), 200)
      assert.equal(kept.content, 'a page')
      expectStatus(await app.key.get(`/files/${kept.file_id}`), 200)
    })

    it('leave a message without content when they are deleted, which the model does not see', async () => {
      const { agentId, requests } = await app.scripted([{ reply: { text: 'ok' } }])
      const { id: document_id } = await document({ content: 'forget me' })
      const id = await conversation()
      await post(id, { document_id })
      await say(id, 'and now?')
      expectStatus(await app.key.delete(`/documents/${document_id}`), 204)
      assert.deepEqual(await texts(id), [null, 'and now?'])
      expectStatus(await app.key.post(`/conversations/${id}/generate?wait=true`, { agent_id: agentId }), 200)
      assert.doesNotMatch(JSON.stringify((await requests())[0].body.messages), /forget me/)
      expectStatus(await app.key.delete(`/conversations/${id}/messages/${document_id}`), 204)
    })

    it('show their current text: changed, withdrawn, restored', async () => {
      const { id: document_id } = await document({ content: 'first' })
      const id = await conversation()
      await post(id, { document_id })
      expectStatus(await app.key.patch(`/documents/${document_id}`, { content: 'second' }), 200)
      assert.deepEqual(await texts(id), ['second'])
      expectStatus(await app.key.post(`/documents/${document_id}/withdraw`, {}), 200)
      assert.deepEqual(await texts(id), [null])
      expectStatus(await app.key.post(`/documents/${document_id}/versions/1/restore`, {}), 200)
      assert.deepEqual(await texts(id), ['first'])
    })

    it('must have a text', async () => {
      const id = await conversation()
      const empty = await document({ content: '' })
      const withdrawn = await document({ content: 'once' })
      await app.key.post(`/documents/${withdrawn.id}/withdraw`, {})
      const file = await app.key.post('/files/upload/base64', { content: 'aGVsbG8=', filename: `${newId('x')}.txt` })
      const pending = expectStatus(await app.key.post('/documents/ingest', { file_id: file.body.id }), 202)
      for (const document_id of [empty.id, withdrawn.id, pending.id]) {
        const { meta } = expectRefusal(await post(id, { document_id }), 400, 'VALIDATION_FAILED')
        assert.deepEqual([meta.problems[0].code, meta.problems[0].path], ['INVALID_STATE', 'document_id'])
      }
      assert.deepEqual(await texts(id), [])
    })

    it('may be the text of another message, which then lives as long as either', async () => {
      const one = await conversation()
      const two = await conversation()
      const { document_id } = await say(one, 'quoted')
      expectStatus(await post(two, { document_id }), 201)
      expectStatus(await app.key.delete(`/conversations/${one}`), 204)
      assert.deepEqual(await texts(two), ['quoted'])
      expectStatus(await app.key.delete(`/conversations/${two}`), 204)
      expectRefusal(await app.key.get(`/documents/${document_id}`), 404, 'RESOURCE_NOT_FOUND')
    })

    it('are there or refused when the message that owns them goes at the same time', async () => {
      for (let round = 0; round < 10; round++) {
        const one = await conversation()
        const two = await conversation()
        const { document_id } = await say(one, 'raced')
        const [named, gone] = await Promise.all([
          post(two, { document_id }),
          app.key.delete(`/conversations/${one}/messages/${document_id}`),
        ])
        expectStatus(gone, 204)
        if (named.status === 201) assert.deepEqual(await texts(two), ['raced'])
        else expectRefusal(named, 404, 'RESOURCE_NOT_FOUND')
        const kept = await app.rows('select 1 from documents where id = $1', [document_id])
        assert.equal(kept.length, named.status === 201 ? 1 : 0)
      }
    })
  })
})
