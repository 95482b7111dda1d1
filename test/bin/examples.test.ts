import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createHmac } from 'node:crypto'
import { once } from 'node:events'
import fs from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { stopEmbedded } from '#local/postgres.ts'
import { type Client, client, eventually } from '../support/app.ts'
import { openPage, startChromium } from '../support/chromium.ts'
import { launch, type Running } from '../support/commands.ts'
import { pngHeader } from '../support/images.ts'
import { quietPort } from '../support/postgres.ts'

const MAILBOX_SECRET = 'a secret of mailboxes'

const expectOk = ({ status, body }: { status: number; body: unknown }) =>
  assert.ok(status < 300, `${status} ${JSON.stringify(body)}`)

describe('the examples, against npm start', function () {
  this.timeout(120_000)

  const data = fs.mkdtempSync(path.join(tmpdir(), 'muster-examples-'))
  let up: Running
  let url: string
  let modelUrl: string
  let mailboxPort: number
  let key: string
  let agentId: string
  let caller: Client
  const started: Running[] = []

  before(async () => {
    fs.chmodSync(data, 0o755)
    mailboxPort = await quietPort()
    const types = path.join(data, 'resource-types.json')
    const config = fs.readFileSync(path.resolve(import.meta.dirname, '../../examples/resource-types.json'), 'utf8')
    fs.writeFileSync(types, config.replace('8091', String(mailboxPort)))
    // A port that no outgoing connection takes while the database is migrated.
    const port = String(await quietPort())
    up = launch('bin/muster.ts', ['up', '--data', path.join(data, 'data'), '--port', port, '--json'], {
      EGRESS_ALLOW_HOSTS: '127.0.0.1',
      FORMATION_RESOURCE_TYPES_CONFIG: types,
      MAILBOX_SECRET,
    })
    const report = await eventually(
      () => {
        assert.equal(up.child.exitCode, null, up.output.stderr)
        return up.output.stdout.endsWith('}\n') ? JSON.parse(up.output.stdout) : null
      },
      { within: 100_000, what: 'the report of up' },
    )
    url = report.url
    modelUrl = report.model.url
    key = report.demo.key
    agentId = report.demo.agent_id
    caller = client(url, key)
  })
  after(async () => {
    for (const { child } of started) child.kill('SIGKILL')
    await up?.stop('SIGTERM')
    await stopEmbedded(path.join(data, 'data/postgres'))
    fs.rmSync(data, { recursive: true, force: true })
  })

  function start(name: string, args: string[] = [], env: Record<string, string> = {}): Running {
    const running = launch(`examples/${name}.mjs`, args, { MUSTER_URL: url, MUSTER_KEY: key, ...env })
    started.push(running)
    return running
  }

  async function run(name: string, ...args: string[]): Promise<string> {
    const { ended, output } = start(name, args)
    assert.equal(await ended, 0, output.stderr)
    return output.stdout
  }

  it('a conversation', async () => {
    const output = await run('conversation', 'Good morning')
    assert.match(output, /^user: Good morning\nagent: echo: Good morning\n/)
    assert.match(output, /^stream: \w.* \{.*\}$/m)
    assert.match(output, /And.*streamed/s)
  })

  it('a search in a document', async () => {
    const output = await run('document-search', 'docs/security.md', 'how are passwords stored?')
    assert.match(output, /^\/examples\/security\.md: ready, \d+ chunks$/m)
    assert.match(output, /scrypt/)
  })

  it('a template: planned, deployed and deleted', async () => {
    const file = 'examples/templates/help-center.yaml'
    const given = [file, `ModelUrl=${modelUrl}`]
    assert.match(await run('deploy', 'help', ...given, '--plan'), /^create Provider name, .*\ncreate HelpMetadata /)
    assert.match(
      await run('deploy', 'help', ...given),
      /^create Provider succeeded\n.*^welcome_path: "\/help\/welcome\.md"$/ms,
    )
    assert.match(await run('deploy', 'help', ...given, 'Language=de', '--plan'), /^update Welcome metadata$/m)
    assert.match(await run('deploy', 'help', file, '--delete'), /^deleted form_\w+\n$/)
  })

  it('a handler of mailboxes, which templates then declare', async () => {
    const environment = { MAILBOX_SECRET, PORT: String(mailboxPort) }
    const { output } = start('mailbox-handler', [], environment)
    await eventually(() => output.stdout.includes('listening'))
    const template = (properties: object) => ({
      resources: { Box: { type: 'mailbox', properties: { address: 'help@example.com', ...properties } } },
      outputs: { address: { ref_attr: 'Box.address' } },
    })
    const { body: formation } = await caller.post('/formations', { name: 'mail', template: template({}) })
    assert.deepEqual([formation.status, formation.outputs], ['active', { address: 'help@example.com' }])
    const path = `/formations/${formation.id}`
    const forwarded = await caller.put(path, { template: template({ forward_to: 'ann@example.com' }) })
    assert.equal(forwarded.body.status, 'active')
    const unchanged = await caller.post('/formations/plan', { formation_id: formation.id })
    assert.equal(unchanged.body.changes[0].action, 'no-op')
    assert.equal((await caller.delete(path)).status, 200)
    assert.deepEqual(output.stdout.match(/^(create|update|delete) Box$/gm), ['create Box', 'update Box', 'delete Box'])
    assert.equal((await fetch(`http://127.0.0.1:${mailboxPort}/`, { method: 'POST', body: '{}' })).status, 401)
  })

  it('the clients of OpenAI, the AI SDK, LangChain, and curl, with an agent as their model', async () => {
    const question = 'How long may I return an order?'
    for (const name of ['openai', 'ai-sdk', 'langchain'])
      assert.match(
        await run(`openai-clients/${name}`, agentId),
        /echo: (\[.*\]: )?How long may I return an order\?/,
        name,
      )
    const file = path.resolve(import.meta.dirname, '../../examples/openai-clients/curl.sh')
    const env = { ...process.env, MUSTER_URL: url, MUSTER_KEY: key }
    const { stdout } = await promisify(execFile)('sh', [file, agentId], { env })
    assert.equal(JSON.parse(stdout).choices[0].message.content, `echo: ${question}`)
  })

  it('a support page, which a browser uses with the token of an end user', async function () {
    const chromium = await startChromium()
    if (!chromium) return this.skip()
    await run('deploy', 'page', 'examples/support-page/support.yaml', `ModelUrl=${modelUrl}`, `ShopUrl=${modelUrl}`)
    const [agent] = (await caller.get('/agents?name=Support')).body.data
    const { token, actor_id } = (
      await caller.post('/actors/tokens', {
        actor: { external_id: 'customer-7', name: 'Ann' },
        agent_ids: [agent.id],
        scopes: ['chat', 'files', 'feedback', 'approvals'],
      })
    ).body
    const html = fs.readFileSync(path.resolve(import.meta.dirname, '../../examples/support-page/index.html'))
    const site = http.createServer((_req, res) => res.setHeader('content-type', 'text/html').end(html))
    await once(site.listen(0, '127.0.0.1'), 'listening')
    const origin = `http://127.0.0.1:${(site.address() as AddressInfo).port}`
    const { page, problems, close } = await openPage(chromium, [origin, new URL(url).origin])
    const send = async (text: string) => {
      await page.getByLabel('Your question').fill(text)
      await page.getByRole('button', { name: 'Send' }).click()
    }
    try {
      await page.goto(`${origin}/#url=${url}&token=${token}`)
      await page.getByText('Hello! How can I help?').waitFor()
      await send('How long does a refund take?')
      await page.locator('article.agent', { hasText: 'echo: [Ann]: How long does a refund take?' }).waitFor()
      await page.getByRole('button', { name: 'Helpful', exact: true }).click()
      await page.locator('button[aria-pressed=true]').waitFor()

      const { body: found } = await caller.get(`/sessions?actor_id=${actor_id}`)
      const [session] = found.data
      const refund = { name: 'refund', args: { order: '1042', amount: 20 } }
      await send(`@double ${JSON.stringify([{ tool_calls: [refund] }, { text: 'Please confirm.' }])}`)
      await page.getByRole('button', { name: 'Approve' }).click()
      await page.getByText('Approved').waitFor()
      await page.locator('article.agent', { hasText: 'was approved' }).waitFor()
      await page.getByText('Connected').waitFor()

      await page.locator('#file').setInputFiles({ name: 'box.png', mimeType: 'image/png', buffer: pngHeader(4, 4) })
      await send('What is this?')
      await page.locator('article.end_user', { hasText: '[image: box.png]' }).waitFor()

      expectOk(await caller.post(`/sessions/${session.id}/takeover`))
      await page.getByText('A colleague answers you').waitFor()
      expectOk(await caller.post(`/sessions/${session.id}/operator-messages`, { message: 'This is Eva.' }))
      await page.locator('article.operator', { hasText: 'This is Eva.' }).waitFor()
      assert.deepEqual(problems, [])

      const { body: feedback } = await caller.get(`/feedback?session_id=${session.id}`)
      assert.equal(feedback.data[0].rating, 1)
    } finally {
      await close()
      await chromium.close()
      site.close()
    }
  })

  it('an example says what the service refuses', async () => {
    const { ended, output } = start('conversation', [], { MUSTER_KEY: 'sk_wrong' })
    assert.notEqual(await ended, 0)
    assert.match(output.stderr, /401 UNAUTHORIZED/)
  })

  it('a receiver of webhooks that verifies signatures and handles each event once', async () => {
    // The secret is known once the webhook exists, and the webhook needs the port of the receiver.
    const port = await quietPort()
    const address = `http://127.0.0.1:${port}/`
    const { body: webhook } = await caller.post('/webhooks', { name: 'example', url: address, events: ['agents.*'] })
    const { output } = start('webhook-receiver', [], { MUSTER_WEBHOOK_SECRET: webhook.secret, PORT: String(port) })
    await eventually(() => output.stdout.includes('listening'))
    const [provider] = (await caller.get('/ai-providers')).body.data
    const { body: agent } = await caller.post('/agents', { name: 'watched', ai_provider_id: provider.id })
    await eventually(() => output.stdout.includes(`agents.created ${agent.id}`))

    const event = JSON.stringify({ id: 'evt_1', event: 'agents.forged', resource_id: 'agent_1', timestamp: 'now' })
    const post = async (t: number, secret: string) => {
      const signature = createHmac('sha256', secret).update(`${t}.${event}`).digest('hex')
      const headers = { 'x-svc-signature': `t=${t},v1=${signature}` }
      return (await fetch(address, { method: 'POST', body: event, headers })).status
    }
    const now = Math.floor(Date.now() / 1000)
    assert.equal((await fetch(address, { method: 'POST', body: event })).status, 401)
    assert.equal(await post(now, 'whsec_another'), 401)
    assert.equal(await post(now - 3600, webhook.secret), 401)
    assert.doesNotMatch(output.stdout, /forged/)
    assert.equal(await post(now, webhook.secret), 204)
    assert.equal(await post(now, webhook.secret), 204)
    await eventually(() => output.stdout.includes('forged'))
    assert.equal(output.stdout.match(/forged/g)?.length, 1)
  })
})
