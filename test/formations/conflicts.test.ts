import assert from 'node:assert/strict'
import { sweepFormations } from '#formations/requests/saved-plans.ts'
import { client, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { active, physical, planned, store, updated } from './support.ts'

const ACTIONS = ['formations:*', 'memories:*', 'secrets:*']

describe('changes of resources by another way than their formation', () => {
  const app = forSuite(() => startApp({ workers: ['orchestration'] }))
  const project = forSuite(() => app.projectWith(ACTIONS))
  const template = (description: string) => ({ resources: { S: store('s', {}, { description }) } })
  const edited = async () => {
    const formation = await active(project.key, template('one'))
    const path = `/memory-stores/${physical(formation, 'S')}`
    assert.equal((await project.key.patch(path, { name: 'other' })).status, 200)
    assert.equal((await project.key.patch(path, { description: 'by hand' })).status, 200)
    return { formation, path }
  }
  const plan = (body: object, query = '') => createdBy(project.key, `/formations/plan${query}`, body, 200)

  it('are shown by plans with who made them and when', async () => {
    const { formation } = await edited()
    const { changes } = await plan({ formation_id: formation.id })
    const { data } = (await app.admin.get(`/audit-log?project_id=${project.id}&action=memories:UpdateMemoryStore`)).body
    const entries = data.filter(({ resource_public_id }: any) => resource_public_id === physical(formation, 'S'))
    const at = (field: string) => entries.find(({ detail }: any) => detail.changes.includes(field)).created_at
    assert.deepEqual(changes[0].overwrites, [
      { field: 'name', changed_by: project.keyId, changed_at: at('name') },
      { field: 'description', changed_by: project.keyId, changed_at: at('description') },
    ])
    const after = await updated(project.key, formation, {})
    assert.equal(after.status, 'active')
    assert.equal((await plan({ formation_id: formation.id })).changes[0].overwrites, undefined)
  })

  it('stop a deploy that does not force its own values', async () => {
    const { formation, path } = await edited()
    const refused = await project.key.put(`/formations/${formation.id}`, { force_conflicts: false })
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'FORMATION_CONFLICT'])
    assert.deepEqual(
      refused.body.error.meta.conflicts.map(({ logical_id, field, changed_by }: any) => [
        logical_id,
        field,
        changed_by,
      ]),
      [
        ['S', 'name', project.keyId],
        ['S', 'description', project.keyId],
      ],
    )
    assert.equal((await project.key.get(path)).body.description, 'by hand')
    await updated(project.key, formation, { force_conflicts: true })
    assert.equal((await project.key.get(path)).body.description, 'one')
    // Nothing is in conflict with a template that says the changed values.
    await project.key.patch(path, { description: 'two' })
    assert.equal(
      (await updated(project.key, formation, { force_conflicts: false, template: template('two') })).status,
      'active',
    )
  })

  it('are overwritten or kept by default as the deployment says, and by a saved plan that showed them', async () => {
    const { formation, path } = await edited()
    const strict = await startApp({ databaseUrl: app.databaseUrl, env: { FORMATION_FORCE_CONFLICTS: 'false' } })
    try {
      const key = client(strict.url, project.key.token)
      const refused = await key.put(`/formations/${formation.id}`, {})
      assert.equal(refused.body.error.code, 'FORMATION_CONFLICT')
      const { plan_id } = await plan({ formation_id: formation.id }, '?save=true')
      const applied = await key.put(`/formations/${formation.id}`, { plan_id })
      assert.deepEqual([applied.status, applied.body.status], [200, 'active'], JSON.stringify(applied.body))
    } finally {
      await strict.close()
    }
    assert.equal((await project.key.get(path)).body.description, 'one')
  })

  it('make a saved plan stale, which is applied once otherwise', async () => {
    const formation = await active(project.key, template('one'))
    const next = { formation_id: formation.id, template: template('two') }
    const saved = await plan(next, '?save=true')
    assert.match(saved.plan_id, /^form_plan_/)
    const hours = (Date.parse(saved.expires_at) - Date.now()) / 3_600_000
    assert.ok(hours > 23.9 && hours < 24.1, saved.expires_at)
    assert.deepEqual(saved.changes[0].diff, { desired: { description: 'two' }, current: { description: 'one' } })
    const path = `/memory-stores/${physical(formation, 'S')}`
    await project.key.patch(path, { description: 'by hand' })
    const apply = (plan_id: string, more: object = {}) =>
      project.key.put(`/formations/${formation.id}`, { plan_id, ...more })
    const stale = await apply(saved.plan_id)
    assert.deepEqual([stale.status, stale.body.error.code], [409, 'FORMATION_PLAN_STALE'])
    assert.equal((await project.key.get(path)).body.description, 'by hand')
    await project.key.patch(path, { description: 'one' })
    const both = await apply(saved.plan_id, { template: template('three') })
    assert.deepEqual([both.status, both.body.error.meta.problems[0].path], [400, 'plan_id'])
    assert.equal((await apply(saved.plan_id)).body.status, 'active')
    assert.equal((await project.key.get(path)).body.description, 'two')
    assert.equal((await apply(saved.plan_id)).body.error.code, 'FORMATION_PLAN_STALE')
  })

  it('do not reach a plan of another formation, of another operation, or a plan that has expired', async () => {
    const [one, other] = [await active(project.key, template('a')), await active(project.key, template('b'))]
    const save = async () => (await plan({ formation_id: one.id, template: template('c') }, '?save=true')).plan_id
    const apply = async (formation: any, plan_id: string) =>
      (await project.key.put(`/formations/${formation.id}`, { plan_id })).body.error?.code
    const foreign = await save()
    assert.equal(await apply(other, foreign), 'FORMATION_PLAN_STALE')
    await updated(project.key, one, {})
    assert.equal(await apply(one, foreign), 'FORMATION_PLAN_STALE')
    const late = await save()
    await app.rows(`update formation_plans set expires_at = now() - interval '1 second' where id = $1`, [late])
    assert.equal(await apply(one, late), 'FORMATION_PLAN_STALE')
    await sweepFormations(app.services)
    assert.deepEqual(await app.rows('select id from formation_plans where id = $1', [late]), [])
    const oldest = await save()
    for (let index = 0; index < 20; index++) await save()
    assert.equal(await apply(one, oldest), 'FORMATION_PLAN_STALE')
    const [{ count }] = await app.rows('select count(*)::int as count from formation_plans where formation_id = $1', [
      one.id,
    ])
    assert.equal(count, 20)
    const nowhere = await project.key.post('/formations/plan?save=true', { template: template('c') })
    assert.equal(nowhere.body.error.meta.problems[0].path, 'formation_id')
  })

  it('leave the values of a saved plan sealed', async () => {
    const secret = {
      parameters: { Key: { no_echo: true } },
      resources: { S: { type: 'secret', properties: { name: 'plan-key', value: { param: 'Key' } } } },
    }
    const formation = await active(project.key, secret, { parameters: { Key: 'first-value' } })
    const literal = { resources: { S: { type: 'secret', properties: { name: 'plan-key', value: 'literal-value' } } } }
    const saved = await plan(
      { formation_id: formation.id, template: secret, parameters: { Key: 'second-value' } },
      '?save=true',
    )
    const written = await plan({ formation_id: formation.id, template: literal }, '?save=true')
    const stored = await app.rows('select formation_plans::text as text from formation_plans')
    for (const { text } of stored) assert.doesNotMatch(text, /second-value|literal-value/)
    const { body } = await project.key.put(`/formations/${formation.id}`, { plan_id: saved.plan_id })
    assert.equal(body.status, 'active', JSON.stringify(body))
    assert.deepEqual(await planned(project.key, { formation_id: formation.id, parameters: { Key: 'second-value' } }), [
      ['S', 'no-op'],
    ])
    assert.equal(
      (await project.key.put(`/formations/${formation.id}`, { plan_id: written.plan_id })).body.error.code,
      'FORMATION_PLAN_STALE',
    )
  })
})
