import type { EmbeddingModelV4 } from '@ai-sdk/provider'
import type { Config } from '#core/base/config.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { deploymentAwsKeys } from '#core/net/aws.ts'
import { fetchWithLimit, RemoteBodyError } from '#core/net/limited-body.ts'
import { maskSecrets } from '#identity/secrets/mask.ts'

type CallOptions = Parameters<EmbeddingModelV4['doEmbed']>[0]

/** Embedding model of the deployment. `isSearch`: the texts are search texts, not texts to be searched. */
export type EmbeddingModelRef = {
  /** Maximum number of texts per call. */
  maxTexts: number
  call(texts: string[], options: { isSearch: boolean; signal: AbortSignal }): Promise<ProviderResponse>
}

/** Vectors of the provider in the order of the texts, and the reported number of tokens; null if not reported. */
export type ProviderResponse = { vectors: number[][]; tokens: number | null }

/**
 * Failure of a call. `unreachable`, `timeout`, `rate_limited` and `server` are transient and retried; `refused` and
 * `unreadable` are permanent; `denied` requires other settings of the deployment.
 */
export type CallFailure = {
  class: 'unreachable' | 'timeout' | 'rate_limited' | 'server' | 'refused' | 'denied' | 'unreadable' | 'dimensions'
  status: number | null
  /** Message of the provider, for logs only: it may contain the account of the deployment. */
  detail: string
  retry_after_ms: number | null
}

/** Returns a failure without a response. */
export const embeddingFailure = (name: CallFailure['class']): CallFailure => ({
  class: name,
  status: null,
  detail: '',
  retry_after_ms: null,
})

const DETAIL_LENGTH = 500

/** Maximum size of a response per text: 4096 numbers of 64 bytes each, including white space. */
const RESPONSE_BYTES_PER_TEXT = 256 * 1024

/**
 * Loads the vendor package and returns the configured model. Endpoints are called directly, without the egress rules
 * for addresses of callers, because the operator configures them.
 */
export async function providerModel(
  config: Config,
  provider: 'openai' | 'ollama' | 'bedrock',
  name: string,
): Promise<EmbeddingModelRef> {
  const aws = provider === 'bedrock'
  const model = aws ? await bedrock(config, name) : await compatible(config, provider, name)
  const dimensions = config.EMBEDDING_DIMENSIONS
  return {
    maxTexts: (await model.maxEmbeddingsPerCall) ?? Number.POSITIVE_INFINITY,
    async call(texts, { isSearch, signal }) {
      // Checked here too: the SDK would wrap the failure in an untyped error.
      if (aws && !config.EMBEDDING_API_KEY) await requireAwsKeys()
      const options: CallOptions = {
        values: texts,
        abortSignal: signal,
        providerOptions: aws ? bedrockOptions(name, dimensions, isSearch) : openaiOptions(name, dimensions),
      }
      const { embeddings, usage } = await model.doEmbed(options)
      if (embeddings.length !== texts.length)
        throw new InvalidResponseError(`${embeddings.length} vectors for ${texts.length} texts`)
      return { vectors: embeddings, tokens: isCount(usage?.tokens) ? usage.tokens : null }
    },
  }
}

class InvalidResponseError extends Error {}

const isCount = (tokens: unknown): tokens is number => Number.isSafeInteger(tokens) && (tokens as number) >= 0

/** Limits the size of responses, because the SDK buffers a whole response in memory. */
const createLimitedFetch = ({ EMBEDDING_BATCH_SIZE }: Config) =>
  fetchWithLimit(EMBEDDING_BATCH_SIZE * RESPONSE_BYTES_PER_TEXT)

async function compatible(config: Config, provider: 'openai' | 'ollama', name: string): Promise<EmbeddingModelV4> {
  const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible')
  const openai = provider === 'openai'
  const vendor = createOpenAICompatible({
    name: provider,
    baseURL: openai
      ? (config.EMBEDDING_BASE_URL ?? 'https://api.openai.com/v1')
      : `${config.OLLAMA_BASE_URL.replace(/(?<!\/)\/+$/, '')}/v1`,
    apiKey: openai ? (config.EMBEDDING_API_KEY ?? process.env.OPENAI_API_KEY) : undefined,
    fetch: createLimitedFetch(config),
  })
  return vendor.embeddingModel(name)
}

async function bedrock(config: Config, name: string): Promise<EmbeddingModelV4> {
  const { createAmazonBedrock } = await import('@ai-sdk/amazon-bedrock')
  const vendor = createAmazonBedrock({
    region: config.EMBEDDING_REGION ?? process.env.AWS_REGION ?? 'us-east-1',
    // Empty instead of undefined: otherwise the SDK reads an unrelated bearer token from the environment.
    apiKey: config.EMBEDDING_API_KEY ?? '',
    credentialProvider: requireAwsKeys,
    fetch: createLimitedFetch(config),
  })
  return vendor.embeddingModel(name)
}

async function requireAwsKeys() {
  const keys = await deploymentAwsKeys()
  if (keys) return keys
  const { LoadSettingError } = await import('@ai-sdk/provider')
  throw new LoadSettingError({ message: 'no AWS credentials found' })
}

/** Only the vendor's third-generation models support a length; other servers refuse the field. */
const openaiOptions = (name: string, dimensions: number): CallOptions['providerOptions'] =>
  name.startsWith('text-embedding-3') ? { openaiCompatible: { dimensions } } : undefined

/** Every model family has a different name for the length and supports only some values; Cohere has input types. */
function bedrockOptions(name: string, dimensions: number, isSearch: boolean): CallOptions['providerOptions'] {
  const isSupported = (...lengths: number[]) => lengths.includes(dimensions)
  if (name.includes('nova'))
    return isSupported(256, 384, 1024, 3072) ? { amazonBedrock: { embeddingDimension: dimensions } } : undefined
  if (name.includes('cohere'))
    return {
      amazonBedrock: {
        inputType: isSearch ? 'search_query' : 'search_document',
        ...(name.includes('v4') && isSupported(256, 512, 1024, 1536) && { outputDimension: dimensions }),
      },
    }
  return name.includes('titan-embed-text-v2') && isSupported(256, 512, 1024)
    ? { amazonBedrock: { dimensions } }
    : undefined
}

/** Classifies the error of a call. `timedOut`: the call exceeded its time limit. */
export async function callFailure(
  thrown: unknown,
  secrets: readonly string[],
  timedOut: boolean,
): Promise<CallFailure> {
  // Loaded on demand: the package needs more memory than most of the application.
  const { APICallError, JSONParseError, LoadAPIKeyError, LoadSettingError, TypeValidationError } = await import(
    '@ai-sdk/provider'
  )
  const chain = causes(thrown)
  const response = chain.find(APICallError.isInstance) ?? null
  const status = response?.statusCode ?? null
  const messages = chain.map(messageOf).filter(Boolean).join(': ')
  const detail = truncateChars(maskSecrets(messages, secrets, 4 * DETAIL_LENGTH), DETAIL_LENGTH)
  const failure = (name: CallFailure['class']): CallFailure => ({
    class: name,
    status: name === 'unreachable' ? null : status,
    detail,
    retry_after_ms: retryAfterMs(response?.responseHeaders),
  })
  if (timedOut) return { ...failure('timeout'), status: null }
  if (chain.some(error => LoadSettingError.isInstance(error) || LoadAPIKeyError.isInstance(error)))
    return failure('denied')
  if (status === 429) return failure('rate_limited')
  if (status === 401 || status === 403 || status === 404) return failure('denied')
  if (status !== null && status >= 500) return failure('server')
  if (status !== null && status >= 300) return failure('refused')
  const isUnreadable = (error: unknown) =>
    error instanceof InvalidResponseError ||
    error instanceof RemoteBodyError ||
    JSONParseError.isInstance(error) ||
    TypeValidationError.isInstance(error)
  return failure(chain.some(isUnreadable) ? 'unreadable' : 'unreachable')
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** Returns an error and its causes, outermost first. */
function causes(error: unknown): unknown[] {
  const chain: unknown[] = []
  for (let next = error; next !== undefined && next !== null && chain.length < 5; next = (next as Error).cause)
    chain.push(next)
  return chain
}

/** Parses Retry-After, in seconds or as a date (RFC 9110, 10.2.3), to milliseconds. */
function retryAfterMs(headers: Record<string, string> | undefined): number | null {
  const value = headers?.['retry-after']
  if (value === undefined) return null
  if (/^\d+(\.\d+)?$/.test(value)) return Number(value) * 1000
  const at = Date.parse(value)
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now())
}
