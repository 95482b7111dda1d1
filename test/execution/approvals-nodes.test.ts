import assert from 'node:assert/strict'
import type { Services } from '#core/base/services.ts'
import { type ApprovalRow, approvalKind, approvalWaiters } from '#execution/approvals/model.ts'
import {
  approvedArguments,
  decisionArtifact,
  eraseApproved,
  fileNodeApproval,
  type NodeProposal,
  withdrawApprovals,
} from '#execution/approvals/node-approval.ts'
import { callTool, openCall } from '#execution/tools/call.ts'
import { type ToolGate, toolGate, type Verdict } from '#execution/tools/guardrail-gate.ts'
import { type Client, eventually } from '../support/app.ts'
import { loadBeside } from '../support/modules.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { guardrail } from './guardrail-support.ts'
import { accepted, shared } from './share-support.ts'
import { json, made, refused, startTarget, type Target } from './tool-target.ts'

describe('approvals of nodes', () => {
  let app: AgentApp
  let target: Target
  let services: Services
  let tool: any
  let approver: Client
  let keyId: string
  let unload: () => void
  const told: { id: string; status: string }[] = []
  let refuse = false

  const run = 'orch_run_00000000000000000000000000'
  const parameters = { type: 'object', properties: { amount: { type: 'integer' } }, required: ['amount'] }

  before(async () => {
    target = await startTarget()
    target.answer = json({ paid: true })
    unload = loadBeside({
      extensions: [
        approvalWaiters.with({
          async settled(_tx, { id, status }) {
            if (refuse) throw new Error('not now')
            told.push({ id, status })
          },
        }),
      ],
    })
    app = await startAgentApp({
      together: true,
      workers: ['generation', 'delivery'],
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', APPROVAL_SWEEP_INTERVAL_MS: '1000' },
    })
    services = app.services
    tool = await made(app.key, { name: 'pay', parameters, execute: { url: `${target.url}/pay` } })
    keyId = (await app.admin.get(`/project-keys?project_id=${app.projectId}`)).body.data[0].id
    approver = await approverOf(app.projectId)
  })
  after(async () => {
    await app?.close()
    await target?.close()
    unload?.()
  })

  const approverOf = (projectId: string) =>
    app.user(undefined, [
      { statement: [{ effect: 'Allow', action: ['approvals:*'], resource: [`srn:${projectId}:approval:*`] }] },
    ])

  const file = async (more: Partial<NodeProposal> = {}): Promise<ApprovalRow> => {
    return services.write(tx =>
      fileNodeApproval(tx, services, {
        project_id: app.projectId,
        orchestration_run_id: run,
        node_id: 'ask',
        proposed: { tool_id: tool.id, tool_name: 'pay', arguments: { amount: 500 } },
        reasoning: 'because',
        evidence: { seen: true },
        predicted_impact: 'none',
        expires_in: 3600,
        authority: { type: 'api_key', id: keyId, via: null },
        ...more,
      }),
    )
  }
  const read = async (id: string): Promise<any> => (await approver.get(`/approvals/${id}`)).body
  const rowOf = async (id: string): Promise<ApprovalRow> => (await approvalKind.find(services.pool, id)) as ApprovalRow
  const toldOf = (id: string) => told.filter(each => each.id === id).map(({ status }) => status)
  const eventsOf = async (id: string): Promise<string[]> =>
    (await app.key.get(`/events?resource_id=${id}`)).body.data.map(({ event }: any) => event)

  it('show what a node proposes, each by itself', async () => {
    const { id } = await file()
    const again = await file({ node_id: 'other' })
    assert.notEqual(again.id, id)
    const item = await read(id)
    assert.deepEqual(item.proposed_action, { tool_id: tool.id, tool_name: 'pay', arguments: { amount: 500 } })
    assert.deepEqual(
      [item.origin, item.status, item.orchestration_run_id, item.node_id, item.dedup_key, item.execution],
      ['node', 'pending', run, 'ask', null, null],
    )
    assert.deepEqual([item.reasoning, item.evidence, item.predicted_impact], ['because', { seen: true }, 'none'])
    assert.deepEqual(await eventsOf(id), ['approvals.created'])
    const listed = (await approver.get(`/approvals?orchestration_run_id=${run}&origin=node`)).body.data
    assert.deepEqual(listed.map((each: any) => each.id).sort(), [again.id, id].sort())
    assert.equal((await approver.get('/approvals?orchestration_run_id=orch_run_x')).body.total, 0)
    const entries = await eventually(async () => {
      const { data } = (await app.key.get(`/activity?orchestration_run_id=${run}`)).body
      return data.some((each: any) => each.ref_id === id) && data
    })
    assert.deepEqual(entries.find((each: any) => each.ref_id === id).detail.origin, 'node')
  })

  it('notify their module of a decision, and execute nothing', async () => {
    const { id } = await file()
    assert.equal((await approver.post(`/approvals/${id}/approve`)).body.execution, null)
    assert.deepEqual(toldOf(id), ['approved'])
    const row = await rowOf(id)
    assert.deepEqual(approvedArguments(services, row), { amount: 500 })
    const by = row.resolved_by
    assert.ok(by)
    assert.deepEqual(decisionArtifact(services, row, { paid: true }), {
      decision: 'approved',
      approval_id: id,
      resolved_by: by,
      edited_args: null,
      reason: null,
      result: { paid: true },
    })
    assert.deepEqual(await eventsOf(id), ['approvals.approved', 'approvals.created'])
    refused(await approver.post(`/approvals/${id}/approve`), 409, 'APPROVAL_ALREADY_RESOLVED')
    assert.deepEqual(toldOf(id), ['approved'])
    await services.write(tx => eraseApproved(tx, [id]))
    assert.equal(approvedArguments(services, await rowOf(id)), null)

    const other = await file()
    const decision = { ids: [other.id], decision: 'rejected', reason: 'too much' }
    assert.equal((await approver.post('/approvals/resolve', decision)).body.results[0].approval.status, 'rejected')
    assert.deepEqual(toldOf(other.id), ['rejected'])
    const rejected = await rowOf(other.id)
    assert.equal(rejected.sealed, null)
    assert.equal(decisionArtifact(services, rejected).reason, 'too much')
    assert.equal(approvedArguments(services, rejected), null)
    assert.equal(target.requests.length, 0)
  })

  it('stay undecided where their module cannot be notified', async () => {
    const { id } = await file()
    refuse = true
    try {
      assert.equal((await approver.post(`/approvals/${id}/approve`)).status, 500)
    } finally {
      refuse = false
    }
    assert.equal((await read(id)).status, 'pending')
    assert.deepEqual(await eventsOf(id), ['approvals.created'])
  })

  it('are approved with other arguments, which must fit the schema of the tool', async () => {
    const { id } = await file()
    const path = `/approvals/${id}/approve`
    for (const edit of [[], { amount: 'much' }])
      refused(await approver.post(path, { arguments: edit }), 400, 'APPROVAL_INVALID_EDIT')
    assert.deepEqual((await approver.post(path, { arguments: { amount: 5 } })).body.edited_arguments, { amount: 5 })
    assert.deepEqual(approvedArguments(services, await rowOf(id)), { amount: 5 })
    assert.deepEqual(decisionArtifact(services, await rowOf(id)).edited_args, { amount: 5 })

    // No schema says which arguments fit.
    const other = await made(app.key, { name: 'gone', parameters, execute: { url: target.url } })
    const proposed = { tool_id: other.id, tool_name: 'gone', arguments: { amount: 1 } }
    const [gone, nothing] = [await file({ proposed }), await file({ proposed: null })]
    assert.equal((await app.key.delete(`/tools/${other.id}`)).status, 204)
    assert.equal((await approver.post(`/approvals/${gone.id}/approve`, { arguments: { any: 1 } })).status, 200)
    assert.deepEqual(approvedArguments(services, await rowOf(gone.id)), { any: 1 })
    // Nothing is proposed.
    assert.equal((await read(nothing.id)).proposed_action, null)
    refused(await approver.post(`/approvals/${nothing.id}/approve`, { arguments: {} }), 400, 'APPROVAL_INVALID_EDIT')
    assert.equal((await approver.post(`/approvals/${nothing.id}/approve`)).status, 200)
    assert.equal(approvedArguments(services, await rowOf(nothing.id)), null)
  })

  it('check arguments by a tool that another project shares, while it does', async () => {
    const publisher = await app.projectWith(['*'])
    const lent = await made(publisher.key, { name: 'shared', parameters, execute: { url: target.url } })
    const share = await shared(publisher.key, `srn:${publisher.id}:tool:${lent.id}`, { grantee: app.projectId })
    await accepted(app.key, share.id)
    const proposed = { tool_id: lent.id, tool_name: 'shared', arguments: { amount: 1 } }
    const { id } = await file({ proposed })
    const edit = { arguments: { amount: 'much' } }
    refused(await approver.post(`/approvals/${id}/approve`, edit), 400, 'APPROVAL_INVALID_EDIT')
    assert.equal((await publisher.key.delete(`/shares/${share.id}`)).status, 204)
    assert.equal((await approver.post(`/approvals/${id}/approve`, edit)).status, 200)
  })

  it('expire, and their module is notified', async () => {
    const { id } = await file({ expires_in: 1 })
    await eventually(async () => (await read(id)).status === 'expired')
    assert.deepEqual(toldOf(id), ['expired'])
    assert.equal((await rowOf(id)).sealed, null)
    assert.equal(decisionArtifact(services, await rowOf(id)).decision, 'expired')
    const exception = await eventually(async () => {
      const { data } = (await app.key.get(`/exceptions?orchestration_run_id=${run}`)).body
      return data.find((each: any) => each.detail?.approval_id === id)
    })
    assert.deepEqual([exception.kind, exception.node_id], ['approval_expired', 'ask'])
    refused(await approver.post(`/approvals/${id}/approve`), 409, 'APPROVAL_EXPIRED')
  })

  it('are withdrawn with an event and no other notification', async () => {
    const [one, decided] = [await file(), await file()]
    await approver.post(`/approvals/${decided.id}/approve`)
    await services.write(tx => withdrawApprovals(tx, [one.id, decided.id, 'apr_x']))
    assert.equal((await read(one.id)).status, 'expired')
    assert.equal((await read(decided.id)).status, 'approved')
    assert.deepEqual([toldOf(one.id), toldOf(decided.id)], [[], ['approved']])
    assert.deepEqual(await eventsOf(one.id), ['approvals.expired', 'approvals.created'])
    refused(await approver.post(`/approvals/${one.id}/approve`), 409, 'APPROVAL_EXPIRED')
    refused(await approver.post(`/approvals/${one.id}/reject`, { reason: 'x' }), 409, 'APPROVAL_ALREADY_RESOLVED')
    const { data } = (await app.key.get('/exceptions?kind=approval_expired&limit=100')).body
    assert.ok(!data.some((each: any) => each.detail?.approval_id === one.id))
  })

  it('are not resolved by the user who started the run, where that is forbidden', async () => {
    const { id } = await file({ forbid_self_approval: true })
    refused(await app.key.post(`/approvals/${id}/approve`), 403, 'FORBIDDEN')
    refused(await app.admin.post(`/approvals/${id}/approve`), 403, 'FORBIDDEN')
    assert.equal((await approver.post(`/approvals/${id}/approve`)).status, 200)
    const { id: userId } = (await app.admin.get('/users/me')).body
    const own = await file({ forbid_self_approval: true, authority: { type: 'user', id: userId, via: null } })
    refused(await app.admin.post(`/approvals/${own.id}/approve`), 403, 'FORBIDDEN')
  })

  it('record the result of the guardrail that required them', async () => {
    const rule = await guardrail(app.key, { class: 'C' })
    const attached = { ...tool, guardrail_ids: [rule.id] }
    const args = { amount: 70 }
    const gate = toolGate.only() as ToolGate
    const verdict = await gate.judge(services, {
      project_id: app.projectId,
      agent: null,
      tool: attached,
      action: 'pay',
      args,
      generation_id: null,
      run: { orchestration_run_id: run, node_id: 'ask' },
      guardrail_context: null,
      caller: async () => null,
    })
    assert.equal(verdict.decision, 'route_to_approval')
    const { policy_version, expires_in } = verdict as Extract<Verdict, { policy_version: string }>
    const proposed = { tool_id: tool.id, tool_name: 'pay', action: 'pay', arguments: args }
    const { id } = await file({ proposed, policy_version, expires_in })
    assert.equal((await read(id)).policy_version, `${rule.id}@1`)
    const [record] = await eventually(async () => {
      const { data } = (await app.key.get(`/guardrail-evaluations?guardrail_id=${rule.id}`)).body
      return data.length > 0 && data
    })
    assert.deepEqual([record.approval_id, record.orchestration_run_id, record.generation_id], [id, run, null])
  })

  it('continue with a call that is metered to the run, as results of guardrails of its steps are', async () => {
    const rule = await guardrail(app.key, { class: 'A' })
    const step = await made(app.key, { name: 'step', execute: { url: target.url }, guardrail_ids: [rule.id] })
    const whole = await made(app.key, {
      type: 'pipeline',
      name: 'whole',
      pipeline: { steps: [{ id: 'one', tool_id: step.id, input: {} }], output: { var: 'steps.one' } },
    })
    const call = openCall(services, {
      caller: async () => null,
      judged: true,
      metering: {
        source: 'orchestration',
        record: null,
        orchestration_run_id: 'orch_run_m',
        node_id: 'do',
        trigger_id: 't',
      },
    })
    assert.deepEqual(await callTool(services, { ...whole }, call), { paid: true })
    const uses = await eventually(async () => {
      const { data } = (await app.key.get('/usage/events?orchestration_run_id=orch_run_m')).body
      return data.length === 2 && data
    })
    for (const use of uses) assert.deepEqual([use.source, use.node_id, use.trigger_id], ['orchestration', 'do', 't'])
    const record = await eventually(async () => {
      const { data } = (await app.key.get('/guardrail-evaluations?orchestration_run_id=orch_run_m')).body
      return data[0]
    })
    assert.equal(record.guardrail_id, rule.id)
  })

  it('keep no proposed content where no content is stored', async () => {
    const project = await app.projectWith(['*'])
    await app.admin.patch(`/projects/${project.id}`, { trace_content_mode: 'none' })
    const its = await approverOf(project.id)
    const filed = await Promise.all(
      [1, 2].map(() =>
        file({ project_id: project.id, proposed: { tool_id: null, tool_name: 'own', arguments: { n: 1 } } }),
      ),
    )
    const [id, other] = filed.map(row => row.id)
    assert.deepEqual((await its.get(`/approvals/${id}`)).body.proposed_action.arguments, { n: 1 })
    const events = (await project.key.get(`/events?resource_id=${id}`)).body.data
    assert.equal(events[0].data.proposed_action.arguments, null)
    const { body } = await its.post(`/approvals/${id}/approve`, { arguments: { n: 2 } })
    assert.deepEqual([body.proposed_action.arguments, body.reasoning, body.edited_arguments], [null, null, null])
    // The decision is executed all the same.
    assert.deepEqual(approvedArguments(services, await rowOf(id)), { n: 2 })
    assert.deepEqual(decisionArtifact(services, await rowOf(id)).edited_args, { n: 2 })
    await services.write(tx => withdrawApprovals(tx, [other]))
    const withdrawn = (await its.get(`/approvals/${other}`)).body
    assert.deepEqual([withdrawn.proposed_action.arguments, withdrawn.evidence], [null, null])
  })
})
