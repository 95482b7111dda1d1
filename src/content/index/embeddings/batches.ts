import { randomUUID } from 'node:crypto'
import { estimatedTokens, recordUsageLater, type UsageDraft } from '#control/usage/meter.ts'
import type { Services } from '#core/base/services.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { callProvider } from './call.ts'
import { limitTokens } from './limit-tokens.ts'
import { normalize } from './local.ts'
import type { EmbeddingModel, EmbedOptions } from './model.ts'
import { type CallFailure, type EmbeddingModelRef, embeddingFailure, providerModel } from './providers.ts'

/**
 * Vectors in the order of the texts, null for failed texts; `failure` is the last failure, `tokens` the share of the tokens
 * that the provider reported.
 */
export type EmbeddedBatch = { vectors: (Float32Array | null)[]; failure: CallFailure | null; tokens: number | null }

/** A pending call of `embed`. */
type Request = {
  options: EmbedOptions
  vectors: (Float32Array | null)[]
  remaining: number
  failure: CallFailure | null
  tokens: number | null
  /** Aborted when the caller no longer waits. */
  abandoned: AbortSignal
  finish: () => void
}

type Text = { text: string; index: number; request: Request }

const BATCH_CHARACTERS = 200_000
/** Texts that arrive within it share a call. It is negligible compared to the duration of a call. */
const WINDOW_MS = 4
const DIMENSIONS_LOG_MS = 60_000

/** Most halvings of a batch to find the texts that the model refuses; a few refused texts of 64 need fewer. */
const MAX_HALVINGS = 24

/** Failures that a single text may have caused; some servers return 500 for a text that is too long for the model. */
const TEXT_FAILURES = new Set<CallFailure['class']>(['server', 'refused', 'unreadable'])

/**
 * Embeds texts by a provider and batches concurrent callers: EMBEDDING_BATCH_SIZE texts per call, EMBEDDING_CONCURRENCY
 * concurrent calls per process. Search texts go first and in separate calls, because one text returns sooner than 64;
 * `background` texts go when no other text waits.
 */
export class BatchedEmbedding {
  readonly #services: Services
  readonly #model: EmbeddingModel
  readonly #searches: Text[] = []
  readonly #ordinary: Text[] = []
  readonly #background: Text[] = []
  readonly #logDimensions: (received: number) => void
  #loading: Promise<EmbeddingModelRef> | undefined
  #inFlight = 0
  #scheduled = false

  constructor(services: Services, model: EmbeddingModel) {
    this.#services = services
    this.#model = model
    this.#logDimensions = dimensionsLogger(services, model)
  }

  #load(): Promise<EmbeddingModelRef> {
    const { provider, model } = this.#model
    this.#loading ??= providerModel(this.#services.config, provider as 'openai' | 'ollama' | 'bedrock', model)
    return this.#loading
  }

  #sendNext(client: EmbeddingModelRef): void {
    const config = this.#services.config
    const size = Math.min(config.EMBEDDING_BATCH_SIZE, client.maxTexts)
    while (this.#inFlight < config.EMBEDDING_CONCURRENCY) {
      const batch = nextBatch([this.#searches, this.#ordinary, this.#background], size)
      if (!batch) return
      this.#inFlight++
      void this.#embedBatch(client, batch, Math.max(...batch.map(attemptsOf))).finally(() => {
        this.#inFlight--
        this.#sendNext(client)
      })
    }
  }

  /** Embeds a batch in one call; if it fails and one text may be the cause, in parts with one attempt each. */
  async #embedBatch(
    client: EmbeddingModelRef,
    batch: Text[],
    attempts: number,
    halvings = { refused: MAX_HALVINGS, others: 1 },
  ): Promise<void> {
    const services = this.#services
    const model = this.#model
    const abandoned = whenAllAbandoned(batch)
    const outcome = await callProvider(
      services,
      model,
      client,
      batch.map(({ text }) => text),
      { attempts, isSearch: batch[0].request.options.purpose.kind === 'search', signal: abandoned.signal },
    ).finally(abandoned.stop)
    if (outcome.ok) {
      const metered = batch.map(({ text, request }) => ({ text, options: request.options }))
      meterEmbeddingCall(services, model, metered, outcome.response.tokens)
      shareTokens(batch, outcome.response.tokens)
      for (const [index, text] of batch.entries()) this.#accept(text, outcome.response.vectors[index])
      return
    }
    const isRefused = outcome.failure.class === 'refused'
    const shorter = isRefused && batch.length === 1 ? firstHalf(batch[0]) : null
    if (shorter) return this.#embedBatch(client, [shorter], 1)
    if (isRefused && batch.length === 1) batch[0].request.options.onRefused?.(batch[0].index)
    const parts = TEXT_FAILURES.has(outcome.failure.class)
      ? divideBatch(batch, halvings[isRefused ? 'refused' : 'others']-- > 0)
      : null
    if (!parts) for (const text of batch) settleText(text, null, outcome.failure)
    else for (const part of parts.texts) await this.#embedBatch(client, part, 1, parts.halves ? halvings : undefined)
  }

  #accept(text: Text, vector: number[]): void {
    const fits = vector.length === this.#model.dimensions
    if (!fits) this.#logDimensions(vector.length)
    settleText(text, fits ? normalize(vector) : null, embeddingFailure(fits ? 'unreadable' : 'dimensions'))
  }

  /** Returns the vectors of texts. Rejects when the caller's signal aborts. */
  async embed(texts: string[], options: EmbedOptions): Promise<EmbeddedBatch> {
    const { signal, timeoutMs } = options
    const vectors: EmbeddedBatch['vectors'] = texts.map(() => null)
    if (timeoutMs === 0) return { vectors, failure: embeddingFailure('timeout'), tokens: null }
    const [client, taken] = await Promise.all([
      this.#load(),
      Promise.all(texts.map(text => limitTokens(text, this.#model))),
    ])
    // A signal that aborted while the package was loaded fires no event.
    signal?.throwIfAborted()
    return new Promise((resolve, reject) => {
      const signals = [signal, timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs)]
      const request: Request = {
        options,
        vectors,
        remaining: texts.length,
        failure: null,
        tokens: null,
        abandoned: AbortSignal.any(signals.filter(each => each !== undefined)),
        finish: () => resolve({ vectors: [...vectors], failure: request.failure, tokens: request.tokens }),
      }
      request.abandoned.addEventListener('abort', () => {
        if (signal?.aborted) return reject(signal.reason)
        request.failure = embeddingFailure('timeout')
        request.finish()
      })
      const isSearch = options.purpose.kind === 'search'
      const lane = isSearch ? this.#searches : options.background ? this.#background : this.#ordinary
      for (const [index, text] of taken.entries()) lane.push({ text, index, request })
      if (isSearch || lane.length >= this.#services.config.EMBEDDING_BATCH_SIZE) this.#sendNext(client)
      else if (!this.#scheduled) {
        this.#scheduled = true
        setTimeout(() => {
          this.#scheduled = false
          this.#sendNext(client)
        }, WINDOW_MS)
      }
    })
  }
}

/** Divides the tokens of a call among its callers by characters; their sum is the tokens of the call. */
function shareTokens(batch: readonly Text[], tokens: number | null): void {
  if (tokens === null) return
  const total = Math.max(
    1,
    batch.reduce((sum, { text }) => sum + text.length, 0),
  )
  let offset = 0
  for (const { text, request } of batch) {
    const before = Math.round((tokens * offset) / total)
    offset += text.length
    request.tokens = (request.tokens ?? 0) + Math.round((tokens * offset) / total) - before
  }
}

const attemptsOf = ({ request }: Text): number => 1 + (request.options.retries ?? 2)

/** Removes the next texts for one call from the first lane that has any; returns null if all are empty. */
function nextBatch(lanes: Text[][], maxTexts: number): Text[] | null {
  for (const lane of lanes) {
    const batch = shiftBatch(lane, maxTexts)
    if (batch.length > 0) return batch
  }
  return null
}

/** Removes the next texts for one call from a lane, and texts whose callers no longer wait. */
function shiftBatch(lane: Text[], maxTexts: number): Text[] {
  const batch: Text[] = []
  let characters = 0
  let shifted = 0
  for (const text of lane) {
    if (!text.request.abandoned.aborted) {
      if (batch.length >= maxTexts || (batch.length > 0 && characters + text.text.length > BATCH_CHARACTERS)) break
      characters += text.text.length
      batch.push(text)
    }
    shifted++
  }
  lane.splice(0, shifted)
  return batch
}

/**
 * Divides a failed batch by caller, so that a text of one caller does not fail texts of another, or into halves.
 * Returns null if it cannot be divided.
 */
function divideBatch(batch: Text[], mayHalve: boolean): { texts: Text[][]; halves: boolean } | null {
  const byRequest = Map.groupBy(batch, ({ request }) => request)
  if (byRequest.size > 1) return { texts: [...byRequest.values()], halves: false }
  if (!mayHalve || batch.length < 2) return null
  const middle = Math.ceil(batch.length / 2)
  return { texts: [batch.slice(0, middle), batch.slice(middle)], halves: true }
}

/** Shortest text that is not halved further when the model refuses it. */
const MIN_HALF = 256

/** Returns the first half of a text that the model refused: it may be too long; null if the text is short. */
const firstHalf = (text: Text): Text | null =>
  text.text.length < 2 * MIN_HALF ? null : { ...text, text: truncateChars(text.text, Math.ceil(text.text.length / 2)) }

/** Records the vector of a text, or its failure without a vector. */
function settleText({ index, request }: Text, vector: Float32Array | null, failure: CallFailure): void {
  request.vectors[index] = vector
  if (!vector) request.failure = failure
  request.remaining--
  if (request.remaining === 0) request.finish()
}

/** Returns a signal that aborts when no caller waits for the batch, and a function that removes its listeners. */
function whenAllAbandoned(batch: readonly Text[]): { signal: AbortSignal; stop: () => void } {
  const all = new AbortController()
  const signals = [...new Set(batch.map(({ request }) => request.abandoned))]
  const check = () => {
    if (signals.every(signal => signal.aborted)) all.abort()
  }
  for (const signal of signals) signal.addEventListener('abort', check)
  check()
  return {
    signal: all.signal,
    stop: () => {
      for (const signal of signals) signal.removeEventListener('abort', check)
    },
  }
}

/** Returns a function that logs unexpected vector dimensions, at most once a minute. */
function dimensionsLogger(
  { log }: Services,
  { provider, model, dimensions }: EmbeddingModel,
): (length: number) => void {
  let last = Number.NEGATIVE_INFINITY
  return length => {
    if (performance.now() - last < DIMENSIONS_LOG_MS) return
    last = performance.now()
    log.error(
      { provider, model, dimensions: length, expected: dimensions },
      'embedding dimensions differ from EMBEDDING_DIMENSIONS, vectors not stored',
    )
  }
}

/** A text of a call, with the project and purpose to meter it by. */
type MeteredText = { text: string; options: Pick<EmbedOptions, 'project_id' | 'purpose'> }

/**
 * Meters a call of the provider. Never fails the caller.
 * @param tokens reported by the provider; null if not reported
 */
function meterEmbeddingCall(
  services: Services,
  model: EmbeddingModel,
  texts: readonly MeteredText[],
  tokens: number | null,
): void {
  recordUsageLater(services, usageOf(texts, tokens, model))
}

const charactersOf = (texts: readonly MeteredText[]): number => texts.reduce((sum, { text }) => sum + text.length, 0)

/**
 * Returns the usage of a call, one draft per project: its share by characters of the reported tokens, or a quarter of
 * its characters. The key includes a random call ID, because embedding a row again is metered again.
 */
function usageOf(
  texts: readonly MeteredText[],
  tokens: number | null,
  { provider, model }: Pick<EmbeddingModel, 'provider' | 'model'>,
): UsageDraft[] {
  const call = randomUUID()
  const total = charactersOf(texts)
  let offset = 0
  const drafts: UsageDraft[] = []
  for (const [project_id, projectTexts] of Map.groupBy(texts, ({ options }) => options.project_id)) {
    const characters = charactersOf(projectTexts)
    // Differences of rounded cumulative shares, so that they add up to the total.
    const cumulative = (at: number) => Math.round(((tokens ?? 0) * at) / Math.max(1, total))
    const quantity =
      tokens === null ? estimatedTokens(characters) : cumulative(offset + characters) - cumulative(offset)
    offset += characters
    if (project_id === null) continue
    const { kind, ref } = projectTexts[0].options.purpose
    drafts.push({
      idempotency_key: `embed:${kind}:${ref}:${call}`,
      project_id,
      meter_type: 'llm_tokens',
      provider,
      model,
      source: 'embedding',
      components: [{ component: 'input_tokens', quantity, unit: 'token', billable: true }],
    })
  }
  return drafts
}
