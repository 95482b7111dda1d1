import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { RUN_ACTIONS, startRunApp } from './fixtures.ts'

/** Fault points: in the advance of the run of an execution, and in a node execution. */
const POINTS = ['run_locked', 'run_advanced', 'run_committed', 'node_taken', 'node_called', 'node_finished'] as const

const FAST = {
  SHUTDOWN_GRACE_MS: '2000',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
  ORCHESTRATION_NODE_LEASE_SECONDS: '1',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '500',
  ORCHESTRATION_NODE_MAX_DELIVERIES: '100',
}

const STEPS = (tool_id: string) => [
  { key: 'call', title: 'Call', type: 'call_tool', tool_id, capture: true, case_writes: { called: true } },
  { key: 'ask', title: 'Ask', type: 'manual', when: { var: 'case.fields.called' } },
  { key: 'go', title: 'Go', type: 'branch', rules: [{ when: { var: 'steps.ask.output.again' }, go_to: 'last' }] },
  { key: 'last', title: 'Last', type: 'call_tool', tool_id, capture: true },
]

describe('executions after the loss of a worker', function () {
  this.timeout(300_000)
  const app = forSuite(() =>
    startRunApp({
      workers: [],
      env: FAST,
      actions: [...RUN_ACTIONS, 'playbooks:*', 'cases:*', 'tools:CallTool', 'triggers:CreateTrigger'],
    }),
  )
  let workers: TestProcess[] = []
  afterEach(async () => {
    await steady.stop()
    await Promise.all(workers.map(({ kill }) => kill()))
    workers = []
  })

  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['orchestration', 'delivery'])
    workers.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** Starts a worker without faults. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['orchestration', 'delivery'])
  const created = (path: string, body: object): Promise<any> => postedBy(app.key, path, body)

  it('writes each record once, whatever the fault point', async () => {
    const started: { id: string; kase: string }[] = []
    for (const point of POINTS) {
      const playbook = await created('/playbooks', { name: `at ${point}`, steps: STEPS(await app.tool()) })
      const { id: kase } = await created('/cases', { title: point })
      const { id } = await created('/playbook-executions', { case_id: kase, playbook_id: playbook.id })
      started.push({ id, kase })
      const doomed = await worker({ FAULT_POINTS: `${point}=kill:1` })
      await doomed.exited
    }
    await steadyWorker()
    for (const { id } of started) {
      await until(id, 'waiting')
      await created(`/playbook-executions/${id}/steps/ask/complete`, { result: { again: true } })
    }
    for (const { id, kase } of started) await requireOnce(await until(id, 'completed'), kase)
  })

  it('handles each awaited event once, whatever the fault point', async () => {
    const points = ['event_judged', 'event_taken', 'event_answered', 'run_locked', 'run_advanced', 'run_committed']
    const wait = (key: string, title: string) => ({
      key,
      title: key,
      type: 'wait',
      event: { pattern: 'cases.created', filter: { '==': [{ var: 'data.title' }, title] } },
    })
    const waits = (id: string, key: string) =>
      eventually(async () => {
        const { status, current_step_key } = (await app.key.get(`/playbook-executions/${id}`)).body
        return status === 'waiting' && current_step_key === key
      })
    const started: { id: string; title: string; first: string }[] = []
    for (const point of points) {
      const title = `comes at ${point}`
      const steps = [wait('one', title), wait('two', title)]
      const playbook = await created('/playbooks', { name: title, steps })
      const { id: case_id } = await created('/cases', { title: 'waits' })
      const { id } = await created('/playbook-executions', { case_id, playbook_id: playbook.id })
      // The worker that starts the wait is not the worker that is killed.
      await steadyWorker()
      await waits(id, 'one')
      await steady.stop()
      const doomed = await worker({ FAULT_POINTS: `${point}=kill:1` })
      const event = await created('/cases', { title })
      await doomed.exited
      started.push({ id, title, first: event.id })
    }
    await Promise.all([steadyWorker(), steadyWorker()])
    for (const { id } of started) await waits(id, 'two')
    for (const { id, title, first } of started) {
      const second = await created('/cases', { title })
      const { steps } = await until(id, 'completed')
      assert.deepEqual(
        steps.map(({ output }: any) => output.event.resource_id),
        [first, second.id],
      )
      const names = (await storedEvents(app.pool, { resource: id })).map(({ name }) => name.split('.')[1])
      assert.deepEqual(names, ['started', 'step_completed', 'step_completed', 'completed'])
    }
  })

  const until = async (id: string, status: string): Promise<any> => {
    const read = async () => (await app.key.get(`/playbook-executions/${id}`)).body
    await eventually(async () => (await read()).status === status, { what: `the execution ${id} ${status}` })
    return read()
  }

  const requireOnce = async ({ id, steps }: any, kase: string) => {
    assert.deepEqual(
      steps.map(({ key, status }: any) => `${key} ${status}`),
      ['call completed', 'ask completed', 'go completed', 'last completed'],
    )
    const timeline = (await app.key.get(`/cases/${kase}/timeline?limit=100`)).body.data
    const of = (kind: string) => timeline.filter((row: any) => row.kind === kind).map(({ step_key }: any) => step_key)
    assert.deepEqual(of('step_completed'), ['call', 'ask', 'go', 'last'])
    assert.deepEqual(of('step_waiting'), ['ask'])
    assert.deepEqual(of('evidence_added'), ['call', 'ask', 'last'])
    assert.equal(of('execution_completed').length, 1)
    const evidence = (await app.key.get(`/cases/${kase}/evidence`)).body.data
    assert.deepEqual(
      evidence.map(({ step_key }: any) => step_key),
      ['call', 'ask', 'last'],
    )
    const names = (await storedEvents(app.pool, { resource: id })).map(({ name }) => name.split('.')[1])
    assert.deepEqual(names, [
      'started',
      'step_completed',
      'step_waiting',
      'step_completed',
      'step_completed',
      'step_completed',
      'completed',
    ])
    const { status, fields, evidence_count } = (await app.key.get(`/cases/${kase}`)).body
    assert.deepEqual([status, fields, evidence_count], ['resolved', { called: true }, 3])
  }
})
