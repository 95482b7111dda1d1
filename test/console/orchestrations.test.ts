import assert from 'node:assert/strict'
import { chain } from '../automation/fixtures.ts'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy } from '../support/replies.ts'
import { consoleSuite, focusOn, HOSTILE, openConsole, pressEnter } from './support.ts'

describe('orchestrations in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['orchestration'])
  const { at, open, heading } = suite

  const create = (fields: object = {}) =>
    createdBy(suite.app.admin, '/orchestrations', {
      project_id: suite.app.projectId,
      name: 'Discount',
      input_schema: { type: 'object', required: ['price'], properties: { price: { type: 'number', maximum: 1000 } } },
      nodes: [
        { id: 'price', type: 'transform', expression: { '*': [{ var: 'input.price' }, 0.9] } },
        { id: 'done', type: 'transform', expression: 1 },
      ],
      edges: chain('price', 'done'),
      ...fields,
    })
  const read = async (id: string) => (await suite.app.admin.get(`/orchestrations/${id}`)).body

  it('makes one with the keyboard alone, and shows problems at their node while it is written', async () => {
    const { page, problems } = await open('orchestrations')
    await pressEnter(page.getByRole('link', { name: 'New orchestration' }).first())
    await heading(page, 'New orchestration')
    await focusOn(page.getByLabel('Name'))
    await page.keyboard.type('By keyboard')
    await pressEnter(page.getByRole('tab', { name: 'JSON' }))
    const definition = page.getByLabel('Definition')
    await focusOn(definition)
    await page.keyboard.press('Control+a')
    await page.keyboard.insertText('{"nodes": [{"id": "a", "type": "agent"}], "edges": [{"from": "a", "to": "b"}]}')
    await page.getByText('Problems: 2, warnings: 0').waitFor()
    await page.locator('#graph-node-a[data-mark=problem]').waitFor()
    await page.getByText('nodes[0].agent_id').waitFor()
    await page.getByText('edges[0].to').waitFor()
    await page.keyboard.press('Control+a')
    await page.keyboard.insertText('{"nodes": [{"id": "a", "type": "transform", "expression": 1}], "edges": []}')
    await page.getByText('Problems: 0, warnings: 0').waitFor()
    await pressEnter(page.getByRole('button', { name: 'Create' }))
    await heading(page, 'By keyboard')
    await page.locator('#graph-node-a').waitFor()
    const { data } = (await suite.app.admin.get('/orchestrations?name=By keyboard')).body
    assert.deepEqual(data[0].nodes, [{ id: 'a', type: 'transform', expression: 1 }])
    assert.deepEqual(problems, [])
  })

  it('leads from a node to its text, and saves a labelled version', async () => {
    const { id } = await create()
    const { page, problems } = await open(`orchestrations/${id}`)
    await page.getByRole('link', { name: 'Edit' }).click()
    await page.getByRole('tab', { name: 'JSON' }).click()
    await page.locator('#graph-node-done').click()
    const definition = page.getByLabel('Definition')
    const chosen = () =>
      definition.evaluate((input: any) => input.value.slice(input.selectionStart, input.selectionEnd) as string)
    assert.match(await chosen(), /"id": "done"/)
    await definition.fill((await definition.inputValue()).replace('0.9', '0.8'))
    await page.getByLabel('Label of the new version').fill('cheaper')
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByRole('tab', { name: 'Versions' }).click()
    await page.getByText('cheaper').waitFor()
    assert.deepEqual((await read(id)).nodes[0].expression, { '*': [{ var: 'input.price' }, 0.8] })
    assert.deepEqual(problems, [])
  })

  it('shows both changes where two people edit', async () => {
    const { id } = await create()
    const { page } = await open(`orchestrations/${id}`)
    await page.getByRole('link', { name: 'Edit' }).click()
    await page.getByLabel('Description').fill('mine')
    await suite.app.admin.patch(`/orchestrations/${id}`, { nodes: [], edges: [] })
    await page.getByRole('button', { name: 'Save' }).click()
    const dialog = page.getByRole('dialog', { name: 'Another person has changed this orchestration' })
    await dialog.getByText('"nodes": []').waitFor()
    await dialog.getByText('"mine"').waitFor()
    await dialog.getByRole('button', { name: 'Save mine' }).click()
    await page.getByText('mine', { exact: true }).waitFor()
    const { description, nodes } = await read(id)
    assert.deepEqual({ description, nodes }, { description: 'mine', nodes: [] })
  })

  it('compares versions on the graph, and restores one', async () => {
    const { id } = await create()
    await suite.app.admin.patch(`/orchestrations/${id}`, {
      nodes: [
        { id: 'price', type: 'transform', expression: 2 },
        { id: 'tell', type: 'emit_event', event_type: 'prices.made' },
      ],
      edges: chain('price', 'tell'),
    })
    const { page, problems } = await open(`orchestrations/${id}?tab=versions`)
    await page.getByRole('button', { name: 'Compare' }).click()
    for (const [node, mark] of Object.entries({ price: 'changed', done: 'removed', tell: 'added' }))
      await page.locator(`#graph-node-${node}[data-mark=${mark}]`).waitFor()
    await page.getByText('nodes.price.expression', { exact: true }).waitFor()
    await page.locator('#graph-node-tell').click()
    await page.getByText('nodes.price.expression', { exact: true }).waitFor({ state: 'hidden' })
    await page.getByRole('button', { name: 'Restore' }).click()
    await page.getByText('Version 3', { exact: true }).waitFor()
    assert.equal((await read(id)).nodes[1].id, 'done')
    assert.deepEqual(problems, [])
  })

  it('starts a run with a form of the input schema', async () => {
    const { id } = await create()
    const { page, problems } = await open(`orchestrations/${id}`)
    await page.getByRole('button', { name: 'Start a run' }).click()
    const dialog = page.getByRole('dialog', { name: 'Start a run' })
    await dialog.getByRole('button', { name: 'Start a run' }).click()
    await dialog.getByText('This field is required').waitFor()
    await dialog.getByLabel('Price').fill('200')
    await page.keyboard.press('Enter')
    await page.waitForURL('**/runs/**')
    await page.getByRole('status').getByText('Succeeded').waitFor()
    const { data } = (await suite.app.admin.get(`/orchestration-runs?orchestration_id=${id}`)).body
    assert.deepEqual(data[0].input, { price: 200 })
    assert.deepEqual(problems, [])
  })

  it('shows what the service refuses at the field of the input', async () => {
    const schema = { type: 'object', properties: { code: { type: 'string', pattern: '^[A-Z]+$' } } }
    const { id } = await create({ input_schema: schema, edges: [], nodes: [] })
    const { page } = await open(`orchestrations/${id}`)
    await page.getByRole('button', { name: 'Start a run' }).click()
    const field = page.getByRole('dialog').getByLabel('Code')
    await field.fill('lower')
    await page.keyboard.press('Enter')
    await eventually(async () => (await field.getAttribute('aria-invalid')) === 'true')
  })

  it('is accessible, and shows hostile text as text', async () => {
    const calm = await create({ name: 'Calm' })
    await suite.app.admin.patch(`/orchestrations/${calm.id}`, { nodes: [calm.nodes[0]], edges: [] })
    const { id } = await create({
      name: HOSTILE.slice(0, 250),
      description: HOSTILE,
      nodes: [{ id: 'ask', type: 'human', prompt: HOSTILE, options: [HOSTILE] }],
      edges: [],
    })
    await suite.checkAccess([
      ['orchestrations', 'Orchestrations'],
      ['orchestrations/new', 'New orchestration'],
      [`orchestrations/${calm.id}`, 'Calm'],
      [`orchestrations/${calm.id}?tab=versions&from=1&to=2`, 'Calm'],
      [`orchestrations/${calm.id}?tab=runs`, 'Calm'],
    ])
    await suite.checkHostileText(['orchestrations', `orchestrations/${id}`, `orchestrations/${id}?tab=json`])
  })

  it('offers what the user may do', async () => {
    const { id } = await create({ name: 'Read only' })
    await suite.app.user('olaf', [
      allowing(suite.app.projectId, ['projects:*', 'orchestrations:GetOrchestration', 'orchestrations:List*']),
    ])
    const watched = await openConsole(suite.chromium, suite.app, at(`orchestrations/${id}`), 'olaf')
    suite.closeLater(watched)
    const { page, problems } = watched
    await page.locator('#graph-node-price').waitFor()
    for (const name of ['Start a run', 'Delete'])
      assert.equal(await page.getByRole('button', { name }).count(), 0, name)
    assert.equal(await page.getByRole('link', { name: 'Edit' }).count(), 0)
    await page.goto(`${suite.app.base}/app${at(`orchestrations/${id}/edit`)}`)
    await page.getByText('orchestrations:UpdateOrchestration').waitFor()
    assert.deepEqual(problems, [])
  })
})
