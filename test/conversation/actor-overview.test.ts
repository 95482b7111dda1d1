import assert from 'node:assert/strict'
import { startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const PARTS = ['sessions', 'messages', 'notes', 'facts', 'files', 'usage', 'approvals', 'tokens'] as const

describe('the overview of an end user', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ workers: ['generation', 'snapshot'] }))
  const reader = (action: string[], resource = `srn:${app.projectId}:*:*`) =>
    app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource: [resource] }] }])
  const overview = async (client: { get(path: string): Promise<any> }, id: string) => {
    const { status, body } = await client.get(`/actors/${id}/overview`)
    assert.equal(status, 200, JSON.stringify(body))
    return body
  }
  const shown = (body: Record<string, unknown>) => PARTS.filter(name => body[name] !== null)

  /** An end user with two sessions, a reply, two facts and a file. */
  async function customer() {
    const actor = await createdBy(app.key, '/actors', {
      name: 'Ada',
      external_id: `customer-${Math.random()}`,
    })
    const session = () => createdBy(app.key, '/sessions', { agent_id: app.agentId, actor_id: actor.id })
    const first = await session()
    const second = await session()
    await postedBy(app.key, `/sessions/${first.id}/messages`, { message: 'Where is my zwieback?' })
    await postedBy(app.key, `/sessions/${first.id}/notes`, { text: 'Wants zwieback' })
    await postedBy(app.key, `/sessions/${first.id}/generate?wait=true`, {})
    await postedBy(app.key, `/sessions/${second.id}/attention`, { reason: 'angry' })
    const store = await createdBy(app.key, '/memory-stores', { name: 'facts' })
    for (const content of ['likes zwieback', 'lives in Kiel'])
      await createdBy(app.key, '/memory-entries', { memory_store_id: store.id, actor_id: actor.id, content })
    const { token } = await createdBy(app.key, `/actors/${actor.id}/tokens`, {
      agent_ids: [app.agentId],
      scopes: ['chat', 'files'],
    })
    const form = new FormData()
    form.set('file', new File(['a receipt'], 'receipt.txt', { type: 'text/plain' }))
    const uploaded = await fetch(`${app.url}/api/v1/files/upload`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}` },
      body: form,
    })
    assert.equal(uploaded.status, 201, await uploaded.clone().text())
    return { actor, first, second, store }
  }

  it('returns counts and the newest entries of every part in one statement after the read of the actor', async () => {
    const { actor, first, second, store } = await customer()
    await overview(app.key, actor.id)
    const before = app.statements.length
    const body = await overview(app.key, actor.id)
    const statements = app.statements.slice(before).filter(text => /\bactors\b/.test(text))
    assert.equal(statements.length, 2, statements.join('\n'))
    const { sessions, messages, notes, facts, files, usage, approvals, tokens, last_seen_at } = body
    assert.deepEqual(notes, { count: 1 })
    assert.deepEqual(body.actor, (await app.key.get(`/actors/${actor.id}`)).body)
    assert.equal(sessions.count, 2)
    assert.deepEqual(sessions.newest.map(({ id }: any) => id).sort(), [first.id, second.id].sort())
    const newest = (id: string) => sessions.newest.find((each: any) => each.id === id)
    assert.deepEqual([newest(first.id).needs_attention, newest(second.id).needs_attention], [false, true])
    const stored = (await app.key.get(`/sessions/${first.id}`)).body
    for (const field of ['name', 'agent_id', 'status', 'control', 'last_activity_at', 'created_at'])
      assert.equal(newest(first.id)[field], stored[field], field)
    assert.equal(last_seen_at, stored.last_activity_at)
    assert.equal(messages.count, 2)
    assert.deepEqual(
      messages.newest.map(({ session_id, role, origin }: any) => [session_id, role, origin]),
      [
        [first.id, 'assistant', 'agent'],
        [first.id, 'user', 'end_user'],
      ],
    )
    assert.equal(messages.newest[1].preview, 'Where is my zwieback?')
    assert.equal(facts.count, 2)
    assert.deepEqual(
      facts.newest.map(({ memory_store_id, content }: any) => [memory_store_id, content]),
      [
        [store.id, 'lives in Kiel'],
        [store.id, 'likes zwieback'],
      ],
    )
    assert.deepEqual([files.count, files.newest[0].filename, files.newest[0].size], [1, 'receipt.txt', 9])
    assert.ok(usage.events >= 1 && usage.tokens > 0)
    assert.equal(usage.days, 30)
    assert.deepEqual(approvals, { count: 0, newest: [] })
    assert.equal(tokens.revocations, 0)
    assert.ok(tokens.limits.some(({ name }: any) => name === 'upload_bytes_per_day'))
  })

  it('shows no notes of the team to the agent, and the approvals of its turns', async () => {
    const { actor, first } = await customer()
    await app.admin.post(`/sessions/${first.id}/takeover`, { note: 'Offer a refund' })
    const { data } = (await app.key.get(`/generations?session_id=${first.id}`)).body
    const { id } = await propose(app, data[0].id, { id: null, name: 'refund' }, { amount: 12 })
    const { messages, approvals } = await overview(app.key, actor.id)
    assert.doesNotMatch(JSON.stringify(messages.newest), /Offer a refund/)
    assert.deepEqual(
      approvals.newest.map((each: any) => [each.id, each.session_id, each.tool_name]),
      [[id, first.id, 'refund']],
    )
    const listed = (await app.key.get('/approvals')).body.data.find((each: any) => each.id === id)
    assert.deepEqual([listed.actor_id, listed.actor_name], [actor.id, 'Ada'])
  })

  it('lists the newest five of more', async () => {
    const actor = await createdBy(app.key, '/actors', { name: 'Ada' })
    const made = []
    for (let n = 0; n < 6; n++)
      made.push((await createdBy(app.key, '/sessions', { agent_id: app.agentId, actor_id: actor.id })).id)
    const { sessions } = await overview(app.key, actor.id)
    assert.equal(sessions.count, 6)
    assert.deepEqual(
      sessions.newest.map(({ id }: any) => id),
      made.slice(1).reverse(),
    )
  })

  it('shows each part to callers with its action only', async () => {
    const { actor } = await customer()
    const bare = await overview(await reader(['actors:GetActor']), actor.id)
    assert.deepEqual([shown(bare), bare.last_seen_at, bare.actor.name], [[], null, 'Ada'])
    const actions = {
      sessions: 'sessions:ListSessions',
      messages: 'sessions:ListSessionMessages',
      notes: 'sessions:ListSessionNotes',
      facts: 'memories:ListMemories',
      files: 'files:GetFile',
      usage: 'usage:GetAggregate',
      approvals: 'approvals:ListApprovals',
      tokens: 'actors:RevokeActorTokens',
    }
    for (const [part, action] of Object.entries(actions)) {
      const body = await overview(await reader(['actors:GetActor', action]), actor.id)
      assert.deepEqual([shown(body), body.last_seen_at !== null], [[part], part === 'sessions'], action)
    }
    const none = await reader(['sessions:ListSessions'])
    assert.equal((await none.get(`/actors/${actor.id}/overview`)).status, 403)
  })

  it('counts the rows only that the policies of the caller allow', async () => {
    const { actor, first, store } = await customer()
    const client = await app.user(undefined, [
      {
        statement: [
          {
            effect: 'Allow',
            action: ['actors:GetActor', 'memories:ListMemories'],
            resource: [`srn:${app.projectId}:*:*`],
          },
          {
            effect: 'Allow',
            action: ['sessions:ListSessions', 'sessions:ListSessionMessages'],
            resource: [`srn:${app.projectId}:session:${first.id}`],
          },
          {
            effect: 'Deny',
            action: ['memories:ListMemories'],
            resource: [`srn:${app.projectId}:memory_store:${store.id}`],
          },
        ],
      },
    ])
    const { sessions, messages, facts } = await overview(client, actor.id)
    assert.deepEqual([sessions.count, sessions.newest.length, sessions.newest[0].id], [1, 1, first.id])
    assert.equal(messages.count, 2)
    // A fact is never more visible than its store.
    assert.deepEqual(facts, { count: 0, newest: [] })
  })

  it('is not found in other projects, and refused to end users', async () => {
    const { actor } = await customer()
    const other = await app.project()
    assert.equal((await other.key.get(`/actors/${actor.id}/overview`)).status, 404)
    assert.equal((await app.key.get('/actors/actor_00000000000000000000000000/overview')).status, 404)
    const { token } = await createdBy(app.key, `/actors/${actor.id}/tokens`, { agent_ids: [app.agentId] })
    const own = await fetch(`${app.url}/api/v1/actors/${actor.id}/overview`, {
      headers: { authorization: `Bearer ${token}` },
    })
    assert.equal(own.status, 403)
  })

  it('has no content after the erasure, and keeps the records', async () => {
    const { actor, first } = await customer()
    const { job_id } = await postedBy(app.key, `/actors/${actor.id}/purge-content`, {})
    assert.match(job_id, /^job_/)
    await eventually(async () => (await app.rows('select from actor_purges')).length === 0)
    const body = await overview(app.key, actor.id)
    assert.equal(JSON.stringify(body).includes('zwieback'), false)
    assert.equal(body.sessions.count, 2)
    assert.equal(body.facts.count, 0)
    const { data } = (await app.key.get(`/sessions/${first.id}/messages`)).body
    assert.equal(body.messages.count, data.length)
    for (const { preview } of body.messages.newest) assert.equal(preview, null)
  })
})
