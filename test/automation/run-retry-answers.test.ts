import assert from 'node:assert/strict'
import { json } from '../execution/tool-target.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { chain, set, startRunApp } from './fixtures.ts'

/** A retry by a caller that may only retry: an approval, and an answer of a person, releases a call once. */
describe('answers of people in retried runs', function () {
  this.timeout(90_000)
  const app = forSuite(startRunApp)
  const retrier = forSuite(() =>
    app.user(undefined, [
      {
        statement: [{ effect: 'Allow', action: ['orchestrations:RetryRun'], resource: [`srn:${app.projectId}:*:*`] }],
      },
    ]),
  )
  beforeEach(() => {
    app.target.requests.length = 0
    app.target.answer = receive
  })

  const receive: typeof app.target.answer = (request, response) =>
    json({}, JSON.parse(request.body).amount > 0 ? 200 : 404)(request, response)
  const pay = (tool_id: string) => ({ id: 'pay', type: 'tool', tool_id, input_mapping: { amount: 5 } })
  const approval = (tool_id: string) => ({ id: 'ask', type: 'approval', tool_id, arguments: { amount: 5 } })
  /** A node that calls the same tool, which refuses it. */
  const fails = (tool_id: string) => ({ id: 'fails', type: 'tool', tool_id, input_mapping: { amount: 0 } })
  const waiting = ({ status }: any) => status === 'awaiting_input'
  const paid = () => app.target.requests.filter(({ body }) => JSON.parse(body).amount > 0).length
  const approve = async (id: string) => {
    const { required_actions } = await app.until(id, waiting)
    const reply = await app.admin.post(`/approvals/${required_actions[0].approval_id}/approve`)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
  }
  const retried = (id: string, body: object = {}): Promise<any> =>
    createdBy(retrier, `/orchestration-runs/${id}/retry`, body)
  /** A run that pays after an approval and then fails. */
  async function paidAndFailed() {
    const tool = await app.tool()
    const run = await app.run([approval(tool), pay(tool), fails(tool)], chain('ask', 'pay', 'fails'))
    await approve(run.id)
    assert.equal((await app.until(run.id)).status, 'failed')
    assert.equal(paid(), 1)
    return run
  }

  it('are requested again before a call that was made runs again', async () => {
    const run = await paidAndFailed()
    for (const from_node_id of ['pay', 'ask']) {
      const again = await app.until((await retried(run.id, { from_node_id })).id, waiting)
      assert.deepEqual(
        again.required_actions.map(({ type, node_id }: any) => [type, node_id]),
        [['approval', 'ask']],
      )
      assert.equal(paid(), 1)
      assert.equal((await app.admin.post(`/orchestration-runs/${again.id}/cancel`)).status, 200)
    }
    const again = await retried(run.id, { from_node_id: 'pay' })
    await approve(again.id)
    assert.equal((await app.until(again.id)).status, 'failed')
    assert.equal(paid(), 2)
    // The second approval released the second call alone.
    const third = await app.until((await retried(again.id, { from_node_id: 'pay' })).id, waiting)
    assert.equal(third.required_actions[0].node_id, 'ask')
    assert.equal(paid(), 2)
  })

  it('are kept where the calls are not made again', async () => {
    const run = await paidAndFailed()
    const again = await app.until((await retried(run.id)).id)
    assert.equal(again.failed_node_id, 'fails')
    assert.equal(again.artifacts.ask.decision, 'approved')
    assert.equal(paid(), 1)
  })

  it('are kept for a call that its receiver refused, by one retry', async () => {
    const tool = await app.tool()
    app.target.answer = json({ no: true }, 409)
    const run = await app.run([approval(tool), pay(tool)], chain('ask', 'pay'))
    await approve(run.id)
    assert.equal((await app.until(run.id)).failed_node_id, 'pay')
    app.target.answer = receive
    app.target.requests.length = 0
    const retries = await Promise.all(Array.from({ length: 4 }, () => retried(run.id)))
    const runs = await Promise.all(
      retries.map(({ id }) => app.until(id, each => each.status === 'succeeded' || waiting(each))),
    )
    assert.equal(paid(), 1)
    assert.equal(runs.filter(({ status }) => status === 'succeeded').length, 1)
    const late = await app.until((await retried(run.id)).id, waiting)
    assert.equal(late.required_actions[0].node_id, 'ask')
    assert.equal(paid(), 1)
  })

  it('are requested again after a call whose outcome is unknown', async () => {
    const tool = await app.tool()
    app.target.answer = (_request: unknown, response: any) => response.destroy()
    const run = await app.run([approval(tool), pay(tool)], chain('ask', 'pay'))
    await approve(run.id)
    assert.equal((await app.until(run.id)).failed_node_id, 'pay')
    const made = paid()
    const again = await app.until((await retried(run.id)).id, waiting)
    assert.equal(again.required_actions[0].node_id, 'ask')
    assert.equal(paid(), made)
  })

  it('are requested again when a person answered a human node', async () => {
    const tool = await app.tool()
    const human = { id: 'ask', type: 'human', prompt: 'Pay?', options: ['yes', 'no'] }
    const edges = [
      { from: 'ask', to: 'book', condition: 'yes' },
      ...chain('book', 'pay', 'fails'),
      { from: 'ask', to: 'note' },
    ]
    const run = await app.run([human, set('book'), set('note'), pay(tool), fails(tool)], edges)
    await app.until(run.id, waiting)
    const answered = await app.key.post(`/orchestration-runs/${run.id}/human-input`, {
      node_id: 'ask',
      output: { choice: 'yes' },
    })
    assert.equal(answered.status, 200, JSON.stringify(answered.body))
    assert.equal((await app.until(run.id)).failed_node_id, 'fails')
    const again = await app.until((await retried(run.id, { from_node_id: 'pay' })).id, waiting)
    assert.deepEqual(Object.keys(again.artifacts), ['note'])
    assert.equal(again.required_actions[0].type, 'human_input')
    assert.equal(paid(), 1)
  })

  it('of a run above are not used again by a retry of a nested run', async () => {
    const tool = await app.tool()
    const below = await app.orchestration([pay(tool), fails(tool)], chain('pay', 'fails'))
    const nodes = [approval(tool), { id: 'below', type: 'sub_orchestration', orchestration_id: below }]
    const run = await app.run(nodes, chain('ask', 'below'))
    await approve(run.id)
    assert.equal((await app.until(run.id)).status, 'failed')
    const { data } = (await app.admin.get(`/orchestration-runs?orchestration_id=${below}`)).body
    assert.equal(data.length, 1)
    const refused = await retrier.post(`/orchestration-runs/${data[0].id}/retry`, { from_node_id: 'pay' })
    assert.deepEqual([refused.status, refused.body.error.code], [409, 'ORCHESTRATION_RUN_NOT_RETRYABLE'])
    assert.equal(refused.body.error.meta.orchestration_run_id, run.id)
    assert.equal((await retrier.post(`/orchestration-runs/${data[0].id}/retry`)).status, 201)
    const again = await app.until((await retried(run.id)).id, waiting)
    assert.equal(again.required_actions[0].node_id, 'ask')
    assert.equal(paid(), 1)
  })
})
