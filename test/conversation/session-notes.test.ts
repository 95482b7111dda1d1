import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { forSuite } from '../support/suite.ts'
import { chat, endUser, openEndUserStream } from './end-user-support.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const NOTES = [
  'sessions:ListSessionNotes',
  'sessions:CreateSessionNote',
  'sessions:UpdateSessionNote',
  'sessions:DeleteSessionNote',
]

describe('notes of a session', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startSessionApp({
      workers: ['generation', 'snapshot'],
      actions: ['actors:*', 'agents:*', 'conversations:*', 'generations:*', 'sessions:*'],
    }),
  )
  /** A user who may do exactly this in the project, or on these resources. */
  const staff = (action: string[], resource = [`srn:${app.projectId}:*:*`], more: Json = {}) =>
    app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource, ...more }] }])
  const named = async (display_name: string, action = NOTES) => {
    const user = await staff(action)
    expectStatus(await app.admin.patch(`/users/${user.id}`, { display_name }), 200)
    return user
  }
  const pathOf = ({ id }: Json) => `/sessions/${id}/notes`
  const write = async (session: Json, text: string, by: { post: typeof app.key.post } = app.key) =>
    expectStatus(await by.post(pathOf(session), { text }), 201)

  it('have an author, a time and a text, and are listed, changed by their author, and deleted', async () => {
    const [rosa, leo] = [await named('Rosa'), await named('Leo')]
    const session = await app.session()
    const made = await write(session, '  Ask a lead first.  ', rosa)
    const { id, created_at, updated_at, ...rest } = made
    assert.match(id, /^snote_/)
    assert.equal(created_at, updated_at)
    assert.deepEqual(rest, {
      project_id: app.projectId,
      session_id: session.id,
      text: 'Ask a lead first.',
      author: { type: 'user', id: rosa.id },
      author_name: 'Rosa',
    })
    const path = `${pathOf(session)}/${id}`
    assert.deepEqual(expectStatus(await leo.get(path), 200), made)
    const ofKey = await write(session, 'By an integration')
    assert.deepEqual([ofKey.author.type, ofKey.author_name], ['api_key', null])
    assert.deepEqual(expectStatus(await leo.get(pathOf(session)), 200).data, [ofKey, made])
    expectRefusal(await leo.patch(path, { text: 'Mine' }), 403, 'FORBIDDEN')
    const etag = (await rosa.get(path)).headers.get('etag') as string
    assert.equal(expectStatus(await rosa.patch(path, { text: 'Ask two leads.' }), 200).text, 'Ask two leads.')
    const late = await rosa.patch(path, { text: 'Late' }, { 'if-match': etag })
    assert.equal(late.status, 412)
    expectStatus(await leo.delete(path), 204)
    expectRefusal(await leo.get(path), 404, 'RESOURCE_NOT_FOUND')
    for (const body of [{}, { text: ' ' }, { text: 'x'.repeat(10_001) }, { text: 'x', author: 'y' }])
      expectRefusal(await rosa.post(pathOf(session), body), 400, 'VALIDATION_FAILED')
  })

  it('are written in sessions of any status, and leave with the session', async () => {
    const session = await app.session()
    expectStatus(await app.key.patch(`/sessions/${session.id}`, { status: 'closed' }), 200)
    const { id } = await write(session, 'Closed for a reason')
    expectStatus(await app.key.post(`/sessions/${session.id}/fork`), 201)
    assert.equal((await app.rows('select from session_notes where text = $1', ['Closed for a reason'])).length, 1)
    expectStatus(await app.key.delete(`/sessions/${session.id}`), 204)
    assert.deepEqual(await app.rows('select from session_notes where id = $1', [id]), [])
  })

  it('each need their permission, on a session of the project', async () => {
    const session = await app.session({ tags: { team: 'desk' } })
    const other = await app.session()
    const { id } = await write(session, 'Secret')
    const path = `${pathOf(session)}/${id}`
    const calls: [string, (by: Json, at: string) => Promise<any>, number][] = [
      ['sessions:ListSessionNotes', (by, at) => by.get(pathOf({ id: at })), 200],
      ['sessions:ListSessionNotes', (by, at) => by.get(`${pathOf({ id: at })}/${id}`), 200],
      ['sessions:CreateSessionNote', (by, at) => by.post(pathOf({ id: at }), { text: 'x' }), 201],
      ['sessions:UpdateSessionNote', (by, at) => by.patch(`${pathOf({ id: at })}/${id}`, { text: 'x' }), 403],
      ['sessions:DeleteSessionNote', (by, at) => by.delete(`${pathOf({ id: at })}/${id}`), 204],
    ]
    const foreign = (await app.projectWith(['sessions:*'])).key
    const elsewhere = await staff(NOTES, [`srn:${app.projectId}:session:${other.id}`])
    const tagged = await staff(NOTES, [`srn:${app.projectId}:session:*`], {
      condition: { StringEquals: { 'svc:ResourceTag/team': 'shop' } },
    })
    const token = await endUser(app)
    const own = await chat(token, app.agentId)
    for (const [action, call, status] of calls) {
      const without = await staff(['sessions:*', ...NOTES].filter(each => each !== action && each !== 'sessions:*'))
      expectRefusal(await call(without, session.id), 403, 'FORBIDDEN')
      assert.equal((await call(foreign, session.id)).status, 404, action)
      assert.ok([403, 404].includes((await call(elsewhere, session.id)).status), action)
      assert.ok([403, 404].includes((await call(tagged, session.id)).status), action)
      for (const at of [own.id, session.id]) assert.ok([403, 404].includes((await call(token, at)).status), action)
      // A note is found below its own session only.
      if (status !== 201 && !call.toString().includes('pathOf({ id: at }))'))
        assert.equal((await call(app.key, other.id)).status, 404, action)
    }
    assert.equal(expectStatus(await app.key.get(path), 200).text, 'Secret')
    for (const [action, call, status] of calls)
      assert.equal((await call(await staff([action], [`srn:${app.projectId}:session:*`]), session.id)).status, status)
  })

  it('reach neither the end user nor a model, an event, the audit log or an export', async () => {
    const { agentId, requests } = await app.scripted([{ reply: { text: 'hello' } }])
    const token = await endUser(app, { agent_ids: [agentId] })
    const session = await chat(token, agentId)
    const stream = await openEndUserStream(app.url, token.token, `/sessions/${session.id}/stream`)
    await stream.read()
    const rosa = await named('Rosa', [...NOTES, 'sessions:OperateSession'])
    expectStatus(await rosa.post(`/sessions/${session.id}/takeover`), 200)
    const { id } = await write(session, 'zwetschge-marker', rosa)
    expectStatus(await rosa.patch(`${pathOf(session)}/${id}`, { text: 'zwetschge-marker again' }), 200)
    const another = await write(session, 'zwetschge-marker deleted', rosa)
    expectStatus(await rosa.delete(`${pathOf(session)}/${another.id}`), 204)
    expectStatus(await rosa.post(`/sessions/${session.id}/operator-messages`, { message: 'I am here' }), 201)
    expectStatus(await rosa.post(`/sessions/${session.id}/handback`, { generate: true }), 200)
    const seen: unknown[] = []
    for (let event = await stream.read(); event && event.event !== 'turn_completed'; event = await stream.read())
      seen.push(event)
    stream.close()
    assert.ok(seen.length > 2)
    const conversation = (await app.key.get(`/sessions/${session.id}`)).body.conversation_id
    for (const read of [
      await token.get(`/sessions/${session.id}`),
      await token.get(`/sessions/${session.id}/messages`),
      await token.get('/sessions'),
      await app.key.get(`/sessions/${session.id}/messages`),
      await app.key.get(`/conversations/${conversation}/export`),
    ])
      seen.push(expectStatus(read, 200))
    seen.push(await requests())
    assert.doesNotMatch(JSON.stringify(seen), /zwetschge|snote_/)
    for (const [verb, count] of [
      ['created', 2],
      ['updated', 1],
      ['deleted', 1],
    ] as const) {
      const texts = (await app.events(`session_notes.${verb}`)).filter(event => event.data.session_id === session.id)
      assert.deepEqual(
        texts.map(({ data }) => data.text),
        Array(count).fill(null),
      )
    }
    assert.deepEqual(await placesOf(app, 'zwetschge-marker'), ['public.session_notes'])
  })

  it('are erased with the content of the end user, also in stored responses, and count as stored bytes', async () => {
    const ann = expectStatus(await app.key.post('/actors', { name: 'Ann' }), 201)
    const bea = expectStatus(await app.key.post('/actors', { name: 'Bea' }), 201)
    const sessions = [await app.session({ actor_id: ann.id }), await app.session({ actor_id: bea.id })]
    for (const [index, session] of sessions.entries())
      expectStatus(
        await app.key.post(
          pathOf(session),
          { text: `mirabelle-marker-${index}` },
          { 'idempotency-key': `note-${session.id}` },
        ),
        201,
      )
    expectStatus(await app.key.post(`/actors/${ann.id}/purge-content`), 202)
    await eventually(async () => (await app.rows('select from actor_purges')).length === 0)
    assert.deepEqual(await placesOf(app, 'mirabelle-marker-0'), [])
    assert.equal(expectStatus(await app.key.get(pathOf(sessions[0])), 200).total, 0)
    assert.equal(expectStatus(await app.key.get(pathOf(sessions[1])), 200).data[0].text, 'mirabelle-marker-1')
    const [entry] = (
      await app.admin.get(`/audit-log?project_id=${app.projectId}&resource_public_id=${ann.id}`)
    ).body.data.filter(({ detail }: Json) => detail?.kind === 'actor_purge')
    assert.equal(entry.detail.counts.session_notes, 1)
  })
})
