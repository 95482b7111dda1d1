import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from '#core/db/sql.ts'
import { chain, startRunApp } from '../automation/fixtures.ts'
import { madeTrigger } from '../automation/triggers-support.ts'
import { json } from '../execution/tool-target.ts'
import { client as doubleOf } from '../local/double/client.ts'
import { client, eventually, type Reply } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startResettingProxy } from '../support/resetting-proxy.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'

const RESETS = rounds('RESETS', 40, 400)
const EVERY_MS = 125
/** Callers of each kind of work together. */
const CALLERS = 2

/** A network between the processes and PostgreSQL that resets a connection at random, eight times a second. */
describe('processes whose connections to the database are reset', function () {
  this.timeout(300_000)
  const app = forSuite(() => startRunApp({ workers: [], actions: ['*'] }))
  const proxy = forSuite(() => startResettingProxy(app.databaseUrl))
  const processes: TestProcess[] = []
  before(async () => {
    const env = { EGRESS_ALLOW_HOSTS: '127.0.0.1' }
    processes.push(await startProcess('web', proxy.url, env))
    const concerns = ['orchestration', 'generation', 'trigger']
    for (let n = 0; n < 2; n++) processes.push(await startProcess('worker', proxy.url, env, concerns))
  })
  after(async () => {
    await Promise.all(processes.map(each => each.kill()))
  })

  it('lose and fail nothing that was acknowledged, and answer 2xx or 503 with Retry-After', async () => {
    const double = doubleOf(app.double)
    await double.put('said', { rules: [] })
    await double.put('called', {
      rules: [
        { when: { last_role: 'tool' }, reply: { text: 'done' } },
        { reply: { tool_calls: [{ name: 'lookup', args: {} }] } },
      ],
    })
    app.target.answer = json({ ok: true })
    const tool_id = await app.tool({ name: 'lookup' })
    const agent = await app.agent({ model: 'said/m' })
    const calling = await app.agent({ model: 'called/m', tool_bindings: [{ tool_id }] })
    const orchestration_id = await app.orchestration(
      ['a', 'b', 'c'].map(id => ({ id, type: 'tool', tool_id })),
      chain('a', 'b', 'c'),
    )
    const trigger = await madeTrigger(app.key, { target_type: 'tool', target_id: tool_id })
    const key = client(processes[0].url, app.key.token)

    const acknowledged: Record<'turns' | 'waited' | 'runs' | 'firings' | 'actors', string[]> = {
      turns: [],
      waited: [],
      runs: [],
      firings: [],
      actors: [],
    }
    const unexpected: string[] = []
    let refused = 0
    let over = false
    let number = 0
    /** Sends a request again, as a client does, until a limit. */
    const call = async (send: () => Promise<Reply>): Promise<any> => {
      for (;;) {
        const { status, body, headers } = await send()
        if (status >= 200 && status < 300) return body
        // The claim of a key whose request lost its connection ends a little later.
        const isRepeatable = status === 503 || (status === 409 && body.error.code === 'IDEMPOTENCY_IN_PROGRESS')
        if (isRepeatable && headers.has('retry-after')) refused++
        else unexpected.push(`${status} ${JSON.stringify(body)}`)
        if (over) return null
        await sleep(20)
      }
    }
    const again = (work: () => Promise<void>) =>
      Array.from({ length: CALLERS }, async () => {
        while (!over) await work()
      })
    const made = async (path: string, body: object, kept: string[], idOf = (answer: any) => answer.id) => {
      const headers = { 'idempotency-key': `k${++number}` }
      const answer = await call(() => key.post(path, body, headers))
      if (answer) kept.push(idOf(answer))
    }
    const idOfTurn = (turn: any) => ('generation_id' in turn ? turn.generation_id : turn.id)
    const work = [
      ...again(() => made(`/agents/${agent}/generate`, { prompt: 'x' }, acknowledged.turns, idOfTurn)),
      ...again(() => made(`/agents/${calling}/generate?wait=true`, { prompt: 'x' }, acknowledged.waited, idOfTurn)),
      ...again(() => made('/orchestration-runs', { orchestration_id, wait: false }, acknowledged.runs)),
      ...again(() => made(`/triggers/${trigger.id}/fire`, { wait: false }, acknowledged.firings)),
      ...again(() => made('/actors', { name: `actor ${++number}` }, acknowledged.actors)),
      ...again(async () => void (await call(() => key.get('/actors?limit=5')))),
    ]
    const hasEnough = () => Object.values(acknowledged).every(ids => ids.length > 5)
    for (let resets = 0, end = Date.now() + 120_000; resets < RESETS || (!hasEnough() && Date.now() < end); ) {
      if (proxy.resetOne()) resets++
      await sleep(EVERY_MS)
    }
    over = true
    await Promise.all(work)

    assert.deepEqual(unexpected.slice(0, 20), [], `${unexpected.length} answers`)
    const counts = Object.fromEntries(Object.entries(acknowledged).map(([name, ids]) => [name, ids.length]))
    for (const [name, count] of Object.entries(counts)) assert.ok(count > 5, `${name}: ${count}`)
    assert.ok(refused > 0, 'some requests met a reset')

    const { pool } = app
    const states = (text: 'generations' | 'orchestration_runs' | 'trigger_firings', column: string, ids: string[]) =>
      pool.any(sql.unsafe`
        select ${sql.identifier([column])} as state, error::text as error from ${sql.identifier([text])}
        where id = any(${sql.array(ids, 'text')})`) as Promise<readonly { state: string; error: string | null }[]>
    const settled = async (table: Parameters<typeof states>[0], column: string, ids: string[], end: string) => {
      const open = ['pending', 'in_progress', 'queued', 'running', 'started']
      await eventually(async () => (await states(table, column, ids)).every(({ state }) => !open.includes(state)), {
        within: 120_000,
        every: 200,
        what: `the end of all ${table}`,
      })
      const rows = await states(table, column, ids)
      assert.equal(rows.length, ids.length, `every acknowledged row of ${table} is there`)
      assert.deepEqual(
        rows.filter(({ state }) => state !== end),
        [],
        table,
      )
    }
    const turns = [...acknowledged.turns, ...acknowledged.waited]
    await settled('generations', 'status', turns, 'completed')
    await settled('orchestration_runs', 'status', acknowledged.runs, 'succeeded')
    await settled('trigger_firings', 'state', acknowledged.firings, 'succeeded')
    const found = (await pool.anyFirst(
      sql.unsafe`select name from actors where id = any(${sql.array(acknowledged.actors, 'text')})`,
    )) as string[]
    assert.equal(found.length, acknowledged.actors.length)
    const all = Number(await pool.oneFirst(sql.unsafe`select count(*) from actors`))
    const names = Number(await pool.oneFirst(sql.unsafe`select count(distinct name) from actors`))
    assert.equal(all, names, 'a repeat under its key made nothing twice')
    const dead = await pool.any(sql.unsafe`select name, data::text from pgboss.job where name like '%.dead'`)
    assert.deepEqual(dead, [])
    // Nothing that was requested in addition to acknowledged work has failed either.
    for (const [table, column] of [
      ['generations', 'status'],
      ['orchestration_runs', 'status'],
      ['trigger_firings', 'state'],
    ] as const)
      assert.deepEqual(
        await pool.any(
          sql.unsafe`select id, error::text from ${sql.identifier([table])} where ${sql.identifier([column])} = 'failed'`,
        ),
        [],
        table,
      )
  })
})
