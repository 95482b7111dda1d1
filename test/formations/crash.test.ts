import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from '#core/db/sql.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { operationWork } from '#formations/deploys/operate.ts'
import { client, eventually, type Reply, startApp, type TestApp } from '../support/app.ts'
import { type HostedProcess, runWorker } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startResettingProxy } from '../support/resetting-proxy.ts'
import { startHandler } from './handler-double.ts'

/** Where workers are killed: two for each project, of which each operation may lose both. A long run: CRASH_EVERY=1. */
const KILLS: string[][] = [
  ['formation_claimed=kill:2', 'formation_step=kill:3'],
  ['formation_called=kill:5', 'formation_applied=kill'],
]
if (process.env.CRASH_EVERY)
  for (let n = 1; n <= 16; n++) KILLS.push([`formation_called=kill:${n}`, `formation_step=kill:${17 - n}`])

const FAST = { WORKER_HEARTBEAT_INTERVAL_MS: '200', SHUTDOWN_GRACE_MS: '500' }

const LISTS = ['ai-providers', 'agents', 'documents', 'memory-stores', 'secrets', 'metadata-schemas', 'actors']

const provider = (name: string) => ({
  type: 'ai_provider',
  properties: { name, provider: 'ollama', default_model: 'demo' },
})
const stack = (name: string) => ({
  Provider: provider(`${name} provider`),
  Agent: { type: 'agent', properties: { name: `${name} agent`, ai_provider_id: { ref: 'Provider' } } },
  Doc: { type: 'document', properties: { content: `${name} text`, path: `/${name}.txt` } },
  Store: { type: 'memory_store', properties: { name: `${name} store` } },
  Schema: {
    type: 'metadata_schema',
    properties: { resource_type: 'document', path_prefix: `/${name}/`, schema: { type: 'object' } },
  },
  Secret: { type: 'secret', properties: { name: `${name} secret`, value: 'hush' } },
  Thing: { type: 'thing', properties: { label: name, owner: { ref: 'Agent' } } },
})
/** The same with something to do of every kind: a change, a replacement, a delete, a create. */
const changed = (name: string) => {
  const { Store: _gone, ...kept } = stack(name)
  return {
    ...kept,
    Provider: provider(`${name} provider, changed`),
    Doc: { type: 'document', properties: { content: `${name} text, changed`, path: `/${name}.txt` } },
    Schema: { ...kept.Schema, properties: { ...kept.Schema.properties, resource_type: 'file' } },
    Thing: { type: 'thing', properties: { label: `${name} changed`, owner: { ref: 'Agent' } } },
    Late: { type: 'document', properties: { content: `${name} late`, path: `/${name}-late.txt` } },
  }
}
const broken = (name: string) => ({
  ...stack(name),
  Last: {
    type: 'actor',
    properties: { name: 'x', agent_id: 'agent_00000000000000000000000000' },
    depends_on: ['Thing', 'Secret', 'Schema', 'Store', 'Doc'],
  },
})

describe('formations whose workers are lost', function () {
  this.timeout(600_000)
  let app: TestApp
  let handler: Awaited<ReturnType<typeof startHandler>>
  let worker: HostedProcess | undefined

  const doomedWorkers: TestProcess[] = []
  const doomed = async (points: string) => {
    const env = { ...FAST, ...handler.env, FAULT_POINTS: points }
    const started = await startProcess('worker', app.databaseUrl, env, ['orchestration'])
    doomedWorkers.push(started)
    return started
  }
  const healthy = async () => {
    worker = await runWorker(app.databaseUrl, { ...FAST, ...handler.env }, ['orchestration'])
  }
  const ok = async (reply: Promise<Reply>): Promise<any> => {
    const { status, body } = await reply
    assert.ok(status < 300, `${status} ${JSON.stringify(body)}`)
    return body
  }
  const create = (project: string, name: string, resources: object, query = '?wait=false') =>
    ok(app.admin.post(`/formations${query}`, { project_id: project, name, template: { resources } }))
  const settled = (id: string) =>
    eventually(
      async () => {
        const { status, body } = await app.admin.get(`/formations/${id}`)
        if (status === 404) return { status: 'deleted' } as any
        return /ing$/.test(body.status) ? null : body
      },
      { within: 120_000, what: `the end of ${id}` },
    )
  const project = async () => (await ok(app.admin.post('/projects', { name: 'crash' }))).id as string
  const lastEvents = async (id: string): Promise<[string, string, string][]> => {
    const rows = await app.pool.any(sql.unsafe`
      select e.seq, e.logical_id, e.action, e.status from formation_events e
      where e.operation_id = (select operation_id from formations where id = ${id}) order by e.seq`)
    assert.deepEqual(
      rows.map(({ seq }: any) => seq),
      rows.map((_, index) => index + 1),
    )
    return rows.map(({ logical_id, action, status }: any) => [logical_id, action, status])
  }
  /** All that is in a project, and all that its formations track: the same, each once. */
  const requireTracked = async (projectId: string, formations: string[]) => {
    const there: string[] = []
    for (const list of LISTS)
      for (const { id } of (await ok(app.admin.get(`/${list}?project_id=${projectId}&limit=100`))).data) there.push(id)
    const tracked: string[] = []
    for (const id of formations) {
      const { status, body } = await app.admin.get(`/formations/${id}`)
      if (status === 404) continue
      for (const each of body.resources)
        if (each.status !== 'deleted' && each.physical_resource_id !== null)
          tracked.push(each.physical_resource_id as string)
    }
    const ofHandler = (id: string) => id.startsWith('thing-')
    assert.deepEqual(there.sort(), tracked.filter(id => !ofHandler(id)).sort())
    return tracked.filter(ofHandler)
  }

  before(async () => {
    handler = await startHandler()
    app = await startApp({ env: { ...FAST, ...handler.env } })
  })
  // Those that a failed test leaves would take the work of the next one.
  afterEach(() => Promise.all([worker?.stop(), ...doomedWorkers.map(each => each.kill())]))
  after(async () => {
    await app?.close()
    await handler?.close()
  })

  it('continue with another worker: nothing is made twice, forgotten or orphaned', async () => {
    const things: string[] = []
    for (const points of KILLS) {
      const projectId = await project()
      await healthy()
      const [before, doomedStack] = await Promise.all(
        ['changing', 'going'].map(name => create(projectId, name, stack(name), '')),
      )
      assert.deepEqual([before.status, doomedStack.status], ['active', 'active'])
      await worker?.stop()
      const creating = await create(projectId, 'coming', stack('coming'))
      const failing = await create(projectId, 'failing', broken('failing'))
      await ok(app.admin.put(`/formations/${before.id}?wait=false`, { template: { resources: changed('changing') } }))
      const deleting = app.admin.delete(`/formations/${doomedStack.id}`)
      let isOver = false
      const ids = [creating, before, failing].map(({ id }) => id as string)
      const over = Promise.all([deleting, ...ids.map(settled)]).then(() => {
        isOver = true
      })
      for (const point of points) {
        const lost = await doomed(point)
        await Promise.race([lost.exited, over])
        await lost.kill()
      }
      assert.ok(!isOver || process.env.CRASH_EVERY, `${points.join()} were not reached`)
      await healthy()
      assert.deepEqual((await deleting).body, { success: true }, points.join())
      const ended = await Promise.all([creating, before, failing].map(({ id }) => settled(id)))
      const shown = JSON.stringify([points, ended.map(({ error }) => error)])
      assert.deepEqual(
        ended.map(({ status }) => status),
        ['active', 'active', 'failed'],
        shown,
      )
      assert.equal(ended[2].error.code, 'AGENT_NOT_FOUND', shown)
      const names = Object.keys(stack(''))
      assert.deepEqual(
        await lastEvents(creating.id),
        names.map(name => [name, 'create', 'succeeded']),
        shown,
      )
      assert.deepEqual(
        await lastEvents(before.id),
        [
          ['Provider', 'update', 'succeeded'],
          ['Agent', 'no-op', 'succeeded'],
          ['Doc', 'update', 'succeeded'],
          ['Schema', 'replace', 'succeeded'],
          ['Secret', 'no-op', 'succeeded'],
          ['Thing', 'update', 'succeeded'],
          ['Late', 'create', 'succeeded'],
          ['Store', 'delete', 'succeeded'],
          ['Schema', 'replace-cleanup', 'succeeded'],
        ],
        shown,
      )
      assert.deepEqual(
        await lastEvents(failing.id),
        [
          ...names.map(name => [name, 'create', 'succeeded']),
          ['Last', 'create', 'failed'],
          ...names.toReversed().map(name => [name, 'rollback', 'succeeded']),
        ],
        shown,
      )
      assert.deepEqual(
        await lastEvents(doomedStack.id),
        names.toReversed().map(name => [name, 'delete', 'succeeded']),
        shown,
      )
      const formations = [creating, before, failing].map(({ id }) => id)
      things.push(...(await requireTracked(projectId, formations)))
      const plan = await ok(app.admin.post('/formations/plan', { project_id: projectId, formation_id: before.id }))
      assert.ok(
        plan.changes.every(({ action }: any) => action === 'no-op'),
        JSON.stringify(plan),
      )
      await worker?.stop()
    }
    assert.deepEqual([...handler.things.keys()].sort(), things.sort())
  })

  const SMALL = {
    Doc: { type: 'document', properties: { content: 'a text', path: '/small.txt' } },
    Thing: { type: 'thing', properties: { label: 'small', password: 'hush' } },
    Store: { type: 'memory_store', properties: { name: 'small' } },
  }
  const ALL_CREATED = Object.keys(SMALL).map(name => [name, 'create', 'succeeded'])

  it('continue within five seconds with another worker, whatever the lost one was doing', async () => {
    // With the intervals of a deployment. A frozen worker has claimed the deploy and is killed while the other one lives.
    for (const point of ['formation_called', 'formation_step']) {
      const projectId = await project()
      const env = { ...handler.env, FAULT_POINTS: `${point}=freeze:120000` }
      const lost = await startProcess('worker', app.databaseUrl, env, ['orchestration'])
      const { id } = await create(projectId, point, SMALL)
      const isClaimed = () =>
        app.pool.exists(sql.unsafe`select from formation_attempts where formation_id = ${id} and state = 'running'`)
      await eventually(isClaimed, { what: `the claim before ${point}` })
      worker = await runWorker(app.databaseUrl, handler.env, ['orchestration'])
      await sleep(2000)
      assert.ok(await isClaimed(), point)
      const killedAt = performance.now()
      await lost.kill()
      assert.equal((await settled(id)).status, 'active')
      const seconds = (performance.now() - killedAt) / 1000
      assert.ok(seconds < 6, `${point}: ${seconds.toFixed(1)} s`)
      assert.deepEqual(await lastEvents(id), ALL_CREATED)
      await worker.stop()
    }
  })

  it('write nothing when they wake up after their lease', async () => {
    const projectId = await project()
    const frozen = await doomed('formation_called=freeze:5000')
    const { id } = await create(projectId, 'frozen', SMALL)
    const documents = async () => (await ok(app.admin.get(`/documents?project_id=${projectId}`))).total
    await eventually(documents, { what: 'the document that the frozen worker makes' })
    const { pool, queues } = app.services
    // The state once the lease of the worker, and of its message, are over.
    const operation_id = await pool.oneFirst(sql.unsafe`
      update formation_attempts set due_at = now() - interval '1 s' where formation_id = ${id} returning id`)
    await pool.query(sql.unsafe`
      delete from pgboss.job_common where name = ${operationWork.name} and data ->> 'entity_id' = ${id}`)
    await healthy()
    await queues.send([
      queueMessage(operationWork.queue, { entity_id: id, work_id: String(operation_id), project_id: projectId }),
    ])
    assert.equal((await settled(id)).status, 'active')
    await eventually(() => frozen.output.some(line => line.includes('claim_lost')), {
      what: 'the end of the frozen worker',
    })
    await frozen.kill()
    await worker?.stop()
    assert.deepEqual(await lastEvents(id), ALL_CREATED)
    assert.equal((await requireTracked(projectId, [id])).length, 1)
  })

  it('make nothing twice where the answers to their commits are lost', async () => {
    const projectId = await project()
    const proxy = await startResettingProxy(app.databaseUrl)
    const started = await startProcess('worker', proxy.url, { ...FAST, ...handler.env }, ['orchestration'])
    const stores = Object.fromEntries(
      Array.from({ length: 60 }, (_, n) => [`S${n}`, { type: 'memory_store', properties: { name: `store ${n}` } }]),
    )
    const { id } = await create(projectId, 'lost', { ...SMALL, ...stores })
    let resets = 0
    for (let seen = 0; resets < 5; resets++) {
      const more = async () => {
        const now = (await app.admin.get(`/memory-stores?project_id=${projectId}&limit=1`)).body.total
        return now > seen && now
      }
      seen = await eventually(more, { every: 1, what: 'more stores' })
      if (seen === 60) break
      proxy.hold()
      await new Promise(resolve => setTimeout(resolve, 20))
      proxy.resetAll()
      proxy.release()
    }
    assert.ok(resets > 0)
    assert.equal((await settled(id)).status, 'active')
    await started.kill('SIGTERM')
    await proxy.close()
    assert.deepEqual(
      await lastEvents(id),
      [...Object.keys(SMALL), ...Object.keys(stores)].map(name => [name, 'create', 'succeeded']),
    )
    await requireTracked(projectId, [id])
  })

  it('answer a repeat of a create whose web process was lost, with what only its answer may show', async () => {
    const projectId = await project()
    const web = await startProcess('web', app.databaseUrl, { ...FAST, ...handler.env })
    const body = {
      project_id: projectId,
      name: 'answered',
      template: {
        resources: { Key: { type: 'api_key', properties: { name: 'k' } }, ...SMALL },
        outputs: { key: { ref_attr: 'Key.secret' }, label: { ref_attr: 'Thing.label' } },
      },
    }
    const key = { 'Idempotency-Key': 'create-answered' }
    const lost = client(web.url, app.admin.token).post('/formations', body, key)
    const refused = assert.rejects(lost)
    const { pool } = app
    const id = await eventually(() => pool.maybeOneFirst(sql.unsafe`select id from formations where name = 'answered'`))
    await web.kill()
    await refused
    const killed = await doomed('formation_step=kill')
    await killed.exited
    await healthy()
    assert.equal((await settled(String(id))).status, 'active')
    await pool.query(sql.unsafe`update idempotency_keys set leased_until = now()`)
    const again = await ok(app.admin.post('/formations', body, key))
    assert.equal(again.id, id)
    assert.match(again.outputs.key, /^sk_/)
    assert.equal(again.outputs.label, 'the small')
    const { outputs } = await ok(app.admin.get(`/formations/${id}`))
    assert.deepEqual(outputs.key, { no_echo: true })
    assert.equal((await ok(app.admin.get(`/formations?project_id=${projectId}`))).total, 1)
    assert.deepEqual(await lastEvents(String(id)), [['Key', 'create', 'succeeded'], ...ALL_CREATED])
  })

  it('retry refused changes once the reason is gone', async () => {
    const projectId = await project()
    const { id: taken } = await ok(
      app.admin.post('/documents', { project_id: projectId, content: 'x', path: '/small.txt' }),
    )
    await healthy()
    const formation = await create(projectId, 'refused', SMALL, '')
    assert.equal(formation.status, 'failed')
    assert.equal(formation.error.meta.logical_id, 'Doc')
    await ok(app.admin.delete(`/documents/${taken}`))
    const repaired = await ok(app.admin.put(`/formations/${formation.id}`, {}))
    assert.equal(repaired.status, 'active', JSON.stringify(repaired.error))
    assert.equal((await requireTracked(projectId, [formation.id])).length, 1)
    await worker?.stop()
  })
})
