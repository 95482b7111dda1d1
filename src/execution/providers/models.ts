import type { LanguageModelV4 } from '@ai-sdk/provider'
import { LRUCache } from 'lru-cache'
import { raiseInvalid } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import { fetchWithLimit } from '#core/net/limited-body.ts'
import { type Access, resolveAccess } from './access.ts'
import { watchedFetch } from './event-stream.ts'
import { markingFetch } from './exact-arguments.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import type { Dialect, ProviderRow, ProviderType } from './model.ts'
import { type OptionApi, optionApisOf } from './options/provider-options.ts'

/** Models of a vendor for one credential. */
export type ModelClient = {
  type: ProviderType
  model(id: string): LanguageModelV4
  /** Key of provider options in the SDK. */
  optionsKey: string
  /** API whose options the SDK reads. */
  optionsApi: OptionApi
  /** Whether the vendor distinguishes constrained decoding from schema guidance, of answers and of calls. */
  strictOption: boolean
  /** Whether schemas are sent; otherwise they are written into the instructions. */
  structuredOutputs: boolean
  dialect: Dialect
  /** Whether results of tools may have media; otherwise these follow in a message of the user. */
  mediaInResults: boolean
  /** Minimum number of output tokens that the vendor accepts. */
  smallestAnswer: number
  /** Values to mask in vendor messages. */
  secrets: string[]
}

const CLIENT_LIFE_MS = 60_000
/** Maximum number of cached models of a client; callers may request any. */
const MAX_MODELS = 20

type CachedClient = { key: string; client: Promise<ModelClient>; isReady: boolean }

const clients = processSingleton(() => new Map<string, CachedClient>())

/**
 * Returns the client of a provider, cached for up to 60 s while the row and its secrets are unchanged.
 * @param db the caller's open transaction, if any: waiting for another connection while holding one could deadlock a
 *   burst of turns
 * @throws AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND; ExternalValueRequired in a transaction
 */
export function modelClient(services: Services, row: ProviderRow, db: Queryable = services.pool): Promise<ModelClient> {
  const cache = clients(services)
  const key = `${row.updated_at} ${row.secret_stamp}`
  const cached = cache.get(row.id)
  // A transaction uses a ready client but does not wait for a client that is being opened: the opener may wait for the
  // connection that the transaction holds.
  if (cached?.key === key && (cached.isReady || db === services.pool)) return cached.client
  const entry: CachedClient = { key, client: resolveAccess(services, row, db).then(buildClient), isReady: false }
  if (db === services.pool) cache.set(row.id, entry)
  const evict = () => {
    if (cache.get(row.id) === entry) cache.delete(row.id)
  }
  entry.client.then(() => {
    entry.isReady = true
    cache.set(row.id, entry)
  }, evict)
  setTimeout(evict, CLIENT_LIFE_MS).unref()
  return entry.client
}

/** Types whose results of tools may have media; for openai it depends on the API. */
const MEDIA_IN_RESULTS = new Set<ProviderType>(['anthropic', 'azure', 'bedrock', 'google', 'vertex', 'xai'])

/** Types whose answers have arguments as objects; others have them as texts. */
const OBJECTS_AS_ARGUMENTS = new Set<ProviderType>(['anthropic', 'bedrock', 'google', 'vertex'])

/** Builds the client of a resolved provider. Vendor packages are loaded on demand. */
async function buildClient(access: Access): Promise<ModelClient> {
  const { settings, type } = access
  const watched = watchedFetch(access.fetch)
  const own = { ...access, fetch: OBJECTS_AS_ARGUMENTS.has(type) ? markingFetch(watched) : watched }
  const { model, ...parts } = await builders[type](own)
  // The SDK builds a validator for each model, which takes 0.5 ms.
  const models = new LRUCache<string, LanguageModelV4>({ max: MAX_MODELS, memoMethod: model })
  return {
    type,
    optionsApi: optionApisOf(type)[0],
    structuredOutputs: settings.structured_outputs,
    dialect: settings.dialect,
    mediaInResults: MEDIA_IN_RESULTS.has(type),
    smallestAnswer: type === 'openai' || type === 'azure' || type === 'xai' ? 16 : 1,
    secrets: access.secrets,
    model: id => {
      requirePathName(type, id)
      return models.memo(id)
    },
    ...parts,
  }
}

/** Types whose requests have the model in their path. */
const MODEL_IN_PATH = new Set<ProviderType>(['azure', 'bedrock', 'google', 'vertex'])

/**
 * Requires a model that keeps a request on its path: callers may name any model, and the request has the credential of the
 * provider.
 * @throws VALIDATION_FAILED
 */
function requirePathName(type: ProviderType, model: string): void {
  if (!MODEL_IN_PATH.has(type)) return
  const parts = model.split('/')
  const isBelow = parts.every(part => part !== '' && part !== '.' && part !== '..')
  if (!isBelow || /[\s?#%\\]/.test(model) || (type === 'azure' && parts.length > 1))
    raiseInvalid({ code: 'INVALID_VALUE', path: 'model', message: `is not the name of a model of ${type} providers` })
}

type ClientParts = Pick<ModelClient, 'model' | 'optionsKey' | 'strictOption'> &
  Partial<Pick<ModelClient, 'mediaInResults' | 'optionsApi'>>

const openaiCompatible = async (access: Access): Promise<ClientParts> => {
  const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible')
  const { baseUrl, credential, headers, fetch, settings, type } = access
  const vendor = createOpenAICompatible({
    name: type,
    baseURL: baseUrl as string,
    apiKey: credential.kind === 'key' ? credential.key : undefined,
    headers,
    fetch,
    includeUsage: true,
    supportsStructuredOutputs: settings.structured_outputs,
  })
  return { model: id => vendor.chatModel(id), optionsKey: type, strictOption: true }
}

const builders: Record<ProviderType, (access: Access) => Promise<ClientParts>> = {
  async openai(access) {
    const { createOpenAI } = await import('@ai-sdk/openai')
    const { settings } = access
    const vendor = createOpenAI({
      ...common(access),
      organization: settings.organization ?? undefined,
      project: settings.project ?? undefined,
    })
    const chat = (settings.api ?? (access.tenant ? 'chat' : 'responses')) === 'chat'
    return {
      model: id => (chat ? vendor.chat(id) : vendor.responses(id)),
      mediaInResults: !chat,
      optionsApi: chat ? 'openai chat' : 'openai responses',
      optionsKey: 'openai',
      strictOption: true,
    }
  },
  async anthropic(access) {
    const { createAnthropic } = await import('@ai-sdk/anthropic')
    const { apiKey, ...rest } = common(access)
    // Gateways take the vendor's key, or another one as a bearer token.
    const vendor = createAnthropic(
      access.settings.auth === 'bearer' ? { ...rest, authToken: apiKey } : { ...rest, apiKey },
    )
    return { model: id => vendor.languageModel(id), optionsKey: 'anthropic', strictOption: false }
  },
  async google(access) {
    const { createGoogle } = await import('@ai-sdk/google')
    const vendor = createGoogle(common(access))
    return { model: id => vendor.languageModel(id), optionsKey: 'google', strictOption: false }
  },
  async xai(access) {
    const { createXai } = await import('@ai-sdk/xai')
    const vendor = createXai(common(access))
    return { model: id => vendor.languageModel(id), optionsKey: 'xai', strictOption: false }
  },
  async groq(access) {
    const { createGroq } = await import('@ai-sdk/groq')
    const vendor = createGroq(common(access))
    return { model: id => vendor.languageModel(id), optionsKey: 'groq', strictOption: true }
  },
  async azure(access) {
    const { createAzure } = await import('@ai-sdk/azure')
    const { settings, baseUrl, fetch } = access
    const chat = settings.api === 'chat'
    const isDated = settings.api_version !== null && /^\d{4}-/.test(settings.api_version)
    // Dated versions belong to paths of deployments; the v1 path takes `v1`, `preview` and `latest`.
    const byDeployment = chat && isDated && !/\/v1\/?$/.test(baseUrl ?? '')
    const model = (id: string) => {
      const name = settings.model ?? id
      const vendor = createAzure({
        ...common(access),
        fetch: name === id ? fetch : deploymentFetch(fetch, name, id),
        baseURL: baseUrl ?? undefined,
        resourceName: settings.resource_name ?? undefined,
        apiVersion: isDated && !byDeployment ? undefined : (settings.api_version ?? undefined),
        useDeploymentBasedUrls: byDeployment,
      })
      return chat ? vendor.chat(name) : vendor.languageModel(name)
    }
    return {
      model,
      mediaInResults: !chat,
      optionsApi: chat ? 'openai chat' : 'openai responses',
      optionsKey: 'azure',
      strictOption: true,
    }
  },
  async bedrock(access) {
    const { createAmazonBedrock } = await import('@ai-sdk/amazon-bedrock')
    const { credential, fetch } = access
    const vendor = createAmazonBedrock({
      region: regionOf(access),
      fetch,
      // Empty instead of omitted: the SDK would use the deployment's credential from the environment.
      apiKey: credential.kind === 'key' ? credential.key : '',
      ...(credential.kind === 'aws' && credential.keys),
    })
    return { model: id => vendor.languageModel(id), optionsKey: 'bedrock', strictOption: false }
  },
  async vertex(access) {
    const { createGoogleVertex } = await import('@ai-sdk/google-vertex')
    const { credential, fetch } = access
    if (credential.kind === 'key') {
      const vendor = createGoogleVertex({ apiKey: credential.key, fetch })
      return { model: id => vendor.languageModel(id), optionsKey: 'vertex', strictOption: false }
    }
    const vendor = createGoogleVertex({
      // Empty instead of omitted: the SDK would use the deployment's credential from the environment.
      apiKey: '',
      project: await vertexProject(access),
      location: locationOf(access),
      googleAuthOptions: googleAuth(access),
      fetch,
    })
    return { model: id => vendor.languageModel(id), optionsKey: 'vertex', strictOption: false }
  },
  ollama: openaiCompatible,
  gateway: openaiCompatible,
  custom: openaiCompatible,
}

/**
 * Returns a `fetch` that names a deployment in place of its model. The package decides by the model's name which parameters
 * are sent, and a deployment may have any.
 */
function deploymentFetch(fetch: Access['fetch'], model: string, deployment: string): Access['fetch'] {
  const begin = `{"model":${JSON.stringify(model)},`
  return (input, init) => {
    const url = String(input).replace(`/deployments/${model}/`, `/deployments/${encodeURIComponent(deployment)}/`)
    const { body } = init ?? {}
    if (typeof body !== 'string' || !body.startsWith(begin)) return fetch(url, init)
    return fetch(url, { ...init, body: `{"model":${JSON.stringify(deployment)},${body.slice(begin.length)}` })
  }
}

function common({ baseUrl, credential, headers, fetch }: Access) {
  return {
    baseURL: baseUrl as string,
    apiKey: credential.kind === 'key' ? credential.key : '',
    headers,
    fetch,
  }
}

export const regionOf = ({ settings }: Access): string => settings.region ?? 'us-east-1'

export const locationOf = ({ settings }: Access): string => settings.location ?? 'us-central1'

const TOKEN_BYTES = 1024 * 1024
const tokenFetch = fetchWithLimit(TOKEN_BYTES)

/**
 * Returns the auth options of Google's client: the two signing fields of a service account key file, else the
 * deployment's default credentials.
 */
export function googleAuth({ credential }: Access) {
  const { client_email, private_key } = credential.kind === 'google' ? credential.account : {}
  return {
    credentials: client_email === undefined ? undefined : { client_email, private_key },
    clientOptions: { transporterOptions: { fetchImplementation: tokenFetch } },
  }
}

/**
 * Returns the Google Cloud project of a vertex provider.
 * @throws AI_PROVIDER_MISCONFIGURED if there is none
 */
export async function vertexProject(access: Access): Promise<string> {
  const { credential, settings } = access
  const configured = settings.project ?? (credential.kind === 'google' ? credential.account.project_id : null)
  if (configured) return configured
  if (credential.kind === 'ambient') {
    const { GoogleAuth } = await import('google-auth-library')
    const found =
      process.env.GOOGLE_VERTEX_PROJECT ?? (await new GoogleAuth(googleAuth(access)).getProjectId().catch(() => null))
    if (found) return found
  }
  throw misconfiguredProvider(
    access.id,
    'no_project',
    'No Google Cloud project: set config.project or use a key file that contains it',
  )
}
