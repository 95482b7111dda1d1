import { AppError, type RecordedFailure } from '../../core/errors.ts'
import { fault } from '../../core/fault.ts'
import type { Services } from '../../core/operation.ts'
import { type Context, HandBack } from '../../core/worker.ts'
import type { Tx } from '../../core/write.ts'
import { embedChunks } from '../chunks/embed.ts'
import type { ChunkDraft } from '../chunks/model.ts'
import { effectiveSettings } from '../chunks/settings.ts'
import { ChunkLimitError, splitPages } from '../chunks/split.ts'
import { insertChunks, removeChunks } from '../chunks/store.ts'
import type { DocumentRow } from '../documents/model.ts'
import { lockDocument, updateDocument } from '../documents/store.ts'
import { currentSpace } from '../embeddings/space.ts'
import { finish } from './finish.ts'
import { type IngestionMessage, ingestionQueue } from './queue.ts'
import { readSource } from './read.ts'
import { settleFailed } from './settle.ts'
import {
  awaitCallback,
  type Claim,
  claimAttempt,
  countChunks,
  endHeld,
  heldUntil,
  renewLease,
  requeueAttempt,
  setTotals,
} from './store.ts'

/** Another worker, a callback or a caller has the document now: write nothing, leave. */
class Superseded extends Error {}

type Outcome = 'ready' | 'failed' | 'awaiting' | 'retry' | 'superseded'

/** Chunks that are embedded and written together (content, 6.4.6). */
const BATCH = 64

/** Failures that another try would end in again (content, 6.3). */
const NAMED: readonly string[] = [
  'CONVERTER_FAILED',
  'CONVERTER_OUTPUT_INVALID',
  'FILE_DOWNLOAD_URL_NOT_CONFIGURED',
  'FILE_NOT_FOUND',
  'FILE_PARSE_FAILED',
  'FILE_STORAGE_MISCONFIGURED',
  'PDF_PARSE_FAILED',
  'RESOURCE_NOT_FOUND',
  'UNSUPPORTED_FILE_TYPE',
]

const FIRST_RETRY_MS = 10_000
const LAST_RETRY_MS = 600_000

/** How long the lease of a worker is, and how often it renews it: often enough that it never seems to have stalled. */
function leaseOf({ config }: Services): { leaseMs: number; beatMs: number } {
  const leaseMs = Math.min(config.INGESTION_LEASE_SECONDS * 1000, config.INGESTION_STALL_TIMEOUT_MS)
  return { leaseMs, beatMs: leaseMs / 4 }
}

/**
 * One try of an ingestion attempt: claims it, reads, cuts and embeds the text, writes chunks batch by batch, and settles
 * the document. Everything it writes is conditional on its claim, under the document's lock. Never throws for what a
 * file or a converter does; throws HandBack when the worker stops, and what could not be recorded.
 */
export async function ingest(services: Services, message: IngestionMessage, context: Context): Promise<void> {
  const started = performance.now()
  const taken = await services.write(tx => take(tx, services, message))
  if (!taken) return
  const { claim } = taken
  const log = (outcome: Outcome | 'handed_back', more: object = {}) =>
    services.log.info(
      {
        document_id: claim.document_id,
        attempt_id: claim.id,
        attempt: claim.claims,
        outcome,
        duration_ms: Math.round(performance.now() - started),
        ...more,
      },
      'ingestion',
    )
  const hold = new Hold(services, claim, context.signal)
  try {
    await fault(services, 'ingestion_claimed')
    const { outcome, ...more } = await carryOut(services, taken.document, hold)
    log(outcome, more)
  } catch (error) {
    if (context.signal.aborted && context.stopping.aborted) {
      await requeueAttempt(services.pool, claim, { delayMs: 0, failed: false })
      log('handed_back')
      throw new HandBack('the worker stops')
    }
    if (error instanceof Superseded || hold.signal.aborted) return log('superseded')
    const { outcome, ...more } = await failed(services, claim, failureOf(error), !isNamed(error))
    log(outcome, more)
  } finally {
    hold.end()
  }
}

/** Claims the attempt and clears what an earlier claim has written. A claim that another worker holds is looked at again. */
async function take(
  tx: Tx,
  services: Services,
  message: IngestionMessage,
): Promise<{ claim: Claim; document: DocumentRow } | null> {
  const named = { document_id: message.document_id, id: message.attempt_id }
  const document = await lockDocument(tx, named.document_id)
  if (!document) return null
  const claim = await claimAttempt(tx, named, leaseOf(services).leaseMs)
  if (!claim) {
    const until = await heldUntil(tx, named)
    if (until) tx.send(ingestionQueue, message, { startAfter: new Date(until) })
    return null
  }
  if (claim.claims > 1) await removeChunks(tx, document.id)
  return {
    claim,
    document: await updateDocument(tx, {
      ...document,
      status: 'processing',
      chunk_count: 0,
      embedded_chunks: 0,
      total_chunks: null,
      total_pages: null,
    }),
  }
}

/** A claim while it is worked on: its lease is renewed, and `signal` is aborted once it is lost. */
class Hold {
  readonly claim: Claim
  readonly signal: AbortSignal
  readonly #services: Services
  readonly #lost = new AbortController()
  readonly #timer: NodeJS.Timeout

  constructor(services: Services, claim: Claim, outer: AbortSignal) {
    this.claim = claim
    this.#services = services
    this.signal = AbortSignal.any([outer, this.#lost.signal])
    this.#timer = setInterval(() => void this.#beat(), leaseOf(services).beatMs)
  }

  async #beat(): Promise<void> {
    try {
      if (!(await renewLease(this.#services.pool, this.claim, leaseOf(this.#services).leaseMs))) this.#lose()
    } catch (error) {
      this.#services.log.warn({ err: error, document_id: this.claim.document_id }, 'lease of an ingestion not renewed')
    }
  }

  #lose(): void {
    clearInterval(this.#timer)
    this.#lost.abort(new Superseded())
  }

  /** Writes for the document while the claim holds; nothing of it stays when it does not. Raises Superseded. */
  write<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    this.signal.throwIfAborted()
    return this.#services.write(work)
  }

  end(): void {
    clearInterval(this.#timer)
  }
}

type Ended = { outcome: Outcome; chunk_count?: number; error?: RecordedFailure; next_ms?: number }

async function carryOut(services: Services, document: DocumentRow, hold: Hold): Promise<Ended> {
  const { claim, signal } = hold
  const { config } = services
  const source = await readSource(services, document, claim, signal)
  // A call that was cut off is no answer of the converter.
  signal.throwIfAborted()
  await fault(services, 'ingestion_read')
  if (source.kind === 'pending') return deferred(services, hold)
  if (source.kind === 'failed') return failed(services, claim, source.error, source.retry)

  const settings = effectiveSettings(claim.settings, source.rule, { chunk_strategy: 'page' })
  const chunks = await splitPages(source.pages, settings, {
    title: document.title,
    maxChunks: config.INGESTION_MAX_CHUNKS,
  })
  await hold.write(async tx => {
    await guard(tx, services, claim)
    await setTotals(tx, document.id, { total_pages: source.total_pages, total_chunks: chunks.length, ...settings })
  })
  let unembedded = false
  for (let from = 0; from < chunks.length; from += BATCH)
    unembedded = (await writeBatch(services, document, hold, chunks.slice(from, from + BATCH))) || unembedded
  await fault(services, 'ingestion_written')
  await hold.write(async tx => {
    const locked = await lockDocument(tx, document.id)
    if (!locked || !(await endHeld(tx, claim))) throw new Superseded()
    await finish(tx, services, locked, claim, { pages: source.pages, unembedded })
  })
  await fault(services, 'ingestion_settled')
  return { outcome: 'ready', chunk_count: chunks.length }
}

/** Takes the document's lock, then makes sure of the claim and renews its lease. Raises Superseded. */
async function guard(tx: Tx, services: Services, claim: Claim): Promise<DocumentRow> {
  const document = await lockDocument(tx, claim.document_id)
  if (!document || !(await renewLease(tx, claim, leaseOf(services).leaseMs))) throw new Superseded()
  return document
}

/**
 * Embeds chunks, which takes as long as it takes, then writes them in one transaction. Answers whether some of them
 * could not be embedded now.
 */
async function writeBatch(
  services: Services,
  document: DocumentRow,
  hold: Hold,
  drafts: ChunkDraft[],
): Promise<boolean> {
  const owner = { project_id: document.project_id, document_id: document.id }
  const chunks = await embedChunks(services, owner, drafts, { signal: hold.signal })
  const space = await currentSpace(services)
  const embedded = chunks.filter(({ vectors }) => vectors.length > 0).length
  await hold.write(async tx => {
    await guard(tx, services, hold.claim)
    await countChunks(tx, document.id, { written: chunks.length, embedded })
    await insertChunks(tx, owner, chunks, { space, textSearchConfig: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG })
  })
  await fault(services, 'ingestion_batch')
  return chunks.some(({ failed }) => failed)
}

/** A tool has said that it will post the text. Its callback may have been faster. */
async function deferred(services: Services, hold: Hold): Promise<Ended> {
  const { claim } = hold
  await hold.write(async tx => {
    const document = await lockDocument(tx, claim.document_id)
    if (!document || !(await awaitCallback(tx, claim, services.config.CONVERSION_STALL_TIMEOUT_MS)))
      throw new Superseded()
  })
  return { outcome: 'awaiting' }
}

/** Records a failed try: the end of the attempt, or another try in 10 s, 40 s and so on. */
async function failed(services: Services, claim: Claim, error: RecordedFailure, retry: boolean): Promise<Ended> {
  const last = !retry || claim.failures + 1 >= services.config.INGESTION_MAX_TRIES
  const delayMs = Math.min(FIRST_RETRY_MS * 4 ** claim.failures, LAST_RETRY_MS)
  const recorded = await services.write(async tx => {
    const document = await lockDocument(tx, claim.document_id)
    if (!document) return false
    if (last) {
      if (!(await endHeld(tx, claim))) return false
      await settleFailed(tx, document, error)
      return true
    }
    if (!(await requeueAttempt(tx, claim, { delayMs, failed: true }))) return false
    tx.send(
      ingestionQueue,
      { document_id: claim.document_id, attempt_id: claim.id, project_id: document.project_id },
      { startAfter: new Date(Date.now() + delayMs) },
    )
    return true
  })
  if (!recorded) return { outcome: 'superseded' }
  return last ? { outcome: 'failed', error } : { outcome: 'retry', error, next_ms: delayMs }
}

const isNamed = (error: unknown): boolean =>
  error instanceof ChunkLimitError || (error instanceof AppError && NAMED.includes(error.code))

/** What is recorded of something that was thrown: its own name where the platform has given it one for ingestions. */
export function failureOf(error: unknown): RecordedFailure {
  if (error instanceof AppError && NAMED.includes(error.code)) return error.recorded()
  return { code: 'INGESTION_FAILED', message: error instanceof Error ? error.message : String(error) }
}
