import assert from 'node:assert/strict'
import type { BrowserContext, Page, Request } from 'playwright-core'
import { voidStatement } from '#core/db/sql.ts'
import { issueSignInLink } from '#identity/users/sign-in-link.ts'
import { findFirstAdmin } from '#operator/store.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { propose } from '../support/approvals.ts'
import { openPage } from '../support/chromium.ts'
import { allowing } from '../support/oauth.ts'
import { createdBy } from '../support/replies.ts'
import {
  consoleSuite,
  focusOn,
  go,
  HOSTILE,
  openConsole,
  PASSWORD,
  pressEnter,
  signIn,
  startConsoleApp,
} from './support.ts'

describe('the console in a browser', function () {
  this.timeout(180_000)
  const suite = consoleSuite()
  const { at, open, heading, closeLater } = suite
  const session = async (fields: object = {}) =>
    (
      await suite.app.admin.post('/sessions', {
        project_id: suite.app.projectId,
        agent_id: suite.app.agentId,
        ...fields,
      })
    ).body
  const turn = async (prompt = 'hi') =>
    (await suite.app.admin.post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt })).body
  const agent = async (fields: object = {}) =>
    (
      await suite.app.admin.post('/agents', {
        project_id: suite.app.projectId,
        name: 'Other',
        ai_provider_id: suite.app.providerId,
        ...fields,
      })
    ).body

  it('makes at most 45 requests from the sign-in to the overview', async () => {
    const watched = await openPage(suite.chromium, [suite.app.base])
    closeLater(watched)
    const { page } = watched
    const requests: string[] = []
    const pending = new Set<Request>()
    page.on('request', request => {
      requests.push(`${request.method()} ${new URL(request.url()).pathname}`)
      // The stream of activity does not end.
      if (!request.url().includes('/activity')) pending.add(request)
    })
    const settle = (request: Request) => void pending.delete(request)
    page.on('requestfinished', settle)
    page.on('requestfailed', settle)
    await page.goto(`${suite.app.base}/app${at('overview')}`)
    await signIn(page, 'ada')
    await heading(page, 'Overview')
    // The last requests begin once the permissions are known, all at the same time.
    await eventually(() => requests.includes('GET /api/v1/approvals') && pending.size === 0)
    assert.ok(requests.length <= 45, `${requests.length}: ${requests.join(', ')}`)
  })

  it('signs in with a link once, keeps it out of the address, and requires the password after that', async () => {
    const { base, services } = suite.app
    const admin = await findFirstAdmin(services.pool)
    assert.ok(admin)
    const address = `${base}/app${at('agents')}#sign_in_link=${await issueSignInLink(services, admin)}`
    for (const isUsed of [false, true]) {
      const { page, problems, close } = await openPage(suite.chromium, [base])
      closeLater({ close })
      await page.goto(address)
      if (isUsed) await page.getByText('This link was used before').waitFor()
      else await page.getByRole('link', { name: 'Helper' }).waitFor()
      assert.ok(!page.url().includes('sign_in_link'))
      assert.deepEqual(
        problems.filter(problem => !problem.includes('401')),
        [],
      )
    }
  })

  /** Tabs of one browser with a separate clock, signed in by the form of the first. */
  const openTabs = async (count: number, prepare?: (context: BrowserContext) => Promise<unknown>) => {
    const { page: first, problems, close } = await openPage(suite.chromium, [suite.app.base])
    closeLater({ close })
    const context = first.context()
    await context.clock.install()
    await prepare?.(context)
    await first.goto(`${suite.app.base}/app${at('agents')}`)
    await signIn(first, 'ada')
    const tabs = [first]
    await first.getByRole('link', { name: 'Helper' }).waitFor()
    while (tabs.length < count) {
      const page = await context.newPage()
      await page.goto(`${suite.app.base}/app${at('agents')}`)
      await page.getByRole('link', { name: 'Helper' }).waitFor()
      tabs.push(page)
    }
    return { tabs, clock: context.clock, problems }
  }
  const grants = async () => (await suite.app.admin.get('/oauth/grants?client_id=muster-console')).body.total

  it('shares a sign-in between five tabs: one form, one refresh when the token expires, one sign-out', async () => {
    const refreshes: string[] = []
    const { tabs, clock, problems } = await openTabs(5, context =>
      context.route('**/oauth/console/token', async route => {
        const form = route.request().postData() ?? ''
        const response = await route.fetch()
        // A browser without the cookie gets no content.
        if (response.status() !== 200) return route.fulfill({ response })
        if (form.includes('grant_type=refresh_token')) refreshes.push(form)
        await route.fulfill({ response, json: { ...(await response.json()), expires_in: 600 } })
      }),
    )
    // The token expires in all tabs together, and each of them polls.
    await clock.fastForward(600_000)
    await Promise.all(
      tabs.map(async page => {
        await go(page, at('sessions'))
        await heading(page, 'Sessions')
        await page.getByText('No session yet').waitFor()
      }),
    )
    assert.equal(refreshes.length, 1)
    const before = await grants()
    await tabs[0].getByRole('button', { name: 'Account' }).click()
    await tabs[0].getByRole('menuitem', { name: 'Sign out' }).click()
    for (const page of tabs) await page.getByText('You are signed out.').waitFor()
    await eventually(async () => (await grants()) === before - 1, { what: 'the grant is revoked' })
    assert.deepEqual(problems, [])
  })

  it('signs out all tabs after 30 minutes without input in any of them', async () => {
    const { tabs, clock, problems } = await openTabs(2)
    const [first, second] = tabs
    const before = await grants()
    const isOut = (page: Page) => page.getByText('there was no input').isVisible()
    await clock.fastForward('20:00')
    await second.keyboard.press('Tab')
    await clock.fastForward('20:00')
    for (const page of tabs) {
      await go(page, at('sessions'))
      await heading(page, 'Sessions')
      assert.equal(await isOut(page), false)
    }
    await clock.fastForward('31:00')
    for (const page of [first, second]) await page.getByText('there was no input').waitFor()
    await eventually(async () => (await grants()) === before - 1, { what: 'the grant is revoked' })
    assert.deepEqual(problems, [])
  })

  it('has no violation of WCAG 2.2 AA in any view, and no sideways scrolling on a phone', async () => {
    const { id } = await session({ name: 'A question' })
    await suite.app.admin.post(`/sessions/${id}/messages?wait=true`, { message: 'Where is **my order**?' })
    await suite.app.admin.post(`/sessions/${id}/attention`, { reason: 'A refund' })
    await suite.app.admin.post('/exceptions', {
      project_id: suite.app.projectId,
      title: 'An import stopped',
      severity: 'critical',
    })
    await propose(suite.app, (await turn()).id, { id: null, name: 'pay' }, { amount: 12 })
    await suite.checkAccess([
      ['start', 'Getting started'],
      ['overview', 'Overview'],
      ['agents', 'Agents'],
      [`agents/${suite.app.agentId}`, 'Helper'],
      [`agents/${suite.app.agentId}?tab=versions`, 'Helper'],
      ['agents/new', 'New agent'],
      ['playground', 'Playground'],
      ['sessions', 'Sessions'],
      [`sessions/${id}`, 'A question'],
      ['inbox', 'Inbox'],
    ])
  })

  it('streams a turn with its steps, and the next turn contains the one before', async () => {
    const double = doubleClient(suite.app.double)
    await double.put('playground', { rules: [{ reply: { text: 'a scripted reply' } }] })
    const { id } = await agent({ name: 'Scripted', model: 'playground/m' })
    const { page, problems } = await open(`playground?q=${id}`)
    const send = async (text: string) => {
      await page.getByLabel('Message').fill(text)
      await page.keyboard.press('Enter')
    }
    await send('the first question')
    const turns = page.getByRole('article')
    await turns.getByText('a scripted reply').waitFor()
    await turns.getByText('Step 1: model').waitFor()
    await turns.getByText('Total').waitFor()
    await send('the second')
    await turns.nth(1).getByText('Total').waitFor()
    const requests = await double.requests('playground')
    const { messages } = requests[requests.length - 1].body as { messages: { role: string }[] }
    assert.deepEqual(
      messages.map(({ role }) => role).filter(role => role !== 'system'),
      ['user', 'assistant', 'user'],
    )
    assert.deepEqual(problems, [])
  })

  it('shows a person the messages of a session as they come, who takes over and returns the session', async () => {
    const { id } = await session({ name: 'Talk', auto_generate: true })
    const { page, problems } = await open(`sessions/${id}`)
    await page.getByText('Live', { exact: true }).waitFor()
    await suite.app.admin.post(`/sessions/${id}/messages?wait=true`, { message: 'from elsewhere' })
    const log = page.getByRole('log')
    await log.getByText('echo: from elsewhere').waitFor()
    await page.getByRole('button', { name: 'Take over' }).click()
    await page.getByText('You answer now').waitFor()
    await page.getByLabel('Your reply to the user').fill('a person here')
    await page.keyboard.press('Enter')
    await log.getByText('a person here').waitFor()
    const { data } = (await suite.app.admin.get(`/sessions/${id}/messages`)).body
    assert.deepEqual(
      data.map(({ origin }: { origin: string }) => origin),
      ['end_user', 'agent', 'operator'],
    )
    await page.getByRole('button', { name: 'Return to the agent' }).click()
    await page.getByLabel('Message as the user').waitFor()
    assert.equal((await suite.app.admin.get(`/sessions/${id}`)).body.control, 'agent')
    assert.deepEqual(problems, [])
  })

  it('writes as the end user only on request, and keeps a reply over a reload', async () => {
    const actor = { project_id: suite.app.projectId, name: 'Ada' }
    const { id: actor_id } = await createdBy(suite.app.admin, '/actors', actor)
    const { id } = await session({ name: 'Support', actor_id })
    const { page, problems } = await open(`sessions/${id}`)
    await page.getByText('The end user writes in this session').waitFor()
    assert.equal(await page.getByRole('textbox').count(), 0)
    await pressEnter(page.getByRole('button', { name: 'Take over' }))
    const reply = page.getByLabel('Your reply to the user')
    await reply.fill('half a reply')
    await page.reload()
    await reply.waitFor()
    assert.equal(await reply.inputValue(), 'half a reply')
    await reply.press('Enter')
    await page.getByRole('log').getByText('half a reply').waitFor()
    await page.reload()
    await reply.waitFor()
    assert.equal(await reply.inputValue(), '')
    await pressEnter(page.getByRole('button', { name: 'Return to the agent' }))
    await pressEnter(page.getByRole('button', { name: 'Write as the end user' }))
    await page.getByLabel('Message as the user').waitFor()
    const { data } = (await suite.app.admin.get(`/sessions/${id}/messages`)).body
    assert.deepEqual(
      data.map(({ origin }: { origin: string }) => origin),
      // The note of the handback.
      ['operator', 'system'],
    )
    assert.deepEqual(problems, [])
  })

  it('lets approvals be decided with the keyboard, edited, and rejected with a reason', async () => {
    const file = async (name: string) =>
      (await propose(suite.app, (await turn()).id, { id: null, name }, { amount: 12 }, { expires_in: 60 })).id
    const ids = {
      key: await file('pay_by_key'),
      rejected: await file('pay_rejected'),
      edited: await file('pay_edited'),
    }
    const { page, problems } = await open('inbox')
    const find = (name: string, id: string) => ({
      card: page.getByRole('article', { name }),
      state: async () => (await suite.app.admin.get(`/approvals/${id}`)).body,
    })
    const approved = find('pay_by_key', ids.key)
    const rejected = find('pay_rejected', ids.rejected)
    const edited = find('pay_edited', ids.edited)
    await edited.card.waitFor()
    await focusOn(approved.card)
    await page.keyboard.press('a')
    await eventually(async () => (await approved.state()).status === 'approved')
    await focusOn(rejected.card)
    await page.keyboard.press('r')
    await page.getByLabel('Reason').fill('too much')
    await page.keyboard.press('Enter')
    await eventually(async () => (await rejected.state()).status === 'rejected')
    assert.equal((await rejected.state()).resolution_reason, 'too much')
    await edited.card.getByRole('button', { name: 'Edit' }).click()
    await edited.card.getByLabel('Arguments').fill('{"amount": 5}')
    await edited.card.getByRole('button', { name: 'Approve edited' }).click()
    await eventually(async () => (await edited.state()).status === 'approved')
    assert.deepEqual((await edited.state()).edited_arguments, { amount: 5 })
    assert.deepEqual(problems, [])
  })

  it('shows both changes where two people edit an agent', async () => {
    const { id } = await agent({ name: 'Edited' })
    const { page } = await open(`agents/${id}`)
    await page.getByRole('button', { name: 'Edit' }).click()
    await page.getByLabel('Description').fill('mine')
    await suite.app.admin.patch(`/agents/${id}`, { description: 'theirs' })
    await page.getByRole('button', { name: 'Save' }).click()
    const dialog = page.getByRole('dialog', { name: 'Another person has changed this agent' })
    await dialog.getByText('"theirs"').waitFor()
    await dialog.getByText('"mine"').waitFor()
    await dialog.getByRole('button', { name: 'Save mine' }).click()
    await eventually(async () => (await suite.app.admin.get(`/agents/${id}`)).body.description === 'mine')
    await page.locator('main').getByText('mine').waitFor()
  })

  it('compares versions and restores an earlier one', async () => {
    const { id } = await agent({ name: 'Versioned', instructions: 'one' })
    await suite.app.admin.patch(`/agents/${id}`, { instructions: 'two' })
    const { page, problems } = await open(`agents/${id}?tab=versions`)
    await page.getByRole('button', { name: 'Compare' }).click()
    const region = page.getByRole('region', { name: 'Version 1 to 2' })
    for (const text of ['instructions', 'one', 'two']) await region.getByText(text, { exact: true }).first().waitFor()
    await page.getByRole('button', { name: 'Restore' }).click()
    await page.getByText('Version 3', { exact: true }).waitFor()
    assert.equal((await suite.app.admin.get(`/agents/${id}`)).body.instructions, 'one')
    assert.deepEqual(problems, [])
  })

  it('offers what the user may see, explains the rest, and requests nothing of it', async () => {
    await suite.app.user('cora', [allowing(suite.app.projectId, ['projects:*', 'agents:*'])])
    const watched = await openConsole(suite.chromium, suite.app, at('agents'), 'cora')
    closeLater(watched)
    const { page } = watched
    await page.getByRole('link', { name: 'Helper' }).waitFor()
    const requested: string[] = []
    page.on('request', request => requested.push(new URL(request.url()).pathname))
    const navigation = page.getByRole('navigation')
    assert.deepEqual(await navigation.getByRole('link').allInnerTexts(), [
      'Getting started',
      'Agents',
      'Playground',
      'Settings',
      'Keys',
      'Connected apps',
    ])
    await go(page, at('sessions'))
    await page.getByText('sessions:ListSessions').waitFor()
    assert.deepEqual(
      requested.filter(path => path.startsWith('/api/v1/sessions')),
      [],
    )
  })

  it('shows hostile text as text', async () => {
    const { id: agentId } = await agent({ name: HOSTILE, description: HOSTILE, instructions: HOSTILE })
    const { id } = await session({ name: HOSTILE, agent_id: agentId })
    await suite.app.admin.post(`/sessions/${id}/messages?wait=true`, {
      message: `${HOSTILE} [a](javascript:alert(1)) ![b](https://example.com/x.png) [c](https://example.com/)`,
    })
    await suite.app.admin.post('/exceptions', {
      project_id: suite.app.projectId,
      title: HOSTILE,
      detail: { [HOSTILE]: HOSTILE },
    })
    await propose(suite.app, (await turn(HOSTILE)).id, { id: null, name: 'pay' }, { [HOSTILE]: HOSTILE })
    await suite.checkHostileText([
      'agents',
      `agents/${agentId}`,
      `agents/${agentId}?tab=json`,
      'sessions',
      `sessions/${id}`,
      'inbox',
    ])
    const { page, problems } = await open(`sessions/${id}`)
    await page.getByRole('link', { name: 'c (example.com)' }).first().waitFor()
    assert.deepEqual(problems, [])
  })

  it('runs no script that its policy forbids', async () => {
    const { page } = await open('agents')
    const results = await page.evaluate(`(() => {
      const attempt = work => { try { work(); return 'done' } catch { return 'refused' } }
      return [
        attempt(() => { document.createElement('div').innerHTML = '<b>x</b>' }),
        attempt(() => { trustedTypes.createPolicy('other', {}) }),
        attempt(() => {
          const script = document.createElement('script')
          script.textContent = 'window.ran = true'
          document.head.append(script)
        }),
        window.ran === undefined,
      ]
    })()`)
    assert.deepEqual(results, ['refused', 'refused', 'refused', true])
  })

  it('has a state for each failure of the service, never a blank page', async () => {
    const { page } = await open('start')
    const refusal = (code: string) => ({ error: { code, message: `m ${code}`, hint: `h ${code}`, docs_url: '/docs' } })
    for (const [status, shown] of [
      [500, 'h INTERNAL_ERROR'],
      [403, 'agents:ListAgents'],
      [429, 'h LIMIT_EXCEEDED'],
      [0, 'The service does not answer'],
    ] as const) {
      await page.route('**/api/v1/agents?**', route => {
        if (status === 0) return route.abort()
        const code = { 500: 'INTERNAL_ERROR', 403: 'FORBIDDEN', 429: 'LIMIT_EXCEEDED' }[status]
        return route.fulfill({ status, headers: { 'x-request-id': 'req-1' }, json: refusal(code) })
      })
      await go(page, at(`agents?q=none${status}`))
      await page.getByText(shown).waitFor()
      if (status === 500) await page.getByText('req-1').waitFor()
      await page.unroute('**/api/v1/agents?**')
      if (status === 0 || status === 500) {
        await page.getByRole('button', { name: 'Try again' }).click()
        await page.getByText('Nothing matches the filters').waitFor()
        await page.getByRole('button', { name: 'Clear filters' }).click()
        await page.getByRole('link', { name: 'Helper' }).waitFor()
      }
      await go(page, at('overview'))
      await heading(page, 'Overview')
    }
    await go(page, at('agents/agent_01aaaaaaaaaaaaaaaaaaaaaaaa'))
    await page.getByText('Not found').waitFor()
  })

  it('is usable with the keyboard: skip link, command palette, focus in the new view', async () => {
    const { page, problems } = await open('agents')
    await page.getByRole('link', { name: 'Helper' }).waitFor()
    await page.keyboard.press('Tab')
    const focused = () => page.evaluate('document.activeElement.textContent')
    assert.equal(await focused(), 'Skip to content')
    await page.keyboard.press('Control+k')
    await eventually(async () =>
      String(await page.evaluate('document.activeElement.outerHTML')).includes('View, project, agent'),
    )
    await page.keyboard.type('inb')
    await page.keyboard.press('Enter')
    await heading(page, 'Inbox')
    assert.equal(await page.evaluate('document.activeElement.tagName'), 'MAIN')
    assert.deepEqual(problems, [])
  })

  it('leads from an empty deployment to the first reply', async () => {
    const fresh = await startConsoleApp()
    try {
      await fresh.pool.query(voidStatement`delete from projects`)
      await fresh.pool.query(voidStatement`delete from users`)
      const { page, problems, close } = await openPage(suite.chromium, [fresh.base])
      closeLater({ close })
      await page.goto(`${fresh.base}/app`)
      await page.getByLabel('Username').fill('root')
      await page.getByLabel('Password', { exact: true }).fill(PASSWORD)
      await page.getByLabel('Repeat the password').fill(PASSWORD)
      await page.getByRole('button', { name: 'Create administrator' }).click()
      await signIn(page, 'root')
      await page.getByLabel('Name of the project').fill('First')
      await page.getByRole('button', { name: 'Create' }).click()
      await page.getByRole('button', { name: 'Connect a model provider' }).click()
      const dialog = page.getByRole('dialog')
      await dialog.getByLabel('Name').fill('double')
      await dialog.getByLabel('Vendor').click()
      await page.getByRole('option', { name: 'custom' }).click()
      await dialog.getByLabel('Default model').fill('double-1')
      await dialog.getByLabel('Base URL').fill(`${fresh.double.url}/v1`)
      await dialog.getByRole('button', { name: 'Connect and check' }).click()
      await page.getByText('The provider answered').waitFor()
      await page.getByRole('link', { name: 'New agent' }).click()
      await page.getByLabel('Name').fill('Guide')
      await page.getByRole('button', { name: 'Create' }).click()
      await heading(page, 'Guide')
      await page.getByRole('link', { name: 'Open in playground' }).click()
      await page.getByLabel('Message').fill('hello')
      await page.keyboard.press('Enter')
      await page.getByText('echo: hello').waitFor()
      await page.getByRole('link', { name: 'Getting started' }).click()
      await page.getByText('3 of 5 steps done').waitFor()
      await page.getByRole('button', { name: 'Create a project key' }).click()
      await page.getByRole('dialog').getByRole('button', { name: 'Create' }).click()
      await page.getByText('Copy the key now').waitFor()
      const key = await page.getByRole('dialog').locator('pre').innerText()
      assert.match(key, /^sk_/)
      await page.getByRole('button', { name: 'I have copied it' }).click()
      await page.getByText('4 of 5 steps done').waitFor()
      const shown = (name: string) =>
        page.getByRole('region', { name: `Send the first request with the key: ${name}` }).innerText()
      const [, url, body] = /^curl '(\S+)'.* -d '(.*)'$/s.exec(await shown('curl')) as RegExpExecArray
      const { pathname, search } = new URL(url)
      const answer = await fetch(fresh.base + pathname + search, {
        method: 'POST',
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        body,
      })
      assert.equal(((await answer.json()) as { output: { content: string } }).output.content, 'echo: Hello')
      assert.match(await shown('TypeScript'), /agents\.generate\(\{ .*, wait: true \}\)/)
      await page.getByText('This project is set up').waitFor()
      await eventually(async () => !(await page.content()).includes(key), { what: 'the key is shown once' })
      assert.deepEqual(problems, [])
    } finally {
      await fresh.close()
    }
  })
})
