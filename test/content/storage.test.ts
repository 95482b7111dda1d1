import { strict as assert } from 'node:assert'
import { createHash, randomBytes } from 'node:crypto'
import dns from 'node:dns'
import { access, appendFile, mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import http from 'node:http'
import net, { type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Readable } from 'node:stream'
import { deleteQueue, projectDeleteQueue, stagedQueue, storageBackends } from '#content/storage/backends.ts'
import { storageSweepQueue, sweepBlobs } from '#content/storage/cleanup.ts'
import { s3Backend } from '#content/storage/s3.ts'
import { manualClock } from '#core/base/clock.ts'
import { newId } from '#core/base/ids.ts'
import { rawQuery } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { eventually, startApp, type TestApp } from '../support/app.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { startProcess } from '../support/processes.ts'
import { codeOf } from '../support/replies.ts'
import { type S3, startS3 } from '../support/s3.ts'
import { download, formOf, handmade, sendForm, sendRaw, upload } from './file-support.ts'

const MIB = 1024 * 1024
const HOUR = 3_600_000
const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex')
const never = new AbortController().signal

const rowsOf =
  (app: TestApp) =>
  async (text: string, values: unknown[] = []): Promise<readonly any[]> =>
    (await app.pool.any(rawQuery(text, values))) as readonly any[]

const jobs = (app: TestApp, queue: string) =>
  rowsOf(app)('select data, start_after > now() as later, state from pgboss.job where name = $1 order by created_on', [
    queue,
  ])

/** What a server sends for one request until it closes the connection. */
const everythingOf = (url: string, path: string, token: string): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const pieces: Buffer[] = []
    const socket = net.connect(Number(new URL(url).port), '127.0.0.1')
    socket.on('data', piece => pieces.push(piece))
    socket.on('close', () => resolve(Buffer.concat(pieces)))
    socket.on('error', reject)
    socket.write(`GET ${path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\n\r\n`)
  })

/** Every file below a directory. */
const below = async (directory: string): Promise<string[]> =>
  (await readdir(directory, { recursive: true, withFileTypes: true }))
    .filter(entry => entry.isFile())
    .map(entry => path.relative(directory, path.join(entry.parentPath, entry.name)))
    .sort()

describe('storage in the database', () => {
  it('keeps bytes over a restart of every process', async () => {
    const database = await cloneTemplate()
    const bytes = randomBytes(MIB)
    const first = await startApp({ databaseUrl: database.url })
    const { key } = await first.project()
    const made = await upload(first.url, key, { bytes, name: 'kept.bin' })
    assert.equal(made.status, 201)
    await first.close()
    const second = await startApp({ databaseUrl: database.url })
    const got = await download(second.url, key.token, made.body.id)
    assert.equal(sha256(got.bytes), sha256(bytes))
    await second.close()
    await database.drop()
  })

  it('shows nothing of an upload whose process was killed, and sweeps its bytes after an hour', async () => {
    const clock = manualClock()
    const app = await startApp({ clock })
    const rows = rowsOf(app)
    const { key } = await app.project()
    const kept = await upload(app.url, key, { bytes: randomBytes(MIB), name: 'kept.bin' })
    const web = await startProcess('web', app.databaseUrl)
    const { head, type } = handmade('bound')
    const sent = sendRaw(web.url, {
      path: '/files/upload',
      token: key.token,
      headers: { 'content-type': type },
      pieces: (async function* () {
        yield head
        for (let index = 0; index < 1000; index++) {
          yield Buffer.alloc(64 * 1024)
          if (index > 40) await new Promise(resolve => setTimeout(resolve, 20))
        }
      })(),
    })
    const staged = async () => (await rows("select id from file_blobs where state = 'staging'")).length
    await eventually(staged, { what: 'staged bytes' })
    await web.kill('SIGKILL')
    assert.ok('error' in (await sent))
    assert.equal((await key.get('/files')).body.total, 1)
    assert.equal(await staged(), 1)
    clock.advance(HOUR - 60_000)
    assert.equal(await sweepBlobs(app.services, never), 0, 'too early')
    clock.advance(120_000)
    assert.equal(await sweepBlobs(app.services, never), 1)
    assert.equal(await staged(), 0)
    const chunks = await rows('select distinct blob_id::text as id from file_blob_chunks')
    const [{ location }] = await rows('select location from files where id = $1', [kept.body.id])
    assert.deepEqual(
      chunks.map(({ id }) => id),
      [location],
    )
    assert.equal((await download(app.url, key.token, kept.body.id)).status, 200)
    await app.close()
  })

  it('sweeps the bytes of deleted projects, by its tick, with the tokens that ended', async () => {
    const app = await startApp({ workers: ['ingestion'], env: { FILE_BLOB_CHUNK_BYTES: '1024' } })
    const rows = rowsOf(app)
    const { id, key } = await app.project()
    const other = await app.project()
    await upload(app.url, key, { bytes: randomBytes(MIB) })
    await upload(app.url, key, { bytes: '', name: 'empty' })
    const kept = await upload(app.url, other.key, { bytes: randomBytes(5000) })
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.equal((await rows('select 1 from file_blobs')).length, 3)
    await app.inEachCell(({ queues }) => queues.send([queueMessage(storageSweepQueue, {})]))
    await eventually(async () => (await rows('select 1 from file_blobs')).length === 1)
    assert.equal((await rows('select 1 from file_blob_chunks')).length, 5)
    assert.equal((await download(app.url, other.key.token, kept.body.id)).status, 200)
    await app.close()
  })

  it('keeps committed bytes although the response of the commit was lost', async () => {
    const app = await startApp()
    const { id: projectId, key } = await app.project()
    const fileId = newId('file')
    const store = storageBackends(app.services)
    const staged = await store.stage(Readable.from([Buffer.from('abc')]), { projectId, fileId, maxBytes: 10 })
    await rowsOf(app)(
      `with blob as (update file_blobs set state = 'committed', size = 3, sha256 = $2 where id::text = $1)
       insert into files (id, project_id, path, filename, size, sha256, storage, location)
       values ($3, $4, '/a', 'a', 3, $2, 'postgres', $1)`,
      [staged.location, staged.sha256, fileId, projectId],
    )
    await staged.discard()
    assert.equal((await download(app.url, key.token, fileId)).bytes.toString(), 'abc')
    await app.close()
  })
})

describe('storage in a directory', () => {
  let directory: string
  let app: TestApp
  let project: string
  let key: Awaited<ReturnType<TestApp['project']>>['key']

  before(async () => {
    directory = await mkdtemp(path.join(tmpdir(), 'muster-files-'))
    app = await startApp({
      env: { FILES_STORAGE_PROVIDER: 'local', FILES_STORAGE_DIR: directory, FILES_MAX_UPLOAD_BYTES: '5000000' },
      workers: ['ingestion'],
    })
    ;({ id: project, key } = await app.project())
  })
  after(async () => {
    await app.close()
    await rm(directory, { recursive: true })
  })

  it('writes to a place made of ids, reads ranges and removes it after the delete', async () => {
    const bytes = randomBytes(200_000)
    const made = await upload(app.url, key, { bytes, name: '../../x' }, { prefix: '/a' })
    assert.equal(made.status, 201)
    const place = path.join(directory, project, made.body.id)
    assert.ok((await readFile(place)).equals(bytes))
    assert.equal((await key.patch(`/files/${made.body.id}/metadata`, { prefix: '/b' })).status, 200)
    assert.ok((await download(app.url, key.token, made.body.id)).bytes.equals(bytes))
    const part = await download(app.url, key.token, made.body.id, { range: 'bytes=100000-100009' })
    assert.ok(part.bytes.equals(bytes.subarray(100_000, 100_010)))
    assert.equal((await key.delete(`/files/${made.body.id}`)).status, 204)
    await eventually(async () => (await access(place).catch(() => 'gone')) === 'gone')
    assert.deepEqual((await jobs(app, deleteQueue.name)).at(-1)?.data, {
      objects: [{ storage: 'local', location: `${project}/${made.body.id}` }],
    })
  })

  it('puts bytes that come before their project where they are found all the same', async () => {
    const made = await sendForm(
      app.url,
      app.admin.token,
      '/files/upload',
      formOf([{ bytes: 'abc', name: 'late' }, ['project_id', project]]),
    )
    assert.equal(made.status, 201)
    assert.equal((await download(app.url, key.token, made.body.id)).bytes.toString(), 'abc')
  })

  it('keeps the bytes a file has until others are committed', async () => {
    const made = (await upload(app.url, key, { bytes: 'old', name: 'replaced' })).body
    const put = (bytes: string, headers = {}) =>
      sendForm(app.url, key.token, `/files/${made.id}/content`, formOf([{ bytes }]), { method: 'PUT', headers })
    assert.equal((await put('refused', { 'if-match': '"x"' })).status, 412)
    assert.equal((await download(app.url, key.token, made.id)).bytes.toString(), 'old')
    assert.equal((await put('new')).status, 200)
    assert.equal((await download(app.url, key.token, made.id)).bytes.toString(), 'new')
    await eventually(async () => (await below(directory)).filter(name => name.includes(made.id)).length === 1)
  })

  it('leaves nothing of uploads that are refused or broken off', async () => {
    const before = await below(directory)
    const { head, type } = handmade('bound')
    assert.equal((await upload(app.url, key, { bytes: 'x' }, { prefix: '/.system' })).status, 400)
    assert.equal((await upload(app.url, key, { bytes: Buffer.alloc(5_000_001) })).status, 413)
    const gone = await sendRaw(app.url, {
      path: '/files/upload',
      token: key.token,
      headers: { 'content-type': type, 'content-length': '4000000' },
      pieces: [head, Buffer.alloc(1_000_000)],
      after: 'destroy',
    })
    assert.ok('error' in gone)
    await eventually(async () => JSON.stringify(await below(directory)) === JSON.stringify(before))
  })

  it('checks staged files after an hour, and drops those without a file record', async () => {
    const web = await startProcess('web', app.databaseUrl, {
      FILES_STORAGE_PROVIDER: 'local',
      FILES_STORAGE_DIR: directory,
    })
    const before = await below(directory)
    const { head, type } = handmade('bound')
    const sent = sendRaw(web.url, {
      path: '/files/upload',
      token: key.token,
      headers: { 'content-type': type },
      pieces: (async function* () {
        yield head
        for (let index = 0; index < 500; index++) {
          yield Buffer.alloc(64 * 1024)
          if (index > 20) await new Promise(resolve => setTimeout(resolve, 20))
        }
      })(),
    })
    const left = await eventually(async () => (await below(directory)).find(name => !before.includes(name)))
    assert.match(left, /\.tmp-[0-9a-f-]{36}$/)
    await web.kill('SIGKILL')
    await sent
    assert.ok((await below(directory)).includes(left))
    const job = (await jobs(app, stagedQueue.name)).at(-1)
    assert.equal(job.later, true)
    assert.equal(left.startsWith(job.data.location), true)
    const kept = (await upload(app.url, key, { bytes: 'abc', name: 'kept' })).body
    const store = storageBackends(app.services)
    await store.abandon(job.data)
    await store.abandon({ storage: 'local', location: `${project}/${kept.id}` })
    assert.ok(!(await below(directory)).includes(left))
    assert.equal((await download(app.url, key.token, kept.id)).bytes.toString(), 'abc')
  })

  it('keeps bytes that a file has although the response of the commit was lost', async () => {
    const fileId = newId('file')
    const staged = await storageBackends(app.services).stage(Readable.from([Buffer.from('abc')]), {
      projectId: project,
      fileId,
      maxBytes: 10,
    })
    await rowsOf(app)(
      `insert into files (id, project_id, path, filename, size, sha256, storage, location)
       values ($1, $2, '/unheard', 'unheard', 3, $3, 'local', $4)`,
      [fileId, project, staged.sha256, staged.location],
    )
    await staged.discard()
    assert.equal((await download(app.url, key.token, fileId)).bytes.toString(), 'abc')
  })

  it('answers 404 for bytes that are lost, and deletes their file', async () => {
    const made = (await upload(app.url, key, { bytes: 'abc', name: 'lost' })).body
    await rm(path.join(directory, project, made.id))
    const got = await download(app.url, key.token, made.id)
    assert.deepEqual([got.status, JSON.parse(got.bytes.toString()).error.code], [404, 'RESOURCE_NOT_FOUND'])
    assert.equal((await key.delete(`/files/${made.id}`)).status, 204)
    await eventually(async () => (await jobs(app, deleteQueue.name)).every(({ state }) => state === 'completed'))
  })

  it('never sends more than the bytes that were stored, whatever the file has become', async () => {
    for (const [name, size] of Object.entries({ small: 10, large: 600_000 })) {
      const made = await upload(app.url, key, { bytes: randomBytes(size), name })
      assert.equal(made.status, 201)
      await appendFile(path.join(directory, project, made.body.id), 'HTTP/1.1 200 Smuggled')
      for (const what of ['download', 'download/base64']) {
        const answer = await everythingOf(app.url, `/api/v1/files/${made.body.id}/${what}`, key.token as string)
        const head = answer.indexOf('\r\n\r\n') + 4
        const promised = Number(/\r\ncontent-length: (\d+)/i.exec(answer.subarray(0, head).toString())?.[1])
        const whole = answer.subarray(0, 12).toString() === 'HTTP/1.1 200' && answer.length >= head + promised
        assert.equal(whole, false, `${name} ${what}: ${answer.length - head} of ${promised} bytes`)
        assert.equal(answer.includes('Smuggled'), false, `${name} ${what}`)
      }
    }
  })

  it('removes the objects of a deleted project', async () => {
    const doomed = await app.project()
    for (let index = 0; index < 3; index++) await upload(app.url, doomed.key, { bytes: 'x', name: `n${index}` })
    assert.equal((await readdir(path.join(directory, doomed.id))).length, 3)
    assert.equal((await app.admin.delete(`/projects/${doomed.id}?force=true`)).status, 204)
    assert.equal((await jobs(app, projectDeleteQueue.name)).at(-1)?.data.objects.length, 3)
    await eventually(async () => (await readdir(path.join(directory, doomed.id))).length === 0)
  })

  it('lists the objects of a project into jobs of a thousand', async () => {
    const doomed = await app.project()
    await rowsOf(app)(
      `insert into files (id, project_id, path, filename, size, sha256, storage, location)
       select 'file_' || lpad(n::text, 26, '0'), $1, '/' || n, n::text, 0, '\\x00', 'local', $1 || '/' || n
       from generate_series(1, 2500) as n`,
      [doomed.id],
    )
    assert.equal((await app.admin.delete(`/projects/${doomed.id}?force=true`)).status, 204)
    const sizes = (await jobs(app, projectDeleteQueue.name))
      .filter(({ data }) => data.objects.some(({ location }: any) => location.startsWith(`${doomed.id}/`)))
      .map(({ data }) => data.objects.length)
    assert.deepEqual(sizes.sort(), [1000, 1000, 500])
  })

  it('reads bytes that were written before a switch of the backend, and writes to the new one', async () => {
    const database = await cloneTemplate()
    const first = await startApp({ databaseUrl: database.url })
    const { id, key } = await first.project()
    const old = (await upload(first.url, key, { bytes: 'old', name: 'old' })).body
    await first.close()
    const second = await startApp({
      databaseUrl: database.url,
      env: { FILES_STORAGE_PROVIDER: 'local', FILES_STORAGE_DIR: directory },
    })
    const fresh = (await upload(second.url, key, { bytes: 'new', name: 'new' })).body
    assert.equal((await readFile(path.join(directory, id, fresh.id))).toString(), 'new')
    for (const [file, text] of [
      [old, 'old'],
      [fresh, 'new'],
    ])
      assert.equal((await download(second.url, key.token, file.id)).bytes.toString(), text)
    await second.close()

    const third = await startApp({ databaseUrl: database.url })
    assert.equal((await download(third.url, key.token, old.id)).status, 200)
    const refused = await download(third.url, key.token, fresh.id)
    assert.deepEqual(
      [refused.status, JSON.parse(refused.bytes.toString()).error.code],
      [500, 'FILE_STORAGE_MISCONFIGURED'],
    )
    assert.equal((await third.as(key.token).delete(`/files/${fresh.id}`)).status, 204, 'the row goes')
    assert.deepEqual(
      { ...deleteQueue.retry },
      { limit: 7, delaySeconds: 5, backoff: true, maxDelaySeconds: 640 },
      'eight tries, from 5 s',
    )
    // The last one immediately.
    await rowsOf(third)('update pgboss.job set retry_limit = 0 where name = $1', [deleteQueue.name])
    await third.close()
    const fourth = await startApp({ databaseUrl: database.url, workers: ['ingestion'] })
    const [dead] = await eventually(async () => {
      const letters = await fourth.services.queues.deadLetters.list({ queue: deleteQueue.name })
      return letters.length > 0 ? letters : null
    })
    assert.deepEqual(dead.data, { objects: [{ storage: 'local', location: `${id}/${fresh.id}` }] })
    assert.match(JSON.stringify(dead.error), /FILES_STORAGE_DIR/)
    await fourth.close()
    await database.drop()
  })
})

describe('storage that is set up wrongly', () => {
  const setups: Record<string, Record<string, string>> = {
    'an unknown provider': { FILES_STORAGE_PROVIDER: 'tape' },
    'no directory': { FILES_STORAGE_PROVIDER: 'local' },
    'a directory that is not there': {
      FILES_STORAGE_PROVIDER: 'local',
      FILES_STORAGE_DIR: path.resolve('not-mounted/files'),
    },
    'a directory that is a file': { FILES_STORAGE_PROVIDER: 'local', FILES_STORAGE_DIR: path.resolve('package.json') },
    'no bucket': { FILES_STORAGE_PROVIDER: 's3' },
  }
  for (const [what, env] of Object.entries(setups))
    it(`refuses uploads and nothing else: ${what}`, async () => {
      const app = await startApp({ env })
      if (!what.startsWith('a directory'))
        assert.ok(
          app.logs.some(line => line.includes('file storage misconfigured') && line.includes('"level":"error"')),
        )
      const { key } = await app.project()
      const refused = await upload(app.url, key, { bytes: 'x' })
      assert.deepEqual([refused.status, codeOf(refused)], [500, 'FILE_STORAGE_MISCONFIGURED'])
      assert.equal(codeOf(await key.post('/files/upload/base64', { content: 'eA==' })), 'FILE_STORAGE_MISCONFIGURED')
      const record = await key.post('/files', { filename: 'x' })
      assert.equal(record.status, 201)
      assert.equal((await key.get('/files')).body.total, 1)
      assert.equal((await key.delete(`/files/${record.body.id}`)).status, 204)
      await app.close()
    })
})

describe('storage in a bucket', () => {
  let s3: S3
  let app: TestApp
  let project: string
  let key: Awaited<ReturnType<TestApp['project']>>['key']
  const credentials = ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'] as const
  const saved = credentials.map(name => process.env[name])

  before(async () => {
    s3 = await startS3()
    process.env.AWS_ACCESS_KEY_ID = s3.accessKeyId
    process.env.AWS_SECRET_ACCESS_KEY = s3.secretAccessKey
    app = await startApp({
      env: {
        FILES_STORAGE_PROVIDER: 's3',
        FILES_S3_BUCKET: s3.bucket,
        FILES_S3_REGION: 'eu-central-1',
        FILES_S3_ENDPOINT: s3.url,
        FILES_S3_FORCE_PATH_STYLE: 'true',
        FILES_S3_KEY_PREFIX: 'own files/ü/',
        AWS_ACCESS_KEY_ID: s3.accessKeyId,
        AWS_SECRET_ACCESS_KEY: s3.secretAccessKey,
      },
      workers: ['ingestion'],
    })
    ;({ id: project, key } = await app.project())
  })
  after(async () => {
    await app.close()
    await s3.close()
    for (const [index, name] of credentials.entries())
      if (saved[index] === undefined) delete process.env[name]
      else process.env[name] = saved[index]
  })
  beforeEach(() => {
    s3.requests.length = 0
    s3.refuse = () => null
  })
  const objectOf = (id: string) => s3.objects.get(`own files/ü/${project}/${id}`)

  it('uploads small files immediately', async () => {
    for (const size of [0, 1, 8 * MIB]) {
      const bytes = randomBytes(size)
      const made = await upload(app.url, key, { bytes, name: `s${size}` })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.ok(objectOf(made.body.id)?.equals(bytes))
      assert.ok((await download(app.url, key.token, made.body.id)).bytes.equals(bytes))
    }
    assert.equal(s3.requests.filter(name => name.startsWith('PUT')).length, 3)
    assert.ok(!s3.requests.some(name => name.includes('?')))
  })

  it('sends large files in parts of 8 MiB and reads ranges of them', async () => {
    const bytes = randomBytes(20 * MIB + 5)
    const made = await upload(app.url, key, { bytes, name: 'large' })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    assert.deepEqual(
      s3.requests.map(name => name.replace(/\/.*\?/, '?')),
      [
        'POST ?uploads',
        'PUT ?partNumber&uploadId',
        'PUT ?partNumber&uploadId',
        'PUT ?partNumber&uploadId',
        'POST ?uploadId',
      ],
    )
    assert.ok(objectOf(made.body.id)?.equals(bytes))
    assert.equal(s3.uploads.size, 0)
    assert.equal(sha256((await download(app.url, key.token, made.body.id)).bytes), sha256(bytes))
    const part = await download(app.url, key.token, made.body.id, { range: `bytes=${8 * MIB - 2}-${8 * MIB + 1}` })
    assert.equal(part.status, 206)
    assert.ok(part.bytes.equals(bytes.subarray(8 * MIB - 2, 8 * MIB + 2)))
  })

  it('removes the object after the delete, and does not mind when it is gone', async () => {
    const made = (await upload(app.url, key, { bytes: 'abc', name: 'deleted' })).body
    assert.equal((await key.delete(`/files/${made.id}`)).status, 204)
    await eventually(() => !objectOf(made.id))
    const lost = (await upload(app.url, key, { bytes: 'abc', name: 'lost' })).body
    s3.objects.clear()
    assert.equal((await download(app.url, key.token, lost.id)).status, 404)
    assert.equal((await key.delete(`/files/${lost.id}`)).status, 204)
    await eventually(async () => (await jobs(app, deleteQueue.name)).every(({ state }) => state === 'completed'))
  })

  it('tries a delete again until the store takes it', async () => {
    const made = (await upload(app.url, key, { bytes: 'abc', name: 'again' })).body
    let refusals = 0
    s3.refuse = name => (name.startsWith('DELETE') && refusals++ < 4 ? { status: 503, code: 'SlowDown' } : null)
    assert.equal((await key.delete(`/files/${made.id}`)).status, 204)
    await eventually(() => !objectOf(made.id))
    assert.ok(refusals >= 4)
  })

  it('aborts the parts of an upload that is broken off, and one whose store fails', async () => {
    const { head, type } = handmade('bound')
    const gone = await sendRaw(app.url, {
      path: '/files/upload',
      token: key.token,
      headers: { 'content-type': type, 'content-length': String(40 * MIB) },
      pieces: (async function* () {
        yield head
        for (let index = 0; index < 20; index++) yield Buffer.alloc(MIB)
        await eventually(() => s3.uploads.size === 1)
      })(),
      after: 'destroy',
    })
    assert.ok('error' in gone)
    await eventually(() => s3.uploads.size === 0, { what: 'the abort' })
    assert.ok(s3.requests.some(name => /^DELETE .*\?uploadId$/.test(name)))

    s3.refuse = name => (name.startsWith('PUT') ? { status: 501, code: 'NotImplemented' } : null)
    const failed = await upload(app.url, key, { bytes: Buffer.alloc(20 * MIB), name: 'failed' })
    assert.deepEqual([failed.status, codeOf(failed)], [500, 'INTERNAL_ERROR'])
    assert.equal(s3.uploads.size, 0)
    const small = await upload(app.url, key, { bytes: 'x', name: 'failed' })
    assert.deepEqual([small.status, codeOf(small)], [500, 'INTERNAL_ERROR'])
    s3.refuse = () => null
    assert.equal((await upload(app.url, key, { bytes: 'x', name: 'failed' })).status, 201)
  })

  it('drops the object of an upload that is refused, and what a lost process left', async () => {
    const before = s3.objects.size
    const taken = await upload(app.url, key, { bytes: 'x', name: 'failed' })
    assert.equal(taken.status, 409)
    await eventually(() => s3.objects.size === before)
    const location = `own files/ü/${project}/file_lost`
    s3.objects.set(location, Buffer.from('x'))
    s3.uploads.set('lost', { key: location, parts: new Map() })
    s3.uploads.set('other', { key: `${location}er`, parts: new Map() })
    await storageBackends(app.services).abandon({ storage: 's3', location })
    assert.ok(!s3.objects.has(location))
    assert.deepEqual([...s3.uploads.keys()], ['other'])
    s3.uploads.clear()
  })

  it('abandons a store that falls silent', async () => {
    const stall = http.createServer((req, res) => {
      // Of a GET it sends the start.
      if (req.method === 'GET') res.writeHead(200, { 'content-length': '3' }).write('a')
    })
    await new Promise<void>(resolve => stall.listen(0, '127.0.0.1', resolve))
    const backend = s3Backend(
      {
        ...app.config,
        FILES_S3_ENDPOINT: `http://127.0.0.1:${(stall.address() as AddressInfo).port}`,
        FILES_S3_IDLE_TIMEOUT_MS: 200,
      },
      'files',
    )
    try {
      await assert.rejects(backend.write(Readable.from([Buffer.from('abc')]), 'key'), { name: 'TimeoutError' })
      const stream = await backend.read('key')
      await assert.rejects(stream?.toArray() ?? Promise.resolve(), { name: 'TimeoutError' })
    } finally {
      stall.closeAllConnections()
      stall.close()
    }
  })

  it('says that it is set up wrongly when the store refuses its bucket or its credentials', async () => {
    s3.bucket = 'elsewhere'
    const missing = await upload(app.url, key, { bytes: 'x', name: 'm' })
    s3.bucket = 'files'
    assert.deepEqual([missing.status, codeOf(missing)], [500, 'FILE_STORAGE_MISCONFIGURED'])
    process.env.AWS_SECRET_ACCESS_KEY = 'wrong'
    const wrong = await startApp({
      env: {
        FILES_STORAGE_PROVIDER: 's3',
        FILES_S3_BUCKET: s3.bucket,
        FILES_S3_REGION: 'eu-central-1',
        FILES_S3_ENDPOINT: s3.url,
        FILES_S3_FORCE_PATH_STYLE: 'true',
      },
    })
    process.env.AWS_SECRET_ACCESS_KEY = s3.secretAccessKey
    const { key: other } = await wrong.project()
    process.env.AWS_SECRET_ACCESS_KEY = 'wrong'
    const refused = await upload(wrong.url, other, { bytes: 'x' })
    process.env.AWS_SECRET_ACCESS_KEY = s3.secretAccessKey
    assert.deepEqual([refused.status, codeOf(refused)], [500, 'FILE_STORAGE_MISCONFIGURED'])
    assert.ok(wrong.logs.some(line => line.includes('SignatureDoesNotMatch')))
    await wrong.close()
    for (const [status, reason] of [
      [403, 'AccessDenied'],
      [403, 'InvalidAccessKeyId'],
      [400, 'InvalidBucketName'],
    ] as const) {
      s3.refuse = () => ({ status, code: reason })
      const denied = await upload(app.url, key, { bytes: 'x', name: reason })
      assert.deepEqual([denied.status, codeOf(denied)], [500, 'FILE_STORAGE_MISCONFIGURED'], reason)
    }
  })

  it('says so too when it has no region, and when it has no credentials', async () => {
    const names = [...credentials, 'AWS_REGION', 'AWS_PROFILE', 'AWS_SHARED_CREDENTIALS_FILE', 'AWS_CONFIG_FILE']
    const before = names.map(name => process.env[name])
    const bucket = { FILES_STORAGE_PROVIDER: 's3', FILES_S3_BUCKET: s3.bucket, FILES_S3_ENDPOINT: s3.url }
    process.env.AWS_EC2_METADATA_DISABLED = 'true'
    process.env.AWS_SHARED_CREDENTIALS_FILE = '/dev/null'
    process.env.AWS_CONFIG_FILE = '/dev/null'
    delete process.env.AWS_REGION
    try {
      const regionless = await startApp({ env: bucket })
      const one = await upload(regionless.url, (await regionless.project()).key, { bytes: 'x' })
      assert.deepEqual([one.status, codeOf(one)], [500, 'FILE_STORAGE_MISCONFIGURED'])
      assert.ok(regionless.logs.some(line => line.includes('Region is missing')))
      await regionless.close()
      for (const name of credentials) delete process.env[name]
      const anonymous = await startApp({ env: { ...bucket, FILES_S3_REGION: 'eu-central-1' } })
      const two = await upload(anonymous.url, (await anonymous.project()).key, { bytes: 'x' })
      assert.deepEqual([two.status, codeOf(two)], [500, 'FILE_STORAGE_MISCONFIGURED'])
      assert.ok(anonymous.logs.some(line => line.includes('CredentialsProviderError')))
      await anonymous.close()
    } finally {
      delete process.env.AWS_EC2_METADATA_DISABLED
      for (const [index, name] of names.entries())
        if (before[index] === undefined) delete process.env[name]
        else process.env[name] = before[index]
    }
  })

  it('is addressed by a separate host name unless the path contains the bucket', async () => {
    const lookup = dns.lookup
    const asked = new Set<string>()
    // The names of buckets below an address exist in the world's name service only.
    dns.lookup = ((host: string, options: object, done: unknown) => {
      asked.add(host)
      return (lookup as unknown as (...given: unknown[]) => void)('127.0.0.1', options, done)
    }) as never
    try {
      const { port } = new URL(s3.url)
      const hosted = await startApp({
        env: {
          FILES_STORAGE_PROVIDER: 's3',
          FILES_S3_BUCKET: s3.bucket,
          FILES_S3_REGION: 'eu-central-1',
          FILES_S3_ENDPOINT: `http://store.example:${port}`,
        },
      })
      const own = await hosted.project()
      const made = await upload(hosted.url, own.key, { bytes: 'abc', name: 'hosted' })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.equal(s3.objects.get(`${own.id}/${made.body.id}`)?.toString(), 'abc')
      assert.equal((await download(hosted.url, own.key.token, made.body.id)).bytes.toString(), 'abc')
      assert.ok(asked.has(`${s3.bucket}.store.example`), [...asked].join())
      await hosted.close()
    } finally {
      dns.lookup = lookup
    }
  })
})
