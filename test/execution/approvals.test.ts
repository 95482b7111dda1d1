import assert from 'node:assert/strict'
import { idStatement, sql } from '#core/db/sql.ts'
import { type ToolGate, toolGate, type Verdict } from '#execution/tools/guardrail-gate.ts'
import { type Client, eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'
import { guardrail } from './guardrail-support.ts'
import { json, made, refused, startTarget } from './tool-target.ts'

describe('approvals', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startAgentApp({ env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', APPROVAL_SWEEP_INTERVAL_MS: '1000' } }),
  )
  let tool: any
  let approver: Client

  const parameters = { type: 'object', properties: { amount: { type: 'integer' } }, required: ['amount'] }

  before(async () => {
    tool = await made(app.key, { name: 'pay', parameters, execute: { url: `${target.url}/pay` } })
    approver = await app.user('approver', [
      { statement: [{ effect: 'Allow', action: ['approvals:*'], resource: [`srn:${app.projectId}:approval:*`] }] },
    ])
  })
  beforeEach(() => {
    target.requests.length = 0
    target.answer = json({ paid: true })
  })

  let amount = 0
  /** How often the tool was called with an amount: calls of other items may still come. */
  const calls = (amount: number): number =>
    target.requests.filter(({ body }) => body === JSON.stringify({ amount })).length

  /** A turn of the agent of the application that proposes a call. */
  async function proposed(
    args: Record<string, unknown> = { amount: ++amount },
    more: NonNullable<Parameters<typeof propose>[4]> = {},
    agentId = app.agentId,
  ) {
    const { body } = await app.key.post(`/agents/${agentId}/generate?wait=true`, { prompt: 'pay' })
    const filed = await propose(app, body.id, { id: tool.id, name: 'pay' }, args, more)
    return { ...filed, generation_id: body.id as string, path: `/approvals/${filed.id}` }
  }

  /** The item once the turn after it has ended. */
  const followed = (path: string): Promise<any> =>
    eventually(async () => {
      const { body } = await approver.get(path)
      return body.execution?.generation_id && body
    })
  const continuationOf = (generation: string): Promise<any> =>
    eventually(async () => {
      const { data } = (await app.key.get('/generations?limit=100')).body
      return data.find((each: any) => each.initiator_generation_id === generation && each.status === 'completed')
    })

  it('show the proposal, once for equal proposals', async () => {
    const args = { amount: 7_000 }
    const { id, path, generation_id } = await proposed(args)
    const item = (await approver.get(path)).body
    assert.match(id, /^apr_/)
    assert.deepEqual(item.proposed_action, { tool_id: tool.id, tool_name: 'pay', action: 'pay', arguments: args })
    assert.deepEqual(
      [item.status, item.origin, item.generation_id, item.agent_id, item.reasoning, item.policy_version],
      ['pending', 'tool_call', generation_id, app.agentId, 'because', 'guard_1@1'],
    )
    assert.match(item.dedup_key, /^[0-9a-f]{64}$/)
    assert.equal(item.execution, null)
    for (const hidden of ['sealed', 'authority', 'started_by', 'tool_type']) assert.ok(!(hidden in item))
    // The same again while it waits, also concurrently.
    const again = await Promise.all([proposed(args), proposed(args), proposed(args)])
    for (const each of again) assert.equal(each.id, id)
    const listed = (await approver.get(`/approvals?agent_id=${app.agentId}&status=pending`)).body.data
    assert.equal(listed.filter((each: any) => each.dedup_key === item.dedup_key).length, 1)
    assert.equal((await app.key.get(`/events?resource_id=${id}`)).body.total, 1)
  })

  it('are filed once by proposals that come at the same time', async () => {
    const first = await proposed()
    await approver.post(`${first.path}/reject`, { reason: 'no' })
    const args = { amount: 8_000 }
    const { generation_id } = first
    const filed = await Promise.all(
      Array.from({ length: 8 }, () => propose(app, generation_id, { id: tool.id, name: 'pay' }, args)),
    )
    assert.equal(new Set(filed.map(({ id }) => id)).size, 1)
  })

  it('execute the approved call, once, and carry on in a turn', async () => {
    const { path, generation_id } = await proposed({ amount: 400 })
    const replies = await Promise.all(Array.from({ length: 10 }, () => approver.post(`${path}/approve`)))
    assert.deepEqual(replies.map(({ status }) => status).sort(), [200, ...Array(9).fill(409)])
    for (const { status, body } of replies)
      if (status === 409) assert.equal(body.error.code, 'APPROVAL_ALREADY_RESOLVED')
    const item = await followed(path)
    assert.deepEqual([item.status, item.execution.status, item.execution.error], ['approved', 'succeeded', null])
    assert.match(item.execution.result_digest, /^[0-9a-f]{64}$/)
    assert.equal(calls(400), 1)
    assert.deepEqual(JSON.parse(target.last().body), { amount: 400 })
    assert.equal(target.last().headers['idempotency-key'], item.id)
    const turn = await continuationOf(generation_id)
    assert.equal(turn.id, item.execution.generation_id)
    const key = (await app.key.get(`/generations/${turn.id}`)).body
    // The double repeats its prompt.
    assert.match(key.output.content, /call of pay .* was approved/)
    assert.match(key.output.content, /"paid":true/)
    const events = (await app.key.get(`/events?resource_id=${item.id}`)).body.data
    assert.deepEqual(
      events.map(({ event }: any) => event),
      ['approvals.approved', 'approvals.created'],
    )
    const audited = (await app.admin.get(`/audit-log?project_id=${app.projectId}&action=approvals:ResolveApproval`))
      .body
    const entries = audited.data.filter((entry: any) => entry.resource_public_id === item.id)
    assert.deepEqual(entries.filter((entry: any) => entry.status === 200).length, 1)
    assert.ok(!JSON.stringify(entries).includes('"amount"'))
  })

  it('execute edited arguments of an operation of the platform', async () => {
    const act = { type: 'platform', name: 'act', actions: ['create-actor'] }
    const agent = await app.agent({ tool_bindings: [{ tool: act }] })
    const { body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
    const tool = { id: null, name: 'act', type: 'platform' }
    const { id } = await propose(app, body.id, tool, { name: 'Ada' }, { action: 'create-actor' })
    const edit = (fields: object) => approver.post(`/approvals/${id}/approve`, { arguments: fields })
    refused(await edit({ name: 7 }), 400, 'APPROVAL_INVALID_EDIT')
    refused(await edit({ named: 'Bob' }), 400, 'APPROVAL_INVALID_EDIT')
    const edited = await edit({ name: 'Bob' })
    assert.equal(edited.status, 200, JSON.stringify(edited.body))
    assert.equal((await followed(`/approvals/${id}`)).execution.status, 'succeeded')
    assert.equal((await app.admin.get(`/actors?project_id=${app.projectId}&name=Bob`)).body.total, 1)
  })

  it('execute edited arguments, which must fit the tool', async () => {
    const { path } = await proposed({ amount: 900 })
    for (const edit of [[], 'x', null, { amount: 'much' }, {}]) {
      const error = refused(await approver.post(`${path}/approve`, { arguments: edit }), 400, 'APPROVAL_INVALID_EDIT')
      assert.ok(error.meta.problems.length > 0)
    }
    assert.equal((await approver.get(path)).body.status, 'pending')
    const approved = (await approver.post(`${path}/approve`, { arguments: { amount: 450 } })).body
    assert.deepEqual(
      [approved.edited_arguments, approved.proposed_action.arguments],
      [{ amount: 450 }, { amount: 900 }],
    )
    await followed(path)
    assert.deepEqual(JSON.parse(target.last().body), { amount: 450 })
  })

  it('report to the model why a call was rejected, and execute nothing', async () => {
    const { path, generation_id, id } = await proposed({ amount: 31 })
    for (const body of [undefined, {}, { reason: ' ' }, { reason: 5 }])
      refused(await approver.post(`${path}/reject`, body), 400, 'APPROVAL_REASON_REQUIRED')
    const rejected = (await approver.post(`${path}/reject`, { reason: 'too much' })).body
    assert.deepEqual([rejected.status, rejected.resolution_reason, rejected.execution], ['rejected', 'too much', null])
    refused(await approver.post(`${path}/approve`), 409, 'APPROVAL_ALREADY_RESOLVED')
    const turn = await continuationOf(generation_id)
    assert.match((await app.key.get(`/generations/${turn.id}`)).body.output.content, /rejected.*Reason: too much/s)
    assert.equal(calls(31), 0)
    const next = await proposed({ amount: 31 })
    assert.notEqual(next.id, id)
    assert.equal((await approver.get(next.path)).body.previous_item_id, id)
  })

  it('are each resolved once, however many people work on the queue concurrently', async () => {
    const { body } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'pay' })
    const amounts = Array.from({ length: 200 }, (_, index) => 100_000 + index)
    const ids: string[] = []
    for (const each of amounts)
      ids.push((await propose(app, body.id, { id: tool.id, name: 'pay' }, { amount: each })).id)
    // Two callers are always on the same item; every third is also rejected.
    const replies = await Promise.all(
      Array.from({ length: 8 }, async (_, who) => {
        const mine: [number, string][] = []
        for (let index = who >> 1; index < ids.length; index += 4) {
          const decision = who % 2 === 1 && index % 3 === 0 ? 'reject' : 'approve'
          const { status, body } = await approver.post(`/approvals/${ids[index]}/${decision}`, {
            ...(decision === 'reject' ? { reason: 'no' } : {}),
          })
          mine.push([index, status === 200 ? body.status : body.error.code])
        }
        return mine
      }),
    )
    const outcomes = Map.groupBy(replies.flat(), ([index]) => index)
    const won = new Map([...outcomes].map(([index, both]) => [index, both.map(([, outcome]) => outcome).sort()]))
    for (const [first, second] of won.values()) {
      assert.equal(first, 'APPROVAL_ALREADY_RESOLVED')
      assert.match(second, /^(approved|rejected)$/)
    }
    const open = async () =>
      app.pool.any(
        idStatement`
          select approval_id as id from approval_attempts where approval_id = any(${sql.array(ids, 'text')})`,
      )
    await eventually(async () => (await open()).length === 0)
    for (const [index, [, outcome]] of won) assert.equal(calls(amounts[index]), outcome === 'approved' ? 1 : 0)
  })

  it('are either approved or rejected', async () => {
    for (let round = 0; round < 5; round++) {
      const { path } = await proposed()
      const replies = await Promise.all([
        approver.post(`${path}/approve`),
        approver.post(`${path}/reject`, { reason: 'no' }),
      ])
      assert.deepEqual(replies.map(({ status }) => status).sort(), [200, 409])
    }
  })

  it('expire, and are never executed then', async () => {
    const { path, id, expires_at } = await proposed({ amount: 66_000 }, { expires_in: 1 })
    await eventually(() => new Date() > new Date(expires_at))
    refused(await approver.post(`${path}/approve`), 409, 'APPROVAL_EXPIRED')
    refused(await approver.post(`${path}/reject`, { reason: 'late' }), 409, 'APPROVAL_ALREADY_RESOLVED')
    assert.equal((await approver.get(path)).body.status, 'expired')
    const events = (await app.key.get(`/events?resource_id=${id}`)).body.data
    assert.deepEqual(
      events.map(({ event }: any) => event),
      ['approvals.expired', 'approvals.created'],
    )
    assert.equal(calls(66_000), 0)
    // By themselves.
    const alone = await proposed(undefined, { expires_in: 1 })
    await eventually(async () => (await approver.get(alone.path)).body.status === 'expired')
    // An equal proposal is a new item.
    const args = { amount: 77_000 }
    const first = await proposed(args, { expires_in: 1 })
    await eventually(() => new Date() > new Date(first.expires_at))
    assert.notEqual((await proposed(args)).id, first.id)
  })

  it('carry on after they expired where the agent says so', async () => {
    const reacting = await app.agent({ on_approval_expiry: 'react' })
    const { generation_id } = await proposed(undefined, { expires_in: 1 }, reacting)
    const turn = await continuationOf(generation_id)
    assert.match((await app.key.get(`/generations/${turn.id}`)).body.output.content, /the approval has expired/)
  })

  it('report the failure of the call', async () => {
    target.answer = json({ no: 'funds' }, 402)
    const { path, generation_id } = await proposed()
    await approver.post(`${path}/approve`)
    const item = await followed(path)
    assert.deepEqual([item.execution.status, item.execution.error.code], ['failed', 'TOOL_HTTP_ERROR'])
    const turn = await continuationOf(generation_id)
    assert.match((await app.key.get(`/generations/${turn.id}`)).body.output.content, /It failed: .*TOOL_HTTP_ERROR/s)
    // The same of a tool that is gone.
    const other = await made(app.key, { name: 'gone', execute: { url: `${target.url}/gone` } })
    const filed = await propose(app, generation_id, { id: other.id, name: 'gone' }, {})
    await app.key.delete(`/tools/${other.id}`)
    await approver.post(`/approvals/${filed.id}/approve`, { arguments: { any: 1 } })
    assert.equal((await followed(`/approvals/${filed.id}`)).execution.error.code, 'TOOL_NOT_FOUND')
  })

  it('call tools that bindings define as the agent had them', async () => {
    const inline = { name: 'own', execute: { url: `${target.url}/own` }, preset_parameters: { fixed: 1 } }
    const binding = await app.agent({ tool_bindings: [{ tool: inline }] })
    const { body } = await app.key.post(`/agents/${binding}/generate?wait=true`, { prompt: 'x' })
    await app.key.patch(`/agents/${binding}`, { tool_bindings: null })
    const { id } = await propose(
      app,
      body.id,
      { id: null, name: 'own' },
      { n: 2, fixed: 1 },
      { tool_context: { tenant: 't1' } },
    )
    assert.equal((await approver.get(`/approvals/${id}`)).body.proposed_action.tool_id, null)
    await approver.post(`/approvals/${id}/approve`)
    assert.equal((await followed(`/approvals/${id}`)).execution.status, 'succeeded')
    assert.deepEqual([target.last().url, JSON.parse(target.last().body)], ['/own', { n: 2, fixed: 1 }])
    assert.equal(target.last().headers['x-svc-context-tenant'], 't1')
  })

  it('act within the boundary of the version that is served', async () => {
    const act = { type: 'platform', name: 'act', actions: ['create-secret'] }
    const boundary = { statement: [{ effect: 'Allow', action: ['secrets:ListSecrets'], resource: ['*'] }] }
    const agent = await app.agent({ tool_bindings: [{ tool: act }], boundary_policy: boundary })
    await app.key.patch(`/agents/${agent}`, { boundary_policy: null })
    const release = { stable_version: 1, canary_version: 2, canary_percent: 0 }
    assert.equal((await app.key.put(`/agents/${agent}/release`, release)).status, 200)
    const { body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt: 'x' })
    assert.equal(body.agent_version, 1)
    const action = 'create-secret'
    const args = { name: 'beyond', value: 'x' }
    const { id } = await propose(app, body.id, { id: null, name: 'act', type: 'platform' }, args, { action })
    await approver.post(`/approvals/${id}/approve`)
    const { status, error } = (await followed(`/approvals/${id}`)).execution
    assert.deepEqual([status, error?.meta.tool_status_code], ['failed', 403])
  })

  it('carry on in the session of the turn, after a message with the outcome', async () => {
    const session = (await app.key.post('/sessions', { agent_id: app.agentId })).body
    await app.key.post(`/sessions/${session.id}/messages`, { message: 'please pay' })
    const { body } = await app.key.post(`/sessions/${session.id}/generate?wait=true`)
    const { id } = await propose(app, body.generation_id, { id: tool.id, name: 'pay' }, { amount: ++amount })
    assert.equal((await approver.get(`/approvals?session_id=${session.id}`)).body.data[0].id, id)
    await approver.post(`/approvals/${id}/approve`)
    const messages = await eventually(async () => {
      const { data } = (await app.key.get(`/sessions/${session.id}/messages`)).body
      return data.length === 4 && data
    })
    assert.deepEqual(
      messages.map(({ role, origin }: any) => [role, origin]),
      [
        ['user', 'end_user'],
        ['assistant', 'agent'],
        ['user', 'approval'],
        ['assistant', 'agent'],
      ],
    )
    assert.match(messages[2].content, /waited for approval .* was approved/)
    assert.equal(messages[2].actor_id, null)
    // A closed session is not opened again; the item stays open.
    const late = await propose(app, body.generation_id, { id: tool.id, name: 'pay' }, { amount: ++amount })
    assert.equal((await app.key.patch(`/sessions/${session.id}`, { status: 'closed' })).status, 200)
    await approver.post(`/approvals/${late.id}/approve`)
    await eventually(
      async () =>
        !(await app.pool.exists(
          idStatement`select approval_id as id from approval_attempts where approval_id = ${late.id}`,
        )),
    )
    const { execution } = (await approver.get(`/approvals/${late.id}`)).body
    assert.deepEqual([execution.status, execution.generation_id], ['succeeded', null])
  })

  it('are found by their subjects', async () => {
    await proposed()
    refused(await approver.get('/approvals?status=foo'), 400, 'VALIDATION_FAILED')
    const both = (await approver.get('/approvals?status=pending&status=expired&limit=100')).body.data
    assert.deepEqual([...new Set(both.map(({ status }: any) => status))].sort(), ['expired', 'pending'])
    assert.equal((await approver.get('/approvals?origin=node')).body.total, 0)
    const future = new Date(Date.now() + 7_200_000).toISOString()
    assert.equal((await approver.get(`/approvals?expires_from=${future}`)).body.total, 0)
    assert.ok((await approver.get(`/approvals?expires_to=${future}`)).body.total > 0)
    refused(await approver.get('/approvals?expires_to=never'), 400, 'VALIDATION_FAILED')
  })

  it('that are rejected again and again are grouped', async () => {
    const args = { amount: 12_345 }
    const reasons = ['one', 'two', 'three']
    const ids = []
    for (const reason of reasons) {
      const { path, id } = await proposed(args)
      ids.push(id)
      await approver.post(`${path}/reject`, { reason })
    }
    const { data } = (await approver.get('/approvals/recurrences')).body
    const [group] = data
    assert.deepEqual([group.count, group.reasons, group.tool_id, group.agent_id], [3, reasons, tool.id, app.agentId])
    assert.deepEqual(
      group.chain.map(({ id }: any) => id),
      ids,
    )
    assert.deepEqual(Object.keys(group.chain[0]), ['id', 'status', 'resolution_reason', 'created_at'])
    assert.equal((await approver.get('/approvals/recurrences?min_count=4')).body.total, 0)
    refused(await approver.get('/approvals/recurrences?min_count=0'), 400, 'VALIDATION_FAILED')
  })

  it('are resolved together, each by itself', async () => {
    const [one, two] = [await proposed(), await proposed()]
    await approver.post(`${two.path}/reject`, { reason: 'no' })
    const nothing = 'apr_00000000000000000000000000'
    const ids = [one.id, two.id, nothing, one.id]
    refused(await approver.post('/approvals/resolve', { ids, decision: 'rejected' }), 400, 'APPROVAL_REASON_REQUIRED')
    const { results } = (await approver.post('/approvals/resolve', { ids, decision: 'rejected', reason: 'all' })).body
    assert.deepEqual(
      results.map((each: any) => [each.id, each.approval?.status ?? each.error.code]),
      [
        [one.id, 'rejected'],
        [two.id, 'APPROVAL_ALREADY_RESOLVED'],
        [nothing, 'APPROVAL_NOT_FOUND'],
      ],
    )
  })

  it('are resolved only by who may', async () => {
    const { path, id } = await proposed()
    refused(await approver.get('/approvals/apr_00000000000000000000000000'), 404, 'APPROVAL_NOT_FOUND')
    const reader = await app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['approvals:GetApproval'], resource: [`srn:${app.projectId}:*:*`] }] },
    ])
    assert.equal((await reader.get(path)).status, 200)
    assert.equal((await reader.post(`${path}/approve`)).status, 403)
    const all = await reader.post('/approvals/resolve', { ids: [id], decision: 'approved' })
    assert.equal(all.body.results[0].error.code, 'FORBIDDEN')
    const stranger = await app.project()
    refused(await stranger.key.post(`${path}/approve`), 404, 'APPROVAL_NOT_FOUND')
    // Not by a tool of an agent.
    for (const action of ['approve-approval', 'reject-approval', 'resolve-approvals'])
      refused(
        await app.key.post('/tools', { name: 'x', type: 'platform', actions: [action] }),
        400,
        'VALIDATION_FAILED',
      )
    // Nor by the caller who started the chain, where the guardrail says so: its key is separate.
    const own = await proposed(undefined, { forbid_self_approval: true })
    refused(await app.key.post(`${own.path}/approve`), 403, 'FORBIDDEN')
    refused(await app.admin.post(`${own.path}/reject`, { reason: 'x' }), 403, 'FORBIDDEN')
    assert.equal((await approver.post(`${own.path}/approve`)).status, 200)
  })

  it('end with the permissions of the caller who started the turn', async () => {
    const key = (await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [] })).body
    const { body } = await app.as(key.secret).post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'pay' })
    assert.ok(body.id, JSON.stringify(body))
    const { id } = await propose(app, body.id, { id: tool.id, name: 'pay' }, { amount: 44_000 })
    assert.equal((await app.admin.delete(`/project-keys/${key.id}`)).status, 204)
    await approver.post(`/approvals/${id}/approve`)
    const item = await followed(`/approvals/${id}`)
    assert.deepEqual([item.execution.status, item.execution.error.code], ['failed', 'FORBIDDEN'])
    assert.equal(calls(44_000), 0)
  })

  it('keep no content beyond the decision where the project keeps none', async () => {
    const secretive = await app.agent({ trace_content_mode: 'none' })
    const { path, id } = await proposed({ amount: 55_000 }, {}, secretive)
    assert.deepEqual((await approver.get(path)).body.proposed_action.arguments, { amount: 55_000 })
    await approver.post(`${path}/approve`, { arguments: { amount: 55_001 } })
    const item = await followed(path)
    assert.deepEqual(
      [item.proposed_action.arguments, item.reasoning, item.evidence, item.predicted_impact, item.edited_arguments],
      [null, null, null, null, null],
    )
    assert.deepEqual(JSON.parse(target.last().body), { amount: 55_001 })
    const events = JSON.stringify((await app.key.get(`/events?resource_id=${id}`)).body.data)
    assert.ok(!events.includes('55000') && !events.includes('55001') && !events.includes('because'))
  })

  it('execute nothing in a paused project', async () => {
    const { path } = await proposed({ amount: 88_000 })
    await app.admin.post(`/projects/${app.projectId}/pause`)
    try {
      await approver.post(`${path}/approve`)
      const item = await eventually(async () => {
        const { body } = await approver.get(path)
        return body.execution.finished_at && body
      })
      assert.equal(item.execution.error.code, 'PROJECT_PAUSED')
      assert.equal(calls(88_000), 0)
    } finally {
      await app.admin.post(`/projects/${app.projectId}/resume`)
    }
  })

  it('are named by what the guardrails said of the call', async () => {
    const rule = await guardrail(app.key, { class: 'C', expires_in: 60, forbid_self_approval: true })
    const { body } = await app.key.post(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'pay' })
    const args = { amount: ++amount }
    const request = {
      project_id: app.projectId,
      agent: { id: app.agentId, guardrail_ids: [rule.id] },
      tool: { id: tool.id, name: 'pay', guardrail_ids: null },
      action: 'pay',
      args,
      generation_id: body.id,
      run: null,
      guardrail_context: null,
      caller: async () => null,
    }
    // As the loop of turns does.
    const gate = toolGate.only() as ToolGate
    const verdict = await gate.judge(app.services, request)
    const { decision, ...asked } = verdict as Extract<Verdict, { decision: 'route_to_approval' }>
    assert.deepEqual(
      [decision, asked],
      [
        'route_to_approval',
        {
          policy_version: `${rule.id}@1`,
          expires_in: 60,
          forbid_self_approval: true,
          approver: 'operator',
          end_user_arguments: [],
        },
      ],
    )
    const { id } = await propose(app, body.id, { id: tool.id, name: 'pay' }, args, asked)
    const [record] = await eventually(async () => {
      const { data } = (await app.key.get(`/guardrail-evaluations?guardrail_id=${rule.id}`)).body
      return data.length === 1 && data
    })
    assert.deepEqual([record.approval_id, record.generation_id, record.scope], [id, body.id, 'agent'])
    const audit = await app.admin.get(`/audit-log?project_id=${app.projectId}&action=guardrails:Evaluate`)
    const entry = audit.body.data.find((each: any) => each.resource_public_id === rule.id)
    assert.equal(entry.detail.approval_id, id)
    const tools = [request.tool, { id: null, name: 'other', guardrail_ids: null }]
    assert.deepEqual(await gate.mayAsk(app.services, { project_id: app.projectId, agent: request.agent, tools }), [
      true,
      true,
    ])
    assert.deepEqual(await gate.mayAsk(app.services, { project_id: app.projectId, agent: null, tools }), [false, false])
  })
})
