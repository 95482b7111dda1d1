import assert from 'node:assert/strict'
import { ExactNumber, parseExactJson } from '#core/base/exact-json.ts'
import { sql } from '#core/db/sql.ts'
import { evaluateBriefly } from '#core/expressions/evaluate.ts'
import { chain, startRunApp } from '../automation/fixtures.ts'
import { client as doubleOf } from '../local/double/client.ts'
import { randomOf } from '../support/fuzz.ts'
import { forSuite } from '../support/suite.ts'

const ID = '2512292042121000001'
const NEXT = '2512292042121000002'
/** Numbers that a double changes, in value or in writing. */
const EXACT = `{"id":${ID},"price":1.10,"list":[9007199254740993,0.50,-12345678901234567890.123]}`

/** A reader of a body: the clients of tests lose digits. */
type Answer = { status: number; text: string; body: any }

describe('numbers with more digits than a double keeps', () => {
  const app = forSuite(() =>
    startRunApp({
      workers: ['orchestration', 'generation', 'ingestion'],
      actions: ['*'],
    }),
  )
  let send: (method: string, path: string, body?: string) => Promise<Answer>
  before(async () => {
    send = async (method, path, body) => {
      const address = path.startsWith('//') ? `${app.url}${path.slice(1)}` : `${app.url}/api/v1${path}`
      const headers = { authorization: `Bearer ${app.key.token}`, 'content-type': 'application/json' }
      const response = await fetch(address, { method, body, headers })
      const text = await response.text()
      return { status: response.status, text, body: text.startsWith('{') ? parseExactJson(text) : text }
    }
  })

  const keeps = (text: string, what: string) => {
    for (const digits of [ID, '1.10', '9007199254740993', '0.50', '-12345678901234567890.123'])
      assert.ok(new RegExp(`(?<![\\d.])${digits.replaceAll('.', '\\.')}(?![\\d.])`).test(text), `${what}: ${text}`)
  }
  const answerWith = (text: string, type = 'application/json') => {
    app.target.answer = (_request, response) => response.writeHead(200, { 'content-type': type }).end(text)
  }
  /** An agent whose model calls `lookup` once with the text of its arguments. */
  const calling = async (lane: string, raw: string, fields: object = {}) => {
    const rules = [
      { when: { last_role: 'tool' }, reply: { text: 'done' } },
      { reply: { tool_calls: [{ name: 'lookup', raw }] } },
    ]
    await doubleOf(app.double).put(lane, { rules } as never)
    return app.agent({ model: `${lane}/m`, ...fields })
  }
  /** The texts of the model requests of a lane. */
  const requestsOf = async (lane: string) => (await fetch(`${app.double.url}/control/requests?lane=${lane}`)).text()

  it('are read and written as they are, also by the database', async () => {
    const { int, chance } = randomOf(1)
    const digits = (count: number) => Array.from({ length: count }, () => int(10)).join('')
    const texts = Array.from({ length: 4000 }, () => {
      const whole = chance(0.2) ? '0' : `${1 + int(9)}${digits(int(30))}`
      return `${chance(0.3) ? '-' : ''}${whole}${chance(0.5) ? `.${digits(1 + int(30))}` : ''}`
    })
    const read = parseExactJson(`[${texts.join(', ')}]`) as unknown[]
    const { stored, kept } = (await app.services.pool.one(
      sql.unsafe`select ${JSON.stringify(read)}::jsonb as stored, ${JSON.stringify(read)}::json as kept`,
    )) as { stored: unknown[]; kept: unknown[] }
    for (const [index, text] of texts.entries())
      for (const each of [read, stored, kept]) {
        const written = JSON.stringify(each[index])
        // Doubles write 0.0000001 with an exponent, and zero without a sign.
        if (written !== text) assert.ok(Number(written) === Number(text) && /e|^0/.test(written), `${written} ${text}`)
      }
    assert.equal(JSON.stringify(parseExactJson(EXACT)), EXACT)
  })

  it('come back from metadata, and are found by it', async () => {
    const made = await send('POST', '/actors', `{"name":"a","metadata":${EXACT}}`)
    assert.equal(made.status, 201, made.text)
    keeps(made.text, 'the answer of the create')
    keeps((await send('GET', `/actors/${made.body.id}`)).text, 'the record')
    const changed = await send('PATCH', `/actors/${made.body.id}`, '{"name":"b"}')
    assert.equal(changed.status, 200, changed.text)
    keeps(changed.text, 'the answer of an update')

    const files = await Promise.all(
      [ID, NEXT].map(async id => {
        const fields = {
          filename: `${id}.txt`,
          content_type: 'text/plain',
          content: Buffer.from(id).toString('base64'),
        }
        const file = await send('POST', '/files/upload/base64', JSON.stringify(fields))
        const document = await send(
          'POST',
          '/documents/ingest',
          `{"file_id":"${file.body.id}","metadata":{"id":${id}}}`,
        )
        assert.equal(document.status, 202, document.text)
        return document.body.id
      }),
    )
    const found = async (filter: string) => {
      const { status, text, body } = await send('GET', `/documents?metadata=${encodeURIComponent(filter)}`)
      assert.equal(status, 200, text)
      return body.data.map(({ id }: any) => id)
    }
    assert.deepEqual(await found(`{"id":${ID}}`), [files[0]])
    assert.deepEqual(await found(`{"id":{"gt":${ID}}}`), [files[1]])
    assert.deepEqual(await found(`{"id":{"in":[${NEXT}]}}`), [files[1]])
  })

  it('are compared with limits', () => {
    const data = parseExactJson(`{"id":${ID},"next":${NEXT},"price":1000.00000000000000001}`)
    const holds = (operator: string, ...operands: unknown[]) => evaluateBriefly({ [operator]: operands }, data)
    assert.equal(holds('>', { var: 'id' }, 1000), true)
    assert.equal(holds('<', 1, { var: 'id' }, 9e99), true)
    assert.equal(holds('<=', { var: 'id' }, { var: 'id' }), true)
    assert.equal(holds('<', { var: 'price' }, 1001), true)
    for (const [left, right] of [
      ['id', 'next'],
      ['next', 'id'],
    ])
      assert.throws(() => holds('>', { var: left }, { var: right }), /calculates with/)
    assert.throws(() => holds('>', { var: 'price' }, 1000), /calculates with/)
  })

  it('are no objects to validation', async () => {
    const schema = await send('POST', '/metadata-schemas', '{"name":"number","schema":1.10}')
    assert.equal(schema.status, 400, schema.text)
    const agent = await calling('bare', '1.10', {
      tool_bindings: [{ tool: { name: 'lookup', type: 'http', execute: { url: app.target.url } } }],
    })
    const requests = app.target.requests.length
    const turn = await send('POST', `/agents/${agent}/generate?wait=true`, '{"prompt":"go"}')
    assert.equal(turn.status, 200, turn.text)
    assert.equal(app.target.requests.length, requests)
    const project = JSON.stringify(app.projectId)
    const cases: [string, string, string, string][] = [
      ['POST', '/agents', `{"project_id":${project},"name":"a","knowledge_config":1.10}`, 'knowledge_config'],
      [
        'POST',
        '/agents',
        `{"project_id":${project},"name":"a","tool_bindings":[{"tool":${ID}}]}`,
        'tool_bindings[0].tool',
      ],
      ['POST', '/guardrails', '{"name":"a","document":1.10}', 'document'],
      ['POST', '/webhooks', '{"name":"a","url":"https://a.example","events":["*"],"filter":1.10}', 'filter'],
      ['POST', '/sessions', `{"agent_id":"${app.agentId}","actor":1.10}`, 'actor'],
      ['POST', '/sessions', `{"agent_id":"${app.agentId}","tags":1.10}`, 'tags'],
      ['POST', '/tools', `{"name":"a","type":"http","execute":1.10}`, 'execute'],
      [
        'POST',
        '/ai-providers',
        '{"name":"a","provider":"openai","default_model":"m","config":{"api_key":"a","headers":1.10}}',
        'config.headers',
      ],
      ['PATCH', `/agents/${agent}`, '{"provider_options":{"openai":1.10}}', 'provider_options.openai'],
      ['PATCH', `/agents/${agent}`, '1.10', ''],
      ['PATCH', `/agents/${agent}`, `{"output_schema":1.10}`, 'output_schema'],
      ['POST', '//openai/v1/chat/completions', `{"model":"${agent}","messages":[1.10]}`, 'messages[0]'],
    ]
    const taken: unknown[] = []
    for (const [method, path, body, field] of cases) {
      const { status, body: answer } = await send(method, path, body)
      const at = answer.error?.meta?.problems?.[0]?.path ?? answer.error?.param
      if (status !== 400 || at !== field) taken.push([path, body, status, at, answer.error?.message])
    }
    assert.deepEqual(taken, [])
  })

  it('are refused where they cannot be kept, by the name of their field', async () => {
    for (const number of [
      '1e400',
      '-1e400',
      '1e-400',
      '1e300',
      '-1E-300',
      '1e40',
      '12345678901234567890e2',
      '9'.repeat(1001),
    ]) {
      const { status, body } = await send('POST', '/actors', `{"name":"a","metadata":{"deep":[${number}]}}`)
      assert.equal(status, 400, number)
      assert.deepEqual(body.error.meta.problems[0].path, 'metadata.deep[0]')
      assert.equal(body.error.meta.problems[0].code, 'INVALID_NUMBER')
    }
    const project = JSON.stringify(app.projectId)
    for (const [field, number] of [
      ['max_steps', ID],
      ['temperature', '90071992547409931'],
    ]) {
      const { status, text, body } = await send(
        'POST',
        '/agents',
        `{"project_id":${project},"name":"a","${field}":${number}}`,
      )
      assert.equal(status, 400, text)
      assert.equal(body.error.meta.problems[0].path, field)
    }
  })

  it('have one size, whether written with an exponent or by the database', async () => {
    const actor = (numbers: string[]) => send('POST', '/actors', `{"name":"a","metadata":{"n":[${numbers}]}}`)
    const large = await actor(Array(2000).fill('1e30'))
    assert.equal(large.status, 400, large.text)
    assert.equal(large.body.error.meta.problems[0].path, 'metadata')
    const made = await actor(['1e21', '-1.5E+30', '0.12e39', '1234567890123e9', '1e-30', '1e5', '9.9e22'])
    assert.equal(made.status, 201, made.text)
    const digits =
      '[1000000000000000000000,-1500000000000000000000000000000,120000000000000000000000000000000000000,1234567890123000000000,1e-30,100000,99000000000000000000000]'
    assert.ok(made.text.includes(`"n":${digits}`), made.text)
    assert.ok((await send('GET', `/actors/${made.body.id}`)).text.includes(`"n":${digits}`))
  })

  it('are doubles where a number is declared', async () => {
    const provider = JSON.stringify(app.providerId)
    const made = await send(
      'POST',
      '/agents',
      `{"name":"declared","ai_provider_id":${provider},"temperature":0.70,"max_steps":3.0}`,
    )
    assert.equal(made.status, 201, made.text)
    assert.deepEqual([made.body.temperature, made.body.max_steps], [0.7, 3])
    const states = `[{"name":"a","initial":true,"on_enter":{"dispatch":{"kind":"tool","tool_id":"${await app.tool()}"},
      "retry":{"max_attempts":3.0,"backoff_seconds":1.0}}},{"name":"b","terminal":true}]`
    const flow = await send(
      'POST',
      '/workflows',
      `{"name":"w","states":${states},"transitions":[{"name":"t","from":["a"],"to":"b"}]}`,
    )
    assert.equal(flow.status, 201, flow.text)
  })

  it('reach a tool as the model wrote them, and the model as the tool did', async () => {
    answerWith(EXACT)
    const tool_id = await app.tool({ name: 'lookup' })
    const agentId = await calling('exact', EXACT, { tool_bindings: [{ tool_id }] })
    const turn = await send('POST', `/agents/${agentId}/generate?wait=true`, '{"prompt":"x"}')
    assert.equal(turn.body.status, 'completed', turn.text)
    keeps(app.target.last().body, 'the arguments')
    const [first, second] = (await requestsOf('exact')).split('"role":"tool"')
    assert.ok(first)
    keeps(second, 'the result that the model received')
    const transcript = await send('GET', `/generations/${turn.body.id}/transcript`)
    assert.equal(transcript.status, 200, transcript.text)
    keeps(transcript.text, 'the transcript')
  })

  it('reach a URL, a query, a direct call and its result', async () => {
    answerWith(EXACT)
    const tool = await send(
      'POST',
      '/tools',
      JSON.stringify({ name: 'by_url', type: 'http', execute: { url: `${app.target.url}/{id}`, method: 'GET' } }),
    )
    assert.equal(tool.status, 201, tool.text)
    const called = await send('POST', `/tools/${tool.body.id}/call`, `{"input":${EXACT.replaceAll('"list"', '"l"')}}`)
    assert.equal(called.status, 200, called.text)
    keeps(called.text, 'the result of the call')
    const { url } = app.target.last()
    assert.ok(url.startsWith(`/${ID}?price=1.10`), url)
  })

  it('are texts in texts of MCP servers', async () => {
    const said: Record<string, string> = { number: ID, decimal: '1.10', object: EXACT.replaceAll('"', '\\"') }
    app.target.answer = ({ body }, response) => {
      const { id, method, params } = JSON.parse(body || '{}')
      const results: Record<string, string> = {
        initialize:
          '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}',
        'tools/list': JSON.stringify({
          tools: Object.keys(said).map(name => ({ name, inputSchema: { type: 'object' } })),
        }),
        'tools/call': `{"content":[{"type":"text","text":"${said[params?.name]}"}]}`,
      }
      if (id === undefined) return response.writeHead(202).end()
      response
        .writeHead(200, { 'content-type': 'application/json' })
        .end(`{"jsonrpc":"2.0","id":${JSON.stringify(id)},"result":${results[method]}}`)
    }
    const tool = await send(
      'POST',
      '/tools',
      JSON.stringify({ name: 'server', type: 'mcp', mcp: { url: app.target.url } }),
    )
    assert.equal(tool.status, 201, tool.text)
    const call = async (action: string) => {
      const answer = await send('POST', `/tools/${tool.body.id}/call`, JSON.stringify({ action, input: {} }))
      assert.equal(answer.status, 200, answer.text)
      return answer.text
    }
    assert.equal(await call('number'), `"${ID}"`)
    assert.equal(await call('decimal'), '"1.10"')
    keeps(await call('object'), 'an object')
  })

  it('reach a client of the OpenAI mount, streamed or not, and come back from it', async () => {
    const agentId = await calling('client', EXACT, { accept_client_tools: true })
    const tools = '[{"type":"function","function":{"name":"lookup","parameters":{"type":"object"}}}]'
    const ask = (messages: string, more = '') =>
      send(
        'POST',
        '//openai/v1/chat/completions',
        `{"model":"${agentId}","messages":${messages},"tools":${tools}${more}}`,
      )
    const question = '[{"role":"user","content":"x"}'
    const plain = await ask(`${question}]`)
    assert.equal(plain.status, 200, plain.text)
    keeps(plain.text, 'the answer')
    const streamed = await ask(`${question}]`, ',"stream":true')
    keeps(streamed.text, 'the stream')
    const { message } = plain.body.choices[0]
    const result = JSON.stringify({ role: 'tool', tool_call_id: message.tool_calls[0].id, content: EXACT })
    const next = await ask(`${question},${JSON.stringify(message)},${result}]`)
    assert.equal(next.status, 200, next.text)
    const [, sent] = (await requestsOf('client')).split('"role":"tool"')
    keeps(sent, 'the history that the model received')
  })

  it('pass through a run, and fail only what would calculate with them', async () => {
    answerWith(EXACT)
    const tool_id = await app.tool()
    const nodes = [
      { id: 'get', type: 'tool', tool_id, input_mapping: { preserved: { var: 'input' } } },
      { id: 'pass', type: 'transform', expression: { all: { var: 'nodes.get' }, id: { cat: [{ var: 'input.id' }] } } },
    ]
    const orchestration_id = await app.orchestration(nodes, chain('get', 'pass'))
    const run = await send(
      'POST',
      '/orchestration-runs',
      `{"orchestration_id":"${orchestration_id}","wait":true,"input":${EXACT}}`,
    )
    assert.equal(run.body.status, 'succeeded', run.text)
    keeps(app.target.last().body, 'the arguments of the node')
    const { text } = await send('GET', `/orchestration-runs/${run.body.id}`)
    keeps(JSON.stringify(parseExactJson(text).input), 'the input')
    assert.match(text, new RegExp(`"${ID}"`), 'the digits as a text')

    const evaluated = async (expression: object, input: string) => {
      const id = await app.orchestration([{ id: 'sum', type: 'transform', expression }])
      const { body } = await send(
        'POST',
        '/orchestration-runs',
        `{"orchestration_id":"${id}","wait":true,"input":${input}}`,
      )
      return body
    }
    const sum = { '+': [{ var: 'input.a' }, 1] }
    const exact = await evaluated(sum, '{"a":1.10}')
    assert.equal(exact.status, 'succeeded', JSON.stringify(exact))
    const failed = await evaluated(sum, `{"a":${ID}}`)
    assert.equal(failed.status, 'failed')
    assert.match(JSON.stringify(failed), new RegExp(`calculates with ${ID}, which has more digits than a number keeps`))
    const equal = await evaluated(
      { same: { '==': [{ var: 'input.a' }, { var: 'input.b' }] } },
      `{"a":${ID},"b":${NEXT}}`,
    )
    assert.match(JSON.stringify(equal), /"same":false/)
  })

  it('are kept by templates in JSON and in YAML', async () => {
    const template = [
      'resources:',
      '  one:',
      '    type: tool',
      '    properties:',
      '      name: yaml_tool',
      '      type: http',
      `      execute: { url: "${app.target.url}" }`,
      `      preset_parameters: ${EXACT.replaceAll('":', '": ')}`,
    ].join('\n')
    const deployed = await send('POST', '/formations', JSON.stringify({ name: 'exact', template }))
    assert.equal(deployed.body.status, 'active', deployed.text)
    const [{ physical_resource_id }] = deployed.body.resources
    keeps((await send('GET', `/tools/${physical_resource_id}`)).text, 'the tool of the template')
    const again = await send('POST', '/formations/plan', JSON.stringify({ formation_id: deployed.body.id, template }))
    assert.ok(again.status < 300, again.text)
  })

  it('are numbers in every comparison', () => {
    const [exact] = parseExactJson('[1.10]') as ExactNumber[]
    assert.ok(exact instanceof ExactNumber)
    assert.equal(exact.toNumber(), 1.1)
    assert.equal(`${exact}`, '1.10')
    assert.equal(new ExactNumber(ID).toNumber(), null)
  })
})
