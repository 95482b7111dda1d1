import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { accepted, shared } from '../execution/share-support.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { createdBy, refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

describe('sessions with a shared agent', () => {
  const app = forSuite(() => startAgentApp({ actions: ['agents:*', 'shares:*', 'sessions:*'] }))
  const double = forSuite(() => client(app.double))
  const grantee = forSuite(() =>
    app.projectWith(['sessions:*', 'shares:*', 'generations:GetGeneration', 'actors:*'], undefined, app.projectId),
  )

  const usable = async (fields: object = {}, terms: object = {}) => {
    const id = await app.agent(fields as never)
    const share = await shared(app.key, `srn:${app.projectId}:agent:${id}`, { grantee: grantee.id, ...terms })
    await accepted(grantee.key, share.id)
    return { id, share: share.id as string }
  }
  const open = (fields: object) => createdBy(grantee.key, '/sessions', fields)
  const say = (session: string, query = '') =>
    grantee.key.post(`/sessions/${session}/messages${query}`, { message: 'hello' })

  it('are of the project that uses it, and answered by it', async () => {
    await double.put('session', { rules: [] })
    const { id } = await usable({ model: 'session/m', instructions: 'Be brief' })
    const session = await open({ agent_id: id })
    assert.deepEqual([session.project_id, session.agent_id], [grantee.id, id])
    assert.equal((await say(session.id)).status, 201)
    const { status, body } = await grantee.key.post(`/sessions/${session.id}/generate?wait=true`)
    assert.deepEqual([status, body.content], [200, 'echo: hello'], JSON.stringify(body))
    const generation = (await grantee.key.get(`/generations/${body.generation_id}`)).body
    assert.deepEqual([generation.project_id, generation.publisher_project_id], [grantee.id, app.projectId])
    assert.equal((await double.requests('session')).at(-1)?.body.messages[0].content, 'Be brief')
    assert.equal((await app.key.get(`/sessions/${session.id}`)).status, 404)
    const fork = await grantee.key.post(`/sessions/${session.id}/fork`)
    assert.deepEqual([fork.status, fork.body.agent_id], [201, id])
  })

  it('are refused where nothing shares the agent', async () => {
    const own = await app.agent()
    assert.deepEqual(refusalOf(await grantee.key.post('/sessions', { agent_id: own })), [400, 'AGENT_NOT_FOUND'])
    const { id, share } = await usable()
    const stranger = (await app.projectWith(['sessions:*'], undefined, app.projectId)).key
    assert.deepEqual(refusalOf(await stranger.post('/sessions', { agent_id: id })), [400, 'AGENT_NOT_FOUND'])
    await app.key.post(`/shares/${share}/suspend`)
    assert.deepEqual(refusalOf(await grantee.key.post('/sessions', { agent_id: id })), [400, 'AGENT_NOT_FOUND'])
  })

  it('keep the rule of one session for an end user', async () => {
    const { id } = await usable({ single_session_per_actor: true })
    const actor_id = (await grantee.key.post('/actors', { name: 'Ann' })).body.id
    const first = await open({ agent_id: id, actor_id })
    assert.deepEqual(refusalOf(await grantee.key.post('/sessions', { agent_id: id, actor_id })), [
      409,
      'SINGLE_SESSION_CONFLICT',
    ])
    await grantee.key.patch(`/sessions/${first.id}`, { status: 'closed' })
    await open({ agent_id: id, actor_id })
    const reopened = await grantee.key.patch(`/sessions/${first.id}`, { status: 'open' })
    assert.deepEqual(refusalOf(reopened), [409, 'SINGLE_SESSION_CONFLICT'])
  })

  it('count each turn in the cap, and keep messages whose turn it refuses', async () => {
    const { id } = await usable({}, { cap: { calls: 2, window: 'calendar_month' } })
    const session = await open({ agent_id: id, auto_generate: true })
    assert.equal((await say(session.id, '?wait=true')).body.reply.status, 'completed')
    const asked = await grantee.key.post(`/sessions/${session.id}/generate?wait=true`)
    assert.equal(asked.status, 200, JSON.stringify(asked.body))
    const third = await grantee.key.post(`/sessions/${session.id}/generate?wait=true`)
    assert.deepEqual(refusalOf(third), [429, 'SHARE_CAP_EXCEEDED'])
    const stored = (await say(session.id)).body
    const turn = await eventually(async () => {
      const { body } = await grantee.key.get(`/generations/${stored.generation_id}`)
      return body.status === 'failed' && body
    })
    assert.deepEqual([turn.error.code, turn.usage], ['SHARE_CAP_EXCEEDED', null])
    const { data } = (await grantee.key.get(`/sessions/${session.id}/messages`)).body
    assert.equal(data.at(-1).document_id, stored.document_id)
    assert.equal((await grantee.key.get(`/sessions/${session.id}`)).body.queued_turns, 0)
  })

  it("are retained when the share or the agent is deleted; sessions of the agent's project are deleted with it", async () => {
    const { id, share } = await usable()
    const session = await open({ agent_id: id })
    await say(session.id)
    await app.key.post(`/shares/${share}/suspend`)
    const suspended = await grantee.key.post(`/sessions/${session.id}/generate?wait=true`)
    assert.deepEqual(refusalOf(suspended), [400, 'AGENT_NOT_FOUND'])
    const own = (await app.key.post('/sessions', { agent_id: id })).body
    const deleted = await app.key.delete(`/agents/${id}?force=true`)
    assert.equal(deleted.status, 204, JSON.stringify(deleted.body))
    assert.equal((await app.key.get(`/sessions/${own.id}`)).status, 404)
    assert.equal((await grantee.key.get(`/sessions/${session.id}`)).body.agent_id, id)
    const gone = await grantee.key.post(`/sessions/${session.id}/generate?wait=true`)
    assert.deepEqual(refusalOf(gone), [400, 'AGENT_NOT_FOUND'])
    assert.equal((await grantee.key.delete(`/sessions/${session.id}`)).status, 204)
  })
})
