import { isDeepStrictEqual } from 'node:util'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Tags } from '../../core/api/record.ts'
import { requireVersion } from '../../core/api/versions.ts'
import type { Tx } from '../../core/db/writer.ts'
import { removeChunks } from '../chunks/store.ts'
import { type DocumentAuthor, type DocumentRow, type DocumentVersionRow, documentKind } from './model.ts'
import { endIngestion, findVersion, lockDocument, updateDocument } from './store.ts'
import { applyDocumentChange, refuseReserved, refuseWithdrawn, requireTag } from './update-document.ts'

const NUMBER = /^[1-9]\d{0,8}$/

/** The version that a path names. Raises RESOURCE_NOT_FOUND. */
export async function versionOf(
  db: Parameters<typeof findVersion>[0],
  documentId: string,
  number: string,
): Promise<DocumentVersionRow> {
  const found = NUMBER.test(number) ? await findVersion(db, documentId, Number(number)) : null
  return (
    found ??
    raise('RESOURCE_NOT_FOUND', { message: `There is no version ${number} of ${documentId}`, meta: { id: number } })
  )
}

/**
 * Writes the state of a version as a new one, the way an update would; a withdrawn document comes back with it. Raises
 * VALIDATION_FAILED for a tombstone, and for a version from before the document had a text when it has one now.
 */
export async function restoreAsNewest(
  context: Parameters<typeof applyDocumentChange>[0],
  number: string,
  expected_version: number | undefined,
): Promise<DocumentRow> {
  const { resource, services } = context
  const version = await versionOf(services.pool, resource.id, number)
  if (version.tombstone)
    raiseInvalid({ code: 'INVALID_STATE', path: 'version', message: 'is a tombstone; restore a version with content' })
  if (version.content === null && resource.text_version !== null)
    raiseInvalid({ code: 'INVALID_STATE', path: 'version', message: 'is from before the document had a text' })
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
 * Takes a document out of lists and searches: chunks and vectors go, a tombstone is appended. A withdrawn one stays as
 * it is, without an event.
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
  requireTag(row, etag)
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
  }
  const after = await updateDocument(tx, withdrawn, { tombstone: true, created_by })
  tx.emit(documentKind, 'withdrawn', after)
  return after
}

/** Stores the tags of a locked document as a version of their own, unless they are what it has. */
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
