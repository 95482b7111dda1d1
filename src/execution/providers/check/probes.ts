import type { CheckLine, ListedModel, ModelInput } from '../model.ts'
import type { ModelAnswer, ModelRequest, PromptMessage } from '../model-messages.ts'
import type { RefusedSetting } from '../outgoing/refused-settings.ts'
import { LONG_TEXT, pdfOf, RED_PNG } from './samples.ts'

export type Verdict = Pick<CheckLine, 'result' | 'note'>

/** Access of a probe to the model under check. */
export type Subject = {
  /** Calls the model. Notes of the answers make the verdict worse than `works`. @throws ModelCallError */
  ask(fields: Partial<ModelRequest>): Promise<ModelAnswer>
  /** Whether the model refused a setting in this probe. */
  hasRefused(setting: RefusedSetting): boolean
  /** Inputs of the model; null if they are unknown. */
  inputs: ReadonlySet<ModelInput> | null
  /** Whether requests mark what the vendor caches; otherwise it caches by itself. */
  marksCache: boolean
  /** Whether schemas of answers are sent; otherwise they are written into the instructions. */
  sendsSchemas: boolean
  model: string
  listModels(): Promise<ListedModel[]>
  /** Whether answers reported their usage so far, by whether they were streamed. */
  usage: ReadonlyMap<boolean, boolean>
}

/** A capability, its calls with their expected tokens, and how it is tried. */
export type Probe = {
  capability: string
  calls: number
  input_tokens: number
  output_tokens: number
  run(subject: Subject): Promise<Verdict>
}

const WORKS: Verdict = { result: 'works', note: null }
const ignored = (note: string): Verdict => ({ result: 'ignored', note })
const degraded = (note: string): Verdict => ({ result: 'degraded', note })

const user = (content: string): PromptMessage => ({ role: 'user', content })
const HELLO = [user('Answer with the word hello and nothing else.')]

const answered = ({ text, finish_reason }: ModelAnswer): Verdict =>
  text.trim() === '' ? degraded(`the answer has no text and ended with ${finish_reason}`) : WORKS

const says = ({ text }: ModelAnswer, word: string): Verdict =>
  text.toLowerCase().includes(word) ? WORKS : ignored(`the answer does not name what the file shows: ${word}`)

const CITY = {
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
  additionalProperties: false,
}
const WEATHER = { name: 'get_weather', description: 'Returns the weather of a city.', parameters: CITY }
const UNION = {
  name: 'find_person',
  description: 'Returns a person by ID or by name.',
  parameters: {
    type: 'object',
    properties: { id: { type: 'string' }, name: { type: 'string' } },
    anyOf: [{ required: ['id'] }, { required: ['name'] }],
  },
}
/** The answer without spaces and the fences of code. */
const CITY_ANSWER = /^(?:```(?:json)?)?\{"city":"[^"]*"\}(?:```)?$/

/** Returns an answer with calls and their results as messages, as turns send them. */
function nextStep({ text, tool_calls, vendor_parts, ai_provider_id, model }: ModelAnswer): PromptMessage[] {
  const calls = tool_calls.map(({ id, tool_name, args }) => ({
    type: 'tool_call' as const,
    tool_call_id: id,
    tool_name,
    args,
  }))
  return [
    {
      role: 'assistant',
      content: [...(text === '' ? [] : [{ type: 'text' as const, text }]), ...calls],
      ...(vendor_parts && { vendor: { ai_provider_id, model, parts: vendor_parts } }),
    },
    {
      role: 'tool',
      content: calls.map(({ tool_call_id, tool_name }) => ({
        type: 'tool_result',
        tool_call_id,
        tool_name,
        result: 'sunny, 24 degrees',
        error: null,
      })),
    },
  ]
}

const file = (filename: string, media_type: string, data_base64: string, question: string): PromptMessage => ({
  role: 'user',
  content: [
    { type: 'text', text: question },
    { type: 'attachment', filename, media_type, data_base64 },
  ],
})

const fileProbe = (capability: 'image' | 'pdf', message: PromptMessage, word: string): Probe => ({
  capability,
  calls: 1,
  input_tokens: 1500,
  output_tokens: 30,
  async run({ ask, inputs }) {
    if (inputs && !inputs.has(capability)) return { result: 'not_offered', note: `the model takes no ${capability}` }
    return says(await ask({ messages: [message] }), word)
  },
})

/** The capabilities in the order of the result. `usage` is read from the answers to the others. */
export const probes: readonly Probe[] = [
  {
    capability: 'plain',
    calls: 1,
    input_tokens: 20,
    output_tokens: 20,
    run: async ({ ask }) => answered(await ask({ messages: HELLO, stream: false })),
  },
  {
    capability: 'stream',
    calls: 1,
    input_tokens: 20,
    output_tokens: 20,
    async run({ ask, hasRefused }) {
      const answer = await ask({ messages: HELLO })
      return hasRefused('stream') ? degraded('answers are requested whole') : answered(answer)
    },
  },
  {
    capability: 'tools',
    calls: 2,
    input_tokens: 600,
    output_tokens: 600,
    async run({ ask }) {
      const messages = [user('Describe the weather in Paris. Use get_weather.')]
      const request = { tools: [WEATHER], reasoning: 'low' as const, max_output_tokens: 8192 }
      const answer = await ask({ ...request, messages })
      if (answer.tool_calls.length === 0) return ignored('the model did not call the tool')
      return answered(await ask({ ...request, messages: [...messages, ...nextStep(answer)] }))
    },
  },
  {
    capability: 'parallel_calls',
    calls: 1,
    input_tokens: 300,
    output_tokens: 80,
    async run({ ask }) {
      const messages = [user('Describe the weather in Paris and in Rome. Call get_weather for both at the same time.')]
      const { tool_calls } = await ask({ tools: [WEATHER], messages })
      if (tool_calls.length > 1) return WORKS
      return ignored(tool_calls.length === 1 ? 'the model makes one call at a time' : 'the model did not call the tool')
    },
  },
  {
    capability: 'history',
    calls: 1,
    input_tokens: 40,
    output_tokens: 30,
    run: async ({ ask }) =>
      answered(
        await ask({
          messages: [
            { role: 'assistant', content: 'Welcome!' },
            user('Hello'),
            { role: 'assistant', content: 'How can I help?' },
          ],
        }),
      ),
  },
  {
    capability: 'structured_output',
    calls: 1,
    input_tokens: 150,
    output_tokens: 20,
    async run({ ask, sendsSchemas }) {
      const answer = await ask({ messages: [user('Name the capital of France.')], output_schema: CITY })
      if (!CITY_ANSWER.test(answer.text.replaceAll(/\s/g, ''))) return ignored('the answer does not satisfy the schema')
      return sendsSchemas ? WORKS : degraded('the schema is sent as an instruction')
    },
  },
  {
    capability: 'tool_schema',
    calls: 1,
    input_tokens: 250,
    output_tokens: 30,
    async run({ ask }) {
      await ask({ tools: [UNION], messages: [user('Find the person with the ID p7. Use find_person.')] })
      return WORKS
    },
  },
  fileProbe(
    'image',
    file('square.png', 'image/png', RED_PNG, 'What colour is the square? Answer with one word.'),
    'red',
  ),
  fileProbe(
    'pdf',
    file('word.pdf', 'application/pdf', pdfOf('The word is heron.'), 'Which word does the page name?'),
    'heron',
  ),
  {
    capability: 'caching',
    calls: 2,
    input_tokens: 14_000,
    output_tokens: 40,
    async run({ ask, marksCache }) {
      const request = { system: LONG_TEXT, prompt_caching: marksCache }
      await ask({ ...request, messages: HELLO })
      const { usage } = await ask({
        ...request,
        messages: [...HELLO, { role: 'assistant', content: 'hello' }, ...HELLO],
      })
      return usage && usage.cached_tokens > 0 ? WORKS : ignored('the second answer reports no cached tokens')
    },
  },
  {
    capability: 'temperature',
    calls: 1,
    input_tokens: 20,
    output_tokens: 20,
    run: async ({ ask }) => answered(await ask({ messages: HELLO, temperature: 0 })),
  },
  {
    capability: 'listing',
    calls: 0,
    input_tokens: 0,
    output_tokens: 0,
    async run({ listModels, model }) {
      const models = await listModels()
      const isListed = models.some(({ id }) => id === model)
      return { result: 'works', note: isListed ? null : `${model} is not among the ${models.length} models` }
    },
  },
]

/** Returns whether answers report their usage. */
export function usageVerdict({ usage }: Pick<Subject, 'usage'>): Verdict {
  const missing = [...usage].flatMap(([isStreamed, isReported]) =>
    isReported ? [] : isStreamed ? 'streamed answers' : 'whole answers',
  )
  if (missing.length === 0) return WORKS
  return missing.length < usage.size
    ? degraded(`${missing.join()} report no usage`)
    : ignored('no answer reports its usage')
}
