import assert from 'node:assert/strict'
import { eventually, type TestProject } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { guardrail } from './guardrail-support.ts'
import { accepted, shared } from './share-support.ts'
import { json, made, startTarget } from './tool-target.ts'

const call = (name: string) => ({ tool_calls: [{ name, args: {} }] })
const script = (...replies: object[]) => ({ prompt: `@double ${JSON.stringify([...replies, { text: 'done' }])}` })

describe('shared tools and agents, in turns', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() => startAgentApp({ together: true, env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  const other = forSuite(() => app.projectWith(['*']))
  beforeEach(() => {
    target.answer = json({ ok: true })
    target.requests.length = 0
  })

  const tool = (key: TestProject['key'], name: string) => made(key, { name, execute: { url: `${target.url}/${name}` } })
  const generate = (key: TestProject['key'], agent: string, body: object): Promise<any> =>
    createdBy(key, `/agents/${agent}/generate?wait=true`, body, 200)
  const results = async (id: string): Promise<any[]> =>
    (await app.admin.get(`/generations/${id}/transcript`)).body.steps.flatMap(({ tool_results }: any) => tool_results)
  const entry = (project: string, query: string): Promise<any> =>
    eventually(async () => (await app.admin.get(`/activity?project_id=${project}&${query}`)).body.data[0])
  const callers = () => target.requests.map(({ headers }) => headers['x-svc-context-calling_project_id'])

  it('tools of others are called up to the cap, and missed once the share is suspended', async () => {
    const { id } = await tool(other.key, 'lookup')
    const cap = { calls: 1, window: 'calendar_month' }
    const share = await shared(other.key, `srn:${other.id}:tool:${id}`, { grantee: app.projectId, cap })
    await accepted(app.key, share.id)
    const agent = await app.agent({ tool_bindings: [{ tool_id: id }] })

    const turn = await generate(app.key, agent, {
      ...script(call('lookup'), call('lookup')),
      tool_context: { calling_project_id: 'another' },
    })
    const [first, second] = await results(turn.id)
    assert.deepEqual([first.result, second.error.code], [{ ok: true }, 'SHARE_CAP_EXCEEDED'])
    assert.deepEqual(callers(), [app.projectId])
    assert.equal((await entry(app.projectId, 'kind=share_cap_exceeded')).ref_id, share.id)

    assert.equal((await other.key.post(`/shares/${share.id}/suspend`)).status, 200)
    const without = await generate(app.key, agent, script())
    assert.equal(without.status, 'completed')
    const { detail } = await entry(app.projectId, `kind=tool_resolution_failed&generation_id=${without.id}`)
    assert.deepEqual([detail.tool_id, detail.reason], [id, 'share not active'])
  })

  it("agents of others call their tools as the caller, under the rules of the caller's project", async () => {
    const { id } = await tool(app.key, 'fetch')
    const forbids = await guardrail(app.key, { class: 'D' })
    const agent = await app.agent({ tool_bindings: [{ tool_id: id }], guardrail_ids: [forbids.id] })
    const share = await shared(app.key, `srn:${app.projectId}:agent:${agent}`, { grantee: other.id })
    await accepted(other.key, share.id)

    const own = await generate(app.key, agent, script(call('fetch')))
    assert.equal((await results(own.id))[0].result.status, 'blocked')
    const turn = await generate(other.key, agent, script(call('fetch')))
    assert.deepEqual((await results(turn.id))[0].result, { ok: true })
    assert.deepEqual(callers(), [other.id])
    assert.equal((await entry(other.id, `kind=action_executed&generation_id=${turn.id}`)).ref_id, id)

    const rule = await guardrail(other.key, { class: 'D' })
    assert.equal((await app.admin.patch(`/projects/${other.id}`, { guardrail_ids: [rule.id] })).status, 200)
    const held = await generate(other.key, agent, script(call('fetch')))
    assert.equal((await results(held.id))[0].result.status, 'blocked')
    assert.equal(target.requests.length, 1)
  })
})
