import { strict as assert } from 'node:assert'
import { startDouble } from '#local/double/server.ts'
import { eventually, startApp } from '../support/app.ts'
import { type HostedProcess, runWeb, steadyWorkers } from '../support/hosts.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'
import { makeTenant, type Tenant, turnsStarted } from '../support/tenants.ts'

/**
 * The wait of a quiet project next to noisy ones, with web and workers in separate processes. Counted in requests of
 * others meanwhile, not in time.
 */
describe('a quiet project', function () {
  this.timeout(120_000)
  const model = forSuite(() => startDouble({}))
  const app = forSuite(startApp)
  let web: HostedProcess

  before(async () => {
    web = await runWeb(app.databaseUrl)
  })
  after(async () => {
    await web?.stop()
  })
  afterEach(() => workers.stop())

  const workers = steadyWorkers()
  const worker = (concern: string, env: Record<string, string>) => workers.start(app.databaseUrl, env, [concern])
  const tenants = (count: number, name: string): Promise<Tenant[]> =>
    Promise.all(Array.from({ length: count }, (_, n) => makeTenant(app, web.url, model.url, `${name} ${n}`)))

  describe('that requests one turn', () => {
    const SLOTS = 3
    const WORKERS = 2
    const HUNDRED = 100

    async function servedBefore(name: string, noisy: [Tenant[], number][]): Promise<number> {
      const quiet = await makeTenant(app, web.url, model.url, name)
      for (const [crowd, turns] of noisy)
        await Promise.all(
          crowd.map(async each => {
            for (let n = 0; n < turns; n++) await each.ask(300)
          }),
        )
      const before = (await turnsStarted(model.url)).length
      for (let n = 0; n < WORKERS; n++) await worker('generation', { WORKER_CONCURRENCY: String(SLOTS) })
      const started = async () => (await turnsStarted(model.url)).length
      await eventually(async () => (await started()) >= before + 2 * SLOTS * WORKERS, { within: 90_000 })
      const asked = await started()
      await quiet.ask(0, true)
      return (await turnsStarted(model.url)).indexOf(name) - asked
    }

    it('gets it after at most a turn of every other project, next to two with a hundred slow turns each', async () => {
      const noisy = await tenants(2, 'noisy')
      const others = await servedBefore('quiet', [[noisy, HUNDRED]])
      assert.ok(others <= 2 + 2 * SLOTS * WORKERS, `${others} turns of others came first`)
    })

    it('gets it after at most a turn of every other project, next to twenty more', async () => {
      const [noisy, many] = [await tenants(2, 'noisier'), await tenants(20, 'many')]
      const others = await servedBefore('quiet too', [
        [noisy, HUNDRED],
        [many, 10],
      ])
      assert.ok(others <= 22 + 2 * SLOTS * WORKERS, `${others} turns of others came first`)
    })
  })

  describe('that makes one event', () => {
    /** Posts that one worker has in flight at most. */
    const SLOTS = 250
    let slow: Receiver
    let prompt: Receiver

    beforeEach(async () => {
      slow = await startReceiver((_, response) => void setTimeout(() => response.end(), 500))
      prompt = await startReceiver()
    })
    afterEach(async () => {
      await slow.close()
      await prompt.close()
    })

    async function sentBefore(noisy: [Tenant[], webhooks: number, events: number][]): Promise<number> {
      const [quiet] = await tenants(1, 'calm')
      await quiet.subscribe(prompt.url)
      for (const [crowd, webhooks, events] of noisy)
        await Promise.all(
          crowd.map(async each => {
            for (let n = 0; n < webhooks; n++) await each.subscribe(slow.url)
            for (let n = 0; n < events; n++) await each.write()
          }),
        )
      await worker('delivery', {})
      await eventually(() => slow.requests.length >= 2 * SLOTS, { within: 90_000 })
      const before = slow.requests.length
      await quiet.write()
      await eventually(() => prompt.requests.length === 1)
      return slow.requests.length - before
    }

    it('has it delivered after at most a post of every other project, next to two with slow receivers', async () => {
      const others = await sentBefore([[await tenants(2, 'loud'), 50, 60]])
      assert.ok(others <= 5 * SLOTS, `${others} deliveries of others came first`)
    })

    it('has it delivered after at most a post of every other project, next to twenty more', async () => {
      const others = await sentBefore([
        [await tenants(2, 'louder'), 50, 40],
        [await tenants(20, 'some'), 15, 10],
      ])
      assert.ok(others <= 5 * SLOTS, `${others} deliveries of others came first`)
    })
  })
})
