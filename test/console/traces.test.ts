import assert from 'node:assert/strict'
import { json, startTarget } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { consoleSuite, focusOn, HOSTILE, openConsole, violations } from './support.ts'

const call = (name: string, args: object = {}) => ({ name, args })
const scripted = (replies: object[]) => `@double ${JSON.stringify(replies)}`

describe('traces in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'orchestration'])
  const { at, open, heading } = suite
  const target = forSuite(startTarget)
  let toolId: string

  const create = (path: string, body: object) => createdBy(suite.app.admin, path, body)
  const agent = (fields: object) =>
    create('/agents', { project_id: suite.app.projectId, ai_provider_id: suite.app.providerId, ...fields })
  const turn = async (agentId: string, prompt: string) => {
    const { body } = await suite.app.admin.post(`/agents/${agentId}/generate?wait=true`, { prompt })
    return body
  }
  const read = async (id: string) => (await suite.app.admin.get(`/generations/${id}`)).body

  before(async () => {
    toolId = (
      await create('/tools', {
        project_id: suite.app.projectId,
        name: 'orders',
        description: 'Orders',
        execute: { url: target.url },
      })
    ).id
  })

  it('shows a turn, its steps, tools and nested turns on one axis, and walks them by keyboard', async () => {
    target.answer = json({ total: 240 })
    const inner = await agent({ name: 'Researcher' })
    const preset_parameters = { agent_id: inner.id }
    const ask = { name: 'ask', type: 'platform', actions: ['create-agent-generation'], preset_parameters }
    const outer = await agent({ name: 'Support', tool_bindings: [{ tool_id: toolId }, { tool: ask }] })
    const calls = [call('orders', { id: 'A-17' }), call('ask_create-agent-generation', { prompt: 'Who?' })]
    const { id } = await turn(outer.id, scripted([{ tool_calls: calls }, { text: 'It is paid.' }]))
    const { page, problems } = await open('traces')
    await page.getByRole('row').filter({ hasText: id }).getByRole('link', { name: 'Support' }).click()
    await heading(page, 'Turn of Support')
    const tree = page.getByRole('tree', { name: 'Steps' })
    const names = ['Support', '1. Step with 2 tool calls', 'double-1', 'orders', 'ask_create-agent-generation']
    for (const name of [...names, 'Researcher', '2. double-1'])
      await tree.getByRole('treeitem').filter({ hasText: name }).first().waitFor()
    assert.equal(await tree.getByRole('treeitem').filter({ hasText: 'Researcher' }).getAttribute('aria-level'), '3')
    // Down to the step, close and open it, and open the tool.
    await focusOn(tree.getByRole('treeitem').first())
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('ArrowLeft')
    await tree.getByText('orders').waitFor({ state: 'hidden' })
    await page.keyboard.press('ArrowRight')
    await page.keyboard.press('ArrowRight')
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('Enter')
    const panel = page.getByRole('dialog', { name: 'orders' })
    await panel.getByText('"id": "A-17"').waitFor()
    await panel.getByText('"total": 240').waitFor()
    await page.keyboard.press('Escape')
    await panel.waitFor({ state: 'hidden' })
    assert.deepEqual(problems, [])
  })

  it('shows what a model call sent, and the documents that a search gave it, to a user who may read the trace', async () => {
    await create('/documents', {
      project_id: suite.app.projectId,
      path: '/birds/curlew.md',
      content: 'Curlews nest in moors and marshes.',
    })
    const { id: agentId } = await agent({
      name: 'Birds',
      instructions: 'Answer like an ornithologist',
      knowledge_config: { document_paths: ['/birds'] },
      tool_bindings: [{ tool_id: toolId }],
    })
    const { id } = await turn(agentId, 'Where do curlews nest?')
    const actions = [
      'projects:GetProject',
      'generations:*',
      'traces:*',
      'agents:*',
      'documents:GetDocument',
      'evaluations:*',
    ]
    await suite.app.user('reader', [allowing(suite.app.projectId, actions)])
    const { page, problems } = await openConsole(suite.chromium, suite.app, at(`traces/${id}`), 'reader')
    const tree = page.getByRole('tree', { name: 'Steps' })
    await focusOn(tree.getByRole('treeitem').first())
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('Enter')
    const retrieval = page.getByRole('dialog')
    await retrieval.getByRole('link', { name: 'Open document' }).waitFor()
    await page.keyboard.press('Escape')
    await retrieval.waitFor({ state: 'hidden' })
    await focusOn(tree.getByRole('treeitem').filter({ hasText: '1. double-1' }))
    await page.keyboard.press('Enter')
    const panel = page.getByRole('dialog', { name: '1. double-1' })
    await panel.getByRole('button', { name: 'Show the request' }).press('Enter')
    await panel.getByRole('region', { name: 'System prompt' }).getByText('Answer like an ornithologist').waitFor()
    await panel.getByRole('region', { name: 'Messages' }).getByText('Where do curlews nest?').waitFor()
    await panel.getByRole('region', { name: 'Tools' }).getByText('orders').first().waitFor()
    assert.deepEqual(await violations(page), [])
    await page.keyboard.press('Escape')
    await focusOn(tree.getByRole('treeitem').first())
    await page.keyboard.press('Enter')
    await page.getByRole('dialog').getByRole('link', { name: 'Open in playground' }).press('Enter')
    await heading(page, 'Playground')
    const message = page.getByRole('textbox', { name: 'Message' })
    assert.equal(await message.inputValue(), 'Where do curlews nest?')
    // A reload restores the edited message, and nothing once that is sent.
    await message.fill('Where do curlews sleep?')
    await page.reload()
    await message.waitFor()
    assert.equal(await message.inputValue(), 'Where do curlews sleep?')
    await message.press('Enter')
    await page.getByRole('article').getByText('Total').waitFor()
    await page.reload()
    await message.waitFor()
    assert.equal(await message.inputValue(), '')
    assert.deepEqual(problems, [])
  })

  it('follows a turn while it runs, and stops one', async () => {
    const gate = Promise.withResolvers<void>()
    target.answer = async (request, response) => {
      await gate.promise
      json({ ok: true })(request, response)
    }
    const { id: agentId } = await agent({ name: 'Slow', tool_bindings: [{ tool_id: toolId }] })
    const { body } = await suite.app.admin.post(`/agents/${agentId}/generate`, {
      prompt: scripted([{ tool_calls: [call('orders')] }, { text: 'done' }]),
    })
    const { page, problems } = await open(`traces/${body.generation_id}`)
    await page.getByRole('status').getByText('Running').waitFor()
    gate.resolve()
    await page.getByRole('status').getByText('Completed').waitFor()
    await page.getByRole('treeitem').filter({ hasText: '2. double-1' }).waitFor()

    const held = Promise.withResolvers<void>()
    target.answer = async (request, response) => {
      await held.promise
      json({ ok: true })(request, response)
    }
    const { body: second } = await suite.app.admin.post(`/agents/${agentId}/generate`, {
      prompt: scripted([{ tool_calls: [call('orders')] }, { text: 'done' }]),
    })
    const { page: other } = await open(`traces/${second.generation_id}`)
    await other.getByRole('button', { name: 'Cancel turn' }).click()
    await other.getByRole('status').getByText('Failed').waitFor()
    held.resolve()
    assert.equal((await read(second.generation_id)).stop_reason, 'cancelled')
    assert.deepEqual(problems, [])
  })

  it('retries a failed turn, and erases content after it showed what that is', async () => {
    const { id: agentId } = await agent({ name: 'Fragile' })
    const { error } = await turn(agentId, scripted([{ error: { status: 400 } }]))
    const { page, problems } = await open(`traces/${error.meta.generation_id}`)
    await page.getByText('AI_PROVIDER_ERROR').first().waitFor()
    await page.getByRole('button', { name: 'Retry turn' }).click()
    await page.waitForURL(url => !url.pathname.endsWith(error.meta.generation_id))
    const retried = page.url().split('/').pop() as string
    await eventually(async () => ['failed', 'completed'].includes((await read(retried)).status))

    const { id } = await turn(suite.app.agentId, 'a secret')
    const { page: other } = await open(`traces/${id}`)
    await other.getByRole('button', { name: 'Erase content' }).click()
    const dialog = other.getByRole('dialog', { name: 'Erase content' })
    await dialog.getByText('This would erase: 1').waitFor()
    assert.equal((await read(id)).content_redacted_at, null)
    await dialog.getByRole('button', { name: 'Erase content' }).click()
    await other.getByText('The content of this turn was erased').waitFor()
    assert.notEqual((await read(id)).content_redacted_at, null)
    assert.deepEqual(problems, [])
  })

  it('shows the run above the turns of its nodes', async () => {
    const { id: orchestration_id } = await create('/orchestrations', {
      project_id: suite.app.projectId,
      name: 'Asks',
      nodes: [{ id: 'ask', type: 'agent', agent_id: suite.app.agentId, prompt: 'hi' }],
      edges: [],
    })
    const run = await create('/orchestration-runs', { orchestration_id, wait: true })
    const { page, problems } = await open(`traces/${run.trace_id}`)
    const level = (name: string) => page.getByRole('treeitem').filter({ hasText: name }).getAttribute('aria-level')
    assert.deepEqual(await Promise.all(['Run', 'ask', 'Helper', '1. double-1'].map(level)), ['1', '2', '3', '4'])
    assert.deepEqual(problems, [])
  })

  it('draws only the rows in view of a long turn, and reaches its end by keyboard', async () => {
    target.answer = json({ ok: true })
    const { id: agentId } = await agent({ name: 'Long', max_steps: 30, tool_bindings: [{ tool_id: toolId }] })
    const step = { tool_calls: Array.from({ length: 10 }, (_, n) => call('orders', { n })) }
    const { id } = await turn(agentId, scripted([...Array.from({ length: 20 }, () => step), { text: 'the end' }]))
    const { page, problems } = await open(`traces/${id}`)
    const items = page.getByRole('treeitem')
    await items.filter({ hasText: '1. Step with 10 tool calls' }).waitFor()
    assert.ok((await items.count()) < 100)
    await focusOn(items.first())
    await page.keyboard.press('End')
    await eventually(async () =>
      String(await page.evaluate('document.activeElement.textContent')).includes('21. double-1'),
    )
    await page.keyboard.press('Enter')
    await page.getByRole('dialog').getByText('the end').waitFor()
    assert.deepEqual(problems, [])
  })

  it('is accessible, shows hostile text as text, and requests nothing that the user may not see', async () => {
    const { id: agentId } = await agent({ name: HOSTILE.slice(0, 200) })
    const hostile = await turn(agentId, HOSTILE)
    const { id } = await turn(suite.app.agentId, 'hi')
    await suite.checkAccess([
      ['traces', 'Traces'],
      [`traces/${id}`, 'Turn of Helper'],
    ])
    const { page, problems } = await open(`traces/${id}?row=${id}`)
    await page.getByRole('dialog', { name: 'Helper' }).waitFor()
    await eventually(async () => (await violations(page)).length === 0, { what: 'the panel is accessible' })
    assert.deepEqual(problems, [])
    await suite.checkHostileText(['traces', `traces/${hostile.id}`])
    await suite.app.user('gus', [allowing(suite.app.projectId, ['projects:*', 'generations:*'])])
    const watched = await openConsole(suite.chromium, suite.app, at(`traces/${id}`), 'gus')
    suite.closeLater(watched)
    await watched.page.getByText('traces:GetTraceTree').waitFor()
  })
})
