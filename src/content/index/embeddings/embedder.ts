import { LRUCache } from 'lru-cache'
import { checkSpend } from '#control/quotas/spend.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { type Span, type SpanStart, traced } from '#core/base/telemetry.ts'
import { ATTRIBUTE, MUSTER, OPERATION, providerName } from '#core/base/telemetry-names.ts'
import { BatchedEmbedding, type EmbeddedBatch } from './batches.ts'
import { LOCAL_MODEL, localVectors } from './local.ts'
import type { EmbeddingModel, EmbedOptions } from './model.ts'
import { type CallFailure, embeddingFailure } from './providers.ts'

export type Embedder = {
  configured: boolean
  model: EmbeddingModel | null
  /**
   * Returns L2-normalized vectors in the order of the texts; null for failed texts, all zeros (never to be stored) for
   * texts without content. Raises EMBEDDING_NOT_CONFIGURED, QUOTA_EXCEEDED, and AI_PROVIDER_ERROR if every text failed.
   */
  embed(texts: string[], options: EmbedOptions): Promise<(Float32Array | null)[]>
  /**
   * Returns the vector of a search text, cached per process for 10 minutes. Retries once. Raises the errors of `embed`.
   */
  embedQuery(text: string, options: EmbedOptions): Promise<Float32Array>
}

/** Embedder of a process; all callers share its batches and its limit of concurrent calls. */
export const embedderOf = processSingleton(createEmbedder)

const QUERY_CACHE_SIZE = 1000
const QUERY_CACHE_TTL_MS = 10 * 60_000

function createEmbedder(services: Services): Embedder {
  const model = configuredModel(services)
  const backend = !model
    ? null
    : model.provider === 'local'
      ? { embed: createLocalEmbed(model.dimensions) }
      : new BatchedEmbedding(services, model)
  const queries = new LRUCache<string, Float32Array>({ max: QUERY_CACHE_SIZE, ttl: QUERY_CACHE_TTL_MS })

  const embedNow = async (texts: string[], options: EmbedOptions, span: Span | null) => {
    if (!backend) raise('EMBEDDING_NOT_CONFIGURED')
    options.signal?.throwIfAborted()
    if (texts.length === 0) return []
    if (!options.background && !options.admitted) await checkEmbeddingSpend(services, options.project_id)
    const { vectors, failure, tokens } = await backend.embed(texts, options)
    span?.set({ [ATTRIBUTE.inputTokens]: tokens })
    const isMissing = (vector: Float32Array | null) => vector === null
    if (options.complete ? vectors.some(isMissing) : vectors.every(isMissing)) throw providerError(failure)
    return vectors
  }

  // Calls of the provider combine the texts of several callers; each has a separate span.
  const embed: Embedder['embed'] = (texts, options) =>
    traced(embeddingSpan, { model, texts }, span => embedNow(texts, options, span))

  return {
    configured: model !== null,
    model,
    embed,
    async embedQuery(text, options) {
      const cached = queries.get(text)
      if (cached) return cached
      const [vector] = await embed([text], { retries: 1, ...options })
      queries.set(text, vector as Float32Array)
      return vector as Float32Array
    },
  }
}

const embeddingSpan = ({ model, texts }: { model: EmbeddingModel | null; texts: string[] }): SpanStart => ({
  name: `${OPERATION.embeddings} ${model?.model ?? ''}`.trim(),
  kind: 'client',
  attributes: {
    [ATTRIBUTE.operation]: OPERATION.embeddings,
    [ATTRIBUTE.provider]: model && providerName(model.provider),
    [ATTRIBUTE.requestModel]: model?.model,
    [ATTRIBUTE.dimensions]: model?.dimensions,
    [MUSTER.batch]: texts.length,
  },
})

/**
 * Checks the spend quotas of a project before its texts are embedded. The local model is free.
 * @throws QUOTA_EXCEEDED
 */
export async function checkEmbeddingSpend(services: Services, project_id: string | null): Promise<void> {
  const provider = configuredModel(services)?.provider ?? 'local'
  if (project_id === null || provider === 'local') return
  const spender = { project_id, agent_id: null, actor_id: null }
  await checkSpend(services, spender, services.pool, { metered: 'embedding' })
}

function configuredModel({ config }: Services): EmbeddingModel | null {
  const { EMBEDDING_PROVIDER: provider, EMBEDDING_DIMENSIONS: dimensions } = config
  const model = config.EMBEDDING_MODEL ?? (provider === 'local' ? LOCAL_MODEL : null)
  return provider && model ? { provider, model, dimensions } : null
}

const createLocalEmbed =
  (dimensions: number) =>
  async (texts: string[], { timeoutMs = Number.POSITIVE_INFINITY, signal }: EmbedOptions): Promise<EmbeddedBatch> => {
    const end = performance.now() + timeoutMs
    const vectors = await localVectors(texts, dimensions, () => !signal?.aborted && performance.now() < end)
    signal?.throwIfAborted()
    return { vectors, failure: embeddingFailure('timeout'), tokens: null }
  }

/** Returns the error for callers. The provider belongs to the deployment, so its messages are only logged. */
function providerError(failure: CallFailure | null): AppError {
  const { class: reason = 'unreachable', status = null } = failure ?? {}
  const descriptions: Record<CallFailure['class'], string> = {
    unreachable: 'could not be reached',
    timeout: 'did not respond in time',
    rate_limited: 'rejected the request because of its rate limit',
    server: `responded with status ${status}`,
    refused: `responded with status ${status}`,
    denied: 'refused the credentials, the model or the address of this deployment',
    unreadable: 'returned an invalid response',
    dimensions: 'returned vectors whose length is not EMBEDDING_DIMENSIONS',
  }
  return new AppError('AI_PROVIDER_ERROR', {
    message: `The embedding provider ${descriptions[reason]}`,
    meta: { provider_status_code: status },
    cause: failure,
  })
}

/** Whether an error of `embed` is a rejection of the texts by the provider. */
export const isTextRejection = (error: unknown): boolean =>
  error instanceof AppError &&
  ['refused', 'unreadable'].includes((error.cause as CallFailure | undefined)?.class ?? 'unreachable')
