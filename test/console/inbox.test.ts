import assert from 'node:assert/strict'
import type { Request } from 'playwright-core'
import { ExactNumber, parseExactJson } from '#core/base/exact-json.ts'
import { voidStatement } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { openPage } from '../support/chromium.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import {
  addApprovals,
  choose,
  consoleSuite,
  focusOn,
  go,
  HOSTILE,
  openConsole,
  pressEnter,
  signIn,
  violations,
} from './support.ts'

/** A number that a double does not keep. */
const ORDER = new ExactNumber('2512292042121000001')

const isOfStream = (request: Request): boolean => request.url().includes('/activity/stream')

describe('the inbox of the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'orchestration'])
  const { at, open, heading, closeLater } = suite

  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const create = async (path: string, body: object) => await post(path, { project_id: suite.app.projectId, ...body })
  const read = async (path: string) => (await suite.app.admin.get(path)).body

  /** Starts work that waits for a person in each way, and returns what reads its state. */
  const waiting = async (text = '') => {
    const graph = await create('/orchestrations', {
      name: `ask ${Math.random()}`,
      nodes: [{ id: 'ask', type: 'human', prompt: `May this be refunded?${text}`, options: ['yes', 'no'] }],
      edges: [],
    })
    const run = await create('/orchestration-runs', { orchestration_id: graph.id, wait: false })
    const playbook = await create('/playbooks', {
      name: `Returns ${Math.random()}`,
      steps: [
        {
          key: 'inspect',
          title: `Inspect the parcel${text}`,
          type: 'manual',
          instructions: `Open it and look.${text}`,
          result_schema: {
            type: 'object',
            properties: { damage: { type: 'string', enum: ['none', 'some'], description: 'What you see' } },
            required: ['damage'],
          },
          required_evidence: [{ name: 'Photo', kind: 'file' }],
        },
      ],
    })
    const { id: case_id } = await create('/cases', { title: 'Parcel 1' })
    const execution = await post('/playbook-executions', { case_id, playbook_id: playbook.id })
    const workflow = await create('/workflows', {
      name: `Board ${Math.random()}`,
      states: [
        { name: 'review', kind: 'human', initial: true },
        { name: 'done', terminal: true },
        { name: 'back', terminal: true },
      ],
      transitions: [
        { name: 'finish', from: ['review'], to: 'done' },
        { name: 'return', from: ['review'], to: 'back' },
      ],
      payload_schema: { type: 'object', properties: { amount: { type: 'integer' } } },
    })
    const task = await create('/tasks', {
      workflow_id: workflow.id,
      title: `Check the invoice${text}`,
      payload: text ? { amount: 3, text } : { amount: 3 },
    })
    const turn = await post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt: 'hi' })
    const approval = await propose(
      suite.app,
      turn.id,
      { id: null, name: 'pay' },
      { amount: 12, to: `Ada${text}`, order: ORDER },
    )
    await eventually(async () => (await read(`/orchestration-runs/${run.id}`)).status === 'awaiting_input')
    await eventually(async () => (await read(`/playbook-executions/${execution.id}`)).waiting_on)
    return { run, execution, task, approval, case_id }
  }

  it('answers a question of a run, a step, a task and an approval in place, and the work continues', async () => {
    const { run, execution, task, approval, case_id } = await waiting()
    const { page, problems } = await open('inbox')
    const card = (name: string) => page.getByRole('article', { name })

    const question = card('May this be refunded?')
    await pressEnter(question.getByRole('button', { name: 'Answer' }))
    await focusOn(question.getByRole('combobox', { name: 'Choice' }))
    await choose(page, 'yes')
    await pressEnter(question.getByRole('button', { name: 'Submit' }))
    const settled = await eventually(async () => {
      const now = await read(`/orchestration-runs/${run.id}`)
      return now.status === 'succeeded' ? now : null
    })
    assert.match(JSON.stringify(settled.artifacts), /"choice":"yes"/)

    const step = card('Inspect the parcel')
    await step.getByText('Open it and look.').waitFor()
    await step.getByRole('button', { name: 'Answer' }).click()
    await step.getByRole('combobox', { name: 'Damage' }).click()
    await page.getByRole('option', { name: 'some' }).click()
    const [chooser] = await Promise.all([
      page.waitForEvent('filechooser'),
      step.getByRole('button', { name: 'Photo' }).click(),
    ])
    await chooser.setFiles({ name: 'parcel.txt', mimeType: 'text/plain', buffer: Buffer.from('a dent') })
    await step.getByRole('button', { name: 'Complete step' }).click()
    await eventually(async () => (await read(`/playbook-executions/${execution.id}`)).status === 'completed')
    const evidence = await read(`/cases/${case_id}/evidence`)
    assert.ok(evidence.data.some(({ name, file_id }: any) => name === 'Photo' && file_id))

    const invoice = card('Check the invoice')
    await invoice.getByRole('button', { name: 'Answer' }).click()
    await invoice.getByLabel('Amount').fill('5')
    await invoice.getByRole('combobox', { name: 'Transition' }).click()
    await page.getByRole('option', { name: 'finish → done' }).click()
    await invoice.getByRole('button', { name: 'Submit' }).click()
    const moved = await eventually(async () => {
      const now = await read(`/tasks/${task.id}`)
      return now.state === 'done' ? now : null
    })
    assert.deepEqual(moved.payload, { amount: 5 })

    const pay = card('pay')
    await pay.getByRole('button', { name: 'Edit' }).click()
    const json = pay.getByLabel('Arguments')
    await json.fill((await json.inputValue()).replace('"amount": 12', '"amount": 7'))
    const difference = pay.getByRole('group', { name: 'Differences' })
    await difference.getByText('amount').waitFor()
    assert.deepEqual(await difference.locator('code').allInnerTexts(), ['12', '7'])
    await pay.getByRole('button', { name: 'Approve edited' }).click()
    await eventually(async () => (await read(`/approvals/${approval.id}`)).status === 'approved')
    const decided = await fetch(`${suite.app.url}/api/v1/approvals/${approval.id}`, {
      headers: { authorization: `Bearer ${suite.app.admin.token}` },
    })
    assert.deepEqual(parseExactJson(await decided.text()).edited_arguments, { amount: 7, to: 'Ada', order: ORDER })
    await page.getByText('Nothing waits for you').waitFor()
    assert.deepEqual(problems, [])
  })

  it('shows earlier decisions of the same kind, and its number in the navigation as work arrives', async () => {
    const { id } = await post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt: 'hi' })
    const earlier = await propose(suite.app, id, { id: null, name: 'refund' }, { amount: 1 })
    await post(`/approvals/${earlier.id}/reject`, { reason: 'too small' })
    const { page: first, problems, close } = await openPage(suite.chromium, [suite.app.base])
    closeLater({ close })
    const requests: Request[] = []
    first.context().on('request', request => requests.push(request))
    await first.goto(`${suite.app.base}/app${at('inbox')}`)
    await signIn(first, 'ada')
    await heading(first, 'Inbox')
    const second = await first.context().newPage()
    await second.goto(`${suite.app.base}/app${at('inbox')}`)
    await heading(second, 'Inbox')
    // One of the tabs reads the stream. Once both have read their lists after it began, they do not poll for a minute.
    await eventually(() => {
      const since = requests.slice(requests.findIndex(isOfStream) + 1 || requests.length)
      return [first, second].every(page =>
        since.some(each => each.url().includes('/approvals?') && each.frame().page() === page),
      )
    })
    await propose(suite.app, id, { id: null, name: 'refund' }, { amount: 2 })
    for (const page of [first, second]) {
      await page.getByRole('article', { name: 'refund' }).waitFor()
      await page.getByRole('navigation').getByLabel('1 open').waitFor()
    }
    const card = first.getByRole('article', { name: 'refund' })
    await card.getByRole('button', { name: 'Earlier decisions' }).click()
    await card.getByText('too small').waitFor()
    await focusOn(card)
    await first.keyboard.press('a')
    await second.getByText('Nothing waits for you').waitFor()
    assert.equal(requests.filter(isOfStream).length, 1)
    assert.deepEqual(problems, [])
  })

  it('closes the streams of a tab that is hidden for a minute, and opens them when it is shown', async () => {
    const session = await post('/sessions', { agent_id: suite.app.agentId })
    const { page, problems, close } = await openPage(suite.chromium, [suite.app.base])
    closeLater({ close })
    const streams = new Set<Request>()
    page.on('request', request => request.url().includes('/stream') && streams.add(request))
    for (const ended of ['requestfinished', 'requestfailed'] as const)
      page.on(ended as 'requestfailed', request => streams.delete(request))
    await page.context().clock.install()
    await page.goto(`${suite.app.base}/app${at(`sessions/${session.id}`)}`)
    await signIn(page, 'ada')
    await eventually(() => streams.size === 2)
    const setHidden = (isHidden: boolean) =>
      page.evaluate(`Object.defineProperty(document, 'hidden', { configurable: true, value: ${isHidden} })
        document.dispatchEvent(new Event('visibilitychange'))`)
    await setHidden(true)
    await page.clock.fastForward(60_000)
    // A stream that is lost for another reason is opened again within these times.
    for (let n = 0; n < 3; n++) {
      await eventually(() => streams.size === 0)
      await page.clock.fastForward(10_000)
      await page.evaluate(`fetch('/healthz').then(() => {})`)
    }
    assert.equal(streams.size, 0)
    await setHidden(false)
    await eventually(() => streams.size === 2)
    assert.deepEqual(problems, [])
  })

  it('polls where the stream of activity is refused', async () => {
    const { id } = await post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt: 'hi' })
    // Tabs of the other browser would pass on what their stream brings.
    const watched = await openConsole(suite.chromium, suite.app, at('start'), 'ada')
    closeLater(watched)
    const { page } = watched
    await page.route('**/activity/stream**', route => route.fulfill({ status: 429, body: '{}' }))
    await go(page, at('inbox'))
    await page.getByText('Nothing waits for you').waitFor()
    const late = await propose(suite.app, id, { id: null, name: 'late' }, {})
    await page.getByRole('article', { name: 'late' }).waitFor()
    await post(`/approvals/${late.id}/reject`, { reason: 'late' })
  })

  it('opens with 10,000 approvals by reading and drawing one page of them, and leads to the last', async () => {
    await addApprovals(suite.app, 10_000)
    const { page, problems } = await open('start')
    await heading(page, 'Getting started')
    const read: string[] = []
    page.on('request', request => {
      const { pathname, search } = new URL(request.url())
      if (pathname.endsWith('/approvals')) read.push(search)
    })
    await go(page, at('inbox'))
    await page.getByRole('article').nth(24).waitFor()
    assert.ok(read.length > 0 && read.every(search => /[?&]limit=(1|25)(&|$)/.test(search)), read.join(' '))
    await page.getByText('10,000').first().waitFor()
    assert.equal(await page.getByRole('article').count(), 25)
    await page.getByRole('button', { name: 'Page 400', exact: true }).click()
    await page.getByRole('article', { name: 'tool_1', exact: true }).waitFor()
    assert.equal(await page.getByRole('article').count(), 25)
    await suite.app.pool.query(voidStatement`delete from approvals where status = 'pending'`)
    assert.deepEqual(problems, [])
  })

  it('is accessible with every form open, and shows hostile text as text', async () => {
    const { task } = await waiting(HOSTILE)
    const { page, problems } = await open('inbox', { width: 360, colorScheme: 'dark' })
    const answers = page.getByRole('button', { name: 'Answer' })
    await answers.nth(2).waitFor()
    while ((await answers.count()) > 0) await answers.first().click()
    await page.getByRole('button', { name: 'Complete step' }).waitFor()
    assert.deepEqual(await violations(page), [])
    assert.equal(await page.evaluate('document.documentElement.scrollWidth'), 360)
    assert.deepEqual(problems, [])
    await suite.checkAccess([['inbox', 'Inbox']])
    await suite.checkHostileText(['inbox'])
    await post(`/tasks/${task.id}/transitions`, { transition: 'finish' })
  })

  it('offers only reading to a person without the permission to answer', async () => {
    const { projectId } = suite.app
    await suite.app.user('eve', [
      allowing(projectId, ['orchestrations:ListRuns', 'tasks:ListTasks', 'workflows:ListWorkflows']),
    ])
    const watched = await openConsole(suite.chromium, suite.app, at('inbox'), 'eve')
    closeLater(watched)
    const { page } = watched
    const requested: string[] = []
    page.on('request', request => requested.push(new URL(request.url()).pathname))
    await go(page, at('start'))
    await go(page, at('inbox'))
    await page.getByText('Question of a run').first().waitFor()
    assert.deepEqual(
      requested.filter(path => /approvals|exceptions|playbook/.test(path)),
      [],
    )
    assert.equal(await page.getByRole('button', { name: /Answer|Approve|Reject/ }).count(), 0)
  })
})
