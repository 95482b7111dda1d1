import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { addressOf } from '#core/db/database-url.ts'
import { startDouble } from '#local/double/server.ts'
import { type Client, eventually } from '../support/app.ts'
import { startCells, type TestCells } from '../support/cells.ts'
import { run } from '../support/commands.ts'
import { testEnvironment } from '../support/environment.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

/** Longest time for which a request may wait in these tests, on a busy machine; a call is held for five seconds. */
const MOST_PAUSE_MS = 10_000

const commandFor = (cells: TestCells) => async (args: string[], env: Record<string, string> = {}) =>
  run('bin/muster.mjs', ['cells', ...args], { ...testEnvironment(cells.home), ...cells.env, ...env })

/** Creates a database on the server of a URL, and returns its URL. */
async function databaseOf(cells: TestCells, serverUrl: string, name: string): Promise<string> {
  await cells.rows(serverUrl, `create database ${name}`)
  const url = new URL(serverUrl)
  url.pathname = `/${name}`
  return url.href
}

/** Load on a project: writes and turns whose answers are noted. A request without an answer is repeated with its key. */
function startLoad(key: Client, sessions: readonly string[]) {
  let stopped = false
  let longestMs = 0
  const written: string[] = []
  const turns: string[] = []
  const refusals: string[] = []
  const post = async (path: string, body: object): Promise<any> => {
    const headers = { 'idempotency-key': randomUUID() }
    const since = performance.now()
    for (;;) {
      const reply = await key.post(path, body, headers).catch(error => ({ status: 0, body: String(error) }) as any)
      if (reply.status >= 200 && reply.status < 300) {
        longestMs = Math.max(longestMs, performance.now() - since)
        return reply.body
      }
      refusals.push(`${path} ${reply.status} ${reply.body?.error?.code ?? reply.body}`)
      assert.ok(reply.status === 503 || reply.status === 409 || reply.status === 0, refusals.at(-1))
    }
  }
  const writer = async () => {
    while (!stopped) written.push((await post('/conversations', { name: 'Written' })).id)
  }
  const talker = async (session: string) => {
    while (!stopped) {
      await post(`/sessions/${session}/messages`, { message: 'Hello' })
      const { generation_id } = await post(`/sessions/${session}/generate`, {})
      turns.push(generation_id)
      await eventually(async () => (await key.get(`/generations/${generation_id}`)).body.status === 'completed', {
        within: 60_000,
      })
    }
  }
  const running = Promise.all([writer(), writer(), ...sessions.map(talker)])
  return {
    written,
    turns,
    refusals,
    get longestMs() {
      return longestMs
    },
    async stop() {
      stopped = true
      await running
    },
  }
}

async function newSessions(key: Client, doubleUrl: string, count: number): Promise<string[]> {
  const provider = await postedBy(key, '/ai-providers', {
    name: 'double',
    provider: 'custom',
    default_model: 'double-1',
    base_url: `${doubleUrl}/v1`,
  })
  const agent = await postedBy(key, '/agents', { name: 'Helper', ai_provider_id: provider.id })
  return Promise.all(
    Array.from({ length: count }, async () => (await postedBy(key, '/sessions', { agent_id: agent.id })).id),
  )
}

describe('a cell that is moved', function () {
  this.timeout(600_000)
  const double = forSuite(() => startDouble({}))
  const cells = forSuite(() => startCells({ servers: true, workers: true }))
  const muster = (args: string[], env?: Record<string, string>) => commandFor(cells)(args, env)

  it('to and fro under load loses nothing, and runs nothing twice', async () => {
    const { id: project, key } = await cells.project('second')
    const sessions = await newSessions(key, double.url, 2)
    const third = await databaseOf(cells, cells.home, 'third')
    const load = startLoad(key, sessions)
    await eventually(() => load.turns.length > 2)
    let at = cells.second
    for (const to of [third, cells.second, third]) {
      const moved = await muster(['move', 'second', '--url', to, '--json'])
      assert.equal(moved.code, 0, `${moved.stderr}\n${moved.stdout}`)
      const facts = JSON.parse(moved.stdout)
      console.log(moved.stderr, facts, load.longestMs, load.refusals.splice(0))
      assert.deepEqual([facts.from, facts.to], [addressOf(at), addressOf(to)])
      at = to
      const count = load.turns.length
      await eventually(() => load.turns.length > count + 2, { within: 60_000 })
    }
    await load.stop()
    console.log(load.written.length, load.turns.length)
    const inCell = (text: string, values?: unknown[]) => cells.rows(at, text, values)
    const [{ written }] = await inCell(
      `select count(*)::int as written from conversations where project_id = $1 and name = 'Written'`,
      [project],
    )
    assert.equal(written, load.written.length)
    console.log(await inCell(`select type, count(*)::int from events where project_id = $1 group by 1`, [project]))
    assert.ok(load.longestMs < MOST_PAUSE_MS)
  })
})
