import { strict as assert } from 'node:assert'
import { rawQuery } from '#core/db/sql.ts'
import { startApp } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'

describe('tags', () => {
  const app = forSuite(() => startApp({ together: true }))
  const project = forSuite(() => app.project())
  let path: string

  before(async () => {
    path = `/projects/${project.id}/tags`
  })
  beforeEach(() => app.admin.put(path, {}))

  it('PUT replaces the bag and GET shows it', async () => {
    assert.deepEqual((await app.admin.put(path, { team: 'a', tier: '' })).body, { team: 'a', tier: '' })
    assert.deepEqual((await app.admin.put(path, { team: 'b' })).body, { team: 'b' })
    assert.deepEqual((await app.admin.get(path)).body, { team: 'b' })
    assert.deepEqual((await app.admin.get(`/projects/${project.id}`)).body.tags, { team: 'b' })
  })

  it('PATCH merges, and null removes a key', async () => {
    await app.admin.put(path, { team: 'a', tier: 'x' })
    assert.deepEqual((await app.admin.patch(path, { tier: null, region: 'eu', none: null })).body, {
      team: 'a',
      region: 'eu',
    })
  })

  it('distinguishes costCenter and cost_center', async () => {
    const bag = { costCenter: '1', cost_center: '2' }
    assert.deepEqual((await app.admin.put(path, bag)).body, bag)
  })

  it('refuses to write reserved keys, and keeps those the platform wrote', async () => {
    for (const method of ['put', 'patch'] as const) {
      const refused = await app.admin[method](path, { 'system.actor_id': 'x' })
      assert.equal(refused.status, 400)
      assert.deepEqual(
        refused.body.error.meta.problems.map((problem: { code: string; path: string }) => [problem.code, problem.path]),
        [['RESERVED_TAG_KEY', 'system.actor_id']],
      )
    }
    assert.equal((await app.admin.patch(path, { 'system.actor_id': null })).status, 400)
    const { id } = await app.project()
    const stored = JSON.stringify({ 'system.source': 'import', team: 'a' })
    await app.services.pool.query(rawQuery('update projects set tags = $1 where id = $2', [stored, id]))
    assert.deepEqual((await app.admin.put(`/projects/${id}/tags`, { tier: 'x' })).body, {
      'system.source': 'import',
      tier: 'x',
    })
  })

  it('bounds keys, values and their number', async () => {
    const many = (count: number, prefix = 'k') =>
      Object.fromEntries(Array.from({ length: count }, (_, index) => [`${prefix}${index}`, 'v']))
    for (const bag of [
      { '': 'x' },
      { ['k'.repeat(129)]: 'x' },
      { k: 'v'.repeat(257) },
      { k: 1 },
      { k: null },
      { k: {} },
      many(51),
    ])
      assert.equal((await app.admin.put(path, bag)).status, 400, JSON.stringify(bag).slice(0, 40))
    assert.equal((await app.admin.put(path, { ['k'.repeat(128)]: 'v'.repeat(256) })).status, 200)
    assert.equal((await app.admin.put(path, many(50))).status, 200)
    assert.equal((await app.admin.patch(path, { other: 'x' })).status, 400)
    assert.equal((await app.admin.patch(path, { other: 'x', k0: null })).status, 200)
  })

  it('emits the resource after the change', async () => {
    await app.admin.patch(path, { mark: 'seen' })
    const told = await storedEvents(app.services.pool, { project: project.id, name: 'projects.updated' })
    assert.deepEqual(told.at(-1)?.data.tags, { mark: 'seen' })
  })

  it('loses no write of concurrent merges', async () => {
    const keys = Array.from({ length: 12 }, (_, index) => `c${index}`)
    const replies = await Promise.all(keys.map(key => app.admin.patch(path, { [key]: 'x' })))
    assert.deepEqual([...new Set(replies.map(reply => reply.status))], [200])
    assert.deepEqual(Object.keys((await app.admin.get(path)).body).sort(), [...keys].sort())
  })

  it('lets no caller tag a resource into or out of a policy', async () => {
    await app.admin.put(path, { team: 'a' })
    const caller = await app.user(undefined, [
      {
        statement: [
          { effect: 'Allow', action: ['projects:GetProject'], resource: [`srn:${project.id}:project:*`] },
          {
            effect: 'Allow',
            action: ['projects:UpdateProject'],
            resource: [`srn:${project.id}:project:*`],
            condition: { StringEquals: { 'svc:ResourceTag/team': 'a' } },
          },
        ],
      },
    ])
    const changed = await caller.patch(path, { team: 'b' })
    assert.equal(changed.status, 403, JSON.stringify(changed.body))
    assert.deepEqual((await app.admin.get(path)).body, { team: 'a' })
    assert.equal((await caller.patch(path, { region: 'eu' })).status, 200)
    await app.admin.put(path, { team: 'b' })
    assert.equal((await caller.patch(path, { team: 'a' })).status, 403)
  })
})
