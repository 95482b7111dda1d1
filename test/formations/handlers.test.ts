import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { readRegisteredTypes } from '#formations/types/registered.ts'
import { tools, wire, withTasks } from '../mcp/support.ts'
import { eventually, startApp, type TestApp, type TestProject } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'
import { type Received, type Receiver, readSignature, startReceiver } from '../support/receiver.ts'
import { createdBy } from '../support/replies.ts'
import { active, fresh, physical, planned, store, updated } from './support.ts'

const SECRET = 'a secret of the operator'
const SECRETS = { CRM_SECRET: SECRET, BLANK: '' }
const MAILBOX = {
  name: 'mailbox',
  description: 'A mailbox of the company',
  handler: { url: 'http://127.0.0.1:1/', secret_env: 'CRM_SECRET' },
  capabilities: ['validate', 'read'],
  schema: {
    type: 'object',
    properties: { address: { type: 'string' }, quota: { type: 'integer' }, password: { type: 'string' } },
    required: ['address'],
  },
  write_only_properties: ['password'],
}

describe('registered types of resources', () => {
  let app: TestApp
  let project: TestProject
  let handler: Receiver
  let folder: string
  let boxes: Map<string, any>
  /** Answers in place of the handler, for requests that it gives one for. */
  let instead: (asked: any, response: ServerResponse) => unknown
  let count = 0
  const configured = (...entries: object[]): string => {
    const file = join(folder, `types-${++count}.json`)
    writeFileSync(file, JSON.stringify({ resource_types: entries }))
    return file
  }
  const answer = ({ event: asked }: Received, response: ServerResponse) => {
    if (instead(asked, response) !== undefined) return
    const { request_type, physical_resource_id: id, properties } = asked
    const made = (name: string) => ({ physical_resource_id: name, outputs: { login: `login ${name}`, size: 5 } })
    const reply = (body: object) => response.end(JSON.stringify(body))
    if (request_type === 'validate')
      return reply({ errors: properties.quota < 0 ? [{ path: 'quota', message: 'must not be negative' }] : [] })
    if (request_type === 'read') {
      const stored = boxes.get(id)
      return reply(stored ? { exists: true, ...made(id), properties: stored } : { exists: false })
    }
    const { password: _hidden, ...open } = properties ?? {}
    if (request_type === 'delete') {
      boxes.delete(id)
      return reply({})
    }
    const name = request_type === 'create' || open.address !== boxes.get(id)?.address ? `box ${open.address}` : id
    boxes.set(name, open)
    return reply(made(name))
  }
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'types-'))
    handler = await startReceiver(answer)
    Object.assign(process.env, SECRETS)
    const blind = { ...MAILBOX, name: 'blind', capabilities: [], write_only_properties: [] }
    const hasty = { ...blind, name: 'hasty', handler: { ...blind.handler, timeout_seconds: 0.2 } }
    const file = configured(
      ...[MAILBOX, blind, hasty].map(entry => ({ ...entry, handler: { ...entry.handler, url: handler.url } })),
    )
    // No egress is allowed: the operator's handlers need none.
    app = await startApp({
      workers: ['orchestration'],
      env: { FORMATION_RESOURCE_TYPES_CONFIG: file, MCP_TASK_AFTER_MS: '300', ...SECRETS },
    })
    // Nothing but formations is required of the caller.
    project = await app.projectWith(['formations:*', 'memories:*'])
  })
  after(async () => {
    for (const name of Object.keys(SECRETS)) delete process.env[name]
    await app?.close()
    await handler.close()
    rmSync(folder, { recursive: true })
  })
  beforeEach(() => {
    boxes = new Map()
    instead = () => undefined
    handler.requests.length = 0
  })

  const box = (properties: object, type = 'mailbox') => ({ type, properties })
  const asked = (type?: string): any[] =>
    handler.requests.map(({ event }) => event).filter(({ request_type }) => !type || request_type === type)
  const failing = (type: string, respond: (response: ServerResponse) => unknown) => {
    instead = ({ request_type }, response) => (request_type === type ? (respond(response) ?? true) : undefined)
  }
  const deployed = (template: object) => createdBy(project.key, '/formations', { name: fresh(), template })

  it('are refused at boot with the file and the entry', async () => {
    const wrong: [object, RegExp][] = [
      [{ ...MAILBOX, name: 'Mail' }, /resource_types\[0\]\.name/],
      [{ ...MAILBOX, name: 'agent' }, /agent/],
      [{ ...MAILBOX, more: 1 }, /resource_types\[0\]\.more/],
      [{ ...MAILBOX, handler: { ...MAILBOX.handler, url: 'ftp://x' } }, /resource_types\[0\]\.handler\.url/],
      [{ ...MAILBOX, handler: { ...MAILBOX.handler, timeout_seconds: 0 } }, /handler\.timeout_seconds/],
      [{ ...MAILBOX, handler: { ...MAILBOX.handler, secret_env: 'BLANK' } }, /mailbox.*BLANK/],
      [{ ...MAILBOX, handler: { ...MAILBOX.handler, secret_env: 'UNSET' } }, /mailbox.*UNSET/],
      [{ ...MAILBOX, capabilities: ['create'] }, /capabilities/],
      [{ ...MAILBOX, schema: { type: 'array' } }, /resource_types\[0\]\.schema/],
      [{ ...MAILBOX, write_only_properties: ['nobody'] }, /mailbox.*nobody/],
    ]
    for (const [entry, words] of wrong) {
      const file = configured(entry)
      assert.throws(
        () => readRegisteredTypes(file, SECRETS),
        (error: Error) => error.message.includes(file) && words.test(error.message),
        JSON.stringify(entry),
      )
    }
    const twice = configured(MAILBOX, MAILBOX)
    assert.throws(() => readRegisteredTypes(twice, SECRETS), /mailbox/)
    const garbage = join(folder, 'garbage.json')
    writeFileSync(garbage, '{')
    for (const file of [garbage, join(folder, 'missing.json')])
      assert.throws(() => readRegisteredTypes(file, SECRETS), new RegExp(file))
    assert.equal(readRegisteredTypes(configured(MAILBOX), SECRETS).length, 1)
    const x = { type: 'nothing' }
    const unusable = configured({ ...MAILBOX, schema: { type: 'object', properties: { password: x } } })
    for (const [file, words] of [
      [garbage, 'is not valid JSON'],
      [unusable, 'mailbox: schema'],
    ])
      await assert.rejects(
        startProcess('web', app.databaseUrl, { FORMATION_RESOURCE_TYPES_CONFIG: file, ...SECRETS }),
        ({ message }: Error) => message.includes(file) && message.includes(words),
      )
  })

  it('are made, changed, replaced and deleted by signed requests', async () => {
    const template = (properties: object) => ({
      resources: { Box: box(properties), S: store('s', { depends_on: 'Box' }) },
      outputs: { login: { ref_attr: 'Box.login' }, id: { ref: 'Box' } },
    })
    const formation = await active(project.key, template({ address: 'a', quota: 1 }))
    assert.deepEqual(formation.outputs, { login: 'login box a', id: 'box a' })
    const about = { resource_type: 'mailbox', logical_id: 'Box' }
    const of = { ...about, project_id: project.id }
    assert.deepEqual(asked('validate'), [
      { request_type: 'validate', ...about, properties: { address: 'a', quota: 1 } },
    ])
    assert.deepEqual(asked('create'), [{ request_type: 'create', ...of, properties: { address: 'a', quota: 1 } }])
    for (const request of handler.requests) {
      assert.deepEqual(readSignature(request, SECRET).verified, [true])
      assert.match(String(request.headers['x-svc-idempotency-key']), /.{10}/)
    }
    assert.deepEqual(await planned(project.key, { formation_id: formation.id }), [
      ['Box', 'no-op'],
      ['S', 'no-op'],
    ])

    await updated(project.key, formation, { template: template({ address: 'a', quota: 2 }) })
    assert.deepEqual(asked('update'), [
      { request_type: 'update', ...of, physical_resource_id: 'box a', properties: { address: 'a', quota: 2 } },
    ])
    assert.deepEqual(boxes.get('box a'), { address: 'a', quota: 2 })

    const replaced = await updated(project.key, formation, { template: template({ address: 'b', quota: 2 }) })
    assert.deepEqual([replaced.status, replaced.outputs.id], ['active', 'box b'])
    assert.deepEqual(asked('delete'), [{ request_type: 'delete', ...of, physical_resource_id: 'box a' }])
    const { data } = (await project.key.get(`/formations/${formation.id}/events`)).body
    assert.deepEqual(
      data.at(-1).events.map(({ logical_id, action }: any) => [logical_id, action]),
      [
        ['Box', 'replace'],
        ['S', 'no-op'],
        ['Box', 'replace-cleanup'],
      ],
    )
    assert.equal((await project.key.delete(`/formations/${formation.id}`)).status, 200)
    assert.equal(boxes.size, 0)
  })

  it('have drift where their handler reads them, and are made again when they are gone', async () => {
    const formation = await active(project.key, {
      resources: { Box: box({ address: 'a', quota: 1 }), Blind: box({ address: 'x' }, 'blind') },
    })
    boxes.get('box a').quota = 7
    const drift = (await project.key.get(`/formations/${formation.id}/drift`)).body
    assert.deepEqual(
      drift.resources.map(({ logical_id, status, diff }: any) => [logical_id, status, diff?.current]),
      [
        ['Box', 'drifted', { quota: 7 }],
        ['Blind', 'not_supported', undefined],
      ],
    )
    boxes.delete('box a')
    const { changes } = (await project.key.post('/formations/plan', { formation_id: formation.id })).body
    assert.deepEqual(
      changes.map(({ action, diff }: any) => [action, diff?.current]),
      [
        ['update', null],
        ['no-op', undefined],
      ],
    )
    const again = await updated(project.key, formation, {})
    assert.equal(physical(again, 'Box'), 'box a')
    assert.deepEqual(boxes.get('box a'), { address: 'a', quota: 1 })
  })

  it('are checked by their schema, and by their handler once nothing else is wrong', async () => {
    const problems = async (template: object) => {
      const { body } = await project.key.post('/formations/validate', { template })
      return body.errors.map(({ path: at }: any) => at).sort()
    }
    const local = { resources: { Box: box({ quota: -1, more: 1 }), S: store('s', {}, { nobody: 1 }) } }
    assert.deepEqual(await problems(local), [
      'resources.Box.properties.address',
      'resources.Box.properties.more',
      'resources.S.properties.nobody',
    ])
    assert.deepEqual(asked(), [])
    const negative = { resources: { Box: box({ address: 'a', quota: -1 }) } }
    assert.deepEqual(await problems(negative), ['resources.Box.properties.quota'])
    for (const [route, more] of [
      ['/formations/plan', {}],
      ['/formations', { name: fresh() }],
    ] as const) {
      const refused = await project.key.post(route, { template: negative, ...more })
      assert.deepEqual([refused.status, refused.body.error.code], [400, 'VALIDATION_FAILED'])
      assert.deepEqual(refused.body.error.meta.problems, [
        { code: 'INVALID_VALUE', path: 'resources.Box.properties.quota', message: 'must not be negative' },
      ])
    }
    assert.deepEqual(asked('create'), [])
  })

  it('are not refused by their handler for values that are unknown before the deploy', async () => {
    instead = ({ request_type, properties }, response) => {
      if (request_type !== 'validate') return undefined
      const wrong = typeof properties.address !== 'string'
      response.end(JSON.stringify({ errors: wrong ? [{ path: 'address', message: 'must be a text' }] : [] }))
      return true
    }
    const template = { resources: { S: store('s'), Box: box({ address: { ref: 'S' } }) } }
    const { body } = await project.key.post('/formations/validate', { template })
    assert.deepEqual(body.errors, [])
    const formation = await active(project.key, template)
    assert.equal(physical(formation, 'Box'), `box ${physical(formation, 'S')}`)
  })

  it('are deleted with the formation even where they were replaced and could not be deleted then', async () => {
    const template = (address: string) => ({ resources: { Box: box({ address }) } })
    const formation = await active(project.key, template('a'))
    failing('delete', response => response.writeHead(500).end())
    const replaced = await updated(project.key, formation, { template: template('b') })
    assert.deepEqual([replaced.status, replaced.error.code], ['active', 'FORMATION_REPLACE_CLEANUP_FAILED'])
    instead = ({ request_type, physical_resource_id }, response) =>
      request_type === 'delete' && physical_resource_id === 'box a'
        ? (response.writeHead(500).end() ?? true)
        : undefined
    const refused = await project.key.delete(`/formations/${formation.id}`)
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'FORMATION_DELETE_FAILED'])
    assert.deepEqual(
      refused.body.error.meta.failures.map(({ logical_id, physical_resource_id }: any) => [
        logical_id,
        physical_resource_id,
      ]),
      [['Box', 'box a']],
    )
    assert.deepEqual([...boxes.keys()], ['box a'])
    instead = () => undefined
    assert.equal((await project.key.delete(`/formations/${formation.id}`)).status, 200)
    assert.equal(boxes.size, 0)
  })

  it('answer requests that only read with 502 when their handler fails', async () => {
    failing('validate', response => response.writeHead(500).end(JSON.stringify({ message: 'The CRM is down' })))
    const template = { resources: { Box: box({ address: 'a' }) } }
    for (const route of ['/formations/validate', '/formations/plan']) {
      const { status, body } = await project.key.post(route, { template })
      assert.equal(status, 502)
      const { code, message, meta } = body.error
      assert.deepEqual([code, message], ['FORMATION_HANDLER_FAILED', 'The CRM is down'])
      assert.deepEqual(meta, { resource_type: 'mailbox', request_type: 'validate' })
    }
  })

  it('fail the deploy, and undo its creations, for every kind of bad answer', async () => {
    const bad: [string, (response: ServerResponse) => unknown, RegExp][] = [
      ['a status', response => response.writeHead(500).end(JSON.stringify({ message: 'no' })), /^no$/],
      ['a status without words', response => response.writeHead(302, { location: handler.url }).end(), /302/],
      ['no JSON', response => response.end('<html>'), /invalid response/],
      ['another form', response => response.end('{"id":"x"}'), /invalid response/],
      ['an empty id', response => response.end('{"physical_resource_id":""}'), /invalid response/],
      ['a long answer', response => response.end(`{"physical_resource_id":"x","pad":"${'x'.repeat(2_000_000)}"}`), /./],
      ['silence', () => true, /timed out/],
      ['a broken connection', response => response.destroy(), /reached/],
    ]
    for (const [what, respond, words] of bad) {
      const type = what === 'silence' ? 'hasty' : 'mailbox'
      failing('create', respond)
      handler.requests.length = 0
      const formation = await deployed({
        resources: { S: store('undone'), Box: { ...box({ address: 'a' }, type), depends_on: 'S' } },
      })
      const { status, error } = formation
      assert.deepEqual([status, error.code], ['failed', 'FORMATION_HANDLER_FAILED'], what)
      assert.match(error.message, words, what)
      assert.deepEqual(error.meta, { resource_type: type, request_type: 'create', logical_id: 'Box' }, what)
      assert.equal(asked('create').length, 1, what)
      assert.doesNotMatch(JSON.stringify(formation), new RegExp(SECRET))
    }
    assert.deepEqual((await project.key.get('/memory-stores?name=undone')).body.data, [])
  })

  it('are called with an unchanged key when a deploy is repeated', async () => {
    failing('create', response => response.writeHead(503).end())
    const formation = await deployed({ resources: { Box: box({ address: 'a' }) } })
    instead = () => undefined
    assert.equal((await updated(project.key, formation, {})).status, 'active')
    const keys = handler.requests
      .filter(({ event }) => event.request_type === 'create')
      .map(({ headers }) => headers['x-svc-idempotency-key'])
    assert.equal(keys.length, 2)
    assert.equal(new Set(keys).size, 1)
  })

  it('get write-only properties with every deploy, which nothing shows', async () => {
    const template = {
      parameters: { Password: { no_echo: true, use_previous_value: true } },
      resources: { Box: box({ address: 'a', password: { param: 'Password' } }) },
    }
    const formation = await active(project.key, template, { parameters: { Password: 'open sesame' } })
    assert.deepEqual(formation.template.resources.Box.properties.password, { no_echo: true })
    const literal = { resources: { Box: box({ address: 'a', password: 'open sesame' }) } }
    const after = await updated(project.key, formation, { template: literal })
    assert.deepEqual(await planned(project.key, { formation_id: formation.id }), [['Box', 'update']])
    const events = (await project.key.get(`/formations/${formation.id}/events`)).body
    const plan = (await project.key.post('/formations/plan', { formation_id: formation.id })).body
    assert.doesNotMatch(JSON.stringify([formation, after, events, plan]), /open sesame/)
    assert.deepEqual(
      asked('update').map(({ properties }) => properties.password),
      ['open sesame'],
    )
  })

  it('allow manual changes in between, which a deploy that does not force its values finds', async () => {
    const template = (description: string) => ({
      resources: { Box: box({ address: 'a' }), S: store('s', { depends_on: 'Box' }, { description }) },
    })
    const formation = await active(project.key, template('one'))
    const path = `/memory-stores/${physical(formation, 'S')}`
    let reads = 0
    let goOn: (() => void) | undefined
    // The plan of the request reads first, then the worker.
    instead = ({ request_type, physical_resource_id }, response) => {
      if (request_type !== 'read' || ++reads !== 2) return undefined
      const answered = { exists: true, physical_resource_id, properties: { address: 'a' } }
      goOn = () => response.end(JSON.stringify(answered))
      return true
    }
    const going = updated(project.key, formation, { template: template('two'), force_conflicts: false })
    await eventually(async () => goOn)
    await project.key.patch(path, { description: 'by hand' })
    goOn?.()
    const { status, error } = await going
    assert.deepEqual([status, error.code, error.meta.logical_id], ['failed', 'FORMATION_CONFLICT', 'S'])
    assert.equal((await project.key.get(path)).body.description, 'by hand')
  })

  it('may take their time: deploys and deletes are tasks for models', async () => {
    const late = 700
    instead = ({ request_type }, response) => {
      if (request_type !== 'create' && request_type !== 'delete') return undefined
      const reply = request_type === 'create' ? { physical_resource_id: 'slow' } : {}
      setTimeout(() => response.end(JSON.stringify(reply)), late)
      return true
    }
    const call = tools(app.url, project.key.token)
    const send = wire(app.url, project.key.token)
    const task = async (name: string, args: object) => {
      const started = await call(name, args as never, { capabilities: withTasks })
      assert.deepEqual([started.resultType, started.status], ['task', 'working'], JSON.stringify(started))
      return eventually(async () => {
        const { result } = (await send('tasks/get', { taskId: started.taskId }, { capabilities: withTasks })).body
        return result.status !== 'working' && result
      })
    }
    const template = { resources: { Box: box({ address: 'a' }, 'blind') } }
    const made = await task('create-formation', { name: fresh(), template })
    const formation = made.result.structuredContent
    assert.deepEqual([made.status, formation.status], ['completed', 'active'])
    const deleted = await task('delete-formation', { formation_id: formation.id })
    assert.deepEqual([deleted.status, deleted.result.structuredContent], ['completed', { success: true }])
    failing('create', response => setTimeout(() => response.writeHead(500).end(), late) && undefined)
    const failed = await task('create-formation', { name: fresh(), template })
    assert.deepEqual([failed.status, failed.result.isError], ['completed', true])
    assert.equal(failed.result.structuredContent.error.code, 'FORMATION_HANDLER_FAILED')
  })

  it('may be put under a formation where their handler shows them', async () => {
    const template = {
      parameters: { Adopt: { default: 'no' } },
      resources: {
        Box: { ...box({ address: 'mine' }), condition: { param_equals: ['Adopt', 'yes'] } },
        Blind: { ...box({ address: 'mine' }, 'blind'), condition: { param_equals: ['Adopt', 'yes'] } },
      },
    }
    const formation = await active(project.key, template)
    const adopt = (logical_id: string, physical_resource_id: string) =>
      project.key.post(`/formations/${formation.id}/import`, { logical_id, physical_resource_id })
    assert.equal((await adopt('Box', 'box mine')).status, 404)
    boxes.set('box mine', { address: 'mine' })
    assert.equal(physical((await adopt('Box', 'box mine')).body, 'Box'), 'box mine')
    const blind = await adopt('Blind', 'box mine')
    assert.deepEqual(blind.body.error.meta.problems[0].path, 'physical_resource_id')
  })
})
