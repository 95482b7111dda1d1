import type { RecordedFailure } from '#core/base/errors.ts'
import { storableText } from '#core/base/storable-text.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type DocumentRow, documentKind } from '../documents/model.ts'
import { updateDocument } from '../documents/store.ts'
import { removeChunks } from '../index/chunks/store.ts'
import { DOCUMENT_SETTLED_CHANNEL } from './wait.ts'

const MAX_MESSAGE = 2000

/**
 * Fails the ingestion of a document and deletes its chunks. The caller has locked the document and ends the attempt.
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
    embedding: null,
  })
  tx.emit(documentKind, 'ingest_failed', failed, { extra: { error } })
  tx.notify(DOCUMENT_SETTLED_CHANNEL, failed.id)
  return failed
}
