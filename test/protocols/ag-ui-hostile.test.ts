import assert from 'node:assert/strict'
import { endUser } from '../conversation/end-user-support.ts'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { forSuite } from '../support/suite.ts'
import { CHAT_ACTIONS, calls, postRun, said, ThreadClient } from './ag-ui-support.ts'

describe('hostile callers at the AG-UI mount', function () {
  this.timeout(60_000)
  let app: SessionApp
  const target = forSuite(startTarget)
  let agentId: string

  before(async () => {
    target.answer = json({ refunded: true })
    app = await startSessionApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', ACTORS_CREATED_PER_HOUR: '8' },
      actions: ['actors:*', 'agents:*', 'approvals:*', 'generations:*', 'guardrails:*', 'sessions:*'],
    })
    const document = { class: 'C', approver: 'end_user', end_user_arguments: ['amount'] }
    const rule = await app.key.post('/guardrails', { name: 'rule', document })
    agentId = await app.agent({
      guardrail_ids: [rule.body.id],
      tool_bindings: [{ tool: { name: 'refund', execute: { method: 'POST', url: `${target.url}/refund` } } }],
    })
  })
  after(async () => {
    await app.close()
  })

  const user = () => endUser(app, { agent_ids: [agentId], scopes: ['chat', 'approvals'] })
  const run = (fields: object = {}) => ({
    threadId: crypto.randomUUID(),
    runId: crypto.randomUUID(),
    messages: [],
    ...fields,
  })
  const resolved = (interruptId: string, approved: boolean) => ({
    interruptId,
    status: 'resolved',
    payload: { approved },
  })

  it('learn nothing of interrupts, their outcome and runs of the sessions of others', async () => {
    const [ann, bob] = [await user(), await user()]
    const client = new ThreadClient({ url: app.url, token: ann.token, agentId })
    const asked = await client.say(said(calls('refund', { amount: 5 }), { text: 'It waits.' }))
    const approvalId = asked.at(-1)?.outcome.interrupts[0].id
    const [{ id: threadId }] = (await ann.get('/sessions')).body.data
    const attempts = (caller: { token: string | null }) => [
      postRun(app, caller, agentId, run({ threadId, resume: [resolved('apr_unknown', true)] })),
      postRun(app, caller, agentId, run({ threadId, resume: [resolved(approvalId, true)] })),
    ]
    const expectNothing = async (caller: { token: string | null }, status: number) => {
      for (const attempt of await Promise.all(attempts(caller))) {
        assert.deepEqual([attempt.status, attempt.events], [status, []])
        assert.equal(JSON.stringify(attempt.body).includes(approvalId), false)
      }
    }
    await expectNothing(bob, 404)
    await client.run({ resume: [resolved(approvalId, true) as any] })
    await expectNothing(bob, 404)
    assert.equal((await app.admin.post(`/sessions/${threadId}/takeover`, {})).status, 200)
    const stored = run({ threadId, messages: [{ id: 'm1', role: 'user', content: 'to a person' }] })
    assert.equal((await postRun(app, ann, agentId, stored)).status, 200)
    assert.equal((await postRun(app, bob, agentId, { ...stored, messages: [] })).status, 404)
  })

  it('learn no session of a thread without the permission to send to it', async () => {
    const threadId = crypto.randomUUID()
    const messages = [{ id: 'm1', role: 'user', content: said({ text: 'ok' }) }]
    const first = await postRun(app, app.key, agentId, run({ threadId, messages }), { 'X-Svc-Actor': 'carl' })
    assert.equal(first.status, 200, JSON.stringify(first.body))
    const statement = [{ effect: 'Allow', action: ['agents:*'], resource: [`srn:${app.projectId}:*:*`] }]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const weak = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    const token = weak.body.secret as string
    const refused = await postRun(app, { token }, agentId, run({ threadId }), { 'X-Svc-Actor': 'carl' })
    assert.deepEqual([refused.status, refused.headers.get('x-svc-session-id')], [403, null])
  })

  it('create at most ACTORS_CREATED_PER_HOUR end users per key, by sessions and by threads', async () => {
    const statement = [{ effect: 'Allow', action: CHAT_ACTIONS, resource: [`srn:${app.projectId}:*:*`] }]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const made = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    const key = app.as(made.body.secret)
    for (let count = 1; count < 8; count++) {
      const actor = { external_id: `many-${count}`, name: 'Many' }
      assert.equal((await key.post('/sessions', { agent_id: agentId, actor })).status, 201)
    }
    const messages = [{ id: 'm1', role: 'user', content: said({ text: 'ok' }) }]
    const as = (name: string) => postRun(app, key, agentId, run({ messages }), { 'X-Svc-Actor': name })
    assert.equal((await as('many-8')).status, 200)
    const refused = await as('many-9')
    assert.deepEqual([refused.status, refused.body?.error.code], [429, 'ACTOR_LIMIT_EXCEEDED'])
    const actor = { external_id: 'many-9', name: 'Many' }
    assert.equal((await key.post('/sessions', { agent_id: agentId, actor })).status, 429)
    assert.equal((await as('many-8')).status, 200)
  })
})
