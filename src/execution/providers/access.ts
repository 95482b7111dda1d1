import { AppError, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { type AwsKeys, deploymentAwsKeys } from '#core/net/aws.ts'
import { fetchWithLimit } from '#core/net/limited-body.ts'
import { untimedFetch } from '#core/net/untimed-fetch.ts'
import { openSecret, resolveTokens } from '#identity/secrets/resolve.ts'
import { openCredentials, providerSettings, type Settings } from './config.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import type { ProviderRow, ProviderType } from './model.ts'

export type GoogleAccount = { client_email: string; private_key: string; project_id: string | null }

/** Credential of a provider. `ambient`: Google's default credentials of the deployment. */
export type ProviderCredential =
  | { kind: 'none' }
  | { kind: 'key'; key: string }
  | { kind: 'aws'; keys: AwsKeys }
  | { kind: 'google'; account: GoogleAccount }
  | { kind: 'ambient' }

/** Resolved access to a vendor, with plain-text secrets: kept in memory for a client's lifetime and never logged. */
export type Access = {
  id: string
  type: ProviderType
  settings: Settings
  /** Without a trailing slash; null if the SDK derives it from a region, a location or a resource name. */
  baseUrl: string | null
  /** Whether a tenant chose the base URL. */
  tenant: boolean
  credential: ProviderCredential
  headers: Record<string, string>
  fetch: typeof globalThis.fetch
  /** Values to mask in vendor messages. */
  secrets: string[]
}

const VENDOR_URLS: Partial<Record<ProviderType, string>> = {
  openai: 'https://api.openai.com/v1',
  anthropic: 'https://api.anthropic.com/v1',
  google: 'https://generativelanguage.googleapis.com/v1beta',
  xai: 'https://api.x.ai/v1',
  groq: 'https://api.groq.com/openai/v1',
}

const KEY_REQUIRED = new Set<ProviderType>(['openai', 'anthropic', 'google', 'xai', 'groq', 'azure'])

/**
 * Maximum size of a response from a tenant's endpoint. Parsing as many bytes of empty objects takes 360 MB and seconds.
 */
const TENANT_BYTES = 16 * 1024 * 1024
/** Maximum number of JSON values in such a response, or in one of its events. */
const TENANT_VALUES = 100_000
/** Larger, because it applies to whole streams: events of Bedrock's binary streams are not recognised. */
const VENDOR_BYTES = 4 * TENANT_BYTES

const fetchBounded = fetchWithLimit(VENDOR_BYTES, untimedFetch)

/** `fetch` for hosts that the vendor or the operator chose. Redirects are not followed. */
const vendorFetch: typeof globalThis.fetch = (input, init) => fetchBounded(input, { ...init, redirect: 'manual' })

/** `fetch` for hosts that a tenant chose, subject to the egress rule. */
const tenantFetch =
  ({ egress }: Services, tenant: string): typeof globalThis.fetch =>
  (input, init) =>
    egress.fetch(input, { ...init, tenant, maxBytes: TENANT_BYTES, maxValues: TENANT_VALUES, untimed: true })

/**
 * Resolves endpoint, credentials and headers of a provider, in order of precedence. `db` is the caller's open
 * transaction, if any.
 * @throws AI_PROVIDER_MISCONFIGURED with a reason, SECRET_NOT_FOUND
 */
export async function resolveAccess(
  services: Services,
  row: ProviderRow,
  db: Queryable = services.pool,
): Promise<Access> {
  const credentials = openCredentials(services, row)
  const settings = providerSettings(row, credentials)
  const linked = row.secret_id === null ? null : await openLinked(db, services, row, row.secret_id)
  const headers = await resolveHeaders(db, services, row, settings.headers)
  const own = credentialOf(row, settings, linked, services.config.PROVIDER_AMBIENT_CREDENTIALS)
  const credential = row.provider === 'bedrock' && own.kind === 'ambient' ? await deploymentCredential(row) : own
  if (row.provider === 'azure' && row.base_url === null && settings.resource_name === null)
    throw misconfiguredProvider(row.id, 'config_key', 'An azure provider requires config.resource_name or base_url')
  return {
    id: row.id,
    type: row.provider,
    settings,
    baseUrl: baseUrlOf(row, services.config.OLLAMA_BASE_URL),
    tenant: row.base_url !== null,
    credential,
    headers: headers.values,
    fetch: row.base_url === null ? vendorFetch : tenantFetch(services, row.project_id),
    secrets: [
      ...(linked === null ? [] : [linked]),
      ...secretParts(credential),
      ...headers.secrets,
      ...Object.values(credentials.config),
      ...Object.values(credentials.headers),
    ],
  }
}

async function openLinked(db: Queryable, services: Services, row: ProviderRow, secretId: string): Promise<string> {
  try {
    return (await openSecret(db, services, row.project_id, secretId)).trim()
  } catch (error) {
    if (error instanceof AppError && error.code === 'SECRET_NOT_DECRYPTABLE')
      throw misconfiguredProvider(row.id, 'secret_undecryptable', `Secret of AI provider ${row.id} cannot be decrypted`)
    throw error
  }
}

async function resolveHeaders(db: Queryable, services: Services, row: ProviderRow, headers: Record<string, string>) {
  const names = Object.keys(headers)
  if (names.length === 0) return { values: {}, secrets: [] }
  const { texts, values } = await resolveTokens(db, services, row.project_id, Object.values(headers))
  const broken = texts.findIndex(text => !/^[\t\x20-\x7e\x80-\xff]*$/.test(text))
  if (broken >= 0)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: `config.headers.${names[broken]}`,
      message: 'is not a valid header value after its secrets are inserted',
    })
  return { values: Object.fromEntries(names.map((name, index) => [name, texts[index]])), secrets: values }
}

function baseUrlOf(row: ProviderRow, ollamaUrl: string): string | null {
  if (row.provider !== 'ollama') return row.base_url ?? VENDOR_URLS[row.provider] ?? null
  const base = (row.base_url ?? ollamaUrl).replace(/(?<!\/)\/+$/, '')
  return base.endsWith('/v1') ? base : `${base}/v1`
}

function credentialOf(
  row: ProviderRow,
  settings: Settings,
  linked: string | null,
  ambient: boolean,
): ProviderCredential {
  if (row.provider === 'bedrock') return bedrockCredential(row, settings, linked, ambient)
  if (row.provider === 'vertex') return vertexCredential(row, settings, linked, ambient)
  if (linked !== null) return { kind: 'key', key: bareKey(row, linked) }
  if (KEY_REQUIRED.has(row.provider))
    throw misconfiguredProvider(
      row.id,
      'no_credential',
      `A ${row.provider} provider requires a secret with its API key`,
    )
  return { kind: 'none' }
}

/** Precedence: API key of the secret, `config.api_key`, key pair of the secret, credentials of the deployment. */
function bedrockCredential(
  row: ProviderRow,
  settings: Settings,
  linked: string | null,
  ambient: boolean,
): ProviderCredential {
  const parsed = linked === null ? null : parseCredential(linked)
  const key = parsed?.apiKey ?? (parsed === null && linked?.startsWith('ABSK') ? linked : undefined) ?? settings.api_key
  if (typeof key === 'string') return { kind: 'key', key: bareKey(row, key) }
  if (parsed) {
    const { accessKeyId, secretAccessKey, sessionToken } = parsed
    if (
      !isNonEmptyText(accessKeyId) ||
      !isNonEmptyText(secretAccessKey) ||
      !(sessionToken === undefined || isNonEmptyText(sessionToken))
    )
      throw invalidSecretShape(
        row,
        'a JSON object with accessKeyId and secretAccessKey, or with apiKey, or a bare ABSK key',
      )
    return { kind: 'aws', keys: { accessKeyId, secretAccessKey, ...(sessionToken && { sessionToken }) } }
  }
  if (linked !== null)
    throw invalidSecretShape(
      row,
      'a JSON object with accessKeyId and secretAccessKey, or with apiKey, or a bare ABSK key',
    )
  return ambientCredential(row, ambient)
}

function vertexCredential(
  row: ProviderRow,
  settings: Settings,
  linked: string | null,
  ambient: boolean,
): ProviderCredential {
  const parsed = linked === null ? null : parseCredential(linked)
  const bareText = parsed === null && linked !== null && !linked.startsWith('{') ? linked : undefined
  const key = parsed?.apiKey ?? bareText ?? settings.api_key
  if (typeof key === 'string') return { kind: 'key', key: bareKey(row, key) }
  if (linked === null) return ambientCredential(row, ambient)
  // Uses only the account's own keys: other forms of the file reference files and URLs to read.
  const { type, client_email, private_key, project_id } = parsed ?? {}
  if (
    (type !== undefined && type !== 'service_account') ||
    !isNonEmptyText(client_email) ||
    !isNonEmptyText(private_key)
  )
    throw invalidSecretShape(row, 'the JSON key file of a service account, or {"apiKey"}, or a bare key')
  return {
    kind: 'google',
    account: { client_email, private_key, project_id: isNonEmptyText(project_id) ? project_id : null },
  }
}

function ambientCredential(row: ProviderRow, ambient: boolean): ProviderCredential {
  if (ambient) return { kind: 'ambient' }
  throw misconfiguredProvider(row.id, 'no_credential', `A ${row.provider} provider requires a secret or config.api_key`)
}

/** Returns the deployment's bedrock credentials from its environment. */
async function deploymentCredential(row: ProviderRow): Promise<ProviderCredential> {
  const bearer = process.env.AWS_BEARER_TOKEN_BEDROCK?.trim()
  if (bearer) return { kind: 'key', key: bearer }
  const keys = await deploymentAwsKeys()
  if (keys === null) throw misconfiguredProvider(row.id, 'no_credential', 'The deployment has no AWS credentials')
  return { kind: 'aws', keys }
}

const invalidSecretShape = (row: ProviderRow, expected: string): AppError =>
  misconfiguredProvider(row.id, 'secret_shape', `The secret of a ${row.provider} provider must be ${expected}`)

function bareKey(row: ProviderRow, key: string): string {
  const trimmed = key.trim()
  if (!/^[\x21-\x7e]+$/.test(trimmed)) throw invalidSecretShape(row, 'a bare key of visible ASCII characters')
  return trimmed
}

/** Parses a credential in JSON form, in either key spelling; null if it is not a JSON object. */
function parseCredential(text: string): Record<string, unknown> | null {
  if (!text.startsWith('{')) return null
  try {
    const parsed = JSON.parse(text) as Record<string, unknown>
    return { apiKey: parsed.api_key, accessKeyId: parsed.access_key_id, ...parsed }
  } catch {
    return null
  }
}

const isNonEmptyText = (value: unknown): value is string => typeof value === 'string' && value !== ''

function secretParts(credential: ProviderCredential): string[] {
  if (credential.kind === 'key') return [credential.key]
  if (credential.kind === 'google') return [credential.account.private_key]
  if (credential.kind === 'aws')
    return [credential.keys.secretAccessKey, ...(credential.keys.sessionToken ? [credential.keys.sessionToken] : [])]
  return []
}
