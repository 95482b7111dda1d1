import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { startDouble } from '#local/double/server.ts'
import { type Client, eventually, type Reply, startApp } from '../support/app.ts'
import { bodyOf, createdBy } from '../support/replies.ts'
import { toolCall } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'

/**
 * The restrictions of a caller apply to everything that it causes, and a definition does not lend the permissions of its
 * author to a user who changes it.
 */
describe('restrictions of a caller', function () {
  this.timeout(120_000)
  const double = forSuite(() => startDouble({}))
  const app = forSuite(() => startApp({ workers: ['generation', 'orchestration', 'trigger'] }))
  const admin = forSuite(() => app.admin)
  let projectId: string
  let wide: Client & { id: string }
  let narrow: Client & { id: string }
  let providerId: string
  let counter = 0

  const named = (what: string): string => `${what}-${++counter}`
  const made = (by: Client, path: string, body: object): Promise<any> =>
    createdBy(by, path, { project_id: projectId, ...body })
  const code = async (reply: Promise<Reply>) => {
    const { status, body } = await reply
    return [status, body?.error?.code]
  }
  const allowing = (action: string[], but: string[] = []) => {
    const resource = [`srn:${projectId}:*:*`]
    const denied = but.length > 0 ? [{ effect: 'Deny', action: but, resource }] : []
    return { statement: [{ effect: 'Allow', action, resource }, ...denied] }
  }

  before(async () => {
    projectId = (await bodyOf(admin.post('/projects', { name: 'bounds' }))).id
    wide = await app.user(undefined, [allowing(['*'])])
    narrow = await app.user(undefined, [allowing(['*'], ['secrets:CreateSecret'])])
    const provider = { name: 'double', provider: 'custom', default_model: 'double-1', base_url: `${double.url}/v1` }
    providerId = (await made(admin, '/ai-providers', provider)).id
  })

  const platform = (by: Client, actions: string[], more: object = {}): Promise<any> =>
    made(by, '/tools', { name: named('platform'), type: 'platform', actions, ...more })
  const agent = (by: Client, fields: object): Promise<any> =>
    made(by, '/agents', { name: named('agent'), ai_provider_id: providerId, ...fields })
  const script = (...replies: object[]) => `@double ${JSON.stringify([...replies, { text: 'done' }])}`
  const generate = (by: Client, agentId: string, ...replies: object[]) =>
    by.post(`/agents/${agentId}/generate?wait=true`, { prompt: script(...replies) })
  const results = async (generation: string): Promise<any[]> =>
    (await bodyOf(admin.get(`/generations/${generation}/transcript`))).steps.flatMap((step: any) => step.tool_results)
  const exists = async (name: string): Promise<boolean> =>
    (await bodyOf(admin.get(`/secrets?project_id=${projectId}&limit=100`))).data.some((each: any) => each.name === name)
  const maker = (by: Client, name: string, more: object = {}): Promise<any> =>
    platform(by, ['create-secret'], {
      preset_parameters: { action: 'create-secret', name, value: 'v' },
      ...more,
    })

  describe('by the boundary of an agent', () => {
    let below: any
    let all: any
    let bounded: any
    const secret = 'beyond-the-boundary'
    const ask = (action: string, args: object) => toolCall(`${all.name}_${action}`, args)

    before(async () => {
      const tool = await maker(wide, secret)
      below = { tool, agent: await agent(wide, { tool_bindings: [{ tool_id: tool.id }] }) }
      below.graph = await made(wide, '/orchestrations', {
        name: 'graph',
        nodes: [{ id: 'a', type: 'tool', tool_id: tool.id, operation_id: 'create-secret' }],
        edges: [],
      })
      below.trigger = await made(wide, '/triggers', {
        name: named('trigger'),
        type: 'manual',
        target_type: 'orchestration',
        target_id: below.graph.id,
      })
      all = await platform(wide, [
        ...[
          'create-agent-generation',
          'start-run',
          'create-orchestration',
          'update-agent',
          'fire-trigger',
          'retry-run',
        ],
        ...['restore-agent-version', 'delete-agent', 'adopt-agent', 'set-agent-release', 'put-agent'],
      ])
      bounded = await agent(wide, {
        tool_bindings: [{ tool_id: all.id }],
        boundary_policy: allowing(['*'], ['secrets:CreateSecret']),
      })
    })

    it('apply in the turn of another agent that it calls', async () => {
      const prompt = script(toolCall(`${below.tool.name}_create-secret`))
      const turn = await bodyOf(
        generate(wide, bounded.id, ask('create-agent-generation', { agent_id: below.agent.id, prompt })),
      )
      const [{ result, error }] = await results(turn.id)
      assert.equal(error, null, JSON.stringify(error))
      const [inner] = await results(result.id)
      assert.equal(inner.error.code, 'FORBIDDEN', JSON.stringify(inner))
      assert.equal(await exists(secret), false)
    })

    it('apply in a run that it starts, and in later runs of an orchestration that it created', async () => {
      const turn = await bodyOf(generate(wide, bounded.id, ask('start-run', { orchestration_id: below.graph.id })))
      const [{ result }] = await results(turn.id)
      assert.equal(result.status, 'failed', JSON.stringify(result))
      const { nodes, edges } = below.graph
      const made = await bodyOf(
        generate(wide, bounded.id, ask('create-orchestration', { name: 'made within', nodes, edges })),
      )
      const [{ result: graph }] = await results(made.id)
      const run = await bodyOf(wide.post('/orchestration-runs', { orchestration_id: graph.id, wait: true }))
      assert.equal(run.status, 'failed', JSON.stringify(run))
      assert.equal(await exists(secret), false)
    })

    it('apply in a trigger that it fires and in a run that it retries', async () => {
      const fired = await bodyOf(generate(wide, bounded.id, ask('fire-trigger', { trigger_id: below.trigger.id })))
      const [{ result: firing }] = await results(fired.id)
      assert.equal(firing.status, 'failed', JSON.stringify(firing))
      const refused = firing.result.result_id
      const retried = await bodyOf(generate(wide, bounded.id, ask('retry-run', { orchestration_run_id: refused })))
      const [{ result: again }] = await results(retried.id)
      const ended = await eventually(async () => {
        const { body } = await admin.get(`/orchestration-runs/${again.id}`)
        return body.status !== 'queued' && body.status !== 'running' && body
      })
      assert.equal((ended as any).status, 'failed')
      assert.equal(await exists(secret), false)
    })

    it('cannot be changed by the agent', async () => {
      const agent_id = bounded.id
      for (const [action, args] of [
        ['update-agent', { agent_id, boundary_policy: null }],
        ['put-agent', { agent_id, boundary_policy: null }],
        ['restore-agent-version', { agent_id, version: '1' }],
        ['set-agent-release', { agent_id, stable_version: 1, canary_version: 1, canary_percent: 0 }],
        ['adopt-agent', { agent_id }],
        ['delete-agent', { agent_id }],
      ] as const) {
        const turn = await bodyOf(generate(wide, agent_id, ask(action, args)))
        const [{ error }] = await results(turn.id)
        assert.equal(error?.code, 'FORBIDDEN', `${action}: ${JSON.stringify(error)}`)
      }
      assert.deepEqual((await bodyOf(wide.get(`/agents/${agent_id}`))).version, 1)
    })

    it('apply only to the work of the agent', async () => {
      const run = await bodyOf(wide.post('/orchestration-runs', { orchestration_id: below.graph.id, wait: true }))
      assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
      assert.ok(await exists(secret))
    })
  })

  describe('by the permissions of the editor of a definition', () => {
    const effect = async (by: Client) => {
      const secret = named('changed')
      return { secret, tool: await maker(by, secret) }
    }
    const onTool = (tool: any) => ({ target_type: 'tool', target_id: tool.id, action: 'create-secret' })

    it('a retargeted trigger acts as its editor and keeps its creator on record', async () => {
      const { tool } = await effect(wide)
      const policy = (await bodyOf(admin.post('/policies', { document: allowing(['tools:CallTool']) }))).id
      const trigger = await made(wide, '/triggers', {
        name: named('trigger'),
        type: 'manual',
        ...onTool(tool),
        policy_id: policy,
      })
      const wideRef = { kind: 'user', id: wide.id }
      assert.deepEqual([trigger.run_as, trigger.created_by], [wideRef, wideRef])
      const own = await effect(wide)
      const path = `/triggers/${trigger.id}`
      const changed = await bodyOf(narrow.patch(path, { target_id: own.tool.id, policy_id: null }))
      assert.deepEqual([changed.run_as, changed.created_by], [{ kind: 'user', id: narrow.id }, wideRef])
      const firing = await bodyOf(admin.post(`${path}/fire`))
      assert.equal(firing.status, 'failed', JSON.stringify(firing))
      assert.equal(await exists(own.secret), false)
      // Another name or time changes nothing of whom it acts as.
      await bodyOf(wide.patch(path, { target_id: tool.id }))
      const renamed = await bodyOf(narrow.patch(path, { name: named('trigger'), active: true }))
      assert.deepEqual(renamed.run_as, wideRef)
    })

    it('only callers that could create a trigger may change its policy', async () => {
      const { tool } = await effect(wide)
      const editor = await app.user(undefined, [allowing(['triggers:*', 'tools:*'], ['triggers:CreateTrigger'])])
      const policy_id = (await bodyOf(admin.post('/policies', { document: allowing(['tools:CallTool']) }))).id
      const trigger = await made(wide, '/triggers', {
        name: named('trigger'),
        type: 'manual',
        ...onTool(tool),
        policy_id,
      })
      const path = `/triggers/${trigger.id}`
      assert.deepEqual(await code(editor.patch(path, { policy_id: null })), [403, 'FORBIDDEN'])
      assert.equal((await bodyOf(editor.patch(path, { input: { a: 1 } }))).policy_id, policy_id)
      assert.equal((await bodyOf(wide.patch(path, { policy_id: null }))).policy_id, null)
    })

    it('a tool changed under the trigger or run of another user is limited to the permissions of its editor', async () => {
      const secret = ''
      const tool = await maker(wide, secret)
      const trigger = await made(wide, '/triggers', { name: named('trigger'), type: 'manual', ...onTool(tool) })
      const graph = await made(wide, '/orchestrations', {
        name: 'graph',
        nodes: [{ id: 'fails', type: 'tool', tool_id: tool.id, operation_id: 'create-secret' }],
        edges: [],
      })
      const run = await bodyOf(wide.post('/orchestration-runs', { orchestration_id: graph.id, wait: true }))
      assert.equal(run.status, 'failed')
      const presets = { action: 'create-secret', name: named('stolen'), value: 'v' }
      await bodyOf(narrow.patch(`/tools/${tool.id}`, { preset_parameters: presets }))
      assert.equal((await bodyOf(admin.post(`/triggers/${trigger.id}/fire`))).status, 'failed')
      const retried = await bodyOf(narrow.post(`/orchestration-runs/${run.id}/retry`))
      const ended: any = await eventually(async () => {
        const { body } = await admin.get(`/orchestration-runs/${retried.id}`)
        return body.status !== 'queued' && body.status !== 'running' && body
      })
      assert.deepEqual([ended.status, ended.error.meta.resource], ['failed', tool.id], JSON.stringify(ended.error))
      assert.equal(await exists(presets.name), false)
    })
  })

  describe('of guardrail tools', () => {
    it('is limited to platform tools that get, list and search', async () => {
      const write = await maker(wide, named('context'))
      const read = await platform(wide, ['list-secrets'], { preset_parameters: { action: 'list-secrets' } })
      const step = (tool_id: string, action: string) => ({ steps: [{ id: 'a', tool_id, action }] })
      const pipe = async (pipeline: object) =>
        (await made(wide, '/tools', { name: named('pipe'), type: 'pipeline', pipeline })).id
      const nested = await pipe(step(await pipe(step(write.id, 'create-secret')), undefined as never))
      const rule = (context_tool_id: string) =>
        wide.post('/guardrails', { project_id: projectId, name: 'rule', document: { class: 'A' }, context_tool_id })
      for (const id of [write.id, await pipe(step(write.id, 'create-secret')), nested]) {
        const { status, body } = await rule(id)
        assert.deepEqual(
          [status, body.error?.code, body.error?.meta?.problems[0].path],
          [400, 'VALIDATION_FAILED', 'context_tool_id'],
          JSON.stringify(body),
        )
        assert.match(body.error.message, /create-secret/)
      }
      for (const id of [read.id, await pipe(step(read.id, 'list-secrets'))]) assert.equal((await rule(id)).status, 201)
    })

    it('refuses calls of an existing tool that writes', async () => {
      const secret = named('context')
      const victim = await app.user()
      const everything = (await bodyOf(admin.post('/policies', { document: allowing(['*']) }))).id
      const attach = await platform(wide, ['attach-user-policy'], {
        preset_parameters: { action: 'attach-user-policy', user_id: victim.id, policy_id: everything },
      })
      const document = { class: { if: [{ '==': [{ var: 'context.x' }, 1] }, 'A', 'A'] } }
      for (const context of [await maker(wide, secret), attach]) {
        const rule = await made(wide, '/guardrails', { name: named('rule'), document })
        await app.pool.query(
          rawQuery('update guardrails set context_tool_id = $1 where id = $2', [context.id, rule.id]),
        )
        const tool = await platform(wide, ['list-secrets'], { guardrail_ids: [rule.id] })
        for (const by of [admin, wide]) {
          const called = await by.post(`/tools/${tool.id}/call`, { action: 'list-secrets', input: {} })
          assert.deepEqual([called.status, called.body.error?.code], [422, 'TOOL_DISPATCH_FAILED'])
          const tried = await bodyOf(by.post(`/guardrails/${rule.id}/evaluate`, { args: {} }))
          assert.deepEqual([tried.context_source, tried.decision], ['none', 'route_to_approval'], JSON.stringify(tried))
        }
      }
      assert.equal(await exists(secret), false)
      assert.deepEqual((await bodyOf(admin.get(`/users/${victim.id}`))).policy_ids ?? [], [])
    })

    it('reads only what its author, the author of its tool and the caller may read', async () => {
      const reader = (but: string[]) => app.user(undefined, [allowing(['*'], but)])
      const blind = await reader(['secrets:ListSecrets'])
      const document = { class: { if: [{ '!': [{ var: 'context.total' }] }, 'D', 'A'] } }
      const decided = async (author: Client, toolAuthor: Client, caller: Client) => {
        const context = await platform(toolAuthor, ['list-secrets'], {
          preset_parameters: { action: 'list-secrets' },
        })
        const rule = await made(author, '/guardrails', { name: named('rule'), document, context_tool_id: context.id })
        const { decision, context_source } = await bodyOf(caller.post(`/guardrails/${rule.id}/evaluate`, { args: {} }))
        return [decision, context_source]
      }
      assert.deepEqual(await decided(wide, wide, wide), ['execute', 'tool'])
      for (const [author, toolAuthor, caller] of [
        [blind, wide, wide],
        [wide, blind, wide],
        [wide, wide, blind],
      ])
        assert.deepEqual(await decided(author, toolAuthor, caller), ['route_to_approval', 'none'])
    })
  })

  describe('at human decisions', () => {
    it('background work cannot submit human input or complete a manual step', async () => {
      const graph = await made(wide, '/orchestrations', {
        name: 'graph',
        nodes: [{ id: 'human', type: 'human' }],
        edges: [],
      })
      const run = await bodyOf(wide.post('/orchestration-runs', { orchestration_id: graph.id, wait: true }))
      const playbook = await made(wide, '/playbooks', {
        name: named('playbook'),
        steps: [{ key: 'sign', title: 'Sign', type: 'manual', skippable: true }],
      })
      const { id: case_id } = await made(wide, '/cases', { title: 'a case' })
      const execution = await bodyOf(wide.post('/playbook-executions', { case_id, playbook_id: playbook.id }))
      await eventually(async () => (await admin.get(`/playbook-executions/${execution.id}`)).body.waiting_on)
      const tool = await platform(wide, ['submit-human-input', 'complete-playbook-step', 'skip-playbook-step'])
      const { id } = await agent(wide, { tool_bindings: [{ tool_id: tool.id }] })
      const step = { execution_id: execution.id, step_key: 'sign' }
      for (const [action, args] of [
        ['submit-human-input', { orchestration_run_id: run.id, node_id: 'human', output: {} }],
        ['complete-playbook-step', step],
        ['skip-playbook-step', { ...step, reason: 'no time' }],
      ] as const) {
        const [{ error }] = await results(
          (await bodyOf(generate(wide, id, toolCall(`${tool.name}_${action}`, args)))).id,
        )
        assert.equal(error.meta.tool_status_code, 403, `${action}: ${JSON.stringify(error)}`)
        // A person who calls the tool has it decide, too.
        const direct = await wide.post(`/tools/${tool.id}/call`, { action, input: args })
        assert.equal(direct.body.error.meta.tool_status_code, 403, JSON.stringify(direct.body))
      }
      assert.equal((await bodyOf(admin.get(`/orchestration-runs/${run.id}`))).status, 'awaiting_input')
      const input = { node_id: 'human', output: {} }
      assert.equal((await bodyOf(wide.post(`/orchestration-runs/${run.id}/human-input`, input))).status, 'succeeded')
      assert.equal(
        (await bodyOf(wide.post(`/playbook-executions/${execution.id}/steps/sign/complete`, {}))).id,
        execution.id,
      )
    })

    it('callers that fired, created or changed a trigger, or retried a run, cannot approve', async () => {
      const rule = await made(wide, '/guardrails', {
        name: named('rule'),
        document: { class: 'C', forbid_self_approval: true },
      })
      const secret = named('approved')
      const tool = await maker(wide, secret, { guardrail_ids: [rule.id] })
      const graph = await made(wide, '/orchestrations', {
        name: 'graph',
        nodes: [{ id: 'a', type: 'tool', tool_id: tool.id, operation_id: 'create-secret' }],
        edges: [],
      })
      const maker2 = await app.user(undefined, [allowing(['*'])])
      const firer = await app.user(undefined, [allowing(['*'])])
      const trigger = await made(wide, '/triggers', {
        name: named('trigger'),
        type: 'manual',
        target_type: 'orchestration',
        target_id: graph.id,
      })
      await bodyOf(maker2.patch(`/triggers/${trigger.id}`, { input: { a: 1 } }))
      const firing = await bodyOf(firer.post(`/triggers/${trigger.id}/fire`))
      const itemOf = async (run: string) =>
        (await bodyOf(admin.get(`/approvals?project_id=${projectId}&orchestration_run_id=${run}`))).data[0]?.id
      const first = await itemOf(firing.result.result_id)
      for (const starter of [wide, maker2, firer])
        assert.deepEqual(await code(starter.post(`/approvals/${first}/approve`)), [403, 'FORBIDDEN'])
      const run = firing.result.result_id
      await bodyOf(narrow.post(`/orchestration-runs/${run}/cancel`))
      const retrier = await app.user(undefined, [allowing(['*'])])
      const again = await bodyOf(retrier.post(`/orchestration-runs/${run}/retry`))
      const second = await eventually(() => itemOf(again.id))
      for (const starter of [retrier, firer, wide, maker2])
        assert.deepEqual(await code(starter.post(`/approvals/${second}/approve`)), [403, 'FORBIDDEN'])
      assert.deepEqual(await code(narrow.post(`/approvals/${second}/approve`)), [200, undefined])
      await eventually(() => exists(secret))
    })

    it('edited arguments are evaluated again: forbidden ones are refused and the approval stays open', async () => {
      const amount = { var: 'args.amount' }
      const rule = await made(wide, '/guardrails', {
        name: named('rule'),
        document: { class: { if: [{ '>': [amount, 1000] }, 'D', { if: [{ '>': [amount, 10] }, 'C', 'A'] }] } },
      })
      const tool = await made(wide, '/tools', {
        name: named('pay'),
        type: 'pipeline',
        parameters: { type: 'object', required: ['amount'], properties: { amount: { type: 'integer' } } },
        pipeline: {
          steps: [
            {
              id: 'make',
              action: 'create-secret',
              tool: { name: 'inline', type: 'platform', actions: ['create-secret'] },
              input: { name: { cat: ['paid-', { var: 'input.amount' }] }, value: 'v' },
            },
          ],
        },
        guardrail_ids: [rule.id],
      })
      const { id } = await agent(wide, { tool_bindings: [{ tool_id: tool.id }] })
      const turn = await bodyOf(generate(wide, id, toolCall(tool.name, { amount: 500 })))
      const item = (await bodyOf(admin.get(`/approvals?project_id=${projectId}&status=pending`))).data.find(
        (each: any) => each.generation_id === turn.id,
      )
      const approve = (amount: number) => narrow.post(`/approvals/${item.id}/approve`, { arguments: { amount } })
      const refused = await approve(5000)
      assert.deepEqual(
        [refused.status, refused.body.error.code, refused.body.error.meta.verdict],
        [403, 'FORBIDDEN', 'blocked'],
        JSON.stringify(refused.body),
      )
      assert.equal((await bodyOf(admin.get(`/approvals/${item.id}`))).status, 'pending')
      const judged = `/guardrail-evaluations?project_id=${projectId}&guardrail_id=${rule.id}&decision=blocked`
      await eventually(async () => (await bodyOf(admin.get(judged))).total === 1)
      assert.equal((await approve(501)).status, 200)
      await eventually(() => exists('paid-501'))
      assert.deepEqual([await exists('paid-5000'), await exists('paid-500')], [false, false])
    })

    it('equal proposals for different end users, contexts and callers are separate approvals', async () => {
      const rule = await made(wide, '/guardrails', { name: named('rule'), document: { class: 'C' } })
      const tool = await maker(wide, named('twice'), { guardrail_ids: [rule.id] })
      const { id: agent_id } = await agent(wide, { tool_bindings: [{ tool_id: tool.id }] })
      const said = script(toolCall(`${tool.name}_create-secret`))
      const actors = [await made(wide, '/actors', { name: 'Ada' }), await made(wide, '/actors', { name: 'Bob' })]
      const inSession = async (actor_id: string) => {
        const session = await made(wide, '/sessions', { agent_id, actor_id })
        await bodyOf(wide.post(`/sessions/${session.id}/messages`, { message: said }))
        await bodyOf(wide.post(`/sessions/${session.id}/generate?wait=true`))
      }
      const alone = (by: Client, tool_context?: object) =>
        by.post(`/agents/${agent_id}/generate?wait=true`, { prompt: said, ...(tool_context && { tool_context }) })
      for (const { id } of actors) await inSession(id)
      await inSession(actors[0].id)
      await bodyOf(alone(wide))
      await bodyOf(alone(wide))
      await bodyOf(alone(wide, { tenant: 'a' }))
      await bodyOf(alone(narrow))
      const pending = (
        await bodyOf(admin.get(`/approvals?project_id=${projectId}&status=pending&agent_id=${agent_id}`))
      ).data
      // Three sessions, one caller alone however often, one with a context, and another caller.
      assert.equal(pending.length, 6, JSON.stringify(pending.map((each: any) => each.session_id)))
    })
  })

  describe('through a share', () => {
    it('guardrails and approvers of the other project see the arguments, never the presets', async () => {
      const { id: other, key } = await app.project('grantee', projectId)
      const provider = { name: 'double', provider: 'custom', default_model: 'double-1', base_url: `${double.url}/v1` }
      const ai_provider_id = (await bodyOf(key.post('/ai-providers', provider))).id
      const tool = await made(wide, '/tools', {
        name: named('shared'),
        type: 'http',
        execute: { url: 'https://example.com/x' },
        preset_parameters: { secret_tenant: 'ours' },
      })
      const share = await bodyOf(
        admin.post('/shares', {
          project_id: projectId,
          resource: `srn:${projectId}:tool:${tool.id}`,
          actions: ['tools:CallTool'],
          grantee: other,
        }),
      )
      await bodyOf(key.post(`/shares/${share.id}/accept`))
      const asks = { if: [{ '==': [{ var: 'args.secret_tenant' }, 'ours'] }, 'D', 'C'] }
      const rule = await bodyOf(key.post('/guardrails', { name: 'rule', document: { class: asks } }))
      const { id } = await bodyOf(
        key.post('/agents', {
          name: 'agent',
          ai_provider_id,
          tool_bindings: [{ tool_id: tool.id }],
          guardrail_ids: [rule.id],
        }),
      )
      await bodyOf(generate(key, id, toolCall(tool.name, { n: 1 })))
      const [item] = (await bodyOf(key.get('/approvals?status=pending'))).data
      assert.deepEqual(item.proposed_action.arguments, { n: 1 })
      const evaluations = await bodyOf(key.get('/guardrail-evaluations'))
      assert.ok(!JSON.stringify([item, evaluations]).includes('ours'), JSON.stringify(evaluations))
    })
  })
})
