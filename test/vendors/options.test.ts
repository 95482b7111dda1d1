import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { sql } from '#core/db/sql.ts'
import { PROVIDER_TYPES } from '#execution/providers/model.ts'
import {
  GROUPS,
  MOVES,
  type OptionApi,
  optionApisOf,
  optionsOf,
  sentOptions,
} from '#execution/providers/options/provider-options.ts'
import { type OptionSchema, snakeCase } from '#execution/providers/options/schema.ts'
import { type Client, startApp, type TestApp } from '../support/app.ts'
import { postedBy } from '../support/replies.ts'
import { installedOptionSchemas } from '../support/vendors/option-schemas.ts'
import type { Plan } from '../support/vendors/plan.ts'
import { profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { startToolServer, type ToolServer } from './tool-server.ts'

const ROOT = path.join(import.meta.dirname, '../..')
/** Options of the installed packages. After an update: RECORD_OPTIONS=1 npm test -- test/vendors/options.test.ts */
const SCHEMAS = path.join(ROOT, 'src/execution/providers/options/vendor-options.json')
const PAGE = path.join(ROOT, 'docs/model-vendors.md')
const SECTION = /(?<=<!-- options -->\n)[\s\S]*(?=<!-- end of options -->)/

const literal = (value: unknown) => (typeof value === 'string' ? `"${value}"` : String(value))

/** Returns the values of an option as a type. */
function valuesOf(schema: OptionSchema, spell: (name: string) => string): string {
  const branches = schema.anyOf ?? schema.oneOf
  if (branches) {
    const texts = branches.filter(({ not }) => !not).map(branch => valuesOf(branch, spell))
    return [...new Set(texts)].join(' \\| ')
  }
  if (schema.enum) return schema.enum.map(literal).join(' \\| ')
  if ('const' in schema) return literal(schema.const)
  const properties = Object.entries(schema.properties ?? {}).filter(([, each]) => !each.not)
  if (properties.length > 0)
    return `{ ${properties.map(([name, each]) => `${spell(name)}: ${valuesOf(each, spell)}`).join(', ')} }`
  if (schema.items) return `[${valuesOf(schema.items, spell)}]`
  const types = schema.type === undefined ? ['any'] : [schema.type].flat()
  return types.join(' \\| ')
}

/** Returns the tables of options by provider type. */
function optionsText(): string {
  const apis = [...new Set(PROVIDER_TYPES.flatMap(optionApisOf))].filter(api => api !== 'compatible')
  return apis
    .flatMap(api => {
      const types = PROVIDER_TYPES.filter(type => optionApisOf(type).includes(api))
      const spell = api === 'google' ? (name: string) => name : snakeCase
      const rows = Object.entries(optionsOf(api)).map(
        ([name, schema]) => `| \`${spell(name)}\` | \`${valuesOf(schema, spell)}\` |`,
      )
      const moves = Object.entries(MOVES[api] ?? {}).flatMap(([name, move]) =>
        typeof move === 'string'
          ? [`\`${name}\` for \`${spell(move)}\``]
          : Object.entries(move).map(([part, target]) => `\`${name}.${part}\` for \`${spell(target)}\``),
      )
      const others = moves.length > 0 ? [`Also: ${moves.join(', ')}.`, ''] : []
      return [`### ${titleOf(api, types)}`, '', '| Option | Values |', '|---|---|', ...rows, '', ...others]
    })
    .join('\n')
}

const titleOf = (api: OptionApi, types: readonly string[]): string =>
  api.startsWith('openai ') ? `${types.join(' and ')} with \`config.api: ${api.split(' ')[1]}\`` : types.join(' and ')

describe('options of vendors', () => {
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  let lanes = 0

  before(async () => {
    ;[simulators, tools] = await Promise.all([startSimulators(), startToolServer()])
    app = await startApp({ workers: ['generation'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } })
    const project = await app.projectWith([
      'agents:*',
      'chats:CreateChatCompletion',
      'ai-providers:CreateAiProvider',
      'formations:*',
      'generations:*',
      'secrets:*',
      'traces:*',
    ])
    key = project.key
  })
  after(() => Promise.all([app?.close(), simulators?.close(), tools?.close()]))

  const made = (at: string, body: object) => postedBy(key, at, body)

  /** An agent whose provider has its own lane at a simulator. */
  const agentOf = async (profile: string, fields: object = {}, config: object = {}, more: object = {}) => {
    const lane = `ABSK-options-${++lanes}`
    const provider = providerFields(profiles.find(({ name }) => name === profile)!, simulators.url)
    const secret = await made('/secrets', { name: lane, value: lane })
    const { id: ai_provider_id } = await made('/ai-providers', {
      ...provider,
      ...more,
      config: { ...provider.config, ...config },
      secret_id: secret.id,
    })
    const { id } = await made('/agents', { name: 'agent', ai_provider_id, ...fields })
    return {
      id: id as string,
      ai_provider_id,
      plan: (plan: Plan) => simulators.plan(lane, plan),
      generate: async (body: object = {}) => {
        const generation = await made(`/agents/${id}/generate?wait=true`, { prompt: 'Hello', ...body })
        assert.equal(generation.status, 'completed', JSON.stringify(generation.error))
        return generation
      },
      calls: () => simulators.calls(lane),
    }
  }

  const transcript = async (id: string) => (await key.get(`/generations/${id}/transcript`)).body

  it('match the installed packages, also on the page of the vendors', async () => {
    const schemas = await installedOptionSchemas()
    const page = readFileSync(PAGE, 'utf8')
    if (process.env.RECORD_OPTIONS) {
      writeFileSync(SCHEMAS, `${JSON.stringify(schemas, null, 2)}\n`)
      writeFileSync(
        PAGE,
        page.replace(SECTION, () => optionsText()),
      )
      return
    }
    assert.deepEqual(schemas, JSON.parse(readFileSync(SCHEMAS, 'utf8')))
    assert.equal(SECTION.exec(page)?.[0], optionsText())
  })

  const refused: [title: string, options: object, path: string, message: RegExp][] = [
    [
      'a name that the vendor spells otherwise',
      { anthropic: { reasoning_effort: 'low' } },
      'anthropic.reasoning_effort',
      /did you mean effort\?/,
    ],
    [
      'a part of another option',
      { anthropic: { budget_tokens: 9 } },
      'anthropic.budget_tokens',
      /thinking\.budget_tokens\?/,
    ],
    [
      'a part that is not one',
      { google: { thinkingConfig: { budget: 9 } } },
      'google.thinkingConfig.budget',
      /thinkingBudget\?/,
    ],
    ['a group', { openia: {} }, 'openia', /did you mean openai\?/],
    ['a value', { xai: { serviceTier: 'fast' } }, 'xai.serviceTier', /must be one of default, priority/],
    [
      'a kind',
      { anthropic: { thinking: { type: 'on' } } },
      'anthropic.thinking.type',
      /must be one of adaptive, enabled/,
    ],
    ['a type', { openai: { store: 'no' } }, 'openai.store', /must be of type boolean/],
    ['a second name of a group', { google: {}, gemini: {} }, 'gemini', /repeats the options of google/],
    [
      'a second spelling',
      { bedrock: { reasoning_config: { budget_tokens: 1, budgetTokens: 2 } } },
      'bedrock.reasoning_config.budgetTokens',
      /repeats budgetTokens/,
    ],
    [
      'a second spelling of an option',
      { openai: { reasoningEffort: 'low', reasoning_effort: 'high' } },
      'openai.reasoning_effort',
      /repeats provider_options\.openai\.reasoningEffort/,
    ],
    [
      'a second place of an option',
      { anthropic: { effort: 'low', output_config: { effort: 'high' } } },
      'anthropic.output_config.effort',
      /repeats provider_options\.anthropic\.effort/,
    ],
    ['what another setting decides', { custom: { messages: [] } }, 'custom.messages', /another setting decides it/],
    [
      'an unknown name without a near one',
      { groq: { zzzzzz: 1 } },
      'groq.zzzzzz',
      /is not an option of groq providers$/,
    ],
  ]
  for (const [title, provider_options, at, message] of refused)
    it(`refuse ${title}`, async () => {
      const agent = await agentOf('anthropic')
      for (const reply of [
        await key.post('/agents', { name: 'x', ai_provider_id: agent.ai_provider_id, provider_options }),
        await key.patch(`/agents/${agent.id}`, { provider_options }),
      ]) {
        assert.equal(reply.status, 400, JSON.stringify(reply.body))
        assert.equal(reply.body.error.code, 'VALIDATION_FAILED')
        const [problem] = reply.body.error.meta.problems
        assert.equal(problem.path, `provider_options.${at}`)
        assert.match(problem.message, message)
      }
    })

  it('refuse thousands of unknown names in milliseconds, with the first of them', async () => {
    const { id } = await agentOf('anthropic')
    const group = Object.fromEntries(Array.from({ length: 3000 }, (_, i) => [`option${i}`, 1]))
    const started = process.cpuUsage()
    const { status, body } = await key.patch(`/agents/${id}`, { provider_options: { anthropic: group } })
    assert.equal(status, 400)
    assert.equal(body.error.meta.problems.length, 20)
    assert.ok(process.cpuUsage(started).user < 2_000_000)
  })

  it('are checked in templates too', async () => {
    const template = {
      resources: { a: { type: 'agent', properties: { name: 'x', provider_options: { anthropic: { thinkin: {} } } } } },
    }
    const { body } = await key.post('/formations/validate', { template })
    assert.match(JSON.stringify(body), /provider_options\.anthropic\.thinkin.*did you mean thinking/)
  })

  type Body = Record<string, any>
  const spellings: [profile: string, options: object, sent: (body: Body) => unknown, expected: unknown][] = [
    [
      'anthropic',
      {
        claude: {
          thinking: { type: 'enabled', budget_tokens: 2048 },
          output_config: { effort: 'high' },
          service_tier: 'auto',
        },
      },
      ({ thinking, output_config, service_tier }) => ({ thinking, output_config, service_tier }),
      { thinking: { type: 'enabled', budget_tokens: 2048 }, output_config: { effort: 'high' }, service_tier: 'auto' },
    ],
    [
      'openai responses',
      { openai: { reasoning: { effort: 'low', summary: 'auto' }, text: { verbosity: 'low' }, service_tier: 'flex' } },
      ({ reasoning, text, service_tier }) => ({ reasoning, verbosity: text.verbosity, service_tier }),
      { reasoning: { effort: 'low', summary: 'auto' }, verbosity: 'low', service_tier: 'flex' },
    ],
    [
      'openai chat',
      { openai: { reasoning_effort: 'low', verbosity: 'low', max_completion_tokens: 99 } },
      ({ reasoning_effort, verbosity, max_completion_tokens: max }) => ({ reasoning_effort, verbosity, max }),
      { reasoning_effort: 'low', verbosity: 'low', max: 99 },
    ],
    ['azure', { azure: { reasoning_effort: 'low', user: 'u' } }, ({ user }) => user, 'u'],
    [
      'google',
      {
        gemini: {
          generation_config: { thinking_config: { thinking_budget: 512 } },
          safety_settings: [{ category: 'HARM_CATEGORY_HARASSMENT', threshold: 'BLOCK_NONE' }],
        },
      },
      ({ generationConfig, safetySettings }) => [generationConfig.thinkingConfig, safetySettings],
      [{ thinkingBudget: 512 }, [{ category: 'HARM_CATEGORY_HARASSMENT', threshold: 'BLOCK_NONE' }]],
    ],
    ['xai', { grok: { prompt_cache_key: 'k' } }, ({ prompt_cache_key }) => prompt_cache_key, 'k'],
    ['groq', { groq: { service_tier: 'flex' } }, ({ service_tier }) => service_tier, 'flex'],
    [
      'custom vllm',
      { custom: { chat_template_kwargs: { 'a.b': 1 } } },
      body => body.chat_template_kwargs,
      { 'a.b': 1 },
    ],
  ]
  for (const [profile, provider_options, sent, expected] of spellings)
    it(`reach ${profile} in the spelling of the vendor`, async () => {
      const agent = await agentOf(profile, { provider_options })
      await agent.generate()
      assert.deepEqual(sent(agent.calls()[0]!.body), expected)
    })

  it('reach bedrock in the spelling of the vendor', () => {
    const given = {
      amazonBedrock: {
        thinking: { type: 'enabled', budget_tokens: 2048 },
        output_config: { effort: 'max' },
        guardrail_config: { trace: 'enabled' },
        additional_model_request_fields: { top_k: 5 },
      },
    }
    assert.deepEqual(sentOptions('bedrock', 'bedrock', given), {
      options: {
        reasoningConfig: { type: 'enabled', budgetTokens: 2048, maxReasoningEffort: 'max' },
        guardrailConfig: { trace: 'enabled' },
        additionalModelRequestFields: { top_k: 5 },
      },
      notes: [],
    })
  })

  it('that were stored before they were checked are left out with a note, and stay', async () => {
    const agent = await agentOf('anthropic')
    const stored = {
      anthropic: { thinking: { type: 'enabled', budgetTokens: 2048, depth: 3 }, effort: 'huge', speling: 1 },
    }
    await app.pool.query(
      sql.unsafe`update agents set provider_options = ${JSON.stringify(stored)} where id = ${agent.id}`,
    )
    assert.equal((await key.patch(`/agents/${agent.id}`, { name: 'again', provider_options: stored })).status, 200)
    const { id } = await agent.generate()
    assert.deepEqual(agent.calls()[0]!.body.thinking, { type: 'enabled', budget_tokens: 2048 })
    const { steps } = await transcript(id)
    const left = steps[0].notes.filter(({ kind }: any) => kind === 'setting_left_out')
    assert.deepEqual(left.map(({ setting }: any) => setting).sort(), [
      'anthropic.effort',
      'anthropic.speling',
      'anthropic.thinking.depth',
    ])
  })

  describe('on storage', () => {
    const called = { reasoning: 'Hm.', tool_calls: [{ name: 'look', args: {} }] }
    const tool_bindings = () => [{ tool: { name: 'look', type: 'http', execute: { url: `${tools.url}/look` } } }]

    for (const profile of ['openai responses', 'azure'])
      it(`keep ${profile} from storing turns whose content is not stored, and their reasoning comes back`, async () => {
        const config = profile === 'azure' ? { model: 'gpt-5-mini' } : {}
        const agent = await agentOf(profile, { trace_content_mode: 'none', tool_bindings: tool_bindings() }, config)
        agent.plan([called, called, { text: 'Sun.' }])
        await agent.generate()
        const bodies = agent.calls().map(({ body }) => body)
        assert.deepEqual(
          bodies.map(({ store, include }) => [store, include]),
          Array(3).fill([false, ['reasoning.encrypted_content']]),
        )
        const kinds = bodies[2]!.input.map(({ type, encrypted_content }: any) => [type, !!encrypted_content])
        assert.equal(kinds.filter(([type, sealed]: any) => type === 'reasoning' && sealed).length, 2)
        assert.ok(!kinds.some(([type]: any) => type === 'item_reference'))
      })

    it('leave the default of the vendor for other turns', async () => {
      const agent = await agentOf('openai responses')
      await agent.generate()
      assert.equal('store' in agent.calls()[0]!.body, false)
    })

    it('overrule an option of the agent', async () => {
      const agent = await agentOf('openai chat', {
        trace_content_mode: 'none',
        provider_options: { openai: { store: true } },
      })
      await agent.generate()
      assert.equal(agent.calls()[0]!.body.store, false)
    })

    it('pass `store` of clients of the OpenAI API on, for models and agents', async () => {
      const agent = await agentOf('openai chat')
      const bodies: unknown[] = []
      for (const [model, store] of [
        [`${agent.ai_provider_id}/gpt-5-mini`, false],
        [`${agent.ai_provider_id}/gpt-5-mini`, true],
        [agent.id, false],
      ] as const) {
        const reply = await key.post('//openai/v1/chat/completions', {
          model,
          store,
          messages: [{ role: 'user', content: 'Hello' }],
        })
        assert.equal(reply.status, 200, JSON.stringify(reply.body))
        bodies.push(agent.calls().at(-1)!.body.store)
      }
      assert.deepEqual(bodies, [false, true, false])
    })
  })

  describe('of a deployment of azure', () => {
    it('are by its model, which the config names', async () => {
      for (const profile of ['azure', 'azure chat']) {
        const agent = await agentOf(profile, { temperature: 0.5, max_output_tokens: 99 }, { model: 'gpt-5-mini' })
        const { ignored_params } = await agent.generate()
        const { model, temperature, max_output_tokens, max_completion_tokens } = agent.calls()[0]!.body
        assert.deepEqual([model, temperature], ['prod-gpt-5-mini', undefined])
        assert.equal(max_output_tokens ?? max_completion_tokens, 99)
        assert.equal(agent.calls().length, 1)
        assert.deepEqual(ignored_params, ['temperature'])
      }
    })

    it('have a version where the path takes one', async () => {
      const paths: string[] = []
      for (const [api, base] of [
        ['chat', '/azure/openai'],
        ['chat', '/azure/openai/v1'],
        ['responses', '/azure/openai/v1'],
      ] as const) {
        const config = { api, api_version: '2024-10-21', model: 'gpt-5-mini' }
        const agent = await agentOf('azure', {}, config, { base_url: `${simulators.url}${base}` })
        await agent.generate()
        paths.push(agent.calls()[0]!.path)
      }
      assert.deepEqual(paths, [
        '/azure/openai/deployments/prod-gpt-5-mini/chat/completions?api-version=2024-10-21',
        '/azure/openai/v1/chat/completions',
        '/azure/openai/v1/responses',
      ])
    })
  })

  it('have groups by other names, all of provider types', () => {
    for (const type of Object.values(GROUPS)) assert.ok(PROVIDER_TYPES.includes(type))
  })
})
