import { checkStorage } from '#control/quotas/storage.ts'
import { parse } from '#core/api/validate.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { checkAgainstSchema } from '../schemas/check.ts'
import { type StagedUpload, storageBackends } from '../storage/backends.ts'
import { filePlacement } from './file-path.ts'
import { mediaTypeOf } from './media-type.ts'
import { FileName, type FileRow } from './model.ts'
import { insertFile } from './store.ts'
import type { Upload } from './upload.ts'

/** Properties of a new file as sent by the caller. `metadata` is undefined if it was not sent. */
export type FileDescription = {
  prefix?: string | null
  filename?: string
  content_type?: string | null
  /** Content type if the uploader does not send one. */
  expected_type?: string | null
  metadata?: Record<string, unknown> | null
  tags?: Record<string, string>
}

/** Inserts a file with or without content. Raises the errors of insertFile, checkStorage and checkAgainstSchema. */
export async function createFile(
  services: Services,
  tx: Tx,
  file: FileDescription & {
    id: string
    project_id: string
    filename: string
    size: number | null
    content: StagedUpload | null
  },
): Promise<FileRow> {
  const { id, project_id, content, metadata } = file
  const place = filePlacement(file.prefix, file.filename)
  await checkStorage(services, project_id, file.size ?? 0, tx)
  if (metadata !== undefined)
    await checkAgainstSchema(services, tx, { project_id, resource_type: 'file', path: place.path, metadata })
  const row = await insertFile(tx, {
    id,
    project_id,
    ...place,
    content_type: file.content_type ?? null,
    size: file.size,
    sha256: content?.sha256 ?? null,
    storage: content?.storage ?? null,
    location: content?.location ?? null,
    metadata: metadata ?? null,
    tags: file.tags ?? {},
  })
  if (content) await storageBackends(services).commit(tx, content)
  return row
}

/**
 * Returns the name of an uploaded file: the requested one, else the name of its form part, else its ID. Raises
 * VALIDATION_FAILED.
 */
export const uploadedName = (description: Pick<FileDescription, 'filename'>, upload: Upload): string =>
  description.filename ?? (upload.filename === null ? upload.fileId : parse(FileName, upload.filename, 'filename'))

/** Creates a file from uploaded bytes. */
export async function createUploaded(
  services: Services,
  tx: Tx,
  projectId: string,
  upload: Upload,
  description: FileDescription,
): Promise<FileRow> {
  const { staged } = upload
  const filename = uploadedName(description, upload)
  return createFile(services, tx, {
    ...description,
    id: upload.fileId,
    project_id: projectId,
    filename,
    content_type: await mediaTypeOf({
      claimed: description.content_type,
      part: upload.type,
      previous: description.expected_type,
      filename,
      head: staged.head,
    }),
    size: staged.size,
    content: staged,
  })
}
