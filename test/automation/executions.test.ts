import assert from 'node:assert/strict'
import { sql, voidStatement } from '#core/db/sql.ts'
import { madeDecider, TOOL_ANSWERS } from '../execution/decider-support.ts'
import { guardrail } from '../execution/guardrail-support.ts'
import { json } from '../execution/tool-target.ts'
import type { Reply } from '../support/app.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'
import { RUN_ACTIONS, startRunApp } from './fixtures.ts'

const ACTIONS = [...RUN_ACTIONS, 'playbooks:*', 'cases:*', 'files:*', 'deciders:*', 'triggers:*', 'tools:CallTool']

const manual = (key: string, more: object = {}) => ({ key, title: `Do ${key}`, type: 'manual', ...more })
const approval = (key: string, more: object = {}) => ({
  key,
  title: `Approve ${key}`,
  type: 'require_approval',
  ...more,
})
const code = ({ status, body }: Reply) => [status, body?.error?.code]

describe('playbook executions', () => {
  const app = forSuite(() =>
    startRunApp({
      actions: ACTIONS,
      workers: ['orchestration', 'generation', 'delivery', 'trigger'],
      env: {
        ORCHESTRATION_SCHEDULER_INTERVAL_MS: '500',
        TASKS_SCHEDULER_INTERVAL_MS: '500',
        APPROVAL_SWEEP_INTERVAL_MS: '1000',
      },
    }),
  )
  const key = forSuite(() => app.key)
  let counter = 0
  beforeEach(() => {
    app.target.answer = ({ url }, response) =>
      response
        .writeHead(url.startsWith('/fails') ? 400 : 200, { 'content-type': 'application/json' })
        .end('{"ok":true}')
  })

  const created = async (path: string, body: object, status = 201): Promise<any> => {
    const reply = await key.post(path, body)
    assert.equal(reply.status, status, JSON.stringify(reply.body))
    return reply.body
  }
  const playbook = (steps: object[], more: object = {}) =>
    created('/playbooks', { name: `playbook ${++counter}`, steps, ...more })
  const newCase = (more: object = {}) => created('/cases', { title: `case ${++counter}`, ...more })
  const read = async (id: string): Promise<any> => (await key.get(`/playbook-executions/${id}`)).body
  const caseOf = async ({ case_id }: { case_id: string }): Promise<any> => (await key.get(`/cases/${case_id}`)).body
  const until = async (id: string, status: string, step?: string): Promise<any> => {
    let found: any
    await eventually(
      async () => {
        found = await read(id)
        return found.status === status && (step === undefined || found.current_step_key === step)
      },
      { what: `the execution ${id} ${status}` },
    )
    return found
  }
  /** Starts a playbook on a new case. */
  const run = async (steps: object[], more: any = {}, body: object = {}) => {
    const { id: playbook_id } = await playbook(steps, more.playbook)
    const { id: case_id } = await newCase(more.case)
    return created('/playbook-executions', { case_id, playbook_id, ...body })
  }
  const complete = (id: string, step: string, body: object = {}) =>
    key.post(`/playbook-executions/${id}/steps/${step}/complete`, body)
  const timeline = async ({ case_id }: { case_id: string }): Promise<any[]> =>
    (await key.get(`/cases/${case_id}/timeline?limit=100`)).body.data
  const kinds = async (execution: { case_id: string }) => (await timeline(execution)).map(({ kind }) => kind)
  const statuses = ({ steps }: any) => steps.map((step: any) => `${step.key}:${step.status}`)
  const events = async (id: string): Promise<any[]> =>
    (await storedEvents(app.pool, { resource: id })).map(({ name, envelope }) => ({ ...envelope, name }))

  it('runs manual and automated steps and resolves the case', async () => {
    const tool = await app.tool()
    const started = await run(
      [
        manual('check', {
          assignee: { var: 'case.assignee' },
          result_schema: { type: 'object', required: ['amount'] },
        }),
        {
          key: 'size',
          title: 'Large?',
          type: 'branch',
          rules: [{ when: { '<': [{ var: 'steps.check.output.amount' }, 50] }, go_to: 'pay' }],
          otherwise: 'extra',
        },
        manual('extra'),
        {
          key: 'pay',
          title: 'Pay',
          type: 'call_tool',
          tool_id: tool,
          input_mapping: { amount: { var: 'steps.check.output.amount' }, who: { var: 'input.who' } },
          case_writes: { paid: { var: 'steps.check.output.amount' }, by: { var: 'execution.playbook_version' } },
          capture: true,
        },
      ],
      { playbook: { outcome: { cat: ['paid ', { var: 'case.fields.paid' }] } }, case: { assignee: 'ann' } },
      { input: { who: 'bob' }, metadata: { ref: 1 } },
    )
    assert.equal(started.status, 'queued')
    assert.deepEqual(statuses(started), ['check:pending', 'size:pending', 'extra:pending', 'pay:pending'])
    const waits = await until(started.id, 'waiting')
    assert.deepEqual(waits.waiting_on, { type: 'manual', step_key: 'check', assignee: 'ann', due_at: null })
    const kase = await caseOf(started)
    assert.deepEqual([kase.status, kase.active_execution_id, kase.execution_count], ['waiting', started.id, 1])
    const refused = await complete(started.id, 'check', { result: {} })
    assert.deepEqual(code(refused), [400, 'VALIDATION_FAILED'])
    assert.equal(refused.body.error.meta.problems[0].path, 'result.amount')
    assert.equal((await read(started.id)).status, 'waiting')
    const done = await complete(started.id, 'check', { result: { amount: 20 }, note: 'fine' })
    assert.equal(done.status, 200, JSON.stringify(done.body))
    assert.equal(done.body.status, 'running')
    const [check] = done.body.steps
    assert.deepEqual([check.status, check.note, check.output], ['completed', 'fine', { amount: 20 }])
    assert.equal(check.completed_by.kind, 'api_key')
    const over = await until(started.id, 'completed')
    assert.deepEqual(statuses(over), ['check:completed', 'size:completed', 'extra:skipped', 'pay:completed'])
    assert.equal(over.outcome, 'paid 20')
    assert.deepEqual(Object.keys(over.output), ['check', 'size', 'pay'])
    assert.deepEqual(over.output.size, { taken: 'pay' })
    assert.deepEqual(over.steps[3].input, { amount: 20, who: 'bob' })
    const resolved = await caseOf(started)
    assert.deepEqual(
      [resolved.status, resolved.outcome, resolved.active_execution_id, resolved.fields],
      ['resolved', 'paid 20', null, { paid: 20, by: 1 }],
    )
    assert.deepEqual(await kinds(started), [
      'created',
      'execution_started',
      'status_changed',
      'step_waiting',
      'status_changed',
      'step_completed',
      'evidence_added',
      'status_changed',
      'step_completed',
      'step_completed',
      'execution_completed',
      'evidence_added',
      'status_changed',
    ])
    const evidence = (await key.get(`/cases/${started.case_id}/evidence`)).body.data
    assert.deepEqual(
      evidence.map(({ kind, step_key, name }: any) => [kind, step_key, name]),
      [
        ['output', 'check', 'Do check'],
        ['output', 'pay', 'Pay'],
      ],
    )
    const told = await events(started.id)
    assert.deepEqual(
      told.map(({ name }) => name.replace('playbook_executions.', '')),
      ['started', 'step_waiting', 'step_completed', 'step_completed', 'step_completed', 'completed'],
    )
    assert.equal(told[1].data.step.key, 'check')
    assert.equal(told[1].data.steps.length, 4)
    assert.equal(told[5].data.status, 'completed')
  })

  it('completes a step once under concurrent requests', async () => {
    const started = await run([manual('a'), manual('b')])
    await until(started.id, 'waiting', 'a')
    const replies = await Promise.all([complete(started.id, 'a'), complete(started.id, 'a')])
    assert.deepEqual(replies.map(({ status }) => status).sort(), [200, 409])
    const refused = replies.find(({ status }) => status === 409) as Reply
    assert.equal(refused.body.error.code, 'PLAYBOOK_EXECUTION_CONFLICT')
    assert.equal(refused.body.error.meta.step_key, 'a')
    await until(started.id, 'waiting', 'b')
    assert.equal((await kinds(started)).filter(kind => kind === 'step_completed').length, 1)
    assert.deepEqual(code(await complete(started.id, 'nope')), [404, 'RESOURCE_NOT_FOUND'])
    assert.deepEqual(code(await key.post(`/playbook-executions/${started.id}/steps/b/skip`, { reason: 'x' })), [
      409,
      'PLAYBOOK_EXECUTION_CONFLICT',
    ])
    const assigned = await key.post(`/playbook-executions/${started.id}/steps/b/assign`, { assignee: 'eve' })
    assert.deepEqual([assigned.body.waiting_on.assignee, assigned.body.steps[1].assignee], ['eve', 'eve'])
    const listed = await key.get('/playbook-executions?assignee=eve&waiting_on_type=manual')
    assert.deepEqual(
      listed.body.data.map(({ id, steps }: any) => [id, steps]),
      [[started.id, null]],
    )
    assert.equal((await key.get('/playbook-executions?status=nope')).status, 400)
  })

  it('lets one of several concurrent commands win', async () => {
    for (let round = 0; round < 5; round++) {
      const { id: playbook_id } = await playbook([manual('a')])
      const { id: case_id } = await newCase()
      const starts = await Promise.all([1, 2, 3].map(() => key.post('/playbook-executions', { case_id, playbook_id })))
      assert.deepEqual(starts.map(({ status }) => status).sort(), [201, 409, 409])
      const { id } = starts.find(({ status }) => status === 201)?.body ?? {}
      await until(id, 'waiting')
      const [completed, cancelled] = await Promise.all([
        complete(id, 'a'),
        key.post(`/playbook-executions/${id}/cancel`),
        key.patch(`/cases/${case_id}`, { fields: { round } }),
      ])
      assert.ok(cancelled.status === 200 || completed.status === 200)
      assert.ok([200, 409].includes(completed.status) && [200, 409].includes(cancelled.status))
      const status = cancelled.status === 200 ? 'cancelled' : 'completed'
      const over = await until(id, status)
      const kase = await caseOf(over)
      assert.deepEqual([kase.active_execution_id, kase.fields], [null, { round }])
      assert.equal(kase.status, status === 'completed' ? 'resolved' : 'open')
    }
  })

  it('requires the evidence of a step', async () => {
    const started = await run([
      manual('show', { required_evidence: [{ name: 'receipt', kind: 'note' }], skippable: true }),
      manual('next', { skippable: true }),
    ])
    await until(started.id, 'waiting')
    const refused = await complete(started.id, 'show')
    assert.deepEqual(code(refused), [400, 'VALIDATION_FAILED'])
    assert.equal(refused.body.error.meta.problems[0].path, 'evidence')
    const done = await complete(started.id, 'show', {
      evidence: [{ name: 'receipt', kind: 'note', content: 'paid' }],
    })
    assert.equal(done.status, 200, JSON.stringify(done.body))
    const evidence = (await key.get(`/cases/${started.case_id}/evidence`)).body.data
    assert.deepEqual(
      evidence.map(({ name, step_key, playbook_execution_id }: any) => [name, step_key, playbook_execution_id]),
      [['receipt', 'show', started.id]],
    )
    await until(started.id, 'waiting', 'next')
    const skipped = await key.post(`/playbook-executions/${started.id}/steps/next/skip`, { reason: 'not needed' })
    assert.equal(skipped.body.steps[1].status, 'skipped')
    const over = await until(started.id, 'completed')
    assert.deepEqual([over.steps[1].status, over.steps[1].note], ['skipped', 'not needed'])
    assert.deepEqual(Object.keys(over.output), ['show'])
  })

  it('allows one active execution per case and none on a closed case', async () => {
    const started = await run([manual('a')])
    const { playbook_id, case_id } = started
    await until(started.id, 'waiting')
    const second = await key.post('/playbook-executions', { case_id, playbook_id })
    const into_case_id = (await key.post('/cases', { title: 'Another' })).body.id
    for (const refused of [
      second,
      await key.delete(`/cases/${case_id}`),
      await key.post(`/cases/${case_id}/resolve`, { outcome: 'won' }),
      await key.post(`/cases/${case_id}/close`, {}),
      await key.post(`/cases/${case_id}/merge`, { into_case_id }),
    ]) {
      assert.deepEqual(code(refused), [409, 'PLAYBOOK_EXECUTION_CONFLICT'])
      assert.deepEqual(refused.body.error.meta, { case_id, execution_id: started.id, status: 'waiting' })
    }
    const deleted = await key.delete(`/playbooks/${playbook_id}`)
    assert.deepEqual(code(deleted), [409, 'PLAYBOOK_HAS_ACTIVE_EXECUTIONS'])
    assert.equal(deleted.body.error.meta.active_executions, 1)
    const cancelled = await key.post(`/playbook-executions/${started.id}/cancel`, { reason: 'enough' })
    assert.equal(cancelled.body.status, 'cancelled')
    assert.deepEqual(code(await key.post(`/playbook-executions/${started.id}/cancel`)), [
      409,
      'PLAYBOOK_EXECUTION_CONFLICT',
    ])
    assert.equal((await caseOf(started)).status, 'open')
    assert.deepEqual(code(await key.post(`/playbook-executions/${started.id}/retry`)), [
      409,
      'PLAYBOOK_EXECUTION_CONFLICT',
    ])
    assert.equal((await key.post(`/cases/${case_id}/close`, {})).status, 200)
    assert.deepEqual(code(await key.post('/playbook-executions', { case_id, playbook_id })), [
      409,
      'CASE_STATE_CONFLICT',
    ])
    assert.equal((await key.delete(`/playbooks/${playbook_id}`)).status, 204)
    assert.equal((await read(started.id)).playbook_id, playbook_id)
    assert.equal((await key.delete(`/cases/${case_id}`)).status, 204)
    assert.equal((await key.get(`/playbook-executions/${started.id}`)).status, 404)
    assert.equal((await key.get(`/orchestration-runs/${started.orchestration_run_id}`)).status, 404)
  })

  it('validates the case and the input and requires a playbook', async () => {
    const numbers = { type: 'object', required: ['amount'], properties: { amount: { type: 'number' } } }
    const { id: playbook_id } = await playbook([manual('a')], { case_schema: numbers, input_schema: numbers })
    const { id: case_id } = await newCase({ fields: { amount: 'x' } })
    const refused = await key.post('/playbook-executions', { case_id, playbook_id, input: {} })
    assert.deepEqual(code(refused), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(
      refused.body.error.meta.problems.map(({ path }: any) => path),
      ['case.fields.amount', 'input.amount'],
    )
    assert.deepEqual(code(await key.post('/playbook-executions', { case_id })), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(code(await key.post('/playbook-executions', { case_id, playbook_id, playbook_version: 9 })), [
      404,
      'RESOURCE_NOT_FOUND',
    ])
    assert.equal((await caseOf({ case_id })).execution_count, 0)
    const { id: plain } = await playbook([manual('a')])
    const made = await created('/cases', { title: 'at once', playbook_id: plain, start_execution: true })
    assert.equal(made.status, 'in_progress')
    assert.equal((await until(made.active_execution_id, 'waiting')).playbook_id, plain)
  })

  it('reads the current case at each step and keeps the pinned version', async () => {
    const { id: playbook_id } = await playbook([
      manual('first'),
      {
        key: 'risk',
        title: 'Risky?',
        type: 'branch',
        rules: [{ when: { '==': [{ var: 'case.fields.risk' }, 'high'] }, go_to: 'end' }],
      },
      manual('low'),
    ])
    const { id: case_id } = await newCase({ fields: { risk: 'low' }, playbook_id })
    const started = await created('/playbook-executions', { case_id })
    await until(started.id, 'waiting', 'first')
    assert.equal((await key.patch(`/cases/${case_id}`, { fields: { risk: 'high' } })).status, 200)
    assert.equal((await key.patch(`/playbooks/${playbook_id}`, { steps: [manual('other')] })).body.version, 2)
    await complete(started.id, 'first')
    const over = await until(started.id, 'completed')
    assert.equal(over.playbook_version, 1)
    assert.deepEqual(statuses(over), ['first:completed', 'risk:completed', 'low:skipped'])
    assert.equal((await key.get(`/cases/${case_id}`)).body.status, 'resolved')
  })

  it('fails at a step, files an exception and is retried from that step', async () => {
    const tool = await app.tool({ execute: { url: `${app.target.url}/fails` } })
    const first = await app.tool()
    const steps = [
      { key: 'one', title: 'One', type: 'call_tool', tool_id: first },
      manual('two'),
      { key: 'three', title: 'Three', type: 'call_tool', tool_id: tool },
    ]
    const started = await run(steps)
    await until(started.id, 'waiting', 'two')
    await complete(started.id, 'two', { result: { a: 1 } })
    const failed = await until(started.id, 'failed')
    assert.equal(failed.error.code, 'TOOL_HTTP_ERROR')
    assert.equal(failed.current_step_key, 'three')
    assert.equal((await caseOf(started)).status, 'open')
    const told = (await events(started.id)).find(({ name }) => name.endsWith('.failed'))
    assert.deepEqual([told.data.step_key, told.data.error.code], ['three', 'TOOL_HTTP_ERROR'])
    await eventually(async () => {
      const links = (await key.get(`/cases/${started.case_id}/links`)).body.data
      return links.length === 1 && links[0].type === 'exception' && links[0].target_exists
    })
    const exceptions = (await key.get('/exceptions?kind=run_failed')).body.data
    const filed = exceptions.find(({ detail }: any) => detail.playbook_execution_id === started.id)
    assert.deepEqual([filed.detail.case_id, filed.detail.step_key], [started.case_id, 'three'])

    const again = await key.post(`/playbook-executions/${started.id}/retry`)
    assert.equal(again.status, 200, JSON.stringify(again.body))
    assert.equal(again.body.status, 'queued')
    assert.deepEqual(again.body.previous_orchestration_run_ids, [started.orchestration_run_id])
    const twice = await until(started.id, 'failed')
    assert.deepEqual(
      twice.steps.map(({ attempt, status }: any) => [attempt, status]),
      [
        [1, 'completed'],
        [1, 'completed'],
        [2, 'failed'],
      ],
    )
    assert.equal(twice.output, null)
    const { id: plain } = await playbook([manual('a')])
    const other = await created('/playbook-executions', { case_id: started.case_id, playbook_id: plain })
    await until(other.id, 'waiting')
    const refused = await key.post(`/playbook-executions/${started.id}/retry`)
    assert.deepEqual(code(refused), [409, 'PLAYBOOK_EXECUTION_CONFLICT'])
    assert.deepEqual(refused.body.error.meta, { execution_id: other.id, status: 'waiting' })
    assert.equal((await key.post(`/playbook-executions/${other.id}/cancel`)).status, 200)
    assert.equal((await key.delete(`/playbooks/${started.playbook_id}`)).status, 204)
    assert.deepEqual(code(await key.post(`/playbook-executions/${started.id}/retry`)), [
      409,
      'PLAYBOOK_EXECUTION_CONFLICT',
    ])
  })

  it('continues after a failure with on_failure', async () => {
    const tool = await app.tool({ execute: { url: `${app.target.url}/fails` } })
    const fails = (key: string, more: object) => ({ key, title: key, type: 'call_tool', tool_id: tool, ...more })
    const started = await run([
      fails('a', { on_failure: 'continue' }),
      { key: 'skipped', title: 's', type: 'manual', when: { '==': [1, 2] } },
      fails('b', { on_failure: 'last' }),
      manual('never'),
      manual('last', { case_writes: { code: { var: 'steps.a.error.code' }, none: { var: 'steps.a.output' } } }),
    ])
    await until(started.id, 'waiting', 'last')
    await complete(started.id, 'last')
    const over = await until(started.id, 'completed')
    assert.deepEqual(statuses(over), ['a:failed', 'skipped:skipped', 'b:failed', 'never:skipped', 'last:completed'])
    assert.deepEqual((await caseOf(started)).fields, { code: 'TOOL_HTTP_ERROR', none: null })
    assert.deepEqual(
      (await kinds(started)).filter(kind => kind.startsWith('step_')),
      ['step_failed', 'step_skipped', 'step_failed', 'step_waiting', 'step_completed'],
    )
  })

  it('waits for approvals and follows the decision', async () => {
    const decide = async (id: string, decision: 'approve' | 'reject') => {
      const { waiting_on } = await until(id, 'waiting')
      assert.equal(waiting_on.type, 'approval')
      const body = decision === 'approve' ? {} : { reason: 'because' }
      const reply = await key.post(`/approvals/${waiting_on.approval_id}/${decision}`, body)
      assert.ok(reply.status < 300, JSON.stringify(reply.body))
      return waiting_on.approval_id
    }
    const approved = await run([approval('go', { reasoning: { cat: ['Case ', { var: 'case.number' }] } })], {
      playbook: { outcome: { var: 'steps.go.output.decision' } },
    })
    const id = await decide(approved.id, 'approve')
    const over = await until(approved.id, 'completed')
    assert.equal(over.outcome, 'approved')
    assert.deepEqual(Object.keys(over.steps[0].output).sort(), ['approval_id', 'decision', 'reason', 'resolved_by'])
    assert.equal(over.steps[0].output.approval_id, id)
    assert.equal((await key.get(`/approvals/${id}`)).body.proposed_action, null)
    const links = (await key.get(`/cases/${approved.case_id}/links`)).body.data
    assert.deepEqual(
      links.map(({ type, target_id }: any) => [type, target_id]),
      [['approval', id]],
    )
    const rows = await timeline(approved)
    const resolved = rows.find(({ kind }) => kind === 'approval_resolved')
    assert.deepEqual([resolved.principal_kind, resolved.data.decision], ['approval', 'approved'])
    assert.equal((await key.get(`/cases/${approved.case_id}/evidence`)).body.data[0].kind, 'approval')

    const ended = await run([approval('go', { on_rejected: 'end' }), manual('later')])
    await decide(ended.id, 'reject')
    assert.deepEqual(statuses(await until(ended.id, 'completed')), ['go:completed', 'later:skipped'])

    const rejected = await run([approval('go'), manual('later')])
    await decide(rejected.id, 'reject')
    const failed = await until(rejected.id, 'failed')
    assert.deepEqual(
      [failed.error.code, failed.error.meta],
      ['PLAYBOOK_STEP_FAILED', { step_key: 'go', reason: 'rejected' }],
    )

    const expired = async (more: object) => {
      const { id } = await run([approval('go', more), manual('skipped'), manual('later')])
      const { waiting_on } = await until(id, 'waiting')
      await app.pool.query(
        voidStatement`update approvals set expires_at = now() - interval '1 s' where id = ${waiting_on.approval_id}`,
      )
      return id
    }
    assert.deepEqual(statuses(await until(await expired({ on_expired: 'end' }), 'completed')), [
      'go:completed',
      'skipped:skipped',
      'later:skipped',
    ])
    const goesOn = await until(await expired({ on_expired: 'later' }), 'waiting', 'later')
    assert.deepEqual(statuses(goesOn), ['go:completed', 'skipped:pending', 'later:waiting'])
    assert.equal(goesOn.steps[0].output.decision, 'expired')
    const lapsed = await until(await expired({}), 'failed')
    assert.deepEqual(lapsed.error.meta, { step_key: 'go', reason: 'expired' })

    const cancelled = await run([approval('go')])
    const pending = (await until(cancelled.id, 'waiting')).waiting_on.approval_id
    await key.post(`/playbook-executions/${cancelled.id}/cancel`)
    assert.equal((await key.get(`/approvals/${pending}`)).body.status, 'expired')
    assert.equal((await key.post(`/approvals/${pending}/approve`)).status, 409)
    assert.equal((await read(cancelled.id)).steps[0].status, 'cancelled')
  })

  it('runs agents, deciders and orchestrations', async () => {
    const child = await app.orchestration([{ id: 'x', type: 'transform', expression: { var: 'input.n' } }])
    const started = await run([
      { key: 'child', title: 'Child', type: 'run_orchestration', orchestration_id: child, input_mapping: { n: 7 } },
      { key: 'agent', title: 'Agent', type: 'instruct_agent', agent_id: app.agentId, instructions: 'Sum it up.' },
      { key: 'wait', title: 'Wait', type: 'wait', until: { cat: ['2001-01-01T00:00:00Z'] } },
    ])
    const over = await until(started.id, 'completed')
    assert.deepEqual(over.output.child, { x: { result: 7 } })
    assert.ok(over.steps[0].orchestration_run_id)
    assert.equal(typeof over.output.agent.content, 'string')
    assert.ok(over.steps[1].generation_id)
    assert.deepEqual(over.output.wait, { waited_until: '2001-01-01T00:00:00.000Z' })
    assert.ok(over.usage.input_tokens > 0)
  })

  it('hides its run from lists and refuses commands on it', async () => {
    const started = await run([manual('a')])
    await until(started.id, 'waiting')
    const id = started.orchestration_run_id
    assert.equal((await key.get(`/orchestration-runs/${id}`)).status, 200)
    const listed = (await key.get('/orchestration-runs?limit=100')).body
    assert.ok(!listed.data.some((each: any) => each.id === id))
    assert.equal(listed.total, listed.data.length)
    for (const [command, body] of [
      ['cancel', {}],
      ['pause', {}],
      ['resume', {}],
      ['retry', {}],
      ['human-input', { node_id: 'a', output: {} }],
    ] as const) {
      const refused = await key.post(`/orchestration-runs/${id}/${command}`, body)
      assert.deepEqual(code(refused), [
        409,
        command === 'retry' ? refused.body.error.code : 'PLAYBOOK_EXECUTION_CONFLICT',
      ])
    }
    assert.equal((await read(started.id)).status, 'waiting')
  })

  it('marks a step as overdue once and times out', async () => {
    const started = await run([manual('late', { due_seconds: 1, timeout_seconds: 3 })])
    await until(started.id, 'waiting')
    await eventually(async () => (await read(started.id)).steps[0].overdue)
    const failed = await until(started.id, 'failed')
    assert.deepEqual(failed.error.meta, { step_key: 'late', reason: 'timeout' })
    assert.equal((await events(started.id)).filter(({ name }) => name.endsWith('step_overdue')).length, 1)
  })

  it('is started by a trigger', async () => {
    const { id: target_id } = await playbook([manual('a')])
    const trigger = await created('/triggers', { name: 'starts', type: 'manual', target_type: 'playbook', target_id })
    const fire = async (input: object) => {
      const fired = await key.post(`/triggers/${trigger.id}/fire`, { input })
      return fired
    }
    const made = await fire({ case: { title: 'from a trigger', external_id: 'ext-1' }, input: { a: 1 } })
    assert.ok(made.status < 300, JSON.stringify(made.body))
    await eventually(async () => (await key.get(`/playbook-executions?playbook_id=${target_id}`)).body.total === 1)
    const [execution] = (await key.get(`/playbook-executions?playbook_id=${target_id}`)).body.data
    assert.equal(execution.trigger_id, trigger.id)
    assert.deepEqual(execution.input, { a: 1 })
    assert.equal((await caseOf(execution)).external_id, 'ext-1')
    assert.deepEqual(code(await fire({ nothing: 1 })), [400, 'TRIGGER_INPUT_INVALID'])
  })

  it('fails a run whose graph contains a decider node', async () => {
    const decider = await madeDecider(key, { tool_id: await app.tool() })
    const node = { id: 'd', type: 'decide', metadata: { decider_id: decider.id } }
    const found = await created('/orchestrations/validate', { project_id: app.projectId, nodes: [node] }, 200)
    assert.deepEqual([found.valid, found.warnings[0].code], [true, 'NODE_TYPE_UNKNOWN'])
    const orchestration_id = await app.orchestration([node])
    const child = { key: 'child', title: 'Child', type: 'run_orchestration', orchestration_id }
    const { id } = await run([child])
    const failed = await until(id, 'failed')
    const { code, meta } = failed.steps[0].error
    assert.deepEqual([code, meta.reason], ['ORCHESTRATION_NODE_FAILED', 'unknown_type'], JSON.stringify(failed))
    assert.equal((await key.get(`/decisions?decider_id=${decider.id}`)).body.total, 0)
  })

  it('evaluates deciders and fails when a decider fails', async () => {
    app.target.answer = json(TOOL_ANSWERS)
    const tool_id = await app.tool()
    const decider = await madeDecider(key, { tool_id })
    const ask = { key: 'ask', title: 'Ask', type: 'ask_decider', decider_id: decider.id }
    const started = await run([ask, manual('then', { when: { var: 'steps.ask.output.answers_by_name.urgent' } })])
    await until(started.id, 'waiting', 'then')
    const { steps } = await read(started.id)
    const { output, decision_id } = steps[0]
    assert.deepEqual(Object.keys(output), ['decision_id', 'answers', 'answers_by_name'])
    assert.deepEqual([output.decision_id, output.answers.length], [decision_id, 3])
    const [evidence] = (await key.get(`/cases/${started.case_id}/evidence`)).body.data
    assert.deepEqual([evidence.kind, evidence.step_key, evidence.content], ['decision', 'ask', output])
    assert.ok(app.target.last().body.includes(`case ${counter}`), 'the decider receives the case')

    app.target.answer = json({ nonsense: true })
    const failing = await until((await run([ask])).id, 'failed')
    assert.equal(failing.steps[0].error.code, failing.error.code)
    assert.ok(failing.steps[0].decision_id)
  })

  it('does not call a tool that a guardrail blocks, and requests approval when it escalates', async () => {
    const call = async (document: object) => {
      const { id } = await guardrail(key, document)
      return { key: 'call', title: 'Call', type: 'call_tool', tool_id: await app.tool({ guardrail_ids: [id] }) }
    }
    const blocked = await until((await run([await call({ class: 'D' })])).id, 'failed')
    assert.deepEqual([blocked.error.code, blocked.error.meta.outcome], ['TOOL_DISPATCH_FAILED', 'blocked'])
    const asks = await call({ class: 'C' })
    const approved = await run([asks])
    const waits = await until(approved.id, 'waiting')
    assert.equal(waits.waiting_on.type, 'approval')
    assert.equal((await key.post(`/approvals/${waits.waiting_on.approval_id}/approve`)).status, 200)
    assert.deepEqual((await until(approved.id, 'completed')).output, { call: { ok: true } })
    const rejected = await run([asks])
    const { waiting_on } = await until(rejected.id, 'waiting')
    assert.equal((await key.post(`/approvals/${waiting_on.approval_id}/reject`, { reason: 'no' })).status, 200)
    const failed = await until(rejected.id, 'failed')
    assert.deepEqual([failed.error.code, failed.error.meta.reason], ['PLAYBOOK_STEP_FAILED', 'rejected'])
  })

  it('uses a tool context that is never returned and is cleared at the end', async () => {
    const tool_id = await app.tool()
    const steps = [manual('a'), { key: 'call', title: 'Call', type: 'call_tool', tool_id }]
    const started = await run(steps, {}, { tool_context: { tenant: 'secret-tenant' } })
    await until(started.id, 'waiting')
    await complete(started.id, 'a')
    const over = await until(started.id, 'completed')
    const seen = JSON.stringify([started, over, await events(started.id), await timeline(started)])
    assert.ok(!seen.includes('secret-tenant'))
    assert.ok(JSON.stringify(app.target.last().headers).includes('secret-tenant'))
    const stored = await app.pool.one(
      sql.unsafe`select context from orchestration_runs where id = ${started.orchestration_run_id}`,
    )
    assert.deepEqual(stored, { context: null })
    const { case_id, playbook_id } = started
    const bad = await key.post('/playbook-executions', { case_id, playbook_id, tool_context: { 'a b': '1' } })
    assert.deepEqual(code(bad), [400, 'INVALID_TOOL_CONTEXT_KEY'])
  })

  it('runs with the permissions of the principal that started or retried it', async () => {
    const platform = await app.admin.post('/tools', {
      project_id: app.projectId,
      name: 'lists',
      type: 'platform',
      actions: ['list-orchestrations'],
    })
    const operation_id = 'list-orchestrations'
    const steps = [
      manual('a'),
      { key: 'list', title: 'List', type: 'call_tool', tool_id: platform.body.id, operation_id },
    ]
    const keyWith = async (actions: string[], resource: string) => {
      const document = { statement: [{ effect: 'Allow', action: actions, resource: [resource] }] }
      const policy = (await app.admin.post('/policies', { document })).body
      const { body } = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] })
      return app.as(body.secret)
    }
    const { id: playbook_id } = await playbook(steps)
    const { id: case_id } = await newCase()
    const { id: other_id } = await newCase()
    const everywhere = `srn:${app.projectId}:*:*`
    const blind = await keyWith(['playbooks:StartExecution'], everywhere)
    assert.deepEqual(code(await blind.post('/playbook-executions', { case_id, playbook_id })), [403, 'FORBIDDEN'])
    const narrow = await keyWith(['playbooks:*', 'cases:*'], everywhere)
    const started = await narrow.post('/playbook-executions', { case_id, playbook_id })
    assert.equal(started.status, 201, JSON.stringify(started.body))
    const { id } = started.body
    await until(id, 'waiting')
    // This principal may list, but later steps run as the other principal.
    assert.equal((await complete(id, 'a')).status, 200)
    const failed = await until(id, 'failed')
    assert.equal(failed.error.meta.tool_status_code, 403, JSON.stringify(failed.error))
    assert.equal((await key.post(`/playbook-executions/${id}/retry`)).status, 200)
    const over = await until(id, 'completed')
    assert.equal(over.steps[1].attempt, 2)
    assert.deepEqual(over.started_by, failed.started_by)

    // Policies refer to executions by their case.
    const ofOne = await keyWith(['playbooks:*', 'cases:*'], `srn:${app.projectId}:case:${case_id}`)
    assert.equal((await ofOne.get(`/playbook-executions/${id}`)).status, 200)
    assert.deepEqual(
      (await ofOne.get('/playbook-executions')).body.data.map((each: any) => each.case_id),
      [case_id],
    )
    const theirs = await created('/playbook-executions', { case_id: other_id, playbook_id })
    assert.equal((await ofOne.get(`/playbook-executions/${theirs.id}`)).status, 403)
    assert.equal((await ofOne.post(`/playbook-executions/${theirs.id}/cancel`)).status, 403)
    const elsewhere = await app.projectWith(['playbooks:*'])
    assert.equal((await elsewhere.key.get(`/playbook-executions/${id}`)).status, 404)
  })

  it('starts no step while the project is paused, except after commands of callers', async () => {
    const started = await run([manual('a'), manual('b')])
    await until(started.id, 'waiting')
    const { case_id, playbook_id } = started
    assert.equal((await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'closed' })).status, 200)
    try {
      const { id } = await newCase()
      const refused = await key.post('/playbook-executions', { case_id: id, playbook_id })
      assert.deepEqual(code(refused), [409, 'PROJECT_PAUSED'])
      assert.equal((await complete(started.id, 'a')).status, 200)
      const paused = async () => (await key.get(`/orchestration-runs/${started.orchestration_run_id}`)).body
      await eventually(async () => (await paused()).status === 'awaiting_input')
      assert.deepEqual(statuses(await read(started.id)), ['a:completed', 'b:pending'])
    } finally {
      assert.equal((await app.admin.post(`/projects/${app.projectId}/resume`)).status, 200)
    }
    await until(started.id, 'waiting', 'b')
    assert.equal((await key.get(`/cases/${case_id}`)).body.status, 'waiting')
  })

  it('waits for a timer and reports it', async () => {
    const started = await run([{ key: 'nap', title: 'Nap', type: 'wait', duration_seconds: 1 }], {
      playbook: { resolve_case: false },
    })
    const over = await until(started.id, 'completed')
    assert.ok(Date.parse(over.output.nap.waited_until) >= Date.parse(over.started_at) + 1000)
    assert.equal((await caseOf(started)).status, 'open')
    const long = await run([{ key: 'nap', title: 'Nap', type: 'wait', duration_seconds: 3600 }])
    const { waiting_on } = await until(long.id, 'waiting')
    assert.deepEqual([waiting_on.type, waiting_on.step_key], ['timer', 'nap'])
    assert.ok(Date.parse(waiting_on.resumes_at) > Date.now() + 3_000_000)
    assert.equal((await caseOf(long)).status, 'waiting')
    assert.ok(!(await events(long.id)).some(({ name }) => name.endsWith('step_waiting')))
  })

  it('waits for an event of the project that passes the filter', async () => {
    const awaits = (more: object) => ({ key: 'paid', title: 'Paid', type: 'wait', event: more })
    const filter = {
      and: [
        { '==': [{ var: 'data.external_id' }, { var: 'case.fields.invoice' }] },
        { '==': [{ var: 'data.title' }, { var: 'steps.ask.output.title' }] },
      ],
    }
    const steps = [
      manual('ask'),
      awaits({ pattern: 'cases.*', filter }),
      manual('after', { assignee: { var: 'steps.paid.output.event.data.title' } }),
    ]
    const invoice = `inv-${++counter}`
    const started = await run(steps, { case: { fields: { invoice } } })
    await until(started.id, 'waiting')
    // An event before the wait is not matched.
    await newCase({ external_id: `${invoice}-early`, title: 'settled' })
    assert.equal((await complete(started.id, 'ask', { result: { title: 'settled' } })).status, 200)
    const waits = await until(started.id, 'waiting', 'paid')
    assert.deepEqual(waits.waiting_on, {
      type: 'event',
      step_key: 'paid',
      event_pattern: 'cases.*',
      expires_at: null,
    })
    assert.deepEqual(waits.steps[1].input, { 'case.fields.invoice': invoice, 'steps.ask.output.title': 'settled' })
    const { case_id } = started
    const listed = await key.get(`/playbook-executions?waiting_on_type=event&case_id=${case_id}`)
    assert.deepEqual(
      listed.body.data.map(({ id }: any) => id),
      [started.id],
    )
    assert.equal((await caseOf(started)).status, 'waiting')
    // The filter reads the case at the start of the wait, not later changes.
    assert.equal((await key.patch(`/cases/${case_id}`, { fields: { invoice: 'other' } })).status, 200)
    await newCase({ external_id: 'other', title: 'settled' })
    await newCase({ external_id: `${invoice}-x`, title: 'settled' })
    const came = await newCase({ external_id: invoice, title: 'settled' })
    const on = await until(started.id, 'waiting', 'after')
    const { event, waited_until } = on.steps[1].output
    assert.deepEqual([event.event, event.resource_id, event.data.title], ['cases.created', came.id, 'settled'])
    assert.ok(Date.parse(waited_until) >= Date.parse(event.timestamp))
    assert.equal(on.waiting_on.assignee, 'settled')
    const told = (await events(started.id)).map(({ name }) => name.split('.')[1])
    assert.deepEqual(told, ['started', 'step_waiting', 'step_completed', 'step_completed', 'step_waiting'])
  })

  it('ignores its own events and events of other projects, and times out', async () => {
    const { key: other } = await app.projectWith(['cases:*'])
    const started = await run([
      { key: 'any', title: 'Any', type: 'wait', event: { pattern: 'cases.*', timeout_seconds: 3 } },
    ])
    const { waiting_on } = await until(started.id, 'waiting')
    assert.ok(Date.parse(waiting_on.expires_at) > Date.now())
    assert.equal((await other.post('/cases', { title: 'elsewhere' })).status, 201)
    const failed = await until(started.id, 'failed')
    assert.deepEqual(failed.error.meta, { step_key: 'any', reason: 'timeout' })
    assert.equal(failed.waiting_on, null)
  })

  it('resumes all executions that wait for an event, each once', async () => {
    const title = `wakes ${++counter}`
    const event = { pattern: 'cases.created', filter: { '==': [{ var: 'data.title' }, title] } }
    const { id: playbook_id } = await playbook([{ key: 'all', title: 'All', type: 'wait', event }, manual('next')])
    const started = await Promise.all(
      Array.from({ length: 12 }, async () =>
        created('/playbook-executions', { case_id: (await newCase()).id, playbook_id }),
      ),
    )
    for (const { id } of started) await until(id, 'waiting', 'all')
    await Promise.all([newCase({ title }), newCase({ title })])
    for (const execution of started) {
      const { id } = execution
      await until(id, 'waiting', 'next')
      const completed = (await timeline(execution)).filter(({ kind }) => kind === 'step_completed')
      assert.equal(completed.length, 1)
    }
  })

  it('ignores events that the policy of the trigger denies, and requires triggers:CreateTrigger to write an event wait', async () => {
    const keyWith = async (action: string[]) => {
      const document = { statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }] }
      const policy = (await app.admin.post('/policies', { document })).body
      const { body } = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] })
      return { key: app.as(body.secret), policy_id: policy.id }
    }
    const steps = [{ key: 'all', title: 'All', type: 'wait', event: { pattern: 'cases.created' } }, manual('next')]
    const { key: writer } = await keyWith(['playbooks:*'])
    assert.deepEqual(code(await writer.post('/playbooks', { name: 'no right', steps })), [403, 'FORBIDDEN'])
    const { id } = (await writer.post('/playbooks', { name: `right ${++counter}`, steps: [manual('a')] })).body
    assert.deepEqual(code(await writer.patch(`/playbooks/${id}`, { steps })), [403, 'FORBIDDEN'])

    const { id: target_id } = await playbook(steps)
    const { policy_id } = await keyWith(['playbooks:*', 'cases:CreateCase'])
    const trigger = await created('/triggers', { name: 'bounded', type: 'manual', target_type: 'playbook', target_id })
    const bounded = await key.patch(`/triggers/${trigger.id}`, { policy_id })
    assert.equal(bounded.status, 200, JSON.stringify(bounded.body))
    const fired = await key.post(`/triggers/${trigger.id}/fire`, { input: { case: { title: 'bounded' } } })
    assert.ok(fired.status < 300, JSON.stringify(fired.body))
    const list = async () => (await key.get(`/playbook-executions?playbook_id=${target_id}`)).body.data
    await eventually(async () => (await list())[0]?.status === 'waiting')
    const [hidden] = await list()
    const open = await created('/playbook-executions', { case_id: (await newCase()).id, playbook_id: target_id })
    await until(open.id, 'waiting', 'all')
    await newCase()
    // Both evaluated the event; only the execution that may see it has continued.
    await until(open.id, 'waiting', 'next')
    assert.equal((await read(hidden.id)).current_step_key, 'all')
  })

  it('pauses and resumes an execution', async () => {
    const started = await run([manual('a'), manual('b'), { key: 'c', title: 'C', type: 'wait', duration_seconds: 1 }])
    const { id } = started
    await until(id, 'waiting')
    const path = `/playbook-executions/${id}`
    assert.deepEqual(code(await key.post(`${path}/resume`)), [409, 'PLAYBOOK_EXECUTION_CONFLICT'])
    const paused = await key.post(`${path}/pause`, { reason: 'holidays' })
    assert.equal(paused.status, 200, JSON.stringify(paused.body))
    assert.equal(paused.body.pause_reason, 'holidays')
    const again = await key.post(`${path}/pause`, { reason: 'other' })
    assert.deepEqual(
      [again.status, again.body.pause_reason, again.body.pause_requested_at],
      [200, 'holidays', paused.body.pause_requested_at],
    )
    assert.equal((await complete(id, 'a')).status, 200)
    const drives = async () => (await key.get(`/orchestration-runs/${started.orchestration_run_id}`)).body
    await eventually(async () => (await drives()).status === 'awaiting_input')
    assert.deepEqual(statuses(await read(id)), ['a:completed', 'b:pending', 'c:pending'])
    // A pause of the project is separate.
    assert.equal((await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'closed' })).status, 200)
    try {
      assert.deepEqual(code(await key.post(`${path}/resume`)), [409, 'PROJECT_PAUSED'])
    } finally {
      assert.equal((await app.admin.post(`/projects/${app.projectId}/resume`)).status, 200)
    }
    assert.equal((await read(id)).pause_reason, 'holidays')
    const resumed = await key.post(`${path}/resume`)
    assert.deepEqual([resumed.status, resumed.body.pause_requested_at], [200, null], JSON.stringify(resumed.body))
    await until(id, 'waiting', 'b')
    const changes = (await timeline(started)).flatMap(({ kind, data, principal_kind }) =>
      kind === 'updated' ? [[principal_kind, data]] : [],
    )
    assert.deepEqual(changes, [
      ['api_key', { changes: { paused: { from: false, to: true } }, reason: 'holidays' }],
      ['api_key', { changes: { paused: { from: true, to: false } } }],
    ])
    // No timer fires while it is paused.
    assert.equal((await complete(id, 'b')).status, 200)
    await until(id, 'waiting', 'c')
    assert.equal((await key.post(`${path}/pause`)).status, 200)
    const cancelled = await key.post(`${path}/cancel`)
    assert.deepEqual([cancelled.body.status, cancelled.body.pause_requested_at], ['cancelled', null])
    assert.deepEqual(code(await key.post(`${path}/pause`)), [409, 'PLAYBOOK_EXECUTION_CONFLICT'])
    const narrow = await app.projectWith(['playbooks:*'])
    assert.equal((await narrow.key.post(`${path}/pause`)).status, 404)
  })

  it('fails when an expression cannot be evaluated, even after a manual completion', async () => {
    const doubled = Array.from({ length: 10 }, () => 0).reduce<object>(inner => ({ cat: [inner, inner] }), {
      var: 'output.text',
    })
    const started = await run([manual('a', { case_writes: { big: doubled } }), manual('b')])
    await until(started.id, 'waiting')
    const reply = await complete(started.id, 'a', { result: { text: 'x'.repeat(30_000) } })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    assert.equal(reply.body.status, 'failed')
    assert.deepEqual(reply.body.error.meta, { step_key: 'a', field: 'case_writes.big', reason: 'expression' })
    assert.deepEqual((await caseOf(started)).fields, {})
  })

  it('is deleted with its project; playbooks are copied with a project', async () => {
    const { id: project_id } = await app.project('copied')
    const { body: tool } = await app.admin.post('/tools', { project_id, name: 't', execute: { url: app.target.url } })
    const { body: made } = await app.admin.post('/playbooks', {
      project_id,
      name: 'copied',
      steps: [{ key: 'call', title: 'Call', type: 'call_tool', tool_id: tool.id }, manual('then')],
    })
    const include = ['tools', 'playbooks']
    const cloned = await app.admin.post(`/projects/${project_id}/clone`, { name: 'copy', include })
    assert.ok(cloned.status < 300, JSON.stringify(cloned.body))
    const copy = (await app.admin.get('/playbooks?name=copied')).body.data.find(({ id }: any) => id !== made.id)
    assert.notEqual(copy.steps[0].tool_id, tool.id)
    const { body: kase } = await app.admin.post('/cases', { project_id, title: 'x' })
    const started = await app.admin.post('/playbook-executions', { case_id: kase.id, playbook_id: made.id })
    assert.equal(started.status, 201, JSON.stringify(started.body))
    assert.equal((await app.admin.delete(`/projects/${project_id}?force=true`)).status, 204)
    assert.equal((await app.admin.get(`/playbooks/${made.id}`)).status, 404)
  })
})
