import assert from 'node:assert/strict'
import { type Client, startApp, type TestApp } from '../support/app.ts'
import { postedBy } from '../support/replies.ts'
import type { Plan } from '../support/vendors/plan.ts'
import { profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { startToolServer, type ToolServer } from '../vendors/tool-server.ts'
import { dataLines } from './openai-support.ts'

type Json = Record<string, any>

const URL_FOUND = 'https://example.com/weather'
const SEARCHES = [{ query: 'weather of Paris', found: URL_FOUND, cited: 'Sun all day.' }]
const USER = { role: 'user', content: 'Weather?' }
const LOOK = { type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }
/** A model of OpenAI that does not reason, which has probabilities. */
const PLAIN = 'gpt-4.1-mini'

describe('the OpenAI mount and its vendors', () => {
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  let lanes = 0

  before(async () => {
    ;[simulators, tools] = await Promise.all([startSimulators(), startToolServer()])
    app = await startApp({ workers: ['generation'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
    const project = await app.projectWith([
      ...['actors:*', 'agents:*', 'ai-providers:CreateAiProvider', 'chats:*', 'generations:*', 'secrets:*'],
      ...['sessions:*', 'tools:*', 'traces:*'],
    ])
    key = project.key
  })
  after(() => Promise.all([app?.close(), simulators?.close(), tools?.close()]))

  const made = (at: string, body: object) => postedBy(key, at, body)

  const providerOf = async (profile: string, more: object = {}) => {
    const lane = `mount-${++lanes}`
    const secret = await made('/secrets', { name: lane, value: lane })
    const fields = providerFields(profiles.find(({ name }) => name === profile)!, simulators.url)
    const { id, default_model } = await made('/ai-providers', { ...fields, ...more, secret_id: secret.id })
    return {
      id: id as string,
      /** The model of the provider, as the mount names it. */
      model: `${id}/${default_model}`,
      plan: (plan: Plan) => simulators.plan(lane, plan),
      calls: () => simulators.calls(lane),
      sent: () => simulators.calls(lane).at(-1)!.body,
      refusals: () => simulators.refusals(lane),
    }
  }

  const agentOf = async (ai_provider_id: string, fields: object = {}) =>
    (await made('/agents', { name: 'agent', ai_provider_id, ...fields })).id as string

  const post = async (at: string, body: object, headers: Record<string, string> = {}) => {
    const response = await fetch(`${app.url}/openai/v1${at}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${key.token}`, ...headers },
      body: JSON.stringify(body),
    })
    assert.equal(response.status, 200, await response.clone().text())
    return { response, ignored: response.headers.get('x-svc-ignored-params') }
  }
  const whole = async (...args: Parameters<typeof post>): Promise<{ body: Json; ignored: string | null }> => {
    const { response, ignored } = await post(...args)
    return { body: (await response.json()) as Json, ignored }
  }
  /** Returns the chunks or events of a stream. */
  const streamed = async (at: string, body: object): Promise<Json[]> =>
    (await dataLines((await post(at, { ...body, stream: true })).response))
      .filter(line => line !== '[DONE]')
      .map(line => JSON.parse(line))

  /** Returns the choice that the chunks of a stream add up to. */
  const choiceOf = (chunks: Json[]): { message: Json; logprobs: Json[] } => {
    const choices = chunks.flatMap(({ choices }) => choices)
    const joined = (field: string) => choices.map(({ delta }) => delta[field] ?? '').join('')
    const last = (field: string) => choices.findLast(({ delta }) => delta[field])?.delta[field]
    return {
      message: {
        role: 'assistant',
        content: joined('content'),
        reasoning_content: joined('reasoning_content'),
        tool_calls: last('tool_calls'),
        annotations: last('annotations'),
      },
      logprobs: choices.flatMap(({ logprobs }) => logprobs?.content ?? []),
    }
  }

  describe('reasoning of a client', () => {
    const THOUGHT = 'I must look outside.'
    const CALLED = { reasoning: THOUGHT, tool_calls: [{ name: 'look', args: {} }] }

    for (const profile of ['custom deepseek', 'custom kimi'])
      for (const kind of ['whole', 'streamed'])
        it(`goes back to ${profile} as the ${kind} answer had it`, async () => {
          const provider = await providerOf(profile)
          provider.plan([CALLED, { text: 'Sunny' }])
          const body = { model: provider.model, tools: [LOOK], messages: [USER] }
          const { message } =
            kind === 'whole'
              ? (await whole('/chat/completions', body)).body.choices[0]
              : choiceOf(await streamed('/chat/completions', body))
          assert.equal(message.reasoning_content, THOUGHT)
          const result = { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'sun' }
          const { ignored } = await whole('/chat/completions', { ...body, messages: [USER, message, result] })
          assert.equal(provider.sent().messages[1].reasoning_content, THOUGHT)
          assert.deepEqual([ignored, provider.refusals()], [null, []])
        })

    it('is passed with texts, and from items of responses', async () => {
      const provider = await providerOf('custom deepseek')
      const input = [
        USER,
        { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: THOUGHT }] },
        { type: 'message', role: 'assistant', content: 'I look.' },
        { type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{}' },
        { type: 'function_call_output', call_id: 'call_1', output: 'sun' },
        { type: 'reasoning', id: 'rs_2', summary: [], content: [{ type: 'reasoning_text', text: 'It is sunny.' }] },
        { type: 'message', role: 'assistant', content: 'Sunny' },
        { role: 'user', content: 'And now?' },
      ]
      const { ignored } = await whole('/responses', { model: provider.model, input })
      const reasoning = provider.sent().messages.map((message: Json) => message.reasoning_content)
      assert.deepEqual(reasoning, [undefined, THOUGHT, undefined, 'It is sunny.', undefined])
      assert.equal(ignored, null)
    })

    it('reaches the model of an agent, and is not in the record of the turn', async () => {
      const provider = await providerOf('custom deepseek')
      const messages = [USER, { role: 'assistant', content: 'Sunny', reasoning_content: THOUGHT }, USER]
      const { body, ignored } = await whole('/chat/completions', { model: await agentOf(provider.id), messages })
      assert.equal(provider.sent().messages[1].reasoning_content, THOUGHT)
      assert.equal(ignored, null)
      const transcript = await key.get(`/generations/${body.id.replace('chatcmpl', 'gen')}/transcript`)
      assert.equal(transcript.body.input.length, 3)
      assert.doesNotMatch(JSON.stringify(transcript.body), /look outside/)
    })

    it('is left out and named for other vendors, and where only its vendor can read it', async () => {
      const messages = [USER, { role: 'assistant', content: 'Sunny', reasoning_content: THOUGHT }, USER]
      for (const profile of ['openai chat', 'groq', 'anthropic']) {
        const provider = await providerOf(profile)
        for (const model of [provider.model, await agentOf(provider.id)]) {
          const { ignored } = await whole('/chat/completions', { model, messages })
          assert.equal(ignored, 'reasoning_content', profile)
          assert.doesNotMatch(JSON.stringify(provider.sent()), /look outside/)
        }
      }
      const { model } = await providerOf('openai responses')
      const input = [{ type: 'reasoning', id: 'rs_1', summary: [], encrypted_content: 'x' }, USER]
      assert.equal((await whole('/responses', { model, input })).ignored, 'input.reasoning')
    })

    it('is not taken from end users, who see none', async () => {
      const provider = await providerOf('custom deepseek')
      const agent = await agentOf(provider.id)
      const { id } = await made('/actors', { external_id: 'ann', name: 'Ann' })
      const { token } = await made(`/actors/${id}/tokens`, { scopes: ['chat'], agent_ids: [agent] })
      const messages = [USER, { role: 'assistant', content: 'Sunny', reasoning_content: THOUGHT }, USER]
      const { ignored } = await whole(
        '/chat/completions',
        { model: agent, messages },
        { authorization: `Bearer ${token}` },
      )
      assert.equal(ignored, 'reasoning_content')
      assert.doesNotMatch(JSON.stringify(provider.sent()), /look outside/)
    })
  })

  describe("a refusal of the model's own call within a stream", () => {
    const message = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."
    const refused = (after: number, more: object = {}) => ({
      chunks: ['Let me ', 'look.'],
      error: { status: 400, message, code: 'tool_use_failed', ...more },
      stream_error: { after, message },
    })

    for (const profile of ['groq', 'custom openai'])
      it(`of ${profile} is requested once more before any text`, async () => {
        const provider = await providerOf(profile)
        for (const model of [provider.model, await agentOf(provider.id)]) {
          provider.plan([refused(1), { text: 'fine' }])
          const chunks = await streamed('/chat/completions', { model, messages: [USER] })
          assert.equal(choiceOf(chunks).message.content, 'fine')
          assert.equal(provider.calls().length, 2)
        }
      })

    it('is requested only once more, and never after text', async () => {
      const provider = await providerOf('groq')
      for (const [reply, calls] of [
        [refused(1), 2],
        [refused(2), 1],
      ] as const) {
        provider.plan(reply)
        const response = await fetch(`${app.url}/openai/v1/chat/completions`, {
          method: 'POST',
          headers: { 'content-type': 'application/json', authorization: `Bearer ${key.token}` },
          body: JSON.stringify({ model: provider.model, messages: [USER], stream: true }),
        })
        assert.match(await response.text(), /Failed to call a function/)
        assert.equal(provider.calls().length, calls)
      }
    })
  })

  describe('probabilities of tokens', () => {
    const CHUNKS = ['It ', 'is ', 'sunny.']
    const ASKED = { logprobs: true, top_logprobs: 2 }
    const INCLUDED = { include: ['message.output_text.logprobs'], top_logprobs: 2 }
    const tokensOf = (list: Json[]) => list.map(({ token }) => token)
    const expectTokens = (list: Json[], about: string) => {
      assert.deepEqual(tokensOf(list), CHUNKS, about)
      assert.deepEqual(list[0], {
        token: 'It ',
        logprob: -0.25,
        bytes: [73, 116, 32],
        top_logprobs: [
          { token: 'It ', logprob: -0.25, bytes: [73, 116, 32] },
          { token: 'It 1', logprob: -1.25, bytes: [73, 116, 32] },
        ],
      })
    }

    for (const profile of ['openai responses', 'openai chat', 'custom vllm'])
      it(`of ${profile} are returned in both APIs, whole and streamed`, async () => {
        const provider = await providerOf(profile, profile.startsWith('openai') ? { default_model: PLAIN } : {})
        provider.plan({ chunks: CHUNKS })
        const agent = await agentOf(provider.id, { request_settings: ['logprobs', 'top_logprobs'] })
        for (const model of [provider.model, agent]) {
          const chat = { model, messages: [USER], ...ASKED }
          const { body, ignored } = await whole('/chat/completions', chat)
          expectTokens(body.choices[0].logprobs.content, model)
          assert.equal(ignored, null)
          expectTokens(choiceOf(await streamed('/chat/completions', chat)).logprobs, model)
          const response = { model, input: 'Hi', ...INCLUDED }
          expectTokens((await whole('/responses', response)).body.output[0].content[0].logprobs, model)
          const events = await streamed('/responses', response)
          const done = events.find(({ type }) => type === 'response.output_text.done')
          expectTokens(done?.logprobs, model)
          expectTokens(events.at(-1)?.response.output[0].content[0].logprobs, model)
        }
      })

    it('are null without a request, and named where the vendor has none', async () => {
      const openai = await providerOf('openai chat', { default_model: PLAIN })
      const { body } = await whole('/chat/completions', { model: openai.model, messages: [USER] })
      assert.equal(body.choices[0].logprobs, null)
      for (const profile of ['anthropic', 'google', 'groq', 'xai', 'custom deepseek']) {
        const { id, model } = await providerOf(profile)
        const agent = await agentOf(id, { request_settings: ['logprobs', 'top_logprobs'] })
        for (const each of profile === 'custom deepseek' ? [] : [model, agent]) {
          const { body, ignored } = await whole('/chat/completions', { model: each, messages: [USER], ...ASKED })
          assert.deepEqual([body.choices[0].logprobs, ignored], [null, 'logprobs'], profile)
        }
      }
      const { ignored } = await whole('/chat/completions', {
        model: await agentOf(openai.id),
        messages: [USER],
        ...ASKED,
      })
      assert.equal(ignored, 'logprobs, top_logprobs')
    })

    it('of an agent are given for each step', async () => {
      const provider = await providerOf('custom vllm')
      const agent = await agentOf(provider.id, {
        request_settings: ['logprobs', 'top_logprobs'],
        tool_bindings: [{ tool: { name: 'look', type: 'http', execute: { url: `${tools.url}/steps` } } }],
      })
      const plan: Plan = [{ chunks: ['Let ', 'me.'], tool_calls: [{ name: 'look', args: {} }] }, { chunks: CHUNKS }]
      const steps = [['Let ', 'me.'], CHUNKS]
      const input = { model: agent, input: 'Hi', ...INCLUDED }
      provider.plan(plan)
      const ofItems = ({ output }: Json) => output.map(({ content }: Json) => tokensOf(content[0].logprobs))
      assert.deepEqual(ofItems((await whole('/responses', input)).body), steps)
      provider.plan(plan)
      assert.deepEqual(ofItems((await streamed('/responses', input)).at(-1)?.response), steps)
      const chat = { model: agent, messages: [USER], ...ASKED }
      provider.plan(plan)
      assert.deepEqual(
        tokensOf((await whole('/chat/completions', chat)).body.choices[0].logprobs.content),
        steps.flat(),
      )
      provider.plan(plan)
      assert.deepEqual(tokensOf(choiceOf(await streamed('/chat/completions', chat)).logprobs), steps.flat())
    })

    it('are given for the first tokens of a long answer', async () => {
      const provider = await providerOf('custom vllm')
      provider.plan({ chunks: Array.from({ length: 400 }, (_, n) => `word${n} `) })
      const { body } = await whole('/chat/completions', {
        model: provider.model,
        messages: [USER],
        logprobs: true,
        top_logprobs: 20,
      })
      const { content } = body.choices[0].logprobs
      assert.deepEqual(tokensOf(content.slice(0, 2)), ['word0 ', 'word1 '])
      assert.ok(content.length > 50 && content.length < 400, String(content.length))
      assert.ok(JSON.stringify(content).length <= 256 * 1024)
    })
  })

  describe('tools of vendors in a request', () => {
    const ANSWER = { searches: SEARCHES, text: 'It is sunny.' }
    const CITED = { url: URL_FOUND, title: 'weather of Paris', start_index: 0, end_index: 12 }
    const SEARCH = {
      type: 'web_search_preview',
      search_context_size: 'low',
      filters: { allowed_domains: ['example.com'] },
    }

    it('are passed to the vendor of a model, whose citations come back', async () => {
      const provider = await providerOf('openai responses')
      provider.plan(ANSWER)
      const { model } = provider
      const asked = { model, tools: [SEARCH, { type: 'code_interpreter', container: { type: 'auto' } }] }
      const sent = [
        { type: 'web_search', filters: { allowed_domains: ['example.com'] } },
        { type: 'code_interpreter', container: { type: 'auto' } },
      ]
      const chat = await whole('/chat/completions', { ...asked, messages: [USER] })
      assert.deepEqual([provider.sent().tools, chat.ignored], [sent, 'tools.search_context_size'])
      assert.deepEqual(chat.body.choices[0].message.annotations, [{ type: 'url_citation', url_citation: CITED }])
      const response = await whole('/responses', { ...asked, input: 'Hi' })
      assert.deepEqual([provider.sent().tools, response.ignored], [sent, 'tools.search_context_size'])
      assert.deepEqual(response.body.output[0].content[0].annotations, [{ type: 'url_citation', ...CITED }])
      const options = await whole('/chat/completions', { model, messages: [USER], web_search_options: {} })
      assert.deepEqual([provider.sent().tools, options.ignored], [[{ type: 'web_search' }], null])
    })

    it('are named for vendors that do not have them', async () => {
      const { model } = await providerOf('custom openai')
      const { ignored } = await whole('/chat/completions', { model, messages: [USER], tools: [SEARCH] })
      assert.equal(ignored, 'tools.search_context_size, vendor_tools.web_search')
    })

    it('come from the agent, whose searches a client may narrow and never widen', async () => {
      const provider = await providerOf('openai responses')
      const ask = async (vendor_tools: object[] | null, tool: object) => {
        const model = await agentOf(provider.id, { vendor_tools })
        const { ignored } = await whole('/chat/completions', { model, messages: [USER], tools: [tool] })
        return [provider.sent().tools, ignored]
      }
      const search = (filters?: object) => ({ type: 'web_search', ...(filters && { filters }) })
      const own = { type: 'web_search', allowed_domains: ['example.com'] }
      const some = search({ allowed_domains: ['news.example.com', 'example.org', 'notexample.com'] })
      assert.deepEqual(await ask(null, search()), [undefined, 'tools'])
      assert.deepEqual(await ask([own], { type: 'code_interpreter' }), [
        [search({ allowed_domains: ['example.com'] })],
        'tools',
      ])
      assert.deepEqual(await ask([own], search()), [[search({ allowed_domains: ['example.com'] })], null])
      assert.deepEqual(await ask([own], some), [[search({ allowed_domains: ['news.example.com'] })], null])
      assert.deepEqual(await ask([own], search({ allowed_domains: ['example.org'] })), [undefined, null])
      const blocked = { type: 'web_search', blocked_domains: ['ads.example.com', 'example.org'] }
      const around = search({ allowed_domains: ['example.com', 'example.net', 'a.example.org'] })
      assert.deepEqual(await ask([blocked], around), [[search({ allowed_domains: ['example.net'] })], null])
    })

    it('of an agent give streams their citations, at their place in the text', async () => {
      const provider = await providerOf('openai responses')
      const model = await agentOf(provider.id, {
        vendor_tools: [{ type: 'web_search' }],
        tool_bindings: [{ tool: { name: 'look', type: 'http', execute: { url: `${tools.url}/cited` } } }],
      })
      const plan: Plan = [{ text: 'Let me look.', tool_calls: [{ name: 'look', args: {} }] }, ANSWER]
      provider.plan(plan)
      const { message } = choiceOf(await streamed('/chat/completions', { model, messages: [USER] }))
      const [{ url_citation: cited }] = message.annotations
      assert.equal(message.content.slice(cited.start_index, cited.end_index), ANSWER.text)
      provider.plan(plan)
      const events = await streamed('/responses', { model, input: 'Hi' })
      const added = events.filter(({ type }) => type === 'response.output_text.annotation.added')
      assert.deepEqual(
        added.map(({ annotation }) => annotation),
        [{ type: 'url_citation', ...CITED }],
      )
      const output: Json[] = events.at(-1)?.response.output
      assert.deepEqual(
        output.map(({ content }) => content[0].annotations),
        [[], [{ type: 'url_citation', ...CITED }]],
      )
    })
  })
})
