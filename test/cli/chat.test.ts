import assert from 'node:assert/strict'
import { startSessionApp } from '../conversation/session-support.ts'
import { forSuite } from '../support/suite.ts'
import { User } from './support.ts'

describe('muster chat', function () {
  this.timeout(120_000)
  const app = forSuite(startSessionApp)
  const user = forSuite(() => new User(app.url, app.key.token))

  it('sends each line and prints the replies, in a session that can be continued', async () => {
    const { agentId } = await app.scripted(
      [
        { times: 1, reply: { chunks: ['Hello ', 'Ann'], text: 'Hello Ann' } },
        { reply: { text: 'Bye \u001b]0;x\u0007' } },
      ],
      { name: 'desk clerk' },
    )
    const first = await user.run(['chat', 'desk clerk', '--actor', 'ann'], {
      input: 'I am Ann\n\nbye\n /exit\nunsent\n',
    })
    assert.deepEqual([first.code, first.stdout], [0, 'Hello Ann\nBye \u001b]0;x\u0007\n'], first.stderr)
    const [, id] = /^session (\S+)$/m.exec(first.stderr) as RegExpExecArray
    const messages = await app.messages({ id })
    assert.deepEqual(
      messages.map(each => each.role),
      ['user', 'assistant', 'user', 'assistant'],
    )
    const again = await user.run(['chat', agentId, '--session', id, '--quiet'], { input: 'again\n' })
    assert.deepEqual([again.stdout, again.stderr], ['Bye \u001b]0;x\u0007\n', ''])
    const missing = await user.run(['chat', 'nobody'], { input: '' })
    assert.deepEqual(
      [missing.code, missing.stderr],
      [5, 'muster: there is no agent nobody\n  Try: muster agents list\n'],
    )
  })

  it('answers in a session that replies by itself, and prints what an operator says', async () => {
    const { agentId } = await app.scripted([{ reply: { text: 'by itself' } }])
    const session = await app.session({ agent_id: agentId, auto_generate: true })
    const reply = await user.run(['chat', agentId, '--session', session.id], { input: 'hello\n' })
    assert.equal(reply.stdout, 'by itself\n')
  })

  it('shows the calls of client tools with the command that answers, or runs them', async () => {
    const rules = [
      { times: 1, reply: { tool_calls: [{ name: 'pick', args: { colour: 'red' } }] } },
      { reply: { text: 'picked' } },
    ]
    const binding = { tool_bindings: [{ tool: { name: 'pick', type: 'client', description: 'Picks' } }] }
    const { agentId } = await app.scripted(rules, binding)
    const paused = await user.run(['chat', agentId], { input: 'pick one\n' })
    assert.equal(paused.code, 12, paused.stderr)
    const [, command] = /Try: muster (sessions submit-tool-outputs .*)/.exec(paused.stderr) as RegExpExecArray
    const args = [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain)
    assert.equal((await user.run([...args, '--field', 'content'])).stdout, 'picked\n')

    const { agentId: other } = await app.scripted(rules, binding)
    const module = user.file('tools.mjs', 'export default { pick: ({ colour }) => colour }\n')
    const ran = await user.run(['chat', other, '--tools', module], { input: 'pick one\n' })
    assert.deepEqual([ran.code, ran.stdout], [0, 'picked\n'], ran.stderr)
  })

  it('shows an approval with the commands that decide, and the reply that follows', async () => {
    const guardrail = await app.admin.post('/guardrails', {
      project_id: app.projectId,
      name: 'ask',
      document: { class: 'C' },
    })
    const { agentId } = await app.scripted(
      [{ times: 1, reply: { tool_calls: [{ name: 'sign', args: { letter: 'a' } }] } }, { reply: { text: 'it waits' } }],
      {
        tool_bindings: [
          { tool: { name: 'sign', type: 'http', execute: { url: `${app.double.url}/v1/models`, method: 'GET' } } },
        ],
        guardrail_ids: [guardrail.body.id],
      },
    )
    const chatting = await user.run(['chat', agentId], { input: 'sign it\n' })
    assert.match(chatting.stdout, /it waits/)
    assert.match(chatting.stderr, /muster approvals approve \S+/)
    assert.match(chatting.stderr, /sign/)
  })

  it('exits 11 after a turn that failed, and 130 on Ctrl-C', async () => {
    const { agentId } = await app.scripted([{ reply: { error: { status: 400 } } }])
    const failed = await user.run(['chat', agentId], { input: 'x\n' })
    assert.equal(failed.code, 11)
    assert.match(failed.stderr, /the turn failed/)
    const { agentId: slow } = await app.scripted([{ reply: { text: 'late', gate: 'cli-chat' } }])
    const chatting = user.start(['chat', slow], { input: 'x\n' })
    await app.atGate('cli-chat')
    chatting.child.kill('SIGINT')
    assert.equal((await chatting.ended).code, 130)
    await app.openGate('cli-chat')
  })
})
