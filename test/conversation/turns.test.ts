import { strict as assert } from 'node:assert'
import { setTimeout as sleep } from 'node:timers/promises'
import { openPool } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { openStream, readStream } from '../execution/streams.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

const ACTIONS = [
  'actors',
  'agents',
  'ai-providers',
  'conversations',
  'generations',
  'projects',
  'secrets',
  'sessions',
].map(module => `${module}:*`)

/** What a test does with conversations of an application. */
function kit(app: AgentApp) {
  const double = client(app.double)
  const key = app.key
  const self = {
    double,
    rows: async (text: string, values: unknown[] = []) =>
      (await app.pool.any(rawQuery(text, values))) as readonly any[],
    open: (gate: string) => double.read('POST', `/control/gates/${gate}/open`),
    waitingAt: (gate: string, count = 1) =>
      eventually(async () => ((await double.gate(gate))?.waiting ?? 0) >= count, { what: `${count} at ${gate}` }),
    conversation: async (texts: string[] = ['hi'], body: object = {}) => {
      const { id } = (await key.post('/conversations', body)).body
      for (const text of texts) await self.say(id, text)
      return id as string
    },
    say: (id: string, message: string, more: object = {}) =>
      key.post(`/conversations/${id}/messages`, { message, role: 'user', ...more }),
    ask: (id: string, body: object = { agent_id: app.agentId }, query = '') =>
      key.post(`/conversations/${id}/generate${query}`, body),
    messages: async (id: string) => (await key.get(`/conversations/${id}/messages?limit=100`)).body.data as any[],
    texts: async (id: string) => (await self.messages(id)).map(each => each.content),
    ended: (id: string, within = 15_000) =>
      eventually(
        async () => {
          const { body } = await key.get(`/generations/${id}`)
          return body.status === 'completed' || body.status === 'failed' ? body : null
        },
        { within, what: `end of ${id}` },
      ),
    /** An agent whose model answers by a separate script. */
    scripted: async (lane: string, rules: object[], fields: object = {}) => {
      await double.put(lane, { rules } as never)
      return app.agent({ model: `${lane}/m`, ...fields })
    },
    /** What the model was sent, call by call. */
    prompts: async (lane: string) =>
      (await double.requests(lane)).map(request =>
        request.body.messages.map((each: any) => [
          each.role,
          typeof each.content === 'string' ? each.content : each.content.map((part: any) => part.text).join(''),
        ]),
      ),
    openTurns: () => self.rows(`select * from conversation_turns where state in ('queued', 'running')`),
    /** Texts that no message uses. */
    orphans: () =>
      self.rows(`select d.id from documents d
        where d.kind = 'message' and not exists (select 1 from conversation_messages m where m.document_id = d.id)`),
  }
  return self
}

describe('turns of a conversation', function () {
  this.timeout(60_000)
  const app = forSuite(() =>
    startAgentApp({
      actions: ACTIONS,
      env: { CONVERSATION_SWEEP_SECONDS: '1', PROVIDER_MAX_RETRIES: '0', SYNC_WAIT_SECONDS: '5' },
    }),
  )
  let t: ReturnType<typeof kit>

  before(async () => {
    t = kit(app)
  })

  describe('what refuses a request', () => {
    it('is answered before anything is written', async () => {
      const id = await t.conversation()
      const other = await app.agent()
      const unlinked = (await app.key.post('/actors', { name: 'a' })).body.id
      const linked = (await app.key.post('/actors', { name: 'b', agent_id: other })).body.id
      const shaped = await app.agent({ output_schema: { type: 'object', properties: {} } })
      const refused = async (body: object, query = '') => {
        const { status, body: answer } = await t.ask(id, body, query)
        return `${status} ${answer.error?.code}`
      }
      for (const query of ['', '?wait=true']) {
        assert.equal(await refused({}, query), '400 VALIDATION_FAILED')
        assert.equal(await refused({ agent_id: 'agent_00000000000000000000000000' }, query), '400 AGENT_NOT_FOUND')
        assert.equal(await refused({ actor_id: 'actor_00000000000000000000000000' }, query), '400 ACTOR_NOT_FOUND')
        assert.equal(await refused({ actor_id: unlinked }, query), '400 VALIDATION_FAILED')
        assert.equal(await refused({ actor_id: linked, agent_id: app.agentId }, query), '400 VALIDATION_FAILED')
      }
      const agent_id = app.agentId
      assert.equal(await refused({ agent_id }, '?wait=maybe'), '400 VALIDATION_FAILED')
      assert.equal(await refused({ agent_id, stream: true }, '?wait=false'), '400 VALIDATION_FAILED')
      assert.equal(await refused({ agent_id, nonsense: 1 }), '400 VALIDATION_FAILED')
      assert.equal(await refused({ agent_id: shaped, stream: true }), '400 OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
      assert.equal(await refused({ agent_id, tool_context: { 'a b': 'c' } }), '400 INVALID_TOOL_CONTEXT_KEY')
      const empty = await t.conversation([])
      assert.equal((await t.ask(empty)).status, 400)
      assert.equal((await app.key.get(`/generations?conversation_id=${id}`)).body.total, 0)
    })

    it('a paused project takes no turns', async () => {
      const { id: projectId, key } = await app.project()
      const provider = await key.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${app.double.url}/v1`,
      })
      const agent_id = (await key.post('/agents', { ai_provider_id: provider.body.id })).body.id
      const { id } = (await key.post('/conversations', {})).body
      await key.post(`/conversations/${id}/messages`, { message: 'x', role: 'user' })
      assert.equal((await app.admin.post(`/projects/${projectId}/pause`, {})).status, 200)
      const refused = await key.post(`/conversations/${id}/generate`, { agent_id })
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'PROJECT_PAUSED'])
    })
  })

  describe('the answer', () => {
    it('is the ids immediately, and the reply is the next message', async () => {
      const id = await t.conversation(['hello'])
      const accepted = await t.ask(id)
      assert.equal(accepted.status, 202)
      const { generation_id, trace_id, ...rest } = accepted.body
      assert.deepEqual(rest, { status: 'accepted', conversation_id: id })
      const generation = await t.ended(generation_id)
      assert.deepEqual(
        [generation.status, generation.conversation_id, generation.trace_id],
        ['completed', id, trace_id],
      )
      const [, reply] = await t.messages(id)
      assert.deepEqual(
        { ...reply, document_id: null, created_at: null },
        {
          document_id: null,
          conversation_id: id,
          role: 'assistant',
          actor_id: null,
          agent_id: app.agentId,
          generation_id,
          position: 1,
          content: 'echo: hello',
          metadata: null,
          refused: false,
          annotations: null,
          origin: 'agent',
          parts: null,
          created_at: null,
        },
      )
      const told = await storedEvents(app.pool, { resource: reply.document_id })
      assert.deepEqual(
        told.map(event => event.name),
        ['conversation_messages.created', 'conversation_messages.generated'],
      )
      assert.deepEqual(told[1].data, { ...reply, trace_id })
      assert.equal((await app.key.get(`/conversations/${id}`)).body.message_count, 2)
    })

    it('is the result for a caller that waits', async () => {
      const id = await t.conversation(['hello'])
      const result = await t.ask(id, { agent_id: app.agentId }, '?wait=true')
      assert.equal(result.status, 200)
      const [, reply] = await t.messages(id)
      const { generation_id, trace_id } = result.body
      assert.deepEqual(result.body, {
        status: 'completed',
        content: 'echo: hello',
        message: { ...reply, model: 'double-1' },
        model: 'double-1',
        generation_id,
        trace_id,
      })
      assert.equal(reply.generation_id, generation_id)
    })

    it('is a stream whose last event comes after the reply is stored', async () => {
      const id = await t.conversation(['one two three'])
      const messages = []
      const stream = await openStream(app, `/conversations/${id}/generate`, { agent_id: app.agentId, stream: true })
      for await (const message of stream.messages) {
        messages.push(message)
        if (message.event === 'completed') assert.equal((await t.messages(id)).length, 2)
      }
      assert.equal(messages[0].event, 'started')
      assert.deepEqual(Object.keys(messages[0].data).sort(), ['generation_id', 'trace_id'])
      const last = messages[messages.length - 1]
      assert.equal(last.event, 'completed')
      const text = messages
        .filter(message => message.event === 'delta')
        .map(message => message.data.choices[0].delta.content)
        .join('')
      assert.equal(text, last.data.content)
      assert.equal(last.data.message.content, 'echo: one two three')
      // Events of protocol mounts have numbers too.
      const ids = messages.map(message => Number(message.id))
      assert.equal(ids[0], 1)
      assert.ok(ids.every((each, index) => index === 0 || each > ids[index - 1]))
    })

    it('is the failure of the turn, of which no message is stored', async () => {
      const agent_id = await t.scripted('broken', [{ reply: { error: { status: 500, message: 'no' } } }])
      const id = await t.conversation()
      const failed = await t.ask(id, { agent_id }, '?wait=true')
      assert.deepEqual([failed.status, failed.body.error.code], [502, 'AI_PROVIDER_ERROR'])
      const { generation_id, trace_id } = failed.body.error.meta
      const generation = (await app.key.get(`/generations/${generation_id}`)).body
      assert.deepEqual([generation.status, generation.error.code], ['failed', 'AI_PROVIDER_ERROR'])
      assert.equal(generation.trace_id, trace_id)
      assert.equal((await t.messages(id)).length, 1)
      const stream = await openStream(app, `/conversations/${id}/generate`, { agent_id, stream: true })
      const last = (await readStream(stream)).at(-1)
      assert.deepEqual([last?.event, last?.data.code], ['error', 'AI_PROVIDER_ERROR'])
      assert.equal((await t.ask(id, { agent_id: app.agentId }, '?wait=true')).status, 200)
    })

    it('is the ids when the wait times out; the turn continues', async () => {
      const agent_id = await t.scripted('slow', [{ reply: { text: 'late', gate: 'slow' } }])
      const id = await t.conversation()
      const answer = await t.ask(id, { agent_id }, '?wait=true')
      assert.deepEqual([answer.status, answer.body.status], [202, 'accepted'])
      await t.open('slow')
      await t.ended(answer.body.generation_id)
      assert.deepEqual(await t.texts(id), ['hi', 'late'])
    })

    it('does not need its caller: the reply is stored when the client has gone', async () => {
      const agent_id = await t.scripted('left', [{ reply: { text: 'one two', gate: 'left' } }])
      const id = await t.conversation()
      const stream = await openStream(app, `/conversations/${id}/generate`, { agent_id, stream: true })
      await t.waitingAt('left')
      stream.close()
      await t.open('left')
      await eventually(async () => (await t.texts(id)).at(-1) === 'one two')
    })
  })

  describe('what the model sees', () => {
    it('names authors and metadata, also of replies that others gave', async () => {
      const agent_id = await t.scripted('seen', [{ reply: { text: 'ok' } }], { instructions: 'Help.' })
      const ann = (await app.key.post('/actors', { name: 'Ann', instructions: 'Ann is a doctor.' })).body.id
      const id = await t.conversation([], { actor_id: ann })
      await t.say(id, 'plain')
      await t.say(id, 'signed', { actor_id: ann })
      await t.say(id, 'before', { role: 'assistant', actor_id: ann, metadata: { a: 1 } })
      await t.say(id, 'labelled', { metadata: { lang: 'en', more: { deep: [1] } } })
      await t.say(id, 'both', { actor_id: ann, metadata: { lang: 'en' } })
      assert.equal((await t.ask(id, { agent_id }, '?wait=true')).status, 200)
      assert.deepEqual(await t.prompts('seen'), [
        [
          ['system', 'Help.\n\nAnn is a doctor.'],
          ['user', 'plain'],
          ['user', '[Ann]: signed'],
          ['user', '[Ann] [a: 1]: before'],
          ['user', '[lang: en, more: {"deep":[1]}]: labelled'],
          ['user', '[Ann] [lang: en]: both'],
        ],
      ])
    })

    it("contains the speaker, whose instructions precede the owner's", async () => {
      const agent_id = await t.scripted('speaks', [{ reply: { text: 'Arr' } }], { instructions: 'Help.' })
      const pirate = (await app.key.post('/actors', { name: 'Hook', instructions: 'A pirate.', agent_id })).body.id
      const owner = (await app.key.post('/actors', { name: 'Ann', instructions: 'A doctor.' })).body.id
      const id = await t.conversation(['hi'], { actor_id: owner })
      const result = await t.ask(id, { actor_id: pirate }, '?wait=true')
      assert.deepEqual([result.body.message.actor_id, result.body.message.agent_id], [pirate, agent_id])
      const own = await t.conversation(['hi'], { actor_id: pirate })
      await t.ask(own, { actor_id: pirate, agent_id }, '?wait=true')
      const systems = (await t.prompts('speaks')).map(prompt => prompt[0][1].split('\n\n'))
      assert.deepEqual(systems[0].slice(0, 3), ['Help.', 'A pirate.', 'A doctor.'])
      assert.match(systems[0][3], /Hook/)
      assert.equal(systems[0].length, 4)
      assert.deepEqual(systems[1].slice(0, 2), ['Help.', 'A pirate.'])
      assert.equal(systems[1].length, 3)
      assert.equal((await app.key.get(`/generations?actor_id=${pirate}`)).body.total, 0)
    })

    it('is the newest messages when the agent bounds them', async () => {
      const agent_id = await t.scripted('bounded', [{ reply: { text: 'ok' } }], { max_context_messages: 2 })
      const id = await t.conversation(['a', 'b', 'c'])
      await t.ask(id, { agent_id }, '?wait=true')
      assert.deepEqual(await t.prompts('bounded'), [
        [
          ['user', 'b'],
          ['user', 'c'],
        ],
      ])
    })

    it('is the conversation when the turn starts, not when it was requested', async () => {
      const agent_id = await t.scripted('later', [
        { when: { call: 1 }, reply: { text: 'first', gate: 'later' } },
        { reply: { text: 'second' } },
      ])
      const id = await t.conversation(['a'])
      const first = (await t.ask(id, { agent_id })).body
      await t.waitingAt('later')
      const second = (await t.ask(id, { agent_id })).body
      await t.say(id, 'b')
      await t.open('later')
      await t.ended(first.generation_id)
      await t.ended(second.generation_id)
      assert.deepEqual((await t.prompts('later'))[1], [
        ['user', 'a'],
        ['assistant', 'first'],
        ['user', 'b'],
      ])
      assert.deepEqual(await t.texts(id), ['a', 'first', 'b', 'second'])
    })
  })

  describe('the place of the reply', () => {
    it('is immediately after the last message the turn has seen, also after inserts', async () => {
      const agent_id = await t.scripted('place', [{ reply: { text: 'reply', gate: 'place' } }])
      const id = await t.conversation(['a', 'b', 'c'])
      const { generation_id } = (await t.ask(id, { agent_id })).body
      await t.waitingAt('place')
      await t.say(id, 'd')
      await t.say(id, 'top', { position: 0 })
      await t.say(id, 'inside', { position: 3 })
      await t.say(id, 'right behind', { position: 5 })
      const [, , , , last] = await t.messages(id)
      assert.equal(last.content, 'c')
      await app.key.delete(`/conversations/${id}/messages/${last.document_id}`)
      await t.open('place')
      await t.ended(generation_id)
      assert.deepEqual(await t.texts(id), ['top', 'a', 'b', 'inside', 'reply', 'right behind', 'd'])
      assert.deepEqual(
        (await t.messages(id)).map(each => each.position).toSorted((a, b) => a - b),
        (await t.messages(id)).map(each => each.position),
      )
    })
  })

  describe('the mailbox', () => {
    it('runs two concurrent requests one after the other, both answered', async () => {
      const id = await t.conversation(['hello'])
      const agent_id = await t.scripted('pair', [{ reply: { text: 'seen {{count}}', delay_ms: 50 } }])
      const both = await Promise.all([1, 2].map(() => t.ask(id, { agent_id }, '?wait=true')))
      assert.deepEqual(
        both.map(each => each.status),
        [200, 200],
      )
      assert.deepEqual(await t.texts(id), ['hello', 'seen 1', 'seen 2'])
    })

    it('keeps the order of acceptance, and conversations do not wait for each other', async () => {
      const agent_id = await t.scripted('order', [
        { when: { user: 'stuck' }, reply: { text: 'free', gate: 'order' } },
        { reply: { text: '{{count}}' } },
      ])
      const stuck = await t.conversation(['stuck'])
      const waiting = (await t.ask(stuck, { agent_id })).body.generation_id
      await t.waitingAt('order')
      const id = await t.conversation(['a'])
      const asked: string[] = []
      for (let index = 0; index < 10; index++) asked.push((await t.ask(id, { agent_id })).body.generation_id)
      await Promise.all(asked.map(each => t.ended(each)))
      const replies = (await t.messages(id)).slice(1)
      assert.deepEqual(
        replies.map(each => each.generation_id),
        asked,
      )
      assert.deepEqual(
        replies.map(each => each.content),
        Array.from({ length: 10 }, (_, index) => String(index + 1)),
      )
      await t.open('order')
      await t.ended(waiting)
    })

    it('continues after a failed turn', async () => {
      const agent_id = await t.scripted('once-broken', [
        { when: { call: 1 }, reply: { error: { status: 500 } } },
        { reply: { text: 'ok' } },
      ])
      const id = await t.conversation()
      const [first, second] = [(await t.ask(id, { agent_id })).body, (await t.ask(id, { agent_id })).body]
      assert.equal((await t.ended(first.generation_id)).status, 'failed')
      assert.equal((await t.ended(second.generation_id)).status, 'completed')
      assert.deepEqual(await t.texts(id), ['hi', 'ok'])
      const states = await t.rows('select state from conversation_turns where conversation_id = $1 order by seq', [id])
      assert.deepEqual(
        states.map(each => each.state),
        ['failed', 'done'],
      )
    })

    it('removes a turn that is cancelled while queued; later turns run', async () => {
      const agent = await t.scripted('leave', [{ reply: { text: 'said', gate: 'leave-gate' } }])
      const id = await t.conversation()
      const [first, second, third] = [
        (await t.ask(id, { agent_id: agent })).body,
        (await t.ask(id, { agent_id: agent })).body,
        (await t.ask(id, { agent_id: agent })).body,
      ]
      await t.waitingAt('leave-gate')
      const cancelled = await app.key.post(`/generations/${second.generation_id}/cancel`)
      assert.deepEqual([cancelled.body.status, cancelled.body.stop_reason], ['failed', 'cancelled'])
      assert.equal((await t.openTurns()).length, 2)
      await t.open('leave-gate')
      for (const turn of [first, third]) assert.equal((await t.ended(turn.generation_id)).status, 'completed')
      assert.deepEqual(await t.texts(id), ['hi', 'said', 'said'])
    })

    it('takes a failed turn that is run again, whose reply is stored by the same speaker', async () => {
      const agent = await t.scripted('again', [{ replies: [{ error: { status: 400 } }, { text: 'now' }] }])
      const actor = (await app.key.post('/actors', { name: 'Ann' })).body.id
      const id = await t.conversation()
      const first = await t.ask(id, { agent_id: agent, actor_id: actor }, '?wait=true')
      const { generation_id } = first.body.error.meta
      await t.say(id, 'more')
      const { status, body } = await app.key.post(`/generations/${generation_id}/retry?wait=true`)
      assert.deepEqual([status, body.content, body.message.actor_id], [200, 'now', actor])
      assert.deepEqual(await t.texts(id), ['hi', 'more', 'now'])
      const record = (await app.key.get(`/generations/${body.generation_id}`)).body
      assert.deepEqual([record.initiator_generation_id, record.conversation_id], [generation_id, id])
      assert.deepEqual(await t.openTurns(), [])
    })

    it('one delayed turn answers all messages of its delay, once its time has come', async () => {
      const agent_id = await t.scripted('delayed', [{ reply: { text: '{{count}}' } }])
      const { id: session, conversation_id } = (
        await app.key.post('/sessions', { agent_id, auto_generate: true, message_delay_seconds: 1 })
      ).body
      const asked = Date.now()
      const delayed = (await app.key.post(`/sessions/${session}/messages`, { message: 'a' })).body.generation_id
      const again = (await app.key.post(`/sessions/${session}/messages`, { message: 'b' })).body.generation_id
      assert.equal(again, delayed)
      await t.ended(delayed)
      assert.ok(Date.now() - asked >= 1000)
      assert.deepEqual(await t.texts(conversation_id), ['a', 'b', '2'])
    })

    it('is not blocked by a turn that no worker can get past', async () => {
      const id = await t.conversation(['x'])
      await t.rows(`create function refuse() returns trigger language plpgsql as $$ begin raise 'broken'; end $$`)
      await t.rows(`create trigger refuse before update on conversation_turns for each row
        when (new.state = 'running' and new.conversation_id = '${id}' and new.seq = 1) execute function refuse()`)
      const first = (await t.ask(id)).body
      const second = (await t.ask(id)).body
      try {
        // The first try fails; the rest of the tries is skipped, and the last one is let through immediately.
        await eventually(
          async () =>
            (
              await t.rows(
                `update pgboss.job_common set retry_count = retry_limit, start_after = now()
                 where name = 'conversation.process' and state = 'retry' and data ->> 'conversation_id' = $1 returning id`,
                [id],
              )
            ).length > 0,
          { what: 'a try that failed' },
        )
        const failed = await t.ended(first.generation_id)
        assert.deepEqual([failed.error.code, failed.error.meta], ['GENERATION_FAILED', { reason: 'handler_failed' }])
      } finally {
        await t.rows('drop trigger refuse on conversation_turns')
      }
      assert.equal((await t.ended(second.generation_id)).status, 'completed')
      assert.deepEqual(await t.texts(id), ['x', 'echo: x'])
    })

    it('a turn whose principal lost the permission fails when it starts, without a call of the model', async () => {
      const agent_id = await t.scripted('revoked', [
        { when: { user: 'hold' }, reply: { text: 'held', gate: 'revoked' } },
        { reply: { text: 'never' } },
      ])
      const id = await t.conversation(['hold'])
      const first = (await t.ask(id, { agent_id })).body
      await t.waitingAt('revoked')
      const user = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['conversations:*'], resource: ['*'] }] },
      ])
      const second = await user.post(`/conversations/${id}/generate`, { agent_id })
      assert.equal(second.status, 202, JSON.stringify(second.body))
      await app.admin.put(`/users/${user.id}/policies`, { policy_ids: [] })
      await t.open('revoked')
      await t.ended(first.generation_id)
      const generation = await t.ended(second.body.generation_id)
      assert.deepEqual([generation.status, generation.error.code, generation.usage], ['failed', 'FORBIDDEN', null])
      assert.equal((await t.double.requests('revoked')).length, 1)
    })

    it('a turn of a paused project waits and runs when the project is resumed', async () => {
      const { id: projectId, key } = await app.project()
      const provider = await key.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${app.double.url}/v1`,
      })
      await t.double.put('paused', { rules: [{ when: { call: 1 }, reply: { text: 'a', gate: 'paused' } }] })
      const agent_id = (await key.post('/agents', { ai_provider_id: provider.body.id, model: 'paused/m' })).body.id
      const { id } = (await key.post('/conversations', {})).body
      await key.post(`/conversations/${id}/messages`, { message: 'x', role: 'user' })
      await key.post(`/conversations/${id}/generate`, { agent_id })
      await t.waitingAt('paused')
      const second = (await key.post(`/conversations/${id}/generate`, { agent_id })).body.generation_id
      await app.admin.post(`/projects/${projectId}/pause`, {})
      await t.open('paused')
      const replies = async () => (await key.get(`/conversations/${id}/messages`)).body.total - 1
      await eventually(async () => (await replies()) === 1, { what: 'the running turn ending' })
      await sleep(1500)
      assert.equal((await key.get(`/generations/${second}`)).body.status, 'pending')
      assert.equal((await app.admin.post(`/projects/${projectId}/resume`, {})).status, 200)
      await eventually(async () => (await replies()) === 2, { what: 'the waiting turn running' })
    })
  })

  describe('a deleted conversation', () => {
    it('fails open turns with RESOURCE_NOT_FOUND, and retains the generations without text', async () => {
      const agent_id = await t.scripted('deleted', [{ reply: { text: 'never', gate: 'deleted' } }])
      const id = await t.conversation(['a', 'b'])
      const waited = t.ask(id, { agent_id }, '?wait=true')
      await t.waitingAt('deleted')
      const queued = (await t.ask(id, { agent_id })).body.generation_id
      assert.equal((await app.key.delete(`/conversations/${id}`)).status, 204)
      const answer = await waited
      assert.deepEqual([answer.status, answer.body.error.code], [404, 'RESOURCE_NOT_FOUND'])
      for (const generation of [queued, answer.body.error.meta.generation_id]) {
        const record = await t.ended(generation)
        assert.deepEqual(
          [record.status, record.error.code, record.conversation_id],
          ['failed', 'RESOURCE_NOT_FOUND', id],
        )
      }
      await t.open('deleted')
      assert.deepEqual(await t.orphans(), [])
    })

    it('leaves no text however its delete races with a reply', async () => {
      await Promise.all(
        Array.from({ length: 20 }, async (_, round) => {
          const id = await t.conversation(['a'])
          const waited = t.ask(id, { agent_id: app.agentId }, '?wait=true')
          await sleep(round * 3)
          const deleted = await app.key.delete(`/conversations/${id}`)
          assert.equal(deleted.status, 204)
          const { status } = await waited
          assert.ok(status === 200 || status === 404, String(status))
        }),
      )
      assert.deepEqual(await t.orphans(), [])
      assert.deepEqual(await t.openTurns(), [])
    })

    it('is deleted with its project, with all references', async () => {
      const { id: projectId, key } = await app.project()
      const provider = await key.post('/ai-providers', {
        name: 'p',
        provider: 'custom',
        default_model: 'double-1',
        base_url: `${app.double.url}/v1`,
      })
      const agent_id = (await key.post('/agents', { ai_provider_id: provider.body.id })).body.id
      const actor_id = (await key.post('/actors', { name: 'a', agent_id })).body.id
      const { id } = (await key.post('/conversations', { actor_id })).body
      await key.post(`/conversations/${id}/messages`, { message: 'x', role: 'user', actor_id })
      assert.equal((await key.post(`/conversations/${id}/generate?wait=true`, { actor_id })).status, 200)
      const refused = await app.admin.delete(`/projects/${projectId}`)
      assert.deepEqual([refused.status, refused.body.error.code], [409, 'PROJECT_HAS_DEPENDENTS'])
      const deleted = await app.admin.delete(`/projects/${projectId}?force=true`)
      assert.equal(deleted.status, 204, JSON.stringify(deleted.body))
      for (const table of ['actors', 'conversations', 'documents', 'files'])
        assert.deepEqual(await t.rows(`select 1 from ${table} where project_id = $1`, [projectId]), [])
      assert.deepEqual(await t.rows('select 1 from conversation_messages where conversation_id = $1', [id]), [])
    })

    it('an agent deleted by force takes its waiting turns along and leaves the conversation usable', async () => {
      const agent_id = await t.scripted('forced', [{ reply: { text: 'never', gate: 'forced' } }])
      const id = await t.conversation()
      await t.ask(id, { agent_id })
      await t.waitingAt('forced')
      await t.ask(id, { agent_id })
      assert.equal((await app.key.delete(`/agents/${agent_id}`)).status, 409)
      assert.equal((await app.key.delete(`/agents/${agent_id}?force=true`)).status, 204)
      await t.open('forced')
      assert.equal((await t.ask(id, { agent_id: app.agentId }, '?wait=true')).status, 200)
    })
  })
})

/** In addition to six of the queues, a connection that listens and another that notifies. */
const THREE_CONNECTIONS = { DATABASE_POOL_MAX: '11' }

describe('turns of a conversation over processes', function () {
  this.timeout(60_000)
  let app: AgentApp
  let t: ReturnType<typeof kit>
  const processes: TestProcess[] = []
  const FAST = {
    GENERATION_LEASE_SECONDS: '2',
    CONVERSATION_SWEEP_SECONDS: '1',
    GENERATION_SWEEP_SECONDS: '1',
    PROVIDER_MAX_RETRIES: '0',
  }
  const worker = async (env: Record<string, string> = {}) => {
    const made = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, ['generation'])
    processes.push(made)
    return made
  }
  const steady = steadyWorkers()
  /** A worker that comes to no harm. */
  const steadyWorker = (env: Record<string, string> = {}) =>
    steady.start(app.databaseUrl, { ...FAST, ...env }, ['generation'])

  beforeEach(async () => {
    app = await startAgentApp({ workers: [], actions: ACTIONS })
    t = kit(app)
  })
  afterEach(async () => {
    await steady.stop()
    await Promise.all(
      processes
        .splice(0)
        .map(async each => (each.child.exitCode === null && each.child.signalCode === null ? each.kill() : null)),
    )
    await app.close()
  })

  it('turns that start together do not wait for each other to leave the pool', async () => {
    // Each holds one connection of the two that a project may have: a second one would never come.
    const small = await startAgentApp({ workers: [], actions: ACTIONS, env: THREE_CONNECTIONS })
    try {
      const secret = await small.key.post('/secrets', { name: 'key', value: 'vendor-key' })
      const rounds = Array.from({ length: 6 }, async () => {
        const { id } = (await small.key.post('/conversations', {})).body
        await small.key.post(`/conversations/${id}/messages`, { message: 'hi', role: 'user' })
        return id as string
      })
      const ids = await Promise.all(rounds)
      // No process has opened its secrets since.
      const linked = await small.key.patch(`/ai-providers/${small.providerId}`, { secret_id: secret.body.id })
      assert.equal(linked.status, 200, JSON.stringify(linked.body))
      const answers = await Promise.all(
        ids.map(id => small.key.post(`/conversations/${id}/generate?wait=false`, { agent_id: small.agentId })),
      )
      assert.deepEqual(
        answers.map(({ status }) => status),
        ids.map(() => 202),
      )
    } finally {
      await small.close()
    }
  })

  it('turns that start together do not wait for a provider that another request opens', async () => {
    const small = await startAgentApp({ workers: [], actions: ACTIONS, env: THREE_CONNECTIONS })
    const beside = await openPool({ databaseUrl: small.databaseUrlOf(small.projectId), connections: 2 })
    const waiting = (count: number) =>
      eventually(async () => {
        const found = await beside.any(
          rawQuery(`select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`),
        )
        return found.length >= count
      })
    try {
      const secret_id = (await small.key.post('/secrets', { name: 'key', value: 'vendor-key' })).body.id
      const ids = await Promise.all(
        Array.from({ length: 6 }, async () => {
          const { id } = (await small.key.post('/conversations', {})).body
          await small.key.post(`/conversations/${id}/messages`, { message: 'hi', role: 'user' })
          return id as string
        }),
      )
      // Two reads of secrets: while requests for turns take the connections, the second one has to wait.
      const headers = { 'X-Key': `{{secret:${secret_id}}}` }
      const linked = await small.key.patch(`/ai-providers/${small.providerId}`, { secret_id, config: { headers } })
      assert.equal(linked.status, 200, JSON.stringify(linked.body))
      const ask = (id: string) =>
        small.key.post(`/conversations/${id}/generate?wait=false`, { agent_id: small.agentId })
      const asked = await beside.transaction(async tx => {
        await tx.query(rawQuery('select 1 from conversations for update'))
        const first = ask(ids[0])
        await waiting(1)
        const opener = small.key.post(`/agents/${small.agentId}/generate?wait=false`, { prompt: 'hi' })
        const others = ids.slice(1).map(ask)
        await waiting(2)
        return [first, opener, ...others]
      })
      assert.deepEqual(
        (await Promise.all(asked)).map(({ status }) => status),
        asked.map(() => 202),
      )
    } finally {
      await small.close()
      await beside.end()
    }
  })

  it('two workers run 20 conversations of 5 turns each in order and once', async () => {
    const agent_id = await t.scripted('many', [{ reply: { text: '{{count}}' } }])
    await Promise.all([steadyWorker(), steadyWorker()])
    const conversations = await Promise.all(Array.from({ length: 20 }, (_, n) => t.conversation([`c${n}`])))
    const asked = await Promise.all(
      conversations.map(id => Promise.all(Array.from({ length: 5 }, () => t.ask(id, { agent_id })))),
    )
    assert.ok(asked.flat().every(answer => answer.status === 202))
    await eventually(async () => (await app.key.get('/generations?status=completed')).body.total === 100, {
      within: 30_000,
    })
    for (const id of conversations) assert.deepEqual((await t.texts(id)).slice(1), ['1', '2', '3', '4', '5'])
    assert.equal((await t.double.requests('many')).length, 100)
  })

  it('another worker completes the turn of a killed one and the later turns', async () => {
    const agent_id = await t.scripted('killed', [
      { when: { call: 1 }, reply: { text: 'lost', gate: 'killed' } },
      { reply: { text: 'found {{count}}' } },
    ])
    const id = await t.conversation()
    const first = await worker()
    const turns = [(await t.ask(id, { agent_id })).body, (await t.ask(id, { agent_id })).body]
    await t.waitingAt('killed')
    await t.say(id, 'meanwhile')
    await first.kill()
    await steadyWorker()
    for (const turn of turns) await t.ended(turn.generation_id, 30_000)
    assert.deepEqual(await t.texts(id), ['hi', 'found 1', 'meanwhile', 'found 3'])
  })

  for (const point of ['after_claim', 'before_settle', 'after_settle']) {
    it(`a worker killed ${point.replace('_', ' ')} stores the reply once`, async () => {
      const id = await t.conversation(['x'])
      const { generation_id } = (await t.ask(id)).body
      await (await worker({ FAULT_POINTS: `${point}=kill` })).exited
      await steadyWorker()
      await t.ended(generation_id, 30_000)
      await eventually(async () => (await t.openTurns()).length === 0)
      assert.deepEqual(await t.texts(id), ['x', 'echo: x'])
      assert.equal((await t.ask(id)).status, 202)
    })
  }

  it('a stopping worker completes its turn and leaves the next to another', async () => {
    const agent_id = await t.scripted('stopped', [
      { when: { call: 1 }, reply: { text: 'one', gate: 'stopped' } },
      { reply: { text: 'two' } },
    ])
    const id = await t.conversation()
    const first = await worker()
    const turns = [(await t.ask(id, { agent_id })).body, (await t.ask(id, { agent_id })).body]
    await t.waitingAt('stopped')
    first.child.kill('SIGTERM')
    await eventually(() => first.output.some(line => line.includes('"msg":"shutdown started"')))
    await t.open('stopped')
    await first.exited
    assert.deepEqual(await t.texts(id), ['hi', 'one'])
    await steadyWorker()
    for (const turn of turns) await t.ended(turn.generation_id)
    assert.deepEqual(await t.texts(id), ['hi', 'one', 'two'])
  })

  it('a turn whose wake-up is lost is found by the sweep', async () => {
    const id = await t.conversation()
    const { generation_id } = (await t.ask(id)).body
    await t.rows(`delete from pgboss.job_common where name = 'conversation.process'`)
    await sleep(100)
    await steadyWorker()
    await t.ended(generation_id)
    assert.deepEqual(await t.texts(id), ['hi', 'echo: hi'])
  })
})
