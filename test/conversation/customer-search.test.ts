import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

describe('the search for end users and their sessions', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ workers: ['generation'] }))
  const reader = (action: string[]) =>
    app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }] }])
  const ids = async (client: { get(path: string): Promise<any> }, path: string): Promise<string[]> => {
    const { status, body } = await client.get(path)
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.total, body.data.length)
    return body.data.map(({ id }: any) => id)
  }
  const search = (client: { get(path: string): Promise<any> }, text: string) =>
    ids(client, `/actors?project_id=${app.projectId}&search=${encodeURIComponent(text)}`)
  let ada: any
  let session: any
  let generation: string

  before(async () => {
    ada = await createdBy(app.key, '/actors', { name: 'Ada Lovelace', external_id: 'crm-10%42' })
    await createdBy(app.key, '/actors', { name: 'Grace', external_id: 'crm-10-42' })
    session = await createdBy(app.key, '/sessions', { agent_id: app.agentId, actor_id: ada.id })
    await postedBy(app.key, `/sessions/${session.id}/messages`, { message: 'Hello' })
    generation = (await postedBy(app.key, `/sessions/${session.id}/generate?wait=true`, {})).generation_id
  })

  it('finds an end user by parts of its name and external ID, and by IDs that belong to it', async () => {
    for (const text of ['lovelace', ' ADA ', 'crm-10%', ada.id, session.id, session.conversation_id, generation])
      assert.deepEqual(await search(app.key, text), [ada.id], text)
    for (const text of ['nobody', 'sess_00000000000000000000000000', 'actor_00000000000000000000000000'])
      assert.deepEqual(await search(app.key, text), [], text)
  })

  it('finds by IDs of other kinds only for callers who may list them, and nothing in other projects', async () => {
    const actors = await reader(['actors:ListActors'])
    assert.deepEqual(await search(actors, 'lovelace'), [ada.id])
    for (const id of [session.id, session.conversation_id, generation])
      assert.deepEqual(await search(actors, id), [], id)
    const sessions = await reader(['actors:ListActors', 'sessions:ListSessions'])
    assert.deepEqual(await search(sessions, session.id), [ada.id])
    const { key } = await app.project()
    for (const text of ['lovelace', ada.id, session.id, generation])
      assert.deepEqual(await ids(key, `/actors?search=${text}`), [], text)
  })

  it('filters sessions by their end user, for callers who may get it', async () => {
    await createdBy(app.key, '/sessions', { agent_id: app.agentId })
    const found = (client: { get(path: string): Promise<any> }, text: string) =>
      ids(client, `/sessions?project_id=${app.projectId}&actor=${encodeURIComponent(text)}`)
    for (const text of ['love', 'crm-10%42', ada.id]) assert.deepEqual(await found(app.key, text), [session.id], text)
    assert.deepEqual(await found(app.key, 'grace'), [])
    assert.deepEqual(await found(await reader(['sessions:ListSessions']), 'love'), [])
    assert.deepEqual(await found(await reader(['sessions:ListSessions', 'actors:GetActor']), 'love'), [session.id])
  })

  it('filters sessions by ratings that the caller may list', async () => {
    const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
    const reply = data.at(-1).document_id
    const rated = await app.key.put(`/sessions/${session.id}/messages/${reply}/feedback`, { rating: -1 })
    assert.equal(rated.status, 200, JSON.stringify(rated.body))
    const rating = (client: { get(path: string): Promise<any> }, value: string) =>
      ids(client, `/sessions?project_id=${app.projectId}&rating=${value}`)
    assert.deepEqual(await rating(app.key, '-1'), [session.id])
    assert.deepEqual(await rating(app.key, '1'), [])
    assert.deepEqual(await rating(await reader(['sessions:ListSessions']), '-1'), [])
    assert.deepEqual(await rating(await reader(['sessions:ListSessions', 'sessions:ListFeedback']), '-1'), [session.id])
    assert.equal((await app.key.get('/sessions?rating=5')).status, 400)
  })

  it('filters sessions by the request for a person', async () => {
    const other = await createdBy(app.key, '/sessions', { agent_id: app.agentId })
    await postedBy(app.key, `/sessions/${other.id}/attention`, { reason: 'angry' })
    assert.deepEqual(await ids(app.key, '/sessions?attention=true'), [other.id])
    assert.equal((await ids(app.key, '/sessions?attention=false')).includes(other.id), false)
  })

  it('reads by indexes at 20,000 sessions and end users', async () => {
    const { id: project } = await app.project(undefined, app.projectId)
    await app.rows(
      `insert into actors (id, project_id, name) select 'actor_' || lpad(n::text, 26, '0'), $1, 'n' || n
       from generate_series(1, 20000) n`,
      [project],
    )
    await app.rows(
      `with made as (insert into conversations (id, project_id) select 'conv_' || lpad(n::text, 26, '0'), $1
         from generate_series(1, 20000) n returning id)
       insert into sessions (id, project_id, agent_id, conversation_id, actor_id, attention, assigned_to)
       select 'sess_' || right(id, 26), $1, $2, id, 'actor_' || right(id, 26), case when right(id, 3) = '000' then '{}'::jsonb end, null
       from made`,
      [project, app.agentId],
    )
    await app.rows(
      `insert into feedback (id, project_id, session_id, generation_id, agent_id, author_type, author_id, rating)
       select 'fb_' || lpad(n::text, 26, '0'), $1, 'sess_' || lpad((n * 37)::text, 26, '0'), 'gen_' || n, $2, 'user', 'user_x', 1
       from generate_series(1, 20000) n`,
      [project, app.agentId],
    )
    await app.rows('analyze sessions, actors, feedback')
    const planOf = async (path: string) => {
      const before = app.statements.length
      const { status } = await app.admin.get(`${path}&project_id=${project}`)
      assert.equal(status, 200)
      const text = app.statements.slice(before).find(statement => statement.includes('page_total')) as string
      const rows = await app.rows(`explain (generic_plan) ${text}`)
      return rows.map((row: any) => row['QUERY PLAN']).join('\n')
    }
    const id = '00000000000000000000001000'
    for (const [path, index] of [
      [`/actors?search=actor_${id}`, /actors_pkey/],
      [`/actors?search=sess_${id}`, /sessions_pkey/],
      ['/sessions?attention=true', /sessions_attention/],
      ['/sessions?assigned_to=user_1', /sessions_assigned/],
      ['/sessions?rating=-1', /feedback_session/],
      [`/sessions?actor_id=actor_${id}`, /sessions_actor/],
      [`/sessions?actor=actor_${id}`, /sessions_actor/],
    ] as const) {
      const plan = await planOf(path)
      assert.match(plan, index, path)
      assert.doesNotMatch(plan, /Seq Scan on (sessions|actors)/, path)
    }
  })
})
