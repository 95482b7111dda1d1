import assert from 'node:assert/strict'
import { edge, graphOf, madeOrchestration, step } from '../automation/orchestration-support.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { scriptOf } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { openStream, tools, wire, withForms, withTasks } from './support.ts'

/** Long work as tasks: views of records that are read, answered and cancelled. */
describe('tasks of /mcp', () => {
  let app: AgentApp
  const target = forSuite(startTarget)
  let call: ReturnType<typeof tools>
  let send: ReturnType<typeof wire>
  before(async () => {
    target.answer = json({ paid: true })
    app = await startAgentApp({
      workers: ['generation', 'orchestration'],
      env: { MCP_TASK_AFTER_MS: '300', MCP_CALL_TIMEOUT_MS: '6000', EGRESS_ALLOW_HOSTS: '127.0.0.1' },
    })
    call = tools(app.url, app.key.token)
    send = wire(app.url, app.key.token)
  })
  after(async () => {
    await app?.close()
  })
  const slow = (text: string) => scriptOf({ text, delay_ms: 1500 })
  const get = async (taskId: string, capabilities: object = withForms) =>
    (await send('tasks/get', { taskId }, { capabilities: capabilities as never })).body
  const update = async (taskId: string, inputResponses: object) =>
    (await send('tasks/update', { taskId, inputResponses }, { capabilities: withForms })).body
  const until = (taskId: string, status: string, capabilities: object = withForms): Promise<any> =>
    eventually(
      async () => {
        const { result } = await get(taskId, capabilities)
        return result?.status === status && result
      },
      { what: `${taskId} ${status}` },
    )
  const started = async (name: string, args: object) => {
    const task = await call(name, args as never, { capabilities: withForms })
    assert.equal(task.resultType, 'task', JSON.stringify(task))
    return task
  }

  it('returns slow work as a task with the result of the tool', async () => {
    const task = await started('create-agent-generation', { agent_id: app.agentId, prompt: slow('late') })
    assert.equal(task.status, 'working')
    assert.equal(task.ttlMs, null)
    assert.equal(task.pollIntervalMs, 1000)
    assert.match(task.taskId, /^gen_[a-z0-9]{26}\.[A-Za-z0-9_-]{22}$/)
    const done = await until(task.taskId, 'completed')
    const generation = (await app.key.get(`/generations/${task.taskId.split('.')[0]}`)).body
    assert.equal(done.result.structuredContent.id, generation.id)
    assert.equal(done.result.structuredContent.output.content, 'late')
    assert.equal(done.resultType, 'complete')
    const waited = await call('create-agent-generation', { agent_id: app.agentId, prompt: slow('late') })
    assert.deepEqual(Object.keys(waited.structuredContent), Object.keys(done.result.structuredContent))
  })

  it('creates no task for quick work, for wait=false, and for clients without tasks', async () => {
    const args = { agent_id: app.agentId, prompt: 'hello' }
    const background = await call('create-agent-generation', { ...args, wait: false }, { capabilities: withTasks })
    assert.equal(background.structuredContent.status, 'accepted')
    const plain = await call('create-agent-generation', args)
    assert.equal(plain.structuredContent.status, 'completed')
    const old = await call('create-agent-generation', args, { revision: '2025-11-25' })
    assert.equal(old.structuredContent.status, 'completed')
    const list = await call('list-agents', {}, { capabilities: withTasks })
    assert.equal(list.resultType, 'complete')
  })

  it('returns the current record after the wait timeout, and the work continues', async () => {
    const args = { agent_id: app.agentId, prompt: scriptOf({ text: 'done', delay_ms: 9000 }) }
    const result = await call('create-agent-generation', args)
    assert.equal(result.isError, undefined)
    assert.equal(result.structuredContent.status, 'in_progress')
    assert.match(result.content[1].text, /get-generation with \{"generation_id":"gen_/)
    await eventually(async () => {
      const { body } = await app.key.get(`/generations/${result.structuredContent.id}`)
      return body.status === 'completed'
    })
  })

  it('returns failed work as a tool error', async () => {
    const args = { agent_id: app.agentId, prompt: scriptOf({ error: { status: 400 }, delay_ms: 1500 }) }
    const task = await call('create-agent-generation', args, { capabilities: withTasks })
    const done = await until(task.taskId, 'completed')
    assert.equal(done.result.isError, true)
    assert.equal(done.result.structuredContent.error.code, 'AI_PROVIDER_ERROR')
  })

  it('requests input for a human node with a form, once', async () => {
    const nodes = [
      { id: 'ask', type: 'human', prompt: 'Which one?', options: ['red', 'blue'] },
      step('end', { expression: { var: 'nodes.ask.choice' } }),
    ]
    const { id } = await madeOrchestration(app.admin, { project_id: app.projectId, ...graphOf(nodes, ['ask->end']) })
    const task = await started('start-run', { orchestration_id: id })
    const waiting = await until(task.taskId, 'input_required')
    const [[key, request], ...others] = Object.entries<any>(waiting.inputRequests)
    assert.deepEqual(others, [])
    assert.match(key, /^human:orch_run_\w+:ask:/)
    assert.equal(request.method, 'elicitation/create')
    assert.equal(request.params.mode, 'form')
    assert.deepEqual(request.params.requestedSchema.properties.choice.enum, ['red', 'blue'])
    assert.match(request.params.message, /Which one\?/)
    assert.equal(waiting.pollIntervalMs, 15_000)
    const without = (await get(task.taskId, withTasks)).result
    assert.equal(without.status, 'working')
    assert.match(without.statusMessage, /submit-human-input/)

    assert.equal(
      (await update(task.taskId, { [key]: { action: 'accept', content: { choice: 'green' } } })).error,
      undefined,
    )
    const refused = (await get(task.taskId)).result
    assert.equal(refused.status, 'input_required')
    assert.match(refused.statusMessage, /choice must be one of red, blue/)
    for (const answer of [
      { action: 'accept', content: { choice: 'red', extra: 1 } },
      { action: 'accept', content: { choice: 'x'.repeat(1_000_000) } },
      { action: 'decline' },
      { action: 'cancel' },
      { choice: 'red' },
    ])
      await update(task.taskId, {
        [key]: answer,
        'human:other:ask:1': { action: 'accept', content: { choice: 'red' } },
      })
    assert.deepEqual(Object.keys((await get(task.taskId)).result.inputRequests), [key])

    assert.equal(
      (await update(task.taskId, { [key]: { action: 'accept', content: { choice: 'blue' } } })).error,
      undefined,
    )
    const done = await until(task.taskId, 'completed')
    assert.equal(done.result.structuredContent.artifacts.ask.choice, 'blue')
    await update(task.taskId, { [key]: { action: 'accept', content: { choice: 'red' } } })
    assert.equal((await get(task.taskId)).result.result.structuredContent.artifacts.ask.choice, 'blue')
  })

  it('cancels a run, and acknowledges a finished one', async () => {
    const nodes = [{ id: 'ask', type: 'human', prompt: 'Go?' }, step('end')]
    const { id } = await madeOrchestration(app.admin, { project_id: app.projectId, ...graphOf(nodes, ['ask->end']) })
    const { taskId } = await started('start-run', { orchestration_id: id })
    for (let times = 0; times < 2; times++) {
      const { result } = (await send('tasks/cancel', { taskId }, { capabilities: withTasks })).body
      assert.deepEqual(Object.keys(result).sort(), ['_meta', 'resultType'])
    }
    await until(taskId, 'cancelled')
    assert.equal((await app.key.get(`/orchestration-runs/${taskId.split('.')[0]}`)).body.status, 'cancelled')
  })

  it('requests the outputs of all client tools of a pause together', async () => {
    const pick = (name: string) => ({ tool: { name, type: 'client' } })
    const agent = await app.agent({ tool_bindings: [pick('left'), pick('right')] })
    const calls = {
      tool_calls: [
        { name: 'left', args: { n: 1 } },
        { name: 'right', args: {} },
      ],
    }
    const { taskId } = await started('create-agent-generation', {
      agent_id: agent,
      prompt: scriptOf(calls, { text: 'both' }),
    })
    const waiting = await until(taskId, 'input_required')
    const [[key, { params }]] = Object.entries<any>(waiting.inputRequests)
    assert.deepEqual(Object.keys(params.requestedSchema.properties), ['output_1', 'output_2'])
    await update(taskId, { [key]: { action: 'accept', content: { output_1: '{"a":1}', output_2: 'text' } } })
    const done = await until(taskId, 'completed')
    assert.equal(done.result.structuredContent.output.content, 'both')
    const transcript = (await app.key.get(`/generations/${taskId.split('.')[0]}/transcript`)).body
    assert.deepEqual(
      transcript.steps[0].tool_results.map(({ result }: any) => result),
      [{ a: 1 }, 'text'],
    )
  })

  it('requests an approval, executes the proposed call, and completes with the resumed turn', async () => {
    const rule = await app.admin.post('/guardrails', {
      project_id: app.projectId,
      name: 'ask',
      document: { class: 'C', guard: false },
    })
    assert.equal(rule.status, 201, JSON.stringify(rule.body))
    const agent = await app.agent({
      tool_bindings: [{ tool: { name: 'pay', execute: { url: `${target.url}/pay` } } }],
      guardrail_ids: [rule.body.id],
    })
    for (const accepted of [true, false]) {
      target.requests.length = 0
      const answer = await call(
        'create-agent-generation',
        {
          agent_id: agent,
          prompt: scriptOf(
            { tool_calls: [{ name: 'pay', args: { amount: accepted ? 7 : 8 } }] },
            { text: 'filed' },
            { text: 'after' },
          ),
        },
        { capabilities: withForms },
      )
      assert.equal(answer.resultType, 'task', JSON.stringify(answer))
      const waiting = await until(answer.taskId, 'input_required')
      const [[key, { params }]] = Object.entries<any>(waiting.inputRequests)
      assert.match(key, /^approval:apr_/)
      assert.match(params.message, /pay with \{"amount":\d\}/)
      await update(answer.taskId, {
        [key]: accepted ? { action: 'accept', content: { decision: 'approve' } } : { action: 'decline' },
      })
      await until(answer.taskId, 'completed')
      const approval = (await app.key.get(`/approvals/${key.split(':')[1]}`)).body
      assert.equal(approval.status, accepted ? 'approved' : 'rejected')
      assert.equal(approval.resolution_reason, accepted ? null : 'declined')
      assert.equal(target.requests.length, accepted ? 1 : 0)
    }
  })

  it('refuses approval input of another task, with unknown fields, or too large', async () => {
    const rule = await app.admin.post('/guardrails', {
      project_id: app.projectId,
      name: 'ask again',
      document: { class: 'C', guard: false },
    })
    const agent = await app.agent({
      tool_bindings: [{ tool: { name: 'pay', execute: { url: `${target.url}/pay` } } }],
      guardrail_ids: [rule.body.id],
    })
    const filed = async (amount: number) => {
      const { taskId } = await started('create-agent-generation', {
        agent_id: agent,
        prompt: scriptOf({ tool_calls: [{ name: 'pay', args: { amount } }] }, { text: 'filed' }, { text: 'after' }),
      })
      const { inputRequests } = await until(taskId, 'input_required')
      return { taskId, key: Object.keys(inputRequests)[0] }
    }
    const [mine, other] = [await filed(1), await filed(2)]
    target.requests.length = 0
    const approved = { action: 'accept', content: { decision: 'approve' } }
    for (const answers of [
      { [other.key]: approved },
      { [mine.key]: { action: 'accept', content: { decision: 'approve', extra: 1 } } },
      { [mine.key]: { action: 'accept', content: { decision: 'approve', reason: 'x'.repeat(1_000_000) } } },
      { [mine.key]: { action: 'accept', content: { decision: ['approve'] } } },
      { [mine.key]: { action: 'accept' } },
      { [mine.key]: 'accept' },
      { approve: approved },
    ])
      assert.equal((await update(mine.taskId, answers)).error, undefined)
    for (const { taskId, key } of [mine, other]) {
      assert.deepEqual(Object.keys((await get(taskId)).result.inputRequests), [key])
      assert.equal((await app.key.get(`/approvals/${key.split(':')[1]}`)).body.status, 'pending')
    }
    assert.equal(target.requests.length, 0)
  })

  it('finds no task of another caller, with a forged ID, or without read permission', async () => {
    const { taskId } = await started('create-agent-generation', { agent_id: app.agentId, prompt: slow('x') })
    const record = taskId.split('.')[0]
    const other = await app.projectWith(['*'])
    const unknown = [
      await wire(app.url, other.key.token)('tasks/get', { taskId }, { capabilities: withTasks }),
      await wire(app.url, app.admin.token)('tasks/get', { taskId }, { capabilities: withTasks }),
      await send('tasks/get', { taskId: record }, { capabilities: withTasks }),
      await send('tasks/get', { taskId: `${record}.${'A'.repeat(22)}` }, { capabilities: withTasks }),
      await send('tasks/cancel', { taskId: 'gen_nope.x' }, { capabilities: withTasks }),
      await wire(app.url, other.key.token)('tasks/cancel', { taskId }, { capabilities: withTasks }),
      await wire(app.url, other.key.token)('tasks/update', { taskId }, { capabilities: withTasks }),
      await send('tasks/cancel', { taskId: record }, { capabilities: withTasks }),
    ]
    const me = (await app.key.get('/users/me')).body.credential.id
    const { body: policy } = await app.admin.post('/policies', {
      document: { statement: [{ effect: 'Allow', action: ['agents:*'], resource: [`srn:${app.projectId}:*:*`] }] },
    })
    const before = (await app.admin.get(`/project-keys/${me}`)).body.policy_ids
    await app.admin.patch(`/project-keys/${me}`, { policy_ids: [policy.id] })
    unknown.push(await send('tasks/get', { taskId }, { capabilities: withTasks }))
    await app.admin.patch(`/project-keys/${me}`, { policy_ids: before })
    for (const { status, body } of unknown) {
      assert.equal(status, 200)
      assert.equal(body.error.code, -32602, JSON.stringify(body))
      assert.equal(body.error.message, 'Task not found')
    }
    assert.equal((await get(taskId)).error, undefined)
  })

  it('shows a form in a stream while the caller may submit it', async () => {
    const { id } = await madeOrchestration(app.admin, {
      project_id: app.projectId,
      ...graphOf([{ id: 'ask', type: 'human', prompt: 'Go?' }]),
    })
    const { taskId } = await started('start-run', { orchestration_id: id })
    await until(taskId, 'input_required')
    const held = new AbortController()
    const stream = await openStream(app.url, app.key.token, { taskIds: [taskId] }, held.signal)
    assert.equal((await stream.next()).params.status, 'input_required')
    const me = (await app.key.get('/users/me')).body.credential.id
    const { body: policy } = await app.admin.post('/policies', {
      document: {
        statement: [
          { effect: 'Allow', action: ['*'], resource: [`srn:${app.projectId}:*:*`] },
          { effect: 'Deny', action: ['orchestrations:SubmitHumanInput'] },
        ],
      },
    })
    const before = (await app.admin.get(`/project-keys/${me}`)).body.policy_ids
    await app.admin.patch(`/project-keys/${me}`, { policy_ids: [policy.id] })
    try {
      const { params } = await stream.next()
      assert.equal(params.status, 'working')
      assert.equal(params.inputRequests, undefined)
    } finally {
      await app.admin.patch(`/project-keys/${me}`, { policy_ids: before })
      held.abort()
    }
  })

  it('reports that the record of a task was deleted', async () => {
    const { id } = await madeOrchestration(app.admin, {
      project_id: app.projectId,
      ...graphOf([{ id: 'ask', type: 'human', prompt: 'Go?' }]),
    })
    const { taskId } = await started('start-run', { orchestration_id: id })
    assert.equal((await app.admin.delete(`/orchestrations/${id}?force=true`)).status, 204)
    const { status, error } = (await get(taskId)).result
    assert.deepEqual([status, error.code], ['failed', -32602])
    for (const method of ['tasks/update', 'tasks/cancel'])
      assert.ok((await send(method, { taskId }, { capabilities: withTasks })).body.result)
  })

  it('starts work for a caller that may not read it', async () => {
    const { body: policy } = await app.admin.post('/policies', {
      document: {
        statement: [
          { effect: 'Allow', action: ['agents:CreateAgentGeneration'], resource: [`srn:${app.projectId}:*:*`] },
        ],
      },
    })
    const starter = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.id] })
    for (const prompt of ['hello', slow('late')]) {
      const result = await tools(app.url, starter.body.secret)(
        'create-agent-generation',
        { agent_id: app.agentId, prompt },
        { capabilities: withTasks },
      )
      assert.equal(result.structuredContent?.status, 'completed', JSON.stringify(result))
    }
  })

  it('requires the extension, and does not exist before 2026', async () => {
    for (const method of ['tasks/get', 'tasks/update', 'tasks/cancel']) {
      const refused = await send(method, { taskId: 'x' })
      assert.equal(refused.status, 400)
      assert.equal(refused.body.error.code, -32021)
      assert.deepEqual(refused.body.error.data.requiredCapabilities, withTasks)
      assert.equal((await send(method, { taskId: 'x' }, { revision: '2025-11-25' })).body.error.code, -32601)
    }
  })

  it('reports progress of the nodes of a run, up to the last one', async () => {
    const nodes = ['a', 'b', 'c', 'd', 'e'].map(id =>
      id === 'a' ? step(id) : { id, type: 'delay', duration: '300ms' },
    )
    const { id } = await madeOrchestration(app.admin, {
      project_id: app.projectId,
      nodes,
      edges: ['a->b', 'b->c', 'c->d', 'd->e'].map(text => edge(text)),
    })
    const { headers, body } = await send(
      'tools/call',
      { name: 'start-run', arguments: { orchestration_id: id } },
      { meta: { progressToken: 'p1' }, headers: { accept: 'text/event-stream' } },
    )
    assert.match(headers.get('content-type') as string, /event-stream/)
    const events = [...(body as string).matchAll(/^data: (.+)$/gm)].map(([, data]) => JSON.parse(data))
    const result = events.pop()
    assert.equal(result.result.structuredContent.orchestration_id, id)
    const done = events.map(({ method, params }) => {
      assert.equal(method, 'notifications/progress')
      assert.deepEqual([params.progressToken, params.total], ['p1', 5])
      return params.progress
    })
    assert.ok(done.length >= 2, JSON.stringify(done))
    assert.equal(done.at(-1), 5)
    assert.deepEqual(
      done,
      [...new Set(done)].sort((a, b) => a - b),
    )
  })

  it('notifies about tasks in a stream', async () => {
    const { taskId } = await started('create-agent-generation', { agent_id: app.agentId, prompt: slow('streamed') })
    const { body } = await send(
      'subscriptions/listen',
      { notifications: { taskIds: [taskId], toolsListChanged: true } },
      { capabilities: withTasks },
    )
    const events = [...(body as string).matchAll(/^data: (.+)$/gm)].map(([, data]) => JSON.parse(data))
    assert.equal(events[0].method, 'notifications/subscriptions/acknowledged')
    assert.deepEqual(events[0].params.notifications, { taskIds: [taskId] })
    const told = events.filter(({ method }) => method === 'notifications/tasks')
    assert.equal(told.at(-1).params.status, 'completed')
    assert.equal(events.at(-1).method, 'notifications/cancelled')
  })

  it('allows 20 streams per credential, and polls unchanged records for all of them together', async () => {
    const { id } = await madeOrchestration(app.admin, {
      project_id: app.projectId,
      ...graphOf([{ id: 'ask', type: 'human', prompt: 'Go?' }]),
    })
    const { taskId } = await started('start-run', { orchestration_id: id })
    await until(taskId, 'input_required')
    const listen = { notifications: { taskIds: [taskId] } }
    const held = new AbortController()
    const given = app.statements.length
    const begunAt = Date.now()
    let refused = 0
    const streams = Array.from({ length: 25 }, () =>
      send('subscriptions/listen', listen, { capabilities: withTasks, signal: held.signal }).then(
        ({ body }) => {
          assert.equal(body.error.code, -32000)
          refused++
        },
        error => assert.equal(error.name, 'AbortError'),
      ),
    )
    const reads = (text: string) => app.statements.slice(given).filter(each => each.includes(text)).length
    await eventually(() => refused === 5, { what: '5 streams refused' })
    await eventually(() => Date.now() - begunAt > 4000)
    // Each reads its task at its start, and every 5 s.
    const rounds = 1 + Math.ceil((Date.now() - begunAt) / 5000)
    const looks = reads('from "orchestration_runs" t where t.id =')
    assert.ok(looks >= 20 && looks <= 20 * rounds, `${looks} polls`)
    assert.ok(reads('xmin::text as revision') > 0)
    held.abort()
    await Promise.all(streams)
    // Ended streams free capacity.
    await eventually(async () => {
      const { body } = await send('subscriptions/listen', { notifications: {} }, { capabilities: withTasks })
      return String(body).includes('notifications/subscriptions/acknowledged')
    })
  })
})
