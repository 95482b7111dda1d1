import assert from 'node:assert/strict'
import { metadataCondition } from '#content/documents/metadata-filter.ts'
import { sql } from '#core/db/sql.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { makeDocument } from './documents-support.ts'

describe('metadata filters', () => {
  const app = forSuite(() => startApp({ together: true }))
  const project = forSuite(() => app.project())
  before(async () => {
    for (const [title, metadata] of Object.entries({
      number: { v: 3, name: 'Zoë', list: [1, 2], odd: { deep: 1 }, 'a.b': true },
      text: { v: '3', name: 'adam', list: [1] },
      nil: { v: null, list: [] },
      flag: { v: true, name: 'ß' },
      float: { v: 2.5, name: '\u{1F600}' },
      big: { v: 1e15, name: '\uFFFD' },
      array: { v: [3] },
      none: null,
    }))
      await makeDocument(project.key, { title, metadata })
  })

  const ask = (filter: unknown) =>
    project.key.get(
      `/documents?metadata=${encodeURIComponent(typeof filter === 'string' ? filter : JSON.stringify(filter))}`,
    )
  const titles = async (filter: unknown) => {
    const reply = await ask(filter)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    assert.equal(reply.body.total, reply.body.data.length)
    return reply.body.data.map((item: { title: string }) => item.title).sort()
  }

  it('matches exactly the JSON value', async () => {
    assert.deepEqual(await titles({ v: 3 }), ['number'])
    assert.deepEqual(await titles({ v: '3' }), ['text'])
    assert.deepEqual(await titles({ v: null }), ['nil'])
    assert.deepEqual(await titles({ v: true }), ['flag'])
    assert.deepEqual(await titles({ v: false }), [])
    assert.deepEqual(await titles({ v: [3] }), ['array'])
    assert.deepEqual(await titles({ list: [1] }), ['text'])
    assert.deepEqual(await titles({ list: [2, 1] }), [])
    assert.deepEqual(await titles({ list: [] }), ['nil'])
    assert.deepEqual(await titles({ 'a.b': true }), ['number'])
    assert.deepEqual(await titles({ missing: null }), [])
    assert.deepEqual(await titles({ v: 3, name: 'Zoë' }), ['number'])
    assert.deepEqual(await titles({ v: 3, name: 'adam' }), [])
    assert.equal((await titles({})).length, 8)
    assert.deepEqual(await titles('{"__proto__": 1}'), [])
  })

  it('matches any of the values of in', async () => {
    assert.deepEqual(await titles({ v: { in: [3, '3', null, 'x'] } }), ['nil', 'number', 'text'])
    assert.deepEqual(await titles({ odd: { in: [{ deep: 1 }] } }), ['number'])
    assert.deepEqual(await titles({ odd: { in: [{}] } }), [])
    assert.deepEqual(await titles({ v: { in: Array.from({ length: 100 }, (_, index) => index) } }), ['number'])
  })

  it('orders numbers by value and strings by code point, other types are out', async () => {
    assert.deepEqual(await titles({ v: { gte: 2, lt: 4 } }), ['float', 'number'])
    assert.deepEqual(await titles({ v: { gt: 2.5 } }), ['big', 'number'])
    assert.deepEqual(await titles({ v: { gt: 999999999999999 } }), ['big'])
    assert.deepEqual(await titles({ v: { lte: -1e21 } }), [])
    assert.deepEqual(await titles({ v: { gte: '2' } }), ['text'])
    assert.deepEqual(await titles({ name: { lt: 'a' } }), ['number'])
    assert.deepEqual(await titles({ name: { gt: 'z' } }), ['big', 'flag', 'float'])
    assert.deepEqual(await titles({ name: { gt: '\uFFFD' } }), ['float'])
    assert.deepEqual(await titles({ v: { gte: 2, in: [3, '3'] } }), ['number'])
  })

  it('refuses invalid filters and names the field', async () => {
    for (const [filter, field] of [
      [{ v: { gte: true } }, 'v'],
      [{ v: { gte: null } }, 'v'],
      [{ v: { gte: [1] } }, 'v'],
      [{ v: { gte: {} } }, 'v'],
      [{ v: {} }, 'v'],
      [{ v: { gte: 1, other: 2 } }, 'v'],
      [{ v: { eq: 1 } }, 'v'],
      [{ v: { toString: 1 } }, 'v'],
      [{ v: { in: [] } }, 'v'],
      [{ v: { in: 1 } }, 'v'],
      [{ v: { in: Array(101).fill(1) } }, 'v'],
      [{ ok: 1, w: { deep: 1 } }, 'w'],
      [Object.fromEntries(Array.from({ length: 21 }, (_, index) => [`f${index}`, 1])), 'f20'],
      ['{"v": "a\\u0000"}', 'v'],
      ['{"v": 1e999}', 'v'],
      ['not json', undefined],
      ['', undefined],
      ['[]', undefined],
      ['"text"', undefined],
      ['null', undefined],
      ['3', undefined],
      [`${'{"a":'.repeat(70)}1${'}'.repeat(70)}`, 'a'],
    ] as const) {
      const reply = await ask(filter)
      const what = JSON.stringify(filter).slice(0, 80)
      assert.deepEqual([reply.status, reply.body.error?.code], [400, 'VALIDATION_FAILED'], what)
      assert.equal(reply.body.error.meta.field, field, what)
      assert.equal(reply.body.error.meta.problems.length, 1, what)
    }
    assert.equal((await project.key.get('/documents?metadata=%7B%7D&metadata=%7B%7D')).status, 400)
  })

  it('takes twenty fields', async () => {
    assert.deepEqual(await titles(Object.fromEntries(Array.from({ length: 20 }, (_, index) => [`f${index}`, 1]))), [])
  })

  it('finds equality in the index of metadata', async () => {
    const { pool } = app
    const many = await app.project()
    await pool.query(sql.unsafe`
      with files as (
        insert into files (id, project_id, filename) select 'file_' || n, ${many.id}, 'f' from generate_series(1, 3000) n
        returning id
      )
      insert into documents (id, project_id, file_id, status, filename, size, metadata, chunk_strategy)
      select 'doc_' || id, ${many.id}, id, 'ready', 'f', 0, jsonb_build_object('v', right(id, 4)), 'whole' from files`)
    await pool.query(sql.unsafe`analyze documents`)
    const condition = metadataCondition(sql.fragment`metadata`, [{ field: 'v', operator: 'in', values: [3, 4] }])
    const plan = JSON.stringify(
      await pool.any(sql.unsafe`explain select 1 from documents where kind = 'document' and ${condition}`),
    )
    assert.match(plan, /BitmapOr/)
    assert.match(plan, /documents_metadata/)
  })
})
