import assert from 'node:assert/strict'
import { forSuite } from '../support/suite.ts'
import { startSessionApp } from './session-support.ts'

describe('blank texts', () => {
  const app = forSuite(() =>
    startSessionApp({
      actions: ['agents:*', 'conversations:*', 'sessions:*', 'chats:*', 'generations:*'],
    }),
  )

  const BLANK = ' \n\t\u00a0'

  /** The field that a refusal names. */
  const refused = async (path: string, body: object): Promise<string> => {
    const { status, body: reply } = await app.key.post(path, body)
    assert.deepEqual([status, reply.error?.code], [400, 'VALIDATION_FAILED'], JSON.stringify(reply))
    return reply.error.meta.problems[0].path
  }
  const user = (content: unknown) => ({ role: 'user', content })
  const assistant = (content: string) => ({ role: 'assistant', content })

  it('are refused as the newest message of the user, naming the field', async () => {
    const generate = `/agents/${app.agentId}/generate`
    const chat = { ai_provider_id: app.providerId }
    const { id: session } = await app.session()
    const { id: conversation } = (await app.key.post('/conversations', {})).body
    const part = { type: 'text', text: BLANK }
    assert.deepEqual(
      [
        await refused(generate, { prompt: BLANK }),
        await refused(generate, { messages: [user('Hello'), assistant('Yes?'), user(BLANK)] }),
        await refused(generate, { messages: [user('')] }),
        await refused(generate, { messages: [user([part, part])] }),
        await refused('/chat/completions', { ...chat, messages: [user('Hello'), user(BLANK)] }),
        await refused(`/sessions/${session}/messages`, { message: BLANK }),
        await refused(`/sessions/${session}/messages`, { parts: [part] }),
        await refused(`/conversations/${conversation}/messages`, { role: 'user', message: BLANK }),
      ],
      [
        'prompt',
        'messages[2].content',
        'messages[0].content',
        'messages[0].content',
        'messages[1].content',
        'message',
        'parts',
        'message',
      ],
    )
  })

  it('are dropped in a history', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'Fine.' } }])
    const messages = [user(''), user(BLANK), assistant(''), assistant('Yes?'), user('Well')]
    const { status, body } = await app.key.post(`/agents/${agentId}/generate?wait=true`, { messages })
    assert.deepEqual([status, body.output?.content], [200, 'Fine.'], JSON.stringify(body))
    const sent = (await requests()).at(-1)?.body.messages
    assert.deepEqual(
      sent.map(({ content }: any) => content),
      ['Yes?', 'Well'],
    )
    const completion = await app.key.post('/chat/completions', { ai_provider_id: app.providerId, messages })
    assert.equal(completion.status, 200, JSON.stringify(completion.body))
  })
})
