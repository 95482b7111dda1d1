import assert from 'node:assert/strict'
import { type Client, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { active, fresh, physical, planned, store, updated } from './support.ts'

describe('formations of a hostile tenant', () => {
  const app = forSuite(() => startApp({ workers: ['orchestration'], inProcess: true }))
  const project = forSuite(() => app.project())

  const keyFor = async (...action: string[]): Promise<Client> => {
    const document = { statement: [{ effect: 'Allow', action, resource: ['*'] }] }
    const policy = await app.admin.post('/policies', { document })
    const key = await app.admin.post('/project-keys', {
      project_id: project.id,
      name: fresh(),
      policy_ids: [policy.body.id],
    })
    return app.as(key.body.secret)
  }
  const secret = (value: unknown) => ({ type: 'secret', properties: { name: fresh(), value } })
  const provider = (secret_id: object, more: object = {}) => ({
    type: 'ai_provider',
    properties: { name: fresh(), provider: 'ollama', default_model: 'demo', secret_id },
    ...more,
  })
  const isThere = async (id: string) => (await project.key.get(`/ai-providers/${id}`)).status === 200

  it('do not confirm a guess of a write-only value to those who may not change it', async () => {
    const formation = await active(project.key, { resources: { S: secret('4711') } })
    const guess = (value: unknown, more: object = {}) => ({
      template: { ...more, resources: { S: { type: 'secret', properties: { value } } } },
    })
    const reader = await keyFor('formations:*')
    const refused = { logical_id: 'S', resource_type: 'secret', action: 'secrets:UpdateSecret' }
    for (const body of [
      guess('4710'),
      guess('4711'),
      { ...guess({ param: 'P' }, { parameters: { P: {} } }), parameters: { P: '4711' } },
    ]) {
      const plan = await reader.post('/formations/plan', { formation_id: formation.id, ...body })
      assert.deepEqual(plan.body.changes[0].action, 'update')
      assert.deepEqual(plan.body.unauthorized_actions, [refused])
      const { status, body: answer } = await reader.put(`/formations/${formation.id}`, body)
      assert.deepEqual([status, answer.error?.meta.denied_actions], [403, [refused]])
    }
    assert.deepEqual(await planned(project.key, { formation_id: formation.id, ...guess('4711') }), [['S', 'no-op']])
    // A stored value reveals nothing to the caller.
    assert.deepEqual(await planned(reader, { formation_id: formation.id }), [['S', 'no-op']])
  })

  it('create no resource through a condition that their author may not create', async () => {
    const tenant = await keyFor('formations:*', 'memories:*')
    const document = { statement: [{ effect: 'Allow', action: ['*'], resource: ['*'] }] }
    const template = {
      parameters: { Env: { default: 'dev' } },
      resources: {
        A: store('a'),
        Late: { type: 'policy', properties: { document }, condition: { param_equals: ['Env', 'prod'] } },
      },
    }
    const refused = [{ logical_id: 'Late', resource_type: 'policy', action: 'policies:CreatePolicy' }]
    const created = await tenant.post('/formations', { name: fresh(), template })
    assert.deepEqual([created.status, created.body.error?.meta.denied_actions], [403, refused])
    const plan = await tenant.post('/formations/plan', { template })
    assert.deepEqual(plan.body.unauthorized_actions, refused)
    const resources = { A: store('a'), B: { ...store('b'), condition: { param_equals: ['Env', 'prod'] } } }
    await active(tenant, { ...template, resources })
  })

  it('delete no provider with a secret that a formation has', async () => {
    const shared = await active(project.key, { resources: { S: secret('v') }, outputs: { id: { ref: 'S' } } })
    const other = await active(project.key, {
      resources: { P: provider({ import: `${shared.name}.id` }, { prevent_destroy: true }) },
    })
    // The template keeps the output, so that only the secret goes.
    const emptied = await updated(project.key, shared, { template: { resources: {}, outputs: { id: 'gone' } } })
    assert.equal(emptied.status, 'active')
    assert.ok(await isThere(physical(other, 'P')))
    const { data } = (await project.key.get(`/formations/${shared.id}/events`)).body
    assert.equal(data.at(-1).events.at(-1).error.code, 'SECRET_HAS_DEPENDENTS')

    const retained = await active(project.key, {
      resources: { S: secret('v'), P: provider({ ref: 'S' }, { deletion_policy: 'retain' }) },
    })
    await updated(project.key, retained, { template: { resources: {} } })
    await updated(project.key, retained, {})
    assert.ok(await isThere(physical(retained, 'P')))
    const { status, body } = await project.key.delete(`/formations/${retained.id}`)
    assert.deepEqual([status, body.error?.code], [409, 'FORMATION_DELETE_FAILED'])
    assert.ok(await isThere(physical(retained, 'P')))

    const foreign = await active(project.key, { resources: { S: secret('v') } })
    const named = { ...provider({}).properties, secret_id: physical(foreign, 'S') }
    const made = await project.key.post('/ai-providers', named)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    assert.equal((await project.key.delete(`/formations/${foreign.id}`)).status, 200)
    assert.equal(await isThere(made.body.id), false)
  })

  it('are refused where parameters or imports make a long text of a short template', async () => {
    const long = { P: 'x'.repeat(1000) }
    const times = (count: number) => ({ sub: '${P}'.repeat(count) })
    const many = Array.from({ length: 2000 }, () => ({ param: 'P' }))
    for (const part of [
      { outputs: { o: times(2000) } },
      { metadata: { m: times(2000) } },
      { metadata: many },
      { resources: { A: store('a', {}, { description: times(200_000) }) } },
    ]) {
      const template = { parameters: { P: {} }, resources: {}, ...part }
      const { status, body } = await project.key.post('/formations', { name: fresh(), template, parameters: long })
      assert.deepEqual(
        [status, body.error?.meta.problems[0].code],
        [400, 'TOO_LARGE'],
        JSON.stringify(body).slice(0, 500),
      )
    }
    const source = await active(
      project.key,
      { parameters: { P: {} }, resources: {}, outputs: { o: times(500) } },
      { parameters: long },
    )
    const tags = Object.fromEntries(['a', 'b', 'c'].map(name => [name, { import: `${source.name}.o` }]))
    const template = { resources: { A: store('a', {}, { tags }) } }
    const { status, body } = await project.key.post('/formations', { name: fresh(), template })
    assert.deepEqual(
      [status, body.error?.meta.problems[0].code],
      [400, 'TOO_LARGE'],
      JSON.stringify(body).slice(0, 500),
    )
  })
})
