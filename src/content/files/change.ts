import { checkStorage } from '#control/quotas/storage.ts'
import { refuseDependents } from '#core/api/dependents.ts'
import type { Context } from '#core/api/operation.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { directoryOf } from '../paths.ts'
import { checkAgainstSchema } from '../schemas/check.ts'
import { storageBackends } from '../storage/backends.ts'
import { filePlacement, requireWritable } from './file-path.ts'
import { mediaTypeOf } from './media-type.ts'
import { type FileRow, fileKind } from './model.ts'
import { setFileContent } from './store.ts'
import type { Upload } from './upload.ts'

/** Locks and returns a file that the caller may change. Raises RESOURCE_NOT_FOUND and VALIDATION_FAILED. */
async function lockWritableFile(tx: Tx, id: string): Promise<FileRow> {
  const row = await fileKind.lock(tx, id)
  requireWritable(row)
  return row
}

/** Raises FILE_HAS_DEPENDENTS while a document or a trace references the file. */
const refuseReferenced = (tx: Tx, id: string): Promise<void> =>
  refuseDependents(tx, fileKind, id, { force: false, code: 'FILE_HAS_DEPENDENTS' })

/** Updates metadata, directory and name of a file; undefined properties are unchanged. */
export async function changeFile(
  services: Services,
  tx: Tx,
  id: string,
  change: { metadata?: Record<string, unknown> | null; prefix?: string; filename?: string },
  allow: Context['allow'],
): Promise<FileRow> {
  const stored = await lockWritableFile(tx, id)
  const { metadata, prefix, filename } = change
  const directory = stored.path === null ? null : directoryOf(stored.path)
  const place =
    prefix === undefined && filename === undefined
      ? null
      : filePlacement(prefix ?? directory, filename ?? stored.filename)
  const moved = place !== null && (place.path !== stored.path || place.filename !== stored.filename)
  if (moved) {
    allow('files:UpdateFileMetadata', { kind: fileKind, row: { ...stored, ...place } })
    await refuseReferenced(tx, id)
  }
  if (metadata !== undefined || (moved && stored.metadata !== null))
    await checkAgainstSchema(services, tx, {
      project_id: stored.project_id,
      resource_type: 'file',
      path: place?.path ?? stored.path,
      metadata: metadata === undefined ? stored.metadata : metadata,
    })
  if (!moved && metadata === undefined) return stored
  const row = await fileKind.update(tx, id, { ...(moved ? place : {}), metadata })
  tx.emit(fileKind, 'updated', row)
  return row
}

/** Writes the first content of a file or replaces it. Raises FILE_HAS_DEPENDENTS, QUOTA_STORAGE_EXCEEDED. */
export async function writeFileContent(services: Services, tx: Tx, id: string, upload: Upload): Promise<FileRow> {
  const stored = await lockWritableFile(tx, id)
  await refuseReferenced(tx, id)
  const { staged } = upload
  await checkStorage(services, stored.project_id, Math.max(0, staged.size - (stored.size ?? 0)), tx)
  const content_type = await mediaTypeOf({
    part: upload.type,
    previous: stored.content_type,
    filename: stored.filename,
    head: staged.head,
  })
  const { size, sha256, storage, location } = staged
  const row = await setFileContent(tx, stored, { size, sha256, storage, location, content_type })
  await storageBackends(services).commit(tx, staged)
  tx.emit(fileKind, 'updated', row)
  return row
}

/** Refuses to delete a referenced or reserved file. Raises FILE_HAS_DEPENDENTS, VALIDATION_FAILED. */
export async function checkRemoval(tx: Tx, row: FileRow): Promise<void> {
  // First, so that the error for a platform file lists its dependents.
  await refuseReferenced(tx, row.id)
  requireWritable(row)
}
