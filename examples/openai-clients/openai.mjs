// The openai package: a conversation of one user with an agent, streamed.
// MUSTER_URL=http://localhost:5047 MUSTER_KEY=… node examples/openai-clients/openai.mjs agent_…
import OpenAI from 'openai'

const { MUSTER_URL = 'http://localhost:5047', MUSTER_KEY } = process.env
const client = new OpenAI({
  baseURL: `${MUSTER_URL}/openai/v1`,
  apiKey: MUSTER_KEY,
  defaultHeaders: { 'X-Svc-Actor': 'customer-17', 'X-Svc-Session-Key': 'order-1042' },
})
const model = process.argv[2] ?? (await client.models.list()).data[0].id
const stream = await client.chat.completions.create({
  model,
  messages: [{ role: 'user', content: 'How long may I return an order?' }],
  stream: true,
})
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? '')
process.stdout.write('\n')
