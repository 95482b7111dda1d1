import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { eventually } from '../support/app.ts'
import { openPage } from '../support/chromium.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import { consoleSuite, go, pressEnter, signIn, violations } from './support.ts'

type Json = Record<string, any>

/** Permissions to decide, and to see the context of a decision. */
const DECIDES = ['approvals:ListApprovals', 'approvals:GetApproval', 'approvals:ResolveApproval']
const READS = ['actors:GetActor', 'agents:GetAgent', 'guardrails:GetGuardrail', 'sessions:ListSessionMessages']

/** Holds the timers of the time in which a decision can be undone, which is the only one of 5 seconds, until it ends. */
const HOLD = `
  const { setTimeout: start, clearTimeout: stop } = globalThis
  const held = new Map()
  globalThis.setTimeout = (run, ms, ...rest) => {
    if (ms !== 5000) return start(run, ms, ...rest)
    // Components clear the timer -1 before they have one.
    const id = -1000 - held.size
    held.set(id, run)
    return id
  }
  globalThis.clearTimeout = id => (held.has(id) ? held.set(id, null) : stop(id))
  globalThis.endUndo = () => {
    for (const [id, run] of held) {
      held.set(id, null)
      run?.()
    }
  }`

describe('decisions in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite()
  const { at, closeLater } = suite
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const read = async (path: string) => (await suite.app.admin.get(path)).body

  let agent_id: string
  before(async function () {
    if (!suite.app) return this.skip()
    const { app } = suite
    const guardrail = await post('/guardrails', {
      project_id: app.projectId,
      name: 'Refunds',
      document: { class: { if: [{ '<': [{ var: 'args.amount' }, 3] }, 'A', 'C'] } },
    })
    const agent = await post('/agents', {
      project_id: app.projectId,
      name: 'Refund desk',
      ai_provider_id: app.providerId,
      guardrail_ids: [guardrail.id],
      tool_bindings: [
        {
          tool: {
            name: 'refund',
            parameters: {
              type: 'object',
              properties: { amount: { type: 'number', title: 'Amount in euro' }, account: { type: 'string' } },
              required: ['amount'],
            },
            execute: { method: 'POST', url: 'https://example.com/refund' },
          },
        },
        { tool: { name: 'note', execute: { method: 'POST', url: 'https://example.com/note' } } },
      ],
    })
    agent_id = agent.id
    await app.user('rosa', [allowing(app.projectId, [...DECIDES, ...READS])])
    await app.user('tom', [allowing(app.projectId, DECIDES)])
  })

  afterEach(async () => {
    const { data } = await read(`/approvals?project_id=${suite.app.projectId}&status=pending`)
    for (const { id } of data) await post(`/approvals/${id}/reject`, { reason: 'left by a test' })
  })

  let count = 0
  /** An approval of a session in which a customer requested a refund. */
  const proposed = async (name = 'refund'): Promise<Json> => {
    const n = ++count
    const session = await post('/sessions', { agent_id, actor: { external_id: `crm-${n}`, name: `Ann ${n}` } })
    const args = { amount: 40 + n, account: `DE-${n}` }
    const script = [{ tool_calls: [{ name, args }] }, { text: `It waits for a colleague ${n}.` }]
    await post(`/sessions/${session.id}/messages`, { message: `@double ${JSON.stringify(script)}` })
    await post(`/sessions/${session.id}/generate?wait=true`)
    return eventually(async () => (await read(`/approvals?session_id=${session.id}`)).data[0])
  }
  const statusOf = async ({ id }: Json) => (await read(`/approvals/${id}`)).status
  const decided = (approval: Json, status: string) =>
    eventually(async () => {
      const now = await read(`/approvals/${approval.id}`)
      return now.status === status ? now : null
    })
  /** Opens the inbox of a person, whose requests of decisions are noted. */
  const inboxOf = async (name: string) => {
    const watched = await openPage(suite.chromium, [suite.app.base])
    closeLater(watched)
    await watched.page.addInitScript(HOLD)
    await watched.page.goto(`${suite.app.base}/app${at('inbox')}`)
    await signIn(watched.page, name)
    const sent: string[] = []
    watched.page.on('request', request => {
      const { pathname } = new URL(request.url())
      if (request.method() === 'POST' && pathname.includes('/approvals/')) sent.push(pathname)
    })
    await watched.page.getByRole('article').first().waitFor()
    return { ...watched, sent }
  }
  const readDrafts = (page: Page) => page.evaluate('JSON.stringify({ ...sessionStorage })')
  const endUndo = (page: Page) => page.evaluate('endUndo()')
  const card = (page: Page, index = 0) => page.getByRole('article').nth(index)

  it('shows end user, agent, rule, last messages and the arguments as a form, and decides by keys alone', async () => {
    const approval = await proposed()
    const { page, sent, problems } = await inboxOf('rosa')
    await page.keyboard.press('j')
    for (const text of [`Ann ${count}`, `crm-${count}`, 'Refund desk', `It waits for a colleague ${count}.`])
      await card(page).getByText(text, { exact: true }).waitFor()
    for (const name of [`Ann ${count}`, 'Refund desk', 'Refunds'])
      await card(page).getByRole('link', { name }).waitFor()
    await card(page).getByRole('region', { name: 'Rule' }).getByText('args.amount').waitFor()
    assert.deepEqual(await violations(page), [])
    await page.keyboard.press('e')
    const amount = card(page).getByLabel('Amount in euro')
    await amount.waitFor()
    await amount.focus()
    await page.keyboard.press('Control+A')
    await page.keyboard.type('7')
    await page.keyboard.press('Enter')
    await card(page).getByText(': sent in').waitFor()
    await page.getByText('Leaving this page before sends nothing.').waitFor()
    assert.deepEqual(await violations(page), [])
    assert.deepEqual(sent, [])
    assert.notEqual(await readDrafts(page), '{}')
    await endUndo(page)
    const { edited_arguments } = await decided(approval, 'approved')
    assert.deepEqual(edited_arguments, { amount: 7, account: approval.proposed_action.arguments.account })
    await page.getByText('Nothing waits for you').waitFor()
    assert.equal(sent.length, 1)
    assert.equal(await readDrafts(page), '{}')
    assert.deepEqual(problems, [])
  })

  it('keeps the edits of each approval of one tool, and names the end user and the agent of each', async () => {
    const approvals = [await proposed(), await proposed()]
    const names = approvals.map((_, index) => `Ann ${count - 1 + index}`)
    const { page, problems } = await inboxOf('rosa')
    for (const [index, name] of names.entries()) {
      await card(page, index).getByRole('link', { name, exact: true }).waitFor()
      await card(page, index).getByRole('link', { name: 'Refund desk' }).waitFor()
    }
    await page.keyboard.press('e')
    await card(page).getByLabel('Amount in euro').fill('7')
    await pressEnter(card(page, 1).getByRole('button', { name: 'Edit' }))
    const amount = card(page, 1).getByLabel('Amount in euro')
    await amount.waitFor()
    assert.equal(Number(await amount.inputValue()), approvals[1].proposed_action.arguments.amount)
    await amount.fill('8')
    await pressEnter(card(page, 1).getByRole('button', { name: 'Approve edited' }))
    await card(page, 1).getByText(': sent in').waitFor()
    await endUndo(page)
    assert.equal((await decided(approvals[1], 'approved')).edited_arguments.amount, 8)
    await pressEnter(card(page).getByRole('button', { name: 'Edit' }))
    assert.equal(Number(await card(page).getByLabel('Amount in euro').inputValue()), 7)
    assert.deepEqual(problems, [])
  })

  it('decides by no key while arguments are edited or a reason is entered', async () => {
    await proposed()
    await proposed()
    const { page, problems } = await inboxOf('rosa')
    await page.keyboard.press('e')
    const cancel = card(page).getByRole('button', { name: 'Cancel' })
    await cancel.focus()
    await page.keyboard.press('a')
    await page.keyboard.press('r')
    assert.equal(await page.getByText(': sent in').count(), 0)
    assert.equal(await page.getByRole('dialog').count(), 0)
    // Nor by the decision on a selection, which would approve the unedited arguments.
    await page.getByRole('checkbox', { name: 'All of this page' }).check()
    await page.getByText('1 selected').waitFor()
    await page.getByRole('checkbox', { name: 'All of this page' }).uncheck()
    await pressEnter(cancel)
    await page.keyboard.press('r')
    const reject = page.getByRole('dialog').getByRole('button', { name: 'Reject' })
    await reject.focus()
    for (const key of ['a', 'j', 'u']) await page.keyboard.press(key)
    assert.equal(await page.getByText(': sent in').count(), 0)
    assert.ok(await reject.evaluate((button: any) => button.matches(':focus')))
    assert.deepEqual(problems, [])
  })

  it('keeps edits and reasons until they were sent: over an undo, another view and a refusal', async () => {
    const approval = await proposed()
    const { page } = await inboxOf('rosa')
    const amount = card(page).getByLabel('Amount in euro')
    const edit = async (entered: string) => {
      // The form of the parameters needs the context.
      await card(page).getByRole('region', { name: 'Rule' }).waitFor()
      // Keys are bound shortly after the card is shown.
      await eventually(async () => {
        await page.keyboard.press('e')
        return amount.waitFor({ timeout: 2000 }).then(
          () => true,
          () => false,
        )
      })
      assert.equal(await amount.inputValue(), entered)
    }
    const approve = async () => {
      await amount.press('Enter')
      await card(page).getByText(': sent in').waitFor()
    }
    const undo = async () => {
      await page.keyboard.press('u')
      await card(page).getByRole('button', { name: 'Approve', exact: true }).waitFor()
    }
    await page.keyboard.press('r')
    await page.getByLabel('Reason').fill('not ours')
    await page.keyboard.press('Enter')
    await card(page).getByText('not ours').waitFor()
    await undo()
    await page.keyboard.press('r')
    await page.getByLabel('Reason').waitFor()
    assert.equal(await page.getByLabel('Reason').inputValue(), 'not ours')
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    await edit(String(approval.proposed_action.arguments.amount))
    await amount.fill('7')
    await approve()
    await undo()
    await go(page, at('start'))
    await page.getByRole('article').waitFor({ state: 'detached' })
    await go(page, at('inbox'))
    await card(page).getByRole('button', { name: 'Approve', exact: true }).waitFor()
    await edit('7')
    await amount.fill('')
    await approve()
    await endUndo(page)
    await page.getByRole('alert').filter({ hasText: 'Not decided: refund' }).waitFor()
    await edit('')
    await amount.fill('7')
    await approve()
    await endUndo(page)
    assert.equal((await decided(approval, 'approved')).edited_arguments.amount, 7)
    await page.getByText('Nothing waits for you').waitFor()
    assert.equal(await readDrafts(page), '{}')
  })

  it('keeps arguments that are edited as JSON over a reload', async () => {
    await proposed('note')
    const { page, problems } = await inboxOf('rosa')
    await page.keyboard.press('e')
    const json = card(page).getByLabel('Arguments', { exact: true })
    await json.fill('{"amount": 7}')
    await page.reload()
    await card(page).getByRole('button', { name: 'Edit' }).waitFor()
    await page.keyboard.press('e')
    await card(page).getByText('did not send').waitFor()
    assert.equal(await json.inputValue(), '{"amount": 7}')
    await pressEnter(card(page).getByRole('button', { name: 'Cancel' }))
    assert.equal(await readDrafts(page), '{}')
    assert.deepEqual(problems, [])
  })

  it('shows the code of each refusal of a decision on several', async () => {
    const [first, second] = [await proposed(), await proposed()]
    const allow = (action: string[], resource: string) => ({ effect: 'Allow', action, resource: [resource] })
    const { projectId } = suite.app
    await suite.app.user('una', [
      {
        statement: [
          allow(['approvals:ListApprovals', 'approvals:GetApproval'], `srn:${projectId}:*:*`),
          allow(['approvals:ResolveApproval'], `srn:${projectId}:approval:${first.id}`),
        ],
      },
    ])
    const { page } = await inboxOf('una')
    await page.getByRole('checkbox', { name: 'All of this page' }).check()
    await page.getByRole('button', { name: 'Approve selected' }).click()
    await endUndo(page)
    await decided(first, 'approved')
    await page
      .getByRole('alert')
      .filter({ hasText: 'Not decided: refund' })
      .getByText('FORBIDDEN', { exact: true })
      .waitFor()
    assert.equal(await statusOf(second), 'pending')
  })

  it('does not scroll sideways on a phone, with the context of an approval and its form', async () => {
    await proposed()
    const { page } = await inboxOf('rosa')
    await page.setViewportSize({ width: 360, height: 800 })
    const isNarrow = async (what: string) =>
      assert.equal(await page.evaluate('document.documentElement.scrollWidth'), 360, what)
    await card(page).getByRole('region', { name: 'Rule' }).waitFor()
    await card(page).getByText(`It waits for a colleague ${count}.`, { exact: true }).waitFor()
    await isNarrow('context')
    await page.keyboard.press('e')
    await card(page).getByLabel('Amount in euro').fill('7')
    await isNarrow('form')
    await page.keyboard.press('Enter')
    await card(page).getByText(': sent in').waitFor()
    await isNarrow('decision')
  })

  it('undoes a decision, also from another view, and sends the others from there', async () => {
    const approval = await proposed()
    const { page, sent, problems } = await inboxOf('rosa')
    await page.keyboard.press('a')
    await card(page).getByText(': sent in').waitFor()
    await page.keyboard.press('u')
    await card(page).getByRole('button', { name: 'Approve', exact: true }).waitFor()
    await endUndo(page)
    await page.keyboard.press('a')
    await card(page).getByText(': sent in').waitFor()
    await go(page, at('start'))
    await page.getByRole('article').waitFor({ state: 'detached' })
    await go(page, at('inbox'))
    await card(page).getByRole('button', { name: 'Undo' }).click()
    await endUndo(page)
    await card(page).getByRole('button', { name: 'Approve', exact: true }).waitFor()
    assert.deepEqual(sent, [])
    assert.equal(await statusOf(approval), 'pending')
    await page.keyboard.press('r')
    await page.getByLabel('Reason').fill('not ours')
    await page.keyboard.press('Enter')
    await card(page).getByText('not ours').waitFor()
    await go(page, at('start'))
    await page.getByText('You may not see this').waitFor()
    await page.getByRole('article').waitFor({ state: 'detached' })
    await endUndo(page)
    assert.equal((await decided(approval, 'rejected')).resolution_reason, 'not ours')
    assert.deepEqual(problems, [])
  })

  it('waits with several decisions, each of which can be undone', async () => {
    const approvals = [await proposed(), await proposed(), await proposed()]
    const { page, sent, problems } = await inboxOf('rosa')
    await page.getByRole('article').nth(2).waitFor()
    for (const key of ['a', 'a', 'a']) await page.keyboard.press(key)
    await page.getByText('3 decisions are sent after 5 seconds.').waitFor()
    await page.getByRole('button', { name: 'Undo' }).nth(1).click()
    await page.getByText('2 decisions are sent after 5 seconds.').waitFor()
    await endUndo(page)
    await eventually(async () => {
      const states = await Promise.all(approvals.map(statusOf))
      return states.filter(state => state === 'approved').length === 2
    })
    assert.equal(sent.length, 2)
    const [left] = await Promise.all(
      approvals.map(async each => ((await statusOf(each)) === 'pending' ? each : [])),
    ).then(all => all.flat() as Json[])
    await page.getByRole('article').nth(1).waitFor({ state: 'detached' })
    await post(`/approvals/${left.id}/reject`, { reason: 'done' })
    assert.deepEqual(problems, [])
  })

  it('shows the decision of another person who was first', async () => {
    const approval = await proposed()
    const { page } = await inboxOf('rosa')
    const other = await inboxOf('tom')
    // Without the permissions its parts are absent.
    assert.equal(await card(other.page).getByText('Refund desk').count(), 0)
    await other.page.keyboard.press('r')
    await other.page.getByLabel('Reason').fill('a known fraud')
    await other.page.getByLabel('Reason').press('Enter')
    await card(other.page).getByText('a known fraud').waitFor()
    await page.keyboard.press('a')
    await card(page).getByText(': sent in').waitFor()
    await endUndo(other.page)
    await decided(approval, 'rejected')
    await endUndo(page)
    const conflict = page.getByRole('alert').filter({ hasText: 'Already decided: refund' })
    await conflict.getByText('a known fraud').waitFor()
    assert.equal(await statusOf(approval), 'rejected')
    await page.getByRole('button', { name: 'Dismiss' }).click()
    await conflict.waitFor({ state: 'detached' })
  })
})
