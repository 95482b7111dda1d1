import type { Services } from '../../core/process/services.ts'
import { callProvider } from './call.ts'
import { normalize } from './local.ts'
import type { EmbeddingModel, EmbedOptions } from './model.ts'
import { type CallFailure, type EmbeddingModelRef, embeddingFailure, providerModel } from './providers.ts'
import { meterEmbeddingCall } from './usage.ts'

/** Vectors in the order of the texts, null where there is none; `failure` is a reason for that. */
export type EmbeddedBatch = { vectors: (Float32Array | null)[]; failure: CallFailure | null }

/** One call of `embed`: what it still waits for. */
type Request = {
  options: EmbedOptions
  vectors: (Float32Array | null)[]
  left: number
  failure: CallFailure | null
  /** Aborted when the caller waits no longer. */
  gone: AbortSignal
  finish: () => void
}

type Text = { text: string; index: number; request: Request }

const BATCH_CHARACTERS = 200_000
/** Texts that come within it share a call; nobody notices it beside a call. */
const WINDOW_MS = 4
const COMPLAINT_MS = 60_000

/** What one text of a batch may have caused; some servers answer 500 to a text that is too long for the model. */
const BY_A_TEXT = new Set<CallFailure['class']>(['server', 'refused', 'unreadable'])

/**
 * Embeds texts by a provider, those of many callers in few calls: EMBEDDING_BATCH_SIZE texts in each and
 * EMBEDDING_CONCURRENCY at once in the process. Questions go first and in calls of their own, as somebody waits for them
 * and one text comes back sooner than 64; `background` texts go when nothing else waits.
 */
export function batchedCalls(
  services: Services,
  model: EmbeddingModel,
): (texts: string[], options: EmbedOptions) => Promise<EmbeddedBatch> {
  const { config } = services
  let loading: Promise<EmbeddingModelRef> | undefined
  const load = () => {
    loading ??= providerModel(config, model.provider as 'openai' | 'ollama' | 'bedrock', model.model)
    return loading
  }

  const questions: Text[] = []
  const ordinary: Text[] = []
  const background: Text[] = []
  let inFlight = 0
  let scheduled = false
  const complain = complaints(services, model)

  const sendNext = (client: EmbeddingModelRef) => {
    const size = Math.min(config.EMBEDDING_BATCH_SIZE, client.largestCall)
    while (inFlight < config.EMBEDDING_CONCURRENCY) {
      const batch = nextBatch([questions, ordinary, background], size)
      if (!batch) return
      inFlight++
      void embedBatch(client, batch, Math.max(...batch.map(triesOf))).finally(() => {
        inFlight--
        sendNext(client)
      })
    }
  }

  /** Embeds texts in one call; where that fails and one text may be the reason, in parts of one try each. */
  const embedBatch = async (client: EmbeddingModelRef, batch: Text[], tries: number, halved = false): Promise<void> => {
    const gone = everybodyGone(batch)
    const outcome = await callProvider(
      services,
      model,
      client,
      batch.map(({ text }) => text),
      { tries, asked: batch[0].request.options.purpose.kind === 'search', signal: gone.signal },
    ).finally(gone.stop)
    if (outcome.ok) {
      const metered = batch.map(({ text, request }) => ({ text, options: request.options }))
      meterEmbeddingCall(services, model, metered, outcome.answer.tokens)
      for (const [index, text] of batch.entries()) accept(text, outcome.answer.vectors[index])
      return
    }
    const parts = BY_A_TEXT.has(outcome.failure.class) ? partsOf(batch, halved) : null
    if (!parts) for (const text of batch) settle(text, null, outcome.failure)
    else for (const part of parts.texts) await embedBatch(client, part, 1, parts.halves)
  }

  const accept = (text: Text, given: number[]) => {
    const fits = given.length === model.dimensions
    if (!fits) complain(given.length)
    settle(text, fits ? normalize(given) : null, embeddingFailure(fits ? 'unreadable' : 'dimensions'))
  }

  return async (texts, options) => {
    const { signal, timeoutMs } = options
    const vectors: EmbeddedBatch['vectors'] = texts.map(() => null)
    if (timeoutMs === 0) return { vectors, failure: embeddingFailure('timeout') }
    const client = await load()
    // Aborted while the package was loaded: it will not tell again.
    signal?.throwIfAborted()
    return new Promise((resolve, reject) => {
      const ends = [signal, timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs)]
      const request: Request = {
        options,
        vectors,
        left: texts.length,
        failure: null,
        gone: AbortSignal.any(ends.filter(end => end !== undefined)),
        finish: () => resolve({ vectors: [...vectors], failure: request.failure }),
      }
      request.gone.addEventListener('abort', () => {
        if (signal?.aborted) return reject(signal.reason)
        request.failure = embeddingFailure('timeout')
        request.finish()
      })
      const asked = options.purpose.kind === 'search'
      const lane = asked ? questions : options.background ? background : ordinary
      for (const [index, text] of texts.entries()) lane.push({ text, index, request })
      if (asked || lane.length >= config.EMBEDDING_BATCH_SIZE) sendNext(client)
      else if (!scheduled) {
        scheduled = true
        setTimeout(() => {
          scheduled = false
          sendNext(client)
        }, WINDOW_MS)
      }
    })
  }
}

const triesOf = ({ request }: Text): number => 1 + (request.options.retries ?? 2)

/** Takes the next texts that fit into one call from the first lane that has any; null when all are empty. */
function nextBatch(lanes: Text[][], most: number): Text[] | null {
  for (const lane of lanes) {
    const batch = takeBatch(lane, most)
    if (batch.length > 0) return batch
  }
  return null
}

/** Texts that nobody waits for any more are dropped on the way. */
function takeBatch(lane: Text[], most: number): Text[] {
  const batch: Text[] = []
  let characters = 0
  let taken = 0
  for (const text of lane) {
    if (!text.request.gone.aborted) {
      if (batch.length >= most || (batch.length > 0 && characters + text.text.length > BATCH_CHARACTERS)) break
      characters += text.text.length
      batch.push(text)
    }
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
  if (request.left === 0) request.finish()
}

/** A signal that is aborted once nobody waits for any text of a batch; `stop` when the batch is done. */
function everybodyGone(batch: readonly Text[]): { signal: AbortSignal; stop: () => void } {
  const all = new AbortController()
  const waits = [...new Set(batch.map(({ request }) => request.gone))]
  const check = () => {
    if (waits.every(gone => gone.aborted)) all.abort()
  }
  for (const gone of waits) gone.addEventListener('abort', check)
  check()
  return {
    signal: all.signal,
    stop: () => {
      for (const gone of waits) gone.removeEventListener('abort', check)
    },
  }
}

/** Logs that vectors have another length than they should have, once a minute. */
function complaints({ log }: Services, { provider, model, dimensions }: EmbeddingModel): (length: number) => void {
  let last = Number.NEGATIVE_INFINITY
  return length => {
    if (performance.now() - last < COMPLAINT_MS) return
    last = performance.now()
    log.error(
      { provider, model, dimensions: length, expected: dimensions },
      'the embedding model does not give vectors of EMBEDDING_DIMENSIONS; none are stored',
    )
  }
}
