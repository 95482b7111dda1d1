import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { refusingUpdates } from '../support/refuse-updates.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { RUN_ACTIONS, set, startRunApp } from './fixtures.ts'

describe('hostile playbooks', () => {
  const app = forSuite(() =>
    startRunApp({
      actions: [...RUN_ACTIONS, 'playbooks:*', 'cases:*', 'tools:CallTool'],
      workers: ['orchestration', 'generation'],
      env: { TASKS_SCHEDULER_INTERVAL_MS: '500' },
    }),
  )
  let tool_id: string
  let counter = 0
  before(async () => {
    tool_id = await app.tool()
  })

  const created = (path: string, body: object): Promise<any> => createdBy(app.key, path, body)
  /** Starts an execution of one step on a new case and waits until it waits or has settled. */
  const executed = async (step: object, more: object, input: object): Promise<any> => {
    const steps = [{ key: 'a', title: 'A', type: 'call_tool', tool_id, ...step }]
    const playbook = await created('/playbooks', { name: `playbook ${++counter}`, steps, ...more })
    const { id: case_id } = await created('/cases', { title: 'case' })
    const { id } = await created('/playbook-executions', { case_id, playbook_id: playbook.id, input })
    return eventually(
      async () => {
        const { body } = await app.key.get(`/playbook-executions/${id}`)
        return ['completed', 'failed', 'waiting'].includes(body.status) ? body : null
      },
      { what: `the execution ${id}` },
    )
  }
  const fieldsOf = async ({ case_id }: { case_id: string }) => (await app.key.get(`/cases/${case_id}`)).body.fields

  it('stores split surrogate pairs as U+FFFD', async () => {
    const half = { substr: [{ var: 'input.s' }, 0, 1] }
    const input = { s: '🙂' }
    const done = await executed({ input_mapping: { x: half }, case_writes: { x: half } }, { outcome: half }, input)
    assert.deepEqual([done.status, done.outcome, done.steps[0].input], ['completed', '\ufffd', { x: '\ufffd' }])
    assert.deepEqual(await fieldsOf(done), { x: '\ufffd' })
    const manual = { type: 'manual', tool_id: undefined, assignee: half }
    const waits = await executed({ ...manual, case_writes: { x: { substr: [{ var: 'output.s' }, 0, 1] } } }, {}, input)
    assert.deepEqual([waits.status, waits.steps[0].assignee], ['waiting', '\ufffd'])
    const completed = await app.key.post(`/playbook-executions/${waits.id}/steps/a/complete`, { result: input })
    assert.equal(completed.status, 200, JSON.stringify(completed.body))
    assert.deepEqual(await fieldsOf(waits), { x: '\ufffd' })
    const run = await app.run([set('x', half)], [], { input })
    assert.deepEqual([run.status, run.state.nodes?.x ?? run.output], ['succeeded', { result: '\ufffd' }])
  })

  it('limits case writes to the budget and size of one expression', async () => {
    const writes = (count: number, expression: unknown) =>
      Object.fromEntries(Array.from({ length: count }, (_, at) => [`key${at}`, expression]))
    const doubled = { merge: [{ var: 'accumulator' }, { var: 'current' }] }
    const costly = { length: { reduce: [{ var: 'input.list' }, doubled, []] } }
    const list = Array.from({ length: 900 }, (_, at) => at)
    const one = await executed({ case_writes: writes(1, costly) }, {}, { list })
    assert.deepEqual([one.status, await fieldsOf(one)], ['completed', { key0: 900 }])
    const many = await executed({ case_writes: writes(300, costly) }, {}, { list })
    assert.deepEqual(
      [many.status, many.error.code, many.error.meta.reason],
      ['failed', 'PLAYBOOK_STEP_FAILED', 'expression'],
    )
    const large = await executed({ case_writes: writes(700, { var: 'input.text' }) }, {}, { text: 'x'.repeat(900_000) })
    assert.deepEqual([large.status, large.error.code], ['failed', 'VALIDATION_FAILED'])
    assert.deepEqual(await fieldsOf(large), {})
  })

  it('starts nothing that the author of the playbook may not start', async () => {
    const { projectId: project_id } = app
    const orchestration_id = await app.orchestration([set('x')])
    const user = async (...actions: string[]) => {
      const resource = [`srn:${project_id}:*:*`]
      return app.user(undefined, [{ statement: [{ effect: 'Allow', action: ['playbooks:*', ...actions], resource }] }])
    }
    const plain = await user()
    const call = [{ key: 'a', title: 'A', type: 'call_tool', tool_id }]
    const run = [{ key: 'a', title: 'A', type: 'run_orchestration', orchestration_id }]
    const body = (steps: object[]) => ({ project_id, name: `playbook ${++counter}`, steps })
    for (const [steps, action] of [
      [call, 'tools:CallTool'],
      [run, 'orchestrations:StartRun'],
    ] as const) {
      const refused = await plain.post('/playbooks', body(steps))
      assert.deepEqual([refused.status, refused.body.error.meta], [403, { action }])
      const made = await (await user(action)).post('/playbooks', body(steps))
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const path = `/playbooks/${made.body.id}`
      // Changing texts and removing the call need no permission; adding the call again does.
      assert.equal((await plain.patch(path, { description: 'mine' })).status, 200)
      assert.equal((await plain.patch(path, { steps, resolve_case: false })).status, 200)
      const title = steps.map(step => ({ ...step, title: 'B' }))
      assert.equal((await plain.patch(path, { steps: title })).status, 403)
      assert.equal((await plain.patch(path, { steps: [{ key: 'a', title: 'A', type: 'manual' }] })).status, 200)
      assert.equal((await plain.post(`${path}/versions/1/restore`, {})).status, 403)
      assert.equal((await plain.get(path)).body.version, 3)
    }
  })

  it('erases the content of a turn from its records', async () => {
    const { agentId: agent_id } = app
    const ask = { type: 'instruct_agent', tool_id: undefined, agent_id, instructions: 'SECRET', capture: true }
    const done = await executed({ ...ask, case_writes: { told: 'yes' } }, {}, {})
    assert.match(done.output.a.content, /SECRET/)
    const { generation_id } = done.steps[0]
    const { body } = await app.key.delete(`/generations/${generation_id}/content?dry_run=true`)
    assert.equal(body.counts.playbook_execution_steps, 1)
    assert.equal((await app.key.delete(`/generations/${generation_id}/content`)).status, 200)
    const after = (await app.key.get(`/playbook-executions/${done.id}`)).body
    assert.deepEqual([after.status, after.output, after.steps[0].input], ['completed', { a: null }, null])
    assert.deepEqual([after.steps[0].output, after.steps[0].generation_id], [null, generation_id])
    const { data } = (await app.key.get(`/events?resource_id=${done.id}`)).body
    assert.ok(data.length >= 3)
    for (const each of data) assert.doesNotMatch(JSON.stringify(each), /SECRET/, each.event)
    // Values that the playbook wrote elsewhere remain.
    assert.deepEqual(await fieldsOf(done), { told: 'yes' })
  })

  it('omits large values from lists of executions', async () => {
    const manual = { type: 'manual', tool_id: undefined }
    const large = await executed(manual, {}, { text: 'x'.repeat(900_000) })
    const small = await executed(manual, {}, { text: 'small' })
    const { data } = (await app.key.get('/playbook-executions')).body
    const inputs = new Map(data.map(({ id, input }: any) => [id, input]))
    assert.deepEqual([inputs.get(large.id), inputs.get(small.id)], [null, { text: 'small' }])
    assert.equal(large.input.text.length, 900_000)
  })

  it('reverts the case writes of a step whose output is too large for the run', async () => {
    app.target.answer = json({ text: 'x'.repeat(950_000) })
    const call = (n: number) => ({ key: `s${n}`, title: 'S', type: 'call_tool', tool_id, case_writes: { last: n } })
    const steps = [1, 2, 3, 4, 5].map(call)
    const playbook = await created('/playbooks', { name: 'grows', steps })
    const { id: case_id } = await created('/cases', { title: 'case' })
    const { id } = await created('/playbook-executions', { case_id, playbook_id: playbook.id, input: {} })
    const failed = await eventually(async () => {
      const { body } = await app.key.get(`/playbook-executions/${id}`)
      return body.status === 'failed' ? body : null
    })
    assert.deepEqual([failed.error.meta.reason, failed.current_step_key], ['too_large', 's5'])
    assert.deepEqual(await fieldsOf({ case_id }), { last: 4 })
    const { data } = (await app.key.get(`/cases/${case_id}/timeline?limit=100`)).body
    const told = data.flatMap(({ kind, data }: any) => (kind === 'step_completed' ? [data.fields.last.to] : []))
    assert.deepEqual(told.sort(), [1, 2, 3, 4])
    const events = (await app.key.get(`/events?resource_id=${case_id}&event=cases.updated`)).body.data
    assert.equal(events.length, 4)
  })

  it('reports other overdue steps when many executions cannot be marked', async () => {
    const manual = { type: 'manual', tool_id: undefined, due_seconds: 1 }
    const { id } = await executed(manual, {}, {})
    // More than one page, and all due before the step of another execution.
    const { pool } = app
    const copy = sql.fragment`left(${id}, -4) || lpad(n::text, 4, '0')`
    await pool.query(sql.unsafe`
      insert into playbook_executions select r.* from playbook_executions t, generate_series(1, 510) n,
        jsonb_populate_record(t, jsonb_build_object('id', ${copy}, 'status', 'cancelled', 'orchestration_run_id', 'orch_run_' || n)) r
      where t.id = ${id}`)
    await pool.query(sql.unsafe`
      insert into playbook_execution_steps select r.* from playbook_execution_steps t, generate_series(1, 510) n,
        jsonb_populate_record(t, jsonb_build_object('execution_id', ${copy}, 'due_at', t.due_at - interval '1 day')) r
      where t.execution_id = ${id}`)
    const refused = `new.execution_id like '${id.slice(0, -4)}%'`
    await refusingUpdates(app.services, 'playbook_execution_steps', refused, async () => {
      const sound = await executed(manual, {}, {})
      const overdue = async (id: string) => (await app.key.get(`/playbook-executions/${id}`)).body.steps[0].overdue
      await eventually(async () => (await overdue(sound.id)) || null, { what: 'the overdue step' })
      assert.equal(await overdue(id), false)
    })
  })
})
