import assert from 'node:assert/strict'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Page, Browser as Program } from 'playwright-core'
import { openPage, startChromium, type Watched } from '../support/chromium.ts'
import {
  ACCOUNT_HEADER,
  CLIENT,
  type IdentityProvider,
  REFUSING,
  startIdentityProvider,
} from '../support/identity-provider.ts'
import {
  allowing,
  authorizeUrl,
  exchange,
  type OauthApp,
  pkce,
  postForm,
  register,
  startFront,
  startOauthApp,
} from '../support/oauth.ts'

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code'
const PASSWORD = 'a fine password'
const HOSTILE = `<img src=x onerror=alert(1)>${'\u202e'.repeat(100)}`

/** Local program that receives codes and serves its pages. */
async function startSite(): Promise<{ url: string; pages: Map<string, string>; close(): Promise<void> }> {
  const pages = new Map<string, string>()
  const server = http.createServer((req, res) => {
    res.setHeader('content-type', 'text/html')
    res.end(pages.get(req.url as string) ?? '<!doctype html><title>Back</title><p>Back at the client</p>')
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    pages,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

describe('the consent page in a browser', function () {
  this.timeout(120_000)
  let chromium: Program | null = null
  let app: OauthApp
  let site: Awaited<ReturnType<typeof startSite>>
  let provider: IdentityProvider
  let project: { id: string }
  let client_id: string
  let redirect_uri: string
  let opened: Watched[] = []

  before(async function () {
    chromium = await startChromium()
    if (!chromium) return this.skip()
    const front = await startFront()
    provider = await startIdentityProvider({ redirectUri: `${front.url}/oauth/oidc/callback` })
    const env = { OIDC_ISSUER: provider.issuer, OIDC_CLIENT_ID: CLIENT.id, OIDC_CLIENT_SECRET: CLIENT.secret }
    app = await startOauthApp({ front, env })
    site = await startSite()
    redirect_uri = `${site.url}/callback`
    project = await app.project('Atlas')
    const other = await app.project('Borealis')
    await app.user('ada', [allowing(project.id), allowing(other.id)])
    ;({ client_id } = await register(app.base, { client_name: 'A fine assistant' }))
  })

  after(async () => {
    await chromium?.close()
    await app?.close()
    await provider?.close()
    await site?.close()
  })

  afterEach(async () => {
    await Promise.all(opened.map(each => each.close()))
    opened = []
  })

  const open = async (options: Parameters<typeof openPage>[2] = {}) => {
    const watched = await openPage(chromium as Program, [app.base, site.url, provider.issuer], options)
    opened.push(watched)
    return watched
  }

  /** Sends a browser to the authorization endpoint; returns the page, and what ends the flow as the client does. */
  async function begin(asked: Record<string, string> = {}, options?: Parameters<typeof openPage>[2]) {
    const { page, problems } = await open(options)
    const { verifier, challenge } = pkce()
    const flow = { client_id, redirect_uri, ...asked }
    const challenged = { code_challenge: challenge, code_challenge_method: 'S256' }
    await page.goto(authorizeUrl(app.base, { ...flow, ...challenged }).href)
    /** Where the browser is sent back to. */
    const answer = async () => {
      await page.waitForURL(`${flow.redirect_uri}?**`)
      return new URL(page.url()).searchParams
    }
    const tokens = async () => {
      const code = (await answer()).get('code') as string
      const { status, body } = await exchange(app.base, flow, { code, verifier })
      assert.equal(status, 200, JSON.stringify(body))
      return body
    }
    return { page, problems, answer, tokens }
  }

  const signIn = async (page: Page, password = PASSWORD) => {
    await page.getByLabel('Username').fill('ada')
    await page.locator('input[name=password]').fill(password)
    await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  }
  const approve = (page: Page) => page.getByRole('button', { name: 'Approve' }).click()
  const status = async (token: string, method: 'get' | 'post' = 'get') =>
    (await app.as(token)[method]('/actors', method === 'get' ? undefined : ({ name: 'x' } as never))).status

  it('signs in and grants the selected project and scopes', async () => {
    const { page, problems, answer, tokens } = await begin()
    await signIn(page)
    await page.getByRole('heading', { name: 'A fine assistant asks for access' }).waitFor()
    assert.equal(await page.locator('#username').innerText(), 'ada')
    assert.equal(await page.locator('#redirect-host').innerText(), new URL(site.url).host)
    for (const notice of ['#unverified', '#loopback']) assert.ok(await page.locator(notice).isVisible(), notice)
    assert.equal(await page.locator('input:checked').count(), 0, 'only requested scopes are selected')
    await page.locator('#project').selectOption('Atlas')
    await page.getByLabel('Read only').click()
    await approve(page)
    const { access_token } = await tokens()
    assert.equal((await answer()).get('iss'), app.base)
    assert.deepEqual([await status(access_token), await status(access_token, 'post')], [200, 403])
    assert.deepEqual(problems, [])
  })

  it('preselects exactly the requested scopes', async () => {
    const chosen = async (scope: string) => {
      const { page } = await begin({ scope })
      await signIn(page)
      await page.locator('#consent').waitFor()
      const kind = await page.locator('input[name=kind]:checked').evaluateAll(all => all.map((each: any) => each.value))
      const list = `.options input[name=${kind[0]}]:checked`
      return [kind[0], ...(await page.locator(list).evaluateAll(all => all.map((each: any) => each.value)))]
    }
    assert.deepEqual(await chosen('actors:* files:*'), ['modules', 'actors', 'files'])
    assert.deepEqual(await chosen('actors:GetActor nothing:Known'), ['actions', 'actors:GetActor'])
    assert.deepEqual(await chosen('*'), ['all'])
    const { page, tokens } = await begin({ scope: 'actors:GetActor' })
    await signIn(page)
    await page.locator('#project').selectOption('Atlas')
    await page.getByLabel('actors:ListActors').click()
    assert.equal(await page.locator('#summary').innerText(), '2 actions chosen')
    await approve(page)
    assert.equal((await tokens()).scope, 'mcp:access actors:GetActor actors:ListActors')
  })

  it('reports missing input and stays open', async () => {
    const { page, answer } = await begin()
    await signIn(page, 'a wrong password')
    const message = page.getByRole('alert')
    await message.filter({ hasText: 'Check the username and the password' }).waitFor()
    assert.ok(await page.locator('#consent').isHidden())
    await signIn(page)
    await page.locator('#consent').waitFor()
    assert.equal(await message.isHidden(), true)
    await approve(page)
    assert.equal(await page.locator('#project:invalid').count(), 1, 'no project is chosen by default')
    await page.locator('#project').selectOption('Atlas')
    await approve(page)
    assert.equal(await page.locator('input[name=kind]:invalid').count(), 4)
    await page.getByLabel('Some modules').click()
    await approve(page)
    await message.filter({ hasText: 'Choose at least one of the modules.' }).waitFor()
    await page.getByRole('button', { name: 'Deny' }).click()
    assert.equal((await answer()).get('error'), 'access_denied')
  })

  it('can be denied without a selection', async () => {
    const { page, answer, problems } = await begin()
    await signIn(page)
    await page.getByRole('button', { name: 'Deny' }).click()
    const { error, state, iss } = Object.fromEntries(await answer())
    assert.deepEqual({ error, state, iss }, { error: 'access_denied', state: 'a state', iss: app.base })
    assert.deepEqual(problems, [])
  })

  it('requires no project if none is needed, and only a sign-in for the console', async () => {
    for (const [asked, told, scope] of [
      [{ client_id: 'muster-cli', scope: 'muster:user' }, '#as-user', 'muster:user'],
      [{ scope: 'openid' }, '#identity', 'openid'],
    ] as const) {
      const { page, problems, tokens } = await begin(asked)
      await signIn(page)
      await page.locator(told).waitFor()
      assert.ok(await page.locator('#choices').isHidden())
      await approve(page)
      assert.equal((await tokens()).scope, scope)
      assert.deepEqual(problems, [])
    }
    const asked = { client_id: 'muster-console', redirect_uri: `${app.base}/app/callback`, scope: 'muster:user' }
    const { page, answer } = await begin(asked)
    // The console would take the code for a code of another request, and begin again. Its page is requested by a redirect,
    // which cannot be intercepted, its programs can.
    await page.route(`${app.base}/app/assets/**`, route => route.abort())
    await signIn(page)
    assert.ok((await answer()).get('code'))
  })

  it('works only in the browser that started the request', async () => {
    const { page: begun } = await begin()
    const { page } = await open()
    await page.goto(begun.url())
    await signIn(page)
    await page.getByRole('alert').filter({ hasText: 'was started in another browser' }).waitFor()
    assert.ok(await page.locator('#consent').isHidden())
  })

  it('lets another user sign in', async () => {
    await app.user('bob', [allowing(project.id)])
    const { page } = await begin()
    await signIn(page)
    await page.getByRole('button', { name: 'Use another account' }).click()
    await page.getByLabel('Username').fill('bob')
    await page.locator('input[name=password]').fill(PASSWORD)
    await page.keyboard.press('Enter')
    await page.locator('#username').filter({ hasText: 'bob' }).waitFor()
    assert.deepEqual(await page.locator('#project option').allInnerTexts(), ['Atlas'])
  })

  describe('of a device', () => {
    const start = async () =>
      (
        await postForm(
          `${app.base}/oauth/device_authorization`,
          { client_id: 'muster-cli' },
          { 'user-agent': 'a terminal', 'x-test-address': '198.51.100.7' },
        )
      ).body
    const poll = (device_code: string) =>
      postForm(`${app.base}/oauth/token`, { grant_type: DEVICE_GRANT, client_id: 'muster-cli', device_code })

    it('requires confirmation of a prefilled code, and consent', async () => {
      const started = await start()
      const { page, problems } = await open()
      await page.goto(started.verification_uri_complete)
      await page.getByRole('heading', { name: 'Confirm the device' }).waitFor()
      assert.equal(await page.locator('.code').innerText(), started.user_code)
      assert.equal(await page.locator(':focus').count(), 0, 'nothing is confirmed by the enter key alone')
      await page.getByRole('button', { name: 'Continue' }).click()
      await signIn(page)
      for (const shown of [started.user_code, '198.51.100.7', 'a terminal', 'ever sends you such a code'])
        await page.locator('#device').filter({ hasText: shown }).waitFor()
      assert.equal(await page.locator('button:focus').count(), 0)
      assert.equal((await poll(started.device_code)).body.error, 'authorization_pending')
      await page.locator('#project').selectOption('Atlas')
      await page.getByLabel('Read only').click()
      await approve(page)
      await page.getByRole('heading', { name: 'The device is connected' }).waitFor()
      const { body } = await poll(started.device_code)
      assert.equal(await status(body.access_token), 200, JSON.stringify(body))
      assert.deepEqual(problems, [])
    })

    it('accepts a typed code in any case, and reports an unknown one', async () => {
      const started = await start()
      const { page, problems } = await open()
      await page.goto(started.verification_uri)
      const enter = async (code: string) => {
        await page.getByLabel('Code of the device').fill(code)
        await page.getByRole('button', { name: 'Continue' }).click()
      }
      await enter('BBBB-BBBB')
      await page.getByText('This code is not valid').waitFor()
      await enter(started.user_code.toLowerCase())
      await page.getByRole('button', { name: 'Cancel' }).click()
      await page.getByText('was cancelled').waitFor()
      assert.equal((await poll(started.device_code)).body.error, 'access_denied')
      assert.deepEqual(problems, [])
    })
  })

  describe('and a company account', () => {
    const account = async (name: string) => {
      const { id } = await app.user(name, [allowing(project.id)])
      await app.admin.post(`/users/${id}/identities`, { issuer: provider.issuer, subject: name })
    }
    const company = { name: 'Continue with company account' }

    it('returns signed in to the same request', async () => {
      await account('cleo')
      const { page, problems, tokens } = await begin({}, { extraHTTPHeaders: { [ACCOUNT_HEADER]: 'cleo' } })
      const began = page.url()
      await page.getByRole('button', company).click()
      await page.locator('#username').filter({ hasText: 'cleo' }).waitFor()
      assert.equal(page.url(), began, 'the code is out of the address')
      assert.equal(await page.evaluate('sessionStorage.length'), 0)
      await page.getByLabel('Read only').click()
      await approve(page)
      const { access_token } = await tokens()
      assert.equal(await status(access_token), 200)
      assert.deepEqual(problems, [])
    })

    it('reports a failed sign-in and then accepts a password', async () => {
      for (const [name, reason] of [
        [REFUSING, 'was refused'],
        ['stranger', 'is not linked to a user'],
      ]) {
        const { page } = await begin({}, { extraHTTPHeaders: { [ACCOUNT_HEADER]: name } })
        await page.getByRole('button', company).click()
        await page.getByRole('alert').filter({ hasText: reason }).waitFor()
        await signIn(page)
        await page.locator('#consent').waitFor()
      }
    })

    it('is offered', async () => {
      const { page } = await begin()
      assert.ok(await page.getByRole('button', company).isVisible())
    })
  })

  describe('against attacks', () => {
    it('shows names as text, with their verified hosts', async () => {
      for (const client_name of [HOSTILE, '\u202e'.repeat(200), '<b></b>'.repeat(28)]) {
        const registered = await register(app.base, { client_name })
        const { page, problems } = await begin({ client_id: registered.client_id })
        await signIn(page)
        await page.locator('#consent').waitFor()
        const shown = await page.locator('#client-name').innerText()
        assert.equal(shown.trim(), (/[a-z]/.test(client_name) ? client_name : registered.client_id).trim())
        assert.equal(await page.locator('main img, main b').count(), 0)
        for (const [id, text] of [
          ['#redirect-host', new URL(site.url).host],
          ['#client-host', 'Not verified'],
        ])
          assert.equal(await page.locator(id).innerText(), text)
        const [name, host] = await Promise.all(
          ['#client-name', '#redirect-host'].map(id => page.locator(id).boundingBox()),
        )
        assert.ok(name && host && host.y >= name.y + name.height, 'the name does not cover the host')
        assert.deepEqual(problems, [])
      }
    })

    it('runs no script but its own', async () => {
      const { page, problems } = await begin()
      const ran = await page.evaluate(`(() => {
        const script = document.createElement('script')
        script.textContent = 'window.ran = true'
        document.body.append(script)
        document.body.insertAdjacentHTML('beforeend', '<img src="/x.png"><a style="color: red" onclick="window.ran = true">x</a>')
        document.querySelector('a').click()
        return window.ran === true
      })()`)
      assert.equal(ran, false)
      assert.ok(
        problems.length >= 3 && problems.every(each => each.includes('Content Security Policy')),
        problems.join('\n'),
      )
    })

    it('cannot be framed', async () => {
      const { page: begun } = await begin()
      for (const address of [begun.url(), `${app.base}/oauth/device`]) {
        site.pages.set('/frame', `<!doctype html><title>x</title><iframe src="${address}"></iframe>`)
        const { page } = await open()
        await page.goto(`${site.url}/frame`)
        const frame = page.frames().find(each => each.parentFrame())
        assert.equal(frame?.url(), 'chrome-error://chromewebdata/')
      }
    })
  })

  it('is usable with the keyboard only', async () => {
    const { page, tokens } = await begin({ scope: 'actors:GetActor' })
    await page.keyboard.type('ada')
    await page.keyboard.press('Tab')
    await page.keyboard.type(PASSWORD)
    await page.keyboard.press('Enter')
    await page.locator('#consent').waitFor()
    const focused = () =>
      page.evaluate(
        `(({ id, name, value, tagName }) => id || [name || tagName, value].filter(Boolean).join(' '))(document.activeElement)`,
      )
    assert.equal(await focused(), 'title')
    const reached: unknown[] = []
    while (reached.at(-1) !== 'decision approve' && reached.length < 400) {
      await page.keyboard.press('Tab')
      const at = await focused()
      reached.push(at)
      if (at === 'project') await page.keyboard.type('Atlas')
      if (at === 'actions actors:ListActors') await page.keyboard.press('Space')
    }
    for (const each of ['switch', 'project', 'kind actions', 'SUMMARY', 'days', 'decision deny', 'decision approve'])
      assert.ok(reached.includes(each), `${each}: ${reached.join(', ')}`)
    await page.keyboard.press('Enter')
    assert.equal((await tokens()).scope, 'mcp:access actors:GetActor actors:ListActors')
  })

  it('fits a phone screen', async () => {
    const client = await register(app.base, { client_name: 'x'.repeat(200) })
    const { page } = await begin(
      { client_id: client.client_id, scope: 'actors:GetActor' },
      { viewport: { width: 320, height: 640 } },
    )
    const width = () => page.evaluate('document.documentElement.scrollWidth')
    assert.equal(await width(), 320)
    await signIn(page)
    await page.locator('#consent').waitFor()
    assert.equal(await width(), 320)
  })
})
