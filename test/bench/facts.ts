import pg from 'pg'
import { localVector } from '#content/index/embeddings/local.ts'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { codeOf } from '#content/index/vectors/codes.ts'
import { createLog } from '#core/base/log.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { client, startApp } from '../support/app.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase } from '../support/postgres.ts'
import { costRows, dbosProgram, postTo } from './costs.ts'
import { start } from './http.ts'
import { facts } from './knowledge-corpora.ts'
import { percentile, postmaster, processorTime, rounded, walBytes } from './measure.ts'
import { loadMemories } from './memory.ts'
import type { Row } from './rows.ts'

/**
 * A store of 10,000 facts that is all of its project, with embeddings that a server answers immediately: searches next to the bare
 * scan, which is one statement that finds the nearest codes and reads the vectors of the best of them; and what a fact costs.
 * Usage: node test/bench/run.ts facts
 */
const FACTS = 10_000
const CALLERS = 8
const ROUND_MS = 3000
const WARM_MS = 4000
const ROUNDS = 3
const WRITES = 100
const CANDIDATES = 400

export async function run(): Promise<Row[]> {
  return [...(await of(256)), ...(await of(1024))]
}

async function of(dimensions: number): Promise<Row[]> {
  const embeddings = await startEmbeddingServer(dimensions)
  embeddings.behave = ({ texts }) => ({ vectors: texts.map(text => [...localVector(text, dimensions)]) })
  const settings = {
    EMBEDDING_PROVIDER: 'openai',
    EMBEDDING_MODEL: 'm',
    EMBEDDING_DIMENSIONS: String(dimensions),
    EMBEDDING_BASE_URL: embeddings.url,
    EGRESS_ALLOW_HOSTS: '127.0.0.1',
  }
  const app = await startApp({ env: settings })
  const services = await openServices(app.config, { log: createLog({ level: 'silent' }), role: 'cli' })
  const db = new pg.Client(app.databaseUrl)
  await db.connect()
  try {
    const space = (await currentSpace(services)) as Space
    const corpus = await facts({ rows: FACTS, questions: 100, dimensions })
    const project = await app.project()
    const store = (await project.key.post('/memory-stores', { name: 'facts' })).body.id as string
    await loadMemories(services, space, { project_id: project.id, memory_store_id: store }, corpus)
    await db.query('vacuum analyze')
    const server = await postmaster(db)
    const web = await start('src/web.ts', { ...testEnvironment(app.databaseUrl), ...settings, LOG_LEVEL: 'info' })
    web.child.stdout?.resume()
    const key = client(web.url, project.key.token as string)
    const questions = corpus.questionTexts as string[]
    let asked = 0
    const search = async () => {
      const query = `${questions[asked % questions.length]} ${asked++}`
      const body = { query, memory_store_ids: [store], include_documents: false }
      const answer = await key.post('/knowledge/search', body)
      if (answer.status !== 200 || answer.body.degraded_channels.length > 0 || answer.body.results.length === 0)
        throw new Error(`search answered ${answer.status}: ${JSON.stringify(answer.body).slice(0, 500)}`)
    }
    const connections = await Promise.all(
      Array.from({ length: CALLERS }, async () => {
        const connection = new pg.Client(app.databaseUrl)
        await connection.connect()
        return connection
      }),
    )
    const scan = (connection: pg.Client) => {
      const question = corpus.questions[asked++ % corpus.questions.length]
      return connection.query({
        name: 'scan',
        text: `select v.ref_id, encode(v.vec, 'base64') from knowledge_vectors v
          where v.project_id = $1 and v.space_id = $2 and v.source = 2 order by bit_count(v.code # $3::bit varying) limit $4`,
        values: [project.id, space.id, codeOf(question), CANDIDATES],
      })
    }
    const underLoad = async (ask: (caller: number) => Promise<unknown>, callers: number, ms: number) => {
      const times: number[] = []
      const used = () => processorTime(web.child.pid as number) + processorTime(server, { children: true })
      const before = used()
      const started = performance.now()
      await Promise.all(
        Array.from({ length: callers }, async (_, caller) => {
          while (performance.now() - started < ms) {
            const at = performance.now()
            await ask(caller)
            times.push(performance.now() - at)
          }
        }),
      )
      return {
        rate: (times.length * 1000) / (performance.now() - started),
        p50: percentile(times, 0.5),
        cpu: (used() - before) / times.length,
      }
    }
    try {
      for (const ask of [search, (caller: number) => scan(connections[caller])]) await underLoad(ask, CALLERS, WARM_MS)
      type Load = Awaited<ReturnType<typeof underLoad>>
      const rounds: { many: Load; one: Load; bare: Load; bareOne: Load }[] = []
      for (let round = 0; round < ROUNDS; round++)
        rounds.push({
          many: await underLoad(search, CALLERS, ROUND_MS),
          bare: await underLoad(caller => scan(connections[caller]), CALLERS, ROUND_MS),
          one: await underLoad(search, 1, ROUND_MS),
          bareOne: await underLoad(() => scan(connections[0]), 1, ROUND_MS),
        })
      const best = (value: (round: (typeof rounds)[number]) => number, pick = Math.min) => pick(...rounds.map(value))
      const [rate, bareRate] = [best(({ many }) => many.rate, Math.max), best(({ bare }) => bare.rate, Math.max)]
      const [p50, bareP50] = [best(({ one }) => one.p50), best(({ bareOne }) => bareOne.p50)]
      const writes = await writesOf({ key, db, store, texts: questions })
      const costs = await costRows(
        `write of a fact of ${dimensions} dimensions`,
        {
          processes: { web: { script: 'src/web.ts' } },
          env: { ...testEnvironment(app.databaseUrl), ...settings },
          call: url =>
            postTo(
              `${url}/api/v1/memory-entries`,
              { memory_store_id: store, content: `${questions[asked % questions.length]} ${asked++ * 104_729}` },
              key.token as string,
            ),
        },
        { 'DBOS, one step': dbosProgram({ DATABASE_URL: await createDatabase() }, '/step') },
      )
      const size = `10,000 facts of ${dimensions} dimensions`
      return [
        {
          what: `searches of ${size}, ${CALLERS} callers, of the bare scan`,
          value: rounded(rate / bareRate, 2),
          unit: 'x',
          target: '>= 0.7',
          note: `${rate.toFixed(0)}/s, bare ${bareRate.toFixed(0)}/s`,
        },
        {
          what: `p50 of a search of ${size}, one caller, of the bare scan`,
          value: rounded(p50 / bareP50, 2),
          unit: 'x',
          target: '<= 1.2',
          note: `${p50.toFixed(1)} ms, bare ${bareP50.toFixed(1)} ms`,
        },
        {
          what: `processor time of a search of ${size}, all processes`,
          value: rounded(best(({ many }) => many.cpu)),
          unit: 'ms',
          target: '<= 9',
          note: `bare ${best(({ bare }) => bare.cpu).toFixed(1)} ms`,
        },
        ...costs,
        ...writes.map(row => ({ ...row, what: `${row.what}, ${dimensions} dimensions` })),
      ]
    } finally {
      for (const connection of connections) await connection.end()
      web.child.kill('SIGTERM')
    }
  } finally {
    await db.end()
    await services.close()
    await app.close()
    await embeddings.close()
  }
}

/** What a new fact writes to the log, without pages that are logged whole because a checkpoint was before them. */
async function writesOf(of: {
  key: ReturnType<typeof client>
  db: pg.Client
  store: string
  texts: readonly string[]
}): Promise<Row[]> {
  const { key, db, store, texts } = of
  await db.query('alter system set full_page_writes = off')
  await db.query('select pg_reload_conf()')
  const times: number[] = []
  const write = async (index: number) => {
    const content = `${texts[index % texts.length]} ${index} ${index * 7919}`
    const started = performance.now()
    const { status, body } = await key.post('/memory-entries', { memory_store_id: store, content })
    times.push(performance.now() - started)
    if (status > 201) throw new Error(JSON.stringify(body).slice(0, 300))
  }
  for (let index = 0; index < 10; index++) await write(index)
  const before = await walBytes(db)
  for (let index = 10; index < 10 + WRITES; index++) await write(index)
  const bytes = ((await walBytes(db)) - before) / WRITES
  return [
    {
      what: 'write-ahead log of a fact',
      value: rounded(bytes / 1024),
      unit: 'KiB',
      target: '<= 5',
      note: `p50 ${percentile(times, 0.5).toFixed(1)} ms`,
    },
  ]
}
