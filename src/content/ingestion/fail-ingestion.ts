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
 * Records that the ingestion of a document has failed and removes what it wrote. The caller holds the document's lock
 * and has ended its attempt.
 */
export async function failIngestion(tx: Tx, document: DocumentRow, failure: RecordedFailure): Promise<DocumentRow> {
  // A thrown message may quote what no text can hold.
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

/** How long the parts of an ingestion may take in this deployment. */
export const ingestionLimits = ({ config }: Pick<Services, 'config'>): WorkItemLimits => ({
  silenceMs: config.INGESTION_STALL_TIMEOUT_MS,
  queueMs: config.INGESTION_QUEUE_TIMEOUT_MS,
})

const TIMEOUTS: Record<string, RecordedFailure> = {
  queued: { code: 'INGESTION_TIMEOUT', message: 'No worker took the document up in time' },
  running: { code: 'INGESTION_TIMEOUT', message: 'The worker that ingested the document was lost' },
  awaiting: { code: 'CONVERSION_TIMEOUT', message: 'The converter never called back' },
}

/**
 * Ends the ingestion of a document that has taken too long. Of this, a callback and a worker that comes
 * late, one wins. Answers false while the ingestion is under way: true means that the document's row is to be read again.
 */
export async function failStalledIngestion(services: Services, documentId: string): Promise<boolean> {
  const limits = ingestionLimits(services)
  const found = await ingestionWork.isStalled(services.pool, documentId, limits)
  // Without an attempt, somebody else has settled it meanwhile.
  if (!found) return found === null
  await services.write(async tx => {
    const document = await lockDocument(tx, documentId)
    const ended = document && (await ingestionWork.endStalled(tx, documentId, limits))
    if (!ended) return
    const error = TIMEOUTS[ended.state]
    await failIngestion(tx, document, error)
    services.log.warn(
      { document_id: documentId, attempt_id: ended.id, outcome: 'failed', error, decision: 'given up' },
      'ingestion',
    )
  })
  return true
}
