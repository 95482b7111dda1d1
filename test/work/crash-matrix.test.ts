import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { works } from '#core/work/work.ts'
import { upload } from '../content/ingestion-support.ts'
import { madeDecider, TOOL_ANSWERS, toolAt } from '../execution/decider-support.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { json, made, startTarget, type Target } from '../execution/tool-target.ts'
import { client } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { storedEvents } from '../support/events.ts'
import { runWorker, steadyWorkers } from '../support/hosts.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'

/** Lost workers are detected within seconds. */
const FAST = {
  WORKER_HEARTBEAT_INTERVAL_MS: '200',
  SHUTDOWN_GRACE_MS: '500',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}

/**
 * Who runs the turns that an item needs: a worker during a request, a worker lost with the commit of the requested
 * turn, or one until the end of the test.
 */
type Turns = Record<'during' | 'lostAfter', <T>(request: () => Promise<T>) => Promise<T>> & {
  onwards: () => Promise<unknown>
}

/**
 * Starts an item of a kind; returns a check that is truthy when the item has settled, and fails if it did anything
 * twice.
 */
type Scenario = { concern: string; table: string; start: (turns: Turns) => Promise<() => Promise<unknown>> }

/** Points of an attempt in the order in which it reaches them. */
const POINTS = ['claimed', 'ending', 'ended'] as const

/** Every kind of durable work loses its worker at every point of the engine. */
describe('durable work whose workers are lost', function () {
  this.timeout(120_000)
  let app: AgentApp
  let target: Target
  let double: ReturnType<typeof client>
  const processes: TestProcess[] = []
  const steady = steadyWorkers()
  /** Stopped after each test. */
  const ofTest = steadyWorkers()
  let count = 0

  const worker = async (concerns: string[], env: Record<string, string>): Promise<TestProcess> => {
    const started = await startProcess('worker', app.databaseUrl, { ...FAST, ...env }, concerns)
    processes.push(started)
    return started
  }
  const ok = async (path: string, body: object = {}): Promise<any> => {
    const reply = await app.key.post(path, body)
    assert.ok(reply.status < 300, `${path} ${reply.status} ${JSON.stringify(reply.body)}`)
    return reply.body
  }
  const read = async (path: string): Promise<any> => (await app.key.get(path)).body
  const emittedOnce = async (resource: string, name: string) =>
    assert.equal((await storedEvents(app.pool, { resource, name })).length, 1, name)
  /** Runs a worker of the concerns while `work` lasts. */
  const during = async <T>(concerns: string[], work: () => Promise<T>): Promise<T> => {
    const running = await runWorker(app.databaseUrl, FAST, concerns)
    try {
      return await work()
    } finally {
      await running.stop()
    }
  }

  /** Returns the ID of an agent whose model always gives one answer. */
  async function agentThatSays(text: string, fields: object): Promise<string> {
    const lane = `matrix-${++count}`
    await double.put(lane, { rules: [{ reply: { text } }] })
    return app.agent({ model: `${lane}/m`, ...fields })
  }

  /** Turns without a worker that runs all the time. */
  const separately: Turns = {
    during: request => during(['generation'], request),
    async lostAfter(request) {
      const first = await worker(['generation'], { FAULT_POINTS: 'after_settle=kill' })
      const response = await request()
      await first.exited
      return response
    },
    onwards: () => ofTest.start(app.databaseUrl, FAST, ['generation']),
  }
  /** Turns of a running worker, which stops at the claim of the work that a turn requests. */
  const alongside: Turns = { during: request => request(), lostAfter: request => request(), onwards: async () => {} }

  const SCENARIOS: Record<string, Scenario> = {
    'ingestion.process': {
      concern: 'ingestion',
      table: 'ingestion_attempts',
      async start() {
        const { id } = await ok('/documents/ingest', { file_id: await upload(app.key, 'text') })
        return async () => {
          const { status, content, chunk_count, version } = await read(`/documents/${id}`)
          if (['pending', 'processing'].includes(status)) return false
          assert.deepEqual([status, content, chunk_count, version], ['ready', 'text', 1, 1])
          assert.equal((await read(`/documents/${id}/chunks`)).data.length, 1)
          await emittedOnce(id, 'documents.ingested')
          return true
        }
      },
    },
    'export.build': {
      concern: 'orchestration',
      table: 'playbook_export_attempts',
      async start() {
        const { id: subject_id } = await ok('/cases', { title: 'A claim' })
        const { id } = await ok('/playbook-exports', { subject_type: 'case', subject_id })
        return async () => {
          const { status, files } = await read(`/playbook-exports/${id}`)
          if (status !== 'completed') return false
          assert.equal(files.length, 2)
          const { data } = await read(`/files?project_id=${app.projectId}&limit=100`)
          assert.equal(data.filter(({ path }: any) => path?.startsWith(`/exports/${id}`)).length, 2)
          await emittedOnce(id, 'playbook_exports.completed')
          return true
        }
      },
    },
    'decision.evaluate': {
      concern: 'generation',
      table: 'decision_attempts',
      async start() {
        const { id: decider } = await madeDecider(app.key, {
          tool_id: await toolAt(app.key, target.url, { idempotent: true }),
        })
        const { id } = await ok(`/deciders/${decider}/decisions`, { input: 'text' })
        return async () => {
          const decision = await read(`/decisions/${id}`)
          if (!['completed', 'failed'].includes(decision.status)) return false
          assert.deepEqual([decision.status, decision.answers?.length], ['completed', 3])
          await emittedOnce(id, 'decisions.completed')
          return true
        }
      },
    },
    'approval.continue': {
      concern: 'generation',
      table: 'approval_attempts',
      async start({ during }) {
        const tool = await made(app.key, { name: `pay${++count}`, execute: { url: target.url }, idempotent: true })
        const { id: turnId } = await during(() => ok(`/agents/${app.agentId}/generate?wait=true`, { prompt: 'hello' }))
        const { id } = await propose(app, turnId, { id: tool.id, name: tool.name }, { amount: 1 })
        assert.equal((await app.admin.post(`/approvals/${id}/approve`)).status, 200)
        return async () => {
          const { execution } = (await app.admin.get(`/approvals/${id}`)).body
          if (!execution.generation_id) return false
          assert.equal(execution.status, 'succeeded')
          const { data } = await read('/generations?limit=100')
          assert.equal(data.filter((each: any) => each.initiator_generation_id === turnId).length, 1)
          return true
        }
      },
    },
    'actor.purge': {
      concern: 'snapshot',
      table: 'actor_purges',
      async start({ during }) {
        const { id: actor_id } = await ok('/actors', { name: 'Ann' })
        const { id: session } = await ok('/sessions', { agent_id: app.agentId, actor_id, auto_generate: true })
        await during(() => ok(`/sessions/${session}/messages?wait=true`, { message: 'hello' }))
        await ok(`/actors/${actor_id}/purge-content`)
        return async () => {
          const { rows } = await app.pool.query(sql.unsafe`select from actor_purges`)
          if (rows.length > 0) return false
          const { data } = await read(`/sessions/${session}/messages`)
          assert.deepEqual(
            data.map(({ content }: any) => content),
            [null, null],
          )
          const audit = (await app.admin.get(`/audit-log?resource_public_id=${actor_id}`)).body.data
          const entries = audit.filter(({ detail }: any) => detail?.kind === 'actor_purge')
          assert.deepEqual(
            entries.map(({ detail }: any) => detail.counts.messages),
            [2],
          )
          return true
        }
      },
    },
    'formation.operate': {
      concern: 'orchestration',
      table: 'formation_attempts',
      async start() {
        const name = `stack ${++count}`
        const resources = { Store: { type: 'memory_store', properties: { name } } }
        const body = { project_id: app.projectId, name, template: { resources } }
        const { id } = (await app.admin.post('/formations?wait=false', body)).body
        return async () => {
          const { status } = (await app.admin.get(`/formations/${id}`)).body
          if (status.endsWith('ing')) return false
          assert.equal(status, 'active')
          const { data } = await read('/memory-stores?limit=100')
          assert.equal(data.filter((store: any) => store.name === name).length, 1)
          return true
        }
      },
    },
    'eval.process_item': {
      concern: 'evaluation',
      table: 'eval_results',
      async start({ onwards }) {
        await onwards()
        const name = `matrix-${++count}`
        await double.put(name, { rules: [{ reply: { text: '{"score": 1}' } }] })
        const { id: dataset_id } = await ok('/datasets', { name })
        await ok(`/datasets/${dataset_id}/items`, { input: [{ role: 'user', content: 'hello' }] })
        const judge = {
          type: 'llm_judge',
          prompt: 'x',
          pass_threshold: 1,
          ai_provider_id: app.providerId,
          model: `${name}/m`,
        }
        const body = { name, dataset_id, agent_id: app.agentId, scorers: [judge] }
        const path = `/evals/${(await ok('/evals', body)).id}/runs`
        const { id } = await ok(path)
        return async () => {
          const { status, completed_count } = await read(`${path}/${id}`)
          if (status !== 'completed') return false
          assert.equal(completed_count, 1)
          const { data } = await read('/generations?limit=100')
          assert.equal(data.filter(({ metadata }: any) => metadata?.eval_run_id === id).length, 1)
          await emittedOnce(id, 'eval_runs.completed')
          return true
        }
      },
    },
    'memory_rule.fire': {
      concern: 'generation',
      table: 'memory_rule_firings',
      async start({ lostAfter }) {
        const lane = `matrix-${++count}`
        await double.put(lane, {
          rules: [{ when: { system: 'JSON array' }, reply: { text: '["One","Two"]' } }, { reply: { text: 'Hello' } }],
        })
        const agent = await app.agent({ model: `${lane}/m` })
        const store = (await ok('/memory-stores', { name: lane })).id
        const rule = { memory_store_id: store, on: 'generations.completed', source_agent_ids: [agent] }
        const { id } = await ok('/memory-rules', rule)
        const { generation_id } = await lostAfter(() => ok(`/agents/${agent}/generate`, { prompt: 'hello' }))
        return async () => {
          const { extraction } = await read(`/generations/${generation_id}`)
          if (!extraction?.[id]) return false
          assert.deepEqual(extraction[id], { candidates: 2, created: 2, superseded: 0, skipped: 0, failed: 0 })
          const { data } = await read(`/memory-entries?memory_store_id=${store}`)
          assert.equal(data.length, 2)
          return true
        }
      },
    },
    'session.title': {
      concern: 'generation',
      table: 'session_title_work',
      async start({ lostAfter }) {
        const agent_id = await agentThatSays('Late order', { auto_title: true })
        const { id } = await ok('/sessions', { agent_id })
        await ok(`/sessions/${id}/messages`, { message: 'hello' })
        await lostAfter(() => ok(`/sessions/${id}/generate`))
        return async () => {
          const { name } = await read(`/sessions/${id}`)
          if (name === null) return false
          assert.equal(name, 'Late order')
          await emittedOnce(id, 'sessions.updated')
          return true
        }
      },
    },
    'conversation.summarize': {
      concern: 'generation',
      table: 'conversation_summary_work',
      async start({ lostAfter }) {
        const context_policy = { max_context_tokens: 1000, strategy: 'summarize', keep_last_messages: 1 }
        const agent_id = await agentThatSays('Short.', { context_policy })
        const { id, conversation_id } = await ok('/sessions', { agent_id })
        for (let n = 0; n < 12; n++) await ok(`/sessions/${id}/messages`, { message: `${n} `.repeat(200) })
        await lostAfter(() => ok(`/sessions/${id}/generate`))
        return async () => {
          const { status, body } = await app.key.get(`/conversations/${conversation_id}/summary`)
          if (status !== 200) return false
          assert.equal(body.text, 'Short.')
          return true
        }
      },
    },
    'task.dispatch': {
      concern: 'orchestration',
      table: 'task_dispatches',
      async start() {
        const { id: tool_id } = await made(app.key, {
          name: `work${++count}`,
          execute: { url: target.url },
          idempotent: true,
        })
        const flow = await ok('/workflows', {
          name: `flow ${count}`,
          states: [
            {
              name: 'work',
              initial: true,
              on_enter: {
                dispatch: { kind: 'tool', tool_id },
                on_complete: [{ when: true, transition: 'pass' }],
                on_failure: 'fall',
              },
            },
            { name: 'good', terminal: true },
            { name: 'bad', terminal: true },
          ],
          transitions: [
            { name: 'pass', from: ['work'], to: 'good' },
            { name: 'fall', from: ['work'], to: 'bad' },
          ],
        })
        const { id } = await ok('/tasks', { title: 'A task', workflow_id: flow.id })
        return async () => {
          const { status, state } = await read(`/tasks/${id}`)
          if (status !== 'closed') return false
          assert.equal(state, 'good')
          const { data } = await read(`/tasks/${id}/history`)
          assert.equal(data.filter(({ transition }: any) => transition === 'pass').length, 1)
          return true
        }
      },
    },
    'trigger.fire': {
      concern: 'trigger',
      table: 'trigger_firings',
      async start() {
        const { id: target_id } = await made(app.key, { name: `fired${++count}`, execute: { url: target.url } })
        const trigger = { name: `fired ${count}`, type: 'manual', target_type: 'tool', target_id }
        const { id: trigger_id } = await ok('/triggers', trigger)
        const { id } = await ok(`/triggers/${trigger_id}/fire?wait=false`)
        return async () => {
          const { status, result } = await read(`/trigger-firings/${id}`)
          if (!['succeeded', 'failed'].includes(status)) return false
          assert.deepEqual([status, result.output], ['succeeded', TOOL_ANSWERS])
          const { data } = await read(`/activity?project_id=${app.projectId}&limit=100`)
          const calls = data.filter(({ detail }: any) => detail?.trigger_firing_id === id)
          assert.equal(calls.length, 1)
          return true
        }
      },
    },
  }

  before(async () => {
    target = await startTarget()
    target.answer = json(TOOL_ANSWERS)
    app = await startAgentApp({ workers: [], env: FAST })
    double = client(app.double)
  })
  afterEach(async () => {
    await ofTest.stop()
    const running = processes.splice(0).filter(({ child }) => (child.exitCode ?? child.signalCode) === null)
    await Promise.all(running.map(each => each.kill()))
  })
  after(async () => {
    await steady.stop()
    await app?.close()
    await target?.close()
  })

  it('has a scenario for every kind', () => {
    assert.deepEqual(
      Object.keys(SCENARIOS).sort(),
      works
        .all()
        .map(({ name }) => name)
        .sort(),
    )
  })

  describe('although a worker is killed at every point', () => {
    const names = Object.keys(SCENARIOS)
    const concerns = [...new Set(Object.values(SCENARIOS).map(({ concern }) => concern))]
    const hasSettled: Record<string, () => Promise<unknown>> = {}

    /**
     * One worker that is killed when the items of all kinds are at a point: most of what a worker costs is its start.
     */
    before(async () => {
      for (const point of POINTS) {
        const doomed = await worker(concerns, {
          FAULT_POINTS: names.map(name => `${name}/${point}=freeze:600000`).join(),
          WORKER_CONCURRENCY: '40',
          PROJECT_WORKER_SHARE: '1',
          // A project has a third of the connections, and each item is in a transaction.
          DATABASE_POOL_MAX: '80',
        })
        if (point === 'claimed')
          for (const [name, { start }] of Object.entries(SCENARIOS)) hasSettled[name] = await start(alongside)
        const missing = () =>
          names.filter(name => !doomed.output.some(line => line.includes(`"point":"${name}/${point}"`)))
        await eventually(() => missing().length === 0, { within: 60_000, what: `items at ${point}` }).catch(error => {
          throw new Error(`not at ${point}: ${missing()}`, { cause: error })
        })
        await doomed.kill()
      }
      await steady.start(app.databaseUrl, FAST, concerns)
    })
    for (const name of names)
      it(`${name} settles once`, () => eventually(hasSettled[name], { within: 60_000, what: `the end of ${name}` }))
  })

  for (const [name, { concern, table, start }] of Object.entries(SCENARIOS)) {
    it(`${name}: a worker that is suspended past its lease changes nothing`, async () => {
      const hasSettled = await start(separately)
      const frozen = await runWorker(app.databaseUrl, { ...FAST, FAULT_POINTS: `${name}/claimed=freeze:3000` }, [
        concern,
      ])
      try {
        const claimed = sql.unsafe`select from ${sql.identifier([table])} where state = 'running'`
        await eventually(async () => (await app.pool.query(claimed)).rowCount === 1, {
          what: `claim of ${name}`,
        })
        process.kill(frozen.pid, 'SIGSTOP')
        await during([concern], async () => {
          await eventually(hasSettled, { within: 60_000, what: `the end of ${name}` })
          process.kill(frozen.pid, 'SIGCONT')
          await eventually(() => frozen.output.some(line => line.includes('"outcome":"claim_lost"')), {
            what: `the loss of the claim\n${frozen.output.join('\n')}`,
          })
          assert.ok(await hasSettled())
        })
      } finally {
        await frozen.stop()
      }
    })
  }
})
