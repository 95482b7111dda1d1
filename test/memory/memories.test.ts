import assert from 'node:assert/strict'
import { snapshotProjects } from '#control/storage/snapshot.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { expireMemories } from '#memory/facts/expire.ts'
import { hasTags } from '#memory/facts/model.ts'
import { type Client, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { at, createStore, DIMENSIONS, entriesOf, eventsOf, memoriesOf, remote, startAngles, state } from './support.ts'

describe('memories', () => {
  const server = forSuite(startAngles)
  const app = forSuite(() => startApp({ env: remote(server) }))
  const project = forSuite(() => app.projectWith(['memories:*', 'knowledge:SearchKnowledge']))
  const key = forSuite(() => project.key)
  let store: string
  beforeEach(async () => {
    store = await createStore(key)
  })

  const search = async (query: string, more: object = {}) =>
    (await key.post('/knowledge/search', { query, memory_store_ids: [store], ...more })).body.results as any[]

  it('are changed in place, and the ledger says by whom', async () => {
    const { memory_id } = await state(key, store, at(0, 'edit'), { tags: { a: '1' } })
    const near = await state(key, store, at(40, 'edit'))
    const path = `/memories/${memory_id}`
    const changed = await key.patch(path, { content: ` ${at(41, 'edit')}`, metadata: { b: 1 } })
    assert.equal(changed.status, 200, JSON.stringify(changed.body))
    assert.deepEqual([changed.body.content, changed.body.tags], [at(41, 'edit'), { a: '1' }])
    assert.equal(changed.body.embedded, true)
    const [updated] = await entriesOf(key, store)
    assert.deepEqual(
      [updated.action, updated.memory_id, updated.content, updated.similarity, updated.mechanism, updated.principal_id],
      ['updated', memory_id, at(41, 'edit'), null, 'api', project.keyId],
    )
    assert.equal((await memoriesOf(key, store)).length, 2, 'an edit is compared with nothing')
    const entries = (await entriesOf(key, store)).length
    await key.patch(path, { content: at(41, 'edit') })
    assert.equal((await key.put(path, { tags: null, metadata: null })).body.metadata, null)
    assert.equal((await entriesOf(key, store)).length, entries)
    assert.deepEqual((await key.put(`${path}/tags`, { c: 'd' })).body, { c: 'd' })
    // Its vectors are computed from the new text.
    const again = await state(key, store, at(41.5, 'edit'))
    assert.deepEqual([again.action, again.memory_id], ['skipped', memory_id])
    assert.equal((await state(key, store, at(0, 'edit'))).action, 'created')
    assert.deepEqual(await eventsOf(app, memory_id), [
      'memories.created',
      'memories.updated',
      'memories.updated',
      'memories.updated',
    ])
    const gone = await state(key, store, 'a replacement', { supersedes: near.memory_id })
    assert.ok(gone.memory_id)
    assert.equal((await key.patch(`/memories/${near.memory_id}`, { tags: {} })).status, 400)
    assert.equal((await key.patch(path, { content: '' })).status, 400)
    assert.equal((await key.patch(path, { source_id: 'x' })).status, 400)
  })

  it('hold a change back that was made to an older state', async () => {
    const { memory_id } = await state(key, store, 'etag')
    const path = `/memories/${memory_id}`
    const etag = (await key.get(path)).headers.get('etag') as string
    assert.equal((await key.patch(path, { content: 'etag, changed' }, { 'if-match': etag })).status, 200)
    assert.equal((await key.patch(path, { content: 'lost' }, { 'if-match': etag })).status, 412)
  })

  it('are retracted without a replacement', async () => {
    const { memory_id } = await state(key, store, 'The moon is cheese')
    assert.equal((await search('The moon is cheese')).length, 1)
    const retracted = await key.post(`/memories/${memory_id}/retract`)
    assert.equal(retracted.status, 200)
    assert.ok(retracted.body.invalidated_at)
    assert.deepEqual([retracted.body.superseded_by_memory_id, retracted.body.content], [null, 'The moon is cheese'])
    assert.equal((await key.post(`/memories/${memory_id}/retract`)).status, 400)
    assert.deepEqual(await memoriesOf(key, store), [])
    assert.deepEqual(await search('The moon is cheese'), [])
    assert.deepEqual(await eventsOf(app, memory_id), ['memories.created', 'memories.retracted'])
    const again = await state(key, store, 'The moon is cheese')
    assert.equal(again.action, 'created')
    assert.notEqual(again.memory_id, memory_id)
  })

  it('leave their entries without them when they are deleted', async () => {
    const first = await state(key, store, 'Gone soon')
    await state(key, store, 'Gone soon')
    const second = await state(key, store, 'Gone too', { supersedes: first.memory_id })
    assert.equal((await key.delete(`/memories/${second.memory_id}`)).status, 204)
    const retired = (await key.get(`/memories/${first.memory_id}`)).body
    assert.ok(retired.invalidated_at)
    assert.equal(retired.superseded_by_memory_id, null)
    assert.equal((await key.delete(`/memories/${first.memory_id}`)).status, 204)
    const entries = await entriesOf(key, store)
    assert.deepEqual(
      entries.map(({ content, memory_id, superseded_memory_id }) => [content, memory_id, superseded_memory_id]),
      [
        ['Gone too', null, first.memory_id],
        ['Gone soon', null, null],
        ['Gone soon', null, null],
      ],
    )
    assert.deepEqual(await search('Gone'), [])
    assert.equal(Number(await vectors()), 0)
  })

  /** Vectors of the store. */
  const vectors = () =>
    app.pool.oneFirst(
      sql.unsafe`select count(*)::int from knowledge_vectors where container_id = ${store}`,
    ) as Promise<number>

  it('no longer hold when their time is over, before a sweep has seen it', async () => {
    const expires_at = new Date(Date.now() + 3_600_000).toISOString()
    const { memory_id } = await state(key, store, at(0, 'term'), { expires_at })
    const { memory_id: lasting } = await state(key, store, 'Water is wet')
    const path = `/memories/${memory_id}`
    assert.equal((await key.get(path)).body.expires_at, expires_at)
    assert.equal((await key.patch(path, { expires_at: '2020-01-01T00:00:00Z' })).status, 400)
    assert.equal((await key.patch(path, { expires_at: '9999-12-31T23:59:59-15:00' })).status, 400)
    const far = { expires_at: '2098-01-02T00:00:00+23:59' }
    const { memory_id: offset } = await state(key, store, 'Fire is hot', far)
    assert.equal((await key.get(`/memories/${offset}`)).body.expires_at, '2098-01-01T00:01:00.000Z')
    assert.equal((await key.delete(`/memories/${offset}`)).status, 204)
    const over = '2026-01-01T00:00:00.000Z'
    await app.pool.query(sql.unsafe`update memories set expires_at = ${over} where id = ${memory_id}`)
    assert.equal((await key.get(path)).body.invalidated_at, over)
    assert.equal((await key.patch(path, { expires_at: null })).status, 400)
    const holding = async () => {
      const found = await search(`${at(0, 'term')} water`)
      const listed = await memoriesOf(key, store)
      const { memory_count } = (await key.get(`/memory-stores/${store}`)).body
      return [found.map(row => row.memory_id), listed.map(({ id }) => id), memory_count]
    }
    assert.deepEqual(await holding(), [[lasting], [lasting], 1])
    assert.equal(await vectors(), 2)
    assert.equal(await expireMemories(app.servicesOf(project.id), new AbortController().signal), 1)
    assert.equal(await vectors(), 1)
    assert.equal((await key.get(path)).body.invalidated_at, over)
    assert.deepEqual(await holding(), [[lasting], [lasting], 1])
    const same = await state(key, store, at(0, 'term'))
    assert.equal(same.action, 'created')
  })

  it('are compared with expired memories no more than with retracted ones', async () => {
    const { memory_id } = await state(key, store, at(0, 'over'), { expires_at: '2099-01-01T00:00:00Z' })
    await app.pool.query(
      sql.unsafe`update memories set expires_at = now() - interval '1 second' where id = ${memory_id}`,
    )
    assert.equal((await state(key, store, at(1, 'over'))).action, 'created')
    assert.equal((await state(key, store, at(0, 'over'))).action, 'skipped', 'by the one at 1 degree')
  })

  it('are listed of one store, newest first', async () => {
    assert.equal((await key.get('/memories')).status, 400)
    const ids = []
    for (const text of ['apples', 'pears', '100% plums'])
      ids.unshift((await state(key, store, text, { tags: { t: text } })).memory_id)
    assert.deepEqual(
      (await memoriesOf(key, store)).map(({ id }) => id),
      ids,
    )
    assert.equal((await memoriesOf(key, store, '&query=EAR')).length, 1)
    assert.equal((await memoriesOf(key, store, '&query=0%25')).length, 1)
    assert.equal((await memoriesOf(key, store, '&tags[t]=pears')).length, 1)
    for (const id of ['mstore_00000000000000000000000000', 'x'])
      assert.equal((await key.get(`/memories?memory_store_id=${id}`)).status, 404)
  })

  it('are found by tags in an index that leaves out memories without tags', async () => {
    const query = sql.fragment`select t.id from memories t where ${hasTags({ t: 'pears' }) as Fragment}`
    const plan = await app.services.pool.transaction(async tx => {
      await tx.query(sql.unsafe`set local enable_seqscan = off`)
      return tx.any(sql.unsafe`explain ${query}`)
    })
    assert.match(JSON.stringify(plan), /memories_tags/)
    const entries = await app.pool.oneFirst(sql.unsafe`
      select pg_get_expr(indpred, indrelid) from pg_index where indexrelid = 'memories_tags'::regclass`)
    assert.equal(entries, "(tags <> '{}'::jsonb)")
  })

  describe('and policies', () => {
    const allow = (action: string[], resource: string[], condition?: object) => ({
      effect: 'Allow',
      action,
      resource,
      ...(condition ? { condition } : {}),
    })
    const deny = (action: string[], resource: string[]) => ({ effect: 'Deny', action, resource })
    const ALL = ['memories:*', 'knowledge:SearchKnowledge']
    const named = (type: string, id = '*') => `srn:${project.id}:${type}:${id}`
    let memory: string
    beforeEach(async () => {
      store = await createStore(key, { tags: { team: 'blue' } })
      memory = (await state(key, store, 'Policies hide it', { tags: { team: 'blue' } })).memory_id
    })

    /** What a user with these statements is answered. */
    const sees = async (statement: object[]) => {
      const user = await app.user(undefined, [{ statement }])
      const { id } = project
      const found = await user.post('/knowledge/search', {
        query: 'Policies hide it',
        project_id: id,
        memory_store_ids: [store],
      })
      const lines = await user.get(`/memory-stores/${store}/export`)
      return {
        get: (await user.get(`/memories/${memory}`)).status,
        list: await user.get(`/memories?memory_store_id=${store}`).then(({ status, body }) => body.total ?? status),
        patch: (await user.patch(`/memories/${memory}`, { metadata: null })).status,
        entries: await user
          .get(`/memory-entries?memory_store_id=${store}`)
          .then(({ status, body }) => body.total ?? status),
        found: found.body.results?.length ?? found.status,
        exported: lines.status === 200 ? String(lines.body ?? '').trim().length > 0 : lines.status,
      }
    }
    const EVERYTHING = { get: 200, list: 1, patch: 200, entries: 1, found: 1, exported: true }

    it('a memory is never more visible than its store', async () => {
      assert.deepEqual(await sees([allow(ALL, [named('*')])]), EVERYTHING)
      const other = await createStore(key)
      const hidden = { get: 403, list: 403, patch: 403, entries: 0, found: 0, exported: 403 }
      assert.deepEqual(await sees([allow(ALL, [named('*')]), deny(ALL, [named('memory_store', store)])]), hidden)
      const elsewhere = [allow(ALL, [named('memory'), named('document'), named('memory_store', other)])]
      assert.deepEqual(await sees(elsewhere), hidden)
      const here = [allow(ALL, [named('memory'), named('document'), named('memory_store', store)])]
      assert.deepEqual(await sees(here), EVERYTHING)
    })

    it('is denied by name while its store is shown', async () => {
      const seen = await sees([allow(ALL, [named('*')]), deny(['memories:*'], [named('memory', memory)])])
      assert.deepEqual(seen, { get: 403, list: 0, patch: 403, entries: 1, found: 1, exported: false })
    })

    it('conditions about tags hold of the store and of the memory', async () => {
      const blue = { StringEquals: { 'svc:ResourceTag/team': 'blue' } }
      const documents = allow(['knowledge:SearchKnowledge'], [named('document')])
      const statement = [documents, allow(ALL, [named('*')], blue)]
      assert.deepEqual(await sees(statement), EVERYTHING)
      await key.put(`/memories/${memory}/tags`, { team: 'red' })
      assert.deepEqual(await sees(statement), { get: 403, list: 0, patch: 403, entries: 1, found: 0, exported: false })
      await key.put(`/memories/${memory}/tags`, { team: 'blue' })
      await key.put(`/memory-stores/${store}/tags`, { team: 'red' })
      assert.deepEqual(await sees(statement), { get: 403, list: 403, patch: 403, entries: 0, found: 0, exported: 403 })
    })

    it('a write is decided about with the store and with the tags it would give', async () => {
      const blue = { StringEquals: { 'svc:ResourceTag/team': 'blue' } }
      const user = await app.user(undefined, [{ statement: [allow(['memories:*'], [named('*')], blue)] }])
      const write = async (path: string, more: object) =>
        (await user.post(path, { memory_store_id: store, content: `a fact ${Math.random()}`, ...more })).status
      assert.equal(await write('/memories', { tags: { team: 'blue' } }), 201)
      assert.equal(await write('/memories', { tags: { team: 'red' } }), 403)
      assert.equal(await write('/memories', {}), 403)
      assert.equal(await write('/memory-entries', {}), 201)
      assert.equal(await write('/memory-entries', { tags: { team: 'red' } }), 403)
      assert.equal((await user.put(`/memories/${memory}/tags`, { team: 'red' })).status, 403)
      assert.equal((await user.patch(`/memories/${memory}`, { tags: { team: 'red' } })).status, 403)
      await key.put(`/memory-stores/${store}/tags`, {})
      assert.equal(await write('/memory-entries', {}), 403)
    })

    it('replacing a memory needs the right to change it', async () => {
      const actions = ['memories:CreateMemoryEntry', 'memories:CreateMemory']
      const writer = await app.user(undefined, [{ statement: [allow(actions, [named('*')])] }])
      for (const path of ['/memory-entries', '/memories']) {
        const body = { memory_store_id: store, content: 'A correction', supersedes: memory }
        assert.equal((await writer.post(path, body)).status, 403)
        assert.equal((await writer.post(path, { ...body, supersedes: undefined, content: path })).status, 201)
      }
    })
  })

  describe('and what a claim finds', () => {
    const red = at(0, 'the safe')
    const near = at(40, 'the safe')
    const loose = { duplicate_threshold: 0.02, supersede_threshold: 0.01 }
    const replacing = { duplicate_threshold: 1, supersede_threshold: 0.01 }
    let memory: string
    const user = (action: readonly string[], more: object = {}) =>
      app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource: [`srn:${project.id}:*:*`], ...more }] }])
    const post = async (user: Client, path: string, more: object) => {
      const reply = await user.post(path, { memory_store_id: store, content: near, ...more })
      return [reply.status, reply.body.action ?? reply.body.error.code]
    }
    beforeEach(async () => {
      memory = (await state(key, store, red, { tags: { team: 'red' } })).memory_id
    })

    it('is neither shown nor replaced by who may not write with its tags', async () => {
      await key.put(`/memory-stores/${store}/tags`, { team: 'blue' })
      const blue = await user(['memories:*'], { condition: { StringEquals: { 'svc:ResourceTag/team': 'blue' } } })
      for (const path of ['/memories', '/memory-entries'])
        for (const more of [{ content: red }, { content: red, dry_run: true }, loose, replacing]) {
          if (path === '/memories' && 'dry_run' in more) continue
          assert.deepEqual(await post(blue, path, { tags: { team: 'blue' }, ...more }), [403, 'FORBIDDEN'])
        }
      assert.equal((await key.get(`/memories/${memory}`)).body.invalidated_at, null)
      assert.equal((await entriesOf(key, store)).length, 1)
    })

    it('by thresholds in its body is as if it were named', async () => {
      const writer = await user(['memories:CreateMemory', 'memories:CreateMemoryEntry'])
      assert.deepEqual(await post(writer, '/memories', loose), [403, 'FORBIDDEN'])
      for (const path of ['/memories', '/memory-entries'])
        assert.deepEqual(await post(writer, path, replacing), [403, 'FORBIDDEN'])
      assert.equal((await key.get(`/memories/${memory}`)).body.invalidated_at, null)
      assert.deepEqual(await post(writer, '/memory-entries', loose), [200, 'skipped'])
      assert.deepEqual(await post(writer, '/memories', { content: red }), [200, 'skipped'])
      const reader = await user(['memories:CreateMemory', 'memories:GetMemory'])
      assert.deepEqual(await post(reader, '/memories', loose), [200, 'skipped'])
      const editor = await user(['memories:CreateMemory', 'memories:UpdateMemory'])
      assert.deepEqual(await post(editor, '/memories', replacing), [200, 'superseded'])
    })
  })

  it('are refused over the storage quota, and a turn is not', async () => {
    const { id, key } = await app.project()
    const store = await createStore(key)
    const quota = { project_id: id, scope: 'project', metric: 'storage_bytes', window: 'current', limit: 10 }
    assert.equal((await app.admin.post('/quotas', quota)).status, 201)
    const body = { memory_store_id: store, content: 'more than ten bytes' }
    for (const path of ['/memory-entries', '/memories']) {
      const reply = await key.post(path, body)
      assert.deepEqual([reply.status, reply.body.error.code], [409, 'QUOTA_STORAGE_EXCEEDED'])
      assert.equal(reply.headers.get('retry-after'), null)
    }
    assert.equal((await entriesOf(key, store)).length, 0)
    const { writeFact } = await import('#memory/entries/write.ts')
    const { entry, memory } = await writeFact(app.servicesOf(id), {
      ...body,
      source_type: 'manual',
      mechanism: 'tool',
      generation_id: 'gen_1',
      conversation_id: 'conv_1',
      principal: { type: 'agent', id: 'agent_1' },
    })
    assert.deepEqual([entry.action, entry.mechanism, entry.principal_type], ['created', 'tool', 'agent'])
    assert.equal(memory?.id, entry.memory_id)
    assert.equal((await key.get('/memory-entries?generation_id=gen_1')).body.total, 1)
  })

  it('count in the storage of their project with their texts and vectors, also when they no longer hold', async () => {
    const { id, key } = await app.project()
    const store = await createStore(key)
    const first = await state(key, store, at(0, 'häuser'))
    await state(key, store, at(60, 'häuser'))
    await state(key, store, at(90, 'gärten'), { supersedes: first.memory_id })
    await snapshotProjects(app.servicesOf(id), { all: true })
    const texts = [at(0, 'häuser'), at(60, 'häuser'), at(90, 'gärten')]
    const bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0)
    const read = await key.get(`/usage/events?meter_type=storage`)
    const quantities = read.body.data[0].components.map(({ component, quantity }: any) => [component, quantity])
    assert.deepEqual(quantities, [
      ['gb_day', (bytes + 2 * 4 * DIMENSIONS) / 1e9],
      ['chunk_count', 3],
    ])
    assert.equal(read.body.data[0].project_id, id)
  })
})
