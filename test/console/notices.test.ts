import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import { consoleSuite, focusOn, HOSTILE, openConsole, pressEnter, violations } from './support.ts'

/** Notifications as the browser would show them. */
const RECORDER = `(() => {
  const name = 'granted'
  globalThis.notices = []
  globalThis.asked = 0
  globalThis.Notification = class {
    static get permission() { return sessionStorage.getItem(name) ?? 'default' }
    static async requestPermission() {
      globalThis.asked++
      sessionStorage.setItem(name, 'granted')
      return 'granted'
    }
    constructor(title, { body = null }) {
      globalThis.notices.push({ title, body })
      globalThis.lastNotice = this
    }
    close() {}
  }
})()`

const READS = [
  'projects:GetProject',
  'activity:ListActivity',
  'approvals:ListApprovals',
  'approvals:GetApproval',
  'exceptions:ListExceptions',
  'exceptions:GetException',
  'sessions:ListSessions',
  'sessions:GetSession',
]

describe('notifications of the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation'])
  const { at, heading, closeLater } = suite
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  let count = 0

  /** Opens the inbox as a user with these permissions only. */
  const openAs = async (actions: string[]) => {
    const name = `told${++count}`
    await suite.app.user(name, [allowing(suite.app.projectId, actions)])
    const watched = await openConsole(suite.chromium, suite.app, at('inbox'), name)
    closeLater(watched)
    await watched.page.context().addInitScript(RECORDER)
    await watched.page.reload()
    await heading(watched.page, 'Inbox')
    return watched
  }
  const notices = (page: Page) =>
    page.evaluate('globalThis.notices') as Promise<{ title: string; body: string | null }[]>
  /** Switches notifications on or off with the keyboard. */
  const toggle = async (page: Page, ...names: string[]) => {
    await pressEnter(page.getByRole('button', { name: 'Notifications', exact: true }))
    for (const name of names) {
      await focusOn(page.getByRole('switch', { name }))
      await page.keyboard.press('Space')
    }
    assert.deepEqual(await violations(page), [])
    await pressEnter(page.getByRole('dialog').getByRole('button', { name: 'Close', exact: true }).last())
  }
  /** Waits until the tab reads the stream of activity. */
  const reading = async (page: Page, act: () => Promise<unknown>) => {
    const begun = page.waitForRequest(request => request.url().includes('/activity/stream'))
    await act()
    await begun
  }
  const turn = async () => (await post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt: 'hi' })).id
  const fileException = (title: string) => post('/exceptions', { project_id: suite.app.projectId, title })
  const clickLast = (page: Page) => page.evaluate('globalThis.lastNotice.onclick()')

  it('show chosen kinds without details, in one of several tabs, and open the item', async () => {
    const { page, problems } = await openAs(READS)
    await fileException('Before the choice')
    assert.equal(await page.evaluate('globalThis.asked'), 0)
    await reading(page, () => toggle(page, 'Approvals that wait for a decision', 'Exceptions'))
    assert.equal(await page.evaluate('globalThis.asked'), 1)
    const other = await page.context().newPage()
    await other.goto(`${suite.app.base}/app${at('inbox')}`)
    await heading(other, 'Inbox')
    await eventually(() => page.evaluate(`document.title !== ''`))
    const { id } = await propose(suite.app, await turn(), { id: null, name: 'refund' }, { amount: 2 })
    await eventually(async () => (await notices(page)).length === 1)
    assert.deepEqual(await notices(page), [{ title: 'An approval waits for a decision', body: null }])
    await clickLast(page)
    await page.waitForURL(`**/inbox?item=${id}`)
    await page.locator(`#approval-${id}:focus`).waitFor()
    const { id: exception } = await fileException('The ledger is down')
    await eventually(async () => (await notices(page)).length === 2)
    assert.deepEqual((await notices(page))[1], { title: 'A new exception', body: null })
    await clickLast(page)
    await page.locator(`#exception-${exception}:focus`).waitFor()
    assert.deepEqual(await notices(other), [])
    await post(`/approvals/${id}/reject`, { reason: 'late' })
    assert.deepEqual(problems, [])
  })

  it('come from a hidden tab too, with details if they are chosen, as plain text', async () => {
    const { page } = await openAs(READS)
    await page.clock.install()
    await reading(page, () => toggle(page, 'Sessions that request a person', 'Show details'))
    await page.evaluate(`Object.defineProperty(document, 'hidden', { configurable: true, value: true })
      document.dispatchEvent(new Event('visibilitychange'))`)
    // Without an event for this time the client connects again.
    await reading(page, () => page.clock.fastForward(61_000))
    const session = await post('/sessions', { agent_id: suite.app.agentId })
    await post(`/sessions/${session.id}/attention`, { reason: `Please call me \u202e${HOSTILE}` })
    await eventually(async () => (await notices(page)).length === 1)
    const [{ title, body }] = await notices(page)
    assert.equal(title, 'A session requests a person')
    assert.match(body ?? '', /^Please call me/)
    assert.ok(!body?.includes('\u202e'))
    await clickLast(page)
    await page.waitForURL(`**/sessions/${session.id}`)
  })

  it('are not shown of items that the user may not read, nor offered', async () => {
    const { page } = await openAs(READS.filter(action => action !== 'approvals:GetApproval'))
    await pressEnter(page.getByRole('button', { name: 'Notifications', exact: true }))
    await page.getByRole('switch', { name: 'Exceptions' }).waitFor()
    assert.equal(await page.getByRole('switch', { name: 'Approvals that wait for a decision' }).count(), 0)
    await page.keyboard.press('Escape')
    // A choice from before the permission was taken away.
    const { id } = (await suite.app.admin.get(`/users?username=told${count}`)).body.data[0]
    await page.evaluate(`localStorage.setItem('muster-notices ${id} ${suite.app.projectId}', '{"approvals":true,"exceptions":true}')
      sessionStorage.setItem('granted', 'granted')`)
    await reading(page, () => page.reload())
    const proposed = await propose(suite.app, await turn(), { id: null, name: 'refund' }, { amount: 3 })
    await fileException('The ledger is down again')
    await eventually(async () => (await notices(page)).length === 1)
    assert.deepEqual(await notices(page), [{ title: 'A new exception', body: null }])
    await post(`/approvals/${proposed.id}/reject`, { reason: 'late' })
  })

  it('are not offered without the activity, and explain a browser that blocks them', async () => {
    const { page: silent } = await openAs(READS.filter(action => action !== 'activity:ListActivity'))
    assert.equal(await silent.getByRole('button', { name: 'Notifications', exact: true }).count(), 0)
    const { page } = await openAs(READS)
    await page.evaluate(`sessionStorage.setItem('granted', 'denied')`)
    await pressEnter(page.getByRole('button', { name: 'Notifications', exact: true }))
    await page.getByText('This browser blocks notifications').waitFor()
    assert.ok(await page.getByRole('switch', { name: 'Exceptions' }).isDisabled())
  })
})
