import pg from 'pg'
import { insertChunks, type NewChunk } from '#content/index/chunks/store.ts'
import { indexText } from '#content/index/words/index-text.ts'
import { newId } from '#core/base/ids.ts'
import { sql } from '#core/db/sql.ts'
import { client, startApp, type TestApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { start } from './http.ts'
import { seeded, sparse } from './knowledge-corpora.ts'
import { LANGUAGES, labelledSet, qualityOfSet, searchLanguageOf, setSearch, writeSet } from './languages.ts'
import { median, percentile, postmaster, processorTime, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Searches by words in several languages: recall over labelled questions, and size and time for texts in scripts with and
 * without spaces.
 * Usage: node test/bench/run.ts knowledge-languages
 */
const ROWS = 20_000
const REQUESTS = 200

export async function run(): Promise<Row[]> {
  const app = await startApp({ env: { EMBEDDING_PROVIDER: 'local' } })
  try {
    return [...(await recallRows(app)), ...(await sizeRows(app))]
  } finally {
    await app.close()
  }
}

async function recallRows(app: TestApp): Promise<Row[]> {
  const rows: Row[] = []
  for (const language of LANGUAGES) {
    const set = labelledSet(language)
    const search_language = searchLanguageOf(language) ?? 'auto'
    const { id } = (await app.admin.post('/projects', { name: language, search_language })).body
    const key = app.as((await app.admin.post('/project-keys', { project_id: id })).body.secret)
    await writeSet(set, content => key.post('/documents', { content }))
    const { whole, words } = await qualityOfSet(set, setSearch(key))
    const note = `${set.questions.length} questions, ${set.passages.length + set.distractors.length} passages, search_language ${search_language}`
    rows.push(
      { what: `recall@10, ${language}`, value: rounded(whole.recall, 3), unit: '', target: '>= 0.9', note },
      { what: `MRR, ${language}`, value: rounded(whole.reciprocal, 3), unit: '' },
      { what: `recall@10, ${language}, words only`, value: rounded(words.recall, 3), unit: '', target: '>= 0.8' },
      { what: `MRR, ${language}, words only`, value: rounded(words.reciprocal, 3), unit: '' },
    )
  }
  return rows
}

async function sizeRows(app: TestApp): Promise<Row[]> {
  const { texts = [], questionTexts = [] } = await sparse({ rows: ROWS, questions: 100, dimensions: 8 })
  const inHan = hanText()
  const corpora = [
    { name: 'words with spaces', texts, questions: questionTexts },
    { name: 'the same in Chinese letters', texts: texts.map(inHan), questions: questionTexts.map(inHan) },
  ]
  const rows: Row[] = []
  for (const { name, texts, questions } of corpora) {
    await app.services.pool.query(sql.unsafe`truncate document_chunks`)
    const project = await app.project()
    await load(app, project.id, texts)
    await app.services.pool.query(sql.unsafe`vacuum analyze document_chunks`)
    rows.push(await sizeRow(app, name))
    const web = await start('src/web.ts', { ...testEnvironment(app.databaseUrl), LOG_LEVEL: 'info' })
    web.child.stdout?.resume()
    try {
      rows.push(await timeRow(app, client(web.url, project.key.token as string), name, questions))
    } finally {
      web.child.kill('SIGTERM')
    }
  }
  return rows
}

/** Returns a function that writes each word of a text as two Chinese letters, without spaces. */
function hanText(): (text: string) => string {
  const random = seeded(5)
  const words = new Map<string, string>()
  // Frequent letters are a few hundred of a few thousand.
  const letter = () => String.fromCodePoint(0x4e00 + Math.floor(3000 ** random.uniform()))
  return text =>
    text
      .split(' ')
      .map(word => {
        const known = words.get(word) ?? letter() + letter()
        words.set(word, known)
        return known
      })
      .join('')
}

async function load(app: TestApp, project_id: string, texts: readonly string[]): Promise<void> {
  for (let at = 0; at < texts.length; at += 100) {
    const document_id = newId('doc')
    const chunks = texts.slice(at, at + 100).map(
      (content, index): NewChunk => ({
        id: newId('dchunk'),
        chunk_index: index,
        page_number: null,
        char_start: 0,
        char_end: content.length,
        content,
        words: indexText(content),
        context: null,
        vectors: [],
      }),
    )
    await app.services.write(async tx => {
      await tx.query(sql.unsafe`
        with f as (
          insert into files (id, project_id, path, filename)
          values (${newId('file')}, ${project_id}, ${`/${at}.txt`}, ${`${at}.txt`}) returning id, path, filename
        )
        insert into documents (id, project_id, file_id, status, path, filename, content_type, size, chunk_strategy)
        select ${document_id}, ${project_id}, id, 'ready', path, filename, 'text/plain', 0, 'page' from f`)
      const owner = { project_id, document_id, search_language: null }
      await insertChunks(tx, owner, chunks, { space: null, textSearchConfig: 'simple' })
    })
  }
}

async function sizeRow(app: TestApp, name: string): Promise<Row> {
  const sizes = (await app.services.pool.one(sql.unsafe`
    select count(*) as chunks, avg(octet_length(content)) as content, avg(pg_column_size(tsv)) as words,
      pg_relation_size('document_chunks_tsv') as index from document_chunks`)) as Record<string, number>
  return {
    what: `bytes of words a chunk, ${name}`,
    value: Math.round(sizes.words + sizes.index / sizes.chunks),
    unit: 'B',
    note: `tsvector ${Math.round(sizes.words)}, index ${Math.round(sizes.index / sizes.chunks)}, of ${Math.round(sizes.content)} of text`,
  }
}

async function timeRow(
  app: TestApp,
  key: ReturnType<typeof client>,
  name: string,
  questions: readonly string[],
): Promise<Row> {
  const times: number[] = []
  const db = new pg.Client({ connectionString: app.databaseUrl })
  await db.connect()
  const server = await postmaster(db)
  let used = 0
  for (let index = 0; index < REQUESTS + 20; index++) {
    const started = performance.now()
    const { status, body } = await key.post('/knowledge/search', { query: questions[index % questions.length] })
    if (status !== 200 || body.degraded_channels.includes('lexical')) throw new Error(`search answered ${status}`)
    if (index === 19) used = processorTime(server, { children: true })
    if (index >= 20) times.push(performance.now() - started)
  }
  used = processorTime(server, { children: true }) - used
  await db.end()
  return {
    what: `search by words, ${ROWS.toLocaleString('en')} chunks, ${name}, p50`,
    value: rounded(median(times)),
    unit: 'ms',
    note: `p95 ${rounded(percentile(times, 0.95))} ms; ${rounded(used / REQUESTS)} ms of the database; twelve words`,
  }
}
