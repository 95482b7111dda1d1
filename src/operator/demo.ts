import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { systemClock } from '#core/base/clock.ts'
import type { Config } from '#core/base/config.ts'
import type { Pool } from '#core/db/pool.ts'
import { issueUserToken } from '#identity/users/sign-in.ts'
import { issueSignInLink } from '#identity/users/sign-in-link.ts'
import { hasUsers } from '#identity/users/store.ts'
import type { Environment } from './environment.ts'
import { CommandError } from './output.ts'
import { findFirstAdmin } from './store.ts'

export type SignIn = { username: string; password: string }

/** An agent of a vendor whose key is in the environment. */
export type VendorAgent = { agent_id: string; provider: string; model: string; variable: string }

/** The parts of the demo project. `key` is null unless this start created it. */
export type Demo = {
  project_id: string
  agent_id: string
  session_id: string
  key: string | null
  vendors: VendorAgent[]
}

const DEMO = 'demo'
const PROVIDER = 'model double'

/** Variables with the key of a vendor, in the names that its libraries read, and a model for first conversations. */
const VENDORS = [
  { variable: 'OPENAI_API_KEY', provider: 'openai', model: 'gpt-5-mini' },
  { variable: 'ANTHROPIC_API_KEY', provider: 'anthropic', model: 'claude-sonnet-4-6' },
  { variable: 'GEMINI_API_KEY', provider: 'google', model: 'gemini-3-pro' },
]

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

/** Returns a token of the first admin; null without an admin. */
export async function issueAdminToken(pool: Pool, config: Config): Promise<string | null> {
  const admin = await findFirstAdmin(pool)
  return admin && (await issueUserToken({ config, clock: systemClock }, admin)).token
}

/**
 * Creates the missing parts of the demo project: a provider for the test model, an agent and an open session; for each key of
 * a vendor in the environment a secret, a provider and an agent, whose secret always gets the value of the environment.
 * Does nothing if the deployment has another project. Updates the address of the test model. All calls are API requests
 * as an admin.
 * @param options.withKey whether to create a project key even if the project has one
 * @param options.env environment with the keys of vendors
 */
export async function createDemo(
  token: string,
  url: string,
  doubleUrl: string,
  { withKey, env }: { withKey: boolean; env: Environment },
): Promise<Demo | null> {
  const get = (path: string) => request(url, token, 'GET', path)
  const post = (path: string, body: object) => request(url, token, 'POST', path, body)
  const find = async (path: string, fields: Record<string, unknown>) =>
    (await get(path)).data.find((item: Record<string, unknown>) =>
      Object.entries(fields).every(([name, value]) => item[name] === value),
    )
  const findByName = (path: string, name: string) => find(path, { name })

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

  const agentOf = async (name: string, ai_provider_id: string) =>
    (await find(`/agents?${within}`, { name, ai_provider_id })) ??
    (await post('/agents', { project_id, name, instructions: 'You are a friendly assistant.', ai_provider_id }))
  const agent = (await findByName(`/agents?${within}`, DEMO)) ?? (await agentOf(DEMO, provider.id))
  const vendors: VendorAgent[] = []
  for (const { variable, provider, model } of VENDORS) {
    const value = env[variable]
    if (!value) continue
    const secret = await findByName(`/secrets?${within}`, variable)
    // Its value cannot be read and compared.
    if (secret) await request(url, token, 'PATCH', `/secrets/${secret.id}`, { value })
    const { id: secret_id } = secret ?? (await post('/secrets', { project_id, name: variable, value }))
    const { id: provider_id } =
      (await find(`/ai-providers?${within}`, { provider, secret_id })) ??
      (await post('/ai-providers', { project_id, name: provider, provider, secret_id, default_model: model }))
    const { id: agent_id } = await agentOf(provider, provider_id)
    vendors.push({ agent_id, provider, model, variable })
  }
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
  return { project_id, agent_id: agent.id, session_id: session.id, key, vendors }
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
