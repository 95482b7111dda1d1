import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { RUN_ACTIONS } from '../automation/fixtures.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'
import { startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'

/** Short leases, and slots for all messages together. */
const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  ORCHESTRATION_NODE_LEASE_SECONDS: '2',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '500',
  WORKER_CONCURRENCY: '20',
  PROJECT_WORKER_SHARE: '1',
  WORKER_HEARTBEAT_INTERVAL_MS: '500',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}
const KINDS = ['orchestration', 'generation', 'delivery']
const NEIGHBOURS = 5

describe('work that kills its workers', function () {
  this.timeout(180_000)
  const app = forSuite(() => startAgentApp({ workers: [], actions: [...RUN_ACTIONS, 'webhooks:*', 'actors:*'] }))
  const receiver = forSuite(startReceiver)
  let agent: string
  let graph: string

  before(async () => {
    agent = await app.agent()
    const nodes = [{ id: 'a', type: 'transform', expression: 1 }]
    const made = await app.key.post('/orchestrations', { name: 'g', nodes, edges: [] })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    graph = made.body.id
  })

  const startTurn = async () => {
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'hi' })
    return `/generations/${body.generation_id}`
  }
  const startRun = async () => {
    const { body } = await app.key.post('/orchestration-runs', { orchestration_id: graph })
    return `/orchestration-runs/${body.id}`
  }
  const isOver = ({ status }: any) => ['completed', 'succeeded', 'failed', 'cancelled'].includes(status)

  /** Has deliveries of one event sent once more. Returns their paths. */
  async function redeliver(count: number): Promise<string[]> {
    const hook = await app.key.post('/webhooks', { name: 'hook', url: receiver.url, events: ['actors.created'] })
    assert.equal(hook.status, 201, JSON.stringify(hook.body))
    assert.equal((await app.key.post('/actors', { name: 'one' })).status, 201)
    const runner = await startProcess('worker', app.databaseUrl, FAST, ['delivery'])
    const list = async () => (await app.key.get(`/webhook-deliveries?webhook_id=${hook.body.id}`)).body.data
    try {
      await eventually(async () => (await list())[0]?.status === 'completed', { what: 'a delivery' })
    } finally {
      await runner.kill('SIGTERM')
    }
    const [{ id }] = await list()
    const paths: string[] = []
    for (let n = 0; n < count; n++) {
      const { status, body } = await app.key.post(`/webhook-deliveries/${id}/redeliver`)
      assert.equal(status, 202, JSON.stringify(body))
      paths.push(`/webhook-deliveries/${body.id}`)
    }
    return paths
  }

  /** Runs workers, each after the death of the one before, until all works have ended. Returns the number of deaths. */
  async function runWorkers(faults: string, works: readonly string[]): Promise<number> {
    let deaths = 0
    let isDone = false
    let current: Awaited<ReturnType<typeof startProcess>> | undefined
    const supervise = (async () => {
      while (!isDone) {
        try {
          current = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: faults }, KINDS)
          await current.exited
        } catch (error) {
          // Work that waits may kill it before its line is read.
          assert.match(String(error), /ended with SIGKILL before it was ready/)
        }
        if (!isDone) deaths++
      }
    })()
    try {
      for (const work of works)
        await eventually(async () => isOver((await app.key.get(work)).body), {
          what: `end of ${work}`,
          within: 120_000,
        })
    } finally {
      isDone = true
      await current?.kill()
      await supervise
    }
    return deaths
  }

  const exceptionOf = (text: string) =>
    eventually(
      async () => {
        const { data } = (await app.key.get('/exceptions?kind=worker_lost')).body
        return data.find((each: any) => JSON.stringify(each.detail).includes(text))
      },
      { what: 'exception' },
    )

  // Runs and turns are specified to survive two lost workers.
  for (const [what, startPoison, fault, workers] of [
    ['a run', startRun, (id: string) => `run_advanced=kill@${id}`, 3],
    ['a turn', startTurn, (id: string) => `before_model=kill@${id}`, 3],
  ] as const)
    it(`fails after a bounded number of workers, the others succeed: ${what}`, async () => {
      const neighbours: string[] = []
      for (let index = 0; index < NEIGHBOURS; index++) neighbours.push(await startTurn())
      const poison = await startPoison()
      for (let index = 0; index < NEIGHBOURS; index++) neighbours.push(await startRun())
      const id = poison.split('/').at(-1) as string
      const deaths = await runWorkers(fault(id), [poison, ...neighbours])
      // One more if the last one took longer than the probation.
      assert.ok(deaths >= workers && deaths <= workers + 1, `${deaths} workers`)
      const { body } = await app.key.get(poison)
      assert.equal(body.status, 'failed')
      assert.match(JSON.stringify(body.error), /WORKER_LOST|executor_lost/)
      for (const neighbour of neighbours) {
        const { status } = (await app.key.get(neighbour)).body
        assert.ok(status === 'completed' || status === 'succeeded', `${neighbour}: ${status}`)
      }
      const runner = await startProcess('worker', app.databaseUrl, FAST, KINDS)
      try {
        const { severity, detail } = await exceptionOf(id)
        assert.deepEqual([severity, detail.code], ['critical', 'WORKER_LOST'])
      } finally {
        await runner.kill()
      }
    })

  it('fails after a bounded number of workers, the others are sent: a delivery', async () => {
    const deliveries = await redeliver(12)
    const [poison] = deliveries.splice(3, 1)
    const id = poison.split('/').at(-1) as string
    receiver.answer = (_request, response) => setTimeout(() => response.end(), 50)
    const deaths = await runWorkers(`delivery_sending=kill@${id}`, [poison, ...deliveries])
    assert.ok(deaths >= 2 && deaths <= 3, `${deaths} workers`)
    const isCharged = sql.unsafe`select from pgboss.muster_suspect_time where project_id = ${app.projectId} and paid_at > now()`
    assert.ok(await app.pool.exists(isCharged), 'time of the last suspects')
    const { body } = await app.key.get(poison)
    assert.match(body.response_body, /^WORKER_LOST: /)
    assert.deepEqual([body.status, body.attempts, body.next_attempt_at], ['failed', 0, null])
    for (const path of deliveries) {
      const { status, attempts } = (await app.key.get(path)).body
      assert.deepEqual([status, attempts], ['completed', 1], path)
    }
    const runner = await startProcess('worker', app.databaseUrl, FAST, KINDS)
    try {
      const { severity, detail } = await exceptionOf(id)
      assert.deepEqual([severity, detail.code, detail.delivery_id], ['critical', 'WORKER_LOST', id])
    } finally {
      await runner.kill()
    }
  })

  it('does not fail with a lost worker that it did not end: a delivery', async () => {
    const [slow, ...others] = await redeliver(8)
    let isHeld = true
    receiver.answer = ({ headers }, response) => {
      if (!isHeld || headers['x-svc-delivery'] !== slow.split('/').at(-1)) response.end()
    }
    const first = await startProcess('worker', app.databaseUrl, FAST, KINDS)
    await eventually(async () => (await app.key.get(others.at(-1) as string)).body.status === 'completed')
    await first.kill('SIGKILL')
    isHeld = false
    const second = await startProcess('worker', app.databaseUrl, FAST, KINDS)
    try {
      const { status } = await eventually(
        async () => {
          const { body } = await app.key.get(slow)
          return body.status === 'queued' ? null : body
        },
        { what: 'end of the delivery' },
      )
      assert.equal(status, 'completed')
    } finally {
      await second.kill()
    }
  })
})
