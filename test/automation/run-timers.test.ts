import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, set, startRunApp } from './fixtures.ts'

describe('run timers', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startRunApp({
      env: {
        ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000',
        ORCHESTRATION_WAIT_MAX_MS: '1500',
        ORCHESTRATION_NODE_LEASE_SECONDS: '2',
      },
    }),
  )
  let tool_id: string

  before(async () => {
    tool_id = await app.tool()
  })
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = json({ ok: true })
  })

  const call = (id: string, more: object = {}) => ({ id, type: 'tool', tool_id, ...more })
  const forgetTimers = () =>
    app.pool.query(rawQuery(`delete from pgboss.job where name ~ '^(run|node)[.]' and state = 'created'`))

  it('expire a run with all its active work', async () => {
    const graph = await app.orchestration([{ id: 'h', type: 'human' }, call('t')])
    app.target.answer = () => {}
    const run = await app.start(graph, { expires_in: 1, wait: false })
    assert.ok(run.expires_at)
    await eventually(() => app.target.requests.length === 1)
    const done = await app.until(run.id)
    assert.deepEqual([done.status, done.error, attempts(done)], ['expired', null, ['h:1:cancelled', 't:1:cancelled']])
    const { data } = (await app.key.get(`/events?resource_id=${run.id}`)).body
    assert.equal(data.filter(({ event }: any) => event === 'orchestration_runs.expired').length, 1)
    for (const expires_in of [0, 31_536_001, 1.5])
      assert.equal((await app.key.post('/orchestration-runs', { orchestration_id: graph, expires_in })).status, 400)
  })

  it('expire waits for people: an edge handles it, or the run expires', async () => {
    for (const type of ['human', 'webhook']) {
      const nodes = [{ id: 'w', type, expires_in: 1 }, set('late'), set('next')]
      const taken = await app.run(nodes, [
        { from: 'w', to: 'late', condition: 'expired' },
        { from: 'w', to: 'next' },
      ])
      assert.ok(taken.required_action.expires_at)
      assert.equal(taken.required_action.type, type === 'human' ? 'human_input' : 'webhook_receive')
      const over = await app.run(nodes, [{ from: 'w', to: 'next' }])
      const [one, two] = [await app.until(taken.id), await app.until(over.id)]
      assert.deepEqual([one.status, one.output], ['succeeded', { late: { result: 'late' } }])
      assert.equal(two.status, 'expired')
    }
  })

  it('wake a run even if every message is lost', async () => {
    const run = await app.run([{ id: 'd', type: 'delay', duration: '2s' }, set('e')], chain('d', 'e'), { wait: false })
    await app.until(run.id, ({ status }) => status === 'sleeping')
    await forgetTimers()
    assert.equal((await app.until(run.id)).status, 'succeeded')
  })

  it('of a delay end immediately if they are past or zero', async () => {
    const run = await app.run(
      [
        { id: 'a', type: 'delay', duration: '0s' },
        { id: 'b', type: 'delay', until: { var: 'input.at' } },
        { id: 'c', type: 'delay', duration: 'PT0S' },
        { id: 'local', type: 'delay', until: '2020-01-01T10:00' },
      ],
      [],
      { input: { at: '2020-01-01T00:00:00Z' } },
    )
    assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
    assert.deepEqual(run.output, {
      a: { waited: '0s' },
      b: { waited: '2020-01-01T00:00:00.000Z' },
      c: { waited: 'PT0S' },
      local: { waited: '2020-01-01T10:00:00.000Z' },
    })
  })

  it('continue while a run is paused, and apply on resume', async () => {
    const graph = await app.orchestration([{ id: 'd', type: 'delay', duration: '1s' }, set('e')], chain('d', 'e'))
    const run = await app.start(graph, { wait: false })
    const asleep = await app.until(run.id, ({ status }) => status === 'sleeping')
    const paused = (await app.key.post(`/orchestration-runs/${run.id}/pause`)).body
    assert.deepEqual([paused.status, paused.wake_at], ['awaiting_input', asleep.wake_at])
    await eventually(() => Date.now() > Date.parse(asleep.wake_at) + 300)
    assert.equal((await app.read(run.id)).status, 'awaiting_input')
    const resumed = (await app.key.post(`/orchestration-runs/${run.id}/resume`)).body
    assert.equal(resumed.status, 'succeeded')
  })

  it('limit the wait of a caller, who gets the current run', async () => {
    const run = await app.run([{ id: 'd', type: 'delay', duration: '1h' }])
    assert.equal(run.status, 'sleeping')
    const graph = await app.orchestration([{ id: 'd', type: 'delay', duration: '500ms' }, set('e')], chain('d', 'e'))
    const gone = new AbortController()
    const asked = fetch(`${app.url}/api/v1/orchestration-runs`, {
      method: 'POST',
      signal: gone.signal,
      headers: { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ orchestration_id: graph, wait: true }),
    }).catch(() => null)
    const [started] = await eventually(async () => {
      const { data } = (await app.key.get(`/orchestration-runs?orchestration_id=${graph}`)).body
      return data.length > 0 && data
    })
    gone.abort()
    assert.equal(await asked, null)
    assert.equal((await app.until(started.id)).status, 'succeeded')
  })

  describe('of retries', () => {
    const meta = (run: any, attempt: number) => run.node_executions[attempt - 1].error

    it('grow by the policy of the node, with all attempts on record', async () => {
      app.target.answer = (request, response) => json({}, app.target.requests.length < 4 ? 503 : 200)(request, response)
      const graph = await app.orchestration([
        call('a', {
          retry: { max_attempts: 4, backoff: { strategy: 'exponential', delay_ms: 100, max_delay_ms: 200 } },
        }),
      ])
      const run = await app.until((await app.start(graph, { wait: false })).id)
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      const waits = run.node_executions
        .slice(1)
        .map(
          (each: any, index: number) =>
            Date.parse(each.started_at) - Date.parse(run.node_executions[index].completed_at),
        )
      assert.ok(waits[0] >= 100 && waits[1] >= 200 && waits[2] >= 200, String(waits))
    })

    it('follow Retry-After, up to the maximum delay', async () => {
      app.target.answer = (request, response) => {
        if (app.target.requests.length === 1) response.setHeader('retry-after', '60')
        json({}, app.target.requests.length === 1 ? 429 : 200)(request, response)
      }
      const nodes = [call('a', { retry: { max_attempts: 2, backoff: { delay_ms: 1, max_delay_ms: 400 } } })]
      const run = await app.until((await app.run(nodes)).id)
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      const [first, second] = run.node_executions
      assert.ok(Date.parse(second.started_at) - Date.parse(first.completed_at) >= 400)
    })

    it('keep the node active and the run asleep', async () => {
      app.target.answer = json({}, 500)
      const graph = await app.orchestration([
        call('a', { retry: { max_attempts: 2, backoff: { delay_ms: 3_600_000, max_delay_ms: 3_600_000 } } }),
      ])
      const run = await app.start(graph, { wait: false })
      const asleep = await app.until(run.id, ({ status }) => status === 'sleeping')
      assert.deepEqual([asleep.active_nodes, attempts(asleep)], [['a'], ['a:1:failed', 'a:2:waiting']])
      assert.equal(asleep.wake_at, asleep.node_executions[1].wake_at)
    })

    it('follow timeouts and unreachable targets, but not refusals', async () => {
      app.target.answer = () => {}
      const ended = async (nodes: object[]) => app.until((await app.run(nodes)).id)
      const late = await ended([call('a', { timeout: '100ms', retry: { max_attempts: 2, backoff: { delay_ms: 0 } } })])
      assert.deepEqual(
        [late.status, meta(late, 2).code, meta(late, 2).meta.reason],
        ['failed', 'ORCHESTRATION_NODE_FAILED', 'timeout'],
      )
      for (const [status, tries] of [
        [408, 2],
        [425, 2],
        [409, 1],
      ] as const) {
        app.target.answer = json({}, status)
        const run = await ended([call('a', { retry: { max_attempts: 2, backoff: { delay_ms: 0 } } })])
        assert.deepEqual([run.error?.code, attempts(run).length], ['TOOL_HTTP_ERROR', tries], String(status))
      }
      const closed = await app.tool({ execute: { url: 'http://127.0.0.1:1' } })
      const lost = await ended([call('a', { tool_id: closed, retry: { max_attempts: 2, backoff: { delay_ms: 0 } } })])
      assert.deepEqual([attempts(lost), lost.error.meta.tool_status_code], [['a:1:failed', 'a:2:failed'], null])
      const wrong = await app.tool({
        parameters: { type: 'object', required: ['n'], properties: { n: { type: 'integer' } } },
      })
      const refused = await ended([call('a', { tool_id: wrong, retry: { max_attempts: 3 } })])
      assert.deepEqual([attempts(refused), refused.error.code], [['a:1:failed'], 'VALIDATION_FAILED'])
    })

    it('end at an edge that handles the failure', async () => {
      app.target.answer = json({}, 500)
      const run = await app.run(
        [
          call('a', { on_error: 'route', retry: { max_attempts: 2, backoff: { delay_ms: 0 } } }),
          set('next'),
          set('saved', { var: 'nodes.a.error.code' }),
        ],
        [
          { from: 'a', to: 'next' },
          { from: 'a', to: 'saved', condition: 'failed' },
        ],
      )
      assert.deepEqual(run.output, { saved: { result: 'TOOL_HTTP_ERROR' } }, JSON.stringify(run.error))
      assert.equal(app.target.requests.length, 2)
    })

    it('of polls: exhausted polls complete, or fail with fail_on_timeout', async () => {
      app.target.answer = json({ done: false })
      const poll = {
        id: 'p',
        type: 'poll',
        tool_id,
        exit_condition: { var: 'response.done' },
        interval: '0s',
        max_iterations: 2,
      }
      const run = await app.run([poll])
      assert.deepEqual(run.output.p, { result: { done: false }, attempts: 2, condition_met: false, timed_out: true })
      const failed = await app.run([{ ...poll, fail_on_timeout: true }])
      assert.equal(failed.error.code, 'ORCHESTRATION_POLL_EXHAUSTED')
      assert.deepEqual(attempts(failed), ['p:1:failed'])
    })
  })
})
