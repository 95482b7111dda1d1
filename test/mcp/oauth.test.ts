import assert from 'node:assert/strict'
import { Client as NewClient, StreamableHTTPClientTransport as NewTransport } from '@modelcontextprotocol/client'
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport as OldTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import type { Client } from '../support/app.ts'
import {
  allowing,
  approve,
  authorizeUrl,
  Browser,
  beginRequest,
  REDIRECT,
  refresh,
  register,
  startOauthApp,
  tokensOf,
} from '../support/oauth.ts'
import { forSuite } from '../support/suite.ts'
import { wire, withTasks } from './support.ts'

/** Clients that start with only the URL, and the permissions of their tokens. */
describe('OAuth tokens at /mcp', function () {
  this.timeout(120_000)
  const app = forSuite(() => startOauthApp({ env: { MCP_TASK_AFTER_MS: '100', MCP_CALL_TIMEOUT_MS: '300' } }))
  let project: string
  let user: Client & { id: string }
  let client_id: string

  before(async () => {
    project = (await app.project()).id
    user = await app.user(undefined, [allowing(project)])
    client_id = (await register(app.base, { redirect_uris: [REDIRECT] })).client_id
  })

  const consent = (...modules: string[]) => ({ project_id: project, selection: { kind: 'modules', modules } })
  const granted = (...modules: string[]) =>
    tokensOf(app.base, {
      client_id,
      redirect_uri: REDIRECT,
      user,
      consent: consent(...modules),
      asked: { resource: `${app.base}/mcp` },
    })

  /** What a client of the SDK keeps of its sign-in; its browser is signed in as the user, who consents. */
  function signingIn(modules: string[]) {
    const kept: Record<string, any> = {}
    let callback = new URLSearchParams()
    return {
      callback: () => callback,
      kept,
      provider: {
        redirectUrl: REDIRECT,
        clientMetadata: {
          client_name: 'An assistant',
          redirect_uris: [REDIRECT],
          grant_types: ['authorization_code', 'refresh_token'],
          response_types: ['code'],
          token_endpoint_auth_method: 'none',
        },
        state: () => 'the state',
        clientInformation: () => kept.client,
        saveClientInformation: (value: object) => {
          kept.client = value
        },
        tokens: () => kept.tokens,
        saveTokens: (value: object) => {
          kept.tokens = value
        },
        saveCodeVerifier: (value: string) => {
          kept.verifier = value
        },
        codeVerifier: () => kept.verifier,
        async redirectToAuthorization(url: URL) {
          kept.resource = url.searchParams.get('resource')
          const browser = new Browser()
          const request = await beginRequest(browser, url)
          const redirect = await approve(app.base, browser, user, request, consent(...modules))
          callback = redirect.searchParams
        },
      },
    }
  }

  it('are obtained by unmodified clients of both versions from the URL only', async () => {
    const lines = {
      new: () => new NewClient({ name: 'test', version: '1' }, { versionNegotiation: { mode: 'auto' } } as never),
      old: () => new OldClient({ name: 'test', version: '1' }),
    }
    for (const [line, make] of Object.entries(lines)) {
      const { provider, kept, callback } = signingIn(['files'])
      const transport = (): any =>
        line === 'new'
          ? new NewTransport(new URL(`${app.base}/mcp`), { authProvider: provider as never })
          : new OldTransport(new URL(`${app.base}/mcp`), { authProvider: provider as never })
      const first = transport()
      await assert.rejects(make().connect(first), /unauthorized/i)
      await first.finishAuth(line === 'new' ? callback() : callback().get('code'))
      assert.equal(kept.resource, `${app.base}/mcp`)
      assert.match(kept.client.client_id, /^oac_/)
      const client = make()
      await client.connect(transport())
      const { tools } = await client.listTools()
      assert.equal(tools.length, 5)
      const files: any = await client.callTool({ name: 'list-files', arguments: {} })
      assert.deepEqual(files.structuredContent.data, [])
      await client.close()
    }
  })

  it('reach the granted actions; missing ones are in one challenge', async () => {
    const { access_token } = await granted('files')
    const send = wire(app.base, access_token)
    for (const revision of ['2026-07-28', '2025-11-25']) {
      const files = await send('tools/call', { name: 'list-files', arguments: {} }, { revision })
      assert.equal(files.body.result.isError, undefined, JSON.stringify(files.body))
      for (const [name, args] of [
        ['list-agents', {}],
        ['call-tool', { name: 'list-agents', arguments: {} }],
      ] as const) {
        const refused = await send('tools/call', { name, arguments: args }, { revision })
        assert.equal(refused.status, 403)
        assert.equal(refused.body.error.code, 'FORBIDDEN')
        assert.equal(
          refused.headers.get('www-authenticate'),
          `Bearer error="insufficient_scope", scope="agents:ListAgents files:* mcp:access", resource_metadata="${app.base}/.well-known/oauth-protected-resource/mcp"`,
        )
      }
    }
  })

  it('of a user without the permission get a tool error, not a challenge', async () => {
    const few = await app.user(undefined, [allowing(project, ['files:*'])])
    const { access_token } = await tokensOf(app.base, {
      client_id,
      redirect_uri: REDIRECT,
      user: few,
      consent: { project_id: project, selection: { kind: 'all' } },
    })
    const { status, body } = await wire(app.base, access_token)('tools/call', { name: 'list-agents', arguments: {} })
    assert.equal(status, 200)
    assert.equal(body.result.isError, true)
    assert.equal(body.result.structuredContent.error.code, 'FORBIDDEN')
  })

  it('that start work without permission to read it get its ID', async () => {
    const graph = { project_id: project, name: 'started', nodes: [{ id: 'ask', type: 'human' }], edges: [] }
    const orchestration_id = (await user.post('/orchestrations', graph)).body.id
    const selection = { kind: 'actions', actions: ['orchestrations:StartRun'] }
    const flow = { client_id, redirect_uri: REDIRECT, user, consent: { project_id: project, selection } }
    const { access_token } = await tokensOf(app.base, flow)
    const send = wire(app.base, access_token)
    const ids = []
    for (const capabilities of [{}, withTasks])
      for (const args of [{ orchestration_id }, { orchestration_id, wait: false }]) {
        const { status, body } = await send('tools/call', { name: 'start-run', arguments: args }, { capabilities })
        assert.equal(status, 200, JSON.stringify(body))
        ids.push(body.result.structuredContent.id)
      }
    const { data } = (await user.get(`/orchestration-runs?project_id=${project}`)).body
    assert.deepEqual(ids.toSorted(), data.map(({ id }: { id: string }) => id).toSorted())
  })

  it('without the scope of the endpoint get a challenge for it', async () => {
    const { refresh_token } = await granted('files')
    const { body } = await refresh(app.base, client_id, refresh_token, { scope: 'files:*' })
    const refused = await wire(app.base, body.access_token)('tools/list')
    assert.equal(refused.status, 403)
    assert.match(refused.headers.get('www-authenticate') as string, /scope="files:\* mcp:access"/)
  })

  it('are bound to their project, and dead at the next request once the grant is revoked', async () => {
    const other = (await app.project()).id
    const { access_token } = await granted('files', 'agents')
    const send = wire(app.base, access_token)
    const foreign = await send('tools/call', { name: 'list-agents', arguments: { project_id: other } })
    assert.equal(foreign.body.result.structuredContent.error.code, 'API_KEY_PROJECT_SCOPE')
    const [{ id }] = (await user.get(`/oauth/grants?client_id=${client_id}&limit=1`)).body.data
    assert.equal((await user.delete(`/oauth/grants/${id}`)).status, 204)
    const { status, headers } = await send('tools/list')
    assert.equal(status, 401)
    assert.match(headers.get('www-authenticate') as string, /oauth-protected-resource\/mcp/)
  })

  it('do not open a deployment on a loopback address to pages from elsewhere', async () => {
    const { access_token } = await granted('files')
    const send = wire(app.base, access_token)
    for (const [origin, status] of [
      ['https://evil.example', 403],
      ['http://127.0.0.1.evil.example', 403],
      ['null', 403],
      ['http://localhost:6274', 200],
    ] as const)
      assert.equal((await send('tools/list', {}, { headers: { origin } })).status, status, origin)
  })

  it('are for this API only: another resource is an invalid target', async () => {
    const asked = { client_id, redirect_uri: REDIRECT, resource: 'https://elsewhere.example/mcp' }
    const challenge = { code_challenge: 'x'.repeat(43), code_challenge_method: 'S256' }
    const response = await new Browser().send(authorizeUrl(app.base, { ...asked, ...challenge }))
    assert.equal(new URL(response.headers.get('location') as string).searchParams.get('error'), 'invalid_target')
  })
})
