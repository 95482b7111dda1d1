import { OAuthError, type OAuthSession, type OAuthStore, type OAuthTokens, oauth } from '@muster/client'
import { claimDrafts, forgetDrafts, keepDrafts } from './drafts.ts'
import { idleSeconds } from './input.ts'

/**
 * Access token of the user, in the memory of the tabs of this browser, which give it to each other. The refresh token is
 * in a cookie that no script can read, sealed by a key that is stored for this origin: other ports of the host, which
 * get the cookie, have no key. Nothing else is stored but the pending sign-in, from the redirect to its return.
 */

const CLIENT = 'muster-console'
const PENDING = 'muster-sign-in'
const KEY = 'muster-console-key'
// biome-ignore lint/style/noRestrictedGlobals: the key is the one thing that outlives the tab
const storage = localStorage
const LOCK = 'muster-refresh'
/** Time for which a tab waits for the tokens of another one. */
const ANSWER_MS = 300
/** Requests that are refused this soon after a token was issued may have been sent with its predecessor. */
const FRESH_MS = 5000
/** A token that is refused this soon after another was is not cured by a third one. */
const CURE_MS = 60_000

type Pending = OAuthSession['pending'] & { returnTo: string }
type Message =
  | { kind: 'request' }
  | { kind: 'tokens'; tokens: OAuthTokens; issuedAt: number }
  | { kind: 'out'; reason: SignOutReason }

export type SignOutReason = 'chosen' | 'idle' | 'expired' | 'otherUser'

let tokens: OAuthTokens | undefined
let issuedAt = 0
let replacedAt = 0
/** An access token that is to be replaced before its end. */
let replaced: string | undefined
let onSignOut: (reason: SignOutReason) => void = () => {}
let received: () => void = () => {}

const channel = new BroadcastChannel('muster-session')
const tell = (message: Message) => channel.postMessage(message)

channel.onmessage = ({ data }: MessageEvent<Message>) => {
  if (data.kind === 'request' && tokens) tell({ kind: 'tokens', tokens, issuedAt })
  if (data.kind === 'tokens') {
    if (!tokens || data.issuedAt >= issuedAt) accept(data.tokens, data.issuedAt)
    received()
  }
  if (data.kind === 'out') forget(data.reason)
}

/** Returns the user of an access token. */
const userOf = ({ access_token }: OAuthTokens): string =>
  JSON.parse(atob(access_token.split('.')[1].replaceAll('-', '+').replaceAll('_', '/'))).sub

/** Takes over tokens; tokens of another user, who signed in in this browser, end what this tab shows. */
function accept(next: OAuthTokens, at: number): void {
  if (tokens && userOf(tokens) !== userOf(next)) forget('otherUser')
  tokens = next
  issuedAt = at
  claimDrafts(userOf(next))
}

/** Requests the tokens of the other tabs. */
async function requestTokens(): Promise<void> {
  const answered = new Promise<void>(resolve => {
    received = resolve
  })
  tell({ kind: 'request' })
  await Promise.race([answered, new Promise(resolve => setTimeout(resolve, ANSWER_MS))])
}

/** The refresh token of the client, in place of the one in the cookie. */
const IN_COOKIE = 'cookie'
const NO_TOKENS: OAuthTokens = { access_token: '', expires_at: 0 }

const store: OAuthStore = {
  get: () => {
    const pending = sessionStorage.getItem(PENDING)
    const current = tokens ?? NO_TOKENS
    const expires_at = current.access_token === replaced ? 0 : current.expires_at
    return {
      tokens: { ...current, expires_at, refresh_token: IN_COOKIE },
      ...(pending ? { pending: JSON.parse(pending) as Pending } : {}),
    }
  },
  set: session => {
    if (session?.pending)
      sessionStorage.setItem(PENDING, JSON.stringify({ ...session.pending, returnTo: wanted } satisfies Pending))
    if (!session?.tokens) {
      tokens = undefined
      return
    }
    accept(session.tokens, Date.now())
    tell({ kind: 'tokens', tokens: session.tokens, issuedAt })
  },
  // A refresh token that is used twice ends the sign-in: one tab refreshes, after the others have sent their tokens.
  exclusive: run =>
    navigator.locks.request(LOCK, async () => {
      await requestTokens()
      return run()
    }),
}

let wanted = '/app'
const signIn = oauth({
  baseUrl: location.origin,
  clientId: CLIENT,
  store,
  fetch: (url, init) => requestTokensByCookie(String(url), init),
})

/**
 * Sends requests for tokens to the endpoints of the console, which read and write the cookie. A browser without the cookie
 * gets 204.
 */
async function requestTokensByCookie(url: string, init: RequestInit = {}): Promise<Response> {
  const address = url.replace(/\/oauth\/token$/, '/oauth/console/token')
  const { body } = init
  if (body instanceof URLSearchParams) body.set('idle_seconds', String(idleSeconds()))
  const answer = await send(address, init, storage.getItem(KEY))
  if (answer.status !== 204) return answer
  const refusal = { error: 'login_required', error_description: 'no user is signed in' }
  return Response.json(refusal, { status: 400 })
}

const send = (url: string, init: RequestInit, key: string | null): Promise<Response> =>
  // biome-ignore lint/style/noRestrictedGlobals: the client takes a function that sends requests for tokens
  fetch(url, { ...init, headers: { ...init.headers, 'muster-console-key': key ?? '' } })

/** Returns a valid access token. */
export const accessToken = (): Promise<string> => signIn.token()

/** Whether an error means that the sign-in has ended. */
export const isSignedOut = (error: unknown): boolean =>
  error instanceof OAuthError && ['login_required', 'invalid_grant'].includes(error.code)

/** Whether the user is signed in: in another tab, or by the cookie of the browser. */
export async function resume(): Promise<boolean> {
  try {
    await accessToken()
    return true
  } catch (error) {
    if (isSignedOut(error)) return false
    throw error
  }
}

function renew({ access_token }: OAuthTokens): Promise<string> {
  replaced = access_token
  return accessToken()
}

/** Replaces tokens that the service refuses, and signs out where the sign-in has ended; true if there are others. */
export async function replaceTokens(): Promise<boolean> {
  if (!tokens) return false
  const refused = tokens.access_token
  await new Promise(resolve => setTimeout(resolve, Math.max(0, issuedAt + FRESH_MS - Date.now())))
  if (tokens?.access_token !== refused) return tokens !== undefined
  try {
    if (Date.now() - replacedAt < CURE_MS) throw new OAuthError('login_required', 'the service refuses new tokens')
    await renew(tokens)
    replacedAt = Date.now()
    return true
  } catch (error) {
    if (isSignedOut(error)) void signOut('expired')
    return false
  }
}

/** Prolongs the sign-in if no tab has done so for a time. */
export function prolong(afterMs: number): void {
  if (!tokens || Date.now() - issuedAt < afterMs) return
  // A request that needs a token reports what failed.
  renew(tokens).catch(() => {})
}

/** Sends the user to the sign-in, which returns to an address of the console. `link`: token of a sign-in link. */
export async function startSignIn(baseUrl: string, returnTo: string, link: string | null = null): Promise<void> {
  wanted = returnTo
  const { url } = await signIn.start({ redirectUri: `${baseUrl}/app/callback`, scope: 'muster:user offline_access' })
  // Redirects keep the fragment, which no server sees.
  location.assign(link ? `${url}#sign_in_link=${encodeURIComponent(link)}` : url)
}

/** Returns the address of the console at which the pending sign-in started. */
export function pendingAddress(): string {
  const { returnTo } = JSON.parse(sessionStorage.getItem(PENDING) ?? '{}') as Partial<Pending>
  return returnTo?.startsWith('/app') ? returnTo : '/app'
}

/** Completes the sign-in with the address to which the user returned; returns the address at which it started. */
export async function finishSignIn(callbackUrl: string): Promise<string> {
  const returnTo = pendingAddress()
  // No other tab may replace the cookie before the key is stored with which it is sealed.
  await navigator.locks.request(LOCK, async () => {
    const previous = storage.getItem(KEY)
    storeKey(newKey())
    try {
      await signIn.finish(callbackUrl)
    } catch (error) {
      storeKey(previous)
      throw error
    } finally {
      sessionStorage.removeItem(PENDING)
    }
  })
  return returnTo
}

/** Returns 32 random bytes in base64url. */
const newKey = (): string =>
  btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(32))))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '')

function storeKey(key: string | null): void {
  if (key === null) storage.removeItem(KEY)
  else storage.setItem(KEY, key)
}

/** Calls a function when the user is signed out, in this tab or in another. */
export function whenSignedOut(run: (reason: SignOutReason) => void): void {
  onSignOut = run
}

/** Signs the user out in all tabs. */
export async function signOut(reason: SignOutReason): Promise<void> {
  // Before the key and the token are forgotten.
  const revoked = revoke(storage.getItem(KEY), tokens?.access_token)
  storeKey(null)
  tell({ kind: 'out', reason })
  forget(reason)
  await revoked.catch(() => {})
}

/** Ends the sign-in at the service, by the cookie and by the access token. */
function revoke(key: string | null, access_token: string | undefined): Promise<unknown> {
  const body = new URLSearchParams({ client_id: CLIENT, token: IN_COOKIE, ...(access_token ? { access_token } : {}) })
  return send(`${location.origin}/oauth/console/revoke`, { method: 'POST', body, keepalive: true }, key)
}

function forget(reason: SignOutReason): void {
  tokens = undefined
  if (reason === 'chosen' || reason === 'otherUser') forgetDrafts()
  keepDrafts()
  onSignOut(reason)
}
