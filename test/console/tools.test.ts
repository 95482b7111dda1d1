import assert from 'node:assert/strict'
import fs from 'node:fs'
import { eventually } from '../support/app.ts'
import { postedBy } from '../support/replies.ts'
import { consoleSuite, go, HOSTILE, tabTo } from './support.ts'

describe('tools and conversations in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation'])
  const { at, open, heading } = suite
  const project = () => suite.app.projectId

  /** Sends a request of the admin and returns the record. */
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const read = async (path: string) => (await suite.app.admin.get(path)).body
  it('creates a tool by its form, calls it with a form of its parameters, and tries and attaches a guardrail', async () => {
    const { page, problems } = await open('tools')
    await page.getByRole('button', { name: 'New tool' }).first().press('Enter')
    const form = page.getByRole('dialog', { name: 'New tool' })
    await form.getByLabel('Name').fill('models')
    await form.getByLabel('URL').fill(`${suite.app.double.url}/v1/models`)
    await form.getByLabel('Method').click()
    await page.getByRole('option', { name: 'GET' }).click()
    const parameters = { type: 'object', required: ['amount'], properties: { amount: { type: 'number' } } }
    await form.getByLabel('Parameters', { exact: true }).fill(JSON.stringify(parameters))
    await form.getByRole('button', { name: 'Create' }).click()
    await heading(page, 'models')
    await page.getByRole('tab', { name: 'Call' }).click()
    await tabTo(page, 'Call tool')
    await page.keyboard.press('Enter')
    await page.getByText('This field is required').waitFor()
    await page.getByLabel('Amount').fill('150')
    await page.keyboard.press('Enter')
    await page.getByText('"double-1"').waitFor()
    const { data: tools } = await read(`/tools?project_id=${project()}&name=models`)
    assert.deepEqual(tools[0].execute, { url: `${suite.app.double.url}/v1/models`, method: 'GET' })

    await go(page, at('guardrails'))
    await page.getByRole('button', { name: 'New guardrail' }).first().click()
    const rules = page.getByRole('dialog', { name: 'New guardrail' })
    await rules.getByLabel('Name').fill('payments')
    await rules.getByRole('textbox', { name: 'Class', exact: true }).fill('B')
    await rules.getByRole('textbox', { name: 'Guard', exact: true }).fill('{"<": [{"var": "args.amount"}, 200]}')
    await rules.getByRole('button', { name: 'Create' }).click()
    await heading(page, 'payments')
    await page.getByRole('tab', { name: 'Try' }).click()
    for (const [amount, decision] of [
      [150, 'The call is executed.'],
      [450, 'The guard stops the call.'],
    ] as const) {
      await page.getByLabel('Args').fill(JSON.stringify({ amount }))
      await page.getByRole('button', { name: 'Evaluate' }).press('Enter')
      await page.getByText(decision).waitFor()
    }
    await page.getByRole('tab', { name: 'Where it applies' }).click()
    const dialog = page.getByRole('dialog', { name: 'Attach' })
    for (const name of ['Tool: models', 'Agent: Helper']) {
      await page.getByRole('button', { name: 'Attach' }).click()
      await dialog.getByLabel('Attach to').fill(name)
      await page.getByRole('option', { name }).click()
      await dialog.getByRole('button', { name: 'Attach' }).click()
      await dialog.waitFor({ state: 'hidden' })
    }
    const { guardrail_ids: attached } = await read(`/agents/${suite.app.agentId}`)
    assert.equal(attached.length, 1)
    await go(page, at(`tools/${tools[0].id}?tab=call`))
    await page.getByLabel('Amount').fill('900')
    await page.keyboard.press('Enter')
    await page.getByText('"tripwire"').waitFor()
    await suite.app.admin.patch(`/agents/${suite.app.agentId}`, { guardrail_ids: null })
    // The refused call is what the browser reports.
    assert.deepEqual(
      problems.filter(problem => !problem.includes('Failed to load resource')),
      [],
    )
  })

  it('warns of an address that the egress rule blocks when a tool or a webhook is saved', async () => {
    const blocked = 'http://169.254.169.254/x'
    const { page, problems } = await open('tools')
    const warned = async (path: string) => {
      await page.getByText('Saved, with a warning').first().waitFor()
      await page.getByText(new RegExp(`^${path}: .*EGRESS_ALLOW_HOSTS$`)).waitFor()
    }
    await page.getByRole('button', { name: 'New tool' }).first().click()
    const form = page.getByRole('dialog', { name: 'New tool' })
    await form.getByLabel('Name').fill('inside')
    await form.getByLabel('URL').fill(blocked)
    await form.getByRole('button', { name: 'Create' }).click()
    await heading(page, 'inside')
    await warned('execute\\.url')

    await go(page, at('webhooks'))
    await page.getByRole('button', { name: 'New webhook' }).first().click()
    const hook = page.getByRole('dialog')
    await hook.getByLabel('Name').fill('inside')
    await hook.getByLabel('URL').fill(blocked)
    await page.keyboard.press('Tab')
    await page.keyboard.type('agents.*')
    await page.keyboard.press('Enter')
    await hook.getByRole('button', { name: 'Create' }).click()
    await page.getByRole('button', { name: 'I have copied it' }).click()
    await warned('url')
    const { data } = await read(`/webhooks?project_id=${project()}`)
    assert.deepEqual(
      data.map((each: { url: string }) => each.url),
      [blocked],
    )
    assert.deepEqual(problems, [])
  })

  it('edits a tool as JSON, and shows both changes where two people edit a guardrail', async () => {
    const execute = { url: `${suite.app.double.url}/v1/models`, method: 'GET' }
    const { id } = await post('/tools', { project_id: project(), name: 'lookup', description: 'old', execute })
    const { page, problems } = await open(`tools/${id}`)
    await page.getByRole('button', { name: 'Edit' }).click()
    const form = page.getByRole('dialog', { name: 'Edit' })
    await form.getByText('JSON', { exact: true }).click()
    const json = form.getByRole('textbox', { name: 'JSON' })
    await json.waitFor()
    const record = JSON.parse(await json.inputValue())
    for (const text of ['[1]', 'null']) {
      await json.fill(text)
      await form.getByRole('button', { name: 'Save' }).click()
      await form.getByText('This is not a JSON object').waitFor()
    }
    await json.fill(JSON.stringify({ ...record, description: 'new' }))
    const [request] = await Promise.all([
      page.waitForRequest(each => each.method() === 'PATCH'),
      form.getByRole('button', { name: 'Save' }).click(),
    ])
    assert.deepEqual(request.postDataJSON(), { description: 'new' })
    await page.getByText('new', { exact: true }).waitFor()
    assert.deepEqual(problems, [])

    const guardrail = await post('/guardrails', { project_id: project(), name: 'shared', document: { class: 'B' } })
    await go(page, at(`guardrails/${guardrail.id}`))
    await heading(page, 'shared')
    await page.getByRole('button', { name: 'Edit' }).click()
    await form.getByLabel('Description').fill('mine')
    await suite.app.admin.patch(`/guardrails/${guardrail.id}`, { description: 'theirs', document: { class: 'C' } })
    await form.getByRole('button', { name: 'Save' }).click()
    const conflict = page.getByRole('dialog', { name: 'Another person has changed this record' })
    await conflict.getByText('"theirs"').waitFor()
    await conflict.getByText('"mine"').waitFor()
    await conflict.getByRole('button', { name: 'Save mine' }).click()
    await eventually(async () => (await read(`/guardrails/${guardrail.id}`)).description === 'mine')
    assert.deepEqual((await read(`/guardrails/${guardrail.id}`)).document, { class: 'C' })
    await form.waitFor({ state: 'hidden' })
  })

  it('keeps conversations: adds messages, lets an agent reply, rates it, exports, closes and deletes', async () => {
    const { page, problems } = await open('conversations')
    await page.getByRole('button', { name: 'New conversation' }).first().press('Enter')
    const form = page.getByRole('dialog', { name: 'New conversation' })
    await form.getByLabel('Name').waitFor()
    await page.keyboard.type('An imported thread')
    await page.keyboard.press('Enter')
    await heading(page, 'An imported thread')
    await tabTo(page, 'Add message')
    await page.keyboard.type('Is the kettle back?')
    await tabTo(page, 'Add message')
    await page.keyboard.press('Enter')
    const log = page.getByRole('log')
    await log.getByText('Is the kettle back?').waitFor()
    await page.getByRole('button', { name: 'Let an agent reply' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Let the agent reply' }).click()
    await log.getByText('echo: Is the kettle back?').waitFor()
    await page.getByRole('button', { name: 'More about message 1' }).click()
    await page.getByRole('menuitem', { name: 'Give feedback' }).click()
    const feedback = page.getByRole('dialog', { name: 'Give feedback' })
    await feedback.getByLabel('Comment').fill('No answer')
    await feedback.getByRole('button', { name: 'Save' }).click()
    await page.getByText('Your feedback was saved').waitFor()
    const more = page.getByRole('button', { name: 'Show more' })
    await more.click()
    await page.getByRole('menuitem', { name: 'Export' }).click()
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('dialog').getByRole('button', { name: 'Export' }).click(),
    ])
    const lines = fs
      .readFileSync(await download.path(), 'utf8')
      .trim()
      .split('\n')
    assert.deepEqual(
      lines.map(line => JSON.parse(line).content),
      ['Is the kettle back?', 'echo: Is the kettle back?'],
    )
    await more.click()
    await page.getByRole('menuitem', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await heading(page, 'Conversations')
    assert.equal((await read(`/conversations?project_id=${project()}&name=imported`)).total, 0)
    assert.deepEqual(problems, [])
  })

  it('forks a session from a message, edits a message in a fork, rates a reply, and deletes a message', async () => {
    const session = await post('/sessions', {
      project_id: project(),
      agent_id: suite.app.agentId,
      name: 'Talk',
      auto_generate: true,
    })
    await post(`/sessions/${session.id}/messages?wait=true`, { message: 'first' })
    await post(`/sessions/${session.id}/messages?wait=true`, { message: 'second' })
    const { page, problems } = await open(`sessions/${session.id}`)
    const log = page.getByRole('log')
    await log.getByText('echo: second').waitFor()
    const choose = async (position: number, item: string) => {
      await page.getByRole('button', { name: `More about message ${position}` }).press('Enter')
      await page.getByRole('menuitem', { name: item }).press('Enter')
    }
    await choose(1, 'Give feedback')
    const dialog = page.getByRole('dialog')
    await dialog.getByRole('combobox', { name: 'Rating' }).click()
    await page.getByRole('option', { name: 'Bad' }).click()
    await dialog.getByLabel('Comment').fill('Repeats me')
    await dialog.getByRole('button', { name: 'Save' }).press('Enter')
    await log.getByText('Repeats me').waitFor()
    const { data: ratings } = await read(`/feedback?project_id=${project()}&session_id=${session.id}`)
    assert.deepEqual([ratings[0].rating, ratings[0].comment], [-1, 'Repeats me'])

    await choose(2, 'Edit in a fork')
    await dialog.getByLabel('Text').fill('second, edited')
    await dialog.getByRole('button', { name: 'Send in a fork' }).press('Enter')
    await heading(page, 'Fork of Talk')
    await log.getByText('second, edited', { exact: true }).waitFor()
    await log.getByText('echo: second, edited').waitFor()
    assert.equal(await log.getByText('echo: second', { exact: true }).count(), 0)
    await page.getByRole('button', { name: 'More about the session' }).click()
    await page.getByRole('menuitem', { name: 'Details' }).click()
    await dialog.getByRole('link', { name: 'At message 1' }).click()
    await heading(page, 'Talk')

    await choose(3, 'Delete')
    await dialog.getByRole('button', { name: 'Delete' }).press('Enter')
    await log.getByText('echo: second').waitFor({ state: 'detached' })
    const { data } = await read(`/sessions/${session.id}/messages`)
    assert.deepEqual(
      data.map(({ content }: { content: string }) => content),
      ['first', 'echo: first', 'second'],
    )
    assert.deepEqual(problems, [])
  })

  it('has no violation of WCAG 2.2 AA in any view, and no sideways scrolling on a phone', async () => {
    const guardrail = await post('/guardrails', {
      project_id: project(),
      name: 'Access rules',
      document: { class: 'C' },
    })
    const tool = await post('/tools', {
      project_id: project(),
      name: 'access-tool',
      execute: { url: `${suite.app.double.url}/v1/models` },
      parameters: { type: 'object', properties: { amount: { type: 'number' } } },
      guardrail_ids: [guardrail.id],
    })
    const conversation = await post('/conversations', { project_id: project(), name: 'Access thread' })
    await post(`/conversations/${conversation.id}/messages`, { role: 'user', message: 'Hello', metadata: { a: 1 } })
    await suite.checkAccess([
      ['tools', 'Tools'],
      [`tools/${tool.id}`, 'access-tool'],
      [`tools/${tool.id}?tab=call`, 'access-tool'],
      [`tools/${tool.id}?tab=shares`, 'access-tool'],
      ['guardrails', 'Guardrails'],
      [`guardrails/${guardrail.id}`, 'Access rules'],
      [`guardrails/${guardrail.id}?tab=try`, 'Access rules'],
      [`guardrails/${guardrail.id}?tab=attached`, 'Access rules'],
      [`guardrails/${guardrail.id}?tab=versions`, 'Access rules'],
      ['conversations', 'Conversations'],
      [`conversations/${conversation.id}`, 'Access thread'],
    ])
  })

  it('shows hostile text as text', async () => {
    const tool = await post('/tools', {
      project_id: project(),
      name: HOSTILE,
      description: HOSTILE,
      execute: { url: `${suite.app.double.url}/v1/models` },
      parameters: { type: 'object', properties: { [HOSTILE]: { type: 'string', description: HOSTILE } } },
    })
    const guardrail = await post('/guardrails', {
      project_id: project(),
      name: HOSTILE,
      description: HOSTILE,
      document: { class: 'A' },
    })
    const conversation = await post('/conversations', { project_id: project(), name: HOSTILE })
    await post(`/conversations/${conversation.id}/messages`, { role: 'user', message: HOSTILE })
    await suite.checkHostileText([
      'tools',
      `tools/${tool.id}`,
      `tools/${tool.id}?tab=call`,
      'guardrails',
      `guardrails/${guardrail.id}`,
      'conversations',
      `conversations/${conversation.id}`,
    ])
  })
})
