import assert from 'node:assert/strict'
import { operations } from '#core/api/operation.ts'
import { newId } from '#core/base/ids.ts'
import { type Client, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { call, json, made, refused, refusedAt, secretOf, startTarget } from './tool-target.ts'

describe('tools made of others', () => {
  const app = forSuite(() => startApp({ env: { TOOL_CALL_TIMEOUT_MS: '8000', TOOL_MAX_RESPONSE_BYTES: '100000' } }))
  const target = forSuite(startTarget)
  let id: string
  let key: Client

  before(async () => {
    ;({ id, key } = await app.project())
  })
  beforeEach(() => {
    target.requests.length = 0
    // Answers its path and the request.
    target.answer = ({ url, body }, response) =>
      json({ url, got: JSON.parse(body || 'null') })(undefined as never, response)
  })

  const execute = (path = '/x', more: object = {}) => ({ execute: { url: `${target.url}${path}`, ...more } })
  const inline = (path?: string, more?: object) => ({ name: 'inline', ...execute(path, more) })
  const pipeline = (steps: object[], more: object = {}) => ({
    name: 'p',
    type: 'pipeline',
    pipeline: { steps, ...more },
  })

  describe('pipelines', () => {
    it('call no tool that their writer may not call', async () => {
      const named = await made(key, execute('/named'))
      const writer = await app.user(undefined, [
        {
          statement: [
            { effect: 'Allow', action: ['tools:*'], resource: [`srn:${id}:tool:*`] },
            { effect: 'Deny', action: ['tools:CallTool'], resource: [`srn:${id}:tool:${named.id}`] },
          ],
        },
      ])
      const steps = [{ id: 'a', tool_id: named.id }]
      const before = target.requests.length
      assert.equal((await writer.post('/tools', { ...pipeline(steps), project_id: id })).status, 403)
      const own = await made(key, pipeline([{ id: 'a', tool: inline() }]))
      assert.equal((await writer.patch(`/tools/${own.id}`, { pipeline: { steps } })).status, 403)
      // A definition by another author can be changed otherwise.
      const theirs = await made(key, pipeline(steps))
      assert.equal((await writer.patch(`/tools/${theirs.id}`, { description: 'x', pipeline: { steps } })).status, 200)
      const given = { steps: [{ ...steps[0], input: { x: 1 } }] }
      assert.equal((await writer.patch(`/tools/${theirs.id}`, { pipeline: given })).status, 403)
      assert.equal(target.requests.length, before)
    })

    it('have no step of a name that expressions cannot read', async () => {
      for (const name of ['__proto__', 'constructor', 'prototype']) {
        const reply = await key.post('/tools', pipeline([{ id: name, tool: inline() }]))
        assert.equal(reply.body.error.code, 'PIPELINE_INVALID_STEP')
        assert.equal(reply.body.error.meta.step_id, name)
      }
    })

    it('make their calls in order, each with the results of earlier steps', async () => {
      const named = await made(key, execute('/named'))
      const tool = await made(
        key,
        pipeline(
          [
            { id: 'first', tool_id: named.id, input: { city: { var: 'input.city' }, fixed: 5 } },
            {
              id: 'second',
              tool: inline('/{where}'),
              input: { where: { var: 'steps.first.got.city' }, all: { var: 'input' } },
            },
          ],
          {
            output: {
              from: { var: 'steps.first.url' },
              to: { var: 'steps.second.url' },
              seen: { var: 'steps.second.got.all' },
            },
          },
        ),
      )
      const reply = await call(key, tool.id, { city: 'Köln' })
      assert.deepEqual(reply.body, { from: '/named', to: `/${encodeURIComponent('Köln')}`, seen: { city: 'Köln' } })
      assert.deepEqual(
        target.requests.map(({ body }) => body),
        ['{"city":"Köln","fixed":5}', '{"all":{"city":"Köln"}}'],
      )
    })

    it('answer their last step without an output, and map their answers', async () => {
      const steps = [
        { id: 'a', tool: inline('/a') },
        { id: 'b', tool: inline('/b') },
      ]
      const tool = await made(key, pipeline(steps))
      assert.deepEqual((await call(key, tool.id)).body, { url: '/b', got: {} })
      const mapped = await made(key, {
        ...pipeline(steps, { output: { var: 'steps.a' } }),
        output_mapping: { var: 'output.url' },
      })
      assert.equal((await call(key, mapped.id)).body, '/a')
      const step = {
        id: 'a',
        tool: { ...inline('/a'), output_mapping: { var: 'output.url' }, preset_parameters: { p: 1 } },
      }
      assert.equal((await call(key, (await made(key, pipeline([step]))).id)).body, '/a')
      assert.equal(target.last().body, '{"p":1}')
      const parameters = { type: 'object', required: ['n'] }
      refusedAt(await call(key, (await made(key, { ...pipeline(steps), parameters })).id), 'input')
    })

    it('are refused with steps that cannot be', async () => {
      const other = await made((await app.project()).key, execute())
      const client = await made(key, { type: 'client' })
      const tool = inline()
      const step = (fields: object) => [{ id: 'a', tool, ...fields }]
      const cases: [unknown[] | undefined, object][] = [
        [undefined, {}],
        [[], {}],
        [Array.from({ length: 51 }, (_, n) => ({ id: `s${n}`, tool })), {}],
        [[{ tool }], { step_id: null }],
        [step({ id: '' }), { step_id: '' }],
        [step({ id: 'a-b' }), { step_id: 'a-b' }],
        [step({ id: 'x'.repeat(65) }), { step_id: 'x'.repeat(65) }],
        [[...step({}), ...step({})], { step_id: 'a' }],
        [[{ id: 'a' }], { step_id: 'a' }],
        [step({ tool_id: client.id }), { step_id: 'a' }],
        [[{ id: 'a', tool_id: client.id }], { step_id: 'a', tool_id: client.id }],
        ...[other.id, newId('tool'), 'x'].map((tool_id): [unknown[], object] => [
          [{ id: 'a', tool_id }],
          { step_id: 'a', tool_id },
        ]),
        [step({ input: { v: { var: 'steps.second.x' } } }), { step_id: 'a' }],
        [step({ input: { v: { cat: [[{ var: ['steps.a', 1] }]] } } }), { step_id: 'a' }],
        [[...step({ input: { v: { var: 'steps.b' } } }), { id: 'b', tool }], { step_id: 'a' }],
        [step({ input: { v: 'x'.repeat(66_000) } }), { step_id: 'a' }],
      ]
      for (const [steps, meta] of cases) {
        const reply = await key.post('/tools', { name: 'p', type: 'pipeline', pipeline: { steps } })
        assert.deepEqual(refused(reply, 400, 'PIPELINE_INVALID_STEP').meta, meta)
      }
      const large = Array.from({ length: 5 }, (_, n) => ({ id: `s${n}`, tool, input: { v: 'x'.repeat(60_000) } }))
      refusedAt(await key.post('/tools', pipeline(large)), 'pipeline')
      const output = pipeline(step({}), { output: { var: 'steps.nothing' } })
      refused(await key.post('/tools', output), 400, 'PIPELINE_INVALID_STEP')
      refused(await key.post('/tools', { name: 'p', type: 'pipeline' }), 400, 'PIPELINE_INVALID_STEP')
      const definitions: [object, string][] = [
        [{ ...tool, type: 'pipeline' }, 'pipeline.steps[0].tool.type'],
        [{ ...tool, guardrail_ids: [] }, 'pipeline.steps[0].tool.guardrail_ids'],
        [{ ...tool, project_id: id }, 'pipeline.steps[0].tool.project_id'],
        [{ ...tool, parameters: { type: 'array' } }, 'pipeline.steps[0].tool.parameters.type'],
        [{ name: 'x', execute: { url: 'nowhere' } }, 'pipeline.steps[0].tool.execute.url'],
        [{ name: 'x', type: 'platform' }, 'pipeline.steps[0].tool.actions'],
      ]
      for (const [definition, path] of definitions)
        refusedAt(await key.post('/tools', pipeline([{ id: 'a', tool: definition }])), path)
      const stray = pipeline([{ id: 'a', tool: inline('/{{city}}') }])
      assert.deepEqual(refused(await key.post('/tools', stray), 400, 'INVALID_TEMPLATE_TOKEN').meta, {
        tokens: ['{{city}}'],
      })
      assert.equal(
        (await key.post('/tools', pipeline(step({ input: { v: { preserve: { var: 'steps.x' } } } })))).status,
        201,
      )
    })

    it('end with the first step that fails, and say why', async () => {
      const gone = await made(key, execute())
      const tool = await made(
        key,
        pipeline([
          { id: 'one', tool: inline('/one') },
          { id: 'two', tool: inline('/two') },
          { id: 'three', tool_id: gone.id },
        ]),
      )
      target.answer = ({ url }, response) => json({}, url === '/two' ? 500 : 200)(undefined as never, response)
      assert.deepEqual(refused(await call(key, tool.id), 422, 'PIPELINE_STEP_FAILED').meta, {
        step_id: 'two',
        cause: {
          code: 'TOOL_HTTP_ERROR',
          message: 'Target of the tool responded with 500',
          meta: { tool_status_code: 500, tool_response_body: '{}', tool_url: `${target.url}/two`, tool_method: 'POST' },
        },
      })
      assert.deepEqual(
        target.requests.map(({ url }) => url),
        ['/one', '/two'],
      )
      target.answer = json(1)
      assert.equal((await key.delete(`/tools/${gone.id}`)).status, 204)
      const { meta } = refused(await call(key, tool.id), 422, 'PIPELINE_STEP_FAILED')
      assert.deepEqual([meta.step_id, meta.cause.code], ['three', 'TOOL_NOT_FOUND'])
    })

    it('fill in secrets of their steps, and reveal none', async () => {
      const secret = await secretOf(key, 'the step secret')
      const tool = await made(
        key,
        pipeline([{ id: 'a', tool: inline('/x', { headers: { 'X-Key': `{{secret:${secret}}}` } }) }]),
      )
      assert.equal((await call(key, tool.id)).status, 200)
      assert.equal(target.last().headers['x-key'], 'the step secret')
      target.answer = ({ headers }, response) => response.writeHead(500).end(headers['x-key'])
      assert.ok(!JSON.stringify((await call(key, tool.id)).body).includes('step secret'))
      assert.deepEqual((await key.get(`/secrets/${secret}/references`)).body.data[0].id, tool.id)
      const writer = await app.user(undefined, [
        { statement: [{ effect: 'Allow', action: ['tools:*'], resource: [`srn:${id}:*:*`] }] },
      ])
      const moved = tool.pipeline.steps.map((step: any) => ({
        ...step,
        tool: { ...step.tool, execute: { ...step.tool.execute, url: 'https://evil.example.com/' } },
      }))
      refused(await writer.patch(`/tools/${tool.id}`, { pipeline: { steps: moved } }), 403, 'FORBIDDEN')
    })

    it('nest five deep, also within themselves', async () => {
      let inner = await made(key, execute('/leaf'))
      for (let depth = 0; depth < 5; depth++) inner = await made(key, pipeline([{ id: 's', tool_id: inner.id }]))
      assert.equal((await call(key, inner.id)).body.url, '/leaf')
      const sixth = await made(key, pipeline([{ id: 's', tool_id: inner.id }]))
      refused(await call(key, sixth.id), 422, 'PIPELINE_DEPTH_EXCEEDED')
      const step = { id: 's', tool_id: inner.id }
      const loop = await made(key, pipeline([step]))
      await key.patch(`/tools/${loop.id}`, { pipeline: { steps: [{ id: 's', tool_id: loop.id }] } })
      refused(await call(key, loop.id), 422, 'PIPELINE_DEPTH_EXCEEDED')
      assert.equal(target.requests.length, 1)
      const failing = await made(
        key,
        pipeline([
          {
            id: 'outer',
            tool_id: (await made(key, pipeline([{ id: 'inner', tool_id: (await made(key, {})).id }]))).id,
          },
        ]),
      )
      assert.equal(refused(await call(key, failing.id), 422, 'PIPELINE_STEP_FAILED').meta.step_id, 'inner')
    })

    it('lead to 500 calls at most', async () => {
      let inner = await made(key, execute('/leaf'))
      for (let level = 0; level < 3; level++)
        inner = await made(key, pipeline(Array.from({ length: 30 }, (_, n) => ({ id: `s${n}`, tool_id: inner.id }))))
      target.answer = json(1)
      refused(await call(key, inner.id), 422, 'PIPELINE_DEPTH_EXCEEDED')
      assert.ok(target.requests.length < 500, `${target.requests.length}`)
    })

    it('take no longer, and gather no more, than one call may', async () => {
      target.answer = (_request, response) => void setTimeout(() => json(1)(undefined as never, response), 1500)
      const steps = Array.from({ length: 20 }, (_, n) => ({ id: `s${n}`, tool: inline() }))
      const started = performance.now()
      const late = refused(await call(key, (await made(key, pipeline(steps))).id), 422, 'PIPELINE_STEP_FAILED')
      assert.equal(late.meta.cause.meta.reason, 'timeout')
      assert.ok(performance.now() - started < 15_000)
      target.answer = json('x'.repeat(90_000))
      const large = refused(await call(key, (await made(key, pipeline(steps))).id), 422, 'PIPELINE_STEP_FAILED')
      assert.deepEqual([large.meta.step_id, large.meta.cause.meta.reason], ['s4', 'response_too_large'])
      target.answer = json(1)
      const range = Array.from({ length: 500 }, (_, n) => n)
      const heavy = { map: [{ preserve: range }, { map: [{ preserve: range }, { '+': [{ var: '' }] }] }] }
      const tool = await made(key, pipeline([{ id: 'a', tool: inline() }], { output: heavy }))
      assert.equal(refused(await call(key, tool.id), 422, 'PIPELINE_STEP_FAILED').meta.cause.code, 'VALIDATION_FAILED')
    })
  })

  describe('platform tools', () => {
    const platform = (actions: string[], more: object = {}) => ({
      name: 'platform',
      type: 'platform',
      actions,
      ...more,
    })

    it('are also called soat, and list their actions', async () => {
      const tool = await made(key, { name: 'old', type: 'soat', actions: ['list-tools', 'get-actor'] })
      assert.equal(tool.type, 'platform')
      const { data } = (await key.get(`/tools/${tool.id}/actions`)).body
      assert.deepEqual(
        data.map((each: any) => [each.name, each.resolved_name]),
        [
          ['list-tools', 'old_list-tools'],
          ['get-actor', 'old_get-actor'],
        ],
      )
      assert.deepEqual(data[1].input_schema.required, ['actor_id'])
      assert.ok(
        ['name', 'type', 'limit', 'offset', 'project_id'].every(name => name in data[0].input_schema.properties),
      )
    })

    it('name operations that can be offered', async () => {
      const wrong = async (action: string) =>
        refusedAt(await key.post('/tools', platform(['list-tools', action])), 'actions[1]').message as string
      assert.match(await wrong('listActors'), /; use list-actors$/)
      for (const action of ['nothing', 'list-tools', '']) await wrong(action)
      for (const id of [
        'loginUser',
        'bootstrapUser',
        'downloadFile',
        'uploadFile',
        'uploadFileWithToken',
        'replaceFileContent',
        'completeIngestionCallback',
        'pauseProject',
        'resumeProject',
        'exportAuditEntries',
        'exportConversation',
        'streamGeneration',
      ]) {
        assert.ok(operations.find(id), id)
        assert.ok(!(await wrong(id.replace(/[A-Z]/g, letter => `-${letter.toLowerCase()}`))).includes('; use '))
      }
    })

    it('carry out operations with their arguments as one flat object', async () => {
      const tool = await made(
        key,
        platform(['create-actor', 'get-actor', 'list-actors', 'update-actor', 'delete-actor', 'replace-actor-tags']),
      )
      const act = async (action: string, input?: object) => {
        const reply = await call(key, tool.id, input, { action })
        assert.equal(reply.status, 200, JSON.stringify(reply.body))
        return reply.body
      }
      const actor = await act('create-actor', { name: 'Ada' })
      assert.match(actor.id, /^actor_/)
      assert.deepEqual(await act('get-actor', { actor_id: actor.id }), actor)
      await act('create-actor', { name: 'Bob' })
      await act('replace-actor-tags', { actor_id: actor.id, tags: { team: 'desk' } })
      const listed = await act('list-actors', { name: 'ADA', limit: 5, tags: { team: 'desk' } })
      assert.deepEqual([listed.total, listed.limit, listed.data[0].id], [1, 5, actor.id])
      assert.equal((await act('update-actor', { actor_id: actor.id, name: 'Ada L.' })).name, 'Ada L.')
      assert.equal(await act('delete-actor', { actor_id: actor.id }), null)
      const audit = async () => (await app.admin.get(`/audit-log?project_id=${id}&action=actors:DeleteActor`)).body.data
      assert.deepEqual([(await audit())[0].resource_public_id, (await audit())[0].status], [actor.id, 204])
    })

    it('refuse unknown or missing arguments of an operation, before it runs', async () => {
      const tool = await made(key, platform(['create-actor', 'get-actor', 'list-actors', 'create-agent-generation']))
      const wrong = async (action: string, input: object, path: string) =>
        refusedAt(await call(key, tool.id, input, { action }), path)
      await wrong('create-actor', { name: 5 }, 'input.name')
      await wrong('create-actor', { name: 'x', surprise: 1 }, 'input.surprise')
      await wrong('get-actor', {}, 'input.actor_id')
      await wrong('get-actor', { actor_id: newId('actor'), surprise: 1 }, 'input.surprise')
      await wrong('list-actors', { surprise: 1 }, 'input.surprise')
      await wrong('create-agent-generation', { agent_id: newId('agent'), prompt: 'x', stream: true }, 'input.stream')
    })

    it('need an action of theirs, unless it is pinned', async () => {
      const tool = await made(key, platform(['list-actors', 'list-agents']))
      for (const action of [undefined, null, 'delete-actor', 'listActors'])
        refusedAt(await call(key, tool.id, {}, { action }), 'action')
      const pinned = await made(
        key,
        platform(['list-actors', 'list-agents'], { preset_parameters: { action: 'list-agents', limit: 1 } }),
      )
      for (const action of [undefined, 'list-agents'])
        assert.equal((await call(key, pinned.id, { limit: 7 }, { action })).body.limit, 1)
      refusedAt(await call(key, pinned.id, {}, { action: 'list-actors' }), 'action')
    })

    it('have the permissions of their caller, and report the refused action', async () => {
      const tool = await made(key, platform(['list-actors', 'create-actor', 'get-actor']))
      const statement = [
        {
          effect: 'Allow',
          action: ['tools:CallTool', 'actors:ListActors', 'actors:GetActor'],
          resource: [`srn:${id}:*:*`],
        },
      ]
      const limited = await app.user(undefined, [{ statement }])
      assert.equal((await call(limited, tool.id, { project_id: id }, { action: 'list-actors' })).status, 200)
      const denied = refused(
        await call(limited, tool.id, { name: 'x', project_id: id }, { action: 'create-actor' }),
        502,
        'TOOL_HTTP_ERROR',
      )
      assert.deepEqual(
        [denied.meta.tool_status_code, denied.meta.tool_method, denied.meta.tool_url],
        [403, 'POST', '/api/v1/actors'],
      )
      assert.equal(JSON.parse(denied.meta.tool_response_body).error.code, 'FORBIDDEN')
      assert.match(denied.hint, /Change the call for a meta.tool_status_code of 4xx/)
      const foreign = (await (await app.project()).key.post('/actors', { name: 'theirs' })).body.id
      const missing = refused(
        await call(key, tool.id, { actor_id: foreign }, { action: 'get-actor' }),
        502,
        'TOOL_HTTP_ERROR',
      )
      assert.deepEqual([missing.meta.tool_status_code, missing.meta.tool_url], [404, `/api/v1/actors/${foreign}`])
      const elsewhere = refused(
        await call(key, tool.id, { project_id: (await app.project()).id }, { action: 'list-actors' }),
        502,
        'TOOL_HTTP_ERROR',
      )
      assert.equal(JSON.parse(elsewhere.meta.tool_response_body).error.code, 'API_KEY_PROJECT_SCOPE')
    })

    it('are steps of pipelines, by their action', async () => {
      const tool = await made(key, platform(['create-actor']))
      const steps = [
        { id: 'make', tool_id: tool.id, action: 'create-actor', input: { name: { var: 'input.name' } } },
        { id: 'tell', tool: { name: 'i', ...execute('/{id}') }, input: { id: { var: 'steps.make.id' } } },
      ]
      const { url } = (await call(key, (await made(key, pipeline(steps))).id, { name: 'Eve' })).body
      assert.match(url, /^\/actor_/)
      const without = pipeline([{ id: 'make', tool_id: tool.id }])
      const { meta } = refused(await call(key, (await made(key, without)).id), 422, 'PIPELINE_STEP_FAILED')
      assert.equal(meta.cause.code, 'VALIDATION_FAILED')
    })

    it('cannot call themselves without end', async () => {
      const tool = await made(key, platform(['call-tool'], { preset_parameters: { action: 'call-tool' } }))
      const input = { tool_id: tool.id, input: {} }
      let nested: object = input
      for (let depth = 0; depth < 10; depth++) nested = { tool_id: tool.id, input: nested }
      const error = refused(await call(key, tool.id, nested), 502, 'TOOL_HTTP_ERROR')
      assert.ok(JSON.stringify(error).includes('PIPELINE_DEPTH_EXCEEDED'))
    })
  })
})

describe('platform tools that start work', () => {
  const app = forSuite(() => startAgentApp({ actions: ['tools:*', 'agents:CreateAgentGeneration', 'generations:*'] }))

  it('wait for it, and hold no connection meanwhile', async () => {
    const actions = ['create-agent-generation']
    const tool = await made(app.key, {
      name: 'ask',
      type: 'platform',
      actions,
      preset_parameters: { agent_id: app.agentId },
    })
    const { data } = (await app.key.get(`/tools/${tool.id}/actions`)).body
    const { properties, required } = data[0].input_schema
    for (const name of ['agent_id', 'wait', 'stream']) assert.equal(name in properties, false, name)
    assert.ok(!required?.includes('agent_id'))
    const asked = Array.from({ length: 10 }, (_, n) =>
      call(app.key, tool.id, { prompt: `hello ${n}` }, { action: actions[0] }),
    )
    for (const [n, reply] of (await Promise.all(asked)).entries()) {
      assert.deepEqual([reply.status, reply.body.status], [200, 'completed'], JSON.stringify(reply.body))
      assert.equal(reply.body.output.content, `echo: hello ${n}`)
    }
  })
})
