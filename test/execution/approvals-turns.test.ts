import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { createdBy, postedBy, refusalOf } from '../support/replies.ts'
import { toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { json, startTarget } from './tool-target.ts'

const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify(replies)}` })
const text = (text: string) => ({ text })

describe('guardrails and approvals in turns', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      actions: ['agents:CreateAgentGeneration', 'generations:GetGeneration', 'sessions:*'],
    }),
  )

  const admin = (path: string, body: object) => postedBy(app.admin, path, { project_id: app.projectId, ...body })
  const guardrail = async (document: object): Promise<string> =>
    (await admin('/guardrails', { name: 'rule', document })).id
  const inline = (name: string, fields: object = {}) => ({
    tool: { name, execute: { url: `${target.url}/${name}` }, ...fields },
  })
  /** An agent whose every call is held to a rule. */
  const ruled = async (document: object, bindings: object[], fields: object = {}) =>
    app.agent({ tool_bindings: bindings, guardrail_ids: [await guardrail(document)], ...fields })
  const generate = (agent: string, body: object) => createdBy(app.key, `/agents/${agent}/generate?wait=true`, body, 200)
  const results = async (id: string) =>
    (await app.admin.get(`/generations/${id}/transcript`)).body.steps[0].tool_results.map(({ result }: any) => result)
  const asked = async (): Promise<any> => {
    const answer = await fetch(`${app.double.url}/control/requests?kind=chat`)
    return ((await answer.json()) as any).data.at(-1).body
  }
  const item = async (id: string) => (await app.admin.get(`/approvals/${id}`)).body
  const carriedOn = (id: string) =>
    eventually(
      async () => {
        const { execution } = await item(id)
        return execution?.generation_id && execution
      },
      { what: 'the turn after the approval' },
    )
  const ended = (id: string) =>
    eventually(
      async () => {
        const { body } = await app.admin.get(`/generations/${id}`)
        return ['completed', 'failed', 'requires_action'].includes(body.status) && body
      },
      { what: `end of ${id}` },
    )
  beforeEach(() => {
    target.requests.length = 0
    target.answer = json({ ok: true })
  })

  it('stop calls by their arguments, each separately, and report it to the model', async () => {
    const byAmount = {
      if: [{ '<': [{ var: 'args.amount' }, 10] }, 'A', { '<': [{ var: 'args.amount' }, 20] }, 'B', 'D'],
    }
    const agent = await ruled({ class: byAmount, guard: false }, [inline('pay')])
    const calls = { tool_calls: [5, 15, 25].map(amount => ({ name: 'pay', args: { amount } })) }
    const { id } = await generate(agent, script(calls, text('done')))
    const [executed, tripped, blocked] = await results(id)
    assert.deepEqual(executed, { ok: true })
    assert.deepEqual([tripped.status, blocked.status], ['tripwire', 'blocked'])
    assert.deepEqual(
      target.requests.map(({ body }) => JSON.parse(body)),
      [{ amount: 5 }],
    )
    const activity = await eventually(async () => {
      const { body } = await app.admin.get(`/activity?project_id=${app.projectId}&generation_id=${id}`)
      return body.data.length > 0 && body.data
    })
    assert.deepEqual(
      activity.map(({ kind }: { kind: string }) => kind),
      ['action_executed'],
    )
  })

  it('file one exception for a guard that stops the same call again and again', async () => {
    const agent = await ruled({ class: 'B', guard: false }, [inline('trip')])
    const calls = { tool_calls: Array.from({ length: 20 }, (_, n) => ({ name: 'trip', args: { n } })) }
    await Promise.all([1, 2].map(() => generate(agent, script(calls, text('done')))))
    const [exception, ...more] = await eventually(async () => {
      const { body } = await app.admin.get(`/exceptions?project_id=${app.projectId}&agent_id=${agent}`)
      return body.data[0]?.occurrence_count === 40 && body.data
    })
    assert.deepEqual([exception.kind, exception.severity, more], ['guardrail_tripwire', 'warning', []])
  })

  it('stop the call of a client before it is handed over: there is no pause', async () => {
    const agent = await ruled({ class: 'D' }, [{ tool: { name: 'pick', type: 'client' } }])
    const body = await generate(agent, script(toolCall('pick'), text('so be it')))
    assert.deepEqual([body.status, body.output.content], ['completed', 'so be it'])
    assert.equal((await results(body.id))[0].status, 'blocked')
  })

  it('evaluate arguments with presets, without texts written for people, and by the context of the request', async () => {
    const document = { class: 'B', guard: { '==': [{ var: 'context.tenant' }, 'acme'] }, escalate: true }
    const agent = await ruled(document, [inline('send', { preset_parameters: { from: 'us' } })])
    const args = {
      to: 'them',
      approval_reasoning: 'they asked',
      approval_evidence: { ticket: 7 },
      approval_predicted_impact: 5,
    }
    const prompt = script(toolCall('send', args), text('done'))
    const free = await generate(agent, { ...prompt, guardrail_context: { tenant: 'acme' } })
    assert.deepEqual((await results(free.id))[0], { ok: true })
    assert.deepEqual(JSON.parse(target.requests[0].body), { to: 'them', from: 'us' })
    const properties = (await asked()).tools[0].function.parameters.properties
    assert.deepEqual(Object.keys(properties), ['approval_reasoning', 'approval_evidence', 'approval_predicted_impact'])

    const held = await generate(agent, prompt)
    const [{ status, approval_id }] = await results(held.id)
    assert.equal(status, 'pending_approval')
    const filed = await item(approval_id)
    assert.deepEqual(filed.proposed_action.arguments, { to: 'them', from: 'us' })
    assert.deepEqual([filed.reasoning, filed.evidence, filed.predicted_impact], ['they asked', { ticket: 7 }, null])
    assert.deepEqual([filed.generation_id, filed.agent_id, filed.status], [held.id, agent, 'pending'])
  })

  it('request an approval once for equal calls, and carry on with its outcome', async () => {
    const agent = await ruled({ class: 'C' }, [inline('refund')])
    const prompt = script(toolCall('refund', { amount: 500 }), text('waiting'))
    const [first, second] = [await generate(agent, prompt), await generate(agent, prompt)]
    assert.equal(first.output.content, 'waiting')
    const [{ approval_id }] = await results(first.id)
    assert.equal((await results(second.id))[0].approval_id, approval_id)
    assert.equal(target.requests.length, 0)
    target.answer = json({ refunded: 450 })
    const decisions = await Promise.all(
      Array.from({ length: 10 }, () =>
        app.admin.post(`/approvals/${approval_id}/approve`, { arguments: { amount: 450 } }),
      ),
    )
    assert.deepEqual(decisions.map(({ status }) => status).sort(), [200, ...Array(9).fill(409)])
    const execution = await carriedOn(approval_id)
    assert.equal(execution.status, 'succeeded')
    assert.deepEqual(
      target.requests.map(({ body }) => JSON.parse(body)),
      [{ amount: 450 }],
    )
    assert.equal(target.requests[0].headers['idempotency-key'], approval_id)
    const next = await ended(execution.generation_id)
    assert.deepEqual([next.status, next.initiator_generation_id], ['completed', first.id])
    assert.match((await asked()).messages.at(-1).content, /approved[\s\S]*"refunded":450/)
  })

  it('carry on in the session of the request, without holding it up', async () => {
    const agent = await ruled({ class: 'C' }, [inline('book')])
    const session = (await app.key.post('/sessions', { agent_id: agent })).body
    await app.key.post(`/sessions/${session.id}/messages`, {
      message: script(toolCall('book'), text('I asked')).prompt,
    })
    const { body } = await app.key.post(`/sessions/${session.id}/generate?wait=true`, {})
    assert.equal(body.content, 'I asked')
    const [{ approval_id }] = await results(body.generation_id)
    assert.equal((await app.admin.post(`/approvals/${approval_id}/reject`, { reason: 'too dear' })).status, 200)
    const contents = await eventually(async () => {
      const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
      return data.length === 4 && data.map(({ content }: any) => content)
    })
    assert.match(contents[2], /rejected[\s\S]*too dear/)
    assert.match(contents[3], /echo: /)
    assert.equal(target.requests.length, 0)
  })

  it('hand an approved call of a client to it, exactly with the approved arguments', async () => {
    const agent = await ruled({ class: 'C' }, [{ tool: { name: 'sign', type: 'client' } }])
    const body = await generate(agent, script(toolCall('sign', { page: 1 }), text('waiting')))
    assert.equal(body.status, 'completed')
    const [{ approval_id }] = await results(body.id)
    await app.admin.post(`/approvals/${approval_id}/approve`, { arguments: { page: 2 } })
    const execution = await carriedOn(approval_id)
    const paused = await ended(execution.generation_id)
    assert.deepEqual([paused.status, paused.initiator_generation_id], ['requires_action', body.id])
    const [pending] = paused.required_action.tool_calls
    assert.deepEqual([pending.tool_name, pending.args], ['sign', { page: 2 }])
    const outputs = [{ tool_call_id: pending.id, output: { signed: true } }]
    const path = `/agents/${agent}/generate/${paused.id}/tool-outputs`
    const resumed = await app.key.post(path, { tool_outputs: outputs })
    assert.deepEqual([resumed.status, resumed.body.status], [200, 'completed'], JSON.stringify(resumed.body))
    assert.deepEqual(JSON.parse((await asked()).messages.at(-1).content), { signed: true })
    assert.deepEqual(refusalOf(await app.key.post(path, { tool_outputs: outputs })), [404, 'GENERATION_NOT_FOUND'])
    assert.equal((await item(approval_id)).execution.status, 'succeeded')
  })

  it('bind approved calls to what the agent may do', async () => {
    const allowed = [{ effect: 'Allow', action: ['agents:GetAgent'], resource: ['*'] }]
    const tool = { name: 'api', type: 'platform', actions: ['create-actor'] }
    const agent = await ruled({ class: 'C' }, [{ tool }], { boundary_policy: { statement: allowed } })
    const body = (
      await app.admin.post(
        `/agents/${agent}/generate?wait=true`,
        script(toolCall('api_create-actor', { name: 'x', project_id: app.projectId }), text('waiting')),
      )
    ).body
    const [{ approval_id }] = await results(body.id)
    await app.admin.post(`/approvals/${approval_id}/approve`)
    const execution = await carriedOn(approval_id)
    assert.deepEqual([execution.status, execution.error.meta.tool_status_code], ['failed', 403])
  })
})
