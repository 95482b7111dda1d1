import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { postedBy } from '../support/replies.ts'
import { choose, consoleSuite, focusOn, go, pressEnter } from './support.ts'

/** Whether a text of a form speaks of null, of names of the API, or of types of JSON. */
const isOfApi = (text: string): boolean =>
  /\bnull\b|`|\b(string|integer|boolean|array|object)s?\b|[a-z]_[a-z]/i.test(text)

const directionOf = (element: any): string => (globalThis as any).getComputedStyle(element).direction

describe('forms that refer to other records', function () {
  this.timeout(180_000)
  const suite = consoleSuite([])
  const { at, open, heading } = suite
  const project = () => suite.app.projectId
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const read = async (path: string) => (await suite.app.admin.get(path)).body
  const tool = (name: string) =>
    post('/tools', { project_id: project(), name, execute: { url: `${suite.app.double.url}/v1/models` } })

  it('build an agent from names, with tools, an inline tool, guardrails and knowledge, by keyboard alone', async () => {
    const [orders] = await Promise.all(['orders', 'refunds'].map(tool))
    const guardrail = await post('/guardrails', { project_id: project(), name: 'payments', document: { class: 'B' } })
    const store = await post('/memory-stores', { project_id: project(), name: 'customers' })
    const document = await post('/documents', {
      project_id: project(),
      content: 'Send it back within a month.',
      title: 'Returns',
      path: '/help/returns.md',
    })
    const { page, problems } = await open('agents/new')
    const field = (name: string) => page.getByLabel(name, { exact: true }).first()
    await field('Name').fill('Desk')
    await focusOn(field('Provider'))
    await choose(page, 'double')
    await pressEnter(page.getByRole('button', { name: 'Add a tool' }))
    const first = page.getByRole('group', { name: 'Tool 1' })
    await eventually(async () => (await first.locator(':focus').count()) === 1)
    await page.keyboard.type('order')
    await page.getByRole('option', { name: 'orders' }).waitFor()
    assert.equal(await page.getByRole('option', { name: 'refunds' }).count(), 0)
    await page.keyboard.press('Enter')
    await first.getByLabel('Activity').fill('Looking up the order')
    await pressEnter(page.getByRole('button', { name: 'Add an inline tool' }))
    const second = page.getByRole('group', { name: 'Tool 2' })
    await eventually(async () => (await second.locator(':focus').count()) === 1)
    await page.keyboard.type('ask_user')
    await focusOn(second.getByLabel('Type').first())
    await choose(page, 'client')
    await second.getByLabel('Parameters').fill('{"type": "object"}')
    for (const [name, typed] of [
      ['Guardrails', 'pay'],
      ['Documents', 'returns'],
      ['Memory stores', 'cust'],
    ] as const) {
      await focusOn(field(name))
      await page.keyboard.type(typed)
      await page.getByRole('option').first().waitFor()
      await page.keyboard.press('Enter')
    }
    await focusOn(field('Folders'))
    await page.keyboard.type('/help')
    await page.keyboard.press('Enter')
    await pressEnter(page.getByRole('button', { name: 'Create', exact: true }))
    await heading(page, 'Desk')
    const id = page.url().split('/').at(-1)
    const agent = await read(`/agents/${id}`)
    assert.equal(agent.ai_provider_id, suite.app.providerId)
    assert.deepEqual(agent.tool_bindings, [
      { tool_id: orders.id, label: 'Looking up the order' },
      { tool: { name: 'ask_user', type: 'client', parameters: { type: 'object' } } },
    ])
    assert.deepEqual(agent.guardrail_ids, [guardrail.id])
    assert.deepEqual(agent.knowledge_config, {
      memory_store_ids: [store.id],
      document_ids: [document.id],
      document_paths: ['/help'],
    })
    for (const name of ['double', 'orders', 'payments', 'Returns (/help/returns.md)', 'customers', 'ask_user', '/help'])
      await page.getByRole('region', { name: 'Uses' }).getByText(name, { exact: true }).waitFor()
    assert.deepEqual(problems, [])
  })

  it('take IDs, and mark IDs of missing records and of other projects', async () => {
    const { body: other } = await suite.app.admin.post('/projects', { name: 'Elsewhere' })
    const foreign = await post('/guardrails', { project_id: other.id, name: 'theirs', document: { class: 'B' } })
    const own = await post('/guardrails', { project_id: project(), name: 'ours', document: { class: 'B' } })
    const tripped = await post('/tools', { project_id: project(), name: 'gone', type: 'client' })
    await suite.app.admin.patch(`/agents/${suite.app.agentId}`, { tool_bindings: [{ tool_id: tripped.id }] })
    await suite.app.admin.delete(`/tools/${tripped.id}`)
    const { page, problems } = await open(`agents/${suite.app.agentId}`)
    await page.getByText(`${tripped.id} (not found)`).waitFor()
    await pressEnter(page.getByRole('button', { name: 'Edit' }))
    await page.getByText('It does not exist in this project, or was deleted.').waitFor()
    await pressEnter(page.getByRole('button', { name: 'Remove Tool 1' }))
    const guardrails = page.getByLabel('Guardrails', { exact: true }).first()
    await focusOn(guardrails)
    await page.keyboard.type(foreign.id)
    await page.getByRole('option', { name: `${foreign.id} (not found)` }).waitFor()
    await guardrails.fill('')
    await page.keyboard.type(own.id)
    await page.getByRole('option', { name: 'ours' }).waitFor()
    await page.keyboard.press('Tab')
    await pressEnter(page.getByRole('button', { name: 'Save' }))
    await page.getByRole('region', { name: 'Uses' }).getByText('ours').waitFor()
    const { guardrail_ids, tool_bindings } = await read(`/agents/${suite.app.agentId}`)
    assert.deepEqual({ guardrail_ids, tool_bindings }, { guardrail_ids: [own.id], tool_bindings: null })
    assert.deepEqual(
      problems.filter(problem => !problem.includes('Failed to load resource')),
      [],
    )
  })

  it('compare any two versions word by word, with author and time, at a separate address', async () => {
    const texts = ['Answer in one short line.', 'Answer in two short lines.', 'Answer at length.']
    const agent = await post('/agents', {
      project_id: project(),
      name: 'Wordy',
      instructions: texts[0],
      ai_provider_id: suite.app.providerId,
    })
    for (const instructions of texts.slice(1)) await suite.app.admin.patch(`/agents/${agent.id}`, { instructions })
    const { page, problems } = await open(`agents/${agent.id}?tab=versions&from=1&to=2`)
    const compared = (name: string) => page.getByRole('region', { name, exact: true })
    const marks = async (name: string, tag: 'ins' | 'del') =>
      (await compared(name).locator(tag).allInnerTexts()).map(text => text.trim())
    await compared('Version 1 to 2').locator('ins').first().waitFor()
    assert.deepEqual(await marks('Version 1 to 2', 'del'), ['one', 'line.'])
    assert.deepEqual(await marks('Version 1 to 2', 'ins'), ['two', 'lines.'])
    await focusOn(compared('Version 1 to 2').getByLabel('After', { exact: true }).first())
    await choose(page, 'Version 3')
    await compared('Version 1 to 3').locator('ins').first().waitFor()
    assert.match(page.url(), /from=1&to=3/)
    assert.deepEqual(await marks('Version 1 to 3', 'ins'), ['at length.'])
    await pressEnter(page.getByRole('row', { name: 'Version 1' }).getByRole('button', { name: 'Restore' }))
    const restored = page.getByRole('row', { name: 'Version 4' })
    await restored.getByText('ada, just now').waitFor()
    assert.match(await page.getByRole('row', { name: 'Version 2' }).innerText(), /User user_/)
    assert.equal((await read(`/agents/${agent.id}`)).instructions, texts[0])

    const document = await post('/documents', {
      project_id: project(),
      content: 'Open from nine to five.',
      title: 'Hours',
    })
    await suite.app.admin.patch(`/documents/${document.id}`, { content: 'Open from ten to five.' })
    await go(page, at(`documents/${document.id}?tab=versions`))
    await pressEnter(page.getByRole('button', { name: 'Compare with the version before' }))
    await compared('Version 1 to 2').getByText('content', { exact: true }).waitFor()
    assert.deepEqual(await marks('Version 1 to 2', 'ins'), ['ten'])
    assert.deepEqual(problems, [])
  })

  it('have help in plain words, and texts in the direction of their content', async () => {
    const { page, problems } = await open('agents/new')
    const forms: [view: string, button: string][] = [
      ['tools', 'New tool'],
      ['guardrails', 'New guardrail'],
      ['triggers', 'New trigger'],
      ['webhooks', 'New webhook'],
      ['cases', 'New case'],
      ['evals', 'New evaluation'],
      ['keys', 'New key'],
    ]
    const check = async (view: string) => {
      const helps = await page.locator('.mantine-InputWrapper-description, .mantine-InputWrapper-label').allInnerTexts()
      assert.ok(helps.length > 1, view)
      assert.deepEqual(helps.filter(isOfApi), [], view)
    }
    await page.getByLabel('Guardrails', { exact: true }).first().waitFor()
    await check('agents/new')
    for (const [view, button] of forms) {
      await go(page, at(view))
      await page.getByRole('button', { name: button }).first().press('Enter')
      await page.getByRole('dialog').getByRole('textbox').first().waitFor()
      await check(view)
      await page.keyboard.press('Escape')
      await page.getByRole('dialog').waitFor({ state: 'hidden' })
    }
    const agent = await post('/agents', {
      project_id: project(),
      name: 'مساعد',
      instructions: 'أجب بإيجاز.',
      ai_provider_id: suite.app.providerId,
    })
    await go(page, at(`agents/${agent.id}`))
    await heading(page, 'مساعد')
    for (const text of ['مساعد', 'أجب بإيجاز.'])
      assert.equal(await page.locator('main').getByText(text).first().evaluate(directionOf), 'rtl')
    assert.equal(await page.getByText('Uses', { exact: true }).evaluate(directionOf), 'ltr')
    const conversation = await post('/conversations', { project_id: project(), name: 'Table' })
    await post(`/conversations/${conversation.id}/messages`, {
      role: 'assistant',
      message: '| Item | Price |\n|---|---:|\n| <img src=x onerror=alert(1)> | **20** |',
    })
    await go(page, at(`conversations/${conversation.id}`))
    const table = page.getByRole('table').filter({ hasText: 'Price' })
    await table.getByRole('cell', { name: '20' }).waitFor()
    assert.equal(await table.getByRole('columnheader').count(), 2)
    assert.equal(await table.locator('img').count(), 0)
    assert.deepEqual(problems, [])
  })

  it('are accessible', async () => {
    const { agentId } = suite.app
    await suite.checkAccess([
      ['agents/new', 'New agent'],
      [`agents/${agentId}`, 'Helper'],
      [`agents/${agentId}?tab=versions&from=1&to=2`, 'Helper'],
    ])
  })
})
