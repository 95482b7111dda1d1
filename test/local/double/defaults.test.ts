import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { smallestValue } from '#local/double/schema.ts'
import { startDouble } from '#local/double/server.ts'
import { forSuite } from '../../support/suite.ts'
import { client, tool } from './client.ts'

describe('model double: when no rule matches', () => {
  const double = forSuite(startDouble)
  const api = forSuite(() => client(double))

  const assistant = { role: 'assistant', content: 'x' }

  it('the strict flag holds for every lane', async () => {
    const strict = await startDouble({ strict: true })
    try {
      const response = await client(strict).chat('@double {"text":"no"}')
      assert.equal(response.status, 400)
      assert.equal(((await response.json()) as any).error.type, 'double_no_match')
    } finally {
      await strict.close()
    }
  })

  it('a rule goes before a directive, a directive before the fallback, the fallback before the default', async () => {
    await api.put('order', {
      rules: [{ when: { user: 'rule' }, reply: { text: 'rule' } }],
      fallback: { text: 'fallback' },
    })
    assert.equal(await api.text('order', 'rule @double {"text":"directive"}'), 'rule')
    assert.equal(await api.text('order', '@double {"text":"directive"}'), 'directive')
    assert.equal(await api.text('order', 'else'), 'fallback')
    assert.equal(await api.text('unscripted-order', 'else'), 'echo: else')
  })

  it('the reply of a directive is chosen by the assistant messages after it; the last sticks', async () => {
    const user = { role: 'user', content: 'Do it.\n@double [{"text":"a"},{"text":"b"}]\nThanks.' }
    const ask = (messages: unknown[]) => api.text('directive', { messages })
    assert.equal(await ask([user]), 'a')
    assert.equal(await ask([user]), 'a')
    assert.equal(await ask([assistant, assistant, user]), 'a')
    assert.equal(await ask([user, assistant]), 'b')
    assert.equal(await ask([user, assistant, { role: 'tool', tool_call_id: 'c', content: 'r' }, assistant]), 'b')
    assert.equal(await ask([user, assistant, { role: 'user', content: 'plain' }]), 'echo: plain')
    const log = await api.requests('directive')
    assert.deepEqual(
      log.map(each => each.reply_index),
      [0, 0, 0, 1, 1, null],
    )
  })

  it('the call ids of a directive depend on the body alone', async () => {
    const body = JSON.stringify({
      model: 'm',
      messages: [{ role: 'user', content: '@double {"tool_calls":[{"name":"a"},{"name":"b"}]}' }],
    })
    const ids = async () => {
      const response = await api.send('POST', '/v1/chat/completions', body)
      return ((await response.json()) as any).choices[0].message.tool_calls.map((call: any) => call.id)
    }
    const expected = [0, 1].map(
      index =>
        `call_${createHash('sha256')
          .update(body + index)
          .digest('hex')
          .slice(0, 12)}`,
    )
    assert.deepEqual(await ids(), expected)
    assert.deepEqual(await ids(), expected)
  })

  it('a directive may hold another one and have text after it', async () => {
    const inner = '@double {"text":"inner }]"}'
    const outer = `@double {"tool_calls":[{"name":"delegate","args":{"task":${JSON.stringify(inner)}}}]}</user_text>`
    const { choices } = await api.answer('nested', outer)
    assert.deepEqual(JSON.parse(choices[0].message.tool_calls[0].function.arguments), { task: inner })
    assert.equal(await api.text('nested', inner), 'inner }]')
  })

  it('a directive can fail, stream in pieces and be gated', async () => {
    assert.equal((await api.chat('@double {"error":{"status":418}}')).status, 418)
    const raw = await api.raw('inline', { messages: [{ role: 'user', content: '@double {"chunks":["ab","cd"]}' }] })
    assert.ok(raw.includes('"content":"ab"') && raw.includes('"content":"cd"'))
    await api.read('POST', '/control/gates/inline-gate/open')
    assert.equal(await api.text('inline', '@double {"text":"through","gate":"inline-gate"}'), 'through')
  })

  it('a directive that cannot be read is 400 with its problems', async () => {
    for (const [text, problem] of [
      ['@double {"text":', /document/],
      ['@double {"txt":"a"}', /^txt: unknown key$/],
      ['@double [{"text":"a"},{"text":1}]', /^\[1\]\.text/],
      ['@double []', /at least one/],
    ] as const) {
      const response = await api.chat(text)
      assert.equal(response.status, 400)
      const { error } = (await response.json()) as any
      assert.equal(error.type, 'double_bad_directive')
      assert.match(error.message, problem)
    }
  })

  it('a forced tool is called with the smallest arguments', async () => {
    const parameters = {
      type: 'object',
      properties: { city: { type: 'string' }, days: { type: 'integer', minimum: 1 }, note: { type: 'string' } },
      required: ['city', 'days'],
    }
    const tools = [tool('first'), tool('second', parameters)]
    const called = async (body: Record<string, unknown>) =>
      (await api.answer('forced', body)).choices[0].message.tool_calls?.map((call: any) => call.function)
    assert.deepEqual(await called({ tools, tool_choice: 'required' }), [{ name: 'first', arguments: '{}' }])
    assert.deepEqual(await called({ tools, tool_choice: { type: 'function', function: { name: 'second' } } }), [
      { name: 'second', arguments: '{"city":"a","days":1}' },
    ])
    assert.equal(await called({ tools, tool_choice: 'auto' }), undefined)
    assert.equal(await called({ tools }), undefined)
  })

  it('a requested schema gets its smallest value', async () => {
    const schema = {
      type: 'object',
      properties: { ok: { type: 'boolean' }, tags: { type: 'array', items: { enum: ['x', 'y'] }, minItems: 2 } },
      required: ['ok', 'tags'],
    }
    const body = { response_format: { type: 'json_schema', json_schema: { name: 's', schema } } }
    assert.equal(await api.text('schema', body), '{"ok":true,"tags":["x","x"]}')
  })

  it('else the last user text is echoed unchanged', async () => {
    assert.equal(await api.text('echo', '{{call}} {{user}}'), 'echo: {{call}} {{user}}')
    assert.equal(await api.text('echo', { messages: [{ role: 'system', content: 's' }] }), 'echo: ')
  })

  const values: [string, unknown, unknown][] = [
    ['const', { const: 5, enum: [1] }, 5],
    ['first enum', { enum: ['b', 'a'], default: 'a' }, 'b'],
    ['default', { type: 'string', default: 'd' }, 'd'],
    ['string', { type: 'string' }, 'a'],
    ['minLength', { type: 'string', minLength: 3 }, 'aaa'],
    ['literal pattern', { type: 'string', pattern: '^v1\\.0$' }, 'v1.0'],
    ['other pattern', { type: 'string', pattern: '^a+$' }, 'a'],
    ['format', { type: 'string', format: 'date' }, '1970-01-01'],
    ['number', { type: 'number' }, 0],
    ['minimum', { type: 'number', minimum: -2.5 }, -2.5],
    ['integer minimum', { type: 'integer', minimum: 1.5 }, 2],
    ['exclusiveMinimum', { type: 'integer', exclusiveMinimum: 3 }, 4],
    ['maximum below 0', { type: 'number', maximum: -1 }, -1],
    ['multipleOf', { type: 'integer', minimum: 4, multipleOf: 3 }, 6],
    ['boolean', { type: 'boolean' }, true],
    ['null', { type: 'null' }, null],
    ['array', { type: 'array', items: { type: 'string' } }, []],
    ['tuple', { type: 'array', prefixItems: [{ const: 1 }], items: { const: 2 }, minItems: 3 }, [1, 2, 2]],
    ['nullable type', { type: ['string', 'null'] }, 'a'],
    ['anyOf', { anyOf: [{ type: 'integer' }, { type: 'null' }] }, 0],
    ['oneOf', { oneOf: [{ const: 'x' }, { const: 'y' }] }, 'x'],
    ['$ref', { $ref: '#/$defs/a~1b', $defs: { 'a/b': { type: 'integer', minimum: 7 } } }, 7],
    [
      'allOf',
      {
        allOf: [{ type: 'object', properties: { a: { const: 1 } }, required: ['a'] }, { $ref: '#/$defs/more' }],
        $defs: { more: { properties: { b: { const: 2 } }, required: ['b'] } },
      },
      { a: 1, b: 2 },
    ],
    ['no type but properties', { properties: { a: {} }, required: ['a'] }, { a: null }],
  ]
  for (const [title, schema, value] of values)
    it(`smallest value: ${title}`, () => assert.deepEqual(smallestValue(schema), value))

  it('a schema that refers to itself without end is cut off', () => {
    const node = { type: 'object', properties: { a: { $ref: '#' }, b: { $ref: '#' } }, required: ['a', 'b'] }
    assert.ok(smallestValue(node))
    assert.ok(smallestValue({ type: 'array', items: {}, minItems: 1e9 }))
    assert.equal(smallestValue({ $ref: '#' }), null)
  })
})
