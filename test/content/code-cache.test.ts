import { strict as assert } from 'node:assert'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { loadConfig } from '#config.ts'
import { cosineSimilarity } from '#content/index/vectors/scan.ts'
import { insertVectors, type NewVector, removeVectors, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { pinVectors, scoreCached } from '#content/index/vectors/vector-cache.ts'
import { vectorMemory } from '#content/index/vectors/vector-memory.ts'
import { createLog } from '#core/base/log.ts'
import type { Services } from '#core/base/services.ts'
import { inTransaction } from '#core/db/pool.ts'
import { type Fragment, rawQuery, sql } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { migrate } from '#core/queues/migrate.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { type EmbeddedServer, startEmbedded } from '#local/postgres.ts'
import { seeded } from '../bench/knowledge-corpora.ts'
import { CELL_COUNT, type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { quietPort } from '../support/postgres.ts'
import { nearestTo, unit, vectorOf } from './vectors-support.ts'

const DIMENSIONS = 64
const { normal } = seeded(11)
const scattered = () => unit(Float32Array.from({ length: DIMENSIONS }, normal))
const closeTo = (vector: Float32Array, share = 1 / 16) => unit(vector.map(value => value + share * normal()))

/** How the last search found its candidates. */
const wayOf = (statements: readonly string[]): string => {
  const memory = statements.some(text => text.includes('pg_snapshot_xip'))
  return statements.some(text => text.includes('bit_count')) ? (memory ? 'both' : 'scan') : 'memory'
}

describe('codes kept in the process', () => {
  let app: TestApp
  let services: Services
  /** A project of the cell of the one before: spaces of vectors are made past the API. */
  let project: string
  let space: { id: number; dimensions: number }
  const row = (ref_id: string, vector: Float32Array, more?: Partial<NewVector>) =>
    vectorOf({ project, space }, ref_id, vector, more)
  const insert = (...all: NewVector[]) => insertVectors(app.pool, all)
  const fill = async (count: number, more: Partial<NewVector> = {}) => {
    for (let at = 0; at < count; at += 500)
      await insert(
        ...Array.from({ length: Math.min(500, count - at) }, (_, index) =>
          row(`${more.project_id ?? ''}r${at + index}`, scattered(), more),
        ),
      )
  }
  type More = {
    by?: Services
    projects?: string[]
    whole?: boolean
    limit?: number
    sure?: number
    filter?: (columns: { container: Fragment; ref: Fragment }) => Fragment
  }
  /** As a search, which reads the nearest 50. */
  const near = ({ by = services, ...more }: More = {}, vector = scattered()) =>
    nearestTo(by, { project, space }, vector, { whole: true, sure: 50, ...more })
  const ids = (found: readonly { ref_id: string }[]) => found.map(({ ref_id }) => ref_id)
  /** Searches, and returns the results and the path to them. Other searches must not run meanwhile. */
  const found = async (vector: Float32Array, more: More = {}) => {
    app.statements.length = 0
    const nearest = await near(more, vector)
    return { ids: ids(nearest), way: wayOf(app.statements) }
  }
  const way = async (more: More = {}) => (await found(scattered(), more)).way
  /** Searches until the codes are kept. */
  const warm = (more: More = {}) => eventually(async () => (await way(more)) === 'memory')
  /** As a separate process with these settings. */
  const process = (env: Partial<Services['config']> = {}): Services => ({
    ...app.servicesOf(project),
    state: new Map(),
    config: { ...app.config, ...env },
  })

  before(async () => {
    app = await startApp()
  })
  after(() => app.close())
  beforeEach(async () => {
    project = (await app.project(undefined, project)).id
    services = process()
    const [{ id }] = await app.rows(
      `insert into embedding_spaces (provider, model, dimensions, code_version) values ('p', gen_random_uuid()::text, $1, 1) returning id`,
      [DIMENSIONS],
    )
    space = { id, dimensions: DIMENSIONS }
  })

  it('answer from the third search on, with what a scan answers, in as many statements', async () => {
    await fill(3000)
    assert.equal(await way(), 'scan')
    assert.equal(await way(), 'scan')
    await warm()
    const question = scattered()
    await insert(...Array.from({ length: 20 }, (_, index) => row(`near${index}`, closeTo(question))))
    app.statements.length = 0
    // Settings travel with the statement after them.
    const sent = () => app.statements.filter(text => !text.includes('set_config')).length
    const scanned = await near({ whole: false }, question)
    assert.equal(sent(), 2)
    app.statements.length = 0
    const kept = await near({}, question)
    assert.equal(sent(), 2)
    assert.equal(wayOf(app.statements), 'memory')
    assert.equal(kept.length, 400)
    // Rows at the edge of the estimate may differ, the best do not.
    assert.deepEqual(kept.slice(0, 100), scanned.slice(0, 100))
    assert.equal((await near({ limit: 25 }, question)).length, 1000)
  })
  it('are not kept for projects with few vectors, nor where the setting says none', async () => {
    await fill(1999)
    for (let time = 0; time < 4; time++) assert.equal(await way(), 'scan')
    await fill(2500)
    const none = process({ KNOWLEDGE_CODE_CACHE_BYTES: 0 })
    for (let time = 0; time < 4; time++) assert.equal(await way({ by: none }), 'scan')
  })
  it('are not used for a part of a project, nor for several projects', async () => {
    await fill(2500)
    await warm()
    assert.equal(await way({ whole: false }), 'scan')
    assert.equal(await way({ projects: [project, (await app.project(undefined, project)).id] }), 'scan')
    assert.equal(await way(), 'memory')
  })
  it('keep to their project, space and source', async () => {
    await fill(2500)
    await warm()
    const other = (await app.project(undefined, project)).id
    const question = scattered()
    const own = closeTo(question, 1 / 8)
    await insert(
      row('own', own),
      row('theirs', question, { project_id: other }),
      row('memory', question, { source: VECTOR_SOURCES.memory }),
    )
    assert.deepEqual((await found(question)).ids[0], 'own')
    assert.equal((await found(question)).ids.includes('theirs'), false)
    assert.equal((await found(question)).ids.includes('memory'), false)
  })

  describe('follow the database', () => {
    beforeEach(async () => {
      await fill(2500)
      await warm()
    })

    it('in every search that begins after a commit, during many concurrent writes and searches', async () => {
      const late: string[] = []
      await Promise.all(
        Array.from({ length: 40 }, async (_, writer) => {
          for (let time = 0; time < 5; time++) {
            const vector = scattered()
            const ref = `w${writer}-${time}`
            await insert(row(ref, vector))
            const [first] = await near({}, vector)
            if (first.ref_id !== ref) late.push(ref)
          }
        }),
      )
      assert.deepEqual(late, [])
      assert.equal(await way(), 'memory')
    })
    it('when a transaction that began earlier commits after a later one', async () => {
      const question = scattered()
      const early = new pg.Client(app.databaseUrlOf(project))
      await early.connect()
      try {
        await early.query('begin')
        // Takes its number before the others take theirs.
        await early.query(
          `insert into knowledge_vectors (project_id, source, container_id, ref_id, segment, space_id, code, vec)
            select project_id, source, container_id, 'early', segment, space_id, code, vec from knowledge_vectors
            where project_id = $1 and ref_id = 'r7'`,
          [project],
        )
        await insert(row('late', closeTo(question)))
        assert.deepEqual((await found(question)).ids[0], 'late')
        const { ids: before } = await found(scattered(), { limit: 50 })
        assert.equal(before.includes('early'), false)
        await early.query('commit')
      } finally {
        await early.end()
      }
      const [{ vec }] = await app.rows(
        `select encode(vec, 'hex') as vec from knowledge_vectors where project_id = $1 and ref_id = 'r7'`,
        [project],
      )
      const seventh = new Float32Array(new Uint8Array(Buffer.from(vec, 'hex')).buffer)
      const after = await found(seventh)
      assert.deepEqual(after.ids.slice(0, 2).sort(), ['early', 'r7'])
      assert.equal(after.way, 'memory')
    })
    it('when a vector is replaced', async () => {
      const question = scattered()
      await insert(row('r3', question))
      const { ids: first, way } = await found(question)
      assert.equal(first[0], 'r3')
      assert.equal(way, 'memory')
      assert.equal(first.filter(id => id === 'r3').length, 1)
      await insert(
        row(
          'r3',
          question.map(value => -value),
        ),
      )
      assert.notEqual((await found(question)).ids[0], 'r3')
    })
    it('when many are replaced again and again: each takes one place', async () => {
      const question = scattered()
      for (let time = 0; time < 4; time++) {
        await insert(...Array.from({ length: 300 }, (_, index) => row(`r${index}`, closeTo(question))))
        const { ids: nearest, way } = await found(question)
        assert.deepEqual([new Set(nearest).size, way], [400, 'memory'])
        assert.equal(
          nearest.slice(0, 300).every(id => Number(id.slice(1)) < 300),
          true,
        )
      }
    })
    it('in one range of the index for new rows, whatever transactions are open', async () => {
      const open = new pg.Client(app.databaseUrlOf(project))
      await open.connect()
      try {
        await open.query('begin')
        await open.query('select pg_current_xact_id()')
        await fill(1000, { container_id: 'doc_b', project_id: project })
        await way()
        const [{ snapshot }] = await app.rows('select pg_current_snapshot()::text as snapshot')
        await insert(row('new', scattered()))
        app.statements.length = 0
        await near()
        const look = app.statements.find(text => text.includes('pg_snapshot_xip')) as string
        const scope = [project, space.id, VECTOR_SOURCES.document]
        const plan = await inTransaction(app.servicesOf(project).pool, async db => {
          await setForTransaction(db, { enable_seqscan: 'off', enable_bitmapscan: 'off', random_page_cost: '1' })
          const lines = await db.anyFirst(
            rawQuery(`explain (analyze, costs off, timing off) ${look}`, [
              ...scope,
              snapshot,
              ...scope,
              snapshot,
              100,
              '',
              '',
              '',
            ]),
          )
          return lines.join('\n')
        })
        assert.equal(plan.match(/Index Only Scan using knowledge_vectors_scan .*rows=[01]\.00/g)?.length, 2, plan)
        assert.doesNotMatch(plan, /Rows Removed/)
      } finally {
        await open.end()
      }
    })
    it('when rows are deleted: others move up, as many as before', async () => {
      const question = scattered()
      // Nearer than any other, by their codes and by their estimates too: no search meets some of them that an earlier
      // one has not met.
      for (let at = 0; at < 1200; at += 300)
        await insert(...Array.from({ length: 300 }, (_, index) => row(`near${at + index}`, closeTo(question))))
      services = process()
      await warm()
      const nearest = (await near({ limit: 40 }, question)).map(({ ref_id }) => ref_id)
      assert.equal(nearest.length, 1600)
      assert.ok(nearest.slice(0, 1200).every(id => id.startsWith('near')))
      await fill(1000, { container_id: 'doc_b', project_id: project })
      await removeVectors(app.pool, { source: VECTOR_SOURCES.document, ref_ids: nearest.slice(0, 1200) })
      const { ids: left, way } = await found(question)
      assert.equal(way, 'memory')
      assert.equal(left.length, 400)
      const sent = app.statements.length
      assert.ok(sent >= 5 && sent <= 12, `${sent} statements`)
      // They are known to be gone: settings, then news of codes and of candidates.
      await near({}, question)
      assert.equal(app.statements.length - sent, 2)
      assert.equal(
        left.some(id => nearest.slice(0, 1200).includes(id)),
        false,
      )
      assert.deepEqual(left.slice(0, 100), ids(await near({ whole: false }, question)).slice(0, 100))
    })
    it('for the nearest that a search takes, whatever was hidden, deleted or written again before it', async () => {
      const question = scattered()
      const near = Array.from({ length: 300 }, (_, index) => row(`near${index}`, closeTo(question)))
      await insert(...near)
      await found(question)
      const order = (await found(question)).ids
      // Far from the question until now, and cached with their old codes.
      const [once, twice] = [order[390], order[391]]
      await insert(row(once, closeTo(question, 1 / 64)))
      await found(scattered())
      await insert(row(twice, closeTo(question, 1 / 128)))
      assert.deepEqual((await found(question)).ids.slice(0, 2), [twice, once])
      await removeVectors(app.pool, { source: VECTOR_SOURCES.document, ref_ids: order.slice(0, 60) })
      const hide = ({ ref }: { ref: Fragment }) => sql.fragment`${ref} <> ${order[60]}`
      for (const filter of [hide, undefined]) {
        const { ids: left, way } = await found(question, { filter })
        assert.equal(way, 'memory')
        const scan = await nearestTo(services, { project, space }, question, { whole: false, filter })
        assert.deepEqual(left.slice(0, 50), ids(scan).slice(0, 50))
      }
    })
    it('when most rows are deleted', async () => {
      await app.rows(`delete from knowledge_vectors where project_id = $1 and ref_id not in ('r1', 'r2')`, [project])
      const { ids: left } = await found(scattered())
      assert.deepEqual(left.sort(), ['r1', 'r2'])
    })
    it('when all of the nearest are deleted: the database is queried once and the codes are read again', async () => {
      const question = scattered()
      for (let at = 0; at < 4000; at += 500)
        await insert(
          ...Array.from({ length: 500 }, (_, index) =>
            row(`near${at + index}`, closeTo(question), { container_id: 'doc_b' }),
          ),
        )
      services = process()
      await warm()
      await removeVectors(app.pool, { container_id: 'doc_b' })
      const short = async () => {
        const { ids: left, way } = await found(question)
        assert.equal(left.length, 400)
        return way
      }
      assert.equal(await short(), 'both')
      const ways = [await short()]
      await eventually(async () => ways.push(await short()) && ways.at(-1) === 'memory')
      assert.equal(ways.includes('both'), false)
    })
    it('also where rows were written on another server, whose transactions had higher numbers', async () => {
      await app.rows(`update knowledge_vectors set written_in = '9000000000000' where project_id = $1`, [project])
      services = process()
      await warm()
      for (let time = 0; time < 5; time++) {
        const { ids: nearest, way } = await found(scattered())
        assert.deepEqual([new Set(nearest).size, way], [400, 'memory'])
      }
    })
    it('when a project is deleted', async () => {
      await app.rows('delete from projects where id = $1', [project])
      assert.deepEqual((await found(scattered())).ids, [])
    })
    it('and are read again when more rows arrive than there are places for', async () => {
      const question = scattered()
      const copy = (tag: string, count: number) =>
        app.rows(
          `insert into knowledge_vectors (project_id, source, container_id, ref_id, segment, space_id, code, vec)
            select project_id, source, container_id, ref_id || $2, segment, space_id, code, vec from knowledge_vectors
            where project_id = $1 and container_id = 'doc_a' order by id limit $3`,
          [project, tag, count],
        )
      // 2,500 rows leave places for a tenth and a thousand.
      await copy('-once', 1249)
      assert.equal(await way(), 'memory')
      await insert(row('new', question))
      assert.deepEqual(await found(question).then(({ ids, way }) => [ids[0], way]), ['new', 'memory'])
      await insert(
        row(
          'newer',
          question.map(value => value),
        ),
      )
      const first = await found(question)
      assert.deepEqual([first.ids.slice(0, 2).sort(), first.way], [['new', 'newer'], 'both'])
      await warm()
      await copy('-twice', 1300)
      assert.equal(await way(), 'memory')
    })
    it('but not rows that their filter hides, which take no place', async () => {
      const question = scattered()
      const hide = ({ container }: { container: Fragment }) => sql.fragment`${container} <> 'doc_hidden'`
      await insert(
        ...Array.from({ length: 300 }, (_, index) =>
          row(`h${index}`, closeTo(question), { container_id: 'doc_hidden' }),
        ),
      )
      const some = await found(question, { filter: hide })
      assert.equal(some.way, 'memory')
      assert.equal(some.ids.length, 400)
      assert.equal(
        some.ids.some(id => id.startsWith('h')),
        false,
      )
      // With nothing but hidden rows among the nearest, the database finds the others.
      for (let at = 300; at < 2300; at += 500)
        await insert(
          ...Array.from({ length: 500 }, (_, index) =>
            row(`h${at + index}`, closeTo(question), { container_id: 'doc_hidden' }),
          ),
        )
      const most = await found(question, { filter: hide })
      assert.equal(most.way, 'both')
      assert.deepEqual(most.ids, ids(await near({ whole: false, filter: hide }, question)))
      // They were hidden, not gone.
      assert.equal((await found(question)).ids[0].startsWith('h'), true)
    })
  })

  describe('and the vectors of candidates', () => {
    const question = scattered()
    const cosineOf = async (ref: string, more: More = {}) =>
      (await near(more, question)).find(({ ref_id }) => ref_id === ref)?.cosine
    const equal = (actual: number | undefined, expected: number) =>
      assert.ok(Math.abs(Number(actual) - expected) < 1e-6, `${actual} is not ${expected}`)
    const overwrite = (set: string, vector: Float32Array) =>
      app.rows(`update knowledge_vectors set ${set} where project_id = $1 and ref_id = 'kept'`, [
        project,
        Buffer.from(vector.buffer),
      ])

    for (const whole of [true, false]) {
      it(`are not read again until they are written again, ${whole ? 'beside codes' : 'by a scan'}`, async () => {
        await fill(2500)
        await insert(row('kept', question))
        if (whole) await warm()
        equal(await cosineOf('kept', { whole }), 1)
        const [other, another] = [closeTo(question), closeTo(question)]
        await overwrite('vec = $2', other)
        equal(await cosineOf('kept', { whole }), 1)
        await overwrite('vec = $2, written_in = pg_current_xact_id()', another)
        equal(await cosineOf('kept', { whole }), cosineSimilarity(another, question))
        await app.rows(`delete from knowledge_vectors where project_id = $1 and ref_id = 'kept'`, [project])
        assert.equal(await cosineOf('kept', { whole }), undefined)
      })
    }
    it('are read each time where the setting says none', async () => {
      services = process({ KNOWLEDGE_CODE_CACHE_BYTES: 0 })
      await insert(row('kept', question))
      equal(await cosineOf('kept'), 1)
      const other = closeTo(question)
      await overwrite('vec = $2', other)
      equal(await cosineOf('kept'), cosineSimilarity(other, question))
    })
    it('take what codes leave of the bytes, and give way to codes', async () => {
      const limit = 2_900_000
      services = process({ KNOWLEDGE_CODE_CACHE_BYTES: limit })
      const memory = vectorMemory(services)
      await fill(2500)
      await way()
      // A block of vectors, by which the codes do not fit.
      assert.ok(memory.free < 990_000, `${memory.free} bytes free`)
      assert.equal(memory.vectorLimit, limit)
      await warm()
      assert.equal(memory.vectorLimit, limit - 3750 * 264)
      assert.ok(memory.free >= 0)
    })
    it('stay unchanged until the search that uses them has compared them', () => {
      // Capacity for one block, of 4,096 vectors.
      services = process({ KNOWLEDGE_CODE_CACHE_BYTES: 3_000_000 })
      const compare = (ids: readonly number[], vector: Float32Array) => {
        const read = {
          container_id: 'doc',
          written_in: '1',
          server: 'one',
          vec: Buffer.from(vector.buffer).toString('base64'),
        }
        scoreCached(
          services,
          pinVectors(services, ids),
          ids.map(id => ({ id, ref_id: `r${id}`, ...read })),
          question,
        )
      }
      compare([1], question)
      const asked = pinVectors(services, [1])
      compare(
        Array.from({ length: 5000 }, (_, index) => index + 2),
        scattered(),
      )
      assert.equal(pinVectors(services, [1]).entries[0], undefined)
      equal(scoreCached(services, asked, [], question).get(1)?.cosine, 1)
    })
    it('are found by many concurrent searches while others write them', async () => {
      await fill(2500)
      await warm()
      const wrong: string[] = []
      await Promise.all(
        Array.from({ length: 20 }, async (_, writer) => {
          const ref = `shared${writer}`
          for (let time = 0; time < 5; time++) {
            const vector = scattered()
            await insert(row(ref, vector))
            const found = await Promise.all([near({}, vector), near({ whole: false }, vector)])
            for (const [first] of found)
              if (first.ref_id !== ref || Math.abs(first.cosine - 1) > 1e-6) wrong.push(`${ref} ${time}`)
          }
        }),
      )
      assert.deepEqual(wrong, [])
    })
  })

  it('stay within their bytes: a project that does not fit next to one in use is scanned', async () => {
    // Capacity for 2,500 rows of 264 bytes and their growth, once.
    services = process({ KNOWLEDGE_CODE_CACHE_BYTES: 1_200_000 })
    await fill(2500)
    await warm()
    const other = (await app.project(undefined, project)).id
    await fill(2500, { project_id: other })
    for (let time = 0; time < 5; time++) {
      assert.equal(await way({ projects: [other] }), 'scan')
      await new Promise(resolve => setTimeout(resolve, 50))
    }
    assert.equal(await way(), 'memory')
    // Grown beyond its capacity, it is dropped.
    await fill(3000, { container_id: 'doc_b', project_id: project })
    await way()
    assert.equal(await way(), 'scan')
    assert.equal((await found(scattered())).ids.length, 400)
  })

  it('are read one scope after the other, for as many scopes as fit', async () => {
    // Capacity for two scopes of 2,500 rows, of which the third and fourth find it taken.
    services = process({ KNOWLEDGE_CODE_CACHE_BYTES: 2_500_000 })
    const scopes: string[][] = []
    for (let count = 0; count < 4; count++) {
      scopes.push([(await app.project(undefined, project)).id])
      await fill(2500, { project_id: scopes[count][0] })
    }
    const searchAll = () => Promise.all(scopes.map(projects => near({ projects })))
    await searchAll()
    app.statements.length = 0
    await searchAll()
    // Their statements: a count (a), a cursor (d) and its parts (f).
    const reads = () => app.statements.flatMap(text => text.match(/(declare|fetch|as count)/)?.[0][0] ?? []).join('')
    await eventually(async () => reads() === 'adffffadffffadad')
    const ways: string[] = []
    for (const projects of scopes) ways.push(await way({ projects }))
    assert.deepEqual(ways.sort(), ['memory', 'memory', 'scan', 'scan'])
  })

  describe('of documents', () => {
    let key: Client
    const search = async (query: string, by = key) => {
      app.statements.length = 0
      const answer = await by.post('/knowledge/search', { query, project_id: project })
      assert.equal(answer.status, 200, JSON.stringify(answer.body))
      return { results: answer.body.results as any[], way: wayOf(app.statements) }
    }
    const firstOf = async (query: string) => {
      const { results, way } = await search(query)
      assert.equal(way, 'memory')
      return results[0]?.document_id
    }
    let outer: TestApp

    before(async () => {
      outer = app
      app = await startApp({
        together: true,
        env: { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '128', KNOWLEDGE_QUERY_TIMEOUT_MS: '1000' },
      })
    })
    after(async () => {
      await app.close()
      app = outer
    })
    beforeEach(async () => {
      const made = await app.project(undefined, project)
      project = made.id
      key = made.key
      for (let at = 0; at < 7; at++) {
        const content = Array.from({ length: 300 }, (_, index) => `passage ${at} ${index} ${(at * 300 + index) * 7919}`)
        const { body, status } = await key.post('/documents', {
          content: content.map(text => text.padEnd(40, '.')).join(''),
          path: `/base/${at}.txt`,
          chunk_strategy: 'size',
          chunk_size: 40,
          chunk_overlap: 0,
        })
        assert.equal(status, 201)
        assert.ok(body.chunk_count >= 290, `${body.chunk_count} chunks`)
      }
      await eventually(async () => (await search('passage 3 17')).way === 'memory')
    })

    it('show a document in the first search after each change of it', async () => {
      const { body: made } = await key.post('/documents', { content: 'a heron stands in the reeds', path: '/a.txt' })
      assert.equal(await firstOf('heron in the reeds'), made.id)
      await key.patch(`/documents/${made.id}`, { content: 'a marten climbs the larch' })
      assert.equal(await firstOf('marten climbs larch'), made.id)
      assert.notEqual((await search('a heron stands in the reeds')).results[0]?.content, 'a heron stands in the reeds')
      assert.equal((await key.post(`/documents/${made.id}/withdraw`)).status, 200)
      assert.notEqual(await firstOf('marten climbs larch'), made.id)
      const { body: again } = await key.post('/documents', { content: 'a marten climbs the larch', path: '/b.txt' })
      assert.equal(await firstOf('marten climbs larch'), again.id)
      assert.equal((await key.delete(`/documents/${again.id}`)).status, 204)
      assert.notEqual(await firstOf('marten climbs larch'), again.id)
    })
    it('hide a document that is being ingested, and show it once it is ready', async () => {
      const { body: made } = await key.post('/documents', { content: 'a puffin on the cliff', path: '/a.txt' })
      await app.rows(`update documents set status = 'processing' where id = $1`, [made.id])
      assert.notEqual(await firstOf('puffin on the cliff'), made.id)
      await app.rows(`update documents set status = 'ready' where id = $1`, [made.id])
      assert.equal(await firstOf('puffin on the cliff'), made.id)
    })
    it('are reported in the metrics', async function () {
      if (CELL_COUNT > 1) return this.skip()
      const read = async () => {
        const { body } = await app.anonymous.get('//metrics')
        const value = (name: string) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(body)?.[1])
        return {
          memory: value('muster_vector_searches_total{by="memory"}'),
          scan: value('muster_vector_searches_total{by="scan"}'),
          bytes: value('muster_code_cache_bytes'),
        }
      }
      const before = await read()
      await search('passage 3 17')
      await app.admin.post('/knowledge/search', { query: 'passage', include_memories: false })
      const { memory, scan, bytes } = await read()
      assert.deepEqual([memory - before.memory, scan - before.scan], [1, 1])
      assert.ok(bytes >= 2000 * 264 && bytes < 10_000_000, `${bytes} bytes`)
    })
    it('are not used for a caller who may not see everything', async () => {
      await key.post('/documents', { content: 'a secret about the quarry', path: '/secret/a.txt' })
      const some = await app.user(undefined, [
        {
          statement: [
            { effect: 'Allow', action: ['knowledge:SearchKnowledge'], resource: [`srn:${project}:document:/base/*`] },
          ],
        },
      ])
      const { results, way } = await search('secret about the quarry', some)
      assert.equal(way, 'scan')
      assert.equal(results.length, 10)
      assert.equal(
        results.every(({ path }) => path.startsWith('/base/')),
        true,
      )
      assert.equal((await search('secret about the quarry')).results[0].path, '/secret/a.txt')
    })
    it('do without vectors that cannot be read in time, and with them again afterwards', async () => {
      const locking = new pg.Client(app.databaseUrlOf(project))
      await locking.connect()
      try {
        await locking.query('begin')
        await locking.query('lock table knowledge_vectors in access exclusive mode')
        app.statements.length = 0
        // The lock is held until all of them are answered, and none waits for the vectors twice.
        const answers = await Promise.all(
          Array.from({ length: 5 }, () => key.post('/knowledge/search', { query: 'passage 3 17' })),
        )
        assert.equal(app.statements.filter(text => text.includes('from knowledge_vectors')).length, 5)
        for (const { status, body } of answers) {
          assert.equal(status, 200)
          assert.deepEqual(body.degraded_channels, ['vector'])
        }
      } finally {
        await locking.end()
      }
      const { results, way } = await search('passage 3 17')
      assert.equal(way, 'memory')
      assert.equal(typeof results[0].similarity_score, 'number')
    })
    it('are correct during fifty concurrent creates', async () => {
      const missed: string[] = []
      await Promise.all(
        Array.from({ length: 50 }, async (_, index) => {
          const content = `note ${index} says ${['ash', 'birch', 'cedar', 'elm', 'fir'][index % 5]}${index * 31}`
          const { body: made } = await key.post('/documents', { content, path: `/notes/${index}.txt` })
          const { body } = await key.post('/knowledge/search', { query: content })
          if (body.results[0]?.document_id !== made.id) missed.push(content)
        }),
      )
      assert.deepEqual(missed, [])
    })
  })
})

describe('codes kept in the process over a crash and a restored backup', () => {
  it('codes are read again after a crash and after a restored backup', async function () {
    this.timeout(120_000)
    const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-restore-'))
    fs.chmodSync(base, 0o755)
    const dir = path.join(base, 'pg')
    const port = await quietPort()
    let server: EmbeddedServer = await startEmbedded({ dir, port })
    const restart = async () => {
      server = await startEmbedded({ dir, port })
    }
    // With owners and permissions, which the server insists on.
    const copy = (from: string, to: string) => execFileSync('cp', ['-a', from, to])
    await migrate(server.url)
    const statements: string[] = []
    const services = await openServices(loadConfig(testEnvironment(server.url)), {
      log: createLog({ level: 'silent' }),
      role: 'cli',
      onRoundTrip: text => void statements.push(text),
    })
    const sent = <T>(work: () => Promise<T>) =>
      eventually(() =>
        work().then(
          value => ({ value }),
          () => null,
        ),
      )
    try {
      const query = (text: string, values: unknown[] = []) =>
        services.pool.any(rawQuery(text, values)) as Promise<readonly any[]>
      await query(`insert into projects (id, name) values ('proj_a', 'a')`)
      const [{ id }] = await query(
        `insert into embedding_spaces (provider, model, dimensions, code_version) values ('p', 'm', $1, 1) returning id`,
        [DIMENSIONS],
      )
      const space = { id, dimensions: DIMENSIONS }
      const place = { project: 'proj_a', space }
      const row = (ref_id: string, vector = scattered()) => vectorOf(place, ref_id, vector)
      const near = (vector = scattered()) => nearestTo(services, place, vector, { whole: true })
      for (let at = 0; at < 2500; at += 500)
        await insertVectors(
          services.pool,
          Array.from({ length: 500 }, (_, index) => row(`r${at + index}`)),
        )
      await server.stop()
      copy(dir, `${base}/backup`)
      await restart()
      // Transactions that the backup does not have, and a search that has seen them.
      for (let time = 0; time < 50; time++) await sent(() => insertVectors(services.pool, [row(`lost${time}`)]))
      const way = async () => {
        statements.length = 0
        await near()
        return wayOf(statements)
      }
      const warm = () => eventually(async () => (await way()) === 'memory')
      await warm()
      // One process of the server is killed: the others are ended, and unflushed writes are undone.
      const started = async () => (await query('select pg_stat_get_bgwriter_stat_reset_time()::text as at'))[0].at
      const before = await started()
      const [{ pid }] = await query('select pg_backend_pid() as pid')
      process.kill(pid, 'SIGKILL')
      // Until the server has noticed, its other processes answer.
      await eventually(async () => (await sent(started))?.value !== before)
      // Of all attempts: the first that is answered may find codes which an earlier one has read again.
      statements.length = 0
      await sent(near)
      assert.equal(wayOf(statements), 'both')
      await warm()
      await server.stop()
      fs.rmSync(dir, { recursive: true })
      copy(`${base}/backup`, dir)
      await restart()
      const vector = scattered()
      await sent(() => insertVectors(services.pool, [row('new', vector)]))
      const { value } = await sent(() => near(vector))
      assert.equal(value[0].ref_id, 'new')
    } finally {
      await services.close()
      await server.stop()
      fs.rmSync(base, { recursive: true, force: true })
    }
  })
})
