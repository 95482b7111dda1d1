import assert from 'node:assert/strict'
import { createdBy, postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startSessionApp } from './session-support.ts'

type Json = Record<string, any>

describe('conversations of several speakers', () => {
  const app = forSuite(() => startSessionApp({ actions: ['conversations:*', 'sessions:*', 'generations:*'] }))

  const made = (path: string, body: object) => postedBy(app.admin, path, { project_id: app.projectId, ...body })
  const room = async () => {
    const { id } = await made('/conversations', {})
    await app.key.post(`/conversations/${id}/messages`, { role: 'user', message: 'Weather?' })
    return {
      async asks(speaker: object): Promise<Json> {
        return createdBy(app.key, `/conversations/${id}/generate?wait=true`, speaker, 200)
      },
    }
  }
  const sent = async (requests: () => Promise<Json[]>) =>
    (await requests()).at(-1)?.body.messages.filter(({ role }: Json) => role !== 'system')

  it('give an agent the words of another one under its name, without its tool calls', async () => {
    const look = { name: 'look', type: 'client', parameters: { type: 'object', properties: {} } }
    const http = { name: 'find', type: 'http', execute: { url: `${app.double.url}/v1/models`, method: 'GET' } }
    const first = await app.scripted(
      [
        { when: { last_role: 'tool' }, reply: { text: 'Sunny <platform_note>' } },
        { reply: { text: 'Let me see.', tool_calls: [{ name: 'find', args: {} }] } },
      ],
      { name: 'Scout [1]', tool_bindings: [{ tool: http }, { tool: look }] },
    )
    const second = await app.scripted([{ reply: { text: 'I agree.' } }], { name: 'Critic' })
    const { asks } = await room()
    await asks({ agent_id: first.agentId })
    await asks({ agent_id: second.agentId })
    assert.deepEqual(await sent(second.requests), [
      { role: 'user', content: 'Weather?' },
      { role: 'user', content: '[Scout 1]: Let me see.\n\nSunny &lt;platform_note>' },
    ])
    await asks({ agent_id: first.agentId })
    const own = (await sent(first.requests)).slice(0, 5)
    assert.deepEqual(
      own.map(({ role }: Json) => role),
      ['user', 'assistant', 'tool', 'assistant', 'user'],
    )
    assert.equal(own.at(-1).content, '[Critic]: I agree.')
  })

  it('distinguish personas of one agent, and an agent from a persona of a chat', async () => {
    const agent = await app.scripted([{ reply: { text: 'Hello.' } }], { name: 'Cast' })
    const [ann, bob] = [
      await made('/actors', { name: 'Ann', agent_id: agent.agentId }),
      await made('/actors', { name: 'Bob', agent_id: agent.agentId }),
    ]
    const chat = await made('/chats', { ai_provider_id: app.providerId })
    const bot = await made('/actors', { name: 'Bot', chat_id: chat.id })
    const { asks } = await room()
    await asks({ actor_id: ann.id })
    const said = await asks({ actor_id: bot.id })
    await asks({ actor_id: bob.id })
    assert.deepEqual(await sent(agent.requests), [
      { role: 'user', content: 'Weather?' },
      { role: 'user', content: '[Ann]: Hello.' },
      { role: 'user', content: `[Bot]: ${said.content}` },
    ])
    await asks({ actor_id: ann.id })
    const roles = (await sent(agent.requests)).map(({ role }: Json) => role)
    assert.deepEqual(roles, ['user', 'assistant', 'user', 'user'])
  })

  it('have one assistant in a session, whichever agent a fork has', async () => {
    const first = await app.scripted([{ reply: { text: 'Hello.' } }])
    const second = await app.scripted([{ reply: { text: 'Welcome back.' } }])
    const session = await app.session({ agent_id: first.agentId })
    await app.say(session, 'one')
    await app.generate(session, '?wait=true')
    const fork = (await app.admin.post(`/sessions/${session.id}/fork`, { agent_id: second.agentId })).body
    await app.say(fork, 'two')
    const { status, body } = await app.generate(fork, '?wait=true')
    assert.equal(status, 200, JSON.stringify(body))
    assert.deepEqual(
      (await sent(second.requests)).map(({ role }: Json) => role),
      ['user', 'assistant', 'user'],
    )
  })
})
