import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseScripts } from '#local/double/script.ts'

const main = new URL('../../../bin/llm-double.ts', import.meta.url).pathname

describe('model double: command and scripts', () => {
  let folder: string
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'double-'))
  })
  after(() => rmSync(folder, { recursive: true }))

  function file(name: string, text: string): string {
    const path = join(folder, name)
    writeFileSync(path, text)
    return path
  }

  function run(...args: string[]) {
    const { stdout, stderr, status } = spawnSync(process.execPath, [main, ...args], {
      encoding: 'utf8',
      timeout: 50_000,
    })
    return { stdout, stderr, status }
  }

  async function serving(args: string[], env: Record<string, string>, use: (url: string) => Promise<void>) {
    const child: ChildProcess = spawn(process.execPath, [main, 'serve', ...args], {
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    try {
      let printed = ''
      child.stdout!.on('data', part => (printed += part))
      while (!printed.endsWith('\n')) await once(child.stdout!, 'data')
      await use(JSON.parse(printed).listening)
      assert.equal(printed.match(/\n/g)?.length, 1)
      const exit = once(child, 'exit')
      child.kill('SIGTERM')
      assert.deepEqual(await exit, [0, null])
    } finally {
      child.kill('SIGKILL')
    }
  }

  it('serve prints where it listens, serves its scripts and exits 0 on SIGTERM', async () => {
    const yaml = file('two.yaml', 'lane: a\nfallback: { text: from a }\n---\nlane: b\nfallback: { text: from b }\n')
    const json = file('one.json', JSON.stringify({ lane: 'c', fallback: { text: 'from c', delay_ms: 1 } }))
    await serving(['--port', '0', '--script', yaml, '--script', json, '--dims', '16'], {}, async url => {
      assert.match(url, /^http:\/\/127\.0\.0\.1:\d+$/)
      for (const lane of ['a', 'b', 'c']) {
        const response = await fetch(`${url}/v1/chat/completions`, {
          method: 'POST',
          body: JSON.stringify({ model: `${lane}/m`, messages: [{ role: 'user', content: 'hi' }] }),
        })
        assert.equal(((await response.json()) as any).choices[0].message.content, `from ${lane}`)
      }
      const response = await fetch(`${url}/v1/embeddings`, {
        method: 'POST',
        body: JSON.stringify({ model: 'm', input: 'x' }),
      })
      assert.equal(((await response.json()) as any).data[0].embedding.length, 16)
    })
  })

  it('serve reads port and scripts from the environment', async () => {
    const one = file('env1.yaml', 'lane: e1\nmodels: [m1]\n')
    const two = file('env2.yaml', 'lane: e2\nmodels: [m2]\n')
    const env = { LLM_DOUBLE_PORT: '0', LLM_DOUBLE_SCRIPT: `${one}, ${two}` }
    await serving([], env, async url => {
      const response = await fetch(`${url}/v1/models`, { headers: { 'x-double-lane': 'e2' } })
      assert.equal(((await response.json()) as any).data[0].id, 'm2')
    })
  })

  it('serve with a held request still exits on SIGTERM', async () => {
    const gated = file('gated.yaml', 'lane: default\nfallback: { gate: never }\n')
    await serving(['--port', '0', '--script', gated], {}, async url => {
      fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hi' }] }),
      }).catch(() => {})
      for (let waiting = 0; waiting === 0; ) {
        const { data } = (await (await fetch(`${url}/control/gates`)).json()) as any
        waiting = data[0].waiting
      }
    })
  })

  it('serve refuses a script with problems and a bad option', () => {
    const bad = file('bad.yaml', 'lane: a\nrule: []\n')
    const refused = run('serve', '--port', '0', '--script', bad)
    assert.equal(refused.status, 1)
    assert.equal(refused.stdout, '')
    assert.equal(refused.stderr, 'rule: unknown key\n')
    assert.equal(run('serve', '--port', 'x').status, 1)
    assert.equal(run('serve', '--dims', '4').status, 1)
  })

  it('check prints nothing and exits 0 when all is well', () => {
    const good = file('good.yaml', example)
    const other = file('other.json', '{"lane":"other"}')
    assert.deepEqual(run('check', good, other), { stdout: '', stderr: '', status: 0 })
  })

  it('check names the file when there are several, and a missing file', () => {
    const good = file('good.yaml', example)
    const bad = file('worse.json', '{"lane":"x","strict":"yes"}')
    const missing = join(folder, 'missing.yaml')
    const checked = run('check', good, bad, missing)
    assert.equal(checked.status, 1)
    const lines = checked.stdout.trimEnd().split('\n')
    assert.match(lines[0], /worse\.json: strict: .*boolean/)
    assert.ok(lines[1].startsWith(`${missing}: ENOENT`))
    assert.equal(lines.length, 2)
  })

  it('the example of the manual is a valid script', () => {
    assert.deepEqual(parseScripts(example).problems, [])
  })

  const problems: [string, string, RegExp[]][] = [
    ['an unknown key at the top', 'lane: a\nfoo: 1', [/^foo: unknown key$/]],
    ['no lane', 'rules: []', [/^lane: /]],
    ['a lane with a slash', 'lane: a/b', [/^lane: must/]],
    ['no script', '', [/^document: contains no script$/]],
    ['no object', '- 1', [/^document: .*object/]],
    ['bad YAML', 'lane: [', [/^document: /]],
    ['a rule without replies', 'lane: a\nrules: [{ id: x }]', [/^rules\[0\]\.replies: is required$/]],
    ['reply and replies', 'lane: a\nrules: [{ reply: {}, replies: [{}] }]', [/^rules\[0\]\.reply: excludes replies$/]],
    ['no reply in replies', 'lane: a\nrules: [{ replies: [] }]', [/^rules\[0\]\.replies: needs at least one reply$/]],
    ['an id used twice', 'lane: a\nrules: [{ id: x, reply: {} }, { id: x, reply: {} }]', [/^rules\[1\]\.id: /]],
    [
      'an unknown key of a condition',
      'lane: a\nrules: [{ when: { user: { contains: y, has: x } }, reply: {} }]',
      [/^rules\[0\]\.when\.user\.has: unknown key$/],
    ],
    [
      'a bad regex',
      'lane: a\nrules: [{ when: { any: { regex: "(" } }, reply: {} }]',
      [/^rules\[0\]\.when\.any\.regex: /],
    ],
    [
      'a stateful flag',
      'lane: a\nrules: [{ when: { any: { regex: a, flags: g } }, reply: {} }]',
      [/^rules\[0\]\.when\.any\.flags: /],
    ],
    ['an unknown word', 'lane: a\nrules: [{ then: stop, reply: {} }]', [/^rules\[0\]\.then: /]],
    ['a bad status', 'lane: a\nfallback: { error: { status: 99 } }', [/^fallback\.error\.status: /]],
    [
      'chunks that do not join to the text',
      'lane: a\nfallback: { text: ab, chunks: [a] }',
      [/^fallback\.chunks: must join to text$/],
    ],
    ['text and object', 'lane: a\nfallback: { text: ab, object: {} }', [/^fallback\.object: excludes text$/]],
    ['gate_after without gate', 'lane: a\nfallback: { gate_after: 1 }', [/^fallback\.gate_after: needs gate$/]],
    [
      'a bad header',
      'lane: a\nfallback: { headers: { "a b": x, c: "x\\ny" } }',
      [/^fallback\.headers\.a b: /, /^fallback\.headers\.c: /],
    ],
    ['a bad vector', 'lane: a\nembeddings: { pin: { x: [a] } }', [/^embeddings\.pin\.x\[0\]: /]],
    [
      'a second document',
      'lane: a\n---\nlane: b\nrules: [{ reply: { a: 1 } }]',
      [/^documents\[1\]\.rules\[0\]\.reply\.a: unknown key$/],
    ],
    ['a lane twice', 'lane: a\n---\nlane: a', [/^documents\[1\]\.lane: /]],
  ]
  for (const [title, text, expected] of problems)
    it(`problem: ${title}`, () => {
      const found = parseScripts(text).problems
      assert.equal(found.length, expected.length, found.join('\n'))
      for (const [index, pattern] of expected.entries()) assert.match(found[index], pattern)
    })
})

const example = `
lane: weather
strict: true
rules:
  - id: ask
    when: { last_role: user, tools: [get_weather] }
    reply: { tool_calls: [{ name: get_weather, args: { city: "Paris" } }] }
  - id: answer
    when: { tool_result: { name: get_weather } }
    reply: { text: "It is {{tool.get_weather.temp}} degrees.", usage: { prompt_tokens: 40, completion_tokens: 9, cached_tokens: 16 } }
  - id: flaky
    when: { user: { contains: "flaky" } }
    replies: [{ error: { status: 503 } }, { error: { status: 429, retry_after: 1 } }, { text: "ok" }]
`
