import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { verifyWebhook } from '../../client/dist/index.js'
import { eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { User } from './support.ts'

describe('muster listen and formations deploy', function () {
  this.timeout(120_000)
  const app = forSuite(() => startApp({ workers: ['orchestration', 'delivery'] }))
  const project = forSuite(() => app.project())
  const user = forSuite(() => new User(app.url, project.key.token))

  it('forwards new events to a local address, signed, and prints the status of each', async () => {
    const received: { headers: http.IncomingHttpHeaders; body: string }[] = []
    const server = http.createServer(async (req, res) => {
      let body = ''
      for await (const chunk of req) body += chunk
      received.push({ headers: req.headers, body })
      res.writeHead(received.length === 1 ? 204 : 500).end()
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const target = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`
    try {
      await project.key.post('/actors', { name: 'before' })
      const args = [
        'listen',
        '--forward-to',
        target,
        '--event',
        'actors.*',
        '--secret',
        'env:HOOK',
        '--interval',
        '50ms',
      ]
      const listening = user.start(args, { env: { HOOK: 'a secret' } })
      await eventually(() => /listening/.test(listening.output.stderr))
      const { body: first } = await project.key.post('/actors', { name: 'first' })
      await eventually(() => received.length === 1)
      await project.key.post('/documents', { path: '/a.md', content: 'not forwarded' })
      await project.key.patch(`/actors/${first.id}`, { name: 'second' })
      await eventually(() => received.length === 2)
      await eventually(() => listening.output.stdout.split('\n').length === 3)
      listening.child.kill('SIGINT')
      const { code, stdout } = await listening.ended
      assert.equal(code, 130)
      const events = await Promise.all(
        received.map(({ headers, body }) => verifyWebhook({ rawBody: body, headers, secret: 'a secret' })),
      )
      assert.deepEqual(
        events.map(each => [each.event, each.resource_id, (each.data as any).name]),
        [
          ['actors.created', first.id, 'first'],
          ['actors.updated', first.id, 'second'],
        ],
      )
      assert.equal(received[0].headers['x-svc-event-id'], events[0].id)
      assert.ok(!('dispatched_at' in events[0]))
      const [created, updated] = stdout.split('\n')
      assert.match(created, /actors\.created {2}\S+ {2}204 {2}\d+ ms/)
      assert.match(updated, /actors\.updated {2}\S+ {2}500/)
    } finally {
      server.close()
      server.closeAllConnections()
    }
  })

  it('refuses addresses that it cannot forward to', async () => {
    assert.equal((await user.run(['listen'])).code, 2)
    assert.equal((await user.run(['listen', '--forward-to', 'localhost:1'])).code, 2)
    assert.equal((await user.run(['listen', '--forward-to', 'http://localhost:1', '--secret', 'visible'])).code, 2)
  })

  it('plans and deploys a template of several files, then only what has changed', async () => {
    user.file('help/prompt.md', 'Be kind.\n')
    const page = user.file(
      'help/pages.yaml',
      'parameters:\n  Title: { default: Help } # shown\nresources:\n  Page:\n    type: document\n    properties: { path: /help.md, content: "# ${Title}\\n${file:./prompt.md}" }\n',
    )
    user.file('help/more.json', JSON.stringify({ resources: { Ann: { type: 'actor', properties: { name: 'Ann' } } } }))
    const directory = page.replace(/\/pages\.yaml$/, '')
    const plan = await user.run(['formations', 'deploy', directory, '--plan'])
    assert.equal(plan.code, 0, plan.stderr)
    const changes = JSON.parse(plan.stdout).changes.map((each: any) => [each.logical_id, each.action])
    assert.deepEqual(changes.sort(), [
      ['Ann', 'create'],
      ['Page', 'create'],
    ])
    assert.equal((await project.key.get('/formations')).body.total, 0)

    const deployed = await user.run(['formations', 'deploy', directory])
    assert.equal(deployed.code, 0, deployed.stderr)
    const formation = JSON.parse(deployed.stdout)
    assert.deepEqual([formation.name, formation.status], ['help', 'active'])
    assert.match(deployed.stderr, /^\+ document Page$/m)
    const [document] = (await project.key.get('/documents?path=/help.md')).body.data
    assert.match((await project.key.get(`/documents/${document.id}`)).body.content, /Be kind\./)

    assert.match((await user.run(['formations', 'deploy', directory])).stderr, /nothing to change/)
    user.file('help/more.json', '{}')
    const refused = await user.run(['formations', 'deploy', directory])
    assert.equal(refused.code, 2)
    assert.match(refused.stderr, /deletes Ann/)
    assert.equal((await user.run(['formations', 'deploy', directory, '--yes'])).code, 0)
    assert.equal((await project.key.get('/actors?name=Ann')).body.total, 0)
  })

  it('exits 11 when the deploy fails, and 2 for a template that it cannot read', async () => {
    const failing = user.file(
      'failing.yaml',
      'resources:\n  A: { type: agent, properties: { name: a, ai_provider_id: none } }\n',
    )
    const failed = await user.run(['formations', 'deploy', failing])
    assert.equal(failed.code, 11, failed.stderr)
    user.file('outside.md', 'secret')
    const escaping = user.file('inner/escaping.yaml', 'metadata: { text: "${file:../outside.md}" }\n')
    const refused = await user.run(['formations', 'deploy', escaping])
    assert.deepEqual([refused.code, /is not below/.test(refused.stderr)], [2, true])
    for (const target of [user.file('broken.yaml', 'a: ['), user.file('list.yaml', '- a\n'), '/nowhere'])
      assert.equal((await user.run(['formations', 'deploy', target])).code, 2, target)
    const { stderr } = await user.run(['formations', 'deploy', 'broken.yaml'])
    assert.match(stderr, /^muster: broken\.yaml: (?!broken)[\s\S]*\S\n$/)
    assert.equal((await user.run(['formations', 'deploy', failing, '--param', 'no pair'])).code, 2)
  })
})
