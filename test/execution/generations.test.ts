import assert from 'node:assert/strict'
import http from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { pruneEvents } from '#control/events/retention.ts'
import { deleteExpiredEvents, lockExpiredEvents } from '#control/events/store.ts'
import { inTransaction, onSeparateConnection } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { schemaChecks } from '#core/json-schema/checks.ts'
import { deleteOldFrames } from '#execution/generations/streams/frame-store.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { longestTurn } from '../support/event-loop.ts'
import { storedEvents } from '../support/events.ts'
import { forSuite } from '../support/suite.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { type Message, openStream, readStream } from './streams.ts'

describe('generations', () => {
  const app = forSuite(startAgentApp)
  const double = forSuite(() => client(app.double))

  const open = (gate: string) => double.read('POST', `/control/gates/${gate}/open`)
  const generate = (body: object, query = '?wait=true', agent = app.agentId) =>
    app.key.post(`/agents/${agent}/generate${query}`, body)
  const ended = (id: string) =>
    eventually(async () => {
      const { body } = await app.key.get(`/generations/${id}`)
      return body.status === 'completed' || body.status === 'failed' ? body : null
    })

  describe('running an agent', () => {
    it('answers a waiting caller with the output', async () => {
      const { status, body } = await generate({ prompt: 'hello' })
      assert.equal(status, 200)
      assert.deepEqual(Object.keys(body).sort(), [
        'agent_version',
        'ai_provider_id',
        'id',
        'output',
        'required_action',
        'status',
        'trace_id',
        'usage',
      ])
      assert.equal(body.status, 'completed')
      assert.equal(body.output.content, 'echo: hello')
      assert.equal(body.output.finish_reason, 'stop')
      assert.equal(body.output.object, null)
      assert.deepEqual(body.output.response_messages, [
        { role: 'assistant', content: [{ type: 'text', text: 'echo: hello' }] },
      ])
      assert.equal(body.ai_provider_id, app.providerId)
      assert.equal(body.agent_version, 1)
      assert.ok(body.usage.input_tokens > 0)
      assert.equal(body.usage.cost_usd, null)
    })

    it('runs in the background by default; the record is readable immediately', async () => {
      const { status, body } = await generate({ messages: [{ role: 'user', content: 'later' }] }, '')
      assert.equal(status, 202)
      assert.deepEqual(Object.keys(body).sort(), ['generation_id', 'status', 'trace_id'])
      assert.equal((await app.key.get(`/generations/${body.generation_id}`)).status, 200)
      const done = await ended(body.generation_id)
      assert.equal(done.output.content, 'echo: later')
      assert.equal(done.status, 'completed')
      assert.equal(done.stop_reason, 'stop')
    })

    it('sends instructions as system, then the messages in order, the prompt last', async () => {
      await double.put('order', { rules: [] })
      const agent = await app.agent({ instructions: 'Be brief.', model: 'order/m', temperature: 0.5 })
      await generate(
        {
          messages: [
            { role: 'user', content: 'a' },
            { role: 'assistant', content: 'b' },
          ],
          prompt: 'c',
        },
        '?wait=true',
        agent,
      )
      const [request] = await double.requests('order')
      assert.deepEqual(
        request.body.messages.map((message: { role: string; content: string }) => [message.role, message.content]),
        [
          ['system', 'Be brief.'],
          ['user', 'a'],
          ['assistant', 'b'],
          ['user', 'c'],
        ],
      )
      assert.equal(request.body.temperature, 0.5)
      assert.equal(request.body.tools, undefined)
      assert.equal(request.body.tool_choice, undefined)
    })

    it('keeps only the newest messages when the agent bounds them', async () => {
      await double.put('bounded', { rules: [] })
      const agent = await app.agent({ model: 'bounded/m', max_context_messages: 2 })
      await generate({ messages: ['a', 'b', 'c'].map(content => ({ role: 'user', content })) }, '?wait=true', agent)
      const [request] = await double.requests('bounded')
      assert.deepEqual(
        request.body.messages.map((message: { content: string }) => message.content),
        ['b', 'c'],
      )
    })

    it('refuses invalid requests and writes nothing', async () => {
      const count = async () => (await app.key.get('/generations')).body.total
      const before = await count()
      const cases: [object, string, number, string][] = [
        [{}, '', 400, 'VALIDATION_FAILED'],
        [{ messages: [{ role: 'system', content: 'x' }] }, '', 400, 'SYSTEM_MESSAGE_NOT_ALLOWED'],
        [{ messages: [{ role: 'tool', content: 'x' }] }, '', 400, 'VALIDATION_FAILED'],
        [{ messages: [] }, '', 400, 'VALIDATION_FAILED'],
        [{ prompt: 5 }, '', 400, 'VALIDATION_FAILED'],
        [{ prompt: 'x', tool_choice: 'never' }, '', 400, 'VALIDATION_FAILED'],
        [{ prompt: 'x', stream: true }, '?wait=false', 400, 'VALIDATION_FAILED'],
        [{ prompt: 'x' }, '?wait=yes', 400, 'VALIDATION_FAILED'],
        [{ prompt: 'x', max_call_depth: 11 }, '', 400, 'VALIDATION_FAILED'],
        [{ prompt: 'x', trace_id: 'trace_00000000000000000000000000' }, '', 404, 'RESOURCE_NOT_FOUND'],
      ]
      for (const [body, query, status, code] of cases) {
        const answer = await generate(body, query)
        assert.equal(answer.status, status, JSON.stringify(body))
        assert.equal(answer.body.error.code, code, JSON.stringify(body))
      }
      assert.equal(await count(), before)
    })

    it('refuses a stream of an agent with an output schema', async () => {
      const agent = await app.agent({ output_schema: { type: 'object' } })
      const { status, body } = await generate({ prompt: 'x', stream: true }, '', agent)
      assert.equal(status, 400)
      assert.equal(body.error.code, 'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
    })

    it('refuses in a paused project, and runs accepted turns after it resumes', async () => {
      const other = await startAgentApp()
      try {
        await other.key.post(`/projects/${other.projectId}/pause`, { reason: 'maintenance' })
        const refused = await other.key.post(`/agents/${other.agentId}/generate`, { prompt: 'x' })
        assert.equal(refused.status, 409)
        assert.equal(refused.body.error.code, 'PROJECT_PAUSED')
        assert.deepEqual(refused.body.error.meta, { project_id: other.projectId, pause_reason: 'maintenance' })
        assert.equal((await other.key.get('/generations')).body.total, 0)
        await other.key.post(`/projects/${other.projectId}/resume`)
        assert.equal((await other.key.post(`/agents/${other.agentId}/generate?wait=true`, { prompt: 'x' })).status, 200)
      } finally {
        await other.close()
      }
    })

    it('continues when the waiting caller disconnects', async () => {
      await double.put('closed', { rules: [{ reply: { text: 'done', gate: 'closed-gate' } }] })
      const agent = await app.agent({ model: 'closed/m' })
      const request = http.request(`${app.url}/api/v1/agents/${agent}/generate?wait=true`, {
        method: 'POST',
        headers: { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' },
      })
      request.on('error', () => {})
      request.end(JSON.stringify({ prompt: 'x' }))
      const row = await eventually(
        async () => (await app.key.get(`/generations?agent_id=${agent}&status=in_progress`)).body.data[0],
      )
      request.destroy()
      await open('closed-gate')
      assert.equal((await ended(row.id)).output.content, 'done')
    })

    it('hands a waiting caller the background answer when the wait is over', async () => {
      const other = await startAgentApp({ env: { SYNC_WAIT_SECONDS: '1' } })
      try {
        const control = client(other.double)
        await control.put('slow', { rules: [{ reply: { text: 'late', gate: 'slow-gate' } }] })
        const agent = await other.agent({ model: 'slow/m' })
        const answer = await other.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
        assert.equal(answer.status, 202)
        assert.equal(answer.body.status, 'accepted')
        await control.read('POST', '/control/gates/slow-gate/open')
        await eventually(
          async () => (await other.key.get(`/generations/${answer.body.generation_id}`)).body.status === 'completed',
        )
      } finally {
        await other.close()
      }
    })

    it('answers at depth 0 without a model call', async () => {
      await double.put('depth', { rules: [] })
      const agent = await app.agent({ model: 'depth/m' })
      const { status, body } = await generate({ prompt: 'x', max_call_depth: 0 }, '?wait=true', agent)
      assert.equal(status, 200)
      assert.equal(body.usage, null)
      assert.equal((await app.key.get(`/generations/${body.id}`)).body.stop_reason, 'depth_guard')
      assert.equal((await double.requests('depth')).length, 0)
    })

    it('ends at its own deadline', async () => {
      await double.put('deadline', { rules: [{ reply: { text: 'never', gate: 'deadline-gate' } }] })
      const agent = await app.agent({ model: 'deadline/m' })
      const { status, body } = await generate({ prompt: 'x', timeout_seconds: 1 }, '?wait=true', agent)
      assert.equal(status, 500)
      assert.equal(body.error.code, 'GENERATION_FAILED')
      assert.equal(body.error.meta.reason, 'deadline')
    })

    it('ends when it has run longer than the deployment lets it', async () => {
      const short = await startAgentApp({ env: { GENERATION_MAX_SECONDS: '1' } })
      try {
        const reply = await short.key.post(`/agents/${short.agentId}/generate?wait=true`, {
          prompt: '@double {"text":"late","delay_ms":20000}',
        })
        assert.deepEqual([reply.status, reply.body.error.code], [500, 'GENERATION_FAILED'])
        assert.equal(reply.body.error.meta.reason, 'deadline')
        const record = (await short.key.get(`/generations/${reply.body.error.meta.generation_id}`)).body
        assert.deepEqual([record.status, record.stop_reason], ['failed', 'error'])
      } finally {
        await short.close()
      }
    })

    it('has one audit entry per call, with the generate action', async () => {
      const { headers } = await generate({ prompt: 'audited' })
      const entries = (await app.key.get('/audit-log?action=agents:CreateAgentGeneration&limit=200')).body.data
      assert.equal(
        entries.filter((entry: { request_id: string }) => entry.request_id === headers.get('x-request-id')).length,
        1,
      )
    })
  })

  describe('failures', () => {
    it('a failing provider fails the turn with its own code on the record, the trace and the event', async () => {
      await double.put('broken', { rules: [{ reply: { error: { status: 400, message: 'no such thing' } } }] })
      const agent = await app.agent({ model: 'broken/m' })
      const { status, body } = await generate({ prompt: 'x' }, '?wait=true', agent)
      assert.equal(status, 502)
      assert.equal(body.error.code, 'AI_PROVIDER_ERROR')
      assert.equal(body.error.meta.provider_status_code, 400)
      const record = (await app.key.get(`/generations/${body.error.meta.generation_id}`)).body
      assert.equal(record.status, 'failed')
      assert.equal(record.stop_reason, 'error')
      assert.equal(record.error.message, body.error.message)
      assert.deepEqual((await app.key.get(`/traces/${body.error.meta.trace_id}`)).body.error, record.error)
      const events = await storedEvents(app.pool, { resource: record.id, name: 'generations.failed' })
      assert.equal(events.length, 1)
      assert.deepEqual(events[0].data.error, record.error)
    })

    it('an answer with characters that no database holds is kept with others in their place', async () => {
      const say = (reply: object, agent = app.agentId) =>
        generate({ prompt: `@double ${JSON.stringify(reply)}` }, '?wait=true', agent)
      assert.equal((await say({ text: 'a\0b' })).body.output.content, 'a\ufffdb')
      assert.equal((await say({ text: 'a\ud800b' })).body.output.content, 'a\ufffdb')
      const called = await say([
        { tool_calls: [{ name: 'x\0', args: { 'k\0': ['\udc00'] } }] },
        { text: 'ok' },
      ] as never)
      const [call] = called.body.output.response_messages[0].content
      assert.deepEqual([call.tool_name, call.args], ['x\ufffd', { 'k\ufffd': ['\ufffd'] }])
      const typed = await app.agent({ output_schema: { type: 'object' } })
      assert.deepEqual((await say({ text: '{"a":"\\u0000"}' }, typed)).body.output.object, { a: '\ufffd' })
      const refused = await say({ error: { status: 400, message: 'no\0pe' } })
      assert.deepEqual([refused.status, refused.body.error.code], [502, 'AI_PROVIDER_ERROR'])
      const stream = await openStream(app, `/agents/${app.agentId}/generate`, {
        prompt: '@double {"text":"a\\u0000b c"}',
        stream: true,
      })
      const messages = await readStream(stream)
      const pieces = messages.filter(each => each.event === 'delta').map(each => each.data.choices[0].delta.content)
      assert.equal(pieces.join(''), 'a\ufffdb c')
      assert.equal(messages.at(-1)?.data.output.content, 'a\ufffdb c')
    })

    it('a call is retried after a transient failure of the provider', async () => {
      await double.put('flaky', { rules: [{ replies: [{ error: { status: 503 } }, { text: 'ok' }] }] })
      const agent = await app.agent({ model: 'flaky/m' })
      assert.equal((await generate({ prompt: 'x' }, '?wait=true', agent)).body.output.content, 'ok')
    })

    it('an answer that breaks the output schema is refused, naming the place; a fenced valid one is an object', async () => {
      const schema = { type: 'object', properties: { a: { type: 'string', minLength: 5 } }, required: ['a'] }
      await double.put('shape', {
        rules: [
          { when: { user: 'good' }, reply: { text: '```json\n{"a":"abcdef"}\n```' } },
          { reply: { text: '{"a":"x"}' } },
        ],
      })
      const agent = await app.agent({ model: 'shape/m', output_schema: schema })
      const good = await generate({ prompt: 'good' }, '?wait=true', agent)
      assert.deepEqual(good.body.output.object, { a: 'abcdef' })
      const bad = await generate({ prompt: 'bad' }, '?wait=true', agent)
      assert.equal(bad.status, 502)
      assert.equal(bad.body.error.code, 'OUTPUT_SCHEMA_VALIDATION_FAILED')
      assert.ok(JSON.stringify(bad.body.error.meta.problems).includes('a'))
      assert.ok((await app.key.get(`/generations/${bad.body.error.meta.generation_id}`)).body.usage.output_tokens > 0)
    })

    it('an answer that the output schema cannot be validated against in time is refused', async () => {
      const schema = { properties: { a: { type: 'string', pattern: '^(?=a)(a+)+$' } } }
      await double.put('slow-shape', { rules: [{ reply: { text: JSON.stringify({ a: `${'a'.repeat(100)}!` }) } }] })
      const agent = await app.agent({ model: 'slow-shape/m', output_schema: schema })
      const { body } = await generate({ prompt: 'x' }, '?wait=true', agent)
      assert.equal(body.error.code, 'OUTPUT_SCHEMA_VALIDATION_FAILED')
      assert.deepEqual(
        body.error.meta.problems.map(({ code }: { code: string }) => code),
        ['TIMEOUT'],
      )
    })

    it('an answer is kept until a thread has time to check it', async () => {
      const inside = await startAgentApp({ inProcess: true })
      await client(inside.double).put('kept', { rules: [{ reply: { text: '{"a":1}' } }] })
      const agent = await inside.agent({ model: 'kept/m', output_schema: { required: ['a'] } })
      // Checks that take 50 ms each; a project may have a thousand waiting.
      const $defs: Record<string, object> = { d40: { type: 'string' } }
      for (let index = 0; index < 40; index++) {
        const next = { $ref: `#/$defs/d${index + 1}` }
        $defs[`d${index}`] = { allOf: [next, next] }
      }
      const slow = {
        project: inside.projectId,
        text: JSON.stringify({ $ref: '#/$defs/d0', $defs }),
        rules: { strict: false },
      }
      const ended = new AbortController()
      const { signal } = ended
      const checks = schemaChecks(inside.services)
      const flood = Array.from({ length: 1010 }, async () => {
        while (!signal.aborted) await checks.problems(slow, [{}], { signal }).catch(() => sleep(5))
      })
      try {
        const { body } = await inside.key.post(`/agents/${agent}/generate?wait=false`, { prompt: 'x' })
        const status = async () => (await inside.key.get(`/generations/${body.generation_id}`)).body.status
        await eventually(async () => (await status()) !== 'pending')
        await sleep(2000)
        ended.abort()
        await eventually(async () => (await status()) === 'completed')
        const trace = (await inside.key.get(`/generations/${body.generation_id}`)).body
        assert.deepEqual(trace.output.object, { a: 1 })
      } finally {
        ended.abort()
        await Promise.all(flood)
        await inside.close()
      }
    })

    it('an answer that opens a fence followed by empty lines is refused without blocking the worker', async () => {
      await double.put('open-fence', { rules: [{ reply: { text: `\`\`\`${'\n'.repeat(100_000)}x` } }] })
      const agent = await app.agent({ model: 'open-fence/m', output_schema: { type: 'object' } })
      const turn = await longestTurn(async () => {
        const { body } = await generate({ prompt: 'x' }, '?wait=true', agent)
        assert.equal(body.error.meta.problems[0].code, 'NOT_JSON')
      })
      assert.ok(turn < 1000, `${turn} ms`)
    })

    it('a model that calls an unbound tool gets the error and continues; max_steps ends the turn', async () => {
      await double.put('caller', {
        rules: [
          { when: { last_role: 'user' }, reply: { tool_calls: [{ name: 'lookup', args: { q: 1 } }] } },
          { reply: { text: 'sorry' } },
        ],
      })
      const agent = await app.agent({ model: 'caller/m' })
      const { body } = await generate({ prompt: 'x' }, '?wait=true', agent)
      assert.equal(body.output.content, 'sorry')
      const transcript = (await app.key.get(`/generations/${body.id}/transcript`)).body
      assert.equal(transcript.step_count, 2)
      assert.equal(transcript.steps[0].tool_results[0].error.code, 'TOOL_NOT_FOUND')
      assert.deepEqual(transcript.steps[0].tool_calls[0].args, { q: 1 })
      const requests = await double.requests('caller')
      assert.equal(requests[1].body.messages.at(-1).role, 'tool')

      await double.put('forever', { rules: [{ reply: { tool_calls: [{ name: 'lookup', args: {} }] } }] })
      const stubborn = await app.agent({ model: 'forever/m', max_steps: 2 })
      const stopped = await generate({ prompt: 'x' }, '?wait=true', stubborn)
      assert.equal(stopped.status, 200)
      const record = (await app.key.get(`/generations/${stopped.body.id}`)).body
      assert.equal(record.stop_reason, 'max_steps')
      assert.equal(record.step_count, 2)
      assert.equal((await double.requests('forever')).length, 2)
    })

    it('a deleted principal fails a queued turn with FORBIDDEN, unmetered', async () => {
      const other = await startAgentApp({ workers: [] })
      try {
        const key = await other.admin.post('/project-keys', { project_id: other.projectId })
        const asked = await other.as(key.body.secret).post(`/agents/${other.agentId}/generate`, { prompt: 'x' })
        assert.equal(asked.status, 202)
        await other.admin.delete(`/project-keys/${key.body.id}`)
        const worker = await startAgentAppWorker(other)
        try {
          const record = await eventually(async () => {
            const { body } = await other.key.get(`/generations/${asked.body.generation_id}`)
            return body.status === 'failed' ? body : null
          })
          assert.equal(record.error.code, 'FORBIDDEN')
          assert.equal(record.usage, null)
        } finally {
          await worker.kill('SIGTERM')
        }
      } finally {
        await other.close()
      }
    })
  })

  describe('streams', () => {
    const events = (messages: Message[]) => messages.map(message => message.event)

    it('starts with started, joins to the content, counts its ids, ends once', async () => {
      await double.put('pieces', { rules: [{ reply: { text: 'one two three four five', chunk_delay_ms: 15 } }] })
      const agent = await app.agent({ model: 'pieces/m' })
      const messages = await readStream(
        await openStream(app, `/agents/${agent}/generate`, { prompt: 'x', stream: true }),
      )
      assert.equal(messages[0].event, 'started')
      assert.deepEqual(Object.keys(messages[0].data).sort(), ['agent_version', 'generation_id', 'trace_id'])
      assert.deepEqual(
        messages.map(message => message.id),
        messages.map((_, index) => index + 1),
      )
      const last = messages.at(-1) as Message
      assert.equal(last.event, 'completed')
      assert.ok(events(messages).filter(event => event === 'delta').length > 1)
      assert.equal(events(messages).filter(event => event === 'step').length, 1)
      const text = messages
        .filter(message => message.event === 'delta')
        .map(message => message.data.choices[0].delta.content)
      assert.equal(text.join(''), last.data.output.content)
      assert.equal((await app.key.get(`/generations/${last.data.id}`)).body.status, 'completed')
    })

    it('keeps the pieces and ends with the error of a provider that breaks off', async () => {
      await double.put('halfway', {
        rules: [{ reply: { text: 'a b c d', chunk_delay_ms: 10, stream_error: { after: 2, message: 'lost it' } } }],
      })
      const agent = await app.agent({ model: 'halfway/m' })
      const messages = await readStream(
        await openStream(app, `/agents/${agent}/generate`, { prompt: 'x', stream: true }),
      )
      const last = messages.at(-1) as Message
      assert.equal(last.event, 'error')
      assert.equal(last.data.code, 'AI_PROVIDER_ERROR')
      assert.ok(events(messages).includes('delta'))
      const record = (await app.key.get(`/generations/${messages[0].data.generation_id}`)).body
      assert.equal(record.error.message, last.data.message)
    })

    it('resumes after Last-Event-ID, and replays a settled turn', async () => {
      await double.put('resumed', { rules: [{ reply: { text: 'one two three four', chunk_delay_ms: 60 } }] })
      const agent = await app.agent({ model: 'resumed/m' })
      const response = await openStream(app, `/agents/${agent}/generate`, { prompt: 'x', stream: true })
      const first: Message[] = []
      for await (const message of response.messages) {
        first.push(message)
        if (first.length === 2) break
      }
      response.close()
      const id = first[0].data.generation_id
      const rest = await readStream(
        await openStream(app, `/generations/${id}/stream`, undefined, { 'last-event-id': String(first[1].id) }),
      )
      assert.equal(rest[0].id, first[1].id + 1)
      assert.equal(rest.at(-1)?.event, 'completed')
      const pieces = [...first, ...rest]
        .filter(message => message.event === 'delta')
        .map(message => message.data.choices[0].delta.content)
      assert.equal(pieces.join(''), 'one two three four')
      const again = await readStream(await openStream(app, `/generations/${id}/stream`))
      assert.deepEqual(again, [...first, ...rest])
    })

    it('keeps its frames for ten minutes after the end, and deletes them in batches', async () => {
      const { pool } = app
      const ids = []
      for (const prompt of ['one', 'two']) {
        const { body } = await generate({ prompt })
        ids.push(body.id)
        await pool.query(sql.unsafe`
          insert into stream_frames (generation_id, seq, event, data, created_at)
          select ${body.id}, n, 'text', '{}', now() - interval '11 minutes' from generate_series(101, 105) n`)
      }
      await pool.query(sql.unsafe`
        update generations set completed_at = now() - interval '11 minutes' where id = ${ids[0]}`)
      const old = (id: string) =>
        pool.oneFirst(sql.unsafe`select count(*)::int from stream_frames where generation_id = ${id} and seq > 100`)
      assert.ok((await deleteOldFrames(pool, 3)) <= 3)
      await deleteOldFrames(pool, 3)
      assert.deepEqual([await old(ids[0]), await old(ids[1])], [0, 5])
    })

    it('replays a turn that was not streamed from its record', async () => {
      const { body } = await generate({ prompt: 'plain' })
      const messages = await readStream(await openStream(app, `/generations/${body.id}/stream`))
      assert.deepEqual(events(messages), ['started', 'delta', 'completed'])
      assert.deepEqual(messages[2].data, body)
    })

    it('writes no frame of a turn that is not streamed and whose record has its end', async () => {
      const { pool } = app
      const count = (table: 'stream_frames' | 'generation_steps', id: string) =>
        pool.oneFirst(sql.unsafe`select count(*)::int from ${sql.identifier([table])} where generation_id = ${id}`)
      const lastOf = async (id: string) =>
        (await readStream(await openStream(app, `/generations/${id}/stream`))).at(-1) as Message
      const { body } = await generate({ prompt: 'plain' })
      assert.equal(await count('stream_frames', body.id), 0)
      // Read from the journal or from the file of the trace.
      assert.deepEqual((await lastOf(body.id)).data, body)
      await eventually(async () => (await count('generation_steps', body.id)) === 0)
      assert.deepEqual((await lastOf(body.id)).data, body)

      await double.put('frame-failure', { rules: [{ reply: { error: { status: 400, message: 'no' } } }] })
      const failed = await generate({ prompt: 'x' }, '?wait=true', await app.agent({ model: 'frame-failure/m' }))
      const { generation_id, trace_id, ...meta } = failed.body.error.meta
      assert.equal(await count('stream_frames', generation_id), 0)
      const { event, data } = await lastOf(generation_id)
      assert.deepEqual([event, data.code, data.meta], ['error', failed.body.error.code, meta])

      // The record would give an object with its keys in another order.
      await double.put('frame-object', { rules: [{ reply: { text: '{"zz":"1","a":2}' } }] })
      const structured = await app.agent({ model: 'frame-object/m', output_schema: { type: 'object' } })
      const object = await generate({ prompt: 'x' }, '?wait=true', structured)
      assert.equal(JSON.stringify(object.body.output.object), '{"zz":"1","a":2}')
      assert.equal(await count('stream_frames', object.body.id), 1)
    })

    it('answers 404 for the stream of an unknown generation', async () => {
      assert.equal(
        (await app.key.get('/generations/gen_00000000000000000000000000/stream')).body.error.code,
        'GENERATION_NOT_FOUND',
      )
    })
  })

  describe('records', () => {
    it('lists by repeated status and refuses an unknown or empty one', async () => {
      const { body } = await app.key.get('/generations?status=failed&status=completed')
      assert.ok(body.total > 0)
      assert.ok(body.data.every((row: object) => !('output' in row)))
      assert.equal((await app.key.get('/generations?status=done')).status, 400)
      assert.equal((await app.key.get('/generations?status=')).status, 400)
      assert.equal((await app.key.get('/generations?session_id=sess_00000000000000000000000000')).body.total, 0)
    })

    it('keeps metadata apart from attribution, and merges concurrent patches', async () => {
      const { body } = await generate({ prompt: 'x', metadata: { action_id: 'mine', Odd_Case: 1 }, action_id: 'label' })
      const record = (await app.key.get(`/generations/${body.id}`)).body
      assert.equal(record.action_id, 'label')
      assert.deepEqual(record.metadata, { action_id: 'mine', Odd_Case: 1 })
      const answers = await Promise.all(
        [{ a: 1 }, { b: null }].map(metadata => app.key.patch(`/generations/${body.id}`, { metadata })),
      )
      assert.deepEqual(
        answers.map(answer => answer.status),
        [200, 200],
      )
      assert.deepEqual((await app.key.get(`/generations/${body.id}`)).body.metadata, {
        action_id: 'mine',
        Odd_Case: 1,
        a: 1,
        b: null,
      })
      // The record of one read says more than the record of a change.
      const { memory_entries: _, ...before } = (await app.key.get(`/generations/${body.id}`)).body
      assert.deepEqual((await app.key.patch(`/generations/${body.id}`, {})).body, before)
      assert.equal(
        (await app.key.patch(`/generations/${body.id}`, { metadata: { big: 'x'.repeat(17_000) } })).status,
        400,
      )
    })

    it('bounds metadata as a whole, however small its patches', async () => {
      const { body } = await generate({ prompt: 'x' })
      const patch = (name: string) =>
        app.key.patch(`/generations/${body.id}`, { metadata: { [name]: 'x'.repeat(10_000) } })
      assert.equal((await patch('a')).status, 200)
      const refused = await patch('b')
      assert.deepEqual([refused.status, refused.body.error.meta.problems[0].path], [400, 'metadata'])
      assert.deepEqual(Object.keys((await app.key.get(`/generations/${body.id}`)).body.metadata), ['a'])
      assert.equal((await patch('a')).status, 200)
    })

    it('shows its transcript; that needs the trace permission too', async () => {
      const { body } = await generate({ prompt: 'say' })
      const transcript = (await app.key.get(`/generations/${body.id}/transcript`)).body
      assert.deepEqual(transcript.input, [{ role: 'user', content: 'say' }])
      assert.equal(transcript.steps[0].text, 'echo: say')
      assert.deepEqual(transcript.output, { content: 'echo: say', finish_reason: 'stop', object: null })
      const reader = await app.user('reader', [
        { statement: [{ effect: 'Allow', action: ['generations:GetGeneration'] }] },
      ])
      assert.equal((await reader.get(`/generations/${body.id}`)).status, 200)
      assert.equal((await reader.get(`/generations/${body.id}/transcript`)).status, 403)
    })

    it('groups turns of one trace; each transcript is its own', async () => {
      const first = await generate({ prompt: 'a' })
      const [second, third] = await Promise.all(
        ['b', 'c'].map(prompt => generate({ prompt, trace_id: first.body.trace_id })),
      )
      assert.equal(second.body.trace_id, first.body.trace_id)
      assert.equal((await app.key.get(`/traces/${first.body.trace_id}`)).body.step_count, 3)
      assert.equal((await app.key.get(`/generations?trace_id=${first.body.trace_id}`)).body.total, 3)
      assert.equal((await app.key.get(`/generations/${third.body.id}/transcript`)).body.steps[0].text, 'echo: c')
    })

    it('cancels a running and a pending turn; a settled one is unchanged', async () => {
      await double.put('cancel', { rules: [{ reply: { text: 'never', gate: 'cancel-gate' } }] })
      const agent = await app.agent({ model: 'cancel/m' })
      const { body } = await generate({ prompt: 'x' }, '', agent)
      await eventually(async () => (await double.requests('cancel')).length === 1)
      assert.equal((await app.key.post(`/generations/${body.generation_id}/cancel`)).status, 200)
      const record = await ended(body.generation_id)
      assert.equal(record.status, 'failed')
      assert.equal(record.stop_reason, 'cancelled')
      assert.deepEqual(record.error, { code: 'GENERATION_FAILED', message: 'cancelled' })
      await eventually(async () => (await double.requests('cancel'))[0].aborted === true)
      const again = await app.key.post(`/generations/${body.generation_id}/cancel`)
      assert.equal(again.body.updated_at, record.updated_at)
    })

    it('stores the input of a turn that is cancelled before it starts', async () => {
      const idle = await startAgentApp({ workers: [] })
      try {
        const { generation_id } = (await idle.key.post(`/agents/${idle.agentId}/generate`, { prompt: 'early' })).body
        const cancelled = (await idle.key.post(`/generations/${generation_id}/cancel`)).body
        assert.deepEqual([cancelled.status, cancelled.stop_reason], ['failed', 'cancelled'])
        const { input } = (await idle.key.get(`/generations/${generation_id}/transcript`)).body
        assert.deepEqual(input, [{ role: 'user', content: 'early' }])
        assert.equal((await idle.key.post(`/generations/${generation_id}/retry`)).status, 202)
      } finally {
        await idle.close()
      }
    })

    it('shows the tree of nested traces from any of its nodes', async () => {
      const root = (await generate({ prompt: 'a' })).body
      const child = (await generate({ prompt: 'b', parent_trace_id: root.trace_id })).body
      const leaf = (await generate({ prompt: 'c', parent_trace_id: child.trace_id, root_trace_id: root.trace_id })).body
      assert.equal(
        (await generate({ prompt: 'c', parent_trace_id: child.trace_id, root_trace_id: child.trace_id })).status,
        400,
      )
      for (const id of [root, child, leaf].map(result => result.trace_id)) {
        const tree = (await app.key.get(`/traces/${id}/tree?include=generations`)).body
        assert.equal(tree.id, root.trace_id)
        assert.equal(tree.children[0].id, child.trace_id)
        assert.equal(tree.children[0].children[0].id, leaf.trace_id)
        assert.equal(tree.children[0].children[0].root_trace_id, root.trace_id)
        assert.equal(tree.generations[0].id, root.id)
      }
      assert.equal((await app.key.get(`/traces/${root.trace_id}/tree?include=foo`)).status, 400)
      assert.ok(!('generations' in (await app.key.get(`/traces/${root.trace_id}/tree`)).body))
      assert.equal(
        (await app.key.get('/traces?roots_only=true')).body.data.some(
          (row: { id: string }) => row.id === leaf.trace_id,
        ),
        false,
      )
      const purged = await app.key.delete(`/traces/${root.trace_id}/content`)
      assert.equal(purged.status, 200)
      for (const result of [root, child, leaf]) {
        const record = (await app.key.get(`/generations/${result.id}`)).body
        assert.equal(record.output, null)
        assert.equal(record.content_redacted_by_principal_type, 'api_key')
      }
      assert.equal(
        (await app.key.delete(`/traces/${root.trace_id}/content`)).body.content_redacted_at,
        purged.body.content_redacted_at,
      )
    })

    it('erases content once and keeps the skeleton', async () => {
      const { body } = await generate({ prompt: 'erase me', metadata: { secret: 'erase me too' } })
      const purged = await app.key.delete(`/generations/${body.id}/content`)
      assert.equal(purged.status, 200)
      for (const field of ['metadata', 'error', 'output']) assert.equal(purged.body[field], null)
      assert.deepEqual(purged.body.usage, body.usage)
      assert.equal(purged.body.agent_version, 1)
      assert.equal(
        (await app.key.delete(`/generations/${body.id}/content`)).body.content_redacted_at,
        purged.body.content_redacted_at,
      )
      const transcript = (await app.key.get(`/generations/${body.id}/transcript`)).body
      assert.equal(transcript.input, null)
      assert.deepEqual(transcript.steps, [])
      assert.equal(transcript.step_count, 1)
      assert.equal(
        (await app.key.patch(`/generations/${body.id}`, { metadata: { a: 1 } })).body.error.code,
        'GENERATION_CONTENT_UNAVAILABLE',
      )
      const stored = await storedEvents(app.pool, { resource: body.id })
      assert.deepEqual(
        stored.map(({ name }) => name),
        ['generations.started', 'generations.completed', 'generations.content_purged'],
      )
      assert.ok(!JSON.stringify(stored).includes('erase me'))
      assert.equal((await generate({ prompt: 'x', trace_id: body.trace_id })).status, 200)
    })

    it('erases the copies that deliveries hold', async () => {
      const other = await startAgentApp({ workers: ['generation', 'delivery'] })
      try {
        const hook = await other.key.post('/webhooks', {
          name: 'w',
          url: 'http://127.0.0.1:9/',
          events: ['generations.completed'],
        })
        const { body } = await other.key.post(`/agents/${other.agentId}/generate?wait=true`, { prompt: 'copied text' })
        const delivery = await eventually(
          async () => (await other.key.get(`/webhook-deliveries?webhook_id=${hook.body.id}`)).body.data[0],
        )
        assert.equal(delivery.payload.data.output.content, 'echo: copied text')
        await other.key.delete(`/generations/${body.id}/content`)
        const { payload } = (await other.key.get(`/webhook-deliveries/${delivery.id}`)).body
        assert.equal(payload.data.output, null)
        assert.equal(payload.data.id, body.id)

        const old = (await other.key.post(`/agents/${other.agentId}/generate?wait=true`, { prompt: 'old text' })).body
        const sent = await eventually(async () => {
          const { data } = (await other.key.get(`/webhook-deliveries?webhook_id=${hook.body.id}`)).body
          return data.find((row: { payload: { data: { id: string } } }) => row.payload.data.id === old.id)
        })
        const inAYear = { now: () => new Date(Date.now() + 365 * 86_400_000) }
        assert.ok((await pruneEvents({ ...other.services, clock: inAYear })) > 0)
        await other.key.delete(`/generations/${old.id}/content`)
        const { payload: kept } = (await other.key.get(`/webhook-deliveries/${sent.id}`)).body
        assert.equal(kept.data.output, null)
        assert.equal(kept.data.id, old.id)
      } finally {
        await other.close()
      }
    })

    it('erases what the retention of events moves at the same time', async () => {
      const other = await startAgentApp({ workers: ['generation', 'delivery'] })
      try {
        const { pool, queues } = other.services
        const hook = { name: 'w', url: 'http://127.0.0.1:9/', events: ['generations.completed'] }
        const { id: webhook } = (await other.key.post('/webhooks', hook)).body
        const { body } = await other.key.post(`/agents/${other.agentId}/generate?wait=true`, { prompt: 'moved text' })
        const delivery = await eventually(
          async () => (await other.key.get(`/webhook-deliveries?webhook_id=${webhook}`)).body.data[0],
        )
        let erased: Promise<{ status: number }> | undefined
        await inTransaction(pool, async db => {
          const ids = await lockExpiredEvents(db, new Date(Date.now() + 86_400_000), 1000)
          erased = onSeparateConnection(() => other.key.delete(`/generations/${body.id}/content`))
          await eventually(async () => {
            const { rows } = await queues.db.executeSql(
              `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
            )
            return rows.length > 0
          })
          await deleteExpiredEvents(db, ids)
        })
        assert.equal((await erased)?.status, 200)
        const { payload } = (await other.key.get(`/webhook-deliveries/${delivery.id}`)).body
        assert.equal(payload.data.id, body.id)
        assert.equal(payload.data.output, null)
      } finally {
        await other.close()
      }
    })

    it('refuses to erase a running turn', async () => {
      await double.put('purging', { rules: [{ reply: { text: 'x', gate: 'purge-gate' } }] })
      const agent = await app.agent({ model: 'purging/m' })
      const { body } = await generate({ prompt: 'x' }, '', agent)
      assert.equal(
        (await app.key.delete(`/generations/${body.generation_id}/content`)).body.error.code,
        'GENERATION_ALREADY_IN_PROGRESS',
      )
      await open('purge-gate')
      await ended(body.generation_id)
    })
  })

  describe('a retry', () => {
    const retry = (id: string, query = '?wait=true', body?: object, key = app.key) =>
      key.post(`/generations/${id}/retry${query}`, body)
    /** A turn whose first call makes a tool call and whose second fails; the third answers. */
    const failed = async (lane: string) => {
      await double.put(lane, {
        rules: [
          {
            replies: [
              { tool_calls: [{ name: 'lookup', args: { of: 'x' } }] },
              { error: { status: 400, message: 'no' } },
              { text: 'at last' },
            ],
          },
        ],
      })
      const agent = await app.agent({ model: `${lane}/m` })
      const { status, body } = await generate(
        { prompt: 'ask', metadata: { a: 1 }, action_id: 'label' },
        '?wait=true',
        agent,
      )
      assert.equal(status, 502)
      return { agent, id: body.error.meta.generation_id as string, trace: body.error.meta.trace_id as string }
    }

    it('creates a generation that continues after the settled steps of the failed one', async () => {
      const { id, trace } = await failed('retry')
      const { status, body } = await retry(id)
      assert.deepEqual([status, body.output.content, body.trace_id], [200, 'at last', trace])
      assert.notEqual(body.id, id)
      const record = (await app.key.get(`/generations/${body.id}`)).body
      assert.deepEqual(
        [record.initiator_generation_id, record.action_id, record.metadata, record.step_count],
        [id, 'label', { a: 1 }, 1],
      )
      const asked = (await double.requests('retry')).at(-1)?.body.messages as { role: string }[]
      assert.deepEqual(
        asked.map(each => each.role),
        ['user', 'assistant', 'tool'],
      )
      assert.equal((await app.key.get(`/generations/${id}`)).body.status, 'failed')
      assert.equal((await app.key.get(`/generations?initiator_generation_id=${id}`)).body.total, 1)
    })

    it('requests a refused answer again, without showing it to the model', async () => {
      await double.put('retry-object', { rules: [{ replies: [{ text: 'no JSON' }, { text: '{}' }] }] })
      const agent = await app.agent({ model: 'retry-object/m', output_schema: { type: 'object' } })
      const first = await generate({ prompt: 'x' }, '?wait=true', agent)
      assert.equal(first.body.error.code, 'OUTPUT_SCHEMA_VALIDATION_FAILED')
      const again = await retry(first.body.error.meta.generation_id)
      assert.deepEqual(again.body.output.object, {})
      assert.equal((await double.requests('retry-object')).at(-1)?.body.messages.length, 1)
    })

    it('may run in the background or be streamed', async () => {
      const { id } = await failed('retry-modes')
      const stream = await readStream(await openStream(app, `/generations/${id}/retry`, { stream: true }))
      assert.equal(stream.at(-1)?.data.output.content, 'at last')
      const accepted = await retry(id, '')
      assert.equal(accepted.status, 202)
      assert.equal((await ended(accepted.body.generation_id)).status, 'completed')
    })

    it('is refused without content, of what did not fail, and without the right to run the agent', async () => {
      const { id, agent } = await failed('retry-refused')
      const limited = (resource: string) =>
        app.user(undefined, [
          {
            statement: [
              {
                effect: 'Allow',
                action: ['agents:CreateAgentGeneration'],
                resource: [`srn:${app.projectId}:${resource}`],
              },
            ],
          },
        ])
      assert.equal((await retry(id, '', undefined, await limited('agent:agent_other'))).status, 403)
      assert.equal((await retry(id, '', undefined, await limited(`agent:${agent}`))).status, 202)
      const { body: done } = await generate({ prompt: 'x' })
      assert.equal((await retry(done.id)).body.error.code, 'VALIDATION_FAILED')
      await app.key.delete(`/generations/${id}/content`)
      const erased = await retry(id)
      assert.deepEqual([erased.status, erased.body.error.code], [409, 'GENERATION_CONTENT_UNAVAILABLE'])
      assert.equal((await retry('gen_nope')).body.error.code, 'GENERATION_NOT_FOUND')
    })
  })

  describe('with trace_content_mode none', () => {
    const hidden = forSuite(startAgentApp)
    before(async () => {
      await hidden.admin.patch(`/projects/${hidden.projectId}`, { trace_content_mode: 'none' })
    })

    const dump = async () => {
      const tables = [
        'generations',
        'traces',
        'generation_steps',
        'generation_work',
        'generation_work_unlogged',
        'stream_frames',
        'events',
        'idempotency_keys',
      ] as const
      const parts = []
      for (const table of tables)
        parts.push(
          JSON.stringify(
            await hidden.pool.any(sql.unsafe`select to_jsonb(t) as row from ${sql.identifier([table])} t`),
          ),
        )
      return parts.join('\n')
    }

    it('answers the caller and stores neither prompt nor answer, not even while the turn runs', async () => {
      const control = client(hidden.double)
      await control.put('hidden', {
        rules: [{ reply: { text: 'an unheard answer', gate: 'hidden-gate', gate_after: 2, chunk_delay_ms: 5 } }],
      })
      const agent = await hidden.agent({ model: 'hidden/m' })
      const pending = openStream(hidden, `/agents/${agent}/generate`, {
        prompt: 'a whispered prompt',
        stream: true,
        metadata: { note: 'whispered' },
      }).then(readStream)
      await eventually(async () => (await control.requests('hidden')).length === 1)
      await new Promise(resolve => setTimeout(resolve, 150))
      assert.ok(!/whispered|unheard/.test(await dump()))
      await control.read('POST', '/control/gates/hidden-gate/open')
      const messages = await pending
      assert.equal(messages.at(-1)?.data.output.content, 'an unheard answer')
      assert.ok(!/whispered|unheard/.test(await dump()))
      const id = messages[0].data.generation_id
      const record = (await hidden.key.get(`/generations/${id}`)).body
      assert.equal(record.output, null)
      assert.equal(record.metadata, null)
      assert.equal(record.content_redacted_by_principal_id, 'zero_retention')
      assert.equal(record.step_count, 1)
      assert.ok(record.usage.output_tokens > 0)
      assert.equal((await hidden.key.patch(`/generations/${id}`, { metadata: {} })).status, 409)
      const again = () =>
        hidden.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'again' }, { 'idempotency-key': 'once' })
      assert.equal((await again()).body.output.content, 'an unheard answer')
      const repeated = await again()
      assert.equal(repeated.status, 202)
      assert.equal(repeated.headers.get('idempotency-replayed'), 'true')
      assert.ok(!/whispered|unheard/.test(await dump()))
    })

    it('keeps the code of a failure, and what the provider said of it only for who waits', async () => {
      await client(hidden.double).put('refusing', {
        rules: [{ reply: { error: { status: 400, message: 'a whispered refusal' } } }],
      })
      const agent = await hidden.agent({ model: 'refusing/m' })
      const failing = () => hidden.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
      const { status, body } = await failing()
      assert.deepEqual([status, body.error.code], [502, 'AI_PROVIDER_ERROR'])
      assert.match(body.error.message, /whispered/)
      const { generation_id, trace_id } = body.error.meta
      const error = { code: 'AI_PROVIDER_ERROR', message: 'AI_PROVIDER_ERROR' }
      const record = (await hidden.key.get(`/generations/${generation_id}`)).body
      assert.deepEqual([record.status, record.error], ['failed', error])
      assert.deepEqual((await hidden.key.get(`/traces/${trace_id}`)).body.error, error)
      const [event] = await storedEvents(hidden.pool, { name: 'generations.failed', resource: generation_id })
      assert.deepEqual(event.data.error, error)
      assert.ok(!/whispered/.test(await dump()))
    })

    it('of the project or of the agent, the stricter one counts', async () => {
      const redacted = async (agent: string) => {
        const { body } = await hidden.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'say' })
        const record = (await hidden.key.get(`/generations/${body.id}`)).body
        assert.equal(record.content_redacted_at === null, record.output !== null)
        return record.content_redacted_by_principal_id
      }
      const mode = (trace_content_mode: string) =>
        hidden.admin.patch(`/projects/${hidden.projectId}`, { trace_content_mode })
      await mode('full')
      const none = await hidden.agent({ trace_content_mode: 'none' })
      const full = await hidden.agent({ trace_content_mode: 'full' })
      assert.deepEqual([await redacted(none), await redacted(full)], ['zero_retention', null])
      await mode('none')
      assert.equal(await redacted(full), 'zero_retention')
    })
  })
})

async function startAgentAppWorker(app: AgentApp) {
  const { startProcess } = await import('../support/processes.ts')
  return startProcess('worker', app.databaseUrl, {}, ['generation'])
}
