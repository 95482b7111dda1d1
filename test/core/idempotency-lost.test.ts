import assert from 'node:assert/strict'
import { operations } from '#core/api/operation.ts'
import { rawQuery } from '#core/db/sql.ts'
import { upload } from '../content/ingestion-support.ts'
import { madeDecider, QUESTIONS, TOOL_ANSWERS } from '../execution/decider-support.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { type Client, client, eventually, type Reply } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { startProcess } from '../support/processes.ts'
import { scriptOf } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'

const ACTIONS = [
  ...[
    'actors',
    'agents',
    'conversations',
    'deciders',
    'documents',
    'evaluations',
    'files',
    'formations',
    'generations',
  ],
  ...['memories', 'orchestrations', 'sessions', 'tasks', 'tools', 'triggers', 'workflows'],
].map(module => `${module}:*`)

/** Operations with separate transactions that make nothing which a repeat could make twice. */
const MAKE_NOTHING = [
  'checkAiProvider',
  'createChatCompletion',
  // A plan that is saved twice is forgotten like any other.
  'planFormation',
  'resolveIngestionRule',
  'simulatePolicies',
  'testMemoryRule',
  'testProjectTelemetry',
]

/** Tables whose rows the requests of this test make. */
const TABLES = [
  ...['actors', 'conversation_messages', 'conversation_turns', 'dataset_items', 'decisions', 'document_versions'],
  ...[
    'documents',
    'eval_runs',
    'memories',
    'memory_entries',
    'orchestration_runs',
    'task_transitions',
    'trigger_firings',
  ],
]
const PICK = { tool_calls: [{ name: 'pick', args: {} }] }

type Kept = { key: string; status: number | null; body: any; made: any; lease: number }

type Case = { id: string; by: Client; path: string; body?: object; key: string }

describe('POSTs with an Idempotency-Key whose web process is killed after their commits', function () {
  this.timeout(120_000)
  let app: AgentApp
  const target = forSuite(startTarget)
  let cases: Case[]
  let retried: string

  const query = async (text: string, values: unknown[] = []) =>
    (await app.services.pool.query(rawQuery(text, values))).rows as any[]
  const ok = async (reply: Reply | Promise<Reply>): Promise<any> => {
    const { status, body } = await reply
    assert.ok(status < 300, `${status} ${JSON.stringify(body)}`)
    return body
  }
  const make = (path: string, body: object): Promise<any> =>
    ok(app.admin.post(path, { project_id: app.projectId, ...body }))
  const post = (path: string, body: object = {}) => ok(app.key.post(path, body))
  const kept = async () =>
    (await query(`select key, status, body, made, extract(epoch from leased_until - now())::float8 as lease
      from idempotency_keys`)) as Kept[]

  before(async () => {
    target.answer = json(TOOL_ANSWERS)
    app = await startAgentApp({
      actions: ACTIONS,
      workers: ['delivery', 'generation', 'ingestion', 'orchestration', 'trigger', 'evaluation'],
      env: { SYNC_WAIT_SECONDS: '60' },
    })
    cases = []
    const add = (id: string, path: string, body?: object, by = app.key) =>
      void cases.push({ id, path, body, by, key: `${id} ${cases.length}`.replaceAll(' ', '-') })

    add('createActor', '/actors', { name: 'Ann' })
    const { id: document } = await post('/documents', { content: 'one' })
    await ok(app.key.patch(`/documents/${document}`, { content: 'two' }))
    add('createDocument', '/documents', { content: 'a text' })
    add('restoreDocumentVersion', `/documents/${document}/versions/1/restore`)
    for (const query of ['', '?wait=true']) {
      add('ingestDocument', `/documents/ingest${query}`, { file_id: await upload(app.key, 'text') })
      const file_id = await upload(app.key, 'text')
      const { id } = await post('/documents/ingest?wait=true', { file_id })
      add('reingestDocument', `/documents/${id}/ingest${query}`)
    }
    const store = await make('/memory-stores', { name: 'facts' })
    add('createMemoryEntry', '/memory-entries', { memory_store_id: store.id, content: 'Ann likes tea' })
    add('createMemory', '/memories', { memory_store_id: store.id, content: 'Bob likes coffee' })

    for (const query of ['', '?wait=false']) {
      const resources = { Store: { type: 'memory_store', properties: { name: 'of a template' } } }
      add('createFormation', `/formations${query}`, { name: `stack${query}`, template: { resources } })
    }

    const picking = await app.agent({ tool_bindings: [{ tool: { name: 'pick', type: 'client' } }] })
    const generate = (agent: string, body: object): Promise<Reply> =>
      app.key.post(`/agents/${agent}/generate?wait=true`, body)
    const outputsOf = ({ required_action }: any) => ({
      tool_outputs: required_action.tool_calls.map(({ id }: any) => ({ tool_call_id: id, output: 1 })),
    })
    const told = { prompt: scriptOf({ text: 'told' }) }
    const path = `/agents/${picking}/generate`
    add('createAgentGeneration', path, told)
    add('createAgentGeneration', `${path}?wait=true`, told)
    add('createAgentGeneration', path, { ...told, stream: true })
    const paused = () => generate(picking, { prompt: scriptOf(PICK, { text: 'picked' }) }).then(ok)
    for (const stream of [false, true]) {
      const turn = await paused()
      add('submitAgentToolOutputs', `${path}/${turn.id}/tool-outputs`, { ...outputsOf(turn), stream })
    }
    const broken = { prompt: scriptOf({ error: { status: 400, message: 'no' } }) }
    retried = (await generate(app.agentId, broken)).body.error.meta.generation_id
    add('retryGeneration', `/generations/${retried}/retry`)

    const session = async (message?: string, fields: object = {}) => {
      const { id } = await post('/sessions', { agent_id: picking, ...fields })
      if (message !== undefined) await post(`/sessions/${id}/messages`, { message })
      return id as string
    }
    add('generateSessionReply', `/sessions/${await session(told.prompt)}/generate?wait=true`)
    add('sendSessionMessage', `/sessions/${await session()}/messages`, { message: 'hello' })
    const auto = await session(undefined, { auto_generate: true })
    add('sendSessionMessage', `/sessions/${auto}/messages?wait=true`, { message: told.prompt })
    const pausing = await session(scriptOf(PICK, { text: 'picked' }))
    const reply = await post(`/sessions/${pausing}/generate?wait=true`)
    add('submitSessionToolOutputs', `/sessions/${pausing}/tool-outputs`, {
      generation_id: reply.generation_id,
      ...outputsOf(reply),
    })
    const conversation = async () => {
      const { id } = await post('/conversations')
      await post(`/conversations/${id}/messages`, { role: 'user', message: told.prompt })
      return id
    }
    const speaker = { agent_id: picking }
    add('generateConversationMessage', `/conversations/${await conversation()}/generate?wait=true`, speaker)
    const chat = await make('/chats', { ai_provider_id: app.providerId })
    const { id: actor_id } = await post('/actors', { name: 'Bot', chat_id: chat.id })
    add('generateConversationMessage', `/conversations/${await conversation()}/generate?wait=true`, { actor_id })

    const { id: dataset } = await post('/datasets', { name: 'set' })
    await post(`/datasets/${dataset}/items`, { input: [{ role: 'user', content: 'hello' }] })
    const copied = await post(`${path}?wait=true`, told)
    const said = await session(told.prompt)
    await post(`/sessions/${said}/generate?wait=true`)
    add('createDatasetItemFromGeneration', `/datasets/${dataset}/items/from-generation`, { generation_id: copied.id })
    add('createDatasetItemsFromSession', `/datasets/${dataset}/items/from-session`, { session_id: said })
    const { id: measured } = await post('/datasets', { name: 'measured' })
    await post(`/datasets/${measured}/items`, { input: [{ role: 'user', content: 'hello' }] })
    const scorers = [{ type: 'exact_match' }]
    const run = await post('/evals', { name: 'e', agent_id: app.agentId, dataset_id: measured, scorers })
    for (const wait of [false, true]) add('createEvalRun', `/evals/${run.id}/runs`, { wait })

    const { id: flow } = await post('/workflows', {
      name: 'flow',
      states: [
        { name: 'draft', initial: true },
        { name: 'done', terminal: true },
      ],
      transitions: [{ name: 'finish', from: ['draft'], to: 'done' }],
    })
    const { id: task } = await post('/tasks', { workflow_id: flow, title: 'task' })
    add('transitionTask', `/tasks/${task}/transitions`, { transition: 'finish' })

    const human = { name: 'graph', nodes: [{ id: 'h', type: 'human' }], edges: [] }
    const { id: orchestration_id } = await post('/orchestrations', human)
    for (const wait of [false, true]) add('startRun', '/orchestration-runs', { orchestration_id, wait })
    const waiting = async () => (await post('/orchestration-runs', { orchestration_id, wait: true })).id
    const answered = { node_id: 'h', output: 1 }
    add('submitHumanInput', `/orchestration-runs/${await waiting()}/human-input`, answered)
    add('pauseRun', `/orchestration-runs/${await waiting()}/pause`)
    add('cancelRun', `/orchestration-runs/${await waiting()}/cancel`)
    for (const id of ['resumeRun', 'retryRun']) {
      const at = `/orchestration-runs/${await waiting()}`
      await post(`${at}/${id === 'retryRun' ? 'cancel' : 'pause'}`)
      add(id, `${at}/${id === 'retryRun' ? 'retry' : 'resume'}`)
    }

    const calling = { execute: { url: target.url } }
    const { id: once } = await post('/tools', { name: 'once', ...calling })
    const { id: often } = await post('/tools', { name: 'often', idempotent: true, ...calling })
    for (const id of [once, often]) add('callTool', `/tools/${id}/call`, { input: { said: id } })
    const firing = { type: 'manual', target_type: 'tool', target_id: once }
    const { id: trigger } = await post('/triggers', { name: 'trigger', ...firing })
    for (const wait of [false, true]) add('fireTrigger', `/triggers/${trigger}/fire`, { wait })

    const decider = await madeDecider(app.key, { tool_id: once })
    const inline = { questions: QUESTIONS, tool_id: once, input: 'x' }
    for (const wait of [false, true]) {
      add('createDecision', `/deciders/${decider.id}/decisions`, { input: 'x', wait })
      add('createInlineDecision', '/decisions', { ...inline, wait })
    }

    const statement = [{ effect: 'Allow', action: ['approvals:*'], resource: [`srn:${app.projectId}:approval:*`] }]
    const approver = await app.user('approver', [{ statement }])
    let n = 0
    // Equal proposals are one.
    const proposed = async () => (await propose(app, copied.id, { id: once, name: 'once' }, { n: ++n })).id
    add('approveApproval', `/approvals/${await proposed()}/approve`, undefined, approver)
    add('rejectApproval', `/approvals/${await proposed()}/reject`, { reason: 'no' }, approver)
    const several = { ids: [await proposed(), await proposed()], decision: 'rejected', reason: 'no' }
    add('resolveApprovals', '/approvals/resolve', several, approver)
  })
  after(async () => {
    await app?.close()
  })

  it('cover all operations with separate transactions', () => {
    const own = operations
      .all()
      .filter(
        ({ method, transaction, reads, gate }) => method === 'post' && !transaction && !reads && gate !== 'public',
      )
      .map(({ id }) => id)
    const tried = new Set([...cases.map(({ id }) => id), ...MAKE_NOTHING])
    assert.deepEqual(
      own.filter(id => !tried.has(id)),
      [],
    )
  })

  it('are carried out again when the work that they waited for has failed', async () => {
    const failing = () =>
      app.key.post(
        `/agents/${app.agentId}/generate?wait=true`,
        { prompt: scriptOf({ error: { status: 400, message: 'no' } }) },
        { 'idempotency-key': 'failing' },
      )
    const [one, two] = [await failing(), await failing()]
    assert.deepEqual([one.status, two.status], [502, 502])
    assert.notEqual(two.body.error.meta.generation_id, one.body.error.meta.generation_id)
  })

  it('are answered for by their repeats, once the lease of the key has ended', async () => {
    const web = await startProcess('web', app.databaseUrl, { FAULT_POINTS: 'request_carried_out=freeze:600000' })
    const send = (url: string, { by, path, body, key }: Case) =>
      client(url, by.token).post(path, body, { 'idempotency-key': key })
    const early: string[] = []
    const lost = cases.map(each =>
      send(web.url, each).then(
        ({ status, body }) => void early.push(`${each.id} ${status} ${JSON.stringify(body)}`),
        () => null,
      ),
    )
    await eventually(
      async () => {
        assert.deepEqual(early, [], 'no request is answered')
        const rows = await kept()
        const ids = rows.find(({ key }) => key.startsWith('resolveApprovals'))?.made?.resolved
        // The call of a tool that may be called again leaves nothing.
        return rows.filter(({ status, made }) => status ?? made).length === cases.length - 1 && ids?.length === 2
      },
      { within: 60_000, what: 'commits' },
    ).catch(async error => {
      const there = new Set((await kept()).flatMap(({ key, status, made }) => ((status ?? made) ? key : [])))
      throw new Error(`${error.message}: ${cases.filter(({ key }) => !there.has(key)).map(({ key }) => key)}`)
    })
    await eventually(() => target.requests.filter(({ body }) => body.includes('said')).length === 2)
    await web.kill('SIGKILL')
    await Promise.all(lost)
    assert.deepEqual(early, [])

    const rows = new Map((await kept()).map(row => [row.key, row]))
    assert.ok([...rows.values()].every(({ lease }) => lease <= 20))
    await query(`update idempotency_keys set leased_until = now() + interval '20 seconds'`)
    for (const each of cases.filter(({ key }) => rows.get(key)?.made)) {
      const { status, body, headers } = await send(app.url, each)
      assert.deepEqual([status, body.error.code], [409, 'IDEMPOTENCY_IN_PROGRESS'], each.id)
      assert.equal(headers.get('retry-after'), '5')
    }
    await query(`update idempotency_keys set leased_until = now() - interval '1 second'`)
    // Until what the first requests have started is over.
    await eventually(
      async () =>
        (
          await query(`select ((select count(*) from generations where status in ('pending', 'in_progress'))
            + (select count(*) from eval_runs where status in ('queued', 'running'))
            + (select count(*) from trigger_firings where completed_at is null))::int as open`)
        )[0].open === 0,
      { within: 60_000 },
    )
    const counts = async () => {
      const turns = `initiator_generation_id is null or initiator_generation_id = '${retried}'`
      const tables = [...TABLES.map(table => `select '${table}' as name, count(*)::int as rows from ${table}`)]
      return query(
        [...tables, `select 'generations', count(*)::int from generations where ${turns}`].join(' union all '),
      )
    }
    const before = await counts()
    const replies = await Promise.all(cases.map(each => send(app.url, each)))
    assert.deepEqual(await counts(), before)
    for (const [index, { id, key, path }] of cases.entries()) {
      const { status, body, headers } = replies[index]
      const row = rows.get(key) as Kept
      const what = `${id} ${path} ${status} ${JSON.stringify(body)} ${JSON.stringify(row)}`
      if (id === 'callTool') continue
      assert.ok(status < 300, what)
      assert.equal(headers.get('idempotency-replayed'), 'true', what)
      if (row.status !== null) assert.deepEqual([status, body], [row.status, row.body], what)
      const text = JSON.stringify(body)
      for (const named of JSON.stringify(row.made ?? {}).match(/[a-z_]+_[0-9a-z]{26}/g) ?? [])
        assert.ok(text.includes(named), `${named} in ${what}`)
    }
    const [once, often] = cases.flatMap(({ id }, index) => (id === 'callTool' ? [replies[index]] : []))
    assert.deepEqual(
      [once.status, once.body.error.code, once.body.error.meta.reason],
      [422, 'TOOL_CALL_FAILED', 'outcome_unknown'],
    )
    assert.deepEqual([often.status, often.body], [200, TOOL_ANSWERS])
    const calls = target.requests.filter(({ body }) => body.includes('said'))
    assert.equal(calls.length, 3)
    const [first, second] = calls.flatMap(({ headers }) => headers['idempotency-key'] ?? [])
    assert.ok(first)
    assert.equal(second, first, 'the repeated call has its first key')
    // From now on it is the first answer, but for streams.
    for (const [index, each] of cases.entries()) {
      if ((each.body as any)?.stream) continue
      const again = await send(app.url, each)
      assert.deepEqual([again.status, again.body], [replies[index].status, replies[index].body], each.id)
      assert.equal(again.headers.get('idempotency-replayed'), 'true', each.id)
    }
  })
})
