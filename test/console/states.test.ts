import assert from 'node:assert/strict'
import type { Page, Route } from 'playwright-core'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'
import { consoleSuite, go } from './support.ts'

/** What the frame of the console reads: who the user is, what the user may see, and how much waits for the user. */
const FRAME = /\/api\/v1\/(users\/me|projects\?|.*\/activity\b|.*[?&]limit=1(&|$))/
/** Views that read nothing before an action. */
const WITHOUT_READS = ['start', 'copy']
const FAILURES = [
  { status: 500, code: 'INTERNAL_ERROR' },
  { status: 403, code: 'FORBIDDEN' },
  { status: 429, code: 'RATE_LIMIT_EXCEEDED' },
] as const

const refusal = (code: string) => ({
  error: { code, message: `message of ${code}`, hint: `hint of ${code}`, docs_url: '/docs' },
})

describe('every view of the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite()

  /** The views that the navigation offers, as paths below the project. */
  const views = async (page: Page): Promise<string[]> => {
    const links = page.getByRole('navigation').getByRole('link')
    await links.first().waitFor()
    const addresses = await links.evaluateAll(all => all.map(link => (link as unknown as URL).pathname))
    // A search requests nothing without a query.
    return addresses.map(address =>
      address
        .split('/')
        .slice(4)
        .join('/')
        .replace(/^search$/, 'search?q=kettle'),
    )
  }

  /** Opens every view that reads while its requests are answered in a way; `check` gets each. */
  const visit = async (answer: (route: Route) => unknown, check: (page: Page, view: string) => Promise<unknown>) => {
    // A tab has a separate cache: nothing remains of earlier reads.
    const { page } = await suite.open('start')
    const errors: string[] = []
    page.on('pageerror', error => errors.push(String(error)))
    const all = await views(page)
    assert.ok(all.length > 5)
    await page.route('**/api/v1/**', route => {
      return FRAME.test(route.request().url()) ? route.continue() : answer(route)
    })
    for (const view of all.filter(view => !WITHOUT_READS.includes(view))) {
      await go(page, suite.at(view))
      await page
        .locator('main')
        .getByRole('heading')
        .first()
        .waitFor()
        .catch(() => assert.fail(`${view} is blank`))
      await check(page, view)
      assert.equal(await page.getByText('This view stopped with an error').count(), 0, view)
    }
    assert.deepEqual(errors, [])
    await page.unrouteAll({ behavior: 'ignoreErrors' })
  }
  const shown = (page: Page, view: string, text: string | RegExp) =>
    page
      .locator('main')
      .getByText(text)
      .first()
      .waitFor()
      .catch(() => assert.fail(`${view} does not show ${text}`))

  it('explains an address that has none', async () => {
    const { page } = await suite.open('nothing')
    await page.getByRole('heading', { name: 'Not found' }).waitFor()
    await go(page, suite.at('agents'))
    await suite.heading(page, 'Agents')
    for (const address of ['nothing/else', 'else/nothing']) {
      await go(page, suite.at(address))
      await page.getByRole('heading', { name: 'Not found' }).waitFor()
    }
  })

  for (const { status, code } of FAILURES)
    it(`explains ${status}, and offers what can be done`, async () => {
      const headers = { 'x-request-id': 'req-1', ...(status === 429 ? { 'retry-after': '1' } : {}) }
      await visit(
        route => route.fulfill({ status, headers, json: refusal(code) }),
        (page, view) => shown(page, view, status === 403 ? 'You may not see this' : `hint of ${code}`),
      )
    })

  it('says that the service does not answer', async () => {
    await visit(
      route => route.abort(),
      (page, view) => shown(page, view, 'The service does not answer'),
    )
  })

  it('shows that it waits for a slow answer', async () => {
    const waiting: (() => void)[] = []
    await visit(
      route => new Promise<void>(resolve => waiting.push(resolve)).then(() => route.abort().catch(() => {})),
      (page, view) =>
        page
          .getByRole('status', { name: 'Loading' })
          .first()
          .waitFor()
          .catch(() => assert.fail(`${view} does not show that it waits`)),
    )
    for (const release of waiting) release()
  })
})

describe('a view that streams', function () {
  this.timeout(180_000)
  const suite = consoleSuite()

  it('continues without a lost or doubled piece after the web process of its stream was killed', async () => {
    const { app } = suite
    const words = Array.from({ length: 120 }, (_, index) => `word${index}`).join(' ')
    await doubleClient(app.double).put('killed', {
      rules: [{ reply: { text: words, chunk_words: 1, chunk_delay_ms: 50 } }],
    })
    const agent = await app.admin.post('/agents', {
      project_id: app.projectId,
      name: 'Slow',
      ai_provider_id: app.providerId,
      model: 'killed/m',
    })
    const { body: session } = await app.admin.post('/sessions', {
      project_id: app.projectId,
      agent_id: agent.body.id,
      name: 'Long reply',
      auto_generate: true,
    })
    const { page, problems } = await suite.open('start')
    const killed = await startProcess('web', app.databaseUrl, { BASE_URL: app.base, TRUST_PROXY: '1' })
    const kept = [...app.front.targets]
    app.front.targets.splice(0, kept.length, killed.url)
    try {
      await go(page, suite.at(`sessions/${session.id}`))
      await page.getByText('Live', { exact: true }).waitFor()
      await app.admin.post(`/sessions/${session.id}/messages`, { message: 'Tell me' })
      const log = page.getByRole('log')
      await log.getByText('word9 ').waitFor()
    } finally {
      app.front.targets.splice(0, 1, ...kept)
      await killed.kill()
    }
    const log = page.getByRole('log')
    await log.getByText('word119').waitFor({ timeout: 60_000 })
    // The log shows the pieces before the message is written.
    await eventually(async () => {
      const { data } = (await app.admin.get(`/sessions/${session.id}/messages`)).body
      return data.at(-1).content === words
    })
    await eventually(async () => {
      const text = (await log.innerText()).replaceAll(/\s+/g, ' ')
      return text.split(words).length === 2
    })
    // The connection that was lost.
    assert.deepEqual(
      problems.filter(problem => !/ERR_|502|Failed to load/.test(problem)),
      [],
    )
  })
})
