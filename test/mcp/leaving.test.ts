import assert from 'node:assert/strict'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { ServerResponse } from 'node:http'
import pg from 'pg'
import { startAgentApp } from '../execution/fixtures.ts'
import { made, startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { wire } from './support.ts'

/** Clients that go away before they are answered. */
describe('a client of /mcp that disconnects', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', KNOWLEDGE_QUERY_TIMEOUT_MS: '60000' } }),
  )
  let locking: pg.Client
  let send: ReturnType<typeof wire>
  before(async () => {
    send = wire(app.url, app.key.token)
    locking = new pg.Client({ connectionString: app.databaseUrlOf(app.projectId) })
    await locking.connect()
  })
  after(async () => {
    await locking?.end()
  })

  /** Delays all statements that read a table while `work` runs. */
  async function slowly(table: string, work: () => Promise<void>): Promise<void> {
    await locking.query(`begin; lock table ${table} in access exclusive mode`)
    try {
      await work()
    } finally {
      await locking.query('rollback')
    }
  }

  const isWaiting = `select count(distinct pid)::int as n from pg_locks join pg_database on database = pg_database.oid
    where datname = current_database() and not granted`

  /** How many statements wait for a lock comes to be `count`. */
  const waiting = (count: number | 'some') =>
    eventually(
      async () => {
        const { n } = (await locking.query(isWaiting)).rows[0]
        return count === 'some' ? n > 0 : n === count
      },
      { what: `${count} statements wait` },
    )

  /** Sends a call; the result closes its connection, and resolves when the call has ended. */
  function begin(name: string, args: object, revision?: string): () => Promise<void> {
    const client = new AbortController()
    const sent = send('tools/call', { name, arguments: args }, { revision, signal: client.signal })
    const ended = sent.then(
      ({ body }) => assert.fail(`answered ${JSON.stringify(body)}`),
      error => assert.equal(error.name, 'AbortError'),
    )
    return () => {
      client.abort()
      return ended
    }
  }

  it('aborts the statement of a read', async () => {
    // The languages of a project are read once for all its callers, and not aborted with one; kept from the second time.
    for (let times = 0; times < 3; times++)
      assert.equal(
        (await send('tools/call', { name: 'search-knowledge', arguments: { query: 'refunds' } })).status,
        200,
      )
    for (const [table, name, args] of [
      ['document_chunks', 'search-knowledge', { query: 'refunds' }],
      ['documents', 'list-documents', {}],
      ['documents', 'call-tool', { name: 'list-documents', arguments: {} }],
    ] as const)
      await slowly(table, async () => {
        const leave = begin(name, args)
        await waiting('some')
        await leave()
        await waiting(0)
      })
    // The connections serve others: no cancellation comes late.
    for (let times = 0; times < 5; times++) assert.equal((await app.key.get('/documents')).status, 200)
    assert.deepEqual(
      app.logs.filter(line => line.includes('"level":"error"')),
      [],
    )
  })

  it('aborts the statement of a REST request too, and of no other caller', async () => {
    await slowly('documents', async () => {
      const client = new AbortController()
      const headers = { authorization: `Bearer ${app.key.token}` }
      const list = fetch(`${app.url}/api/v1/documents`, { headers, signal: client.signal })
      const other = app.key.get('/documents')
      await waiting(2)
      client.abort()
      await assert.rejects(list)
      await waiting(1)
      await locking.query('rollback')
      assert.deepEqual((await other).body.data, [])
    })
    await eventually(() =>
      app.logs.some(line => line.includes('"path":"/api/v1/documents"') && line.includes('"status":499')),
    )
  })

  it('before 2026 only stops waiting: its statement continues', async () => {
    await slowly('documents', async () => {
      const old = begin('list-documents', {}, '2025-11-25')
      await waiting(1)
      const modern = begin('list-documents', {})
      await waiting(2)
      await old()
      await modern()
      await waiting(1)
    })
  })

  it('starts no write', async () => {
    const actor = (await app.key.post('/actors', { name: 'Bob' })).body
    const given = app.logs.length
    const responses: ServerResponse[] = []
    const note = (message: unknown) => void responses.push((message as { response: ServerResponse }).response)
    subscribe('http.server.request.start', note)
    await slowly('actors', async () => {
      const leave = begin('update-actor', { actor_id: actor.id, name: 'Eve' })
      await waiting(1)
      await leave()
      // The server may notice the disconnect later.
      await eventually(() => responses.length > 0 && responses.every(({ closed }) => closed))
    })
    unsubscribe('http.server.request.start', note)
    await eventually(() =>
      app.logs.slice(given).some(line => line.includes('"path":"/mcp"') && line.includes('"status":499')),
    )
    assert.equal((await app.key.get(`/actors/${actor.id}`)).body.name, 'Bob')
    await app.key.delete(`/actors/${actor.id}`)
  })

  it('completes a write that has started', async () => {
    await slowly('actors', async () => {
      const leave = begin('create-actor', { name: 'Ada' })
      await waiting(1)
      await leave()
    })
    await eventually(async () => (await app.key.get('/actors')).body.data.length === 1)
  })

  it('has its generation completed', async () => {
    const leave = begin('create-agent-generation', {
      agent_id: app.agentId,
      prompt: `@double ${JSON.stringify([{ text: 'after all', delay_ms: 1000 }])}`,
    })
    const listed = async () => (await app.key.get('/generations')).body.data
    await eventually(async () => (await listed())[0]?.status === 'in_progress')
    await leave()
    const [{ id }] = await listed()
    const done = await eventually(async () => {
      const { body } = await app.key.get(`/generations/${id}`)
      return body.status === 'completed' && body
    })
    assert.match(JSON.stringify(done.output), /after all/)
  })

  it('aborts the request of its direct tool call, and the call is recorded as failed', async () => {
    const tool = await made(app.key, { execute: { url: target.url } })
    const closed = Promise.withResolvers<void>()
    target.answer = (_request, response) => response.once('close', closed.resolve)
    const leave = begin('tools-call-tool', { tool_id: tool.id })
    await eventually(() => target.requests.length === 1)
    await leave()
    await closed.promise
    const entry = await eventually(async () => {
      const { body } = await app.admin.get(`/audit-log?project_id=${app.projectId}&action=tools:CallTool`)
      return body.data[0]
    })
    assert.deepEqual([entry.status, entry.detail.surface], [502, 'mcp'])
  })
})
