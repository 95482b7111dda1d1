import { randomBytes } from 'node:crypto'
import { request } from 'node:http'
import { pathToFileURL } from 'node:url'
import { handmade } from '../content/file-support.ts'
import { startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { memory, start } from './http.ts'
import type { Row } from './rows.ts'

/**
 * Bytes a second into and out of one web process, and small uploads a second, next to bare Express: to /dev/null, and
 * with the same chunks in the same table. Usage: node test/bench/files.ts [MiB a file, default 64]
 */
const MIB = 1024 * 1024
const ROUNDS = 3
const SMALL_BYTES = 1024
const SMALL_UPLOADS = 1500
const CONNECTIONS = 16

type Headers = Record<string, string>

/** Sends a body piece by piece, at the speed of the receiver; returns the response. */
const send = (url: string, headers: Headers, pieces: readonly (Buffer | string)[]): Promise<any> =>
  new Promise((resolve, reject) => {
    const sending = request(url, { method: 'POST', headers }, async response => {
      let text = ''
      for await (const piece of response) text += piece
      if ((response.statusCode as number) >= 300) reject(new Error(`${url}: ${response.statusCode} ${text}`))
      else resolve(JSON.parse(text))
    })
    sending.on('error', reject)
    void (async () => {
      for (const piece of pieces)
        if (!sending.write(piece)) await new Promise(resolve => sending.once('drain', resolve))
      sending.end()
    })()
  })

/** Reads an answer to its end; answers its length. */
const read = async (url: string, headers: Headers): Promise<number> => {
  const response = await fetch(url, { headers })
  let length = 0
  for await (const piece of response.body as ReadableStream<Uint8Array>) length += piece.length
  return length
}

const seconds = async (work: () => Promise<unknown>): Promise<number> => {
  const started = performance.now()
  await work()
  return (performance.now() - started) / 1000
}

export async function run(mib = 64): Promise<Row[]> {
  const app = await startApp()
  const env = {
    ...testEnvironment(app.databaseUrl),
    LOG_LEVEL: 'info',
    DATABASE_POOL_MAX: '20',
    FILES_MAX_UPLOAD_BYTES: String(mib * MIB),
  }
  const { id: project, key } = await app.project()
  const web = await start('src/web.ts', env)
  const floor = await start('test/bench/floor.ts', env)
  web.child.stdout?.resume()
  const { head, tail, type } = handmade('bound')
  const authorization = `Bearer ${key.token}`
  const pieces = Array.from({ length: mib }, () => randomBytes(MIB))
  const rows: Row[] = []
  let counter = 0
  const note = (ours: number, theirs: number, unit: string, what: string) =>
    `${Math.round(ours)} ${unit} against ${Math.round(theirs)} ${unit} ${what}`
  try {
    const upload = (parts: readonly (Buffer | string)[]) =>
      send(`${web.url}/api/v1/files/upload`, { 'content-type': type, authorization }, [
        head.replace('file.bin', `bench${++counter}`),
        ...parts,
        tail,
      ])
    const raw = { 'content-type': 'application/octet-stream' }
    const took = { ours: 0, table: 0, nothing: 0, readOurs: 0, readTable: 0 }
    const before = await memory(web.child)
    let most = before
    const watch = setInterval(async () => {
      most = Math.max(most, await memory(web.child))
    }, 50)
    await upload(pieces)
    await send(`${floor.url}/blobs`, raw, pieces)
    for (let round = 0; round < ROUNDS; round++) {
      let file: any
      let blob: any
      took.nothing += await seconds(() => send(`${floor.url}/null`, raw, pieces))
      took.table += await seconds(async () => {
        blob = await send(`${floor.url}/blobs`, raw, pieces)
      })
      took.ours += await seconds(async () => {
        file = await upload(pieces)
      })
      took.readTable += await seconds(() => read(`${floor.url}/blobs/${blob.id}`, {}))
      took.readOurs += await seconds(async () => {
        const length = await read(`${web.url}/api/v1/files/${file.id}/download`, { authorization })
        if (length !== mib * MIB) throw new Error(`${length} bytes came back`)
      })
    }
    clearInterval(watch)
    const rate = (time: number) => (mib * ROUNDS) / time
    const compared = (what: string, target: number | null, ours: number, theirs: number, against: string) =>
      rows.push({
        what,
        value: Number((theirs / ours).toFixed(2)),
        unit: 'x',
        ...(target === null ? {} : { target: `>= ${target}` }),
        note: note(rate(ours), rate(theirs), 'MiB/s', against),
      })
    compared(`upload of ${mib} MiB`, 0.6, took.ours, took.table, 'into the same table')
    compared('the same', null, took.ours, took.nothing, 'into /dev/null')
    compared(`download of ${mib} MiB`, 0.6, took.readOurs, took.readTable, 'from the same table')
    rows.push({ what: 'memory that web took more for it, at most', value: most - before, unit: 'MiB', target: '< 64' })

    const small = randomBytes(SMALL_BYTES)
    const many = (work: () => Promise<unknown>) =>
      seconds(async () => {
        let left = SMALL_UPLOADS
        const sender = async () => {
          while (left-- > 0) await work()
        }
        await Promise.all(Array.from({ length: CONNECTIONS }, sender))
      })
    const smallOurs = () => upload([small])
    const smallTheirs = () =>
      send(`${floor.url}/files?project_id=${project}`, { 'content-type': type }, [head, small, tail])
    for (let warm = 0; warm < 100; warm++) await Promise.all([smallOurs(), smallTheirs()])
    const [a, b, c, d] = [
      await many(smallTheirs),
      await many(smallOurs),
      await many(smallTheirs),
      await many(smallOurs),
    ]
    rows.push({
      what: `uploads of ${SMALL_BYTES} bytes, ${CONNECTIONS} concurrently`,
      value: Number(((a + c) / (b + d)).toFixed(2)),
      unit: 'x',
      target: '>= 0.5',
      note: note((2 * SMALL_UPLOADS) / (b + d), (2 * SMALL_UPLOADS) / (a + c), '/s', 'with the same rows'),
    })
  } finally {
    web.child.kill('SIGKILL')
    floor.child.kill('SIGKILL')
    await app.close()
  }
  return rows
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
