import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/write.ts'
import { HandBack, type JobContext } from '../../core/jobs/handler.ts'
import { fault } from '../../core/process/fault.ts'
import type { Services } from '../../core/process/services.ts'
import { effectiveSettings } from '../chunks/settings.ts'
import { ChunkLimitError, splitPages } from '../chunks/split.ts'
import { removeChunks } from '../chunks/store.ts'
import type { DocumentRow } from '../documents/model.ts'
import { lockDocument, updateDocument } from '../documents/store.ts'
import { Hold, leaseOf, Superseded } from './hold.ts'
import { type IngestionMessage, ingestionQueue } from './queue.ts'
import { readSource } from './read.ts'
import { settleFailed } from './settle.ts'
import { awaitCallback, type Claim, claimAttempt, endHeld, heldUntil, requeueAttempt } from './store.ts'
import { writeChunks } from './write.ts'

type Outcome = 'ready' | 'failed' | 'awaiting' | 'retry' | 'superseded'

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
  // Of a rule that has changed since, so that its chunk settings and those of the request exclude each other.
  'VALIDATION_FAILED',
]

const FIRST_RETRY_MS = 10_000
const LAST_RETRY_MS = 600_000

/**
 * One try of an ingestion attempt: claims it, reads, cuts and embeds the text, writes chunks batch by batch, and settles
 * the document. Everything it writes is conditional on its claim, under the document's lock. Never throws for what a
 * file or a converter does; throws HandBack when the worker stops, and what could not be recorded.
 */
export async function ingest(services: Services, message: IngestionMessage, context: JobContext): Promise<void> {
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
    const { outcome, ...more } = await failed(services, claim, failureOf(error), !isFinal(error))
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

type Ended = { outcome: Outcome; chunk_count?: number; error?: RecordedFailure; next_ms?: number }

async function carryOut(services: Services, document: DocumentRow, hold: Hold): Promise<Ended> {
  const { claim, signal } = hold
  const source = await readSource(services, document, claim, signal)
  // A call that was cut off is no answer of the converter.
  signal.throwIfAborted()
  await fault(services, 'ingestion_read')
  if (source.kind === 'pending') return deferred(services, hold)
  if (source.kind === 'failed') return failed(services, claim, source.error, source.retry)

  const settings = effectiveSettings(claim.settings, source.rule, { chunk_strategy: 'page' })
  const chunks = await splitPages(source.pages, settings, { title: document.title, limits: services.config })
  await writeChunks(services, hold, document, {
    chunks,
    pages: source.pages,
    totals: { total_pages: source.total_pages, total_chunks: chunks.length, ...settings },
  })
  await fault(services, 'ingestion_settled')
  return { outcome: 'ready', chunk_count: chunks.length }
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

/** Whether another try would end the same. */
const isFinal = (error: unknown): boolean => isNamed(error) || error instanceof ChunkLimitError

const isNamed = (error: unknown): error is AppError => error instanceof AppError && NAMED.includes(error.code)

/** What is recorded of something that was thrown: its own name where the platform has given it one for ingestions. */
export function failureOf(error: unknown): RecordedFailure {
  if (isNamed(error)) return error.recorded()
  return { code: 'INGESTION_FAILED', message: error instanceof Error ? error.message : String(error) }
}
