import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { startSessionApp } from '../conversation/session-support.ts'
import { eventually } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { User } from './support.ts'

const ask = ['--prompt', 'Say it']

describe('turns and work on the command line', function () {
  this.timeout(120_000)
  const app = forSuite(() => startSessionApp({ workers: ['generation', 'orchestration'] }))
  const user = forSuite(() => new User(app.url, app.key.token))

  const generation = async () => (await app.key.get('/generations?limit=1')).body.data[0]

  it('prints the text as it comes, and the result alone with --json', async () => {
    const { agentId } = await app.scripted([
      { reply: { chunks: ['one ', 'two ', 'three'], text: 'one two three', gate: 'cli-text', gate_after: 2 } },
    ])
    const streaming = user.start(['agents', 'generate', agentId, ...ask, '--stream'])
    await eventually(() => streaming.output.stdout === 'one two ')
    await app.openGate('cli-text')
    const { code, stdout, stderr } = await streaming.ended
    assert.deepEqual([code, stdout, stderr], [0, 'one two three\n', ''])
    const { agentId: other } = await app.scripted([{ reply: { text: 'all of it' } }])
    const result = await user.run(['agents', 'generate', other, ...ask])
    assert.equal(JSON.parse(result.stdout).output.content, 'all of it')
    const field = await user.run(['agents', 'generate', other, ...ask, '--field', 'output.content'])
    assert.equal(field.stdout, 'all of it\n')
    const events = (await user.run(['agents', 'generate', other, ...ask, '--events'])).stdout.trimEnd().split('\n')
    const names = events.map(each => JSON.parse(each).event)
    assert.deepEqual([names[0], names.at(-1)], ['started', 'completed'])
  })

  it('streams on a terminal, which receives no control character of the model', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'a \u001b]0;x\u0007 b' } }])
    const { code, stdout } = await user.onTerminal(['agents', 'generate', agentId, ...ask])
    assert.deepEqual([code, stdout], [0, 'a \\x1b]0;x\\x07 b\n'])
    const whole = await user.onTerminal(['agents', 'generate', agentId, ...ask, '--no-stream'])
    assert.match(whole.stdout, /^status: completed$/m)
  })

  it('starts a turn in the background with --no-wait', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'later' } }])
    const started = await user.run(['agents', 'generate', agentId, ...ask, '--no-wait', '--field', 'generation_id'])
    assert.equal((await app.settled(started.stdout.trim())).output.content, 'later')
  })

  it('exits 12 with the calls of client tools and the command that answers, or runs them with --tools', async () => {
    const rules = [
      { times: 1, reply: { tool_calls: [{ name: 'pick', raw: '{"colour":"red","id":2512292042121000001}' }] } },
      { reply: { text: 'picked' } },
    ]
    const binding = { tool_bindings: [{ tool: { name: 'pick', type: 'client', description: 'Picks' } }] }
    const { agentId } = await app.scripted(rules, binding)
    const paused = await user.run(['agents', 'generate', agentId, ...ask])
    assert.equal(paused.code, 12)
    const [, command] = /Try: muster (agents submit-tool-outputs .*)/.exec(paused.stderr) as RegExpExecArray
    assert.match(paused.stderr, /pick \{"colour":"red","id":2512292042121000001\}/)
    const args = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain)
    const answered = await user.run(args)
    assert.equal(JSON.parse(answered.stdout).output.content, 'picked', answered.stderr)

    const { agentId: other, requests } = await app.scripted(rules, binding)
    const module = user.file(
      'tools.mjs',
      'export const pick = ({ colour, id }) => ({ chosen: colour.toUpperCase(), id })\n',
    )
    const ran = await user.run(['agents', 'generate', other, ...ask, '--tools', module, '--stream'])
    assert.deepEqual([ran.code, ran.stdout], [0, 'picked\n'], ran.stderr)
    assert.match(ran.stderr, /→ pick/)
    assert.match(JSON.stringify((await requests()).at(-1)), /RED.*2512292042121000001/)
    assert.equal((await user.run(['agents', 'generate', other, ...ask, '--tools', '/nowhere.mjs'])).code, 2)
  })

  it('exits 11 with the code of a turn that failed', async () => {
    const { agentId } = await app.scripted([{ reply: { error: { status: 400 } } }])
    const { code, stderr } = await user.run(['agents', 'generate', agentId, ...ask])
    assert.equal(code, 11)
    assert.match(stderr, new RegExp((await generation()).error.code))
  })

  it('continues on another web process when its process is killed, and prints the text once', async () => {
    const webs = await Promise.all([0, 1].map(() => startProcess('web', app.databaseUrl)))
    let target = 0
    const proxy = http.createServer((req, res) => {
      const upstream = http.request(
        { port: new URL(webs[target].url).port, path: req.url, method: req.method, headers: req.headers },
        answer => {
          res.writeHead(answer.statusCode as number, answer.rawHeaders)
          answer.on('error', () => res.destroy()).pipe(res)
        },
      )
      upstream.on('error', () => res.destroy())
      req.pipe(upstream)
    })
    await new Promise<void>(resolve => proxy.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
    try {
      const text = 'one two three four'
      const { agentId } = await app.scripted([
        { reply: { chunks: ['one ', 'two ', 'three ', 'four'], text, gate: 'cli-kill', gate_after: 2 } },
      ])
      const session = await app.session({ agent_id: agentId, auto_generate: true })
      const sending = user.start(['sessions', 'send', session.id, '--message', 'count', '--stream', '--url', url])
      await eventually(() => sending.output.stdout === 'one two ' || sending.output.stderr !== '')
      assert.equal(sending.output.stderr, '')
      target = 1
      await webs[0].kill('SIGKILL')
      await app.openGate('cli-kill')
      const { code, stdout } = await sending.ended
      assert.deepEqual([code, stdout], [0, `${text}\n`])
    } finally {
      proxy.close()
      proxy.closeAllConnections()
      await webs[1].kill('SIGKILL')
    }
  })

  describe('work', () => {
    const orchestration = async (nodes: object[]) => {
      const made = await app.key.post('/orchestrations', { name: `work ${Math.random()}`, nodes, edges: [] })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      return made.body.id as string
    }
    const start = (id: string, ...more: string[]) => ['orchestration-runs', 'create', '--orchestration-id', id, ...more]

    it('is waited for: done, failed with its code, or waiting for an input', async () => {
      const fine = await orchestration([{ id: 'a', type: 'transform', expression: 1 }])
      const done = await user.run(start(fine, '--wait'))
      assert.equal(JSON.parse(done.stdout).status, 'succeeded', done.stderr)
      assert.match(done.stderr, /succeeded/)
      assert.equal((await user.run(start(fine, '--wait', '--quiet'))).stderr, '')

      const { agentId: broken } = await app.scripted([{ reply: { error: { status: 400 } } }])
      const failing = await orchestration([{ id: 'a', type: 'agent', agent_id: broken, prompt: 'x' }])
      const failed = await user.run(start(failing, '--wait'))
      const { error } = (await app.key.get('/orchestration-runs?limit=1')).body.data[0]
      assert.equal(failed.code, 11, failed.stderr)
      assert.ok(failed.stderr.includes(error.code), failed.stderr)

      const asking = await orchestration([{ id: 'ask', type: 'human', prompt: 'Which colour?' }])
      const waiting = await user.run(start(asking, '--wait'))
      assert.equal(waiting.code, 12)
      assert.match(waiting.stderr, /Which colour\?/)
      const [, command] = /Try: muster (orchestration-runs submit-human-input \S+ --node-id \S+)/.exec(
        waiting.stderr,
      ) as RegExpExecArray
      const answered = await user.run([...command.split(' '), '--output', '{"colour":"red"}'])
      assert.equal(JSON.parse(answered.stdout).status, 'succeeded', answered.stderr)
    })

    it('continues after Ctrl-C and after a timeout, unless it is to be cancelled', async () => {
      const slow = await orchestration([{ id: 'nap', type: 'delay', duration: '1h' }])
      const late = await user.run(start(slow, '--wait', '--timeout', '600ms'))
      assert.equal(late.code, 13, late.stderr)
      const status = async (id: string) => (await app.key.get(`/orchestration-runs/${id}`)).body.status
      for (const [flags, expected] of [
        [[], /sleeping/],
        [['--cancel-on-interrupt'], /cancel/],
      ] as const) {
        const waiting = user.start(start(slow, '--wait', ...flags))
        await eventually(() => /sleeping/.test(waiting.output.stderr))
        waiting.child.kill('SIGINT')
        const { code, stderr } = await waiting.ended
        assert.equal(code, 130)
        const id = /^(\S+) /.exec(stderr)![1]
        assert.ok(stderr.includes(id))
        assert.match(await status(id), expected)
      }
    })

    it('is followed by its stream', async () => {
      const fine = await orchestration([{ id: 'a', type: 'transform', expression: 1 }])
      const { stdout } = await user.run(start(fine, '--wait', '--field', 'id'))
      const followed = await user.run(['orchestration-runs', 'get', stdout.trim(), '--follow'])
      const names = followed.stdout
        .trimEnd()
        .split('\n')
        .map(each => JSON.parse(each).event)
      assert.deepEqual([followed.code, names.at(-1)], [0, 'run.settled'])
    })
  })
})
