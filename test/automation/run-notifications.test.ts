import assert from 'node:assert/strict'
import pg from 'pg'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { chain, startRunApp } from './fixtures.ts'

/** Poll of a request that waits. */
const POLL_MS = 1000

describe('the end of a run in its notification', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp())
  const heard: string[] = []
  const listener = forSuite(async () => {
    const connection = new pg.Client(app.databaseUrlOf(app.projectId))
    await connection.connect()
    connection.on('notification', ({ payload }) => heard.push(payload ?? ''))
    await connection.query('listen muster_orchestration_runs')
    return {
      notify: (payload: string) => connection.query(`select pg_notify('muster_orchestration_runs', $1)`, [payload]),
      close: () => connection.end(),
    }
  })
  beforeEach(() => {
    heard.splice(0)
    app.target.answer = json({ ok: true })
  })

  const ends = (id: string) => heard.filter(payload => payload.startsWith(`${id} `) && payload.split(' ').length === 4)
  const reads = () =>
    app.statements.filter(text => /from (orchestration_node_executions|"orchestration_runs") t/.test(text)).length
  /**
   * Work whose request waits, and how often the web process read the run. Repeats work that took longer than the poll of a
   * waiting request, which reads the run too.
   */
  const waited = async <T>(work: () => Promise<T>): Promise<{ result: T; read: number }> => {
    for (let tries = 1; ; tries++) {
      const before = reads()
      const started = performance.now()
      const result = await work()
      if (performance.now() - started < POLL_MS || tries === 5) return { result, read: reads() - before }
    }
  }

  it('is the run as GET returns it, which is not read', async () => {
    const tool_id = await app.tool()
    const graph = await app.orchestration(
      [
        { id: 'call', type: 'tool', tool_id },
        { id: 'ask', type: 'human', prompt: 'How many?' },
      ],
      chain('call', 'ask'),
    )
    app.target.answer = (_request, response) => {
      response.setHeader('content-type', 'application/json')
      response.end('{"price": 12345678901234567890.12, "name": "\u2028 "ü""}')
    }
    const { result: asking, read } = await waited(() => app.start(graph, { input: { n: 1 }, metadata: { a: 'b' } }))
    assert.deepEqual([asking.status, read], ['awaiting_input', 0])
    assert.deepEqual(asking, await app.read(asking.id))
    const answered = await app.key.post(`/orchestration-runs/${asking.id}/human-input`, {
      node_id: 'ask',
      output: { n: 2 },
    })
    assert.equal(answered.body.status, 'succeeded')
    assert.ok(answered.body.usage)
    assert.deepEqual(answered.body, await app.read(asking.id))
    assert.equal(ends(asking.id).length, 2)
  })

  it('has the addresses of callbacks for callers who may use them', async () => {
    const graph = await app.orchestration([{ id: 'hook', type: 'webhook' }])
    const run = await app.start(graph)
    assert.match(run.required_action.callback_url, /^http/)
    assert.deepEqual(run, await app.read(run.id))
  })

  it('is read if the notification does not have it', async () => {
    const text = Array.from({ length: 3000 }, (_, n) => (n * 7919 * 104_729).toString(36)).join('')
    const run = await app.run([{ id: 'large', type: 'transform', expression: { cat: [text] } }])
    assert.deepEqual([run.status, run.output.large.result], ['succeeded', text])
    assert.deepEqual(ends(run.id), [])
  })

  it('is not in it if no caller waits', async () => {
    const graph = await app.orchestration([{ id: 'ask', type: 'human' }])
    const run = await app.start(graph, { wait: false })
    await app.until(run.id, ({ status }) => status === 'awaiting_input')
    const body = { node_id: 'ask', output: {}, wait: false }
    assert.equal((await app.key.post(`/orchestration-runs/${run.id}/human-input`, body)).status, 200)
    await app.until(run.id)
    await eventually(() => heard.includes(`${run.id} succeeded`))
    assert.ok(heard.includes(`${run.id} awaiting_input`))
    assert.deepEqual(ends(run.id), [])
  })

  it('is taken from no earlier and no forged notification', async () => {
    const tool_id = await app.tool()
    const graph = await app.orchestration(
      [
        { id: 'first', type: 'human' },
        { id: 'call', type: 'tool', tool_id },
        { id: 'second', type: 'human' },
      ],
      chain('first', 'call', 'second'),
    )
    const run = await app.start(graph)
    const [earlier] = await eventually(() => (ends(run.id).length === 1 ? ends(run.id) : null))
    let release = () => {}
    app.target.answer = (request, response) => {
      release = () => void json({ ok: true })(request, response)
    }
    const calls = app.target.requests.length
    const answer = app.key.post(`/orchestration-runs/${run.id}/human-input`, { node_id: 'first', output: {} })
    await eventually(() => app.target.requests.length > calls)
    const [, , revision, sealed] = earlier.split(' ')
    await listener.notify(earlier)
    await listener.notify(`${run.id} awaiting_input ${Number(revision) + 100} ${sealed}`)
    await listener.notify(`${run.id} succeeded 100 ${Buffer.alloc(64).toString('base64')}`)
    const state = await Promise.race([answer, eventually(async () => (await app.read(run.id)).status === 'running')])
    assert.equal(state, true)
    release()
    const { body } = await answer
    assert.deepEqual([body.status, body.required_action.node_id], ['awaiting_input', 'second'])
    assert.deepEqual(body, await app.read(run.id))
  })
})
