import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import type { Config } from '../config.ts'
import type { Pool } from '../core/db/pool.ts'
import { systemClock } from '../core/process/clock.ts'
import { issueUserToken } from '../identity/users/sign-in.ts'
import { hasUsers } from '../identity/users/store.ts'
import { CommandError } from './output.ts'
import { firstAdmin } from './store.ts'

export type SignIn = { username: string; password: string }

/** The parts of the demo project. `key` is there when it was made by this start. */
export type Demo = { project_id: string; agent_id: string; session_id: string; key: string | null }

const DEMO = 'demo'
const PROVIDER = 'model double'

/**
 * Makes the first admin when there is no user. The sign-in is kept in `file` until it has been shown, so that a start
 * that is killed in between leaves no one locked out; null when there is nothing to show.
 */
export async function createFirstAdmin(pool: Pool, url: string, file: string, config: Config): Promise<SignIn | null> {
  const kept = fs.existsSync(file) ? (JSON.parse(fs.readFileSync(file, 'utf8')) as SignIn) : null
  if (await hasUsers(pool)) return kept
  const length = Math.max(18, config.PASSWORD_MIN_LENGTH)
  const signIn = kept ?? { username: 'admin', password: randomBytes(length).toString('base64url').slice(0, length) }
  if (!kept) fs.writeFileSync(file, JSON.stringify(signIn), { mode: 0o600 })
  await call(url, null, 'POST', '/users/bootstrap', signIn)
  return signIn
}

/**
 * The demo project with a provider on the model double, an agent and an open session, made where they are missing and
 * only when the deployment has no other project. Corrects the provider's address. All of it over HTTP, as an admin.
 * @param withKey makes a project key too; otherwise only when the project has none
 */
export async function createDemo(
  pool: Pool,
  config: Config,
  url: string,
  doubleUrl: string,
  withKey: boolean,
): Promise<Demo | null> {
  const admin = await firstAdmin(pool)
  if (!admin) return null
  const { token } = await issueUserToken({ config, clock: systemClock }, admin)
  const get = (path: string) => call(url, token, 'GET', path)
  const post = (path: string, body: object) => call(url, token, 'POST', path, body)
  const named = async (path: string, name: string) =>
    (await get(path)).data.find((item: { name: string | null }) => item.name === name)

  let project = await named(`/projects?name=${DEMO}&limit=100`, DEMO)
  if (!project) {
    if ((await get('/projects?limit=1')).total > 0) return null
    project = await post('/projects', { name: DEMO, description: 'A first conversation, on the model double' })
  }
  const project_id: string = project.id
  const within = `project_id=${project_id}&limit=100`

  const base_url = `${doubleUrl}/v1`
  let provider = await named(`/ai-providers?${within}`, PROVIDER)
  if (!provider)
    provider = await post('/ai-providers', {
      project_id,
      name: PROVIDER,
      provider: 'custom',
      base_url,
      default_model: 'double-1',
    })
  else if (provider.base_url !== base_url && isLoopback(provider.base_url))
    await call(url, token, 'PATCH', `/ai-providers/${provider.id}`, { base_url })

  const agent =
    (await named(`/agents?${within}`, DEMO)) ??
    (await post('/agents', {
      project_id,
      name: DEMO,
      instructions: 'You are a friendly assistant.',
      ai_provider_id: provider.id,
    }))
  const session =
    (await named(`/sessions?${within}&status=open`, DEMO)) ??
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

/** An address that its owner has not pointed elsewhere. */
const isLoopback = (address: string): boolean => URL.parse(address)?.hostname === '127.0.0.1'

/** One call of the public API; answers the body. Raises CommandError with what the API said. */
async function call(url: string, token: string | null, method: string, path: string, body?: object): Promise<any> {
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
