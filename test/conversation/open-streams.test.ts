import assert from 'node:assert/strict'
import { deleteDeadStreams } from '#conversation/actors/open-streams.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { client, eventually } from '../support/app.ts'
import { LOCK_WAITS } from '../support/postgres.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { CHAT_ACTIONS, chat, type EndUserClient, endUser, openEndUserStream } from './end-user-support.ts'
import { expectRefusal, expectStatus, type SessionApp, startSessionApp } from './session-support.ts'

type Json = Record<string, any>
type Stream = Awaited<ReturnType<typeof openEndUserStream>>

const PER_PROJECT = 6

describe('open streams over several web processes', function () {
  this.timeout(60_000)
  let app: SessionApp
  let other: TestProcess
  const streams: Stream[] = []
  before(async () => {
    // No ping within a test.
    const env = { STREAM_PING_INTERVAL_MS: '600000', STREAMS_PER_PROJECT: String(PER_PROJECT) }
    app = await startSessionApp({ actions: CHAT_ACTIONS, env })
    other = await startProcess('web', app.databaseUrl, env)
  })
  afterEach(async () => {
    for (const stream of streams.splice(0)) stream.close()
    await eventually(async () => (await stored()).length === 0)
  })
  after(async () => {
    await other?.kill()
    await app?.close()
  })

  /** Rows of open streams of processes that exist. */
  const stored = () =>
    app.pool.any(sql.unsafe`
      select subject, streams from open_streams
      where not pg_try_advisory_xact_lock_shared(holder) order by subject, streams`)

  const open = async (url: string, token: string, path: string): Promise<Stream> => {
    const stream = await openEndUserStream(url, token, path)
    streams.push(stream)
    assert.ok(await stream.read())
    return stream
  }
  const sessionStream = (url: string, { token }: { token: string | null }, session: Json) =>
    open(url, token as string, `/sessions/${session.id}/stream`)

  const refusedAt = async (url: string, token: string | null, session: Json, meta: Json) => {
    const reply = await client(url, token).get(`/sessions/${session.id}/stream`)
    assert.deepEqual(expectRefusal(reply, 429, 'STREAM_LIMIT_EXCEEDED').meta, meta)
    assert.equal(reply.headers.get('retry-after'), '10')
  }

  /** The status of an attempt to open a stream, which stays open. */
  const attempt = async (url: string, user: EndUserClient, session: Json): Promise<number> => {
    try {
      await sessionStream(url, user, session)
      return 200
    } catch {
      return 429
    }
  }

  it('of an end user are limited exactly, also when they open concurrently', async () => {
    const user = await endUser(app, { limits: { streams: 2 } })
    const session = await chat(user, app.agentId)
    const statuses = await Promise.all(
      Array.from({ length: 8 }, (_each, index) => attempt([app.url, other.url][index % 2], user, session)),
    )
    assert.equal(statuses.filter(status => status === 200).length, 2)
    for (const url of [app.url, other.url]) await refusedAt(url, user.token, session, { scope: 'actor', max: 2 })
    // A token with a higher limit counts the same streams.
    const higher = await endUser(app, { limits: { streams: 3 } }, user.actorId)
    await sessionStream(other.url, higher, session)
    await refusedAt(app.url, higher.token, session, { scope: 'actor', max: 3 })
    // The limit is of the end user: another one is not refused.
    const another = await endUser(app, { limits: { streams: 1 } })
    await sessionStream(app.url, another, await chat(another, app.agentId))
    streams[0].close()
    await eventually(async () => (await attempt(app.url, higher, session)) === 200)
  })

  it('of a project are limited', async () => {
    const session = await app.session()
    for (let n = 0; n < PER_PROJECT; n++)
      await sessionStream([app.url, other.url][n % 2], app.key as EndUserClient, session)
    for (const url of [app.url, other.url])
      await refusedAt(url, app.key.token, session, { scope: 'project', max: PER_PROJECT })
    streams[1].close()
    await eventually(async () => (await attempt(app.url, app.key as EndUserClient, session)) === 200)
  })

  it('end immediately when the tokens are revoked, of sessions and of turns; streams of others continue', async () => {
    const gate = 'gate-revoked-streams'
    const { agentId } = await app.scripted([{ reply: { text: 'one two three', gate, gate_after: 1 } }] as never[])
    const user = await endUser(app, { agent_ids: [agentId] })
    const session = await chat(user, agentId)
    const { generation_id } = expectStatus(await user.post(`/sessions/${session.id}/generate`), 202)
    const opened = [
      await sessionStream(app.url, user, session),
      await sessionStream(other.url, user, session),
      await open(other.url, user.token, `/generations/${generation_id}/stream`),
    ]
    const another = await endUser(app, { agent_ids: [agentId] })
    const kept = await sessionStream(other.url, another, await chat(another, agentId))
    expectStatus(await app.key.post(`/actors/${user.actorId}/tokens/revoke`), 204)
    for (const stream of opened) {
      let last: Json | null = null
      for (let frame = await stream.read(); frame; frame = await stream.read()) last = frame
      assert.deepEqual([last?.event, last?.data.code], ['error', 'UNAUTHORIZED'])
    }
    await app.openGate(gate)
    assert.equal((await app.settled(generation_id)).status, 'completed')
    const [{ id }] = expectStatus(await another.get('/sessions'), 200).data
    expectStatus(await another.post(`/sessions/${id}/messages`, { message: 'still here' }), 201)
    assert.equal((await kept.read())?.event, 'message')
  })

  it('are counted again after the connection to the database was lost', async () => {
    const user = await endUser(app, { limits: { streams: 2 } })
    const session = await chat(user, app.agentId)
    await sessionStream(app.url, user, session)
    await sessionStream(other.url, user, session)
    const before = await stored()
    await app.pool.query(sql.unsafe`
      with lost as materialized (
        select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'muster-listen')
      select count(*) from lost`)
    await eventually(() => app.logs.some(line => line.includes('notification connection restored')))
    await eventually(async () => JSON.stringify(await stored()) === JSON.stringify(before))
    await refusedAt(app.url, user.token, session, { scope: 'actor', max: 2 })
  })

  it('of a killed process are free as soon as its connection is', async () => {
    const user = await endUser(app, { limits: { streams: 1 } })
    const session = await chat(user, app.agentId)
    await sessionStream(other.url, user, session)
    await refusedAt(app.url, user.token, session, { scope: 'actor', max: 1 })
    await other.kill('SIGKILL')
    streams.splice(0)
    await eventually(async () => (await attempt(app.url, user, session)) === 200)
    // The remainder of other subjects does not count, and a sweep deletes it.
    await deleteDeadStreams(app.services, undefined)
    const rows = await app.pool.any(sql.unsafe`select subject from open_streams`)
    assert.equal(rows.length, (await stored()).length)
  })

  it('end with their client, also if it leaves before the response', async () => {
    const user = await endUser(app, { limits: { streams: 1 } })
    const session = await chat(user, app.agentId)
    const { conversation_id } = expectStatus(await app.key.get(`/sessions/${session.id}`), 200)
    const run = { threadId: session.id, tools: [], context: [], state: {}, forwardedProps: {} }
    const requests: Record<string, (text: string) => object> = {
      [`/api/v1/sessions/${session.id}/generate`]: () => ({ stream: true }),
      [`/ag-ui/${app.agentId}`]: text => ({
        ...run,
        runId: text,
        messages: [{ id: text, role: 'user', content: text }],
      }),
      [`/ui/v1/chat/${app.agentId}`]: text => ({
        id: session.id,
        messages: [{ id: text, role: 'user', parts: [{ type: 'text', text }] }],
      }),
      '/openai/v1/responses': text => ({
        model: app.agentId,
        stream: true,
        conversation: conversation_id,
        input: text,
      }),
    }
    for (const [path, body] of Object.entries(requests)) {
      const controller = new AbortController()
      const send = (text: string, signal?: AbortSignal) =>
        fetch(`${app.url}${path}`, {
          method: 'POST',
          headers: { authorization: `Bearer ${user.token}`, 'content-type': 'application/json' },
          body: JSON.stringify(body(text)),
          signal,
        })
      await app.servicesOf(conversation_id).write(async tx => {
        await tx.query(sql.unsafe`select from conversations where id = ${conversation_id} for update`)
        const sent = send(`first ${path}`, controller.signal).catch(() => null)
        const isWaiting = () => tx.exists(rawQuery(LOCK_WAITS))
        await eventually(isWaiting, { what: 'the request that waits for the lock' })
        controller.abort()
        await sent
      })
      const served = async () => {
        const response = await send(`second ${path}`)
        await response.text()
        return response.status === 200
      }
      await eventually(served, { what: `a stream of ${path}` })
    }
  })
})
