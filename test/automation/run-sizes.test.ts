import assert from 'node:assert/strict'
import { z } from 'zod'
import { sql } from '#core/db/sql.ts'
import { forSuite } from '../support/suite.ts'
import { chain, set, startRunApp } from './fixtures.ts'

const MIB = 1024 * 1024

describe('size limits of runs', function () {
  this.timeout(60_000)
  const app = forSuite(() => startRunApp({ workers: ['orchestration'] }))

  const large = { x: 'x'.repeat(900_000) }
  const copies = (count: number, prefix: string, path: string) =>
    Object.fromEntries(Array.from({ length: count }, (_, at) => [`${prefix}${at}`, { var: path }]))
  const tooLarge = (run: any, node: string, message: RegExp) => {
    assert.deepEqual([run.status, run.error.code], ['failed', 'ORCHESTRATION_NODE_FAILED'], JSON.stringify(run.error))
    assert.deepEqual([run.error.meta.reason, run.failed_node_id], ['too_large', node])
    assert.match(run.error.message, message)
    assert.ok(JSON.stringify(run).length < 20 * MIB)
  }

  it('fail a node whose mapping multiplies its input, before the input is built', async () => {
    const run = await app.run([set('a', 1, { input_mapping: copies(490, 'k', 'input') })], [], { input: large })
    tooLarge(run, 'a', /input_mapping exceeds 4 MiB/)
  })

  it('give the expressions of a mapping one budget', async () => {
    const fields = { input_mapping: copies(490, 'k', 'input.list.length') }
    for (const key of Object.keys(fields.input_mapping))
      (fields.input_mapping as any)[key] = { length: { map: [{ var: 'input.list' }, { '+': [{ var: '' }, 1] }] } }
    const run = await app.run([set('a', 1, fields)], [], { input: { list: Array(10_000).fill(1) } })
    assert.deepEqual([run.status, run.error?.meta.reason], ['failed', 'expression'], JSON.stringify(run.error))
  })

  it('refuse writes that would make the state too large', async () => {
    const run = await app.run([set('a', 1, { state_mapping: copies(490, 'state.k', 'state.input') })], [], {
      input: large,
    })
    tooLarge(run, 'a', /state_mapping exceed 4 MiB/)
    assert.deepEqual(Object.keys(run.state), ['input', 'nodes'])
    const few = await app.run([set('a', 1, { state_mapping: copies(4, 'state.k', 'state.input') })], [], {
      input: large,
    })
    tooLarge(few, 'a', /State of the run/)
    assert.deepEqual(Object.keys(few.state), ['input', 'nodes'])
  })

  it('allow active nodes 16 MiB together', async () => {
    const nodes = Array.from({ length: 24 }, (_, at) => ({
      id: `h${at}`,
      type: 'human',
      input_mapping: { all: { var: 'input' } },
    }))
    const run = await app.run(nodes, [], { input: large })
    tooLarge(run, 'h18', /16 MiB/)
  })

  it('apply to inputs of nested runs, which are created a few at a time', async () => {
    const orchestration_id = await app.orchestration([set('c')])
    const loop = { id: 'l', type: 'loop', orchestration_id, collection: 'input.items', parallelism: 100 }
    const own = { ...loop, input_mapping: copies(2, 'k', 'input.x') }
    tooLarge(await app.run([own], [], { input: { ...large, items: [1] } }), 'l', /nested run/)
    const shared = { ...loop, input_mapping: copies(1, 'k', 'input.x') }
    const run = await app.run([shared], [], { input: { ...large, items: Array(12).fill(1) } })
    assert.equal(run.status, 'succeeded', JSON.stringify(run.error))
    assert.equal(run.artifacts.l.results.length, 12)
    // Events are written with their runs.
    const together = await app.pool.any(sql.type(z.object({ count: z.int() }))`
      select count(*) as count from events where name = 'orchestration_runs.started' group by xmin::text`)
    assert.ok(
      together.every(({ count }) => count <= 5),
      JSON.stringify(together),
    )
  })

  it('skip reading outputs of nested runs that cannot fit into one artifact', async () => {
    const orchestration_id = await app.orchestration([set('c', { var: 'input.x' })])
    const loop = {
      id: 'l',
      type: 'loop',
      orchestration_id,
      collection: 'input.items',
      input_mapping: { x: { var: 'input.x' } },
    }
    tooLarge(await app.run([loop], [], { input: { ...large, items: [1, 2, 3] } }), 'l', /Outputs of the nested runs/)
  })

  it('leave large values out of lists', async () => {
    const id = await app.orchestration(
      [set('a', { var: 'input.x' }), { id: 'h', type: 'human', input_mapping: { x: { var: 'input.x' } } }],
      chain('a', 'h'),
    )
    const small = await app.start(id, { input: { x: 1 } })
    const big = await app.start(id, { input: { x: 'x'.repeat(60_000) } })
    const { data } = (await app.key.get(`/orchestration-runs?orchestration_id=${id}`)).body
    const [bigListed, smallListed] = data
    const { usage: _usage, usage_own: _own, ...known } = await app.read(small.id)
    const { usage: __usage, usage_own: __own, ...listed } = smallListed
    assert.deepEqual(listed, known)
    const { state, artifacts, input, output, metadata, node_executions } = bigListed
    assert.deepEqual([state, artifacts, input, output, metadata, node_executions], [null, null, null, null, null, null])
    assert.deepEqual(
      [bigListed.id, bigListed.status, bigListed.required_actions],
      [big.id, 'awaiting_input', [{ ...big.required_actions[0], context: null }]],
    )
  })
})
