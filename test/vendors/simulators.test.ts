import assert from 'node:assert/strict'
import { createAmazonBedrock } from '@ai-sdk/amazon-bedrock'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createGoogle } from '@ai-sdk/google'
import { createGroq } from '@ai-sdk/groq'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import type { LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4Content } from '@ai-sdk/provider'
import { createXai } from '@ai-sdk/xai'
import { DIALECTS } from '#execution/providers/model.ts'
import { forSuite } from '../support/suite.ts'
import { embeddingRules } from '../support/vendors/embeddings.ts'
import { simulators as all, startSimulators } from '../support/vendors/server.ts'
import { requests } from './requests.ts'

const TOOL = {
  type: 'function' as const,
  name: 'weather',
  inputSchema: { type: 'object' as const, properties: { city: { type: 'string' as const } } },
}
const CALLS = [
  { name: 'weather', args: { city: 'Paris' } },
  { name: 'weather', args: { city: 'Rome' } },
]
const WHOLE = { text: 'Well, two cities.', reasoning: 'They ask for two.', tool_calls: CALLS }
const ask: LanguageModelV4CallOptions = {
  prompt: [{ role: 'user', content: [{ type: 'text', text: 'Weather of Paris and Rome?' }] }],
  tools: [TOOL],
}

const compatible = (url: string, apiKey: string, name: string, model: string) =>
  createOpenAICompatible({ name, baseURL: `${url}/custom/${name}/v1`, apiKey, includeUsage: true }).chatModel(model)

/** A model of each vendor as its SDK makes it, the options that make it reason, and whether answers show that. */
const models = (url: string, key: string): [string, LanguageModelV4, object?, { reasoning: boolean }?][] => {
  const openai = createOpenAI({ baseURL: `${url}/openai/v1`, apiKey: key })
  const manual = { anthropic: { thinking: { type: 'enabled', budgetTokens: 2048 } } }
  return [
    [
      'anthropic',
      createAnthropic({ baseURL: `${url}/anthropic/v1`, apiKey: key }).languageModel('claude-sonnet-4-5'),
      manual,
    ],
    ['openai chat', openai.chat('gpt-5-mini'), {}, { reasoning: false }],
    ['openai responses', openai.responses('gpt-5-mini'), { openai: { reasoningSummary: 'auto' } }],
    ['responses without store', openai.responses('gpt-5-mini'), { openai: { reasoningSummary: 'auto', store: false } }],
    ['gemini', createGoogle({ baseURL: `${url}/google/v1beta`, apiKey: key }).languageModel('gemini-3-pro')],
    ['xai', createXai({ baseURL: `${url}/xai/v1`, apiKey: key }).languageModel('grok-4')],
    ['groq', createGroq({ baseURL: `${url}/groq/v1`, apiKey: key }).languageModel('openai/gpt-oss-120b')],
    [
      'bedrock',
      createAmazonBedrock({ baseURL: url, region: 'us-east-1', apiKey: key }).languageModel(
        'us.anthropic.claude-sonnet-4-5-20250929-v1:0',
      ),
      { bedrock: { reasoningConfig: { type: 'enabled', budgetTokens: 2048 } } },
    ],
    ['deepseek', compatible(url, key, 'deepseek', 'deepseek-reasoner')],
    ['kimi', compatible(url, key, 'kimi', 'kimi-k2.6')],
    ['vllm', compatible(url, key, 'vllm', 'mistralai/Devstral-Small-2-24B-Instruct-2512')],
    ['ollama', compatible(url, key, 'ollama', 'qwen3:8b')],
    ['mistral', compatible(url, key, 'mistral', 'mistral-large-latest'), {}, { reasoning: false }],
  ]
}

/** The parts of an answer that differ between answers in one body and in a stream. */
const summary = (content: readonly LanguageModelV4Content[]) => ({
  text: content.flatMap(part => (part.type === 'text' ? part.text : [])).join(''),
  reasoning: content.flatMap(part => (part.type === 'reasoning' ? part.text : [])).join(''),
  calls: content.flatMap(part => (part.type === 'tool-call' ? [[part.toolName, JSON.parse(part.input)]] : [])),
})

/** Reads a stream to its end: the text, the calls, the reasoning, the last part. */
async function streamed(model: LanguageModelV4, options: LanguageModelV4CallOptions) {
  const { stream } = await model.doStream(options)
  const seen = { text: '', reasoning: '', calls: [] as unknown[], finish: null as any, error: null as unknown }
  for await (const part of stream as unknown as AsyncIterable<any>) {
    if (part.type === 'text-delta') seen.text += part.delta
    if (part.type === 'reasoning-delta') seen.reasoning += part.delta
    if (part.type === 'tool-call') seen.calls.push([part.toolName, JSON.parse(part.input)])
    if (part.type === 'finish') seen.finish = part
    if (part.type === 'error') seen.error = part.error
  }
  return seen
}

describe('simulators of vendors', () => {
  const simulators = forSuite(startSimulators)
  let lanes = 0
  const lane = () => `ABSK-lane-${++lanes}`

  const assertRefusal = (key: string, call: () => PromiseLike<unknown>, status: number) => {
    simulators.plan(key, { error: { status, message: 'not so' } })
    return assert.rejects(
      async () => call(),
      (error: any) => {
        assert.equal(error.statusCode, status)
        assert.match(error.responseBody, /not so/)
        return true
      },
    )
  }

  const post = async (path: string, body: unknown, key: string) => {
    const response = await fetch(simulators.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
      body: JSON.stringify(body),
    })
    return { status: response.status, text: await response.text() }
  }

  for (const simulator of all) {
    const { path, fits, breaks } = requests[simulator.name]!

    it(`${simulator.name}: each rule refuses the request that breaks it, and no other`, async () => {
      const names = simulator.rules.map(({ name }) => name)
      assert.deepEqual(Object.keys(breaks).sort(), [...names].sort())
      const key = lane()
      simulators.plan(key, { reasoning: 'because', tool_calls: [{ id: 'call00001', name: 'weather' }] })
      const accepted = await post(path, fits, key)
      assert.equal(accepted.status, 200, accepted.text)
      assert.deepEqual(simulators.refusals(key), [])
      for (const rule of simulator.rules) {
        assert.match(rule.date, /^202[4-6]-(0[1-9]|1[0-2])$/)
        const body = structuredClone(fits)
        const other = breaks[rule.name]!(body, JSON.parse(accepted.text))
        const { status, text } = await post(typeof other === 'string' ? other : path, body, key)
        const broken = simulators.requests.at(-1)!.refusals.find(refusal => refusal.rule === rule.name)
        assert.ok(broken, `${rule.name}: ${text}`)
        assert.doesNotMatch(broken.message, /\{\w+\}/)
        if (rule.source === '?') continue
        assert.ok(status >= 400, rule.name)
        const [enforced] = simulators.requests.at(-1)!.refusals.filter(({ source }) => source !== '?')
        assert.ok(text.includes(JSON.stringify(enforced!.message).slice(1, -1).split('"')[0]!), text)
      }
    })
  }

  it('embeddings: refuse inputs by their number and tokens', async () => {
    const embed = async (input: unknown) => {
      const { status } = await post('/openai/v1/embeddings', { model: 'text-embedding-3-small', input }, 'key')
      return [status, simulators.requests.at(-1)!.refusals[0]?.rule ?? null]
    }
    assert.deepEqual(await embed(['one', 'two']), [200, null])
    const broken = [
      await embed(['']),
      await embed(Array(2049).fill('a')),
      await embed(['七'.repeat(8000) + '天内无理由退款'.repeat(100)]),
      await embed(Array(60).fill('word '.repeat(6000))),
    ]
    assert.deepEqual(
      broken,
      embeddingRules.map(({ name, source }) => [source === '?' ? 200 : 400, name]),
    )
  })

  describe('are read by the packages of the vendors', () => {
    for (const [index, [name]] of models('http://x', 'k').entries())
      it(`${name}: an answer whole and streamed, its reasoning sent back, errors`, async () => {
        const key = lane()
        const [, model, providerOptions = {}, { reasoning } = { reasoning: true }] = models(simulators.url, key)[index]!
        const options = { ...ask, maxOutputTokens: 8192, providerOptions: providerOptions as never }
        const expected = {
          text: WHOLE.text,
          reasoning: reasoning ? WHOLE.reasoning : '',
          calls: CALLS.map(({ name, args }) => [name, args]),
        }
        simulators.plan(key, WHOLE)
        const whole = await model.doGenerate(options)
        assert.deepEqual(summary(whole.content), expected)
        assert.equal(whole.finishReason.unified, 'tool-calls')
        assert.ok((whole.usage.outputTokens.total ?? 0) > 0)
        const { finish, error, ...parts } = await streamed(model, options)
        assert.equal(error, null)
        assert.deepEqual(parts, expected)
        assert.deepEqual(finish.usage.outputTokens, whole.usage.outputTokens)
        const results = whole.content.flatMap(part =>
          part.type === 'tool-call'
            ? [
                {
                  type: 'tool-result' as const,
                  toolCallId: part.toolCallId,
                  toolName: part.toolName,
                  output: { type: 'text' as const, value: 'sun' },
                },
              ]
            : [],
        )
        const said = whole.content.map((part: any) => ({
          ...part,
          ...(part.type === 'tool-call' && { input: JSON.parse(part.input) }),
          providerOptions: part.providerMetadata,
        }))
        simulators.plan(key, { text: 'Sun in both.' })
        const prompt = [
          ...ask.prompt,
          { role: 'assistant' as const, content: said as never },
          { role: 'tool' as const, content: results },
        ]
        const answered = await model.doGenerate({ ...options, prompt })
        assert.equal(summary(answered.content).text, 'Sun in both.')
        assert.deepEqual(simulators.refusals(key), [])
        for (const call of [() => model.doGenerate(options), () => model.doStream(options)])
          await assertRefusal(key, call, 429)
      })
  })

  for (const dialect of DIALECTS)
    it(`${dialect}: a refused stream has its status and text`, async () => {
      const key = lane()
      const model = compatible(simulators.url, key, dialect, 'qwen3:8b')
      for (const status of [400, 422]) await assertRefusal(key, () => model.doStream(ask), status)
    })

  it('cut streams, add lines without meaning, split characters, fail in the stream', async () => {
    const key = lane()
    const model = createOpenAICompatible({
      name: 'vllm',
      baseURL: `${simulators.url}/custom/vllm/v1`,
      apiKey: key,
    }).chatModel('qwen')
    simulators.plan(key, { chunks: ['smile \ud83d', '\ude00'], noise: ['comments', 'crlf'] })
    assert.equal((await streamed(model, ask)).text, 'smile 😀')
    simulators.plan(key, { text: 'one two three', cut: { after: 2 } })
    const cut = await streamed(model, ask)
    assert.equal(cut.text, 'one ')
    simulators.plan(key, { text: 'one two three', cut: { after: 2, reset: true } })
    await assert.rejects(streamed(model, ask))
    simulators.plan(key, { text: 'one two three', stream_error: { after: 2, message: 'out of memory' } })
    assert.match(JSON.stringify((await streamed(model, ask)).error), /out of memory/)
    simulators.plan(key, { text: 'cut', finish: 'length', usage: null })
    const { finish } = await streamed(model, ask)
    assert.deepEqual([finish.finishReason.unified, finish.usage.outputTokens.total], ['length', undefined])
    simulators.plan(key, { text: 'x', noise: ['empty'] })
    const { text } = await post('/custom/vllm/v1/chat/completions', { messages: [], stream: true }, key)
    assert.match(text, /^data:\n\ndata: \{/)
  })

  it('read a prefix of the prompt from the cache once it was written', async () => {
    const key = lane()
    const system = [{ type: 'text', text: 'word '.repeat(4000), cache_control: { type: 'ephemeral' } }]
    const usage = async (content: string) => {
      const body = { model: 'claude-sonnet-4-6', max_tokens: 10, system, messages: [{ role: 'user', content }] }
      const { text } = await post('/anthropic/v1/messages', body, key)
      const { cache_creation_input_tokens: written, cache_read_input_tokens: read } = JSON.parse(text).usage
      return [written > 4000, read > 4000]
    }
    assert.deepEqual(await usage('first'), [true, false])
    assert.deepEqual(await usage('second'), [false, true])
  })
})
