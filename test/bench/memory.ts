import { setTimeout as sleep } from 'node:timers/promises'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { insertVectors } from '#content/index/vectors/store.ts'
import { newId } from '#core/base/ids.ts'
import { createLog } from '#core/base/log.ts'
import { sql } from '#core/db/sql.ts'
import { type OpenServices, openServices } from '#core/services/lifecycle.ts'
import { contentHash } from '#memory/facts/hash.ts'
import { memoryVectorRows } from '#memory/facts/store.ts'
import { client, startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { start } from './http.ts'
import { loadDocuments } from './knowledge.ts'
import { type Corpus, sparse } from './knowledge-corpora.ts'
import type { Row } from './rows.ts'

/**
 * Memory at 100,000 memories in one store next to 100,000 chunks of documents with the same texts, 1,024 dimensions and the built-in embedder:
 * how long a search over both and a write that is compared with all of them take.
 * Usage: node test/bench/run.ts memory
 */
const DIMENSIONS = 1024
const ROWS = 100_000
const BATCH = 500
const REQUESTS = 200
const WARM = 20

export async function run(): Promise<Row[]> {
  const app = await startApp()
  const settings = { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: String(DIMENSIONS), DATABASE_POOL_MAX: '20' }
  const services = await openServices(
    { ...app.config, EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: DIMENSIONS },
    { log: createLog({ level: 'silent' }), role: 'cli' },
  )
  const rows: Row[] = []
  try {
    const space = (await currentSpace(services)) as Space
    const texts = await sparse({ rows: ROWS, questions: 100, dimensions: DIMENSIONS })
    const project = await app.project()
    const store = (await project.key.post('/memory-stores', { name: 'facts' })).body.id as string
    await loadDocuments(services, space, project.id, texts, ROWS)
    await loadMemories(services, space, { project_id: project.id, memory_store_id: store }, texts)
    await services.pool.query(sql.unsafe`vacuum analyze`)
    const web = await start('src/web.ts', { ...testEnvironment(app.databaseUrl), ...settings, LOG_LEVEL: 'info' })
    web.child.stdout?.resume()
    try {
      const key = client(web.url, project.key.token as string)
      const questions = texts.questionTexts as string[]
      // The first two of each scan, and have the codes read.
      const measure = async (ask: (index: number) => Promise<void>) => {
        const times: number[] = []
        for (let index = 0; index < REQUESTS + WARM; index++) {
          if (index === 3) await sleep(3000)
          const started = performance.now()
          await ask(index)
          if (index >= WARM) times.push(performance.now() - started)
        }
        return times.sort((left, right) => left - right)
      }
      const search = await measure(async index => {
        const query = `${questions[index % questions.length]} ${index}`
        const { status, body } = await key.post('/knowledge/search', { query })
        if (status !== 200 || body.results.length !== 10) throw new Error(JSON.stringify(body).slice(0, 500))
      })
      rows.push(latency('search among 100,000 memories and 100,000 chunks', search, '< 50'))
      const write = await measure(async index => {
        const content = `${questions[index % questions.length]} ${index} ${questions[(index * 7) % questions.length]}`
        const { status, body } = await key.post('/memory-entries', { memory_store_id: store, content })
        if (status > 201 || body.similarity === null) throw new Error(JSON.stringify(body).slice(0, 500))
      })
      rows.push(latency('write of a fact into a store of 100,000', write, '< 30'))
      const small = (await key.post('/memory-stores', { name: 'small' })).body.id as string
      const beside = await measure(async index => {
        const content = `${questions[index % questions.length]} ${index}`
        const { status } = await key.post('/memory-entries', { memory_store_id: small, content })
        if (status > 201) throw new Error(`answered ${status}`)
      })
      rows.push(latency('write into a small store beside it', beside))
    } finally {
      web.child.kill('SIGTERM')
    }
  } finally {
    await services.close()
    await app.close()
  }
  return rows
}

const latency = (what: string, times: readonly number[], target?: string): Row => ({
  what: `${what}, p50`,
  value: Number(times[Math.floor(times.length / 2)].toFixed(1)),
  unit: 'ms',
  ...(target ? { target } : {}),
  note: `p95 ${times[Math.floor(times.length * 0.95)].toFixed(1)} ms; one request at a time`,
})

/** Memories by the statements that write their words and vectors, some hundred concurrently. */
export async function loadMemories(
  services: OpenServices,
  space: Space,
  of: { project_id: string; memory_store_id: string },
  corpus: Corpus,
): Promise<void> {
  const texts = corpus.texts as string[]
  for (let from = 0; from < texts.length; from += BATCH) {
    const batch = texts.slice(from, from + BATCH).map((content, index) => ({
      id: newId('mem'),
      content,
      vector: corpus.rows[from + index],
    }))
    await services.write(async tx => {
      await tx.query(sql.unsafe`
        insert into memories (id, project_id, memory_store_id, content, content_hash, source_type, embedded, space_id, tsv,
          tsv_config)
        select m.id, ${of.project_id}, ${of.memory_store_id}, m.content, decode(m.hash, 'hex'), 'manual', true,
          ${space.id}::int, to_tsvector('simple', m.content) || array_to_tsvector(array['~p' || ${of.project_id}]), 'simple/2'
        from ${sql.unnest(
          batch.map(({ id, content }) => [id, content, contentHash(content)]),
          ['text', 'text', 'text'],
        )} as m (id, content, hash)`)
      await insertVectors(
        tx,
        batch.flatMap(({ id, vector }) => memoryVectorRows({ id, actor_id: null, ...of }, [vector], space)),
      )
    })
  }
}
