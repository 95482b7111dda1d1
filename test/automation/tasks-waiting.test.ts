import assert from 'node:assert/strict'
import { sql, voidStatement } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { ACTIONS, historyOf, move, ok, startTaskApp, task, until, workflow } from './tasks-support.ts'

describe('waiting tasks', () => {
  const app = forSuite(() =>
    startTaskApp({
      env: { TASK_APPROVAL_TTL_SECONDS: '1', APPROVAL_SWEEP_INTERVAL_MS: '1000' },
      actions: [...ACTIONS, 'triggers:FireTrigger'],
    }),
  )
  const key = forSuite(() => app.key)

  /** Creates a workflow whose initial state starts a dispatch. */
  const begun = (dispatch: object) =>
    workflow(key, {
      states: [
        { name: 'work', initial: true, on_enter: { dispatch, on_complete: [{ when: true, transition: 'close' }] } },
        { name: 'end', terminal: true },
      ],
      transitions: [{ name: 'close', from: ['work'], to: 'end' }],
    })

  it('clears a pending transition when its approval expires and records it in the history', async () => {
    const flow = await workflow(key, {
      states: [
        { name: 'draft', initial: true },
        { name: 'done', terminal: true },
      ],
      transitions: [{ name: 'finish', from: ['draft'], to: 'done', requires_approval: true }],
    })
    const { id } = await task(key, flow.id)
    const { pending_approval_id } = await ok(move(key, id, 'finish'))
    const open = await until(key, id, ({ pending_transition }) => pending_transition === null)
    assert.deepEqual([open.state, open.pending_approval_id], ['draft', null])
    assert.equal((await ok(key.get(`/approvals/${pending_approval_id}`))).status, 'expired')
    const last = (await historyOf(key, id)).at(-1)
    assert.deepEqual(
      [last.from_state, last.to_state, last.transition, last.principal_kind, last.principal_id, last.note],
      ['draft', 'draft', null, 'approval', null, 'Transition finish expired'],
    )
    assert.equal((await ok(move(key, id, 'finish'))).pending_transition, 'finish')
  })

  it('keeps waiting for a turn that requires client action, checking it less and less often', async () => {
    const agent = await app.agent({ tool_bindings: [{ tool: { name: 'pick', type: 'client' } }] })
    const prompt = '@double [{"tool_calls":[{"name":"pick","args":{}}]},{"text":"picked"}]'
    const flow = await begun({ kind: 'agent', agent_id: agent, input_mapping: { prompt } })
    const { id } = await task(key, flow.id)
    const turn = await eventually(async () => {
      const { active_dispatch } = await ok(key.get(`/tasks/${id}`))
      const found = active_dispatch?.id && (await ok(key.get(`/generations/${active_dispatch.id}`)))
      return found?.status === 'requires_action' ? found : null
    })
    const { pool } = app
    await pool.query(voidStatement`update tasks set updated_at = now() - interval '10 minutes' where id = ${id}`)
    await pool.query(voidStatement`update task_dispatches set due_at = now() - interval '1 s' where task_id = ${id}`)
    const nextLook = () =>
      pool.oneFirst<any>(
        sql.unsafe`
        select extract(epoch from due_at - now())::int from task_dispatches where task_id = ${id}` as never,
      )
    await eventually(async () => (await nextLook()) > 500, { what: 'the next check' })
    const withinTwice = await pool.oneFirst<any>(
      sql.unsafe`
        select d.due_at <= now() + (now() - t.updated_at)
        from task_dispatches d join tasks t on t.id = d.task_id where t.id = ${id}` as never,
    )
    assert.equal(withinTwice, true)
    await pool.query(voidStatement`update tasks set updated_at = now() - interval '10 days' where id = ${id}`)
    await pool.query(voidStatement`update task_dispatches set due_at = now() - interval '1 s' where task_id = ${id}`)
    await eventually(async () => (await nextLook()) > 3500, { what: 'the next check' })
    assert.ok((await nextLook()) <= 3600)
    assert.equal((await ok(key.get(`/tasks/${id}`))).automation_status, 'running')
    const [{ tool_call_id }] = turn.required_action.tool_calls
    await ok(
      key.post(`/agents/${agent}/generate/${turn.id}/tool-outputs?wait=false`, {
        tool_outputs: [{ tool_call_id, output: 1 }],
      }),
      202,
    )
    assert.equal((await until(key, id, ({ state }) => state === 'end')).status, 'closed')
  })

  it('does not fire a trigger for a task that a trigger created', async () => {
    const target = { type: 'manual', target_type: 'tool' }
    const trigger = await ok(key.post('/triggers', { ...target, name: 'inner', target_id: app.toolId }), 201)
    const flow = await begun({ kind: 'trigger', trigger_id: trigger.id })
    const creates = await ok(
      app.admin.post('/tools', {
        ...{ project_id: app.projectId, name: 'creates', type: 'platform', actions: ['create-task'] },
      }),
      201,
    )
    const outer = await ok(
      key.post('/triggers', { ...target, name: 'outer', target_id: creates.id, action: 'create-task' }),
      201,
    )
    await ok(key.post(`/triggers/${outer.id}/fire`, { input: { workflow_id: flow.id, title: 'made' } }))
    const found = await eventually(async () => {
      const { data } = await ok(key.get(`/tasks?workflow_id=${flow.id}`))
      return data[0]?.automation_status === 'failed' ? data[0] : null
    })
    assert.equal((await ok(key.get(`/tasks/${found.id}`))).automation_error.code, 'TRIGGER_RECURSION_FORBIDDEN')
    assert.equal((await ok(key.get(`/trigger-firings?trigger_id=${trigger.id}`))).total, 0)
  })
})
