import assert from 'node:assert/strict'
import { type Client, eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { accepted, eventsOf, PUBLISHING, shared, USING } from './share-support.ts'
import { call, json, made, refused, refusedAt, secretOf, startTarget } from './tool-target.ts'

describe('shares of tools', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() => startApp({ together: true }))
  const publisher = forSuite(() => app.projectWith(PUBLISHING))
  const grantee = forSuite(() => app.projectWith(USING))
  const stranger = forSuite(() => app.projectWith(USING))

  const tool = (fields: Record<string, unknown> = {}, key: Client = publisher.key) =>
    made(key, { execute: { url: `${target.url}/shared` }, ...fields })
  const nameOf = (id: string, project = publisher.id) => `srn:${project}:tool:${id}`
  /** A tool with a share for the grantee. */
  async function offered(fields: Record<string, unknown> = {}, terms: Record<string, unknown> = {}) {
    const { id } = await tool(fields)
    return { id, share: await shared(publisher.key, nameOf(id), { grantee: grantee.id, ...terms }) }
  }
  async function usable(fields: Record<string, unknown> = {}, terms: Record<string, unknown> = {}) {
    const { id, share } = await offered(fields, terms)
    return { id, share, acceptance: await accepted(grantee.key, share.id) }
  }
  const act = (key: Client, share: { id: string }, verb: string, body?: object) =>
    key.post(`/shares/${share.id}/${verb}`, body)
  const works = async (id: string, key = grantee.key) => assert.equal((await call(key, id)).status, 200)
  const outOfScope = async (id: string) => {
    const { meta } = refused(await call(grantee.key, id), 403, 'API_KEY_PROJECT_SCOPE')
    assert.deepEqual(meta, { scoped_project: grantee.id, requested_project: publisher.id })
  }

  it('are read whole, with what others are shown of the tool', async () => {
    const { id, share } = await offered({ description: 'Finds', parameters: { type: 'object', properties: { a: {} } } })
    assert.match(share.id, /^shr_[0-9a-z]{26}$/)
    const expected = {
      id: share.id,
      project_id: publisher.id,
      resource: nameOf(id),
      actions: ['tools:CallTool'],
      grantee: grantee.id,
      cap: null,
      expires_at: null,
      suspended_at: null,
      revoked_at: null,
      acceptance: null,
      projection: null,
      created_at: share.created_at,
      updated_at: share.created_at,
    }
    assert.deepEqual(share, expected)
    const projection = {
      id,
      name: 'tool',
      description: 'Finds',
      parameters: { type: 'object', properties: { a: {} } },
    }
    assert.deepEqual((await publisher.key.get(`/shares/${share.id}`)).body, { ...expected, projection })
    const acceptance = await accepted(grantee.key, share.id)
    assert.match(acceptance.id, /^shr_acc_[0-9a-z]{26}$/)
    assert.deepEqual(
      [acceptance.share_id, acceptance.project_id, acceptance.status, acceptance.revoked_by, acceptance.revoked_at],
      [share.id, grantee.id, 'active', null, null],
    )
    assert.deepEqual((await grantee.key.get(`/shares/${share.id}`)).body, { ...expected, acceptance, projection })
  })

  it('grant once they are accepted; who no share names finds nothing', async () => {
    const { id, share } = await offered()
    const before = target.requests.length
    await outOfScope(id)
    assert.equal(target.requests.length, before)
    await accepted(grantee.key, share.id)
    assert.deepEqual((await call(grantee.key, id)).body, { ok: true })
    const unknown = refused(await call(stranger.key, id), 404, 'RESOURCE_NOT_FOUND')
    const none = 'tool_00000000000000000000000000'
    const missing = refused(await call(stranger.key, none), 404, 'RESOURCE_NOT_FOUND')
    assert.deepEqual(JSON.parse(JSON.stringify(unknown).replaceAll(id, none)), missing)
  })

  it('stop while they are suspended, and continue without another acceptance', async () => {
    const { id, share } = await usable()
    const suspended = (await act(publisher.key, share, 'suspend')).body
    assert.notEqual(suspended.suspended_at, null)
    assert.deepEqual((await act(publisher.key, share, 'suspend')).body, suspended)
    await outOfScope(id)
    assert.equal((await act(publisher.key, share, 'resume')).body.suspended_at, null)
    await act(publisher.key, share, 'resume')
    await works(id)
    assert.deepEqual(await eventsOf(app, publisher.id, share.id), [
      'shares.created',
      'shares.accepted',
      'shares.suspended',
      'shares.resumed',
    ])
  })

  it('may be accepted while they are suspended, and grant nothing yet', async () => {
    const { id, share } = await offered()
    await act(publisher.key, share, 'suspend')
    await accepted(grantee.key, share.id)
    await outOfScope(id)
    await act(publisher.key, share, 'resume')
    await works(id)
  })

  it('end permanently when their publisher revokes them', async () => {
    const { id, share } = await usable()
    const revoked = (await act(publisher.key, share, 'revoke')).body
    assert.notEqual(revoked.revoked_at, null)
    assert.equal((await act(publisher.key, share, 'revoke')).body.revoked_at, revoked.revoked_at)
    await outOfScope(id)
    for (const [key, verb] of [
      [grantee.key, 'accept'],
      [publisher.key, 'suspend'],
      [publisher.key, 'resume'],
    ] as const)
      refused(await act(key, share, verb), 403, 'SHARE_REVOKED')
    refused(await publisher.key.patch(`/shares/${share.id}`, { cap: null }), 403, 'SHARE_REVOKED')
    const { acceptance } = (await grantee.key.get(`/shares/${share.id}`)).body
    assert.deepEqual([acceptance.status, acceptance.revoked_by], ['revoked', 'publisher'])
    assert.deepEqual((await eventsOf(app, publisher.id, share.id)).slice(-1), ['shares.revoked'])
  })

  it('are taken back from one project, until its acceptance is deleted', async () => {
    const { id, share, acceptance } = await usable()
    const path = `/shares/${share.id}/acceptances/${acceptance.id}`
    const revoked = (await publisher.key.post(`${path}/revoke`)).body
    assert.deepEqual([revoked.status, revoked.revoked_by], ['revoked', 'publisher'])
    assert.deepEqual((await publisher.key.post(`${path}/revoke`)).body, revoked)
    refused(await act(grantee.key, share, 'accept'), 403, 'SHARE_REVOKED')
    await outOfScope(id)
    assert.equal((await publisher.key.delete(path)).status, 204)
    refused(await publisher.key.delete(path), 404, 'RESOURCE_NOT_FOUND')
    refused(await publisher.key.post(`${path}/revoke`), 404, 'RESOURCE_NOT_FOUND')
    await accepted(grantee.key, share.id)
    await works(id)
  })

  it('are listed with their acceptances for the publisher alone', async () => {
    const { share, acceptance } = await usable()
    const path = `/shares/${share.id}/acceptances`
    assert.deepEqual((await publisher.key.get(path)).body, { data: [acceptance], total: 1, limit: 50, offset: 0 })
    assert.equal((await publisher.key.get(`${path}?status=revoked`)).body.total, 0)
    refused(await grantee.key.get(path), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await stranger.key.get(path), 404, 'RESOURCE_NOT_FOUND')
  })

  it('are released by a project once nothing of it names the tool, or by force', async () => {
    const { id, share } = await usable()
    const names = {
      agent: await grantee.key.post('/agents', await agentWith(id)),
      tool: await grantee.key.post('/tools', {
        name: 'p',
        type: 'pipeline',
        pipeline: { steps: [{ id: 'a', tool_id: id }] },
      }),
      ingestion_rule: await grantee.key.post('/ingestion-rules', { content_type_glob: 'x/named', tool_id: id }),
    }
    for (const [type, { status, body }] of Object.entries(names))
      assert.equal(status, 201, `${type} ${JSON.stringify(body)}`)
    const byType = (a: { type: string }, b: { type: string }) => (a.type < b.type ? -1 : 1)
    const expected = Object.entries(names)
      .map(([type, { body }]) => ({ type, id: body.id }))
      .sort(byType)
    const listed = (await grantee.key.get(`/shares/${share.id}/references`)).body
    assert.deepEqual([listed.data.sort(byType), listed.total], [expected, 3])
    refusedAt(await publisher.key.get(`/shares/${share.id}/references`), 'project_id')
    const { meta } = refused(await act(grantee.key, share, 'revoke'), 409, 'SHARE_IN_USE')
    assert.deepEqual(meta.references.sort(byType), expected)
    await works(id)
    const given = await grantee.key.post(`/shares/${share.id}/revoke?force=true`)
    assert.equal(given.status, 200, JSON.stringify(given.body))
    assert.deepEqual([given.body.acceptance.status, given.body.acceptance.revoked_by], ['revoked', 'consumer'])
    assert.equal(given.body.revoked_at, null)
    await outOfScope(id)
    await accepted(grantee.key, share.id)
    await works(id)
    await grantee.key.delete(`/ingestion-rules/${names.ingestion_rule.body.id}`)
  })

  const agentWith = async (tool_id: string) => {
    const provider = await app.admin.post('/ai-providers', {
      project_id: grantee.id,
      name: 'p',
      provider: 'custom',
      default_model: 'm',
      base_url: 'http://127.0.0.1:9/v1',
    })
    return { name: 'a', ai_provider_id: provider.body.id, tool_bindings: [{ tool_id }] }
  }

  it('are released only by the project that accepted them', async () => {
    const { share } = await offered()
    refused(await act(grantee.key, share, 'revoke'), 404, 'RESOURCE_NOT_FOUND')
    refused(await act(stranger.key, share, 'revoke'), 404, 'RESOURCE_NOT_FOUND')
  })

  it('show the tool without how it is made', async () => {
    const { id } = await usable({
      description: 'd',
      parameters: { type: 'object', required: ['a', 'b'], properties: { a: { type: 'string' }, b: {} } },
      preset_parameters: { b: 'fixed' },
      execute: { url: `${target.url}/hidden`, headers: { 'X-Hidden': 'yes' } },
    })
    const { status, body, headers } = await grantee.key.get(`/tools/${id}`)
    assert.equal(status, 200)
    assert.deepEqual(body, {
      id,
      name: 'tool',
      description: 'd',
      parameters: { type: 'object', required: ['a'], properties: { a: { type: 'string' } } },
    })
    assert.equal(headers.get('etag'), null)
    assert.equal((await grantee.key.get('/tools?name=hidden')).body.total, 0)
    const seen = await call(grantee.key, id, { a: 'x', b: 'mine' })
    assert.equal(seen.status, 200, JSON.stringify(seen.body))
    assert.deepEqual(JSON.parse(target.last().body), { a: 'x', b: 'fixed' })
  })

  it('let no other project write', async () => {
    const { id, share } = await usable()
    refused(await grantee.key.patch(`/tools/${id}`, { name: 'mine' }), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await grantee.key.delete(`/tools/${id}`), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await grantee.key.get(`/tools/${id}/actions`), 403, 'API_KEY_PROJECT_SCOPE')
    for (const verb of ['suspend', 'resume']) refused(await act(grantee.key, share, verb), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await grantee.key.patch(`/shares/${share.id}`, { cap: null }), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await grantee.key.delete(`/shares/${share.id}`), 403, 'API_KEY_PROJECT_SCOPE')
    refused(await stranger.key.get(`/shares/${share.id}`), 404, 'RESOURCE_NOT_FOUND')
    refused(await stranger.key.patch(`/tools/${id}`, { name: 'mine' }), 404, 'RESOURCE_NOT_FOUND')
  })

  it('are called with the secrets of the publisher, which receives the id of the calling project', async () => {
    const secret = await secretOf(publisher.key, 'the publisher key')
    const { id } = await usable({
      context_keys: [],
      execute: {
        url: `${target.url}/secret`,
        headers: { Authorization: `Bearer {{secret:${secret}}}`, 'X-Caller': '{{context:calling_project_id}}' },
      },
    })
    await works(id)
    const { headers } = target.last()
    assert.equal(headers.authorization, 'Bearer the publisher key')
    assert.equal(headers['x-caller'], grantee.id)
    assert.equal(headers['x-svc-context-calling_project_id'], grantee.id)
    const own = await call(publisher.key, id)
    refused(own, 400, 'MISSING_TOOL_CONTEXT_KEY')
    const everything = app.logs.join('')
    assert.ok(!everything.includes('the publisher key'))
  })

  it('report a failure without the definition of the tool', async () => {
    const execute = { url: `${target.url}/hidden/{b}`, method: 'GET' }
    const { id } = await usable({ execute, preset_parameters: { b: 'fixed' } })
    target.answer = json({ said: 'no' }, 418)
    try {
      const { meta } = refused(await call(grantee.key, id), 502, 'TOOL_HTTP_ERROR')
      assert.deepEqual([meta.tool_status_code, meta.tool_url], [418, null])
      assert.equal(meta.tool_response_body, '{"said":"no"}')
      const steps = [{ id: 'a', tool_id: id }]
      const pipeline = await made(grantee.key, { type: 'pipeline', pipeline: { steps } })
      const failed = refused(await call(grantee.key, pipeline.id), 422, 'PIPELINE_STEP_FAILED')
      assert.ok(!JSON.stringify(failed).includes('hidden/fixed'), JSON.stringify(failed))
      const own = refused(await call(publisher.key, id), 502, 'TOOL_HTTP_ERROR')
      assert.equal(own.meta.tool_url, `${target.url}/hidden/fixed`)
    } finally {
      target.answer = json({ ok: true })
    }
    const blocked = await usable({ execute: { url: 'http://10.0.0.1/x' } })
    const error = refused(await call(grantee.key, blocked.id), 403, 'TOOL_EGRESS_BLOCKED')
    assert.ok(!JSON.stringify(error).includes('10.0.0.1'), JSON.stringify(error))
  })

  it('need the right to call in the project that calls', async () => {
    const { id } = await usable()
    const statement = (resource: string) => [{ effect: 'Allow', action: ['tools:CallTool'], resource: [resource] }]
    const keyWith = async (resource: string) => {
      const policy = await app.admin.post('/policies', { document: { statement: statement(resource) } })
      const made = await app.admin.post('/project-keys', { project_id: grantee.id, policy_ids: [policy.body.id] })
      return app.as(made.body.secret)
    }
    await works(id, await keyWith(nameOf(id, grantee.id)))
    refused(await call(await keyWith(nameOf('tool_other', grantee.id)), id), 403, 'FORBIDDEN')
  })

  it('are audited where they act', async () => {
    const { id } = await usable()
    await works(id)
    const find = async () =>
      (await app.admin.get(`/audit-log?project_id=${grantee.id}&action=tools:CallTool&resource_public_id=${id}`)).body
        .data?.[0]
    const entry = await eventually(find)
    assert.deepEqual([entry.resource_srn, entry.detail.granted_by_project], [nameOf(id, grantee.id), publisher.id])
  })

  it('do not run while the project that calls is paused', async () => {
    const other = await app.projectWith(USING)
    const { id } = await tool()
    const share = await shared(publisher.key, nameOf(id), { grantee: other.id })
    await accepted(other.key, share.id)
    await app.admin.post(`/projects/${other.id}/pause`)
    const error = refused(await call(other.key, id), 409, 'PROJECT_PAUSED')
    assert.equal(error.meta.project_id, other.id)
  })

  it('let steps of pipelines name the tool while it is shared', async () => {
    const { id, share } = await usable()
    target.answer = json({ from: 'the step' })
    const steps = [{ id: 'a', tool_id: id, input: { x: { var: 'input.x' } } }]
    const pipeline = await made(grantee.key, { type: 'pipeline', pipeline: { steps } })
    const answer = await call(grantee.key, pipeline.id, { x: 1 })
    assert.deepEqual([answer.status, answer.body], [200, { from: 'the step' }], JSON.stringify(answer.body))
    assert.equal(target.last().headers['x-svc-context-calling_project_id'], grantee.id)
    const refusedStep = await stranger.key.post('/tools', { name: 'p', type: 'pipeline', pipeline: { steps } })
    refused(refusedStep, 400, 'PIPELINE_INVALID_STEP')
    await act(publisher.key, share, 'suspend')
    const failed = refused(await call(grantee.key, pipeline.id, { x: 1 }), 422, 'PIPELINE_STEP_FAILED')
    assert.equal(failed.meta.cause.code, 'TOOL_NOT_FOUND')
    refused(
      await grantee.key.post('/tools', { name: 'p', type: 'pipeline', pipeline: { steps } }),
      400,
      'PIPELINE_INVALID_STEP',
    )
    target.answer = json({ ok: true })
  })

  it('let a pipeline of the publisher call its other tools, as the caller', async () => {
    const inner = await tool()
    const { id } = await usable({
      execute: null,
      type: 'pipeline',
      pipeline: {
        steps: [
          { id: 'a', tool_id: inner.id },
          { id: 'b', tool: { name: 'b', execute: { url: target.url } } },
        ],
      },
    })
    await works(id)
    const callers = target.requests.slice(-2).map(({ headers }) => headers['x-svc-context-calling_project_id'])
    assert.deepEqual(callers, [grantee.id, grantee.id])
    refused(await call(grantee.key, inner.id), 404, 'RESOURCE_NOT_FOUND')
  })

  it('do not let the publisher act with the rights of who calls', async () => {
    const { id } = await usable({ execute: null, type: 'platform', actions: ['list-tools'] })
    refused(await call(grantee.key, id, undefined, { action: 'list-tools' }), 422, 'TOOL_CALL_NOT_SUPPORTED')
    const steps = [{ id: 'a', tool: { name: 'x', type: 'platform', actions: ['list-tools'] }, action: 'list-tools' }]
    const piped = await usable({ execute: null, type: 'pipeline', pipeline: { steps } })
    const error = refused(await call(grantee.key, piped.id), 422, 'PIPELINE_STEP_FAILED')
    assert.equal(error.meta.cause.code, 'TOOL_CALL_NOT_SUPPORTED')
  })

  it('are refused for what cannot be shared', async () => {
    const { id } = await tool()
    const foreign = await tool({}, stranger.key)
    const good = { resource: nameOf(id), actions: ['tools:CallTool'], grantee: grantee.id }
    const post = (fields: object) => publisher.key.post('/shares', { ...good, ...fields })
    refusedAt(await post({ actions: ['tools:UpdateTool'] }), 'actions[0]')
    refusedAt(await post({ actions: ['agents:CreateAgentGeneration'] }), 'actions[0]')
    refusedAt(await post({ actions: [] }), 'actions')
    for (const resource of [
      nameOf('*'),
      nameOf(foreign.id, stranger.id),
      'nothing',
      `srn:${publisher.id}:secret:${id}`,
      `${nameOf(id)}:x`,
      `srn:*:tool:${id}`,
    ])
      refusedAt(await post({ resource }), 'resource')
    refused(await post({ resource: nameOf(foreign.id) }), 400, 'TOOL_NOT_FOUND')
    const noAgent = { resource: `srn:${publisher.id}:agent:agent_1`, actions: ['agents:CreateAgentGeneration'] }
    refused(await post(noAgent), 400, 'AGENT_NOT_FOUND')
    for (const grantee of [publisher.id, `${publisher.id.slice(0, -4)}0000`, 'nobody'])
      refusedAt(await post({ grantee }), 'grantee')
    refusedAt(await post({ cap: { calls: 0, window: 'rolling_1h' } }), 'cap.calls')
    refusedAt(await post({ cap: { calls: 1 } }), 'cap.window')
    refusedAt(await post({ expires_at: '2020-01-01T00:00:00.000Z' }), 'expires_at')
    const twice = await post({ actions: ['tools:CallTool', 'tools:CallTool'] })
    assert.deepEqual(twice.body.actions, ['tools:CallTool'])
  })

  it('are made by callers with permission to call the shared tool', async () => {
    const { id } = await tool()
    const statement = [{ effect: 'Allow', action: ['shares:*'], resource: [`srn:${publisher.id}:*:*`] }]
    const clerk = await app.user('clerk', [{ statement }])
    const body = { project_id: publisher.id, resource: nameOf(id), actions: ['tools:CallTool'], grantee: grantee.id }
    const error = refused(await clerk.post('/shares', body), 403, 'FORBIDDEN')
    assert.equal(error.meta.action, 'tools:CallTool')
  })

  it('with every project need the leave of the operator', async () => {
    const { id } = await tool()
    const body = { resource: nameOf(id), actions: ['tools:CallTool'], grantee: '*' }
    refused(await publisher.key.post('/shares', body), 403, 'PUBLIC_SHARES_DISABLED')
  })

  it('are listed by role', async () => {
    const other = await app.projectWith(PUBLISHING)
    const own = await made(other.key, { execute: { url: target.url } })
    const share = await shared(other.key, nameOf(own.id, other.id), { grantee: stranger.id })
    const listed = (await other.key.get('/shares')).body
    assert.deepEqual([listed.total, listed.data[0]], [1, share])
    assert.equal((await other.key.get(`/shares?resource=${nameOf(own.id, other.id)}`)).body.total, 1)
    assert.equal((await other.key.get(`/shares?resource=${nameOf('tool_x', other.id)}`)).body.total, 0)
    assert.equal((await other.key.get('/shares?role=grantee')).body.total, 0)
    const offers = () => stranger.key.get('/shares?role=grantee')
    assert.deepEqual((await offers()).body.data, [share])
    const acceptance = await accepted(stranger.key, share.id)
    assert.deepEqual((await offers()).body.data, [{ ...share, acceptance }])
    refusedAt(await app.admin.get('/shares?role=grantee'), 'project_id')
    assert.equal((await app.admin.get(`/shares?role=grantee&project_id=${stranger.id}`)).body.total, 1)
    refusedAt(await other.key.get('/shares?role=owner'), 'role')
  })

  it('are accepted for the project that the request names', async () => {
    const { share } = await offered()
    const statement = [{ effect: 'Allow', action: ['shares:*'], resource: [`srn:${grantee.id}:share:*`] }]
    const user = await app.user('accepting', [{ statement }])
    refused(await user.post(`/shares/${share.id}/accept`), 404, 'RESOURCE_NOT_FOUND')
    refused(await user.post(`/shares/${share.id}/accept`, { project_id: stranger.id }), 404, 'RESOURCE_NOT_FOUND')
    const reply = await user.post(`/shares/${share.id}/accept`, { project_id: grantee.id })
    assert.deepEqual([reply.status, reply.body.project_id], [200, grantee.id])
    assert.equal((await user.get(`/shares/${share.id}?project_id=${grantee.id}`)).body.acceptance.id, reply.body.id)
    refused(await app.admin.post(`/shares/${share.id}/accept`, { project_id: stranger.id }), 404, 'RESOURCE_NOT_FOUND')
    refusedAt(await publisher.key.post(`/shares/${share.id}/accept`), 'project_id')
    refused(
      await grantee.key.post(`/shares/${share.id}/accept`, { project_id: stranger.id }),
      403,
      'API_KEY_PROJECT_SCOPE',
    )
  })

  it('hold a tool from being deleted while others use it', async () => {
    const { id, share } = await usable()
    const rule = await grantee.key.post('/ingestion-rules', { content_type_glob: 'x/deleted', tool_id: id })
    assert.equal(rule.status, 201)
    const unused = await shared(publisher.key, nameOf(id), { grantee: stranger.id })
    const { meta } = refused(await publisher.key.delete(`/tools/${id}`), 409, 'TOOL_HAS_DEPENDENTS')
    assert.deepEqual(meta, {
      counts: { accepted_shares: 1 },
      sample_ids: { accepted_shares: [share.id] },
      forcible: true,
    })
    assert.equal((await publisher.key.delete(`/tools/${id}?force=true`)).status, 204)
    for (const each of [share, unused]) {
      const { body } = await publisher.key.get(`/shares/${each.id}`)
      assert.notEqual(body.revoked_at, null)
      assert.equal(body.projection, null)
    }
    refused(await call(grantee.key, id), 404, 'RESOURCE_NOT_FOUND')
    assert.equal((await eventsOf(app, publisher.id, share.id)).at(-1), 'shares.revoked')
    const { body } = await grantee.key.get(`/ingestion-rules/${rule.body.id}`)
    assert.equal(body.tool_id, id)
  })

  it('do not hold a tool that no project has accepted', async () => {
    const { id, share } = await offered()
    assert.equal((await publisher.key.delete(`/tools/${id}`)).status, 204)
    assert.notEqual((await publisher.key.get(`/shares/${share.id}`)).body.revoked_at, null)
  })

  it('are deleted with their acceptances, and with their project', async () => {
    const { id, share } = await usable()
    assert.equal((await publisher.key.delete(`/shares/${share.id}`)).status, 204)
    refused(await call(grantee.key, id), 404, 'RESOURCE_NOT_FOUND')
    refused(await grantee.key.get(`/shares/${share.id}`), 404, 'RESOURCE_NOT_FOUND')
    const owner = await app.projectWith(PUBLISHING)
    const user = await app.projectWith(USING)
    const own = await made(owner.key, { execute: { url: target.url } })
    const between = await shared(owner.key, nameOf(own.id, owner.id), { grantee: user.id })
    await accepted(user.key, between.id)
    assert.equal((await app.admin.delete(`/projects/${user.id}`)).status, 204)
    assert.equal((await owner.key.get(`/shares/${between.id}/acceptances`)).body.total, 0)
    const { meta } = refused(await app.admin.delete(`/projects/${owner.id}`), 409, 'PROJECT_HAS_DEPENDENTS')
    assert.equal(meta.counts.shares, 1)
    assert.equal((await app.admin.delete(`/projects/${owner.id}?force=true`)).status, 204)
  })

  it('are accepted once, under any number of concurrent requests', async () => {
    const { share } = await offered()
    const replies = await Promise.all(Array.from({ length: 8 }, () => act(grantee.key, share, 'accept')))
    assert.deepEqual(new Set(replies.map(({ body }) => body.id)).size, 1)
    assert.deepEqual(await eventsOf(app, publisher.id, share.id), ['shares.created', 'shares.accepted'])
    await Promise.all(Array.from({ length: 4 }, () => act(publisher.key, share, 'revoke')))
    assert.equal((await eventsOf(app, publisher.id, share.id)).length, 3)
  })

  it('are never released while a resource that names the tool is being written', async () => {
    for (let round = 0; round < 8; round++) {
      const { id, share } = await usable()
      const steps = [{ id: 'a', tool_id: id }]
      const [written, given] = await Promise.all([
        grantee.key.post('/tools', { name: 'p', type: 'pipeline', pipeline: { steps } }),
        act(grantee.key, share, 'revoke'),
      ])
      const outcome = `${written.status} ${given.status}`
      assert.ok(['201 409', '400 200'].includes(outcome), outcome)
    }
  })

  it('count a call that is repeated under its Idempotency-Key once', async () => {
    const { id } = await usable({}, { cap: { calls: 1, window: 'calendar_month' } })
    const repeat = () => grantee.key.post(`/tools/${id}/call`, {}, { 'idempotency-key': 'once' })
    assert.equal((await repeat()).status, 200)
    const again = await repeat()
    assert.deepEqual([again.status, again.headers.get('idempotency-replayed')], [200, 'true'])
    refused(await call(grantee.key, id), 429, 'SHARE_CAP_EXCEEDED')
  })

  it('are never changed by tools of the platform', async () => {
    const reply = await publisher.key.post('/tools', { name: 'x', type: 'platform', actions: ['accept-share'] })
    refusedAt(reply, 'actions[0]')
    assert.equal(
      (await publisher.key.post('/tools', { name: 'x', type: 'platform', actions: ['list-shares'] })).status,
      201,
    )
  })

  it('record their last state in each event, with the acceptance it is about', async () => {
    const { share, acceptance } = await usable()
    await publisher.key.post(`/shares/${share.id}/acceptances/${acceptance.id}/revoke`)
    const { body } = await publisher.key.get(`/events?resource_id=${share.id}`)
    const [revoked, acceptedEvent] = body.data
    assert.deepEqual([revoked.event, revoked.data.acceptance.revoked_by], ['shares.revoked', 'publisher'])
    assert.deepEqual([acceptedEvent.event, acceptedEvent.data.acceptance], ['shares.accepted', acceptance])
    assert.equal(acceptedEvent.data.resource, share.resource)
  })
})
