import type { ChildProcess } from 'node:child_process'
import http from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { startSessionApp } from '../conversation/session-support.ts'
import { client, eventually } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { startCountingProxy } from './counting-proxy.ts'
import { start } from './http.ts'
import { percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Open session streams in one web process: memory beyond connections that are only open, statements while nothing
 * happens, readers woken by a message, and the time of text until a second reader has it. Usage: node
 * test/bench/streams.ts [streams]
 */
const QUIET_SECONDS = 10
const TURNS = 20

type Reader = { text: string; close(): void; onText?: () => void }

/** Opens a stream, or with another path a connection that stays open after its response. */
function open(url: string, token: string, path: string, agent: http.Agent | false): Reader {
  const reader: Reader = { text: '', close: () => request.destroy() }
  const request = http.get(`${url}${path}`, { agent, headers: { authorization: `Bearer ${token}` } }, response => {
    response.setEncoding('utf8')
    response.on('data', (chunk: string) => {
      reader.text += chunk
      reader.onText?.()
    })
    response.on('error', () => {})
  })
  request.on('error', () => {})
  return reader
}

async function residentBytes({ pid }: ChildProcess): Promise<number> {
  const { readFile } = await import('node:fs/promises')
  const status = await readFile(`/proc/${pid}/status`, 'utf8')
  return Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]) * 1024
}

export async function run(streams = 5000): Promise<Row[]> {
  const app = await startSessionApp({ workers: ['generation'] })
  const proxy = await startCountingProxy(app.databaseUrl)
  const readers: Reader[] = []
  const agent = new http.Agent({ keepAlive: true, maxSockets: streams, maxFreeSockets: streams })
  let child: ChildProcess | undefined
  try {
    const web = await start('src/web.ts', {
      ...testEnvironment(proxy.url),
      STREAM_PING_INTERVAL_MS: '3600000',
      HTTP_KEEP_ALIVE_MS: '600000',
      STREAMS_PER_PROJECT: '20000',
    })
    child = web.child
    child.stdout?.resume()
    const token = app.key.token as string
    const { agentId } = await app.scripted([
      { reply: { text: 'one two three four five', chunk_words: 1, chunk_delay_ms: 100 } },
    ])
    const sessions: string[] = []
    while (sessions.length < streams)
      sessions.push(
        ...(await Promise.all(
          Array.from({ length: 50 }, async () => (await app.session({ agent_id: agentId, auto_generate: true })).id),
        )),
      )
    const openAll = async (pathOf: (n: number) => string, seen: string) => {
      const opened: Reader[] = []
      for (let n = 0; n < streams; n += 100) {
        const some = Array.from({ length: 100 }, (_, each) => open(web.url, token, pathOf(n + each), agent))
        opened.push(...some)
        await eventually(() => some.every(({ text }) => text.includes(seen)), { within: 60_000 })
      }
      await sleep(3000)
      return opened
    }
    // Connections of the same number, each with a response of the same session.
    await openAll(n => `/api/v1/sessions/${sessions[n]}`, 'sess_')
    const floor = await residentBytes(child)
    readers.push(...(await openAll(n => `/api/v1/sessions/${sessions[n]}/stream`, 'event: ready')))
    const loaded = await residentBytes(child)

    proxy.take()
    await sleep(QUIET_SECONDS * 1000)
    const idle = proxy.take().filter(({ statement }) => !/^(select 1|BEGIN|COMMIT)/i.test(statement))
    const ofStreams = idle.filter(({ statement }) => /session|conversation|stream/.test(statement))

    const caller = client(app.url, token)
    const target = readers[7]
    await caller.post(`/sessions/${sessions[7]}/messages`, { message: 'wake' })
    await eventually(() => target.text.includes('turn_completed'))
    const woken = readers.filter(({ text }) => text.includes('event: message')).length

    const second = open(web.url, token, `/api/v1/sessions/${sessions[7]}/stream`, false)
    readers.push(second)
    await eventually(() => second.text.includes('event: ready'))
    const delays: number[] = []
    for (let n = 0; n < TURNS; n++) {
      const seen = new Map<Reader, number[]>([
        [target, []],
        [second, []],
      ])
      for (const [reader, times] of seen) {
        let from = reader.text.length
        reader.onText = () => {
          if (reader.text.slice(from).includes('event: delta')) times.push(performance.now())
          from = reader.text.length
        }
      }
      const before = second.text.split('turn_completed').length
      await caller.post(`/sessions/${sessions[7]}/messages`, { message: `turn ${n}` })
      await eventually(() => second.text.split('turn_completed').length > before)
      const [first, other] = [...seen.values()]
      for (let each = 0; each < Math.min(first.length, other.length); each++)
        delays.push(Math.abs(other[each] - first[each]))
    }
    return [
      {
        what: `memory of an open stream, ${streams} in one process`,
        value: rounded((loaded - floor) / streams / 1024),
        unit: 'KiB',
        target: '<= 24',
        note: `${rounded(floor / 2 ** 20)} MiB with as many idle connections, ${rounded(loaded / 2 ** 20)} MiB with streams`,
      },
      {
        what: 'statements of streams a second while nothing happens',
        value: rounded(ofStreams.reduce((sum, { count }) => sum + count, 0) / QUIET_SECONDS, 2),
        unit: '1/s',
        target: '<= 0.01',
        note: ofStreams.map(({ statement, count }) => `${count} ${statement.slice(0, 50)}`).join('; '),
      },
      { what: 'readers woken by a message', value: woken, unit: '', target: '<= 1' },
      {
        what: 'text at a second reader after the first, p95',
        value: rounded(percentile(delays, 0.95)),
        unit: 'ms',
        target: '< 150',
        note: `${delays.length} parts`,
      },
    ]
  } finally {
    for (const reader of readers) reader.close()
    agent.destroy()
    child?.kill('SIGKILL')
    proxy.close()
    await app.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
