import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { scriptOf } from '../support/scripts.ts'
import { choose, consoleSuite, focusOn, go, openConsole, pressEnter, tabTo, violations } from './support.ts'

const LEAD = [
  'projects:GetProject',
  'generations:*',
  'traces:*',
  'actors:ListActors',
  'actors:GetActor',
  'agents:ListAgents',
  'agents:GetAgent',
  'sessions:ListSessions',
]

describe('why turns failed, in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation'])
  const { at, heading, closeLater } = suite
  let failed: string
  let answered: string
  let actor: any
  let session: any
  let count = 0

  /** Opens a view as a new user with these permissions only. */
  const openAs = async (view: string, actions = LEAD) => {
    const name = `lead${++count}`
    await suite.app.user(name, [allowing(suite.app.projectId, actions)])
    const watched = await openConsole(suite.chromium, suite.app, at(view), name)
    closeLater(watched)
    return watched
  }
  const rows = (page: Page) => page.getByRole('table', { name: 'Traces' }).locator('tbody tr')
  const endUser = (page: Page) => page.locator('input[aria-label="End user"]')
  /** Waits until the filter by end user shows a text. */
  const chosen = (page: Page, text: string) => eventually(async () => (await endUser(page).inputValue()) === text)
  const turn = async (prompt: string) => {
    const { body } = await suite.app.admin.post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt })
    return body.id ?? body.error.meta.generation_id
  }
  /** Waits until the list shows these turns only. */
  const shows = async (page: Page, ids: string[]) => {
    for (const id of ids) await rows(page).filter({ hasText: id }).waitFor()
    await eventually(async () => (await rows(page).count()) === ids.length)
  }

  before(async () => {
    const { app } = suite
    if (!app) return
    failed = await turn(scriptOf({ error: { status: 400, message: 'no such model' } }))
    await turn(scriptOf({ error: { status: 400, message: 'no such model' } }))
    actor = await createdBy(app.admin, '/actors', { project_id: app.projectId, name: 'Ada', external_id: 'crm-7' })
    session = await createdBy(app.admin, '/sessions', { agent_id: app.agentId, actor_id: actor.id, name: 'Order' })
    await postedBy(app.admin, `/sessions/${session.id}/messages`, { message: 'Where is my umbrella?' })
    answered = (await postedBy(app.admin, `/sessions/${session.id}/generate?wait=true`)).generation_id
    await postedBy(app.admin, `/sessions/${session.id}/attention`, { reason: 'angry' })
  })

  it('leads from the count of a failure on the overview to exactly the turns that it counts, by keyboard', async () => {
    const { page, problems } = await openAs('overview')
    await heading(page, 'Overview')
    const cause = page.getByRole('link', { name: 'AI_PROVIDER_ERROR' })
    await cause.waitFor()
    assert.equal(await cause.locator('xpath=preceding-sibling::*').innerText(), '2')
    // A later failure is not counted there.
    await turn(scriptOf({ error: { status: 400, message: 'later' } }))
    await pressEnter(cause)
    await heading(page, 'Traces')
    await rows(page).filter({ hasText: failed }).waitFor()
    await eventually(async () => (await rows(page).count()) === 2)
    assert.equal(await page.getByLabel('Error code').inputValue(), 'AI_PROVIDER_ERROR')
    assert.equal(await page.getByLabel('Started until').isVisible(), true)
    await pressEnter(rows(page).filter({ hasText: failed }).getByRole('link', { name: 'Helper' }))
    await heading(page, 'Turn of Helper')
    assert.deepEqual(problems, [])
  })

  it('leads from the number of sessions that need a person to these sessions', async () => {
    const { page, problems } = await openAs('overview')
    await pressEnter(page.getByRole('link', { name: 'Open: Sessions that need a person' }))
    await heading(page, 'Sessions')
    const sessions = page.getByRole('table', { name: 'Sessions' }).locator('tbody tr')
    await sessions.filter({ hasText: 'Order' }).waitFor()
    assert.equal(await sessions.count(), 1)
    assert.match(page.url(), /attention=true/)
    assert.deepEqual(problems, [])
  })

  it('filters turns by text, end user, cost and latency by keyboard; a link opens the same list', async () => {
    const { page, problems } = await openAs('traces')
    await heading(page, 'Traces')
    await rows(page).filter({ hasText: failed }).waitFor()
    await tabTo(page, 'Text in message or answer')
    await page.keyboard.type('UMBRELLA')
    await page.keyboard.press('Enter')
    await shows(page, [answered])
    await page.getByLabel('Text in message or answer').fill('')
    await page.keyboard.press('Enter')
    await rows(page).filter({ hasText: failed }).waitFor()
    await focusOn(endUser(page))
    // The options before the search would lose their mark when its result arrives.
    const found = page.waitForResponse(response => response.url().includes('search=crm-7'))
    await page.keyboard.type('crm-7')
    await found
    await page.evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
    await page.getByRole('option', { name: 'Ada (crm-7)' }).waitFor()
    await choose(page, 'Ada (crm-7)')
    await shows(page, [answered])
    await tabTo(page, 'More filters')
    await page.keyboard.press('Enter')
    await tabTo(page, 'Latency from, in seconds')
    await page.keyboard.type('3600')
    await page.keyboard.press('Enter')
    await page.getByText('Nothing matches the filters').waitFor()
    const url = page.url()
    for (const part of [`actor=${actor.id}`, 'latency=3600']) assert.ok(url.includes(part), url)
    await page.reload()
    await page.getByText('Nothing matches the filters').waitFor()
    assert.equal(await page.getByLabel('Latency from, in seconds').inputValue(), '3600')
    await chosen(page, 'Ada (crm-7)')
    await pressEnter(page.getByRole('button', { name: 'Clear filters' }))
    await rows(page).filter({ hasText: failed }).waitFor()
    await chosen(page, '')
    assert.deepEqual(problems, [])
  })

  it('opens an end user whose turns are filtered, and goes back to these', async () => {
    const { page, problems } = await openAs(`traces?actor=${actor.id}`)
    await chosen(page, 'Ada (crm-7)')
    await shows(page, [answered])
    await pressEnter(rows(page).getByRole('link', { name: 'Ada' }))
    await heading(page, 'Ada')
    await page.getByText('Last message').waitFor()
    await page.goBack()
    await chosen(page, 'Ada (crm-7)')
    await shows(page, [answered])
    assert.deepEqual(problems, [])
  })

  it('offers no text to a user who may not read content, and finds an end user by the ID alone without permission', async () => {
    const { page, problems } = await openAs('traces', ['projects:GetProject', 'generations:ListGenerations'])
    await rows(page).filter({ hasText: failed }).waitFor()
    assert.equal(await page.getByLabel('Text in message or answer').count(), 0)
    await tabTo(page, 'ID of the end user')
    await page.keyboard.type(actor.id)
    await page.keyboard.press('Enter')
    await shows(page, [answered])
    assert.deepEqual(problems, [])
  })

  it('saves filters of a list for the user alone, opens, replaces, renames and deletes them, by keyboard', async () => {
    const { page, problems } = await openAs('traces')
    const menu = page.getByRole('button', { name: 'Saved views' })
    const item = (name: string | RegExp) => page.getByRole('menuitem', { name })
    const openMenu = async () => {
      await pressEnter(menu)
      await item('Save these filters').waitFor()
    }
    await heading(page, 'Traces')
    await openMenu()
    await page.getByText('No saved view yet').waitFor()
    assert.equal(await item('Save these filters').isDisabled(), true)
    await page.keyboard.press('Escape')
    await go(page, at('traces?status=failed&error=AI_PROVIDER_ERROR'))
    await rows(page).filter({ hasText: failed }).waitFor()
    await openMenu()
    await pressEnter(item('Save these filters'))
    const dialog = page.getByRole('dialog', { name: 'Save these filters' })
    await focusOn(dialog.getByLabel('Name'))
    await page.keyboard.type('Provider failures')
    assert.deepEqual(await violations(page), [])
    await page.keyboard.press('Enter')
    await dialog.waitFor({ state: 'hidden' })
    // Another list of the same user has other saved views.
    await go(page, at('sessions'))
    await heading(page, 'Sessions')
    await openMenu()
    await page.getByText('No saved view yet').waitFor()
    await page.keyboard.press('Escape')
    await go(page, at('traces'))
    await heading(page, 'Traces')
    await openMenu()
    assert.deepEqual(await violations(page), [])
    await pressEnter(item('Provider failures'))
    await page.waitForURL(/status=failed/)
    assert.equal(new URL(page.url()).searchParams.get('error'), 'AI_PROVIDER_ERROR')
    // The same name with other filters replaces them.
    await go(page, at('traces?status=failed'))
    await eventually(async () => (await page.getByLabel('Error code').inputValue()) === '')
    await openMenu()
    await pressEnter(item('Save these filters'))
    await dialog.getByLabel('Name').fill('Provider failures')
    await pressEnter(dialog.getByRole('button', { name: 'Replace' }))
    await dialog.waitFor({ state: 'hidden' })
    await openMenu()
    await pressEnter(item('Rename Provider failures'))
    const rename = page.getByRole('dialog', { name: 'Rename the saved view' })
    await rename.getByLabel('Name').fill('All failures')
    await page.keyboard.press('Enter')
    await rename.waitFor({ state: 'hidden' })
    const { page: other } = await openAs('traces?status=failed')
    await pressEnter(other.getByRole('button', { name: 'Saved views' }))
    await other.getByText('No saved view yet').waitFor()
    await openMenu()
    await pressEnter(item('Delete All failures'))
    await pressEnter(page.getByRole('dialog').getByRole('button', { name: 'Delete', exact: true }))
    await page.getByRole('dialog').waitFor({ state: 'hidden' })
    await openMenu()
    await page.getByText('No saved view yet').waitFor()
    assert.deepEqual(problems, [])
  })

  it('is accessible on a screen and on a phone', () =>
    suite.checkAccess([
      ['overview', 'Overview'],
      ['traces?status=failed&latency=0&from=2026-01-01T00:00:00Z', 'Traces'],
      ['sessions?attention=true', 'Sessions'],
    ]))
})
