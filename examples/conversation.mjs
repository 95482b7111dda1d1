// A conversation: node examples/conversation.mjs "Hello, who are you?"
import { get, post, send } from './muster.mjs'

const message = process.argv[2] ?? 'Hello, who are you?'

// npm start creates a provider for the mock model. Create others with POST /ai-providers.
const { data: providers } = await get('/ai-providers?limit=1')
if (providers.length === 0) throw new Error('no provider exists: create one with POST /ai-providers')

const agent = await post('/agents', {
  name: `helper ${Date.now()}`,
  instructions: 'You are a friendly assistant.',
  ai_provider_id: providers[0].id,
})

// A session is a conversation of one end user with the agent. With auto_generate, every message gets a reply.
const session = await post('/sessions', { agent_id: agent.id, auto_generate: true })
const { reply } = await post(`/sessions/${session.id}/messages?wait=true`, { message })
console.log(`user: ${message}`)
console.log(`agent: ${reply.content}`)

// A streamed turn without a conversation. Each event of the stream has the lines `event: <name>` and `data: <JSON>`.
const stream = await send('POST', `/agents/${agent.id}/generate`, { prompt: 'And streamed?', stream: true })
let rest = ''
for await (const chunk of stream.body.pipeThrough(new TextDecoderStream())) {
  rest += chunk
  const events = rest.split('\n\n')
  rest = events.pop()
  for (const event of events) {
    const data = /^data: (.*)$/m.exec(event)?.[1]
    if (data) console.log(`stream: ${/^event: (.*)$/m.exec(event)?.[1]} ${data}`)
  }
}
