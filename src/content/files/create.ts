import { checkStorage } from '../../control/quotas/storage.ts'
import { parse } from '../../core/api/validate.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { checkAgainstSchema } from '../schemas/check.ts'
import { type StagedUpload, storageBackends } from '../storage/backends.ts'
import { filePlacement } from './file-path.ts'
import { mediaTypeOf } from './media-type.ts'
import { FileName, type FileRow } from './model.ts'
import { insertFile } from './store.ts'
import type { Upload } from './upload.ts'

/** What a caller says of a new file. Undefined metadata was not sent. */
export type FileDescription = {
  prefix?: string | null
  filename?: string
  content_type?: string | null
  /** Where the caller of the upload names no type. */
  expected_type?: string | null
  metadata?: Record<string, unknown> | null
  tags?: Record<string, string>
}

/** Inserts a file with its bytes, or without any. Raises as insertFile, checkStorage and checkMetadata do. */
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

/** The name of an uploaded file: as it is described, as its part is called, or its id. Raises VALIDATION_FAILED. */
export const uploadedName = (described: Pick<FileDescription, 'filename'>, upload: Upload): string =>
  described.filename ?? (upload.filename === null ? upload.fileId : parse(FileName, upload.filename, 'filename'))

/** Makes a file of uploaded bytes. */
export async function createUploaded(
  services: Services,
  tx: Tx,
  projectId: string,
  upload: Upload,
  described: FileDescription,
): Promise<FileRow> {
  const { staged } = upload
  const filename = uploadedName(described, upload)
  return createFile(services, tx, {
    ...described,
    id: upload.fileId,
    project_id: projectId,
    filename,
    content_type: await mediaTypeOf({
      claimed: described.content_type,
      part: upload.type,
      before: described.expected_type,
      filename,
      head: staged.head,
    }),
    size: staged.size,
    content: staged,
  })
}
