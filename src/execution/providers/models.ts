import type { LanguageModel } from 'ai'
import { LRUCache } from 'lru-cache'
import type { Queryable } from '../../core/db/sql.ts'
import { fetchWithLimit } from '../../core/net/limited-body.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { type Access, resolveAccess } from './access.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import type { ProviderRow, ProviderType } from './model.ts'

/** The SDK's interface to one model. */
export type LanguageModelV4 = Extract<LanguageModel, { specificationVersion: 'v4' }>

/** A vendor's models behind one credential. */
export type ModelClient = {
  type: ProviderType
  model(id: string): LanguageModelV4
  /** Key of provider options in the SDK. */
  optionsKey: string
  /** The vendor distinguishes constrained decoding from a schema as a guide. */
  strictOption: boolean
  /** False: schemas are written into the instructions. */
  structuredOutputs: boolean
  /** The fewest output tokens the vendor lets a caller ask for. */
  smallestAnswer: number
  /** Values to mask in what the vendor says. */
  secrets: string[]
}

const CLIENT_LIFE_MS = 60_000
/** Models of a client that are kept; callers may name any. */
const MODELS_KEPT = 20

type Entry = { key: string; client: Promise<ModelClient>; built: boolean }

const clients = processSingleton(() => new Map<string, Entry>())

/**
 * The client of a provider row, kept while neither the row nor a secret it names changes, at most 60 s.
 * Raises AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND.
 * @param db the transaction of a caller that has one open: waiting for another connection while holding one would let a
 *   burst of turns wait for each other
 */
export function modelClient(services: Services, row: ProviderRow, db: Queryable = services.pool): Promise<ModelClient> {
  const cache = clients(services)
  const key = `${row.updated_at} ${row.secret_stamp}`
  const known = cache.get(row.id)
  // A transaction takes what is there, but does not wait for a client that somebody else opens: who does may be waiting
  // for the connection that the transaction holds.
  if (known?.key === key && (known.built || db === services.pool)) return known.client
  const entry: Entry = { key, client: resolveAccess(services, row, db).then(buildClient), built: false }
  cache.set(row.id, entry)
  const forget = () => {
    if (cache.get(row.id) === entry) cache.delete(row.id)
  }
  entry.client.then(() => {
    entry.built = true
  }, forget)
  setTimeout(forget, CLIENT_LIFE_MS).unref()
  return entry.client
}

// The SDK's warnings go to the console; what matters of them comes back as a failure.
globalThis.AI_SDK_LOG_WARNINGS = false

/** Builds the client of a resolved provider. Vendor packages are loaded when first needed. */
async function buildClient(access: Access): Promise<ModelClient> {
  const { settings, type } = access
  const { model, ...built } = await builders[type](access)
  // The SDK makes a validator for each model: 0.5 ms.
  const models = new LRUCache<string, LanguageModelV4>({ max: MODELS_KEPT, memoMethod: model })
  return {
    type,
    structuredOutputs: settings.structured_outputs,
    smallestAnswer: type === 'openai' || type === 'azure' || type === 'xai' ? 16 : 1,
    secrets: access.secrets,
    model: id => models.memo(id),
    ...built,
  }
}

type Built = Pick<ModelClient, 'model' | 'optionsKey' | 'strictOption'>

const openaiCompatible = async (access: Access): Promise<Built> => {
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

const builders: Record<ProviderType, (access: Access) => Promise<Built>> = {
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
      optionsKey: 'openai',
      strictOption: true,
    }
  },
  async anthropic(access) {
    const { createAnthropic } = await import('@ai-sdk/anthropic')
    const vendor = createAnthropic(common(access))
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
    const { settings } = access
    const vendor = createAzure({
      ...common(access),
      baseURL: access.baseUrl ?? undefined,
      resourceName: settings.resource_name ?? undefined,
      apiVersion: settings.api_version ?? undefined,
    })
    return { model: id => vendor.languageModel(id), optionsKey: 'azure', strictOption: true }
  },
  async bedrock(access) {
    const { createAmazonBedrock } = await import('@ai-sdk/amazon-bedrock')
    const { credential, fetch } = access
    const vendor = createAmazonBedrock({
      region: regionOf(access),
      fetch,
      // Empty, not left out: the SDK would take the deployment's own from the environment.
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
      // Empty, not left out: the SDK would take the deployment's own from the environment.
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
 * How Google's client gets tokens: with the two fields of a service account's key file that sign, else with the default
 * credentials of the deployment.
 */
export function googleAuth({ credential }: Access) {
  const { client_email, private_key } = credential.kind === 'google' ? credential.account : {}
  return {
    credentials: client_email === undefined ? undefined : { client_email, private_key },
    clientOptions: { transporterOptions: { fetchImplementation: tokenFetch } },
  }
}

/** The Google Cloud project of a vertex provider. Raises AI_PROVIDER_MISCONFIGURED when none is known. */
export async function vertexProject(access: Access): Promise<string> {
  const { credential, settings } = access
  const named = settings.project ?? (credential.kind === 'google' ? credential.account.project_id : null)
  if (named) return named
  if (credential.kind === 'ambient') {
    const { GoogleAuth } = await import('google-auth-library')
    const found =
      process.env.GOOGLE_VERTEX_PROJECT ?? (await new GoogleAuth(googleAuth(access)).getProjectId().catch(() => null))
    if (found) return found
  }
  throw misconfiguredProvider(
    access.id,
    'no_project',
    'No Google Cloud project: set config.project or use a key file that names it',
  )
}
