import { LRUCache } from 'lru-cache'
import { checkSpend } from '../../control/quotas/spend.ts'
import { AppError, raise } from '../../core/api/errors.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { batchedCalls, type EmbeddedBatch } from './batches.ts'
import { LOCAL_MODEL, localVectors } from './local.ts'
import type { EmbeddingModel, EmbedOptions } from './model.ts'
import { type CallFailure, embeddingFailure } from './providers.ts'

export type Embedder = {
  configured: boolean
  model: EmbeddingModel | null
  /**
   * L2-normalized vectors in the order of the texts; null where a text failed for good, all zeros where the model finds
   * nothing in it (never to be stored). Raises EMBEDDING_NOT_CONFIGURED, QUOTA_EXCEEDED, AI_PROVIDER_ERROR when every text
   * failed.
   */
  embed(texts: string[], options: EmbedOptions): Promise<(Float32Array | null)[]>
  /** The vector of a question, from a cache of the process when it was asked lately. Tries twice. Raises the same. */
  embedQuery(text: string, options: EmbedOptions): Promise<Float32Array>
}

/** The embedder of a process: every caller shares its batches and its bound on calls in flight. */
export const embedderOf = processSingleton(createEmbedder)

const CACHED_QUERIES = 1000
const CACHED_MS = 10 * 60_000

function createEmbedder(services: Services): Embedder {
  const model = configuredModel(services)
  const backend = !model ? null : model.provider === 'local' ? local(model.dimensions) : batchedCalls(services, model)
  const queries = new LRUCache<string, Float32Array>({ max: CACHED_QUERIES, ttl: CACHED_MS })

  const embed: Embedder['embed'] = async (texts, options) => {
    if (!backend) raise('EMBEDDING_NOT_CONFIGURED')
    options.signal?.throwIfAborted()
    if (texts.length === 0) return []
    if (!options.background && !options.admitted) await checkEmbeddingSpend(services, options.project_id)
    const { vectors, failure } = await backend(texts, options)
    const missing = (vector: Float32Array | null) => vector === null
    if (options.complete ? vectors.some(missing) : vectors.every(missing)) throw providerError(failure)
    return vectors
  }

  return {
    configured: model !== null,
    model,
    embed,
    async embedQuery(text, options) {
      const known = queries.get(text)
      if (known) return known
      const [vector] = await embed([text], { retries: 1, ...options })
      queries.set(text, vector as Float32Array)
      return vector as Float32Array
    },
  }
}

/**
 * Checks the quotas of a project before texts are embedded on its account. The local model costs nothing.
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

const local =
  (dimensions: number) =>
  async (texts: string[], { timeoutMs = Number.POSITIVE_INFINITY, signal }: EmbedOptions): Promise<EmbeddedBatch> => {
    const end = performance.now() + timeoutMs
    const vectors = await localVectors(texts, dimensions, () => !signal?.aborted && performance.now() < end)
    signal?.throwIfAborted()
    return { vectors, failure: embeddingFailure('timeout') }
  }

/** What a caller may know: the provider belongs to the deployment, so its own message stays in the log. */
function providerError(failure: CallFailure | null): AppError {
  const { class: reason = 'unreachable', status = null } = failure ?? {}
  const said: Record<CallFailure['class'], string> = {
    unreachable: 'could not be reached',
    timeout: 'did not answer in time',
    rate_limited: 'takes no more requests for now',
    server: `answered ${status}`,
    refused: `answered ${status}`,
    denied: 'refused the credentials, the model or the address of this deployment',
    unreadable: 'gave an answer that cannot be read',
    dimensions: 'gave vectors of another length than EMBEDDING_DIMENSIONS',
  }
  return new AppError('AI_PROVIDER_ERROR', {
    message: `The embedding provider ${said[reason]}`,
    meta: { provider_status_code: status },
    cause: failure,
  })
}

/** Whether what `embed` raised is a matter of the texts: the provider read them and refused them. */
export const isTextRejection = (error: unknown): boolean =>
  error instanceof AppError &&
  ['refused', 'unreadable'].includes((error.cause as CallFailure | undefined)?.class ?? 'unreachable')
