import type { RecordedFailure } from '../../core/api/errors.ts'
import { storableText } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { WorkItemLimits } from '../../core/jobs/work-item.ts'
import type { Services } from '../../core/process/services.ts'
import { removeChunks } from '../chunks/store.ts'
import { type DocumentRow, documentKind } from '../documents/model.ts'
import { lockDocument, updateDocument } from '../documents/store.ts'
import { DOCUMENT_SETTLED_CHANNEL } from './queue.ts'
import { ingestionWork } from './store.ts'

const MAX_MESSAGE = 2000

/**
 * Fails the ingestion of a document and deletes its chunks. The caller has locked the document and ended the attempt.
 */
export async function failIngestion(tx: Tx, document: DocumentRow, failure: RecordedFailure): Promise<DocumentRow> {
  // A thrown message may contain characters that the database cannot store.
  const error = { ...failure, message: storableText(failure.message.slice(0, MAX_MESSAGE), '') }
  await removeChunks(tx, document.id)
  const failed = await updateDocument(tx, {
    ...document,
    status: 'failed',
    error,
    chunk_count: 0,
    embedded_chunks: 0,
    embed_since: null,
  })
  tx.emit(documentKind, 'ingest_failed', failed, { extra: { error } })
  tx.notify(DOCUMENT_SETTLED_CHANNEL, failed.id)
  return failed
}

/** Timeouts of active and queued ingestions. */
export const ingestionLimits = ({ config }: Pick<Services, 'config'>): WorkItemLimits => ({
  silenceMs: config.INGESTION_STALL_TIMEOUT_MS,
  queueMs: config.INGESTION_QUEUE_TIMEOUT_MS,
})

const TIMEOUTS: Record<string, RecordedFailure> = {
  queued: { code: 'INGESTION_TIMEOUT', message: 'No worker started the ingestion in time' },
  running: { code: 'INGESTION_TIMEOUT', message: 'The worker of the ingestion was lost' },
  awaiting: { code: 'CONVERSION_TIMEOUT', message: 'The converter did not call back in time' },
}

/**
 * Fails the ingestion of a document if it has stalled. Concurrent callbacks and late workers serialize on the attempt,
 * of which one wins. Returns false while the ingestion is active, true if the caller must read the document again.
 */
export async function failStalledIngestion(services: Services, documentId: string): Promise<boolean> {
  const limits = ingestionLimits(services)
  const isStalled = await ingestionWork.isStalled(services.pool, documentId, limits)
  // Null without an attempt: the ingestion has settled concurrently.
  if (!isStalled) return isStalled === null
  await services.write(async tx => {
    const document = await lockDocument(tx, documentId)
    const ended = document && (await ingestionWork.endStalled(tx, documentId, limits))
    if (!ended) return
    const error = TIMEOUTS[ended.state]
    await failIngestion(tx, document, error)
    services.log.warn(
      { document_id: documentId, attempt_id: ended.id, outcome: 'failed', error, decision: 'abandoned' },
      'ingestion',
    )
  })
  return true
}
