import { strict as assert } from 'node:assert'
import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, startApp, type TestApp } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { download, handmade, sendRaw, upload } from './file-support.ts'

const MIB = 1024 * 1024
const SIZE = 200 * MIB
const BOUND = 64 * MIB

/** What a process holds in memory, in bytes. */
const resident = async (pid: number): Promise<number> =>
  Number(/VmRSS:\s+(\d+) kB/.exec(await readFile(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024

/** The most that a process held while something was done, above what it held before. */
async function growth(pid: number, work: () => Promise<void>): Promise<number> {
  const before = await resident(pid)
  let most = before
  let done = false
  const watching = (async () => {
    while (!done) {
      most = Math.max(most, await resident(pid))
      await sleep(20)
    }
  })()
  await work()
  done = true
  await watching
  return most - before
}

describe('the memory of a web process', function () {
  this.timeout(180_000)
  let app: TestApp
  let web: TestProcess
  let key: Client
  let id: string
  let sha256: string

  before(async () => {
    app = await startApp()
    ;({ key } = await app.project())
    web = await startProcess('web', app.databaseUrl, { FILES_MAX_UPLOAD_BYTES: String(SIZE) })
    // What a process takes once, whatever the size: compiled code, and the heap that the engine grows to at first.
    for (let index = 0; index < 5; index++) {
      const made = await upload(web.url, key, { bytes: Buffer.alloc(4 * MIB), name: `warm${index}` })
      await download(web.url, key.token, made.body.id)
    }
    await sleep(1000)
  })
  after(async () => {
    await web.kill()
    await app.close()
  })

  it('grows by less than 64 MiB for an upload of 200 MB', async () => {
    const { head, tail, type } = handmade('bound')
    const hash = createHash('sha256')
    const piece = Buffer.alloc(MIB)
    let made: any
    const grown = await growth(web.pid, async () => {
      made = await sendRaw(web.url, {
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

  it('grows by less than 64 MiB for a download of 200 MB by a reader that pauses', async () => {
    const hash = createHash('sha256')
    const grown = await growth(web.pid, async () => {
      const response = await new Promise<import('node:http').IncomingMessage>((resolve, reject) =>
        get(
          `${web.url}/api/v1/files/${id}/download`,
          { headers: { authorization: `Bearer ${key.token}` } },
          resolve,
        ).on('error', reject),
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
})
