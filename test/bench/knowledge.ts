import { setTimeout as sleep } from 'node:timers/promises'
import { insertChunks, type NewChunk } from '#content/index/chunks/store.ts'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { codeOf } from '#content/index/vectors/codes.ts'
import { cosineSimilarity, nearestRows } from '#content/index/vectors/scan.ts'
import { insertVectors, type NewVector, VECTOR_SOURCES } from '#content/index/vectors/store.ts'
import { indexText } from '#content/index/words/index-text.ts'
import { newId } from '#core/base/ids.ts'
import { createLog } from '#core/base/log.ts'
import { sql } from '#core/db/sql.ts'
import { type OpenServices, openServices } from '#core/services/lifecycle.ts'
import { client, startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase } from '../support/postgres.ts'
import { costRows, dbosProgram, floorProgram, postTo } from './costs.ts'
import { memory, start } from './http.ts'
import { anisotropic, type Corpus, isotropic, sparse, structureless } from './knowledge-corpora.ts'
import { loopHolds, underLoad } from './knowledge-load.ts'
import { median, percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Knowledge search at 100,000 chunks a corpus, 1,024 dimensions, the built-in embedder and no extension: how much of the
 * exact answer the codes find, how long a request takes, and what a chunk costs.
 * Usage: node test/bench/run.ts knowledge
 */
const DIMENSIONS = 1024
const ROWS = 100_000
const QUESTIONS = 100
const BATCH = 500
const DOCUMENT_CHUNKS = 10
const REQUESTS = 200
/** Vectors that a search of the floor reads. */
const SCANNED = 400

export async function run(): Promise<Row[]> {
  const app = await startApp()
  const env = {
    ...testEnvironment(app.databaseUrl),
    EMBEDDING_PROVIDER: 'local',
    EMBEDDING_DIMENSIONS: String(DIMENSIONS),
    DATABASE_POOL_MAX: '20',
  }
  // As deployed: rows are not checked against their types.
  const services = await openServices(
    { ...app.config, EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: DIMENSIONS },
    { log: createLog({ level: 'silent' }), role: 'cli' },
  )
  const space = (await currentSpace(services)) as Space
  const rows: Row[] = []
  try {
    const size = { rows: ROWS, questions: QUESTIONS, dimensions: DIMENSIONS }
    const recalls: number[] = []
    for (const make of [isotropic, anisotropic, structureless]) {
      const corpus = await make(size)
      const project = await app.project()
      await loadVectors(services, space, project.id, corpus)
      const recall = await recallOf(services, space, project.id, corpus)
      if (make !== structureless) recalls.push(recall.mean)
      rows.push(recallRow(corpus.name, recall, make === structureless ? undefined : '>= 0.95'))
      await services.pool.query(sql.unsafe`truncate knowledge_vectors`)
    }
    const texts = await sparse(size)
    const projects: { count: number; id: string; token: string }[] = []
    for (const count of [1000, 10_000, ROWS]) {
      const project = await app.project()
      await loadDocuments(services, space, project.id, texts, count)
      projects.push({ count, id: project.id, token: project.key.token as string })
    }
    await services.pool.query(sql.unsafe`vacuum analyze`)
    const recall = await recallOf(services, space, projects[2].id, texts)
    recalls.push(recall.mean)
    rows.push(recallRow(texts.name, recall, '>= 0.95'))
    // The first two searches scan, and have the codes read.
    await recallOf(services, space, projects[2].id, { ...texts, questions: texts.questions.slice(0, 2) }, true)
    await sleep(3000)
    const kept = await recallOf(services, space, projects[2].id, texts, true)
    rows.push(recallRow(`${texts.name}, kept in the process`, kept, '>= 0.95'))
    rows.push({
      what: 'recall@10, mean of the three corpora with structure',
      value: rounded(recalls.reduce((sum, value) => sum + value, 0) / recalls.length, 4),
      unit: '',
      target: '>= 0.98',
    })
    rows.push(...(await costsOfSearch(env, projects[1], texts)))
    rows.push(...(await underLoad(app, env, { project: projects[1].id, questions: texts.questionTexts as string[] })))
    rows.push(...(await loopHolds()))
    const medians: number[] = []
    let web = await start('src/web.ts', { ...env, LOG_LEVEL: 'info' })
    web.child.stdout?.resume()
    try {
      for (const { count, token } of projects) {
        const times = await latencies(client(web.url, token), texts.questionTexts as string[])
        medians.push(median(times))
        rows.push(latencyRow(`search among ${count.toLocaleString('en')} chunks`, times, count === ROWS))
      }
      rows.push({ what: 'memory of web after these', value: await memory(web.child), unit: 'MiB' })
      rows.push(await ingestion(client(web.url, (await app.project()).key.token), texts.texts as string[]))
      rows.push({
        what: 'p50 at 100,000 against 10,000 chunks',
        value: rounded(medians[2] / medians[1]),
        unit: 'x',
        note: `at 10,000 against 1,000: ${rounded(medians[1] / medians[0])} x`,
      })
    } finally {
      web.child.kill('SIGTERM')
    }
    web = await start('src/web.ts', { ...env, LOG_LEVEL: 'info', KNOWLEDGE_CODE_CACHE_BYTES: '0' })
    web.child.stdout?.resume()
    try {
      const times = await latencies(client(web.url, projects[2].token), texts.questionTexts as string[])
      rows.push(latencyRow(`the same by a scan, ${ROWS.toLocaleString('en')} chunks`, times, false))
    } finally {
      web.child.kill('SIGTERM')
    }
    rows.push(...(await sizes(services)))
  } finally {
    await services.close()
    await app.close()
  }
  return rows
}

/** What a search by words and meaning costs. */
async function costsOfSearch(
  env: Record<string, string>,
  { id, token, count }: { id: string; token: string; count: number },
  { questions, questionTexts = [] }: Corpus,
): Promise<Row[]> {
  let searches = 0
  return costRows(
    `search among ${count.toLocaleString('en')} chunks`,
    {
      processes: { web: { script: 'src/web.ts' } },
      env,
      // Never the same twice, so that no embedding is cached.
      call: url =>
        postTo(
          `${url}/api/v1/knowledge/search`,
          { query: `${questionTexts[searches % questionTexts.length]} ${searches++}` },
          token,
        ),
    },
    {
      'bare scan': floorProgram(env, url =>
        postTo(`${url}/search`, {
          project_id: id,
          code: codeOf(questions[searches++ % questions.length]),
          limit: SCANNED,
        }),
      ),
      'DBOS, one step': dbosProgram({ DATABASE_URL: await createDatabase() }, '/step'),
    },
  )
}

/** Vectors alone, as the recall of the scan needs no texts. */
async function loadVectors(services: OpenServices, space: Space, projectId: string, corpus: Corpus): Promise<void> {
  for (let at = 0; at < corpus.rows.length; at += BATCH) {
    const batch = corpus.rows.slice(at, at + BATCH).map(
      (vector, index): NewVector => ({
        project_id: projectId,
        source: VECTOR_SOURCES.document,
        container_id: `doc_${Math.floor((at + index) / DOCUMENT_CHUNKS)}`,
        ref_id: String(at + index),
        segment: 0,
        space_id: space.id,
        vector,
      }),
    )
    await insertVectors(services.pool, batch)
  }
  await services.pool.query(sql.unsafe`vacuum analyze knowledge_vectors`)
}

/** Ready documents of ten chunks each, by the statements that write them. */
export async function loadDocuments(
  services: OpenServices,
  space: Space,
  projectId: string,
  corpus: Corpus,
  count: number,
): Promise<void> {
  const texts = corpus.texts as string[]
  for (let at = 0; at < count; at += DOCUMENT_CHUNKS) {
    const ids = { file: newId('file'), document: newId('doc') }
    const chunks = texts.slice(at, at + DOCUMENT_CHUNKS).map(
      (content, index): NewChunk => ({
        id: newId('dchunk'),
        chunk_index: index,
        page_number: null,
        char_start: 0,
        char_end: content.length,
        content,
        words: indexText(content),
        context: null,
        vectors: [corpus.rows[at + index]],
      }),
    )
    await services.write(async tx => {
      await tx.query(sql.unsafe`
        with f as (
          insert into files (id, project_id, path, filename) values (${ids.file}, ${projectId}, ${`/${at}.txt`}, ${`${at}.txt`})
          returning id, project_id, path, filename
        )
        insert into documents (id, project_id, file_id, status, path, filename, content_type, size, chunk_strategy,
          total_chunks)
        select ${ids.document}, project_id, id, 'ready', path, filename, 'text/plain', 0, 'page', ${chunks.length} from f`)
      await insertChunks(tx, { project_id: projectId, document_id: ids.document, search_language: null }, chunks, {
        space,
        textSearchConfig: 'simple',
      })
    })
  }
}

type Recall = { mean: number; least: number }

/** The share of the exact ten nearest that a search for ten finds. */
async function recallOf(
  services: OpenServices,
  space: Space,
  projectId: string,
  corpus: Corpus,
  whole = false,
): Promise<Recall> {
  const found: number[] = []
  for (const question of corpus.questions) {
    const exact = nearestTen(corpus.rows, question)
    const near = await nearestRows(services, {
      projects: [projectId],
      space,
      source: VECTOR_SOURCES.document,
      filter: null,
      vector: question,
      limit: 10,
      whole,
    })
    // By cosine, so that rows of equal distance stand for each other.
    const least = exact[9] - 1e-6
    found.push(near.slice(0, 10).filter(row => row.cosine >= least).length / 10)
  }
  return { mean: found.reduce((sum, value) => sum + value, 0) / found.length, least: Math.min(...found) }
}

/** The ten greatest cosines, greatest first. */
function nearestTen(rows: readonly Float32Array[], question: Float32Array): number[] {
  const best: number[] = []
  for (const row of rows) {
    const near = cosineSimilarity(row, question)
    if (best.length === 10 && near <= best[9]) continue
    best.push(near)
    best.sort((left, right) => right - left)
    best.length = Math.min(10, best.length)
  }
  return best
}

const recallRow = (name: string, { mean, least }: Recall, target: string | undefined): Row => ({
  what: `recall@10 of codes, ${name}`,
  value: rounded(mean, 4),
  unit: '',
  ...(target ? { target } : {}),
  note: `${QUESTIONS} questions, worst ${least}`,
})

const latencyRow = (what: string, times: readonly number[], gated: boolean): Row => ({
  what: `${what}, p50`,
  value: rounded(median(times)),
  unit: 'ms',
  ...(gated ? { target: '< 40' } : {}),
  note: `p95 ${rounded(percentile(times, 0.95))} ms; one request at a time`,
})

async function latencies(by: ReturnType<typeof client>, questions: readonly string[]): Promise<number[]> {
  const times: number[] = []
  for (let index = 0; index < REQUESTS + 20; index++) {
    // Never the same twice, so that no embedding is remembered.
    const query = `${questions[index % questions.length]} ${index}`
    const started = performance.now()
    const answer = await by.post('/knowledge/search', { query })
    const ms = performance.now() - started
    if (answer.status !== 200 || answer.body.results.length !== 10)
      throw new Error(`search answered ${answer.status}: ${JSON.stringify(answer.body).slice(0, 500)}`)
    if (index >= 20) times.push(ms)
  }
  return times.sort((left, right) => left - right)
}

/** Documents of a hundred chunks each, cut, embedded and stored in the request, one after the other. */
async function ingestion(by: ReturnType<typeof client>, texts: readonly string[]): Promise<Row> {
  const documents = 20
  const started = performance.now()
  let chunks = 0
  for (let index = 0; index < documents; index++) {
    const content = texts
      .slice(index * 100, index * 100 + 100)
      .join(' ')
      .slice(0, 100_000)
    const answer = await by.post('/documents', { content, chunk_strategy: 'size', chunk_size: 1000, chunk_overlap: 0 })
    if (answer.status !== 201) throw new Error(`a document was answered ${answer.status}`)
    chunks += answer.body.chunk_count
  }
  const seconds = (performance.now() - started) / 1000
  return {
    what: 'chunks of 1,000 characters written a second, built-in embedder',
    value: Math.round(chunks / seconds),
    unit: '/s',
    note: `${chunks} chunks in ${documents} documents, one request at a time`,
  }
}

/** Bytes on disk for each chunk, indexes included. */
async function sizes(services: OpenServices): Promise<Row[]> {
  const parts = (await services.pool.one(sql.unsafe`
    select (select count(*) from document_chunks) as chunks,
      pg_table_size('knowledge_vectors') as vectors, pg_relation_size('knowledge_vectors_scan') as scan,
      pg_indexes_size('knowledge_vectors') as vector_indexes, pg_table_size('document_chunks') as texts,
      pg_indexes_size('document_chunks') as text_indexes,
      (select sum(octet_length(content)) from document_chunks) as content`)) as Record<string, number>
  const each = (bytes: number) => Math.round(bytes / parts.chunks)
  return [
    {
      what: 'bytes a chunk: vector and code',
      value: each(parts.vectors + parts.vector_indexes),
      unit: 'B',
      note: `table ${each(parts.vectors)}, scan index ${each(parts.scan)}, other indexes ${each(parts.vector_indexes - parts.scan)}`,
    },
    {
      what: 'bytes a chunk: text and words',
      value: each(parts.texts + parts.text_indexes),
      unit: 'B',
      note: `of ${each(parts.content)} of text; table ${each(parts.texts)}, indexes ${each(parts.text_indexes)}`,
    },
  ]
}
