import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { createInterface } from 'node:readline'
import { after, before, describe, it } from 'mocha'
import { sql } from '#core/db/sql.ts'
import { type Client, client, eventually, startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { forSuite } from '../support/suite.ts'

describe('requests quotas over several web processes', () => {
  const app = forSuite(startApp)
  const children: ChildProcess[] = []
  const urls: string[] = []

  /** Starts a web process on the database; resolves with its address. */
  async function startProcess(databaseUrl: string): Promise<string> {
    const child = spawn(process.execPath, ['src/web.ts'], {
      env: { ...testEnvironment(databaseUrl), PATH: process.env.PATH ?? '' },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    children.push(child)
    return new Promise((resolve, reject) => {
      child.once('exit', code => reject(new Error(`web ended with ${code}`)))
      createInterface({ input: child.stdout as NodeJS.ReadableStream }).on('line', line => {
        const { msg, port } = JSON.parse(line) as { msg: string; port?: number }
        if (msg === 'web is ready') resolve(`http://127.0.0.1:${port}`)
      })
    })
  }

  before(async () => {
    urls.push(...(await Promise.all([startProcess(app.databaseUrl), startProcess(app.databaseUrl)])))
  })
  after(async () => {
    await Promise.all(
      children.map(child => {
        const ended = new Promise(resolve => child.once('exit', resolve))
        child.kill('SIGTERM')
        return ended
      }),
    )
  })

  const capped = async (limit: number) => {
    const project = await app.project()
    const clients = urls.map(url => client(url, project.key.token))
    // Both processes have cached the project without quotas before it gets one.
    for (const each of clients) assert.equal((await each.get('/quotas')).status, 200)
    const { body } = await app.admin.post('/quotas', {
      project_id: project.id,
      scope: 'project',
      metric: 'requests',
      window: 'calendar_month',
      limit,
    })
    for (const each of clients) await known(each, body.id)
    await app.pool.query(sql.unsafe`delete from quota_counters where quota_id = ${body.id}`)
    return { project, clients, id: body.id as string }
  }

  /** Waits until a process counts its requests against a quota. */
  const known = (each: Client, id: string) =>
    eventually(async () => {
      const before = await count(id)
      await each.get('/quotas')
      return (await count(id)) > before
    })
  const count = async (id: string) => (await app.admin.get(`/quotas/${id}/usage`)).body.observed_value as number

  it('500 concurrent requests against a quota of 100 over two processes let exactly 100 through', async () => {
    const { project, clients, id } = await capped(100)
    const replies = await Promise.all(Array.from({ length: 500 }, (_, index) => clients[index % 2].get('/quotas')))
    assert.equal(replies.filter(({ status }) => status === 200).length, 100)
    assert.equal(replies.filter(({ status }) => status === 429).length, 400)
    assert.equal(await count(id), 500)
    const fired = await app.pool.oneFirst(sql.unsafe`
      select count(*) from events where project_id = ${project.id} and name = 'quota.exceeded'`)
    assert.equal(fired, 1)
  })

  it('several quotas counted by both processes concurrently stay exact', async () => {
    const [first, second] = [await capped(20), await capped(30)]
    for (const { project } of [first, second])
      await app.admin.post('/quotas', {
        project_id: project.id,
        scope: 'api_key',
        metric: 'requests',
        window: 'rolling_24h',
        limit: 1000,
      })
    const burst = ({ clients }: typeof first) =>
      Promise.all(Array.from({ length: 120 }, (_, index) => clients[index % 2].get('/quotas')))
    const [one, two] = await Promise.all([burst(first), burst(second)])
    assert.equal(one.filter(({ status }) => status === 200).length, 20)
    assert.equal(two.filter(({ status }) => status === 200).length, 30)
  })

  it('a quota made in one process binds the other within moments, and a deleted one stops binding', async () => {
    const { clients, id } = await capped(1)
    // By notification: without it a process caches quotas for five seconds.
    const told = { within: 4000 }
    await eventually(async () => (await clients[0].get('/quotas')).status === 429, told)
    assert.equal((await clients[1].get('/quotas')).status, 429)
    await app.admin.delete(`/quotas/${id}`)
    for (const each of clients) await eventually(async () => (await each.get('/quotas')).status === 200, told)
  })
})
