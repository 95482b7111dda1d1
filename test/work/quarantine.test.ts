import assert from 'node:assert/strict'
import { RUN_ACTIONS } from '../automation/fixtures.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'

/** Short leases, and slots for all messages at once. */
const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  ORCHESTRATION_NODE_LEASE_SECONDS: '2',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '500',
  WORKER_CONCURRENCY: '20',
  PROJECT_WORKER_SHARE: '1',
  WORKER_HEARTBEAT_INTERVAL_MS: '500',
}
const KINDS = ['orchestration', 'generation', 'delivery']
const NEIGHBOURS = 5

describe('a message that kills its workers', function () {
  this.timeout(180_000)
  let app: AgentApp
  let agent: string
  let graph: string

  before(async () => {
    app = await startAgentApp({ workers: [], actions: RUN_ACTIONS })
    agent = await app.agent()
    const nodes = [{ id: 'a', type: 'transform', expression: 1 }]
    const made = await app.key.post('/orchestrations', { name: 'g', nodes, edges: [] })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    graph = made.body.id
  })
  after(() => app?.close())

  const startTurn = async () => {
    const { body } = await app.key.post(`/agents/${agent}/generate`, { prompt: 'hi' })
    return `/generations/${body.generation_id}`
  }
  const startRun = async () => {
    const { body } = await app.key.post('/orchestration-runs', { orchestration_id: graph })
    return `/orchestration-runs/${body.id}`
  }
  const isOver = ({ status }: any) => ['completed', 'succeeded', 'failed', 'cancelled'].includes(status)

  /** Runs workers, each after the death of the one before, until all works have ended. Returns the number of deaths. */
  async function runWorkers(faults: string, works: readonly string[]): Promise<number> {
    let deaths = 0
    let isDone = false
    let current: Awaited<ReturnType<typeof startProcess>> | undefined
    const supervise = (async () => {
      while (!isDone) {
        current = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: faults }, KINDS)
        await current.exited
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

  for (const [what, startPoison, fault] of [
    ['a run', startRun, (id: string) => `run_advanced=kill@${id}`],
    ['a turn', startTurn, (id: string) => `before_model=kill@${id}`],
  ] as const)
    it(`fails after a bounded number of workers, the others succeed: ${what}`, async () => {
      const neighbours: string[] = []
      for (let index = 0; index < NEIGHBOURS; index++) neighbours.push(await startTurn())
      const poison = await startPoison()
      for (let index = 0; index < NEIGHBOURS; index++) neighbours.push(await startRun())
      const id = poison.split('/').at(-1) as string
      const deaths = await runWorkers(fault(id), [poison, ...neighbours])
      // Three, and a fourth if the third took longer than the probation.
      assert.ok(deaths <= 4, `${deaths} workers`)
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
})
