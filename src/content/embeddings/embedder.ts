import { randomUUID } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { recordUsage, type UsageDraft } from '../../control/usage/meter.ts'
import { AppError, raise } from '../../core/errors.ts'
import type { Services } from '../../core/operation.ts'
import { LOCAL_MODEL, localVectors, normalized } from './local.ts'
import { type CallFailure, callFailure, type ProviderAnswer, type ProviderModel, providerModel } from './providers.ts'

/** The embedding model of the deployment. */
export type EmbeddingModel = { provider: string; model: string; dimensions: number }

export type EmbedOptions = {
  /** Whom the tokens are metered to; null meters nobody. */
  project_id: string | null
  /** What the texts are: row or request the usage is recorded under. */
  purpose: { kind: 'document' | 'memory' | 'search' | 'api'; ref: string }
  /** Waits so long in all; what is not done by then is null. 0 waits for nothing. */
  timeoutMs?: number
  /** Ends the wait with its reason. */
  signal?: AbortSignal
  /** Tries after the first one of a call; default 2. */
  retries?: number
  /** Work nobody waits for: goes after everything else, in half of the calls at once. */
  background?: boolean
  /** Every text has to have its vector: one that failed fails all. */
  complete?: boolean
}

export type Embedder = {
  configured: boolean
  model: EmbeddingModel | null
  /**
   * L2-normalized vectors in the order of the texts; null where a text failed for good, all zeros where the model finds
   * nothing in it (never to be stored). Raises EMBEDDING_NOT_CONFIGURED, AI_PROVIDER_ERROR when every text failed.
   */
  embed(texts: string[], options: EmbedOptions): Promise<(Float32Array | null)[]>
  /** The vector of a question, from a cache of the process when it was asked lately. Tries twice. Raises the same. */
  embedQuery(text: string, options: EmbedOptions): Promise<Float32Array>
}

const embedders = new WeakMap<Services, Embedder>()

/** The embedder of a process: every caller shares its batches and its bound on calls in flight. */
export function embedderOf(services: Services): Embedder {
  let made = embedders.get(services)
  if (!made) {
    made = createEmbedder(services)
    embedders.set(services, made)
  }
  return made
}

const CACHED_QUERIES = 1000
const CACHED_MS = 10 * 60_000

function createEmbedder(services: Services): Embedder {
  const model = configuredModel(services)
  const backend = !model ? null : model.provider === 'local' ? local(model.dimensions) : remote(services, model)
  const queries = new LRUCache<string, Float32Array>({ max: CACHED_QUERIES, ttl: CACHED_MS })

  const embed: Embedder['embed'] = async (texts, options) => {
    if (!backend) raise('EMBEDDING_NOT_CONFIGURED')
    options.signal?.throwIfAborted()
    if (texts.length === 0) return []
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

function configuredModel({ config }: Services): EmbeddingModel | null {
  const { EMBEDDING_PROVIDER: provider, EMBEDDING_DIMENSIONS: dimensions } = config
  const model = config.EMBEDDING_MODEL ?? (provider === 'local' ? LOCAL_MODEL : null)
  return provider && model ? { provider, model, dimensions } : null
}

type Done = { vectors: (Float32Array | null)[]; failure: CallFailure | null }
type Backend = (texts: string[], options: EmbedOptions) => Promise<Done>

const TIMED_OUT: CallFailure = { class: 'timeout', status: null, detail: 'not done in time', retry_after_ms: null }

const local =
  (dimensions: number): Backend =>
  async (texts, { timeoutMs = Number.POSITIVE_INFINITY, signal }) => {
    const end = performance.now() + timeoutMs
    const vectors = await localVectors(texts, dimensions, () => !signal?.aborted && performance.now() < end)
    signal?.throwIfAborted()
    return { vectors, failure: TIMED_OUT }
  }

/** What a caller is told: the provider belongs to the deployment, so what it said stays in the log. */
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
export const blamesTexts = (error: unknown): boolean =>
  error instanceof AppError &&
  ['refused', 'unreadable'].includes((error.cause as CallFailure | undefined)?.class ?? 'unreachable')

/** One call of `embed`: what it still waits for. */
type Request = {
  options: EmbedOptions
  vectors: (Float32Array | null)[]
  left: number
  failure: CallFailure | null
  /** Aborted when nobody waits for it any more. */
  gone: AbortController
  finish: () => void
}

type Text = { text: string; index: number; request: Request }

const BATCH_CHARACTERS = 200_000
/** Texts that come within it share a call; nobody notices it beside a call. */
const WINDOW_MS = 4
const FIRST_DELAY_MS = 500
const LONGEST_RETRY_AFTER_MS = 20_000
const COMPLAINT_MS = 60_000

/** What may pass by itself. */
const PASSING = new Set<CallFailure['class']>(['unreachable', 'timeout', 'rate_limited', 'server'])
/** What one text of a batch may have caused; some servers answer 500 to a text that is too long for the model. */
const BY_A_TEXT = new Set<CallFailure['class']>(['server', 'refused', 'unreadable'])

function remote(services: Services, model: EmbeddingModel): Backend {
  const { config, log } = services
  const secrets = [config.EMBEDDING_API_KEY, process.env.OPENAI_API_KEY].filter(secret => !!secret) as string[]
  let client: Promise<ProviderModel> | undefined
  const connect = () => {
    client ??= providerModel(config, model.provider as 'openai' | 'ollama' | 'bedrock', model.model)
    return client
  }

  // Questions first, and in calls of their own: one text comes back sooner than 64. Background work last.
  const lanes: [asked: Text[], ordinary: Text[], background: Text[]] = [[], [], []]
  const { EMBEDDING_CONCURRENCY: most } = config
  // How many calls may be in flight when a lane starts one: a question finds a call free while documents are written.
  const room = [most, Math.max(1, most - 1), Math.max(1, Math.floor(most / 2))]
  let inFlight = 0
  let scheduled = false
  let complainedAt = Number.NEGATIVE_INFINITY

  const pump = (client: ProviderModel) => {
    const size = Math.min(config.EMBEDDING_BATCH_SIZE, client.largestCall)
    for (const [lane, waiting] of lanes.entries()) {
      while (waiting.length > 0 && inFlight < room[lane]) {
        const batch = nextBatch(waiting, size)
        if (batch.length === 0) break
        inFlight++
        void embedBatch(client, batch, Math.max(...batch.map(triesOf))).finally(() => {
          inFlight--
          pump(client)
        })
      }
    }
  }

  /** Embeds texts in one call; where that fails and one text may be the reason, in parts of one try each. */
  const embedBatch = async (client: ProviderModel, batch: Text[], tries: number, halved = false): Promise<void> => {
    const outcome = await tried(client, batch, tries)
    if (outcome.ok) return accept(batch, outcome.answer)
    const parts = BY_A_TEXT.has(outcome.failure.class) ? partsOf(batch, halved) : null
    if (!parts) for (const text of batch) settle(text, null, outcome.failure)
    else for (const part of parts.texts) await embedBatch(client, part, 1, parts.halves)
  }

  type CallOutcome = { ok: true; answer: ProviderAnswer } | { ok: false; failure: CallFailure }

  const tried = async (client: ProviderModel, batch: Text[], tries: number): Promise<CallOutcome> => {
    const left = leaving(batch)
    try {
      for (let attempt = 1; ; attempt++) {
        const outcome = await attemptCall(client, batch, attempt, left.signal)
        if (outcome.ok) return outcome
        const delay = attempt < tries && !left.signal.aborted ? delayAfter(outcome.failure, attempt) : null
        if (delay === null) return outcome
        await sleep(delay, left.signal)
        if (left.signal.aborted) return outcome
      }
    } finally {
      left.stop()
    }
  }

  const attemptCall = async (
    client: ProviderModel,
    batch: Text[],
    attempt: number,
    left: AbortSignal,
  ): Promise<CallOutcome> => {
    const started = performance.now()
    const deadline = AbortSignal.timeout(config.EMBEDDING_TIMEOUT_MS)
    const facts = () => ({
      provider: model.provider,
      model: model.model,
      texts: batch.length,
      attempt,
      ms: Math.round(performance.now() - started),
    })
    try {
      const answer = await client.call(
        batch.map(({ text }) => text),
        { asked: batch[0].request.options.purpose.kind === 'search', signal: AbortSignal.any([deadline, left]) },
      )
      log.info({ ...facts(), tokens: answer.tokens, outcome: 'done' }, 'embedding call')
      meterCall(batch, answer.tokens)
      return { ok: true, answer }
    } catch (error) {
      const failure = callFailure(error, secrets, deadline.aborted)
      if (left.aborted) log.info({ ...facts(), outcome: 'abandoned' }, 'embedding call')
      else
        log.warn(
          { ...facts(), outcome: failure.class, status: failure.status, detail: failure.detail },
          'embedding call',
        )
      return { ok: false, failure }
    }
  }

  const accept = (batch: Text[], { vectors }: ProviderAnswer) => {
    for (const [index, text] of batch.entries()) {
      const given = vectors[index]
      if (given.length === model.dimensions)
        settle(text, normalized(given), { class: 'unreadable', status: null, detail: '', retry_after_ms: null })
      else {
        complain(given.length)
        settle(text, null, { class: 'dimensions', status: null, detail: '', retry_after_ms: null })
      }
    }
  }

  const complain = (length: number) => {
    if (performance.now() - complainedAt < COMPLAINT_MS) return
    complainedAt = performance.now()
    log.error(
      { provider: model.provider, model: model.model, dimensions: length, expected: model.dimensions },
      'the embedding model does not give vectors of EMBEDDING_DIMENSIONS; none are stored',
    )
  }

  /** Usage of one call: a share of its tokens for every project in it (content, 8.4). */
  const meterCall = (batch: Text[], tokens: number | null) => {
    const drafts = usageOf(batch, tokens, model)
    recordUsage(services.pool, drafts).catch(error => log.error({ err: error }, 'embedding usage not recorded'))
  }

  return async (texts, options) => {
    const { signal, timeoutMs } = options
    const vectors: Done['vectors'] = texts.map(() => null)
    if (timeoutMs === 0) return { vectors, failure: TIMED_OUT }
    const client = await connect()
    return new Promise((resolve, reject) => {
      const request: Request = {
        options,
        vectors,
        left: texts.length,
        failure: null,
        gone: new AbortController(),
        finish: () => {
          clearTimeout(deadline)
          signal?.removeEventListener('abort', onAbort)
          resolve({ vectors: [...vectors], failure: request.failure })
        },
      }
      const deadline =
        timeoutMs === undefined
          ? undefined
          : setTimeout(() => {
              request.failure = TIMED_OUT
              request.gone.abort()
              request.finish()
            }, timeoutMs)
      const onAbort = () => {
        clearTimeout(deadline)
        request.gone.abort()
        reject(signal?.reason)
      }
      signal?.addEventListener('abort', onAbort, { once: true })
      const lane = options.purpose.kind === 'search' ? 0 : options.background ? 2 : 1
      for (const [index, text] of texts.entries()) lanes[lane].push({ text, index, request })
      if (lane === 0 || lanes[lane].length >= config.EMBEDDING_BATCH_SIZE) pump(client)
      else if (!scheduled) {
        scheduled = true
        setTimeout(() => {
          scheduled = false
          pump(client)
        }, WINDOW_MS)
      }
    })
  }
}

const triesOf = ({ request }: Text): number => 1 + (request.options.retries ?? 2)

/** Takes the next texts of a lane that fit into one call; those nobody waits for are dropped. */
function nextBatch(lane: Text[], most: number): Text[] {
  const batch: Text[] = []
  let characters = 0
  let taken = 0
  for (const text of lane) {
    if (text.request.gone.signal.aborted) {
      taken++
      continue
    }
    if (batch.length >= most || (batch.length > 0 && characters + text.text.length > BATCH_CHARACTERS)) break
    characters += text.text.length
    batch.push(text)
    taken++
  }
  lane.splice(0, taken)
  return batch
}

/**
 * The parts a failed batch is tried in: those of each caller, so that nobody's text fails another's, or else its halves,
 * once. Null when there is nothing to divide.
 */
function partsOf(batch: Text[], halved: boolean): { texts: Text[][]; halves: boolean } | null {
  const byRequest = Map.groupBy(batch, ({ request }) => request)
  if (byRequest.size > 1) return { texts: [...byRequest.values()], halves: false }
  if (halved || batch.length < 2) return null
  const middle = Math.ceil(batch.length / 2)
  return { texts: [batch.slice(0, middle), batch.slice(middle)], halves: true }
}

/** Notes what became of a text; `failure` says why where there is no vector. */
function settle({ index, request }: Text, vector: Float32Array | null, failure: CallFailure): void {
  request.vectors[index] = vector
  if (!vector) request.failure = failure
  request.left--
  if (request.left === 0 && !request.gone.signal.aborted) request.finish()
}

/** A signal that is aborted once nobody waits for any text of a batch. */
function leaving(batch: Text[]): { signal: AbortSignal; stop(): void } {
  const all = new AbortController()
  const requests = [...new Set(batch.map(({ request }) => request))]
  const look = () => {
    if (requests.every(({ gone }) => gone.signal.aborted)) all.abort()
  }
  for (const { gone } of requests) gone.signal.addEventListener('abort', look)
  look()
  return {
    signal: all.signal,
    stop: () => {
      for (const { gone } of requests) gone.signal.removeEventListener('abort', look)
    },
  }
}

/** Milliseconds before the next try; null when there is none (content, 8.3). */
function delayAfter(failure: CallFailure, attempt: number): number | null {
  if (!PASSING.has(failure.class)) return null
  if (failure.retry_after_ms !== null)
    return failure.retry_after_ms <= LONGEST_RETRY_AFTER_MS ? failure.retry_after_ms : null
  return FIRST_DELAY_MS * 2 ** (attempt - 1) * (0.8 + Math.random() * 0.4)
}

/** Resolves after `ms`, or when the signal is aborted. */
function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const done = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done, { once: true })
  })
}

/**
 * What a call is metered as, one draft a project: its share by characters of the tokens reported, or a quarter of its
 * characters. The last part of the key is the call's own: the same row may be embedded again, and is paid for again.
 */
function usageOf(
  batch: readonly { text: string; request: { options: Pick<EmbedOptions, 'project_id' | 'purpose'> } }[],
  tokens: number | null,
  { provider, model }: Pick<EmbeddingModel, 'provider' | 'model'>,
): UsageDraft[] {
  const call = randomUUID()
  const total = batch.reduce((sum, { text }) => sum + text.length, 0)
  let before = 0
  const drafts: UsageDraft[] = []
  for (const [projectId, texts] of Map.groupBy(batch, ({ request }) => request.options.project_id)) {
    const characters = texts.reduce((sum, { text }) => sum + text.length, 0)
    // Cut at rounded borders, so that the shares add up to the whole.
    const border = (at: number) => Math.round(((tokens ?? 0) * at) / Math.max(1, total))
    const quantity = tokens === null ? Math.ceil(characters / 4) : border(before + characters) - border(before)
    before += characters
    if (projectId === null) continue
    const { kind, ref } = texts[0].request.options.purpose
    drafts.push({
      idempotency_key: `embed:${kind}:${ref}:${call}`,
      project_id: projectId,
      meter_type: 'llm_tokens',
      provider,
      model,
      source: 'embedding',
      components: [{ component: 'input_tokens', quantity, unit: 'token', billable: true }],
    })
  }
  return drafts
}
