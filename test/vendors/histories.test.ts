import assert from 'node:assert/strict'
import { attemptModel } from '#execution/providers/call.ts'
import { aiProviderKind, type ProviderRow, type ProviderType } from '#execution/providers/model.ts'
import type { ModelRequest, PromptMessage } from '#execution/providers/model-messages.ts'
import { normaliseRequest } from '#execution/providers/outgoing/normalise.ts'
import { outgoingProfile } from '#execution/providers/outgoing/profile.ts'
import { startApp, type TestApp } from '../support/app.ts'
import { random } from '../support/random.ts'
import { laneOf, type Profile, profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { SCHEMAS } from './schemas.ts'
import { PIXELS } from './tool-server.ts'

const HISTORIES = 25

/** Those whose address is a field: others are reached by other processes only. */
const reachable = profiles.filter(({ path }) => path !== null)

const TEXTS = ['hello', 'a longer text\nof two lines', '', ' ', '\n\n', '…', '4']
const IDS = ['call_1', 'toolu_01', 'functions.look_up:0', 'c'.repeat(60), 'id with blanks', 'ünïcode', '0']
const NAMES = ['look_up', '2nd.tool', 'gone']

type Draw = (below: number) => number

/** What another model answered with, and would require back. */
const FOREIGN = { ai_provider_id: 'aip_other', model: 'other' }
const IMAGE = { type: 'image', mimeType: 'image/png', data: PIXELS }

/** Returns a history as it may be stored: any roles in any order, blanks, media, other models, calls and results in any state. */
function history(draw: Draw): PromptMessage[] {
  const one = <T>(of: readonly T[]): T => of[draw(of.length)]
  const text = () => ({ type: 'text' as const, text: one(TEXTS) })
  const calls = (count: number) =>
    Array.from({ length: count }, (_, at) => ({
      type: 'tool_call' as const,
      tool_call_id: `${one(IDS)}${at}`,
      tool_name: one(NAMES),
      args: one<unknown>([{}, { 'odd key!': 1 }, { list: [1, 'a'] }, '{"list":["a', '5', 7, [1], null]),
    }))
  return Array.from({ length: 1 + draw(12) }, (): PromptMessage[] => {
    const kind = draw(4)
    if (kind === 0 && draw(4) === 0) {
      const file = { type: 'attachment' as const, filename: 'a.png', media_type: 'image/png', data_base64: PIXELS }
      return [{ role: 'user', content: [text(), file] }]
    }
    if (kind === 0) return [{ role: 'user', content: draw(2) === 0 ? one(TEXTS) : [text(), text()] }]
    if (kind === 1) return [{ role: 'assistant', content: draw(2) === 0 ? one(TEXTS) : [text()] }]
    const made = calls(1 + draw(3))
    const answered = [...made, ...calls(draw(2))].filter(() => draw(4) > 0)
    const results = answered.map(({ tool_call_id, tool_name }) => ({
      type: 'tool_result' as const,
      tool_call_id,
      tool_name,
      result: one<unknown>(['', 'found', { a: 1 }, null, [{ type: 'text', text: 'See' }, IMAGE]]),
      error: draw(4) === 0 ? { code: 'TOOL_CALL_FAILED', message: 'no' } : null,
    }))
    const metadata = { other: { signature: 'of another model' } }
    const vendor = {
      ...FOREIGN,
      parts: [
        { type: 'reasoning' as const, text: 'Hm.', metadata },
        ...made.map((_, position) => ({ type: 'tool_call' as const, position, metadata })),
      ],
    }
    const assistant: PromptMessage = {
      role: 'assistant',
      content: [...(draw(2) === 0 ? [text()] : []), ...made],
      ...(draw(2) === 0 && { vendor }),
    }
    return results.length === 0 ? [assistant] : [assistant, { role: 'tool', content: results }]
  }).flat()
}

/** Vendors that constrain calls to a schema. */
const STRICT_VENDORS: readonly ProviderType[] = ['openai', 'azure', 'groq', 'custom', 'ollama', 'gateway']

/** The first one cannot be strict. */
const TOOLS: ModelRequest['tools'] = [
  {
    name: 'look_up',
    description: 'Looks up',
    parameters: { type: 'object', properties: { 'odd key!': {} } },
    strict: true,
  },
  {
    name: 'strict_one',
    description: 'Strict',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', description: 'City' } },
      required: ['city'],
      additionalProperties: false,
    },
    strict: true,
  },
  {
    name: '2nd.tool',
    description: 'Another',
    parameters: { anyOf: [{ type: 'object', properties: { list: { type: 'array' } } }, { type: 'object' }] },
  },
]

describe('any stored history', function () {
  this.timeout(60_000)
  let app: TestApp
  let simulators: Simulators
  const rows = new Map<Profile, ProviderRow>()

  before(async () => {
    ;[simulators, app] = await Promise.all([startSimulators(), startApp()])
    const { key } = await app.project()
    for (const profile of reachable) {
      const secret = await key.post('/secrets', { name: profile.name, value: laneOf(profile) })
      const fields = { ...providerFields(profile, simulators.url), secret_id: secret.body.id }
      const made = await key.post('/ai-providers', fields)
      rows.set(profile, (await aiProviderKind.find(app.pool, made.body.id)) as ProviderRow)
    }
  })
  after(() => Promise.all([app?.close(), simulators?.close()]))

  for (const profile of reachable)
    it(`is taken by ${profile.name}`, async () => {
      for (let seed = 1; seed <= HISTORIES; seed++) {
        const messages = history(random(seed))
        const request: ModelRequest = {
          system: 'Be kind.',
          messages,
          temperature: null,
          tools: TOOLS,
          tool_choice: 'auto',
          output_schema: null,
          prompt_caching: false,
          signal: new AbortController().signal,
          ...(seed % 2 === 0 && { onDelta: () => {} }),
        }
        const row = rows.get(profile) as ProviderRow
        const outcome = await attemptModel(app.services, row, profile.model, request, { retries: 0 })
        const refusal = outcome.ok ? null : outcome.failure.message
        assert.equal(refusal, null, `seed ${seed}: ${JSON.stringify(messages)}`)
        const notes = (outcome.ok && outcome.answer.notes) || []
        const loose = notes.filter(note => 'setting' in note && note.setting === 'tools.strict')
        assert.equal(loose.length, STRICT_VENDORS.includes(row.provider) ? 1 : 2)
      }
    })

  for (const profile of reachable) {
    const call = (more: Partial<ModelRequest>) =>
      attemptModel(
        app.services,
        rows.get(profile) as ProviderRow,
        profile.model,
        {
          system: null,
          messages: [{ role: 'user', content: 'Go on' }],
          temperature: null,
          tools: TOOLS,
          tool_choice: 'auto',
          output_schema: null,
          prompt_caching: false,
          signal: new AbortController().signal,
          ...more,
        },
        { retries: 0 },
      )

    it(`is followed by tools of the world, offered to ${profile.name} or left out with a note`, async () => {
      simulators.plan(laneOf(profile), { text: 'fine' })
      for (const [what, parameters] of Object.entries(SCHEMAS)) {
        const outcome = await call({ tools: [{ name: 'odd', description: what, parameters }] })
        assert.equal(outcome.ok ? null : outcome.failure.message, null, what)
        const [note] = ((outcome.ok && outcome.answer.notes) || []).filter(({ kind }) => kind === 'tool_left_out')
        const { tools, toolConfig } = simulators.calls(laneOf(profile)).at(-1)!.body
        assert.equal(JSON.stringify(tools ?? toolConfig ?? []).includes('"odd"'), note === undefined, what)
      }
    })

    it(`has the whole answer of ${profile.name}, or fails, wherever its stream is cut`, async () => {
      const whole = { text: 'one two three', tool_calls: [{ name: 'strict_one', args: { city: 'Paris' } }] }
      for (let after = 0, isWhole = false; !isWhole; after++) {
        assert.ok(after < 60)
        simulators.plan(laneOf(profile), { ...whole, cut: { after } })
        const outcome = await call({ onDelta: () => {} })
        if (!outcome.ok) continue
        isWhole = true
        const { text, tool_calls } = outcome.answer
        assert.deepEqual([text, tool_calls.map(({ args }) => args)], [whole.text, [{ city: 'Paris' }]], `${after}`)
      }
    })
  }
})

describe('a request to a vendor', () => {
  const target = { ai_provider_id: 'aip_1', model: 'gemini-3' }
  const sent = (more: Partial<ModelRequest>, type: ProviderType) => {
    const request: ModelRequest = {
      system: null,
      messages: [{ role: 'user', content: 'x' }],
      temperature: null,
      tools: [],
      tool_choice: null,
      output_schema: null,
      prompt_caching: false,
      signal: new AbortController().signal,
      ...more,
    }
    return normaliseRequest(request, outgoingProfile(type, 'openai', target.model), target)
  }

  it('leaves out one tool with a schema that cannot be sent, and keeps the others', () => {
    const tool = (name: string, parameters: object) => ({ name, description: '', parameters })
    const self = { $ref: '#/$defs/a' }
    const tools = [
      tool('undecodable', { type: 'object', properties: { a: { $ref: '#/%' } } }),
      tool('endless', { type: 'object', properties: { a: self }, $defs: { a: { properties: { b: self } } } }),
      tool('fine', { type: 'object', properties: {} }),
    ]
    const { request, notes } = sent({ tools }, 'google')
    assert.deepEqual(
      request.tools.map(({ name }) => name),
      ['fine'],
    )
    assert.deepEqual(
      notes.map(({ kind }) => kind),
      ['tool_left_out', 'tool_left_out'],
    )
    const odd = sent({ tools: [tool('odd', { anyOf: [null, { type: 'object' }] })] }, 'anthropic')
    assert.equal(odd.request.tools.length, 1)
  })

  it('keeps a text before a step whose parts the vendor requires back', () => {
    const call = { type: 'tool_call' as const, tool_call_id: 'c', tool_name: 't', args: {} }
    const parts = [
      { type: 'reasoning' as const, text: 'why' },
      { type: 'tool_call' as const, position: 0 },
    ]
    const { request } = sent(
      {
        messages: [
          { role: 'user', content: 'x' },
          { role: 'assistant', content: 'before' },
          { role: 'assistant', content: [call], vendor: { ...target, parts } },
        ],
      },
      'google',
    )
    const [, step] = request.messages
    assert.ok(step.role === 'assistant')
    assert.deepEqual(step.vendor?.parts, [{ type: 'text', text: 'before' }, ...parts])
  })
})
