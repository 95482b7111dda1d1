import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { insertChunks, type NewChunk } from '#content/index/chunks/store.ts'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { newId } from '#core/base/ids.ts'
import { createLog } from '#core/base/log.ts'
import { openPool, type Pool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { startApp, type TestApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { pdf } from '../support/pdf.ts'
import { start } from './http.ts'
import { run as inlineDocuments } from './inline-documents.ts'
import type { Row } from './rows.ts'

/**
 * Files that become documents through one worker process with the built-in embedder at 1,024 dimensions, next to the bare
 * statements that insert the rows it has made: texts, chunks with their words, vectors, events.
 * Usage: node test/bench/ingestion.ts
 */
const DIMENSIONS = 1024
const CONCURRENCY = 10
const WORDS =
  'the of harbour and to river in that letter was his bridge he it with is for council as had you not winter be her on at by which have or from this engine him but all she they were my are me one their so an said them we who would been will no when there if more out up'.split(
    ' ',
  )

/** Prose of `length` characters, another one for every seed. */
function prose(length: number, seed: number): string {
  let state = seed + 1
  let text = ''
  while (text.length < length) {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0
    text += `${WORDS[(state >>> 8) % WORDS.length]}${state % 13 === 0 ? `${state % 997}` : ''}${state % 11 === 0 ? '. ' : ' '}`
  }
  return text.slice(0, length)
}

type Case = { what: string; of: 'documents' | 'chunks'; files: Buffer[]; content_type: string; fields: object }

const CASES: Case[] = [
  {
    what: 'texts of 500 characters',
    of: 'documents',
    files: Array.from({ length: 1500 }, (_, n) => Buffer.from(prose(500, n))),
    content_type: 'text/plain',
    fields: {},
  },
  {
    what: 'chunks of 1,000 characters, 200 a document',
    of: 'chunks',
    files: Array.from({ length: 50 }, (_, n) => Buffer.from(prose(200_000, n))),
    content_type: 'text/plain',
    fields: { chunk_strategy: 'size', chunk_size: 1000, chunk_overlap: 0 },
  },
  {
    what: 'PDFs of 20 pages with 2,000 characters each',
    of: 'documents',
    files: Array.from({ length: 200 }, (_, n) =>
      pdf(
        Array.from({ length: 20 }, (_, page) => prose(2000, n * 20 + page).replaceAll(/(.{80}) /g, '$1\n')),
        { compress: true },
      ),
    ),
    content_type: 'application/pdf',
    fields: {},
  },
]

export async function run(): Promise<Row[]> {
  const app = await startApp()
  const settings = { EMBEDDING_PROVIDER: 'local' as const, EMBEDDING_DIMENSIONS: DIMENSIONS }
  const env = {
    ...testEnvironment(app.databaseUrl),
    EMBEDDING_PROVIDER: 'local',
    EMBEDDING_DIMENSIONS: String(DIMENSIONS),
    WORKER_CONCURRENCY: String(CONCURRENCY),
    PROJECT_WORKER_SHARE: '1',
    DATABASE_POOL_MAX: '20',
  }
  const services = await openServices(
    { ...app.config, ...settings },
    { log: createLog({ level: 'silent' }), role: 'cli' },
  )
  const bare = await openPool({ databaseUrl: app.databaseUrl, connections: CONCURRENCY })
  const space = (await currentSpace(services)) as Space
  const rows: Row[] = await inlineDocuments(prose)
  try {
    for (const each of CASES) {
      const ids = await admitted(app, each)
      const worker = await start('jobs/worker.ts', env, ['ingestion'])
      worker.child.stdout?.resume()
      const ours = await throughput(bare, ids, each.of)
      worker.child.kill('SIGTERM')
      await once(worker.child, 'exit')
      const theirs = await floor(bare, space, ids, each.of)
      rows.push({
        what: `${each.what}: share of the floor`,
        value: Number((ours / theirs).toFixed(2)),
        unit: 'x',
        note: `${Math.round(ours)} ${each.of}/s against ${Math.round(theirs)}/s`,
      })
    }
  } finally {
    await bare.end()
    await services.close()
    await app.close()
  }
  return rows
}

/** Uploads the files of a case and requests their ingestion, while no worker runs. */
async function admitted(app: TestApp, { files, content_type, fields }: Case): Promise<string[]> {
  const { key } = await app.project()
  const ids: string[] = []
  const admit = async (bytes: Buffer, n: number) => {
    const file = await key.post('/files/upload/base64', {
      content: bytes.toString('base64'),
      filename: `${n}`,
      content_type,
    })
    const { status, body } = await key.post('/documents/ingest', { file_id: file.body.id, ...fields })
    if (status !== 202) throw new Error(`an ingestion was answered ${status}: ${JSON.stringify(body)}`)
    ids.push(body.id)
  }
  await atOnce(files, admit)
  return ids
}

/** Calls `work` for every item, with the concurrency of the worker. */
async function atOnce<T>(items: readonly T[], work: (item: T, index: number) => Promise<unknown>): Promise<void> {
  const left = items.map((item, index) => ({ item, index }))
  await Promise.all(
    Array.from({ length: CONCURRENCY }, async () => {
      for (let next = left.shift(); next; next = left.shift()) await work(next.item, next.index)
    }),
  )
}

/** Documents or chunks a second, from the first document that is ready to the last. */
async function throughput(pool: Pool, ids: string[], of: Case['of']): Promise<number> {
  for (;;) {
    const { left, failed, seconds, documents, chunks } = (await pool.one(sql.unsafe`
      select count(*) filter (where status in ('pending', 'processing')) as left,
        count(*) filter (where status = 'failed') as failed, count(*) as documents, sum(chunk_count) as chunks,
        extract(epoch from max(updated_at) - min(updated_at))::float8 as seconds
      from documents where id = any(${sql.array(ids, 'text')})`)) as Record<string, number>
    if (failed > 0) throw new Error(`${failed} documents failed`)
    if (left === 0) return (of === 'chunks' ? chunks : documents) / seconds
    await sleep(500)
  }
}

type Made = { id: string; project_id: string; content: string; chunks: NewChunk[] }

/** Reads what the worker has made of some documents, removes it, and inserts it again without anything around it. */
async function floor(pool: Pool, space: Space, ids: string[], of: Case['of']): Promise<number> {
  const documents: Made[] = []
  await atOnce(ids, async id => {
    const document = (await pool.one(sql.unsafe`
      select d.id, d.project_id, t.content from documents d join document_texts t on t.document_id = d.id
      where d.id = ${id}`)) as Omit<Made, 'chunks'>
    const chunks = (await pool.any(sql.unsafe`
      select c.id, c.chunk_index, c.page_number, c.char_start, c.char_end, c.content, c.context, v.vec
      from document_chunks c join knowledge_vectors v on v.ref_id = c.id and v.source = 1
      where c.document_id = ${id} order by c.chunk_index`)) as unknown as (NewChunk & { vec: Buffer })[]
    documents.push({
      ...document,
      chunks: chunks.map(({ vec, ...chunk }) => ({
        ...chunk,
        vectors: [new Float32Array(new Uint8Array(vec).buffer)],
      })),
    })
    await pool.query(sql.unsafe`delete from knowledge_vectors where container_id = ${id}`)
    await pool.query(sql.unsafe`delete from document_chunks where document_id = ${id}`)
    await pool.query(sql.unsafe`delete from document_texts where document_id = ${id}`)
  })
  const started = performance.now()
  await atOnce(documents, ({ id, project_id, content, chunks }) =>
    pool.transaction(async tx => {
      await tx.query(sql.unsafe`insert into document_texts (document_id, content) values (${id}, ${content})`)
      for (let from = 0; from < chunks.length; from += 64) {
        await insertChunks(tx, { project_id, document_id: id, search_language: null }, chunks.slice(from, from + 64), {
          space,
          textSearchConfig: 'simple',
        })
      }
      await tx.query(sql.unsafe`update documents set status = 'ready', updated_at = now() where id = ${id}`)
      await tx.query(sql.unsafe`
        insert into events (id, project_id, name, resource_type, resource_id, envelope, created_at, dispatched_at)
        values (${newId('evt')}, ${project_id}, 'documents.ingested', 'document', ${id}, '{}', now(), now())`)
    }),
  )
  const seconds = (performance.now() - started) / 1000
  return (of === 'chunks' ? documents.flatMap(({ chunks }) => chunks).length : documents.length) / seconds
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
