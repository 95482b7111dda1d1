// LangChain: an agent as a chat model.
// MUSTER_URL=http://localhost:5047 MUSTER_KEY=… node examples/openai-clients/langchain.mjs agent_…
import { ChatOpenAI } from '@langchain/openai'

const { MUSTER_URL = 'http://localhost:5047', MUSTER_KEY } = process.env
const model = new ChatOpenAI({
  model: process.argv[2],
  apiKey: MUSTER_KEY,
  configuration: { baseURL: `${MUSTER_URL}/openai/v1` },
})
console.log((await model.invoke('How long may I return an order?')).content)
