import assert from 'node:assert/strict'
import { performance } from 'node:perf_hooks'
import type { Reply } from '#local/double/script.ts'
import { startDouble } from '#local/double/server.ts'
import { forSuite } from '../../support/suite.ts'
import { afterTool, client, piecesOf, tool } from './client.ts'

describe('model double: replies', () => {
  const double = forSuite(startDouble)
  const api = forSuite(() => client(double))

  const put = (reply: Reply) => api.put('reply', { fallback: reply })
  const usage = { stream_options: { include_usage: true } }

  it('a text answer has the shape of a chat completion', async () => {
    await put({ text: 'hello you' })
    assert.deepEqual(await api.answer('reply', { model: 'm-1' }), {
      id: 'chatcmpl-reply-1',
      object: 'chat.completion',
      created: 1700000001,
      model: 'm-1',
      system_fingerprint: 'double',
      choices: [
        { index: 0, message: { role: 'assistant', content: 'hello you' }, logprobs: null, finish_reason: 'stop' },
      ],
      usage: {
        prompt_tokens: 5,
        completion_tokens: 3,
        total_tokens: 8,
        prompt_tokens_details: { cached_tokens: 0 },
        completion_tokens_details: { reasoning_tokens: 0 },
      },
    })
  })

  it('tool calls have ids of lane and call, and raw arguments are sent verbatim', async () => {
    await put({
      tool_calls: [{ name: 'a', args: { x: 1 } }, { name: 'b' }, { name: 'c', id: 'mine', raw: '{"broken' }],
    })
    const { choices } = await api.answer('reply')
    assert.equal(choices[0].finish_reason, 'tool_calls')
    assert.deepEqual(choices[0].message, {
      role: 'assistant',
      content: null,
      tool_calls: [
        { id: 'call_reply_1_0', type: 'function', function: { name: 'a', arguments: '{"x":1}' } },
        { id: 'call_reply_1_1', type: 'function', function: { name: 'b', arguments: '{}' } },
        { id: 'mine', type: 'function', function: { name: 'c', arguments: '{"broken' } },
      ],
    })
  })

  it('object is sent as JSON text, finish and model as given', async () => {
    await put({ object: { a: [1, null], b: 'x' }, finish: 'length', model: 'other' })
    const answer = await api.answer('reply')
    assert.equal(answer.choices[0].message.content, '{"a":[1,null],"b":"x"}')
    assert.equal(answer.choices[0].finish_reason, 'length')
    assert.equal(answer.model, 'other')
  })

  it('usage: given numbers are kept, missing ones computed, null leaves it out', async () => {
    await put({ text: 'é'.repeat(4), usage: { cached_tokens: 3, reasoning_tokens: 2 } })
    const messages = [
      { role: 'system', content: 'abcde' },
      { role: 'user', content: 'abcd' },
    ]
    const tools = [tool('t')]
    const prompt = 2 + 4 + 1 + 4 + Math.ceil(JSON.stringify(tools).length / 4)
    const whole = await api.answer('reply', { messages, tools })
    assert.deepEqual(whole.usage, {
      prompt_tokens: prompt,
      completion_tokens: 2,
      total_tokens: prompt + 2,
      prompt_tokens_details: { cached_tokens: 3 },
      completion_tokens_details: { reasoning_tokens: 2 },
    })
    await put({ tool_calls: [{ name: 'abc', args: { x: 1 } }], usage: { prompt_tokens: 40 } })
    const called = await api.answer('reply')
    assert.deepEqual(
      [called.usage.prompt_tokens, called.usage.completion_tokens, called.usage.total_tokens],
      [40, 3, 43],
    )
    await put({ text: 'x', usage: null })
    assert.equal('usage' in (await api.answer('reply')), false)
    assert.equal(
      (await api.frames('reply', usage)).some(frame => frame.usage),
      false,
    )
  })

  it('headers are added', async () => {
    await put({ text: 'x', headers: { 'X-RateLimit-Remaining': '3' } })
    for (const stream of [false, true]) {
      const response = await api.chat({ stream }, { 'x-double-lane': 'reply' })
      assert.equal(response.headers.get('x-ratelimit-remaining'), '3')
      assert.match(response.headers.get('content-type') ?? '', stream ? /event-stream/ : /json/)
      await response.text()
    }
  })

  it('a stream sends role, pieces, finish, usage when requested, [DONE]', async () => {
    await put({ text: 'a b' })
    const frames = await api.frames('reply', usage)
    assert.deepEqual(
      frames.map(frame => frame.choices[0]?.delta ?? frame.usage.completion_tokens),
      [{ role: 'assistant', content: '' }, { content: 'a ' }, { content: 'b' }, {}, 1],
    )
    assert.deepEqual(
      frames.map(frame => frame.choices[0]?.finish_reason),
      [null, null, null, 'stop', undefined],
    )
    assert.ok(frames.every(frame => frame.id === 'chatcmpl-reply-1' && frame.object === 'chat.completion.chunk'))
    assert.equal(
      (await api.frames('reply')).some(frame => frame.usage),
      false,
    )
  })

  it('a stream sends each call as id and name, then its arguments in two halves', async () => {
    await put({
      text: 'so',
      tool_calls: [
        { name: 'a', args: { x: 1 } },
        { name: 'b', raw: 'ab' },
      ],
    })
    const frames = await api.frames('reply')
    assert.deepEqual(
      frames.map(frame => frame.choices[0].delta),
      [
        { role: 'assistant', content: '' },
        { content: 'so' },
        { tool_calls: [{ index: 0, id: 'call_reply_1_0', type: 'function', function: { name: 'a', arguments: '' } }] },
        { tool_calls: [{ index: 0, function: { arguments: '{"x"' } }] },
        { tool_calls: [{ index: 0, function: { arguments: ':1}' } }] },
        { tool_calls: [{ index: 1, id: 'call_reply_1_1', type: 'function', function: { name: 'b', arguments: '' } }] },
        { tool_calls: [{ index: 1, function: { arguments: 'a' } }] },
        { tool_calls: [{ index: 1, function: { arguments: 'b' } }] },
        {},
      ],
    )
    assert.equal(frames.at(-1)?.choices[0].finish_reason, 'tool_calls')
  })

  it('reasoning comes before the content', async () => {
    await put({ reasoning: 'I think', text: 'so' })
    const deltas = (await api.frames('reply')).flatMap(({ choices }) => choices.map(({ delta }: any) => delta))
    assert.deepEqual(deltas.slice(1, 3), [{ reasoning_content: 'I think' }, { content: 'so' }])
    assert.equal((await api.answer('reply')).choices[0].message.reasoning_content, 'I think')
  })

  it('chunks are the exact pieces; chunk_words the words of a piece', async () => {
    await put({ chunks: ['{"a', '":', '1}'] })
    assert.deepEqual(piecesOf(await api.frames('reply')), ['{"a', '":', '1}'])
    assert.equal(await api.text('reply'), '{"a":1}')
    await put({ text: ' one two  three\nfour five', chunk_words: 2 })
    assert.deepEqual(piecesOf(await api.frames('reply')), [' one two  ', 'three\nfour ', 'five'])
    await put({ text: '   ' })
    assert.deepEqual(piecesOf(await api.frames('reply')), ['   '])
    await put({ text: '' })
    assert.deepEqual(piecesOf(await api.frames('reply')), [])
  })

  it('delay_ms waits before the answer, chunk_delay_ms between pieces', async () => {
    const took = async (work: () => Promise<unknown>) => {
      const start = performance.now()
      await work()
      return performance.now() - start
    }
    await put({ text: 'a b c', delay_ms: 60 })
    assert.ok((await took(() => api.text('reply'))) >= 59)
    await put({ text: 'a b c', chunk_delay_ms: 40 })
    assert.ok((await took(() => api.frames('reply'))) >= 79)
  })

  it('error answers its status, message, type, body and retry-after', async () => {
    const failing = async (error: Reply['error'], stream = false) => {
      await put({ error, headers: { 'x-extra': 'y' } })
      const response = await api.chat({ stream }, { 'x-double-lane': 'reply' })
      assert.equal(response.headers.get('x-extra'), 'y')
      return [response.status, response.headers.get('retry-after'), await response.text()]
    }
    assert.deepEqual(await failing({ status: 503 }), [
      503,
      null,
      '{"error":{"message":"Service Unavailable","type":"server_error","code":null}}',
    ])
    assert.deepEqual(await failing({ status: 429, message: 'slow down', type: 'limit', retry_after: 1 }, true), [
      429,
      '1',
      '{"error":{"message":"slow down","type":"limit","code":null}}',
    ])
    assert.deepEqual(await failing({ status: 400, body: { oops: [1] } }), [400, null, '{"oops":[1]}'])
    assert.deepEqual(await failing({ status: 502, body: '<html>' }), [502, null, '<html>'])
    assert.deepEqual(await failing({ status: 204 }), [204, null, ''])
  })

  it('cut closes the connection: before the headers, within a body, within a stream', async () => {
    await put({ text: 'a b c', cut: { after: 0 } })
    for (const stream of [false, true]) await assert.rejects(api.chat({ stream }, { 'x-double-lane': 'reply' }))
    await put({ text: 'a b c', cut: { after: 1 } })
    for (const stream of [false, true]) {
      const response = await api.chat({ stream }, { 'x-double-lane': 'reply' })
      assert.equal(response.status, 200)
      await assert.rejects(response.text())
    }
    assert.deepEqual(
      (await api.requests('reply')).slice(-4).map(each => [each.status, each.aborted]),
      [
        [null, false],
        [null, false],
        [200, false],
        [200, false],
      ],
    )
  })

  it('a count past the last piece means after it; the frames of calls count as pieces', async () => {
    await put({ text: 'a b', stream_error: { after: 99, message: 'late' } })
    const late = await api.raw('reply')
    assert.equal(late.match(/"content":"[ab]/g)?.length, 2)
    assert.equal(late.includes('"finish_reason":"stop"'), false)
    await put({ tool_calls: [{ name: 't', args: { x: 1 } }], stream_error: { after: 2, message: 'mid' } })
    const mid = await api.raw('reply')
    assert.ok(mid.includes('{\\"x\\"') && !mid.includes(':1}'))
  })

  it('stream_error leaves an answer that is not streamed alone', async () => {
    await put({ text: 'whole', stream_error: { after: 0, message: 'no' } })
    assert.equal(await api.text('reply'), 'whole')
  })

  it('corrupt json truncates the body, sse sends a line that is no JSON, empty sends no choices', async () => {
    const whole = async () => (await api.chat('x', { 'x-double-lane': 'reply' })).text()
    for (const corrupt of ['json', 'sse'] as const) {
      await put({ text: 'a b', corrupt })
      const text = await whole()
      assert.throws(() => JSON.parse(text))
      const lines = (await api.raw('reply')).split('\n\n').filter(line => line && line !== 'data: [DONE]')
      const broken = lines.filter(line => {
        try {
          JSON.parse(line.slice(6))
          return false
        } catch {
          return line.startsWith('data: ')
        }
      })
      assert.equal(broken.length, 1)
    }
    await put({ text: 'a b', corrupt: 'empty' })
    assert.deepEqual(JSON.parse(await whole()).choices, [])
    assert.deepEqual(
      (await api.frames('reply')).flatMap(frame => frame.choices),
      [],
    )
  })

  it('templates fill text, objects and arguments', async () => {
    await put({
      text: '{{user}}|{{system}}|{{ count }}|{{call}}|{{model}}|{{tool.find}}|{{tool.find.rows.1.id}}|{{tool.find.no}}|{{tool.none}}|{{nope}}|{{header.x-a}}',
    })
    const messages = [{ role: 'system', content: 'sys' }, ...afterTool('find', '{"rows":[{"id":1},{"id":2}]}')]
    const response = await api.chat({ messages }, { 'x-double-lane': 'reply', 'x-a': 'b' })
    const answer = (await response.json()) as any
    assert.equal(answer.choices[0].message.content, 'go|sys|4|1|double-1|{"rows":[{"id":1},{"id":2}]}|2||||b')
    const value = {
      sole: '{{tool.find.rows}}',
      count: '{{count}}',
      inner: ['n {{count}}', '{{tool.find.rows.0.id}}', '{{nope}}', 5],
      text: '{{tool.find}}',
    }
    const filled = {
      sole: [{ id: 1 }, { id: 2 }],
      count: 4,
      inner: ['n 4', 1, '', 5],
      text: '{"rows":[{"id":1},{"id":2}]}',
    }
    await put({ object: value })
    assert.deepEqual(JSON.parse(await api.text('reply', { messages })), filled)
    await put({
      tool_calls: [
        { name: 't', args: value },
        { name: 'u', raw: '{{user}}' },
      ],
    })
    const calls = (await api.answer('reply', { messages })).choices[0].message.tool_calls
    assert.deepEqual(JSON.parse(calls[0].function.arguments), filled)
    assert.equal(calls[1].function.arguments, '{{user}}')
  })

  it('a tool token reads the latest result of that tool, plain text included', async () => {
    await put({ text: '{{tool.find}} {{tool.find.x}}' })
    const messages = [...afterTool('find', 'old'), ...afterTool('find', 'plain')]
    assert.equal(await api.text('reply', { messages }), 'plain ')
  })

  it('what a template fills in is not filled again', async () => {
    await put({ text: 'said {{user}}' })
    assert.equal(await api.text('reply', '{{call}}'), 'said {{call}}')
  })
})
