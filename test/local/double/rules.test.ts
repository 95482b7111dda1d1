import assert from 'node:assert/strict'
import type { DoubleRule, Match } from '#local/double/script.ts'
import { startDouble } from '#local/double/server.ts'
import { forSuite } from '../../support/suite.ts'
import { afterTool, client, tool } from './client.ts'

describe('model double: rules', () => {
  const double = forSuite(startDouble)
  const api = forSuite(() => client(double))

  const user = (content: unknown) => ({ role: 'user', content })
  const system = (content: string) => ({ role: 'system', content })

  it('the first rule that matches answers', async () => {
    await api.put('first', {
      rules: [
        { when: { user: 'b' }, reply: { text: 'one' } },
        { when: { user: 'a' }, reply: { text: 'two' } },
        { reply: { text: 'three' } },
      ],
    })
    assert.equal(await api.text('first', 'a b'), 'one')
    assert.equal(await api.text('first', 'a'), 'two')
    assert.equal(await api.text('first', 'c'), 'three')
  })

  it('the last reply sticks, cycles or ends the rule', async () => {
    const take = async (lane: string, rule: Omit<DoubleRule, 'replies'>) => {
      await api.put(lane, {
        rules: [{ ...rule, replies: [{ text: 'a' }, { text: 'b' }] }, { reply: { text: 'next' } }],
      })
      const texts: string[] = []
      for (let turn = 0; turn < 5; turn += 1) texts.push(await api.text(lane))
      return texts.join(' ')
    }
    assert.equal(await take('stick', {}), 'a b b b b')
    assert.equal(await take('stick', { then: 'stick' }), 'a b b b b')
    assert.equal(await take('cycle', { then: 'cycle' }), 'a b a b a')
    assert.equal(await take('end', { then: 'end' }), 'a b next next next')
    assert.equal(await take('times', { times: 3 }), 'a b b next next')
    assert.equal(await take('times-cycle', { then: 'cycle', times: 4 }), 'a b a b next')
  })

  const chats: [string, Match, Record<string, unknown>, Record<string, unknown>][] = [
    ['model equal', { model: 'm-1' }, { model: 'm-1' }, { model: 'm-12' }],
    ['model glob', { model: 'gpt-*-mini*' }, { model: 'gpt-5-mini-2' }, { model: 'gpt-5' }],
    ['user contains', { user: 'fox' }, { messages: [user('a fox')] }, { messages: [user('fox'), user('cat')] }],
    ['user equals', { user: { equals: 'fox' } }, { messages: [user('fox')] }, { messages: [user('a fox')] }],
    ['user regex', { user: { regex: '^FOX$', flags: 'i' } }, { messages: [user('fox')] }, { messages: [user('foxy')] }],
    [
      'user text of parts',
      { user: { equals: 'a\nb' } },
      { messages: [user([{ type: 'text', text: 'a' }, { type: 'image_url' }, { type: 'text', text: 'b' }])] },
      { messages: [user('a')] },
    ],
    [
      'all keys of a text condition',
      { user: { contains: 'a', regex: 'b' } },
      { messages: [user('ab')] },
      { messages: [user('a')] },
    ],
    [
      'system',
      { system: { equals: 'one\ntwo' } },
      { messages: [system('one'), user('x'), { role: 'developer', content: 'two' }] },
      { messages: [user('one')] },
    ],
    ['any', { any: 'fox' }, { messages: [user('fox'), user('cat')] }, { messages: [user('cat')] }],
    ['last_role', { last_role: 'tool' }, { messages: afterTool('t', 'x') }, { messages: [user('x')] }],
    ['messages', { messages: 2 }, { messages: [user('x'), user('y')] }, { messages: [user('x')] }],
    ['messages min', { messages: { min: 2 } }, { messages: afterTool('t', '') }, { messages: [user('x')] }],
    ['messages max', { messages: { max: 1 } }, { messages: [user('x')] }, { messages: afterTool('t', '') }],
    [
      'tool_result',
      { tool_result: {} },
      { messages: afterTool('t', '') },
      { messages: [...afterTool('t', ''), user('')] },
    ],
    [
      'tool_result name',
      { tool_result: { name: 't' } },
      { messages: afterTool('t', '') },
      { messages: afterTool('u', '') },
    ],
    [
      'tool_result contains',
      { tool_result: { name: 't', contains: '21' } },
      { messages: afterTool('t', '{"temp":21}') },
      { messages: afterTool('t', '{"temp":22}') },
    ],
    [
      'tool_result equals',
      { tool_result: { equals: 'ok' } },
      { messages: afterTool('t', 'ok') },
      { messages: afterTool('t', 'okay') },
    ],
    ['tools', { tools: ['a', 'b'] }, { tools: [tool('b'), tool('a'), tool('c')] }, { tools: [tool('a')] }],
    ['no tools', { tools: [] }, {}, { tools: [tool('a')] }],
    ['tool_choice', { tool_choice: 'required' }, { tool_choice: 'required' }, { tool_choice: 'auto' }],
    ['tool_choice left out', { tool_choice: 'auto' }, { tools: [tool('a')] }, {}],
    [
      'tool_choice name',
      { tool_choice: { name: 'a' } },
      { tool_choice: { type: 'function', function: { name: 'a' } } },
      { tool_choice: { type: 'function', function: { name: 'b' } } },
    ],
    ['stream', { stream: false }, {}, { stream: true }],
    ['json', { json: true }, { response_format: { type: 'json_object' } }, { response_format: { type: 'text' } }],
    ['no json', { json: false }, {}, { response_format: { type: 'json_schema', json_schema: { schema: {} } } }],
    ['temperature', { temperature: 0.5 }, { temperature: 0.5 }, { temperature: 0.6 }],
    ['two keys', { user: 'fox', model: 'm' }, { model: 'm', messages: [user('fox')] }, { messages: [user('fox')] }],
  ]
  for (const [title, when, yes, no] of chats)
    it(`when: ${title}`, async () => {
      await api.put('when', { rules: [{ id: 'hit', when, reply: { text: 'hit' } }, { reply: { text: 'miss' } }] })
      assert.equal(await api.text('when', yes), 'hit')
      const answer = await (await api.chat(no, { 'x-double-lane': 'when' })).text()
      assert.match(answer, /miss/)
    })

  it('when: call counts the requests of the lane from 1', async () => {
    await api.put('call', {
      rules: [
        { when: { call: 2 }, reply: { text: 'second' } },
        { when: { call: { from: 4, to: 5 } }, reply: { text: 'late' } },
        { when: { call: { from: 6 } }, reply: { text: 'later' } },
        { reply: { text: '{{call}}' } },
      ],
    })
    const texts: string[] = []
    for (let turn = 0; turn < 7; turn += 1) texts.push(await api.text('call'))
    assert.deepEqual(texts, ['1', 'second', '3', 'late', 'late', 'later', 'later'])
  })

  it('when: header', async () => {
    await api.put('header', {
      rules: [{ when: { header: { 'X-Trace': { regex: '^t-' } } }, reply: { text: '{{header.X-Trace}}' } }],
      fallback: { text: 'miss' },
    })
    const ask = async (headers: Record<string, string>) =>
      ((await (await api.chat('x', { 'x-double-lane': 'header', ...headers })).json()) as any).choices[0].message
        .content
    assert.equal(await ask({ 'x-trace': 't-1' }), 't-1')
    assert.equal(await ask({ 'x-trace': '1' }), 'miss')
    assert.equal(await ask({}), 'miss')
  })

  it('when: kind embeddings takes embeddings requests, no kind takes chat only', async () => {
    await api.put('kind', {
      rules: [
        { id: 'chat', reply: { error: { status: 500 } } },
        {
          id: 'embed',
          when: { kind: 'embeddings', any: 'poison' },
          times: 1,
          reply: { error: { status: 429 }, headers: { 'x-left': '0' } },
        },
      ],
    })
    const ask = (input: string[]) =>
      api.send('POST', '/v1/embeddings', { model: 'e', input }, { 'x-double-lane': 'kind' })
    assert.equal((await ask(['fine'])).status, 200)
    const refused = await ask(['poison', 'fine'])
    assert.equal(refused.status, 429)
    assert.equal(refused.headers.get('x-left'), '0')
    assert.equal((await ask(['poison'])).status, 200)
    const log = await api.requests('kind')
    assert.deepEqual(
      log.map(each => [each.kind, each.call, each.rule_id, each.status]),
      [
        ['embeddings', 1, null, 200],
        ['embeddings', 2, 'embed', 429],
        ['embeddings', 3, null, 200],
      ],
    )
  })

  it('defaults lie under every reply', async () => {
    await api.put('defaults', {
      defaults: { model: 'other', usage: { prompt_tokens: 7 }, chunks: ['de', 'fault'] },
      rules: [
        { when: { user: 'own' }, reply: { text: 'own text' } },
        { when: { user: 'base' }, reply: {} },
        { when: { user: 'model' }, reply: { model: 'mine' } },
      ],
    })
    const own = await api.answer('defaults', 'own')
    assert.equal(own.choices[0].message.content, 'own text')
    assert.equal(own.model, 'other')
    assert.equal(own.usage.prompt_tokens, 7)
    assert.equal(await api.text('defaults', 'base'), 'default')
    assert.equal((await api.answer('defaults', 'model')).model, 'mine')
  })
})
