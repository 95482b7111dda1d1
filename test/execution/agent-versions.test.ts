import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type Client, type Reply, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

describe('versions of agents', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.projectWith(ACTIONS))
  const key = forSuite(() => project.key)
  let ai_provider_id: string

  const ACTIONS = ['agents:*', 'ai-providers:*', 'model-routes:*', 'events:ListEvents', 'audit:ListAuditEntries']

  const newProvider = async (as: Client = key): Promise<string> =>
    (
      await as.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'model-1',
        base_url: 'https://models.example.com/v1',
      })
    ).body.id

  before(async () => {
    ai_provider_id = await newProvider()
  })

  const ok = (reply: Reply, status = 200): any => {
    assert.equal(reply.status, status, JSON.stringify(reply.body))
    return reply.body
  }
  const refused = (reply: Reply, status: number, code: string): Json => {
    assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
    return reply.body.error.meta
  }
  const refusedAt = (reply: Reply, path: string): void => {
    const { problems } = refused(reply, 400, 'VALIDATION_FAILED')
    assert.ok(
      problems.some((problem: Json) => problem.path === path),
      JSON.stringify(problems),
    )
  }
  const made = async (fields: Json = {}) => ok(await key.post('/agents', { ai_provider_id, ...fields }), 201)
  const patch = async (id: string, fields: Json) => ok(await key.patch(`/agents/${id}`, fields))
  const versions = async (id: string, query = '') => ok(await key.get(`/agents/${id}/versions${query}`))
  const version = async (id: string, number: number) => ok(await key.get(`/agents/${id}/versions/${number}`))
  const configOf = ({ id, project_id, version, active_release, created_at, updated_at, ...config }: Json) => config
  const events = async (id: string) =>
    ok(await key.get(`/events?resource_id=${id}`)).data.map(({ event }: Json) => event)
  /** Three versions whose instructions are `one`, `two` and `three`. */
  const three = async (fields: Json = {}) => {
    const agent = await made({ instructions: 'one', ...fields })
    await patch(agent.id, { instructions: 'two' })
    return patch(agent.id, { instructions: 'three' })
  }

  it('begin with the version that a create makes', async () => {
    const agent = await made({ output_schema: { type: 'object', required: ['b'], properties: { b: {}, a: {} } } })
    const { data, total } = await versions(agent.id)
    assert.equal(total, 1)
    const owner = (await app.admin.get('/users/me')).body.id
    assert.deepEqual(data, [
      {
        id: data[0].id,
        agent_id: agent.id,
        version: 1,
        config: configOf(agent),
        label: null,
        eval_run_id: null,
        created_by: owner,
        created_at: data[0].created_at,
      },
    ])
    assert.match(data[0].id, /^agver_[0-9a-hjkmnp-tv-z]{26}$/)
    assert.equal(
      JSON.stringify(data[0].config.output_schema),
      JSON.stringify(agent.output_schema),
      'keys keep their order',
    )
    assert.deepEqual(await version(agent.id, 1), data[0])
  })

  it('are made by every change, with the label of the write, and by nothing else', async () => {
    const agent = await made({ instructions: 'one', version_label: 'first' })
    assert.equal('version_label' in agent, false)
    const second = await patch(agent.id, { instructions: 'two', version_label: ' second ' })
    const same = await patch(agent.id, { instructions: 'two', version_label: 'not kept' })
    assert.deepEqual(same, second)
    assert.deepEqual(await patch(agent.id, { version_label: 'alone' }), second)
    ok(await key.put(`/agents/${agent.id}`, { name: 'helper' }))
    assert.deepEqual(
      (await versions(agent.id)).data.map(({ version, label, config }: Json) => [
        version,
        label,
        config.instructions,
        config.name,
      ]),
      [
        [3, null, 'two', 'helper'],
        [2, 'second', 'two', null],
        [1, 'first', 'one', null],
      ],
    )
    assert.deepEqual(await events(agent.id), ['agents.updated', 'agents.updated', 'agents.created'])
    for (const version_label of ['', ' ', 'x'.repeat(256), 5]) {
      refusedAt(await key.post('/agents', { ai_provider_id, version_label }), 'version_label')
      refusedAt(await key.patch(`/agents/${agent.id}`, { version_label }), 'version_label')
    }
  })

  it('are made once each by changes that come together', async () => {
    const { id } = await made()
    const replies = await Promise.all(
      Array.from({ length: 20 }, (_, n) => key.patch(`/agents/${id}`, { instructions: `change ${n}` })),
    )
    const expected = replies
      .map(reply => ok(reply))
      .sort((a, b) => b.version - a.version)
      .map(agent => [agent.version, agent.instructions])
    const { data } = await versions(id)
    assert.deepEqual(
      data.slice(0, 20).map(({ version, config }: Json) => [version, config.instructions]),
      expected,
    )
    assert.deepEqual(
      data.map(({ version }: Json) => version),
      Array.from({ length: 21 }, (_, n) => 21 - n),
    )
  })

  it('allow a change only at the version that its caller expects', async () => {
    const { id } = await made()
    const together = await Promise.all(
      Array.from({ length: 8 }, (_, n) => key.patch(`/agents/${id}`, { name: `name ${n}`, expected_version: 1 })),
    )
    assert.deepEqual(together.map(({ status }) => status).sort(), [200, 409, 409, 409, 409, 409, 409, 409])
    const stale = refused(await key.patch(`/agents/${id}`, { name: 'x', expected_version: 1 }), 409, 'VERSION_CONFLICT')
    assert.deepEqual(stale, { current_version: 2, expected_version: 1 })
    assert.equal((await patch(id, { name: 'x', expected_version: 2 })).version, 3)
    refused(await key.post(`/agents/${id}/versions/1/restore`, { expected_version: 2 }), 409, 'VERSION_CONFLICT')
    refusedAt(await key.patch(`/agents/${id}`, { expected_version: 0 }), 'expected_version')
    assert.equal((await versions(id)).total, 3)
  })

  it('are restored as new ones', async () => {
    const agent = await three({ max_steps: 3, single_session_per_actor: true })
    await patch(agent.id, { max_steps: null, single_session_per_actor: false })
    const restored = ok(await key.post(`/agents/${agent.id}/versions/1/restore`))
    assert.equal(restored.version, 5)
    assert.deepEqual(configOf(restored), (await version(agent.id, 1)).config)
    assert.equal((await version(agent.id, 5)).label, 'restored from v1')
    assert.equal((await version(agent.id, 2)).config.instructions, 'two')
    assert.equal((await version(agent.id, 3)).config.instructions, 'three')
    const labelled = ok(
      await key.post(`/agents/${agent.id}/versions/2/restore`, { label: 'back', expected_version: 5 }),
    )
    assert.equal(labelled.version, 6)
    assert.equal((await version(agent.id, 6)).label, 'back')
    assert.equal((await events(agent.id))[0], 'agents.updated')
    const [entry] = ok(
      await key.get(`/audit-log?resource_public_id=${agent.id}&action=agents:RestoreAgentVersion`),
    ).data
    assert.equal(entry.detail.version, 6)
  })

  it('are not created by restoring the current state', async () => {
    const agent = await three()
    await patch(agent.id, { instructions: 'one' })
    const before = ok(await key.get(`/agents/${agent.id}`))
    const seen = await events(agent.id)
    assert.deepEqual(ok(await key.post(`/agents/${agent.id}/versions/1/restore`)), before)
    assert.equal((await versions(agent.id)).total, 4)
    assert.deepEqual(await events(agent.id), seen)
  })

  it('are restored only as far as they could be written today', async () => {
    const gone = await newProvider()
    const agent = await made({ ai_provider_id: gone, trace_content_mode: 'full' })
    await patch(agent.id, { ai_provider_id, trace_content_mode: null })
    await patch(agent.id, { trace_content_mode: 'full' })
    await patch(agent.id, { trace_content_mode: null })
    assert.equal((await key.delete(`/ai-providers/${gone}`)).status, 204)
    refused(await key.post(`/agents/${agent.id}/versions/1/restore`), 400, 'AI_PROVIDER_NOT_FOUND')
    await app.admin.patch(`/projects/${project.id}`, { trace_content_mode: 'none' })
    try {
      refusedAt(await key.post(`/agents/${agent.id}/versions/3/restore`), 'trace_content_mode')
    } finally {
      await app.admin.patch(`/projects/${project.id}`, { trace_content_mode: 'full' })
    }
    assert.equal(ok(await key.get(`/agents/${agent.id}`)).version, 4)
    assert.equal((await versions(agent.id)).total, 4)
  })

  it('of other releases may have fields fewer and more', async () => {
    const agent = await three({ single_session_per_actor: true, temperature: 0.5 })
    await app.pool.query(sql.unsafe`
      update agent_versions set config = (config::jsonb - 'temperature' - 'model_route_id' - 'single_session_per_actor' || '{"mood": "kind"}')::json
      where agent_id = ${agent.id} and version = 1`)
    const { changes } = ok(await key.get(`/agents/${agent.id}/versions/compare?from=1&to=2`))
    assert.deepEqual(
      changes.map(({ path, before }: Json) => [path, before]),
      [
        ['instructions', 'one'],
        ['temperature', null],
        ['single_session_per_actor', false],
      ],
      'a route of another project is none',
    )
    const restored = ok(await key.post(`/agents/${agent.id}/versions/1/restore`))
    assert.deepEqual(
      [
        restored.instructions,
        restored.temperature,
        restored.model_route_id,
        restored.single_session_per_actor,
        'mood' in restored,
      ],
      ['one', null, null, false, false],
    )
  })

  it('are compared path by path', async () => {
    const schema = { type: 'object', properties: { a: { type: 'string' }, b: { type: 'number' } }, required: ['a'] }
    const agent = await made({ name: 'n', instructions: 'one', max_steps: 3, output_schema: schema })
    await patch(agent.id, { instructions: 'two', max_steps: null })
    await patch(agent.id, {
      name: 'm',
      instructions: 'one',
      output_schema: { ...schema, properties: { a: { type: 'integer' }, c: {} }, required: ['a', 'c'] },
      prompt_caching: { enabled: true },
    })
    const compared = async (query: string) => ok(await key.get(`/agents/${agent.id}/versions/compare${query}`))
    assert.deepEqual(await compared('?from=1&to=3'), {
      from: 1,
      to: 3,
      changes: [
        { path: 'name', op: 'changed', before: 'n', after: 'm' },
        { path: 'max_steps', op: 'changed', before: 3, after: null },
        { path: 'output_schema.properties.a.type', op: 'changed', before: 'string', after: 'integer' },
        { path: 'output_schema.properties.b', op: 'removed', before: { type: 'number' }, after: null },
        { path: 'output_schema.properties.c', op: 'added', before: null, after: {} },
        { path: 'output_schema.required[1]', op: 'added', before: null, after: 'c' },
        { path: 'prompt_caching', op: 'changed', before: null, after: { enabled: true } },
      ],
    })
    assert.deepEqual(await compared(''), await compared('?from=2&to=3'))
    assert.deepEqual(await compared('?to=2'), await compared('?from=1&to=2'))
    assert.deepEqual((await compared('?from=3&to=3')).changes, [])
    const alone = await made()
    assert.deepEqual(ok(await key.get(`/agents/${alone.id}/versions/compare`)), { from: 1, to: 1, changes: [] })
    for (const query of ['from=0', 'to=x', 'from=1.5', 'to=', 'from=1&from=2', 'to=9999999999'])
      refusedAt(await key.get(`/agents/${agent.id}/versions/compare?${query}`), query.split('=')[0])
    refused(await key.get(`/agents/${agent.id}/versions/compare?from=1&to=4`), 404, 'RESOURCE_NOT_FOUND')
    refused(await key.get(`/agents/${agent.id}/versions/compare?from=7`), 404, 'RESOURCE_NOT_FOUND')
  })

  it('keep their model route, and are restored with it or, without one, only next to a default', async () => {
    const owner = await app.projectWith(ACTIONS)
    const provider = await newProvider(owner.key)
    const targets = [{ ai_provider_id: provider, model: 'm' }]
    const route = ok(await owner.key.post('/model-routes', { name: 'r', targets }), 201).id
    const setDefault = async (default_model_route_id: string | null) =>
      ok(await app.admin.patch(`/projects/${owner.id}`, { default_model_route_id }))
    const { id } = ok(await owner.key.post('/agents', { model_route_id: route }), 201)
    const change = async (fields: Json) => ok(await owner.key.patch(`/agents/${id}`, fields))
    await change({ model_route_id: null, ai_provider_id: provider, model: 'm' })
    await setDefault(route)
    await change({ ai_provider_id: null, model: null })
    await change({ ai_provider_id: provider, name: 'n' })
    const compared = async (from: number, to: number) =>
      ok(await owner.key.get(`/agents/${id}/versions/compare?from=${from}&to=${to}`)).changes
    assert.deepEqual(await compared(1, 4), [
      { path: 'name', op: 'changed', before: null, after: 'n' },
      { path: 'ai_provider_id', op: 'changed', before: null, after: provider },
      { path: 'model_route_id', op: 'changed', before: route, after: null },
    ])
    const restore = (number: number) => owner.key.post(`/agents/${id}/versions/${number}/restore`)
    await setDefault(null)
    refusedAt(await restore(3), 'ai_provider_id')
    assert.deepEqual(ok(await restore(1)).model_route_id, route)
    await setDefault(route)
    const inheriting = ok(await restore(3))
    assert.deepEqual([inheriting.ai_provider_id, inheriting.model_route_id, inheriting.version], [null, null, 6])
    await change({ ai_provider_id: provider })
    await setDefault(null)
    assert.equal((await owner.key.delete(`/model-routes/${route}`)).status, 204)
    refused(await restore(1), 400, 'MODEL_ROUTE_NOT_FOUND')
    assert.equal(ok(await owner.key.get(`/agents/${id}`)).version, 7)
  })

  it('are read by a positive number of theirs', async () => {
    const agent = await three()
    for (const number of ['0', '-1', '1.5', 'x', '9999999999', '1e0'])
      for (const reply of [
        await key.get(`/agents/${agent.id}/versions/${number}`),
        await key.post(`/agents/${agent.id}/versions/${number}/restore`),
      ])
        refused(reply, 400, 'VALIDATION_FAILED')
    for (const reply of [
      await key.get(`/agents/${agent.id}/versions/4`),
      await key.post(`/agents/${agent.id}/versions/4/restore`),
    ])
      assert.deepEqual(refused(reply, 404, 'RESOURCE_NOT_FOUND'), { id: agent.id, version: 4 })
    refusedAt(await key.post(`/agents/${agent.id}/versions/1/restore`, { version_label: 'x' }), 'version_label')
    refusedAt(await key.post(`/agents/${agent.id}/versions/1/restore`, { label: '' }), 'label')
  })

  it('are listed newest first, in pages and by label', async () => {
    const agent = await made()
    for (const n of [2, 3, 4]) await patch(agent.id, { name: `${n}`, ...(n % 2 ? {} : { version_label: 'even' }) })
    const numbers = async (query: string) => {
      const { data, total } = await versions(agent.id, query)
      return [data.map(({ version }: Json) => version), total]
    }
    assert.deepEqual(await numbers('?limit=2&offset=1'), [[3, 2], 4])
    assert.deepEqual(await numbers('?label=even'), [[4, 2], 2])
    assert.deepEqual(await numbers('?label=Even'), [[], 0])
    assert.deepEqual(await numbers('?to=2020-01-01'), [[], 0])
    refusedAt(await key.get(`/agents/${agent.id}/versions?label=`), 'label')
  })

  it('versions are deleted with their agent', async () => {
    const agent = await three()
    assert.equal((await key.delete(`/agents/${agent.id}`)).status, 204)
    refused(await key.get(`/agents/${agent.id}/versions`), 404, 'RESOURCE_NOT_FOUND')
    const left = sql.unsafe`select 1 from agent_versions where agent_id = ${agent.id}`
    assert.deepEqual(await app.pool.any(left), [])
  })

  it('are read and restored by who may, in their project', async () => {
    const agent = await three()
    const routes = (as: Client): Record<string, () => Promise<Reply>> => ({
      'agents:ListAgentVersions': () => as.get(`/agents/${agent.id}/versions`),
      'agents:GetAgentVersion': () => as.get(`/agents/${agent.id}/versions/1`),
      'agents:RestoreAgentVersion': () => as.post(`/agents/${agent.id}/versions/2/restore`),
    })
    for (const action of Object.keys(routes(key))) {
      const statement = [{ effect: 'Allow', action: [action], resource: [`srn:${project.id}:agent:${agent.id}`] }]
      const user = await app.user(undefined, [{ statement }])
      for (const [route, call] of Object.entries(routes(user))) {
        const { status } = await call()
        assert.equal(status, route === action ? 200 : 403, `${route} with ${action}`)
      }
    }
    assert.equal(ok(await key.get(`/agents/${agent.id}`)).version, 4)
    const stranger = (await app.project()).key
    for (const call of Object.values(routes(stranger))) refused(await call(), 404, 'RESOURCE_NOT_FOUND')
    const compare = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['agents:GetAgentVersion'], resource: [`srn:${project.id}:agent:*`] }] },
    ])
    assert.equal((await compare.get(`/agents/${agent.id}/versions/compare`)).status, 200)
  })

  it('of copies in a cloned project begin at 1', async () => {
    const source = await app.projectWith(ACTIONS)
    const provider = await newProvider(source.key)
    const agent = ok(await source.key.post('/agents', { ai_provider_id: provider, name: 'a' }), 201)
    ok(await source.key.patch(`/agents/${agent.id}`, { name: 'b' }))
    const release = { stable_version: 1, canary_version: 2, canary_percent: 10 }
    ok(await source.key.put(`/agents/${agent.id}/release`, release))
    const { ids } = ok(await app.admin.post(`/projects/${source.id}/clone`, { name: 'copy', include: ['agents'] }), 201)
    const copy = ok(await app.admin.get(`/agents/${ids[agent.id]}`))
    assert.deepEqual([copy.name, copy.version, copy.active_release], ['b', 1, null])
    const { data } = ok(await app.admin.get(`/agents/${copy.id}/versions`))
    assert.deepEqual(
      data.map(({ version, config, created_by }: Json) => [version, config, created_by]),
      [[1, configOf(copy), null]],
    )
  })

  it('from before a field existed have it unset', async () => {
    const fields = { name: 'old', on_approval_expiry: 'react', instructions: 'x' }
    const agent = ok(await key.post('/agents', { ai_provider_id, ...fields }), 201)
    await app.pool.query(sql.unsafe`
      update agent_versions set config = (config::jsonb - 'on_approval_expiry')::json where agent_id = ${agent.id}`)
    const [first] = ok(await key.get(`/agents/${agent.id}/versions`)).data
    const { on_approval_expiry, ...kept } = configOf(agent)
    assert.deepEqual(first.config, kept)
    assert.deepEqual(ok(await key.get(`/agents/${agent.id}/versions/compare`)), { from: 1, to: 1, changes: [] })
    assert.equal(ok(await key.patch(`/agents/${agent.id}`, { instructions: 'y' })).version, 2)
    const restored = ok(await key.post(`/agents/${agent.id}/versions/1/restore`))
    assert.deepEqual([restored.instructions, restored.on_approval_expiry], ['x', null])
  })
})
