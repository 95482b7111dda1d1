import type { Tx } from '../../core/db/write.ts'
import { removeChunks } from '../chunks/store.ts'
import { fileKind } from '../files/model.ts'
import { deleteFileRow, lockFile } from '../files/store.ts'
import type { Stores } from '../storage/stores.ts'
import { type DocumentRow, documentKind } from './model.ts'
import { deleteDocument } from './store.ts'

/**
 * Removes a document with its chunks, vectors, versions and backing file, and tells of both with their records as they
 * stood. Takes the locked row. Who is ingesting the document finds no row any more.
 */
export async function removeDocument(tx: Tx, stores: Stores, row: DocumentRow): Promise<void> {
  tx.emit(documentKind, 'deleted', row)
  await removeChunks(tx, row.id)
  await deleteDocument(tx, row.id)
  const file = await lockFile(tx, row.file_id)
  if (!file) return
  await deleteFileRow(tx, stores, file)
  tx.emit(fileKind, 'deleted', { ...file, document_id: row.id })
}
