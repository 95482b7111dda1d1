import { AppError, type RecordedFailure } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import {
  type ActiveClaim,
  type AttemptOutcome,
  ClaimLostError,
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

/** Failures that another try would end in again. */
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

const ownLease = ({ config }: Services): Lease =>
  leaseTimings(Math.min(config.INGESTION_LEASE_SECONDS * 1000, config.INGESTION_STALL_TIMEOUT_MS))

/**
 * One try of an ingestion attempt: claims it, reads, cuts and embeds the text, writes chunks batch by batch, and settles
 * the document. Everything it writes is conditional on its claim, under the document's lock. Never throws for what a
 * file or a converter does; throws HandBack when the worker stops, and what could not be recorded.
 */
export async function ingestDocument(message: IngestionMessage, context: JobContext): Promise<void> {
  const { services } = context
  const named = { entity: message.document_id, id: message.attempt_id }
  const taken =
    (await claimFirst(services.pool, named, ownLease(services).leaseMs)) ??
    (await services.write(tx => reclaim(tx, services, message)))
  if (!taken) return
  const { claim, document } = taken
  await processClaim(context, {
    what: 'ingestion',
    ids: { document_id: document.id, attempt_id: claim.id },
    attempts: ingestionWork,
    claim,
    lease: ownLease(services),
    lock: tx => lockDocument(tx, document.id),
    async work(hold) {
      await injectFault(services, 'ingestion_claimed')
      return ingestOnce(services, document, hold)
    },
    fail: error => failed(services, claim, ingestionFailure(error), !isFinal(error)),
  })
}

/** Claims an attempt again and clears what an earlier claim has written. One that another worker holds is looked at again. */
async function reclaim(
  tx: Tx,
  services: Services,
  message: IngestionMessage,
): Promise<{ claim: IngestionClaim; document: DocumentRow } | null> {
  const named = { entity: message.document_id, id: message.attempt_id }
  const document = await lockDocument(tx, named.entity)
  if (!document) return null
  const claim = await claimOrReschedule(tx, ingestionWork, named, ownLease(services), ingestionQueue, message)
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
  hold: ActiveClaim<IngestionClaim>,
): Promise<AttemptOutcome> {
  const { claim, signal } = hold
  const source = await readSource(services, document, claim, signal)
  // A call that was cut off is no answer of the converter.
  signal.throwIfAborted()
  await injectFault(services, 'ingestion_read')
  if (source.kind === 'pending') return deferred(services, hold)
  if (source.kind === 'failed') return failed(services, claim, source.error, source.retry)

  const settings = effectiveSettings(claim.settings, source.rule, { chunk_strategy: 'page' })
  const chunks = await splitPages(source.pages, settings, { title: document.title, limits: services.config })
  await writeChunks(services, hold, document, {
    chunks,
    pages: source.pages,
    totals: { total_pages: source.total_pages, total_chunks: chunks.length, ...settings },
  })
  await injectFault(services, 'ingestion_settled')
  return { outcome: 'ready', chunk_count: chunks.length }
}

/** A tool has said that it will post the text. Its callback may have been faster. */
async function deferred(services: Services, hold: ActiveClaim<IngestionClaim>): Promise<AttemptOutcome> {
  const { claim } = hold
  await hold.write(async tx => {
    const document = await lockDocument(tx, claim.entity)
    if (!document || !(await awaitCallback(tx, claim, services.config.CONVERSION_STALL_TIMEOUT_MS)))
      throw new ClaimLostError()
  })
  return { outcome: 'awaiting' }
}

/** Records a failed try: the end of the attempt, or another try in 10 s, 40 s and so on. */
async function failed(
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
  if (!recorded) return { outcome: 'superseded' }
  return last ? { outcome: 'failed', error } : { outcome: 'retry', error, next_ms: delayMs }
}

/** Whether another try would end the same. */
const isFinal = (error: unknown): boolean => isNamed(error) || error instanceof ChunkLimitError

const isNamed = (error: unknown): error is AppError => error instanceof AppError && NAMED.includes(error.code)

/** What is recorded of something that was thrown: its own name where the platform has given it one for ingestions. */
export function ingestionFailure(error: unknown): RecordedFailure {
  if (isNamed(error)) return error.recorded()
  return { code: 'INGESTION_FAILED', message: error instanceof Error ? error.message : String(error) }
}
