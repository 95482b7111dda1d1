import { AppError, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { signedGet } from '#core/net/aws.ts'
import { EgressBlockedError } from '#core/net/egress.ts'
import { maskSecrets } from '#identity/secrets/mask.ts'
import { type Access, resolveAccess } from './access.ts'
import { misconfiguredProvider } from './misconfigured.ts'
import type { ListedModel, ProviderRow, ProviderType } from './model.ts'
import { googleAuth, locationOf, regionOf, vertexProject } from './models.ts'

const MAX_MODELS = 10_000
const TEXT_LENGTH = 500

/** Lists the models of a provider type: the URL and headers of a page, and its parsed content. */
type Lister = {
  url(access: Access, cursor: string | null): string
  headers(access: Access, url: string): Promise<Record<string, string>> | Record<string, string>
  /** Returns the models in a response and the cursor of the next page. */
  read(body: Record<string, unknown>): { models: ListedModel[]; next: string | null }
  /** Whether a credential without permission for this list gets the others. */
  optional?: true
}

type JsonFields = Record<string, unknown>

const NO_DETAILS: Omit<ListedModel, 'id'> = {
  display_name: null,
  vendor: null,
  input_modalities: null,
  output_modalities: null,
  streaming: null,
  lifecycle: null,
  inference_types: null,
  callable: null,
}

const text = (value: unknown): string | null => (typeof value === 'string' && value !== '' ? value : null)
const lowerCaseList = (value: unknown): string[] | null =>
  Array.isArray(value) ? value.filter(item => typeof item === 'string').map(item => item.toLowerCase()) : null
const entries = (value: unknown): JsonFields[] => {
  if (!Array.isArray(value)) throw new Error('the response contains no list of models')
  return value.filter(item => typeof item === 'object' && item !== null)
}
const withQuery = (url: string, query: Record<string, string | null>): string => {
  const parameters = Object.entries(query).filter((entry): entry is [string, string] => entry[1] !== null)
  return parameters.length === 0 ? url : `${url}?${new URLSearchParams(parameters)}`
}
const key = ({ credential }: Access): string => (credential.kind === 'key' ? credential.key : '')

const openai: Lister = {
  url: ({ baseUrl }) => `${baseUrl}/models`,
  headers: access => ({
    ...(key(access) && { authorization: `Bearer ${key(access)}` }),
    ...(access.type === 'openai' &&
      access.settings.organization && { 'openai-organization': access.settings.organization }),
    ...(access.type === 'openai' && access.settings.project && { 'openai-project': access.settings.project }),
  }),
  read: body => ({
    models: entries(body.data).flatMap(({ id, owned_by }) =>
      typeof id === 'string' ? [{ ...NO_DETAILS, id, vendor: text(owned_by), streaming: true }] : [],
    ),
    next: null,
  }),
}

const anthropic: Lister = {
  url: ({ baseUrl }, cursor) => withQuery(`${baseUrl}/models`, { limit: '1000', after_id: cursor }),
  headers: access => ({
    ...(access.settings.auth === 'bearer' ? { authorization: `Bearer ${key(access)}` } : { 'x-api-key': key(access) }),
    'anthropic-version': '2023-06-01',
  }),
  read: body => ({
    models: entries(body.data).flatMap(({ id, display_name }) =>
      typeof id === 'string'
        ? [{ ...NO_DETAILS, id, display_name: text(display_name), vendor: 'anthropic', streaming: true }]
        : [],
    ),
    next: body.has_more === true ? text(body.last_id) : null,
  }),
}

const google: Lister = {
  url: ({ baseUrl }, cursor) => withQuery(`${baseUrl}/models`, { pageSize: '1000', pageToken: cursor }),
  headers: access => ({ 'x-goog-api-key': key(access) }),
  read: body => ({
    models: entries(body.models ?? []).flatMap(({ name, displayName, supportedGenerationMethods: methods }) =>
      typeof name === 'string'
        ? [
            {
              ...NO_DETAILS,
              id: name.replace(/^models\//, ''),
              display_name: text(displayName),
              vendor: 'google',
              // The vendor lists the streaming method only for some models; models that generate also stream.
              streaming: Array.isArray(methods)
                ? methods.some(method => method === 'generateContent' || method === 'streamGenerateContent')
                : null,
            },
          ]
        : [],
    ),
    next: text(body.nextPageToken),
  }),
}

const vertex: Lister = {
  url: (access, cursor) => {
    const location = locationOf(access)
    const host =
      location === 'global'
        ? 'aiplatform.googleapis.com'
        : location === 'eu' || location === 'us'
          ? `aiplatform.${location}.rep.googleapis.com`
          : `${location}-aiplatform.googleapis.com`
    return withQuery(`https://${host}/v1beta1/publishers/google/models`, { pageSize: '300', pageToken: cursor })
  },
  headers: async access => {
    const { GoogleAuth } = await import('google-auth-library')
    const auth = new GoogleAuth({
      scopes: ['https://www.googleapis.com/auth/cloud-platform'],
      ...googleAuth(access),
    })
    const project = await vertexProject(access)
    return { authorization: `Bearer ${await auth.getAccessToken()}`, 'x-goog-user-project': project }
  },
  read: body => ({
    models: entries(body.publisherModels ?? []).flatMap(({ name, launchStage }) => {
      const [, vendor, id] = typeof name === 'string' ? (/^publishers\/([^/]+)\/models\/(.+)$/.exec(name) ?? []) : []
      return id ? [{ ...NO_DETAILS, id, vendor, lifecycle: launchStage === 'GA' ? ('active' as const) : null }] : []
    }),
    next: text(body.nextPageToken),
  }),
}

const LIFECYCLES: Record<string, ListedModel['lifecycle']> = {
  active: 'active',
  legacy: 'legacy',
  deprecated: 'deprecated',
}

const azure: Lister = {
  url: ({ baseUrl, settings }) => {
    const base = baseUrl ?? `https://${settings.resource_name}.openai.azure.com/openai`
    return `${base.replace(/(?<!\/)\/+$/, '').replace(/\/v1$/, '')}/v1/models`
  },
  headers: access => ({ 'api-key': key(access) }),
  read: openai.read,
}

// The operator's override of the endpoint, named as by AWS.
const bedrockUrl = (access: Access): string =>
  process.env.AWS_ENDPOINT_URL_BEDROCK ?? `https://bedrock.${regionOf(access)}.${awsDomain(regionOf(access))}`

const bedrockHeaders: Lister['headers'] = (access, url) =>
  access.credential.kind === 'aws'
    ? signedGet(url, access.credential.keys, regionOf(access))
    : { authorization: `Bearer ${key(access)}` }

const bedrock: Lister = {
  url: access => `${bedrockUrl(access)}/foundation-models`,
  headers: bedrockHeaders,
  read: body => ({
    models: entries(body.modelSummaries).flatMap(summary =>
      typeof summary.modelId === 'string'
        ? [
            {
              id: summary.modelId,
              display_name: text(summary.modelName),
              vendor: text(summary.providerName),
              input_modalities: lowerCaseList(summary.inputModalities),
              output_modalities: lowerCaseList(summary.outputModalities),
              streaming:
                typeof summary.responseStreamingSupported === 'boolean' ? summary.responseStreamingSupported : null,
              lifecycle:
                LIFECYCLES[String((summary.modelLifecycle as JsonFields | null)?.status).toLowerCase()] ?? null,
              inference_types: lowerCaseList(summary.inferenceTypesSupported),
              callable: lowerCaseList(summary.inferenceTypesSupported)?.includes('on_demand') ?? null,
            },
          ]
        : [],
    ),
    next: null,
  }),
}

/** Profiles, by whose IDs models are called that cannot be called on demand. */
const inferenceProfiles: Lister = {
  optional: true,
  url: (access, cursor) =>
    withQuery(`${bedrockUrl(access)}/inference-profiles`, { maxResults: '1000', nextToken: cursor }),
  headers: bedrockHeaders,
  read: body => ({
    models: entries(body.inferenceProfileSummaries ?? []).flatMap(profile => {
      const { inferenceProfileId: id, inferenceProfileName, status } = profile
      if (typeof id !== 'string') return []
      // The ID of a system profile is the ID of its model after a region: `us.anthropic.claude-sonnet-4-6`.
      const vendor = profile.type === 'SYSTEM_DEFINED' ? text(id.split('.')[1]) : null
      const isActive = status === undefined || status === 'ACTIVE'
      const inference_types = ['inference_profile']
      return [
        { ...NO_DETAILS, id, display_name: text(inferenceProfileName), vendor, inference_types, callable: isActive },
      ]
    }),
    next: text(body.nextToken),
  }),
}

const awsDomain = (region: string): string => (region.startsWith('cn-') ? 'amazonaws.com.cn' : 'amazonaws.com')

const listers: Partial<Record<ProviderType, readonly Lister[]>> = {
  openai: [openai],
  groq: [openai],
  xai: [openai],
  gateway: [openai],
  custom: [openai],
  azure: [azure],
  anthropic: [anthropic],
  google: [google],
  vertex: [vertex],
  bedrock: [bedrock, inferenceProfiles],
}

/**
 * Lists the models of a vendor in its order, at most 10,000.
 * @throws MODEL_LISTING_UNSUPPORTED, AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND, MODEL_LISTING_FAILED for any vendor
 *   failure
 */
export async function listModels(services: Services, row: ProviderRow, closed: AbortSignal): Promise<ListedModel[]> {
  const lists = listers[row.provider]
  if (!lists) raise('MODEL_LISTING_UNSUPPORTED', { message: `Providers of type ${row.provider} cannot list models` })
  const access = await resolveAccess(services, row)
  if (row.provider === 'vertex' && access.credential.kind === 'key')
    raise('MODEL_LISTING_UNSUPPORTED', { message: 'Vertex providers with an API key cannot list models' })
  const signal = AbortSignal.any([AbortSignal.timeout(services.config.MODEL_LISTING_TIMEOUT_MS), closed])
  const models: ListedModel[] = []
  for (const lister of lists) models.push(...(await readList(access, lister, MAX_MODELS - models.length, signal)))
  return models.slice(0, MAX_MODELS)
}

/** Reads the pages of a list, until it has at least `limit` models. */
async function readList(
  access: Access,
  lister: Lister,
  limit: number,
  signal: AbortSignal,
): Promise<readonly ListedModel[]> {
  const models: ListedModel[] = []
  let cursor: string | null = null
  do {
    const page = await readPage(access, lister, cursor, signal)
    if (page === null) break
    models.push(...page.models)
    // Stops at a vendor that repeats a page.
    cursor = page.models.length > 0 && page.next !== cursor ? page.next : null
  } while (cursor !== null && models.length < limit)
  return models
}

/** Returns a page of a list; null if the credential lacks the permission for a list that is optional. */
async function readPage(
  access: Access,
  lister: Lister,
  cursor: string | null,
  signal: AbortSignal,
): Promise<ReturnType<Lister['read']> | null> {
  const raiseFailure = (message: string, status: number | null): never =>
    raise('MODEL_LISTING_FAILED', {
      message: truncateChars(maskSecrets(message, access.secrets, 4 * TEXT_LENGTH), TEXT_LENGTH),
      meta: { ai_provider_id: access.id, provider_status_code: status },
    })
  let status: number | null = null
  try {
    const url = lister.url(access, cursor)
    const headers = { accept: 'application/json', ...(await lister.headers(access, url)), ...access.headers }
    const response = await access.fetch(url, { headers, signal, redirect: 'manual' })
    status = response.status
    const body = await response.text()
    if (lister.optional && (status === 403 || status === 404)) return null
    if (!response.ok) return raiseFailure(body || `The vendor responded with ${status}`, status)
    return lister.read(JSON.parse(body) as Record<string, unknown>)
  } catch (error) {
    if (error instanceof AppError) throw error
    if (error instanceof EgressBlockedError)
      throw misconfiguredProvider(access.id, 'egress_blocked', maskSecrets(error.message, access.secrets))
    return raiseFailure(`Model listing failed: ${causeMessage(error)}`, status)
  }
}

function causeMessage(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error ? error.cause.message : error.message
}
