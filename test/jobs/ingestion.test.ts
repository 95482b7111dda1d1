import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import type { QuerySqlToken } from 'slonik'
import { ingestionWork } from '#content/ingestion/ingest.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { rawFragment, sql } from '#core/db/sql.ts'
import {
  age,
  chunksOf,
  eventsOf,
  ingested,
  refuses,
  settledStatus,
  silence,
  sweep,
  upload,
} from '../content/ingestion-support.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { type EmbeddingCall, startEmbeddingServer } from '../support/embedding-server.ts'
import { randomOf } from '../support/fuzz.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { pdf, slowPdf } from '../support/pdf.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startTools } from '../support/tools.ts'

/** A short lease, so that a lost worker is missed within seconds. */
const FAST = { INGESTION_LEASE_SECONDS: '2', EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '64' }

/** Text of 150 chunks: three batches. */
const TEXT = Array.from({ length: 150 }, (_, n) => `chunk ${String(n).padStart(3, '0')}.`).join('')
const IN_CHUNKS = { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 }

describe('workers of ingestion', function () {
  this.timeout(60_000)
  let app: TestApp
  let key: TestApp['admin']
  const processes: TestProcess[] = []

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['ingestion'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['ingestion'])
  const accepted = async (fields: object = IN_CHUNKS, content: string | Buffer = TEXT, file: object = {}) => {
    const file_id = await upload(key, content, file)
    const { status, body } = await key.post('/documents/ingest', { file_id, ...fields })
    assert.equal(status, 202, JSON.stringify(body))
    return body.id as string
  }
  const attempt = (id: string) =>
    app.pool.maybeOne(sql.unsafe`select * from ingestion_attempts where document_id = ${id}`) as Promise<{
      id: string
      state: string
      claims: number
      losses: number
      failures: number
    } | null>
  /** The processes in which a worker reads PDFs. */
  const readersOf = async (pid: number): Promise<number[]> => {
    const { stdout } = await promisify(execFile)('ps', ['-A', '-o', 'pid=,ppid=,args='])
    return stdout
      .split('\n')
      .filter(line => line.includes('pdf-process.ts'))
      .map(line => line.trim().split(/\s+/).map(Number))
      .filter(([, parent]) => parent === pid)
      .map(([child]) => child)
  }
  const logged = (process: { output: string[] }, text: string) =>
    eventually(() => process.output.some(line => line.includes(text)), { what: text })
  /** The document is whole: every chunk and vector once, the text, one end. */
  const isWhole = async (id: string, version = 1) => {
    const chunks = await chunksOf(app, id)
    assert.deepEqual(
      chunks.map(chunk => chunk.chunk_index),
      Array.from({ length: 150 }, (_, n) => n),
    )
    assert.equal(chunks.map(chunk => chunk.content).join(''), TEXT)
    const vectors = await app.pool.one(sql.unsafe`
      select count(*) as count, count(distinct ref_id) as of_chunks from knowledge_vectors where container_id = ${id}`)
    assert.deepEqual(vectors, { count: 150, of_chunks: 150 })
    const { body } = await key.get(`/documents/${id}`)
    assert.deepEqual([body.status, body.chunk_count, body.version, body.content], ['ready', 150, version, TEXT])
    const status = (await key.get(`/documents/${id}/status`)).body
    assert.deepEqual([status.embedded_chunks, status.total_chunks, status.progress], [150, 150, 100])
    assert.deepEqual(
      (await eventsOf(app, id)).map(({ name }) => name),
      ['documents.created', 'documents.ingested'],
    )
    assert.equal(await attempt(id), null)
  }

  before(async () => {
    app = await startApp({ env: FAST })
  })
  beforeEach(async () => {
    key = (await app.project()).key
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(
      processes.splice(0).map(async each => {
        if (each.child.exitCode !== null || each.child.signalCode !== null) return
        each.child.kill('SIGCONT')
        await each.kill()
      }),
    )
    // The next test starts without documents.
    for (const { id } of (await app.admin.get('/projects')).body.data)
      assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
  })
  after(() => app?.close())

  for (const [point, when] of [
    ['ingestion.process/claimed', 'after its claim'],
    ['ingestion_read', 'when it has read the file'],
    ['ingestion_batch', 'after its first batch'],
    ['ingestion_written', 'before the end'],
    ['ingestion.process/ended', 'after the end'],
  ]) {
    it(`a worker killed ${when} costs no document and doubles nothing`, async () => {
      const id = await accepted()
      await (await worker({ FAULT_POINTS: `${point}=kill` })).exited
      await steadyWorker()
      await settledStatus(key, id)
      await isWhole(id)
    })
  }

  for (const [point, when, written] of [
    ['ingestion.process/claimed', 'after its claim', 0],
    ['ingestion_read', 'when it has read the file', 0],
    ['ingestion_batch', 'after its first batch', 64],
    ['ingestion_written', 'before the end', 128],
    ['ingestion.process/ended', 'after the end', 150],
  ] as const) {
    it(`a worker frozen past its lease ${when} changes nothing when it thaws`, async () => {
      const id = await accepted()
      const frozen = await steadyWorker({ FAULT_POINTS: `${point}=freeze:4000` })
      await eventually(async () => (await attempt(id))?.claims !== 0 && (await chunksOf(app, id)).length === written)
      await sleep(200)
      process.kill(frozen.pid, 'SIGSTOP')
      await steadyWorker()
      await settledStatus(key, id)
      const chunkIds = () =>
        app.pool.any(sql.unsafe`select id from document_chunks where document_id = ${id} order by id`)
      const before = await chunkIds()
      process.kill(frozen.pid, 'SIGCONT')
      await logged(frozen, `"outcome":"${point.endsWith('ended') ? 'ready' : 'claim_lost'}"`)
      await isWhole(id)
      assert.deepEqual(await chunkIds(), before)
    })
  }

  it('a worker frozen before the end does not end what another one has begun', async () => {
    const id = await accepted()
    const frozen = await steadyWorker({ FAULT_POINTS: 'ingestion_written=freeze:4000' })
    await eventually(async () => (await chunksOf(app, id)).length === 128)
    process.kill(frozen.pid, 'SIGSTOP')
    const second = await steadyWorker({ FAULT_POINTS: 'ingestion_read=freeze:5000' })
    await eventually(async () => (await attempt(id))?.claims === 2)
    process.kill(frozen.pid, 'SIGCONT')
    await logged(frozen, '"outcome":"claim_lost"')
    assert.equal((await key.get(`/documents/${id}`)).body.status, 'processing')
    await logged(second, '"outcome":"ready"')
    await isWhole(id)
  })

  it('three lost workers are enough: the next one fails the document', async () => {
    const id = await accepted()
    for (let lost = 0; lost < 3; lost++) await (await worker({ FAULT_POINTS: 'ingestion.process/claimed=kill' })).exited
    const held = await attempt(id)
    assert.deepEqual([held?.claims, held?.losses], [3, 2])
    assert.equal((await key.get(`/documents/${id}`)).body.status, 'processing')
    const last = await steadyWorker()
    await settledStatus(key, id)
    const { body } = await key.get(`/documents/${id}`)
    assert.deepEqual([body.status, body.error.code, body.chunk_count], ['failed', 'INGESTION_TIMEOUT', 0])
    await logged(last, '"decision":"abandoned","losses":3')
    assert.deepEqual(
      (await eventsOf(app, id)).map(({ name }) => name),
      ['documents.created', 'documents.ingest_failed'],
    )
  })

  it('what a lost worker has written goes when the document fails', async () => {
    const id = await accepted()
    await (await worker({ FAULT_POINTS: 'ingestion_batch=kill' })).exited
    assert.equal((await chunksOf(app, id)).length, 64)
    await silence(app, id, 301)
    const { body } = await key.get(`/documents/${id}`)
    assert.deepEqual([body.status, body.error.code, body.chunk_count], ['failed', 'INGESTION_TIMEOUT', 0])
    assert.deepEqual(await chunksOf(app, id), [])
    const vectors = sql.unsafe`select count(*) from knowledge_vectors where container_id = ${id}`
    assert.equal(await app.pool.oneFirst(vectors), 0)
  })

  it('SIGTERM lets an ingestion finish', async () => {
    const id = await accepted()
    const running = await worker({ FAULT_POINTS: 'ingestion_batch=freeze:300' })
    await eventually(async () => (await chunksOf(app, id)).length > 0)
    running.child.kill('SIGTERM')
    assert.deepEqual(await running.exited, { code: 0, signal: null })
    await isWhole(id)
  })

  it('a worker whose grace runs out requeues its document immediately', async () => {
    const id = await accepted()
    const provider = await startEmbeddingServer(64)
    const patient = {
      INGESTION_LEASE_SECONDS: '60',
      EMBEDDING_PROVIDER: 'openai',
      EMBEDDING_MODEL: 'm',
      EMBEDDING_API_KEY: 'k',
      EMBEDDING_BASE_URL: provider.url,
    }
    try {
      const isSecondBatch = ({ texts }: EmbeddingCall) => texts.some(text => text.includes('chunk 064'))
      provider.behave = call => (isSecondBatch(call) ? { held: new Promise(() => {}) } : {})
      const running = await worker({ ...patient, SHUTDOWN_GRACE_MS: '100' })
      await eventually(() => provider.calls.some(isSecondBatch))
      assert.equal((await chunksOf(app, id)).length, 64)
      running.child.kill('SIGTERM')
      assert.equal((await running.exited).code, 0)
      assert.equal((await attempt(id))?.losses, 0)
      provider.behave = () => ({})
      await steadyWorker(patient)
      await settledStatus(key, id)
      await isWhole(id)
    } finally {
      await provider.close()
    }
  })

  it('a worker that starts immediately continues the document of a killed worker, whatever the lease is', async () => {
    const id = await accepted()
    const provider = await startEmbeddingServer(64)
    const patient = {
      INGESTION_LEASE_SECONDS: '600',
      EMBEDDING_PROVIDER: 'openai',
      EMBEDDING_MODEL: 'm',
      EMBEDDING_API_KEY: 'k',
      EMBEDDING_BASE_URL: provider.url,
    }
    try {
      const isSecondBatch = ({ texts }: EmbeddingCall) => texts.some(text => text.includes('chunk 064'))
      provider.behave = call => (isSecondBatch(call) ? { held: new Promise(() => {}) } : {})
      const running = await worker(patient)
      await eventually(() => provider.calls.some(isSecondBatch))
      assert.equal((await chunksOf(app, id)).length, 64)
      await running.kill()
      provider.behave = () => ({})
      await steadyWorker(patient)
      await settledStatus(key, id)
      await isWhole(id)
    } finally {
      await provider.close()
    }
  })

  it('a callback reaches its document although the worker that called the converter is killed', async () => {
    const tools = await startTools()
    try {
      const project = await app.project()
      const tool_id = await tools.add(app, project.id)
      tools.answer(tool_id, { body: { status: 'pending' } })
      assert.equal((await project.key.post('/ingestion-rules', { tool_id, content_type_glob: 'image/*' })).status, 201)
      const file_id = await upload(project.key, 'PNG', { content_type: 'image/png' })
      const { id } = (await project.key.post('/documents/ingest', { file_id })).body
      const env = { BASE_URL: 'http://muster.test' }
      await (await worker({ ...env, FAULT_POINTS: 'ingestion_read=kill' })).exited
      assert.equal((await attempt(id))?.state, 'running')
      const { token } = tools.calls(tool_id)[0].input.callback
      const posted = await app.anonymous.post(`/documents/${id}/ingestion-callback?token=${token}`, { text: 'posted' })
      assert.equal(posted.status, 204, JSON.stringify(posted.body))
      await steadyWorker(env)
      assert.equal((await settledStatus(project.key, id)).status, 'ready')
      assert.equal((await project.key.get(`/documents/${id}`)).body.content, 'posted')
      assert.equal(tools.calls(tool_id).length, 1)
      assert.equal((await eventsOf(app, id)).length, 2)
    } finally {
      await tools.close()
    }
  })

  it('a PDF is not read on when its worker stops or its attempt is lost', async () => {
    const env = { INGESTION_MAX_PAGES: '1000000', SHUTDOWN_GRACE_MS: '100' }
    const reading = await worker(env)
    const reader = () => readersOf(reading.pid)
    const id = await accepted({}, slowPdf(), { content_type: 'application/pdf' })
    await eventually(async () => (await reader()).length === 1)
    // Its claim is lost: the next one reads in a separate process.
    const [first] = await reader()
    assert.equal((await key.post(`/documents/${id}/ingest`)).status, 202)
    await eventually(async () => (await reader()).every(pid => pid !== first) && (await reader()).length === 1)
    await logged(reading, '"outcome":"claim_lost"')
    const [second] = await reader()
    reading.child.kill('SIGTERM')
    assert.deepEqual(await reading.exited, { code: 0, signal: null })
    assert.throws(() => process.kill(second, 0), /ESRCH/)
    const held = await attempt(id)
    assert.deepEqual([held?.state, held?.losses, held?.failures], ['queued', 0, 0])
  })

  it('an ingestion shows how far it is', async () => {
    const id = await accepted()
    assert.deepEqual((await key.get(`/documents/${id}/status`)).body, {
      id,
      status: 'pending',
      chunk_count: 0,
      embedded_chunks: 0,
      total_chunks: null,
      total_pages: null,
      progress: 0,
      error: null,
    })
    await steadyWorker({ FAULT_POINTS: 'ingestion_batch=freeze:1500' })
    const { body } = await eventually(async () => {
      const answer = await key.get(`/documents/${id}/status`)
      return answer.body.chunk_count === 64 ? answer : null
    })
    assert.deepEqual(body, {
      id,
      status: 'processing',
      chunk_count: 64,
      embedded_chunks: 64,
      total_chunks: 150,
      total_pages: 1,
      progress: 42,
      error: null,
    })
    await settledStatus(key, id)
    await isWhole(id)
  })

  it('what a caller does meanwhile supersedes it: nothing of it stays', async () => {
    const held = await steadyWorker({ FAULT_POINTS: 'ingestion_batch=freeze:2000' })
    const begun = async () => {
      const id = await accepted()
      await eventually(async () => (await chunksOf(app, id)).length > 0)
      return id
    }
    const changed = await begun()
    assert.equal(
      (await key.patch(`/documents/${changed}`, { content: 'other text', chunk_strategy: 'whole' })).status,
      200,
    )
    const deleted = await begun()
    assert.equal((await key.delete(`/documents/${deleted}`)).status, 204)
    const withdrawn = await begun()
    assert.equal((await key.post(`/documents/${withdrawn}/withdraw`)).status, 200)
    const renamed = await begun()
    assert.equal((await key.patch(`/documents/${renamed}`, { title: 'renamed' })).status, 200)
    await settledStatus(key, renamed)
    await eventually(() => held.output.filter(line => line.includes('"outcome":"claim_lost"')).length === 3)

    assert.deepEqual(
      (await chunksOf(app, changed)).map(({ content }) => content),
      ['other text'],
    )
    assert.equal((await key.get(`/documents/${changed}`)).body.status, 'ready')
    assert.deepEqual(await chunksOf(app, deleted), [])
    refuses(await key.get(`/documents/${deleted}`), 404, 'RESOURCE_NOT_FOUND')
    assert.deepEqual(await chunksOf(app, withdrawn), [])
    assert.equal((await key.get(`/documents/${withdrawn}`)).body.status, 'withdrawn')
    const { title, status, chunk_count, version } = (await key.get(`/documents/${renamed}`)).body
    assert.deepEqual([title, status, chunk_count, version], ['renamed', 'ready', 150, 2])
    assert.equal((await key.get(`/documents/${renamed}/versions/1`)).body.content, TEXT)
  })

  it('one project does not keep others from the worker', async () => {
    const other = await app.project()
    for (let n = 0; n < 48; n++) await accepted({}, `text ${n}`)
    await steadyWorker({
      WORKER_CONCURRENCY: '4',
      PROJECT_WORKER_SHARE: '0.5',
      FAULT_POINTS: 'ingestion_read=freeze:400',
    })
    const ready = async (by: TestApp['admin']) => (await by.get('/documents?status=ready&limit=1')).body.total as number
    await eventually(async () => (await ready(key)) > 0)
    const file_id = await upload(other.key, 'theirs')
    const { status, body } = await other.key.post('/documents/ingest?wait=true', { file_id })
    assert.deepEqual([status, body.status], [201, 'ready'])
    assert.ok((await ready(key)) < 44, `${await ready(key)} came first`)
  })

  it('a project is deleted under twenty ingestions, and they leave without a word', async function () {
    this.timeout(180_000)
    const busy = await steadyWorker({ WORKER_CONCURRENCY: '20', PROJECT_WORKER_SHARE: '1', DATABASE_POOL_MAX: '20' })
    for (let round = 0; round < 3; round++) {
      const project = await app.project()
      const files = await Promise.all(Array.from({ length: 20 }, () => upload(project.key, TEXT)))
      const ids: string[] = await Promise.all(
        files.map(async file_id => (await project.key.post('/documents/ingest', { file_id, ...IN_CHUNKS })).body.id),
      )
      await sleep(200 * round)
      const callers = ids.map((id, n) => {
        const path = `/documents/${id}`
        if (n % 4 === 0) return project.key.patch(path, { title: 'meanwhile' })
        if (n % 4 === 1) return project.key.delete(path)
        if (n % 4 === 2) return project.key.post(`${path}/ingest`)
        return project.key.post('/documents', { content: 'another one' })
      })
      const { status, body } = await app.admin.delete(`/projects/${project.id}?force=true`)
      assert.equal(status, 204, JSON.stringify(body))
      for (const { status } of await Promise.all(callers))
        assert.ok([200, 201, 202, 204, 401, 404].includes(status), `${status}`)
      for (const table of ['documents', 'document_chunks', 'knowledge_vectors', 'files', 'events']) {
        const left = sql.unsafe`select count(*) from ${sql.identifier([table])} where project_id = ${project.id}`
        assert.equal(await app.pool.oneFirst(left), 0, table)
      }
    }
    await eventually(
      async () =>
        (await app.pool.oneFirst(sql.unsafe`
          select count(*) from pgboss.job_common where name like 'ingestion.process%' and state <> 'completed'`)) === 0,
    )
    const complaints = busy.output.filter(line => /"level":(40|50|60)/.test(line))
    assert.deepEqual(complaints, [])
    const outcomes = busy.output
      .filter(line => line.includes('"work":"ingestion.process"'))
      .map(line => JSON.parse(line).outcome as string)
    assert.ok(outcomes.includes('claim_lost'))
    assert.deepEqual(
      outcomes.filter(outcome => outcome !== 'ready' && outcome !== 'claim_lost'),
      [],
    )
  })

  it('whatever callers do and whichever worker dies meanwhile, every document is whole in the end', async function () {
    this.timeout(180_000)
    const seed = Number(process.env.FUZZ_SEED ?? Date.now() % 1_000_000)
    const env = { FAULT_POINTS: 'ingestion_batch=freeze:30' }
    const [first] = await Promise.all([worker(env), worker(env)])
    const files = await Promise.all(Array.from({ length: 24 }, () => upload(key, TEXT)))
    const admitted = new Map<string, number>()
    let changes = 0
    const deeds: Record<string, (path: string, id: string) => Promise<unknown>> = {
      async ingest(path, id) {
        const { status } = await key.post(`${path}/ingest`)
        if (status === 202) admitted.set(id, (admitted.get(id) ?? 0) + 1)
      },
      patch: path => key.patch(path, { content: `${TEXT}${++changes}` }),
      cut: path => key.patch(path, { chunk_size: 20 }),
      rename: path => key.patch(path, { title: `${++changes}` }),
      withdraw: path => key.post(`${path}/withdraw`),
      restore: path => key.post(`${path}/versions/1/restore`),
      delete: path => key.delete(path),
      read: path => key.get(path),
    }
    // Deletes and withdrawals end the fun, so they are rare.
    const names = Object.keys(deeds).flatMap(name => Array(name === 'delete' || name === 'withdraw' ? 1 : 4).fill(name))
    let killed: Promise<unknown> | undefined
    const answered: unknown[] = []
    const ids = await Promise.all(
      files.map(async (file_id, n) => {
        const { body } = await key.post('/documents/ingest', { file_id, ...IN_CHUNKS })
        admitted.set(body.id, 1)
        const random = randomOf(seed * 1000 + n)
        for (let deed = 0; deed < 8; deed++) {
          await sleep(random.int(300))
          if (n === 0 && deed === 4) killed = first.kill().then(() => worker(env))
          const name = random.pick(names)
          answered.push(await deeds[name](`/documents/${body.id}`, body.id))
        }
        return body.id as string
      }),
    )
    await killed
    const seeded = `FUZZ_SEED=${seed}`
    for (const answer of answered) assert.notEqual((answer as { status?: number } | undefined)?.status, 500, seeded)
    await eventually(async () => (await app.pool.oneFirst(sql.unsafe`select count(*) from ingestion_attempts`)) === 0, {
      within: 60_000,
      every: 200,
      what: `the end of all attempts, ${seeded}`,
    })
    const broken = await app.pool.any(sql.unsafe`
      select d.id, d.status, d.error, d.chunk_count, c.*, v.*
      from documents d
      cross join lateral (select count(*) as chunks, coalesce(max(chunk_index) + 1, 0) as last from document_chunks
        where document_id = d.id) c
      cross join lateral (select count(*) as vectors, count(distinct ref_id) as of_chunks from knowledge_vectors
        where container_id = d.id) v
      -- Withdrawn before it had a text, and restored: the one end that is a failure.
      cross join lateral (select d.status = 'failed' and d.error ->> 'message' like 'Document was withdrawn before%' as restored_early)
      where (d.status not in ('ready', 'withdrawn') and not restored_early) or d.chunk_count <> c.chunks or c.last <> c.chunks
        or v.vectors <> c.chunks or v.of_chunks <> c.chunks or (c.chunks > 0) <> (d.status = 'ready')`)
    assert.deepEqual(broken, [], seeded)
    const orphans = sql.unsafe`
      select count(*) from knowledge_vectors v where not exists (select from document_chunks c where c.id = v.ref_id)`
    assert.equal(await app.pool.oneFirst(orphans), 0, seeded)
    for (const id of ids) {
      const ended = (await eventsOf(app, id)).filter(({ name }) => /ingested|ingest_failed/.test(name))
      assert.ok(ended.length <= (admitted.get(id) as number), `${id}, ${seeded}`)
      const { status, body } = await key.get(`/documents/${id}`)
      // Only a document that is ready shows a text; how the others may have ended is checked above.
      if (status === 404 || body.status !== 'ready') continue
      const text = (await chunksOf(app, id)).map(chunk => chunk.content).join('')
      assert.equal(text, body.content, seeded)
    }
  })

  it('of 40 PDFs of 20 pages, with one of two workers killed, every one is ingested once', async function () {
    this.timeout(180_000)
    const bytes = pdf(Array.from({ length: 20 }, (_, n) => `page ${n + 1} of a report\nwith a second line`))
    const files: string[] = []
    for (let n = 0; n < 40; n++)
      files.push(await upload(key, bytes, { content_type: 'application/pdf', filename: `report ${n}.pdf` }))
    const [first] = await Promise.all([worker(), worker()])
    const answers = await Promise.all(files.map(file_id => key.post('/documents/ingest', { file_id })))
    assert.ok(answers.every(({ status }) => status === 202))
    const ready = async () => (await key.get('/documents?status=ready&limit=1')).body.total as number
    await eventually(async () => (await ready()) >= 8, { within: 120_000 })
    await first.kill()
    assert.ok((await ready()) < 40)
    await eventually(async () => (await ready()) === 40, { within: 120_000, every: 200 })
    const counted = await app.pool.any(sql.unsafe`
      select d.chunk_count, (select count(*) from document_chunks c where c.document_id = d.id) as chunks,
        (select count(distinct c.page_number) from document_chunks c where c.document_id = d.id) as pages,
        (select count(*) from knowledge_vectors v where v.container_id = d.id) as vectors,
        (select count(*) from events e where e.resource_id = d.id and e.name = 'documents.ingested') as ended,
        count(*) as documents
      from documents d group by 1, 2, 3, 4, 5`)
    assert.deepEqual(counted, [{ chunk_count: 20, chunks: 20, pages: 20, vectors: 20, ended: 1, documents: 40 }])
    assert.equal(await app.pool.oneFirst(sql.unsafe`select count(*) from ingestion_attempts`), 0)
  })
})

describe('orphaned ingestion', function () {
  this.timeout(60_000)
  let web: TestApp
  let key: TestApp['admin']

  beforeEach(async () => {
    web = await startApp()
    key = (await web.project()).key
  })
  afterEach(() => web.close())

  const accepted = async () => {
    const { body } = await key.post('/documents/ingest', { file_id: await upload(key, 'some text') })
    return body.id as string
  }
  const loseMessages = () => web.pool.query(sql.unsafe`delete from pgboss.job_common where name = 'ingestion.process'`)
  const attemptOf = (id: string) =>
    web.pool.one(sql.unsafe`select id, due_at from ingestion_attempts where document_id = ${id}`) as Promise<{
      id: string
      due_at: string
    }>
  const statusInRow = (id: string) =>
    web.pool.oneFirst(sql.unsafe`select status from documents where id = ${id}`) as Promise<string>

  /** Begins an attempt `times` times while its document is locked and a statement of the test changes something. */
  const beginLate = async (id: string, attempt: string, times: number, change: QuerySqlToken) => {
    const { pool } = web.services
    const locked = await pool.transaction(async tx => {
      await tx.query(sql.unsafe`select from documents where id = ${id} for update`)
      const begun = Array.from({ length: times }, () =>
        onSeparateConnection(() => ingestionWork.table.claim(pool, { entity: id, id: attempt })),
      )
      await eventually(async () => {
        const waiting = await onSeparateConnection(() =>
          pool.oneFirst(sql.unsafe`
            select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`),
        )
        return waiting === times
      })
      await tx.query(change)
      return { begun }
    })
    return Promise.all(locked.begun)
  }

  it('gets its message again when it was lost', async () => {
    const id = await accepted()
    await loseMessages()
    const worker = await startApp({ workers: ['ingestion'], databaseUrl: web.databaseUrl })
    // However long the worker took to start.
    await age(web, id, -60)
    await sweep(worker)
    await sleep(300)
    assert.equal(await statusInRow(id), 'pending')
    await age(web, id, 10)
    await sweep(worker)
    assert.equal((await settledStatus(key, id)).status, 'ready')
    await worker.close()
  })

  it('gets one message however often the sweep runs', async () => {
    const id = await accepted()
    await age(web, id, 10)
    for (let look = 0; look < 3; look++) await sweep(web)
    const waiting = await web.pool.oneFirst(
      sql.unsafe`select count(*) from pgboss.job_common where name = 'ingestion.process'`,
    )
    assert.equal(waiting, 1)
  })

  it('is taken over when the lease of the worker is over that seems to hold its message', async () => {
    const id = await accepted()
    await web.pool.query(sql.unsafe`
      update ingestion_attempts set state = 'running', claims = 1, due_at = now() where document_id = ${id}`)
    const due = await web.pool.oneFirst(sql.unsafe`
      update pgboss.job_common set state = 'active', group_tier = 'other', started_on = now(), heartbeat_on = now()
      where name = 'ingestion.process' returning heartbeat_on + interval '3 s'`)
    const env = { INGESTION_LEASE_SECONDS: '3' }
    const worker = await startApp({ workers: ['ingestion'], databaseUrl: web.databaseUrl, env })
    assert.equal((await settledStatus(key, id)).status, 'ready')
    const told = await web.pool.oneFirst(
      sql.unsafe`select created_at from events where resource_id = ${id} and name = 'documents.ingested'`,
    )
    assert.ok((told as string) >= (due as string), `${told} is before ${due}`)
    await worker.close()
  })

  it('is retried by the sweep when its worker and its message are gone', async () => {
    const id = await accepted()
    await loseMessages()
    await web.pool.query(sql.unsafe`
      update ingestion_attempts set state = 'running', claims = 1, due_at = now() - interval '1 minute'
      where document_id = ${id}`)
    const worker = await startApp({ workers: ['ingestion'], databaseUrl: web.databaseUrl })
    await sweep(worker)
    assert.equal((await settledStatus(key, id)).status, 'ready')
    await worker.close()
  })

  it('has not stalled, however long its worker takes, while its message is renewed or waits for another worker', async () => {
    const id = await accepted()
    await web.pool.query(sql.unsafe`
      update ingestion_attempts set state = 'running', claims = 1, due_at = now() - interval '1 day'
      where document_id = ${id}`)
    const setMessage = (change: string) =>
      web.pool.query(sql.unsafe`update pgboss.job_common set ${rawFragment(change)} where name = 'ingestion.process'`)
    const silent = ['start_after', 'started_on', 'heartbeat_on'].map(column => `${column} = now() - interval '1 day'`)
    const status = async () => {
      await sweep(web)
      return (await key.get(`/documents/${id}`)).body.status
    }
    for (const [state, column] of [
      ['active', 'heartbeat_on'],
      ['active', 'started_on'],
      ['retry', 'start_after'],
    ]) {
      await setMessage(`state = '${state}', ${silent}`)
      await setMessage(`${column} = now() - interval '4 minutes'`)
      assert.equal(await status(), 'pending', column)
    }
    await setMessage(`state = 'active', ${silent}`)
    assert.equal(await status(), 'failed')
  })

  it('fails after INGESTION_QUEUE_TIMEOUT_MS, by the sweep', async () => {
    const id = await accepted()
    const young = await accepted()
    await loseMessages()
    await age(web, id, 3601)
    const worker = await startApp({ workers: ['ingestion'], inProcess: true, databaseUrl: web.databaseUrl })
    await sweep(worker)
    assert.equal(await statusInRow(id), 'failed')
    const { body } = await key.get(`/documents/${id}`)
    assert.equal(body.error.code, 'INGESTION_TIMEOUT')
    assert.deepEqual((await eventsOf(web, id))[1].data.error, body.error)
    assert.equal(await statusInRow(young), 'pending')
    await worker.close()
  })

  it('fails when it is read', async () => {
    for (const path of ['', '/status']) {
      const id = await accepted()
      assert.equal((await key.get(`/documents/${id}${path}`)).body.status, 'pending')
      await age(web, id, 3601)
      const { body } = await key.get(`/documents/${id}${path}`)
      assert.deepEqual([body.status, body.error.code], ['failed', 'INGESTION_TIMEOUT'])
    }
  })

  it('ends once for many concurrent readers', async () => {
    const id = await accepted()
    await age(web, id, 3601)
    const answers = await Promise.all(Array.from({ length: 10 }, () => key.get(`/documents/${id}`)))
    assert.ok(answers.every(({ body }) => body.status === 'failed'))
    assert.equal((await eventsOf(web, id)).length, 2)
  })

  it('is tried again after 10 s and 40 s when it fails without a name, and then has failed', async () => {
    const file = await upload(key, 'some text')
    // Fewer bytes than the record says: a fault of ours.
    await web.pool.query(sql.unsafe`update files set size = 99 where id = ${file}`)
    const { body } = await key.post('/documents/ingest', { file_id: file })
    const worker = await startApp({ workers: ['ingestion'], databaseUrl: web.databaseUrl })
    const failedTimes = (count: number) =>
      eventually(async () => {
        const row = (await web.pool.maybeOne(sql.unsafe`
          select failures, state, extract(epoch from due_at - now())::float8 as due_in,
            (select count(*) from pgboss.job_common where name = 'ingestion.process' and state = 'created'
              and start_after between a.due_at - interval '2 s' and a.due_at + interval '2 s') as messages
          from ingestion_attempts a where document_id = ${body.id}`)) as {
          failures: number
          state: string
          due_in: number
          messages: number
        } | null
        return row?.failures === count ? row : null
      })
    const within = async (count: number, seconds: number) => {
      const { due_in, state, messages } = await failedTimes(count)
      assert.ok(due_in > seconds - 3 && due_in <= seconds, `${due_in}`)
      assert.deepEqual([state, messages], ['queued', 1])
      assert.equal(await statusInRow(body.id), 'processing')
      await age(web, body.id, 6)
      await sweep(worker)
    }
    await within(1, 10)
    await within(2, 40)
    const { status, error } = await settledStatus(key, body.id)
    assert.equal(status, 'failed')
    assert.equal(error.code, 'INGESTION_FAILED')
    assert.ok(error.message.length > 0)
    assert.deepEqual(
      (await eventsOf(web, body.id)).map(({ name }) => name),
      ['documents.created', 'documents.ingest_failed'],
    )
    const tries = worker.logs.filter(line => line.includes(body.id) && line.includes('"work":"ingestion.process"'))
    assert.deepEqual(
      tries.map(line => JSON.parse(line)).map(({ attempt, outcome, next_ms }) => [attempt, outcome, next_ms]),
      [
        [1, 'retry', 10_000],
        [2, 'retry', 40_000],
        [3, 'failed', undefined],
      ],
    )
    await worker.close()
  })

  it('continues with the next try when its cause is gone', async () => {
    const file = await upload(key, 'some text')
    await web.pool.query(sql.unsafe`update files set size = 99 where id = ${file}`)
    const { body } = await key.post('/documents/ingest', { file_id: file })
    // A requeued attempt is no failure.
    await web.pool.query(sql.unsafe`update ingestion_attempts set claims = 5 where document_id = ${body.id}`)
    const worker = await startApp({ workers: ['ingestion'], databaseUrl: web.databaseUrl })
    await eventually(async () =>
      worker.logs.some(line => line.includes('"outcome":"retry"') && line.includes('next_ms')),
    )
    await web.pool.query(sql.unsafe`update files set size = 9 where id = ${file}`)
    await age(web, body.id, 6)
    await sweep(worker)
    assert.equal((await settledStatus(key, body.id)).status, 'ready')
    assert.equal((await eventsOf(web, body.id)).length, 2)
    await worker.close()
  })

  it('shows nothing of an earlier try once it is claimed', async () => {
    const id = await accepted()
    await web.pool.query(sql.unsafe`
      update documents set chunk_count = 5, embedded_chunks = 4, total_chunks = 9, total_pages = 3 where id = ${id}`)
    const worker = await startApp({
      workers: ['ingestion'],
      databaseUrl: web.databaseUrl,
      env: { FAULT_POINTS: 'ingestion.process/claimed=freeze:2000' },
    })
    await eventually(async () => (await statusInRow(id)) === 'processing')
    assert.deepEqual((await key.get(`/documents/${id}/status`)).body, {
      id,
      status: 'processing',
      chunk_count: 0,
      embedded_chunks: 0,
      total_chunks: null,
      total_pages: null,
      progress: null,
      error: null,
    })
    assert.equal((await settledStatus(key, id)).status, 'ready')
    await worker.close()
  })

  it('belongs to the last of many claims, which begins it unchanged when its lock is free', async () => {
    const id = await accepted()
    const { id: attempt } = await attemptOf(id)
    const change = sql.unsafe`update documents set title = 'Changed meanwhile' where id = ${id}`
    const begun = (await beginLate(id, attempt, 5, change))
      .filter(claimed => claimed !== null)
      .sort((one, other) => one.claim.claims - other.claim.claims)
    assert.deepEqual(
      begun.map(({ claim }) => [claim.entity, claim.id, claim.claims, claim.losses, claim.failures]),
      [1, 2, 3, 4, 5].map(claims => [id, attempt, claims, claims - 1, 0]),
    )
    for (const { claim, entity: document } of begun) {
      assert.deepEqual([document.title, document.status], ['Changed meanwhile', 'processing'])
      assert.equal(await ingestionWork.table.isCurrent(web.pool, claim), claim.claims === 5)
      assert.equal((await ingestionWork.table.lock(web.pool, claim)) !== null, claim.claims === 5)
    }
  })

  it('is not begun when another attempt has taken its place before its lock is free', async () => {
    const id = await accepted()
    const { id: attempt } = await attemptOf(id)
    const change = sql.unsafe`update ingestion_attempts set id = 'iat_other' where document_id = ${id}`
    assert.deepEqual(await beginLate(id, attempt, 1, change), [null])
    assert.equal(await statusInRow(id), 'pending')
  })

  it('is abandoned with its message unless a converter is to call back', async () => {
    const { onExhausted } = ingestionWork.handler
    const givenUp = async (state: string, dueIn: number) => {
      const entity_id = await accepted()
      const work_id = (await web.pool.oneFirst(sql.unsafe`
        update ingestion_attempts set state = ${state}, claims = 1, due_at = now() + ${dueIn} * interval '1 s'
        where document_id = ${entity_id} returning id`)) as string
      await onExhausted?.({ entity_id, work_id }, new Error('not to be handled'), web.services)
      return (await statusInRow(entity_id)) === 'failed'
    }
    assert.equal(await givenUp('awaiting', 60), false)
    assert.equal(await givenUp('awaiting', -60), false)
    assert.equal(await givenUp('running', -60), true)
    assert.equal(await givenUp('queued', 60), true)
  })

  it('has failed when its message could not be handled at all', async () => {
    const id = await accepted()
    await web.pool.query(sql.unsafe`create sequence claims_refused`)
    await web.pool.query(sql.unsafe`
      create function refuse_claims() returns trigger language plpgsql as $$ begin
        if nextval('claims_refused') = 1 then raise exception 'claims are refused'; end if;
        return new;
      end $$`)
    await web.pool.query(sql.unsafe`
      create trigger refuse_claims before update on ingestion_attempts for each row execute function refuse_claims()`)
    await web.pool.query(sql.unsafe`update pgboss.job_common set retry_limit = 0 where name = 'ingestion.process'`)
    const worker = await startApp({ workers: ['ingestion'], databaseUrl: web.databaseUrl })
    const { status, error } = await settledStatus(key, id)
    assert.equal(status, 'failed')
    assert.equal(error.code, 'INGESTION_FAILED')
    assert.match(error.message, /claims are refused/)
    await worker.close()
  })

  it('settles a waiting caller by the poll when no notification comes', async () => {
    const file = await upload(key, 'some text')
    const waiting = key.post('/documents/ingest?wait=true', { file_id: file })
    const id = await eventually(async () => (await key.get(`/files/${file}`)).body.document_id as string | null)
    await web.pool.query(sql.unsafe`update documents set status = 'ready' where id = ${id}`)
    const { status, body } = await waiting
    assert.deepEqual([status, body.status], [201, 'ready'])
  })

  it('does not run a document that was deleted before', async () => {
    const id = await accepted()
    assert.equal((await key.delete(`/documents/${id}`)).status, 204)
    const worker = await startApp({ workers: ['ingestion'], databaseUrl: web.databaseUrl })
    const other = await ingested(key, await upload(key, 'other'))
    assert.equal(other.status, 'ready')
    assert.deepEqual(await chunksOf(web, id), [])
    assert.equal(
      worker.logs.some(line => line.includes(id) && line.includes('"work":"ingestion.process"')),
      false,
    )
    await worker.close()
  })
})
