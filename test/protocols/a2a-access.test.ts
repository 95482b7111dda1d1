import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { sql } from '#core/db/sql.ts'
import { retentionSweepQueue } from '#core/work/sweeps.ts'
import { startSessionApp } from '../conversation/session-support.ts'
import { accepted, shared } from '../execution/share-support.ts'
import { startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { pngHeader } from '../support/images.ts'
import { forSuite } from '../support/suite.ts'
import { AGENT_ACTIONS, ENV, rpc, wireMessage } from './a2a-support.ts'
import { said } from './ag-ui-support.ts'

const a2a = { enabled: true }

describe('clients of an A2A agent', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startSessionApp({
      together: true,
      env: { ...ENV, STREAM_PING_INTERVAL_MS: '100' },
      actions: [...AGENT_ACTIONS, 'agents:*', 'shares:*', 'files:*'],
      workers: ['generation', 'snapshot'],
    }),
  )
  let agentId: string

  before(async () => {
    agentId = await app.agent({ a2a })
  })

  /** Sends a text, and returns the task. */
  const sent = async (key: { token: string | null }, text: string, fields: object = {}) => {
    const { body } = await rpc(app, key, agentId, 'SendMessage', wireMessage([{ text }], fields))
    assert.ok(body.result, JSON.stringify(body))
    return body.result.task
  }
  const answerOf = (task: any) => [task.status.state, task.artifacts?.[0].parts[0].text]
  const completed = (text: string) => ['TASK_STATE_COMPLETED', text]

  it('include a user without a project, in the project of the agent', async () => {
    const task = await sent(app.admin, said({ text: 'for you' }))
    assert.deepEqual(answerOf(task), completed('for you'))
    const session = (await app.admin.get(`/sessions/${task.contextId}`)).body
    assert.equal(session.project_id, app.projectId)
    const { result } = (await rpc(app, app.admin, agentId, 'ListTasks')).body
    assert.deepEqual([result.totalSize, result.tasks[0].id], [1, task.id])
  })

  it('include a project that the agent is shared with, in that project, while it is shared', async () => {
    const other = await app.projectWith([...AGENT_ACTIONS, 'agents:CreateAgentGeneration', 'shares:*'])
    const list = () => rpc(app, other.key, agentId, 'ListTasks')
    assert.equal((await list()).status, 404)
    const share = await shared(app.key, `srn:${app.projectId}:agent:${agentId}`, { grantee: other.id })
    await accepted(other.key, share.id)
    const task = await sent(other.key, said({ text: 'shared' }))
    assert.deepEqual(answerOf(task), completed('shared'))
    assert.equal((await app.admin.get(`/sessions/${task.contextId}`)).body.project_id, other.id)
    assert.equal((await rpc(app, app.key, agentId, 'GetTask', { id: task.id })).body.error.code, -32001)
    assert.equal((await app.key.post(`/shares/${share.id}/suspend`)).status, 200)
    assert.equal((await list()).status, 404)
  })

  it('lose a stream with their key, in the form of their binding', async () => {
    const policy = (await app.admin.get(`/project-keys?project_id=${app.projectId}`)).body.data[0].policy_ids
    for (const path of ['', '/message:stream']) {
      const made = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: policy })
      const gate = `gate-${randomUUID()}`
      const message = wireMessage([{ text: said({ text: 'never shown', gate }) }])
      const response = await fetch(`${app.url}/a2a/${agentId}${path}`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${made.body.secret}`,
          'a2a-version': '1.0',
          'content-type': 'application/json',
        },
        body: JSON.stringify(
          path === '' ? { jsonrpc: '2.0', id: 7, method: 'SendStreamingMessage', params: message } : message,
        ),
      })
      await app.atGate(gate)
      assert.equal((await app.admin.delete(`/project-keys/${made.body.id}`)).status, 204)
      const last = (await response.text()).split('\n\n').findLast(block => block.includes('data: ')) as string
      const { id, error } = JSON.parse(last.slice(last.indexOf('data: ') + 'data: '.length))
      const expected = path === '' ? [7, -32000, false] : [undefined, 401, true]
      assert.deepEqual([id, error.code, last.startsWith('event: error\n')], expected, last)
      await app.openGate(gate)
    }
  })

  it('send images by URL, which are stored', async () => {
    target.answer = (_request, response) =>
      response.writeHead(200, { 'content-type': 'image/png' }).end(pngHeader(2, 2))
    const scripted = await app.scripted([{ reply: { text: 'seen' } }] as never, { a2a })
    const message = wireMessage([{ text: 'look' }, { url: `${target.url}/cat.png` }])
    const { body } = await rpc(app, app.key, scripted.agentId, 'SendMessage', message)
    assert.deepEqual(answerOf(body.result.task), completed('seen'), JSON.stringify(body))
    const [request] = await scripted.requests()
    assert.equal(JSON.stringify(request.body.messages).includes('image_url'), true)
    assert.equal((await app.key.get('/files?path_prefix=/a2a')).body.total, 1)
  })

  it('get the answer of an agent whose content is not stored', async () => {
    const silent = await app.agent({ a2a, trace_content_mode: 'none' })
    const message = wireMessage([{ text: said({ text: 'not kept' }) }])
    const { body } = await rpc(app, app.key, silent, 'SendMessage', message)
    assert.deepEqual(answerOf(body.result.task), completed('not kept'), JSON.stringify(body))
  })

  it('name the version in a query, for clients that send no header', async () => {
    const response = await fetch(`${app.url}/a2a/${agentId}/tasks?A2A-Version=1.0&pageSize=1`, {
      headers: { authorization: `Bearer ${app.key.token}` },
    })
    assert.equal(response.status, 200, await response.text())
  })

  it('see a task with a refused message for 30 days', async () => {
    assert.equal((await app.admin.post(`/projects/${app.projectId}/pause`, {})).status, 200)
    const kept = await sent(app.key, 'one')
    const old = await sent(app.key, 'two')
    assert.equal((await app.admin.post(`/projects/${app.projectId}/resume`)).status, 200)
    assert.equal(old.status.state, 'TASK_STATE_REJECTED')
    await app.pool.query(sql.unsafe`update a2a_tasks set created_at = now() - interval '31 days' where id = ${old.id}`)
    await app.services.queues.send([{ queue: retentionSweepQueue, data: { sweep: 'a2a refusals' } }])
    const codeOf = async (id: string) => (await rpc(app, app.key, agentId, 'GetTask', { id })).body.error?.code
    await eventually(async () => (await codeOf(old.id)) === -32001, { what: 'the deletion of the task' })
    assert.equal(await codeOf(kept.id), undefined)
  })
})
