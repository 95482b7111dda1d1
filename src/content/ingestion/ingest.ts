import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'
import { sql } from '#core/db/sql.ts'
import type { AttemptFields } from '#core/work/attempt.ts'
import { exponential } from '#core/work/retry.ts'
import { work } from '#core/work/work.ts'
import { type DocumentRow, documentKind } from '../documents/model.ts'
import { effectiveSettings } from '../index/chunks/chunk-settings.ts'
import { splitPages } from '../index/chunks/split.ts'
import { removeChunks } from '../index/chunks/store.ts'
import { failIngestion } from './fail-ingestion.ts'
import { readSource } from './read-source.ts'
import { inStage } from './stages.ts'
import { type IngestionAttempt, ingestionColumns } from './store.ts'
import { writeChunks } from './write-chunks.ts'

/** Error codes that are recorded unchanged and not retried. */
const FINAL_CODES: readonly string[] = [
  'CONVERSION_TIMEOUT',
  'CONVERTER_FAILED',
  'CONVERTER_OUTPUT_INVALID',
  'FILE_DOWNLOAD_URL_NOT_CONFIGURED',
  'FILE_NOT_FOUND',
  'FILE_PARSE_FAILED',
  'FILE_STORAGE_MISCONFIGURED',
  'INGESTION_FAILED',
  'INGESTION_TIMEOUT',
  'PDF_PARSE_FAILED',
  'RESOURCE_NOT_FOUND',
  'UNSUPPORTED_FILE_TYPE',
  // A changed rule has chunk settings that conflict with the request.
  'VALIDATION_FAILED',
]

const isFinal = (error: unknown): error is AppError => error instanceof AppError && FINAL_CODES.includes(error.code)

/** Returns the failure to record for an error: INGESTION_FAILED for errors without a final code. */
function ingestionFailure(error: unknown): RecordedFailure {
  if (isFinal(error)) return error.recorded()
  return { code: 'INGESTION_FAILED', message: error instanceof Error ? error.message : String(error) }
}

const workerLost = () => new AppError('INGESTION_TIMEOUT', { message: 'The worker of the ingestion was lost' })

const STALLED: Record<string, () => AppError> = {
  queued: () => new AppError('INGESTION_TIMEOUT', { message: 'No worker started the ingestion in time' }),
  running: workerLost,
  awaiting: () => new AppError('CONVERSION_TIMEOUT', { message: 'The converter did not call back in time' }),
}

/** Ingests the file of a document: reads, splits and embeds its text, writes chunks in batches and settles the document. */
export const ingestionWork = work({
  name: 'ingestion.process',
  concern: 'ingestion',
  entity: documentKind,
  table: 'ingestion_attempts',
  entityColumn: 'document_id',
  columns: ingestionColumns,
  ids: ({ id, project_id }, claim) => ({ document_id: id, attempt_id: claim.id, project_id }),
  leaseSeconds: config =>
    Math.min(config.INGESTION_LEASE_SECONDS, Math.floor(config.INGESTION_STALL_TIMEOUT_MS / 1000)),
  begin: sql.fragment`
    status = 'processing', chunk_count = 0, embedded_chunks = 0, total_chunks = null, total_pages = null, updated_at = now()`,
  waitStates: ['awaiting'],
  retry: config => ({
    attempts: config.INGESTION_MAX_TRIES,
    losses: 2,
    delayMs: exponential(10_000, { factor: 4, maxMs: 600_000 }),
  }),
  isFinal,
  lostError: workerLost,
  stall: {
    limits: config => ({ silentMs: config.INGESTION_STALL_TIMEOUT_MS, queuedMs: config.INGESTION_QUEUE_TIMEOUT_MS }),
    error: state => STALLED[state](),
  },
  sweep: { seconds: 60, dueIf: sql.fragment`exists (select from ingestion_attempts)` },
  span: ({ entity, claim }) => ({
    name: 'ingest',
    unit: true,
    from: { context: claim.trace_context, at: claim.created_at },
    shared: { [MUSTER.project]: entity.project_id },
    attributes: { [MUSTER.document]: entity.id },
  }),
  run: ingest,
  async fail(tx, { entity, error }) {
    const failure = ingestionFailure(error)
    await failIngestion(tx, entity, failure)
    return { code: failure.code }
  },
})

async function ingest(attempt: IngestionAttempt): Promise<AttemptFields> {
  const { services, entity: document, claim } = attempt
  // An earlier attempt may have written chunks.
  if (claim.claims > 1) await attempt.write(tx => removeChunks(tx, document.id))
  const source = await readSource(attempt)
  await injectFault(services, 'ingestion_read')
  if (!source) {
    const waitMs = services.config.CONVERSION_STALL_TIMEOUT_MS
    await attempt.suspend(async () => sql.fragment`state = 'awaiting', due_at = now() + ${waitMs} * interval '1 ms'`)
    return { outcome: 'awaiting' }
  }
  const { pages, total_pages, rule } = source
  const settings = effectiveSettings(claim.settings, rule, { chunk_strategy: 'page' })
  const chunks = await inStage('cut', async note => {
    const cut = await splitPages(pages, settings, { title: document.title, limits: services.config })
    note({ pages: pages.length, chunks: cut.length })
    return cut
  })
  const totals = {
    total_pages,
    total_chunks: chunks.length,
    ...settings,
    search_language: rule?.search_language ?? null,
    charset: source.charset ?? null,
  }
  await writeChunks(attempt, { chunks, pages, totals })
  return { outcome: 'ready', chunk_count: chunks.length }
}

/** Fails the ingestion of a document if it has stalled; returns the current document. */
export const failIfStalled = async (services: Services, row: DocumentRow): Promise<DocumentRow> =>
  (await ingestionWork.abandonStalled(services, row.id))
    ? ((await documentKind.find(services.pool, row.id)) ?? row)
    : row
