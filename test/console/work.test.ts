import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy } from '../support/replies.ts'
import { choose, consoleSuite, focusOn, go, HOSTILE, openConsole, pressEnter, violations } from './support.ts'

describe('work in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'orchestration', 'evaluation', 'delivery'])
  const { at, open, heading, closeLater } = suite
  const made = (path: string, body: object): Promise<any> =>
    createdBy(suite.app.admin, path, { project_id: suite.app.projectId, ...body })
  const read = async (path: string): Promise<any> => (await suite.app.admin.get(path)).body

  const workflow = (name: string, fields: object = {}) =>
    made('/workflows', {
      name,
      states: [
        { name: 'inbox', initial: true },
        { name: 'doing', kind: 'human' },
        { name: 'done', terminal: true },
      ],
      transitions: [
        { name: 'begin', from: ['inbox'], to: 'doing' },
        { name: 'finish', from: ['doing'], to: 'done' },
        { name: 'return', from: ['doing'], to: 'inbox' },
      ],
      ...fields,
    })
  const task = (workflow_id: string, title: string, fields: object = {}) =>
    made('/tasks', { workflow_id, title, ...fields })

  it('moves a card by dragging it and by the keyboard, and shows its history', async () => {
    const flow = await workflow('Requests')
    const { id } = await task(flow.id, 'Broken lamp')
    const { page, problems } = await open(`workflows/${flow.id}`)
    const column = (name: string) => page.getByRole('region', { name, exact: true })
    const state = async () => (await read(`/tasks/${id}`)).state
    const card = page.getByRole('article', { name: 'Broken lamp' })
    await card.dragTo(column('doing'))
    await column('doing').getByRole('article', { name: 'Broken lamp' }).waitFor()
    await eventually(async () => (await state()) === 'doing', { what: 'the task is moved' })
    await page.getByText('Broken lamp is in doing now').waitFor()
    await pressEnter(page.getByRole('button', { name: 'Actions of Broken lamp' }))
    await page.getByRole('menuitem', { name: 'finish' }).waitFor()
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('Enter')
    await eventually(async () => (await state()) !== 'doing', { what: 'the task is moved' })
    await column('done').getByRole('article', { name: 'Broken lamp' }).waitFor()
    await eventually(async () => (await page.evaluate('document.activeElement.id')) === `task-${id}`, {
      what: 'the keyboard focus is on the card',
    })
    await pressEnter(page.getByRole('link', { name: 'Broken lamp' }))
    const panel = page.getByRole('dialog', { name: 'Broken lamp' })
    await panel.getByText('finish: doing → done').waitFor()
    await panel.getByText('Created in inbox').waitFor()
    await page.keyboard.press('Escape')
    await panel.waitFor({ state: 'detached' })
    assert.deepEqual(problems, [])
  })

  it('draws fifty cards of a column, and more on demand', async () => {
    const flow = await workflow('Many')
    for (let left = 53; left > 0; left--) await task(flow.id, `Card ${left}`)
    const { page, problems } = await open(`workflows/${flow.id}`)
    const cards = page.getByRole('region', { name: 'inbox', exact: true }).getByRole('article')
    await cards.first().waitFor()
    assert.equal(await cards.count(), 50)
    await page.getByText('53', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Show 3 more' }).click()
    await page.getByRole('article', { name: 'Card 53' }).waitFor()
    assert.equal(await cards.count(), 53)
    assert.deepEqual(problems, [])
  })

  it('returns a card to its column where the service refuses the move, and says why', async () => {
    const flow = await workflow('Guarded', {
      transitions: [
        { name: 'begin', from: ['inbox'], to: 'doing', guard: { '==': [{ var: 'task.payload.ok' }, true] } },
      ],
    })
    await task(flow.id, 'Not yet')
    const { page } = await open(`workflows/${flow.id}`)
    await page
      .getByRole('article', { name: 'Not yet' })
      .dragTo(page.getByRole('region', { name: 'doing', exact: true }))
    await page.getByRole('alert').getByText('TASK_GUARD_REJECTED').waitFor()
    await page.getByRole('region', { name: 'inbox', exact: true }).getByRole('article').waitFor()
  })

  it('creates, assigns and pauses tasks', async () => {
    const payload_schema = { type: 'object', properties: { order: { type: 'string' } }, required: ['order'] }
    const flow = await workflow('Orders', { payload_schema })
    const { page, problems } = await open(`workflows/${flow.id}`)
    await page.getByRole('button', { name: 'New task' }).click()
    const dialog = page.getByRole('dialog', { name: 'New task' })
    await dialog.getByLabel('Title').fill('Order 7')
    await page.keyboard.press('Enter')
    await dialog.getByText('This field is required').waitFor()
    await dialog.getByLabel('Order').fill('L-7')
    await page.keyboard.press('Enter')
    const menu = async (item: string) => {
      await page.getByRole('button', { name: 'Actions of Order 7' }).click()
      await page.getByRole('menuitem', { name: item }).click()
    }
    await menu('Assign')
    await page.getByRole('dialog').getByLabel('Assignee').fill('kim')
    await page.keyboard.press('Enter')
    await page.getByRole('article', { name: 'Order 7' }).getByText('kim').waitFor()
    await menu('Pause')
    await page.getByRole('dialog').getByLabel('Reason').fill('waits for parts')
    await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click()
    await page.getByRole('article', { name: 'Order 7' }).getByText('Paused').waitFor()
    await menu('Resume')
    const { data } = await read(`/tasks?workflow_id=${flow.id}`)
    const { assignee, payload } = data[0]
    assert.deepEqual([assignee, payload], ['kim', { order: 'L-7' }])
    await eventually(async () => (await read(`/tasks/${data[0].id}`)).pause_requested_at === null)
    assert.deepEqual(problems, [])
  })

  it('shows why the work of a task failed, and repeats it', async () => {
    const flow = await workflow('Drafts', {
      states: [
        {
          name: 'drafting',
          initial: true,
          on_enter: {
            dispatch: { kind: 'agent', agent_id: suite.app.agentId, input_mapping: { prompt: { var: 'task.title' } } },
          },
        },
        { name: 'done', terminal: true },
      ],
      transitions: [{ name: 'finish', from: ['drafting'], to: 'done' }],
    })
    const title = '@double {"error":{"status":400,"message":"too long"}}'
    const { id } = await task(flow.id, title)
    const { page, problems } = await open(`workflows/${flow.id}`)
    await page.getByText('Work failed').waitFor()
    await page.getByText('too long').first().waitFor()
    const attempts = async () => (await read(`/generations?limit=100`)).total
    const before = await attempts()
    await page.getByRole('button', { name: /Actions of/ }).click()
    await page.getByRole('menuitem', { name: 'Retry the work' }).click()
    await eventually(async () => (await attempts()) > before, { what: 'another turn' })
    await eventually(async () => (await read(`/tasks/${id}`)).automation_status === 'failed')
    assert.deepEqual(problems, [])
  })

  const MANUAL = {
    key: 'check',
    title: 'Check the receipt',
    type: 'manual',
    instructions: 'Compare the receipt.',
    skippable: true,
    result_schema: {
      type: 'object',
      required: ['paid'],
      properties: { paid: { type: 'number', title: 'Amount paid', maximum: 100 } },
    },
    required_evidence: [{ name: 'Receipt', kind: 'note' }],
  }
  const playbook = (name: string, steps: object[]) => made('/playbooks', { name, steps })

  it('leads from a new case through a manual step to its outcome, by the keyboard alone', async () => {
    await playbook('Review', [MANUAL])
    const { page, problems } = await open('cases')
    await pressEnter(page.getByRole('button', { name: 'New case' }).first())
    await page.getByRole('dialog').getByLabel('Title').waitFor()
    await page.keyboard.type('Broken lamp')
    await page.keyboard.press('Enter')
    await pressEnter(page.getByRole('button', { name: 'Start playbook' }))
    const start = page.getByRole('dialog')
    await focusOn(start.getByLabel('Playbook'))
    await choose(page, 'Review')
    await pressEnter(start.getByRole('button', { name: 'Start', exact: true }))
    await page.getByText('Compare the receipt.').waitFor()
    await page.getByText('Waits for a person').waitFor()
    // The service refuses the step without its evidence.
    await page.getByLabel('Amount paid').fill('20')
    await pressEnter(page.getByRole('button', { name: 'Complete the step' }))
    await page.getByRole('alert').waitFor()
    await page.getByLabel('Receipt').fill('seen')
    await pressEnter(page.getByRole('button', { name: 'Complete the step' }))
    await page.getByText('Step completed: check').waitFor()
    await page.getByText('Resolved', { exact: true }).first().waitFor()
    const { data } = await read(`/cases?project_id=${suite.app.projectId}&q=Broken`)
    const evidence = (await read(`/cases/${data[0].id}/evidence`)).data
    assert.deepEqual(
      evidence.map(({ name, kind }: any) => [name, kind]),
      [
        ['Receipt', 'note'],
        ['Check the receipt', 'output'],
      ],
    )
    assert.deepEqual(problems, ['Failed to load resource: the server responded with a status of 400 (Bad Request)'])
  })

  it('adds to the record of a case, and exports it', async () => {
    const { id } = await made('/cases', { title: 'Double charge' })
    const { page, problems } = await open(`cases/${id}`)
    await page.getByLabel('Comment').fill('Called the customer')
    await page.getByRole('button', { name: 'Add comment' }).click()
    await page.getByRole('tab', { name: 'Evidence' }).click()
    await page.getByRole('button', { name: 'Add evidence' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('Name').fill('Statement')
    await dialog.getByLabel('Kind').click()
    await page.getByRole('option', { name: 'File' }).click()
    await dialog
      .locator('input[type=file]')
      .setInputFiles({ name: 'a.txt', mimeType: 'text/plain', buffer: Buffer.from('20 EUR') })
    await dialog.getByRole('button', { name: 'Add evidence' }).click()
    await page.getByRole('row', { name: /Statement/ }).waitFor()
    await page.getByRole('tab', { name: 'Exports' }).click()
    await page.getByRole('button', { name: 'Export' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Export' }).click()
    const saved = page.waitForEvent('download')
    await page.getByRole('button', { name: /Download markdown/ }).click()
    const path = await (await saved).path()
    const text = await readFile(path, 'utf8')
    for (const part of ['Double charge', 'Called the customer', 'Statement']) assert.ok(text.includes(part), part)
    await page.getByRole('button', { name: 'Resolve' }).click()
    await page.getByRole('dialog').getByLabel('Outcome').fill('refunded')
    await page.keyboard.press('Enter')
    await page.getByText('refunded').first().waitFor()
    assert.deepEqual(problems, [])
  })

  it('evaluates an agent twice, and shows first what regressed, by the keyboard alone', async () => {
    const { app } = suite
    const { id: dataset_id } = await made('/datasets', { name: 'Questions' })
    for (const [content, expected_output] of [
      ['open', 'echo: open'],
      ['closed', 'no such answer'],
    ])
      assert.equal(
        (await app.admin.post(`/datasets/${dataset_id}/items`, { input: [{ role: 'user', content }], expected_output }))
          .status,
        201,
      )
    const agent = await made('/agents', { name: 'Answers', ai_provider_id: app.providerId, model: 'double-1' })
    const evaluation = await made('/evals', {
      name: 'Opening hours',
      agent_id: agent.id,
      dataset_id,
      pass_threshold: 0.5,
      scorers: [{ type: 'exact_match' }],
    })
    const { page, problems } = await open(`evals/${evaluation.id}`)
    const run = async () => {
      await pressEnter(page.getByRole('button', { name: 'Run', exact: true }))
      await pressEnter(page.getByRole('dialog').getByRole('button', { name: 'Run', exact: true }))
    }
    await run()
    await page.getByRole('cell', { name: '50%', exact: true }).waitFor()
    const script = { rules: [{ reply: { text: 'echo: something else' } }] }
    const lane = await fetch(`${app.double.url}/control/lanes/worse`, { method: 'PUT', body: JSON.stringify(script) })
    assert.equal(lane.status, 200)
    await app.admin.patch(`/agents/${agent.id}`, { model: 'worse/m' })
    await run()
    await page.getByRole('cell', { name: '0%', exact: true }).waitFor()
    await pressEnter(page.getByRole('tab', { name: 'Compare' }))
    await page.getByText('1 regressed, 0 improved').waitFor()
    const item = page.getByRole('region', { name: 'open', exact: true })
    await item.getByText('Regressed').waitFor()
    assert.equal(await item.locator('del').innerText(), 'open')
    assert.equal(await item.locator('ins').innerText(), 'something else')
    assert.equal(await page.getByRole('region', { name: 'closed', exact: true }).count(), 0)
    await pressEnter(page.getByRole('button', { name: 'Items with an equal outcome' }))
    await page.getByRole('region', { name: 'closed', exact: true }).waitFor()
    // The new answer is the right one: it becomes the expected one.
    await pressEnter(page.getByRole('tab', { name: 'Runs' }))
    await pressEnter(page.getByRole('link', { name: /Version 2/ }))
    await pressEnter(page.getByRole('button', { name: 'Use as expected output' }).first())
    await pressEnter(page.getByRole('dialog').getByRole('button', { name: 'Use as expected output' }))
    await page.getByText('The expected output is changed').waitFor()
    const items = (await read(`/datasets/${dataset_id}/items`)).data
    assert.equal(items[0].expected_output, 'echo: something else')
    assert.deepEqual(problems, [])
  })

  it('fills a dataset by a form and by a file', async () => {
    const { id } = await made('/datasets', { name: 'Imported' })
    const { page, problems } = await open(`datasets/${id}`)
    await page.getByRole('button', { name: 'Add item' }).click()
    await page.getByRole('dialog').getByLabel('Message of the user').fill('When do you open?')
    await page.getByRole('dialog').getByRole('button', { name: 'Add item' }).click()
    await page.getByText('When do you open?').waitFor()
    await page.getByRole('button', { name: 'Import file' }).click()
    const dialog = page.getByRole('dialog')
    const buffer = Buffer.from('input,expected_output\nAnd on Sunday?,closed\n')
    await dialog.locator('input[type=file]').setInputFiles({ name: 'items.csv', mimeType: 'text/csv', buffer })
    await dialog.getByRole('button', { name: 'Import file' }).click()
    await page.getByText('And on Sunday?').waitFor()
    const saved = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Export csv' }).click()
    assert.equal((await saved).suggestedFilename(), 'Imported.csv')
    assert.deepEqual(problems, [])
  })

  /** One record of each kind, with a text wherever the API takes one. */
  async function everything(text: string) {
    const flow = await workflow(text.slice(0, 200), {
      description: text,
      states: [
        { name: text.slice(0, 100), initial: true },
        { name: 'end', terminal: true },
      ],
      transitions: [{ name: text.slice(0, 100), from: [text.slice(0, 100)], to: 'end' }],
    })
    const card = await task(flow.id, text, { assignee: text, payload: { note: text } })
    const { id: playbook_id } = await playbook(text.slice(0, 200), [
      { ...MANUAL, title: text.slice(0, 190), instructions: text, assignee: text },
    ])
    const record = await made('/cases', {
      title: text,
      description: text,
      assignee: text,
      playbook_id,
      fields: { a: text },
    })
    await suite.app.admin.post(`/cases/${record.id}/comments`, { body: text })
    await suite.app.admin.post(`/cases/${record.id}/evidence`, { name: text, kind: 'note', content: text })
    const execution = (await suite.app.admin.post('/playbook-executions', { case_id: record.id })).body
    await eventually(async () => (await read(`/playbook-executions/${execution.id}`)).status === 'waiting')
    const dataset = await made('/datasets', { name: text.slice(0, 200), description: text })
    await suite.app.admin.post(`/datasets/${dataset.id}/items`, {
      input: [{ role: 'user', content: text }],
      expected_output: text,
    })
    const evaluation = await made('/evals', {
      name: text.slice(0, 200),
      agent_id: suite.app.agentId,
      dataset_id: dataset.id,
      scorers: [{ type: 'exact_match' }],
    })
    const [first, second] = [
      (await suite.app.admin.post(`/evals/${evaluation.id}/runs`, { wait: true })).body,
      (await suite.app.admin.post(`/evals/${evaluation.id}/runs`, { wait: true })).body,
    ]
    assert.deepEqual([first.status, second.status], ['completed', 'completed'])
    return {
      flow: flow.id,
      card: card.id,
      playbook: playbook_id,
      record: record.id,
      execution: execution.id,
      dataset: dataset.id,
      evaluation: evaluation.id,
      run: second.id,
    }
  }

  it('has no violation of WCAG 2.2 AA, and no sideways scrolling on a phone', async () => {
    const ids = await everything('A lamp')
    await suite.checkAccess([
      ['workflows', 'Workflows'],
      [`workflows/${ids.flow}`, 'A lamp'],
      [`workflows/${ids.flow}?tab=definition`, 'A lamp'],
      ['cases', 'Cases'],
      [`cases/${ids.record}`, 'A lamp'],
      [`cases/${ids.record}?tab=evidence`, 'A lamp'],
      [`cases/${ids.record}/executions/${ids.execution}`, 'A lamp v1'],
      ['playbooks', 'Playbooks'],
      [`playbooks/${ids.playbook}`, 'A lamp'],
      ['evals', 'Evaluations'],
      [`evals/${ids.evaluation}`, 'A lamp'],
      [`evals/${ids.evaluation}?tab=compare`, 'A lamp'],
      [`evals/${ids.evaluation}/runs/${ids.run}`, 'A lamp'],
      ['datasets', 'Datasets'],
      [`datasets/${ids.dataset}`, 'A lamp'],
    ])
    const { page, problems } = await open(`workflows/${ids.flow}?task=${ids.card}`)
    await page.getByRole('dialog', { name: 'A lamp' }).getByText('Created in A lamp').waitFor()
    assert.deepEqual(await violations(page), [])
    assert.deepEqual(problems, [])
  })

  it('shows hostile text as text', async () => {
    const ids = await everything(HOSTILE)
    await suite.checkHostileText([
      'workflows',
      `workflows/${ids.flow}`,
      `workflows/${ids.flow}?tab=definition`,
      'cases',
      `cases/${ids.record}`,
      `cases/${ids.record}?tab=evidence`,
      `cases/${ids.record}?tab=fields`,
      `cases/${ids.record}/executions/${ids.execution}`,
      'playbooks',
      `playbooks/${ids.playbook}`,
      'evals',
      `evals/${ids.evaluation}?tab=compare`,
      `evals/${ids.evaluation}/runs/${ids.run}`,
      'datasets',
      `datasets/${ids.dataset}`,
    ])
  })

  it('offers commands only to those who may use them', async () => {
    const flow = await workflow('Seen')
    await task(flow.id, 'A card')
    const actions = [
      'projects:*',
      'workflows:GetWorkflow',
      'workflows:ListWorkflows',
      'tasks:ListTasks',
      'tasks:GetTask',
    ]
    await suite.app.user('dora', [allowing(suite.app.projectId, actions)])
    const watched = await openConsole(suite.chromium, suite.app, at(`workflows/${flow.id}`), 'dora')
    closeLater(watched)
    const { page } = watched
    await page.getByRole('article', { name: 'A card' }).waitFor()
    assert.equal(await page.getByRole('button', { name: 'New task' }).count(), 0)
    assert.equal(await page.getByRole('button', { name: 'Actions of A card' }).count(), 0)
    const requested: string[] = []
    page.on('request', request => requested.push(new URL(request.url()).pathname))
    for (const [view, action] of [
      ['cases', 'cases:ListCases'],
      ['playbooks', 'playbooks:ListPlaybooks'],
      ['evals', 'evaluations:ListEvals'],
      ['datasets', 'evaluations:ListDatasets'],
    ]) {
      await go(page, at(view))
      await page.getByText(action).waitFor()
    }
    assert.deepEqual(
      requested.filter(path => path.startsWith('/api/')),
      [],
    )
  })

  it('shows views while the permissions cannot be read, and does not repeat the request endlessly', async () => {
    const { page } = await open('start')
    let requests = 0
    await page.route('**/users/me/permissions**', route => {
      requests++
      return route.fulfill({ status: 500, json: { error: { code: 'INTERNAL_ERROR', message: 'm', hint: 'h' } } })
    })
    await page.reload()
    await go(page, at('workflows'))
    await heading(page, 'Workflows')
    // Enough other requests, one after the other, that an endless repetition would be among them.
    await page.route('**/healthz', route => route.fulfill({ body: '' }))
    for (let n = 0; n < 30; n++) await page.evaluate(`fetch('/healthz').then(() => {})`)
    await page.context().unroute('**/users/me/permissions**')
    assert.ok(requests > 0 && requests < 8, `${requests} requests`)
  })
})
