import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { bodyOf, createdBy, refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

describe('saved views', () => {
  const app = forSuite(startApp)
  let projectId: string
  const VIEW = { view: 'traces', name: 'Failed today', query: { status: 'failed', time: 'day' } }
  /** A user who may only list turns in a project. */
  const lead = (project = projectId) =>
    app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['generations:ListGenerations'], resource: [`srn:${project}:*:*`] }] },
    ])
  const save = (user: Awaited<ReturnType<typeof lead>>, fields: object = {}) =>
    createdBy(user, '/saved-views', { project_id: projectId, ...VIEW, ...fields })

  before(async () => {
    projectId = (await app.project()).id
  })

  it('are created, listed by name, changed and deleted by a user without further permissions', async () => {
    const user = await lead()
    const view = await save(user)
    assert.match(view.id, /^view_/)
    const { id, created_at, updated_at, ...fields } = view
    assert.deepEqual(fields, { project_id: projectId, user_id: user.id, ...VIEW })
    const path = `/saved-views/${id}`
    assert.deepEqual((await bodyOf(user.get(path))).query, VIEW.query)
    await save(user, { name: 'Expensive', query: { cost: '0.5' } })
    await save(user, { name: 'Angry', view: 'sessions', query: {} })
    const names = async (query: string) =>
      (await bodyOf(user.get(`/saved-views?${query}`))).data.map(({ name }: any) => name)
    assert.deepEqual(await names(`project_id=${projectId}&view=traces`), ['Expensive', 'Failed today'])
    assert.deepEqual(await names(''), ['Angry', 'Expensive', 'Failed today'])
    const changed = await bodyOf(user.patch(path, { name: 'Failed', query: { status: 'failed' } }))
    assert.deepEqual([changed.name, changed.query], ['Failed', { status: 'failed' }])
    assert.equal((await user.delete(path)).status, 204)
    assert.equal((await user.get(path)).status, 404)
  })

  it('are neither visible to another user nor changed by one, not even an admin', async () => {
    const user = await lead()
    const { id } = await save(user)
    for (const other of [await lead(), app.admin]) {
      assert.equal((await bodyOf(other.get('/saved-views'))).total, 0)
      assert.equal((await bodyOf(other.get(`/saved-views?project_id=${projectId}`))).total, 0)
      for (const method of ['get', 'delete'] as const)
        assert.deepEqual(refusalOf(await other[method](`/saved-views/${id}`)), [404, 'RESOURCE_NOT_FOUND'])
      const patched = await other.patch(`/saved-views/${id}`, { name: 'Mine' })
      assert.deepEqual(refusalOf(patched), [404, 'RESOURCE_NOT_FOUND'])
    }
    assert.equal((await bodyOf(user.get(`/saved-views/${id}`))).name, VIEW.name)
  })

  it('need a project that the user may see', async () => {
    const user = await lead()
    const { id: foreign } = await app.project()
    for (const project_id of [foreign, 'proj_00000000000000000000000000', 'x'])
      assert.deepEqual(
        refusalOf(await user.post('/saved-views', { project_id, ...VIEW })),
        [404, 'RESOURCE_NOT_FOUND'],
        project_id,
      )
    assert.deepEqual(refusalOf(await user.post('/saved-views', VIEW)), [400, 'VALIDATION_FAILED'])
  })

  it('are refused to keys, which are no user, with a reason', async () => {
    const { key, id } = await app.project()
    const { id: view } = await save(await lead())
    for (const reply of [
      await key.post('/saved-views', { project_id: id, ...VIEW }),
      await key.get('/saved-views'),
      await key.get(`/saved-views/${view}`),
      await key.patch(`/saved-views/${view}`, { name: 'Mine' }),
      await key.delete(`/saved-views/${view}`),
    ]) {
      assert.deepEqual(refusalOf(reply), [403, 'FORBIDDEN'])
      assert.match(reply.body.error.message, /belong to a user/)
    }
  })

  it('have unique names in a view, and limits of number and size', async () => {
    const user = await lead()
    const { id } = await save(user)
    const post = (fields: object) => user.post('/saved-views', { project_id: projectId, ...VIEW, ...fields })
    assert.deepEqual(refusalOf(await post({})), [409, 'NAME_CONFLICT'])
    await save(user, { view: 'sessions' })
    await save(await lead())
    const other = await save(user, { name: 'Other' })
    assert.deepEqual(refusalOf(await user.patch(`/saved-views/${other.id}`, { name: VIEW.name })), [
      409,
      'NAME_CONFLICT',
    ])
    const many = Object.fromEntries(Array.from({ length: 31 }, (_, n) => [`p${n}`, 'x']))
    for (const fields of [
      { name: '' },
      { name: 'x'.repeat(101) },
      { view: 'Traces' },
      { query: many },
      { query: { q: 'x'.repeat(2049) } },
      { query: { q: 1 } },
    ])
      assert.deepEqual(
        refusalOf(await post({ name: 'Bad', ...fields })),
        [400, 'VALIDATION_FAILED'],
        JSON.stringify(fields),
      )
    // Creates at the same time do not pass the limit either.
    const created = await Promise.all(Array.from({ length: 110 }, (_, n) => post({ name: `View ${n}` })))
    assert.equal(created.filter(({ status }) => status === 201).length, 97)
    const refused = await post({ name: 'One more' })
    assert.deepEqual(refusalOf(refused), [400, 'VALIDATION_FAILED'])
    assert.match(refused.body.error.message, /100 saved views/)
    assert.equal((await user.delete(`/saved-views/${id}`)).status, 204)
    assert.equal((await post({ name: 'One more' })).status, 201)
  })

  it('are deleted with their user and with their project, which they do not keep from being deleted', async () => {
    const { id: project } = await app.project()
    const [user, other] = [await lead(project), await lead(project)]
    for (const each of [user, other]) await save(each, { project_id: project })
    const rows = () => app.rows('select user_id from saved_views where project_id = $1', [project])
    assert.equal((await app.admin.delete(`/users/${user.id}`)).status, 204)
    assert.deepEqual(await rows(), [{ user_id: other.id }])
    const deleted = await app.admin.delete(`/projects/${project}`)
    assert.equal(deleted.status, 204, JSON.stringify(deleted.body))
    assert.deepEqual(await rows(), [])
  })
})
