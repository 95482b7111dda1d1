import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { json as answer, startScripted } from '../client/support.ts'
import { ADMIN, eventually } from '../support/app.ts'
import { allowing, approve, Browser, beginRequest, inBrowser, startOauthApp } from '../support/oauth.ts'
import { forSuite } from '../support/suite.ts'
import { type Started, User } from './support.ts'

describe('sign-in on the command line', function () {
  this.timeout(120_000)
  const app = forSuite(startOauthApp)

  /** A user without a token of the environment. */
  const withUser = async (run: (user: User) => Promise<void>) => {
    const user = new User()
    try {
      await run(user)
    } finally {
      user.close()
    }
  }

  const credentials = (user: User) => {
    const file = path.join(user.env.MUSTER_CONFIG_DIR, 'credentials.json')
    return { file, read: () => JSON.parse(fs.readFileSync(file, 'utf8')) }
  }

  /** Starts a login and returns the address that it prints. */
  const start = async (user: User, ...more: string[]): Promise<{ login: Started; url: URL }> => {
    const login = user.start(['login', '--url', app.base, '--no-browser', ...more])
    await eventually(() => /\n {2}http.*\n/.test(login.output.stderr) || login.child.exitCode !== null)
    return { login, url: new URL(/\n {2}(http\S+)\n/.exec(login.output.stderr)![1]) }
  }

  const signIn = async (user: User, ...more: string[]) => {
    const { login, url } = await start(user, ...more)
    const browser = new Browser()
    const callback = await approve(app.base, browser, app.admin, await beginRequest(browser, url), {
      decision: 'approve',
    })
    const page = await fetch(callback)
    assert.match(await page.text(), /may close this page/)
    const { code, stderr } = await login.ended
    assert.equal(code, 0, stderr)
  }

  it('signs the user in with the browser: the token is the user, and logout revokes it', () =>
    withUser(async user => {
      await signIn(user)
      const { file, read } = credentials(user)
      assert.equal(fs.statSync(file).mode & 0o777, 0o600)
      assert.equal(fs.statSync(path.dirname(file)).mode & 0o777, 0o700)
      const me = JSON.parse((await user.run(['whoami'])).stdout)
      assert.deepEqual([me.username, me.credential.type, me.credential.project_id], [ADMIN.username, 'user', null])
      assert.equal((await user.run(['users', 'list'])).code, 0)
      const { access_token } = read().default.tokens
      // The token belongs to the address of the sign-in.
      const other = await startScripted(answer({ data: [], total: 0 }))
      await user.run(['agents', 'list', '--url', other.url])
      assert.equal(other.requests[0].headers.authorization, undefined)
      await other.close()
      assert.equal((await user.run(['logout'])).code, 0)
      assert.deepEqual(read(), {})
      assert.equal((await app.as(access_token).get('/users/me')).status, 401)
      assert.equal((await user.run(['whoami'])).code, 3)
    }))

  it('requests one project with --project', () =>
    withUser(async user => {
      const project = await app.project()
      const owner = await app.user(undefined, [allowing(project.id)])
      const { login, url } = await start(user, '--project', project.id, '--scope', 'actors:*')
      assert.equal(url.searchParams.get('scope'), 'actors:* offline_access')
      const browser = new Browser()
      const selection = {
        decision: 'approve',
        project_id: project.id,
        selection: { kind: 'modules', modules: ['actors'] },
      }
      await fetch(await approve(app.base, browser, owner, await beginRequest(browser, url), selection))
      assert.equal((await login.ended).code, 0)
      assert.equal((await user.run(['actors', 'list'])).code, 0)
      assert.equal((await user.run(['agents', 'list'])).code, 4)
    }))

  it('refuses an answer of another state or issuer, and stores no token', async () => {
    for (const [name, value] of [
      ['state', 'other'],
      ['iss', 'https://other.example'],
    ])
      await withUser(async user => {
        const { login, url } = await start(user)
        const browser = new Browser()
        const callback = await approve(app.base, browser, app.admin, await beginRequest(browser, url), {
          decision: 'approve',
        })
        callback.searchParams.set(name, value)
        await fetch(callback)
        assert.equal((await login.ended).code, 3)
        assert.equal(fs.existsSync(credentials(user).file), false)
      })
  })

  it('refreshes once for 20 commands at the same time', () =>
    withUser(async user => {
      await signIn(user)
      const { file, read } = credentials(user)
      const stored = read()
      stored.default.tokens.expires_at = 0
      fs.writeFileSync(file, JSON.stringify(stored))
      const runs = await Promise.all(Array.from({ length: 20 }, () => user.run(['whoami', '--debug'])))
      assert.deepEqual(
        runs.map(each => each.code),
        Array(20).fill(0),
        runs.find(each => each.code !== 0)?.stderr,
      )
      const refreshes = runs.filter(each => /grant_type=refresh_token/.test(each.stderr))
      assert.equal(refreshes.length, 1)
      for (const { stderr } of runs)
        for (const token of [stored.default.tokens.refresh_token, read().default.tokens.access_token])
          assert.ok(!stderr.includes(token))
      assert.equal((await user.run(['whoami'])).code, 0)
    }))

  it('refuses credentials that others can read, before any request', () =>
    withUser(async user => {
      const scripted = await startScripted(answer({}))
      fs.mkdirSync(user.env.MUSTER_CONFIG_DIR, { mode: 0o700 })
      const { file } = credentials(user)
      fs.writeFileSync(file, JSON.stringify({ default: { url: scripted.url, token: 'sk_x' } }), { mode: 0o644 })
      const { code, stderr } = await user.run(['agents', 'list', '--url', scripted.url])
      assert.equal(code, 1)
      assert.ok(stderr.includes(`chmod 600 ${file}`), stderr)
      assert.equal(scripted.requests.length, 0)
      await scripted.close()
    }))

  it('signs in with a password and with a key, from stdin', () =>
    withUser(async user => {
      const args = ['login', '--url', app.base, '--username', ADMIN.username, '--password', '--debug']
      const signedIn = await user.run(args, { input: `${ADMIN.password}\n` })
      assert.equal(signedIn.code, 0, signedIn.stderr)
      assert.ok(!signedIn.stderr.includes(ADMIN.password))
      assert.equal(JSON.parse((await user.run(['whoami'])).stdout).username, ADMIN.username)
      assert.equal((await user.run(args, { input: 'wrong\n' })).code, 3)
      const { key, id } = await app.project()
      const keyed = await user.run(['login', '--url', app.base, '--profile', 'shop', '--key'], {
        input: `${key.token}\n`,
      })
      assert.equal(keyed.code, 0, keyed.stderr)
      const me = JSON.parse((await user.run(['whoami', '--profile', 'shop'])).stdout)
      assert.deepEqual([me.credential.type, me.credential.project_id], ['api_key', id])
      const listed = await user.run(['profile', 'list'])
      assert.match(listed.stdout, /^\* default .*signed in\n {2}shop .*signed in$/m)
      assert.equal((await user.run(['profile', 'delete', 'shop'])).code, 0)
      assert.deepEqual(Object.keys(credentials(user).read()), ['default'])
      assert.equal((await user.run(['profile', 'set', 'colour', 'red'])).code, 2)
      const wrong = await user.run(['login', '--url', app.base, '--key'], { input: 'sk_wrong\n' })
      assert.deepEqual([wrong.code, /signed in/.test(wrong.stderr)], [3, false])
      assert.equal(JSON.parse((await user.run(['whoami'])).stdout).username, ADMIN.username)
    }))

  describe('of a device', () => {
    /** Submits the form of a page of the service. */
    const submit = (browser: Browser, page: string, more: [string, string][] = []) => {
      const fields = [...page.matchAll(/name="([^"]+)" value="([^"]*)"/g)]
        .map(([, name, value]): [string, string] => [name, value])
        .filter(([name]) => name !== 'abort')
      const body = new URLSearchParams([...fields, ...more])
      return browser.send(/action="([^"]+)"/.exec(page)?.[1] as string, { method: 'POST', body })
    }

    it('ends when its user approves or denies in a browser', async () => {
      const decide = (isApproved: boolean) =>
        withUser(async user => {
          const login = user.start(['login', '--device', '--url', app.base])
          await eventually(() => /enter the code/.test(login.output.stderr))
          const [, page, code] = /Open (\S+)\nand enter the code (\S+)/.exec(login.output.stderr) as RegExpExecArray
          const browser = new Browser(`192.0.2.${isApproved ? 2 : 3}`)
          const form = await (await browser.send(`${page}?user_code=${code}`)).text()
          const confirmed = await (await submit(browser, form)).text()
          if (!isApproved) await submit(browser, confirmed, [['abort', 'yes']])
          else {
            const sent = await submit(browser, confirmed)
            const request_id = new URL(sent.headers.get('location') as string).searchParams.get('request_id')
            const api = inBrowser(app.base, browser, app.admin)
            const decided = await api.post('/oauth/consent', { request_id, decision: 'approve' })
            await browser.send(decided.body.redirect_to)
          }
          const ended = await login.ended
          assert.equal(ended.code, isApproved ? 0 : 3, ended.stderr)
          if (isApproved) assert.equal((await user.run(['users', 'list'])).code, 0)
        })
      await Promise.all([decide(true), decide(false)])
    })

    const begun = answer({
      device_code: 'd',
      user_code: 'AAAA-BBBB',
      verification_uri: 'http://x/y',
      expires_in: 60,
      interval: 0,
    })
    const pending = answer({ error: 'authorization_pending' }, { status: 400 })

    it('polls while the answer is pending, and ends with an expired code', async () => {
      const expired = answer({ error: 'expired_token' }, { status: 400 })
      const scripted = await startScripted(begun, pending, pending, expired)
      await withUser(async user => {
        const { code } = await user.run(['login', '--device', '--url', scripted.url])
        assert.equal(code, 3)
        assert.equal(scripted.requests.length, 4)
        assert.match(scripted.requests[0].body, /client_id=muster-cli&scope=muster%3Auser\+offline_access/)
      })
      await scripted.close()
    })

    it('is chosen on a remote machine, and names the other ways where it is off', async () => {
      const scripted = await startScripted(answer({}, { status: 404 }))
      await withUser(async user => {
        const { code, stderr } = await user.run(['login', '--url', scripted.url], { env: { SSH_CONNECTION: 'x' } })
        assert.equal(code, 5)
        assert.match(stderr, /--password.*--key/)
        assert.equal(scripted.requests[0].url, '/oauth/device_authorization')
      })
      await scripted.close()
    })
  })
})
