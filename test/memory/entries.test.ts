import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { eventually, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { at, createStore, entriesOf, eventsOf, memoriesOf, remote, startAngles, state } from './support.ts'

const near = (value: number, degrees: number) =>
  assert.ok(
    Math.abs(value - Math.cos((degrees * Math.PI) / 180)) < 1e-5,
    `${value} is not the cosine of ${degrees} degrees`,
  )

describe('writing facts', () => {
  const server = forSuite(startAngles)
  const app = forSuite(() => startApp({ env: remote(server) }))
  const project = forSuite(() => app.projectWith(['memories:*']))
  const key = forSuite(() => project.key)
  let store: string
  beforeEach(async () => {
    store = await createStore(key)
  })

  it('creates a memory of each new fact, and an entry of every claim', async () => {
    const made = await key.post('/memory-entries', {
      memory_store_id: store,
      content: '  Ada likes  tea ',
      tags: { of: 'ada' },
      metadata: { Sure: 1 },
    })
    assert.equal(made.status, 201)
    const { id, memory_id, created_at, ...entry } = made.body
    assert.match(id, /^mem_entry_[0-9a-z]{26}$/)
    assert.match(memory_id, /^mem_[0-9a-z]{26}$/)
    assert.ok(created_at)
    assert.deepEqual(entry, {
      project_id: project.id,
      memory_store_id: store,
      content: 'Ada likes  tea',
      action: 'created',
      superseded_memory_id: null,
      similarity: null,
      declared: false,
      mechanism: 'api',
      memory_rule_id: null,
      generation_id: null,
      conversation_id: null,
      actor_id: null,
      principal_type: 'api_key',
      principal_id: project.keyId,
      tags: { of: 'ada' },
      metadata: { Sure: 1 },
    })
    const [memory] = await memoriesOf(key, store)
    assert.deepEqual(
      [memory.id, memory.content, memory.tags, memory.metadata, memory.embedded, memory.source_type],
      [memory_id, 'Ada likes  tea', { of: 'ada' }, { Sure: 1 }, true, 'manual'],
    )
    const calls = server.calls.length
    const again = await key.post('/memory-entries', { memory_store_id: store, content: 'Ada\nlikes tea' })
    assert.equal(again.status, 200)
    assert.deepEqual([again.body.action, again.body.memory_id, again.body.similarity], ['skipped', memory_id, 1])
    assert.equal(server.calls.length, calls, 'a known text is not embedded again')
    assert.equal((await memoriesOf(key, store)).length, 1)
    assert.deepEqual(
      (await entriesOf(key, store)).map(({ action }) => action),
      ['skipped', 'created'],
    )
    assert.deepEqual((await key.get(`/memory-entries/${id}`)).body, made.body)
    assert.equal((await state(key, store, 'ada likes tea')).action, 'created', 'case counts')
    assert.deepEqual(await eventsOf(app, memory_id), ['memories.created'])
    const [audited] = (await app.admin.get(`/audit-log?project_id=${project.id}&resource_public_id=${id}`)).body.data
    assert.equal(audited?.action, 'memories:CreateMemoryEntry')
  })

  it('skips a fact equal to a memory, replaces a near one, and keeps others', async () => {
    const first = await state(key, store, at(0, 'tea'), {
      tags: { a: '1', b: '1', constructor: 'kept' },
      metadata: { x: 1, y: 1 },
    })
    const same = await state(key, store, at(10, 'tea'))
    assert.deepEqual([same.action, same.memory_id], ['skipped', first.memory_id])
    near(same.similarity, 10)
    const correction = await state(key, store, at(22, 'tea'), { tags: { b: '2' }, metadata: { y: 2 } })
    assert.deepEqual([correction.action, correction.superseded_memory_id], ['superseded', first.memory_id])
    near(correction.similarity, 22)
    assert.equal(correction.declared, false)
    const replacement = (await key.get(`/memories/${correction.memory_id}`)).body
    assert.deepEqual([replacement.tags, replacement.metadata], [
      { a: '1', b: '2', constructor: 'kept' },
      { x: 1, y: 2 },
    ] as object[])
    const retired = (await key.get(`/memories/${first.memory_id}`)).body
    assert.equal(retired.superseded_by_memory_id, replacement.id)
    assert.equal(retired.invalidated_at, replacement.created_at)
    assert.deepEqual([retired.embedded, retired.content], [false, at(0, 'tea')])
    const apart = await state(key, store, at(60, 'tea'))
    assert.equal(apart.action, 'created')
    near(apart.similarity, 38)
    // Against the nearest current one: 22 degrees, not the retired one at 0.
    const back = await state(key, store, at(0, 'tea'))
    assert.deepEqual([back.action, back.superseded_memory_id], ['superseded', replacement.id])
    assert.notEqual(back.memory_id, first.memory_id, 'a retired memory is never revived')
    assert.equal((await memoriesOf(key, store)).length, 2)
    assert.equal((await memoriesOf(key, store, '&include_invalidated=true')).length, 4)
    assert.deepEqual(await eventsOf(app, first.memory_id), ['memories.created', 'memories.superseded'])
    const { data } = (await app.admin.get(`/events?resource_id=${first.memory_id}`)).body.data[0]
    assert.deepEqual(data, { ...retired, superseded_by: replacement.id })
  })

  it('goes by the thresholds of the write, else of the store', async () => {
    const strict = await createStore(key, { duplicate_threshold: 0.999, supersede_threshold: 0.99 })
    await state(key, strict, at(0, 'a'))
    assert.equal((await state(key, strict, at(12, 'a'))).action, 'created')
    const loose = await state(key, strict, at(40, 'a'), { duplicate_threshold: 0.8, supersede_threshold: 0.5 })
    assert.equal(loose.action, 'skipped')
    const refused = await key.post('/memory-entries', {
      memory_store_id: strict,
      content: at(1, 'a'),
      duplicate_threshold: 0.9,
    })
    assert.equal(refused.status, 400)
    assert.equal(refused.body.error.meta.problems[0].path, 'supersede_threshold')
  })

  it('replaces the memory that it names, however far it is', async () => {
    const first = await state(key, store, 'The office opens at nine')
    const second = await state(key, store, 'The office is closed', { supersedes: first.memory_id })
    assert.deepEqual(
      [second.action, second.declared, second.superseded_memory_id],
      ['superseded', true, first.memory_id],
    )
    assert.ok(second.similarity < 0.9)
    const listed = await memoriesOf(key, store)
    assert.deepEqual(
      listed.map(({ id }) => id),
      [second.memory_id],
    )
    const same = await state(key, store, 'The office is closed', { supersedes: second.memory_id })
    assert.deepEqual([same.action, same.similarity], ['superseded', 1])
    assert.equal((await key.get(`/memories/${same.memory_id}`)).body.embedded, true)

    const other = await createStore(key)
    const elsewhere = await state(key, other, 'Elsewhere')
    const entries = (await entriesOf(key, store)).length
    const refuse = async (supersedes: string, status: number) => {
      const reply = await key.post('/memory-entries', { memory_store_id: store, content: 'New', supersedes })
      assert.equal(reply.status, status, JSON.stringify(reply.body))
    }
    await refuse(elsewhere.memory_id, 400)
    await refuse(first.memory_id, 400)
    await refuse('mem_00000000000000000000000000', 404)
    await refuse('nothing', 404)
    const foreign = await app.project()
    const theirs = await state(foreign.key, await createStore(foreign.key), 'Theirs')
    await refuse(theirs.memory_id, 404)
    assert.equal((await entriesOf(key, store)).length, entries, 'nothing is written')
  })

  it('reports the planned outcome with dry_run, and writes nothing', async () => {
    const first = await state(key, store, at(0, 'dry'))
    const dry = async (content: string, more: object = {}) => {
      const body = { memory_store_id: store, content, dry_run: true, ...more }
      return createdBy(key, '/memory-entries', body, 200)
    }
    const skipped = await dry(at(5, 'dry'))
    assert.deepEqual(
      [skipped.dry_run, skipped.action, skipped.memory_id, skipped.superseded_memory_id],
      [true, 'skipped', first.memory_id, null],
    )
    const superseded = await dry(at(22, 'dry'))
    assert.deepEqual([superseded.action, superseded.memory_id], ['superseded', null])
    assert.equal(superseded.superseded_memory_id, first.memory_id)
    assert.equal((await dry(at(80, 'dry'))).action, 'created')
    assert.equal((await dry('other', { supersedes: first.memory_id })).declared, true)
    assert.equal((await entriesOf(key, store)).length, 1)
    assert.equal((await memoriesOf(key, store)).length, 1)
  })

  it('refuses invalid facts', async () => {
    const refuse = async (more: object, path: string) => {
      const body = { memory_store_id: store, content: 'x', ...more }
      const reply = await key.post('/memory-entries', body)
      assert.equal(reply.status, 400, JSON.stringify(reply.body))
      assert.equal(reply.body.error.meta.problems[0].path, path)
      const direct = await key.post('/memories', body)
      assert.equal(direct.status, 400, JSON.stringify(direct.body))
    }
    await refuse({ content: undefined }, 'content')
    await refuse({ content: ' \n ' }, 'content')
    await refuse({ content: 'x'.repeat(8193) }, 'content')
    await refuse({ memory_store_id: undefined }, 'memory_store_id')
    await refuse({ source_type: 'conversation' }, 'source_id')
    await refuse({ source_id: 'conv_1' }, 'source_id')
    await refuse({ expires_at: '2020-01-01T00:00:00Z' }, 'expires_at')
    await refuse({ expires_at: '9999-12-31T23:59:59-15:00' }, 'expires_at')
    await refuse({ metadata: { x: 'x'.repeat(16_400) } }, 'metadata')
    await refuse({ tags: { 'system.x': '1' } }, 'tags.system.x')
    await refuse({ mechanism: 'rule' }, 'mechanism')
    await refuse({ project_id: (await app.project()).id, memory_store_id: store }, 'project_id').catch(async () => {
      // A bound key may not name another project at all.
      const reply = await key.post('/memory-entries', {
        project_id: (await app.project()).id,
        memory_store_id: store,
        content: 'x',
      })
      assert.equal(reply.status, 403)
    })
    for (const id of ['mstore_00000000000000000000000000', 'nothing', await createStore((await app.project()).key)]) {
      const reply = await key.post('/memory-entries', { memory_store_id: id, content: 'x' })
      assert.deepEqual([reply.status, reply.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    }
    const admin = await app.admin.post('/memory-entries', { memory_store_id: store, content: 'by an admin' })
    assert.deepEqual([admin.status, admin.body.project_id, admin.body.principal_type], [201, project.id, 'user'])
  })

  it('takes conversations of the project as sources, and keeps their ids', async () => {
    const { key, id } = await app.project()
    const store = await createStore(key)
    const conversation = await key.post('/conversations', {})
    assert.equal(conversation.status, 201, JSON.stringify(conversation.body))
    const source = { source_type: 'conversation', source_id: conversation.body.id }
    const { memory_id } = await state(key, store, 'Said in a conversation', source)
    await key.delete(`/conversations/${conversation.body.id}`)
    const { source_type, source_id } = (await key.get(`/memories/${memory_id}`)).body
    assert.deepEqual({ source_type, source_id }, source)
    const gone = await key.post('/memory-entries', { memory_store_id: store, content: 'x', ...source })
    assert.deepEqual([gone.status, gone.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
    assert.ok(id)
  })

  it('compares long texts window by window', async () => {
    const windows = (first: string, second: string) => `${first} ${'.'.repeat(7999 - first.length)}${second}`
    const before = await state(key, store, windows(at(0, 'long'), 'one ending of the text'))
    assert.equal(before.action, 'created')
    assert.equal((await state(key, store, windows(at(0, 'long'), 'quite another end'))).action, 'created')
  })

  it('lists entries of a store, a memory, a turn or a conversation alone', async () => {
    assert.equal((await key.get('/memory-entries')).status, 400)
    assert.equal((await key.get('/memory-entries?mechanism=api')).status, 400)
    const { memory_id } = await state(key, store, 'one')
    await state(key, store, 'one')
    await state(key, store, 'two')
    assert.equal((await key.get(`/memory-entries?memory_id=${memory_id}`)).body.total, 2)
    assert.equal((await entriesOf(key, store, '&action=skipped')).length, 1)
    assert.equal((await entriesOf(key, store, '&action=skipped&action=created')).length, 3)
    assert.equal((await entriesOf(key, store, '&mechanism=tool')).length, 0)
    for (const name of ['generation_id', 'conversation_id', 'memory_id'])
      assert.equal((await key.get(`/memory-entries?${name}=nothing`)).body.total, 0)
  })

  it('never changes the ledger', async () => {
    const { id } = await state(key, store, 'written in stone')
    for (const change of [
      sql.fragment`content = 'other'`,
      sql.fragment`action = 'skipped'`,
      sql.fragment`memory_id = (select id from memories where memory_store_id <> ${store} limit 1)`,
      sql.fragment`memory_rule_id = 'mrule_1'`,
    ])
      await assert.rejects(app.pool.query(sql.unsafe`update memory_entries set ${change} where id = ${id}`))
    for (const method of ['patch', 'delete'] as const)
      assert.ok([404, 405].includes((await key[method](`/memory-entries/${id}`, {} as never)).status))
  })

  it('creates one memory of a fact that fifty writers state concurrently', async () => {
    const written = await Promise.all(Array.from({ length: 50 }, () => state(key, store, at(0, 'race'))))
    const actions = written.map(({ action }) => action).sort()
    assert.deepEqual(actions, ['created', ...Array(49).fill('skipped')])
    assert.equal(new Set(written.map(({ memory_id }) => memory_id)).size, 1)
    assert.equal((await memoriesOf(key, store)).length, 1)
    assert.equal((await entriesOf(key, store)).length, 50)
    assert.equal((await key.get(`/memory-stores/${store}`)).body.memory_count, 1)
  })

  it('creates one memory of similar but different texts, stated concurrently', async () => {
    const written = await Promise.all(
      Array.from({ length: 20 }, (_, index) => state(key, store, at(index / 100, 'alike'))),
    )
    assert.equal(written.filter(({ action }) => action === 'created').length, 1)
    assert.equal((await memoriesOf(key, store)).length, 1)
  })

  /** Checks that all memories of the store are on one chain, and that its last alone holds. */
  const isLinear = async (store: string, length: number): Promise<void> => {
    const all = await memoriesOf(key, store, '&include_invalidated=true&limit=100')
    assert.equal(all.length, length)
    const replaced = new Set(all.map(({ superseded_by_memory_id }) => superseded_by_memory_id))
    assert.equal(replaced.size, length, 'no two are replaced by the same, and one by none')
    const holding = all.filter(({ invalidated_at }) => invalidated_at === null)
    assert.deepEqual(
      holding.map(({ superseded_by_memory_id }) => superseded_by_memory_id),
      [null],
    )
  }

  it('keeps the chain of corrections linear, under concurrent corrections', async () => {
    const always = await createStore(key, { duplicate_threshold: 1, supersede_threshold: 0.01 })
    await state(key, always, at(0, 'chain'))
    const written = await Promise.all(
      Array.from({ length: 50 }, (_, index) => state(key, always, at(index + 1, 'chain'))),
    )
    assert.deepEqual(new Set(written.map(({ action }) => action)), new Set(['superseded']))
    assert.equal(new Set(written.map(entry => entry.superseded_memory_id)).size, 50)
    await isLinear(always, 51)
  })

  it('accepts one of concurrent facts that name one memory', async () => {
    const correct = async (index: number): Promise<void> => {
      for (;;) {
        const [current] = await memoriesOf(key, store)
        const body = { memory_store_id: store, content: `correction ${index}`, supersedes: current.id }
        const reply = await key.post('/memory-entries', body)
        if (reply.status === 200) return
        assert.equal(reply.status, 400, JSON.stringify(reply.body))
      }
    }
    await state(key, store, 'correction 0')
    await Promise.all(Array.from({ length: 8 }, (_, index) => correct(index + 1)))
    await isLinear(store, 9)
  })

  it('waits for no provider under the lock of the store', async () => {
    let release = () => {}
    const held = new Promise<void>(resolve => {
      release = resolve
    })
    const { behave } = server
    server.behave = call => ({ ...behave(call), ...(call.texts.includes('slow') ? { held } : {}) })
    try {
      const slow = state(key, store, 'slow')
      await eventually(() => server.calls.some(({ texts }) => texts.includes('slow')))
      assert.equal((await state(key, store, 'quick')).action, 'created')
      release()
      assert.equal((await slow).action, 'created')
    } finally {
      release()
      server.behave = behave
    }
  })
})

describe('facts without an embedding model', () => {
  const app = forSuite(startApp)

  it('are distinguished by their texts', async () => {
    const { key } = await app.projectWith(['memories:*', 'knowledge:SearchKnowledge'])
    const store = await createStore(key)
    const made = await key.post('/memories', { memory_store_id: store, content: 'Grass is green' })
    assert.deepEqual([made.status, made.body.embedded, made.body.action], [201, false, 'created'])
    const again = await key.post('/memories', { memory_store_id: store, content: 'Grass  is green' })
    assert.deepEqual([again.status, again.body.action, again.body.id], [200, 'skipped', made.body.id])
    assert.notEqual(again.body.entry_id, made.body.entry_id)
    const other = await state(key, store, 'Grass is greener')
    assert.deepEqual([other.action, other.similarity], ['created', null])
    const corrected = await state(key, store, 'Grass is brown', { supersedes: made.body.id })
    assert.deepEqual([corrected.action, corrected.similarity], ['superseded', null])
    const found = (await key.post('/knowledge/search', { query: 'grass' })).body
    assert.deepEqual(found.degraded_channels, ['vector'])
    assert.equal(found.results.length, 2)
  })
})
