import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startDouble } from '#local/double/server.ts'
import { forSuite } from '../../support/suite.ts'
import { client, until } from './client.ts'

describe('model double: routes, lanes and log', () => {
  const double = forSuite(() =>
    startDouble({ scripts: [{ lane: 'given', fallback: { text: 'given lane' }, models: ['m-1'] }] }),
  )
  const api = forSuite(() => client(double))

  it('answers healthz', async () => {
    assert.deepEqual(await api.read('GET', '/healthz'), { ok: true })
  })

  it('lists the models of the lane', async () => {
    const list = await api.read('GET', '/v1/models')
    assert.deepEqual(list, {
      object: 'list',
      data: [
        { id: 'double-1', object: 'model', owned_by: 'double' },
        { id: 'double-embed', object: 'model', owned_by: 'double' },
      ],
    })
    const own = await api.send('GET', '/v1/models', undefined, { authorization: 'Bearer given' })
    assert.deepEqual(await own.json(), { object: 'list', data: [{ id: 'm-1', object: 'model', owned_by: 'double' }] })
  })

  it('answers as an MCP server without sessions', async () => {
    const ask = async (method: string, params: object = {}) => {
      const body = { jsonrpc: '2.0', id: 1, method, params }
      return (await (await api.send('POST', '/mcp', body)).json()) as any
    }
    assert.equal((await ask('initialize', { protocolVersion: '2025-03-26' })).result.protocolVersion, '2025-03-26')
    assert.deepEqual(
      (await ask('tools/list')).result.tools.map(({ name }: { name: string }) => name),
      ['add', 'echo'],
    )
    const call = async (name: string, args?: object) => ask('tools/call', { name, arguments: args })
    assert.deepEqual((await call('add', { a: 1, b: 2 })).result.structuredContent, { sum: 3 })
    assert.equal((await call('add')).result.isError, true)
    assert.equal((await call('echo', { a: 1 })).result.content[0].text, '{"a":1}')
    assert.equal((await call('other')).error.code, -32_602)
    assert.equal((await ask('other')).error.code, -32_601)
    const notified = await api.send('POST', '/mcp', { jsonrpc: '2.0', method: 'notifications/initialized' })
    assert.deepEqual([notified.status, await notified.text()], [202, ''])
  })

  it('anything else is 404 not_found', async () => {
    for (const [method, path] of [
      ['GET', '/'],
      ['GET', '/v1/chat/completions'],
      ['POST', '/v1/responses'],
      ['PUT', '/control/gates/g/open'],
      ['POST', '/control/gates/g/shut'],
      ['GET', '/control/lanes/nobody'],
      ['GET', '/control/lanes/%zz'],
    ]) {
      const response = await api.send(method, path)
      assert.equal(response.status, 404, path)
      assert.equal(((await response.json()) as any).error.type, 'not_found')
    }
  })

  it('a body that is no JSON, no object or no request is 400', async () => {
    for (const body of [
      '{"model":',
      '[]',
      '"x"',
      '{}',
      '{"model":"m"}',
      '{"model":"m","messages":[]}',
      '{"model":"m","messages":[1]}',
    ]) {
      const response = await api.send('POST', '/v1/chat/completions', body)
      assert.equal(response.status, 400, body)
      const { error } = (await response.json()) as any
      assert.equal(error.type, 'invalid_request_error')
      assert.equal(typeof error.message, 'string')
    }
  })

  it('a body over 32 MiB is 413, one under it is read', async () => {
    const content = 'x'.repeat(33 * 1024 * 1024)
    assert.equal((await api.chat(content)).status, 413)
    assert.equal((await api.chat(content.slice(0, 31 * 1024 * 1024))).status, 200)
    await api.read('POST', '/control/reset')
    await api.put('given', { fallback: { text: 'given lane' } })
  })

  it('the lane is the header, else the bearer, else the prefix of the model, else default', async () => {
    await api.put('one', {
      rules: [{ when: { model: 'm' }, reply: { text: 'one {{model}}' } }],
      fallback: { text: 'one' },
    })
    await api.put('two', { fallback: { text: 'two' } })
    const ask = async (model: string, headers: Record<string, string>) =>
      ((await (await api.chat({ model }, headers)).json()) as any).choices[0].message.content
    assert.equal(await ask('one/m', { 'x-double-lane': 'two', authorization: 'Bearer one' }), 'two')
    assert.equal(await ask('two/m', { authorization: 'Bearer one' }), 'one')
    assert.equal(await ask('one/m', { authorization: 'Bearer sk-unknown' }), 'one one/m')
    assert.equal(await ask('three/m', { authorization: 'Bearer three' }), 'echo: hi')
    assert.equal((await api.requests('default')).at(-1)?.call, 1)
    assert.equal(await ask('m', { 'x-double-lane': 'unscripted' }), 'echo: hi')
    assert.equal(await ask('unscripted/m', {}), 'echo: hi')
    assert.equal((await api.requests('unscripted')).length, 1)
  })

  it('a lane is put, shown and dropped; putting it again resets its counters', async () => {
    const script = { rules: [{ id: 'r', replies: [{ text: 'a' }, { text: 'b' }] }, { reply: { text: 'c' } }] }
    await api.put('counted', script)
    assert.equal(await api.text('counted'), 'a')
    assert.deepEqual(await api.read('GET', '/control/lanes/counted'), {
      script: { lane: 'counted', ...script },
      calls: 1,
      rules: [
        { id: 'r', used: 1 },
        { id: 'rules[1]', used: 0 },
      ],
    })
    await api.put('counted', script)
    const again = await api.answer('counted')
    assert.equal(again.choices[0].message.content, 'a')
    assert.equal(again.id, 'chatcmpl-counted-1')
    await api.read('DELETE', '/control/lanes/counted')
    assert.equal((await api.send('GET', '/control/lanes/counted')).status, 404)
    assert.deepEqual(await api.requests('counted'), [])
  })

  it('a script with problems is 400 with their paths and leaves the lane unchanged', async () => {
    await api.put('kept', { fallback: { text: 'kept' } })
    const response = await api.send('PUT', '/control/lanes/kept', {
      rules: [{ when: { usr: 'x' }, reply: { text: 1 } }, {}],
      fallback: { cut: { after: -1 } },
    })
    assert.equal(response.status, 400)
    const { error, problems } = (await response.json()) as any
    assert.equal(error.type, 'invalid_script')
    assert.deepEqual(
      problems.map((problem: string) => problem.split(':')[0]),
      ['rules[0].when.usr', 'rules[0].reply.text', 'rules[1].replies', 'fallback.cut.after'],
    )
    assert.equal((await api.send('PUT', '/control/lanes/kept', '{"rules":')).status, 400)
    assert.equal((await api.send('PUT', '/control/lanes/kept', { lane: 'other' })).status, 400)
    assert.equal(await api.text('kept'), 'kept')
  })

  it('a lane can be put as YAML', async () => {
    const response = await api.send('PUT', '/control/lanes/yaml', 'fallback:\n  text: from yaml\n')
    assert.equal(response.status, 200)
    assert.equal(await api.text('yaml'), 'from yaml')
  })

  it('lanes do not share counters', async () => {
    for (const lane of ['left', 'right']) await api.put(lane, { rules: [{ replies: [{ text: '1' }, { text: '2' }] }] })
    assert.deepEqual([await api.text('left'), await api.text('right'), await api.text('left')], ['1', '1', '2'])
  })

  it('a request is logged whole, the authorization masked to the lane', async () => {
    await api.put('logged', { rules: [{ id: 'r', replies: [{ text: 'a' }, { text: 'b' }] }] })
    await api.chat({ tools: [] }, { authorization: 'Bearer logged', 'x-trace': 't' })
    await (await api.chat({ stream: true }, { authorization: 'Bearer secret', 'x-double-lane': 'logged' })).text()
    const [first, second] = await api.requests('logged')
    const { n, headers, ...rest } = first
    assert.equal(headers.authorization, 'logged')
    assert.equal(headers['x-trace'], 't')
    assert.deepEqual(rest, {
      lane: 'logged',
      kind: 'chat',
      call: 1,
      rule_id: 'r',
      reply_index: 0,
      status: 200,
      streamed: false,
      aborted: false,
      body: { model: 'double-1', messages: [{ role: 'user', content: 'hi' }], tools: [] },
    })
    assert.equal(second.n, n + 1)
    assert.equal(second.headers.authorization, 'logged')
    assert.equal(second.reply_index, 1)
    assert.equal(second.streamed, true)
  })

  it('the log is filtered by lane, kind and arrival', async () => {
    await api.put('filtered', {})
    await api.text('filtered')
    await api.send('POST', '/v1/embeddings', { model: 'e', input: 'x' }, { 'x-double-lane': 'filtered' })
    await api.text('filtered')
    const list = async (query: string) => (await api.read('GET', `/control/requests?lane=filtered${query}`)).data
    const all = await list('')
    assert.deepEqual(
      all.map((each: any) => each.kind),
      ['chat', 'embeddings', 'chat'],
    )
    assert.equal((await list('&kind=embeddings')).length, 1)
    assert.deepEqual(await list(`&after=${all[1].n}`), [all[2]])
    assert.equal((await api.send('GET', '/control/requests?after=x')).status, 400)
  })

  it('the newest 10 000 requests are kept', async function () {
    this.timeout(60_000)
    const body = JSON.stringify({ model: 'e', input: 'x', dimensions: 8 })
    for (let round = 0; round < 121; round += 1)
      await Promise.all(
        Array.from({ length: 100 }, () =>
          api.send('POST', '/v1/embeddings', body, { 'x-double-lane': 'many' }).then(response => response.text()),
        ),
      )
    const { data } = await api.read('GET', '/control/requests')
    assert.equal(data.length, 10_000)
    assert.equal(data.at(-1).n - data[0].n, 9_999)
  })

  it('reset forgets everything', async () => {
    await api.put('gone', { fallback: { gate: 'gone-gate' } })
    await api.read('POST', '/control/reset')
    assert.deepEqual((await api.read('GET', '/control/requests')).data, [])
    assert.deepEqual((await api.read('GET', '/control/gates')).data, [])
    assert.equal((await api.send('GET', '/control/lanes/gone')).status, 404)
    await api.chat('x')
    assert.equal((await api.requests('default'))[0].n, 1)
  })

  it('a client that leaves while it is held or streamed to is logged aborted', async () => {
    await api.put('leave', {
      rules: [
        { when: { user: 'delay' }, reply: { text: 'a', delay_ms: 60_000 } },
        { when: { user: 'slow' }, reply: { text: 'a b c', chunk_delay_ms: 60_000 } },
        { reply: { text: 'done' } },
      ],
    })
    for (const [content, stream] of [
      ['delay', false],
      ['slow', true],
    ]) {
      const held = request(`${double.url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'x-double-lane': 'leave' },
      })
      held.on('error', () => {})
      held.end(JSON.stringify({ model: 'm', stream, messages: [{ role: 'user', content }] }))
      await until(async () => (await api.requests('leave')).at(-1)?.body.messages[0].content === content)
      held.destroy()
      await until(async () => (await api.requests('leave')).at(-1)?.aborted)
    }
    await api.text('leave')
    assert.deepEqual(
      (await api.requests('leave')).map(each => [each.status, each.streamed, each.aborted]),
      [
        [null, false, true],
        [200, true, true],
        [200, false, false],
      ],
    )
  })

  it('the log file has a line per finished request', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'double-'))
    const log = join(folder, 'log.jsonl')
    const other = await startDouble({ log, strict: true })
    assert.equal((await client(other).chat('x')).status, 400)
    await client(other).send('POST', '/v1/embeddings', { model: 'e', input: 'x' })
    await other.close()
    const lines = readFileSync(log, 'utf8').trimEnd().split('\n')
    rmSync(folder, { recursive: true })
    assert.deepEqual(
      lines.map(line => JSON.parse(line)).map(each => [each.n, each.kind, each.status]),
      [
        [1, 'chat', 400],
        [2, 'embeddings', 200],
      ],
    )
  })

  it('answers hundreds of parallel streams and serves a connection again', async () => {
    await api.put('wide', { fallback: { text: 'a b c d', chunk_delay_ms: 5 } })
    const raws = await Promise.all(Array.from({ length: 300 }, () => api.raw('wide')))
    assert.ok(raws.every(raw => raw.endsWith('data: [DONE]\n\n')))
  })

  it('does not start on bad dims, a bad script or a port in use', async () => {
    await assert.rejects(startDouble({ dims: 4 }), /dims/)
    await assert.rejects(startDouble({ scripts: [{ lane: 'a b' }] }), /lane/)
    await assert.rejects(startDouble({ port: double.port }), /EADDRINUSE/)
  })
})
