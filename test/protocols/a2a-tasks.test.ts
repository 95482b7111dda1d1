import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { Client } from '@a2a-js/sdk/client'
import { startSessionApp } from '../conversation/session-support.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import {
  AGENT_ACTIONS,
  answerOf,
  collect,
  connect,
  ENV,
  explanationOf,
  params,
  rpc,
  send,
  stateOf,
  statesOf,
  textOfUpdates,
  wireMessage,
} from './a2a-support.ts'
import { calls, said } from './ag-ui-support.ts'

const a2a = { enabled: true, skills: [{ id: 'orders', name: 'Orders', description: 'Finds orders' }] }

describe('tasks of A2A clients', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() => startSessionApp({ env: ENV, actions: AGENT_ACTIONS }))
  let agentId: string

  before(async () => {
    agentId = await app.agent({
      a2a,
      tool_bindings: [
        { tool: { name: 'pick', type: 'client' } },
        { tool: { name: 'server', execute: { url: `${target.url}/server` } } },
      ],
    })
  })
  const open = (binding?: 'JSONRPC' | 'HTTP+JSON', id = agentId) => connect(app, app.key, id, binding)

  for (const binding of ['JSONRPC', 'HTTP+JSON'] as const) {
    it(`are sent, read, listed and continued by an unmodified client of ${binding}`, async () => {
      const client = await open(binding)
      const task = await send(client, said({ text: 'Hello there' }))
      assert.match(task.id, /^gen_/)
      assert.match(task.contextId, /^sess_/)
      assert.deepEqual([stateOf(task), answerOf(task)], ['COMPLETED', 'Hello there'])
      const next = await send(client, said({ text: 'Again' }), { message: { contextId: task.contextId } })
      assert.equal(next.contextId, task.contextId)
      assert.equal(answerOf(await client.getTask({ tenant: '', id: next.id })), 'Again')
      const query = { tenant: '', contextId: task.contextId, status: 0, pageSize: 1, statusTimestampAfter: undefined }
      const first = await client.listTasks({ ...query, pageToken: '', includeArtifacts: true })
      assert.deepEqual(
        [first.tasks.map(({ id }) => id), first.totalSize, answerOf(first.tasks[0])],
        [[next.id], 2, 'Again'],
      )
      const second = await client.listTasks({ ...query, pageToken: first.nextPageToken })
      assert.deepEqual(
        [second.tasks.map(({ id }) => id), second.nextPageToken, second.tasks[0].artifacts],
        [[task.id], '', []],
      )
      const inState = async (status: number, more: object = {}) => {
        const { tasks, totalSize } = await client.listTasks({ ...query, pageToken: '', status, ...more })
        return [tasks.map(({ id }) => id), totalSize]
      }
      const [COMPLETED, FAILED] = [3, 4]
      assert.deepEqual(await inState(COMPLETED), [[next.id], 2])
      assert.deepEqual(await inState(FAILED), [[], 0])
      assert.deepEqual(await inState(0, { statusTimestampAfter: task.status?.timestamp }), [[next.id], 1])
    })

    it(`are streamed over ${binding}: each step replaces the text of the last`, async () => {
      target.answer = json({ found: true })
      const client = await open(binding)
      const script = said({ text: 'Let me see', ...calls('server') }, { text: 'Here it is' })
      const items = await collect(client.sendMessageStream(params(script)))
      assert.equal(items[0].type, 'task')
      assert.equal(textOfUpdates(items), 'Here it is')
      assert.equal(items.filter(({ lastChunk }) => lastChunk).length, 1)
      assert.deepEqual([statesOf(items).includes('WORKING'), statesOf(items).at(-1)], [true, 'COMPLETED'])
      assert.equal(JSON.stringify(items).includes('server'), false)
    })
  }

  it('are subscribed to after a break, and cancelled', async () => {
    const client = await open()
    const gate = `gate-${randomUUID()}`
    const abort = new AbortController()
    const stream = client.sendMessageStream(params(said({ text: 'slow answer', gate })), { signal: abort.signal })
    const { value } = await stream.next()
    const id = (value as any).payload.value.id
    await app.atGate(gate)
    abort.abort()
    await stream.next().catch(() => {})
    const items = await collect(client.resubscribeTask({ tenant: '', id }), () => app.openGate(gate))
    assert.deepEqual([items[0].id, textOfUpdates(items), statesOf(items).at(-1)], [id, 'slow answer', 'COMPLETED'])
    const ended = await rpc(app, app.key, agentId, 'SubscribeToTask', { id })
    assert.equal(ended.body.error.code, -32004)

    const other = `gate-${randomUUID()}`
    const running = await send(client, said({ text: 'never', gate: other }), {
      configuration: { returnImmediately: true },
    })
    assert.ok(['SUBMITTED', 'WORKING'].includes(stateOf(running)))
    await app.atGate(other)
    assert.equal(stateOf(await client.cancelTask({ tenant: '', id: running.id, metadata: undefined })), 'CANCELED')
    await app.openGate(other)
    const again = await rpc(app, app.key, agentId, 'CancelTask', { id: running.id })
    assert.deepEqual([again.status, again.body.error.code], [200, -32002])
  })

  it('require outputs of tools of the client, and take them once', async () => {
    const client = await open()
    const asked = await send(client, said(calls('pick', { n: 1 }), { text: 'got {{tool.pick}}' }))
    assert.equal(stateOf(asked), 'INPUT_REQUIRED')
    const [, { tool_calls }] = explanationOf(asked)
    assert.deepEqual([tool_calls[0].tool_name, tool_calls[0].args], ['pick', { n: 1 }])
    const message = { taskId: asked.id, contextId: asked.contextId, messageId: randomUUID() }
    const invalid = await rpc(
      app,
      app.key,
      agentId,
      'SendMessage',
      wireMessage([{ data: { tool_outputs: [] } }], { taskId: asked.id }),
    )
    assert.equal(invalid.body.error.code, -32602)
    const outputs = { data: { tool_outputs: [{ tool_call_id: tool_calls[0].id, output: 'seven' }] } }
    const answered = await send(client, outputs, { message })
    assert.deepEqual([answered.id, stateOf(answered), answerOf(answered)], [asked.id, 'COMPLETED', 'got seven'])
    assert.equal((await send(client, outputs, { message })).id, asked.id)
    const late = await rpc(app, app.key, agentId, 'SendMessage', wireMessage([{ text: 'x' }], { taskId: asked.id }))
    assert.equal(late.body.error.code, -32004)

    const second = await send(client, said(calls('pick'), { text: 'got {{tool.pick}}' }))
    const items = await collect(client.sendMessageStream(params('eight', { message: { taskId: second.id } })))
    assert.deepEqual([textOfUpdates(items), statesOf(items).at(-1)], ['got eight', 'COMPLETED'])
  })

  it('are started once by a message that is sent several times concurrently', async () => {
    const client = await open()
    const message = { messageId: randomUUID() }
    const text = said({ text: 'once' })
    const tasks = await Promise.all([1, 2, 3].map(() => send(client, text, { message })))
    assert.equal(new Set(tasks.map(({ id }) => id)).size, 1)
    assert.equal(answerOf(await send(client, text, { message })), 'once')
    const { total } = (await app.admin.get(`/sessions/${tasks[0].contextId}/messages`)).body
    assert.equal(total, 2)
  })

  it('fail with the code of the failure, and are refused by a quota as tasks', async () => {
    const client = await open()
    const failed = await send(client, said({ error: { status: 500 } }))
    assert.deepEqual([stateOf(failed), explanationOf(failed)[1].code], ['FAILED', 'AI_PROVIDER_ERROR'])
    const limited = await app.agent({ a2a })
    const quota = await app.admin.post('/quotas', {
      project_id: app.projectId,
      scope: 'agent',
      scope_ref: limited,
      metric: 'tokens',
      window: 'rolling_24h',
      limit: 1,
    })
    assert.equal(quota.status, 201, JSON.stringify(quota.body))
    const spender = await open('JSONRPC', limited)
    await send(spender, said({ text: 'spends' }))
    const message = { messageId: randomUUID() }
    const refused = await eventually(
      async () => {
        const task = await send(spender, 'more', { message: { messageId: randomUUID() } })
        return stateOf(task) === 'REJECTED' ? task : null
      },
      { what: 'a task that is refused' },
    )
    assert.equal(explanationOf(refused)[1].code, 'QUOTA_EXCEEDED')
    assert.equal(stateOf(await spender.getTask({ tenant: '', id: refused.id })), 'REJECTED')
    assert.equal((await send(spender, 'more', { message })).id, (await send(spender, 'more', { message })).id)
  })

  it('answer with an object as a data part', async () => {
    const schema = { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] }
    const client = await open('JSONRPC', await app.agent({ a2a, output_schema: schema }))
    const items = await collect(client.sendMessageStream(params(said({ text: '{"a":1}' }))))
    const [{ artifact }] = items.filter(({ type }) => type === 'artifactUpdate').slice(-1)
    assert.deepEqual(artifact.parts.at(-1).content.value, { a: 1 })
  })

  /** An agent whose call of a tool needs the approval of an operator. */
  const guardedAgent = async () => {
    target.answer = json({ refunded: true })
    const document = { class: 'C' }
    const rule = await app.admin.post('/guardrails', { project_id: app.projectId, name: 'rule', document })
    assert.equal(rule.status, 201, JSON.stringify(rule.body))
    const tool = { name: 'refund', execute: { method: 'POST', url: `${target.url}/refund` } }
    return app.agent({ a2a, guardrail_ids: [rule.body.id], tool_bindings: [{ tool }] })
  }
  const inState = (client: Client, id: string, state: string) =>
    eventually(
      async () => {
        const task = await client.getTask({ tenant: '', id })
        return stateOf(task) === state ? task : null
      },
      { what: `${state} of ${id}` },
    )

  it('wait for the approval of an operator, and continue with the turn that follows it', async () => {
    const guarded = await guardedAgent()
    const client = await open('JSONRPC', guarded)
    const asked = await send(client, said(calls('refund', { amount: 5 }), { text: 'It waits.' }))
    assert.equal(stateOf(asked), 'INPUT_REQUIRED')
    const [, { approvals }] = explanationOf(asked)
    const refused = await rpc(
      app,
      app.key,
      guarded,
      'SendMessage',
      wireMessage([{ text: 'yes' }], { taskId: asked.id }),
    )
    assert.equal(refused.body.error.code, -32004)
    assert.equal((await app.admin.post(`/approvals/${approvals[0].id}/approve`, {})).status, 200)
    const ended = await inState(client, asked.id, 'COMPLETED')
    const turns = (await app.admin.get(`/generations?session_id=${asked.contextId}`)).body
    assert.deepEqual([turns.total, typeof answerOf(ended)], [2, 'string'])
  })

  it('wait for the handback of a session whose approved call was made under an operator', async () => {
    const guarded = await guardedAgent()
    const client = await open('JSONRPC', guarded)
    const asked = await send(client, said(calls('refund'), { text: 'It waits.' }))
    const [, { approvals }] = explanationOf(asked)
    const cancelled = await rpc(app, app.key, guarded, 'CancelTask', { id: asked.id })
    assert.equal(cancelled.body.error.code, -32002)
    assert.equal((await app.admin.post(`/sessions/${asked.contextId}/takeover`, {})).status, 200)
    assert.equal((await app.admin.post(`/approvals/${approvals[0].id}/approve`, {})).status, 200)
    const waiting = await eventually(
      async () => {
        const task = await inState(client, asked.id, 'INPUT_REQUIRED')
        return explanationOf(task).length === 1 ? task : null
      },
      { what: 'the turn that follows' },
    )
    assert.deepEqual(explanationOf(waiting), ['A person has taken over the conversation'])
    assert.equal((await app.admin.post(`/sessions/${asked.contextId}/handback`, {})).status, 200)
    await inState(client, asked.id, 'COMPLETED')
  })

  it('store messages for a person who has taken over', async () => {
    const client = await open()
    const task = await send(client, said({ text: 'hi' }))
    const taken = await app.admin.post(`/sessions/${task.contextId}/takeover`, {})
    assert.equal(taken.status, 200, JSON.stringify(taken.body))
    const message = await client.sendMessage(params('are you there?', { message: { contextId: task.contextId } }))
    assert.ok('messageId' in message)
    assert.equal((await app.admin.get(`/sessions/${task.contextId}/messages`)).body.total, 3)
  })
})
