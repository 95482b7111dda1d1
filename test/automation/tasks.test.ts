import assert from 'node:assert/strict'
import { eventually, startApp } from '../support/app.ts'
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

const board = {
  states: [
    { name: 'draft', initial: true },
    { name: 'review', kind: 'human' },
    { name: 'done', terminal: true },
  ],
  transitions: [
    { name: 'submit', from: ['draft'], to: 'review' },
    { name: 'back', from: ['review'], to: 'draft' },
    { name: 'finish', from: ['review', 'draft'], to: 'done' },
  ],
}

const guarded = (guard: object) => ({
  states: board.states,
  transitions: [{ name: 'finish', from: ['draft'], to: 'done', guard }],
})

const withGate = {
  states: board.states,
  transitions: [
    { name: 'finish', from: ['draft'], to: 'done', requires_approval: true, guard: { var: 'task.payload.ready' } },
    { name: 'submit', from: ['draft'], to: 'review' },
  ],
}

describe('tasks', () => {
  const app = forSuite(() => startTaskApp({ workers: ['orchestration'] }))
  const key = forSuite(() => app.key)
  let cards: any

  before(async () => {
    cards = await workflow(key, board)
  })

  it('creates a task in the initial state and records the creator in its history', async () => {
    const made = await task(key, cards.id, { payload: { n: 1 }, metadata: { a: 1 }, assignee: 'user_1' })
    assert.match(made.id, /^task_/)
    assert.deepEqual(
      [made.state, made.status, made.workflow_version, made.payload, made.automation_status, made.last_result],
      ['draft', 'open', 1, { n: 1 }, null, null],
    )
    const shown = await read(key, made.id)
    assert.deepEqual(shown.available_transitions, [
      { name: 'submit', to: 'review', requires_approval: false },
      { name: 'finish', to: 'done', requires_approval: false },
    ])
    const [entry, ...more] = await historyOf(key, made.id)
    assert.deepEqual(more, [])
    assert.match(entry.id, /^task_tr_/)
    assert.deepEqual(
      [entry.from_state, entry.to_state, entry.transition, entry.principal_kind, entry.principal_id.slice(0, 4)],
      [null, 'draft', null, 'api_key', 'key_'],
    )
    const closed = await task(key, cards.id, { state: 'done' })
    assert.deepEqual([closed.state, closed.status], ['done', 'closed'])
    assert.deepEqual(await namesOf(key, closed.id), ['created', 'closed'])
    assert.deepEqual((await read(key, closed.id)).available_transitions, [])
  })

  it('rejects invalid input', async () => {
    const body = { workflow_id: cards.id, title: 'x' }
    for (const [fields, expected] of [
      [{ state: 'nope' }, [400, 'TASK_STATE_NOT_FOUND']],
      [{ workflow_id: 'wfl_nope' }, [404, 'WORKFLOW_NOT_FOUND']],
      [{ title: '' }, [400, 'VALIDATION_FAILED']],
      [{ color: 'red' }, [400, 'VALIDATION_FAILED']],
      [{ payload: null }, [400, 'VALIDATION_FAILED']],
      [{ payload: { text: 'x'.repeat(262_144) } }, [400, 'VALIDATION_FAILED']],
      [{ tool_context: { 'a b': '1' } }, [400, 'INVALID_TOOL_CONTEXT_KEY']],
    ] as const)
      assert.deepEqual(await refusal(key.post('/tasks', { ...body, ...fields })), expected, JSON.stringify(fields))
    const { id } = await task(key, cards.id)
    assert.deepEqual(await refusal(key.patch(`/tasks/${id}`, { state: 'done' })), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(await refusal(key.patch(`/tasks/${id}`, { payload: null })), [400, 'VALIDATION_FAILED'])
    assert.equal((await read(key, id)).state, 'draft')
    const other = (await app.projectWith(['tasks:*'])).key
    assert.deepEqual(await refusal(other.get(`/tasks/${id}`)), [404, 'TASK_NOT_FOUND'])
    const reader = (await app.projectWith(['tasks:GetTask'])).key
    assert.equal((await reader.post('/tasks', body)).status, 403)
  })

  it('never returns the tool context', async () => {
    const made = await task(key, cards.id, { tool_context: { token: 'tiptop-secret' } })
    await ok(move(key, made.id, 'submit', { tool_context: { token: 'tiptop-secret' } }))
    const seen = JSON.stringify([await read(key, made.id), await eventsOf(key, made.id), await historyOf(key, made.id)])
    assert.ok(!seen.includes('tiptop-secret') && !seen.includes('tool_context'))
  })

  it('applies transitions and lists the history oldest first', async () => {
    const { id } = await task(key, cards.id)
    await ok(move(key, id, 'submit', { note: 'please' }))
    await ok(move(key, id, 'back'))
    const moved = await ok(move(key, id, 'submit'))
    assert.deepEqual([moved.state, moved.status, moved.automation_chain_depth], ['review', 'open', 0])
    assert.deepEqual(
      (await historyOf(key, id)).map(({ from_state, to_state, transition, note }) => [
        from_state,
        to_state,
        transition,
        note,
      ]),
      [
        [null, 'draft', null, null],
        ['draft', 'review', 'submit', 'please'],
        ['review', 'draft', 'back', null],
        ['draft', 'review', 'submit', null],
      ],
    )
    const page = await ok(key.get(`/tasks/${id}/history?limit=1&offset=2`))
    assert.deepEqual([page.total, page.data[0].transition], [4, 'back'])
    const done = await ok(move(key, id, 'finish'))
    assert.equal(done.status, 'closed')
    const events = await eventsOf(key, id)
    assert.deepEqual(
      events.map(({ event, data }: any) => [event, data.transition, data.from_state, data.state]),
      [
        ['tasks.created', undefined, undefined, 'draft'],
        ['tasks.transitioned', 'submit', 'draft', 'review'],
        ['tasks.transitioned', 'back', 'review', 'draft'],
        ['tasks.transitioned', 'submit', 'draft', 'review'],
        ['tasks.transitioned', 'finish', 'review', 'done'],
        ['tasks.closed', undefined, undefined, 'done'],
      ],
    )
  })

  it('checks a move in the documented order', async () => {
    const { id } = await task(key, cards.id)
    assert.deepEqual(await refusal(move(key, id, 'nope', { tool_context: { 'a b': '1' } })), [
      400,
      'TASK_TRANSITION_NOT_FOUND',
    ])
    assert.deepEqual(await refusal(move(key, id, 'back', { tool_context: { 'a b': '1' } })), [
      400,
      'INVALID_TOOL_CONTEXT_KEY',
    ])
    const wrong = await move(key, id, 'back')
    assert.deepEqual(wrong.body.error.meta, { transition: 'back', from_state: 'draft' })
    assert.equal(wrong.status, 409)
    assert.deepEqual(await refusal(move(key, id, 'submit', { expected_state: 'review' })), [
      409,
      'TASK_TRANSITION_CONFLICT',
    ])
    await ok(move(key, id, 'finish', { expected_state: 'draft' }))
    assert.deepEqual(await refusal(move(key, id, 'finish')), [409, 'TASK_TRANSITION_CONFLICT'])
    assert.deepEqual(await refusal(move(key, id, 'nope')), [400, 'TASK_TRANSITION_NOT_FOUND'])
    assert.equal((await historyOf(key, id)).length, 2)
  })

  it('applies one of fifty concurrent transitions', async () => {
    const { id } = await task(key, cards.id)
    const replies = await Promise.all(Array.from({ length: 50 }, () => move(key, id, 'submit')))
    const lost = replies.filter(({ status }) => status === 409)
    assert.deepEqual([replies.length - lost.length, lost.length], [1, 49], JSON.stringify(replies.map(r => r.body)))
    for (const { body } of lost) assert.equal(body.error.code, 'TASK_TRANSITION_CONFLICT')
    assert.equal((await historyOf(key, id)).length, 2)
  })

  it('evaluates guards, which can read last_result', async () => {
    const byResult = await workflow(key, guarded({ var: 'task.last_result.ok' }))
    const forged = await task(key, byResult.id, { payload: { last_result: { ok: true } } })
    const refused = await move(key, forged.id, 'finish')
    assert.deepEqual(
      [refused.status, refused.body.error.code, refused.body.error.meta],
      [400, 'TASK_GUARD_REJECTED', { transition: 'finish' }],
    )
    const byPayload = await workflow(
      key,
      guarded({
        and: [
          { '==': [{ var: 'task.payload.a_b' }, 1] },
          { '==': [{ var: 'transition.name' }, 'finish'] },
          { '==': [{ var: 'principal.kind' }, 'api_key'] },
          { '!': [{ var: 'task.metadata' }] },
        ],
      }),
    )
    const good = await task(key, byPayload.id, { payload: { a_b: 1 }, metadata: { a: 1 } })
    await ok(move(key, good.id, 'finish'))
  })

  it('keeps the workflow version that the task was created with', async () => {
    const flow = await workflow(key, board)
    const { id } = await task(key, flow.id)
    await ok(key.patch(`/workflows/${flow.id}`, { transitions: [{ name: 'other', from: ['draft'], to: 'done' }] }))
    await ok(move(key, id, 'submit'))
    const young = await task(key, flow.id)
    assert.equal(young.workflow_version, 2)
    assert.deepEqual(await refusal(move(key, young.id, 'submit')), [400, 'TASK_TRANSITION_NOT_FOUND'])
  })

  it('validates the payload and merges the keys of patches', async () => {
    const schema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] }
    const flow = await workflow(key, { ...board, payload_schema: schema })
    assert.deepEqual(await refusal(key.post('/tasks', { workflow_id: flow.id, title: 'x' })), [
      400,
      'TASK_PAYLOAD_INVALID',
    ])
    const { id } = await task(key, flow.id, { payload: { n: 1, keep: true } })
    const refused = await key.patch(`/tasks/${id}`, { payload: { n: 'one' }, title: 'half' })
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'TASK_PAYLOAD_INVALID'])
    assert.equal(refused.body.error.meta.problems[0].path, 'payload.n')
    assert.equal((await read(key, id)).title, 'a card')
    await Promise.all(['a', 'b', 'c', 'd'].map(name => ok(key.patch(`/tasks/${id}`, { payload: { [name]: 1 } }))))
    assert.deepEqual((await read(key, id)).payload, { n: 1, keep: true, a: 1, b: 1, c: 1, d: 1 })
    await ok(key.patch(`/tasks/${id}`, { title: 'a card', assignee: null }))
    const last = await ok(key.patch(`/tasks/${id}`, { title: 'new', due_at: '2030-01-01T00:00:00+01:00' }))
    assert.equal(last.due_at, '2029-12-31T23:00:00.000Z')
    const updates = (await eventsOf(key, id)).filter(({ event }) => event === 'tasks.updated')
    assert.equal(updates.length, 5)
    assert.deepEqual(updates[4].data.changed, ['title', 'due_at'])
  })

  it('filters by workflow, state, status, automation status, assignee and due time', async () => {
    const flow = await workflow(key, board)
    const first = await task(key, flow.id, { assignee: 'user_7', due_at: '2031-01-01T00:00:00Z' })
    const second = await task(key, flow.id, { state: 'done' })
    const list = async (query: string) =>
      (await ok(key.get(`/tasks?workflow_id=${flow.id}&${query}`))).data.map(({ id }: any) => id)
    assert.deepEqual(await list(''), [second.id, first.id])
    assert.deepEqual(await list('state=draft'), [first.id])
    assert.deepEqual(await list('status=closed&status=open'), [second.id, first.id])
    assert.deepEqual(await list('status=closed'), [second.id])
    assert.deepEqual(await list('assignee=user_7'), [first.id])
    assert.deepEqual(await list('automation_status=none'), [second.id, first.id])
    assert.deepEqual(await list('automation_status=failed'), [])
    assert.deepEqual(await list('due_from=2030-12-31T00:00:00Z&due_to=2031-01-02'), [first.id])
    assert.deepEqual(await list('due_from=2031-01-02'), [])
    assert.equal((await ok(key.get('/tasks?workflow_id=wfl_nope'))).total, 0)
    for (const query of ['automation_status=', 'status=odd', 'due_from=soon'])
      assert.deepEqual(await refusal(key.get(`/tasks?${query}`)), [400, 'VALIDATION_FAILED'], query)
  })

  it('applies a gated transition only after approval', async () => {
    const flow = await workflow(key, withGate)
    const gated = await task(key, flow.id, { payload: { ready: false } })
    const parked = await ok(move(key, gated.id, 'finish'))
    assert.deepEqual([parked.state, parked.pending_transition], ['draft', 'finish'])
    const blocked = await move(key, gated.id, 'submit')
    assert.deepEqual([blocked.status, blocked.body.error.meta.pending_transition], [409, 'finish'])
    const item = await ok(key.get(`/approvals/${parked.pending_approval_id}`))
    assert.deepEqual(
      [item.origin, item.status, item.task_id, item.task_transition, item.proposed_action],
      ['task_transition', 'pending', gated.id, 'finish', null],
    )
    assert.equal((await ok(key.get(`/approvals?task_id=${gated.id}`))).total, 1)
    assert.deepEqual(await refusal(key.post(`/approvals/${item.id}/approve`, { arguments: {} })), [
      400,
      'APPROVAL_INVALID_EDIT',
    ])
    await ok(key.post(`/approvals/${item.id}/approve`))
    await until(key, gated.id, ({ pending_transition }) => pending_transition === null)
    const [failed] = (await eventsOf(key, gated.id)).filter(({ event }) => event === 'tasks.approval_failed')
    assert.deepEqual([failed.data.transition, failed.data.error_code], ['finish', 'TASK_GUARD_REJECTED'])

    await ok(key.patch(`/tasks/${gated.id}`, { payload: { ready: true } }))
    const rejectable = await ok(move(key, gated.id, 'finish'))
    await ok(key.post(`/approvals/${rejectable.pending_approval_id}/reject`, { reason: 'not now' }))
    const open = await until(key, gated.id, ({ pending_transition }) => pending_transition === null)
    assert.equal(open.state, 'draft')
    const notes = (await historyOf(key, gated.id)).at(-1)
    assert.deepEqual(
      [notes.from_state, notes.to_state, notes.transition, notes.principal_kind],
      ['draft', 'draft', null, 'approval'],
    )
    assert.match(notes.note, /not now/)

    const passable = await ok(move(key, gated.id, 'finish'))
    await ok(key.post(`/approvals/${passable.pending_approval_id}/approve`))
    await until(key, gated.id, ({ state }) => state === 'done')
    const moved = (await historyOf(key, gated.id)).at(-1)
    assert.deepEqual([moved.transition, moved.principal_kind], ['finish', 'approval'])
    assert.match(moved.principal_id, /^user_/)
  })

  it('moves a task in the transaction of the decision, without a worker', async () => {
    const idle = await startApp()
    try {
      const { key } = await idle.project()
      const flow = await workflow(key, withGate)
      const decided = async (payload: object, decision: string, body: object = {}) => {
        const { id } = await task(key, flow.id, { payload })
        const { pending_approval_id } = await ok(move(key, id, 'finish'))
        await ok(key.post(`/approvals/${pending_approval_id}/${decision}`, body))
        const after = await ok(key.get(`/tasks/${id}`))
        assert.deepEqual([after.pending_transition, after.pending_approval_id], [null, null])
        return { state: after.state, last: (await historyOf(key, id)).at(-1) }
      }
      const approved = await decided({ ready: true }, 'approve')
      assert.deepEqual([approved.state, approved.last.principal_kind], ['done', 'approval'])
      const failed = await decided({ ready: false }, 'approve')
      assert.deepEqual([failed.state, failed.last.principal_kind === 'approval'], ['draft', false])
      const rejected = await decided({ ready: true }, 'reject', { reason: 'no' })
      assert.deepEqual([rejected.state, rejected.last.transition], ['draft', null])

      const parked = await task(key, flow.id, { payload: { ready: true } })
      const { pending_approval_id } = await ok(move(key, parked.id, 'finish'))
      const body = { ids: [pending_approval_id], decision: 'approved' }
      assert.equal((await ok(key.post('/approvals/resolve', body))).results[0].error, null)
      assert.equal((await ok(key.get(`/tasks/${parked.id}`))).state, 'done')

      // A task is locked before its approval by both, so that neither waits for the other.
      for (let round = 0; round < 20; round++) {
        const { id } = await task(key, flow.id, { payload: { ready: true } })
        const { pending_approval_id } = await ok(move(key, id, 'finish'))
        const [decision, removal] = await Promise.all([
          key.post(`/approvals/${pending_approval_id}/approve`),
          key.delete(`/tasks/${id}`),
        ])
        assert.ok([200, 409].includes(decision.status), JSON.stringify(decision.body))
        assert.equal(removal.status, 204, JSON.stringify(removal.body))
      }
    } finally {
      await idle.close()
    }
  })

  it('withdraws the pending approval of a deleted task', async () => {
    const flow = await workflow(key, withGate)
    const { id } = await task(key, flow.id)
    const { pending_approval_id } = await ok(move(key, id, 'finish'))
    assert.equal((await key.delete(`/tasks/${id}`)).status, 204)
    assert.deepEqual(await refusal(key.get(`/tasks/${id}`)), [404, 'TASK_NOT_FOUND'])
    assert.equal((await ok(key.get(`/approvals/${pending_approval_id}`))).status, 'expired')
    assert.equal((await ok(key.get('/exceptions?kind=approval_expired'))).total, 0)
    assert.equal((await namesOf(key, id)).at(-1), 'deleted')
  })

  it('blocks the deletion of a workflow with open tasks and deletes closed tasks with it', async () => {
    const flow = await workflow(key, board)
    const { id } = await task(key, flow.id)
    const refused = await key.delete(`/workflows/${flow.id}`)
    assert.deepEqual(
      [refused.status, refused.body.error.code, refused.body.error.meta],
      [409, 'WORKFLOW_HAS_OPEN_TASKS', { open_tasks: 1 }],
    )
    await ok(move(key, id, 'finish'))
    assert.equal((await key.delete(`/workflows/${flow.id}`)).status, 204)
    assert.equal((await key.get(`/tasks/${id}`)).status, 404)
  })

  it('counts visible tasks by state on the board', async () => {
    const flow = await workflow(key, board)
    const made = [await task(key, flow.id), await task(key, flow.id), await task(key, flow.id, { state: 'review' })]
    await ok(move(key, made[0].id, 'finish'))
    await ok(key.delete(`/tasks/${made[2].id}`), 204)
    const shown = await ok(key.get(`/workflows/${flow.id}/board?per_state=1`))
    const summary = (states: any[]) =>
      states.map(({ state, count, tasks, declared }) => [state, count, tasks.map(({ id }: any) => id), declared])
    assert.deepEqual(summary(shown.states), [
      ['draft', 1, [made[1].id], true],
      ['review', 0, [], true],
      ['done', 1, [made[0].id], true],
    ])
    assert.equal(shown.total, 2)
    const oldest = [made[1].created_at, null, made[0].created_at]
    assert.deepEqual(
      shown.states.map(({ oldest_at }: any) => oldest_at),
      oldest,
    )
    // A state that later versions do not declare.
    await ok(key.patch(`/workflows/${flow.id}`, { states: [{ name: 'start', initial: true }], transitions: [] }))
    assert.deepEqual(summary((await ok(key.get(`/workflows/${flow.id}/board`))).states), [
      ['start', 0, [], true],
      ['done', 1, [made[0].id], false],
      ['draft', 1, [made[1].id], false],
    ])
    const statement = [
      { effect: 'Allow', action: ['workflows:GetWorkflow'], resource: [`srn:${app.projectId}:workflow:*`] },
      { effect: 'Allow', action: ['tasks:ListTasks'], resource: [`srn:${app.projectId}:task:${made[1].id}`] },
    ]
    const partial = await app.user('board reader', [{ statement }])
    const seen = await ok(partial.get(`/workflows/${flow.id}/board`))
    assert.deepEqual([seen.total, seen.states.at(-1).oldest_at], [1, made[1].created_at])
    const blind = await app.user('blind', [{ statement: statement.slice(0, 1) }])
    assert.equal((await ok(blind.get(`/workflows/${flow.id}/board`))).total, 0)
  })

  it('emits one event per stalled task', async () => {
    const flow = await workflow(key, {
      ...board,
      states: [{ name: 'draft', initial: true, stalled_after: 0.05 }, ...board.states.slice(1)],
    })
    const { id } = await task(key, flow.id)
    const other = await task(key, cards.id)
    const stalledOf = async (task: string) =>
      (await eventsOf(key, task)).filter(({ event }) => event === 'tasks.stalled')
    // Each further stall is reported by a sweep that processes the first task again.
    for (const each of [id, (await task(key, flow.id)).id])
      await eventually(async () => (await stalledOf(each)).length > 0, { what: 'a report' })
    const last = await task(key, flow.id)
    await eventually(async () => (await stalledOf(last.id)).length > 0, { what: 'a report' })
    const [event, ...more] = await stalledOf(id)
    assert.deepEqual([more, event.data.state], [[], 'draft'])
    assert.deepEqual(await stalledOf(other.id), [])
    assert.equal((await read(key, id)).state, 'draft')
  })
})
