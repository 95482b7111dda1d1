import assert from 'node:assert/strict'
import { syncManagedPolicies } from '#identity/policies/managed.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { openStream } from '../execution/streams.ts'
import type { Client } from '../support/app.ts'
import { bodyOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

/** A key for a server that only puts an agent in front of people, with the policy that ships for it. */
describe('the managed policy of servers that run agents', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({}))
  let key: Client
  let agentId: string

  before(async () => {
    await syncManagedPolicies(app.services)
    const policy_ids = ['pol_managed_agent_runner']
    key = app.as((await bodyOf(app.admin.post('/project-keys', { project_id: app.projectId, policy_ids }))).secret)
    const tool = { name: 'locate', type: 'client' }
    agentId = await app.agent({ tool_bindings: [{ tool }] })
  })

  it('suffices from the first message of an end user to the end of a conversation', async () => {
    const actor = await bodyOf(key.post('/actors', { name: 'Ada', external_id: 'ada' }))
    assert.equal((await key.post('/actors', { name: 'Ada', external_id: 'ada' })).body.id, actor.id)
    const session = await bodyOf(key.post('/sessions', { agent_id: agentId, actor_id: actor.id }))
    const path = `/sessions/${session.id}`
    await bodyOf(key.post(`${path}/messages`, { message: 'hello' }))
    const turn = await bodyOf(key.post(`${path}/generate?wait=true`))
    assert.equal((await bodyOf(key.get(`/generations/${turn.generation_id ?? turn.id}`))).status, 'completed')
    const calls = `@double ${JSON.stringify([{ tool_calls: [{ name: 'locate', args: {} }] }, { text: 'found' }])}`
    await bodyOf(key.post(`${path}/messages`, { message: calls }))
    const paused = await bodyOf(key.post(`${path}/generate?wait=true`))
    assert.equal(paused.status, 'requires_action', JSON.stringify(paused))
    const [call] = paused.required_action.tool_calls
    const outputs = [{ tool_call_id: call.id, output: 'here' }]
    const generation_id = paused.generation_id ?? paused.id
    await bodyOf(key.post(`${path}/tool-outputs?wait=true`, { generation_id, tool_outputs: outputs }))
    const messages = await bodyOf(key.get(`${path}/messages`))
    assert.deepEqual(messages.data.map((each: any) => each.role).sort(), ['assistant', 'assistant', 'user', 'user'])
    const { messages: streamed } = await openStream({ url: app.url, key }, `/agents/${agentId}/generate`, {
      prompt: 'streamed',
      stream: true,
    })
    const events = []
    for await (const { event } of streamed) events.push(event)
    assert.ok(events.length > 1)
    await bodyOf(key.patch(path, { status: 'closed' }))
  })

  it('lists no one else, and reads neither configuration nor secrets', async () => {
    const secret = await bodyOf(app.key.post('/secrets', { name: 's', value: 'v' }))
    for (const path of [
      ...['/sessions', '/conversations', '/generations', '/actors', '/secrets', '/tools', '/agents', '/ai-providers'],
      ...[
        '/files',
        '/documents',
        '/memories',
        '/memory-stores',
        '/webhooks',
        '/usage/events',
        '/activity',
        '/triggers',
      ],
      ...[`/agents/${agentId}`, `/secrets/${secret.id}`, '/orchestration-runs', '/tasks', '/cases', '/quotas'],
    ])
      assert.equal((await key.get(path)).status, 403, path)
    assert.equal((await key.post(`/agents`, { name: 'x' })).status, 403)
    assert.equal((await key.delete(`/actors/${secret.id}`)).status, 403)
  })
})
