import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { guardrail } from './guardrail-support.ts'
import { accepted, shared } from './share-support.ts'
import { made, refused, secretOf, startTarget } from './tool-target.ts'

/** A prompt that makes the model call a tool, and state its result. */
const calling = (name: string, args: object = {}) => ({
  prompt: `@double ${JSON.stringify([{ tool_calls: [{ name, args }] }, { text: `{{tool.${name}}}` }])}`,
})

const RUNNING = ['agents:*', 'shares:*', 'approvals:*', 'guardrails:*', 'secrets:*']
const LOOKING = ['generations:*', 'traces:*', 'usage:*', 'events:ListEvents', 'files:*', 'activity:*']

describe('turns of shared agents', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      together: true,
      actions: ['agents:*', 'shares:*', 'tools:*', 'secrets:*'],
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
    }),
  )
  const grantee = forSuite(() => app.projectWith(RUNNING))
  let agent: string
  let shareId: string

  before(async () => {
    const secret = await secretOf(app.key, 'the publisher knows')
    const execute = { url: `${target.url}/pay`, headers: { 'x-secret': `{{secret:${secret}}}` } }
    const tool = await made(app.key, { name: 'pay', execute })
    agent = await app.agent({
      tool_bindings: [
        { tool_id: tool.id },
        { tool: { type: 'http', name: 'own', execute } },
        { tool: { type: 'platform', name: 'act', actions: ['create-secret'] } },
        { tool: { type: 'client', name: 'ask' } },
      ],
    })
    const share = await shared(app.key, `srn:${app.projectId}:agent:${agent}`, { grantee: grantee.id })
    await accepted(grantee.key, share.id)
    shareId = share.id
  })
  beforeEach(() => {
    target.requests.length = 0
  })

  const generate = (body: object) => createdBy(grantee.key, `/agents/${agent}/generate?wait=true`, body, 200)

  it("that wait for their client continue with the permissions of their caller, not of the agent's author", async () => {
    const other = await app.projectWith(RUNNING)
    const second = await shared(app.key, `srn:${app.projectId}:agent:${agent}`, { grantee: other.id })
    await accepted(other.key, second.id)
    const { id, required_action } = await generate(calling('ask'))
    const path = `/agents/${agent}/generate/${id}/tool-outputs`
    const given = (output: string) => ({
      tool_outputs: [{ tool_call_id: required_action.tool_calls[0].id, output }],
    })
    for (const key of [app.key, other.key]) refused(await key.post(path, given('evil')), 404, 'GENERATION_NOT_FOUND')
    const { status, body } = await grantee.key.post(path, given('good'))
    assert.deepEqual([status, body.output?.content], [200, 'good'], JSON.stringify(body))
  })

  it('show nothing of the provider and the route of who made them, answered or failed', async () => {
    const other = await app.projectWith([...RUNNING, ...LOOKING])
    const target = { ai_provider_id: app.providerId, model: 'routed-model' }
    const made = await app.admin.post('/model-routes', { project_id: app.projectId, name: 'r', targets: [target] })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    const routed = await app.agent({ ai_provider_id: null, model_route_id: made.body.id })
    const turns: any[] = []
    const told: unknown[] = []
    for (const id of [agent, routed]) {
      const share = await shared(app.key, `srn:${app.projectId}:agent:${id}`, { grantee: other.id })
      await accepted(other.key, share.id)
      const replies = [{ text: 'fine' }, { error: { status: 400, message: 'no such deployment' } }]
      for (const reply of replies) {
        const { body } = await other.key.post(`/agents/${id}/generate?wait=true`, {
          prompt: `@double ${JSON.stringify([reply])}`,
        })
        told.push(body)
        const turn = (await other.key.get('/generations?limit=1')).body.data[0]
        turns.push(turn)
      }
    }
    for (const failed of [turns[1], turns[3]]) {
      const { code, message, meta } = failed.error
      assert.deepEqual([code, message], ['AI_PROVIDER_ERROR', 'The AI provider of the shared agent responded with 400'])
      assert.deepEqual(Object.keys(meta).sort(), ['model', 'provider_status_code'])
    }
    const look = async (path: string) => {
      const { status, body } = await other.key.get(path)
      assert.equal(status, 200, `${path}: ${JSON.stringify(body)}`)
      told.push(body)
      return body
    }
    for (const { id, trace_id } of turns) {
      const transcript = await look(`/generations/${id}/transcript`)
      assert.deepEqual(
        transcript.steps.map(({ ai_provider_id }: any) => ai_provider_id),
        transcript.status === 'completed' ? [null] : [],
      )
      await look(`/generations/${id}`)
      if (transcript.status === 'failed') continue
      // Steps go into the file of their trace after the turn.
      const { file_id } = await eventually(async () => {
        const trace = await look(`/traces/${trace_id}`)
        return trace.file_id && trace
      })
      told.push((await other.key.get(`/files/${file_id}/download`)).body)
    }
    await look('/usage/events?limit=100')
    const { groups } = await look('/usage/aggregate?group_by=ai_provider')
    assert.deepEqual(
      groups.data.map(({ key }: any) => key),
      [null],
    )
    await look('/activity?limit=100')
    await look('/events?limit=100')
    for (const text of told.map(body => JSON.stringify(body)))
      for (const theirs of [app.providerId, made.body.id]) assert.ok(!text.includes(theirs), text)
  })

  describe('whose calls are approved', () => {
    before(async () => {
      const { id } = await guardrail(grantee.key, { class: 'C' })
      assert.equal((await app.admin.patch(`/projects/${grantee.id}`, { guardrail_ids: [id] })).status, 200)
    })

    /** The item of a call of a tool, not approved yet. */
    async function proposed(name: string, args: object = {}): Promise<string> {
      const { id } = await generate(calling(name, args))
      const { data } = (await grantee.key.get('/approvals?status=pending')).body
      return data.find(({ generation_id }: any) => generation_id === id).id
    }
    async function executed(id: string): Promise<any> {
      assert.equal((await grantee.key.post(`/approvals/${id}/approve`)).status, 200)
      return eventually(async () => {
        const { execution } = (await grantee.key.get(`/approvals/${id}`)).body
        return execution.finished_at && execution
      })
    }

    it('call the tools of who made it, with its secrets', async () => {
      for (const name of ['pay', 'own']) {
        const { status, error } = await executed(await proposed(name))
        assert.deepEqual([status, error], ['succeeded', null])
        const { headers } = target.last()
        assert.equal(headers['x-secret'], 'the publisher knows')
        assert.equal(headers['x-svc-context-calling_project_id'], grantee.id)
      }
    })

    it('do not act on the platform with the permissions of their caller', async () => {
      const { status, error } = await executed(await proposed('act_create-secret', { name: 'theirs', value: 'x' }))
      assert.deepEqual([status, error.code], ['failed', 'TOOL_CALL_NOT_SUPPORTED'])
      assert.equal((await grantee.key.get('/secrets')).body.total, 0)
    })

    it('call nothing once the share has ended', async () => {
      const id = await proposed('pay', { n: 2 })
      assert.equal((await app.key.post(`/shares/${shareId}/suspend`)).status, 200)
      try {
        const { status, error } = await executed(id)
        assert.deepEqual([status, error.code], ['failed', 'TOOL_NOT_FOUND'])
        assert.equal(target.requests.length, 0)
      } finally {
        await app.key.post(`/shares/${shareId}/resume`)
      }
    })
  })
})
