import type { Tx } from '../../core/db/writer.ts'
import { removeChunks } from '../chunks/store.ts'
import { fileKind } from '../files/model.ts'
import { type DocumentRow, documentKind } from './model.ts'

/**
 * Removes a document with its chunks, vectors, versions and backing file, and emits the delete of both with their records
 * as they stood. Takes the locked row. Whoever is ingesting the document no longer finds it.
 */
export async function removeDocument(tx: Tx, row: DocumentRow): Promise<void> {
  tx.emit(documentKind, 'deleted', row)
  await removeChunks(tx, row.id)
  await documentKind.delete(tx, row.id)
  const file = await fileKind.find(tx, row.file_id, true)
  if (file) await fileKind.remove?.(tx, { ...file, document_id: row.id })
}
