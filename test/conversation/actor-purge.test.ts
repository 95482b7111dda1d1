import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { retentionSweepQueue } from '#core/work/sweeps.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { postedBy, refusalOf } from '../support/replies.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { forSuite } from '../support/suite.ts'

const FAST = { GENERATION_LEASE_SECONDS: '2', GENERATION_SWEEP_SECONDS: '1' }

describe('the purge of what an end user said', function () {
  this.timeout(90_000)
  const app = forSuite(() =>
    startAgentApp({
      env: FAST,
      actions: [
        'actors:*',
        'sessions:*',
        'conversations:*',
        'agents:CreateAgentGeneration',
        'generations:GetGeneration',
        'generations:ListGenerations',
        'memories:*',
      ],
    }),
  )
  const processes: TestProcess[] = []
  const eraser = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['snapshot'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A project that must not change. */
  const steadyEraser = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['snapshot'])
  const made = (path: string, body: object) => postedBy(app.key, path, body)
  const sessionOf = async (actor_id: string, agent_id = app.agentId) =>
    made('/sessions', { agent_id, actor_id, auto_generate: true })
  const send = (session: string, message: string) => made(`/sessions/${session}/messages?wait=true`, { message })
  const purge = (actor: string) => app.key.post(`/actors/${actor}/purge-content`)
  const done = () => eventually(async () => (await app.rows('select from actor_purges')).length === 0)
  const entries = async (actor: string) =>
    (await app.admin.get(`/audit-log?project_id=${app.projectId}&resource_public_id=${actor}`)).body.data.filter(
      ({ detail }: any) => detail?.kind === 'actor_purge',
    )
  afterEach(async () => {
    await steady.stop()
    await Promise.all(processes.map(each => (each.child.exitCode ?? each.child.signalCode) === null && each.kill()))
  })

  it('erases why a person was requested in its sessions, also in events, and keeps the request', async () => {
    const { id: actor } = await made('/actors', { name: 'Ann' })
    const { id: other } = await made('/actors', { name: 'Bea' })
    const sessions = [await sessionOf(actor), await sessionOf(other)]
    for (const { id } of sessions) await made(`/sessions/${id}/attention`, { reason: 'her unpaid pumpernickel' })
    const events = async () =>
      (await app.admin.get(`/events?event=sessions.attention_requested&project_id=${app.projectId}`)).body.data
    assert.equal((await events()).length, 2)
    assert.equal((await purge(actor)).status, 202)
    await eraser()
    await done()
    const reasons = []
    for (const { id } of sessions) reasons.push((await app.key.get(`/sessions/${id}`)).body.attention.reason)
    assert.deepEqual(reasons, [null, 'her unpaid pumpernickel'])
    const [, first] = (await events()).map(({ data }: any) => data.attention.reason)
    assert.equal(first, null)
  })

  it('needs its own permission and an actor of the project', async () => {
    const actor = await made('/actors', { name: 'Ann' })
    const statement = [{ effect: 'Allow', action: ['actors:DeleteActor'], resource: [`srn:${app.projectId}:*:*`] }]
    const other = await app.user('other', [{ statement }])
    const foreign = (await app.project()).key
    for (const path of [`/actors/${actor.id}/purge-content`, `/actors/${actor.id}/purge-content?dry_run=true`]) {
      assert.equal((await other.post(path)).status, 403)
      assert.equal((await foreign.post(path)).status, 404)
    }
  })

  it('counts in a dry run the records of a later purge, and erases nothing', async () => {
    const { id: actor } = await made('/actors', { name: 'Ann' })
    const session = await sessionOf(actor)
    await send(session.id, 'Where is my pretzel?')
    await made(`/sessions/${session.id}/attention`, { reason: 'a late pretzel' })
    const store = (await made('/memory-stores', { name: 'facts' })).id
    await made('/memory-entries', { memory_store_id: store, actor_id: actor, content: 'Ann likes pretzels' })
    const dryRun = () => app.key.post(`/actors/${actor}/purge-content?dry_run=true`)
    // Steps are moved into the file of the trace after the end of the turn.
    await eventually(async () => (await app.rows('select from generation_steps')).length === 0)
    const counted = await dryRun()
    assert.equal(counted.status, 200, JSON.stringify(counted.body))
    assert.deepEqual([counted.body.dry_run, counted.body.complete], [true, true])
    for (const name of ['messages', 'generations', 'memories', 'session_attentions'])
      assert.ok(counted.body.counts[name] > 0, JSON.stringify(counted.body))
    assert.deepEqual(await app.rows('select from actor_purges'), [])
    assert.deepEqual((await dryRun()).body, counted.body)
    const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
    assert.equal(data[0].content, 'Where is my pretzel?')
    await purge(actor)
    await steadyEraser()
    await done()
    const [{ detail }] = (await entries(actor)).filter((entry: any) => entry.detail.job_id)
    assert.deepEqual(detail.counts, counted.body.counts)
    const nothing = (await dryRun()).body.counts
    assert.deepEqual(
      Object.values(nothing).filter(count => count !== 0),
      [],
    )
  })

  it('counts incompletely during an active turn, which continues', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const session = await sessionOf(actor)
    const { generation_id } = await made(`/sessions/${session.id}/messages`, {
      message: `@double ${JSON.stringify([{ text: 'never', gate: 'closed' }])}`,
    })
    const status = async () => (await app.key.get(`/generations/${generation_id}`)).body.status
    await eventually(async () => (await status()) === 'in_progress')
    const counted = await app.key.post(`/actors/${actor}/purge-content?dry_run=true`)
    assert.deepEqual([counted.status, counted.body.complete], [200, false], JSON.stringify(counted.body))
    assert.equal(await status(), 'in_progress')
    assert.equal((await app.admin.post(`/generations/${generation_id}/cancel`)).status < 300, true)
  })

  it('counts nothing for longer while another request waits for a record', async () => {
    const { id: actor } = await made('/actors', { name: 'Ann' })
    await made(`/sessions/${(await sessionOf(actor)).id}/attention`, { reason: 'a late pretzel' })
    const { promise, resolve } = Promise.withResolvers<void>()
    const held = app.servicesOf(actor).write(async tx => {
      await tx.query(sql.unsafe`select from sessions where actor_id = ${actor} for update`)
      await promise
    })
    const counted = await app.key.post(`/actors/${actor}/purge-content?dry_run=true`)
    resolve()
    await held
    assert.deepEqual([counted.status, counted.body.complete], [200, false], JSON.stringify(counted.body))
  })

  it('is one job however often it is requested, and retains the actor', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const into = (await made('/actors', { name: 'Bob' })).id
    const first = await purge(actor)
    assert.equal(first.status, 202)
    assert.match(first.body.job_id, /^job_/)
    assert.deepEqual((await purge(actor)).body, first.body)
    for (const refused of [
      await app.key.delete(`/actors/${actor}`),
      await app.key.post(`/actors/${actor}/merge`, { into_actor_id: into }),
      await app.key.post(`/actors/${into}/merge`, { into_actor_id: actor }),
    ])
      assert.deepEqual(refusalOf(refused), [409, 'ACTOR_HAS_MESSAGES'])
    await steadyEraser()
    await done()
    assert.equal((await entries(actor)).length, 1)
    assert.notEqual((await purge(actor)).body.job_id, first.body.job_id)
    await done()
    assert.equal((await app.key.delete(`/actors/${actor}`)).status, 204)
  })

  it('cancels running turns and erases their input', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const session = await sessionOf(actor)
    const { generation_id } = await made(`/sessions/${session.id}/messages`, {
      message: `@double ${JSON.stringify([{ text: 'never', gate: 'closed' }])}`,
    })
    await eventually(async () => (await app.key.get(`/generations/${generation_id}`)).body.status === 'in_progress')
    await purge(actor)
    await steadyEraser()
    await done()
    const record = (await app.key.get(`/generations/${generation_id}`)).body
    assert.deepEqual([record.status, record.stop_reason, record.error], ['failed', 'cancelled', null])
    assert.equal(record.content_redacted_by_principal_type, 'api_key')
    const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
    assert.deepEqual(
      data.map(({ content }: any) => content),
      [null],
    )
  })

  it('takes the memories that come from its conversations, and what the ledger says of them', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const { conversation_id } = await sessionOf(actor)
    const elsewhere = await made('/conversations', {})
    const store = (await made('/memory-stores', { name: 'facts' })).id
    const state = (content: string, source_id: string) =>
      made('/memory-entries', { memory_store_id: store, content, source_type: 'conversation', source_id })
    const entry = await state('Ann keeps a zwieback-marker', conversation_id)
    await made('/memory-entries', { memory_store_id: store, content: 'Ann keeps a zwieback-marker' })
    const kept = await state('Bob keeps bees', elsewhere.id)
    await purge(actor)
    await steadyEraser()
    await done()
    assert.equal((await app.key.get(`/memories/${entry.memory_id}`)).status, 404)
    const { data } = (await app.key.get(`/memory-entries?memory_store_id=${store}`)).body
    assert.deepEqual(
      data.map(({ id }: any) => id),
      [kept.id],
    )
    assert.deepEqual(await placesOf(app, 'zwieback-marker'), [])
    const [audited] = await entries(actor)
    assert.deepEqual([audited.detail.counts.memories, audited.detail.counts.memory_entries], [1, 2])
  })

  it('takes the turns that said which facts of its turns are kept', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const handler = await app.agent({ instructions: 'You keep facts' })
    const source = await app.agent()
    const store = (await made('/memory-stores', { name: 'facts' })).id
    const fields = { memory_store_id: store, on: 'generations.completed', source_agent_ids: [source] }
    const rule = await made('/memory-rules', { ...fields, agent_id: handler })
    const session = await sessionOf(actor, source)
    const { generation_id } = await send(session.id, 'I own a kaiserschmarrn-marker')
    const settled = () => app.key.get(`/generations/${generation_id}`)
    await eventually(async () => (await settled()).body.extraction?.[rule.id], { what: 'the rule' })
    assert.equal((await app.key.get(`/generations?agent_id=${handler}`)).body.total, 1)
    await purge(actor)
    await steadyEraser()
    await done()
    assert.deepEqual(await placesOf(app, 'kaiserschmarrn-marker'), [])
  })

  it('erases ledger entries of skipped facts and of deleted memories', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const { conversation_id } = await sessionOf(actor)
    const store = (await made('/memory-stores', { name: 'facts' })).id
    const known = await made('/memory-entries', { memory_store_id: store, content: 'Bob keeps bees' })
    const state = (content: string) =>
      made('/memory-entries', {
        ...{ memory_store_id: store, content },
        ...{ source_type: 'conversation', source_id: conversation_id, metadata: { said: content } },
      })
    assert.equal((await state('Bob keeps bees')).action, 'skipped')
    const gone = await state('Ann hides a gugelhupf-marker')
    const changed = await state('Ann keeps cats')
    await app.key.patch(`/memories/${changed.memory_id}`, { content: 'Ann keeps a gugelhupf-marker' })
    for (const { memory_id } of [gone, changed])
      assert.equal((await app.key.delete(`/memories/${memory_id}`)).status, 204)
    await purge(actor)
    await steadyEraser()
    await done()
    const { data } = (await app.key.get(`/memory-entries?memory_store_id=${store}`)).body
    assert.deepEqual(
      data.map(({ id }: any) => id),
      [known.id],
    )
    assert.deepEqual(await placesOf(app, 'gugelhupf-marker'), [])
    const [audited] = await entries(actor)
    assert.deepEqual([audited.detail.counts.memories, audited.detail.counts.memory_entries], [undefined, 4])
  })

  it('takes the memories of conversations that were deleted before', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const session = await sessionOf(actor)
    await send(session.id, 'hello')
    const store = (await made('/memory-stores', { name: 'facts' })).id
    const source = { source_type: 'conversation', source_id: session.conversation_id }
    await made('/memory-entries', { memory_store_id: store, content: 'Ann eats linzer-marker', ...source })
    assert.equal((await app.key.delete(`/sessions/${session.id}`)).status, 204)
    await purge(actor)
    await steadyEraser()
    await done()
    assert.equal((await app.key.get(`/memory-entries?memory_store_id=${store}`)).body.total, 0)
    assert.deepEqual(await placesOf(app, 'linzer-marker'), [])
  })

  describe('content deleted earlier', () => {
    const say = async (conversation: string, message: string, actor_id?: string) =>
      (await made(`/conversations/${conversation}/messages`, { role: 'user', message, actor_id })).document_id
    const erased = async (actor: string, marker: string) => {
      assert.notDeepEqual(await placesOf(app, marker), [])
      await purge(actor)
      await steadyEraser()
      await done()
      assert.deepEqual(await placesOf(app, marker), [])
    }
    const actorNamed = async (name: string) => (await made('/actors', { name })).id

    it('is gone from events of messages of deleted sessions', async () => {
      const actor = await actorNamed('Ann')
      const session = await sessionOf(actor)
      await send(session.id, 'I eat a palatschinken-marker')
      assert.equal((await app.key.delete(`/sessions/${session.id}`)).status, 204)
      await erased(actor, 'palatschinken-marker')
      assert.equal((await app.rows('select from deleted_messages')).length, 0)
    })

    it('is gone from events of messages that were deleted, also of those that it wrote elsewhere', async () => {
      const [actor, other] = [await actorNamed('Ann'), await actorNamed('Bob')]
      const elsewhere = (await made('/conversations', { actor_id: other })).id
      const own = (await made('/conversations', { actor_id: actor })).id
      await say(elsewhere, 'Bob keeps a germknoedel-marker', other)
      for (const [conversation, author] of [
        [own, undefined],
        [own, other],
        [elsewhere, actor],
      ] as const) {
        const document = await say(conversation, 'Ann keeps a buchtel-marker', author)
        assert.equal((await app.key.delete(`/conversations/${conversation}/messages/${document}`)).status, 204)
      }
      await erased(actor, 'buchtel-marker')
      assert.notDeepEqual(await placesOf(app, 'germknoedel-marker'), [])
    })

    it('is gone from memories of conversations without a turn, also after a merge', async () => {
      const [actor, into] = [await actorNamed('Ann'), await actorNamed('Ann again')]
      const conversation = (await made('/conversations', { actor_id: actor })).id
      await say(conversation, 'a nockerl-marker is what I like')
      const store = (await made('/memory-stores', { name: 'likes' })).id
      const source = { source_type: 'conversation', source_id: conversation }
      await made('/memory-entries', { memory_store_id: store, content: 'Ann likes a nockerl-marker', ...source })
      assert.equal((await app.key.delete(`/conversations/${conversation}`)).status, 204)
      assert.equal((await app.key.post(`/actors/${actor}/merge`, { into_actor_id: into })).status, 200)
      await erased(into, 'nockerl-marker')
      assert.equal((await app.key.get(`/memory-entries?memory_store_id=${store}`)).body.total, 0)
    })

    it('is remembered as long as events are kept', async () => {
      const actor = await actorNamed('Ann')
      const conversation = (await made('/conversations', { actor_id: actor })).id
      for (const text of ['old', 'new']) {
        const document = await say(conversation, text)
        await app.key.delete(`/conversations/${conversation}/messages/${document}`)
        const days = text === 'old' ? 31 : 29
        await app.rows(`update deleted_messages set deleted_at = now() - interval '${days} days'
          where document_id = '${document}'`)
      }
      await steadyEraser()
      await app.servicesOf(actor).queues.send([{ queue: retentionSweepQueue, data: { sweep: 'deleted messages' } }])
      await eventually(
        async () => (await app.rows(`select from deleted_messages where actor_id = '${actor}'`)).length === 1,
      )
    })
  })

  it('waits for the end of a legal hold that began meanwhile', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const session = await sessionOf(actor)
    await send(session.id, 'hello')
    await purge(actor)
    const until = new Date(Date.now() + 3_600_000).toISOString()
    await app.admin.patch(`/projects/${app.projectId}`, { content_hold_until: until })
    await steadyEraser()
    await eventually(
      async () => (await app.rows(`select from actor_purges where claims = 1 and state = 'queued'`)).length === 1,
    )
    const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
    assert.equal(data[0].content, 'hello')
    await app.admin.patch(`/projects/${app.projectId}`, { content_hold_until: null })
    await app.rows('update actor_purges set due_at = now()')
    await app.rows(`update pgboss.job set start_after = now() where name = 'actor.purge'`)
    await done()
  })

  it('continues after a killed worker and counts everything once', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const session = await sessionOf(actor)
    for (const text of ['one', 'two', 'three']) await send(session.id, text)
    await purge(actor)
    const first = await eraser({ FAULT_POINTS: 'content_erased=kill' })
    assert.equal((await first.exited).signal, 'SIGKILL')
    const second = await eraser({ FAULT_POINTS: 'content_erased=kill' })
    assert.equal((await second.exited).signal, 'SIGKILL')
    await steadyEraser()
    await done()
    const [entry, ...more] = await entries(actor)
    assert.deepEqual(more, [])
    assert.deepEqual([entry.detail.counts.generations, entry.detail.counts.messages], [3, 6])
    const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
    assert.ok(data.length === 6 && data.every(({ content }: any) => content === null))
  })

  it('shows in forks that share a text', async () => {
    const actor = (await made('/actors', { name: 'Ann' })).id
    const session = await sessionOf(actor)
    await send(session.id, 'hello')
    const fork = (await made(`/sessions/${session.id}/fork`, {})).id
    await purge(actor)
    await steadyEraser()
    await done()
    const { data } = (await app.key.get(`/sessions/${fork}/messages`)).body
    assert.ok(data.length === 2 && data.every(({ content }: any) => content === null))
  })
})
