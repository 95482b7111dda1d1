import assert from 'node:assert/strict'
import { eventually, type Reply } from '../support/app.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { startTarget, type Target } from './tool-target.ts'

type Json = Record<string, any>

const ok = ({ status, body }: Reply, expected = 200): any => {
  assert.equal(status, expected, JSON.stringify(body))
  return body
}
const code = ({ status, body }: Reply) => [status, body?.error?.code]

describe('approvals by end users', function () {
  this.timeout(60_000)
  let app: AgentApp
  let target: Target

  before(async () => {
    target = await startTarget()
    app = await startAgentApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
      actions: [
        'actors:*',
        'approvals:*',
        'conversations:*',
        'events:*',
        'generations:*',
        'guardrails:*',
        'sessions:*',
      ],
    })
  })
  after(async () => {
    await app.close()
    await target.close()
  })

  const guardrail = (document: object) => app.key.post('/guardrails', { name: 'rule', document })
  const ruled = async (...documents: object[]): Promise<string[]> =>
    Promise.all(documents.map(async document => ok(await guardrail(document), 201).id))

  /** A session whose agent has proposed a refund, and the approval. */
  const proposed = async (
    guardrail_ids: string[],
    session: Json = {},
    args: Json = { amount: 5, account: 'secret-1' },
  ) => {
    const agent_id = await app.agent({
      guardrail_ids,
      tool_bindings: [{ tool: { name: 'refund', execute: { method: 'POST', url: `${target.url}/refund` } } }],
    })
    const made = ok(await app.key.post('/sessions', { agent_id, ...session }), 201)
    const script = [{ tool_calls: [{ name: 'refund', args }] }, { text: 'It waits.' }]
    ok(await app.key.post(`/sessions/${made.id}/messages`, { message: `@double ${JSON.stringify(script)}` }), 201)
    ok(await app.key.post(`/sessions/${made.id}/generate?wait=true`))
    const { data } = ok(await app.key.get(`/approvals?session_id=${made.id}`))
    assert.equal(data.length, 1)
    return { session: made, approval: data[0] }
  }
  const actor = () => ({ actor: { external_id: `crm-${Math.random()}`, name: 'Ann' } })

  it('an approver end_user beside forbid_self_approval is refused, and unknown approvers', async () => {
    const both = { class: 'C', approver: 'end_user', forbid_self_approval: true }
    const refused = await guardrail(both)
    assert.deepEqual(code(refused), [400, 'VALIDATION_FAILED'])
    assert.equal(refused.body.error.meta.problems[0].path, 'document.forbid_self_approval')
    const [id] = await ruled({ class: 'C', approver: 'operator', forbid_self_approval: true })
    assert.deepEqual(code(await app.key.patch(`/guardrails/${id}`, { document: both })), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(code(await guardrail({ class: 'C', approver: 'anybody' })), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(code(await guardrail({ class: 'C', end_user_arguments: [''] })), [400, 'VALIDATION_FAILED'])
  })

  it('the approval shows the listed arguments only, none by default', async () => {
    const listed = await proposed(
      await ruled({ class: 'C', approver: 'end_user', end_user_arguments: ['amount', 'absent'] }),
      actor(),
    )
    const { approver, title, shown_arguments, resolved_by_actor_id } = listed.approval
    assert.deepEqual(
      { approver, title, shown_arguments, resolved_by_actor_id },
      {
        approver: 'end_user',
        title: 'Confirmation required',
        shown_arguments: { amount: 5 },
        resolved_by_actor_id: null,
      },
    )
    const none = await proposed(await ruled({ class: 'C', approver: 'end_user' }), actor())
    assert.deepEqual(none.approval.shown_arguments, {})
    const operators = await proposed(await ruled({ class: 'C', end_user_arguments: ['amount'] }), actor())
    assert.deepEqual(
      [operators.approval.approver, operators.approval.title, operators.approval.shown_arguments],
      ['operator', null, null],
    )
  })

  it('all guardrails that require the approval must leave it to the end user, who sees what all of them list', async () => {
    const two = await proposed(
      await ruled(
        { class: 'C', approver: 'end_user', end_user_arguments: ['amount', 'account'] },
        { class: 'C', approver: 'end_user', end_user_arguments: ['amount'] },
        { class: 'A' },
      ),
      actor(),
    )
    assert.deepEqual([two.approval.approver, two.approval.shown_arguments], ['end_user', { amount: 5 }])
    const mixed = await proposed(
      await ruled({ class: 'C', approver: 'end_user' }, { class: 'C', forbid_self_approval: true }),
      actor(),
    )
    assert.equal(mixed.approval.approver, 'operator')
  })

  it('a session without an end user leaves it to operators', async () => {
    const { approval } = await proposed(await ruled({ class: 'C', approver: 'end_user' }))
    assert.equal(approval.approver, 'operator')
  })

  it('holders of the permission resolve it too', async () => {
    const { approval } = await proposed(
      await ruled({ class: 'C', approver: 'end_user', end_user_arguments: ['amount'] }),
      actor(),
    )
    const resolved = ok(await app.key.post(`/approvals/${approval.id}/approve`, { arguments: { amount: 4 } }))
    assert.ok(resolved.resolved_by)
    assert.equal(resolved.resolved_by_actor_id, null)
  })

  it('a turn that follows an approval waits for the handback of the session', async () => {
    const { session, approval } = await proposed(await ruled({ class: 'C', approver: 'end_user' }), actor())
    const path = `/sessions/${session.id}`
    const origins = async () => ok(await app.key.get(`${path}/messages`)).data.map(({ origin }: Json) => origin)
    ok(await app.key.post(`${path}/takeover`))
    ok(await app.key.post(`/approvals/${approval.id}/approve`))
    const { execution } = await eventually(async () => {
      const found = ok(await app.key.get(`/approvals/${approval.id}`))
      return found.execution?.generation_id ? found : null
    })
    assert.equal(execution.status, 'succeeded')
    assert.deepEqual(await origins(), ['end_user', 'agent', 'approval'])
    assert.equal(ok(await app.key.get(`/generations/${execution.generation_id}`)).status, 'pending')
    ok(await app.key.post(`${path}/handback`))
    await eventually(
      async () => ok(await app.key.get(`/generations/${execution.generation_id}`)).status === 'completed',
    )
    assert.deepEqual(await origins(), ['end_user', 'agent', 'approval', 'system', 'agent'])
  })
})
