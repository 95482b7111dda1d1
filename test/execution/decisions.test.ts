import assert from 'node:assert/strict'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import {
  DECIDER_ACTIONS,
  decided,
  eventsOf,
  madeDecider,
  QUESTIONS,
  settled,
  TOOL_ANSWERS,
  toolAt,
} from './decider-support.ts'
import { startAgentApp } from './fixtures.ts'
import { json, made, refused, refusedAt, startTarget } from './tool-target.ts'

const PIXEL =
  'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

describe('decisions', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({
      workers: ['generation', 'delivery'],
      actions: DECIDER_ACTIONS,
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1' },
    }),
  )
  const double = forSuite(() => client(app.double))
  let tool: string
  let decider: string
  before(async () => {
    tool = await toolAt(app.key, target.url)
    decider = (await madeDecider(app.key, { tool_id: tool })).id
  })
  beforeEach(() => {
    target.answer = json(TOOL_ANSWERS)
  })

  const ask = (body: object, id = decider) => app.key.post(`/deciders/${id}/decisions`, body)
  /** An agent that answers the questions so, and a decider that calls it. */
  const answering = async (lane: string, reply: object, fields: object = {}) => {
    await double.put(lane, { rules: [{ reply }] })
    const agent_id = await app.agent({ model: `${lane}/m`, ...fields })
    return { agent_id, decider: (await madeDecider(app.key, { agent_id })).id as string }
  }
  const GOOD = JSON.stringify({ urgent: true, team: 'support', anger: 2 })

  describe('of an agent', () => {
    it('are its answers to all questions, by a turn of the version that is served', async () => {
      const { agent_id, decider: id } = await answering('good', { text: GOOD })
      const decision = await decided(app.key, id, 'Where is my money?', { metadata: { mail: 7 } })
      assert.match(decision.id, /^dec_/)
      assert.deepEqual(
        [decision.status, decision.error, decision.decider_id, decision.decider_version, decision.questions],
        ['completed', null, id, 1, null],
      )
      assert.deepEqual(decision.answers, [
        { type: 'predicate', name: 'urgent', probability: 1 },
        { type: 'choice', name: 'team', choice: 'support' },
        { type: 'score', name: 'anger', score: 2 },
      ])
      assert.deepEqual(decision.answers_by_name.team, decision.answers[1])
      assert.deepEqual([decision.agent_id, decision.tool_id, decision.metadata], [agent_id, null, { mail: 7 }])
      const turn = (await app.key.get(`/generations/${decision.generation_id}`)).body
      assert.deepEqual([turn.source, turn.agent_version, turn.status], ['decider', 1, 'completed'])
      const [event] = await eventsOf(app.key, decision.id)
      assert.deepEqual([event.event, event.data], ['decisions.completed', decision])
    })

    it('have a score whose number the model writes with a fraction of zero', async () => {
      const { decider: id } = await answering('decimal', { text: '{"urgent":true,"team":"support","anger":2.0}' })
      const { answers } = await decided(app.key, id, 'Where is my money?')
      assert.deepEqual(answers[2], { type: 'score', name: 'anger', score: 2 })
    })

    it("are requested by one message with the questions and the input, and with their schema in place of the agent's", async () => {
      const own = { type: 'object', properties: { other: { type: 'string' } } }
      const { decider: id } = await answering('asked', { text: GOOD }, { output_schema: own, instructions: 'Be fair.' })
      await decided(app.key, id, { subject: 'Help', lines: [1, 2] })
      const [{ body }] = await double.requests('asked')
      assert.deepEqual(
        body.messages.map(({ role }: any) => role),
        ['system', 'user'],
      )
      const { content } = body.messages[1]
      for (const part of ['urgent (predicate): Is it urgent?', '- billing: Money', '- 2 (furious): Very'])
        assert.ok(content.includes(part), content)
      assert.ok(
        content.endsWith('<input>\n{\n  "subject": "Help",\n  "lines": [\n    1,\n    2\n  ]\n}\n</input>'),
        content,
      )
      assert.deepEqual(body.response_format.json_schema.schema.properties, {
        urgent: { type: 'boolean' },
        team: { type: 'string', enum: ['billing', 'support'] },
        anger: { type: 'integer', minimum: 0, maximum: 2 },
      })
    })

    it('and of a tool are about any JSON, whatever keys it has', async () => {
      const { decider: ofAgent } = await answering('any', { text: GOOD })
      for (const input of [{ format_version: '1.2' }, { format_version: { toString: 1 } }, null, 0, []])
        for (const id of [ofAgent, decider]) {
          const { status, error } = await decided(app.key, id, input)
          assert.deepEqual([status, error], ['completed', null], JSON.stringify(input))
        }
    })

    it('see the texts of messages, and images after them', async () => {
      const { decider: id } = await answering('seen', { text: GOOD })
      const input = [
        { role: 'user', content: 'One' },
        {
          role: 'user',
          content: [
            { type: 'input_image', image_url: PIXEL },
            { type: 'input_text', text: 'Two' },
          ],
        },
      ]
      assert.equal((await decided(app.key, id, input)).status, 'completed')
      const { content } = (await double.requests('seen'))[0].body.messages.at(-1)
      assert.equal(content.length, 2)
      assert.ok(content[0].text.endsWith('<input>\nOne\n\nTwo\n</input>'), content[0].text)
      assert.equal(content[1].image_url.url, PIXEL)
    })

    it('fail with an answer outside the schema, and with what the turn fails with', async () => {
      const wrong = await answering('wrong', { text: JSON.stringify({ urgent: true, team: 'sales', anger: 2 }) })
      const decision = await decided(app.key, wrong.decider, 'x')
      assert.deepEqual(
        [decision.status, decision.error.code, decision.answers, decision.answers_by_name],
        ['failed', 'OUTPUT_SCHEMA_VALIDATION_FAILED', null, null],
      )
      const [event] = await eventsOf(app.key, decision.id)
      assert.deepEqual([event.event, event.data.error], ['decisions.failed', decision.error])
      const down = await answering('down', { error: { status: 400 } })
      assert.equal((await decided(app.key, down.decider, 'x')).error.code, 'AI_PROVIDER_ERROR')
    })

    it('keep the version of the agent that was live at the request, in a release the stable one', async () => {
      await double.put('release', { rules: [{ reply: { text: GOOD } }] })
      const agent_id = await app.agent({ model: 'release/m', instructions: 'one' })
      await app.key.patch(`/agents/${agent_id}`, { instructions: 'two' })
      const release = { stable_version: 1, canary_version: 2, canary_percent: 100 }
      assert.equal((await app.key.put(`/agents/${agent_id}/release`, release)).status, 200)
      const { id } = await madeDecider(app.key, { agent_id })
      const { generation_id } = await decided(app.key, id, 'x')
      assert.equal((await app.key.get(`/generations/${generation_id}`)).body.agent_version, 1)
      assert.equal((await double.requests('release'))[0].body.messages[0].content, 'one')
    })

    it('fail when their turn is called off, once', async () => {
      await double.put('held', { rules: [{ reply: { text: GOOD, gate: 'held' } }] })
      const { id } = await madeDecider(app.key, { agent_id: await app.agent({ model: 'held/m' }) })
      const asked = (await ask({ input: 'x' }, id)).body
      const running = await eventually(async () => {
        const { body } = await app.key.get(`/decisions/${asked.id}`)
        return body.generation_id && ((await double.gate('held'))?.waiting ?? 0) > 0 ? body : null
      })
      assert.equal(running.status, 'running')
      assert.equal((await app.key.post(`/generations/${running.generation_id}/cancel`)).status < 300, true)
      const decision = await settled(app.key, asked.id)
      assert.deepEqual([decision.status, decision.error.code], ['failed', 'GENERATION_FAILED'])
      await double.read('POST', '/control/gates/held/open')
      assert.equal((await eventsOf(app.key, asked.id)).length, 1)
    })
  })

  describe('of a tool', () => {
    it('are its answers in the order of the questions, with our labels', async () => {
      const decision = await decided(app.key, decider, { any: ['json'] })
      assert.equal(decision.status, 'completed', JSON.stringify(decision.error))
      assert.deepEqual(decision.answers, [
        { type: 'predicate', name: 'urgent', probability: 0.9 },
        {
          type: 'choice',
          name: 'team',
          choice: 'billing',
          probabilities: [{ value: 'billing', probability: 0.8 }],
          confidence: 0.8,
        },
        {
          type: 'score',
          name: 'anger',
          score: 1.5,
          probabilities: [
            { value: 1, label: 'annoyed', probability: 0.5 },
            { value: 2, label: 'furious', probability: 0.5 },
          ],
          confidence: 0.4,
        },
      ])
      const request = target.last()
      assert.deepEqual(JSON.parse(request.body), { input: { any: ['json'] }, questions: QUESTIONS })
      assert.equal(request.headers['idempotency-key'], decision.id)
      assert.equal(decision.generation_id, null)
    })

    it('that are not sure enough for their decider are escalated to people, once each, with the least sure one', async () => {
      const tool_id = await toolAt(app.key, target.url)
      const [unsure, sure] = [0.5, 0.4].map(escalate_below => madeDecider(app.key, { tool_id, escalate_below }))
      const decision = await decided(app.key, (await unsure).id, 'x')
      await decided(app.key, (await sure).id, 'x')
      const found = await eventually(async () => {
        const { body } = await app.admin.get(`/exceptions?project_id=${app.projectId}&kind=manual`)
        return body.total > 0 && body.data
      })
      assert.equal(found.length, 1)
      assert.equal(found[0].severity, 'info')
      assert.deepEqual(found[0].detail, { decision_id: decision.id, question: 'anger', confidence: 0.4 })
    })

    it('come as a text of JSON, too, and through an output mapping', async () => {
      target.answer = (_request, response) => response.end(JSON.stringify(JSON.stringify(TOOL_ANSWERS)))
      assert.equal((await decided(app.key, decider, 'x')).status, 'completed')
      target.answer = json({ data: TOOL_ANSWERS.answers })
      const output_mapping = { answers: { var: 'output.data' } }
      const mapped = await toolAt(app.key, target.url, { output_mapping })
      const { id } = await madeDecider(app.key, { tool_id: mapped })
      assert.equal((await decided(app.key, id, 'x')).status, 'completed')
    })

    it('fail when an answer breaks the contract, naming where', async () => {
      const [anger, urgent, team] = TOOL_ANSWERS.answers
      const cases: [string, unknown][] = [
        ['', 'no json'],
        ['', [1]],
        ['answers', {}],
        ['answers', { answers: [anger, urgent] }],
        ['answers', { answers: [anger, urgent, team, team] }],
        ['answers[1].name', { answers: [anger, anger, team] }],
        ['answers[0].name', { answers: [{ ...anger, name: 'other' }, urgent, team] }],
        ['answers[0].name', { answers: [null, urgent, team] }],
        ['answers[0].type', { answers: [{ ...anger, type: 'choice' }, urgent, team] }],
        ['answers[0].score', { answers: [{ ...anger, score: 2.1 }, urgent, team] }],
        [
          'answers[0].probabilities[1].value',
          {
            answers: [{ ...anger, probabilities: [anger.probabilities?.[0], anger.probabilities?.[0]] }, urgent, team],
          },
        ],
        [
          'answers[0].probabilities[0].value',
          {
            answers: [{ ...anger, probabilities: [{ value: 3, probability: 1 }] }, urgent, team],
          },
        ],
        ['answers[1].probability', { answers: [anger, { ...urgent, probability: 1.1 }, team] }],
        ['answers[1].why', { answers: [anger, { ...urgent, why: 'because' }, team] }],
        ['answers[2].choice', { answers: [anger, urgent, { ...team, choice: 'sales' }] }],
        ['answers[2].confidence', { answers: [anger, urgent, { ...team, confidence: '1' }] }],
      ]
      for (const [path, answer] of cases) {
        target.answer = json(answer)
        const decision = await decided(app.key, decider, 'x')
        assert.deepEqual([decision.status, decision.error?.code], ['failed', 'DECISION_ANSWER_INVALID'], path)
        assert.equal(decision.error.meta.problems[0].path, path)
        if (path) assert.ok(decision.error.message.includes(path), decision.error.message)
      }
    })

    it('fail with the code of a call that failed, and never reveal its content', async () => {
      target.answer = (request, response) => response.writeHead(500).end(`echo ${request.body} ${request.url}`)
      const echoing = await toolAt(app.key, `${target.url}/say`, {
        execute: { url: `${target.url}/say`, method: 'GET' },
      })
      const steps = [{ id: 'a', tool_id: echoing, input: { var: 'input' } }]
      const pipeline = await made(app.key, { type: 'pipeline', pipeline: { steps } })
      for (const [tool_id, code] of [
        [tool, 'TOOL_HTTP_ERROR'],
        [echoing, 'TOOL_HTTP_ERROR'],
        [pipeline.id, 'PIPELINE_STEP_FAILED'],
      ]) {
        const { id } = await madeDecider(app.key, { tool_id })
        const decision = await decided(app.key, id, 'a-word-of-mine')
        assert.deepEqual([decision.status, decision.error.code], ['failed', code])
        assert.ok(!JSON.stringify(decision).includes('a-word-of-mine'), JSON.stringify(decision))
        const events = JSON.stringify(await eventsOf(app.key, decision.id))
        assert.ok(!events.includes('a-word-of-mine'), events)
      }
    })

    it('accept names that are also names of the language', async () => {
      const questions = ['constructor', 'toString'].map(name => ({ ...QUESTIONS[0], name }))
      target.answer = json({ answers: questions.map(({ name }) => ({ name, probability: 0 })) })
      const { id } = await madeDecider(app.key, { tool_id: tool, questions })
      const decision = await decided(app.key, id, 'x')
      assert.deepEqual(Object.keys(decision.answers_by_name), ['constructor', 'toString'])
    })

    it('run with the permissions of their caller, as long as these last', async () => {
      const operations = await made(app.key, { type: 'platform', actions: ['list-actors'] })
      const steps = [{ id: 'a', tool_id: operations.id, action: 'list-actors', input: {} }]
      const pipeline = await made(app.key, { type: 'pipeline', pipeline: { steps } })
      const { id } = await madeDecider(app.key, { tool_id: pipeline.id })
      // A caller who may call the decider and nothing else.
      const statement = [{ effect: 'Allow', action: ['deciders:*'], resource: [`srn:${app.projectId}:*:*`] }]
      const user = await app.user(undefined, [{ statement }])
      const decision = await decided(user, id, 'x')
      assert.deepEqual([decision.status, decision.error.code], ['failed', 'PIPELINE_STEP_FAILED'])
      assert.equal(decision.error.meta.cause.meta.tool_status_code, 403)
    })
  })

  it('are queued unless they are waited for, and then settle by themselves', async () => {
    const reply = await ask({ input: 'x' })
    assert.deepEqual([reply.status, reply.body.status, reply.body.answers], [201, 'queued', null])
    assert.equal((await settled(app.key, reply.body.id)).status, 'completed')
    assert.equal((await eventsOf(app.key, reply.body.id)).length, 1)
  })

  it('are refused without an input, with messages that are none, and with too much', async () => {
    refusedAt(await ask({}), 'input')
    const wrong: [string, unknown][] = [
      ['input[0].role', [{ role: 'assistant', content: 'x' }]],
      ['input[1].content', [{ role: 'user', content: 'x' }, { role: 'user' }]],
      ['input[0].name', [{ role: 'user', content: 'x', name: 'y' }]],
      ['input', 'x'.repeat(10 * 1024 * 1024)],
    ]
    for (const [path, input] of wrong) refusedAt(await ask({ input }), path)
    const image = (image_url: string) => [{ role: 'user', content: [{ type: 'input_image', image_url }] }]
    for (const url of [
      'https://example.com/a.png',
      'data:text/plain;base64,aaaa',
      'data:image/png;base64,a b',
      'data:image/png;base64,',
    ])
      refused(await ask({ input: image(url) }), 400, 'VALIDATION_FAILED')
    assert.equal((await app.key.get('/decisions?status=failed&status=queued&from=2100-01-01T00:00:00Z')).body.total, 0)
  })

  it('take up to 10 MiB', async () => {
    const input = 'x'.repeat(10 * 1024 * 1024 - 2)
    target.answer = (request, response) => {
      assert.equal(JSON.parse(request.body).input.length, input.length)
      response.end(JSON.stringify(TOOL_ANSWERS))
    }
    assert.equal((await decided(app.key, decider, input)).status, 'completed')
  })

  it('are refused in a paused project, and made after it when they were requested before', async () => {
    const project = await app.project()
    const asked = await toolAt(project.key, target.url)
    const { id } = await madeDecider(project.key, { tool_id: asked })
    await app.admin.post(`/projects/${project.id}/pause`, { reason: 'x' })
    refused(await project.key.post(`/deciders/${id}/decisions`, { input: 'x' }), 409, 'PROJECT_PAUSED')
    const inline = { questions: QUESTIONS, tool_id: asked, input: 'x' }
    refused(await project.key.post('/decisions', inline), 409, 'PROJECT_PAUSED')
    assert.equal((await project.key.get('/decisions')).body.total, 0)
    await app.admin.post(`/projects/${project.id}/resume`)
    assert.equal((await decided(project.key, id, 'x')).status, 'completed')
  })

  it('accept inline questions, which are in the record', async () => {
    const body = { questions: QUESTIONS.slice(0, 1), tool_id: tool, input: 'x', wait: true }
    target.answer = json({ answers: [{ name: 'urgent', probability: 0 }] })
    const { status, body: decision } = await app.key.post('/decisions', body)
    assert.deepEqual(
      [status, decision.status, decision.decider_id, decision.decider_version, decision.questions],
      [201, 'completed', null, null, body.questions],
    )
    assert.deepEqual((await app.key.get(`/decisions/${decision.id}`)).body, decision)
    refusedAt(await app.key.post('/decisions', { ...body, agent_id: app.agentId }), 'tool_id')
    refusedAt(await app.key.post('/decisions', { ...body, questions: [] }), 'questions')
    refused(await app.key.post('/decisions', { ...body, tool_id: 'tool_1' }), 400, 'TOOL_NOT_FOUND')
    const weak = await app.projectWith(['deciders:*', 'tools:CreateTool'])
    const own = await toolAt(weak.key, target.url)
    refused(await weak.key.post('/decisions', { ...body, tool_id: own }), 403, 'FORBIDDEN')
  })

  it('are requested in batches, all or none', async () => {
    const inputs = Array.from({ length: 5 }, (_, n) => ({ input: `mail ${n}`, metadata: { n } }))
    const reply = await app.key.post(`/deciders/${decider}/decisions/batch`, { inputs })
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    assert.deepEqual(
      reply.body.data.map(({ status, metadata }: any) => [status, metadata.n]),
      [0, 1, 2, 3, 4].map(n => ['queued', n]),
    )
    for (const { id } of reply.body.data) assert.equal((await settled(app.key, id)).status, 'completed')
    const before = (await app.key.get('/decisions')).body.total
    const wrong = [{ input: 'x' }, { input: [{ role: 'system', content: 'x' }] }]
    refusedAt(await app.key.post(`/deciders/${decider}/decisions/batch`, { inputs: wrong }), 'inputs[1].input[0].role')
    const many = Array.from({ length: 51 }, () => ({ input: 'x' }))
    refusedAt(await app.key.post(`/deciders/${decider}/decisions/batch`, { inputs: many }), 'inputs')
    assert.equal((await app.key.get('/decisions')).body.total, before)
  })

  it('keep their version and questions, also when the decider changes or is deleted', async () => {
    const { id } = await madeDecider(app.key, { tool_id: tool })
    const first = await decided(app.key, id, 'x')
    target.answer = json({ answers: [{ name: 'urgent', probability: 1 }] })
    await app.key.patch(`/deciders/${id}`, { questions: QUESTIONS.slice(0, 1) })
    const second = await decided(app.key, id, 'x')
    assert.deepEqual([first.decider_version, second.decider_version, second.answers.length], [1, 2, 1])
    assert.equal((await app.key.delete(`/deciders/${id}`)).status, 204)
    assert.deepEqual((await app.key.get(`/decisions/${first.id}`)).body, first)
    const listed = (await app.key.get(`/decisions?decider_id=${id}&status=completed`)).body
    assert.deepEqual(
      listed.data.map((each: any) => each.id),
      [second.id, first.id],
    )
    refused(await ask({ input: 'x' }, id), 404, 'RESOURCE_NOT_FOUND')
  })

  it('are seen in their project only, by who may', async () => {
    const { id } = await decided(app.key, decider, 'x')
    const other = await app.project()
    assert.equal((await other.key.get(`/decisions/${id}`)).status, 404)
    assert.equal((await other.key.get('/decisions')).body.total, 0)
    refused(await other.key.post(`/deciders/${decider}/decisions`, { input: 'x' }), 404, 'RESOURCE_NOT_FOUND')
    const statement = [{ effect: 'Allow', action: ['deciders:GetDecider'], resource: [`srn:${app.projectId}:*:*`] }]
    const reader = await app.user(undefined, [{ statement }])
    assert.equal((await reader.get(`/decisions/${id}`)).status, 403)
    assert.equal((await reader.post(`/deciders/${decider}/decisions`, { input: 'x' })).status, 403)
  })

  it('are the same for a repeat under the same Idempotency-Key', async () => {
    const repeat = () =>
      app.key.post(`/deciders/${decider}/decisions`, { input: 'x', wait: true }, { 'idempotency-key': 'k1' })
    const [first, second] = [await repeat(), await repeat()]
    assert.equal(second.headers.get('idempotency-replayed'), 'true')
    assert.deepEqual(second.body, first.body)
  })

  it('are waited for by platform tools', async () => {
    const platform = await made(app.key, { type: 'platform', actions: ['create-decision'] })
    const input = { decider_id: decider, input: 'x' }
    const { body } = await app.key.post(`/tools/${platform.id}/call`, { action: 'create-decision', input })
    assert.equal(body.status, 'completed', JSON.stringify(body))
  })
})
