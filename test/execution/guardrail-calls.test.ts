import assert from 'node:assert/strict'
import { type Client, eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { guardrail } from './guardrail-support.ts'
import { call, json, made, refused, startTarget } from './tool-target.ts'

const RIGHTS = ['guardrails:*', 'tools:*', 'agents:*', 'ai-providers:*', 'audit:*', 'events:ListEvents', 'projects:*']

describe('guardrails of calls', () => {
  const target = forSuite(startTarget)
  const app = forSuite(startApp)
  beforeEach(() => {
    target.requests.length = 0
    target.answer = json({ ok: true })
  })

  const execute = { url: 'placeholder' }
  const tool = (key: Client, more: object = {}) =>
    made(key, { execute: { ...execute, url: `${target.url}/x` }, ...more })
  const kept = (key: Client, query: string, count: number): Promise<any[]> =>
    eventually(async () => {
      const { data } = (await key.get(`/guardrail-evaluations?${query}`)).body
      return data.length === count && data
    })
  const heldBack = (reply: any, outcome: string) => {
    const error = refused(reply, 422, 'TOOL_DISPATCH_FAILED')
    assert.equal(error.meta.outcome, outcome)
    return error
  }

  it('allow, stop and forbid by the actual call', async () => {
    const { key } = await app.projectWith(RIGHTS)
    const { id } = await guardrail(key, {
      class: { if: [{ var: 'args.never' }, 'D', 'B'] },
      guard: { '<': [{ var: 'args.amount' }, 100] },
    })
    const paying = await tool(key, { guardrail_ids: [id, id], preset_parameters: { currency: 'EUR' } })
    assert.deepEqual(paying.guardrail_ids, [id])
    assert.equal((await call(key, paying.id, { amount: 5 })).status, 200)
    const tripped = heldBack(await call(key, paying.id, { amount: 500 }), 'tripwire')
    assert.equal(tripped.meta.tool_id, paying.id)
    heldBack(await call(key, paying.id, { never: true }), 'blocked')
    assert.equal(target.requests.length, 1)

    const records = await kept(key, `guardrail_id=${id}`, 3)
    assert.deepEqual(
      records.map(({ decision }) => decision),
      ['blocked', 'tripwire', 'execute'],
    )
    assert.deepEqual(
      [records[1].tool_id, records[1].tool, records[1].action, records[1].scope, records[1].guardrail_version],
      [paying.id, 'tool', 'tool', 'tool', 1],
    )
    assert.deepEqual(records[1].context_snapshot, { 'args.never': null, 'args.amount': 500 })
    assert.equal((await key.get('/guardrail-evaluations?decision=blocked&decision=tripwire')).body.total, 2)
    assert.equal((await key.get('/guardrail-evaluations?decision=nope')).status, 400)

    // A stopped call is in the audit log, without a principal.
    const audited = await eventually(async () => {
      const { data } = (await key.get('/audit-log?action=guardrails:Evaluate')).body
      return data.length === 2 && data
    })
    assert.deepEqual(
      [audited[0].principal_id, audited[0].status, audited[0].detail.kind, audited[0].detail.decision],
      [null, 200, 'guardrail_evaluation', 'blocked'],
    )
    const [event] = (await key.get('/events?event=guardrails.tripwire')).body.data
    assert.equal(event.resource_id, id)
    const { data } = event
    assert.deepEqual([data.guardrail?.tool_id ?? data.tool_id, data.guardrail_version], [paying.id, `${id}@1`])
  })

  it('file nothing where a person would have to approve', async () => {
    const { key } = await app.projectWith(RIGHTS)
    const { id } = await guardrail(key, { class: 'C' })
    const careful = await tool(key, { guardrail_ids: [id] })
    heldBack(await call(key, careful.id, {}), 'route_to_approval')
    const [record] = await kept(key, `tool_id=${careful.id}`, 1)
    assert.equal(record.approval_id, null)
    assert.equal(target.requests.length, 0)
  })

  it('combine the guardrails of the project and of the tool, the strictest first', async () => {
    const { id: project, key } = await app.projectWith(RIGHTS)
    const [open, closed] = [await guardrail(key, { class: 'A' }), await guardrail(key, { class: 'D' })]
    const opened = await tool(key, { guardrail_ids: [open.id] })
    assert.equal((await call(key, opened.id, {})).status, 200)
    const attach = (ids: string[] | null) => key.patch(`/projects/${project}`, { guardrail_ids: ids })
    assert.deepEqual((await attach([closed.id, closed.id])).body.guardrail_ids, [closed.id])
    heldBack(await call(key, opened.id, {}), 'blocked')
    assert.equal((await kept(key, `guardrail_id=${open.id}`, 2))[0].decision, 'execute')
    assert.deepEqual((await attach(null)).body.guardrail_ids, [])
    assert.equal((await call(key, opened.id, {})).status, 200)
  })

  it('act on the next call once they are changed', async () => {
    const { key } = await app.projectWith(RIGHTS)
    const { id } = await guardrail(key, { class: 'A' })
    const changing = await tool(key, { guardrail_ids: [id] })
    for (const given of ['D', 'A', 'C', 'A']) {
      await key.patch(`/guardrails/${id}`, { document: { class: given } })
      assert.equal((await call(key, changing.id, {})).status, given === 'A' ? 200 : 422)
    }
  })

  it('judge each step of a pipeline by its own arguments', async () => {
    const { key } = await app.projectWith(RIGHTS)
    const rule = await guardrail(key, { class: { if: [{ '>': [{ var: 'args.n' }, 1] }, 'D', 'A'] } })
    const step = await tool(key, { guardrail_ids: [rule.id] })
    const steps = [
      { id: 'a', tool_id: step.id, input: { n: 1 } },
      { id: 'b', tool_id: step.id, input: { n: { var: 'input.n' } } },
    ]
    const pipeline = await made(key, { type: 'pipeline', pipeline: { steps } })
    assert.equal((await call(key, pipeline.id, { n: 1 })).status, 200)
    const error = refused(await call(key, pipeline.id, { n: 2 }), 422, 'PIPELINE_STEP_FAILED')
    assert.deepEqual([error.meta.step_id, error.meta.cause.code], ['b', 'TOOL_DISPATCH_FAILED'])
    assert.equal(error.meta.cause.meta.outcome, 'blocked')
  })

  it('do not evaluate their own calls', async () => {
    const { id: project, key } = await app.projectWith(RIGHTS)
    target.answer = json({ allowed: true })
    const steps = [{ id: 'a', tool: { name: 'inner', execute: { url: `${target.url}/context` } } }]
    const context = await made(key, { type: 'pipeline', pipeline: { steps } })
    const rule = await guardrail(
      key,
      { class: { if: [{ var: 'context.allowed' }, 'A', 'D'] } },
      { context_tool_id: context.id },
    )
    const called = await tool(key)
    await key.patch(`/projects/${project}`, { guardrail_ids: [rule.id] })
    assert.equal((await call(key, called.id, {})).status, 200)
    assert.deepEqual(
      target.requests.map(({ url }) => url),
      ['/context', '/x'],
    )
    await kept(key, '', 1)
  })

  describe('are attached', () => {
    it('only where they are of the project', async () => {
      const [one, other] = [await app.projectWith(RIGHTS), await app.projectWith(RIGHTS)]
      const foreign = (await guardrail(other.key, { class: 'A' })).id
      const own = (await guardrail(one.key, { class: 'A' })).id
      const nothing = 'guard_00000000000000000000000000'
      for (const ids of [[foreign], [nothing], [own, foreign, nothing]]) {
        const error = refused(
          await one.key.post('/tools', { name: 't', guardrail_ids: ids }),
          400,
          'GUARDRAIL_NOT_FOUND',
        )
        assert.deepEqual(
          error.meta.missing,
          ids.filter(id => id !== own),
        )
        const patch = await one.key.patch(`/projects/${one.id}`, { guardrail_ids: ids })
        refused(patch, 400, 'GUARDRAIL_NOT_FOUND')
      }
      const many = Array.from({ length: 21 }, (_, n) => `guard_${n}`)
      refused(await one.key.post('/tools', { name: 't', guardrail_ids: many }), 400, 'VALIDATION_FAILED')
    })

    it('and keep a guardrail from being deleted', async () => {
      const { id: project, key } = await app.projectWith(RIGHTS)
      const { id } = await guardrail(key, { class: 'A' })
      const held = await tool(key, { guardrail_ids: [id] })
      await key.patch(`/projects/${project}`, { guardrail_ids: [id] })
      const error = refused(await key.delete(`/guardrails/${id}`), 409, 'GUARDRAIL_HAS_REFERENCES')
      assert.deepEqual(error.meta.references, { tools: [held.id], agents: [], projects: [project] })
      assert.equal((await key.patch(`/tools/${held.id}`, { guardrail_ids: null })).status, 200)
      assert.equal((await key.patch(`/projects/${project}`, { guardrail_ids: [] })).status, 200)
      assert.equal((await key.delete(`/guardrails/${id}`)).status, 204)
    })

    it('guardrails are attached or deleted, never both concurrently', async () => {
      const { key } = await app.projectWith(RIGHTS)
      for (let round = 0; round < 10; round++) {
        const { id } = await guardrail(key, { class: 'A' })
        const [attached, deleted] = await Promise.all([
          key.post('/tools', { name: 't', guardrail_ids: [id] }),
          key.delete(`/guardrails/${id}`),
        ])
        assert.deepEqual(
          [attached.status, deleted.status],
          attached.status === 201 ? [201, 409] : [400, 204],
          JSON.stringify([attached.body, deleted.body]),
        )
      }
    })

    it('and are detached by who may, wherever a list loses one', async () => {
      const { id: project, key } = await app.project()
      const [kept, lost] = [(await guardrail(key, { class: 'A' })).id, (await guardrail(key, { class: 'A' })).id]
      const provider = (
        await key.post('/ai-providers', { name: 'p', provider: 'custom', default_model: 'm', base_url: target.url })
      ).body.id
      const both = { guardrail_ids: [kept, lost] }
      const held = await tool(key, both)
      const agent = (await key.post('/agents', { name: 'a', ai_provider_id: provider })).body
      assert.ok(agent.id, JSON.stringify(agent))
      assert.equal((await key.patch(`/agents/${agent.id}`, both)).body.version, 2)
      await key.patch(`/projects/${project}`, both)
      const writer = await app.user(undefined, [
        {
          statement: [
            { effect: 'Allow', action: ['*'], resource: [`srn:${project}:*:*`] },
            { effect: 'Deny', action: ['guardrails:DetachGuardrail'], resource: [`srn:${project}:guardrail:${lost}`] },
          ],
        },
      ])
      const forbidden = async (reply: Promise<any>) =>
        assert.deepEqual(refused(await reply, 403, 'FORBIDDEN').meta.detached, [lost])
      await forbidden(writer.patch(`/tools/${held.id}`, { guardrail_ids: [] }))
      await forbidden(writer.patch(`/tools/${held.id}`, { guardrail_ids: null }))
      await forbidden(writer.patch(`/projects/${project}`, { guardrail_ids: null }))
      await forbidden(writer.patch(`/agents/${agent.id}`, { guardrail_ids: [kept] }))
      await forbidden(writer.post(`/agents/${agent.id}/versions/1/restore`))
      const release = { stable_version: 2, canary_version: 1, canary_percent: 1 }
      await forbidden(writer.put(`/agents/${agent.id}/release`, release))
      assert.deepEqual((await key.get(`/tools/${held.id}`)).body.guardrail_ids, both.guardrail_ids)
      // In another order, and the other one.
      assert.equal((await writer.patch(`/tools/${held.id}`, { guardrail_ids: [lost, kept] })).status, 200)
      assert.equal((await writer.patch(`/tools/${held.id}`, { guardrail_ids: [lost] })).status, 200)
      assert.equal((await key.put(`/agents/${agent.id}/release`, release)).status, 200)
      await forbidden(writer.post(`/agents/${agent.id}/release/promote`))
      const named = refused(await key.delete(`/guardrails/${kept}`), 409, 'GUARDRAIL_HAS_REFERENCES')
      assert.deepEqual(named.meta.references.agents, [agent.id])
      assert.equal((await key.get(`/agents?guardrail_id=${lost}`)).body.total, 1)
      assert.equal((await writer.post(`/agents/${agent.id}/release/abort`)).status, 200)
      assert.equal((await writer.delete(`/agents/${agent.id}`)).status, 204)
    })

    it('and come along into the clone of a project', async () => {
      const { id: project, key } = await app.project()
      const context = await tool(key, { name: 'context' })
      const rule = await guardrail(key, { class: 'D' }, { context_tool_id: context.id })
      const guarded = await tool(key, { name: 'guarded', guardrail_ids: [rule.id] })
      await key.patch(`/projects/${project}`, { guardrail_ids: [rule.id] })
      const { body } = await app.admin.post(`/projects/${project}/clone`, { name: 'copy', include: ['tools'] })
      const copy = body.ids[rule.id]
      assert.deepEqual(body.project.guardrail_ids, [copy])
      const found = (await app.admin.get(`/guardrails/${copy}`)).body
      assert.deepEqual(
        [found.context_tool_id, found.document, found.version],
        [body.ids[context.id], { class: 'D' }, 1],
      )
      assert.deepEqual((await app.admin.get(`/tools/${body.ids[guarded.id]}`)).body.guardrail_ids, [copy])
    })
  })
})
