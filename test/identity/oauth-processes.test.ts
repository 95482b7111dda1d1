import assert from 'node:assert/strict'
import { client, eventually } from '../support/app.ts'
import { launch } from '../support/commands.ts'
import { testEnvironment } from '../support/environment.ts'
import {
  approve,
  authorizeUrl,
  Browser,
  beginRequest,
  codeOf,
  exchange,
  pkce,
  REDIRECT,
  refresh,
  register,
  startOauthApp,
  tokensOf,
} from '../support/oauth.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { forSuite } from '../support/suite.ts'

describe('OAuth over several web processes', function () {
  this.timeout(120_000)
  const app = forSuite(startOauthApp)
  let second: TestProcess
  let client_id: string
  let consent: object

  const startSecond = () => startProcess('web', app.databaseUrl, { BASE_URL: app.base, TRUST_PROXY: '1' })

  before(async () => {
    second = await startSecond()
    consent = { project_id: (await app.project()).id, selection: { kind: 'all' } }
    // Each request goes to the other process than the one before.
    app.front.targets.push(second.url)
    ;({ client_id } = await register(app.base))
  })

  after(async () => {
    await second?.kill()
  })

  it('continues in one process a request that another one started', async () => {
    const tokens = await tokensOf(app.base, { client_id, redirect_uri: REDIRECT, user: app.admin, consent })
    const { status, body } = await refresh(app.base, client_id, tokens.refresh_token)
    assert.equal(status, 200, JSON.stringify(body))
    for (const url of [app.url, second.url])
      assert.equal((await client(url, body.access_token).get('/actors')).status, 200)
  })

  it('refuses revoked and narrowed grants in every process', async () => {
    const { access_token } = await tokensOf(app.base, { client_id, redirect_uri: REDIRECT, user: app.admin, consent })
    const there = client(second.url, access_token)
    const here = client(app.url, app.admin.token)
    assert.equal((await there.get('/actors')).status, 200)
    const [{ id }] = (await here.get(`/oauth/grants?client_id=${client_id}&limit=1`)).body.data
    const selection = { kind: 'modules', modules: ['files'] }
    await here.patch(`/oauth/grants/${id}`, { selection })
    await eventually(async () => (await there.get('/actors')).status === 403, { within: 3000 })
    await here.delete(`/oauth/grants/${id}`)
    await eventually(async () => (await there.get('/files')).status === 401, { within: 3000 })
  })

  it('signs with a key rotated by the CLI in running processes', async () => {
    const keys = async (): Promise<{ kid: string }[]> => (await client(second.url, null).get('//oauth/jwks')).body.keys
    assert.equal((await keys()).length, 1)
    const command = launch('bin/muster.ts', ['oauth', 'rotate-keys', '--json'], testEnvironment(app.databaseUrl))
    assert.equal(await command.ended, 0, command.output.stderr)
    const { kid } = JSON.parse(command.output.stdout)
    await eventually(async () => (await keys())[0].kid === kid)
    assert.equal((await keys()).length, 2)
  })

  it('survives a restart between consent and token', async () => {
    app.front.targets.splice(0, 2, second.url)
    const flow = { client_id, redirect_uri: REDIRECT, user: app.admin, consent }
    const { code, verifier } = await codeOf(app.base, flow)
    const browser = new Browser()
    const { verifier: later, challenge } = pkce()
    const asked = { client_id, redirect_uri: REDIRECT, code_challenge: challenge, code_challenge_method: 'S256' }
    const waiting = await beginRequest(browser, authorizeUrl(app.base, asked))
    await second.kill('SIGKILL')
    second = await startSecond()
    app.front.targets.splice(0, 1, second.url)
    assert.equal((await exchange(app.base, flow, { code, verifier })).status, 200)
    const redirect = await approve(app.base, browser, app.admin, waiting, consent)
    const waited = redirect.searchParams.get('code') as string
    assert.equal((await exchange(app.base, flow, { code: waited, verifier: later })).status, 200)
  })
})
