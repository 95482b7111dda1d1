import assert from 'node:assert/strict'
import { idStatement } from '#core/db/sql.ts'
import { client } from '../local/double/client.ts'
import { type Client, eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { storedEvents } from '../support/events.ts'
import { type HostedProcess, runWorker } from '../support/hosts.ts'
import { createdBy } from '../support/replies.ts'
import { type AgentApp, startAgentApp } from './fixtures.ts'
import { refused } from './tool-target.ts'

const CEILING = '6'

describe('chains', () => {
  let app: AgentApp
  let double: ReturnType<typeof client>
  let approver: Client
  let second: HostedProcess

  before(async () => {
    const env = {
      APPROVAL_SWEEP_INTERVAL_MS: '1000',
      MAX_CONTINUATION_CHAIN_GENERATIONS: CEILING,
      PROVIDER_MAX_RETRIES: '0',
      EGRESS_ALLOW_HOSTS: '127.0.0.1',
    }
    app = await startAgentApp({
      workers: ['generation', 'delivery'],
      env,
      actions: ['agents:CreateAgentGeneration', 'generations:*', 'chains:*', 'traces:GetTrace', 'events:ListEvents'],
    })
    second = await runWorker(app.databaseUrl, env, ['generation'])
    double = client(app.double)
    approver = await app.user('approver of chains', [
      { statement: [{ effect: 'Allow', action: ['approvals:*'], resource: [`srn:${app.projectId}:approval:*`] }] },
    ])
  })
  after(async () => {
    await second?.stop()
    await app?.close()
  })
  afterEach(() => ceiling(null))

  const ceiling = (max_chain_generations: number | null) =>
    app.admin.patch(`/projects/${app.projectId}`, { max_chain_generations })
  const read = async (path: string) => (await app.key.get(path)).body
  const run = async (agent = app.agentId): Promise<string> =>
    (await createdBy(app.key, `/agents/${agent}/generate?wait=true`, { prompt: 'hello' }, 200)).id

  let amount = 0
  /** A call that a turn proposes, which waits for a person. */
  const proposed = async (generation: string, more: Parameters<typeof propose>[4] = {}): Promise<string> =>
    (await propose(app, generation, { id: null, name: 'pay' }, { amount: ++amount }, more)).id
  const reject = async (approval: string) =>
    assert.equal((await approver.post(`/approvals/${approval}/reject`, { reason: 'no' })).status, 200)
  /** Waits until nothing follows from an approval any more. */
  const followed = (approval: string) =>
    eventually(
      async () =>
        !(await app.pool.exists(idStatement`select id from approval_attempts where approval_id = ${approval}`)),
      { what: 'the end of the next turn' },
    )
  const members = async (chain: string): Promise<any[]> => (await read(`/generations?chain_id=${chain}&limit=100`)).data
  const successors = async (generation: string): Promise<any[]> =>
    (await read(`/generations?initiator_generation_id=${generation}`)).data
  const ended = (id: string) =>
    eventually(async () => ['completed', 'failed'].includes((await read(`/generations/${id}`)).status), {
      what: `the end of ${id}`,
    })
  /** Rejects a call that a turn proposes; the turn that carries on, at its end. */
  const carriedOn = async (generation: string): Promise<any> => {
    const before = new Set((await successors(generation)).map(({ id }) => id))
    await reject(await proposed(generation))
    const next = await eventually(async () => (await successors(generation)).find(({ id }) => !before.has(id)), {
      what: 'the turn that carries on',
    })
    await ended(next.id)
    return read(`/generations/${next.id}`)
  }
  /** Rejects a call whose turn is refused. */
  const stuck = async (generation: string): Promise<void> => {
    const approval = await proposed(generation)
    const before = (await successors(generation)).length
    await reject(approval)
    await followed(approval)
    assert.equal((await successors(generation)).length, before)
    assert.equal((await approver.get(`/approvals/${approval}`)).body.status, 'rejected')
  }

  it('begin with the first turn that carries on after another, and have both', async () => {
    const root = await run()
    assert.equal((await read(`/generations/${root}`)).chain_id, null)
    assert.equal((await read('/chains')).total, 0)
    const hop = await carriedOn(root)
    const chain = await read(`/chains/${hop.chain_id}`)
    assert.match(chain.id, /^chain_/)
    assert.deepEqual(
      [chain.project_id, chain.agent_id, chain.status, chain.generation_count, chain.limit, chain.limit_source],
      [app.projectId, app.agentId, 'concluded', 2, Number(CEILING), 'platform'],
    )
    assert.deepEqual([hop.initiator_generation_id, (await read(`/generations/${root}`)).chain_id], [root, chain.id])
    assert.deepEqual(
      (await members(chain.id)).map(({ id }) => id),
      [hop.id, root],
    )
    const third = await carriedOn(hop.id)
    assert.equal(third.chain_id, chain.id)
    assert.equal((await read(`/chains/${chain.id}`)).generation_count, 3)
    assert.equal((await read(`/chains?agent_id=${app.agentId}&status=concluded`)).total, 1)
    assert.equal((await read('/chains?status=active&status=expired')).total, 0)
    assert.equal((await app.key.get('/chains?status=done')).status, 400)
  })

  it('are known to who may read them', async () => {
    const { chain_id } = await carriedOn(await run())
    refused(await app.key.get(`/chains/chain_${'0'.repeat(26)}`), 404, 'CHAIN_NOT_FOUND')
    const other = (await app.projectWith(['chains:*'])).key
    refused(await other.get(`/chains/${chain_id}`), 404, 'CHAIN_NOT_FOUND')
    refused(await other.post(`/chains/${chain_id}/stop`), 404, 'CHAIN_NOT_FOUND')
    assert.equal((await other.get('/chains')).body.total, 0)
    const reader = await app.user('reader of chains', [
      { statement: [{ effect: 'Allow', action: ['chains:GetChain'], resource: [`srn:${app.projectId}:chain:*`] }] },
    ])
    assert.equal((await reader.get(`/chains/${chain_id}`)).status, 200)
    refused(await reader.post(`/chains/${chain_id}/stop`), 403, 'FORBIDDEN')
  })

  it('end at the ceiling of the project, and continue when it is raised', async () => {
    await ceiling(2)
    const root = await run()
    const { id, chain_id } = await carriedOn(root)
    await stuck(id)
    const chain = await read(`/chains/${chain_id}`)
    assert.deepEqual(
      [chain.status, chain.generation_count, chain.limit, chain.limit_source],
      ['budget_exhausted', 2, 2, 'project'],
    )
    const facts = { chain_id, root_generation_id: root, chain_size: 2, limit_source: 'project' }
    const [event] = await storedEvents(app.pool, { resource: root, name: 'generations.chain_limit' })
    for (const [name, value] of Object.entries({ ...facts, limit: 2 })) assert.equal(event.data[name], value, name)
    const exceptions = async () =>
      (await app.admin.get(`/exceptions?project_id=${app.projectId}&kind=chain_limit&limit=100`)).body.data.filter(
        ({ detail }: any) => detail.chain_id === chain_id,
      )
    const exception = await eventually(async () => (await exceptions())[0], { what: 'the exception' })
    assert.deepEqual(
      [exception.severity, exception.agent_id, exception.detail],
      ['warning', app.agentId, { ...facts, initiator_generation_id: id, budget: 2 }],
    )
    const { trace_id } = await read(`/generations/${id}`)
    const [note] = (await read(`/traces/${trace_id}`)).notes
    assert.deepEqual([note.kind, note.generation_id, note.stop_reason], ['chain_limit', id, 'chain_limit'])
    await stuck(id)
    await eventually(async () => (await exceptions())[0].occurrence_count === 2)
    await ceiling(3)
    const third = await carriedOn(id)
    const after = await read(`/chains/${chain_id}`)
    assert.deepEqual([after.status, after.generation_count, third.chain_id], ['concluded', 3, chain_id])
  })

  it('end at the ceiling of the agent that would carry on, and at the ceiling of the deployment', async () => {
    const stop_conditions = [{ type: 'max_chain_generations', max_generations: 3 }]
    const agent = await app.agent({ stop_conditions })
    await ceiling(5)
    let { id, chain_id } = await carriedOn(await run(agent))
    id = (await carriedOn(id)).id
    await stuck(id)
    assert.deepEqual(limitOf(await read(`/chains/${chain_id}`)), ['budget_exhausted', 3, 3, 'agent'])
    await ceiling(1)
    const alone = await run()
    await stuck(alone)
    chain_id = (await read(`/generations/${alone}`)).chain_id
    assert.deepEqual(limitOf(await read(`/chains/${chain_id}`)), ['budget_exhausted', 1, 1, 'project'])
    await ceiling(50)
    let last = alone
    for (let count = 1; count < Number(CEILING); count++) last = (await carriedOn(last)).id
    await stuck(last)
    const most = Number(CEILING)
    assert.deepEqual(limitOf(await read(`/chains/${chain_id}`)), ['budget_exhausted', most, most, 'platform'])
    assert.equal(
      (await app.admin.patch(`/agents/${agent}`, { stop_conditions: [{ ...stop_conditions[0], max_generations: 1 }] }))
        .status,
      400,
    )
  })

  const limitOf = ({ status, generation_count, limit, limit_source }: any) => [
    status,
    generation_count,
    limit,
    limit_source,
  ]

  it('never exceed the ceiling when many turns carry on concurrently, on two workers', async () => {
    await ceiling(4)
    const root = await run()
    const approvals = await Promise.all(Array.from({ length: 12 }, () => proposed(root)))
    await Promise.all(approvals.map(reject))
    for (const approval of approvals) await followed(approval)
    const next = await successors(root)
    assert.equal(next.length, 3)
    const chains = new Set(
      [root, ...next.map(({ id }) => id)].map(async id => (await read(`/generations/${id}`)).chain_id),
    )
    const [chain] = new Set(await Promise.all(chains))
    assert.equal((await members(chain)).length, 4)
    assert.deepEqual(limitOf(await read(`/chains/${chain}`)), ['budget_exhausted', 4, 4, 'project'])
    await eventually(async () => {
      const { data } = (await app.admin.get(`/exceptions?project_id=${app.projectId}&kind=chain_limit&limit=100`)).body
      const mine = data.filter(({ detail }: any) => detail.chain_id === chain)
      return mine.length === 1 && mine[0].occurrence_count === 9
    })
  })

  it('are active while one of their turns, or an approval, is active', async () => {
    await double.put('held', { rules: [{ when: { user: 'rejected' }, reply: { text: 'x', gate: 'chain' } }] })
    const agent = await app.agent({ model: 'held/m' })
    const root = await run(agent)
    await reject(await proposed(root))
    const hop = await eventually(async () => (await successors(root))[0], { what: 'the turn that carries on' })
    const status = async () => (await read(`/chains/${hop.chain_id}`)).status
    assert.equal(await status(), 'active')
    assert.equal((await read(`/chains?status=active&agent_id=${agent}`)).total, 1)
    await eventually(async () => ((await double.gate('chain'))?.waiting ?? 0) > 0)
    await double.read('POST', '/control/gates/chain/open')
    await ended(hop.id)
    assert.equal(await status(), 'concluded')
    await proposed(hop.id)
    assert.equal(await status(), 'active')
  })

  it('expire with their last approval, unless the agent is notified of it', async () => {
    const { id, chain_id } = await carriedOn(await run())
    await proposed(id, { expires_in: 1 })
    await eventually(async () => (await read(`/chains/${chain_id}`)).status === 'expired')
    const further = await carriedOn(id)
    assert.deepEqual([further.chain_id, (await read(`/chains/${chain_id}`)).status], [chain_id, 'concluded'])
    const agent = await app.agent({ on_approval_expiry: 'react' })
    const root = await run(agent)
    await proposed(root, { expires_in: 1 })
    const hop = await eventually(async () => (await successors(root))[0], { what: 'the turn that carries on' })
    await ended(hop.id)
    assert.equal((await read(`/chains/${hop.chain_id}`)).status, 'concluded')
  })

  it('are stopped permanently', async () => {
    const { id, chain_id } = await carriedOn(await run())
    const { status, body } = await app.key.post(`/chains/${chain_id}/stop`)
    assert.equal(status, 200)
    assert.ok(body.stopped_at)
    assert.equal((await app.key.post(`/chains/${chain_id}/stop`)).body.stopped_at, body.stopped_at)
    await stuck(id)
    assert.deepEqual(limitOf(await read(`/chains/${chain_id}`)), ['budget_exhausted', 2, Number(CEILING), 'stopped'])
    await stuck(id)
  })

  it('do not count the calls of other agents', async () => {
    const inner = await app.agent({ name: 'inner' })
    const outer = await app.agent({
      tool_bindings: [
        {
          tool: {
            name: 'ask',
            type: 'platform',
            actions: ['create-agent-generation'],
            preset_parameters: { agent_id: inner },
          },
        },
      ],
    })
    const calls = [{ tool_calls: [{ name: 'ask_create-agent-generation', args: { prompt: 'hi' } }] }, { text: 'ok' }]
    const { body } = await app.key.post(`/agents/${outer}/generate?wait=true`, {
      prompt: `@double ${JSON.stringify(calls)}`,
    })
    assert.equal(body.status, 'completed', JSON.stringify(body))
    const [nested] = await successors(body.id)
    const { chain_id } = await carriedOn(body.id)
    assert.equal((await members(chain_id)).length, 2)
    assert.equal((await read(`/generations/${nested.id}`)).chain_id, null)
  })
})
