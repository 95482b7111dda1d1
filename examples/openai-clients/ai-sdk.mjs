// The AI SDK: responses of an agent, with the history of the program.
// MUSTER_URL=http://localhost:5047 MUSTER_KEY=… node examples/openai-clients/ai-sdk.mjs agent_…
import { createOpenAI } from '@ai-sdk/openai'
import { generateText } from 'ai'

const { MUSTER_URL = 'http://localhost:5047', MUSTER_KEY } = process.env
const muster = createOpenAI({ baseURL: `${MUSTER_URL}/openai/v1`, apiKey: MUSTER_KEY })
const { text } = await generateText({ model: muster(process.argv[2]), prompt: 'How long may I return an order?' })
console.log(text)
