import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { systemClock } from '#core/base/clock.ts'
import type { Config } from '#core/base/config.ts'
import type { Pool } from '#core/db/pool.ts'
import { issueUserToken } from '#identity/users/sign-in.ts'
import { issueSignInLink } from '#identity/users/sign-in-link.ts'
import { hasUsers } from '#identity/users/store.ts'
import { CommandError } from './output.ts'
import { findFirstAdmin } from './store.ts'

export type SignIn = { username: string; password: string }

/** The parts of the demo project. `key` is null unless this start created it. */
export type Demo = { project_id: string; agent_id: string; session_id: string; key: string | null }

const DEMO = 'demo'
const PROVIDER = 'model double'

/**
 * Creates the first admin if there is no user. Returns its sign-in, which is stored in `file` until it was printed so
 * that it survives a killed start. Null if there is none to print.
 */
export async function createFirstAdmin(pool: Pool, url: string, file: string, config: Config): Promise<SignIn | null> {
  const stored = fs.existsSync(file) ? (JSON.parse(fs.readFileSync(file, 'utf8')) as SignIn) : null
  if (await hasUsers(pool)) return stored
  const length = Math.max(18, config.PASSWORD_MIN_LENGTH)
  const signIn = stored ?? { username: 'admin', password: randomBytes(length).toString('base64url').slice(0, length) }
  if (!stored) fs.writeFileSync(file, JSON.stringify(signIn), { mode: 0o600 })
  await request(url, null, 'POST', '/users/bootstrap', signIn)
  return signIn
}

/** Returns the address of the console that signs the first admin in, once; null without an admin. */
export async function createSignInUrl(pool: Pool, config: Config): Promise<string | null> {
  const admin = await findFirstAdmin(pool)
  if (!admin) return null
  const link = await issueSignInLink({ config, clock: systemClock }, admin)
  return `${config.BASE_URL}/app#sign_in_link=${link}`
}

/**
 * Creates the missing parts of the demo project: a provider for the test model, an agent and an open session. Does
 * nothing if the deployment has another project. Updates the provider's address. All calls are API requests as an
 * admin.
 * @param withKey whether to create a project key even if the project has one
 */
export async function createDemo(
  pool: Pool,
  config: Config,
  url: string,
  doubleUrl: string,
  withKey: boolean,
): Promise<Demo | null> {
  const admin = await findFirstAdmin(pool)
  if (!admin) return null
  const { token } = await issueUserToken({ config, clock: systemClock }, admin)
  const get = (path: string) => request(url, token, 'GET', path)
  const post = (path: string, body: object) => request(url, token, 'POST', path, body)
  const findByName = async (path: string, name: string) =>
    (await get(path)).data.find((item: { name: string | null }) => item.name === name)

  let project = await findByName(`/projects?name=${DEMO}&limit=100`, DEMO)
  if (!project) {
    if ((await get('/projects?limit=1')).total > 0) return null
    project = await post('/projects', { name: DEMO, description: 'A first conversation with the test model' })
  }
  const project_id: string = project.id
  const within = `project_id=${project_id}&limit=100`

  const base_url = `${doubleUrl}/v1`
  let provider = await findByName(`/ai-providers?${within}`, PROVIDER)
  if (!provider)
    provider = await post('/ai-providers', {
      project_id,
      name: PROVIDER,
      provider: 'custom',
      base_url,
      default_model: 'double-1',
    })
  else if (provider.base_url !== base_url && isLoopback(provider.base_url))
    await request(url, token, 'PATCH', `/ai-providers/${provider.id}`, { base_url })

  const agent =
    (await findByName(`/agents?${within}`, DEMO)) ??
    (await post('/agents', {
      project_id,
      name: DEMO,
      instructions: 'You are a friendly assistant.',
      ai_provider_id: provider.id,
    }))
  const session =
    (await findByName(`/sessions?${within}&status=open`, DEMO)) ??
    (await post('/sessions', {
      project_id,
      agent_id: agent.id,
      name: DEMO,
      auto_generate: true,
      inactivity_ttl_seconds: 0,
    }))
  const lacksKey = withKey || (await get(`/project-keys?${within}`)).total === 0
  const key = lacksKey ? (await post('/project-keys', { project_id, name: DEMO })).secret : null
  return { project_id, agent_id: agent.id, session_id: session.id, key }
}

/** Whether the provider still has the address of the test model. */
const isLoopback = (address: string): boolean => URL.parse(address)?.hostname === '127.0.0.1'

/**
 * Sends a request to the public API and returns the body of the response.
 * @throws CommandError with the error of the API
 */
async function request(url: string, token: string | null, method: string, path: string, body?: object): Promise<any> {
  const response = await fetch(`${url}/api/v1${path}`, {
    method,
    headers: {
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...(body ? { 'content-type': 'application/json' } : {}),
    },
    body: body && JSON.stringify(body),
  })
  const answer: any = await response.json()
  if (!response.ok) throw new CommandError(`${method} ${path}: ${answer.error.code}: ${answer.error.message}`)
  return answer
}
