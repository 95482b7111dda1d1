import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { createdBy, refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

describe('prepared replies', function () {
  this.timeout(60_000)
  const app = forSuite(() => startApp())
  const TEXT = 'Dear {{customer_name}}, it is booked.'

  it('are created, listed by name, changed and deleted by those who may', async () => {
    const project = await app.projectWith(['prepared-replies:*', 'events:ListEvents'])
    const made = await createdBy(project.key, '/prepared-replies', { name: 'Refund booked', text: TEXT })
    assert.match(made.id, /^prep_/)
    assert.deepEqual([made.name, made.text, made.project_id], ['Refund booked', TEXT, project.id])
    const taken = await project.key.post('/prepared-replies', { name: 'Refund booked', text: 'x' })
    assert.deepEqual(refusalOf(taken), [409, 'NAME_CONFLICT'])
    await createdBy(project.key, '/prepared-replies', { name: 'Greeting', text: 'Hello' })
    const { body: found } = await project.key.get('/prepared-replies?name=refund')
    assert.deepEqual(found.data, [made])
    const path = `/prepared-replies/${made.id}`
    assert.equal((await project.key.patch(path, { text: 'Booked.' })).body.text, 'Booked.')
    assert.deepEqual(refusalOf(await project.key.patch(path, { name: 'Greeting' })), [409, 'NAME_CONFLICT'])
    for (const body of [{ name: 'x' }, { name: '', text: 'x' }, { name: 'x', text: ' ' }])
      assert.equal((await project.key.post('/prepared-replies', body)).status, 400)

    const may = (action: string) =>
      app.user(undefined, [{ statement: [{ effect: 'Allow', action: [action], resource: [`srn:${project.id}:*:*`] }] }])
    const reader = await may('prepared-replies:ListPreparedReplies')
    assert.equal((await reader.get(`/prepared-replies?project_id=${project.id}`)).body.total, 2)
    for (const refused of [
      await reader.get(path),
      await reader.patch(path, { text: 'x' }),
      await reader.delete(path),
      await reader.post('/prepared-replies', { project_id: project.id, name: 'x', text: 'x' }),
    ])
      assert.equal(refused.status, 403)
    const foreign = (await app.projectWith(['prepared-replies:*'])).key
    assert.equal((await foreign.get('/prepared-replies')).body.total, 0)
    for (const refused of [
      await foreign.get(path),
      await foreign.patch(path, { text: 'x' }),
      await foreign.delete(path),
    ])
      assert.equal(refused.status, 404)

    assert.equal((await project.key.delete(path)).status, 204)
    const events = (await project.key.get(`/events?resource_id=${made.id}`)).body.data
    assert.deepEqual(
      events.map(({ event }: { event: string }) => event),
      ['prepared_replies.deleted', 'prepared_replies.updated', 'prepared_replies.created'],
    )
  })

  it('are copied with a project', async () => {
    const project = await createdBy(app.admin, '/projects', { name: 'desk' })
    const { id } = await createdBy(app.admin, '/prepared-replies', { project_id: project.id, name: 'Bye', text: TEXT })
    const clone = await createdBy(app.admin, `/projects/${project.id}/clone`, {
      name: 'copy',
      include: ['prepared_replies'],
    })
    const { body } = await app.admin.get(`/prepared-replies?project_id=${clone.project?.id ?? clone.id}`)
    assert.deepEqual(
      body.data.map(({ name, text }: any) => [name, text]),
      [['Bye', TEXT]],
    )
    assert.notEqual(body.data[0].id, id)
  })
})
