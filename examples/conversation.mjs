// A conversation: node examples/conversation.mjs "Hello, who are you?"
import { get, post, send } from './muster.mjs'

const said = process.argv[2] ?? 'Hello, who are you?'

// Where the model is: npm start makes a provider for its stand-in. A real one is made with POST /ai-providers.
const { data: providers } = await get('/ai-providers?limit=1')
if (providers.length === 0) throw new Error('there is no provider yet: POST /ai-providers')

const agent = await post('/agents', {
  name: `helper ${Date.now()}`,
  instructions: 'You are a friendly assistant.',
  ai_provider_id: providers[0].id,
})

// A session is where one end user talks with the agent; with auto_generate every message gets a reply.
const session = await post('/sessions', { agent_id: agent.id, auto_generate: true })
const { reply } = await post(`/sessions/${session.id}/messages?wait=true`, { message: said })
console.log(`user: ${said}`)
console.log(`agent: ${reply.content}`)

// A turn without a conversation, streamed: each event of the stream is `event: <name>` and `data: <JSON>`.
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
