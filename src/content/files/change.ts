import { checkStorage } from '../../control/quotas/storage.ts'
import { refuseDependents } from '../../core/api/dependents.ts'
import { raise } from '../../core/api/errors.ts'
import type { Kind } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { directoryOf } from '../paths.ts'
import { checkMetadata } from '../schemas/check.ts'
import { stores } from '../storage/stores.ts'
import { mediaTypeOf } from './media-type.ts'
import { type FileRow, fileKind } from './model.ts'
import { placeOf, requireWritable } from './place.ts'
import { deleteFileRow, lockFile, moveFile, setFileContent, setFileMetadata } from './store.ts'
import type { Upload } from './upload.ts'

/** The row that a caller may change, under its lock. Raises RESOURCE_NOT_FOUND and VALIDATION_FAILED. */
async function takeFile(tx: Tx, id: string): Promise<FileRow> {
  const row = (await lockFile(tx, id)) ?? raise(fileKind.notFound, { meta: { id } })
  requireWritable(row)
  return row
}

/** Raises FILE_HAS_DEPENDENTS while a document or a trace has the file. */
const refuseHeld = (tx: Tx, id: string): Promise<void> =>
  refuseDependents(tx, fileKind, id, { force: false, code: 'FILE_HAS_DEPENDENTS' })

/** Changes metadata, directory and name of a file, as far as they are given (content, 2.3 rule 10). */
export async function changeFile(
  services: Services,
  tx: Tx,
  id: string,
  change: { metadata?: Record<string, unknown> | null; prefix?: string; filename?: string },
  allow: Context['allow'],
): Promise<FileRow> {
  const stored = await takeFile(tx, id)
  const { metadata, prefix, filename } = change
  const here = stored.path === null ? null : directoryOf(stored.path)
  const place =
    prefix === undefined && filename === undefined ? null : placeOf(prefix ?? here, filename ?? stored.filename)
  const moved = place !== null && (place.path !== stored.path || place.filename !== stored.filename)
  if (moved) {
    allow('files:UpdateFileMetadata', { kind: fileKind as unknown as Kind, row: { ...stored, ...place } })
    await refuseHeld(tx, id)
  }
  if (metadata !== undefined || (moved && stored.metadata !== null))
    await checkMetadata(services, tx, {
      project_id: stored.project_id,
      resource_type: 'file',
      path: place?.path ?? stored.path,
      metadata: metadata === undefined ? stored.metadata : metadata,
    })
  let row = stored
  if (moved) row = await moveFile(tx, id, place)
  if (metadata !== undefined) row = await setFileMetadata(tx, id, metadata)
  if (row !== stored) tx.emit(fileKind, 'updated', row)
  return row
}

/** Gives a file its bytes, or others (content, 2.6). Raises FILE_HAS_DEPENDENTS, QUOTA_STORAGE_EXCEEDED. */
export async function replaceContent(services: Services, tx: Tx, id: string, upload: Upload): Promise<FileRow> {
  const stored = await takeFile(tx, id)
  await refuseHeld(tx, id)
  const { staged } = upload
  await checkStorage(services, stored.project_id, Math.max(0, staged.size - (stored.size ?? 0)), tx)
  const content_type = await mediaTypeOf({
    part: upload.type,
    before: stored.content_type,
    filename: stored.filename,
    head: staged.head,
  })
  const { size, sha256, storage, location } = staged
  const row = await setFileContent(tx, stored, { size, sha256, storage, location, content_type })
  await stores(services).commit(tx, staged)
  tx.emit(fileKind, 'updated', row)
  return row
}

/**
 * Deletes a file that nothing refers to, with its bytes (content, 2.3 rule 11). Raises FILE_HAS_DEPENDENTS,
 * VALIDATION_FAILED for one of the platform's.
 */
export async function removeFile(services: Services, tx: Tx, id: string): Promise<void> {
  const stored = await lockFile(tx, id)
  if (!stored) return raise(fileKind.notFound, { meta: { id } })
  // First, so that who asks to delete a file of the platform is told whose it is.
  await refuseHeld(tx, id)
  requireWritable(stored)
  await deleteFileRow(tx, stores(services), stored)
  tx.emit(fileKind, 'deleted', stored)
}
