import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import type { BrowserContext, Page } from 'playwright-core'
import { rawQuery } from '#core/db/sql.ts'
import { eventually } from '../support/app.ts'
import { openPage } from '../support/chromium.ts'
import { allowing } from '../support/oauth.ts'
import { consoleSuite, go, openConsole, pressEnter, signIn } from './support.ts'

describe('coming back to the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite()
  const { at, closeLater, heading } = suite

  /** A browser whose user is signed in, with the number of sign-in forms that it was shown. */
  const open = async (view = 'agents?q=Help', user = 'ada') => {
    const watched = await openConsole(suite.chromium, suite.app, at(view), user)
    closeLater(watched)
    const context = watched.page.context()
    let forms = 0
    context.on('request', request => {
      if (request.url().includes('/oauth/consent?')) forms++
    })
    return { ...watched, context, forms: () => forms }
  }
  const shown = (page: Page) => page.getByRole('link', { name: 'Helper' }).waitFor()
  /** Everything that a script of the page can read. */
  const readable = (page: Page) =>
    page.evaluate(`JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])`) as Promise<string>
  /** The same of a signed-in user without unsent input: the key of the cookie, which is no token. */
  const KEY_ONLY = /^\[\{"muster-console-key":"[\w-]{43}"\},\{\},""\]$/
  const keyOf = async (page: Page) => JSON.parse(await readable(page))[0]['muster-console-key'] as string | undefined
  const cookieOf = async (context: BrowserContext) => {
    const cookies = await context.cookies(`${suite.app.base}/oauth/console/token`)
    return cookies.find(({ name }) => name.startsWith('console_refresh'))
  }
  const requiresSignIn = async (page: Page) => {
    await page.reload()
    await page.waitForURL('**/oauth/consent**')
  }

  it('shows the same address without a form after a reload of the only tab, and no script can read a token', async () => {
    const { page, problems, context, forms } = await open()
    await shown(page)
    const cookie = await cookieOf(context)
    assert.deepEqual(
      [cookie?.httpOnly, cookie?.secure, cookie?.sameSite, cookie?.path],
      [true, true, 'Strict', '/oauth/console'],
    )
    assert.match(await readable(page), KEY_ONLY)
    await page.reload()
    await shown(page)
    assert.ok(page.url().endsWith(at('agents?q=Help')))
    assert.match(await readable(page), KEY_ONLY)
    assert.notEqual((await cookieOf(context))?.value, cookie?.value, 'it was rotated')
    assert.equal(forms(), 0)
    assert.deepEqual(problems, [])
  })

  it('needs no form in a second tab, in a tab after a crash, and after a link of another site', async () => {
    const { page, context, problems, forms } = await open()
    const second = await context.newPage()
    await second.goto(`${suite.app.base}/app${at('agents')}`)
    await shown(second)
    await second.close()
    await page.goto('chrome://crash').catch(() => {})
    await page.close()
    const third = await context.newPage()
    await third.goto(`${suite.app.base}/app${at('agents')}`)
    await shown(third)
    // A message in a mail program of the web, on another site than the deployment.
    const mail = http.createServer((_req, res) => {
      res.setHeader('content-type', 'text/html')
      res.end(`<!doctype html><title>Mail</title><a href="${suite.app.base}/app${at('agents')}">Open</a>`)
    })
    await new Promise<void>(resolve => mail.listen(0, 'localhost', resolve))
    try {
      await third.goto(`http://localhost:${(mail.address() as AddressInfo).port}/`)
      await third.getByRole('link', { name: 'Open' }).click()
      await shown(third)
    } finally {
      mail.close()
      mail.closeAllConnections()
    }
    assert.equal(forms(), 0)
    assert.deepEqual(
      problems.filter(problem => !problem.startsWith('request to http://localhost')),
      [],
    )
  })

  it('gives other sites and frames neither an answer nor the page', async () => {
    const { context } = await open()
    const { base } = suite.app
    const site = http.createServer((_req, res) => {
      res.setHeader('content-type', 'text/html')
      res.end(`<!doctype html><title>Evil</title><iframe src="${base}/app"></iframe>`)
    })
    await new Promise<void>(resolve => site.listen(0, '127.0.0.1', resolve))
    const { port } = site.address() as AddressInfo
    try {
      // The same site, another origin: the browser sends cookies of `SameSite=Strict` there.
      for (const host of ['127.0.0.1', 'localhost']) {
        const page = await context.newPage()
        if (host === 'localhost')
          await page.route('http://localhost:*/**', route =>
            route.fulfill({ contentType: 'text/html', body: '<title>Evil</title>' }),
          )
        await page.goto(`http://${host}:${port}/`)
        const before = await cookieOf(context)
        const answers: number[] = []
        page.on('response', response => {
          if (response.url().includes('/oauth/console/token')) answers.push(response.status())
        })
        const form = `new URLSearchParams({ client_id: 'muster-console', grant_type: 'refresh_token', refresh_token: 'cookie' })`
        const read = await page.evaluate(
          `fetch('${base}/oauth/console/token', { method: 'POST', credentials: 'include', body: ${form} }).then(r => r.text(), () => 'refused')`,
        )
        assert.equal(read, 'refused')
        assert.ok(
          answers.every(status => status === 403),
          String(answers),
        )
        assert.equal((await cookieOf(context))?.value, before?.value)
        if (host === '127.0.0.1')
          assert.ok(
            page.frames().every(frame => !frame.url().startsWith(base)),
            'the page is not framed',
          )
        await page.close()
      }
    } finally {
      site.close()
      site.closeAllConnections()
    }
  })

  it('requires a sign-in after a sign-out, in every tab', async () => {
    const { page, context } = await open()
    await shown(page)
    const key = await keyOf(page)
    const other = await context.newPage()
    await other.goto(`${suite.app.base}/app${at('agents?q=Help')}`)
    await shown(other)
    assert.equal(await keyOf(other), key)
    await page.getByRole('button', { name: 'Account' }).click()
    await page.getByRole('menuitem', { name: 'Sign out' }).click()
    await page.getByText('You are signed out.').waitFor()
    await eventually(async () => (await cookieOf(context)) === undefined, { what: 'the cookie is cleared' })
    assert.equal(await readable(other), '[{},{},""]')
    await requiresSignIn(other)
    await requiresSignIn(page)
    await signIn(page, 'ada')
    await shown(page)
    const next = await keyOf(page)
    assert.ok(next && next !== key, 'a new key')
    await page.reload()
    await shown(page)
  })

  it('ends on the service with the sign-out of a page whose browser has deleted the cookie', async () => {
    const { page, context } = await open()
    await shown(page)
    const cookie = await cookieOf(context)
    assert.ok(cookie)
    const key = (await keyOf(page)) as string
    await context.clearCookies({ name: /console_refresh/ })
    const revoked = page.waitForResponse(response => response.url().endsWith('/oauth/console/revoke'))
    await page.getByRole('button', { name: 'Account' }).click()
    await page.getByRole('menuitem', { name: 'Sign out' }).click()
    assert.equal((await revoked).status(), 200)
    const { base } = suite.app
    const copy = await fetch(`${base}/oauth/console/token`, {
      method: 'POST',
      headers: { origin: base, cookie: `${cookie.name}=${cookie.value}`, 'muster-console-key': key },
      body: new URLSearchParams({
        client_id: 'muster-console',
        grant_type: 'refresh_token',
        refresh_token: 'cookie',
      }),
    })
    assert.equal(copy.status, 400)
    assert.equal(((await copy.json()) as { error: string }).error, 'invalid_grant')
  })

  it('sends its cookie to other ports, which can do nothing with it', async () => {
    const { page, context } = await open()
    await shown(page)
    const { base } = suite.app
    let stolen: string | undefined
    const port = http.createServer((req, res) => {
      stolen ??= req.headers.cookie
      res.setHeader('content-type', 'text/html')
      res.end('<!doctype html><title>Another program</title>')
    })
    await new Promise<void>(resolve => port.listen(0, '127.0.0.1', resolve))
    try {
      const other = await context.newPage()
      await other.goto(`http://127.0.0.1:${(port.address() as AddressInfo).port}/oauth/console/x`)
      assert.match(stolen ?? '', /console_refresh_\d+=v1\./)
      assert.equal(await readable(other), '[{},{},""]', 'it has no key')
      for (const headers of [{}, { 'muster-console-key': randomBytes(32).toString('base64url') }]) {
        const { status } = await fetch(`${base}/oauth/console/token`, {
          method: 'POST',
          headers: { origin: base, 'sec-fetch-site': 'same-origin', cookie: stolen as string, ...headers },
          body: new URLSearchParams({
            client_id: 'muster-console',
            grant_type: 'refresh_token',
            refresh_token: 'cookie',
          }),
        })
        assert.equal(status, 204)
      }
      await page.reload()
      await shown(page)
    } finally {
      port.close()
      port.closeAllConnections()
    }
  })

  it('requires a sign-in after a revocation, also in a tab that is open', async () => {
    const { page } = await open()
    await shown(page)
    const { id } = (await suite.app.admin.get('/users?username=ada')).body.data[0]
    const { data } = (await suite.app.admin.get(`/oauth/grants?user_id=${id}&client_id=muster-console`)).body
    const newest = data.toSorted((a: any, b: any) => (a.created_at < b.created_at ? 1 : -1))[0]
    await suite.app.admin.delete(`/oauth/grants/${newest.id}`)
    await page.clock.install()
    await page.clock.fastForward(10_000)
    await go(page, at('sessions'))
    await page.getByText('Your sign-in has ended').waitFor()
    await requiresSignIn(page)
  })

  it('requires a sign-in when no tab was open until the idle time was over', async () => {
    const { page } = await open()
    await shown(page)
    // The time that the service counts passes.
    await suite.app.pool.query(
      rawQuery(`update oauth_objects set expires_at = now() where model = 'RefreshToken' and consumed_at is null
        and grant_id = (select id from oauth_grants where client_id = 'muster-console' order by created_at desc limit 1)`),
    )
    await requiresSignIn(page)
  })

  it('requires a sign-in in the tabs of a user after another user signed in in the same browser', async () => {
    await suite.app.user('bob', [allowing(suite.app.projectId)])
    const { page, context } = await open()
    await shown(page)
    const other = await context.newPage()
    // A tab without the tokens of the first one, as after a restart of the browser with its cookie expired.
    await context.clearCookies({ name: /console_refresh/ })
    await other.addInitScript(`globalThis.BroadcastChannel = class extends BroadcastChannel {
      postMessage(message) { if (message?.kind !== 'request') super.postMessage(message) }
    }`)
    await other.goto(`${suite.app.base}/app${at('agents')}`)
    await signIn(other, 'bob')
    await shown(other)
    await page.getByText('Another user signed in').waitFor()
  })

  it('keeps unsent input over a reload, until it is sent or the user signs out', async () => {
    const { page } = await open('playground')
    const message = page.getByLabel('Message')
    await message.fill('half a question')
    await page.reload()
    await message.waitFor()
    assert.equal(await message.inputValue(), 'half a question')
    assert.match(await readable(page), /half a question/)
    // Another view has no part in it.
    await go(page, at('agents'))
    await shown(page)
    await go(page, at('playground'))
    assert.equal(await message.inputValue(), 'half a question')
    await message.press('Enter')
    await page.getByRole('article').getByText('Total').waitFor()
    assert.match(await readable(page), KEY_ONLY)
    await message.fill('another')
    await page.getByRole('button', { name: 'Account' }).click()
    await page.getByRole('menuitem', { name: 'Sign out' }).click()
    await page.getByText('You are signed out.').waitFor()
    assert.equal(await readable(page), '[{},{},""]')
  })

  it('keeps unsent input by the record of the address, also where one record leads to the next', async () => {
    const title = (name: string) => ({ project_id: suite.app.projectId, title: name })
    const [one, other] = await Promise.all(
      ['One', 'Other'].map(async name => (await suite.app.admin.post('/cases', title(name))).body.id as string),
    )
    const { page } = await open(`cases/${one}`)
    const comment = page.getByLabel('Comment')
    await heading(page, 'One')
    await comment.fill('about one')
    await go(page, at(`cases/${other}`))
    await heading(page, 'Other')
    assert.equal(await comment.inputValue(), '')
    await comment.fill('about the other')
    await go(page, at(`cases/${one}`))
    await heading(page, 'One')
    assert.equal(await comment.inputValue(), 'about one')
    await go(page, at(`cases/${other}`))
    await heading(page, 'Other')
    assert.equal(await comment.inputValue(), 'about the other')
  })

  it('keeps unsent input of equal forms of a list by their row', async () => {
    const { project_id, id } = (
      await suite.app.admin.post('/cases', { project_id: suite.app.projectId, title: 'With evidence' })
    ).body
    assert.equal(project_id, suite.app.projectId)
    for (const name of ['Receipt', 'Photo'])
      await suite.app.admin.post(`/cases/${id}/evidence`, { name, kind: 'note', content: name })
    const { page } = await open(`cases/${id}?tab=evidence`)
    const withdraw = (name: string) =>
      pressEnter(page.getByRole('row').filter({ hasText: name }).getByRole('button', { name: 'Withdraw' }))
    const reason = page.getByRole('dialog').getByLabel('Reason')
    await withdraw('Receipt')
    await reason.fill('a copy')
    await page.keyboard.press('Escape')
    await page.getByRole('dialog').waitFor({ state: 'detached' })
    await withdraw('Photo')
    await reason.waitFor()
    assert.equal(await reason.inputValue(), '')
  })

  it('keeps unsent input when the sign-in ends, until another user signs in', async () => {
    const { page, context } = await open('playground')
    const message = page.getByLabel('Message')
    await message.fill('half a question')
    // As another tab does after the idle time.
    const other = await context.newPage()
    await other.goto(`${suite.app.base}/app/config.json`)
    await other.evaluate(`new BroadcastChannel('muster-session').postMessage({ kind: 'out', reason: 'idle' })`)
    await page.getByText('there was no input').waitFor()
    assert.match(await readable(page), /half a question/)
    await page.getByRole('button', { name: 'Sign in' }).click()
    await message.waitFor()
    assert.equal(await message.inputValue(), 'half a question')
    await suite.app.user('zoe', [allowing(suite.app.projectId)])
    await context.clearCookies({ name: /console_refresh/ })
    await page.reload()
    await signIn(page, 'zoe')
    await message.waitFor()
    assert.equal(await message.inputValue(), '')
    assert.doesNotMatch(await readable(page), /half a question/)
  })

  it('keeps the fields of a form that was sent after the sign-in had ended', async () => {
    const { page } = await open('webhooks')
    await pressEnter(page.getByRole('button', { name: 'New webhook' }).first())
    const url = page.getByRole('dialog').getByLabel('URL')
    await url.fill('https://example.com/late')
    const { id } = (await suite.app.admin.get('/users?username=ada')).body.data[0]
    const { data } = (await suite.app.admin.get(`/oauth/grants?user_id=${id}&client_id=muster-console`)).body
    const newest = data.toSorted((a: any, b: any) => (a.created_at < b.created_at ? 1 : -1))[0]
    await suite.app.admin.delete(`/oauth/grants/${newest.id}`)
    await page.clock.install()
    await page.clock.fastForward(10_000)
    await url.press('Enter')
    await page.getByText('Your sign-in has ended').waitFor()
    assert.match(await readable(page), /example\.com\/late/)
  })

  it('keeps the fields of a form but secrets, says so, and forgets them when they are discarded', async () => {
    const { page } = await open('webhooks')
    const create = () => pressEnter(page.getByRole('button', { name: 'New webhook' }).first())
    await create()
    const dialog = page.getByRole('dialog')
    await dialog.getByLabel('URL').fill('https://example.com/hook')
    const secret = dialog.locator('input[type=password]')
    if ((await secret.count()) > 0) await secret.first().fill('a very secret text')
    await page.reload()
    await heading(page, 'Webhooks')
    assert.doesNotMatch(await readable(page), /very secret/)
    await create()
    await dialog.getByText('did not send').waitFor()
    assert.equal(await dialog.getByLabel('URL').inputValue(), 'https://example.com/hook')
    await dialog.getByRole('button', { name: 'Discard' }).click()
    assert.equal(await dialog.getByLabel('URL').inputValue(), '')
    assert.match(await readable(page), KEY_ONLY)
  })

  it('shows an error and loads again where a script does not arrive, and keeps the page offline', async () => {
    const { page, context } = await open('agents')
    await shown(page)
    let loads = 0
    page.on('load', () => loads++)
    await context.setOffline(true)
    await go(page, at('triggers'))
    await page.getByRole('heading', { name: 'This view could not be loaded' }).waitFor()
    // The rest of the page works.
    await go(page, at('agents'))
    await shown(page)
    await go(page, at('webhooks'))
    await page.getByRole('heading', { name: 'This view could not be loaded' }).waitFor()
    await pressEnter(page.getByRole('button', { name: 'Try again' }))
    await page.getByText('The service does not answer').waitFor()
    assert.equal(loads, 0, 'nothing reloaded by itself')
    await context.setOffline(false)
    await pressEnter(page.getByRole('button', { name: 'Try again' }))
    await heading(page, 'Webhooks')
  })

  it('says what the sign-in is for', async () => {
    const { page, close } = await openPage(suite.chromium, [suite.app.base])
    closeLater({ close })
    await page.goto(`${suite.app.base}/app`)
    await page.getByText('Sign in to open the console of this deployment.').waitFor()
    assert.equal(await page.getByText('An application requests').count(), 0)
  })
})

describe('the playground without a worker', function () {
  this.timeout(180_000)
  const suite = consoleSuite([])

  it('says that nothing serves the queue of the turn', async () => {
    const { page } = await suite.open('playground')
    await page.getByLabel('Message').fill('anybody there?')
    await page.keyboard.press('Enter')
    const notice = page.getByRole('status').filter({ hasText: 'No worker runs turns' })
    await notice.getByText('npm run worker').waitFor()
    await suite.app.user('kim', [allowing(suite.app.projectId, ['projects:*', 'agents:*'])])
    const watched = await openConsole(suite.chromium, suite.app, suite.at('playground'), 'kim')
    suite.closeLater(watched)
    await watched.page.getByLabel('Message').fill('anybody there?')
    await watched.page.keyboard.press('Enter')
    await watched.page.getByText('No worker has begun this turn yet').waitFor()
  })
})

/** Components with inputs whose content is no unsent work, and why. */
const WITHOUT_DRAFT: Record<string, string> = {
  'components/completed-text.tsx CompletedText': 'an input of forms that keep it',
  'components/dataset-select.tsx useDatasetSelect': 'the name of a first dataset',
  'components/list.tsx EntryField': 'a filter',
  'components/list.tsx SearchField': 'a filter',
  'components/list.tsx TimeField': 'a filter',
  'components/provider-form.tsx ProviderForm': 'a key',
  'components/schema-form.tsx SchemaField': 'an input of a form that keeps it',
  'components/simulation.tsx Simulation': 'a question',
  'components/viewer.tsx Lines': 'a search',
  'editor/expression.tsx NameField': 'a name until it is complete',
  'session/gate.tsx BootstrapForm': 'a password',
  'shell/home.tsx ProjectForm': 'a name',
  'views/automation/evidence.tsx EvidenceField': 'an input of forms that keep it',
  'views/content/search.tsx Search': 'a search',
  'views/control/audit.tsx Audit': 'a filter',
  'views/control/receipt.tsx Receipt': 'an ID',
  'views/control/webhook.tsx Signature': 'a secret and a body to check',
  'views/conversation/reply-field.tsx ReplyField': 'an input of a composer that keeps it',
  'views/conversation/session-composer.tsx UserComposer': 'keeps it by useMessage',
  'views/conversation/session-notes.tsx NoteForm': 'an input of forms that keep it',
  'views/conversation/sessions.tsx SessionForm': 'a name',
  'views/execution/decider-form.tsx Meaning': 'an input of a form that keeps it',
  'views/execution/decider-form.tsx QuestionFields': 'an input of a form that keeps it',
  'views/execution/model-route-form.tsx TargetFields': 'an input of a form that keeps it',
  'views/project/settings-account.tsx Password': 'a password',
  'views/project/settings-project.tsx DeleteForm': 'the name of what is deleted',
}

describe('the sources of the console', () => {
  const root = path.resolve(import.meta.dirname, '../../console/src')

  it('keep what a person types by one hook', () => {
    const texts = /<(Textarea|JsonInput|TextInput|PasswordInput)\b/
    const without = fs.globSync('**/*.tsx', { cwd: root }).flatMap(file =>
      fs
        .readFileSync(path.join(root, file), 'utf8')
        .split(/^(?=(?:export )?(?:function|const) \w)/m)
        .filter(component => texts.test(component) && !component.includes('useDraft'))
        .map(component => `${file} ${component.match(/(?:function|const) (\w+)/)?.[1]}`),
    )
    assert.deepEqual(without.toSorted(), Object.keys(WITHOUT_DRAFT).toSorted())
  })
})
