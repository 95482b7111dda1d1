import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { guardrail } from './guardrail-support.ts'
import { json, startTarget } from './tool-target.ts'

const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify(replies)}` })
const text = (text: string) => ({ text })

describe('what turns with tools offer and record', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  beforeEach(() => {
    target.answer = json({ ok: true })
    target.requests.length = 0
  })

  const parameters = { type: 'object', required: ['amount'], properties: { amount: { type: 'integer' } } }
  const tool = async (name: string, fields: object = {}): Promise<string> =>
    (
      await createdBy(app.key, '/tools', {
        name,
        parameters,
        execute: { url: `${target.url}/${name}` },
        ...fields,
      })
    ).id
  const generate = (agent: string, body: object): Promise<any> =>
    createdBy(app.key, `/agents/${agent}/generate?wait=true`, body, 200)
  const resultsOf = async (id: string): Promise<any[]> =>
    (await app.admin.get(`/generations/${id}/transcript`)).body.steps.flatMap(({ tool_results }: any) => tool_results)
  const activity = async (id: string, kind: string): Promise<any[]> =>
    (await app.key.get(`/activity?kind=${kind}&generation_id=${id}`)).body.data
  const asked = async (): Promise<any> => {
    const answer = await fetch(`${app.double.url}/control/requests?kind=chat`)
    return ((await answer.json()) as any).data.at(-1).body
  }

  it('offer justification fields only if approval may be required, and none that the tool has itself', async () => {
    const rule = await guardrail(app.key, { class: 'C' })
    const own = { type: 'object', properties: { approval_evidence: { type: 'string' } } }
    const guarded = await tool('guarded', { parameters: own, guardrail_ids: [rule.id] })
    const agent = await app.agent({ tool_bindings: [{ tool_id: guarded }, { tool_id: await tool('free') }] })
    await generate(agent, script(text('fine')))
    const { tools } = await asked()
    const [shown, free] = tools.map((each: any) => each.function.parameters.properties)
    assert.deepEqual(Object.keys(shown).sort(), [
      'approval_evidence',
      'approval_predicted_impact',
      'approval_reasoning',
    ])
    assert.equal(shown.approval_evidence.type, 'string')
    assert.deepEqual(Object.keys(free), ['amount'])
    const body = await generate(agent, script(toolCall('guarded', { approval_evidence: 'own' }), text('waits')))
    const [{ result }] = await resultsOf(body.id)
    const { body: item } = await app.key.get(`/approvals/${result.approval_id}`)
    assert.deepEqual([item.proposed_action.arguments, item.evidence], [{ approval_evidence: 'own' }, null])
  })

  it('make the calls of a step that are let pass, and record only those', async () => {
    const document = { class: { if: [{ '<': [{ var: 'args.amount' }, 500] }, 'A', 'D'] } }
    const rule = await guardrail(app.key, document)
    const agent = await app.agent({
      tool_bindings: [{ tool_id: await tool('transfer') }],
      guardrail_ids: [rule.id],
    })
    const both = { tool_calls: [900, 100].map(amount => ({ name: 'transfer', args: { amount } })) }
    const body = await generate(agent, script(both, text('done')))
    const [blocked, made] = await resultsOf(body.id)
    assert.deepEqual([blocked.result.status, blocked.error], ['blocked', null])
    assert.deepEqual([made.result, target.requests.length], [{ ok: true }, 1])
    const entries: any[] = await eventually(async () => {
      const found = await activity(body.id, 'action_executed')
      return found.length > 0 ? found : null
    })
    assert.deepEqual(
      entries.map(({ detail }) => detail.tool_name),
      ['transfer'],
    )
  })

  it('report a binding that gives no tool once', async () => {
    const gone = await tool('gone')
    const agent = await app.agent({ tool_bindings: [{ tool_id: gone }] })
    assert.equal((await app.key.delete(`/tools/${gone}`)).status, 204)
    const body = await generate(agent, script(text('fine')))
    assert.equal(body.status, 'completed')
    const entries: any[] = await eventually(async () => {
      const found = await activity(body.id, 'tool_resolution_failed')
      return found.length > 0 ? found : null
    })
    assert.equal(entries.length, 1)
    assert.deepEqual([entries[0].severity, entries[0].ref_id], ['warning', gone])
    assert.equal(entries[0].detail.reason, 'tool not found')
  })
})
