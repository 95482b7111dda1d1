import assert from 'node:assert/strict'
import { Muster, OAuthError, type OAuthSession, type OAuthStore, oauth } from '../../client/dist/index.js'
import { allowing, approve, Browser, beginRequest, REDIRECT, startOauthApp } from '../support/oauth.ts'
import { forSuite } from '../support/suite.ts'

describe('sign-in of the client', function () {
  this.timeout(60_000)
  const app = forSuite(startOauthApp)

  /** A store whose session the test sees. */
  const memory = () => {
    let session: OAuthSession | null = null
    const store = {
      get: () => session,
      set: (next: OAuthSession | null) => {
        session = next
      },
      /** Makes the access token old. */
      expire: () => {
        if (session?.tokens) session.tokens.expires_at = 0
      },
    }
    return store satisfies OAuthStore
  }

  const signedIn = async () => {
    const project = await app.project()
    const user = await app.user(undefined, [allowing(project.id)])
    const store = memory()
    const requests: string[] = []
    const signIn = oauth({
      baseUrl: app.base,
      clientId: 'muster-cli',
      store,
      fetch: (url, init) => {
        requests.push(`${String(url)} ${init?.body ?? ''}`)
        return fetch(url, init)
      },
    })
    const { url, state } = await signIn.start({ redirectUri: REDIRECT, scope: '*' })
    const browser = new Browser()
    const request = await beginRequest(browser, new URL(url))
    const selection = { decision: 'approve', project_id: project.id, selection: { kind: 'all' } }
    const callback = await approve(app.base, browser, user, request, selection)
    assert.equal(callback.searchParams.get('state'), state)
    return { project, store, requests, signIn, callback }
  }

  it('redeems the code with its verifier, and calls with the token', async () => {
    const { signIn, callback, project, requests } = await signedIn()
    const tokens = await signIn.finish(callback)
    assert.ok(tokens.expires_at > Date.now())
    assert.ok(requests.some(each => /code_verifier=\w{64}/.test(each)))
    const muster = new Muster({ baseUrl: app.base, token: () => signIn.token() })
    const actor = await muster.actors.create({ name: 'Ann' })
    assert.equal(actor.project_id, project.id)
  })

  it('refuses an answer that is not of the sign-in that was started', async () => {
    const { signIn, callback, store } = await signedIn()
    for (const [name, value] of [
      ['state', 'other'],
      ['iss', 'https://other.example'],
    ]) {
      const changed = new URL(callback)
      changed.searchParams.set(name, value)
      await assert.rejects(signIn.finish(changed), (error: OAuthError) => error.code === 'invalid_state')
    }
    await assert.rejects(
      oauth({ baseUrl: 'https://other.example', clientId: 'muster-cli', store }).finish(callback),
      (error: OAuthError) => error.code === 'invalid_state',
    )
    assert.equal(store.get()?.tokens, undefined)
    const denied = new URL(callback)
    denied.searchParams.set('error', 'access_denied')
    await assert.rejects(signIn.finish(denied), (error: OAuthError) => error.code === 'access_denied')
  })

  it('refreshes once, however many callers need a token, and reads again what another process stored', async () => {
    const { signIn, callback, store, requests } = await signedIn()
    const { refresh_token } = await signIn.finish(callback)
    assert.ok(refresh_token)
    store.expire()
    const others = oauth({ baseUrl: app.base, clientId: 'muster-cli', store })
    const tokens = await Promise.all([signIn.token(), others.token(), signIn.token(), others.token()])
    assert.equal(new Set(tokens).size, 1)
    assert.equal(requests.filter(each => each.includes('grant_type=refresh_token')).length, 1)
    // Another process refreshes while this one waits for its turn.
    store.expire()
    let entered = 0
    const locked: OAuthStore = {
      ...store,
      exclusive: async run => {
        entered++
        const tokens = { access_token: 'of another process', expires_at: Date.now() + 3_600_000 }
        store.set({ tokens })
        return run()
      },
    }
    const waiting = oauth({ baseUrl: app.base, clientId: 'muster-cli', store: locked })
    assert.deepEqual([await waiting.token(), entered], ['of another process', 1])
  })

  it('revokes the sign-in, after which a token is refused here and there', async () => {
    const { signIn, callback, store } = await signedIn()
    const { access_token } = await signIn.finish(callback)
    await signIn.revoke()
    assert.equal(store.get(), null)
    await assert.rejects(signIn.token(), (error: unknown) => error instanceof OAuthError)
    const muster = new Muster({ baseUrl: app.base, token: access_token })
    await assert.rejects(async () => await muster.actors.list().page(), { code: 'UNAUTHORIZED' })
  })

  it('refuses an issuer and endpoints of another origin', async () => {
    const metadata = {
      issuer: 'https://a.example',
      authorization_endpoint: 'https://a.example/authorize',
      token_endpoint: 'https://a.example/token',
      revocation_endpoint: 'https://a.example/revoke',
    }
    const start = (changed: Partial<typeof metadata>) => {
      const answering: typeof fetch = async () => Response.json({ ...metadata, ...changed })
      return oauth({ baseUrl: 'https://a.example', clientId: 'muster-cli', fetch: answering }).start({
        redirectUri: REDIRECT,
      })
    }
    assert.ok((await start({})).url.startsWith(`${metadata.authorization_endpoint}?`))
    for (const name of Object.keys(metadata))
      await assert.rejects(start({ [name]: 'https://evil.example/x' }), { reason: 'redirect' }, name)
  })
})
