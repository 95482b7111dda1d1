import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { embedText } from '#local/double/embeddings.ts'
import { startDouble } from '#local/double/server.ts'
import { forSuite } from '../../support/suite.ts'
import { client, framesOf, piecesOf, tool, until } from './client.ts'

describe('model double: acceptance', () => {
  const double = forSuite(startDouble)
  const api = forSuite(() => client(double))

  it('the same script and requests give byte-equal answers after a reset', async () => {
    const script = {
      rules: [
        { when: { user: 'tool' }, reply: { tool_calls: [{ name: 'find', args: { q: '{{user}}' } }] } },
        { when: { user: 'flaky' }, replies: [{ error: { status: 503 } }, { text: 'ok' }] },
      ],
      embeddings: { alias: { a: 'b' } },
    }
    const round = async () => {
      await api.read('POST', '/control/reset')
      await api.put('same', script)
      const seen: string[] = []
      for (const text of ['tool', 'flaky', 'flaky', 'hello', '@double {"tool_calls":[{"name":"find"}]}'])
        for (const stream of [false, true]) {
          const body = { stream, messages: [{ role: 'user', content: text }] }
          const response = await api.chat(body, { 'x-double-lane': 'same' })
          seen.push(`${response.status} ${JSON.stringify([...response.headers])} ${await response.text()}`)
        }
      const response = await api.send('POST', '/v1/embeddings', { model: 'e', input: ['a', 'b c'] })
      seen.push(`${JSON.stringify([...response.headers])} ${await response.text()}`)
      return seen
    }
    assert.deepEqual(await round(), await round())
  })

  it('100 parallel requests use each of 100 replies once', async () => {
    const replies = Array.from({ length: 100 }, (_, index) => ({ text: `reply ${index}` }))
    await api.put('hundred', { rules: [{ id: 'all', replies }] })
    const texts = await Promise.all(replies.map(() => api.text('hundred')))
    assert.deepEqual(texts.toSorted(), replies.map(each => each.text).toSorted())
    assert.deepEqual((await api.read('GET', '/control/lanes/hundred')).rules, [{ id: 'all', used: 100 }])
  })

  it('a stream joins to the text that is not streamed and ends with [DONE]', async () => {
    await api.put('stream', { rules: [{ reply: { text: '  Two  words,\nthen more. ' } }] })
    const raw = await api.raw('stream')
    assert.equal(piecesOf(framesOf(raw)).join(''), await api.text('stream'))
    assert.equal(raw.trimEnd().split('\n').at(-1), 'data: [DONE]')
  })

  it('a stream that is cut or fails has no [DONE]', async () => {
    await api.put('broken', {
      rules: [
        { when: { user: 'cut' }, reply: { text: 'a b c', cut: { after: 2 } } },
        { when: { user: 'fail' }, reply: { text: 'a b c', stream_error: { after: 2, message: 'overloaded' } } },
      ],
    })
    const ask = (content: string) =>
      api.chat({ stream: true, messages: [{ role: 'user', content }] }, { 'x-double-lane': 'broken' })
    const failed = await (await ask('fail')).text()
    assert.ok(failed.endsWith('data: {"error":{"message":"overloaded"}}\n\n'))
    assert.ok(!failed.includes('[DONE]'))
    assert.equal(failed.match(/"delta":\{"content":"\w ?"/g)?.length, 2)

    const reader = (await ask('cut')).body!.getReader()
    let seen = ''
    await assert.rejects(async () => {
      for (let part = await reader.read(); !part.done; part = await reader.read()) seen += Buffer.from(part.value)
    })
    assert.equal(seen.match(/"delta":\{"content":"\w ?"/g)?.length, 2)
    assert.ok(!seen.includes('[DONE]'))
  })

  it('an inline directive of a tool call and a text plays a two-step turn without a script', async () => {
    const user = {
      role: 'user',
      content:
        'Weather? @double [{"tool_calls":[{"name":"get_weather","args":{"city":"Paris"}}]},{"text":"{{tool.get_weather.temp}} degrees"}]',
    }
    const first = await api.answer('turn', { messages: [user], tools: [tool('get_weather')] })
    const message = first.choices[0].message
    assert.equal(first.choices[0].finish_reason, 'tool_calls')
    assert.equal(message.content, null)
    assert.deepEqual(message.tool_calls[0].function, { name: 'get_weather', arguments: '{"city":"Paris"}' })
    assert.match(message.tool_calls[0].id, /^call_[0-9a-f]{12}$/)

    const result = { role: 'tool', tool_call_id: message.tool_calls[0].id, content: '{"temp":21}' }
    const second = await api.answer('turn', { messages: [user, message, result], tools: [tool('get_weather')] })
    assert.equal(second.choices[0].message.content, '21 degrees')
    assert.equal(second.choices[0].finish_reason, 'stop')
  })

  it('texts that share words are nearer, and a text has the same vector in another process', async () => {
    const input = ['The red fox runs', 'A red fox sleeps', 'Quarterly invoices overdue']
    const { data } = (await (await api.send('POST', '/v1/embeddings', { model: 'double-embed', input })).json()) as {
      data: { embedding: number[] }[]
    }
    const [a, b, c] = data.map(each => each.embedding)
    const cosine = (x: number[], y: number[]) => x.reduce((sum, value, index) => sum + value * y[index], 0)
    assert.ok(cosine(a, b) > cosine(a, c) + 0.2)

    const other = spawnSync(
      process.execPath,
      [
        '-e',
        `import('${new URL('../../../src/local/double/embeddings.ts', import.meta.url)}').then(m => console.log(JSON.stringify(m.embedText(${JSON.stringify(input[0])}, 1536))))`,
      ],
      { encoding: 'utf8' },
    )
    assert.deepEqual(JSON.parse(other.stdout), a)
    assert.deepEqual(embedText(input[0], 1536), a)
  })

  it('a gate holds the request, lists it waiting, and lets it go when opened', async () => {
    await api.put('held', { rules: [{ reply: { text: 'at last', gate: 'held-gate' } }] })
    let answered = false
    const answer = api.text('held').finally(() => (answered = true))
    await until(async () => (await api.gate('held-gate'))?.waiting === 1)
    assert.equal(answered, false)
    assert.deepEqual(await api.gate('held-gate'), { gate: 'held-gate', open: false, waiting: 1 })
    await api.read('POST', '/control/gates/held-gate/open')
    assert.equal(await answer, 'at last')
    assert.deepEqual(await api.gate('held-gate'), { gate: 'held-gate', open: true, waiting: 0 })
  })

  it('strict without a match is 400 double_no_match', async () => {
    await api.put('strict', { strict: true, rules: [{ when: { user: 'known' }, reply: { text: 'yes' } }] })
    const response = await api.chat('strange @double {"text":"no"}', { 'x-double-lane': 'strict' })
    assert.equal(response.status, 400)
    assert.deepEqual(await response.json(), {
      error: { message: 'no rule matched', type: 'double_no_match' },
    })
    assert.equal(await api.text('strict', 'known'), 'yes')
  })

  it('check names the path of an unknown key and exits 1', () => {
    const folder = mkdtempSync(join(tmpdir(), 'double-'))
    const file = join(folder, 'script.yaml')
    writeFileSync(file, 'lane: l\nrules:\n  - reply: { text: a }\n  - replies: [{ text: a, txet: b }]\n')
    const main = new URL('../../../bin/llm-double.ts', import.meta.url).pathname
    const run = spawnSync(process.execPath, [main, 'check', file], { encoding: 'utf8' })
    rmSync(folder, { recursive: true })
    assert.equal(run.stdout, 'rules[1].replies[0].txet: unknown key\n')
    assert.equal(run.status, 1)
  })
})
