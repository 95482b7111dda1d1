import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { eventually } from '../support/app.ts'
import { openPage } from '../support/chromium.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import { consoleSuite, go, signIn, violations } from './support.ts'

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
  const proposed = async (): Promise<Json> => {
    const n = ++count
    const session = await post('/sessions', { agent_id, actor: { external_id: `crm-${n}`, name: `Ann ${n}` } })
    const args = { amount: 40 + n, account: `DE-${n}` }
    const script = [{ tool_calls: [{ name: 'refund', args }] }, { text: `It waits for a colleague ${n}.` }]
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
  const endUndo = (page: Page) => page.evaluate('endUndo()')
  const card = (page: Page, index = 0) => page.getByRole('article').nth(index)

  it('shows customer, agent, rule, last messages and the arguments as a form, and decides by keys alone', async () => {
    const approval = await proposed()
    const { page, sent, problems } = await inboxOf('rosa')
    await page.keyboard.press('j')
    for (const text of [`Ann ${count}`, `crm-${count}`, 'Refund desk', `It waits for a colleague ${count}.`])
      await card(page).getByText(text, { exact: true }).waitFor()
    await card(page).getByRole('link', { name: 'Refunds' }).waitFor()
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
    await endUndo(page)
    const { edited_arguments } = await decided(approval, 'approved')
    assert.deepEqual(edited_arguments, { amount: 7, account: approval.proposed_action.arguments.account })
    await page.getByText('Nothing waits for you').waitFor()
    assert.equal(sent.length, 1)
    assert.deepEqual(problems, [])
  })

  it('undoes a decision, and sends nothing of the view that is left', async () => {
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
    await endUndo(page)
    await go(page, at('inbox'))
    await card(page).getByRole('button', { name: 'Approve', exact: true }).waitFor()
    assert.deepEqual(sent, [])
    assert.equal(await statusOf(approval), 'pending')
    await page.keyboard.press('r')
    await page.getByLabel('Reason').fill('not ours')
    await page.keyboard.press('Enter')
    await card(page).getByText('not ours').waitFor()
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
