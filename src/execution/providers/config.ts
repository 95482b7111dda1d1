import { type Problem, raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import { sealJson } from '../../core/secrets/json.ts'
import { tokensIn } from '../../identity/secrets/resolve.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import type { ProviderConfig, ProviderRow, ProviderType } from './model.ts'

/** What a credential value reads as; sent back, it means the stored one. */
const MASKED = '***'
const MAX_CONFIG_BYTES = 64 * 1024
const SECRET_TOKEN = /\{\{secret:sec_[A-Za-z0-9]+\}\}/g
const UNSENDABLE = new Set(['host', 'content-length', 'transfer-encoding'])

/** One DNS label: what becomes part of a host name may hold nothing else. */
const isLabel = (text: string): boolean => /^[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?$/.test(text)

/** The known keys of a config, in either spelling, with the credentials put back. */
export type Settings = {
  headers: Record<string, string>
  structured_outputs: boolean
  api: 'responses' | 'chat' | null
  organization: string | null
  project: string | null
  resource_name: string | null
  api_version: string | null
  region: string | null
  location: string | null
  api_key: string | null
}

const KNOWN = {
  headers: 'headers',
  structured_outputs: 'boolean',
  api: 'string',
  organization: 'string',
  project: 'string',
  resource_name: 'string',
  api_version: 'string',
  region: 'string',
  location: 'string',
  api_key: 'string',
} as const

const camel = (key: string): string => key.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase())
const snake = (key: string): string => key.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)

/** The value of a known key and the spelling it was given in; snake_case wins over the SDK's camelCase. */
function lookup(config: ProviderConfig | null, key: string): { spelling: string; value: unknown } {
  const spelling = config && !(key in config) && camel(key) in config ? camel(key) : key
  return { spelling, value: config?.[spelling] ?? null }
}

type Writable = Pick<ProviderRow, 'provider' | 'secret_id' | 'base_url' | 'config'>

/** Validates the record a write would leave. Raises VALIDATION_FAILED naming every field. */
export function checkProvider(provider: Writable): void {
  const problems = [...baseUrlProblems(provider), ...configProblems(provider)]
  if (problems.length > 0) raiseInvalid(problems)
}

/** Refuses bedrock and vertex without a credential they may use: AI_PROVIDER_MISCONFIGURED. */
export function checkCredential(provider: Writable, ambientCredentials: boolean): void {
  if (!isCloud(provider.provider) || ambientCredentials || provider.secret_id) return
  if (!lookup(provider.config, 'api_key').value)
    throw misconfiguredProvider(
      null,
      'no_credential',
      `A ${provider.provider} provider needs a secret or config.api_key here`,
    )
}

const isCloud = (type: ProviderType): boolean => type === 'bedrock' || type === 'vertex'

function baseUrlProblems({ provider, base_url: given }: Writable): Problem[] {
  const problem = (message: string, code = 'INVALID_VALUE'): Problem[] => [{ code, path: 'base_url', message }]
  if (given === null)
    return provider === 'gateway' || provider === 'custom'
      ? problem(`is required for a ${provider} provider`, 'REQUIRED')
      : []
  if (isCloud(provider)) return problem(`is not allowed for a ${provider} provider`)
  const url = /^https?:\/\//i.test(given) ? URL.parse(given) : null
  if (!url) return problem('must be an absolute http or https URL')
  if (url.username || url.password) return problem('must not hold user info')
  if (given.includes('#')) return problem('must not hold a fragment')
  if (given.includes('?')) return problem('must not hold a query')
  return []
}

function configProblems({ provider, config }: Writable): Problem[] {
  if (config === null) return []
  const problems: Problem[] = []
  const wrong = (path: string, message: string, code = 'INVALID_VALUE') => problems.push({ code, path, message })
  if (Buffer.byteLength(JSON.stringify(config)) > MAX_CONFIG_BYTES) wrong('config', 'must be at most 64 KiB', 'TOO_BIG')
  for (const [key, type] of Object.entries(KNOWN)) {
    const { spelling, value } = lookup(config, key)
    if (value === null) continue
    const path = `config.${spelling}`
    if (type === 'headers') problems.push(...headerProblems(provider, value, path))
    else if (typeof value !== type) wrong(path, `must be a ${type}`, 'INVALID_TYPE')
    else if (value === '') wrong(path, 'must not be empty')
  }
  const api = lookup(config, 'api')
  if (provider === 'openai' && typeof api.value === 'string' && api.value !== 'responses' && api.value !== 'chat')
    wrong('config.api', 'must be responses or chat')
  for (const key of labelsOf(provider)) {
    const { spelling, value } = lookup(config, key)
    if (typeof value === 'string' && value !== '' && !isLabel(value))
      wrong(`config.${spelling}`, 'must be one DNS label: letters, digits and inner hyphens, at most 63')
  }
  return problems
}

/** What decides where the credentials of a provider go: its type, its address and the settings in its host name. */
export const destinationOf = (provider: Writable): string =>
  JSON.stringify([
    provider.provider,
    provider.base_url,
    labelsOf(provider.provider).map(key => lookup(provider.config, key).value),
  ])

/**
 * Refuses to keep credential values of a config whose requests go elsewhere than before: who may write the provider may
 * not read them. Hosts of a cloud are always the vendor's own. Raises VALIDATION_FAILED naming every field.
 */
export function requireNewCredentials({ provider, config }: Writable): void {
  if (config === null || isCloud(provider)) return
  const { spelling, value: headers } = lookup(config, 'headers')
  const masked = (values: object, path: string) =>
    Object.entries(values).flatMap(([name, value]) =>
      value === MASKED && credentialName(name) ? [`${path}.${name}`] : [],
    )
  const fields = [...masked(config, 'config'), ...masked(headers ?? {}, `config.${spelling}`)]
  if (fields.length === 0) return
  const message = 'must be given anew: requests go to another address'
  raiseInvalid(fields.map(path => ({ code: 'REQUIRED', path, message })))
}

/** The settings of a type that become part of a host name. */
function labelsOf(provider: ProviderType): ('location' | 'project' | 'region' | 'resource_name')[] {
  if (provider === 'vertex') return ['location', 'project']
  if (provider === 'bedrock') return ['region']
  return provider === 'azure' ? ['resource_name'] : []
}

function headerProblems(provider: ProviderType, value: unknown, path: string): Problem[] {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return [{ code: 'INVALID_TYPE', path, message: 'must be an object of strings' }]
  if (isCloud(provider)) return [{ code: 'INVALID_VALUE', path, message: `are not allowed for a ${provider} provider` }]
  return Object.entries(value).flatMap(([name, text]): Problem[] => {
    const problem = (message: string, code = 'INVALID_VALUE') => [{ code, path: `${path}.${name}`, message }]
    if (!/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$/.test(name)) return problem('is not a header name')
    if (UNSENDABLE.has(name.toLowerCase())) return problem('cannot be set')
    if (typeof text !== 'string') return problem('must be a string', 'INVALID_TYPE')
    if (!/^[\t\x20-\x7e\x80-\xff]*$/.test(text)) return problem('must be a header value')
    return []
  })
}

/** The header values of a config: what may hold secret tokens. Raises INVALID_TEMPLATE_TOKEN for any other token. */
export function tokenTexts(config: ProviderConfig | null): string[] {
  const texts = Object.values((lookup(config, 'headers').value ?? {}) as Record<string, string>)
  for (const text of texts) {
    if (tokensIn(text.replace(SECRET_TOKEN, '')).length > 0)
      raise('INVALID_TEMPLATE_TOKEN', { message: 'config.headers: only {{secret:<id>}} tokens are allowed here' })
  }
  return texts
}

type Credentials = { config: Record<string, string>; headers: Record<string, string> }

const credentialName = (name: string): boolean =>
  /api[-_]?key|authorization|token|secret|password|passwd|cookie|credential|private[-_]?key/i.test(name)

/**
 * Splits a config into what is shown and the credential values, sealed for the row. A value of `***` stands for the
 * stored one, and for nothing when there is none.
 */
export function sealConfig(
  services: Pick<Services, 'secrets'>,
  row: { id: string; project_id: string },
  config: ProviderConfig | null,
  stored: Credentials,
): { config: ProviderConfig | null; sealed_credentials: string | null } {
  if (config === null) return { config: null, sealed_credentials: null }
  const kept: Credentials = { config: {}, headers: {} }
  const part = (values: Record<string, unknown>, into: Record<string, string>, known: Record<string, string>) =>
    Object.fromEntries(
      Object.entries(values).flatMap(([name, value]): [string, unknown][] => {
        if (typeof value !== 'string' || !credentialName(name) || holdsToken(value)) return [[name, value]]
        const key = snake(name)
        const actual = value === MASKED ? known[key] : value
        if (actual === undefined) return []
        into[key] = actual
        return [[name, MASKED]]
      }),
    )
  const shown = part(config, kept.config, stored.config)
  const { spelling, value: headers } = lookup(config, 'headers')
  if (headers) shown[spelling] = part(headers as Record<string, unknown>, kept.headers, stored.headers)
  const any = Object.keys(kept.config).length + Object.keys(kept.headers).length > 0
  return {
    config: shown,
    sealed_credentials: any ? sealJson(services, kept, sealedFor(row)) : null,
  }
}

/** A config for another project: without credential values and without headers that need a secret. */
export function withoutCredentials(config: ProviderConfig | null): ProviderConfig | null {
  if (config === null) return null
  const open = (values: object) =>
    Object.fromEntries(
      Object.entries(values).filter(
        ([, value]) => value !== MASKED && !(typeof value === 'string' && holdsToken(value)),
      ),
    )
  const { spelling, value: headers } = lookup(config, 'headers')
  return { ...open(config), ...(headers ? { [spelling]: open(headers) } : {}) }
}

const holdsToken = (text: string): boolean => text.search(SECRET_TOKEN) >= 0

const sealedFor = (row: { id: string; project_id: string }) => ({
  kind: 'ai_provider',
  id: row.id,
  project_id: row.project_id,
})

/** The credential values of a row. Raises AI_PROVIDER_MISCONFIGURED when the encryption key they need is gone. */
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
      "The credentials in the provider's config cannot be decrypted",
    )
  return JSON.parse(opened.value) as Credentials
}

/** The known settings of a row with their credentials. Host labels are checked again: they were stored long ago. */
export function providerSettings(row: ProviderRow, credentials: Credentials): Settings {
  const value = (key: keyof typeof KNOWN) => {
    const found = lookup(row.config, key).value
    return found === MASKED ? (credentials.config[key] ?? null) : found
  }
  const text = (key: keyof typeof KNOWN) => (value(key) as string | null) ?? null
  for (const key of labelsOf(row.provider)) {
    const label = text(key)
    if (label !== null && !isLabel(label))
      throw misconfiguredProvider(row.id, 'config_key', `config.${key} is not one DNS label`)
  }
  const headers = Object.entries((value('headers') ?? {}) as Record<string, string>).map(([name, shown]) => [
    name,
    shown === MASKED ? (credentials.headers[snake(name)] ?? '') : shown,
  ])
  return {
    headers: Object.fromEntries(headers),
    structured_outputs: value('structured_outputs') !== false,
    api: value('api') as Settings['api'],
    organization: text('organization'),
    project: text('project'),
    resource_name: text('resource_name'),
    api_version: text('api_version'),
    region: text('region'),
    location: text('location'),
    api_key: text('api_key'),
  }
}
