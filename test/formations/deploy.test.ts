import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { framesOf } from '../support/frames.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const PROVIDER = { type: 'ai_provider', properties: { name: 'Demo', provider: 'ollama', default_model: 'demo' } }
const AGENT = { type: 'agent', properties: { name: 'Support', ai_provider_id: { ref: 'Provider' } } }
const LINKED = {
  resources: { Agent: AGENT, Provider: PROVIDER },
  outputs: {
    agent_id: { ref: 'Agent' },
    note: { sub: 'agent ${Agent} of ${body.x}' },
    name: { ref_attr: 'Agent.name' },
  },
}

let count = 0
const fresh = () => `stack ${++count}`

describe('formations', () => {
  const app = forSuite(() => startApp({ workers: ['orchestration'], env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' } }))
  const project = forSuite(() => app.project())

  const deployed = (template: unknown, more: object = {}) =>
    createdBy(project.key, '/formations', { name: fresh(), template, ...more })
  const active = async (template: unknown, more: object = {}) => {
    const formation = await deployed(template, more)
    assert.equal(formation.status, 'active', JSON.stringify(formation.error))
    return formation
  }
  const physical = (formation: any, logicalId: string): string =>
    formation.resources.find((each: any) => each.logical_id === logicalId && each.status !== 'deleted')
      .physical_resource_id
  const updated = async (formation: any, body: object) => {
    const reply = await project.key.put(`/formations/${formation.id}`, body)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }
  const planned = async (body: object) =>
    (await createdBy(project.key, '/formations/plan', body, 200)).changes.map(({ logical_id, action }: any) => [
      logical_id,
      action,
    ])

  it('create all resources of a template, in the order of their references', async () => {
    const formation = await active(LINKED)
    assert.deepEqual(
      formation.resources.map(({ logical_id, status }: any) => [logical_id, status]),
      [
        ['Provider', 'created'],
        ['Agent', 'created'],
      ],
    )
    const agent = (await project.key.get(`/agents/${physical(formation, 'Agent')}`)).body
    assert.equal(agent.ai_provider_id, physical(formation, 'Provider'))
    assert.deepEqual(formation.outputs, {
      agent_id: agent.id,
      note: `agent ${agent.id} of \${body.x}`,
      name: 'Support',
    })
    assert.deepEqual(await planned({ formation_id: formation.id }), [
      ['Provider', 'no-op'],
      ['Agent', 'no-op'],
    ])
    const again = await updated(formation, {})
    assert.equal(again.status, 'active')
    const { data } = (await project.key.get(`/formations/${formation.id}/events`)).body
    assert.deepEqual(
      data.map(({ operation_type, status, events }: any) => [
        operation_type,
        status,
        events.map((each: any) => each.action),
      ]),
      [
        ['create', 'succeeded', ['create', 'create']],
        ['update', 'succeeded', ['no-op', 'no-op']],
      ],
    )
  })

  it('refuse templates whole, with the path of each problem', async () => {
    const wrong = {
      resources: {
        A: { type: 'agent', properties: { nam: 'x' } },
        B: { type: 'guardrail_x' },
        C: { type: 'agent', properties: { name: 'c', ai_provider_id: { ref: 'Nobody' } } },
        D: { type: 'agent', depends_on: ['E'] },
        E: { type: 'agent', depends_on: ['D'] },
        F: { type: 'agent', properties: { name: 'f', trace_content_mode: 'some' } },
      },
    }
    const { status, body } = await project.key.post('/formations/validate', { template: wrong })
    assert.equal(status, 200)
    assert.equal(body.valid, false)
    assert.deepEqual(body.errors.map(({ path }: any) => path).sort(), [
      'resources',
      'resources.A.properties.nam',
      'resources.B.type',
      'resources.C.properties.ai_provider_id',
      'resources.F.properties.trace_content_mode',
    ])
    const refused = await project.key.post('/formations', { name: 'never', template: wrong })
    assert.equal(refused.status, 400)
    assert.equal(refused.body.error.code, 'VALIDATION_FAILED')
    assert.equal((await project.key.get('/formations?name=never')).body.total, 0)
  })

  it('undo resources that a failed deploy has created, and continue with a valid template', async () => {
    const broken = {
      resources: {
        ...LINKED.resources,
        Actor: {
          type: 'actor',
          properties: { name: 'x', agent_id: 'agent_00000000000000000000000000' },
          depends_on: 'Agent',
        },
      },
    }
    const formation = await deployed(broken)
    assert.equal(formation.status, 'failed')
    assert.equal(formation.error.code, 'AGENT_NOT_FOUND')
    assert.deepEqual(formation.error.meta.logical_id, 'Actor')
    const [{ events }] = (await project.key.get(`/formations/${formation.id}/events`)).body.data
    assert.deepEqual(
      events.map(({ logical_id, action, status }: any) => [logical_id, action, status]),
      [
        ['Provider', 'create', 'succeeded'],
        ['Agent', 'create', 'succeeded'],
        ['Actor', 'create', 'failed'],
        ['Agent', 'rollback', 'succeeded'],
        ['Provider', 'rollback', 'succeeded'],
      ],
    )
    for (const event of events.slice(0, 2)) {
      const { status } = await project.key.get(
        `/${event.logical_id === 'Agent' ? 'agents' : 'ai-providers'}/${event.physical_resource_id}`,
      )
      assert.equal(status, 404)
    }
    const repaired = await updated(formation, { template: LINKED })
    assert.equal(repaired.status, 'active')
    assert.equal(repaired.error, null)
    // Deleted resources keep their IDs, after the current ones.
    const listed = repaired.resources.map(({ status }: any) => status === 'deleted')
    assert.deepEqual(listed, listed.toSorted())
    const history = repaired.resources.filter(({ status }: any) => status === 'deleted')
    for (const event of events.slice(0, 2))
      assert.ok(
        history.some(({ physical_resource_id: id }: any) => id === event.physical_resource_id),
        event.logical_id,
      )
  })

  it('keep the values of quotas that may not change, and name the field', async () => {
    const quota = { scope: 'project', metric: 'requests', window: 'rolling_24h', limit: 10, mode: 'monitor' }
    const template = (properties: object) => ({ resources: { Q: { type: 'quota', properties } } })
    const formation = await active(template(quota))
    const failed = await updated(formation, { template: template({ ...quota, window: 'rolling_1h', limit: 20 }) })
    assert.equal(failed.status, 'failed')
    assert.equal(failed.error.code, 'VALIDATION_FAILED')
    assert.match(failed.error.message, /window/)
    const stored = (await project.key.get(`/quotas/${physical(formation, 'Q')}`)).body
    assert.deepEqual([stored.window, stored.limit], ['rolling_24h', 10])
    const changed = await updated(formation, { template: template({ ...quota, limit: 20 }) })
    assert.equal(changed.status, 'active')
    assert.equal((await project.key.get(`/quotas/${physical(formation, 'Q')}`)).body.limit, 20)
  })

  it('never show a secret, and leave its value unchanged without a new one', async () => {
    const template = {
      parameters: { Key: { no_echo: true, use_previous_value: true } },
      resources: { S: { type: 'secret', properties: { name: 'key', value: { param: 'Key' } } } },
    }
    const without = await project.key.post('/formations', { name: fresh(), template })
    assert.equal(without.body.error.code, 'FORMATION_MISSING_PARAMETERS')
    assert.deepEqual(without.body.error.meta.missing_parameters, ['Key'])
    const formation = await active(template, { parameters: { Key: 'hush-hush' } })
    assert.deepEqual(formation.template.resources.S.properties.value, { no_echo: true })
    assert.deepEqual(formation.resolved_parameters, { Key: '***' })
    assert.deepEqual(await planned({ formation_id: formation.id, template }), [['S', 'no-op']])
    assert.deepEqual(await planned({ formation_id: formation.id, template, parameters: { Key: 'hush-hush' } }), [
      ['S', 'no-op'],
    ])
    assert.deepEqual(await planned({ formation_id: formation.id, template, parameters: { Key: 'other' } }), [
      ['S', 'update'],
    ])
    const echoed = await project.key.put(`/formations/${formation.id}`, { template: formation.template })
    assert.equal(echoed.status, 400)
    assert.equal((await updated(formation, {})).status, 'active')
  })

  it('remove undeclared resources, and keep resources that are to be retained', async () => {
    const chat = (name: string, more: object = {}) => ({ type: 'memory_store', properties: { name }, ...more })
    const formation = await active({
      resources: { A: chat('a'), B: chat('b', { deletion_policy: 'retain' }), C: chat('c') },
    })
    const [a, b] = [physical(formation, 'A'), physical(formation, 'B')]
    const next = await updated(formation, { template: { resources: { C: chat('c') } } })
    assert.equal(next.status, 'active')
    assert.equal((await project.key.get(`/memory-stores/${a}`)).status, 404)
    assert.equal((await project.key.get(`/memory-stores/${b}`)).status, 200)
    assert.deepEqual(await planned({ formation_id: formation.id }), [['C', 'no-op']])
    assert.deepEqual((await project.key.delete(`/formations/${formation.id}`)).body, { success: true })
    assert.equal((await project.key.get(`/formations/${formation.id}`)).status, 404)
    assert.equal((await project.key.get(`/memory-stores/${physical(formation, 'C')}`)).status, 404)
  })

  it('create a deleted resource again', async () => {
    const formation = await active({
      resources: { D: { type: 'document', properties: { content: 'one', path: '/a.txt' } } },
    })
    await project.key.delete(`/documents/${physical(formation, 'D')}`)
    const plan = (await project.key.post('/formations/plan', { formation_id: formation.id })).body
    assert.deepEqual([plan.changes[0].action, plan.changes[0].diff.current], ['update', null])
    const again = await updated(formation, {})
    assert.equal(again.status, 'active', JSON.stringify(again.error))
    assert.equal((await project.key.get(`/documents/${physical(again, 'D')}`)).body.content, 'one')
  })

  it('check every action of the caller before anything is made', async () => {
    const limited = await app.projectWith(['formations:*', 'ai-providers:*'])
    const refused = await limited.key.post('/formations', { name: fresh(), template: LINKED })
    assert.equal(refused.status, 403)
    assert.deepEqual(refused.body.error.meta.denied_actions, [
      { logical_id: 'Agent', resource_type: 'agent', action: 'agents:CreateAgent' },
    ])
    assert.equal((await limited.key.get('/ai-providers')).status, 200)
    assert.equal((await limited.key.get('/ai-providers')).body.total, 0)
    const plan = await limited.key.post('/formations/plan', { template: LINKED })
    assert.equal(plan.body.unauthorized_actions.length, 1)
  })

  it('store annotations unchanged, and resolve annotations of the template', async () => {
    const refused = await project.key.post('/formations', {
      name: fresh(),
      template: LINKED,
      metadata: { v: { sub: 'x' } },
    })
    assert.equal(refused.body.error.code, 'FORMATION_INVALID_METADATA')
    assert.deepEqual(refused.body.error.meta.paths, ['metadata.v'])
    const metadata = { owner: { ref: 'Agent' }, list: [1, { sub: 'v ${Agent}' }] }
    const formation = await active({ ...LINKED, metadata }, { metadata: ['a', 1, null] })
    const agent = physical(formation, 'Agent')
    assert.deepEqual(formation.template.metadata, metadata)
    assert.deepEqual(formation.resolved_metadata, { owner: agent, list: [1, `v ${agent}`] })
    assert.deepEqual(formation.metadata, ['a', 1, null])
    for (const annotation of ['text', 5, true, { a: { b: null } }, null]) {
      const { body } = await project.key.patch(`/formations/${formation.id}`, { metadata: annotation })
      assert.deepEqual([body.metadata, body.status], [annotation, 'active'])
    }
    const { total } = (await project.key.get(`/formations/${formation.id}/events`)).body
    assert.equal(total, 1)
  })

  it('take no actor that was there before', async () => {
    const actor = { name: 'Ann', external_id: 'ann' }
    const { body: before } = await project.key.post('/actors', actor)
    const formation = await deployed({ resources: { Ann: { type: 'actor', properties: actor } } })
    assert.deepEqual([formation.status, formation.error.code], ['failed', 'NAME_CONFLICT'])
    assert.equal((await project.key.delete(`/formations/${formation.id}`)).status, 200)
    assert.equal((await project.key.get(`/actors/${before.id}`)).status, 200)
  })

  it('run one operation of a formation at a time', async () => {
    const formation = await active(LINKED)
    const replies = await Promise.all([1, 2, 3].map(() => project.key.put(`/formations/${formation.id}`, {})))
    const [ran, refused] = [200, 409].map(status => replies.filter(reply => reply.status === status))
    assert.ok(ran.length >= 1 && ran.length + refused.length === 3, JSON.stringify(replies.map(({ body }) => body)))
    for (const { body } of refused) {
      assert.equal(body.error.code, 'FORMATION_OPERATION_IN_PROGRESS')
      assert.match(body.error.meta.operation_id, /^form_op_/)
    }
  })

  it('delete nothing where something would be refused', async () => {
    const formation = await active(LINKED)
    const provider = physical(formation, 'Provider')
    const other = (await project.key.post('/agents', { name: 'other', ai_provider_id: provider })).body
    const refused = await project.key.delete(`/formations/${formation.id}`)
    assert.equal(refused.status, 409, JSON.stringify(refused.body))
    assert.equal(refused.body.error.code, 'FORMATION_DELETE_FAILED')
    assert.deepEqual(
      refused.body.error.meta.failures.map(({ logical_id, error }: any) => [logical_id, error.code]),
      [['Provider', 'AI_PROVIDER_HAS_DEPENDENTS']],
    )
    assert.equal((await project.key.get(`/agents/${physical(formation, 'Agent')}`)).status, 200)
    assert.equal((await project.key.get(`/formations/${formation.id}`)).body.status, 'delete_failed')
    await project.key.delete(`/agents/${other.id}`)
    assert.equal((await project.key.delete(`/formations/${formation.id}`)).status, 200)
  })

  it('show the secret of a webhook to those who may read it', async () => {
    const template = {
      resources: {
        Hook: { type: 'webhook', properties: { name: 'h', url: 'https://example.com/h', events: ['agents.created'] } },
      },
      outputs: { secret: { ref_attr: 'Hook.secret' }, hook: { ref: 'Hook' } },
    }
    const formation = await active(template)
    const { secret } = (await project.key.get(`/webhooks/${formation.outputs.hook}/secret`)).body
    assert.equal(formation.outputs.secret, secret)
  })

  it('accept YAML, and continue in the background', async () => {
    const template = `
# two stores
resources:
  A:
    type: memory_store
    properties: { name: yaml, duplicate_threshold: { param: Near } }
parameters:
  Near: { default: "0.95" }
`
    const { status, body } = await project.key.post('/formations?wait=false', { name: fresh(), template })
    assert.equal(status, 202)
    assert.equal(body.status, 'creating')
    const [operation] = (await project.key.get(`/formations/${body.id}/events`)).body.data
    const path = `/formations/${body.id}/operations/${operation.id}/stream`
    const frames = framesOf('get', path, (await project.key.get(path)).body)
    assert.deepEqual(
      frames.map(({ event }) => event),
      ['resource', 'operation'],
    )
    const after = (await project.key.get(`/formations/${body.id}`)).body
    assert.equal(after.status, 'active', JSON.stringify(after.error))
    assert.equal((await project.key.get(`/memory-stores/${physical(after, 'A')}`)).body.duplicate_threshold, 0.95)
  })

  it('report a lost permission to a follower, and end the stream', async () => {
    const idle = await startApp({ env: { STREAM_PING_INTERVAL_MS: '100' } })
    try {
      const { key, keyId } = await idle.project()
      const template = { resources: { A: { type: 'memory_store', properties: { name: 'a' } } } }
      const { id } = (await key.post('/formations?wait=false', { name: fresh(), template })).body
      const [operation] = (await key.get(`/formations/${id}/events`)).body.data
      const path = `/formations/${id}/operations/${operation.id}/stream`
      const followed = key.get(path)
      const statement = [{ effect: 'Deny', action: ['formations:ListFormationEvents'] }]
      const { id: policy } = (await idle.admin.post('/policies', { document: { statement } })).body
      assert.equal((await idle.admin.patch(`/project-keys/${keyId}`, { policy_ids: [policy] })).status, 200)
      const [last] = framesOf('get', path, (await followed).body)
      assert.deepEqual([last.event, last.data.code], ['error', 'FORBIDDEN'])
    } finally {
      await idle.close()
    }
  })
})
