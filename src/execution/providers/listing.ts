import { AppError, raise } from '../../core/api/errors.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { signedGet } from '../../core/net/aws.ts'
import { EgressBlockedError } from '../../core/net/egress.ts'
import type { Services } from '../../core/process/services.ts'
import { maskSecrets } from '../../identity/secrets/mask.ts'
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

const bedrock: Lister = {
  // The operator's override of the endpoint, named as by AWS.
  url: access =>
    `${process.env.AWS_ENDPOINT_URL_BEDROCK ?? `https://bedrock.${regionOf(access)}.${awsDomain(regionOf(access))}`}/foundation-models`,
  headers: (access, url) =>
    access.credential.kind === 'aws'
      ? signedGet(url, access.credential.keys, regionOf(access))
      : { authorization: `Bearer ${key(access)}` },
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
            },
          ]
        : [],
    ),
    next: null,
  }),
}

const awsDomain = (region: string): string => (region.startsWith('cn-') ? 'amazonaws.com.cn' : 'amazonaws.com')

const listers: Partial<Record<ProviderType, Lister>> = {
  openai,
  groq: openai,
  xai: openai,
  gateway: openai,
  custom: openai,
  anthropic,
  google,
  vertex,
  bedrock,
}

/**
 * Lists the models of a vendor in its order, at most 10,000.
 * @throws MODEL_LISTING_UNSUPPORTED, AI_PROVIDER_MISCONFIGURED, SECRET_NOT_FOUND, MODEL_LISTING_FAILED for any vendor
 *   failure
 */
export async function listModels(services: Services, row: ProviderRow, closed: AbortSignal): Promise<ListedModel[]> {
  const lister = listers[row.provider]
  if (!lister) raise('MODEL_LISTING_UNSUPPORTED', { message: `Providers of type ${row.provider} cannot list models` })
  const access = await resolveAccess(services, row)
  if (row.provider === 'vertex' && access.credential.kind === 'key')
    raise('MODEL_LISTING_UNSUPPORTED', { message: 'Vertex providers with an API key cannot list models' })
  const signal = AbortSignal.any([AbortSignal.timeout(services.config.MODEL_LISTING_TIMEOUT_MS), closed])
  const models: ListedModel[] = []
  let cursor: string | null = null
  do {
    const page: ReturnType<Lister['read']> = await readPage(access, lister, cursor, signal)
    models.push(...page.models)
    // Stops at a vendor that repeats a page.
    cursor = page.models.length > 0 && page.next !== cursor ? page.next : null
  } while (cursor !== null && models.length < MAX_MODELS)
  return models.slice(0, MAX_MODELS)
}

async function readPage(access: Access, lister: Lister, cursor: string | null, signal: AbortSignal) {
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
