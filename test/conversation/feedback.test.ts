import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { client as lanes } from '../local/double/client.ts'
import { type Client, client, eventually } from '../support/app.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { forSuite } from '../support/suite.ts'
import { endUser } from './end-user-support.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

const ACTIONS = [
  'sessions:*',
  'conversations:*',
  'actors:*',
  'agents:*',
  'generations:*',
  'evaluations:*',
  'usage:*',
  'events:*',
]

describe('feedback', function () {
  this.timeout(60_000)
  const app = forSuite(() => startSessionApp({ actions: ACTIONS, workers: ['generation', 'snapshot'] }))
  const key = forSuite(() => app.key)

  /** A key of the project with these actions only. */
  const keyWith = async (...action: string[]): Promise<Client> => {
    const statement = [{ effect: 'Allow', action, resource: [`srn:${app.projectId}:*:*`] }]
    const policy = expectStatus(await app.admin.post('/policies', { document: { statement } }), 201)
    const made = { project_id: app.projectId, policy_ids: [policy.id] }
    return client(app.url, expectStatus(await app.admin.post('/project-keys', made), 201).secret)
  }
  const actor = async (): Promise<string> => expectStatus(await key.post('/actors', { name: 'Ann' }), 201).id
  /** A session with one question and its reply. */
  const answered = async (fields: object = {}) => {
    const session = await app.session({ actor_id: await actor(), ...fields })
    await app.say(session, 'Is the shop open?')
    const reply = expectStatus(await app.generate(session, '?wait=true'), 200)
    const [question, answer] = await app.messages(session)
    return {
      session,
      question,
      answer,
      generation_id: reply.generation_id as string,
      path: `/sessions/${session.id}/messages/${answer.document_id}/feedback`,
    }
  }
  type Answered = Awaited<ReturnType<typeof answered>>
  const rate = async ({ path }: Pick<Answered, 'path'>, body: object, by: Client = key) =>
    expectStatus(await by.put(path, body), 200)
  const listed = async (query: string, by: Client = key): Promise<any[]> =>
    expectStatus(await by.get(`/feedback?${query}`), 200).data
  const aggregate = async (query: string, by: Client = key): Promise<any[]> =>
    expectStatus(await by.get(`/feedback/aggregate?${query}`), 200).data
  const run = (text: string, values: unknown[] = []) => app.pool.query(rawQuery(text, values as never))

  it('is one record per reply and author, which a second request replaces', async () => {
    const giver = await keyWith('sessions:GiveFeedback')
    const rated = await answered()
    const { session, answer, generation_id } = rated
    const first = await rate(
      rated,
      { rating: -1, labels: ['wrong', ' wrong ', 'rude'], comment: 'Closed at six' },
      giver,
    )
    assert.match(first.id, /^fb_/)
    assert.deepEqual(
      { ...first, id: null, author: null, created_at: null, updated_at: null },
      {
        id: null,
        project_id: app.projectId,
        session_id: session.id,
        generation_id,
        agent_id: app.agentId,
        agent_version: 1,
        document_id: answer.document_id,
        author: null,
        rating: -1,
        score: null,
        labels: ['wrong', 'rude'],
        comment: 'Closed at six',
        created_at: null,
        updated_at: null,
      },
    )
    assert.equal(first.author.type, 'api_key')
    const second = await rate(rated, { score: 0.5 }, giver)
    assert.deepEqual(
      [second.id, second.rating, second.score, second.labels, second.comment],
      [first.id, null, 0.5, [], null],
    )
    // By its generation it is the same.
    const third = expectStatus(await giver.put(`/generations/${generation_id}/feedback`, { rating: 1 }), 200)
    assert.deepEqual([third.id, third.document_id], [first.id, answer.document_id])
    const other = await keyWith('sessions:GiveFeedback')
    assert.notEqual((await rate(rated, { rating: -1 }, other)).author.id, first.author.id)
    const user = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['sessions:*'], resource: [`srn:${app.projectId}:*:*`] }] },
    ])
    assert.deepEqual((await rate(rated, { rating: 1 }, user)).author, { type: 'user', id: user.id })
    assert.equal((await listed(`session_id=${session.id}`)).length, 3)
    assert.equal((await giver.delete(rated.path)).status, 204)
    expectRefusal(await giver.delete(rated.path), 404, 'RESOURCE_NOT_FOUND')
    assert.equal((await other.delete(`/generations/${generation_id}/feedback`)).status, 204)
    assert.deepEqual(
      (await listed(`session_id=${session.id}`)).map(({ author }) => author.type),
      ['user'],
    )
    const names = ['created', 'updated', 'deleted'].map(verb => app.events(`feedback.${verb}`))
    const events = (await Promise.all(names)).map(
      all => all.filter(({ resource_id }) => resource_id === first.id).length,
    )
    assert.deepEqual(events, [1, 2, 1])
  })

  it('is only on replies of the agent, in the session of the path, with something in it', async () => {
    const { session, question, answer, path, generation_id } = await answered()
    const on = (document_id: string, session_id = session.id) =>
      `/sessions/${session_id}/messages/${document_id}/feedback`
    const problem = expectRefusal(await key.put(on(question.document_id), { rating: 1 }), 400, 'VALIDATION_FAILED')
    assert.equal(problem.meta.problems[0].path, 'document_id')
    const other = await answered()
    expectRefusal(await key.put(on(other.answer.document_id), { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    expectRefusal(await key.put(on(answer.document_id, other.session.id), { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    expectRefusal(await key.put(on('doc_unknown'), { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    const operators = expectStatus(
      await key.post(`/conversations/${session.conversation_id}/messages`, {
        role: 'assistant',
        message: 'Written by Eve',
      }),
      201,
    )
    await run(`update conversation_messages set origin = 'operator' where document_id = $1`, [operators.document_id])
    expectRefusal(await key.put(on(operators.document_id), { rating: 1 }), 400, 'VALIDATION_FAILED')
    for (const body of [
      {},
      { rating: null, score: null, labels: [], comment: null },
      { rating: 0 },
      { rating: 2 },
      { score: 1.1 },
      { score: -0.1 },
      { labels: Array.from({ length: 11 }, (_, n) => `l${n}`) },
      { labels: ['x'.repeat(41)] },
      { labels: [' '] },
      { comment: 'x'.repeat(2001) },
      { comment: ' ' },
      { rating: 1, author: { type: 'user', id: 'x' } },
      { rating: 1, agent_version: 9 },
    ])
      expectRefusal(await key.put(path, body), 400, 'VALIDATION_FAILED')
    const full = {
      labels: Array.from({ length: 10 }, (_, n) => `${n}`.repeat(40)),
      comment: 'x'.repeat(2000),
      score: 1,
    }
    assert.deepEqual((await rate({ path }, full)).labels, full.labels)
    const elsewhere = (await app.projectWith(['*'])).key
    expectRefusal(await elsewhere.put(path, { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    expectRefusal(
      await elsewhere.put(`/generations/${generation_id}/feedback`, { rating: 1 }),
      404,
      'GENERATION_NOT_FOUND',
    )
    const reader = await keyWith('sessions:GetSession', 'sessions:ListFeedback', 'generations:GetGeneration')
    expectRefusal(await reader.put(path, { rating: 1 }), 403, 'FORBIDDEN')
    expectRefusal(await reader.put(`/generations/${generation_id}/feedback`, { rating: 1 }), 403, 'FORBIDDEN')
    expectRefusal(await (await keyWith('sessions:GiveFeedback')).get('/feedback'), 403, 'FORBIDDEN')
  })

  it('is on turns without a session too, once they have settled', async () => {
    const { agentId } = await app.scripted([{ reply: { gate: 'rated' } }])
    const started = expectStatus(await key.post(`/agents/${agentId}/generate`, { prompt: 'x' }), 202)
    const path = `/generations/${started.generation_id}/feedback`
    await app.atGate('rated')
    expectRefusal(await key.put(path, { rating: 1 }), 409, 'GENERATION_ALREADY_IN_PROGRESS')
    await app.openGate('rated')
    await app.settled(started.generation_id)
    const given = expectStatus(await key.put(path, { rating: 1, comment: 'Good' }), 200)
    assert.deepEqual([given.session_id, given.document_id, given.agent_id], [null, null, agentId])
    assert.equal(expectStatus(await key.put(path, { rating: -1 }), 200).id, given.id)
    assert.equal((await key.delete(path)).status, 204)
  })

  it('is one record when many requests give it concurrently', async () => {
    const rated = await answered()
    const turn = { path: `/generations/${rated.generation_id}/feedback` }
    const given = await Promise.all(Array.from({ length: 20 }, (_, n) => rate(n % 2 ? rated : turn, { score: n / 20 })))
    assert.equal(new Set(given.map(({ id }) => id)).size, 1)
    assert.equal((await listed(`generation_id=${rated.generation_id}`)).length, 1)
    assert.equal(
      (await app.events('feedback.created')).filter(({ resource_id }) => resource_id === given[0].id).length,
      1,
    )
  })

  it('is found by agent, version, session, actor, generation, rating, label, comment and time', async () => {
    const { agentId } = await app.scripted([])
    const [one, two] = [await answered({ agent_id: agentId }), await answered({ agent_id: agentId })]
    const bad = await rate(one, { rating: -1, labels: ['wrong'], comment: 'No' })
    const good = await rate(two, { rating: 1, labels: ['wrong', 'kind'] })
    const ids = async (query: string, by?: Client) =>
      (await listed(`agent_id=${agentId}&${query}`, by)).map(({ id }) => id)
    assert.deepEqual(await ids(''), [good.id, bad.id])
    for (const [query, expected] of [
      [`session_id=${one.session.id}`, [bad.id]],
      [`actor_id=${two.session.actor_id}`, [good.id]],
      [`generation_id=${one.generation_id}`, [bad.id]],
      ['agent_version=1', [good.id, bad.id]],
      ['agent_version=2', []],
      ['rating=1', [good.id]],
      ['rating=-1', [bad.id]],
      ['label=kind', [good.id]],
      ['label=wrong', [good.id, bad.id]],
      ['has_comment=true', [bad.id]],
      ['has_comment=false', [good.id]],
      [`from=${good.created_at}`, [good.id]],
      [`to=${bad.created_at}`, [bad.id]],
    ] as const)
      assert.deepEqual(await ids(query), expected, query)
    for (const query of ['rating=0', 'agent_version=x', 'has_comment=maybe', 'from=x'])
      expectRefusal(await key.get(`/feedback?${query}`), 400, 'VALIDATION_FAILED')
    // A policy may name a session.
    const of = (id: string) => ({ effect: 'Allow', action: ['sessions:ListFeedback'], resource: [id] })
    const reader = await app.user(undefined, [{ statement: [of(`srn:${app.projectId}:session:${one.session.id}`)] }])
    assert.deepEqual(await ids(`project_id=${app.projectId}`, reader), [bad.id])
    const [{ count }] = await aggregate(`agent_id=${agentId}&project_id=${app.projectId}`, reader)
    assert.equal(count, 1)
    assert.deepEqual(await (await app.projectWith(['*'])).key.get('/feedback').then(({ body }) => body.data), [])
  })

  it('is counted by version, agent, day and label, shown with the usage of versions, and copied into datasets', async () => {
    const { agentId } = await app.scripted([])
    const old = await answered({ agent_id: agentId })
    expectStatus(await key.patch(`/agents/${agentId}`, { instructions: 'Be brief.' }), 200)
    const recent = [1, 2, 3].map(() => answered({ agent_id: agentId }))
    await rate(old, { rating: 1, score: 1, labels: ['kind'] })
    const downs: Answered[] = []
    for (const each of recent) {
      downs.push(await each)
      await rate(await each, { rating: -1, score: 0.25, labels: ['wrong'], comment: 'It closes at six.' })
    }
    const unrated = await answered({ agent_id: agentId })
    assert.ok(unrated.generation_id)
    const version = (n: number, count: number, up: number, down: number, mean_score: number) => ({
      key: String(n),
      count,
      up,
      down,
      mean_score,
    })
    assert.deepEqual(await aggregate(`agent_id=${agentId}`), [version(2, 3, 0, 3, 0.25), version(1, 1, 1, 0, 1)])
    const [today, ...others] = await aggregate(`agent_id=${agentId}&group_by=day`)
    assert.deepEqual([today.count, today.up, today.down, today.mean_score, others.length], [4, 1, 3, 0.4375, 0])
    assert.match(today.key, /^\d{4}-\d{2}-\d{2}$/)
    assert.deepEqual(await aggregate(`agent_id=${agentId}&group_by=agent`), [
      { key: agentId, count: 4, up: 1, down: 3, mean_score: 0.4375 },
    ])
    assert.deepEqual(
      (await aggregate(`agent_id=${agentId}&group_by=label`)).map(({ key, count }) => [key, count]),
      [
        ['wrong', 3],
        ['kind', 1],
      ],
    )
    assert.deepEqual(await aggregate(`agent_id=${agentId}&to=2020-01-01T00:00:00Z`), [])
    expectRefusal(await key.get('/feedback/aggregate?group_by=author'), 400, 'VALIDATION_FAILED')

    const usage = expectStatus(await key.get(`/usage/aggregate?agent_id=${agentId}&group_by=agent_version`), 200)
    assert.deepEqual(Object.fromEntries(usage.groups.data.map(({ key, up, down }: any) => [key, [up, down]])), {
      1: [1, 0],
      2: [0, 3],
    })
    const whole = usage.groups.data.reduce((sum: number, group: any) => sum + group.input_tokens, 0)
    assert.equal(whole, usage.totals.input_tokens)
    const other = expectStatus(await key.get(`/usage/aggregate?group_by=agent_version&model=none`), 200)
    assert.equal(other.groups.total, 0)
    const plain = expectStatus(await key.get(`/usage/aggregate?agent_id=${agentId}&group_by=agent`), 200)
    assert.ok(!('up' in plain.groups.data[0]))

    const dataset = async () => expectStatus(await key.post('/datasets', { name: `rated ${Math.random()}` }), 201).id
    const copier = await keyWith('evaluations:*', 'generations:GetGeneration')
    const filter = { rating: -1, from: today.key }
    const id = await dataset()
    const copied = expectStatus(await copier.post(`/datasets/${id}/items/from-feedback`, filter), 201)
    assert.deepEqual(
      [copied.created, copied.ids.length, copied.skipped >= 0],
      [copied.ids.length, copied.created, true],
    )
    const items = expectStatus(await copier.get(`/datasets/${id}/items?limit=100`), 200).data
    const mine = items.filter((item: any) =>
      downs.some(({ generation_id }) => generation_id === item.source_generation_id),
    )
    assert.equal(mine.length, 3)
    for (const { input, expected_output, metadata } of mine) {
      assert.match(input.at(-1).content, /Is the shop open\?$/)
      assert.deepEqual([expected_output, Object.keys(metadata)], [null, ['feedback_id']])
    }
    // Comments are feedback, which the copying key may not read.
    const commented = { ...filter, label: 'wrong', expected_output: 'comment', limit: 2 }
    expectRefusal(await copier.post(`/datasets/${id}/items/from-feedback`, commented), 403, 'FORBIDDEN')
    const both = await dataset()
    const newest = expectStatus(await key.post(`/datasets/${both}/items/from-feedback`, commented), 201)
    assert.deepEqual([newest.created, newest.skipped], [2, 0])
    assert.deepEqual(
      expectStatus(await key.get(`/datasets/${both}/items`), 200).data.map((item: any) => item.expected_output),
      ['It closes at six.', 'It closes at six.'],
    )
    expectRefusal(
      await (await keyWith('evaluations:*')).post(`/datasets/${id}/items/from-feedback`, filter),
      403,
      'FORBIDDEN',
    )
    for (const body of [{ limit: 501 }, { rating: 0 }, { expected_output: 'reply' }])
      expectRefusal(await key.post(`/datasets/${id}/items/from-feedback`, body), 400, 'VALIDATION_FAILED')
    // Turns without content are skipped.
    expectStatus(await key.delete(`/generations/${downs[2].generation_id}/content`), 200)
    const left = expectStatus(
      await key.post(`/datasets/${await dataset()}/items/from-feedback`, { ...commented, label: null }),
      201,
    )
    assert.deepEqual([left.created, left.skipped], [1, 1])
  })

  it('keeps its numbers alone when the message is deleted, and when the content of the turn or the actor is erased', async () => {
    const text = (name: string) => ({ rating: -1, labels: [`label-${name}`], comment: `comment-${name}` })
    const numbers = async ({ generation_id }: Answered) => {
      const rows = await run(`select f.rating, f.labels, f.comment from feedback f where f.generation_id = $1`, [
        generation_id,
      ])
      return rows.rows.map(({ rating, labels, comment }: any) => [rating, labels, comment])
    }
    const kept = await answered()
    await rate(kept, text('kept'))
    const bare = [[-1, [], null]]

    const message = await answered()
    await rate(message, text('message'))
    const own = `/conversations/${message.session.conversation_id}/messages/${message.answer.document_id}`
    assert.equal((await key.delete(own)).status, 204)
    assert.deepEqual(await numbers(message), bare)
    expectRefusal(await key.put(message.path, { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    // Its turn can be rated still, as the same record.
    expectStatus(await key.put(`/generations/${message.generation_id}/feedback`, { rating: 1 }), 200)
    assert.deepEqual(await numbers(message), [[1, [], null]])

    const session = await answered()
    await rate(session, text('session'))
    assert.equal((await key.delete(`/sessions/${session.session.id}`)).status, 204)
    assert.deepEqual(await numbers(session), bare)
    assert.equal((await listed(`session_id=${session.session.id}`)).length, 1)

    const turn = await answered()
    await key.put(turn.path, text('turn'), { 'Idempotency-Key': 'rate-turn' })
    expectStatus(await key.delete(`/generations/${turn.generation_id}/content`), 200)
    assert.deepEqual(await numbers(turn), bare)
    for (const marker of ['label-turn', 'comment-turn']) assert.deepEqual(await placesOf(app, marker), [])

    const ended = await answered()
    await key.put(ended.path, text('actor'), { 'Idempotency-Key': 'rate-actor' })
    await rate(ended, text('actor-later'))
    // A copy in a dataset is deleted with the end user.
    const copies = expectStatus(await key.post('/datasets', { name: 'of an end user' }), 201).id
    const selection = { label: 'label-actor-later', expected_output: 'comment' }
    const copied = await key.post(`/datasets/${copies}/items/from-feedback`, selection)
    assert.deepEqual([copied.status, copied.body.created], [201, 1])
    assert.equal((await key.delete(`/sessions/${ended.session.id}`)).status, 204)
    const purge = await key.post(`/actors/${ended.session.actor_id}/purge-content`)
    assert.equal(purge.status, 202)
    await eventually(async () => (await run('select from actor_purges')).rows.length === 0)
    assert.deepEqual(await numbers(ended), bare)
    assert.equal(expectStatus(await key.get(`/datasets/${copies}/items`), 200).total, 0)
    for (const marker of ['label-actor', 'comment-actor']) assert.deepEqual(await placesOf(app, marker), [])

    const removed = await answered()
    await rate(removed, text('removed'))
    assert.equal((await key.delete(removed.path)).status, 204)
    for (const marker of ['label-removed', 'comment-removed']) assert.deepEqual(await placesOf(app, marker), [])
    assert.deepEqual(await numbers(kept), [[-1, ['label-kept'], 'comment-kept']])
  })

  it('has no text after its message was deleted at the same time', async () => {
    const texts = await Promise.all(
      Array.from({ length: 15 }, async (_, n) => {
        const { session, answer, path, generation_id } = await answered()
        const own = `/conversations/${session.conversation_id}/messages/${answer.document_id}`
        const given = Promise.all([1, 2, 3].map(round => key.put(path, { rating: 1, comment: `late ${n} ${round}` })))
        const [deleted, replies] = await Promise.all([key.delete(own), given])
        assert.equal(deleted.status, 204)
        for (const { status } of replies) assert.ok(status === 200 || status === 404, String(status))
        const { rows } = await run('select comment from feedback where generation_id = $1', [generation_id])
        return rows.map(({ comment }: any) => comment)
      }),
    )
    assert.deepEqual(new Set(texts.flat().concat(null)), new Set([null]))
  })

  it('of an end user moves with a merge and is without text when the end user is deleted', async () => {
    const [rated, twice] = [await answered(), await answered()]
    const [from, into] = [rated.session.actor_id, twice.session.actor_id]
    const rater = (id: string) => endUser(app, { scopes: ['chat', 'feedback'] }, id)
    const { id } = await rate(rated, { rating: 1, comment: 'mine', labels: ['mine'] }, await rater(from))
    const both = await rate(twice, { rating: -1 }, await rater(into))
    // Feedback of the other one on the same message, as after an earlier merge.
    const copy = await rate(twice, { rating: 1 })
    await run(`update feedback set author_type = 'actor', author_id = $1 where id = $2`, [from, copy.id])
    expectStatus(await key.post(`/actors/${from}/merge`, { into_actor_id: into }), 200)
    const [moved] = await listed(`generation_id=${rated.generation_id}`)
    assert.deepEqual([moved.id, moved.author], [id, { type: 'actor', id: into }])
    assert.deepEqual(
      (await listed(`generation_id=${twice.generation_id}`)).map(({ id }) => id),
      [both.id],
    )
    for (const { session } of [rated, twice]) assert.equal((await key.delete(`/sessions/${session.id}`)).status, 204)
    // A text that is not of a message.
    await run('update feedback set comment = $1, labels = array[$2] where id = $3', ['again', 'again', id])
    assert.equal((await key.delete(`/actors/${into}`)).status, 204)
    const [left] = await listed(`generation_id=${rated.generation_id}`)
    assert.deepEqual([left.rating, left.comment, left.labels], [1, null, []])
  })

  it('is given by end users on replies of their sessions, with a token of that scope', async () => {
    const rated = await answered()
    const { session, question, answer, path, generation_id } = rated
    const token = (scopes: string[], actorId?: string) => endUser(app, { scopes }, actorId)
    const [ann, bob] = [await token(['chat', 'feedback'], session.actor_id), await token(['chat', 'feedback'])]
    const given = await rate(rated, { rating: -1, labels: ['wrong'], comment: 'No' }, ann)
    const shown = { rating: -1, score: null, labels: ['wrong'], comment: 'No' }
    assert.deepEqual(
      { ...given, created_at: null, updated_at: null },
      {
        id: given.id,
        session_id: session.id,
        generation_id,
        document_id: answer.document_id,
        ...shown,
        created_at: null,
        updated_at: null,
      },
    )
    const [stored] = await listed(`session_id=${session.id}`)
    assert.deepEqual([stored.author, stored.agent_version], [{ type: 'actor', id: ann.actorId }, 1])
    await rate(rated, { rating: 1, comment: 'from the desk' })
    // An end user sees its own feedback alone, also on messages.
    assert.deepEqual(
      (await listed('', ann)).map(({ id }) => id),
      [given.id],
    )
    assert.deepEqual(await listed(`session_id=${session.id}`, bob), [])
    const messages = expectStatus(await ann.get(`/sessions/${session.id}/messages`), 200).data
    assert.deepEqual(
      messages.map(({ feedback }: any) => feedback),
      [null, shown],
    )
    assert.equal((await app.messages(session))[1].feedback, null)

    expectRefusal(
      await ann.put(`/sessions/${session.id}/messages/${question.document_id}/feedback`, { rating: 1 }),
      400,
      'VALIDATION_FAILED',
    )
    for (const body of [
      { rating: 1, author: { type: 'user', id: 'x' } },
      { rating: 1, agent_version: 7 },
    ])
      expectRefusal(await ann.put(path, body), 403, 'FORBIDDEN')
    expectRefusal(await bob.put(path, { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    const elsewhere = await endUser(
      app,
      { agent_ids: [await app.agent()], scopes: ['chat', 'feedback'] },
      session.actor_id,
    )
    expectRefusal(await elsewhere.put(path, { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    assert.deepEqual(await listed('', elsewhere), [])
    const chatting = await token(['chat'], session.actor_id)
    expectRefusal(await chatting.put(path, { rating: 1 }), 403, 'FORBIDDEN')
    expectRefusal(await chatting.get('/feedback'), 403, 'FORBIDDEN')
    for (const reply of [
      await ann.delete(path),
      await ann.put(`/generations/${generation_id}/feedback`, { rating: 1 }),
      await ann.get('/feedback/aggregate'),
      await ann.get(`/feedback?actor_id=${ann.actorId}`),
    ])
      expectRefusal(reply, 403, 'FORBIDDEN')
    // A session that the end user deleted is gone for it.
    assert.equal((await ann.delete(`/sessions/${session.id}`)).status, 204)
    expectRefusal(await ann.put(path, { rating: 1 }), 404, 'RESOURCE_NOT_FOUND')
    assert.deepEqual(await listed('', ann), [])
    assert.equal((await listed(`session_id=${session.id}`)).length, 2)
    // Who may not give or read feedback issues no token that does.
    const issuer = await keyWith('actors:*', 'agents:*', 'sessions:GiveFeedback')
    const body = { agent_ids: [app.agentId], scopes: ['feedback'] }
    expectRefusal(await issuer.post(`/actors/${session.actor_id}/tokens`, body), 403, 'FORBIDDEN')
  })

  it('never shows its comment to a model, nor in events, and models cannot give it', async () => {
    const double = lanes(app.double)
    const lane = 'feedback'
    await double.put(lane, { rules: [] })
    const rated = await answered({ agent_id: await app.agent({ model: `${lane}/m` }) })
    const given = await rate(rated, { rating: -1, comment: 'secret-remark' })
    await app.say(rated.session, 'And tomorrow?')
    expectStatus(await app.generate(rated.session, '?wait=true'), 200)
    assert.ok(!JSON.stringify(await double.requests(lane)).includes('secret-remark'))
    const [event] = (await app.events('feedback.created')).filter(({ resource_id }) => resource_id === given.id)
    assert.deepEqual([event.data.comment, event.data.has_comment, event.data.rating], [null, true, -1])
    for (const action of ['put-message-feedback', 'put-generation-feedback', 'list-feedback'])
      assert.equal(
        (await app.admin.post('/tools', { project_id: app.projectId, name: 't', type: 'platform', actions: [action] }))
          .status,
        400,
      )
  })

  it('is summed by an index among the feedback of others', async () => {
    const { agentId } = await app.scripted([])
    await run(
      `insert into feedback (id, project_id, session_id, generation_id, agent_id, agent_version, author_type, author_id,
        rating, score, labels)
      select 'fb_' || lpad(n::text, 26, '0'), $1, 'sess_x', 'gen_' || n, case when n % 20 = 0 then $2 else 'agent_' || n % 50 end,
        n % 5, 'user', 'user_x', case when n % 3 = 0 then 1 else -1 end, 0.5, array['l' || n % 2000]
      from generate_series(1, 100000) n`,
      [app.projectId, agentId],
    )
    await run('vacuum analyze feedback')
    const versions = await aggregate(`agent_id=${agentId}`)
    assert.deepEqual(
      versions.map(({ key, count }) => [key, count]),
      [['0', 5000]],
    )
    const labels = await aggregate('group_by=label')
    assert.equal(labels.length, 1000)
    const { rows } = await run(`explain (format json)
      select t.agent_version::text, count(*), count(*) filter (where t.rating = 1), avg(t.score)
      from feedback t where t.project_id = '${app.projectId}' and t.agent_id = '${agentId}' group by 1`)
    assert.match(JSON.stringify(rows), /feedback_agent/)
    await run(`delete from feedback where session_id = 'sess_x'`)
  })
})
