import assert from 'node:assert/strict'
import { type Client, eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { guardrail, said, tried } from './guardrail-support.ts'
import { made, refused, startTarget } from './tool-target.ts'

const GUARDRAIL_RIGHTS = ['guardrails:*', 'tools:*', 'audit:*', 'events:ListEvents']

describe('guardrails', () => {
  const target = forSuite(startTarget)
  const app = forSuite(startApp)
  let id: string
  let key: Client

  before(async () => {
    ;({ id, key } = await app.projectWith(GUARDRAIL_RIGHTS))
  })

  const refusedDocument = async (document: object): Promise<any> =>
    refused(await key.post('/guardrails', { name: 'x', document }), 400, 'VALIDATION_FAILED').meta

  it('are kept with every document that they have had', async () => {
    const first = await guardrail(key, { class: 'C' }, { version_label: 'careful', description: 'd' })
    assert.match(first.id, /^guard_/)
    assert.deepEqual([first.version, first.context_mode, first.context_tool_id], [1, 'merge', null])
    const path = `/guardrails/${first.id}`
    // Neither another name nor an equal document is a version.
    assert.equal((await key.patch(path, { name: 'other' })).body.version, 1)
    assert.equal((await key.patch(path, { document: { class: 'C' } })).body.version, 1)
    const second = (await key.patch(path, { document: '{"class":"A","expires_in":5}', version_label: 'open' })).body
    assert.deepEqual([second.version, second.document], [2, { class: 'A', expires_in: 5 }])
    const versions = (await key.get(`${path}/versions`)).body.data
    assert.deepEqual(
      versions.map((each: any) => [each.version, each.label, each.config.document.class]),
      [
        [2, 'open', 'A'],
        [1, 'careful', 'C'],
      ],
    )
    assert.match(versions[0].id, /^guard_ver_/)
    assert.equal((await key.get(`${path}/versions/1`)).body.label, 'careful')
    assert.deepEqual((await key.get(`${path}/versions/compare?from=1&to=2`)).body.changes, [
      { path: 'document.class', op: 'changed', before: 'C', after: 'A' },
      { path: 'document.expires_in', op: 'added', before: null, after: 5 },
    ])
    assert.equal((await key.get(`${path}/versions/9`)).status, 404)
    assert.equal((await key.get(`${path}/versions/x`)).status, 400)

    assert.equal((await key.post(`${path}/versions/2/restore`)).body.version, 2)
    const restored = (await key.post(`${path}/versions/1/restore`)).body
    assert.deepEqual([restored.version, restored.document, restored.name], [3, { class: 'C' }, 'other'])
    assert.equal((await key.get(`${path}/versions/3`)).body.label, 'restored from v1')
    assert.equal((await key.delete(path)).status, 204)
    assert.equal((await key.get(path)).status, 404)
  })

  it('number documents that are written concurrently one after the other', async () => {
    const { id } = await guardrail(key, { class: 'C' })
    const replies = await Promise.all(
      ['A', 'D'].map(given => key.patch(`/guardrails/${id}`, { document: { class: given } })),
    )
    assert.deepEqual(replies.map(({ body }) => body.version).sort(), [2, 3])
    for (const { body } of replies)
      assert.deepEqual(
        (await key.get(`/guardrails/${id}/versions/${body.version}`)).body.config.document,
        body.document,
      )
  })

  it('have documents that can be understood', async () => {
    await refusedDocument({ class: 'Z' })
    await refusedDocument({})
    await refusedDocument({ class: 'A', typo: 1 })
    await refusedDocument({ class: 'A', expires_in: 0 })
    await refusedDocument({ class: { a: 1, b: 2 } })
    assert.deepEqual(
      [(await refusedDocument({ class: { var: 'env.x' } })).var, (await refusedDocument({ class: { var: '' } })).var],
      ['env.x', ''],
    )
    const unknown = await refusedDocument({ class: 'B', guard: { var: 'runtime.usage.nope' } })
    assert.deepEqual([unknown.field, unknown.var], ['document.guard', 'runtime.usage.nope'])
    const typo = await refusedDocument({ class: 'B', guard: { and: [{ gt: [1, 2] }] } })
    assert.equal(typo.field, 'document.guard')
    // What a computed path reads cannot be known to be there.
    await refusedDocument({ class: 'B', guard: { var: { cat: ['context.', 'x'] } } })
    await refusedDocument({ class: 'B', guard: { '==': [{ missing: [{ var: 'args.key' }] }, []] } })
    await guardrail(key, { class: 'B', guard: { '==': [{ preserve: { gt: [1] } }, 1] } })
    await guardrail(key, { class: 'B', guard: { some: [{ var: 'args.list' }, { '<': [{ var: 'price' }, 5] }] } })
  })

  it('name a context tool that can be called, and that their writer may call', async () => {
    const execute = { url: `${target.url}/context` }
    const { id: tool } = await made(key, { execute })
    const document = { class: 'C' }
    await guardrail(key, document, { context_tool_id: tool })
    const given = (context_tool_id: string) => key.post('/guardrails', { name: 'x', document, context_tool_id })
    refused(await given('tool_00000000000000000000000000'), 400, 'TOOL_NOT_FOUND')
    refused(await given((await made(key, { type: 'client' })).id), 400, 'VALIDATION_FAILED')
    const open = await made(key, { type: 'platform', actions: ['list-tools'] })
    refused(await given(open.id), 400, 'VALIDATION_FAILED')
    const pinned = { type: 'platform', actions: ['list-tools'], preset_parameters: { action: 'list-tools' } }
    assert.equal((await given((await made(key, pinned)).id)).status, 201)
    const writer = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['guardrails:*'], resource: [`srn:${id}:guardrail:*`] }] },
    ])
    const body = { name: 'x', document, project_id: id }
    assert.equal((await writer.post('/guardrails', body)).status, 201)
    assert.equal((await writer.post('/guardrails', { ...body, context_tool_id: tool })).status, 403)
    const other = await app.projectWith(GUARDRAIL_RIGHTS)
    refused(await other.key.post('/guardrails', { name: 'x', document, context_tool_id: tool }), 400, 'TOOL_NOT_FOUND')
  })

  describe('when they are tried', () => {
    it('classify by the arguments, and keep nothing', async () => {
      const { id } = await guardrail(key, {
        class: { if: [{ '<': [{ var: 'args.amount' }, 500] }, 'B', 'C'] },
        guard: { '<': [{ var: 'args.amount' }, 200] },
      })
      const outcome = async (amount: number) => said(await tried(key, id, { args: { amount } }))
      assert.deepEqual(await outcome(150), ['B', 'execute', true])
      assert.deepEqual(await outcome(900), ['C', 'route_to_approval', null])
      assert.deepEqual(await outcome(450), ['B', 'tripwire', false])
      assert.equal((await key.get(`/guardrail-evaluations?guardrail_id=${id}`)).body.total, 0)
      assert.equal((await key.get(`/events?resource_id=${id}`)).body.total, 1)
      const audited = (await key.get(`/audit-log?action=guardrails:Evaluate`)).body
      assert.equal(audited.data.filter((entry: any) => entry.resource_public_id === id).length, 0)
    })

    it('show the values that they read, and fill in the tool', async () => {
      const tool = await made(key, { name: 'pay' })
      const { id } = await guardrail(key, {
        class: { if: [{ '==': [{ var: 'runtime.tool.name' }, 'pay'] }, 'B', 'A'] },
        guard: { '==': [{ var: 'args.to' }, { var: 'context.owner' }] },
        escalate: true,
      })
      const record = await tried(key, id, {
        args: { to: 'me' },
        guardrail_context: { owner: 'you', other: 1 },
        tool_id: tool.id,
      })
      assert.deepEqual(said(record), ['B', 'route_to_approval', false])
      assert.deepEqual(record.context_snapshot, {
        'runtime.tool.name': 'pay',
        'args.to': 'me',
        'context.owner': 'you',
      })
      assert.deepEqual(
        [record.kind, record.scope, record.tool, record.action, record.context_source, record.guardrail_version],
        ['guardrail_evaluation', 'tool', 'pay', 'pay', 'caller', 1],
      )
      assert.equal((await tried(key, id, {})).class, 'A')
      refused(await key.post(`/guardrails/${id}/evaluate`, { tool_id: 'tool_x' }), 400, 'TOOL_NOT_FOUND')
      const trial = await tried(key, id, { document: { class: 'D' } })
      assert.deepEqual([trial.decision, trial.guardrail_version], ['blocked', null])
      refused(await key.post(`/guardrails/${id}/evaluate`, { document: { class: 'Z' } }), 400, 'VALIDATION_FAILED')
    })

    it('fail closed on missing values', async () => {
      const outcome = async (document: object, body: object = {}) =>
        said(await tried(key, (await guardrail(key, document)).id, body))
      // A guard: whatever the branch, unless a value of the context is given for it.
      const branch = { if: [true, true, { var: 'context.limit' }] }
      assert.deepEqual(await outcome({ class: 'B', guard: branch }), ['B', 'tripwire', false])
      assert.deepEqual(await outcome({ class: 'B', guard: branch }, { guardrail_context: { limit: 1 } }), [
        'B',
        'execute',
        true,
      ])
      const defaulted = { '<': [{ var: ['context.spent', 0] }, 5] }
      assert.deepEqual(await outcome({ class: 'B', guard: defaulted }), ['B', 'execute', true])
      const run = { '<': [{ var: 'runtime.usage.orchestration_run_tokens' }, 10] }
      assert.deepEqual(await outcome({ class: 'B', guard: run }), ['B', 'tripwire', false])
      const counted = { '<': [{ var: ['runtime.activity.actions_1h', 0] }, 10] }
      assert.deepEqual(await outcome({ class: 'B', guard: counted }), ['B', 'execute', true])
      assert.deepEqual(await outcome({ class: 'B' }), ['B', 'tripwire', false])
      // A class: within a comparison of size only.
      const sized = { if: [{ '<': [{ '+': [{ var: 'context.limit' }, 1] }, 5] }, 'A', 'D'] }
      assert.deepEqual(await outcome({ class: sized }), ['C', 'route_to_approval', null])
      assert.deepEqual(await outcome({ class: sized, default_class: 'D' }), ['D', 'blocked', null])
      const equal = { if: [{ '==': [{ var: 'context.limit' }, null] }, 'A', 'D'] }
      assert.deepEqual(await outcome({ class: equal }), ['A', 'execute', null])
      // No class at all, and too much work.
      assert.deepEqual(await outcome({ class: { cat: ['x'] } }), ['C', 'route_to_approval', null])
      const long = { reduce: [{ var: 'args.list' }, { '+': [{ var: 'current' }, { var: 'accumulator' }] }, 0] }
      const list = Array.from({ length: 40_000 }, () => 1)
      assert.deepEqual(await outcome({ class: { if: [long, 'A', 'A'] }, default_class: 'D' }, { args: { list } }), [
        'D',
        'blocked',
        null,
      ])
    })

    it('convert no argument that is absent, empty or of another type', async () => {
      const { id } = await guardrail(key, { class: 'A' })
      const outcome = async (document: object, args: object) => (await tried(key, id, { document, args })).decision
      const amounts = [{}, { amount: null }, { amount: '' }, { amount: '5' }, { amount: [] }, { amount: {} }]
      // Whichever way an author writes it, and whatever follows.
      const amount = { var: 'args.amount' }
      for (const small of [
        { if: [{ '<': [amount, 100] }, 'A', 'D'] },
        { if: [{ '>': [amount, 100] }, 'D', 'A'] },
        { if: [{ '<': [0, { '+': [amount, 1] }, 100] }, 'A', 'D'] },
        { if: [{ '<=': [{ max: [amount, 0] }, 100] }, 'A', 'D'] },
      ]) {
        assert.equal(await outcome({ class: small }, { amount: 5 }), 'execute')
        assert.equal(await outcome({ class: small }, { amount: 500 }), 'blocked')
        for (const args of amounts) {
          const what = JSON.stringify([small, args])
          assert.equal(await outcome({ class: small }, args), 'route_to_approval', what)
          assert.equal(await outcome({ class: small, default_class: 'D' }, args), 'blocked', what)
        }
      }
      for (const guard of [{ '<': [amount, 100] }, { '!': [{ '>': [amount, 100] }] }, { '!=': [amount, 100] }])
        for (const args of amounts)
          assert.equal(await outcome({ class: 'B', guard }, args), 'tripwire', JSON.stringify([guard, args]))

      const to = { var: 'args.to' }
      const cases: [object, object, string][] = [
        // Of another type than its operand.
        [{ if: [{ '==': [to, 'ann'] }, 'D', 'A'] }, { to: ['ann'] }, 'route_to_approval'],
        [{ if: [{ '!=': [to, 0] }, 'D', 'A'] }, { to: '' }, 'route_to_approval'],
        [{ if: [{ in: [to, ['ann', 'ben']] }, 'D', 'A'] }, { to: ['ann'] }, 'route_to_approval'],
        [{ if: [{ in: ['ann', to] }, 'D', 'A'] }, { to: { 0: 'ann' } }, 'route_to_approval'],
        [{ if: [{ in: [to, 'example.com'] }, 'A', 'D'] }, {}, 'route_to_approval'],
        [{ if: [{ none: [to, { '==': [{ var: '' }, 'ann'] }] }, 'A', 'D'] }, { to: 'ann' }, 'route_to_approval'],
        [{ if: [{ '==': [{ substr: [to, -3] }, 'ann'] }, 'A', 'D'] }, { to: ['ann'] }, 'route_to_approval'],
        [{ if: [{ '<': [{ length: to }, 3] }, 'A', 'D'] }, { to: { many: 1 } }, 'route_to_approval'],
        // A check of identity or presence gets an answer.
        [{ if: [{ '===': [to, 'ann'] }, 'D', 'A'] }, { to: 5 }, 'execute'],
        [{ if: [{ '==': [to, null] }, 'D', 'A'] }, {}, 'blocked'],
        [{ if: [{ missing: ['args.to'] }, 'D', { '<': [to, 'b'] }, 'A', 'C'] }, {}, 'blocked'],
        // Tools that a rule does not mean need not have its fields.
        [{ if: [{ '!=': [{ var: 'args.kind' }, 'refund'] }, 'A', { '<': [amount, 5] }, 'A', 'D'] }, {}, 'execute'],
      ]
      for (const [rule, args, decision] of cases)
        assert.equal(await outcome({ class: rule }, args), decision, JSON.stringify([rule, args]))
      const noted = { '!=': [{ var: ['args.note', ''] }, 'urgent'] }
      assert.equal(await outcome({ class: 'B', guard: noted }, {}), 'execute')
      assert.equal(await outcome({ class: 'B', guard: { '!=': [{ var: 'args.note' }, 'urgent'] } }, {}), 'tripwire')
    })

    it('call their context tool with the credential of the caller', async () => {
      const limits: unknown[] = [{ limit: 10 }]
      target.answer = (_request, response) =>
        response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(limits[0]))
      const tool = await made(key, { execute: { url: `${target.url}/limits` } })
      const document = { class: 'B', guard: { '<': [{ var: 'args.n' }, { var: 'context.limit' }] } }
      const body = { args: { n: 5 }, guardrail_context: { limit: 1, mine: true } }
      const merging = await guardrail(key, document, { context_tool_id: tool.id })
      const merged = await tried(key, merging.id, body)
      assert.deepEqual([said(merged), merged.context_source], [['B', 'execute', true], 'merged'])
      assert.equal((await tried(key, merging.id, { args: { n: 5 } })).context_source, 'tool')
      const reading = { class: { if: [{ var: 'context.mine' }, 'A', 'D'] } }
      const replacing = await guardrail(key, reading, { context_tool_id: tool.id, context_mode: 'replace' })
      assert.equal((await tried(key, replacing.id, body)).decision, 'blocked')
      // Its answer is cached for a while.
      const before = target.requests.length
      await tried(key, merging.id, body)
      assert.equal(target.requests.length, before)
      // A rule that reads no context calls no tool.
      const blind = await guardrail(key, { class: 'A' }, { context_tool_id: tool.id })
      await tried(key, blind.id, body)
      assert.equal(target.requests.length, before)

      limits[0] = 'no object'
      const failing = await guardrail(key, document, { context_tool_id: tool.id })
      const failed = await tried(key, failing.id, body)
      assert.deepEqual([said(failed), failed.context_source], [['B', 'tripwire', false], 'none'])
      const classed = await guardrail(key, { ...reading, default_class: 'C' }, { context_tool_id: tool.id })
      assert.equal((await tried(key, classed.id, body)).decision, 'route_to_approval')
      await key.delete(`/tools/${tool.id}?force=true`)
      assert.deepEqual(said(await tried(key, failing.id, body)), ['B', 'tripwire', false])
    })

    it('are not kept waiting by a context tool that does not answer', async () => {
      const hurried = await startApp({ env: { GUARDRAIL_CONTEXT_TIMEOUT_MS: '200' } })
      try {
        const { key } = await hurried.projectWith(GUARDRAIL_RIGHTS)
        target.answer = () => {}
        const tool = await made(key, { execute: { url: `${target.url}/silent` } })
        const document = { class: 'B', guard: { '==': [{ var: 'context.ok' }, true] } }
        const { id } = await guardrail(key, document, { context_tool_id: tool.id })
        assert.deepEqual(said(await tried(key, id, { guardrail_context: { ok: true } })), ['B', 'tripwire', false])
      } finally {
        await hurried.close()
      }
    })
  })

  it('warn where they compare arguments that a tool does not require', async () => {
    const amount = { var: 'args.order.amount' }
    const rule = await guardrail(key, {
      class: { if: [{ '<': [amount, 100] }, 'B', 'C'] },
      guard: { var: 'args.note' },
    })
    const schemaOf = (required: string[], inner: string[]) => ({
      type: 'object',
      required,
      properties: { order: { type: 'object', required: inner, properties: { amount: { type: 'number' } } } },
    })
    const tool = await made(key, { guardrail_ids: [rule.id], parameters: schemaOf(['order'], []) })
    assert.deepEqual(
      tool.warnings.map(({ code, path, message }: any) => [code, path, /args\.\S+(?=,)/.exec(message)?.[0]]),
      [
        ['ARGUMENT_NOT_REQUIRED', 'guardrail_ids', 'args.order.amount'],
        ['ARGUMENT_NOT_REQUIRED', 'guardrail_ids', 'args.note'],
      ],
    )
    // Neither kept nor in events.
    assert.equal('warnings' in (await key.get(`/tools/${tool.id}`)).body, false)
    const change = async (body: object) => (await key.patch(`/tools/${tool.id}`, body)).body.warnings?.length
    assert.equal(await change({ preset_parameters: { note: 'x' } }), 1)
    assert.equal(await change({ parameters: schemaOf(['order', 'note'], ['amount']) }), undefined)
    // A change of the document is about the tools that have the guardrail.
    const document = { class: { if: [{ '>': [{ var: 'args.total' }, 1] }, 'C', 'A'] } }
    const changed = (await key.patch(`/guardrails/${rule.id}`, { document })).body.warnings
    assert.deepEqual(
      changed.map(({ path, message }: any) => [path, message.includes(tool.id), message.includes('args.total')]),
      [['document.class', true, true]],
    )
    assert.equal('warnings' in (await key.post(`/guardrails/${rule.id}/versions/1/restore`)).body, false)
    // So is a guardrail of an agent about the tools that it binds, and a write of the agent.
    const bound = { project_id: id, name: 'a', guardrail_ids: [rule.id], tool_bindings: [{ tool: { name: 'pay' } }] }
    const vendor = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://models.example.com/v1' }
    const { body: provider } = await app.admin.post('/ai-providers', { project_id: id, ...vendor })
    const agent = await app.admin.post('/agents', { ...bound, ai_provider_id: provider.id })
    const messages = (reply: any) =>
      reply.body.warnings?.map(({ message }: any) => /of tool (\S+) do/.exec(message)?.[1])
    assert.deepEqual(messages(agent), ['pay', 'pay'])
    assert.deepEqual(messages(await key.patch(`/guardrails/${rule.id}`, { document })), [tool.id, 'pay'])
    const without = await app.admin.patch(`/agents/${agent.body.id}`, { guardrail_ids: null })
    assert.deepEqual([without.status, messages(without)], [200, undefined])
    // A rule that handles the case gives no warning.
    const total = { var: 'args.total' }
    for (const class_ of [
      { if: [{ missing: ['args.total'] }, 'D', { '>': [total, 1] }, 'C', 'A'] },
      { if: [{ '>': [{ var: ['args.total', 0] }, 1] }, 'C', 'A'] },
    ]) {
      const { body } = await key.patch(`/guardrails/${rule.id}`, { document: { class: class_ } })
      assert.deepEqual(['warnings' in body, body.document.class], [false, class_])
    }
  })

  it('guardrails are hidden from other projects', async () => {
    const { id } = await guardrail(key, { class: 'A' })
    const other = await app.projectWith(GUARDRAIL_RIGHTS)
    assert.equal((await other.key.get(`/guardrails/${id}`)).status, 404)
    assert.equal((await other.key.post(`/guardrails/${id}/evaluate`, {})).status, 404)
    assert.equal((await other.key.post(`/guardrails/${id}/versions/1/restore`)).status, 404)
    const reader = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['guardrails:GetGuardrail'], resource: ['*'] }] },
    ])
    assert.equal((await reader.get(`/guardrails/${id}`)).status, 200)
    assert.equal((await reader.post(`/guardrails/${id}/evaluate`, {})).status, 403)
    assert.equal((await reader.patch(`/guardrails/${id}`, { name: 'mine' })).status, 403)
    await eventually(async () => (await key.get(`/events?resource_id=${id}`)).body.total === 1)
  })
})
