import assert from 'node:assert/strict'
import type { Locator, Page } from 'playwright-core'
import { z } from 'zod'
import { nodeFields as fields } from '#automation/orchestrations/definition/fields.ts'
import { COMMON_FIELDS, NODE_TYPES, TIMED } from '../../console/src/editor/node-types.ts'
import { editor } from '../../console/src/strings/editor.ts'
import { chain } from '../automation/fixtures.ts'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { choose, consoleSuite, focusOn, HOSTILE, openConsole, pressEnter, tabTo, violations } from './support.ts'

describe('the palette of nodes', () => {
  it('has the types and fields of the service', () => {
    const types = new Set<string>(fields.flatMap(([, { types = [] }]) => types))
    assert.deepEqual(new Set(Object.keys(NODE_TYPES)), types)
    for (const [type, { fields: shown }] of Object.entries(NODE_TYPES))
      assert.deepEqual(
        shown.toSorted(),
        fields
          .filter(([name, field]) => name !== 'timeout' && field.types?.includes(type as never))
          .map(([name]) => name)
          .sort(),
        type,
      )
    for (const [name, { schema }] of fields) {
      const { enum: values } = z.toJSONSchema(schema, { unrepresentable: 'any' })
      if (values) assert.deepEqual(Object.keys((editor.choices as Record<string, object>)[name]), values, name)
    }
    assert.deepEqual(TIMED.toSorted(), fields.find(([name]) => name === 'timeout')?.[1].types?.toSorted())
    const common = fields.filter(([name, { types }]) => !types && name !== 'metadata').map(([name]) => name)
    assert.deepEqual(new Set(COMMON_FIELDS.map(name => name.split('.')[0])), new Set(common))
  })
})

describe('the editors of orchestrations and workflows', function () {
  this.timeout(240_000)
  const suite = consoleSuite(['generation', 'orchestration'])
  const { at, open, heading } = suite
  const make = (path: string, fields: object): Promise<any> =>
    createdBy(suite.app.admin, path, { project_id: suite.app.projectId, ...fields })
  const read = async (path: string): Promise<any> => (await suite.app.admin.get(path)).body

  const node = (page: Page, id: string) => page.locator(`[id="graph-node-${id}"]`)
  /** An input by its label: lists of options have the same. */
  const field = (page: Page, name: string) =>
    page.locator('input, textarea').and(page.getByLabel(name, { exact: true }))
  const tab = (page: Page, name: string) => page.getByRole('tab', { name, exact: true })
  const entry = (page: Page, name: RegExp) => page.getByRole('group', { name: 'Add' }).getByRole('button', { name })
  const definition = async (page: Page): Promise<any> => {
    await tab(page, 'JSON').click()
    return JSON.parse(await field(page, 'Definition').inputValue())
  }
  /** Writes the text of a field with the keyboard, and leaves the field. */
  const write = async (page: Page, field: Locator, text: string) => {
    await focusOn(field)
    await page.keyboard.press('Control+a')
    await page.keyboard.insertText(text)
    await page.keyboard.press('Tab')
  }
  /** Adds an entry of the palette with the keyboard, and gives it a name where the cursor is then. */
  const add = async (page: Page, type: RegExp, name: string) => {
    await pressEnter(tab(page, 'Add'))
    await pressEnter(entry(page, type))
    await page.locator('#part-key:focus').waitFor()
    await page.keyboard.press('Control+a')
    await page.keyboard.insertText(name)
    await page.keyboard.press('Enter')
    await node(page, name).waitFor()
  }
  /** Opens the editor of the shown graph; the view before it shows the same nodes. */
  const edit = async (page: Page) => {
    await page.getByRole('link', { name: 'Edit' }).click()
    await page.getByRole('button', { name: 'Save' }).waitFor()
  }
  /** Connects two nodes with the keyboard: a key at the source, arrow keys to the target, Enter. */
  const connect = async (page: Page, from: string, to: string) => {
    await focusOn(node(page, from))
    await page.keyboard.press('c')
    await page.getByRole('status').getByText(`Connect ${from}`).waitFor()
    for (let count = 0; (await page.evaluate('document.activeElement.id')) !== `graph-node-${to}`; count++) {
      assert.ok(count < 10, `${to} is reached`)
      await page.keyboard.press(count === 0 ? 'Home' : count % 2 ? 'ArrowDown' : 'ArrowRight')
    }
    await page.keyboard.press('Enter')
    await page.getByRole('status').getByText(`${from} → ${to}`).waitFor()
  }
  /** The middle of a port of a node. */
  const port = async (page: Page, id: string, kind: 'source' | 'target') => {
    const box = await page.locator(`.react-flow__node[data-id="${id}"] .react-flow__handle.${kind}`).boundingBox()
    assert.ok(box)
    return { x: box.x + box.width / 2, y: box.y + box.height / 2 }
  }
  /** Draws an edge with the mouse from the lower port of a node to the upper one of another. */
  const draw = async (page: Page, from: string, to: string) => {
    const drawn = page.getByRole('status').getByText(`${from} → ${to}`)
    await node(page, to).waitFor()
    await node(page, from).scrollIntoViewIfNeeded()
    // A graph that is laid out again meanwhile moves away from the pointer.
    for (let attempt = 0; attempt < 5 && (await drawn.count()) === 0; attempt++) {
      const source = await port(page, from, 'source')
      const target = await port(page, to, 'target')
      await page.mouse.move(source.x, source.y)
      await page.mouse.down()
      await page.mouse.move(target.x, target.y, { steps: 8 })
      await page.mouse.up()
      await drawn.waitFor({ timeout: 2000 }).catch(() => {})
    }
    await drawn.waitFor()
  }
  const settledRun = async (id: string, input: object, answer?: object): Promise<any> => {
    const run = await postedBy(suite.app.admin, '/orchestration-runs', { orchestration_id: id, input, wait: true })
    if (answer) await suite.app.admin.post(`/orchestration-runs/${run.id}/human-input`, answer)
    await eventually(async () => (await read(`/orchestration-runs/${run.id}`)).status === 'succeeded')
    return read(`/orchestration-runs/${run.id}`)
  }

  it('builds an orchestration with the keyboard alone, which runs', async () => {
    const { page, problems } = await open('orchestrations/new')
    await heading(page, 'New orchestration')
    await focusOn(page.getByLabel('Name'))
    await page.keyboard.type('By keyboard')
    await tabTo(page, 'Add')
    await add(page, /^Transform/, 'price')
    await write(page, field(page, 'Expression'), '{"*": [{"var": "input.price"}, 0.9]}')
    await add(page, /^Condition/, 'large')
    await write(page, field(page, 'Expression'), '{"if": [{">": [{"var": "nodes.price.result"}, 100]}, "yes", "no"]}')
    await add(page, /^Question/, 'ask')
    await write(page, field(page, 'Prompt'), 'Accept this price?')
    await focusOn(field(page, 'Options'))
    for (const option of ['accept', 'refuse']) {
      await page.keyboard.type(option)
      await page.keyboard.press('Enter')
    }
    await add(page, /^Transform/, 'done')
    const expression = field(page, 'Expression')
    await focusOn(expression)
    await page.keyboard.type('price.r')
    await choose(page, 'nodes.price.result')
    assert.equal(await expression.inputValue(), '{"var": "nodes.price.result"}')
    await connect(page, 'large', 'done')
    await focusOn(field(page, 'Label'))
    await choose(page, 'no')
    await pressEnter(page.locator('#part-panel').getByRole('button', { name: 'Show large' }))
    await pressEnter(page.getByRole('button', { name: 'Edit large → ask' }))
    await focusOn(field(page, 'Label'))
    await page.keyboard.type('yes')
    await page.getByText('Problems: 0, warnings: 0').waitFor()
    await pressEnter(page.getByRole('button', { name: 'Create' }))
    await heading(page, 'By keyboard')
    const { id, nodes, edges } = (await read('/orchestrations?name=By keyboard')).data[0]
    assert.deepEqual(
      nodes.map(({ id, type }: any) => `${id} ${type}`),
      ['price transform', 'large condition', 'ask human', 'done transform'],
    )
    assert.deepEqual(edges, [
      { from: 'price', to: 'large' },
      { from: 'large', to: 'ask', condition: 'yes' },
      { from: 'ask', to: 'done' },
      { from: 'large', to: 'done', condition: 'no' },
    ])
    assert.equal((await settledRun(id, { price: 10 })).output.done.result, 9)
    const run = await settledRun(id, { price: 200 }, { node_id: 'ask', output: { choice: 'accept' } })
    assert.equal(run.output.done.result, 180)
    assert.deepEqual(problems, [])
  })

  it('builds an orchestration with the mouse', async () => {
    await make('/tools', { name: 'Orders', execute: { url: 'https://shop.example.com/orders' } })
    const { page, problems } = await open('orchestrations/new')
    await page.getByLabel('Name').fill('By mouse')
    await entry(page, /^Condition/).dragTo(page.getByText('Nothing here yet'))
    await node(page, 'condition').waitFor()
    await field(page, 'Expression').fill('{"var": "input.kind"}')
    for (const [type, name] of [
      [/^Transform/, 'transform'],
      [/^Agent/, 'agent'],
      [/^Tool/, 'tool'],
    ] as const) {
      await tab(page, 'Add').click()
      // Outside of the nodes nothing is connected.
      await entry(page, type).dragTo(page.locator('.react-flow__pane'), { targetPosition: { x: 10, y: 10 } })
      await node(page, name).waitFor()
      if (name === 'transform') await field(page, 'Expression').fill('done')
    }
    await field(page, 'Tool').click()
    await page.getByRole('option', { name: 'Orders' }).click()
    await node(page, 'agent').click()
    await field(page, 'Agent').click()
    await page.getByRole('option', { name: 'Helper' }).click()
    await draw(page, 'condition', 'transform')
    await field(page, 'Label').fill('short')
    await draw(page, 'condition', 'agent')
    await draw(page, 'agent', 'tool')
    // An edge back is a cycle: it is refused where it is drawn.
    await page.getByRole('status').getByText('agent → tool').waitFor()
    await node(page, 'tool').click()
    await field(page, 'Connect to').click()
    await page.getByRole('option', { name: 'condition' }).click()
    await page.getByRole('status').getByText('tool → condition → agent → tool').waitFor()
    // An edge that is drawn can be chosen and removed.
    const source = await port(page, 'agent', 'source')
    const target = await port(page, 'tool', 'target')
    await page.mouse.click((source.x + target.x) / 2, (source.y + target.y) / 2)
    await page.getByRole('heading', { name: 'agent → tool' }).waitFor()
    await page.getByRole('button', { name: 'Delete' }).click()
    await node(page, 'tool').click()
    await page.getByRole('button', { name: 'Delete' }).click()
    await page.getByText('Problems: 0, warnings: 0').waitFor()
    await page.getByRole('button', { name: 'Create' }).click()
    await heading(page, 'By mouse')
    const { id, nodes, edges } = (await read('/orchestrations?name=By mouse')).data[0]
    assert.deepEqual(nodes, [
      { id: 'condition', type: 'condition', expression: { var: 'input.kind' } },
      { id: 'transform', type: 'transform', expression: 'done' },
      { id: 'agent', type: 'agent', agent_id: suite.app.agentId },
    ])
    assert.deepEqual(edges, [
      { from: 'condition', to: 'transform', condition: 'short' },
      { from: 'condition', to: 'agent' },
    ])
    const { output } = await settledRun(id, { kind: 'short' })
    assert.equal(output.transform.result, 'done')
    assert.match(output.agent.content, /no input/)
    assert.deepEqual(problems, [])
  })

  it('builds a workflow with the keyboard and with the mouse, whose task an agent moves', async () => {
    const { page, problems } = await open('workflows/new')
    await heading(page, 'New workflow')
    await focusOn(page.getByLabel('Name'))
    await page.keyboard.type('Letters')
    await add(page, /^First state/, 'asked')
    await add(page, /^Agent/, 'drafting')
    await page.getByRole('heading', { name: 'Agent' }).waitFor()
    await focusOn(field(page, 'Agent'))
    await choose(page, 'Helper')
    await pressEnter(page.getByRole('button', { name: 'Add to Input of the work' }))
    await write(page, field(page, 'Input of the work: name'), 'prompt')
    await write(page, field(page, 'Input of the work: prompt'), '{"var": "task.title"}')
    await add(page, /^Final state/, 'sent')
    await pressEnter(node(page, 'drafting'))
    await pressEnter(page.getByRole('button', { name: 'Edit to sent: drafting → sent' }))
    await write(page, field(page, 'Name of the transition'), 'send')
    await pressEnter(page.getByRole('button', { name: 'Show drafting' }))
    await pressEnter(page.getByRole('button', { name: 'Add to After a success' }))
    await write(page, field(page, 'Rule 1: When'), '{"var": "result.content"}')
    await node(page, 'sent').waitFor()
    await draw(page, 'drafting', 'asked')
    await field(page, 'Name of the transition').fill('stop')
    await page.getByRole('checkbox', { name: 'Requires an approval' }).check()
    // Another name of a transition is another name in the rules of states.
    await node(page, 'drafting').click()
    await page.getByRole('button', { name: 'Edit send: drafting → sent' }).click()
    await field(page, 'Name of the transition').fill('finish')
    await page.getByRole('button', { name: 'Create' }).click()
    await heading(page, 'Letters')
    const { id, states, transitions } = (await read('/workflows?name=Letters')).data[0]
    assert.deepEqual(states, [
      { name: 'asked', initial: true },
      {
        name: 'drafting',
        on_enter: {
          dispatch: { kind: 'agent', agent_id: suite.app.agentId, input_mapping: { prompt: { var: 'task.title' } } },
          on_complete: [{ when: { var: 'result.content' }, transition: 'finish' }],
        },
      },
      { name: 'sent', terminal: true },
    ])
    assert.deepEqual(transitions, [
      { name: 'to drafting', from: ['asked'], to: 'drafting' },
      { name: 'finish', from: ['drafting'], to: 'sent' },
      { name: 'stop', from: ['drafting'], to: 'asked', requires_approval: true },
    ])
    const task = await make('/tasks', { workflow_id: id, title: 'Thank Ann' })
    await suite.app.admin.post(`/tasks/${task.id}/transitions`, { transition: 'to drafting' })
    await eventually(async () => (await read(`/tasks/${task.id}`)).state === 'sent')
    assert.deepEqual(problems, [])
  })

  it('shows what a service refuses in a workflow at its state, and both changes of two people', async () => {
    const { id } = await make('/workflows', {
      name: 'Two',
      states: [
        { name: 'new', initial: true },
        { name: 'old', terminal: true },
      ],
      transitions: [{ name: 'age', from: ['new'], to: 'old' }],
    })
    const { page } = await open(`workflows/${id}?tab=definition`)
    await node(page, 'old').waitFor()
    await edit(page)
    await node(page, 'new').click()
    await page.getByRole('button', { name: 'More settings' }).click()
    await field(page, 'Stalled after (s)').fill('-1')
    await page.getByRole('button', { name: 'Save' }).click()
    await page.locator('[id="graph-node-new"][data-mark=problem]').waitFor()
    await page.getByText('must be a number of seconds above 0').first().waitFor()
    await field(page, 'Stalled after (s)').fill('60')
    await page.locator('[id="graph-node-new"]:not([data-mark])').waitFor()
    await suite.app.admin.patch(`/workflows/${id}`, { description: 'theirs' })
    await page.getByRole('button', { name: 'Save' }).click()
    const dialog = page.getByRole('dialog', { name: 'Another person has changed this workflow' })
    await dialog.getByText('"theirs"').waitFor()
    await dialog.getByRole('button', { name: 'Save mine' }).click()
    await eventually(async () => (await read(`/workflows/${id}`)).states[0].stalled_after === 60)
    assert.equal((await read(`/workflows/${id}`)).description, 'theirs')
  })

  it('keeps the graph while the JSON is invalid, and undoes and redoes both', async () => {
    const { id } = await make('/orchestrations', {
      name: 'Steps',
      nodes: [
        { id: 'one', type: 'transform', expression: 1 },
        { id: 'two', type: 'transform', expression: { var: 'nodes.one.result' } },
      ],
      edges: chain('one', 'two'),
    })
    const { page, problems } = await open(`orchestrations/${id}`)
    await edit(page)
    await node(page, 'one').click()
    await field(page, 'Name of the node').fill('first')
    await page.keyboard.press('Enter')
    await node(page, 'first').waitFor()
    const renamed = await definition(page)
    assert.deepEqual(renamed.nodes[1].expression, { var: 'nodes.first.result' })
    assert.deepEqual(renamed.edges, [{ from: 'first', to: 'two' }])
    const text = field(page, 'Definition')
    await text.fill('{"nodes": [')
    await page.getByRole('alert').getByText('The JSON is not a valid definition').waitFor()
    assert.equal(await page.locator('.graph-node').count(), 2)
    assert.ok(await page.getByRole('button', { name: 'Save' }).isDisabled())
    await node(page, 'first').focus()
    await page.keyboard.press('Delete')
    assert.equal(await text.inputValue(), '{"nodes": [')
    await page.getByRole('button', { name: 'Return to the last valid JSON' }).click()
    assert.deepEqual(JSON.parse(await text.inputValue()), renamed)
    await node(page, 'two').focus()
    await page.keyboard.press('Delete')
    await node(page, 'two').waitFor({ state: 'detached' })
    await page.keyboard.press('Control+z')
    await node(page, 'two').waitFor()
    await page.getByRole('button', { name: 'Redo' }).click()
    await node(page, 'two').waitFor({ state: 'detached' })
    await page.getByRole('button', { name: 'Undo' }).click()
    await node(page, 'two').waitFor()
    // A field that is not JSON keeps its text until it is, also after a reload, and the graph is not saved without it.
    await tab(page, 'Edit').click()
    await node(page, 'two').click()
    await field(page, 'Expression').fill('{"var":')
    await node(page, 'first').click()
    await page.getByText('1 field is not valid JSON').waitFor()
    assert.ok(await page.getByRole('button', { name: 'Save' }).isDisabled())
    await page.reload()
    await node(page, 'two').click()
    assert.equal(await field(page, 'Expression').inputValue(), '{"var":')
    await field(page, 'Expression').fill('2')
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByRole('tab', { name: 'Versions' }).waitFor()
    assert.deepEqual((await read(`/orchestrations/${id}`)).nodes[1].expression, 2)
    assert.deepEqual(problems, [])
  })

  const unfinished = (page: Page) => page.getByRole('alert').getByText('1 field is not valid JSON')

  it('gives an entry no other name while its value is unfinished', async () => {
    const { id } = await make('/orchestrations', {
      name: 'Unfinished',
      nodes: [{ id: 'ask', type: 'human', prompt: 'Which?', input_mapping: { kind: 1 } }],
      edges: [],
    })
    const { page, problems } = await open(`orchestrations/${id}`)
    await edit(page)
    await node(page, 'ask').click()
    const name = field(page, 'Input: name')
    await field(page, 'Input: kind').fill('{"var":')
    await unfinished(page).waitFor()
    await name.fill('sort')
    await name.press('Enter')
    await page.getByText('Correct the value of this name first').waitFor()
    await field(page, 'Input: kind').fill('{"var": "input.kind"}')
    await unfinished(page).waitFor({ state: 'hidden' })
    await name.press('Enter')
    assert.equal(await field(page, 'Input: sort').inputValue(), '{"var": "input.kind"}')
    assert.deepEqual(problems, [])
  })

  it('forgets unfinished texts of edges with a state', async () => {
    const { id } = await make('/workflows', {
      name: 'Unfinished',
      states: [{ name: 'a', initial: true }, { name: 'b' }],
      transitions: [{ name: 'go', from: ['a'], to: 'b' }],
    })
    const { page, problems } = await open(`workflows/${id}?tab=definition`)
    await edit(page)
    await node(page, 'a').click()
    await page.getByRole('button', { name: 'Edit go: a → b' }).click()
    await field(page, 'Guard').fill('{"var":')
    await unfinished(page).waitFor()
    await node(page, 'b').focus()
    await page.keyboard.press('Delete')
    await unfinished(page).waitFor({ state: 'hidden' })
    await page.getByRole('button', { name: 'Save' }).click()
    await eventually(async () => (await read(`/workflows/${id}`)).states.length === 1)
    assert.deepEqual(problems, [])
  })

  it('completes the JSON from the schema and from what exists, and reports cycles and unknown targets', async () => {
    const { page, problems } = await open('orchestrations/new')
    await tab(page, 'JSON').click()
    const text = field(page, 'Definition')
    await focusOn(text)
    // Keys come before the next frame of a busy browser.
    await page.evaluate(`{
      const draw = requestAnimationFrame
      requestAnimationFrame = step => draw(() => setTimeout(step, 200))
    }`)
    await page.keyboard.press('Control+a')
    await page.keyboard.insertText('{"nodes": [{"id": "a", "type": "agent", ')
    await page.keyboard.type('"ag')
    await choose(page, 'agent_id')
    await page.keyboard.type('"hel')
    await choose(page, suite.app.agentId)
    await page.keyboard.insertText('}], "edges": [{"from": "a", "to": "b", "activation_g')
    await page.evaluate('new Promise(done => requestAnimationFrame(done))')
    await page.keyboard.type('r')
    await choose(page, 'activation_group')
    await page.keyboard.insertText('"x"}]}')
    assert.deepEqual(JSON.parse(await text.inputValue()), {
      nodes: [{ id: 'a', type: 'agent', agent_id: suite.app.agentId }],
      edges: [{ from: 'a', to: 'b', activation_group: 'x' }],
    })
    await page.getByText('edges[0].to').waitFor()
    const nodes = ['a', 'b'].map(id => ({ id, type: 'transform', expression: 1 }))
    await text.fill(JSON.stringify({ nodes, edges: [...chain('a', 'b'), ...chain('b', 'a')] }))
    await page.getByText(/cycle/i).first().waitFor()
    assert.deepEqual(problems, [])
  })

  it('is a list above 500 nodes', async () => {
    const { page } = await open('orchestrations/new')
    await tab(page, 'JSON').click()
    const nodes = Array.from({ length: 501 }, (_, index) => ({ id: `n${index}`, type: 'transform', expression: 1 }))
    await field(page, 'Definition').fill(JSON.stringify({ nodes, edges: [] }))
    await page.getByRole('treeitem', { name: 'n0', exact: false }).first().waitFor()
    assert.equal(await page.locator('.react-flow').count(), 0)
    await page.getByRole('treeitem').first().click()
    await field(page, 'Name of the node').waitFor()
    await page.getByRole('button', { name: 'Delete' }).click()
    await page.locator('.react-flow').waitFor({ timeout: 60_000 })
  })

  it('works on a phone as a list, is accessible, and shows hostile text as text', async () => {
    const name = HOSTILE.slice(0, 200)
    await make('/tools', { name, execute: { url: 'https://shop.example.com/orders' } })
    const flow = await make('/workflows', {
      name: 'Hostile',
      states: [
        { name, initial: true },
        { name: 'b', terminal: true },
      ],
      transitions: [{ name: `${name}!`, from: [name], to: 'b', guard: { '==': [HOSTILE, 1] } }],
    })
    const graph = await make('/orchestrations', {
      name: 'Hostile',
      nodes: [
        { id: 'ask', type: 'human', prompt: HOSTILE, options: [HOSTILE], input_mapping: { [name]: HOSTILE } },
        { id: 'tool', type: 'transform', expression: HOSTILE },
      ],
      edges: [{ from: 'ask', to: 'tool', condition: HOSTILE }],
    })
    for (const [view, first] of [
      [`workflows/${flow.id}`, 0],
      [`orchestrations/${graph.id}`, 0],
    ] as const)
      for (const width of [1280, 360]) {
        const { page, problems } = await open(view, { width })
        await edit(page)
        // The view before has such rows too, and stays while the script of the editor loads.
        await tab(page, 'JSON').waitFor()
        if (width === 360) {
          const row = page.getByRole('treeitem').nth(first)
          await row.focus()
          await page.keyboard.press('Enter')
          await page.locator('#part-key:focus').waitFor()
        } else await page.locator('.graph-node').nth(first).click()
        for (const shown of ['Edit', 'JSON', 'Add']) {
          await tab(page, shown).click()
          for (const colorScheme of ['light', 'dark'] as const) {
            await page.emulateMedia({ colorScheme })
            await page.locator(`html[data-mantine-color-scheme=${colorScheme}]`).waitFor({ state: 'attached' })
            await page.waitForTimeout(300)
            assert.deepEqual(await violations(page), [], `${view} ${shown} ${colorScheme} ${width}`)
          }
          assert.equal(await page.evaluate('document.documentElement.scrollWidth'), width, `${view} ${shown}`)
          assert.equal(await page.locator('main img, main script, main a[href^="javascript"]').count(), 0)
          assert.ok(!(await page.locator('main').innerText()).includes('\u202e'), `${view} ${shown}`)
        }
        assert.deepEqual(problems, [])
      }
  })

  it('refuses to begin what the user may not create', async () => {
    await suite.app.user('vera', [
      allowing(suite.app.projectId, ['projects:*', 'orchestrations:List*', 'workflows:GetWorkflow', 'workflows:List*']),
    ])
    const flow = await make('/workflows', { name: 'Seen', states: [{ name: 'a', initial: true }], transitions: [] })
    const watched = await openConsole(suite.chromium, suite.app, at('orchestrations/new'), 'vera')
    suite.closeLater(watched)
    const { page } = watched
    await page.getByText('orchestrations:CreateOrchestration').waitFor()
    await page.goto(`${suite.app.base}/app${at('workflows/new')}`)
    await page.getByText('workflows:CreateWorkflow').waitFor()
    await page.goto(`${suite.app.base}/app${at(`workflows/${flow.id}?tab=definition`)}`)
    await node(page, 'a').waitFor()
    assert.equal(await page.getByRole('link', { name: 'Edit' }).count(), 0)
  })
})
