import assert from 'node:assert/strict'
import { startVendors, type VendorRequest } from '../execution/vendors.ts'
import { client, eventually, startApp } from '../support/app.ts'
import { startNameServer } from '../support/dns.ts'
import { emitNamed } from '../support/events.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'

const PLACES = 32

describe('names whose server is silent', function () {
  this.timeout(120_000)
  const names = forSuite(() => startNameServer(name => (name.endsWith('.silent.test') ? 'silent' : ['127.0.0.1'])))
  const receiver = forSuite(startReceiver)
  const vendors = forSuite(startVendors)
  const app = forSuite(() => startApp({ together: true }))
  const processes: TestProcess[] = []
  after(async () => {
    await Promise.all(processes.map(each => each.kill()))
  })

  const start = async (kind: 'web' | 'worker', env: Record<string, string>, args: string[] = []) => {
    const settings = { EGRESS_DNS_SERVERS: names.address, EGRESS_ALLOW_HOSTS: '*.test', ...env }
    const made = await startProcess(kind, app.databaseUrl, settings, args)
    processes.push(made)
    return made
  }

  it("delay neither another project's deliveries nor the limits of other deliveries of their project", async () => {
    const noisy = (await app.project()).id
    const quiet = (await app.project()).id
    const hook = async (project_id: string, host: string, event = 'secrets.created') => {
      const url = `http://${host}:${receiver.port}/${host}`
      const { body } = await app.admin.post('/webhooks', { project_id, name: host, url, events: [event] })
      return body.id as string
    }
    const silent = []
    for (let n = 0; n < 70; n++) silent.push(await hook(noisy, `${n}.silent.test`, 'secrets.updated'))
    const good = await hook(noisy, 'good.noisy.test')
    const other = await hook(quiet, 'good.quiet.test')
    await app.services.write(async tx => emitNamed(tx, 'secrets.updated', noisy, { id: 'sec_1' }))
    // Shorter than a lookup that gets no answer, so that a place is waited for longer than an attempt may take.
    await start('worker', { WEBHOOK_TIMEOUT_MS: '4000' }, ['delivery'])
    await eventually(() => names.asked.filter(question => question.includes('.silent.')).length >= PLACES)
    for (const project of [noisy, quiet])
      await app.services.write(async tx => emitNamed(tx, 'secrets.created', project, { id: 'sec_2' }))

    const ended = async (webhook: string) =>
      eventually(
        async () => {
          const { body } = await app.admin.get(`/webhook-deliveries?webhook_id=${webhook}`)
          return body.data.find((delivery: { status: string }) => delivery.status !== 'queued')
        },
        { within: 100_000 },
      )
    for (const webhook of [other, good]) {
      const { status, attempts } = await ended(webhook)
      assert.deepEqual([status, attempts], ['completed', 1])
    }
    const [quietAt, noisyAt] = ['good.quiet.test', 'good.noisy.test'].map(name => names.asked.indexOf(`A ${name}`))
    const begun = new Set(names.asked.slice(0, noisyAt)).size / 2
    assert.ok(begun > PLACES && quietAt < noisyAt, `${begun} names were requested before, ${quietAt} before ${noisyAt}`)
    const failed = await ended(silent[0])
    assert.deepEqual([failed.status, failed.attempts], ['failed', 3])
    assert.match(failed.response_body, /^(dns: \d+\.silent\.test does not resolve: ETIMEOUT|timeout: )/)
  })

  it('do not delay what a web process does for another project', async () => {
    const [noisy, quiet] = [await app.project(), await app.project()]
    const web = await start('web', { MODEL_LISTING_TIMEOUT_MS: '30000' })
    const provider = async (key: string | null, host: string) => {
      const base_url = `http://${host}:${new URL(vendors.url).port}/custom/v1`
      const fields = { name: 'p', provider: 'custom', default_model: 'm', base_url }
      return (await client(web.url, key).post('/ai-providers', fields)).body.id as string
    }
    const list = (key: string | null, id: string) => client(web.url, key).get(`/ai-providers/${id}/models`)
    const ids = []
    for (let n = 0; n < 40; n++) ids.push(await provider(noisy.key.token, `web${n}.silent.test`))
    const good = await provider(quiet.key.token, 'models.quiet.test')
    let answered = 0
    const silent = ids.map(id => list(noisy.key.token, id).finally(() => answered++))
    await eventually(() => names.asked.filter(question => question.startsWith('A web')).length >= PLACES)
    assert.equal((await list(quiet.key.token, good)).status, 200)
    assert.ok(answered < ids.length, 'the quiet project waited for all names of the other')
    assert.ok(vendors.requests.some((request: VendorRequest) => request.headers.host?.startsWith('models.quiet.test')))
    for (const { status, body } of await Promise.all(silent)) {
      assert.deepEqual([status, body.error.code], [502, 'MODEL_LISTING_FAILED'])
      assert.match(body.error.message, /web\d+\.silent\.test does not resolve: ETIMEOUT/)
    }
  })
})
