import { z } from 'zod'
import { type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { sealJson } from '#core/secrets/json.ts'
import { tokensIn } from '#identity/secrets/resolve.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import {
  DIALECTS,
  type Dialect,
  MODEL_INPUTS,
  type ProviderConfig,
  type ProviderRow,
  type ProviderType,
} from './model.ts'

/** Masked credential value; in a write it refers to the stored value. */
const MASKED = '***'
const MAX_CONFIG_BYTES = 64 * 1024
const SECRET_TOKEN = /\{\{secret:sec_[A-Za-z0-9]+\}\}/g
const UNSENDABLE = new Set(['host', 'content-length', 'transfer-encoding'])

/** Whether a text is one DNS label, the only form allowed in a host name. */
const isLabel = (text: string): boolean => /^[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?$/.test(text)

/** Known settings of a config, from either key spelling, with credentials restored. */
export type Settings = {
  headers: Record<string, string>
  structured_outputs: boolean
  dialect: Dialect
  /** Header of the credential, for type anthropic. */
  auth: Auth
  api: 'responses' | 'chat' | null
  organization: string | null
  project: string | null
  resource_name: string | null
  api_version: string | null
  /** Model of the deployments, for type azure. */
  model: string | null
  region: string | null
  location: string | null
  api_key: string | null
}

const AUTHS = ['api_key', 'bearer'] as const
type Auth = (typeof AUTHS)[number]

const KNOWN_KEYS = {
  headers: 'headers',
  models: 'models',
  structured_outputs: 'boolean',
  dialect: 'string',
  auth: 'string',
  api: 'string',
  organization: 'string',
  project: 'string',
  resource_name: 'string',
  api_version: 'string',
  model: 'string',
  region: 'string',
  location: 'string',
  api_key: 'string',
} as const

const toCamelCase = (key: string): string => key.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase())
const toSnakeCase = (key: string): string => key.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)

/** Returns the value of a known key and its spelling; snake_case takes precedence over the SDK's camelCase. */
function lookup(config: ProviderConfig | null, key: string): { spelling: string; value: unknown } {
  const spelling = config && !(key in config) && toCamelCase(key) in config ? toCamelCase(key) : key
  return { spelling, value: config?.[spelling] ?? null }
}

type ProviderFields = Pick<ProviderRow, 'provider' | 'secret_id' | 'base_url' | 'config'>

/**
 * Validates a provider as it would be stored.
 * @throws VALIDATION_FAILED with all problems
 */
export function checkProvider(provider: ProviderFields): void {
  const problems = [...baseUrlProblems(provider), ...configProblems(provider)]
  if (problems.length > 0) raiseInvalid(problems)
}

/** Raises AI_PROVIDER_MISCONFIGURED for a bedrock or vertex provider without a usable credential. */
export function checkCredential(provider: ProviderFields, ambientCredentials: boolean): void {
  if (!isCloudProvider(provider.provider) || ambientCredentials || provider.secret_id) return
  if (!lookup(provider.config, 'api_key').value)
    throw misconfiguredProvider(
      null,
      'no_credential',
      `A ${provider.provider} provider requires a secret or config.api_key`,
    )
}

const isCloudProvider = (type: ProviderType): boolean => type === 'bedrock' || type === 'vertex'

function baseUrlProblems({ provider, base_url: value }: ProviderFields): Problem[] {
  const problem = (message: string, code = 'INVALID_VALUE'): Problem[] => [{ code, path: 'base_url', message }]
  if (value === null)
    return provider === 'gateway' || provider === 'custom'
      ? problem(`is required for a ${provider} provider`, 'REQUIRED')
      : []
  if (isCloudProvider(provider)) return problem(`is not allowed for a ${provider} provider`)
  const url = /^https?:\/\//i.test(value) ? URL.parse(value) : null
  if (!url) return problem('must be an absolute http or https URL')
  if (url.username || url.password) return problem('must not contain user info')
  if (value.includes('#')) return problem('must not contain a fragment')
  if (value.includes('?')) return problem('must not contain a query')
  return []
}

function configProblems({ provider, config }: ProviderFields): Problem[] {
  if (config === null) return []
  const problems: Problem[] = []
  const addProblem = (path: string, message: string, code = 'INVALID_VALUE') => problems.push({ code, path, message })
  if (Buffer.byteLength(JSON.stringify(config)) > MAX_CONFIG_BYTES)
    addProblem('config', 'must be at most 64 KiB', 'TOO_BIG')
  for (const [key, type] of Object.entries(KNOWN_KEYS)) {
    const { spelling, value } = lookup(config, key)
    if (value === null) continue
    const path = `config.${spelling}`
    if (type === 'headers') problems.push(...headerProblems(provider, value, path))
    else if (type === 'models') problems.push(...modelProblems(value, path))
    else if (typeof value !== type) addProblem(path, `must be a ${type}`, 'INVALID_TYPE')
    else if (value === '') addProblem(path, 'must not be empty')
  }
  const api = lookup(config, 'api')
  const hasApis = provider === 'openai' || provider === 'azure'
  if (hasApis && typeof api.value === 'string' && api.value !== 'responses' && api.value !== 'chat')
    addProblem('config.api', 'must be responses or chat')
  const dialect = lookup(config, 'dialect')
  if (typeof dialect.value === 'string' && !DIALECTS.includes(dialect.value as Dialect))
    addProblem('config.dialect', `must be one of ${DIALECTS.join(', ')}`)
  const auth = lookup(config, 'auth')
  if (typeof auth.value === 'string' && (provider !== 'anthropic' || !AUTHS.includes(auth.value as Auth)))
    addProblem('config.auth', `must be one of ${AUTHS.join(', ')}, of an anthropic provider`)
  for (const key of hostLabelKeys(provider)) {
    const { spelling, value } = lookup(config, key)
    if (typeof value === 'string' && value !== '' && !isLabel(value))
      addProblem(`config.${spelling}`, 'must be a DNS label of at most 63 letters, digits and inner hyphens')
  }
  return problems
}

/** Returns a key of the destination of credentials: provider type, base URL and settings in its host name. */
export const destinationOf = (provider: ProviderFields): string =>
  JSON.stringify([
    provider.provider,
    provider.base_url,
    hostLabelKeys(provider.provider).map(key => lookup(provider.config, key).value),
  ])

/**
 * Raises VALIDATION_FAILED for masked credentials of a config whose requests go to another address: permission to
 * update a provider does not include reading its credentials. Hosts of cloud providers always belong to the vendor.
 */
export function requireNewCredentials({ provider, config }: ProviderFields): void {
  if (config === null || isCloudProvider(provider)) return
  const { spelling, value: headers } = lookup(config, 'headers')
  const masked = (values: object, path: string, isCredential: (name: string) => boolean) =>
    Object.entries(values).flatMap(([name, value]) =>
      value === MASKED && isCredential(name) ? [`${path}.${name}`] : [],
    )
  const fields = [
    ...masked(config, 'config', isCredentialName),
    ...masked(headers ?? {}, `config.${spelling}`, isCredentialHeader),
  ]
  if (fields.length === 0) return
  const message = 'must be provided again: requests go to another address'
  raiseInvalid(fields.map(path => ({ code: 'REQUIRED', path, message })))
}

/** Returns the settings of a type that become part of a host name. */
function hostLabelKeys(provider: ProviderType): ('location' | 'project' | 'region' | 'resource_name')[] {
  if (provider === 'vertex') return ['location', 'project']
  if (provider === 'bedrock') return ['region']
  return provider === 'azure' ? ['resource_name'] : []
}

const MAX_MODELS = 500
const ModelSettings = z
  .record(
    z.string().min(1).max(255),
    z.strictObject({ input: z.array(z.enum(MODEL_INPUTS)).min(1).max(MODEL_INPUTS.length) }),
  )
  .refine(models => Object.keys(models).length <= MAX_MODELS, `must have at most ${MAX_MODELS} models`)

function modelProblems(value: unknown, path: string): Problem[] {
  const parsed = ModelSettings.safeParse(value)
  if (parsed.success) return []
  return parsed.error.issues.map(issue => ({
    code: 'INVALID_VALUE',
    path: [path, ...issue.path].join('.'),
    message: issue.message,
  }))
}

function headerProblems(provider: ProviderType, value: unknown, path: string): Problem[] {
  if (!isObject(value)) return [{ code: 'INVALID_TYPE', path, message: 'must be an object of strings' }]
  if (isCloudProvider(provider))
    return [{ code: 'INVALID_VALUE', path, message: `are not allowed for a ${provider} provider` }]
  return Object.entries(value).flatMap(([name, text]): Problem[] => {
    const problem = (message: string, code = 'INVALID_VALUE') => [{ code, path: `${path}.${name}`, message }]
    if (!/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$/.test(name)) return problem('is not a header name')
    if (UNSENDABLE.has(name.toLowerCase())) return problem('cannot be set')
    if (typeof text !== 'string') return problem('must be a string', 'INVALID_TYPE')
    if (!/^[\t\x20-\x7e\x80-\xff]*$/.test(text)) return problem('must be a header value')
    return []
  })
}

/**
 * Returns the header values of a config, which may contain secret tokens.
 * @throws INVALID_TEMPLATE_TOKEN for any other token
 */
export function tokenTexts(config: ProviderConfig | null): string[] {
  const texts = Object.values((lookup(config, 'headers').value ?? {}) as Record<string, string>)
  for (const text of texts) {
    if (tokensIn(text.replace(SECRET_TOKEN, '')).length > 0)
      raise('INVALID_TEMPLATE_TOKEN', { message: 'config.headers: only {{secret:<id>}} tokens are allowed here' })
  }
  return texts
}

type Credentials = { config: Record<string, string>; headers: Record<string, string> }

const isCredentialName = (name: string): boolean =>
  /api[-_]?key|authorization|token|secret|password|passwd|cookie|credential|private[-_]?key/i.test(name)

/** Headers that contain no credential. Gateways name the header of a credential as they like. */
const VISIBLE_HEADERS = new Set([
  'accept',
  'accept-language',
  'anthropic-beta',
  'anthropic-version',
  'content-type',
  'http-referer',
  'openai-beta',
  'openai-organization',
  'openai-project',
  'referer',
  'user-agent',
  'x-title',
])

const isCredentialHeader = (name: string): boolean => !VISIBLE_HEADERS.has(name.toLowerCase())

/**
 * Splits a config into its visible part and its sealed credentials. A value of `***` refers to the stored credential
 * and is dropped if there is none.
 */
export function sealConfig(
  services: Pick<Services, 'secrets'>,
  row: { id: string; project_id: string },
  config: ProviderConfig | null,
  stored: Credentials,
): { config: ProviderConfig | null; sealed_credentials: string | null } {
  if (config === null) return { config: null, sealed_credentials: null }
  const credentials: Credentials = { config: {}, headers: {} }
  const splitValues = (
    values: Record<string, unknown>,
    target: Record<string, string>,
    storedValues: Record<string, string>,
    isCredential: (name: string) => boolean,
  ) =>
    Object.fromEntries(
      Object.entries(values).flatMap(([name, value]): [string, unknown][] => {
        if (typeof value !== 'string' || !isCredential(name) || tokensIn(value).length > 0) return [[name, value]]
        const key = toSnakeCase(name)
        const actual = value === MASKED ? storedValues[key] : value
        if (actual === undefined) return []
        target[key] = actual
        return [[name, MASKED]]
      }),
    )
  const visible = splitValues(config, credentials.config, stored.config, isCredentialName)
  const { spelling, value: headers } = lookup(config, 'headers')
  if (headers) {
    const values = headers as Record<string, unknown>
    visible[spelling] = splitValues(values, credentials.headers, stored.headers, isCredentialHeader)
  }
  const any = Object.keys(credentials.config).length + Object.keys(credentials.headers).length > 0
  return {
    config: visible,
    sealed_credentials: any ? sealJson(services, credentials, sealedFor(row)) : null,
  }
}

/** Returns a config for another project: without credentials and without headers that reference secrets. */
export function withoutCredentials(config: ProviderConfig | null): ProviderConfig | null {
  if (config === null) return null
  const withoutMasked = (values: object) =>
    Object.fromEntries(
      Object.entries(values).filter(
        ([, value]) => value !== MASKED && !(typeof value === 'string' && hasSecretToken(value)),
      ),
    )
  const { spelling, value: headers } = lookup(config, 'headers')
  return { ...withoutMasked(config), ...(headers ? { [spelling]: withoutMasked(headers) } : {}) }
}

const hasSecretToken = (text: string): boolean => text.search(SECRET_TOKEN) >= 0

const sealedFor = (row: { id: string; project_id: string }) => ({
  kind: 'ai_provider',
  id: row.id,
  project_id: row.project_id,
})

/**
 * Returns the credentials of a provider.
 * @throws AI_PROVIDER_MISCONFIGURED if they cannot be decrypted
 */
export function openCredentials(
  services: Pick<Services, 'secrets'>,
  row: Pick<ProviderRow, 'id' | 'project_id' | 'sealed_credentials'>,
): Credentials {
  if (row.sealed_credentials === null) return { config: {}, headers: {} }
  const opened = services.secrets.open(row.sealed_credentials, sealedFor(row))
  if (!opened.ok)
    throw misconfiguredProvider(
      row.id,
      'secret_undecryptable',
      `Credentials in the config of AI provider ${row.id} cannot be decrypted`,
    )
  return JSON.parse(opened.value) as Credentials
}

/** Dialects that take no schema of an answer. */
const SCHEMALESS = new Set<Dialect>(['deepseek'])

/**
 * Returns the known settings of a provider with credentials. Host labels are validated again, since old rows may
 * predate the check.
 */
export function providerSettings(row: ProviderRow, credentials: Credentials): Settings {
  const value = (key: keyof typeof KNOWN_KEYS) => {
    const found = lookup(row.config, key).value
    return found === MASKED ? (credentials.config[key] ?? null) : found
  }
  const text = (key: keyof typeof KNOWN_KEYS) => (value(key) as string | null) ?? null
  for (const key of hostLabelKeys(row.provider)) {
    const label = text(key)
    if (label !== null && !isLabel(label))
      throw misconfiguredProvider(row.id, 'config_key', `config.${key} is not a DNS label`)
  }
  const dialect = (text('dialect') ?? (row.provider === 'ollama' ? 'ollama' : 'openai')) as Dialect
  const headers = Object.entries((value('headers') ?? {}) as Record<string, string>).map(([name, visible]) => [
    name,
    visible === MASKED ? (credentials.headers[toSnakeCase(name)] ?? '') : visible,
  ])
  return {
    headers: Object.fromEntries(headers),
    structured_outputs: (value('structured_outputs') ?? !SCHEMALESS.has(dialect)) !== false,
    dialect,
    auth: (text('auth') ?? 'api_key') as Auth,
    api: value('api') as Settings['api'],
    organization: text('organization'),
    project: text('project'),
    resource_name: text('resource_name'),
    api_version: text('api_version'),
    model: text('model'),
    region: text('region'),
    location: text('location'),
    api_key: text('api_key'),
  }
}
