import { isDeepStrictEqual } from 'node:util'
import type { Tags } from '#core/api/record.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { requireVersion } from '#core/resources/version.ts'
import type { Tx } from '#core/writes/writer.ts'
import { removeChunks } from '../index/chunks/store.ts'
import { type DocumentAuthor, type DocumentRow, type DocumentVersionRow, documentKind } from './model.ts'
import { endIngestion, findVersion, lockDocument, updateDocument } from './store.ts'
import { applyDocumentChange, refuseReserved, refuseWithdrawn, requireEtag } from './update-document.ts'

const NUMBER = /^[1-9]\d{0,8}$/

/** Returns a version by the number in a request path. Raises RESOURCE_NOT_FOUND. */
export async function requireDocumentVersion(
  db: Parameters<typeof findVersion>[0],
  documentId: string,
  number: string,
): Promise<DocumentVersionRow> {
  const version = NUMBER.test(number) ? await findVersion(db, documentId, Number(number)) : null
  return (
    version ??
    raise('RESOURCE_NOT_FOUND', { message: `Version ${number} of ${documentId} not found`, meta: { id: number } })
  )
}

/**
 * Writes the state of a version as the newest version, like an update; also restores a withdrawn document. Raises
 * VALIDATION_FAILED for a tombstone, and for a version without text if the document has one.
 */
export async function restoreAsNewest(
  context: Parameters<typeof applyDocumentChange>[0],
  number: string,
  expected_version: number | undefined,
): Promise<DocumentRow> {
  const { resource, services } = context
  const version = await requireDocumentVersion(services.pool, resource.id, number)
  if (version.tombstone)
    raiseInvalid({ code: 'INVALID_STATE', path: 'version', message: 'is a tombstone; restore a version with content' })
  if (version.content === null && resource.text_version !== null)
    raiseInvalid({ code: 'INVALID_STATE', path: 'version', message: 'has no text because it precedes the ingestion' })
  const { title, path, metadata, tags, content } = version
  return applyDocumentChange(context, {
    title,
    path,
    metadata,
    tags: () => tags,
    settings: version,
    ...(content === null ? {} : { content }),
    restores: version,
    expected_version,
  })
}

/**
 * Withdraws a document: deletes its chunks and vectors and appends a tombstone version. A withdrawn document is
 * returned unchanged, without an event.
 */
export async function withdrawDocument(
  tx: Tx,
  id: string,
  {
    expected_version,
    etag,
    created_by,
  }: { expected_version: number | undefined; etag: string | undefined; created_by: DocumentAuthor },
): Promise<DocumentRow> {
  const row = await lockDocument(tx, id)
  if (!row) return raise(documentKind.notFound, { meta: { id } })
  refuseReserved(row)
  requireVersion(row, expected_version)
  requireEtag(row, etag)
  if (row.status === 'withdrawn') return row
  await removeChunks(tx, id)
  if (row.status === 'pending' || row.status === 'processing') await endIngestion(tx, id)
  const withdrawn: DocumentRow = {
    ...row,
    status: 'withdrawn',
    version: row.version + 1,
    chunk_count: 0,
    embedded_chunks: 0,
    error: null,
    embed_since: null,
    embedding: null,
  }
  const after = await updateDocument(tx, withdrawn, { tombstone: true, created_by })
  tx.emit(documentKind, 'withdrawn', after)
  return after
}

/** Writes the tags of a locked document as a new version, unless they are unchanged. */
export async function setDocumentTags(
  tx: Tx,
  row: DocumentRow,
  tags: Tags,
  created_by: DocumentAuthor,
): Promise<DocumentRow> {
  refuseReserved(row)
  refuseWithdrawn(row)
  if (isDeepStrictEqual(row.tags, tags)) return row
  const after = await updateDocument(tx, { ...row, tags, version: row.version + 1 }, { created_by })
  tx.emit(documentKind, 'updated', after)
  return after
}
