import autocannon from 'autocannon'
import { client } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { postForm, register, startOauthApp, tokensOf } from '../support/oauth.ts'
import { start } from './http.ts'
import { rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Refreshes of tokens against the statements that they take, and requests with a token of a grant against those with a project
 * key; one web process and a floor, both on this machine and in this run. Usage: node test/bench/run.ts oauth
 */
const CLIENTS = 16
const REDIRECT = 'http://127.0.0.1:4711/callback'

/** Refreshes a second of clients that each refresh the token they got last. */
async function refreshes(
  tokens: readonly string[],
  seconds: number,
  next: (token: string) => Promise<string>,
): Promise<number> {
  const until = performance.now() + seconds * 1000
  let count = 0
  await Promise.all(
    tokens.map(async first => {
      for (let token = first; performance.now() < until; count++) token = await next(token)
    }),
  )
  return count / seconds
}

async function gets(url: string, token: string, seconds: number): Promise<number> {
  const result = await autocannon({
    url: `${url}/api/v1/actors?limit=1`,
    headers: { authorization: `Bearer ${token}` },
    connections: CLIENTS,
    duration: seconds,
  })
  if (Object.keys(result.statusCodeStats).join() !== '200')
    throw new Error(`requests answered ${JSON.stringify(result.statusCodeStats)}`)
  return result.requests.average
}

export async function run(seconds = 8): Promise<Row[]> {
  const app = await startOauthApp()
  const env = { ...testEnvironment(app.databaseUrl), BASE_URL: app.base, TRUST_PROXY: '1', LOG_LEVEL: 'info' }
  const web = await start('src/web.ts', env)
  const floor = await start('test/bench/floor.ts', env)
  for (const { child } of [web, floor]) child.stdout?.resume()
  try {
    const project = await app.project()
    await project.key.post('/actors', { name: 'one' })
    const { client_id } = await register(app.base)
    const consent = { project_id: project.id, selection: { kind: 'all' } }
    const flow = { client_id, redirect_uri: REDIRECT, user: app.admin, consent }
    const tokens = async (): Promise<string[]> => {
      const given: string[] = []
      for (let index = 0; index < CLIENTS; index++) given.push((await tokensOf(app.base, flow)).refresh_token)
      return given
    }
    const [first, measured, floors] = [await tokens(), await tokens(), await tokens()]
    const [{ id: grant_id }] = (await app.admin.get('/oauth/grants?limit=1')).body.data

    const exchange = async (refresh_token: string): Promise<string> => {
      const fields = { grant_type: 'refresh_token', client_id, refresh_token }
      const { status, body } = await postForm(`${web.url}/oauth/token`, fields)
      if (status !== 200) throw new Error(`a refresh answered ${status}: ${JSON.stringify(body)}`)
      return body.refresh_token
    }
    const bare = async (refresh_token: string): Promise<string> => {
      const { body } = await client(floor.url, null).post('//oauth/refreshed', { refresh_token, grant_id, client_id })
      return body.refresh_token
    }
    await refreshes(first, 1, exchange)
    const [exchanged, least] = [await refreshes(measured, seconds, exchange), await refreshes(floors, seconds, bare)]

    const { access_token } = await tokensOf(app.base, flow)
    const key = project.key.token as string
    for (const token of [access_token, key]) await gets(web.url, token, 2)
    const [withToken, withKey] = [await gets(web.url, access_token, seconds), await gets(web.url, key, seconds)]
    return [
      {
        what: `token exchange, ${CLIENTS} clients, of a floor of the same statements`,
        value: rounded(exchanged / least, 2),
        unit: 'x',
        target: '>= 0.5',
        note: `${Math.round(exchanged)}/s against ${Math.round(least)}/s`,
      },
      {
        what: 'request with an OAuth token, of one with a key',
        value: rounded(withToken / withKey, 2),
        unit: 'x',
        target: '>= 0.9',
        note: `${Math.round(withToken)}/s against ${Math.round(withKey)}/s`,
      },
    ]
  } finally {
    for (const { child } of [web, floor]) child.kill()
    await app.close()
  }
}
