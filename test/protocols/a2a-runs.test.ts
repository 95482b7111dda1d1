import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { graphOf, step } from '../automation/orchestration-support.ts'
import { startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import {
  collect,
  connect,
  ENV,
  explanationOf,
  params,
  post,
  RUN_ACTIONS,
  rpc,
  send,
  stateOf,
  statesOf,
  wireMessage,
} from './a2a-support.ts'

const a2a = { enabled: true }

describe('tasks of A2A clients of an orchestration', () => {
  const app = forSuite(() => startApp({ env: ENV, workers: ['orchestration'] }))
  const project = forSuite(() => app.projectWith(RUN_ACTIONS))

  const made = async (graph: object) =>
    (await createdBy(app.admin, '/orchestrations', { project_id: project.id, name: 'Refund', a2a, ...graph }))
      .id as string
  const greeting = () => made(graphOf([step('greet', { expression: { cat: ['Hello ', { var: 'input.name' }] } })]))
  const asking = (fields: object = {}) =>
    made(graphOf([{ id: 'ask', type: 'human', prompt: 'May it be refunded?', ...fields }]))

  it('start with the data of the message and end with the output of the run', async () => {
    const client = await connect(app, project.key, await greeting())
    const task = await send(client, { data: { name: 'Ann' } })
    assert.match(task.id, /^orch_run_/)
    const { name, defaultInputModes } = await client.getAgentCard()
    assert.deepEqual([name, defaultInputModes], ['Refund', ['text/plain', 'application/json']])
    assert.equal(stateOf(task), 'COMPLETED')
    assert.equal(JSON.stringify(task.artifacts[0].parts[0].content?.value).includes('Hello Ann'), true)
    const next = await send(client, { data: { name: 'Bob' } }, { message: { contextId: task.contextId } })
    assert.deepEqual([next.contextId, next.id === task.id], [task.contextId, false])
    const items = await collect(client.sendMessageStream(params({ data: { name: 'Cid' } })))
    assert.equal(statesOf(items).at(-1), 'COMPLETED')
    // Events of the artifact, or the task with its artifacts for a run that has ended before the stream begins.
    assert.ok(JSON.stringify(items).includes('Hello Cid'))
  })

  it('start once by a message that is sent several times concurrently', async () => {
    const client = await connect(app, project.key, await greeting())
    const message = { messageId: randomUUID() }
    const tasks = await Promise.all([1, 2, 3].map(() => send(client, { data: { name: 'Ann' } }, { message })))
    assert.equal(new Set(tasks.map(({ id }) => id)).size, 1)
  })

  it('require the input of a person, and continue with it', async () => {
    const client = await connect(app, project.key, await asking())
    const asked = await send(client, 'refund order 7')
    assert.equal(stateOf(asked), 'INPUT_REQUIRED')
    const [text, { required_actions }] = explanationOf(asked)
    assert.deepEqual([text, required_actions[0].node_id], ['May it be refunded?', 'ask'])
    const unknown = await rpc(app, project.key, await idOf(client), 'SendMessage', {
      ...wireMessage([{ data: { node_id: 'other', output: {} } }], { taskId: asked.id }),
    })
    assert.equal(unknown.body.error.code, -32602)
    const message = { taskId: asked.id, messageId: randomUUID() }
    const done = await send(client, { data: { approved: true } }, { message })
    assert.deepEqual([done.id, stateOf(done)], [asked.id, 'COMPLETED'])
    assert.equal(JSON.stringify(done.artifacts).includes('"approved":true'), true)
    assert.equal(stateOf(await send(client, { data: { approved: true } }, { message })), 'COMPLETED')
  })

  it('take a text as the choice of a node with options', async () => {
    const client = await connect(app, project.key, await asking({ options: ['yes', 'no'] }))
    const asked = await send(client, 'refund order 7')
    const refused = await rpc(
      app,
      project.key,
      await idOf(client),
      'SendMessage',
      wireMessage([{ text: 'perhaps' }], { taskId: asked.id }),
    )
    assert.equal(refused.body.error.code, -32602)
    const done = await send(client, 'yes', { message: { taskId: asked.id } })
    assert.equal(JSON.stringify(done.artifacts).includes('"choice":"yes"'), true)
  })

  it('are cancelled, and take no files', async () => {
    const id = await asking()
    const client = await connect(app, project.key, id)
    const asked = await send(client, 'x')
    assert.equal(stateOf(await client.cancelTask({ tenant: '', id: asked.id, metadata: undefined })), 'CANCELED')
    const again = await rpc(app, project.key, id, 'CancelTask', { id: asked.id })
    assert.equal(again.body.error.code, -32002)
    const file = await rpc(app, project.key, id, 'SendMessage', wireMessage([{ raw: 'AAAA', mediaType: 'image/png' }]))
    assert.equal(file.body.error.code, -32005)
    const invalid = await rpc(app, project.key, id, 'SendMessage', wireMessage([{ data: [1] }]))
    assert.equal(invalid.body.error.code, -32602)
  })

  it('are rejected while the project is paused, and once per message', async () => {
    const paused = await app.projectWith(RUN_ACTIONS)
    const reply = await app.admin.post('/orchestrations', {
      project_id: paused.id,
      name: 'Paused',
      a2a,
      ...graphOf([step('one')]),
    })
    await app.admin.post(`/projects/${paused.id}/pause`, { reason: 'maintenance' })
    const client = await connect(app, paused.key, reply.body.id)
    const message = { messageId: randomUUID() }
    const task = await send(client, 'x', { message })
    assert.deepEqual([stateOf(task), explanationOf(task)[1].code], ['REJECTED', 'PROJECT_PAUSED'])
    assert.equal((await send(client, 'x', { message })).id, task.id)
  })

  it('need the permissions of the operations', async () => {
    const id = await greeting()
    const limited = await limitedKey(['orchestrations:GetRun'])
    const refused = await post(app, limited, `/a2a/${id}/message:send`, wireMessage([{ text: 'x' }]))
    assert.deepEqual([refused.status, refused.body.error.status], [403, 'PERMISSION_DENIED'])
    assert.equal(refused.body.error.details[0].metadata.code, 'FORBIDDEN')
  })

  const limitedKey = async (actions: string[]) => {
    const statement = [{ effect: 'Allow', action: actions, resource: [`srn:${project.id}:*:*`] }]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const key = await app.admin.post('/project-keys', { project_id: project.id, policy_ids: [policy.body.id] })
    return { token: key.body.secret as string }
  }
  const idOf = async (client: Awaited<ReturnType<typeof connect>>) =>
    (await client.getAgentCard()).supportedInterfaces[0].url.split('/').at(-1) as string
})
