import assert from 'node:assert/strict'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import {
  eventsOf,
  historyOf,
  move,
  namesOf,
  ok,
  read,
  refusal,
  startTaskApp,
  task,
  until,
  workflow,
} from './tasks-support.ts'

describe('task dispatches', () => {
  const app = forSuite(startTaskApp)
  const key = forSuite(() => app.key)
  beforeEach(() => {
    app.target.answer = json({ ok: true, n: 7 })
    app.target.requests.length = 0
  })

  /** Creates a workflow whose state `work` starts a dispatch. */
  const working = (dispatch: object, onEnter: object = {}, more: object[] = []) =>
    workflow(key, {
      states: [
        { name: 'new', initial: true },
        { name: 'work', on_enter: { dispatch, ...onEnter } },
        { name: 'good', kind: 'human' },
        { name: 'bad' },
        { name: 'end', terminal: true },
      ],
      transitions: [
        { name: 'start', from: ['new', 'good', 'bad'], to: 'work' },
        { name: 'pass', from: ['work'], to: 'good' },
        { name: 'fall', from: ['work'], to: 'bad' },
        { name: 'loop', from: ['work'], to: 'work' },
        { name: 'close', from: ['work'], to: 'end' },
        { name: 'leave', from: ['work'], to: 'new' },
        ...more,
      ],
    })
  const calling = (more: object = {}) => ({ kind: 'tool', tool_id: app.toolId, ...more })
  const started = async (flow: { id: string }, fields: object = {}) => {
    const made = await task(key, flow.id, fields)
    return ok(move(key, made.id, 'start'))
  }
  const rejected = async (id: string) =>
    (await eventsOf(key, id)).filter(({ event }) => event === 'tasks.automation_rejected').map(({ data }) => data)

  it('calls a tool, writes its result and routes the task', async () => {
    const flow = await working(
      calling({
        input_mapping: { title: { var: 'task.title' }, n: { '+': [{ var: 'task.payload.n' }, 1] } },
        payload_writes: { seen: { var: 'result.n' } },
      }),
      {
        on_complete: [
          { when: { '==': [{ var: 'result.n' }, 8] }, transition: 'fall' },
          { when: true, transition: 'pass' },
        ],
      },
    )
    const moving = await started(flow, { payload: { n: 1 }, tool_context: { Desk: 'north' } })
    assert.deepEqual(
      [moving.automation_status, moving.active_dispatch],
      ['running', { kind: 'tool_call', id: null, status: 'running' }],
    )
    const { id } = moving
    const done = await until(key, id, ({ state }) => state === 'good')
    assert.deepEqual(
      [done.payload, done.last_result],
      [
        { n: 1, seen: 7 },
        { ok: true, n: 7 },
      ],
    )
    assert.deepEqual([done.automation_chain_depth, done.automation_status, done.active_dispatch], [1, null, null])
    const { headers, body } = app.target.last()
    assert.deepEqual(JSON.parse(body), { title: 'a card', n: 2 })
    assert.equal(headers['idempotency-key'], `${id}:2:1`)
    assert.ok(Object.entries(headers).some(([name, value]) => name.endsWith('desk') && value === 'north'))
    const moved = (await historyOf(key, id)).at(-1)
    assert.deepEqual(
      [moved.transition, moved.principal_kind, moved.principal_id, moved.tool_id, moved.generation_id],
      ['pass', 'automation', app.toolId, app.toolId, null],
    )
    const activity = await ok(key.get('/activity?kind=action_executed'))
    assert.ok(activity.data.some(({ detail }: any) => detail.task_id === id))
    // A manual move resets the chain.
    assert.equal((await ok(move(key, id, 'start'))).automation_chain_depth, 0)
    await until(key, id, ({ state }) => state === 'good')
  })

  it('starts an agent turn with the permissions of the principal that moved the task', async () => {
    const flow = await working(
      { kind: 'agent', agent_id: app.agentId, input_mapping: { prompt: { cat: ['Hello ', { var: 'task.title' }] } } },
      { on_complete: [{ when: { var: 'result.content' }, transition: 'close' }] },
    )
    const { id } = await started(flow, { tool_context: { Desk: 'north' } })
    const done = await until(key, id, ({ status }) => status === 'closed')
    assert.equal(typeof done.last_result.content, 'string')
    const moved = (await historyOf(key, id)).at(-1)
    assert.match(moved.generation_id, /^gen_/)
    assert.deepEqual([moved.principal_id, moved.tool_id], [null, null])
    const turn = await ok(key.get(`/generations/${moved.generation_id}`))
    assert.equal(turn.source, 'task')
    // Erasing the turn's content erases its output from the task.
    assert.ok(JSON.stringify(await eventsOf(key, id)).includes(done.last_result.content))
    await ok(app.admin.delete(`/traces/${turn.trace_id}/content`))
    assert.equal((await read(key, id)).last_result, null)
    assert.ok(!JSON.stringify(await eventsOf(key, id)).includes(done.last_result.content))
  })

  it('starts an orchestration run and cancels it when the task leaves the state', async () => {
    const node = { id: 'a', type: 'transform', expression: { n: { var: 'input.n' } } }
    const quick = await ok(key.post('/orchestrations', { name: 'quick', nodes: [node], edges: [] }), 201)
    const dispatch = { kind: 'orchestration', orchestration_id: quick.id, input_mapping: { n: 5 } }
    const flow = await working(dispatch, { on_complete: [{ when: true, transition: 'pass' }] })
    const { id } = await started(flow)
    const done = await until(key, id, ({ state }) => state === 'good')
    assert.deepEqual(done.last_result.input, { n: 5 })
    assert.deepEqual(done.last_result.nodes.a, { result: { n: 5 } })
    assert.match((await historyOf(key, id)).at(-1).orchestration_run_id, /^orch_run_/)

    const human = { id: 'a', type: 'human', prompt: 'Well?' }
    const slow = await ok(key.post('/orchestrations', { name: 'slow', nodes: [human], edges: [] }), 201)
    const waiting = await working({ kind: 'orchestration', orchestration_id: slow.id }, { on_failure: 'fall' })
    const left = await started(waiting)
    const running = await until(key, left.id, task => task.active_dispatch?.id)
    const run = `/orchestration-runs/${running.active_dispatch.id}`
    await eventually(async () => (await ok(key.get(run))).status === 'awaiting_input')
    await ok(move(key, left.id, 'leave'))
    assert.equal((await ok(key.get(run))).status, 'cancelled')

    // A run cancelled by another caller fails the dispatch.
    const failing = await started(waiting)
    const again = await until(key, failing.id, task => task.active_dispatch?.id)
    await ok(key.post(`/orchestration-runs/${again.active_dispatch.id}/cancel`))
    await until(key, failing.id, ({ state }) => state === 'bad')
    const retired = await started(await working({ kind: 'orchestration', orchestration_id: slow.id }))
    const third = await until(key, retired.id, task => task.active_dispatch?.id)
    await ok(key.post(`/orchestration-runs/${third.active_dispatch.id}/cancel`))
    const failed = await until(key, retired.id, ({ automation_status }) => automation_status === 'failed')
    assert.deepEqual(
      [failed.automation_error.code, failed.automation_error.meta],
      [
        'ORCHESTRATION_DISPATCH_FAILED',
        { orchestration_run_id: third.active_dispatch.id, run_status: 'cancelled', cause: null },
      ],
    )
    // Deleting the task cancels its run.
    const deleted = await started(waiting)
    const fourth = await until(key, deleted.id, task => task.active_dispatch?.id)
    await ok(key.delete(`/tasks/${deleted.id}`), 204)
    assert.equal((await ok(key.get(`/orchestration-runs/${fourth.active_dispatch.id}`))).status, 'cancelled')
  })

  it('cancels its trigger firing when the task is deleted', async () => {
    const graph = { nodes: [{ id: 'nap', type: 'delay', duration: '1h' }], edges: [] }
    const { id: target_id } = await ok(key.post('/orchestrations', { name: 'naps', ...graph }), 201)
    const fields = { name: 'naps', type: 'manual', target_type: 'orchestration', target_id }
    const trigger = await ok(key.post('/triggers', fields), 201)
    const { id } = await started(await working({ kind: 'trigger', trigger_id: trigger.id }))
    const run = await eventually(
      async () => (await ok(key.get(`/orchestration-runs?trigger_id=${trigger.id}&status=sleeping`))).data[0] ?? null,
      { what: 'the run of the firing' },
    )
    await ok(key.delete(`/tasks/${id}`), 204)
    assert.equal((await ok(key.get(`/orchestration-runs/${run.id}`))).status, 'cancelled')
    const { data } = await ok(key.get(`/trigger-firings?trigger_id=${trigger.id}`))
    assert.deepEqual(
      data.map(({ status }: any) => status),
      ['failed'],
    )
  })

  it('fires a trigger', async () => {
    const fields = { name: 'calls', type: 'manual', target_type: 'tool', target_id: app.toolId, input: { a: 1 } }
    const trigger = await ok(key.post('/triggers', fields), 201)
    const flow = await working(
      { kind: 'trigger', trigger_id: trigger.id, input_mapping: { b: 2 } },
      { on_complete: [{ when: { var: 'result.output.ok' }, transition: 'pass' }], on_failure: 'fall' },
    )
    const { id } = await started(flow)
    const done = await until(key, id, ({ state }) => state === 'good')
    assert.equal(done.last_result.target_type, 'tool')
    assert.deepEqual(JSON.parse(app.target.last().body), { a: 1, b: 2 })
    const moved = (await historyOf(key, id)).at(-1)
    assert.match(moved.trigger_firing_id, /^trg_fire_/)
    assert.equal(moved.principal_id, moved.trigger_firing_id)
    const failing = await working({ kind: 'trigger', trigger_id: trigger.id }, { on_failure: 'fall' })
    app.target.answer = json({}, 500)
    await until(key, (await started(failing)).id, ({ state }) => state === 'bad')
    // Moving a task does not fire a trigger that the caller may not fire, and leaves no recorded cause.
    const statement = [{ effect: 'Allow', action: ['tasks:*'], resource: [`srn:${app.projectId}:*:*`] }]
    const mover = await app.user('mover', [{ statement }])
    const unable = await task(key, failing.id)
    await ok(mover.post(`/tasks/${unable.id}/transitions`, { transition: 'start' }))
    const failed = await until(key, unable.id, ({ automation_status }) => automation_status === 'failed')
    assert.equal(failed.automation_error.code, 'FORBIDDEN')
    assert.equal((await rejected(unable.id))[0].error_code, 'TASK_AUTOMATION_PROVENANCE_MISSING')
    assert.equal(failed.state, 'work')
  })

  it('retries up to max_attempts, then applies the on_failure transition', async () => {
    app.target.answer = json({ no: true }, 503)
    const flow = await working(calling(), {
      retry: { max_attempts: 3, backoff_seconds: 0.01, backoff_multiplier: 2 },
      on_failure: 'fall',
    })
    const { id, active_dispatch } = await started(flow)
    assert.equal(active_dispatch.attempt, 1)
    await until(key, id, ({ state }) => state === 'bad')
    const retries = (await eventsOf(key, id)).filter(({ event }) => event === 'tasks.automation_retrying')
    assert.deepEqual(
      retries.map(({ data }) => [data.attempt, data.max_attempts, data.error.code, data.automation_status]),
      [
        [1, 3, 'TOOL_HTTP_ERROR', 'running'],
        [2, 3, 'TOOL_HTTP_ERROR', 'running'],
      ],
    )
    assert.deepEqual(
      app.target.requests.map(({ headers }) => headers['idempotency-key']),
      [1, 2, 3].map(attempt => `${id}:2:${attempt}`),
    )
    assert.equal((await historyOf(key, id)).filter(({ transition }) => transition === 'fall').length, 1)
  })

  it('leaves the task in its state after a failure without on_failure, files an exception and can be retried', async () => {
    app.target.answer = json({}, 500)
    const flow = await working(calling(), { on_complete: [{ when: true, transition: 'pass' }] })
    const { id } = await started(flow)
    const failed = await until(key, id, ({ automation_status }) => automation_status === 'failed')
    assert.deepEqual([failed.state, failed.automation_error.code], ['work', 'TOOL_HTTP_ERROR'])
    assert.equal(failed.active_dispatch.status, 'failed')
    const filed = () => key.get('/exceptions?kind=run_failed').then(({ body }) => body.data)
    await eventually(async () => (await filed()).some((each: any) => each.detail.task_id === id))
    app.target.answer = json({ ok: true })
    await ok(key.post(`/tasks/${id}/retry`))
    await until(key, id, ({ state }) => state === 'good')
    assert.deepEqual(await refusal(key.post(`/tasks/${id}/retry`)), [409, 'TASK_TRANSITION_CONFLICT'])
  })

  it('fails when a guardrail blocks the call', async () => {
    const document = { class: 'D' }
    const rule = await ok(app.admin.post('/guardrails', { project_id: app.projectId, name: 'no', document }), 201)
    const fields = { project_id: app.projectId, name: 'guarded', execute: { url: app.target.url } }
    const tool = await ok(app.admin.post('/tools', { ...fields, guardrail_ids: [rule.id] }), 201)
    const flow = await working({ kind: 'tool', tool_id: tool.id }, { on_failure: 'fall' })
    const { id } = await started(flow)
    await until(key, id, ({ state }) => state === 'bad')
    assert.equal(app.target.requests.length, 0)
    const parking = await started(await working({ kind: 'tool', tool_id: tool.id }))
    const { automation_error } = await until(key, parking.id, task => task.automation_status === 'failed')
    assert.deepEqual(
      [automation_error.code, automation_error.meta],
      ['TOOL_DISPATCH_FAILED', { tool_id: tool.id, outcome: 'blocked' }],
    )
  })

  it('leaves the task in its state when no rule matches, the transition is refused or an approval is required', async () => {
    const flow = await working(calling(), { on_complete: [{ when: { var: 'result.nope' }, transition: 'pass' }] })
    const { id } = await started(flow)
    await eventually(async () => (await namesOf(key, id)).at(-1) === 'automation_unrouted')
    const parked = await until(key, id, ({ automation_status }) => automation_status === 'completed')
    assert.deepEqual([parked.state, parked.active_dispatch.status], ['work', 'completed'])

    const guard = { '==': [{ var: 'principal.kind' }, 'user'] }
    const gates = [
      { name: 'guarded', from: ['work'], to: 'good', guard },
      { name: 'gated', from: ['work'], to: 'good', requires_approval: true },
    ]
    const refusing = await working(calling(), { on_complete: [{ when: true, transition: 'guarded' }] }, gates)
    const refused = await started(refusing)
    const unrouted = await until(key, refused.id, ({ automation_status }) => automation_status === 'unrouted')
    assert.equal(unrouted.state, 'work')
    assert.deepEqual(
      (await rejected(refused.id)).map(({ transition, error_code, result }) => [transition, error_code, result.ok]),
      [['guarded', 'TASK_GUARD_REJECTED', true]],
    )

    const asking = await working(calling(), { on_complete: [{ when: true, transition: 'gated' }] }, gates)
    const asked = await until(
      key,
      (await started(asking)).id,
      ({ pending_transition }) => pending_transition === 'gated',
    )
    assert.equal(asked.automation_status, 'completed')
    await ok(key.post(`/approvals/${asked.pending_approval_id}/approve`))
    const moved = await until(key, asked.id, ({ state }) => state === 'good')
    assert.equal(moved.automation_chain_depth, 0)
  })

  it('request the approval again before a retry repeats a call that it released', async () => {
    const guard = { '==': [{ var: 'principal.kind' }, 'user'] }
    const gates = [
      { name: 'guarded', from: ['work'], to: 'good', guard },
      { name: 'enter', from: ['new'], to: 'work', requires_approval: true },
    ]
    const flow = await working(calling(), { on_complete: [{ when: true, transition: 'guarded' }] }, gates)
    const { id } = await task(key, flow.id)
    const retrier = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['tasks:RetryTask'], resource: [`srn:${app.projectId}:*:*`] }] },
    ])
    const asked = await ok(move(key, id, 'enter'))
    await ok(key.post(`/approvals/${asked.pending_approval_id}/approve`))
    await until(key, id, ({ automation_status }) => automation_status === 'unrouted')
    assert.equal(app.target.requests.length, 1)
    const again = await ok(retrier.post(`/tasks/${id}/retry`))
    assert.deepEqual([again.pending_transition, again.automation_status], ['enter', 'unrouted'])
    assert.notEqual(again.pending_approval_id, asked.pending_approval_id)
    assert.equal((await refusal(retrier.post(`/tasks/${id}/retry`)))[0], 409)
    assert.equal(app.target.requests.length, 1)
    await ok(key.post(`/approvals/${again.pending_approval_id}/approve`))
    await eventually(() => app.target.requests.length === 2)
    const called = await until(key, id, ({ automation_status }) => automation_status === 'unrouted')
    assert.deepEqual([called.state, called.pending_transition], ['work', null])
    // A rejection calls nothing; a call that was refused is repeated without a question.
    const third = await ok(retrier.post(`/tasks/${id}/retry`))
    await ok(key.post(`/approvals/${third.pending_approval_id}/reject`, { reason: 'once is enough' }))
    await until(key, id, ({ pending_transition }) => pending_transition === null)
    assert.equal(app.target.requests.length, 2)
  })

  it('request the approval again if an earlier attempt of the dispatch may have been made', async () => {
    let asked = 0
    app.target.answer = (request, response) => {
      if (++asked === 1) response.destroy()
      else json({ no: true }, 409)(request, response)
    }
    const gates = [{ name: 'enter', from: ['new'], to: 'work', requires_approval: true }]
    const flow = await working(calling(), { retry: { max_attempts: 2, backoff_seconds: 0 } }, gates)
    const { id } = await task(key, flow.id)
    const { pending_approval_id } = await ok(move(key, id, 'enter'))
    await ok(key.post(`/approvals/${pending_approval_id}/approve`))
    await until(key, id, ({ automation_status }) => automation_status === 'failed')
    assert.equal(asked, 2)
    const again = await ok(key.post(`/tasks/${id}/retry`))
    assert.deepEqual([again.pending_transition, again.automation_status], ['enter', 'failed'])
    assert.equal(asked, 2)
  })

  it('stops at the automation chain limit', async () => {
    const flow = await working(calling(), { on_complete: [{ when: true, transition: 'loop' }] })
    const { id } = await started(flow)
    const stuck = await until(key, id, ({ automation_status }) => automation_status === 'unrouted', 60_000)
    assert.equal(stuck.automation_chain_depth, 50)
    assert.equal((await historyOf(key, id)).filter(({ transition }) => transition === 'loop').length, 50)
    assert.deepEqual(
      (await rejected(id)).map(({ error_code }) => error_code),
      ['TASK_AUTOMATION_CHAIN_LIMIT'],
    )
  })

  it('fails without a retry when the result violates the payload schema', async () => {
    const flow = await workflow(key, {
      states: [
        {
          name: 'work',
          initial: true,
          on_enter: {
            dispatch: calling({ payload_writes: { n: { var: 'result.text' } } }),
            retry: { max_attempts: 3 },
          },
        },
      ],
      transitions: [],
      payload_schema: { properties: { n: { type: 'integer' } } },
    })
    app.target.answer = json({ text: 'no number' })
    const { id } = await task(key, flow.id)
    const failed = await until(key, id, ({ automation_status }) => automation_status === 'failed')
    assert.equal(failed.automation_error.code, 'TASK_PAYLOAD_INVALID')
    assert.deepEqual([failed.payload, app.target.requests.length], [{}, 1])
  })

  it('ignores a result that arrives after the task has left the state', async () => {
    let release = () => {}
    const held = new Promise<void>(resolve => {
      release = resolve
    })
    app.target.answer = async (request, response) => {
      await held
      return json({ ok: true })(request, response)
    }
    const flow = await working(calling(), { on_complete: [{ when: true, transition: 'pass' }] })
    const { id } = await started(flow)
    await eventually(() => app.target.requests.length === 1)
    const left = await ok(move(key, id, 'leave'))
    release()
    assert.deepEqual([left.state, left.automation_status], ['new', null])
    app.target.answer = json({ ok: true, n: 2 })
    await ok(move(key, id, 'start'))
    await until(key, id, ({ state }) => state === 'good')
    assert.deepEqual(
      (await historyOf(key, id)).map(({ transition }) => transition),
      [null, 'start', 'leave', 'start', 'pass'],
    )
  })

  it('defers a dispatch while the task is paused and releases it with the permissions of the caller that resumes it', async () => {
    const flow = await working(calling(), { on_complete: [{ when: true, transition: 'pass' }] })
    const { id } = await task(key, flow.id)
    await ok(key.post(`/tasks/${id}/resume`))
    const paused = await ok(key.post(`/tasks/${id}/pause`, { reason: 'lunch' }))
    assert.deepEqual([paused.pause_reason, typeof paused.pause_requested_at], ['lunch', 'string'])
    assert.equal((await ok(key.post(`/tasks/${id}/pause`, { reason: 'other' }))).pause_reason, 'lunch')
    const held = await ok(move(key, id, 'start'))
    assert.deepEqual([held.automation_status, held.active_dispatch], ['paused', null])
    assert.equal((await ok(key.get(`/tasks?workflow_id=${flow.id}&automation_status=paused`))).total, 1)
    assert.equal(app.target.requests.length, 0)
    const resumed = await ok(key.post(`/tasks/${id}/resume`))
    assert.deepEqual([resumed.automation_status, resumed.pause_requested_at], ['running', null])
    await until(key, id, ({ state }) => state === 'good')
    assert.deepEqual(
      (await namesOf(key, id)).filter(name => name === 'paused' || name === 'resumed'),
      ['paused', 'resumed'],
    )
    const closed = await task(key, flow.id, { state: 'end' })
    assert.deepEqual(await refusal(key.post(`/tasks/${closed.id}/pause`)), [409, 'TASK_TRANSITION_CONFLICT'])
  })

  it('checks the payload again if the task has changed during the call', async () => {
    let answer = () => {}
    app.target.answer = (request, response) => {
      answer = () => json({ n: 7 })(request, response)
    }
    const flow = await workflow(key, {
      payload_schema: { not: { required: ['a', 'b'] } },
      states: [
        {
          name: 'work',
          initial: true,
          on_enter: { dispatch: calling({ payload_writes: { b: { var: 'result.n' } } }) },
        },
      ],
      transitions: [],
    })
    const { id } = await task(key, flow.id)
    await eventually(() => app.target.requests.length === 1)
    await ok(key.patch(`/tasks/${id}`, { payload: { a: 1 } }))
    answer()
    const failed = await until(key, id, ({ automation_status }) => automation_status === 'failed')
    assert.deepEqual([failed.automation_error.code, failed.payload], ['TASK_PAYLOAD_INVALID', { a: 1 }])
    const patches = Array.from({ length: 20 }, (_, n) => key.patch(`/tasks/${id}`, { payload: { [`key${n}`]: n } }))
    for (const reply of patches) await ok(reply)
    assert.equal(Object.keys((await read(key, id)).payload).length, 21)
    assert.deepEqual(await refusal(key.patch(`/tasks/${id}`, { payload: { b: 1 } })), [400, 'TASK_PAYLOAD_INVALID'])
  })

  it('defers a dispatch while the project is paused and releases it on resume', async () => {
    const flow = await working(calling(), { on_complete: [{ when: true, transition: 'pass' }] })
    const [first, second] = [await task(key, flow.id), await task(key, flow.id)]
    await ok(key.post(`/tasks/${second.id}/pause`))
    await ok(app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'audit' }))
    for (const { id } of [first, second]) assert.equal((await ok(move(key, id, 'start'))).automation_status, 'paused')
    assert.deepEqual(await refusal(key.post(`/tasks/${first.id}/resume`)), [409, 'PROJECT_PAUSED'])
    await ok(app.admin.post(`/projects/${app.projectId}/resume`))
    await until(key, first.id, ({ state }) => state === 'good')
    assert.equal((await until(key, second.id, () => true)).automation_status, 'paused')
    await ok(key.post(`/tasks/${second.id}/resume`))
    await until(key, second.id, ({ state }) => state === 'good')
  })
})
