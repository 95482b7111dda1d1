import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { attempts, chain, ended, startRunApp } from './fixtures.ts'

const one = (id: string) => ({ id, type: 'transform', expression: 1 })

describe('runs of a paused project', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)
  afterEach(() => app.admin.post(`/projects/${app.projectId}/resume`))

  const pause = async () => {
    const reply = await app.admin.post(`/projects/${app.projectId}/pause`, { reason: 'closed' })
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
  }
  const resume = async () => assert.equal((await app.admin.post(`/projects/${app.projectId}/resume`)).status, 200)
  const actionsOf = ({ required_actions }: any) => required_actions.map(({ type }: any) => type)
  // The pause is written first; a worker applies it to the run.
  const isPaused = (run: any) => run.pause_requested_at !== null && actionsOf(run).includes('paused')
  const paused = (id: string) => app.until(id, isPaused)

  it('pause with the project and resume with it', async () => {
    const human = await app.run([{ id: 'ask', type: 'human' }, one('then')], chain('ask', 'then'))
    const sleeper = await app.run([{ id: 'nap', type: 'delay', duration: '1h' }], [], { wait: false })
    await app.until(sleeper.id, ({ status }) => status === 'sleeping')
    await pause()
    const [asked, slept] = [await paused(human.id), await paused(sleeper.id)]
    assert.deepEqual(actionsOf(asked), ['human_input', 'paused'])
    assert.deepEqual(actionsOf(slept), ['paused'])
    assert.equal(slept.pause_reason, 'closed')
    assert.equal(slept.required_action.reason, 'closed')
    assert.ok(slept.wake_at)
    const input = { node_id: 'ask', output: { n: 1 } }
    const refused = await app.key.post(`/orchestration-runs/${human.id}/human-input`, input)
    assert.equal(refused.body.error.code, 'ORCHESTRATION_RUN_PAUSED')
    const single = await app.key.post(`/orchestration-runs/${human.id}/resume`)
    assert.equal(single.body.error.code, 'PROJECT_PAUSED')
    const start = await app.key.post('/orchestration-runs', { orchestration_id: human.orchestration_id })
    assert.equal(start.body.error.code, 'PROJECT_PAUSED')
    await resume()
    const back = await app.until(sleeper.id, ({ status }) => status === 'sleeping')
    assert.equal(back.pause_requested_at, null)
    assert.equal(back.pause_reason, null)
    await app.until(human.id, run => run.pause_requested_at === null && run.required_actions.length === 1)
    assert.equal((await app.key.post(`/orchestration-runs/${human.id}/human-input`, input)).body.status, 'succeeded')
    await app.key.post(`/orchestration-runs/${sleeper.id}/cancel`)
  })

  it('that were paused separately stay paused', async () => {
    const before = await app.run([{ id: 'ask', type: 'human' }])
    await app.key.post(`/orchestration-runs/${before.id}/pause`, { reason: 'mine' })
    const during = await app.run([{ id: 'ask', type: 'human' }])
    await pause()
    await paused(during.id)
    await app.key.post(`/orchestration-runs/${during.id}/pause`, { reason: 'later' })
    await resume()
    const other = await app.run([one('a')])
    assert.equal(other.status, 'succeeded')
    const stays = await app.read(before.id)
    assert.equal(stays.pause_reason, 'mine')
    assert.deepEqual(actionsOf(stays), ['human_input', 'paused'])
    assert.ok((await app.read(during.id)).pause_requested_at)
    for (const { id } of [before, during])
      assert.equal((await app.key.post(`/orchestration-runs/${id}/resume`)).status, 200)
  })

  it('start nothing after their active work, whose results are stored', async () => {
    let release = () => {}
    const released = new Promise<void>(resolve => {
      release = resolve
    })
    app.target.answer = async (_request, response) => {
      await released
      response.setHeader('content-type', 'application/json').end('{"n":1}')
    }
    const below = await app.orchestration([one('a')])
    const run = await app.run(
      [
        { id: 'call', type: 'tool', tool_id: await app.tool() },
        { id: 'sub', type: 'sub_orchestration', orchestration_id: below },
      ],
      chain('call', 'sub'),
      { wait: false },
    )
    await eventually(() => app.target.requests.length > 0, { what: 'the call' })
    await pause()
    release()
    const stands = await paused(run.id)
    assert.deepEqual(stands.artifacts, { call: { n: 1 } })
    assert.deepEqual(attempts(stands), ['call:1:completed'])
    assert.deepEqual(actionsOf(stands), ['paused'])
    await resume()
    assert.equal((await app.until(run.id)).status, 'succeeded')
  })

  it('that are nested pause and resume with it', async () => {
    const leaf = await app.orchestration([{ id: 'ask', type: 'human' }])
    const run = await app.run([{ id: 'sub', type: 'sub_orchestration', orchestration_id: leaf }])
    const child = run.required_actions[0].orchestration_run_id
    await pause()
    assert.deepEqual(actionsOf(await paused(run.id)), ['nested_run', 'paused'])
    const parked = await app.until(child, run => run.required_actions.length === 2)
    assert.equal(parked.pause_requested_at, null)
    assert.equal(parked.required_actions[1].type, 'paused')
    assert.equal(parked.required_actions[1].reason, 'closed')
    await resume()
    await app.until(child, run => run.required_actions.length === 1)
    await app.key.post(`/orchestration-runs/${child}/human-input`, { node_id: 'ask', output: {} })
    assert.equal((await app.until(run.id)).status, 'succeeded')
  })

  it('are all woken, however many they are', async () => {
    const id = await app.orchestration([{ id: 'ask', type: 'human' }])
    const runs = await Promise.all(Array.from({ length: 20 }, () => app.start(id, { wait: false })))
    for (const run of runs) await app.until(run.id, ({ status }) => status === 'awaiting_input')
    await pause()
    for (const run of runs) await paused(run.id)
    await resume()
    for (const run of runs) await app.until(run.id, ({ pause_requested_at }) => pause_requested_at === null)
    assert.ok(!ended(await app.read(runs[0].id)))
  })
})
