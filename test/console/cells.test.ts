import assert from 'node:assert/strict'
import type { Browser, Page } from 'playwright-core'
import { release as currentRelease } from '#core/base/release.ts'
import { startCells, type TestCells } from '../support/cells.ts'
import { startChromium, type Watched } from '../support/chromium.ts'
import { type Front, startFront } from '../support/oauth.ts'
import { createdBy } from '../support/replies.ts'
import { checkShown, openConsole, PASSWORD } from './support.ts'

describe('the cells of a deployment', function () {
  this.timeout(240_000)
  let chromium: Browser
  let front: Front
  let cells: TestCells
  let watched: Watched
  let view: string

  before(async function () {
    const started = await startChromium()
    if (!started) return this.skip()
    chromium = started
    front = await startFront()
    cells = await startCells({ servers: true, env: { BASE_URL: front.url, TRUST_PROXY: '1' } })
    front.targets.push(cells.url)
    await createdBy(cells.admin, '/users', { username: 'ada', password: PASSWORD, role: 'admin' })
    const { id } = await cells.project('home', 'Atlas')
    await cells.project('second', 'Bolt')
    view = `/p/${id}/queue`
    watched = await openConsole(chromium, { base: front.url }, view, 'ada')
  })
  after(async () => {
    await chromium?.close()
    await cells?.close()
    await front?.close()
  })

  const row = (page: Page, text: string) =>
    page.getByRole('table', { name: 'Cells' }).getByRole('row').filter({ hasText: text })

  it('are a table with their size and lag, accessible on a screen and on a phone', async () => {
    const { page, problems } = watched
    await row(page, 'second, number 1').getByText('Answers', { exact: true }).waitFor()
    await row(page, 'second, number 1')
      .getByText(/^\d[\d.,]* [KM]?B$/)
      .nth(1)
      .waitFor()
    const cellsOf = async (name: string) => row(page, name).getByRole('cell').allInnerTexts()
    const [, state, projects, size, release, lag] = await cellsOf('home, number 0')
    assert.deepEqual([state.toLowerCase(), projects, release, lag], ['open', '1', currentRelease, '—'])
    assert.match(size, /^[\d.,]+ MB$/)
    assert.equal((await cellsOf('second, number 1'))[2], '1')
    await checkShown(page, view)
    assert.deepEqual(problems, [])
  })

  it('say that one does not answer, until it answers again', async () => {
    const { page, problems } = watched
    await cells.kill?.()
    await page.getByRole('alert').filter({ hasText: 'No answer: second' }).waitFor()
    await row(page, 'second, number 1').getByText('not connected').waitFor()
    await row(page, 'home, number 0').getByText('Answers', { exact: true }).waitFor()
    await checkShown(page, view)
    await cells.restart?.()
    await row(page, 'second, number 1').getByText('Answers', { exact: true }).waitFor({ timeout: 60_000 })
    await page.getByRole('alert').filter({ hasText: 'No answer' }).waitFor({ state: 'detached' })
    // Lists of all projects are refused meanwhile.
    assert.deepEqual(
      problems.filter(problem => !problem.includes('status of 503')),
      [],
    )
  })

  it('say what closed and removed ones do not take', async () => {
    const { page } = watched
    const set = (state: string) => cells.rows(cells.home, 'update cells set state = $1', [state])
    await set('closed')
    await row(page, 'second, number 1').getByText('Takes no new projects').waitFor()
    await set('down')
    await row(page, 'second, number 1').getByText('Takes no requests', { exact: true }).waitFor()
    // A cell that was taken down is not expected to answer.
    assert.equal(await page.getByRole('alert').filter({ hasText: 'No answer' }).count(), 0)
    await checkShown(page, view)
    await set('open')
  })

  it('are not requested for users who may not see the deployment', async () => {
    const { id } = await createdBy(cells.admin, '/users', { username: 'dan', password: PASSWORD })
    const policy = await createdBy(cells.admin, '/policies', {
      document: { statement: [{ effect: 'Allow', action: ['projects:*', 'orchestrations:*'] }] },
    })
    await cells.admin.put(`/users/${id}/policies`, { policy_ids: [policy.id] })
    const other = await openConsole(chromium, { base: front.url }, view, 'dan')
    const requested: string[] = []
    other.page.on('request', request => requested.push(new URL(request.url()).pathname))
    await other.page.reload()
    await other.page.getByText('Nothing waits').waitFor()
    assert.equal(await other.page.getByRole('heading', { name: 'Cells' }).count(), 0)
    assert.ok(!requested.includes('/api/v1/system/cells'), requested.join())
    await other.close()
  })
})
