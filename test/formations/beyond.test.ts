import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { sweepFormations } from '#formations/requests/saved-plans.ts'
import { eventually, startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'
import { active, fresh, physical, planned, store, updated } from './support.ts'

const ACTIONS = ['formations:*', 'memories:*']

describe('formations over their life', () => {
  const app = forSuite(() =>
    startApp({
      workers: ['orchestration', 'trigger', 'delivery'],
      env: { TRIGGER_SCHEDULER_INTERVAL_MS: '1000' },
    }),
  )
  const project = forSuite(() =>
    app.projectWith([...ACTIONS, 'triggers:*', 'exceptions:*', 'ai-providers:*', 'agents:*']),
  )

  const problemsOf = async (formation: { id: string }, body: object) => {
    const { status, body: refusal } = await project.key.put(`/formations/${formation.id}`, body)
    assert.deepEqual([status, refusal.error?.code], [400, 'VALIDATION_FAILED'], JSON.stringify(refusal))
    return refusal.error.meta.problems.map(({ path }: any) => path)
  }
  const there = async (id: string) => (await project.key.get(`/memory-stores/${id}`)).status === 200

  describe('drift', () => {
    const drift = async ({ id }: { id: string }, key = project.key) => {
      const { status, body } = await key.get(`/formations/${id}/drift`)
      assert.equal(status, 200, JSON.stringify(body))
      return body
    }

    it('is reported by resource and field, except fields that the template ignores', async () => {
      const formation = await active(project.key, {
        resources: {
          A: store('a', {}, { description: 'one' }),
          B: store('b', {}),
          C: store('c', { ignore_fields: ['description'] }, { description: 'one' }),
        },
      })
      const inSync = { logical_id: 'C', resource_type: 'memory_store', status: 'in_sync' }
      assert.equal((await drift(formation)).drifted, false)
      await project.key.patch(`/memory-stores/${physical(formation, 'A')}`, { description: 'two' })
      await project.key.patch(`/memory-stores/${physical(formation, 'C')}`, { description: 'two' })
      await project.key.delete(`/memory-stores/${physical(formation, 'B')}`)
      assert.deepEqual(await drift(formation), {
        drifted: true,
        resources: [
          {
            logical_id: 'A',
            resource_type: 'memory_store',
            status: 'drifted',
            diff: { desired: { description: 'one' }, current: { description: 'two' } },
          },
          { logical_id: 'B', resource_type: 'memory_store', status: 'missing' },
          inSync,
        ],
      })
      const policy = await app.admin.post('/policies', {
        document: { statement: [{ effect: 'Allow', action: ['formations:PlanFormation'], resource: ['*'] }] },
      })
      const planner = await app.admin.post('/project-keys', { project_id: project.id, policy_ids: [policy.body.id] })
      const seen = await drift(formation, app.as(planner.body.secret))
      assert.deepEqual(seen.resources[0], { logical_id: 'A', resource_type: 'memory_store', status: 'drifted' })
      // An ignored field is neither planned nor applied.
      const after = await updated(project.key, formation, {})
      assert.equal((await drift(after)).drifted, false)
      const kept = (await project.key.get(`/memory-stores/${physical(after, 'C')}`)).body
      assert.equal(kept.description, 'two')
    })

    it('is found by a trigger, as one exception that closes itself, and an event', async () => {
      const formation = await active(project.key, { resources: { A: store('a', {}, { description: 'one' }) } })
      const trigger = { name: fresh(), type: 'manual', target_type: 'formation', target_id: formation.id }
      for (const action of [undefined, 'deploy']) {
        const { status, body } = await project.key.post('/triggers', { ...trigger, action })
        assert.deepEqual([status, body.error.code], [400, 'TRIGGER_ACTION_NOT_ALLOWED'])
      }
      const made = await project.key.post('/triggers', { ...trigger, action: 'detect_drift' })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const fire = async () => {
        const { status, body } = await project.key.post(`/triggers/${made.body.id}/fire`, {})
        assert.deepEqual([status, body.status], [200, 'succeeded'], JSON.stringify(body))
        return body.result
      }
      const filed = async (status: string) =>
        (await project.key.get(`/exceptions?kind=formation_drift&status=${status}`)).body.data
      assert.deepEqual((await fire()).output, { drifted: false, resources: [] })
      assert.deepEqual(await filed('open'), [])
      const path = `/memory-stores/${physical(formation, 'A')}`
      await project.key.patch(path, { description: 'a private note' })
      const found = { logical_id: 'A', resource_type: 'memory_store', status: 'drifted', fields: ['description'] }
      for (const _ of [1, 2]) assert.deepEqual((await fire()).output, { drifted: true, resources: [found] })
      const [exception, ...others] = await filed('open')
      assert.deepEqual([others, exception.severity, exception.occurrence_count], [[], 'warning', 2])
      assert.deepEqual(exception.detail, { formation_id: formation.id, name: formation.name, resources: [found] })
      const events = await storedEvents(app.pool, { project: project.id, name: 'formations.drifted' })
      assert.equal(events.length, 2)
      assert.doesNotMatch(JSON.stringify([exception, events]), /a private note/)
      await updated(project.key, formation, {})
      await fire()
      assert.deepEqual(await filed('open'), [])
      const [closed] = await filed('resolved')
      assert.deepEqual([closed.id, closed.resolved_by], [exception.id, null])
      // The remaining state when the formation goes is over too.
      await project.key.patch(path, { description: 'again' })
      await fire()
      assert.equal((await filed('open')).length, 1)
      assert.equal((await project.key.delete(`/formations/${formation.id}`)).status, 200)
      assert.deepEqual(await filed('open'), [])
    })

    it('is for triggers of those who may plan the formation', async () => {
      const formation = await active(project.key, { resources: { A: store('a') } })
      const other = await app.projectWith(['triggers:*'])
      const trigger = { name: fresh(), type: 'manual', target_type: 'formation', action: 'detect_drift' }
      const foreign = await other.key.post('/triggers', { ...trigger, target_id: formation.id })
      assert.deepEqual([foreign.status, foreign.body.error.code], [400, 'TRIGGER_TARGET_NOT_FOUND'])
      const blind = await app.projectWith(['triggers:*', 'formations:CreateFormation', 'memories:*'])
      const unseen = await active(blind.key, { resources: { A: store('a') } })
      const { status, body } = await blind.key.post('/triggers', { ...trigger, target_id: unseen.id })
      assert.deepEqual([status, body.error.meta.action], [403, 'formations:PlanFormation'])
    })
  })

  describe('import', () => {
    const adopt = (formation: { id: string }, logical_id: string, physical_resource_id: string, key = project.key) =>
      key.post(`/formations/${formation.id}/import`, { logical_id, physical_resource_id })
    const template = {
      parameters: { Adopt: { default: 'no' } },
      resources: {
        A: store('a', {}, { description: 'declared' }),
        B: store('b', { condition: { param_equals: ['Adopt', 'yes'] } }, { description: 'declared' }),
      },
    }

    it('puts a resource under a formation, which makes it what the template says', async () => {
      const formation = await active(project.key, template)
      const own = (await project.key.post('/memory-stores', { name: 'b', description: 'mine' })).body.id
      const { status, body } = await adopt(formation, 'B', own)
      assert.equal(status, 200, JSON.stringify(body))
      assert.equal(physical(body, 'B'), own)
      assert.equal((await project.key.get(`/memory-stores/${own}`)).body.description, 'mine')
      const yes = { parameters: { Adopt: 'yes' } }
      assert.deepEqual(await planned(project.key, { formation_id: formation.id, ...yes }), [
        ['A', 'no-op'],
        ['B', 'update'],
      ])
      const after = await updated(project.key, formation, yes)
      assert.equal(physical(after, 'B'), own)
      assert.equal((await project.key.get(`/memory-stores/${own}`)).body.description, 'declared')
    })

    it('takes the place of a resource that is gone', async () => {
      const formation = await active(project.key, template)
      const own = (await project.key.post('/memory-stores', { name: 'a' })).body.id
      const taken = await adopt(formation, 'A', own)
      assert.deepEqual([taken.status, taken.body.error.meta.problems[0].path], [400, 'logical_id'])
      await project.key.delete(`/memory-stores/${physical(formation, 'A')}`)
      assert.equal(physical((await adopt(formation, 'A', own)).body, 'A'), own)
    })

    it('refuses other types, other projects, managed resources and resources that the caller may not change', async () => {
      const formation = await active(project.key, template)
      const provider = { name: 'p', provider: 'ollama', default_model: 'm' }
      const agent = (await project.key.post('/ai-providers', provider)).body.id
      const foreign = (await (await app.projectWith(ACTIONS)).key.post('/memory-stores', { name: 'x' })).body.id
      for (const id of [agent, foreign, 'memst_00000000000000000000000000', 'x']) {
        const { status, body } = await adopt(formation, 'B', id)
        assert.deepEqual([status, body.error.code, body.error.meta.id], [404, 'RESOURCE_NOT_FOUND', id])
      }
      const unknown = await adopt(formation, 'Nobody', foreign)
      assert.deepEqual([unknown.status, unknown.body.error.meta.problems[0].path], [400, 'logical_id'])
      const other = await active(project.key, template)
      const managed = await adopt(formation, 'B', physical(other, 'A'))
      assert.deepEqual([managed.status, managed.body.error.meta.problems[0].path], [400, 'physical_resource_id'])

      const limited = await app.projectWith(['formations:*', 'memories:CreateMemoryStore', 'memories:GetMemoryStore'])
      const small = await active(limited.key, template)
      const own = (await limited.key.post('/memory-stores', { name: 'b' })).body.id
      const denied = await adopt(small, 'B', own, limited.key)
      assert.equal(denied.status, 403)
      assert.deepEqual(denied.body.error.meta.denied_actions, [
        { logical_id: 'B', resource_type: 'memory_store', action: 'memories:UpdateMemoryStore' },
      ])
    })
  })

  describe('deploys with resources to import', () => {
    const DEPLOY = ['formations:CreateFormation', 'formations:UpdateFormation', 'formations:PlanFormation']
    const KEEP = ['memories:UpdateMemoryStore']
    const storeOf = async (key = project.key, name = 'own', description = 'mine') =>
      (await key.post('/memory-stores', { name, description })).body.id as string
    const declaring = (description = 'declared') => ({ resources: { A: store('own', {}, { description }) } })
    /** A key of the project with a policy that allows exactly these actions. */
    const keyWith = async (actions: string[]) => {
      const { body: policy } = await app.admin.post('/policies', {
        document: { statement: [{ effect: 'Allow', action: actions, resource: [`srn:${project.id}:*:*`] }] },
      })
      const key = { project_id: project.id, policy_ids: [policy.id] }
      return app.as((await app.admin.post('/project-keys', key)).body.secret)
    }
    const refused = async (template: object, import_resources: object, key = project.key) => {
      const { status, body } = await key.post('/formations', { name: fresh(), template, import_resources })
      assert.ok(status >= 400, JSON.stringify(body))
      return [status, body.error.meta.problems?.[0].path ?? body.error.meta.id ?? body.error.meta.denied_actions]
    }

    it('take them over in one step, by the permission to change them', async () => {
      const own = await storeOf()
      const key = await keyWith([...DEPLOY, ...KEEP])
      const given = { template: declaring(), import_resources: { A: own } }
      assert.deepEqual(await planned(key, given), [['A', 'update']])
      assert.equal((await project.key.get(`/memory-stores/${own}`)).body.description, 'mine')
      const { status, body } = await key.post('/formations', { name: fresh(), ...given })
      assert.deepEqual([status, body.status], [201, 'active'], JSON.stringify(body))
      assert.equal(physical(body, 'A'), own)
      assert.equal((await project.key.get(`/memory-stores/${own}`)).body.description, 'declared')
      assert.deepEqual(await planned(project.key, { formation_id: body.id }), [['A', 'no-op']])
    })

    it('take them over in an update, from a saved plan too, and leave the others', async () => {
      const formation = await active(project.key, { resources: { B: store('b') } })
      const own = await storeOf()
      const template = { resources: { ...declaring().resources, B: store('b') } }
      const plan = await project.key.post('/formations/plan?save=true', {
        formation_id: formation.id,
        template,
        import_resources: { A: own },
      })
      assert.deepEqual(
        plan.body.changes.map(({ action, diff }: any) => [action, diff?.current]),
        [
          ['update', { description: 'mine' }],
          ['no-op', undefined],
        ],
      )
      const { plan_id } = plan.body
      const stale = await project.key.put(`/formations/${formation.id}`, { plan_id })
      assert.deepEqual([stale.status, stale.body.error.code], [409, 'FORMATION_PLAN_STALE'])
      const after = await updated(project.key, formation, { plan_id, import_resources: { A: own } })
      assert.deepEqual([physical(after, 'A'), physical(after, 'B')], [own, physical(formation, 'B')])
      await project.key.patch(`/memory-stores/${own}`, { description: 'by hand' })
      const { body: drift } = await project.key.get(`/formations/${formation.id}/drift`)
      assert.deepEqual(
        drift.resources.map(({ logical_id, status }: any) => [logical_id, status]),
        [
          ['A', 'drifted'],
          ['B', 'in_sync'],
        ],
      )
    })

    it('keep an imported resource when the deploy fails', async () => {
      const own = await storeOf()
      const template = {
        resources: {
          ...declaring().resources,
          Bad: {
            type: 'agent',
            depends_on: 'A',
            properties: { name: 'bad', ai_provider_id: 'aip_00000000000000000000000000' },
          },
        },
      }
      const given = { name: fresh(), template, import_resources: { A: own } }
      const { status, body } = await project.key.post('/formations', given)
      assert.deepEqual([status, body.status], [201, 'failed'])
      assert.equal(physical(body, 'A'), own)
      assert.ok(await there(own))
      const after = await updated(project.key, body, { template: declaring('again') })
      assert.deepEqual([after.status, physical(after, 'A')], ['active', own])
    })

    it('refuse undeclared or missing resources, another type, another project or managed ones, and write nothing', async () => {
      const own = await storeOf()
      const provider = { name: 'p', provider: 'ollama', default_model: 'm' }
      const other = (await project.key.post('/ai-providers', provider)).body.id
      const foreign = await storeOf((await app.projectWith(ACTIONS)).key)
      const managed = physical(await active(project.key, { resources: { A: store('a') } }), 'A')
      const count = async () => (await project.key.get('/formations?limit=1')).body.total
      const before = await count()
      assert.deepEqual(await refused(declaring(), { Nobody: own }), [400, 'import_resources.Nobody'])
      for (const id of [other, foreign, 'memst_00000000000000000000000000', 'x'])
        assert.deepEqual(await refused(declaring(), { A: id }), [404, id])
      assert.deepEqual(await refused(declaring(), { A: managed }), [400, 'import_resources.A'])
      const twice = { resources: { A: store('a'), B: store('b') } }
      assert.deepEqual(await refused(twice, { A: own, B: own }), [400, 'import_resources.B'])
      const key = await keyWith([...DEPLOY, 'memories:CreateMemoryStore', 'memories:GetMemoryStore'])
      assert.deepEqual(await refused(declaring(), { A: own }, key), [
        403,
        [{ logical_id: 'A', resource_type: 'memory_store', action: 'memories:UpdateMemoryStore' }],
      ])
      // Refused even if the deploy would not change the resource.
      assert.deepEqual((await refused(declaring('mine'), { A: own }, key))[0], 403)
      assert.equal(await count(), before)
      const formation = await active(project.key, { resources: { A: store('a') } })
      const { status, body } = await project.key.put(`/formations/${formation.id}`, { import_resources: { A: own } })
      assert.deepEqual([status, body.error.meta.problems[0].path], [400, 'import_resources.A'])
    })

    it('import a resource once, under any number of concurrent deploys', async () => {
      const own = await storeOf()
      const replies = await Promise.all(
        [1, 2, 3].map(() =>
          project.key.post('/formations', { name: fresh(), template: declaring(), import_resources: { A: own } }),
        ),
      )
      assert.deepEqual(replies.map(({ status }) => status).sort(), [201, 400, 400])
    })
  })

  it('take a resource over once, under any number of concurrent requests', async () => {
    const template = {
      parameters: { Adopt: { default: 'no' } },
      resources: { A: store('a', { condition: { param_equals: ['Adopt', 'yes'] } }) },
    }
    const formations = await Promise.all([1, 2, 3].map(() => active(project.key, template)))
    const own = (await project.key.post('/memory-stores', { name: 'a' })).body.id
    const replies = await Promise.all(
      formations.map(({ id }) =>
        project.key.post(`/formations/${id}/import`, { logical_id: 'A', physical_resource_id: own }),
      ),
    )
    assert.deepEqual(replies.map(({ status }) => status).sort(), [200, 400, 400])
  })

  it('are kept from being deleted while they are protected', async () => {
    const formation = await active(project.key, { resources: { A: store('a') } }, { termination_protection: true })
    const refused = await project.key.delete(`/formations/${formation.id}`)
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'FORMATION_PROTECTED'])
    assert.ok(await there(physical(formation, 'A')))
    const cleared = await updated(project.key, formation, { termination_protection: false })
    assert.deepEqual([cleared.termination_protection, cleared.status], [false, 'active'])
    const going = await project.key.delete(`/formations/${formation.id}?wait=false`)
    assert.ok([200, 202].includes(going.status), JSON.stringify(going.body))
    await eventually(async () => (await project.key.get(`/formations/${formation.id}`)).status === 404)
  })

  it('treat resources whose condition does not hold as not declared', async () => {
    const template = {
      parameters: { Env: { default: 'test' } },
      resources: { A: store('a'), B: store('b', { condition: { param_equals: ['Env', 'prod'] } }) },
    }
    const formation = await active(project.key, template)
    assert.deepEqual(
      formation.resources.map(({ logical_id }: any) => logical_id),
      ['A'],
    )
    const prod = await updated(project.key, formation, { parameters: { Env: 'prod' } })
    const b = physical(prod, 'B')
    assert.ok(await there(b))
    await updated(project.key, formation, { parameters: { Env: 'test' } })
    assert.equal(await there(b), false)
    const dangling = { ...template, outputs: { b: { ref: 'B' } } }
    assert.deepEqual(await problemsOf(formation, { template: dangling, parameters: { Env: 'test' } }), ['outputs.b'])
    const unknown = { resources: { A: store('a', { condition: { param_equals: ['Nobody', 'x'] } }) } }
    assert.deepEqual(await problemsOf(formation, { template: unknown }), ['resources.A.condition'])
  })

  it('make an orchestration again that is deleted and goes later, and do not export it', async () => {
    const own = await app.project()
    const nodes = [{ id: 'decide', type: 'human', prompt: 'Go on?' }]
    const template = { resources: { O: { type: 'orchestration', properties: { name: 'o', nodes, edges: [] } } } }
    const formation = await active(own.key, template)
    const before = physical(formation, 'O')
    // The state from its delete until its runs are gone.
    await app.pool.query(rawQuery(`update orchestrations set managed_by = 'deletion' where id = $1`, [before]))
    const drift = (await own.key.get(`/formations/${formation.id}/drift`)).body
    assert.equal(drift.resources[0].status, 'missing')
    const exported = await own.key.post('/formations/export', { types: ['orchestration'] })
    assert.deepEqual(exported.body.template?.resources, {}, JSON.stringify(exported.body))
    const again = await updated(own.key, formation, {})
    assert.equal(again.status, 'active', JSON.stringify(again.error))
    assert.notEqual(physical(again, 'O'), before)
  })

  it('rename resources without making them again', async () => {
    const formation = await active(project.key, { resources: { Old: store('a', {}, { description: 'x' }) } })
    const id = physical(formation, 'Old')
    const renamed = { resources: { New: store('a', {}, { description: 'y' }) }, moved: { Old: 'New', Nobody: 'New' } }
    assert.deepEqual(await planned(project.key, { formation_id: formation.id, template: renamed }), [['New', 'update']])
    const after = await updated(project.key, formation, { template: renamed })
    assert.equal(physical(after, 'New'), id)
    assert.deepEqual(
      after.resources.map(({ logical_id }: any) => logical_id),
      ['New'],
    )
    assert.deepEqual(await planned(project.key, { formation_id: formation.id }), [['New', 'no-op']])
    const both = { resources: { New: store('a'), Other: store('b') } }
    await updated(project.key, formation, { template: both })
    assert.deepEqual(
      await problemsOf(formation, { template: { resources: { Other: store('b') }, moved: { New: 'Other' } } }),
      ['moved.New'],
    )
  })

  it('refuse whole what would destroy a resource that is to stay', async () => {
    const formation = await active(project.key, {
      resources: { A: store('a', { prevent_destroy: true }), B: store('b') },
    })
    assert.deepEqual(await problemsOf(formation, { template: { resources: { C: store('c') } } }), ['resources.A'])
    const teardown = await project.key.delete(`/formations/${formation.id}`)
    assert.deepEqual(
      teardown.body.error.meta.problems.map(({ path }: any) => path),
      ['resources.A'],
    )
    assert.deepEqual([await there(physical(formation, 'A')), await there(physical(formation, 'B'))], [true, true])
    const free = await updated(project.key, formation, { template: { resources: { A: store('a'), B: store('b') } } })
    assert.equal(free.status, 'active')
    assert.equal((await project.key.delete(`/formations/${formation.id}`)).status, 200)
  })

  describe('outputs', () => {
    const exporter = (description: string, outputs: object = { name: { ref_attr: 'A.description' } }) => ({
      resources: { A: store('a', {}, { description }) },
      outputs,
    })
    const importer = (name: string) => ({
      resources: { B: store('b', {}, { description: { import: `${name}.name` } }) },
    })

    it('are taken over by other formations, at their next deploy, and stay while they are', async () => {
      const source = await active(project.key, exporter('one'))
      const taker = await active(project.key, importer(source.name))
      const path = `/memory-stores/${physical(taker, 'B')}`
      assert.equal((await project.key.get(path)).body.description, 'one')
      await updated(project.key, source, { template: exporter('two') })
      assert.equal((await project.key.get(path)).body.description, 'one')
      await updated(project.key, taker, {})
      assert.equal((await project.key.get(path)).body.description, 'two')
      const importers = [{ formation_id: taker.id, name: taker.name, output: 'name' }]
      const refused = [
        await project.key.delete(`/formations/${source.id}`),
        await project.key.put(`/formations/${source.id}`, { template: exporter('two', {}) }),
      ]
      for (const { status, body } of refused) {
        assert.deepEqual([status, body.error.code], [409, 'FORMATION_HAS_DEPENDENTS'])
        assert.deepEqual(body.error.meta.importers, importers)
      }
      // A formation that is gone takes nothing any more.
      assert.equal((await project.key.delete(`/formations/${taker.id}`)).status, 200)
      assert.equal((await project.key.delete(`/formations/${source.id}`)).status, 200)
    })

    it('are free once no template in force imports them', async () => {
      const source = await active(project.key, exporter('one'))
      const taker = await active(project.key, importer(source.name))
      await updated(project.key, taker, { template: { resources: { B: store('b') } } })
      assert.equal((await updated(project.key, source, { template: exporter('one', {}) })).status, 'active')
    })

    it('are of formations of the project that the caller may read', async () => {
      const source = await active(project.key, exporter('one'))
      const other = await app.projectWith(ACTIONS)
      const planner = await app.projectWith(['formations:CreateFormation', 'formations:PlanFormation', 'memories:*'])
      const hidden = await app.admin.post('/formations', {
        project_id: planner.id,
        name: 'hidden',
        template: exporter('secret'),
      })
      assert.equal(hidden.body.status, 'active', JSON.stringify(hidden.body))
      for (const [key, name] of [
        [other.key, source.name],
        [planner.key, 'hidden'],
        [project.key, 'nobody'],
      ] as const) {
        const { status, body } = await key.post('/formations', { name: fresh(), template: importer(name) })
        assert.equal(status, 400, JSON.stringify(body))
        assert.deepEqual(body.error.meta.problems, [
          {
            code: 'NOT_FOUND',
            path: 'resources',
            message: `import '${name}.name' not found in this project`,
          },
        ])
      }
    })
  })

  it('that were deleted go after a week, with their operations', async () => {
    const [gone, fresher] = [await active(project.key, { resources: {} }), await active(project.key, { resources: {} })]
    for (const { id } of [gone, fresher]) assert.equal((await project.key.delete(`/formations/${id}`)).status, 200)
    const query = (text: string, values: unknown[]) => app.pool.any(rawQuery(text, values))
    // More than one transaction of the sweep deletes.
    await query(
      `insert into formations (id, project_id, name, status, template, operation_id, updated_at)
       select 'form_gone_' || n, $1, 'gone', 'deleted', '{}', '', now() - interval '8 days' from generate_series(1, 120) n`,
      [project.id],
    )
    await query(`update formations set updated_at = now() - interval '8 days' where id = $1`, [gone.id])
    await sweepFormations(app.services)
    const left = await query(`select id from formations where id = any($1) or id like 'form\\_gone\\_%'`, [
      [gone.id, fresher.id],
    ])
    assert.deepEqual(left, [{ id: fresher.id }])
    assert.deepEqual(await query('select id from formation_operations where formation_id = $1', [gone.id]), [])
  })
})
