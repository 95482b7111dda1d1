import type { EmbeddingModel } from 'ai'
import type { Config } from '../../config.ts'
import { truncateChars } from '../../core/api/storable-text.ts'
import { deploymentAwsKeys } from '../../core/net/aws.ts'
import { fetchWithLimit, RemoteBodyError } from '../../core/net/limited-body.ts'
import { maskSecrets } from '../../identity/secrets/mask.ts'

/** The SDK's interface to one embedding model. */
type EmbeddingModelV4 = Extract<EmbeddingModel, { specificationVersion: 'v4' }>
type CallOptions = Parameters<EmbeddingModelV4['doEmbed']>[0]

/** The deployment's embedding model behind one call; `asked` texts are questions, others are what is searched. */
export type EmbeddingModelRef = {
  /** Most texts of one call. */
  largestCall: number
  call(texts: string[], options: { asked: boolean; signal: AbortSignal }): Promise<ProviderAnswer>
}

/** Vectors as the provider sent them, in the order of the texts, and the tokens it counted; null when it says none. */
export type ProviderAnswer = { vectors: number[][]; tokens: number | null }

/**
 * What went wrong in a call. `unreachable`, `rate_limited` and `server` may pass and are tried again; `refused` and
 * `unreadable` would come again; `denied` is a matter of the deployment's settings.
 */
export type CallFailure = {
  class: 'unreachable' | 'timeout' | 'rate_limited' | 'server' | 'refused' | 'denied' | 'unreadable' | 'dimensions'
  status: number | null
  /** For the log: what the provider said may name the deployment's account, so callers never see it. */
  detail: string
  retry_after_ms: number | null
}

/** A failure without an answer. */
export const embeddingFailure = (name: CallFailure['class']): CallFailure => ({
  class: name,
  status: null,
  detail: '',
  retry_after_ms: null,
})

const DETAIL_LENGTH = 500

/** What an answer may have for each text of a call: 4096 numbers, with 64 bytes for each and for the white space around. */
const ANSWER_BYTES = 256 * 1024

// The SDK's warnings go to the console; what matters of them comes back as a failure.
globalThis.AI_SDK_LOG_WARNINGS = false

/**
 * The model of the settings. Its vendor package is loaded here. The endpoints are the operator's own, from the
 * environment, so they are called directly: the egress rules guard against addresses that callers name.
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
    largestCall: (await model.maxEmbeddingsPerCall) ?? Number.POSITIVE_INFINITY,
    async call(texts, { asked, signal }) {
      // Asked here too: the SDK would wrap the reason in an error of no kind.
      if (aws && !config.EMBEDDING_API_KEY) await awsKeys()
      const options: CallOptions = {
        values: texts,
        abortSignal: signal,
        providerOptions: aws ? bedrockOptions(name, dimensions, asked) : openaiOptions(name, dimensions),
      }
      const { embeddings, usage } = await model.doEmbed(options)
      if (embeddings.length !== texts.length)
        throw new UnreadableAnswer(`${embeddings.length} vectors for ${texts.length} texts`)
      return { vectors: embeddings, tokens: isCount(usage?.tokens) ? usage.tokens : null }
    },
  }
}

class UnreadableAnswer extends Error {}

const isCount = (tokens: unknown): tokens is number => Number.isSafeInteger(tokens) && (tokens as number) >= 0

/** The SDK holds an answer whole, and one that never ended would fill the memory before its time is over. */
const answerFetch = ({ EMBEDDING_BATCH_SIZE }: Config) => fetchWithLimit(EMBEDDING_BATCH_SIZE * ANSWER_BYTES)

async function compatible(config: Config, provider: 'openai' | 'ollama', name: string): Promise<EmbeddingModelV4> {
  const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible')
  const openai = provider === 'openai'
  const vendor = createOpenAICompatible({
    name: provider,
    baseURL: openai
      ? (config.EMBEDDING_BASE_URL ?? 'https://api.openai.com/v1')
      : `${config.OLLAMA_BASE_URL.replace(/\/+$/, '')}/v1`,
    apiKey: openai ? (config.EMBEDDING_API_KEY ?? process.env.OPENAI_API_KEY) : undefined,
    fetch: answerFetch(config),
  })
  return vendor.embeddingModel(name)
}

async function bedrock(config: Config, name: string): Promise<EmbeddingModelV4> {
  const { createAmazonBedrock } = await import('@ai-sdk/amazon-bedrock')
  const vendor = createAmazonBedrock({
    region: config.EMBEDDING_REGION ?? process.env.AWS_REGION ?? 'us-east-1',
    // Empty, not left out: the SDK would take a bearer that is meant for something else from the environment.
    apiKey: config.EMBEDDING_API_KEY ?? '',
    credentialProvider: awsKeys,
    fetch: answerFetch(config),
  })
  return vendor.embeddingModel(name)
}

async function awsKeys() {
  const keys = await deploymentAwsKeys()
  if (keys) return keys
  const { LoadSettingError } = await import('ai')
  throw new LoadSettingError({ message: 'no source has AWS keys' })
}

/** Only the third generation of the vendor's models takes a length; other servers refuse the field. */
const openaiOptions = (name: string, dimensions: number): CallOptions['providerOptions'] =>
  name.startsWith('text-embedding-3') ? { openaiCompatible: { dimensions } } : undefined

/** Each family has its own name for the length, and takes some values only; Cohere's tell questions from texts. */
function bedrockOptions(name: string, dimensions: number, asked: boolean): CallOptions['providerOptions'] {
  const takes = (...lengths: number[]) => lengths.includes(dimensions)
  if (name.includes('nova'))
    return takes(256, 384, 1024, 3072) ? { amazonBedrock: { embeddingDimension: dimensions } } : undefined
  if (name.includes('cohere'))
    return {
      amazonBedrock: {
        inputType: asked ? 'search_query' : 'search_document',
        ...(name.includes('v4') && takes(256, 512, 1024, 1536) && { outputDimension: dimensions }),
      },
    }
  return name.includes('titan-embed-text-v2') && takes(256, 512, 1024) ? { amazonBedrock: { dimensions } } : undefined
}

/** Names what a call threw. `timedOut` when its own time limit ended it. */
export async function callFailure(
  thrown: unknown,
  secrets: readonly string[],
  timedOut: boolean,
): Promise<CallFailure> {
  // Loaded with the first failure: the package takes more memory than most of the application.
  const { APICallError, JSONParseError, LoadAPIKeyError, LoadSettingError, TypeValidationError } = await import('ai')
  const chain = causes(thrown)
  const answered = chain.find(APICallError.isInstance) ?? null
  const status = answered?.statusCode ?? null
  const messages = chain.map(messageOf).filter(Boolean).join(': ')
  const said = truncateChars(maskSecrets(messages, secrets, 4 * DETAIL_LENGTH), DETAIL_LENGTH)
  const made = (name: CallFailure['class']): CallFailure => ({
    class: name,
    status: name === 'unreachable' ? null : status,
    detail: said,
    retry_after_ms: retryAfter(answered?.responseHeaders),
  })
  if (timedOut) return { ...made('timeout'), status: null }
  if (chain.some(error => LoadSettingError.isInstance(error) || LoadAPIKeyError.isInstance(error)))
    return made('denied')
  if (status === 429) return made('rate_limited')
  if (status === 401 || status === 403 || status === 404) return made('denied')
  if (status !== null && status >= 500) return made('server')
  if (status !== null && status >= 300) return made('refused')
  const unreadable = (error: unknown) =>
    error instanceof UnreadableAnswer ||
    error instanceof RemoteBodyError ||
    JSONParseError.isInstance(error) ||
    TypeValidationError.isInstance(error)
  return made(chain.some(unreadable) ? 'unreadable' : 'unreachable')
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** The error and what caused it, outermost first. */
function causes(error: unknown): unknown[] {
  const chain: unknown[] = []
  for (let next = error; next !== undefined && next !== null && chain.length < 5; next = (next as Error).cause)
    chain.push(next)
  return chain
}

/** Milliseconds a provider asks to be left alone; seconds or a date (RFC 9110, 10.2.3). */
function retryAfter(headers: Record<string, string> | undefined): number | null {
  const value = headers?.['retry-after']
  if (value === undefined) return null
  if (/^\d+(\.\d+)?$/.test(value)) return Number(value) * 1000
  const at = Date.parse(value)
  return Number.isNaN(at) ? null : Math.max(0, at - Date.now())
}
