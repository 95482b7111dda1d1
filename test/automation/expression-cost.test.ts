import assert from 'node:assert/strict'
import { client } from '../support/app.ts'
import { runWeb } from '../support/hosts.ts'
import { forSuite } from '../support/suite.ts'
import { loopAndProcessTime, processorTime } from '../support/timing.ts'
import { startRunApp } from './fixtures.ts'

/** An expression of 40 KB that builds 18 million keys if literals cost nothing. */
const KEYS = Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`k${index}`, 0]))
const multiplied = (list: string) => ({ length: [{ map: [{ var: list }, KEYS] }] })
const items = Array.from({ length: 6000 }, () => 0)

/** Processor time that one evaluation up to its limits may take, with its request; without limits it took over 9 s. */
const MOST_MS = 3000

/** An expression that uses nearly the whole budget: 80 times 3,000 keys. */
const costly = (list: string) => multiplied(list)
const MOST_ITEMS = Array.from({ length: 80 }, () => 0)

/** YAML with nearly the most tokens of a text. */
const YAML = `x:\n${'- !a b\n'.repeat(13_500)}`

/** Asserts that work of another process happens mostly outside its event loop, for which there is work of other callers. */
async function assertInThreads(pid: number, work: () => Promise<unknown>): Promise<void> {
  const before = loopAndProcessTime(pid)
  for (let time = 0; time < 5; time++) await work()
  const after = loopAndProcessTime(pid)
  const [loop, total] = [after.loop - before.loop, after.process - before.process]
  assert.ok(loop < total / 3, `${loop} ms of ${total} ms on the event loop`)
}

describe('expressions that multiply a literal', () => {
  const app = forSuite(() =>
    startRunApp({
      actions: ['orchestrations:*', 'guardrails:CreateGuardrail', 'guardrails:EvaluateGuardrail'],
    }),
  )

  it('end a guardrail with its default class, in a web process that continues', async () => {
    const web = await runWeb(app.databaseUrl)
    try {
      const key = client(web.url, app.key.token)
      const { body: guardrail } = await key.post('/guardrails', { name: 'a', document: { class: 'A' } })
      const document = { class: { if: [{ '>': [multiplied('args.list'), 0] }, 'A', 'B'] }, default_class: 'D' }
      const before = processorTime(web.pid)
      const reply = await key.post(`/guardrails/${guardrail.id}/evaluate`, { document, args: { list: items } })
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      assert.deepEqual([reply.body.class, reply.body.decision], ['D', 'blocked'])
      const used = processorTime(web.pid) - before
      assert.ok(used < MOST_MS, `${used} ms`)
    } finally {
      await web.stop()
    }
  })

  it('end a transform node with an error, and the worker continues', async () => {
    const { pid } = app.worker as { pid: number }
    const before = processorTime(pid)
    const run = await app.run([{ id: 'a', type: 'transform', expression: multiplied('input.list') }], [], {
      input: { list: items },
    })
    assert.equal(run.status, 'failed', JSON.stringify(run))
    assert.equal(run.node_executions[0].error.code, 'ORCHESTRATION_NODE_FAILED')
    const used = processorTime(pid) - before
    assert.ok(used < MOST_MS, `${used} ms`)
    const next = await app.run([{ id: 'a', type: 'transform', expression: 1 }])
    assert.equal(next.status, 'succeeded', JSON.stringify(next))
  })

  it('are evaluated in threads of web and worker, within their budget', async () => {
    const web = await runWeb(app.databaseUrl)
    try {
      const key = client(web.url, app.key.token)
      const { body: guardrail } = await key.post('/guardrails', { name: 'b', document: { class: 'A' } })
      const document = { class: { if: [{ '>': [costly('args.list'), 0] }, 'A', 'B'] }, default_class: 'D' }
      await assertInThreads(web.pid, async () => {
        const reply = await key.post(`/guardrails/${guardrail.id}/evaluate`, { document, args: { list: MOST_ITEMS } })
        assert.deepEqual([reply.status, reply.body.class], [200, 'A'], JSON.stringify(reply.body))
      })
      await assertInThreads(web.pid, async () => {
        const reply = await key.post('/formations/validate', { template: YAML })
        assert.equal(reply.status, 200, JSON.stringify(reply.body))
        assert.equal(reply.body.valid, false, JSON.stringify(reply.body))
      })
    } finally {
      await web.stop()
    }
    const orchestration = await app.orchestration([{ id: 'a', type: 'transform', expression: costly('input.list') }])
    await assertInThreads((app.worker as { pid: number }).pid, async () => {
      const run = await app.start(orchestration, { input: { list: MOST_ITEMS } })
      assert.equal(run.output.a.result, MOST_ITEMS.length, JSON.stringify(run))
    })
  })
})
