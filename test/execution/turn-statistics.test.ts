import assert from 'node:assert/strict'
import { client } from '../local/double/client.ts'
import { type Client, eventually } from '../support/app.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { accepted, shared } from './share-support.ts'
import { openStream, readStream } from './streams.ts'
import { json, startTarget } from './tool-target.ts'

const DAY = '2026-07-01'
const at = (time: string) => `${DAY}T${time}Z`

describe('statistics of turns', function () {
  this.timeout(60_000)
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  const double = forSuite(() => client(app.double))

  const generate = async (agent: string, prompt: string, key: Client = app.key): Promise<string> =>
    (await key.post(`/agents/${agent}/generate?wait=true`, { prompt })).body.id
  const read = (query: string, key: Client = app.key) => key.get(`/generations/statistics?${query}`)
  const range = (interval: string, from = at('10:00:00'), to = at('12:59:59.999')) =>
    `interval=${interval}&from=${from}&to=${to}`
  const figures = async (query: string, key?: Client) => {
    const { status, body } = await read(query, key)
    assert.equal(status, 200, JSON.stringify(body))
    return body
  }
  /** Makes turns of an agent, and gives them these times. */
  async function turns(
    agent: string,
    times: { created: string; seconds: number | null; text?: number; failed?: boolean }[],
  ) {
    const ids: string[] = []
    for (const { created, seconds, text = null, failed = false } of times) {
      const id = await generate(agent, 'hello')
      await app.rows(
        `update generations set created_at = $2::timestamptz, completed_at = $2::timestamptz + $3 * interval '1 s',
           first_text_at = $2::timestamptz + $4 * interval '1 s', status = case when $5 then 'failed' else 'completed' end,
           usage = '{"cost_usd":0.01,"input_tokens":100,"output_tokens":20}' where id = $1`,
        [id, at(created), seconds, text, failed],
      )
      ids.push(id)
    }
    return ids
  }

  it('are counted by hour, with percentiles of times, tokens and cost', async () => {
    const agent = await app.agent()
    await turns(agent, [
      { created: '10:00:00', seconds: 1, text: 0.5 },
      { created: '10:10:00', seconds: 2 },
      { created: '10:59:59.999', seconds: 4, text: 1.5, failed: true },
      { created: '12:00:00', seconds: null },
    ])
    const { interval, points, totals } = await figures(`agent_id=${agent}&${range('hour')}`)
    assert.equal(interval, 'hour')
    assert.deepEqual(
      points.map(({ start }: any) => start),
      ['10', '11', '12'].map(hour => at(`${hour}:00:00.000`)),
    )
    assert.deepEqual(points[0], {
      start: at('10:00:00.000'),
      turns: 3,
      errors: 1,
      latency_ms: { p50: 2000, p95: 3800 },
      first_text_ms: { p50: 1000, p95: 1450 },
      input_tokens: 300,
      output_tokens: 60,
      cost_usd: 0.03,
    })
    const none = { p50: null, p95: null }
    const { start: _, ...empty } = points[1]
    assert.deepEqual(empty, {
      turns: 0,
      errors: 0,
      latency_ms: none,
      first_text_ms: none,
      input_tokens: 0,
      output_tokens: 0,
      cost_usd: null,
    })
    assert.deepEqual([points[2].turns, points[2].latency_ms], [1, none])
    assert.deepEqual([totals.turns, totals.errors, totals.latency_ms.p50, totals.cost_usd], [4, 1, 2000, 0.04])
    const days = await figures(`agent_id=${agent}&${range('day', '2026-06-30', '2026-07-02')}`)
    assert.deepEqual(
      days.points.map(({ turns }: any) => turns),
      [0, 4, 0],
    )
    assert.deepEqual(days.totals, totals)
    assert.equal((await figures(`agent_id=${agent}&${range('hour', at('10:10:00'))}`)).totals.turns, 3)
    assert.equal((await figures(`agent_id=agent_unknown&${range('hour')}`)).totals.turns, 0)
  })

  it('refuse ranges that are missing, reversed or too long, and other intervals', async () => {
    for (const [query, path] of [
      [`from=${at('10:00:00')}&to=${at('11:00:00')}`, 'interval'],
      [range('month'), 'interval'],
      ['interval=day&to=2026-07-01', 'from'],
      ['interval=day&from=2026-07-01', 'to'],
      ['interval=day&from=yesterday&to=2026-07-01', 'from'],
      [range('hour', at('11:00:00'), at('10:00:00')), 'to'],
      [range('hour', '2026-01-01', '2026-03-01'), 'interval'],
      [range('day', '2020-01-01', '2026-03-01'), 'interval'],
    ] as const) {
      const { status, body } = await read(query)
      assert.equal(status, 400, query)
      assert.equal(body.error.code, 'VALIDATION_FAILED')
      assert.deepEqual(
        body.error.meta.problems.map((problem: any) => problem.path),
        [path],
        query,
      )
    }
    assert.equal((await read(range('hour', '2026-01-01', '2026-02-11T15:59:59Z'))).status, 200, 'a thousand points')
    const unbound = await app.admin.get(`/generations/statistics?${range('hour')}`)
    assert.deepEqual([unbound.status, unbound.body.error.meta.problems[0].path], [400, 'project_id'])
    const admin = await app.admin.get(`/generations/statistics?project_id=${app.projectId}&${range('hour')}`)
    assert.equal(admin.status, 200)
  })

  it('are of the turns that the caller may list', async () => {
    const agent = await app.agent()
    const [, hidden] = await turns(agent, [
      { created: '10:00:00', seconds: 1 },
      { created: '10:00:01', seconds: 9 },
    ])
    const query = `agent_id=${agent}&${range('hour')}`
    const reader = async (statement: object[]) => {
      const policy = await app.admin.post('/policies', { document: { statement } })
      const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
      return app.as(key.body.secret)
    }
    const allow = { effect: 'Allow', action: ['generations:ListGenerations'], resource: [`srn:${app.projectId}:*:*`] }
    const narrowed = await reader([
      allow,
      { effect: 'Deny', action: ['generations:*'], resource: [`srn:${app.projectId}:generation:${hidden}`] },
    ])
    const listed = (await narrowed.get(`/generations?agent_id=${agent}`)).body.data.map(({ id }: any) => id)
    assert.equal(listed.includes(hidden), false)
    const { totals } = await figures(query, narrowed)
    assert.deepEqual([totals.turns, totals.latency_ms.p95], [1, 1000])
    const other = await reader([{ ...allow, action: ['agents:*', 'usage:*'] }])
    assert.deepEqual([(await read(query, other)).status, (await read(query, app.anonymous)).status], [403, 401])
    const stranger = await app.project()
    assert.equal((await figures(query, stranger.key)).totals.turns, 0)
    assert.equal((await read(`project_id=${app.projectId}&${query}`, stranger.key)).status, 403)
  })

  it('of a shared agent are of the project that runs it', async () => {
    const agent = await app.agent()
    const grantee = await app.project()
    const share = await shared(app.key, `srn:${app.projectId}:agent:${agent}`, { grantee: grantee.id })
    await accepted(grantee.key, share.id)
    const id = await generate(agent, 'hello', grantee.key)
    await app.rows('update generations set created_at = $2 where id = $1', [id, at('10:30:00')])
    const query = `agent_id=${agent}&${range('hour')}`
    assert.equal((await figures(query, grantee.key)).totals.turns, 1)
    assert.equal((await figures(query)).totals.turns, 0)
  })

  describe('the time of the first text', () => {
    const turn = async (id: string): Promise<any> =>
      (await app.rows('select * from generations where id = $1', [id]))[0]
    const stream = async (agent: string, prompt: string) => {
      const [{ data }] = await readStream(await openStream(app, `/agents/${agent}/generate`, { prompt, stream: true }))
      return turn(data.generation_id)
    }

    it('is kept of streamed turns only', async () => {
      const { created_at, first_text_at, completed_at } = await stream(app.agentId, 'hello')
      assert.ok(created_at <= first_text_at && first_text_at <= completed_at, `${created_at} ${first_text_at}`)
      assert.equal((await turn(await generate(app.agentId, 'hello'))).first_text_at, null)
    })

    it('is written with the first step that has text, and stays', async () => {
      target.answer = json({ ok: true })
      const tool = { tool: { name: 'find', execute: { url: `${target.url}/find` } } }
      const agent = await app.agent({ model: 'two-steps/m', tool_bindings: [tool] })
      await double.put('two-steps', {
        rules: [
          { when: { call: 1 }, reply: { text: 'Searching.', ...toolCall('find') } },
          { reply: { text: 'Found.', gate: 'second-step' } },
        ],
      })
      const reading = stream(agent, 'find it')
      const [row] = await eventually(async () => {
        const rows = await app.rows(
          'select id, first_text_at from generations where agent_id = $1 and step_count = 1',
          [agent],
        )
        return rows.length > 0 ? rows : null
      })
      assert.ok(row.first_text_at, 'the step is written with it')
      await double.read('POST', '/control/gates/second-step/open')
      const { first_text_at, output } = await reading
      assert.deepEqual([first_text_at, output.content], [row.first_text_at, 'Found.'])
    })

    it('of a turn that pauses is of the text before the pause', async () => {
      const tool = { tool: { name: 'ask', type: 'client' } }
      const agent = await app.agent({ tool_bindings: [tool] })
      const { status, first_text_at, last_activity_at } = await stream(
        agent,
        scriptOf({ text: 'One moment.', ...toolCall('ask') }),
      )
      assert.equal(status, 'requires_action')
      assert.ok(first_text_at <= last_activity_at, first_text_at)
    })
  })
})
