import assert from 'node:assert/strict'
import fs from 'node:fs'
import type { Page } from 'playwright-core'
import { chain } from '../automation/fixtures.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { choose, consoleSuite, focusOn, go, HOSTILE, openConsole, setOutput } from './support.ts'

describe('runs in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'orchestration'])
  const { at, open, heading } = suite
  const target = forSuite(startTarget)

  const create = (path: string, body: object) =>
    createdBy(suite.app.admin, path, { project_id: suite.app.projectId, ...body })
  const orchestration = (name: string, nodes: object[], edges: object[] = [], more: object = {}) =>
    create('/orchestrations', { name, nodes, edges, ...more })
  const start = (orchestration_id: string, more: object = {}) =>
    create('/orchestration-runs', { orchestration_id, wait: true, ...more })
  const read = async (id: string) => (await suite.app.admin.get(`/orchestration-runs/${id}`)).body
  const until = (id: string, status: string) =>
    eventually(async () => (await read(id)).status === status, { what: `${id} is ${status}` })
  const tool = (path: string) =>
    create('/tools', { name: path, description: path, execute: { url: `${target.url}/${path}` } })
  const node = (page: Page, id: string) => page.locator(`#graph-node-${id}`)
  const isDrawn = (page: Page, id: string, status: string) => page.locator(`#graph-node-${id}[data-status=${status}]`)

  const asking = () =>
    orchestration(
      'Asking',
      [
        { id: 'first', type: 'transform', expression: 1 },
        { id: 'ask', type: 'human', prompt: 'Pay 240?', options: ['yes', 'no'] },
        { id: 'pay', type: 'transform', expression: { var: 'nodes.ask.note' } },
        { id: 'refuse', type: 'transform', expression: 'refused' },
      ],
      [
        { from: 'first', to: 'ask' },
        { from: 'ask', to: 'pay', condition: 'yes' },
        { from: 'ask', to: 'refuse', condition: 'no' },
      ],
    )

  it('draws each change of a run of 40 nodes as its stream brings it', async () => {
    // Rounds of four nodes that end immediately and a slow one.
    const rounds = Array.from({ length: 8 }, (_, round) => round)
    const nodes = rounds.flatMap(round => [
      { id: `wait_${round}`, type: 'delay', duration: '300ms' },
      ...[1, 2, 3, 4].map(number => ({ id: `step_${round}_${number}`, type: 'transform', expression: number })),
    ])
    const edges = rounds.flatMap(round => [
      ...(round > 0 ? [{ from: `wait_${round - 1}`, to: `wait_${round}` }] : []),
      ...[1, 2, 3, 4].map(number => ({ from: `wait_${round}`, to: `step_${round}_${number}` })),
    ])
    const gate = { id: 'gate', type: 'human' }
    const { id } = await orchestration('Forty', [gate, ...nodes], [{ from: 'gate', to: 'wait_0' }, ...edges])
    const run = await start(id)
    const { page, problems } = await open(`runs/${run.id}`)
    await isDrawn(page, 'gate', 'requires_action').waitFor()
    await page.getByText('Live', { exact: true }).waitFor()
    let reads = 0
    page.on('request', request => {
      if (new URL(request.url()).pathname.endsWith(`/orchestration-runs/${run.id}`)) reads++
    })
    await page.evaluate(`window.drawn = new Set(); new MutationObserver(changes => {
      for (const { target } of changes) drawn.add(target.id + ' ' + target.dataset.status)
    }).observe(document.querySelector('.graph'), { subtree: true, attributes: true, attributeFilter: ['data-status'] })`)
    await suite.app.admin.post(`/orchestration-runs/${run.id}/human-input`, {
      node_id: 'gate',
      output: {},
      wait: false,
    })
    await page.getByRole('status').getByText('Succeeded').waitFor()
    const drawn = new Set((await page.evaluate('[...drawn]')) as string[])
    const { node_executions: executions } = await read(run.id)
    assert.equal(executions.length, 41)
    const undrawn = executions.filter(
      ({ node_id }: { node_id: string }) => !drawn.has(`graph-node-${node_id} completed`),
    )
    assert.deepEqual(undrawn, [])
    // The record is read at the start and at the end.
    assert.ok(reads < 5, `${reads} reads of the run`)
    assert.deepEqual(problems, [])
  })

  it('answers a person’s node with the keyboard alone, in the list of nodes', async () => {
    const run = await start((await asking()).id)
    const { page, problems } = await open(`runs/${run.id}`)
    const tree = page.getByRole('tree', { name: 'Nodes' })
    await focusOn(tree.getByRole('treeitem').first())
    await page.keyboard.press('End')
    await page.keyboard.press('Home')
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('Enter')
    const panel = page.getByRole('dialog', { name: 'ask' })
    await panel.getByText('Pay 240?', { exact: true }).waitFor()
    await focusOn(panel.getByLabel('Choice'))
    await choose(page, 'yes')
    await page.keyboard.press('Tab')
    await page.keyboard.type('from the till')
    await page.keyboard.press('Enter')
    await until(run.id, 'succeeded')
    assert.deepEqual((await read(run.id)).output.pay, { result: 'from the till' })
    await panel.getByText('"choice": "yes"').waitFor()
    await page.keyboard.press('Escape')
    await panel.waitFor({ state: 'hidden' })
    await isDrawn(page, 'pay', 'completed').waitFor()
    await isDrawn(page, 'refuse', 'skipped').waitFor()
    assert.deepEqual(problems, [])
  })

  it('moves in the graph along edges, and opens a node by Enter or click', async () => {
    const run = await start((await asking()).id)
    const { page, problems } = await open(`runs/${run.id}`)
    await focusOn(node(page, 'first'))
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('ArrowUp')
    assert.equal(await page.evaluate('document.activeElement.id'), 'graph-node-ask')
    await page.keyboard.press('Enter')
    await page.getByRole('dialog', { name: 'ask' }).waitFor()
    await page.keyboard.press('Escape')
    await node(page, 'first').click()
    const panel = page.getByRole('dialog', { name: 'first' })
    await panel.getByText('"result": 1').waitFor()
    assert.match(page.url(), /node=first/)
    assert.deepEqual(problems, [])
  })

  it('draws the nodes in view of a large graph, and those that the keyboard leads to', async () => {
    const ids = ['gate', ...Array.from({ length: 149 }, (_, n) => `n${n}`)]
    const nodes = ids.map(id => (id === 'gate' ? { id, type: 'human' } : { id, type: 'transform', expression: 1 }))
    const run = await start((await orchestration('Long', nodes, chain(...ids))).id)
    const { page, problems } = await open(`runs/${run.id}`)
    await isDrawn(page, 'gate', 'requires_action').waitFor()
    assert.ok((await page.locator('.graph-node').count()) < 20)
    await focusOn(node(page, 'gate'))
    await page.keyboard.press('End')
    await page.locator('#graph-node-n148:focus').waitFor()
    await page.keyboard.press('ArrowUp')
    await page.locator('#graph-node-n147:focus').waitFor()
    assert.ok((await page.locator('.graph-node').count()) < 20)
    assert.deepEqual(problems, [])
  })

  it('pauses, resumes and cancels a run', async () => {
    const run = await start((await asking()).id)
    const { page, problems } = await open(`runs/${run.id}`)
    await page.getByRole('button', { name: 'Pause' }).click()
    await page.getByText('This run is paused').waitFor()
    await eventually(async () => (await read(run.id)).pause_requested_at !== null)
    await page.getByRole('button', { name: 'Resume' }).click()
    await page.getByText('This run is paused').waitFor({ state: 'hidden' })
    await page.getByRole('button', { name: 'Cancel run' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel run' }).click()
    await page.getByRole('status').getByText('Cancelled').waitFor()
    assert.equal((await read(run.id)).status, 'cancelled')
    assert.deepEqual(problems, [])
  })

  it('shows the attempts of a failed node, and retries the run from it', async () => {
    let isBroken = true
    target.answer = (request, response) => json({ of: request.body }, isBroken ? 500 : 200)(request, response)
    const { id: tool_id } = await tool('flaky')
    const { id } = await orchestration(
      'Flaky',
      [
        { id: 'before', type: 'transform', expression: 1 },
        { id: 'call', type: 'tool', tool_id, retry: { max_attempts: 2, backoff: { delay_ms: 0 } } },
      ],
      chain('before', 'call'),
    )
    const run = await start(id)
    const { page, problems } = await open(`runs/${run.id}`)
    await page.getByText('Failed at call').waitFor()
    await node(page, 'call').click()
    const panel = page.getByRole('dialog', { name: 'call' })
    await panel.getByRole('region', { name: 'Attempt 2' }).getByText('TOOL_HTTP_ERROR').waitFor()
    await panel.getByRole('region', { name: 'Attempt 1' }).waitFor()
    isBroken = false
    await panel.getByRole('button', { name: 'Retry from here' }).click()
    await page.getByRole('dialog', { name: 'Retry from here' }).getByRole('button', { name: 'Retry' }).click()
    await page.waitForURL(url => url.pathname.includes('/runs/') && !url.pathname.endsWith(run.id))
    await page.getByRole('status').getByText('Succeeded').waitFor()
    const { data } = (await suite.app.admin.get(`/orchestration-runs?orchestration_id=${id}`)).body
    assert.equal(data[0].retry_of_run_id, run.id)
    assert.deepEqual(problems, [])
  })

  it('leads from a loop to its nested runs, and lists runs by status and orchestration', async () => {
    const inner = await orchestration('Inner', [{ id: 'one', type: 'transform', expression: { var: 'input.item' } }])
    const outer = await orchestration('Outer', [
      { id: 'each', type: 'loop', orchestration_id: inner.id, collection: 'input.items' },
    ])
    const run = await start(outer.id, { input: { items: [1, 2] } })
    const { page, problems } = await open(`runs/${run.id}?node=each`)
    const nested = page.getByRole('region', { name: 'Nested runs: 2' }).getByRole('link')
    await nested.first().click()
    await heading(page, 'Inner')
    await go(page, at(`runs?status=succeeded&orchestration=${outer.id}`))
    await heading(page, 'Runs')
    await page.getByRole('link', { name: 'Outer' }).waitFor()
    assert.equal(await page.getByRole('table', { name: 'Runs' }).getByRole('link').count(), 1)
    assert.deepEqual(problems, [])
  })

  it('opens a node with an output of 20 MB without drawing it, and offers the download', async () => {
    const { id } = await orchestration('Bulky', [{ id: 'bulk', type: 'transform', expression: 1 }])
    const run = await start(id)
    const rows = 20_000
    await setOutput(suite.app, run.id, rows)
    const { page, problems } = await open(`runs/${run.id}?node=bulk`)
    const panel = page.getByRole('dialog', { name: 'bulk' })
    await panel.getByText('20,000 items, 20 MB').waitFor()
    const drawn = async () => (await page.content()).length
    assert.ok((await drawn()) < 300_000, 'the value is folded')
    await panel.getByRole('button', { name: 'Open whole' }).click()
    const viewer = page.getByRole('dialog', { name: 'Output 1' })
    await viewer.getByText('"row": 1,', { exact: true }).waitFor()
    await viewer.getByText('Only the first 5 MB are shown').waitFor()
    assert.ok((await drawn()) < 300_000, 'only the lines in view are drawn')
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      viewer.getByRole('button', { name: 'Download' }).click(),
    ])
    const text = fs.readFileSync(await download.path(), 'utf8')
    assert.equal(JSON.parse(text).length, rows)
    assert.deepEqual(problems, [])
  })

  it('is accessible, on a phone as a list, and shows hostile text as text', async () => {
    const { id } = await orchestration(HOSTILE.slice(0, 250), [
      { id: 'ask', type: 'human', prompt: HOSTILE, options: [HOSTILE], input_mapping: { text: HOSTILE } },
    ])
    const run = await start(id, { input: { [HOSTILE]: HOSTILE }, metadata: { [HOSTILE]: HOSTILE } })
    const { id: calm } = await asking()
    const other = await start(calm)
    await suite.checkAccess([
      ['runs', 'Runs'],
      [`runs/${other.id}`, 'Asking'],
      [`runs/${other.id}?tab=values`, 'Asking'],
      [`runs/${other.id}?tab=record`, 'Asking'],
    ])
    await suite.checkHostileText(['runs', `runs/${run.id}`, `runs/${run.id}?tab=values`])
    const { page, problems } = await open(`runs/${other.id}`, { width: 360 })
    await page.getByRole('tree', { name: 'Nodes' }).waitFor()
    assert.equal(await page.locator('.graph').count(), 0)
    assert.deepEqual(problems, [])
  })

  it('lists the nodes of a graph whose layout does not end, and draws the next one', async () => {
    const run = await start((await asking()).id)
    const watched = await openConsole(suite.chromium, suite.app, at('runs'), 'ada', { hasClock: true })
    suite.closeLater(watched)
    const { page, problems } = watched
    await page.evaluate(`globalThis.post = Worker.prototype.postMessage; Worker.prototype.postMessage = () => {}`)
    await go(page, at(`runs/${run.id}`))
    await page.getByRole('tree', { name: 'Nodes' }).waitFor()
    await eventually(() => page.workers().length === 1)
    assert.equal(await page.getByText('This graph could not be drawn').count(), 0)
    // A run that continues meanwhile is laid out again, with a separate limit.
    await eventually(async () => {
      await page.clock.fastForward(10_000)
      return (await page.getByText('This graph could not be drawn').count()) === 1
    })
    assert.equal(await page.locator('.graph').count(), 0)
    await page.evaluate(`Worker.prototype.postMessage = post`)
    const other = await start((await orchestration('Other', [{ id: 'only', type: 'transform', expression: 1 }])).id)
    await go(page, at(`runs/${other.id}`))
    await node(page, 'only').waitFor()
    assert.deepEqual(problems, [])
  })

  it('starts no other script than the worker that lays out graphs', async () => {
    const { page } = await open('runs')
    const refused =
      await page.evaluate(`['/app/assets/other.js', 'data:text/javascript,1', 'https://example.com/layout-worker-x.js']
      .map(url => { try { new Worker(url); return 'started' } catch { return 'refused' } })`)
    assert.deepEqual(refused, ['refused', 'refused', 'refused'])
  })

  it('requests nothing that the user may not see', async () => {
    const run = await start((await asking()).id)
    await suite.app.user('rita', [
      allowing(suite.app.projectId, ['projects:*', 'orchestrations:GetRun', 'orchestrations:ListRuns']),
    ])
    const watched = await openConsole(suite.chromium, suite.app, at(`runs/${run.id}`), 'rita')
    suite.closeLater(watched)
    const { page, problems } = watched
    const tree = page.getByRole('tree', { name: 'Nodes' })
    await tree.getByText('ask').click()
    await page.getByRole('dialog', { name: 'ask' }).waitFor()
    for (const name of ['Pause', 'Cancel run', 'Answer'])
      assert.equal(await page.getByRole('button', { name }).count(), 0, name)
    assert.deepEqual(problems, [])
  })
})
