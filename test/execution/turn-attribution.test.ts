import assert from 'node:assert/strict'
import type { Services } from '#core/base/services.ts'
import { turnOwners } from '#execution/generations/loop/turn-owner.ts'
import { createTurn, type TurnInput } from '#execution/generations/request/create.ts'
import { type Client, eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { loadBeside } from '../support/modules.ts'
import { scriptOf, toolCall } from '../support/scripts.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { guardrail } from './guardrail-support.ts'
import { json, made, startTarget, type Target } from './tool-target.ts'

describe('turns of runs', () => {
  let app: AgentApp
  let target: Target
  let services: Services
  let tool: any
  let approver: Client
  let keyId: string
  let unload: () => void
  let runs = 0
  const told: { id: string; what: string }[] = []

  const RUN = 'orch_run_t'

  before(async () => {
    target = await startTarget()
    target.answer = json({ paid: true })
    const note =
      (what: string) =>
      async (_tx: unknown, { id, status }: { id: string; status: string }) =>
        void told.push({ id, what: `${what} ${status}` })
    unload = loadBeside({
      extensions: [
        turnOwners.with({
          owns: ({ orchestration_run_id, initiator_generation_id }) =>
            orchestration_run_id?.startsWith(RUN) === true && initiator_generation_id === null,
          settled: note('settled'),
          paused: note('paused'),
          resumed: note('resumed'),
        }),
      ],
    })
    app = await startAgentApp({ workers: ['generation', 'delivery'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
    services = app.services
    keyId = (await app.admin.get(`/project-keys?project_id=${app.projectId}`)).body.data[0].id
    tool = await made(app.key, { name: 'pay', execute: { url: `${target.url}/pay` } })
    approver = await app.user('approver', [
      { statement: [{ effect: 'Allow', action: ['approvals:*'], resource: [`srn:${app.projectId}:approval:*`] }] },
    ])
  })
  after(async () => {
    await app?.close()
    await target?.close()
    unload?.()
  })

  /** A turn of a node, as a run makes it, and the run. */
  async function turn(agent_id: string, prompt: string, more: Partial<TurnInput> = {}) {
    const run_id = `${RUN}${++runs}`
    const { generation_id } = await services.write(tx =>
      createTurn(tx, services, {
        project_id: app.projectId,
        agent_id,
        messages: [{ role: 'user', content: prompt }],
        orchestration: { run_id, node_id: 'ask', attempt: 2 },
        trigger_id: 'trg_1',
        authority: { type: 'api_key', id: keyId, via: null },
        streamed: false,
        shape: 'agent',
        ...more,
      }),
    )
    return { id: generation_id, run_id }
  }
  const read = async (id: string): Promise<any> => (await app.key.get(`/generations/${id}`)).body
  const ended = (id: string): Promise<any> =>
    eventually(async () => {
      const row = await read(id)
      return ['completed', 'failed', 'requires_action'].includes(row.status) && row
    })
  const attribution = ({ orchestration_run_id, node_id, node_attempt, trigger_id }: any) => [
    orchestration_run_id,
    node_id,
    node_attempt,
    trigger_id,
  ]
  const ofRun = async (run: string): Promise<any[]> =>
    (await app.key.get(`/generations?orchestration_run_id=${run}`)).body.data
  const toldOf = (id: string) => told.filter(each => each.id === id).map(({ what }) => what)

  it('show the run, the node and the trigger, and are found by them', async () => {
    const { id, run_id } = await turn(app.agentId, 'hello')
    const row = await ended(id)
    assert.deepEqual(attribution(row), [run_id, 'ask', 2, 'trg_1'])
    assert.equal(row.source, null)
    assert.deepEqual(
      (await ofRun(run_id)).map(each => each.id),
      [id],
    )
    const both = `/generations?orchestration_run_id=${run_id}`
    assert.equal((await app.key.get(`${both}&node_id=ask&trigger_id=trg_1`)).body.total, 1)
    assert.equal((await app.key.get(`${both}&node_id=other`)).body.total, 0)
    assert.equal((await app.key.get(`${both}&trigger_id=trg_2`)).body.total, 0)
    assert.deepEqual(toldOf(id), ['settled completed'])
    const [use] = (await app.key.get(`/usage/events?generation_id=${id}`)).body.data
    assert.deepEqual([use.orchestration_run_id, use.node_id, use.trigger_id], [run_id, 'ask', 'trg_1'])
    const events = (await app.key.get(`/events?resource_id=${id}`)).body.data
    for (const { data } of events) assert.equal(data.orchestration_run_id, run_id)

    const plain = (await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' })).body
    assert.deepEqual(attribution(await read(plain.id)), [null, null, null, null])
  })

  it('pass it on to calls of tools, to what guardrails record of them and to the feed', async () => {
    const rule = await guardrail(app.key, {
      class: 'B',
      guard: { '<': [{ var: 'runtime.orchestration_run.node_attempt' }, 3] },
    })
    const stop = await guardrail(app.key, {
      class: { if: [{ '==': [{ var: 'args.n' }, 9] }, 'B', 'A'] },
      guard: { '<': [{ var: 'runtime.usage.orchestration_run_tokens' }, 0] },
    })
    const agent = await app.agent({ tool_bindings: [{ tool_id: tool.id }], guardrail_ids: [rule.id, stop.id] })
    const { id, run_id } = await turn(
      agent,
      scriptOf(toolCall('pay', { n: 1 }), toolCall('pay', { n: 9 }), { text: 'ok' }),
    )
    assert.equal((await ended(id)).status, 'completed')
    const { steps } = (await app.key.get(`/generations/${id}/transcript`)).body
    assert.deepEqual(
      steps.flatMap(({ tool_results }: any) => tool_results.map(({ result }: any) => result.status ?? result)),
      [{ paid: true }, 'tripwire'],
    )
    const uses = await eventually(async () => {
      const { data } = (await app.key.get(`/usage/events?orchestration_run_id=${run_id}`)).body
      return data.some((each: any) => each.meter_type === 'tool_execution') && data
    })
    for (const use of uses) assert.deepEqual([use.node_id, use.trigger_id], ['ask', 'trg_1'])
    const said = await eventually(async () => {
      const { data } = (await app.key.get(`/guardrail-evaluations?orchestration_run_id=${run_id}`)).body
      return data.length === 4 && data
    })
    assert.ok(said.every((each: any) => each.generation_id === id))
    const feed = await eventually(async () => {
      const { data } = (await app.key.get(`/activity?orchestration_run_id=${run_id}&kind=action_executed`)).body
      return data.length > 0 && data
    })
    assert.deepEqual([feed[0].generation_id, feed[0].detail.node_id], [id, 'ask'])
    const [event] = (await app.key.get(`/events?resource_id=${stop.id}&event=guardrails.tripwire`)).body.data
    assert.deepEqual([event.data.orchestration_run_id, event.data.node_id], [run_id, 'ask'])
    const exceptions = await eventually(async () => {
      const { data } = (await app.key.get(`/exceptions?orchestration_run_id=${run_id}`)).body
      return data.length > 0 && data
    })
    assert.deepEqual([exceptions[0].kind, exceptions[0].node_id], ['guardrail_tripwire', 'ask'])
  })

  it('read the usage of their run', async () => {
    const rule = await guardrail(app.key, {
      class: 'B',
      guard: {
        and: [
          { '>': [{ var: 'runtime.usage.orchestration_run_tokens' }, 0] },
          { '==': [{ var: 'runtime.orchestration_run.tool_calls' }, 1] },
          { '==': [{ var: 'runtime.usage.orchestration_run_cost_usd' }, 0] },
        ],
      },
    })
    const free = await app.agent({ tool_bindings: [{ tool_id: tool.id }] })
    const held = await app.agent({ tool_bindings: [{ tool_id: tool.id }], guardrail_ids: [rule.id] })
    const prompt = scriptOf(toolCall('pay'), { text: 'ok' })
    const status = async (id: string) => {
      await ended(id)
      const { steps } = (await app.key.get(`/generations/${id}/transcript`)).body
      return steps[0].tool_results[0].result.status ?? 'called'
    }
    const first = await turn(free, prompt)
    assert.equal(await status(first.id), 'called')
    const orchestration = { run_id: first.run_id, node_id: 'next', attempt: 1 }
    assert.equal(await status((await turn(held, prompt, { orchestration })).id), 'called')
    // Now there are two calls; in another run, and outside of runs, there is none.
    assert.equal(await status((await turn(held, prompt, { orchestration })).id), 'tripwire')
    assert.equal(await status((await turn(held, prompt)).id), 'tripwire')
    assert.equal(await status((await turn(held, prompt, { orchestration: null })).id), 'tripwire')
  })

  it('leave it to turns of agents that they call, which belong to no node', async () => {
    const ask = {
      name: 'ask',
      type: 'platform',
      actions: ['create-agent-generation'],
      preset_parameters: { agent_id: app.agentId },
    }
    const agent = await app.agent({ tool_bindings: [{ tool: ask }] })
    const { id, run_id } = await turn(
      agent,
      scriptOf(toolCall('ask_create-agent-generation', { prompt: 'hi' }), { text: 'ok' }),
    )
    await ended(id)
    const nested = (await ofRun(run_id)).find(each => each.id !== id)
    assert.equal(nested.initiator_generation_id, id)
    assert.deepEqual(attribution(nested), [run_id, 'ask', 2, 'trg_1'])
    assert.deepEqual([toldOf(id), toldOf(nested.id)], [['settled completed'], []])
  })

  it('leave it to turns that repeat them', async () => {
    const agent = await app.agent({ output_schema: { type: 'object' } })
    const { id, run_id } = await turn(agent, scriptOf({ text: 'no object' }, { text: '{}' }))
    assert.equal((await ended(id)).status, 'failed')
    assert.deepEqual(toldOf(id), ['settled failed'])
    await app.key.post(`/generations/${id}/retry?wait=true`)
    const again = (await ofRun(run_id)).find(each => each.id !== id)
    assert.deepEqual(attribution(again), [run_id, 'ask', 2, 'trg_1'])
    assert.deepEqual(toldOf(again.id), [])
  })

  it('leave it to turns that carry on after an approval', async () => {
    const { id, run_id } = await turn(app.agentId, 'pay')
    await ended(id)
    const { id: item } = await propose(app, id, { id: tool.id, name: 'pay' }, { n: 1 })
    const shown = (await approver.get(`/approvals/${item}`)).body
    assert.deepEqual([shown.origin, shown.orchestration_run_id, shown.node_id], ['tool_call', run_id, 'ask'])
    assert.equal((await approver.post(`/approvals/${item}/approve`)).status, 200)
    const next: string = await eventually(
      async () => (await approver.get(`/approvals/${item}`)).body.execution.generation_id,
    )
    const row = await ended(next)
    assert.deepEqual([row.initiator_generation_id, ...attribution(row)], [id, run_id, 'ask', 2, 'trg_1'])
    const used = (await app.key.get(`/usage/events?orchestration_run_id=${run_id}&meter_type=tool_execution`)).body.data
    assert.deepEqual([used[0].source, used[0].node_id], ['approval', 'ask'])
    const { data } = (await app.key.get(`/activity?orchestration_run_id=${run_id}`)).body
    assert.deepEqual(data.map(({ kind }: any) => kind).sort(), [
      'action_executed',
      'approval_created',
      'approval_resolved',
    ])
  })

  it('notify their owner of a pause and of its end', async () => {
    const agent = await app.agent({ tool_bindings: [{ tool: { name: 'pick', type: 'client' } }] })
    const { id } = await turn(agent, scriptOf(toolCall('pick'), { text: 'done' }))
    const row = await ended(id)
    assert.equal(row.status, 'requires_action')
    assert.deepEqual(toldOf(id), ['paused requires_action'])
    const path = `/agents/${agent}/generate/${id}/tool-outputs`
    const [{ id: tool_call_id }] = row.required_action.tool_calls
    assert.equal((await app.key.post(path, { tool_outputs: [{ tool_call_id: 'other', output: 1 }] })).status, 400)
    assert.equal((await app.key.post(path, { tool_outputs: [{ tool_call_id, output: 1 }] })).status, 200)
    assert.deepEqual(toldOf(id), ['paused requires_action', 'resumed in_progress', 'settled completed'])
    // A call that is cancelled while it waits.
    const other = await turn(agent, scriptOf(toolCall('pick'), { text: 'done' }))
    await ended(other.id)
    await app.key.post(`/generations/${other.id}/cancel`)
    assert.deepEqual(toldOf(other.id), ['paused requires_action', 'settled failed'])
  })
})
