import { type OAuthSession, type OAuthStore, type OAuthTokens, oauth } from '@muster/client'

/**
 * Tokens of the user, in the memory of the tabs of this browser. Tabs give them to each other; nothing is stored except
 * the pending sign-in, from the redirect to its return.
 */

const PENDING = 'muster-sign-in'
const LOCK = 'muster-refresh'
/** Time for which a new tab waits for the tokens of another one. */
const ANSWER_MS = 300

type Pending = OAuthSession['pending'] & { returnTo: string }
type Message = { kind: 'request' } | { kind: 'tokens'; tokens: OAuthTokens } | { kind: 'out'; reason: SignOutReason }

export type SignOutReason = 'chosen' | 'idle' | 'expired'

let tokens: OAuthTokens | undefined
let onSignOut: (reason: SignOutReason) => void = () => {}
let received: () => void = () => {}

const channel = new BroadcastChannel('muster-session')
const tell = (message: Message) => channel.postMessage(message)

channel.onmessage = ({ data }: MessageEvent<Message>) => {
  if (data.kind === 'request' && tokens) tell({ kind: 'tokens', tokens })
  if (data.kind === 'tokens') {
    if (!tokens || data.tokens.expires_at >= tokens.expires_at) tokens = data.tokens
    received()
  }
  if (data.kind === 'out') forget(data.reason)
}

/** Requests the tokens of the other tabs. */
async function askTabs(): Promise<void> {
  const answered = new Promise<void>(resolve => {
    received = resolve
  })
  tell({ kind: 'request' })
  await Promise.race([answered, new Promise(resolve => setTimeout(resolve, ANSWER_MS))])
}

const store: OAuthStore = {
  get: () => {
    const pending = sessionStorage.getItem(PENDING)
    return { tokens, ...(pending ? { pending: JSON.parse(pending) as Pending } : {}) }
  },
  set: session => {
    if (session?.pending)
      sessionStorage.setItem(PENDING, JSON.stringify({ ...session.pending, returnTo: wanted } satisfies Pending))
    tokens = session?.tokens
    if (tokens) tell({ kind: 'tokens', tokens })
  },
  // A refresh token that is used twice ends the sign-in: one tab refreshes, after the others have sent their tokens.
  exclusive: run =>
    navigator.locks.request(LOCK, async () => {
      await askTabs()
      return run()
    }),
}

let wanted = '/app'
const signIn = oauth({ baseUrl: location.origin, clientId: 'muster-console', store })

/** Returns a valid access token. */
export const accessToken = (): Promise<string> => signIn.token()

/** Whether this tab has tokens, its own or from another tab. */
export async function resume(): Promise<boolean> {
  if (!tokens) await askTabs()
  return tokens !== undefined
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
  try {
    await signIn.finish(callbackUrl)
  } finally {
    sessionStorage.removeItem(PENDING)
  }
  return returnTo
}

/** Calls a function when the user is signed out, in this tab or in another. */
export function whenSignedOut(run: (reason: SignOutReason) => void): void {
  onSignOut = run
}

/** Signs the user out in all tabs. */
export async function signOut(reason: SignOutReason): Promise<void> {
  const revoked = signIn.revoke()
  tell({ kind: 'out', reason })
  forget(reason)
  await revoked.catch(() => {})
}

function forget(reason: SignOutReason): void {
  tokens = undefined
  onSignOut(reason)
}
