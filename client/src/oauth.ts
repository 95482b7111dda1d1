import { randomKey } from './client.ts'
import { NoAnswer } from './errors.ts'
import { textOf } from './limits.ts'

/** Tokens of a sign-in. */
export type OAuthTokens = {
  access_token: string
  refresh_token?: string
  scope?: string
  /** Time in milliseconds. */
  expires_at: number
}

/** A completed sign-in, or a pending one. */
export type OAuthSession = {
  tokens?: OAuthTokens
  pending?: { state: string; verifier: string; redirectUri: string; issuer: string; tokenEndpoint: string }
}

/** Where a sign-in is stored. */
export type OAuthStore = {
  get(): OAuthSession | null | Promise<OAuthSession | null>
  set(session: OAuthSession | null): void | Promise<void>
  /** Runs a refresh while no other process runs one. */
  exclusive?<T>(run: () => Promise<T>): Promise<T>
}

export type OAuthOptions = {
  baseUrl: string | URL
  clientId: string
  /** Default: the memory of this object. */
  store?: OAuthStore
  fetch?: typeof fetch
}

/** A refusal of the authorization server. */
export class OAuthError extends Error {
  override readonly name = 'OAuthError'
  /** Code of the standard, such as `invalid_grant` or `access_denied`. */
  readonly code: string
  constructor(code: string, message: string) {
    super(message)
    this.code = code
  }
}

type Endpoints = {
  issuer: string
  authorization_endpoint: string
  token_endpoint: string
  revocation_endpoint: string
}

/** A token is refreshed this long before it expires. */
const EARLY_MS = 60_000
const TIMEOUT_MS = 30_000

/** Refreshes in flight: a refresh token that is used twice ends the sign-in. */
const refreshes = new WeakMap<OAuthStore, Promise<string>>()

/** Signs a user in with a code and PKCE, and keeps the tokens valid. A client takes `token: () => signIn.token()`. */
export function oauth({ baseUrl, clientId, store = memory(), fetch = globalThis.fetch }: OAuthOptions) {
  const base = new URL(baseUrl)
  let endpoints: Promise<Endpoints> | undefined

  const request = async (url: string, form?: Record<string, string>): Promise<any> => {
    let response: Response
    let text: string
    try {
      response = await fetch(url, {
        method: form ? 'POST' : 'GET',
        headers: { accept: 'application/json' },
        body: form ? new URLSearchParams(form) : undefined,
        redirect: 'error',
        signal: AbortSignal.timeout(TIMEOUT_MS),
      })
      text = await response.text()
    } catch (error) {
      throw new NoAnswer('network', `${base.origin}: ${textOf(error)}`)
    }
    const body = text === '' ? {} : (JSON.parse(/^\s*\{/.test(text) ? text : '{}') as Record<string, string>)
    if (!response.ok && typeof body.error === 'string')
      throw new OAuthError(body.error, body.error_description ?? body.error)
    if (!response.ok)
      throw new NoAnswer('broken', `the sign-in answered with status ${response.status}`, response.status)
    return body
  }

  /**
   * Reads the issuer and the endpoints, which must be of the origin that gets the credentials: with the issuer of another
   * service, this one could send the user there and get its code.
   */
  const discover = (): Promise<Endpoints> => {
    endpoints ??= (async () => {
      const found: Endpoints = await request(`${base.href.replace(/\/$/, '')}/.well-known/oauth-authorization-server`)
      const { issuer, authorization_endpoint, token_endpoint, revocation_endpoint } = found
      for (const url of [issuer, authorization_endpoint, token_endpoint, revocation_endpoint])
        if (new URL(url).origin !== base.origin) throw new NoAnswer('redirect', 'the sign-in has another origin')
      return found
    })()
    endpoints.catch(() => {
      endpoints = undefined
    })
    return endpoints
  }

  const redeem = async (tokenEndpoint: string, form: Record<string, string>): Promise<OAuthTokens> => {
    const { access_token, refresh_token, scope, expires_in } = await request(tokenEndpoint, {
      client_id: clientId,
      ...form,
    })
    const tokens = { access_token, refresh_token, scope, expires_at: Date.now() + Number(expires_in) * 1000 }
    await store.set({ tokens })
    return tokens
  }

  const isFresh = (tokens: OAuthTokens): boolean => tokens.expires_at - EARLY_MS > Date.now()

  const refresh = async (): Promise<string> => {
    const run = async () => {
      // Another process may have refreshed meanwhile.
      const tokens = (await store.get())?.tokens
      if (!tokens) throw new OAuthError('login_required', 'no user is signed in')
      if (isFresh(tokens)) return tokens.access_token
      const { refresh_token } = tokens
      if (!refresh_token) throw new OAuthError('login_required', 'the sign-in has expired')
      const { token_endpoint } = await discover()
      const next = await redeem(token_endpoint, { grant_type: 'refresh_token', refresh_token })
      return next.access_token
    }
    return store.exclusive ? store.exclusive(run) : run()
  }

  return {
    /** Returns the address to send the user to. */
    async start({
      redirectUri,
      scope,
    }: {
      redirectUri: string
      scope?: string
    }): Promise<{ url: string; state: string }> {
      const { authorization_endpoint, issuer, token_endpoint: tokenEndpoint } = await discover()
      const state = randomKey()
      const verifier = randomKey() + randomKey()
      await store.set({ pending: { state, verifier, redirectUri, issuer, tokenEndpoint } })
      const url = new URL(authorization_endpoint)
      url.search = new URLSearchParams({
        response_type: 'code',
        client_id: clientId,
        redirect_uri: redirectUri,
        state,
        code_challenge: await challengeOf(verifier),
        code_challenge_method: 'S256',
        ...(scope ? { scope } : {}),
      }).toString()
      return { url: url.href, state }
    },

    /** Redeems the code of the address to which the user returned. */
    async finish(callbackUrl: string | URL): Promise<OAuthTokens> {
      const answer = new URL(callbackUrl).searchParams
      const pending = (await store.get())?.pending
      // A store may hold the sign-in of another service, whose tokens this one must not get.
      const isOwn = pending?.tokenEndpoint && new URL(pending.tokenEndpoint).origin === base.origin
      if (!pending || !isOwn || answer.get('state') !== pending.state || answer.get('iss') !== pending.issuer)
        throw new OAuthError('invalid_state', 'the answer is not of the sign-in that was started')
      const error = answer.get('error')
      if (error) throw new OAuthError(error, answer.get('error_description') ?? error)
      return redeem(pending.tokenEndpoint, {
        grant_type: 'authorization_code',
        code: answer.get('code') ?? '',
        redirect_uri: pending.redirectUri,
        code_verifier: pending.verifier,
      })
    },

    /**
     * Returns a valid access token, refreshed if it is about to expire.
     * @throws OAuthError `login_required` if there is none
     */
    async token(): Promise<string> {
      const tokens = (await store.get())?.tokens
      if (tokens && isFresh(tokens)) return tokens.access_token
      const running = refreshes.get(store) ?? refresh().finally(() => refreshes.delete(store))
      refreshes.set(store, running)
      return running
    },

    /** Ends the sign-in, here even if the service does not answer. */
    async revoke(): Promise<void> {
      const refresh_token = (await store.get())?.tokens?.refresh_token
      await store.set(null)
      if (!refresh_token) return
      const { revocation_endpoint } = await discover()
      await request(revocation_endpoint, {
        client_id: clientId,
        token: refresh_token,
        token_type_hint: 'refresh_token',
      })
    },
  }
}

function memory(): OAuthStore {
  let session: OAuthSession | null = null
  return {
    get: () => session,
    set: next => {
      session = next
    },
  }
}

/** Returns the S256 challenge of a verifier, in base64url. */
async function challengeOf(verifier: string): Promise<string> {
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))
  return btoa(String.fromCharCode(...new Uint8Array(digest)))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '')
}
