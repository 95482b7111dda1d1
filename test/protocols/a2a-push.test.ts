import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { z } from 'zod'
import { idStatement, sql, voidStatement } from '#core/db/sql.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'
import { AGENT_ACTIONS, connect, ENV, rpc, send, stateOf, wireMessage } from './a2a-support.ts'
import { said } from './ag-ui-support.ts'

const a2a = { enabled: true }

/** Short leases, so that a lost delivery is repeated within seconds. */
const FAST = { WEBHOOK_TIMEOUT_MS: '1500', WEBHOOK_LEASE_MS: '2000', WEBHOOK_SWEEP_INTERVAL_MS: '500' }

describe('notifications of A2A clients', function () {
  this.timeout(60_000)
  const receiver = forSuite(startReceiver)
  const app = forSuite(() => startAgentApp({ env: ENV, workers: [], actions: AGENT_ACTIONS }))
  let agentId: string
  let double: ReturnType<typeof doubleClient>
  const processes: TestProcess[] = []

  before(async () => {
    agentId = await app.agent({ a2a })
    double = doubleClient(app.double)
  })
  afterEach(() => {
    receiver.requests.length = 0
    receiver.answer = 200
    return Promise.all(processes.splice(0).map(each => each.kill()))
  })

  const start = async (...concerns: ('generation' | 'delivery')[]) => {
    const made = await startProcess('worker', app.databaseUrl, { ...ENV, ...FAST }, concerns)
    processes.push(made)
    return made
  }
  const config = (fields: object = {}) => ({
    tenant: '',
    id: '',
    taskId: '',
    url: receiver.url,
    token: '',
    authentication: undefined,
    ...fields,
  })
  const pushed = (id: string) =>
    receiver.requests.map(({ event }) => event.statusUpdate).filter(({ taskId }) => taskId === id)
  const arrived = (id: string, state: string) =>
    eventually(async () => pushed(id).find(({ status }) => status.state === `TASK_STATE_${state}`), {
      what: `${state} of ${id}`,
    })
  const begin = (text: string, fields?: object) =>
    connect(app, app.key, agentId).then(client =>
      send(client, text, {
        configuration: { returnImmediately: true, taskPushNotificationConfig: config(fields) },
      }),
    )

  it('arrive once for each state, with the credentials of the address', async () => {
    await start('generation', 'delivery')
    const secrets = { token: 'tok-123456', authentication: { scheme: 'Bearer', credentials: 'cred-123456' } }
    const task = await begin(said({ text: 'done' }), secrets)
    await arrived(task.id, 'COMPLETED')
    const [{ headers, event }] = receiver.requests
    assert.deepEqual(
      [headers['x-a2a-notification-token'], headers.authorization, Object.keys(event)],
      ['tok-123456', 'Bearer cred-123456', ['statusUpdate']],
    )
    // A later task shows that nothing more follows for the first.
    const later = await begin(said({ text: 'later' }))
    await arrived(later.id, 'COMPLETED')
    const states = pushed(task.id).map(({ status }) => status.state)
    assert.deepEqual([states.length, new Set(states).size], [states.length, states.length])
    const client = await connect(app, app.key, agentId)
    const listed = await client.listTaskPushNotificationConfig({
      tenant: '',
      taskId: task.id,
      pageSize: 0,
      pageToken: '',
    })
    assert.deepEqual(
      listed.configs.map(({ id, url }) => [id, url]),
      [[task.id, receiver.url]],
    )
    const shown = JSON.stringify([listed, app.logs])
    for (const secret of ['tok-123456', 'cred-123456']) assert.equal(shown.includes(secret), false)
  })

  it('leave no credential in the stored responses of a receiver that repeats them', async () => {
    receiver.answer = ({ headers }, response) => {
      const text = JSON.stringify(headers)
      response.end(
        [text, Buffer.from(text).toString('base64'), Buffer.from(text).toString('hex')][receiver.requests.length % 3],
      )
    }
    await start('generation', 'delivery')
    const secrets = { token: 'tok-987654', authentication: { scheme: 'Bearer', credentials: 'cred-987654' } }
    for (let count = 0; count < 3; count++) {
      const task = await begin(said({ text: 'done' }), secrets)
      await arrived(task.id, 'COMPLETED')
    }
    const stored = await eventually(
      async () => {
        const { rows } = await app.pool.query(sql.type(z.object({ text: z.string() }))`
          select response_body as text from webhook_deliveries where response_body like '%***%'`)
        return rows.length >= 3 ? rows.map(({ text }) => text) : null
      },
      { what: 'masked responses' },
    )
    const { rows } = await app.pool.query(sql.type(z.object({ text: z.string() }))`
      select response_body as text from webhook_deliveries where response_body is not null`)
    for (const { text } of rows)
      for (const spelling of [
        text,
        Buffer.from(text, 'base64').toString('latin1'),
        Buffer.from(text, 'hex').toString('latin1'),
      ])
        for (const secret of ['tok-987654', 'cred-987654']) assert.equal(spelling.includes(secret), false, text)
    assert.ok(stored.some(text => text.includes('content-type')))
  })

  it('survive the kill of the worker between the change and the delivery', async () => {
    const generating = await start('generation')
    const task = await begin(said({ text: 'done' }))
    const client = await connect(app, app.key, agentId)
    await eventually(async () => stateOf(await client.getTask({ tenant: '', id: task.id })) === 'COMPLETED', {
      what: 'the end of the task',
    })
    await generating.kill()
    assert.equal(receiver.requests.length, 0)
    let received: () => void = () => {}
    const first = new Promise<void>(resolve => {
      received = resolve
    })
    // The receiver never answers the worker that is killed.
    receiver.answer = () => received()
    const delivering = await start('delivery')
    await first
    await delivering.kill()
    receiver.answer = 200
    receiver.requests.length = 0
    await start('delivery')
    await arrived(task.id, 'COMPLETED')
    assert.equal(pushed(task.id).length, 1)
  })

  it('are at most five a task, replaced by their ID, removed, and hidden among webhooks', async () => {
    const client = await connect(app, app.key, agentId)
    const gate = `gate-${randomUUID()}`
    await start('generation')
    const task = await begin(said({ text: 'x', gate }))
    const create = (id: string, fields: object = {}) =>
      rpc(app, app.key, agentId, 'CreateTaskPushNotificationConfig', {
        taskId: task.id,
        id,
        url: receiver.url,
        ...fields,
      })
    const made = await Promise.all(['a', 'b', 'c', 'd', 'e', 'f'].map(id => create(id)))
    assert.equal(made.filter(({ body }) => body.error?.code === -32602).length, 2)
    const [kept] = made.filter(({ body }) => body.result).map(({ body }) => body.result.id)
    const replaced = await create(kept, { url: `${receiver.url}/other` })
    assert.equal(replaced.body.result.url, `${receiver.url}/other`)
    await client.deleteTaskPushNotificationConfig({ tenant: '', taskId: task.id, id: kept })
    const gone = await rpc(app, app.key, agentId, 'GetTaskPushNotificationConfig', { taskId: task.id, id: kept })
    assert.equal(gone.body.error.code, -32001)
    assert.equal((await app.admin.get(`/webhooks?project_id=${app.projectId}`)).body.total, 0)
    const { data } = (await app.admin.get(`/audit-log?project_id=${app.projectId}&limit=100`)).body
    const entry = data.find(({ detail }: any) => detail?.task_id === task.id)
    assert.deepEqual([entry.action, entry.detail.surface], ['sessions:SendSessionMessage', 'a2a'])
    await eventually(async () => ((await double.gate(gate))?.waiting ?? 0) >= 1, { what: 'the turn' })
    await double.send('POST', `/control/gates/${gate}/open`)
    assert.equal((await app.admin.delete(`/sessions/${task.contextId}`)).status, 204)
    const left = await rpc(app, app.key, agentId, 'ListTaskPushNotificationConfigs', { taskId: task.id })
    assert.equal(left.body.error.code, -32001)
  })

  it('of a later task do not touch the ended tasks of a context', async () => {
    await start('generation', 'delivery')
    const first = await begin(said({ text: 'one' }))
    await arrived(first.id, 'COMPLETED')
    const { pool } = app
    const dispatched = async () =>
      !(await pool.exists(
        voidStatement`select from events where project_id = ${app.projectId} and dispatched_at is null`,
      ))
    await eventually(dispatched, { what: 'the events of the first task' })
    // The last transaction that has locked the row.
    const locker = () => pool.oneFirst(idStatement`select xmax::text as id from a2a_tasks where id = ${first.id}`)
    const before = await locker()
    const client = await connect(app, app.key, agentId)
    const later = await send(client, said({ text: 'two' }), {
      message: { contextId: first.contextId },
      configuration: { taskPushNotificationConfig: config() },
    })
    await arrived(later.id, 'COMPLETED')
    assert.equal(await locker(), before)
  })

  it('are refused for addresses inside the network, before anything starts', async () => {
    const before = (await app.admin.get(`/sessions?project_id=${app.projectId}`)).body.total
    for (const url of [
      'http://10.0.0.1/hook',
      'http://169.254.169.254/',
      'file:///etc/passwd',
      'http://u:p@127.0.0.1/',
    ]) {
      const body = { ...wireMessage([{ text: 'x' }]), configuration: { taskPushNotificationConfig: { url } } }
      assert.equal((await rpc(app, app.key, agentId, 'SendMessage', body)).body.error.code, -32602, url)
    }
    assert.equal((await app.admin.get(`/sessions?project_id=${app.projectId}`)).body.total, before)
  })
})
