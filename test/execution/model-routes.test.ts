import assert from 'node:assert/strict'
import { type Client, type Reply, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

const refused = (reply: Reply, status: number, code: string): Json => {
  assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
  return reply.body.error
}

const refusedAt = (reply: Reply, path: string): Json => {
  const error = refused(reply, 400, 'VALIDATION_FAILED')
  assert.ok(
    error.meta.problems.some((problem: Json) => problem.path === path),
    JSON.stringify(error),
  )
  return error
}

const UNKNOWN_ROUTE = 'route_00000000000000000000000000'

describe('model routes', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.project())
  /** May do no more than configure routes. */
  let key: Client
  let ai_provider_id: string
  let counter = 0

  before(async () => {
    ai_provider_id = await newProvider(project.key)
    const statement = [{ effect: 'Allow', action: ['model-routes:*'], resource: [`srn:${project.id}:model_route:*`] }]
    key = await app.user(undefined, [{ statement }])
  })

  const newProvider = async (as: Client): Promise<string> => {
    const fields = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://models.example.com/v1' }
    return (await createdBy(as, '/ai-providers', fields)).id
  }
  const create = (fields: Json = {}, as = key): Promise<Reply> =>
    as.post('/model-routes', {
      ...(as === key ? { project_id: project.id } : {}),
      name: `route ${++counter}`,
      targets: [{ ai_provider_id, model: 'm' }],
      ...fields,
    })
  const made = async (fields: Json = {}, as = key): Promise<Json> => {
    const { status, body } = await create(fields, as)
    assert.equal(status, 201, JSON.stringify(body))
    return body
  }
  /** Another project with a provider and a route over it. */
  const other = async () => {
    const { id, key } = await app.project()
    const provider = await newProvider(key)
    const route = await made({ targets: [{ ai_provider_id: provider, model: 'm' }] }, key)
    return { id, key, provider, route: route.id as string }
  }
  const setDefault = (id: string, default_model_route_id: string | null) =>
    app.admin.patch(`/projects/${id}`, { default_model_route_id })

  it('are created with targets alone', async () => {
    const record = await made({ name: ' main ' })
    assert.match(record.id, /^route_[0-9a-z]{26}$/)
    assert.deepEqual(record, {
      id: record.id,
      project_id: project.id,
      name: 'main',
      targets: [{ ai_provider_id, model: 'm', timeout_seconds: null, max_retries: 0 }],
      retry_on: ['provider_error', 'timeout', 'rate_limited'],
      failure_threshold: 3,
      cooldown_seconds: 60,
      created_at: record.created_at,
      updated_at: record.created_at,
    })
    assert.deepEqual((await key.get(`/model-routes/${record.id}`)).body, record)
  })

  it('change by PATCH and by PUT in parts; targets are replaced whole', async () => {
    const second = await newProvider(project.key)
    const targets = [
      { ai_provider_id: second, model: 'a', timeout_seconds: 600, max_retries: 4 },
      { ai_provider_id, model: 'b', timeout_seconds: 1, max_retries: 4 },
    ]
    const record = await made({ targets, retry_on: ['timeout'], failure_threshold: 100, cooldown_seconds: 3600 })
    assert.deepEqual(record.targets, targets)
    const path = `/model-routes/${record.id}`
    const patched = await key.patch(path, { cooldown_seconds: 1, name: 'renamed' })
    assert.deepEqual(patched.body, {
      ...record,
      cooldown_seconds: 1,
      name: 'renamed',
      updated_at: patched.body.updated_at,
    })
    const put = await key.put(path, { targets: [{ ai_provider_id, model: 'c', timeout_seconds: null }] })
    assert.deepEqual(put.body.targets, [{ ai_provider_id, model: 'c', timeout_seconds: null, max_retries: 0 }])
    assert.deepEqual([put.body.name, put.body.retry_on, put.body.failure_threshold], ['renamed', ['timeout'], 100])
    // The provider that no target names any more can go.
    assert.equal((await project.key.delete(`/ai-providers/${second}`)).status, 204)
    assert.equal((await key.delete(path)).status, 204)
    const events = (await project.key.get(`/events?resource_id=${record.id}`)).body.data
    assert.deepEqual(
      events.map(({ event }: Json) => event),
      ['model_routes.deleted', 'model_routes.updated', 'model_routes.updated', 'model_routes.created'],
    )
  })

  it('allow ten attempts in total, retries included', async () => {
    const target = { ai_provider_id, model: 'm' }
    assert.equal((await create({ targets: [{ ...target, max_retries: 9 }] })).status, 201)
    assert.equal((await create({ targets: Array(10).fill(target) })).status, 201)
    const eleven = [
      { ...target, max_retries: 4 },
      { ...target, max_retries: 5 },
    ]
    assert.match(refusedAt(await create({ targets: eleven }), 'targets').message, /\b11\b/)
    const { id } = await made()
    assert.match(refusedAt(await key.patch(`/model-routes/${id}`, { targets: eleven }), 'targets').message, /\b11\b/)
  })

  it('are refused with a field that is wrong, naming it', async () => {
    const target = { ai_provider_id, model: 'm' }
    const wrong: [string, Json][] = [
      ['name', { name: '' }],
      ['name', { name: 'x'.repeat(256) }],
      ['name', { name: null }],
      ['targets', { targets: [] }],
      ['targets', { targets: null }],
      ['targets', { targets: Array(11).fill(target) }],
      ['targets[0].model', { targets: [{ ai_provider_id }] }],
      ['targets[0].model', { targets: [{ ai_provider_id, model: null }] }],
      ['targets[0].model', { targets: [{ ai_provider_id, model: 'x'.repeat(256) }] }],
      ['targets[0].ai_provider_id', { targets: [{ model: 'm' }] }],
      ['targets[1].timeout_seconds', { targets: [target, { ...target, timeout_seconds: 601 }] }],
      ['targets[0].timeout_seconds', { targets: [{ ...target, timeout_seconds: 0 }] }],
      ['targets[0].timeout_seconds', { targets: [{ ...target, timeout_seconds: 1.5 }] }],
      ['targets[0].max_retries', { targets: [{ ...target, max_retries: 10 }] }],
      ['targets[0].max_retries', { targets: [{ ...target, max_retries: -1 }] }],
      ['targets[0].max_retries', { targets: [{ ...target, max_retries: null }] }],
      ['targets[0].weight', { targets: [{ ...target, weight: 1 }] }],
      ['retry_on', { retry_on: [] }],
      ['retry_on', { retry_on: null }],
      ['retry_on', { retry_on: ['timeout', 'timeout'] }],
      ['retry_on[0]', { retry_on: ['none'] }],
      ['failure_threshold', { failure_threshold: 0 }],
      ['failure_threshold', { failure_threshold: 101 }],
      ['cooldown_seconds', { cooldown_seconds: 0 }],
      ['cooldown_seconds', { cooldown_seconds: 3601 }],
      ['priority', { priority: 1 }],
    ]
    const { id } = await made()
    for (const [path, fields] of wrong) {
      refusedAt(await create(fields), path)
      refusedAt(await key.patch(`/model-routes/${id}`, fields), path)
    }
    refusedAt(await create({ targets: undefined }), 'targets')
    refusedAt(await create({ name: undefined }), 'name')
  })

  it('have a unique name in the project', async () => {
    const [first, second] = [await made({ name: 'taken' }), await made()]
    refused(await create({ name: 'taken' }), 409, 'NAME_CONFLICT')
    refused(await key.patch(`/model-routes/${second.id}`, { name: 'taken' }), 409, 'NAME_CONFLICT')
    assert.equal((await key.patch(`/model-routes/${first.id}`, { name: 'taken' })).status, 200)
    const { key: stranger, provider } = await other()
    await made({ name: 'taken', targets: [{ ai_provider_id: provider, model: 'm' }] }, stranger)
  })

  it('name providers of their project alone', async () => {
    const { provider } = await other()
    const { id } = await made()
    for (const foreign of [provider, 'aip_00000000000000000000000000', 'nonsense']) {
      const targets = [
        { ai_provider_id, model: 'm' },
        { ai_provider_id: foreign, model: 'm' },
      ]
      assert.equal(refused(await create({ targets }), 400, 'AI_PROVIDER_NOT_FOUND').meta.id, foreign)
      refused(await key.patch(`/model-routes/${id}`, { targets }), 400, 'AI_PROVIDER_NOT_FOUND')
    }
    assert.equal((await key.get(`/model-routes/${id}`)).body.targets.length, 1)
  })

  it('are listed by name and provider', async () => {
    const { key: owner, provider, route } = await other()
    const second = await newProvider(owner)
    const target = (ai_provider_id: string) => ({ ai_provider_id, model: 'm' })
    const both = await made({ name: 'Both 100%', targets: [target(second), target(provider)] }, owner)
    const ids = async (query: string) =>
      (await owner.get(`/model-routes${query}`)).body.data.map(({ id }: Json) => id as string)
    assert.deepEqual(await ids(''), [both.id, route])
    assert.deepEqual(await ids(`?ai_provider_id=${second}`), [both.id])
    assert.deepEqual(await ids(`?ai_provider_id=${provider}`), [both.id, route])
    assert.deepEqual(await ids(`?ai_provider_id=${ai_provider_id}`), [])
    assert.deepEqual(await ids('?name=BOTH'), [both.id])
    assert.deepEqual(await ids('?name=0%25'), [both.id])
  })

  it('answer 404 to other projects and 403 without the permission', async () => {
    const { id } = await made()
    const path = `/model-routes/${id}`
    const { key: stranger } = await other()
    for (const reply of [
      await stranger.get(path),
      await stranger.patch(path, { name: 'x' }),
      await stranger.delete(path),
    ])
      refused(reply, 404, 'RESOURCE_NOT_FOUND')
    const statement = [
      { effect: 'Allow', action: ['model-routes:GetModelRoute'], resource: [`srn:${project.id}:model_route:${id}`] },
    ]
    const reader = await app.user(undefined, [{ statement }])
    assert.equal((await reader.get(path)).status, 200)
    refused(await reader.put(path, { name: 'x' }), 403, 'FORBIDDEN')
    refused(await reader.delete(path), 403, 'FORBIDDEN')
    refused(await create({ project_id: project.id }, reader), 403, 'FORBIDDEN')
  })

  it('keep their providers from being deleted, by force too', async () => {
    const provider = await newProvider(project.key)
    const { id } = await made({ targets: [{ ai_provider_id: provider, model: 'm' }] })
    for (const query of ['', '?force=true']) {
      const { meta } = refused(
        await project.key.delete(`/ai-providers/${provider}${query}`),
        409,
        'AI_PROVIDER_HAS_DEPENDENTS',
      )
      assert.deepEqual(meta, { counts: { model_routes: 1 }, sample_ids: { model_routes: [id] }, forcible: false })
    }
    assert.equal((await key.delete(`/model-routes/${id}`)).status, 204)
    assert.equal((await project.key.delete(`/ai-providers/${provider}`)).status, 204)
  })

  it('are kept by agents that name them and by a project whose default they are', async () => {
    const { id: projectId, key: owner, route } = await other()
    const agent = (await owner.post('/agents', { model_route_id: route })).body
    assert.equal((await setDefault(projectId, route)).status, 200)
    const { meta } = refused(await owner.delete(`/model-routes/${route}?force=true`), 409, 'MODEL_ROUTE_HAS_DEPENDENTS')
    assert.deepEqual(meta, {
      counts: { agents: 1, project_default: 1 },
      sample_ids: { agents: [agent.id], project_default: [projectId] },
      forcible: false,
    })
    assert.equal((await owner.delete(`/agents/${agent.id}`)).status, 204)
    refused(await owner.delete(`/model-routes/${route}`), 409, 'MODEL_ROUTE_HAS_DEPENDENTS')
    assert.equal((await setDefault(projectId, null)).status, 200)
    assert.equal((await owner.delete(`/model-routes/${route}`)).status, 204)
  })

  it('are deleted with their project', async () => {
    const { id, key: owner, route } = await other()
    await setDefault(id, route)
    await owner.post('/agents', { model_route_id: route })
    await owner.post('/agents', {})
    const { counts } = refused(await app.admin.delete(`/projects/${id}`), 409, 'PROJECT_HAS_DEPENDENTS').meta
    assert.deepEqual([counts.model_routes, counts.agents], [1, 2])
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.equal((await app.admin.get(`/model-routes/${route}`)).status, 404)
  })

  describe('of agents', () => {
    it('replace a provider', async () => {
      const { key: owner, provider, route } = await other()
      const routed = await owner.post('/agents', { model_route_id: route })
      assert.deepEqual([routed.status, routed.body.ai_provider_id, routed.body.model_route_id], [201, null, route])
      refusedAt(await owner.post('/agents', { model_route_id: route, ai_provider_id: provider }), 'model_route_id')
      refusedAt(await owner.post('/agents', { model_route_id: route, model: 'm' }), 'model')
      const pinned = (await owner.post('/agents', { ai_provider_id: provider, model: 'm' })).body
      const path = `/agents/${pinned.id}`
      refusedAt(await owner.patch(path, { model_route_id: route }), 'model_route_id')
      refusedAt(await owner.patch(path, { model_route_id: route, ai_provider_id: null }), 'model')
      const moved = await owner.patch(path, { model_route_id: route, ai_provider_id: null, model: null })
      assert.deepEqual([moved.status, moved.body.model_route_id, moved.body.version], [200, route, 2])
      refusedAt(await owner.patch(path, { model: 'm' }), 'model')
      const back = await owner.put(path, { model_route_id: null, ai_provider_id: provider })
      assert.deepEqual([back.status, back.body.model_route_id, back.body.ai_provider_id], [200, null, provider])
      const listed = (await owner.get(`/agents?model_route_id=${route}`)).body.data
      assert.deepEqual(
        listed.map(({ id }: Json) => id),
        [routed.body.id],
      )
    })

    it('are routes of their project', async () => {
      const { key: owner } = await other()
      const { route: foreign } = await other()
      for (const model_route_id of [foreign, UNKNOWN_ROUTE, 'nonsense'])
        refused(await owner.post('/agents', { model_route_id }), 400, 'MODEL_ROUTE_NOT_FOUND')
    })
  })

  describe('that are the default of a project', () => {
    it('are inherited by agents with neither a route nor a provider', async () => {
      const { id, key: owner, provider, route } = await other()
      refusedAt(await owner.post('/agents', {}), 'ai_provider_id')
      refusedAt(await owner.post('/agents', { ai_provider_id: null, model_route_id: null }), 'ai_provider_id')
      const pinned = (await owner.post('/agents', { ai_provider_id: provider })).body
      refusedAt(await owner.patch(`/agents/${pinned.id}`, { ai_provider_id: null }), 'ai_provider_id')
      assert.equal((await setDefault(id, route)).body.default_model_route_id, route)
      refusedAt(await owner.post('/agents', { model: 'm' }), 'model')
      const inheriting = await owner.post('/agents', {})
      assert.deepEqual([inheriting.status, inheriting.body.model_route_id], [201, null])
      assert.equal((await owner.patch(`/agents/${pinned.id}`, { ai_provider_id: null })).status, 200)
      assert.equal((await owner.patch(`/agents/${pinned.id}`, { name: 'still' })).status, 200)
    })

    it('are not cleared while something inherits them, but may be replaced', async () => {
      const { id, key: owner, provider, route } = await other()
      await setDefault(id, route)
      const agent = (await owner.post('/agents', {})).body
      const { meta } = refused(await setDefault(id, null), 409, 'PROJECT_DEFAULT_ROUTE_INHERITED')
      assert.deepEqual(meta, { count: 1, counts: { agent: 1 }, sample_ids: [agent.id] })
      const more = await Promise.all(Array.from({ length: 6 }, () => owner.post('/agents', {})))
      const many = refused(await setDefault(id, null), 409, 'PROJECT_DEFAULT_ROUTE_INHERITED').meta
      assert.deepEqual([many.count, many.counts, many.sample_ids.length], [7, { agent: 7 }, 5])
      const second = await made({ targets: [{ ai_provider_id: provider, model: 'n' }] }, owner)
      assert.equal((await setDefault(id, second.id)).status, 200)
      assert.equal((await owner.delete(`/model-routes/${route}`)).status, 204)
      for (const { body } of more) await owner.delete(`/agents/${body.id}`)
      assert.equal((await owner.patch(`/agents/${agent.id}`, { model_route_id: second.id })).status, 200)
      assert.equal((await setDefault(id, null)).body.default_model_route_id, null)
      assert.equal((await setDefault(id, null)).status, 200)
    })

    it('are routes of the project, set by callers who may change it', async () => {
      const { id, route } = await other()
      const { route: foreign } = await other()
      const action = ['projects:UpdateProject', 'projects:GetProject']
      const changer = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action, resource: [`srn:${id}:*:*`] }] },
      ])
      for (const default_model_route_id of [foreign, UNKNOWN_ROUTE, 'nonsense'])
        refused(await changer.patch(`/projects/${id}`, { default_model_route_id }), 400, 'MODEL_ROUTE_NOT_FOUND')
      assert.equal((await changer.get(`/projects/${id}`)).body.default_model_route_id, null)
      assert.equal((await changer.patch(`/projects/${id}`, { default_model_route_id: route })).status, 200)
      assert.equal((await app.admin.post('/projects', { name: 'x', default_model_route_id: route })).status, 400)
    })
  })

  describe('copied by a project clone', () => {
    const clone = (id: string, include: string[]) =>
      createdBy(app.admin, `/projects/${id}/clone`, { name: 'copy', include })

    it('bring their providers along, and stay the default', async () => {
      const { id, provider, route } = await other()
      await setDefault(id, route)
      const { project: copy, ids } = await clone(id, ['model_routes'])
      assert.equal(copy.default_model_route_id, ids[route])
      const record = (await app.admin.get(`/model-routes/${ids[route]}`)).body
      assert.deepEqual([record.project_id, record.targets[0].ai_provider_id], [copy.id, ids[provider]])
      refused(await app.admin.delete(`/ai-providers/${ids[provider]}`), 409, 'AI_PROVIDER_HAS_DEPENDENTS')
    })

    it('come with the agents that go by them', async () => {
      const { id, key: owner, provider, route } = await other()
      const used = await made({ targets: [{ ai_provider_id: provider, model: 'n' }] }, owner)
      await made({ targets: [{ ai_provider_id: provider, model: 'unused' }] }, owner)
      await setDefault(id, route)
      const named = (await owner.post('/agents', { model_route_id: used.id })).body.id
      const inheriting = (await owner.post('/agents', {})).body.id
      const { project: copy, ids } = await clone(id, ['agents'])
      assert.deepEqual(Object.keys(ids).sort(), [named, inheriting, used.id, route, provider].sort())
      assert.equal(copy.default_model_route_id, ids[route])
      assert.equal((await app.admin.get(`/agents/${ids[named]}`)).body.model_route_id, ids[used.id])
      refused(await setDefault(copy.id, null), 409, 'PROJECT_DEFAULT_ROUTE_INHERITED')
      const bare = await clone(id, [])
      assert.equal(bare.project.default_model_route_id, null)
    })
  })

  describe('at the same moment', () => {
    const ROUNDS = 15
    /** Runs a pair many times; both outcomes of the race have to leave a state that holds. */
    const race = async (round: () => Promise<void>) => {
      for (let n = 0; n < ROUNDS; n++) await round()
    }

    it('a default is cleared and an agent that inherits it is made: one of the two is refused', async () => {
      const { id, key: owner, route } = await other()
      await race(async () => {
        await setDefault(id, route)
        const [cleared, agent] = await Promise.all([setDefault(id, null), owner.post('/agents', {})])
        const outcome = [cleared.status, agent.status]
        if (agent.status === 201) {
          assert.deepEqual(outcome, [409, 201])
          refused(cleared, 409, 'PROJECT_DEFAULT_ROUTE_INHERITED')
          await owner.delete(`/agents/${agent.body.id}`)
        } else {
          assert.deepEqual(outcome, [200, 400])
          refusedAt(agent, 'ai_provider_id')
        }
      })
    })

    it('a default is cleared and an agent lets its provider go: one of the two is refused', async () => {
      const { id, key: owner, provider, route } = await other()
      const agent = (await owner.post('/agents', { ai_provider_id: provider })).body.id
      await race(async () => {
        await setDefault(id, route)
        const [cleared, moved] = await Promise.all([
          setDefault(id, null),
          owner.patch(`/agents/${agent}`, { ai_provider_id: null }),
        ])
        assert.ok(
          [`409 200`, `200 400`].includes(`${cleared.status} ${moved.status}`),
          `${cleared.status} ${moved.status}`,
        )
        await owner.patch(`/agents/${agent}`, { ai_provider_id: provider })
      })
    })

    it('a provider is deleted and a route that names it is made: one of the two is refused', async () => {
      const { key: owner } = await other()
      await race(async () => {
        const provider = await newProvider(owner)
        const [gone, route] = await Promise.all([
          owner.delete(`/ai-providers/${provider}`),
          create({ targets: [{ ai_provider_id: provider, model: 'm' }] }, owner),
        ])
        if (gone.status === 204) refused(route, 400, 'AI_PROVIDER_NOT_FOUND')
        else {
          refused(gone, 409, 'AI_PROVIDER_HAS_DEPENDENTS')
          assert.equal(route.status, 201)
        }
      })
    })

    it('a route is deleted and an agent or a project comes to name it: one of the two is refused', async () => {
      const { id, key: owner, provider } = await other()
      await race(async () => {
        const [first, second] = [
          await made({ targets: [{ ai_provider_id: provider, model: 'm' }] }, owner),
          await made({ targets: [{ ai_provider_id: provider, model: 'm' }] }, owner),
        ]
        const [gone, agent, goneToo, project] = await Promise.all([
          owner.delete(`/model-routes/${first.id}`),
          owner.post('/agents', { model_route_id: first.id }),
          owner.delete(`/model-routes/${second.id}`),
          setDefault(id, second.id),
        ])
        assert.ok(['204 400', '409 201'].includes(`${gone.status} ${agent.status}`), `${gone.status} ${agent.status}`)
        assert.ok(
          ['204 400', '409 200'].includes(`${goneToo.status} ${project.status}`),
          `${goneToo.status} ${project.status}`,
        )
        await setDefault(id, null)
      })
    })
  })
})
