import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import http from 'node:http'
import https from 'node:https'
import type { AddressInfo } from 'node:net'
import { pipeline } from 'node:stream'
import { createEgress } from '#core/net/egress.ts'
import { type Client, client, startApp, type TestApp } from './app.ts'
import { Browser as BrowserOfRedirects } from './browser.ts'
import { cert, key, TLS_HOST } from './tls.ts'

/** A proxy in front of web processes, which gives each request to the next of them. Its address is the deployment's. */
export type Front = { url: string; targets: string[]; close(): Promise<void> }

/** Requests may name the address that they come from in `x-test-address`. */
export async function startFront(): Promise<Front> {
  let next = 0
  const agent = new http.Agent({ keepAlive: true })
  const server = http.createServer((req, res) => {
    const target = new URL(front.targets[next++ % front.targets.length])
    const headers = { ...req.headers, 'x-forwarded-for': req.headers['x-test-address'] ?? '192.0.2.1' }
    const upstream = http.request(
      { host: target.hostname, port: target.port, path: req.url, method: req.method, headers, agent },
      answer => {
        if (res.destroyed) return void answer.destroy()
        res.writeHead(answer.statusCode as number, answer.rawHeaders)
        // A process that is killed ends the response in the middle.
        pipeline(answer, res, () => {})
      },
    )
    upstream.on('error', () => res.destroy())
    req.pipe(upstream)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const front: Front = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    targets: [],
    close: () =>
      new Promise(resolve => {
        agent.destroy()
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
  return front
}

export type OauthApp = TestApp & { front: Front; base: string }

/** The application with a front, whose address is BASE_URL. */
export async function startOauthApp(
  options: Parameters<typeof startApp>[0] & { front?: Front } = {},
): Promise<OauthApp> {
  const front = options.front ?? (await startFront())
  const env = { BASE_URL: front.url, TRUST_PROXY: '1', ...options.env }
  const app = await startApp({ ...options, env })
  front.targets.push(app.url)
  // The certificate of the tests, and names that lead to the test.
  app.home.egress = createEgress({
    allowHosts: `127.0.0.1,${TLS_HOST}`,
    resolve: async () => ['127.0.0.1'],
    ca: cert,
  })
  return {
    ...app,
    front,
    base: front.url,
    async close() {
      await app.close()
      await front.close()
    },
  }
}

/** A browser of these flows, at the address that its requests come from. */
export class Browser extends BrowserOfRedirects {
  constructor(address = '192.0.2.1') {
    super({ headers: { 'x-test-address': address, accept: 'text/html' } })
  }
}

/** Where the clients of these tests have codes sent. */
export const REDIRECT = 'http://127.0.0.1:4711/callback'

/** A policy that allows actions on everything in a project. */
export const allowing = (projectId: string, action: string[] = ['*']) => ({
  statement: [{ effect: 'Allow', action, resource: [`srn:${projectId}:*:*`] }],
})

export const pkce = () => {
  const verifier = randomBytes(32).toString('base64url')
  return { verifier, challenge: createHash('sha256').update(verifier).digest('base64url') }
}

export type Asked = { client_id: string; redirect_uri: string; [parameter: string]: string | undefined }

/** The address of an authorization request. */
export function authorizeUrl(base: string, asked: Asked): URL {
  const url = new URL(`${base}/oauth/authorize`)
  for (const [name, value] of Object.entries({ response_type: 'code', state: 'a state', ...asked }))
    if (value !== undefined) url.searchParams.set(name, value)
  return url
}

/** Sends a browser to the authorization endpoint; returns the request that the consent page is about. */
export async function beginRequest(browser: Browser, url: URL): Promise<string> {
  const response = await browser.send(url)
  assert.equal(response.status, 303, await response.text())
  const id = new URL(response.headers.get('location') as string).searchParams.get('request_id')
  assert.ok(id, response.headers.get('location') as string)
  return id
}

/** Calls the API as a page in a browser does: with a bearer and the cookies of the browser. */
export const inBrowser = (base: string, browser: Browser, user: Client): Client => {
  const api = client(base, user.token)
  const cookies = (path: string) => ({ cookie: browser.header(`${base}/api/v1${path}`) })
  return {
    ...api,
    get: (path, headers) => api.get(path, { ...cookies(path), ...headers }),
    post: (path, body, headers) => api.post(path, body, { ...cookies(path), ...headers }),
  }
}

/** Approves a request; returns where the client's redirect leads. */
export async function approve(
  base: string,
  browser: Browser,
  user: Client,
  request_id: string,
  consent: object,
): Promise<URL> {
  const decided = await inBrowser(base, browser, user).post('/oauth/consent', { request_id, ...consent })
  assert.equal(decided.status, 200, JSON.stringify(decided.body))
  return resume(browser, decided.body.redirect_to)
}

/** Follows the steps of the library after consent, as a browser submits its forms; returns the redirect to the client. */
export async function resume(browser: Browser, redirectTo: string): Promise<URL> {
  let response = await browser.send(redirectTo)
  for (let steps = 0; steps < 5; steps++) {
    const location = response.headers.get('location')
    if (location && !location.includes('/oauth/')) return new URL(location)
    if (location) {
      response = await browser.send(new URL(location, redirectTo))
      continue
    }
    const page = await response.text()
    const action = /action="([^"]+)"/.exec(page)?.[1]
    if (!action) throw new Error(`${response.status} ${page}`)
    const fields = [...page.matchAll(/name="([^"]+)" value="([^"]*)"/g)].map(([, name, value]): [string, string] => [
      name,
      value,
    ])
    response = await browser.send(action, { method: 'POST', body: new URLSearchParams(fields) })
  }
  throw new Error('the steps never end')
}

export type TokenReply = { status: number; body: any; headers: Headers }

/** Sends a form to an endpoint of the protocol. */
export async function postForm(
  url: string,
  fields: Record<string, string | undefined>,
  headers: Record<string, string> = {},
): Promise<TokenReply> {
  const given = Object.entries(fields).filter((entry): entry is [string, string] => entry[1] !== undefined)
  const response = await fetch(url, { method: 'POST', body: new URLSearchParams(given), headers })
  const text = await response.text()
  return { status: response.status, body: text && JSON.parse(text), headers: response.headers }
}

/** Registers a public client whose redirect is on a loopback address. */
export async function register(base: string, more: object = {}): Promise<any> {
  const response = await fetch(`${base}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      client_name: 'A registered client',
      redirect_uris: ['http://127.0.0.1/callback'],
      token_endpoint_auth_method: 'none',
      ...more,
    }),
  })
  const body = await response.json()
  assert.equal(response.status, 201, JSON.stringify(body))
  return body
}

export type Flow = {
  client_id: string
  redirect_uri: string
  user: Client
  consent: object
  browser?: Browser
  asked?: Record<string, string | undefined>
}

/** A code with its verifier. */
export async function codeOf(base: string, flow: Flow): Promise<{ code: string; verifier: string; redirect: URL }> {
  const { client_id, redirect_uri, user, consent, asked, browser = new Browser() } = flow
  const { verifier, challenge } = pkce()
  const url = authorizeUrl(base, {
    client_id,
    redirect_uri,
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...asked,
  })
  const request = await beginRequest(browser, url)
  const redirect = await approve(base, browser, user, request, consent)
  return { code: redirect.searchParams.get('code') ?? '', verifier, redirect }
}

/** Exchanges a code of a public client. */
export const exchange = (
  base: string,
  { client_id, redirect_uri }: Pick<Flow, 'client_id' | 'redirect_uri'>,
  { code, verifier }: { code: string; verifier: string },
  headers?: Record<string, string>,
): Promise<TokenReply> =>
  postForm(
    `${base}/oauth/token`,
    { grant_type: 'authorization_code', code, code_verifier: verifier, client_id, redirect_uri },
    headers,
  )

/** Runs a whole flow of a public client; returns the answer of the token endpoint. */
export async function tokensOf(base: string, flow: Flow, headers?: Record<string, string>): Promise<any> {
  const reply = await exchange(base, flow, await codeOf(base, flow), headers)
  assert.equal(reply.status, 200, JSON.stringify(reply.body))
  return reply.body
}

export const refresh = (base: string, client_id: string, refresh_token: string, more: Record<string, string> = {}) =>
  postForm(`${base}/oauth/token`, { grant_type: 'refresh_token', client_id, refresh_token, ...more })

/** Serves metadata documents under `https://tls.test`. */
export async function startDocuments(
  answer: (req: http.IncomingMessage, res: http.ServerResponse) => void,
): Promise<{ url: string; requests: string[]; close(): Promise<void> }> {
  const requests: string[] = []
  const server = https.createServer({ key, cert }, (req, res) => {
    requests.push(req.url as string)
    answer(req, res)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `https://${TLS_HOST}:${(server.address() as AddressInfo).port}`,
    requests,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
