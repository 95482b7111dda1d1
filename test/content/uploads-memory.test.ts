import { strict as assert } from 'node:assert'
import { createHash, randomBytes } from 'node:crypto'
import { get, type IncomingMessage } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, startApp, type TestApp } from '../support/app.ts'
import { HEAP_FLAGS, resident, startProcess } from '../support/processes.ts'
import { formOf, handmade, sendForm, sendRaw } from './file-support.ts'

const MIB = 1024 * 1024
const SIZE = 128 * MIB
const BOUND = 64 * MIB

// A process that has done nothing yet: a warm process has taken the memory that it needs before it is measured.
describe('the memory of a web process that has just started', function () {
  this.timeout(180_000)
  let app: TestApp
  let key: Client
  let id: string
  let sha256: string

  before(async function () {
    if (process.platform !== 'linux') this.skip()
    app = await startApp()
    ;({ key } = await app.project())
  })
  after(() => app?.close())

  /** The most that a fresh process held during a task, above its earlier memory. */
  async function growth(work: (url: string) => Promise<void>): Promise<number> {
    const web = await startProcess('web', app.databaseUrl, { FILES_MAX_UPLOAD_BYTES: String(SIZE) }, [], HEAP_FLAGS)
    try {
      const before = await resident(web.pid)
      await work(web.url)
      return (await resident(web.pid)).most - before.now
    } finally {
      await web.kill()
    }
  }

  it('grows by less than 64 MiB for an upload of 128 MiB', async () => {
    const { head, tail, type } = handmade('bound')
    const hash = createHash('sha256')
    const piece = Buffer.alloc(MIB)
    let made: any
    const grown = await growth(async url => {
      made = await sendRaw(url, {
        path: '/files/upload',
        token: key.token,
        headers: { 'content-type': type },
        pieces: (async function* () {
          yield head
          for (let index = 0; index < SIZE / MIB; index++) {
            piece.fill(index)
            hash.update(piece)
            yield Buffer.from(piece)
          }
          yield tail
        })(),
      })
    })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    id = made.body.id
    sha256 = hash.digest('hex')
    assert.equal(made.body.size, SIZE)
    assert.equal(made.body.checksum_sha256, sha256)
    assert.ok(grown < BOUND, `${Math.round(grown / MIB)} MiB`)
  })

  it('grows by less than 64 MiB for a download of 128 MiB by a reader that pauses', async () => {
    const hash = createHash('sha256')
    const grown = await growth(async url => {
      const response = await new Promise<IncomingMessage>((resolve, reject) =>
        get(`${url}/api/v1/files/${id}/download`, { headers: { authorization: `Bearer ${key.token}` } }, resolve).on(
          'error',
          reject,
        ),
      )
      let read = 0
      let pauses = 0
      for await (const piece of response) {
        hash.update(piece)
        read += piece.length
        if (read / (20 * MIB) > pauses) {
          pauses++
          await sleep(300)
        }
      }
      assert.equal(read, SIZE)
    })
    assert.equal(hash.digest('hex'), sha256)
    assert.ok(grown < BOUND, `${Math.round(grown / MIB)} MiB`)
  })

  for (const [readers, size] of [
    [16, 16 * MIB],
    [64, 4 * MIB],
  ]) {
    it(`grows by less than 320 MiB for ${readers} reads of ${size / MIB} MiB in base64 concurrently`, async () => {
      const bytes = randomBytes(size)
      const form = formOf([{ bytes, name: `read-${readers}.bin`, type: 'application/x-bin' }])
      const { body: made } = await sendForm(app.url, key.token, '/files/upload', form)
      const expected = createHash('sha256')
        .update(`{"content":"${bytes.toString('base64')}",`)
        .update(`"filename":"read-${readers}.bin","content_type":"application/x-bin","size":${size}}`)
        .digest('hex')
      const grown = await growth(async url => {
        const read = async (): Promise<void> => {
          const response = await new Promise<IncomingMessage>((resolve, reject) =>
            get(
              `${url}/api/v1/files/${made.id}/download/base64`,
              { headers: { authorization: `Bearer ${key.token}` } },
              resolve,
            ).on('error', reject),
          )
          const hash = createHash('sha256')
          for await (const piece of response) hash.update(piece)
          // A busy machine: the project's other reads hold its connections for longer than a request may wait.
          if (response.statusCode === 503) return sleep(1000 * Number(response.headers['retry-after'])).then(read)
          assert.equal(response.statusCode, 200)
          assert.equal(response.headers['content-type'], 'application/json; charset=utf-8')
          assert.equal(hash.digest('hex'), expected)
        }
        await Promise.all(Array.from({ length: readers }, read))
      })
      assert.ok(grown < 5 * BOUND, `${Math.round(grown / MIB)} MiB`)
    })
  }

  it('grows by less than 160 MiB for eight concurrent uploads of 25 MiB in base64', async () => {
    const body = Buffer.from(JSON.stringify({ content: Buffer.alloc(25 * MIB).toString('base64') }))
    const headers = { 'content-type': 'application/json' }
    const grown = await growth(async url => {
      const send = () =>
        sendRaw(url, { path: '/files/upload/base64', token: key.token, headers, pieces: [body] }) as Promise<any>
      for (const made of await Promise.all(Array.from({ length: 8 }, send))) assert.equal(made.body.size, 25 * MIB)
    })
    // Texts and their bytes are garbage immediately, of which V8 lets tens of MiB lie. Held whole they were 466 MiB.
    assert.ok(grown < 2.5 * BOUND, `${Math.round(grown / MIB)} MiB`)
  })
})
