import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { insertTextDocument } from '#content/documents/store.ts'
import { localVector } from '#content/index/embeddings/local.ts'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { indexText } from '#content/index/words/index-text.ts'
import { newId } from '#core/base/ids.ts'
import { createLog } from '#core/base/log.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { client, startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { countStatements, start } from './http.ts'
import { postmaster, processorTime } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Texts of 2 KB that callers make documents of over HTTP, with web and worker in two processes and the built-in embedder
 * at 1,024 dimensions, next to the one insert of file, document, version, text, chunk and vector that this needs, from
 * this process, with vectors that were made before. Both in turns; the best round of each counts.
 */
const CALLERS = 8
const DIMENSIONS = 1024
const SIZE = 2000
const ROUND = 400
const ROUNDS = 3

export async function run(prose: (length: number, seed: number) => string): Promise<Row[]> {
  const settings = { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: String(DIMENSIONS) } as const
  const app = await startApp({ env: settings })
  const env = { ...testEnvironment(app.databaseUrl), ...settings, LOG_LEVEL: 'info', DATABASE_POOL_MAX: '20' }
  const services = await openServices(
    { ...app.config, EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: DIMENSIONS },
    { log: createLog({ level: 'silent' }), role: 'cli' },
  )
  const bare = await openPool({ databaseUrl: app.databaseUrl, connections: CALLERS })
  const space = (await currentSpace(services)) as Space
  const { key, id: project } = await app.project()
  let seed = 0
  const make = async (caller: typeof key) => {
    const { status, body } = await caller.post('/documents', { content: prose(SIZE, seed++) })
    if (body.status !== 'ready') throw new Error(`a document was answered ${status}: ${JSON.stringify(body)}`)
  }
  const trips = await roundTrips(() => make(key))
  const web = await start('src/web.ts', env)
  const worker = await start('jobs/worker.ts', env)
  web.child.stdout?.resume()
  worker.child.stdout?.resume()
  try {
    const remote = client(web.url, key.token)
    const ours = () => atOnce(() => make(remote))
    const theirs = () => {
      const texts = Array.from({ length: ROUND }, () => prose(SIZE, seed++))
      const vectors = texts.map(text => localVector(text, DIMENSIONS))
      return atOnce(n => insert(bare, space, project, texts[n], vectors[n]))
    }
    await ours()
    await theirs()
    const db = new pg.Client(app.databaseUrl)
    await db.connect()
    const server = await postmaster(db)
    await db.end()
    const used = () => [
      processorTime(web.child.pid as number),
      processorTime(worker.child.pid as number),
      processorTime(server, { children: true }),
    ]
    const rates: { ours: number; theirs: number; used: number[] }[] = []
    for (let round = 0; round < ROUNDS; round++) {
      const before = used()
      const rate = await ours()
      // Work of the worker after them counts.
      await sleep(1000)
      const each = used().map((total, n) => (total - before[n]) / ROUND)
      rates.push({ ours: rate, theirs: await theirs(), used: each })
    }
    const [a, b] = [Math.max(...rates.map(({ ours }) => ours)), Math.max(...rates.map(({ theirs }) => theirs))]
    const [webMs, workerMs, databaseMs] = [0, 1, 2].map(n => Math.min(...rates.map(({ used }) => used[n])))
    return [
      {
        what: `inline text documents of 2 KB, ${CALLERS} callers`,
        value: Math.round(a),
        unit: '1/s',
        target: '>= 150',
        note: `processor time a document: web ${webMs.toFixed(1)}, worker ${workerMs.toFixed(1)}, database ${databaseMs.toFixed(1)} ms`,
      },
      {
        what: 'inline text documents: share of the floor',
        value: Number((a / b).toFixed(2)),
        unit: 'x',
        note: `${Math.round(a)}/s against ${Math.round(b)}/s`,
      },
      { what: 'inline text documents: round trips', value: trips, unit: '', target: '<= 4' },
    ]
  } finally {
    web.child.kill('SIGKILL')
    worker.child.kill('SIGKILL')
    await bare.end()
    await services.close()
    await app.close()
  }
}

/** Does `ROUND` calls, one per caller at a time; how many a second. */
async function atOnce(work: (n: number) => Promise<unknown>): Promise<number> {
  let next = 0
  const started = performance.now()
  await Promise.all(
    Array.from({ length: CALLERS }, async () => {
      while (next < ROUND) await work(next++)
    }),
  )
  return (ROUND * 1000) / (performance.now() - started)
}

/** The rows of a document, one statement. */
function insert(db: Pool, space: Space, project_id: string, text: string, vector: Float32Array): Promise<unknown> {
  const id = newId('doc')
  const file_id = newId('file')
  const sha256 = createHash('sha256').update(text).digest()
  const size = Buffer.byteLength(text)
  const shared = { project_id, path: `/${id}.txt`, filename: `${id}.txt`, content_type: 'text/plain', size }
  return insertTextDocument(
    db,
    {
      file: { ...shared, id: file_id, sha256, storage: 'text', location: null, metadata: null, tags: {} },
      row: {
        ...shared,
        id,
        file_id,
        kind: 'document',
        status: 'ready',
        title: null,
        metadata: null,
        tags: {},
        chunk_strategy: 'whole',
        chunk_unit: null,
        chunk_size: null,
        chunk_overlap: null,
        chunk_count: 1,
        embedded_chunks: 1,
        total_chunks: 1,
      },
      text,
      created_by: { type: 'system', id: null },
    },
    [
      {
        id: newId('dchunk'),
        chunk_index: 0,
        page_number: null,
        char_start: 0,
        char_end: text.length,
        content: text,
        words: indexText(text),
        context: null,
        vectors: [vector],
      },
    ],
    { space, textSearchConfig: 'simple' },
  )
}

/** Statements of one document, begin and commit included. */
async function roundTrips(make: () => Promise<void>): Promise<number> {
  const counts: number[] = []
  for (let n = 0; n < 9; n++) {
    const count = countStatements()
    await make()
    count.stop()
    counts.push(count.value)
  }
  return counts.sort((a, b) => a - b)[4]
}
