import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { taskFirings, taskTurns } from '#automation/workflows/tasks/targets.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { purgeGeneration } from '#execution/generations/erase/purge.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { LOCK_WAITS } from '../support/postgres.ts'
import { forSuite } from '../support/suite.ts'
import { ok, read, startTaskApp, task, until, workflow } from './tasks-support.ts'

describe('hostile workflows', () => {
  const app = forSuite(() => startTaskApp({ workers: ['orchestration'], env: { TASK_AUTOMATION_CHAIN_LIMIT: '3' } }))
  const key = forSuite(() => app.key)
  beforeEach(() => {
    app.target.answer = json({ ok: true, text: 'x'.repeat(200_000) })
    app.target.requests.length = 0
  })

  /** Creates a workflow whose first state calls a tool. */
  const calling = (dispatch: object, on_enter: object = {}, states: object[] = [], transitions: object[] = []) =>
    workflow(key, {
      states: [
        {
          name: 'work',
          initial: true,
          on_enter: { dispatch: { kind: 'tool', tool_id: app.toolId, ...dispatch }, ...on_enter },
        },
        ...states,
      ],
      transitions,
    })
  const stands = (id: string) => until(key, id, ({ automation_status }) => automation_status !== 'running')
  const keys = (count: number, expression: unknown) =>
    Object.fromEntries(Array.from({ length: count }, (_, at) => [`key${at}`, expression]))

  it('rejects state and transition names over 255 characters', async () => {
    const long = randomBytes(6000).toString('hex')
    const states = [{ name: long, initial: true }, { name: 'b' }]
    const transitions = [
      { name: 'x'.repeat(256), from: [long], to: 'b' },
      { name: 'x'.repeat(255), from: ['b'], to: 'b' },
    ]
    const { status, body } = await key.post('/workflows', { name: 'long names', states, transitions })
    assert.equal(status, 400)
    assert.deepEqual(
      body.error.meta.problems.map(({ code, path }: any) => [code, path]),
      [
        ['LIMIT_EXCEEDED', 'states[0].name'],
        ['LIMIT_EXCEEDED', 'transitions[0].name'],
      ],
    )
  })

  it('limits a mapping to the budget and size of one expression', async () => {
    const text = 'x'.repeat(200_000)
    const given = await calling({ input_mapping: keys(1000, { var: 'task.payload.text' }) })
    const first = await stands((await task(key, given.id, { payload: { text } })).id)
    assert.deepEqual([first.automation_status, first.automation_error.code], ['failed', 'VALIDATION_FAILED'])
    assert.equal(app.target.requests.length, 0)
    const written = await calling({ payload_writes: keys(1000, { var: 'result.text' }) })
    const second = await stands((await task(key, written.id)).id)
    assert.deepEqual(
      [second.automation_status, second.automation_error.code, second.payload],
      ['failed', 'TASK_PAYLOAD_INVALID', {}],
    )
  })

  it('limits all completion rules to the budget of one expression', async () => {
    const doubled = { merge: [{ var: 'accumulator' }, { var: 'current' }] }
    const when = { '<': [{ length: { reduce: [{ var: 'task.payload.list' }, doubled, []] } }, 0] }
    const moves = [{ name: 'go', from: ['work'], to: 'work' }]
    const flow = (rules: number) =>
      calling(
        {},
        { on_complete: [...Array(rules).fill({ when, transition: 'go' }), { when: true, transition: 'end' }] },
        [{ name: 'done', terminal: true }],
        [...moves, { name: 'end', from: ['work'], to: 'done' }],
      )
    const payload = { list: Array.from({ length: 900 }, (_, at) => at) }
    const few = await task(key, (await flow(1)).id, { payload })
    assert.equal((await until(key, few.id, ({ status }) => status === 'closed')).state, 'done')
    const many = await task(key, (await flow(500)).id, { payload })
    // Rules evaluated after the budget is used up do not match.
    assert.deepEqual(
      [(await stands(many.id)).automation_status, (await read(key, many.id)).state],
      ['completed', 'work'],
    )
  })

  it('stores split surrogate pairs as U+FFFD', async () => {
    const half = { substr: [{ var: 'task.payload.s' }, 0, 1] }
    const flow = await calling({ input_mapping: { half }, payload_writes: { half } })
    const { id } = await task(key, flow.id, { payload: { s: '🙂' } })
    const done = await stands(id)
    assert.deepEqual([done.automation_status, done.payload], ['completed', { s: '🙂', half: '\ufffd' }])
  })

  it('stops tasks that retry each other at the chain limit', async () => {
    const retries = await ok(
      app.admin.post('/tools', {
        project_id: app.projectId,
        name: 'retries',
        type: 'platform',
        actions: ['retry-task'],
      }),
      201,
    )
    const first = await task(key, (await calling({})).id)
    await stands(first.id)
    app.target.answer = json({ ok: false }, 500)
    const failing = await calling({})
    const failed = await task(key, failing.id)
    await until(key, failed.id, ({ automation_status }) => automation_status === 'failed')
    const again = await calling({
      tool_id: retries.id,
      operation_id: 'retry-task',
      input_mapping: { task_id: failed.id },
    })
    for (const depth of [1, 2, 3]) {
      const { id } = await task(key, again.id)
      await stands(id)
      const made = await until(key, failed.id, ({ automation_status }) => automation_status === 'failed')
      assert.equal(made.automation_chain_depth, depth)
    }
    const last = await until(
      key,
      (await task(key, again.id)).id,
      ({ automation_status }) => automation_status !== 'running',
    )
    assert.match(JSON.stringify(last.automation_error), /TASK_AUTOMATION_CHAIN_LIMIT/)
    assert.equal((await ok(key.post(`/tasks/${failed.id}/retry`))).automation_chain_depth, 0)
  })

  it('stops tasks that create each other by a tool or a run at the chain limit', async () => {
    const creates = await ok(
      app.admin.post('/tools', {
        project_id: app.projectId,
        name: 'creates',
        type: 'platform',
        actions: ['create-task'],
      }),
      201,
    )
    const graph = await ok(
      key.post('/orchestrations', {
        name: 'creates',
        nodes: [
          {
            id: 'a',
            type: 'tool',
            tool_id: creates.id,
            operation_id: 'create-task',
            input_mapping: { workflow_id: { var: 'input.workflow_id' }, title: 'next' },
          },
        ],
        edges: [],
      }),
      201,
    )
    const input = { workflow_id: 'itself', title: 'next' }
    for (const dispatch of [
      { tool_id: creates.id, operation_id: 'create-task', input_mapping: input },
      { kind: 'orchestration', tool_id: undefined, orchestration_id: graph.id, input_mapping: input },
    ]) {
      const flow = await calling(dispatch)
      const states = flow.states.map((state: any) => {
        state.on_enter.dispatch.input_mapping = { ...input, workflow_id: flow.id }
        return state
      })
      await ok(key.patch(`/workflows/${flow.id}`, { states }))
      await task(key, flow.id)
      const made = await eventually(async () => {
        const { data } = await ok(key.get(`/tasks?workflow_id=${flow.id}`))
        return data.some((each: any) => each.automation_status === 'failed') && data
      })
      assert.deepEqual(
        made.map((each: any) => each.automation_chain_depth),
        [3, 2, 1, 0],
      )
      assert.match(JSON.stringify(made[0].automation_error), /TASK_AUTOMATION_CHAIN_LIMIT/)
    }
  })

  it('stores no turn content that is erased while the task settles', async () => {
    const flow = await workflow(key, {
      states: [
        {
          name: 'work',
          initial: true,
          on_enter: { dispatch: { kind: 'agent', agent_id: app.agentId, input_mapping: { prompt: 'hello' } } },
        },
      ],
      transitions: [],
    })
    const { pool } = app
    const { id } = await task(key, flow.id)
    const { active_dispatch } = await until(key, id, ({ active_dispatch }) => active_dispatch?.id != null)
    const turn = active_dispatch.id as string
    // No worker runs here: the test settles the turn.
    await pool.query(sql.unsafe`
      update generations set status = 'completed', output = '{"content": "secret", "model": "m", "finish_reason": "stop", "object": null}', completed_at = now() where id = ${turn}`)
    await app.services.write(async tx => {
      await purgeGeneration(tx, app.services, turn, { type: 'user', id: 'user_1' })
      await onSeparateConnection(() =>
        app.services.write(other => taskTurns.settled(other, { id: turn } as never, {} as never)),
      )
      await eventually(() => tx.exists(rawQuery(LOCK_WAITS)))
    })
    const after = await stands(id)
    assert.deepEqual([after.automation_status, after.last_result], ['completed', null])
  })

  it('erases the content of a turn that the firing of a task started', async () => {
    const { pool } = app
    const dispatching = (dispatch: object) =>
      workflow(key, { states: [{ name: 'work', initial: true, on_enter: { dispatch } }], transitions: [] })
    const asks = { type: 'manual', target_type: 'agent', target_id: app.agentId }
    const trigger = await ok(key.post('/triggers', { name: 'asks', ...asks }), 201)
    const started = async (dispatch: object) => {
      const { id } = await task(key, (await dispatching(dispatch)).id)
      return until(key, id, ({ active_dispatch }) => active_dispatch?.id != null)
    }
    const mapping = { input_mapping: { prompt: 'hello' } }
    const asked = await started({ kind: 'agent', agent_id: app.agentId, ...mapping })
    const fired = await started({ kind: 'trigger', trigger_id: trigger.id, ...mapping })
    const turn = asked.active_dispatch.id
    // No worker runs here: the test settles both.
    await pool.query(sql.unsafe`update generations set status = 'completed', completed_at = now() where id = ${turn}`)
    const output = { content: 'secret' }
    const result = { target_type: 'agent', target_id: app.agentId, result_id: turn, status: 'completed', output }
    await pool.query(sql.unsafe`
      update trigger_firings set state = 'succeeded', result = ${JSON.stringify(result)}::json, result_id = ${turn},
        completed_at = now()
      where id = ${fired.active_dispatch.id}`)
    const firing = { id: fired.active_dispatch.id, idempotency_key: fired.id }
    await app.services.write(tx => taskFirings.settled(tx, firing as never))
    assert.deepEqual((await stands(fired.id)).last_result, result)
    await ok(app.admin.delete(`/generations/${turn}/content`))
    assert.equal((await read(key, fired.id)).last_result, null)
    assert.ok(!JSON.stringify(await ok(key.get(`/events?resource_id=${fired.id}`))).includes('secret'))
  })

  it('limits the size of list pages and boards with large tasks', async () => {
    const names = Array.from({ length: 4 }, (_, at) => `state ${at}`)
    const flow = await workflow(key, {
      states: names.map((name, at) => ({ name, initial: at === 0 })),
      transitions: [],
    })
    for (const state of names) {
      const { id } = await task(key, flow.id, { state, payload: { text: 'x'.repeat(250_000) } })
      await app.pool.query(sql.unsafe`
        insert into tasks select r.* from tasks t, generate_series(1, 24) n,
          json_populate_record(t, json_build_object('id', left(t.id, -4) || '-' || lpad(n::text, 3, '0'))) r where t.id = ${id}`)
    }
    const seen: string[] = []
    for (let offset = 0; ; ) {
      const { data, total, limit } = await ok(key.get(`/tasks?workflow_id=${flow.id}&limit=100&offset=${offset}`))
      assert.deepEqual([total, data.length <= 68], [100, true])
      assert.equal(limit, offset === 0 ? data.length : 100)
      seen.push(...data.map(({ id }: { id: string }) => id))
      offset += data.length
      if (offset >= total) break
    }
    assert.equal(new Set(seen).size, 100)
    const board = await ok(key.get(`/workflows/${flow.id}/board?per_state=50`))
    const shown = board.states.map((state: any) => state.tasks.length)
    assert.deepEqual([board.total, board.states.map((state: any) => state.count)], [100, [25, 25, 25, 25]])
    assert.ok(shown.every((count: number) => count >= 16) && shown.reduce((a: number, b: number) => a + b) <= 68)
  })

  it('keeps the payload key __proto__', async () => {
    const flow = await workflow(key, { states: [{ name: 'a', initial: true }], transitions: [] })
    const payload = JSON.parse('{"__proto__": {"a": 1}, "b": 2}')
    const { id } = await task(key, flow.id, { payload })
    assert.equal(JSON.stringify((await read(key, id)).payload), JSON.stringify(payload))
    await ok(key.patch(`/tasks/${id}`, { payload: JSON.parse('{"__proto__": 3}') }))
    assert.equal(JSON.stringify((await read(key, id)).payload), '{"__proto__":3,"b":2}')
  })

  it('does not call a tool that the author of the workflow may not call', async () => {
    const { projectId: project_id } = app
    const user = async (...actions: string[]) => {
      const resource = [`srn:${project_id}:*:*`]
      return app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['workflows:*', ...actions], resource }] }])
    }
    const plain = await user()
    const body = {
      project_id,
      states: [{ name: 'a', initial: true, on_enter: { dispatch: { kind: 'tool', tool_id: app.toolId } } }],
      transitions: [],
    }
    const refused = await plain.post('/workflows', { ...body, name: 'refused' })
    assert.deepEqual([refused.status, refused.body.error.meta], [403, { action: 'tools:CallTool' }])
    const made = await ok((await user('tools:CallTool')).post('/workflows', { ...body, name: 'allowed' }), 201)
    const path = `/workflows/${made.id}`
    await ok(plain.patch(path, { description: 'mine' }))
    assert.equal((await plain.patch(path, { transitions: [{ name: 't', from: ['a'], to: 'a' }] })).status, 403)
    await ok(plain.patch(path, { states: [{ name: 'a', initial: true }] }))
    assert.equal((await plain.post(`${path}/versions/1/restore`)).status, 403)
    assert.equal((await plain.get(path)).body.version, 2)
  })
})
