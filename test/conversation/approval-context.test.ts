import assert from 'node:assert/strict'
import { type Client, eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const PARAMETERS = { type: 'object', properties: { amount: { type: 'number' }, account: { type: 'string' } } }
const RULES = { class: { if: [{ '<': [{ var: 'args.amount' }, 3] }, 'A', 'C'] } }

describe('the context of an approval', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ['*'] }))
  let approval: Json
  let guardrail: Json
  let agent_id: string
  before(async () => {
    guardrail = expectStatus(await app.key.post('/guardrails', { name: 'Refunds', document: RULES }), 201)
    agent_id = await app.agent({
      name: 'Desk',
      guardrail_ids: [guardrail.id],
      tool_bindings: [
        {
          tool: {
            name: 'refund',
            parameters: PARAMETERS,
            preset_parameters: { account: 'preset-1' },
            execute: { method: 'POST', url: 'https://example.com/refund' },
          },
        },
      ],
    })
    approval = await proposed({ actor: { external_id: 'crm-1', name: 'Ann' } })
  })

  /** An approval of a session whose agent proposed a refund. */
  const proposed = async (session: Json): Promise<Json> => {
    const { id } = await app.session({ agent_id, ...session })
    const script = [{ tool_calls: [{ name: 'refund', args: { amount: 5 } }] }, { text: 'It waits.' }]
    await app.say({ id }, `@double ${JSON.stringify(script)}`)
    expectStatus(await app.generate({ id }, '?wait=true'), 200)
    return eventually(async () => (await app.key.get(`/approvals?session_id=${id}`)).body.data[0])
  }
  const context = async (by: Client, of = approval) => expectStatus(await by.get(`/approvals/${of.id}/context`), 200)
  const allowed = (...action: string[]) =>
    app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }] }])

  it('has the customer, the agent, the rule, the parameters of the tool, and the last messages', async () => {
    const found = await context(app.key)
    const { messages, actor, ...rest } = found
    assert.deepEqual({ ...actor, id: null }, { id: null, name: 'Ann', external_id: 'crm-1' })
    assert.deepEqual(rest, {
      approval_id: approval.id,
      agent: { id: agent_id, name: 'Desk' },
      guardrail: { id: guardrail.id, name: 'Refunds', version: 1, document: RULES },
      tool: { id: null, name: 'refund', parameters: PARAMETERS, presets: ['account'] },
    })
    assert.deepEqual(
      messages.map(({ origin }: Json) => origin),
      ['end_user', 'agent'],
    )
    assert.equal(messages[1].content, 'It waits.')
  })

  it('has the rules of the version that required the approval', async () => {
    const late = await proposed({})
    expectStatus(await app.key.patch(`/guardrails/${guardrail.id}`, { document: { class: 'D' } }), 200)
    const found = await context(app.key, late)
    assert.deepEqual([found.guardrail.version, found.guardrail.document], [1, RULES])
    assert.equal(found.actor, null)
    expectStatus(await app.key.patch(`/guardrails/${guardrail.id}`, { document: RULES }), 200)
  })

  it('has only the parts that the caller may read', async () => {
    const parts = {
      'actors:GetActor': ['actor'],
      'agents:GetAgent': ['agent', 'tool'],
      'guardrails:GetGuardrail': ['guardrail'],
      'sessions:ListSessionMessages': ['messages'],
    }
    for (const [action, visible] of Object.entries(parts)) {
      const { approval_id: _, ...found } = await context(await allowed('approvals:GetApproval', action))
      const present = Object.keys(found).filter(name => found[name] !== null)
      assert.deepEqual(present.toSorted(), visible.toSorted(), action)
    }
    const other = await allowed('agents:GetAgent')
    expectRefusal(await other.get(`/approvals/${approval.id}/context`), 403, 'FORBIDDEN')
    const foreign = await app.projectWith(['*'])
    expectRefusal(await foreign.key.get(`/approvals/${approval.id}/context`), 404, 'APPROVAL_NOT_FOUND')
  })
})
