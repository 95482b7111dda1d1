import { strict as assert } from 'node:assert'
import fs from 'node:fs'
import path from 'node:path'
import { PGlite } from '@electric-sql/pglite'
import { vector as pgvector } from '@electric-sql/pglite-pgvector'
import { PGLiteSocketServer } from '@electric-sql/pglite-socket'
import { loadConfig } from '#config.ts'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { codeOf } from '#content/index/vectors/codes.ts'
import { buildVectorIndex, hasIndex, requireVectorIndex } from '#content/index/vectors/pgvector.ts'
import { cosineSimilarity } from '#content/index/vectors/scan.ts'
import { insertVectors, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { type Config, ConfigError } from '#core/base/config.ts'
import { createLog } from '#core/base/log.ts'
import type { Services } from '#core/base/services.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { MIGRATIONS, migrationNames, migrationStatements } from '#core/queues/breaking-migrations.ts'
import { startWeb } from '#web.ts'
import { seeded } from '../bench/knowledge-corpora.ts'
import { testEnvironment } from '../support/environment.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { forSuite } from '../support/suite.ts'
import { nearestTo } from './vectors-support.ts'

const DIMENSIONS = 64
const ROWS = 3000
const OTHERS = 40
const MANY = 'proj_many'
const FEW = 'proj_few'

/** The migrations on a PostgreSQL in WebAssembly with the extension; its protocol is spoken to by the driver as ever. */
async function startPglite(): Promise<{ url: string; close(): Promise<void> }> {
  const db = await PGlite.create({ extensions: { vector: pgvector } })
  for (const name of migrationNames())
    for (const statement of migrationStatements(name, fs.readFileSync(path.join(MIGRATIONS, `${name}.sql`), 'utf8'))
      .statements)
      await db.exec(statement)
  const server = new PGLiteSocketServer({ db, host: '127.0.0.1', port: 0, maxConnections: 10 })
  await server.start()
  return {
    url: `postgres://postgres:postgres@${server.getServerConn()}/postgres?sslmode=disable`,
    close: async () => {
      await server.stop()
      await db.close()
    },
  }
}

describe('vectors with pgvector', function () {
  this.timeout(120_000)
  const database = forSuite(startPglite)
  let pool: Pool
  let statements: string[]
  const { normal } = seeded(9)
  const scattered = (around?: Float32Array) => {
    const values = Float32Array.from({ length: DIMENSIONS }, (_, index) => (around?.[index] ?? 0) + normal() / 8)
    const length = Math.hypot(...values)
    return values.map(value => value / length)
  }
  const centres = Array.from({ length: 60 }, () => scattered())
  const vectors = Array.from({ length: ROWS }, (_, index) => scattered(centres[index % centres.length]))

  /** What the module needs of a process, with a given setting. */
  const services = (index: Config['KNOWLEDGE_VECTOR_INDEX']): Services =>
    ({
      config: loadConfig({
        ...testEnvironment(database.url),
        EMBEDDING_PROVIDER: 'local',
        EMBEDDING_DIMENSIONS: String(DIMENSIONS),
        KNOWLEDGE_VECTOR_INDEX: index,
      }),
      log: createLog({ level: 'silent' }),
      pool,
      state: new Map(),
    }) as Pick<Services, 'config' | 'log' | 'pool' | 'state'> as Services
  const near = async (by: Services, project: string, vector: Float32Array) => {
    statements.length = 0
    return nearestTo(by, { project, space: (await currentSpace(by)) as Space }, vector)
  }
  const asked = (operator: string) => statements.filter(text => text.includes(operator)).length

  before(async () => {
    statements = []
    pool = await openPool({
      databaseUrl: database.url,
      connections: 2,
      onRoundTrip: text => void statements.push(text),
    })
    for (const id of [MANY, FEW]) await pool.query(rawQuery('insert into projects (id, name) values ($1, $1)', [id]))
    const space = (await currentSpace(services('auto'))) as Space
    const rows = [...vectors.keys()].map(index => ({
      project_id: index < OTHERS ? FEW : MANY,
      source: VECTOR_SOURCES.document,
      container_id: 'doc_a',
      ref_id: `r${index}`,
      segment: 0,
      space_id: space.id,
      vector: vectors[index],
    }))
    for (let at = 0; at < ROWS; at += 500) await insertVectors(pool, rows.slice(at, at + 500))
  })
  after(async () => {
    await pool?.end()
  })

  it('does without the extension unless it is demanded', async () => {
    assert.equal(await buildVectorIndex(services('auto')), false)
    await requireVectorIndex(services('auto'))
    await assert.rejects(requireVectorIndex(services('pgvector')), ConfigError)
    const found = await near(services('auto'), MANY, vectors[50])
    assert.equal(found[0].ref_id, 'r50')
    assert.equal(asked('<~>'), 0)
    assert.equal(asked('bit_count'), 1)
  })

  it('builds one valid index for the space once the extension is there', async () => {
    await pool.query(rawQuery('create extension vector'))
    await requireVectorIndex(services('pgvector'))
    assert.equal(await buildVectorIndex(services('scan')), false)
    const by = services('auto')
    const space = (await currentSpace(by)) as Space
    assert.equal(await hasIndex(by, space), false)
    assert.equal(await buildVectorIndex(by), true)
    assert.equal(await hasIndex(by, space), true)
    assert.equal(await buildVectorIndex(by), false)
    const index = await pool.oneFirst(
      rawQuery(`select indexdef from pg_indexes where indexname = $1`, [`knowledge_vectors_hnsw_${space.id}`]),
    )
    assert.match(String(index), /hnsw .*bit\(2048\).*bit_hamming_ops.* WHERE \(space_id = \d+\)/)
  })

  it('finds nearly all of the exact ten by the index', async () => {
    const by = services('auto')
    let found = 0
    const questions = Array.from({ length: 30 }, (_, index) => scattered(centres[index]))
    for (const question of questions) {
      const exact = [...vectors.keys()]
        .slice(OTHERS)
        .sort((left, right) => cosineSimilarity(vectors[right], question) - cosineSimilarity(vectors[left], question))
        .slice(0, 10)
        .map(index => `r${index}`)
      const ten = (await near(by, MANY, question)).slice(0, 10).map(({ ref_id }) => ref_id)
      assert.equal(asked('<~>'), 1)
      assert.equal(asked('bit_count'), 0)
      found += exact.filter(id => ten.includes(id)).length
    }
    assert.ok(found / (10 * questions.length) >= 0.95, `recall ${found / (10 * questions.length)}`)
  })

  it('scans a project that is too small a part of the index, and is exact there', async () => {
    const by = services('pgvector')
    const question = scattered()
    const exact = [...vectors.keys()]
      .slice(0, OTHERS)
      .sort((left, right) => cosineSimilarity(vectors[right], question) - cosineSimilarity(vectors[left], question))
      .map(index => `r${index}`)
    assert.deepEqual(
      (await near(by, FEW, question)).map(({ ref_id }) => ref_id),
      exact,
    )
    assert.equal(asked('bit_count'), 1)
  })

  it('does not use the index when configured to scan', async () => {
    const found = await near(services('scan'), MANY, vectors[77])
    assert.equal(found[0].ref_id, 'r77')
    assert.equal(asked('<~>'), 0)
  })

  it('rebuilds an unfinished index', async () => {
    const by = services('auto')
    const space = (await currentSpace(by)) as Space
    await pool.query(
      rawQuery(
        `update pg_index set indisvalid = false where indexrelid = 'knowledge_vectors_hnsw_${space.id}'::regclass`,
      ),
    )
    assert.equal(await hasIndex(by, space), false)
    assert.equal(await buildVectorIndex(by), true)
    assert.equal(await hasIndex(by, space), true)
  })

  it('drops the index of a space that has no vectors any more', async () => {
    const by = services('auto')
    const [{ id }] = (await pool.any(
      rawQuery(
        `insert into embedding_spaces (provider, model, dimensions, code_version) values ('old', 'old', 64, 1) returning id`,
      ),
    )) as readonly any[]
    await pool.query(
      rawQuery(
        `create index knowledge_vectors_hnsw_${id} on knowledge_vectors using hnsw ((code::bit(2048)) bit_hamming_ops) where space_id = ${id}`,
      ),
    )
    await buildVectorIndex(by)
    assert.equal(await pool.oneFirst(rawQuery(`select to_regclass('knowledge_vectors_hnsw_${id}')`)), null)
  })

  it('has codes that the extension reads as ours', async () => {
    const [left, right] = [codeOf(vectors[1]), codeOf(vectors[2])]
    const row = await pool.one(
      rawQuery(
        'select ($1::bit varying)::bit(2048) <~> ($2::bit varying)::bit(2048) as theirs, bit_count($1::bit varying # $2::bit varying) as ours',
        [left, right],
      ),
    )
    assert.equal(Number((row as any).theirs), Number((row as any).ours))
  })
})

describe('a deployment that demands pgvector', () => {
  it('does not start without it, and says why', async () => {
    const clone = await cloneTemplate()
    try {
      const config = loadConfig({ ...testEnvironment(clone.url), KNOWLEDGE_VECTOR_INDEX: 'pgvector' })
      await assert.rejects(
        startWeb(config, createLog({ level: 'silent' })),
        /KNOWLEDGE_VECTOR_INDEX: pgvector requires the extension/,
      )
    } finally {
      await clone.drop()
    }
  })
})
