import assert from 'node:assert/strict'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { fileKind } from '#content/files/model.ts'
import { referencesTo } from '#core/api/dependents.ts'
import { newId } from '#core/base/ids.ts'
import { inTransaction, type Transaction } from '#core/db/pool.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { traceFlushQueue } from '#execution/generations/traces/flush.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { runWorker, steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { openStream, readStream } from './streams.ts'

type Json = Record<string, any>

/** What a test does with traces of an application. */
function kit(app: AgentApp) {
  const double = client(app.double)
  const self = {
    double,
    rows: async (text: string, values: unknown[] = []) =>
      (await app.pool.any(rawQuery(text, values))) as readonly any[],
    ask: (body: Json = { prompt: 'hi' }, agent = app.agentId, query = '?wait=true') =>
      app.key.post(`/agents/${agent}/generate${query}`, body),
    turn: async (body: Json = { prompt: 'hi' }, agent = app.agentId) => {
      const reply = await self.ask(body, agent)
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      return reply.body as Json
    },
    /** An agent whose turns have two steps: a call of a tool that is not there, then an answer. */
    twoSteps: async (lane: string) => {
      await double.put(lane, {
        rules: [
          { when: { last_role: 'tool' }, reply: { text: 'done' } },
          { reply: { tool_calls: [{ name: 'lookup', args: { Of: 'x', deep: [1, { a: null }] } }] } },
        ],
      } as never)
      return app.agent({ model: `${lane}/m` })
    },
    trace: async (id: string) => (await app.key.get(`/traces/${id}`)).body as Json,
    /** The trace once nothing of it is left in the journal. */
    written: (id: string, within = 10_000) =>
      eventually(
        async () => {
          const left = await self.journal(id)
          const trace = await self.trace(id)
          return left === 0 && trace.file_id ? trace : null
        },
        { within, what: `the file of ${id}` },
      ),
    journal: async (traceId: string) =>
      (
        await self.rows(
          'select 1 from generation_steps s join generations g on g.id = s.generation_id where g.trace_id = $1',
          [traceId],
        )
      ).length,
    steps: async (fileId: string) => {
      const { status, body } = await app.key.get(`/files/${fileId}/download`)
      assert.equal(status, 200, JSON.stringify(body))
      return (typeof body === 'string' ? JSON.parse(body) : body) as Json[]
    },
    transcript: async (id: string) => {
      const { status, body } = await app.key.get(`/generations/${id}/transcript`)
      assert.equal(status, 200, JSON.stringify(body))
      return body as Json
    },
    blobs: async () => (await self.rows('select id from file_blobs')).length,
    waitingAt: (gate: string) =>
      eventually(async () => ((await double.gate(gate))?.waiting ?? 0) > 0, { what: `a request at ${gate}` }),
    open: (gate: string) => double.read('POST', `/control/gates/${gate}/open`),
  }
  return self
}

describe('steps files of traces', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp({ env: { PROVIDER_MAX_RETRIES: '0', GENERATION_SWEEP_SECONDS: '1' } }))
  let t: ReturnType<typeof kit>

  before(async () => {
    t = kit(app)
  })

  it('take the steps of a settled turn from the journal; its transcript is unchanged', async () => {
    const agent = await t.twoSteps('moved')
    const { id, trace_id } = await t.turn({ prompt: 'go' }, agent)
    const { file_id } = await t.written(trace_id)
    const steps = await t.steps(file_id)
    const transcript = await t.transcript(id)
    assert.equal(transcript.steps.length, 2)
    assert.deepEqual(
      steps,
      transcript.steps.map((step: Json) => ({ generation_id: id, ...step })),
    )
    assert.deepEqual(Object.keys(steps[0]).sort(), [
      'ai_provider_id',
      'annotations',
      'answered_at',
      'completed_at',
      'finish_reason',
      'generation_id',
      'index',
      'model',
      'notes',
      'served_model',
      'service_tier',
      'started_at',
      'text',
      'tool_calls',
      'tool_results',
      'usage',
      'vendor_calls',
    ])
    assert.deepEqual(steps[0].tool_calls[0].args, { Of: 'x', deep: [1, { a: null }] })
    assert.match(steps[0].started_at, /^\d{4}-.*Z$/)
    assert.deepEqual(
      steps.map(({ index }) => index),
      [0, 1],
    )
    const file = (await app.key.get(`/files/${file_id}`)).body
    assert.deepEqual(
      [file.path, file.filename, file.content_type, file.has_content, file.document_id],
      [`/.system/traces/${trace_id}.json`, `${trace_id}.json`, 'application/json', true, null],
    )
    assert.deepEqual(await t.rows('select name from events where resource_id = $1', [file_id]), [])
  })

  it('are the same steps that the journal shows before', async () => {
    const idle = await startAgentApp({ workers: [] })
    const of = kit(idle)
    try {
      const agent = await of.twoSteps('before')
      // A worker that dies between the end of the turn and the file leaves the journal to readers.
      const worker = await startProcess('worker', idle.databaseUrl, { FAULT_POINTS: 'trace_staged=kill' }, [
        'generation',
      ])
      const { id, trace_id } = await of.turn({ prompt: 'go' }, agent)
      await worker.exited
      assert.equal((await of.trace(trace_id)).file_id, null)
      assert.equal(await of.journal(trace_id), 2)
      const before = await of.transcript(id)
      assert.equal(before.steps.length, 2)
      const next = await runWorker(idle.databaseUrl, { GENERATION_SWEEP_SECONDS: '1' }, ['generation'])
      await of.written(trace_id, 20_000)
      assert.deepEqual(await of.transcript(id), before)
      await next.stop()
    } finally {
      await idle.close()
    }
  })

  it('are in the result of a turn whose frames are gone', async () => {
    const agent = await t.twoSteps('frames')
    const { id, trace_id, output } = await t.turn({ prompt: 'go' }, agent)
    await t.written(trace_id)
    await t.rows('delete from stream_frames where generation_id = $1 returning 1', [id])
    const stream = await openStream(app, `/generations/${id}/stream`)
    const message = (await readStream(stream)).at(-1)
    assert.equal(message?.event, 'completed')
    assert.equal(output.response_messages.length, 3)
    assert.deepEqual(message?.data.output, output)
  })

  it('provide the settled steps of a retried turn', async () => {
    await t.double.put('again', {
      rules: [
        {
          replies: [
            { tool_calls: [{ name: 'lookup', args: {} }] },
            { error: { status: 400, message: 'no' } },
            { text: 'at last' },
          ],
        },
      ],
    } as never)
    const agent = await app.agent({ model: 'again/m' })
    const failed = (await t.ask({ prompt: 'ask' }, agent)).body.error.meta
    await t.written(failed.trace_id)
    const retried = await app.key.post(`/generations/${failed.generation_id}/retry?wait=true`)
    assert.equal(retried.status, 200, JSON.stringify(retried.body))
    const asked = (await t.double.requests('again')).at(-1)?.body.messages as Json[]
    assert.deepEqual(
      asked.map(({ role }) => role),
      ['user', 'assistant', 'tool'],
    )
  })

  it('hold the steps of all turns of a trace in their order; the bytes before are dropped', async () => {
    const agent = await t.twoSteps('order')
    const first = await t.turn({ prompt: 'a' }, agent)
    const { file_id } = await t.written(first.trace_id)
    const [before] = await t.rows('select location from files where id = $1', [file_id])
    const second = await t.turn({ prompt: 'b', trace_id: first.trace_id }, agent)
    const trace = await t.written(first.trace_id)
    assert.equal(trace.file_id, file_id)
    assert.deepEqual(
      (await t.steps(file_id)).map(({ generation_id, index }) => [generation_id, index]),
      [first, second].flatMap(({ id }) => [
        [id, 0],
        [id, 1],
      ]),
    )
    assert.deepEqual(await t.rows('select 1 from file_blobs where id = $1::uuid', [before.location]), [])
    assert.deepEqual(await t.rows('select 1 from file_blob_chunks where blob_id = $1::uuid', [before.location]), [])
    for (const { id } of [first, second])
      assert.deepEqual(
        (await t.transcript(id)).steps.map(({ index }: Json) => index),
        [0, 1],
      )
  })

  it('leave the steps of a turn that still runs in the journal', async () => {
    await t.double.put('slow', {
      rules: [
        { when: { last_role: 'tool' }, reply: { text: 'late', gate: 'slow' } },
        { reply: { tool_calls: [{ name: 'lookup', args: {} }] } },
      ],
    } as never)
    const slow = await app.agent({ model: 'slow/m' })
    const { generation_id, trace_id } = (await t.ask({ prompt: 'a' }, slow, '')).body
    await t.waitingAt('slow')
    const quick = await t.turn({ prompt: 'b', trace_id })
    const { file_id } = await eventually(async () => {
      const trace = await t.trace(trace_id)
      return trace.file_id ? trace : null
    })
    assert.deepEqual(
      (await t.steps(file_id)).map(step => step.generation_id),
      [quick.id],
    )
    assert.equal(await t.journal(trace_id), 1)
    assert.equal((await t.transcript(generation_id)).steps.length, 1)
    await t.open('slow')
    await t.written(trace_id)
    // The slow one was called first.
    assert.deepEqual(
      (await t.steps(file_id)).map(step => step.generation_id),
      [generation_id, generation_id, quick.id],
    )
  })

  it('are complete for readers while they are rewritten', async () => {
    const first = await t.turn({ prompt: 'a' })
    let writing = true
    const reads = (async () => {
      for (let n = 0; writing; n++) {
        const { steps } = await t.transcript(first.id)
        assert.equal(steps.length, 1, `read ${n}`)
      }
    })()
    for (let n = 0; n < 30; n++) await t.turn({ prompt: 'b', trace_id: first.trace_id })
    writing = false
    await reads
  })

  it('take in the steps of a turn that is settling while they are read', async () => {
    const first = await t.turn({ prompt: 'a' })
    const { file_id } = await t.written(first.trace_id)
    const settling = new pg.Client({ connectionString: app.databaseUrlOf(app.projectId) })
    await settling.connect()
    try {
      // What the statement that settles a turn does.
      await settling.query('begin')
      await settling.query('select 1 from traces where id = $1 for no key update', [first.trace_id])
      const id = newId('gen')
      await settling.query(
        `insert into generations select (jsonb_populate_record(g, jsonb_build_object('id', $2::text))).* from generations g
         where g.id = $1`,
        [first.id, id],
      )
      await settling.query(
        `insert into generation_steps (generation_id, n, text, started_at, completed_at) values ($1, 1, 'late', now(), now())`,
        [id],
      )
      await app.services.queues.send([
        { queue: traceFlushQueue, data: { trace_id: first.trace_id, project_id: app.projectId } },
      ])
      await eventually(
        async () =>
          (
            await t.rows(
              `select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
            )
          ).length > 0,
        { what: 'a caller that waits for the turn' },
      )
      await settling.query('commit')
      await t.written(first.trace_id)
      assert.deepEqual(
        (await t.steps(file_id)).map(step => step.generation_id),
        [first.id, id],
      )
    } finally {
      await settling.end()
    }
  })

  it('are reported if storage has lost their bytes, and store later steps', async () => {
    const first = await t.turn({ prompt: 'a' })
    const { file_id } = await t.written(first.trace_id)
    await t.rows('delete from file_blobs where id = (select location::uuid from files where id = $1) returning 1', [
      file_id,
    ])
    assert.deepEqual((await t.transcript(first.id)).steps, [])
    const reported = () => app.logs.filter(line => line.includes('trace steps lost') && line.includes(file_id)).length
    assert.equal(reported(), 1)
    const second = await t.turn({ prompt: 'b', trace_id: first.trace_id })
    await t.written(first.trace_id)
    assert.deepEqual(
      (await t.steps(file_id)).map(step => step.generation_id),
      [second.id],
    )
    assert.equal(reported(), 2)
  })

  it('are of turns of conversations too', async () => {
    const session = (await app.key.post('/sessions', { agent_id: app.agentId })).body
    await app.key.post(`/sessions/${session.id}/messages`, { message: 'x' })
    const { generation_id, trace_id } = (await app.key.post(`/sessions/${session.id}/generate?wait=true`)).body
    const { file_id } = await t.written(trace_id)
    assert.deepEqual(
      (await t.steps(file_id)).map(step => step.generation_id),
      [generation_id],
    )
  })

  it('are named on the rows of their traces without a write to their indexes', async () => {
    const updates = async () => {
      const [row] = await t.rows(
        `select n_tup_upd::int as made, n_tup_hot_upd::int as hot from pg_stat_user_tables where relname = 'traces'`,
      )
      return row as { made: number; hot: number }
    }
    const before = await updates()
    const turns = await Promise.all(Array.from({ length: 30 }, () => t.turn()))
    for (const { trace_id } of turns) await t.written(trace_id)
    // At the end of the turn, and with the file.
    const after = await eventually(async () => {
      const now = await updates()
      return now.made - before.made >= 2 * turns.length ? now : null
    })
    assert.equal(after.hot - before.hot, after.made - before.made)
  })

  it('are kept by the database too, for as long as a trace names them', async () => {
    const { trace_id } = await t.turn()
    const { file_id } = await t.written(trace_id)
    await assert.rejects(t.rows('delete from files where id = $1', [file_id]), /foreign key/)
    assert.equal((await t.steps(file_id)).length, 1)
  })

  it('lead to their traces by the primary key', async () => {
    const { trace_id } = await t.turn()
    const { file_id } = await t.written(trace_id)
    const counted = async (tx: Transaction) => {
      const [row] = (await tx.any(
        rawQuery(
          `select coalesce(seq_scan, 0)::int as scans, idx_scan::int as lookups from pg_stat_xact_user_tables where relname = 'traces'`,
        ),
      )) as unknown as { scans: number; lookups: number }[]
      return row
    }
    await assert.rejects(
      inTransaction(app.services.pool, async tx => {
        await tx.query(rawQuery('set local enable_seqscan = off'))
        const found = await tx.any(sql.unsafe`select type from ${referencesTo(fileKind, file_id) ?? sql.fragment``} r`)
        assert.deepEqual(found, [{ type: 'trace' }])
        await tx.query(rawQuery('update traces set file_id = null where id = $1', [trace_id]))
        const before = await counted(tx)
        await tx.query(rawQuery('delete from files where id = $1', [file_id]))
        const { scans, lookups } = await counted(tx)
        // The session may still have counts of earlier transactions.
        assert.deepEqual([scans - before.scans, lookups > before.lookups], [0, true])
        throw new Error('unchanged')
      }),
      /unchanged/,
    )
  })

  it('belong to the platform: readable by id, never deleted or changed by callers', async () => {
    const { trace_id } = await t.turn()
    const { file_id } = await t.written(trace_id)
    const refused = await app.key.delete(`/files/${file_id}`)
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'FILE_HAS_DEPENDENTS'])
    assert.deepEqual(refused.body.error.meta, {
      counts: { traces: 1 },
      sample_ids: { traces: [trace_id] },
      forcible: false,
    })
    const dependents = (await app.key.get(`/files/${file_id}/dependents`)).body.data
    assert.deepEqual(dependents, [{ resource_type: 'trace', resource_id: trace_id }])
    for (const reply of [
      await app.key.patch(`/files/${file_id}/metadata`, { prefix: '/mine' }),
      await app.key.put(`/files/${file_id}/tags`, { a: 'b' }),
      await app.key.post('/documents/ingest', { file_id }),
      await app.key.post('/documents/ingest', { file_id, path_prefix: '/mine' }),
    ]) {
      assert.equal(reply.status, 400, JSON.stringify(reply.body))
      assert.equal(reply.body.error.meta.problems[0].code, 'RESERVED_PATH')
    }
    const listed = async (query: string) =>
      (await app.key.get(`/files?limit=100${query}`)).body.data.some(({ id }: Json) => id === file_id)
    assert.equal(await listed(''), false)
    assert.equal(await listed('&path_prefix=/.system/traces'), true)
    const stranger = (await app.project()).key
    assert.equal((await stranger.get(`/files/${file_id}`)).status, 404)
  })

  describe('that are purged', () => {
    it('are deleted with their bytes; the second purge changes nothing', async () => {
      const root = await t.turn()
      const child = await t.turn({ prompt: 'b', parent_trace_id: root.trace_id })
      const files = [await t.written(root.trace_id), await t.written(child.trace_id)].map(({ file_id }) => file_id)
      const blobs = (await t.rows('select location from files where id = any($1)', [files])).map(
        ({ location }) => location,
      )
      assert.equal(blobs.length, 2)
      const purged = await app.key.delete(`/traces/${root.trace_id}/content`)
      assert.deepEqual([purged.status, purged.body.file_id], [200, null])
      for (const id of files) assert.equal((await app.key.get(`/files/${id}`)).status, 404)
      assert.deepEqual(await t.rows('select 1 from file_blobs where id = any($1::uuid[])', [blobs]), [])
      assert.deepEqual(await t.rows('select 1 from file_blob_chunks where blob_id = any($1::uuid[])', [blobs]), [])
      assert.equal((await t.trace(child.trace_id)).file_id, null)
      assert.deepEqual((await t.transcript(child.id)).steps, [])
      const again = await app.key.delete(`/traces/${root.trace_id}/content`)
      assert.deepEqual(again.body, purged.body)
      const told = await storedEvents(app.pool, { resource: root.trace_id })
      assert.equal(told.length, 1)
      assert.equal(told[0].data.file_id, null)
    })

    it('keep the steps of other turns when one generation is purged, which a later write leaves out', async () => {
      const first = await t.turn({ prompt: 'a' })
      const second = await t.turn({ prompt: 'b', trace_id: first.trace_id })
      const { file_id } = await t.written(first.trace_id)
      assert.equal((await app.key.delete(`/generations/${first.id}/content`)).status, 200)
      assert.deepEqual((await t.transcript(first.id)).steps, [])
      assert.equal((await t.transcript(second.id)).steps.length, 1)
      const third = await t.turn({ prompt: 'c', trace_id: first.trace_id })
      await t.written(first.trace_id)
      assert.deepEqual(
        (await t.steps(file_id)).map(step => step.generation_id),
        [second.id, third.id],
      )
    })
  })

  it('are not made of turns that keep no content; what the journal counted of them goes', async () => {
    const { id, key } = await app.project()
    await app.admin.patch(`/projects/${id}`, { trace_content_mode: 'none' })
    const provider = await key.post('/ai-providers', {
      name: 'p',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${app.double.url}/v1`,
    })
    const agent = (await key.post('/agents', { name: 'a', ai_provider_id: provider.body.id })).body.id
    const { trace_id } = (await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'secret' })).body
    await eventually(async () => (await t.journal(trace_id)) === 0)
    assert.equal((await key.get(`/traces/${trace_id}`)).body.file_id, null)
    assert.deepEqual(await t.rows('select 1 from files where project_id = $1', [id]), [])
  })

  it('keep the steps of others when a turn that keeps no content joins their trace', async () => {
    const first = await t.turn({ prompt: 'a' })
    const none = await app.agent({ trace_content_mode: 'none' })
    const second = await t.turn({ prompt: 'secret', trace_id: first.trace_id }, none)
    const third = await t.turn({ prompt: 'c', trace_id: first.trace_id })
    const { file_id, content_redacted_at } = await t.written(first.trace_id)
    assert.equal(content_redacted_at, null)
    assert.deepEqual(
      (await t.steps(file_id)).map(step => step.generation_id),
      [first.id, third.id],
    )
    assert.deepEqual((await t.transcript(second.id)).steps, [])
    const alone = await t.turn({ prompt: 'secret' }, none)
    assert.notEqual((await t.trace(alone.trace_id)).content_redacted_at, null)
  })

  it('are deleted with their agent and with their project', async () => {
    const { id, key } = await app.project()
    const provider = await key.post('/ai-providers', {
      name: 'p',
      provider: 'custom',
      default_model: 'double-1',
      base_url: `${app.double.url}/v1`,
    })
    const make = async () => (await key.post('/agents', { name: 'a', ai_provider_id: provider.body.id })).body.id
    const [gone, kept] = [await make(), await make()]
    const traces = []
    for (const agent of [gone, gone, kept]) {
      const { trace_id } = (await key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })).body
      traces.push(trace_id)
      await eventually(async () => (await key.get(`/traces/${trace_id}`)).body.file_id)
    }
    const locations = (await t.rows('select location from files where project_id = $1', [id])).map(row => row.location)
    assert.equal(locations.length, 3)
    const left = async () => (await t.rows('select 1 from file_blobs where id = any($1::uuid[])', [locations])).length
    assert.equal((await key.delete(`/agents/${gone}?force=true`)).status, 204)
    assert.equal((await t.rows('select 1 from files where project_id = $1', [id])).length, 1)
    assert.equal(await left(), 1)
    assert.equal((await key.get(`/traces/${traces[0]}`)).status, 404)
    assert.equal((await app.admin.delete(`/projects/${id}?force=true`)).status, 204)
    assert.deepEqual(await t.rows('select 1 from files where project_id = $1', [id]), [])
  })

  it('are made by the sweep however long their worker has been gone', async () => {
    const idle = await startAgentApp({ workers: [] })
    const of = kit(idle)
    const steady = steadyWorkers()
    try {
      const worker = await startProcess('worker', idle.databaseUrl, { FAULT_POINTS: 'trace_staged=kill' }, [
        'generation',
      ])
      const { trace_id } = await of.turn()
      await worker.exited
      await of.rows(`update generations set completed_at = now() - interval '1 hour' where trace_id = $1 returning 1`, [
        trace_id,
      ])
      await steady.start(idle.databaseUrl, { GENERATION_SWEEP_SECONDS: '1' }, ['generation'])
      await of.written(trace_id, 15_000)
    } finally {
      await steady.stop()
      await idle.close()
    }
  })

  describe('over processes', function () {
    this.timeout(60_000)
    let idle: AgentApp
    let of: ReturnType<typeof kit>
    const processes: TestProcess[] = []
    const worker = async (env: Record<string, string> = {}) => {
      const made = await startProcess('worker', idle.databaseUrl, { PROVIDER_MAX_RETRIES: '0', ...env }, ['generation'])
      processes.push(made)
      return made
    }
    const steady = steadyWorkers()
    /** A worker that comes to no harm. */
    const steadyWorker = (env: Record<string, string> = {}) =>
      steady.start(idle.databaseUrl, { PROVIDER_MAX_RETRIES: '0', ...env }, ['generation'])

    beforeEach(async () => {
      idle = await startAgentApp({ workers: [] })
      of = kit(idle)
    })
    afterEach(async () => {
      await steady.stop()
      for (const each of processes.splice(0)) if (each.child.exitCode === null) await each.kill()
      await idle.close()
    })

    it('lose no step of concurrent turns in one trace', async () => {
      const agent = await of.twoSteps('grouped')
      await Promise.all([steadyWorker(), steadyWorker()])
      const { id, trace_id } = await of.turn({ prompt: 'first' }, agent)
      const asked = await Promise.all(
        Array.from({ length: 24 }, (_, n) => of.ask({ prompt: `turn ${n}`, trace_id }, agent, '')),
      )
      const ids = [id, ...asked.map(({ body }) => body.generation_id)]
      await eventually(
        async () =>
          (await idle.key.get(`/generations?trace_id=${trace_id}&status=completed`)).body.total === ids.length,
        { within: 30_000, what: 'the end of all turns' },
      )
      const trace = await of.written(trace_id, 20_000)
      assert.equal(trace.step_count, 2 * ids.length)
      const steps = await of.steps(trace.file_id)
      const inOrder = (
        await of.rows('select id from generations where trace_id = $1 order by created_at, id', [trace_id])
      ).map(row => row.id)
      assert.deepEqual(
        steps.map(({ generation_id, index }) => [generation_id, index]),
        inOrder.flatMap(generation => [
          [generation, 0],
          [generation, 1],
        ]),
      )
      assert.deepEqual([...inOrder].sort(), [...ids].sort())
      for (const generation of ids) {
        const { steps: own } = await of.transcript(generation)
        assert.deepEqual(
          own,
          steps.filter(step => step.generation_id === generation).map(({ generation_id: _, ...step }) => step),
        )
      }
      // Each write dropped the bytes of the one before.
      assert.equal(await of.blobs(), 1)
    })

    it('are written once by another worker when one is killed, before its commit or after', async () => {
      for (const point of ['trace_staged', 'trace_written']) {
        const broken = await worker({ FAULT_POINTS: `${point}=kill` })
        const { id, trace_id } = await of.turn()
        assert.equal((await broken.exited).signal, 'SIGKILL')
        const next = await steadyWorker({ GENERATION_SWEEP_SECONDS: '1' })
        const { file_id } = await of.written(trace_id, 20_000)
        assert.deepEqual(
          (await of.steps(file_id)).map(step => [step.generation_id, step.index]),
          [[id, 0]],
        )
        await eventually(
          async () =>
            (
              await of.rows(
                `select 1 from pgboss.job where name = 'trace.flush' and state in ('created', 'retry', 'active')`,
              )
            ).length === 0,
          { within: 20_000 },
        )
        assert.equal((await of.rows('select 1 from files')).length, (await of.rows('select 1 from traces')).length)
        await next.stop()
      }
    })

    it('hold nothing that was purged while they were written', async () => {
      // In a directory staged bytes can be seen.
      const dir = await mkdtemp(path.join(tmpdir(), 'muster-traces-'))
      const env = { FILES_STORAGE_PROVIDER: 'local', FILES_STORAGE_DIR: dir }
      await idle.close()
      idle = await startAgentApp({ workers: [], env })
      of = kit(idle)
      await steadyWorker({ ...env, FAULT_POINTS: 'trace_staged=freeze:4000' })
      const objects = async () =>
        (await readdir(dir, { recursive: true, withFileTypes: true })).filter(entry => entry.isFile()).length
      const staged = () => eventually(async () => (await objects()) > 0, { what: 'staged bytes' })
      const whole = await of.turn()
      await staged()
      assert.equal((await idle.key.delete(`/traces/${whole.trace_id}/content`)).status, 200)
      await eventually(async () => (await objects()) === 0, { within: 25_000, what: 'the end of the staged bytes' })
      assert.equal((await of.trace(whole.trace_id)).file_id, null)
      assert.deepEqual(await of.rows('select 1 from files'), [])

      const first = await of.turn()
      const second = await of.turn({ prompt: 'b', trace_id: first.trace_id })
      await staged()
      assert.equal((await idle.key.delete(`/generations/${first.id}/content`)).status, 200)
      const { file_id } = await of.written(first.trace_id, 25_000)
      const kept = (await of.steps(file_id)).map(step => step.generation_id)
      assert.ok(kept.includes(second.id))
    })
  })

  it('are objects of another storage when the deployment has one, which a purge removes', async () => {
    const dir = await mkdtemp(path.join(tmpdir(), 'muster-traces-'))
    const local = await startAgentApp({
      workers: ['generation', 'ingestion'],
      env: { FILES_STORAGE_PROVIDER: 'local', FILES_STORAGE_DIR: dir },
    })
    const of = kit(local)
    const objects = async () =>
      (await readdir(dir, { recursive: true, withFileTypes: true })).filter(entry => entry.isFile()).length
    try {
      const { id, trace_id } = await of.turn()
      const { file_id } = await of.written(trace_id)
      assert.equal((await of.steps(file_id)).length, 1)
      assert.equal((await of.transcript(id)).steps.length, 1)
      assert.equal(await objects(), 1)
      await of.turn({ prompt: 'b', trace_id })
      await of.written(trace_id)
      await eventually(async () => (await objects()) === 1)
      assert.equal((await local.key.delete(`/traces/${trace_id}/content`)).status, 200)
      await eventually(async () => (await objects()) === 0)
    } finally {
      await local.close()
      await rm(dir, { recursive: true, force: true })
    }
  })

  it('stay in the journal while there is no place for bytes', async () => {
    const broken = await startAgentApp({ env: { FILES_STORAGE_PROVIDER: 'local' } })
    const of = kit(broken)
    try {
      const { id, trace_id } = await of.turn()
      await eventually(() => broken.logs.some(line => line.includes('trace flush postponed')))
      assert.equal((await of.trace(trace_id)).file_id, null)
      assert.equal((await of.transcript(id)).steps.length, 1)
    } finally {
      await broken.close()
    }
  })
})
