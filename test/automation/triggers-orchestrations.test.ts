import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { triggersIn } from '#core/db/trigger-chain.ts'
import { eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import {
  ACTIONS,
  allEnded,
  codeOf,
  ended,
  fired,
  firingsOf,
  hook,
  madeTrigger,
  startTriggerApp,
} from './triggers-support.ts'

/** Workers for runs, in addition to the trigger workers. */
const WORKERS = ['trigger', 'generation', 'delivery', 'orchestration'] as never

describe('orchestration triggers', function () {
  this.timeout(60_000)
  const app = forSuite(() => startTriggerApp({ workers: WORKERS, actions: [...ACTIONS, 'orchestrations:*'] }))
  const key = forSuite(() => app.key)

  const graph = async (nodes: object[], fields: object = {}): Promise<string> =>
    (await createdBy(key, '/orchestrations', { name: 'graph', nodes, edges: [], ...fields })).id
  const transform = {
    id: 'sum',
    type: 'transform',
    expression: { '+': [{ var: 'input.seed' }, { var: 'input.extra' }] },
  }
  const on = (target_id: string, fields: object = {}) =>
    madeTrigger(key, { target_type: 'orchestration', target_id, ...fields })

  it('starts a run with the input and settles with the run', async () => {
    const trigger = await on(await graph([transform]), { input: { seed: 1 } })
    const firing = await fired(key, trigger.id, { extra: 2 })
    assert.deepEqual(
      [firing.status, firing.input, firing.result.status],
      ['succeeded', { seed: 1, extra: 2 }, 'succeeded'],
    )
    const run = (await key.get(`/orchestration-runs/${firing.result.result_id}`)).body
    assert.deepEqual(
      [run.trigger_id, run.trigger_firing_id, run.started_by, run.input],
      [trigger.id, firing.id, { kind: 'trigger', id: trigger.id }, { seed: 1, extra: 2 }],
    )
    assert.deepEqual(firing.result.output, run.output)
    const nests = {
      id: 'nests',
      type: 'sub_orchestration',
      orchestration_id: await graph([{ ...transform, expression: 1 }]),
    }
    const outer = (await fired(key, (await on(await graph([nests]))).id)).result.result_id
    const [child] = (await key.get(`/orchestration-runs?parent_orchestration_run_id=${outer}`)).body.data
    const parent = (await key.get(`/orchestration-runs/${outer}`)).body
    assert.deepEqual(
      [child.trigger_id, child.trigger_firing_id, child.started_by],
      [parent.trigger_id, parent.trigger_firing_id, parent.started_by],
    )
    assert.ok(parent.trigger_id && parent.trigger_firing_id)
  })

  it('refuses an input above the run limit, before and after mapping', async () => {
    const target_id = await graph([transform])
    const half = { text: 'x'.repeat(200_000) }
    const doubled = Object.fromEntries(Array.from({ length: 6 }, (_, at) => [`k${at}`, { var: 'input.text' }]))
    const mapped = await on(target_id, { input_mapping: doubled })
    const plain = await on(target_id, { type: 'webhook', input: half })
    const byHand = await key.post(`/triggers/${mapped.id}/fire`, { input: half })
    assert.deepEqual(codeOf(byHand), [400, 'TRIGGER_INPUT_INVALID'])
    assert.match(byHand.body.error.message, /input_mapping: must return at most 1 MiB/)
    const called = await hook(app.url, plain, JSON.stringify({ more: 'x'.repeat(1_000_000) }))
    assert.deepEqual([called.status, called.body.error.code], [400, 'TRIGGER_INPUT_INVALID'])
    assert.deepEqual([await firingsOf(key, mapped.id), await firingsOf(key, plain.id)], [[], []])
  })

  it('refuses an input that violates input_schema, in the response of a fire request and on other firings', async () => {
    const input_schema = { type: 'object', properties: { seed: { type: 'integer' } }, required: ['seed'] }
    const id = await graph([transform], { input_schema })
    const trigger = await on(id)
    const refused = await key.post(`/triggers/${trigger.id}/fire`, { input: { seed: 'x' } })
    assert.deepEqual(codeOf(refused), [400, 'TRIGGER_INPUT_INVALID'])
    assert.ok(refused.body.error.meta.problems.length > 0)
    assert.deepEqual(await firingsOf(key, trigger.id), [])
    const listening = await on(id, { type: 'event', event_pattern: 'actors.created' })
    await key.post('/actors', { name: 'x' })
    const [firing] = await allEnded(key, listening.id, 1)
    assert.deepEqual([firing.status, firing.error.code], ['failed', 'TRIGGER_INPUT_INVALID'])
  })

  it('settles when the run awaits input or fails', async () => {
    const waiting = await on(await graph([{ id: 'ask', type: 'human', prompt: 'ok?' }]))
    assert.deepEqual((await fired(key, waiting.id)).result.status, 'awaiting_input')
    const failing = await on(await graph([{ id: 'call', type: 'tool', tool_id: app.toolId }]))
    app.target.answer = (_request, response) => response.writeHead(500).end()
    const firing = await fired(key, failing.id)
    assert.deepEqual([firing.status, firing.error.code, firing.result.status], ['failed', 'TOOL_HTTP_ERROR', 'failed'])
    app.target.answer = (_request, response) =>
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}')
  })

  it('fails a firing whose run was cancelled', async () => {
    const trigger = await on(await graph([{ id: 'later', type: 'delay', duration: '1h' }]))
    const { body } = await key.post(`/triggers/${trigger.id}/fire?wait=false`)
    let run: string | undefined
    for (let tries = 0; !run && tries < 500; tries++) {
      run = (await key.get(`/trigger-firings/${body.id}`)).body.result?.result_id
      await new Promise(resolve => setTimeout(resolve, 20))
    }
    assert.equal((await key.post(`/orchestration-runs/${run}/cancel`)).status, 200)
    const firing = await ended(key, body.id)
    assert.deepEqual([firing.status, firing.error.code], ['failed', 'ORCHESTRATION_DISPATCH_FAILED'])
    assert.deepEqual(firing.error.meta, { orchestration_run_id: run, run_status: 'cancelled' })
  })

  it('refuses a fire request from its own run', async () => {
    const inner = await madeTrigger(key, { target_type: 'tool', target_id: app.toolId })
    const tool = await key.post('/tools', { name: 'fires', type: 'platform', actions: ['fire-trigger'] })
    const node = { id: 'fire', type: 'tool', tool_id: tool.body.id, operation_id: 'fire-trigger' }
    const trigger = await on(await graph([{ ...node, input_mapping: { trigger_id: inner.id } }]))
    const firing = await fired(key, trigger.id)
    assert.equal(firing.status, 'failed')
    assert.match(JSON.stringify(firing.error), /TRIGGER_RECURSION_FORBIDDEN/)
    assert.deepEqual(await firingsOf(key, inner.id), [])
  })

  it('fires once when its graph emits the matching event', async () => {
    const id = await graph([{ id: 'emit', type: 'emit_event', event_type: 'orders.shipped', input_mapping: { a: 1 } }])
    const trigger = await on(id, { type: 'event', event_pattern: 'orders.shipped' })
    assert.equal((await key.post('/orchestration-runs', { orchestration_id: id })).status, 201)
    const [first, second] = await allEnded(key, trigger.id, 2)
    assert.deepEqual(
      [first.status, second.status, second.error.code],
      ['succeeded', 'failed', 'TRIGGER_CAUSATION_LIMIT'],
    )
    assert.equal(second.error.meta.reason, 'repeat')
    // Exceptions are filed in the background.
    await eventually(async () => (await key.get('/exceptions?kind=event_trigger_loop')).body.total === 1)
  })

  /** Returns the causation chain of the event that the graph of a run emitted. */
  const causes = async (name: string): Promise<string[] | null> => {
    const [{ causation }] = await eventually(async () => {
      const found = await app.pool.any(
        sql.unsafe`select causation from events where name = ${name} and project_id = ${app.projectId}`,
      )
      return found.length > 0 ? (found as any[]) : null
    })
    return causation && triggersIn(causation)
  }
  it('propagates the causation chain to the run and across its waits', async () => {
    const tool = await key.post('/tools', { name: 'resumes', type: 'platform', actions: ['resume-run'] })
    const resumes = await madeTrigger(key, { target_type: 'tool', target_id: tool.body.id, action: 'resume-run' })
    const wait = { id: 'wait', type: 'approval', tool_id: app.toolId }
    const tell = (event_type: string) => ({ id: 'tell', type: 'emit_event', event_type })
    const edges = [{ from: 'wait', to: 'tell' }]
    /** Approves a run while it is paused and resumes it by a trigger; the run continues with the decision. */
    const resumed = async (run: string) => {
      const { approval_id } = await eventually<any>(async () => {
        const { body } = await key.get(`/orchestration-runs/${run}`)
        return body.status === 'awaiting_input' && body.required_action
      })
      assert.equal((await key.post(`/orchestration-runs/${run}/pause`)).status, 200)
      assert.equal((await app.admin.post(`/approvals/${approval_id}/approve`)).status, 200)
      const input = { orchestration_run_id: run }
      assert.equal((await fired(key, resumes.id, input)).status, 'succeeded')
    }
    const own = await on(await graph([wait, tell('runs.resumed')], { edges }))
    await resumed((await fired(key, own.id)).result.result_id)
    assert.deepEqual((await causes('runs.resumed'))?.toSorted(), [own.id, resumes.id].toSorted())
    const child = { id: 'wait', type: 'sub_orchestration', orchestration_id: await graph([wait]) }
    const parent = await graph([child, tell('children.resumed')], { edges })
    const { body: run } = await key.post('/orchestration-runs', { orchestration_id: parent })
    const below: any = await eventually(async () => {
      const { body } = await key.get(`/orchestration-runs?parent_orchestration_run_id=${run.id}`)
      return body.data[0]
    })
    await resumed(below.id)
    assert.deepEqual(await causes('children.resumed'), [resumes.id])
  })

  it('attributes audit entries that are written together to their own chains', async () => {
    const tool = await key.post('/tools', { name: 'calls', type: 'platform', actions: ['call-tool'] })
    assert.equal(tool.status, 201, JSON.stringify(tool.body))
    app.target.answer = (_request, response) =>
      response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}')
    const target = { target_type: 'tool', target_id: tool.body.id, action: 'call-tool' }
    const made = await Promise.all(
      Array.from({ length: 4 }, () =>
        madeTrigger(key, { type: 'manual', ...target, input_mapping: { tool_id: app.toolId } }),
      ),
    )
    await Promise.all(made.map(({ id }) => key.post(`/triggers/${id}/fire?wait=false`)))
    const causations = await eventually(async () => {
      const found = await app.pool.anyFirst(sql.unsafe`
        select e.causation from events e join audit_entries a on a.id = e.resource_id
        where e.name = 'audit_entries.created' and a.action = 'tools:CallTool' and a.resource_public_id = ${app.toolId}
          and e.causation ?| ${sql.array(
            made.map(({ id }) => id),
            'text',
          )}`)
      return found.length >= made.length ? found.map(chain => triggersIn(chain as string[])) : null
    })
    assert.deepEqual(causations.toSorted(), made.map(({ id }) => [id]).toSorted())
  })

  it('does not attribute a run that starts when a triggered run frees a slot', async () => {
    const { status } = await app.admin.patch(`/projects/${app.projectId}`, { max_concurrent_runs: 1 })
    assert.equal(status, 200)
    let release = () => {}
    app.target.answer = (_request, response) => {
      release = () => response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}')
    }
    const trigger = await on(await graph([{ id: 'call', type: 'tool', tool_id: app.toolId }]))
    app.target.requests.length = 0
    await key.post(`/triggers/${trigger.id}/fire?wait=false`)
    await eventually(() => app.target.requests.length === 1)
    const waiting = await graph([{ id: 'tell', type: 'emit_event', event_type: 'room.given' }])
    const { body } = await key.post('/orchestration-runs', { orchestration_id: waiting })
    // It was checked and found no free slot.
    await eventually(async () =>
      app.pool.oneFirst(sql.unsafe`
        select count(*) > 0 from pgboss.job
        where name = 'run.advance' and state = 'completed' and data ->> 'run_id' = ${body.id}`),
    )
    release()
    assert.equal(await causes('room.given'), null)
    await app.admin.patch(`/projects/${app.projectId}`, { max_concurrent_runs: null })
  })

  it('retries the run whose event it matches once', async () => {
    const failing = await graph([{ id: 'bad', type: 'condition', expression: { preserve: [1] } }])
    const tool = await key.post('/tools', { name: 'retries', type: 'platform', actions: ['retry-run'] })
    assert.equal(tool.status, 201, JSON.stringify(tool.body))
    const trigger = await madeTrigger(key, {
      type: 'event',
      event_pattern: 'orchestration_runs.failed',
      event_filter: { '==': [{ var: 'data.orchestration_id' }, failing] },
      target_type: 'tool',
      target_id: tool.body.id,
      action: 'retry-run',
      input_mapping: { orchestration_run_id: { var: 'input.resource_id' } },
    })
    const run = (await key.post('/orchestration-runs', { orchestration_id: failing, wait: true })).body
    assert.equal(run.status, 'failed')
    const [first, second] = await allEnded(key, trigger.id, 2)
    assert.deepEqual([first.status, first.error], ['succeeded', null])
    assert.deepEqual([second.status, second.error?.meta?.reason], ['failed', 'repeat'], JSON.stringify(second))
    const [again] = (await key.get(`/orchestration-runs?orchestration_id=${failing}`)).body.data
    assert.deepEqual([again.retry_of_run_id, again.started_by], [run.id, { kind: 'trigger', id: trigger.id }])
  })
})
