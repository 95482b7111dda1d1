import { strict as assert } from 'node:assert'
import { createHash } from 'node:crypto'
import { type CachedCodes, evictRows, nearestCodes } from '#content/index/vectors/code-cache.ts'
import { codeBits, codeOf, estimateCosines, hammingDistances } from '#content/index/vectors/codes.ts'
import { CODES_BYTES } from '#content/index/vectors/hamming-wasm.ts'
import { cosineSimilarity } from '#content/index/vectors/scan.ts'
import { insertVectors, type NewVector, removeVectors, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { fuseRankings } from '#content/knowledge/fuse.ts'
import { inTransaction } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { setForTransaction } from '#core/db/transaction-settings.ts'
import { anisotropic, isotropic, seeded, sparse, structureless } from '../bench/knowledge-corpora.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { nearestTo, unit, vectorOf } from './vectors-support.ts'

describe('codes of vectors', () => {
  // Computed from the definition by a program in another language, with matrices instead of the fast transform.
  const known = [
    [
      48,
      'f2bc7192966ca9858959ef450ed80ae226367888f5e41f85f578391b2aa2e7fe',
      'a0261ee06d974cb795729115bc6b071312067e195f3692910b7b0ed6edf6f45d',
    ],
    [
      300,
      'dea97013d147e9b5175dc1c3944ccf6be80f03498d6df24fa9ff51ecc10ab11d',
      '0acd4d3ac7ff167930cadc338a1503f737c5a66a42d348269c241aaf07977b45',
    ],
  ] as const
  for (const [dimensions, start, hash] of known) {
    it(`match the definition, for ${dimensions} dimensions`, () => {
      const code = codeOf(Float32Array.from({ length: dimensions }, (_, index) => Math.sin(index + 1)))
      assert.equal(code[0], 'x')
      assert.equal(code.slice(1, 65), start)
      assert.equal(createHash('sha256').update(code.slice(1)).digest('hex'), hash)
    })
  }
  it('have 2048 bits, above 2048 dimensions 4096', () => {
    for (const [dimensions, bits] of [
      [32, 2048],
      [1024, 2048],
      [1536, 2048],
      [2048, 2048],
      [2049, 4096],
      [4096, 4096],
    ]) {
      assert.equal(codeBits(dimensions), bits)
      assert.equal(codeOf(new Float32Array(dimensions).fill(1)).length, 1 + bits / 4)
    }
  })
  it('do not depend on the length of the vector', () => {
    const { normal } = seeded(1)
    const vector = Float32Array.from({ length: 1024 }, normal)
    assert.equal(codeOf(vector), codeOf(vector.map(value => value * 4)))
  })
  it('differ in as many bits as the angle says', () => {
    const { normal } = seeded(2)
    const a = unit(Float32Array.from({ length: 1024 }, normal))
    for (const share of [0.2, 1, 3]) {
      const b = unit(a.map(value => value + (share * normal()) / 32))
      const bits = BigInt(`0${codeOf(a)}`) ^ BigInt(`0${codeOf(b)}`)
      const different = bits.toString(2).replaceAll('0', '').length / 2048
      assert.ok(Math.abs(different - Math.acos(cosineSimilarity(a, b)) / Math.PI) < 0.04)
    }
  })
  describe('compared with a question', () => {
    const { uniform } = seeded(5)
    const random = (bytes: number) => Uint8Array.from({ length: bytes }, () => Math.floor(uniform() * 256))
    const plainDistance = (codes: Uint8Array, row: number, question: Uint8Array): number => {
      let ones = 0
      for (let byte = 0; byte < question.length; byte++)
        for (let bits = codes[row * question.length + byte] ^ question[byte]; bits > 0; bits &= bits - 1) ones++
      return ones
    }

    for (const dimensions of [1024, 4096]) {
      const bytes = codeBits(dimensions) / 8
      it(`differ as bit by bit, of ${bytes * 8} bits`, () => {
        const question = random(bytes)
        const inverse = question.map(byte => ~byte)
        // More than one comparison takes, no round number, and both extremes.
        const rows = CODES_BYTES / bytes + 1001
        const codes = random(rows * bytes)
        codes.set(question, 17 * bytes)
        codes.set(inverse, (rows - 1) * bytes)
        for (const [from, to] of [
          [0, rows],
          [1, 2],
          [rows - 3, rows],
          [5, 5],
        ]) {
          const distances = new Uint16Array(rows).fill(9)
          hammingDistances(codes, question, distances, { from, to })
          const expected = Uint16Array.from(distances, (_, row) =>
            row >= from && row < to ? plainDistance(codes, row, question) : 9,
          )
          assert.deepEqual(distances, expected)
        }
        assert.deepEqual([plainDistance(codes, 17, question), plainDistance(codes, rows - 1, question)], [0, bytes * 8])
      })
      it(`give the nearest as sorting all of them does, while rows come and go, of ${bytes * 8} bits`, async () => {
        const room = 9000
        const kept: CachedCodes = {
          scope: { project: '', space: { id: 0, dimensions }, source: 1 },
          snapshot: '',
          server: '',
          ids: new Float64Array(room),
          codes: new Uint8Array(room * bytes),
          bytes,
          rows: 0,
          hides: false,
        }
        for (let time = 0; time < 8; time++) {
          const added = Math.floor(uniform() * 1100)
          kept.codes.set(random(added * bytes), kept.rows * bytes)
          for (let row = kept.rows; row < kept.rows + added; row++) kept.ids[row] = row + 1
          kept.rows += added
          evictRows(
            kept,
            Array.from({ length: kept.rows / 10 }, () => Math.floor(uniform() * kept.rows)),
          )
          const question = random(bytes)
          const limit = [1, 100, 2000][time % 3]
          const left = Array.from({ length: kept.rows }, (_, row) => row).filter(row => kept.ids[row] !== 0)
          const distances = left.map(row => [plainDistance(kept.codes, row, question), row])
          distances.sort(([left, first], [right, second]) => left - right || first - second)
          const expected = distances.slice(0, limit).map(([, row]) => row)
          const found = await nearestCodes(kept, question, limit)
          assert.deepEqual(new Set(found), new Set(expected))
          assert.equal(found.length, expected.length)
        }
      })
    }
  })
  it('are estimated by adding what the question has where bits are set', () => {
    const { normal } = seeded(3)
    const question = unit(Float32Array.from({ length: 100 }, normal))
    const rows = Array.from({ length: 300 }, () => unit(Float32Array.from({ length: 100 }, normal)))
    const code = (vector: Float32Array) => Buffer.from(codeOf(vector).slice(1), 'hex')
    const estimated = estimateCosines(question, Buffer.concat(rows.map(code)), [...rows.keys()])
    assert.equal(estimated.length, 300)
    const ranked = rows.map((_, row) => row).sort((x, y) => estimated[y] - estimated[x])
    const exact = rows
      .map((_, row) => row)
      .sort((x, y) => cosineSimilarity(rows[y], question) - cosineSimilarity(rows[x], question))
    assert.ok(exact.slice(0, 10).every(row => ranked.slice(0, 30).includes(row)))
    // The question's own code gets the most any code can: the sum of what its coordinates are without their signs.
    const [own, opposite] = estimateCosines(
      question,
      Buffer.concat([code(rows[0]), code(question), code(question.map(value => -value))]),
      [1, 2],
    )
    assert.ok(own > 0 && Math.abs(own + opposite) < own / 100)
  })
})

describe('vectors in the database', () => {
  const app = forSuite(startApp)
  let project: string
  let space: { id: number; dimensions: number }
  const DIMENSIONS = 64
  const { normal } = seeded(4)
  const scattered = () => unit(Float32Array.from({ length: DIMENSIONS }, normal))
  const row = (ref_id: string, vector: Float32Array, more?: Partial<NewVector>) =>
    vectorOf({ project, space }, ref_id, vector, more)
  const insert = (...all: NewVector[]) => insertVectors(app.pool, all)
  const near = (vector: Float32Array, more?: object) =>
    nearestTo(app.servicesOf(project), { project, space }, vector, more)
  const newSpace = async (dimensions: number) => {
    const [{ id }] = await app.rows(
      `insert into embedding_spaces (provider, model, dimensions, code_version) values ('p', gen_random_uuid()::text, $1, 1) returning id`,
      [dimensions],
    )
    return { id, dimensions }
  }
  beforeEach(async () => {
    project = (await app.project(undefined, project)).id
    space = await newSpace(DIMENSIONS)
  })

  it('are little-endian floats with their code, first bit leftmost', async () => {
    const vector = scattered()
    await insert(row('r1', vector))
    const [stored] = await app.rows(
      `select encode(vec, 'hex') as vec, code::text as code from knowledge_vectors where project_id = $1`,
      [project],
    )
    const expected = Buffer.alloc(4 * DIMENSIONS)
    for (const [index, value] of vector.entries()) expected.writeFloatLE(value, index * 4)
    assert.equal(stored.vec, expected.toString('hex'))
    assert.equal(
      stored.code,
      BigInt(`0${codeOf(vector)}`)
        .toString(2)
        .padStart(2048, '0'),
    )
  })
  it('are replaced when they are written again, and zero vectors are left out', async () => {
    const [first, second] = [scattered(), scattered()]
    await insert(row('r1', first), row('zero', new Float32Array(DIMENSIONS)))
    await insert(row('r1', second))
    await insert()
    const found = await near(second)
    assert.deepEqual(
      found.map(({ ref_id }) => ref_id),
      ['r1'],
    )
    assert.ok(Math.abs(found[0].cosine - 1) < 1e-6)
  })
  it('are exactly ranked where there are few, each row by its best segment', async () => {
    const question = scattered()
    const vectors = Array.from({ length: 300 }, scattered)
    await insert(...vectors.map((vector, index) => row(`r${String(index).padStart(3, '0')}`, vector)))
    await insert(row('r000', unit(question.map((value, index) => value + vectors[0][index] / 10)), { segment: 1 }))
    const exact = vectors
      .map((vector, index) => ({
        ref_id: `r${String(index).padStart(3, '0')}`,
        cosine: cosineSimilarity(vector, question),
      }))
      .sort((left, right) => right.cosine - left.cosine)
      .filter(({ ref_id }) => ref_id !== 'r000')
    const found = await near(question)
    assert.equal(found.length, 300)
    assert.equal(found[0].ref_id, 'r000')
    assert.deepEqual(
      found.slice(1).map(({ ref_id }) => ref_id),
      exact.map(({ ref_id }) => ref_id),
    )
  })
  it('rank equals by id', async () => {
    const vector = scattered()
    await insert(row('b', vector), row('a', vector), row('c', vector))
    assert.deepEqual(
      (await near(vector)).map(({ ref_id }) => ref_id),
      ['a', 'b', 'c'],
    )
  })
  it('are limited to the project, the space and the source of the search', async () => {
    const vector = scattered()
    const other = (await app.project(undefined, project)).id
    const elsewhere = await newSpace(DIMENSIONS)
    await insert(
      row('mine', vector),
      row('theirs', vector, { project_id: other }),
      row('old', vector, { space_id: elsewhere.id }),
      row('memory', vector, { source: VECTOR_SOURCES.memory }),
    )
    const ids = async (more: object) => (await near(vector, more)).map(({ ref_id }) => ref_id)
    assert.deepEqual(await ids({}), ['mine'])
    assert.deepEqual(await ids({ projects: [project, other] }), ['mine', 'theirs'])
    assert.deepEqual(await ids({ projects: null }), ['mine', 'theirs'])
    assert.deepEqual(await ids({ source: VECTOR_SOURCES.memory }), ['memory'])
    await app.rows('delete from projects where id = $1', [other])
    assert.deepEqual(await ids({ projects: null }), ['mine'])
  })
  it('are found among many by estimate before they are read', async () => {
    // Rows close to the question among thousands of others: more than are estimated.
    const question = scattered()
    const close = Array.from({ length: 10 }, () => unit(question.map(value => value + normal() / 16)))
    for (let at = 0; at < 5000; at += 500)
      await insert(...Array.from({ length: 500 }, (_, index) => row(`other${at + index}`, scattered())))
    await insert(...close.map((vector, index) => row(`close${index}`, vector)))
    const found = await near(question)
    assert.equal(found.length, 400)
    assert.deepEqual(
      found
        .slice(0, 10)
        .map(({ ref_id }) => ref_id)
        .sort(),
      close.map((_, index) => `close${index}`),
    )
    assert.equal((await near(question, { limit: 25 })).length, 1000)
    assert.equal((await near(question, { limit: 100 })).length, 2000)
  })
  it('are read until the nearest is known, where no other matters', async () => {
    const question = scattered()
    const close = (share: number) => unit(question.map(value => value + share * normal()))
    await insert(...Array.from({ length: 1000 }, (_, index) => row(`other${index}`, scattered())))
    assert.deepEqual((await near(question, { relevant: 0.9 }))[0], (await near(question))[0])
    await insert(row('near', close(1 / 16)), row('nearest', close(1 / 64)))
    const [first, second, ...others] = await near(question, { relevant: 0.9 })
    assert.deepEqual([first.ref_id, second.ref_id], ['nearest', 'near'])
    assert.equal(others.length, 98)
    // Rows that matter are read although the nearest is far before them.
    assert.equal((await near(question, { relevant: -0.5 })).length, 400)
  })
  it('have 4096 bits above 2048 dimensions', async () => {
    space = await newSpace(3000)
    const vectors = Array.from({ length: 500 }, () => unit(Float32Array.from({ length: 3000 }, normal)))
    await insert(...vectors.map((vector, index) => row(`r${index}`, vector)))
    const [first] = await near(vectors[7])
    assert.equal(first.ref_id, 'r7')
  })
  it('are removed by container or by row', async () => {
    const vector = scattered()
    await insert(row('a', vector), row('b', vector), row('c', vector, { container_id: 'doc_c' }))
    await removeVectors(app.pool, { source: VECTOR_SOURCES.document, ref_ids: ['a'] })
    assert.deepEqual(
      (await near(vector)).map(({ ref_id }) => ref_id),
      ['b', 'c'],
    )
    await removeVectors(app.pool, { container_id: 'doc_c' })
    assert.deepEqual(
      (await near(vector)).map(({ ref_id }) => ref_id),
      ['b'],
    )
  })
  it('are read from the index alone, and only the candidates from the table', async () => {
    for (let at = 0; at < 3000; at += 500)
      await insert(...Array.from({ length: 500 }, (_, index) => row(`r${at + index}`, scattered())))
    await app.pool.query(rawQuery('vacuum analyze knowledge_vectors'))
    app.statements.length = 0
    await near(scattered())
    const scan = app.statements.find(text => text.includes('bit_count')) as string
    const plan = await inTransaction(app.servicesOf(project).pool, async db => {
      await setForTransaction(db, { enable_seqscan: 'off', enable_bitmapscan: 'off', random_page_cost: '1' })
      const explained = await db.anyFirst(
        rawQuery(`explain ${scan}`, [codeOf(scattered()), project, space.id, VECTOR_SOURCES.document, 2000]),
      )
      return explained.join('\n')
    })
    assert.match(plan, /Index Only Scan using knowledge_vectors_scan/)
  })
})

describe('fusion of rankings', () => {
  const now = new Date('2026-06-01T00:00:00Z')
  const day = (days: number) => new Date(now.getTime() - days * 86_400_000)
  const keys = (...names: string[]) => names.map(key => ({ key }))
  const fused = (vector: string[], lexical: string[], more: Partial<Parameters<typeof fuseRankings>[1]> = {}) =>
    fuseRankings(
      { vector: keys(...vector), lexical: keys(...lexical) },
      { k: 60, halfLifeDays: 0, now, changedAt: new Map(), similarity: new Map(), ...more },
    )

  it('adds what each channel gives a rank', () => {
    assert.deepEqual(fused(['a', 'b'], ['b']), [
      { key: 'b', score: 1 / 62 + 1 / 61, signals: { vector: 2, lexical: 1 } },
      { key: 'a', score: 1 / 61, signals: { vector: 1 } },
    ])
    assert.equal(fused(['a'], [], { k: 0.5 })[0].score, 1 / 1.5)
  })
  it('puts an exact word before a likeness of the same score, and more channels before fewer', () => {
    assert.deepEqual(
      fused(['near'], ['word']).map(({ key }) => key),
      ['word', 'near'],
    )
    // 1 / 2 + 1 / 2 of two channels is the 1 of none; k = 1 and ranks 3 and 3 give 1 / 4 + 1 / 4 as rank 1 gives 1 / 2.
    const ranked = fused(['x', 'y', 'both'], ['w', 'v', 'both'], { k: 1 })
    assert.deepEqual(ranked.map(({ key }) => key).slice(0, 3), ['both', 'w', 'x'])
  })
  it('halves the score of older rows by its half-life, where age counts', () => {
    const changedAt = new Map([
      ['old', day(20)],
      ['new', day(0)],
      ['future', day(-5)],
    ])
    const ranked = fused(['old', 'doc', 'new', 'future'], [], { changedAt, halfLifeDays: 10 })
    const score = (name: string) => ranked.find(({ key }) => key === name)?.score
    assert.equal(score('old'), 1 / 61 / 4)
    assert.equal(score('doc'), 1 / 62)
    assert.equal(score('new'), 1 / 63)
    assert.equal(score('future'), 1 / 64)
    assert.equal(fused(['old'], [], { changedAt })[0].score, 1 / 61)
  })
  it('settles equal rows by cosine, then by id', () => {
    const changedAt = new Map([
      ['b', day(0)],
      ['a', day(0)],
      ['c', day(0)],
    ])
    const same = { changedAt, halfLifeDays: 1e-9, now: day(-400) }
    assert.deepEqual(
      fused(['b', 'a', 'c'], [], same).map(({ key }) => key),
      ['a', 'b', 'c'],
    )
    const similarity = new Map([
      ['c', 0.9],
      ['b', 0.1],
    ])
    assert.deepEqual(
      fused(['b', 'a', 'c'], [], { ...same, similarity }).map(({ key }) => key),
      ['c', 'b', 'a'],
    )
  })
})

describe('corpora of benchmarks', () => {
  for (const make of [isotropic, anisotropic, structureless, sparse]) {
    it(`leave the event loop turns while they are made: ${make.name}`, async () => {
      let turns = 0
      const count = () => {
        turns++
        turn = setImmediate(count)
      }
      let turn = setImmediate(count)
      const { rows } = await make({ rows: 1000, questions: 10, dimensions: 16 })
      clearImmediate(turn)
      assert.equal(rows.length, 1000)
      assert.ok(turns >= 9, `${turns} turns`)
    })
  }
})
