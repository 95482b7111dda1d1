import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, eventually, type Reply, startApp } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const store = (name: string) => ({ type: 'memory_store', properties: { name } })
const LINKED = {
  resources: {
    Provider: { type: 'ai_provider', properties: { name: 'p', provider: 'ollama', default_model: 'demo' } },
    Agent: { type: 'agent', properties: { name: 'a', ai_provider_id: { ref: 'Provider' } } },
  },
}
const LARGE = 500

describe('formations with concurrent requests', function () {
  this.timeout(180_000)
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  const workers = steadyWorkers()
  const work = () => workers.start(app.databaseUrl, {}, ['orchestration'])
  const codes = (replies: Reply[]) => replies.map(({ status, body }) => body.error?.code ?? status).sort()
  const accepted = async (by: Client, body: object): Promise<string> =>
    (await createdBy(by, '/formations?wait=false', body, 202)).id
  const ended = (id: string): Promise<any> =>
    eventually(async () => {
      const { body } = await app.admin.get(`/formations/${id}`)
      return /ing$/.test(body.status) ? null : body
    })
  afterEach(() => workers.stop())

  it('get one name once', async () => {
    const asked = { name: 'wanted', template: { resources: { A: store('a') } } }
    const replies = await Promise.all([1, 2, 3, 4].map(() => project.key.post('/formations?wait=false', asked)))
    assert.deepEqual(codes(replies), [202, 'NAME_CONFLICT', 'NAME_CONFLICT', 'NAME_CONFLICT'])
    const { body } = await project.key.get('/formations?name=wanted')
    await work()
    assert.equal((await ended(body.data[0].id)).status, 'active')
    assert.equal((await project.key.get('/memory-stores?name=a')).body.total, 1)
  })

  it('are changed by one at a time, who is named to the others', async () => {
    const id = await accepted(project.key, { name: 'changed', template: { resources: { A: store('one') } } })
    await work()
    await ended(id)
    await workers.stop()
    const templates = ['two', 'three', 'four'].map(name => ({ template: { resources: { A: store(name) } } }))
    const replies = await Promise.all(templates.map(body => project.key.put(`/formations/${id}?wait=false`, body)))
    assert.deepEqual(codes(replies), [202, 'FORMATION_OPERATION_IN_PROGRESS', 'FORMATION_OPERATION_IN_PROGRESS'])
    const { data } = (await project.key.get(`/formations/${id}/events`)).body
    assert.equal(data.length, 2)
    const removal = await project.key.delete(`/formations/${id}`)
    for (const { status, body } of [...replies.filter(reply => reply.status !== 202), removal]) {
      assert.equal(status, 409)
      assert.equal(body.error.meta.operation_id, data[1].id)
    }
    const won = templates[replies.findIndex(({ status }) => status === 202)]
    await work()
    const { status, template } = await ended(id)
    assert.equal(status, 'active')
    assert.deepEqual(template, won.template)
    const [update, deletion] = await Promise.all([
      project.key.put(`/formations/${id}`, templates[0]),
      project.key.delete(`/formations/${id}`),
    ])
    assert.equal([update, deletion].filter(reply => reply.status === 409).length, 1, codes([update, deletion]).join())
  })

  it('continue with the current permissions: none of a key that was revoked', async () => {
    const other = await app.project()
    const id = await accepted(other.key, { name: 'revoked', template: LINKED })
    assert.equal((await app.admin.delete(`/project-keys/${other.keyId}`)).status, 204)
    await work()
    const { status, error, resources } = await ended(id)
    assert.deepEqual([status, error.code, resources], ['failed', 'FORBIDDEN', []])
    assert.equal((await app.admin.get(`/ai-providers?project_id=${other.id}`)).body.total, 0)
  })

  it('undo created resources when a permission is revoked meanwhile', async () => {
    const limited = await app.projectWith(['formations:*', 'ai-providers:*', 'agents:*'])
    const id = await accepted(limited.key, { name: 'narrowed', template: LINKED })
    const { policy_ids } = (await app.admin.get(`/project-keys/${limited.keyId}`)).body
    const statement = [
      { effect: 'Allow', action: ['formations:*', 'ai-providers:*'], resource: [`srn:${limited.id}:*:*`] },
    ]
    assert.equal((await app.admin.patch(`/policies/${policy_ids[0]}`, { document: { statement } })).status, 200)
    await work()
    const { status, error } = await ended(id)
    assert.deepEqual([status, error.code, error.meta.logical_id], ['failed', 'FORBIDDEN', 'Agent'])
    assert.equal((await app.admin.get(`/ai-providers?project_id=${limited.id}`)).body.total, 0)
    const refusals = await app.admin.get(
      `/audit-log?project_id=${limited.id}&action=agents:CreateAgent&principal_id=${limited.keyId}`,
    )
    assert.deepEqual(
      refusals.body.data.map(({ status, detail }: any) => [status, detail.surface]),
      [[403, 'formation']],
    )
  })

  it('leave the entries and the authors of who deployed them', async () => {
    const id = await accepted(project.key, { name: 'entries', template: LINKED })
    await work()
    const { resources } = await ended(id)
    const [provider, agent] = resources.map((each: any) => each.physical_resource_id as string)
    const { data } = (await app.admin.get(`/audit-log?project_id=${project.id}&limit=100`)).body
    for (const made of [provider, agent]) {
      const entries = data.filter(({ resource_public_id }: any) => resource_public_id === made)
      assert.deepEqual(
        entries.map(({ principal_type, principal_id, detail, status }: any) => [
          principal_type,
          principal_id,
          detail.surface,
          status,
        ]),
        [['api_key', project.keyId, 'formation', 201]],
      )
    }
    const { type, id: author } = await app.pool.oneFirst<any>(sql.unsafe`select author from agents where id = ${agent}`)
    assert.deepEqual([type, author], ['api_key', project.keyId])
  })

  it('make policies for admins alone, and not by a credential that is bound to a project', async () => {
    const statement = [{ effect: 'Allow', action: ['agents:*'], resource: ['*'] }]
    const template = { resources: { P: { type: 'policy', properties: { name: 'p', document: { statement } } } } }
    const refused = await project.key.post('/formations', { name: 'policies', template })
    assert.equal(refused.status, 403)
    assert.deepEqual(
      refused.body.error.meta.denied_actions.map(({ logical_id }: any) => logical_id),
      ['P'],
    )
    const user = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['*'], resource: [`srn:${project.id}:*:*`] }] },
    ])
    const asked = { project_id: project.id, name: 'policies', template }
    assert.equal((await user.post('/formations', asked)).status, 403)
    const id = await accepted(app.admin, asked)
    await work()
    const { status, error, resources } = await ended(id)
    assert.equal(status, 'active', JSON.stringify(error))
    assert.equal((await app.admin.get(`/policies/${resources[0].physical_resource_id}`)).body.name, 'p')
  })

  it(`deploy and tear down ${LARGE} resources, with few statements each`, async () => {
    const counting = await startApp({ databaseUrl: app.databaseUrl, workers: ['orchestration'], inProcess: true })
    const { key, id: projectId } = await app.project()
    const by = counting.as(key.token)
    // A fixed sequence: which of the earlier ones each depends on, half of them declared before those.
    let seed = 7
    const random = (below: number) => {
      seed = (seed * 48271) % 2147483647
      return seed % below
    }
    const entries = Array.from({ length: LARGE }, (_, n) => [
      `R${n}`,
      { ...store(`store ${n}`), depends_on: n === 0 ? [] : [`R${random(n)}`, `R${random(n)}`] },
    ])
    const resources = Object.fromEntries([...entries.filter((_, n) => n % 2), ...entries.filter((_, n) => n % 2 === 0)])
    counting.statements.length = 0
    const { body } = await by.post('/formations', { name: 'large', template: { resources } })
    assert.equal(body.status, 'active', JSON.stringify(body.error))
    assert.ok(counting.statements.length < 3 * LARGE, `${counting.statements.length} statements`)
    const place = new Map(body.resources.map(({ logical_id }: any, index: number) => [logical_id, index]))
    for (const [name, { depends_on }] of Object.entries(resources) as [string, any][])
      for (const other of depends_on) assert.ok(Number(place.get(other)) < Number(place.get(name)))
    const plan = await by.post('/formations/plan', { formation_id: body.id })
    assert.ok(plan.body.changes.every(({ action }: any) => action === 'no-op'))
    assert.deepEqual((await by.delete(`/formations/${body.id}`)).body, { success: true })
    assert.equal((await app.admin.get(`/memory-stores?project_id=${projectId}`)).body.total, 0)
    await counting.close()
  })
})
