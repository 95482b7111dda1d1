import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import { ClaimLostError, type JobContext } from '../../core/jobs/handler.ts'
import {
  type ActiveClaim,
  type AttemptOutcome,
  claimOrReschedule,
  type Lease,
  leaseTimings,
  processClaim,
} from '../../core/jobs/work-item.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { effectiveSettings } from '../chunks/settings.ts'
import { ChunkLimitError, splitPages } from '../chunks/split.ts'
import { removeChunks } from '../chunks/store.ts'
import type { DocumentRow } from '../documents/model.ts'
import { lockDocument, updateDocument } from '../documents/store.ts'
import { failIngestion } from './fail-ingestion.ts'
import { type IngestionMessage, ingestionQueue } from './queue.ts'
import { readSource } from './read-source.ts'
import { awaitCallback, claimFirst, type IngestionClaim, ingestionWork } from './store.ts'
import { writeChunks } from './write-chunks.ts'

/** Error codes that are recorded unchanged and not retried. */
const FINAL_CODES: readonly string[] = [
  'CONVERTER_FAILED',
  'CONVERTER_OUTPUT_INVALID',
  'FILE_DOWNLOAD_URL_NOT_CONFIGURED',
  'FILE_NOT_FOUND',
  'FILE_PARSE_FAILED',
  'FILE_STORAGE_MISCONFIGURED',
  'PDF_PARSE_FAILED',
  'RESOURCE_NOT_FOUND',
  'UNSUPPORTED_FILE_TYPE',
  // A changed rule has chunk settings that conflict with the request.
  'VALIDATION_FAILED',
]

const FIRST_RETRY_MS = 10_000
const LAST_RETRY_MS = 600_000

const ingestionLease = ({ config }: Services): Lease =>
  leaseTimings(Math.min(config.INGESTION_LEASE_SECONDS * 1000, config.INGESTION_STALL_TIMEOUT_MS))

/**
 * Claims an ingestion attempt, reads, splits and embeds the text, writes chunks in batches and settles the document.
 * All writes are fenced by the claim, under the lock of the document. Failures of a file or a converter are recorded;
 * throws RequeueError when the worker stops, and failures to record the outcome.
 */
export async function ingestDocument(message: IngestionMessage, context: JobContext): Promise<void> {
  const { services } = context
  const ref = { entity: message.document_id, id: message.attempt_id }
  const claimed =
    (await claimFirst(services.pool, ref, ingestionLease(services).leaseMs)) ??
    (await services.write(tx => reclaim(tx, services, message)))
  if (!claimed) return
  const { claim, document } = claimed
  await processClaim(context, {
    what: 'ingestion',
    ids: { document_id: document.id, attempt_id: claim.id },
    attempts: ingestionWork,
    claim,
    lease: ingestionLease(services),
    lock: tx => lockDocument(tx, document.id),
    async work(activeClaim) {
      await injectFault(services, 'ingestion_claimed')
      return ingestOnce(services, document, activeClaim)
    },
    fail: error => recordFailure(services, claim, ingestionFailure(error), !isFinal(error)),
  })
}

/**
 * Claims an attempt again and deletes the chunks of the previous claim. Reschedules if another worker has the claim.
 */
async function reclaim(
  tx: Tx,
  services: Services,
  message: IngestionMessage,
): Promise<{ claim: IngestionClaim; document: DocumentRow } | null> {
  const ref = { entity: message.document_id, id: message.attempt_id }
  const document = await lockDocument(tx, ref.entity)
  if (!document) return null
  const claim = await claimOrReschedule(tx, ingestionWork, ref, ingestionLease(services), ingestionQueue, message)
  if (claim === null || claim === 'held') return null
  await removeChunks(tx, document.id)
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

async function ingestOnce(
  services: Services,
  document: DocumentRow,
  activeClaim: ActiveClaim<IngestionClaim>,
): Promise<AttemptOutcome> {
  const { claim, signal } = activeClaim
  const source = await readSource(services, document, claim, signal)
  // An aborted call is not a failure of the converter.
  signal.throwIfAborted()
  await injectFault(services, 'ingestion_read')
  if (source.kind === 'pending') return awaitConverter(services, activeClaim)
  if (source.kind === 'failed') return recordFailure(services, claim, source.error, source.retry)

  const settings = effectiveSettings(claim.settings, source.rule, { chunk_strategy: 'page' })
  const chunks = await splitPages(source.pages, settings, { title: document.title, limits: services.config })
  await writeChunks(services, activeClaim, document, {
    chunks,
    pages: source.pages,
    totals: { total_pages: source.total_pages, total_chunks: chunks.length, ...settings },
  })
  await injectFault(services, 'ingestion_settled')
  return { outcome: 'ready', chunk_count: chunks.length }
}

/** Leaves the attempt to the callback of a deferring tool. Throws ClaimLostError if the callback arrived first. */
async function awaitConverter(services: Services, activeClaim: ActiveClaim<IngestionClaim>): Promise<AttemptOutcome> {
  const { claim } = activeClaim
  await activeClaim.write(async tx => {
    const document = await lockDocument(tx, claim.entity)
    if (!document || !(await awaitCallback(tx, claim, services.config.CONVERSION_STALL_TIMEOUT_MS)))
      throw new ClaimLostError()
  })
  return { outcome: 'awaiting' }
}

/** Records a failure: fails the document, or schedules a retry after 10 s, 40 s, 160 s, at most 10 min. */
async function recordFailure(
  services: Services,
  claim: IngestionClaim,
  error: RecordedFailure,
  retry: boolean,
): Promise<AttemptOutcome> {
  const last = !retry || claim.failures + 1 >= services.config.INGESTION_MAX_TRIES
  const delayMs = Math.min(FIRST_RETRY_MS * 4 ** claim.failures, LAST_RETRY_MS)
  const recorded = await services.write(async tx => {
    const document = await lockDocument(tx, claim.entity)
    if (!document) return false
    if (last) {
      if (!(await ingestionWork.end(tx, claim))) return false
      await failIngestion(tx, document, error)
      return true
    }
    if (!(await ingestionWork.requeue(tx, claim, { delayMs, failed: true }))) return false
    tx.send(
      ingestionQueue,
      { document_id: claim.entity, attempt_id: claim.id, project_id: document.project_id },
      { startAfter: new Date(Date.now() + delayMs) },
    )
    return true
  })
  if (!recorded) return { outcome: 'claim_lost' }
  return last ? { outcome: 'failed', error } : { outcome: 'retry', error, next_ms: delayMs }
}

/** Whether a retry would fail again. */
const isFinal = (error: unknown): boolean => hasFinalCode(error) || error instanceof ChunkLimitError

const hasFinalCode = (error: unknown): error is AppError =>
  error instanceof AppError && FINAL_CODES.includes(error.code)

/**
 * Returns the failure to record for a thrown error: its own code if it is a code of ingestions, else INGESTION_FAILED.
 */
export function ingestionFailure(error: unknown): RecordedFailure {
  if (hasFinalCode(error)) return error.recorded()
  return { code: 'INGESTION_FAILED', message: error instanceof Error ? error.message : String(error) }
}
