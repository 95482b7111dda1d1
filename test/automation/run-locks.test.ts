import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { taskTurns } from '#automation/workflows/tasks/targets.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { runWorker } from '../support/hosts.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { RUN_ACTIONS, startRunApp } from './fixtures.ts'

describe('locks of a purge and concurrent work', () => {
  const app = forSuite(() =>
    startRunApp({
      actions: [...RUN_ACTIONS, 'workflows:*', 'tasks:*', 'playbooks:*', 'cases:*'],
      workers: ['orchestration'],
    }),
  )

  const created = (path: string, body: object): Promise<any> => createdBy(app.key, path, body)
  const read = async (path: string): Promise<any> => (await app.key.get(path)).body
  /** No worker executes turns here: a turn is settled directly, without notifications. */
  const end = (generationId: string) =>
    app.pool.query(sql.unsafe`
      update generations set status = 'completed', completed_at = now(),
        output = '{"content": "secret", "model": "m", "finish_reason": "stop", "object": null}'
      where id = ${generationId}`)
  /** Holds the lock of a row, as a transaction would, while another statement runs. */
  async function holding(row: Fragment, work: () => Promise<void>): Promise<void> {
    const { pool } = app.services
    const held = Promise.withResolvers<void>()
    const done = Promise.withResolvers<void>()
    const transaction = pool.transaction(async tx => {
      await tx.query(sql.unsafe`select from ${row} for update`)
      held.resolve()
      await done.promise
    })
    try {
      await Promise.race([held.promise, transaction])
      await work()
    } finally {
      done.resolve()
      await transaction
    }
  }
  const someoneWaits = (count = 1) =>
    eventually(
      () =>
        app.pool.exists(sql.unsafe`
          select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
          having count(*) >= ${count}`),
      { what: 'a transaction that waits for a row' },
    )
  const isFree = (row: Fragment) => app.pool.exists(sql.unsafe`select from ${row} for update skip locked`)
  const row = (table: string, id: string) => sql.fragment`${sql.identifier([table])} where id = ${id}`

  it('are taken in one order: a task is not blocked while its worker waits for the erased turn', async () => {
    const dispatch = { kind: 'agent', agent_id: app.agentId, input_mapping: { prompt: 'hello' } }
    const workflow = await created('/workflows', {
      name: 'asks',
      states: [{ name: 'work', initial: true, on_enter: { dispatch } }],
      transitions: [],
    })
    const { id } = await created('/tasks', { workflow_id: workflow.id, title: 'a card' })
    const turn = await eventually(async () => (await read(`/tasks/${id}`)).active_dispatch?.id)
    await end(turn)
    await holding(row('generations', turn), async () => {
      await app.services.write(tx => taskTurns.settled(tx, { id: turn } as never, {} as never))
      await someoneWaits()
      assert.equal(await isFree(row('tasks', id)), true)
    })
    const result = await eventually(async () => (await read(`/tasks/${id}`)).last_result)
    assert.deepEqual(result, { content: 'secret' })
  })

  it('are taken in one order: a run is not blocked by a purge that waits for its execution', async () => {
    const steps = [
      { key: 'a', title: 'A', type: 'instruct_agent', agent_id: app.agentId, instructions: 'say it' },
      { key: 'b', title: 'B', type: 'manual' },
    ]
    const playbook = await created('/playbooks', { name: 'asks', steps })
    const { id: case_id } = await created('/cases', { title: 'case' })
    const { id } = await created('/playbook-executions', { case_id, playbook_id: playbook.id, input: {} })
    const path = `/playbook-executions/${id}`
    const turn = await eventually(async () => (await read(path)).steps[0].generation_id)
    // The turn of an active step: referenced by the record of the step and by the node execution.
    await end(turn)
    const { orchestration_run_id } = await read(path)
    await holding(row('playbook_executions', id), async () => {
      const purge = app.admin.delete(`/generations/${turn}/content`)
      await someoneWaits()
      const free = await isFree(row('orchestration_runs', orchestration_run_id))
      void purge.then(({ status }) => assert.equal(status, 200))
      assert.equal(free, true)
    })
    await eventually(async () => (await app.admin.get(`/generations/${turn}`)).body.content_redacted_at !== null)
  })

  it('do not conflict: a cancelled run locks no settled turn', async () => {
    const orchestration_id = await app.orchestration([{ id: 'ask', type: 'agent', agent_id: app.agentId }])
    const run = await created('/orchestration-runs', { orchestration_id })
    const turn = await eventually(async () => (await app.read(run.id)).node_executions[0]?.generation_id)
    await end(turn)
    await holding(row('generations', turn), async () => {
      const cancelled = app.key.post(`/orchestration-runs/${run.id}/cancel`, {})
      const reply = await Promise.race([cancelled, sleep(5_000)])
      assert.equal(reply?.status, 200, 'the cancel waits for the turn')
      assert.equal(reply.body.status, 'cancelled')
    })
  })

  it('are taken in one order: a turn about to wait for its client is cancelled with its run', async () => {
    const double = doubleClient(app.double)
    const tool = await created('/tools', { name: 'pick', type: 'client' })
    const agent_id = await app.agent({ tool_bindings: [{ tool_id: tool.id }] })
    const prompt = `@double ${JSON.stringify([{ tool_calls: [{ name: 'pick', args: {} }], gate: 'pick' }])}`
    const orchestration_id = await app.orchestration([{ id: 'ask', type: 'agent', agent_id, prompt }])
    const worker = await runWorker(app.databaseUrl, { EGRESS_ALLOW_HOSTS: '127.0.0.1' }, ['generation'])
    try {
      const run = await created('/orchestration-runs', { orchestration_id })
      await eventually(async () => ((await double.gate('pick'))?.waiting ?? 0) > 0)
      const turn = (await app.read(run.id)).node_executions[0].generation_id
      let cancelled: ReturnType<typeof app.key.post> | undefined
      await holding(row('generations', turn), async () => {
        cancelled = app.key.post(`/orchestration-runs/${run.id}/cancel`, {})
        await someoneWaits()
        await double.read('POST', '/control/gates/pick/open')
        // The turn settles after the cancellation, before its worker is notified.
        await someoneWaits(2)
      })
      assert.equal((await cancelled)?.body.status, 'cancelled')
      await eventually(async () => (await read(`/generations/${turn}`)).status === 'failed', { within: 10_000 })
    } finally {
      await worker.stop()
    }
  })
})
