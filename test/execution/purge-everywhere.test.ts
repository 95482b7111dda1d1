import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { claimIdempotencyKey, storeResponse } from '#core/api/idempotency.ts'
import { onSeparateConnection } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { purgeGeneration, replayWhileContentKept } from '#execution/generations/erase/purge.ts'
import { eventually } from '../support/app.ts'
import { type Receiver, startReceiver } from '../support/receiver.ts'
import { postedBy } from '../support/replies.ts'
import { scriptOf } from '../support/scripts.ts'
import { placesOf } from '../support/search-everywhere.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { openEvents } from './streams.ts'
import { json, startTarget, type Target } from './tool-target.ts'

/** In everything that a caller, a model or a tool says. */
const MARK = 'nightjar'
const call = (name: string) => ({ tool_calls: [{ name, args: { said: MARK } }] })

describe('a purge', function () {
  this.timeout(120_000)
  let app: AgentApp
  let target: Target
  let receiver: Receiver
  let directory: string
  let agent: string

  const admin = (path: string, body: object) => postedBy(app.admin, path, { project_id: app.projectId, ...body })
  const places = () => placesOf(app, MARK, directory)
  const nowhere = async () => {
    let found: string[] = []
    await eventually(async () => {
      found = await places()
      return found.length === 0
    }).catch(() => assert.deepEqual(found, []))
  }
  const ended = (id: string) =>
    eventually(async () => {
      const { body } = await app.key.get(`/generations/${id}`)
      return ['completed', 'failed', 'requires_action'].includes(body.status) && body
    })
  /** Everything that was sent has arrived, and every trace has its file. */
  const settled = async () => {
    await eventually(async () =>
      (await app.key.get('/traces')).body.data.every((trace: any) => trace.step_count === 0 || trace.file_id),
    )
    await eventually(async () => {
      const { data } = (await app.admin.get(`/webhook-deliveries?webhook_id=${hook}&limit=100`)).body
      return data.length > 0 && data.every(({ status }: any) => status === 'completed')
    })
  }
  let hook: string

  before(async () => {
    directory = await mkdtemp(path.join(tmpdir(), 'muster-purge-'))
    target = await startTarget()
    target.answer = json({ found: MARK })
    // A receiver that repeats the request.
    receiver = await startReceiver((request, response) => response.end(request.body.slice(0, 4000)))
  })
  after(async () => {
    await target.close()
    await receiver.close()
    await rm(directory, { recursive: true, force: true })
  })
  beforeEach(async () => {
    app = await startAgentApp({
      workers: ['generation', 'delivery', 'ingestion', 'snapshot'],
      env: {
        EGRESS_ALLOW_HOSTS: '127.0.0.1',
        FILES_STORAGE_PROVIDER: 'local',
        FILES_STORAGE_DIR: directory,
        GENERATION_SWEEP_SECONDS: '1',
      },
    })
    hook = (await admin('/webhooks', { name: 'all', url: receiver.url, events: ['*'] })).id
    const rule = await admin('/guardrails', {
      name: 'rule',
      document: {
        class: {
          if: [{ '==': [{ var: 'args.said' }, 'never'] }, 'A', { '==': [{ var: 'context.note' }, 'never'] }, 'A', 'C'],
        },
      },
    })
    const tool = (name: string, more: object = {}) => ({
      tool: { name, execute: { url: `${target.url}/${name}` }, ...more },
    })
    const held = await admin('/tools', { ...tool('held').tool, guardrail_ids: [rule.id] })
    agent = await app.agent({
      tool_bindings: [tool('lookup'), { tool_id: held.id }, { tool: { name: 'pick', type: 'client' } }],
    })
  })
  afterEach(() => app.close())

  it('of a trace leaves no content of its turns anywhere', async () => {
    const said = {
      prompt: scriptOf(call('lookup'), call('held'), { text: `I found ${MARK}` }),
      metadata: { note: MARK },
      guardrail_context: { note: MARK },
      tool_context: { 'x-note': 'x' },
    }
    const key = { 'idempotency-key': 'once' }
    const waited = await app.key.post(`/agents/${agent}/generate?wait=true`, said, key)
    assert.equal(waited.status, 200, JSON.stringify(waited.body))
    const { id, trace_id } = waited.body
    const stream = await openEvents(app, `/agents/${agent}/generate`, {
      prompt: scriptOf({ text: MARK }),
      stream: true,
      trace_id,
    })
    for await (const message of stream.messages) if (message.event === 'completed') break
    stream.close()
    const paused = await app.key.post(`/agents/${agent}/generate?wait=true`, {
      prompt: scriptOf(call('pick')),
      trace_id,
    })
    assert.equal(paused.body.status, 'requires_action')
    const failed = await app.key.post(`/agents/${agent}/generate`, {
      prompt: scriptOf({ error: { status: 400, message: `bad ${MARK}` } }),
      trace_id,
    })
    assert.equal((await ended(failed.body.generation_id)).status, 'failed')
    await settled()
    const before = await places()
    for (const table of [
      'approvals',
      'events',
      'generation_journal',
      'generations',
      'guardrail_evaluations',
      'idempotency_keys',
      'stream_frames',
      'traces',
      'webhook_deliveries',
    ])
      assert.ok(before.includes(`public.${table}`), `${table} is not among ${before}`)
    assert.ok(before.some(place => place.startsWith(directory)))

    const dry = await app.key.delete(`/traces/${trace_id}/content?dry_run=true`)
    assert.deepEqual([dry.status, dry.body.dry_run], [200, true])
    assert.deepEqual(
      [dry.body.counts.traces, dry.body.counts.generations, dry.body.counts.approvals, dry.body.counts.trace_files],
      [1, 4, 1, 1],
    )
    assert.deepEqual(await places(), before)

    assert.equal((await app.key.delete(`/traces/${trace_id}/content`)).status, 200)
    // Deliveries of what the purge itself emits, and the bytes, which go after it.
    await settledDeliveries()
    await nowhere()
    const [approval] = (await app.admin.get(`/approvals?project_id=${app.projectId}`)).body.data
    assert.deepEqual([approval.status, approval.proposed_action.arguments], ['expired', null])
    const record = (await app.key.get(`/generations/${paused.body.id}`)).body
    assert.deepEqual([record.status, record.error, record.required_action], ['failed', null, null])
    // The work is not done again for a repeat.
    const repeat = await app.key.post(`/agents/${agent}/generate?wait=true`, said, key)
    assert.deepEqual([repeat.status, repeat.body.error.code], [409, 'GENERATION_CONTENT_UNAVAILABLE'])
    const evaluations = (await app.admin.get(`/guardrail-evaluations?generation_id=${id}`)).body
    assert.ok(JSON.stringify(evaluations).length > 0)
    const entry = (await app.admin.get(`/audit-log?project_id=${app.projectId}&action=traces:PurgeTraceContent`)).body
      .data
    assert.deepEqual(
      entry.map(({ detail }: any) => [detail.counts.generations, detail.dry_run]),
      [
        [4, undefined],
        [4, true],
      ],
    )
  })

  it('that comes before the answer of a turn is kept for repeats leaves none', async () => {
    const { body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: scriptOf({ text: MARK }) })
    const { services } = app
    const claim = { credential_id: 'key_x', project_id: app.projectId, path: '/x', key: 'k', request: 'r', claim: 'c' }
    assert.deepEqual(await claimIdempotencyKey(services.pool, services, claim), { kept: null, made: null })
    let keeping: Promise<boolean> | undefined
    await services.write(async tx => {
      await purgeGeneration(tx, services, body.id, { type: 'user', id: 'user_x' })
      // It waits for the purge, which has not been committed.
      const given = { status: 200, body, keptWhile: replayWhileContentKept(body.id) }
      keeping = onSeparateConnection(() => storeResponse(services.pool, services, claim, given, false))
      await eventually(
        async () =>
          (
            await onSeparateConnection(() =>
              services.pool.query(
                rawQuery(
                  `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%idempotency_keys set status%'`,
                ),
              ),
            )
          ).rowCount === 1,
      )
    })
    await keeping
    const { kept } = await claimIdempotencyKey(services.pool, services, claim)
    assert.equal(kept?.status, 409)
  })

  const settledDeliveries = () =>
    eventually(async () => {
      const { data } = (await app.admin.get(`/webhook-deliveries?webhook_id=${hook}&limit=100`)).body
      return data.every(({ status }: any) => status === 'completed')
    })

  it('of an end user erases its messages and their answers everywhere', async () => {
    const actor = (await admin('/actors', { name: 'Ann' })).id
    const other = (await admin('/actors', { name: 'Bob' })).id
    const session = await admin('/sessions', { agent_id: agent, actor_id: actor, auto_generate: true })
    const theirs = await admin('/sessions', { agent_id: agent, actor_id: other, auto_generate: true })
    const send = (id: string, message: string, headers = {}) =>
      app.key.post(`/sessions/${id}/messages?wait=true`, { message }, headers)
    const said = scriptOf(call('lookup'), call('held'), { text: `I found ${MARK}` })
    const first = await send(session.id, said, { 'idempotency-key': 'once' })
    assert.equal(first.status, 201, JSON.stringify(first.body))
    const paused = await send(session.id, scriptOf(call('pick')))
    assert.equal(paused.body.reply.status, 'requires_action', JSON.stringify(paused.body))
    const group = await admin('/conversations', { name: 'group' })
    await app.key.post(`/conversations/${group.id}/messages`, {
      role: 'user',
      actor_id: actor,
      message: `${MARK} everybody`,
      metadata: { mood: MARK },
    })
    await app.key.post(`/conversations/${group.id}/messages`, { role: 'user', actor_id: other, message: 'hello' })
    assert.equal((await send(theirs.id, scriptOf({ text: 'fine' }))).status, 201)
    const asked = await app.key.post(`/conversations/${group.id}/generate?wait=true`, { agent_id: agent })
    assert.equal(asked.status, 200, JSON.stringify(asked.body))
    await settled()
    assert.ok((await places()).includes('public.document_texts'))

    const accepted = await app.key.post(`/actors/${actor}/purge-content`)
    assert.equal(accepted.status, 202, JSON.stringify(accepted.body))
    const entry = await eventually(async () =>
      (await app.admin.get(`/audit-log?project_id=${app.projectId}&action=actors:PurgeActorContent`)).body.data.find(
        ({ detail }: any) => detail?.kind === 'actor_purge',
      ),
    )
    assert.equal(entry.detail.job_id, accepted.body.job_id)
    assert.equal(entry.detail.counts.generations, 3)
    await settledDeliveries()
    await nowhere()

    const messages = (await app.key.get(`/sessions/${session.id}/messages`)).body.data
    assert.ok(messages.length >= 3)
    assert.ok(messages.every(({ content }: any) => content === null))
    const repeat = await send(session.id, said, { 'idempotency-key': 'once' })
    assert.deepEqual([repeat.status, repeat.body.error?.code], [409, 'GENERATION_CONTENT_UNAVAILABLE'])
    // Others keep theirs.
    const [, reply] = (await app.key.get(`/sessions/${theirs.id}/messages`)).body.data
    assert.equal(reply.content, 'fine')
    const contents = (await app.key.get(`/conversations/${group.id}/messages`)).body.data.map(
      (each: any) => each.content,
    )
    assert.deepEqual(contents.slice(0, 2), [null, 'hello'])
  })
})
