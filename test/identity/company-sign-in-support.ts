import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { type Clock, manualClock } from '#core/base/clock.ts'
import { sql } from '#core/db/sql.ts'
import { type Reply, startApp, type TestApp } from '../support/app.ts'
import { Browser } from '../support/browser.ts'
import { ACCOUNT_HEADER, CLIENT, type IdentityProvider, startIdentityProvider } from '../support/identity-provider.ts'

/** The public address of the deployment in these tests. */
export const BASE = 'https://muster.example'
export const CALLBACK = `${BASE}/oauth/oidc/callback`

/** Result of a sign-in on the starting page, and the verifier to redeem its code. */
export type Returned = { address: string; code: string | null; error: string | null; verifier: string }

export const challengeOf = (verifier: string): string => createHash('sha256').update(verifier).digest('base64url')

export const startAddress = (query: Record<string, string>, base = BASE): string =>
  `${base}/oauth/oidc/start?${new URLSearchParams(query)}`

export type Fixture = Awaited<ReturnType<typeof openFixture>>

/** The application with a provider, and browsers that sign in with accounts of it. */
export async function openFixture(
  options: {
    env?: Record<string, string>
    provider?: Partial<Parameters<typeof startIdentityProvider>[0]>
    clock?: Clock
    databaseUrl?: string
    /** Existing provider to use. */
    use?: IdentityProvider
    base?: string
  } = {},
) {
  const base = options.base ?? BASE
  const redirectUri = `${base}/oauth/oidc/callback`
  const provider = options.use ?? (await startIdentityProvider({ redirectUri, ...options.provider }))
  const clock = manualClock()
  const app: TestApp = await startApp({
    clock: options.clock ?? clock,
    databaseUrl: options.databaseUrl,
    env: {
      BASE_URL: base,
      OIDC_ISSUER: provider.issuer,
      OIDC_CLIENT_ID: CLIENT.id,
      OIDC_CLIENT_SECRET: CLIENT.secret,
      ...options.env,
    },
  })
  const browser = (account?: string) =>
    new Browser({ served: { [base]: app.url }, headers: account ? { [ACCOUNT_HEADER]: account } : {} })

  /** Begins a sign-in and signs in at the provider: the address with its answer, not yet requested. */
  async function begin(account: string, returnTo = '/app/callback', at = browser(account)) {
    const verifier = randomBytes(32).toString('base64url')
    const start = startAddress({ return_to: returnTo, code_challenge: challengeOf(verifier) }, base)
    const callback = await at.follow(start, url => url.href.startsWith(redirectUri))
    return { browser: at, callback, verifier }
  }

  async function end({ browser, callback, verifier }: Awaited<ReturnType<typeof begin>>): Promise<Returned> {
    const reply = await browser.get(callback)
    assert.equal(reply.status, 302, reply.body)
    const url = new URL(reply.location as string)
    assert.equal(url.origin, new URL(base).origin)
    const result = new URLSearchParams(url.hash.slice(1))
    return { address: url.href.split('#')[0], code: result.get('oidc_code'), error: result.get('error'), verifier }
  }

  const signIn = async (account: string, returnTo?: string) => end(await begin(account, returnTo))

  const redeem = ({ code, verifier }: Pick<Returned, 'code' | 'verifier'>): Promise<Reply> =>
    app.anonymous.post('/users/login', { oidc_code: code, code_verifier: verifier })

  return {
    app,
    provider,
    clock,
    browser,
    begin,
    end,
    signIn,
    redeem,
    /** A user, linked to an account of the same name. */
    async linked(username: string) {
      const user = await app.user(username)
      const reply = await app.admin.post(`/users/${user.id}/identities`, { issuer: provider.issuer, subject: username })
      assert.equal(reply.status, 201, JSON.stringify(reply.body))
      return user
    },
    /** Audit entries of an action, oldest first. */
    entries: (action: string) =>
      app.pool.any(sql.unsafe`select * from audit_entries where action = ${action} order by created_at, id`) as Promise<
        readonly any[]
      >,
    users: () => app.pool.any(sql.unsafe`select id, username from users order by id`) as Promise<readonly any[]>,
    async close() {
      await app.close()
      if (!options.use) await provider.close()
    },
  }
}
