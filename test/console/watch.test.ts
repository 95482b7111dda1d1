import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { voidStatement } from '#core/db/sql.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { foldUsage, insertUsage, tokenUse } from '../support/usage.ts'
import { choose, consoleSuite, focusOn, openConsole, tabTo, violations } from './support.ts'

const WEEK_MS = 7 * 86_400_000

describe('charts of turns and usage', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation'])
  const { at, open, heading, closeLater } = suite
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const projectId = () => suite.app.projectId
  let count = 0
  /** Opens a view as a user with these permissions only. */
  const openAs = async (actions: string[], view: string) => {
    const name = `watcher${++count}`
    await suite.app.user(name, [allowing(projectId(), actions)])
    const watched = await openConsole(suite.chromium, suite.app, at(view), name)
    closeLater(watched)
    return watched
  }
  const chart = (page: Page, name: string) => page.getByRole('region', { name, exact: true })
  const agentOf = async (name: string): Promise<string> =>
    (
      await createdBy(suite.app.admin, '/agents', {
        project_id: projectId(),
        name,
        ai_provider_id: suite.app.providerId,
      })
    ).id
  /** Makes numbers of turns now and a week before, which take a second each. */
  async function turns(agent: string, now: number, before: number) {
    for (let n = 0; n < now + before; n++) {
      const { id } = await post(`/agents/${agent}/generate?wait=true`, { prompt: 'hi' })
      await suite.app.pool.query(voidStatement`
        update generations set created_at = created_at - ${n < now ? 0 : WEEK_MS} * interval '1 ms',
          completed_at = created_at - ${n < now ? 0 : WEEK_MS} * interval '1 ms' + interval '1 s' where id = ${id}`)
    }
  }

  before(async () => {
    await turns(suite.app.agentId, 3, 2)
    const before = new Date(Date.now() - WEEK_MS).toISOString()
    await insertUsage(suite.app, projectId(), [
      tokenUse({ cost: 0.5, agent_id: suite.app.agentId }),
      tokenUse({ cost: 0.25, agent_id: suite.app.agentId, created_at: before }),
    ])
    await foldUsage(suite.app, projectId())
  })

  it('compare the last days with the week before, and name what has no price', async () => {
    const { page, problems } = await open('overview')
    await heading(page, 'Overview')
    const figures: [string, string | RegExp, string | RegExp][] = [
      ['Turns', '3', 'Week before: 2'],
      ['Failed turns', '0', 'Week before: 0'],
      ['Latency', /1\.00 s, 95th percentile 1\.00 s/, /Week before: 1\.00 s/],
      ['Time to first text', '—', 'Week before: —'],
      ['Cost', '$0.5', 'Week before: $0.25'],
    ]
    for (const [name, value, before] of figures) {
      await chart(page, name)
        .getByText(value, { exact: typeof value === 'string' })
        .first()
        .waitFor()
      await chart(page, name).getByText(before).waitFor()
    }
    await chart(page, 'Cost')
      .getByText(/Without the cost of [\d,]+ tokens \([\d.]+%\), which have no price/)
      .waitFor()
    await page.locator('canvas').nth(5).waitFor()
    assert.deepEqual(problems, [])
  })

  it('are tables for those who choose them, and of another period, by the keyboard', async () => {
    const { page, problems } = await open('overview')
    await page.locator('canvas').nth(5).waitFor()
    await tabTo(page, 'Charts')
    await page.keyboard.press('ArrowRight')
    const table = page.getByRole('table', { name: 'Turns', exact: true })
    await table.waitFor()
    assert.equal(await table.getByRole('row').count(), 7 * 24 + 1)
    const cells = async (n: number) => (await table.locator(`td:nth-child(${n})`).allInnerTexts()).map(Number)
    const sum = async (n: number) => (await cells(n)).reduce((sum, value) => sum + value, 0)
    assert.deepEqual([await sum(2), await sum(3)], [3, 2])
    assert.equal(await page.locator('canvas').count(), 0)
    assert.deepEqual(await violations(page), [])
    await focusOn(page.getByLabel('Period', { exact: true }).first())
    await choose(page, '24 hours')
    await page.waitForURL('**/overview?*period=day*')
    await table.getByRole('row').nth(25).waitFor({ state: 'detached' })
    assert.equal(await table.getByRole('row').count(), 25)
    await page.reload()
    await table.waitFor()
    assert.deepEqual(problems, [])
  })

  it('of an agent are of its turns only', async () => {
    const other = await agentOf('Other')
    await turns(other, 1, 0)
    const { page, problems } = await open(`agents/${other}`)
    await heading(page, 'Other')
    await tabTo(page, 'Record')
    await page.keyboard.press('ArrowRight')
    await chart(page, 'Turns').getByText('1', { exact: true }).first().waitFor()
    await chart(page, 'Turns').getByText('Week before: 0').waitFor()
    const { page: empty } = await open(`agents/${await agentOf('Idle')}?tab=activity`)
    await empty.getByText('No turn in this period.').waitFor()
    await empty.getByText('No usage in this period.').waitFor()
    assert.deepEqual(problems, [])
  })

  it('are accessible on a screen and on a phone', async () => {
    await suite.checkAccess([
      ['overview', 'Overview'],
      ['overview?chart=table&period=day', 'Overview'],
      [`agents/${suite.app.agentId}?tab=activity`, 'Helper'],
    ])
  })

  it('are left out for callers who may not read turns or usage', async () => {
    const base = ['projects:GetProject', 'agents:GetAgent', 'agents:ListAgents']
    const turnsOnly = await openAs([...base, 'generations:ListGenerations'], 'overview')
    await chart(turnsOnly.page, 'Latency').waitFor()
    assert.equal(await chart(turnsOnly.page, 'Cost').count(), 0)
    const usageOnly = await openAs([...base, 'usage:GetAggregate'], `agents/${suite.app.agentId}?tab=activity`)
    await chart(usageOnly.page, 'Cost').waitFor()
    assert.equal(await chart(usageOnly.page, 'Latency').count(), 0)
    const neither = await openAs(base, `agents/${suite.app.agentId}`)
    await heading(neither.page, 'Helper')
    assert.equal(await neither.page.getByRole('tab', { name: 'Activity' }).count(), 0)
    for (const { problems } of [turnsOnly, usageOnly, neither]) assert.deepEqual(problems, [])
  })

  it('say what failed, and retry it, while others stay', async () => {
    const { page } = await open('start')
    await page.route('**/generations/statistics**', route => route.fulfill({ status: 500, body: '{}' }))
    await page.goto(`${suite.app.base}/app${at('overview')}`)
    await chart(page, 'Cost').waitFor()
    const alert = chart(page, 'Turns and usage').getByRole('alert')
    await alert.waitFor()
    await page.unroute('**/generations/statistics**')
    await focusOn(alert.getByRole('button', { name: 'Try again' }))
    await page.keyboard.press('Enter')
    await chart(page, 'Latency').waitFor()
  })

  it('and the usage report show quantities without a price and their shares', async () => {
    const agent = await agentOf('Partly priced')
    await insertUsage(suite.app, projectId(), [
      tokenUse({ cost: 1, model: 'part', input: 300, output: 60, agent_id: agent }),
      tokenUse({ cost: null, model: 'part', input: 100, output: 20, agent_id: agent }),
    ])
    const { page, problems } = await open('usage?by=model')
    const unpriced = page.getByRole('table', { name: 'Without a price' }).getByRole('row').filter({ hasText: 'part' })
    await unpriced.getByText('input_tokens 100 (25%)').waitFor()
    await unpriced.getByText('output_tokens 80 (100%)').waitFor()
    const group = page.getByRole('table', { name: 'Usage by group' }).getByRole('row').filter({ hasText: 'part' })
    await group.getByText('180 (37.5%)').waitFor()
    assert.deepEqual(await violations(page), [])
    assert.deepEqual(problems, [])
  })
})
