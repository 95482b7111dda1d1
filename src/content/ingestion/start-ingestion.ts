import { checkStorage } from '#control/quotas/storage.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type DocumentRow, documentAuthor, documentKind } from '../documents/model.ts'
import { findDocumentOfFile, insertDocument, lockDocument, updateDocument } from '../documents/store.ts'
import { refuseReserved, refuseWithdrawn } from '../documents/update-document.ts'
import { type FileRow, fileKind } from '../files/model.ts'
import { chunkSettings, effectiveSettings } from '../index/chunks/chunk-settings.ts'
import type { PartialSettings } from '../index/chunks/model.ts'
import { removeChunks } from '../index/chunks/store.ts'
import { isNative, matchRule } from '../ingestion-rules/match.ts'
import type { IngestionRuleRow } from '../ingestion-rules/model.ts'
import { filePath, isReserved, PathError, writablePath } from '../paths.ts'
import { checkAgainstSchema } from '../schemas/check.ts'
import { ingestionWork } from './ingest.ts'
import type { IngestInput } from './model.ts'
import { replaceAttempt } from './store.ts'

/** Priority of ingestions that a caller waits for. */
const WAITED_PRIORITY = 10

type Admission = { services: Services; tx: Tx; caller: Context['caller']; wait: boolean }

/** Returns the path at which a file is ingested. Raises VALIDATION_FAILED for an invalid or reserved path. */
function resolvePath(file: FileRow, directory: string | null | undefined): string | null {
  if (file.path !== null && isReserved(file.path))
    raiseInvalid({ code: 'RESERVED_PATH', path: 'file_id', message: 'is a file in the reserved directory /.system' })
  if (directory == null) return file.path
  try {
    return writablePath(filePath(directory, file.filename))
  } catch (error) {
    if (!(error instanceof PathError)) throw error
    return raiseInvalid({ code: error.code, path: 'path_prefix', message: error.message })
  }
}

/**
 * Returns the rule that applies to a file, or null if it is ingested without one. Raises FILE_PARSE_FAILED for a file
 * without content, UNSUPPORTED_FILE_TYPE for a type without rule and native extraction.
 */
async function requireReadable(tx: Tx, file: FileRow, path: string | null): Promise<IngestionRuleRow | null> {
  if (file.storage === null)
    raise('FILE_PARSE_FAILED', { message: `File ${file.id} has no content`, meta: { file_id: file.id } })
  const rule = await matchRule(tx, file.project_id, { content_type: file.content_type, path })
  if (!rule && !isNative(file.content_type))
    raise('UNSUPPORTED_FILE_TYPE', { meta: { content_type: file.content_type } })
  return rule
}

/** Raises FILE_TOO_LARGE_FOR_SYNC for a large file that the caller waits for. */
function checkSyncSize(file: FileRow, { services, wait }: Admission): void {
  const max_bytes = services.config.SYNC_INGESTION_MAX_BYTES
  const size = file.size as number
  if (wait && size > max_bytes) raise('FILE_TOO_LARGE_FOR_SYNC', { meta: { size, max_bytes } })
}

/** Inserts the attempt, replacing the previous one, and sends its wake-up. */
async function enqueueAttempt(
  { tx, caller, wait }: Admission,
  document: DocumentRow,
  settings: PartialSettings,
): Promise<void> {
  const { id: document_id, project_id } = document
  const id = newId('iat')
  await replaceAttempt(tx, {
    document_id,
    id,
    principal: principalRecord(caller),
    allow_deferral: !wait,
    settings,
  })
  ingestionWork.wake(tx, { entity: document_id, id, project_id }, { priority: wait ? WAITED_PRIORITY : 0 })
}

/**
 * Inserts a pending document for a file and enqueues its ingestion. Locks the file row, as its deletion does. The
 * caller must be allowed to ingest to the path of the document.
 */
export async function startIngestion(
  admission: Admission & Pick<Context, 'allow'>,
  input: { id: string; project_id: string } & IngestInput,
): Promise<DocumentRow> {
  const { services, tx, caller, allow } = admission
  const { project_id } = input
  const file = await fileKind.find(tx, input.file_id, true)
  if (!file || file.project_id !== project_id) raise('FILE_NOT_FOUND', { meta: { id: input.file_id } })
  const document_id = await findDocumentOfFile(tx, file.id)
  // A file that already has a document keeps its path.
  const path = document_id === null ? resolvePath(file, input.path_prefix) : file.path
  allow('documents:IngestDocument', { kind: documentKind, project_id, path, tags: input.tags })
  const rule = await requireReadable(tx, file, path)
  if (document_id !== null) raise('FILE_ALREADY_INGESTED', { meta: { file_id: file.id, document_id } })
  checkSyncSize(file, admission)
  const moved = path !== file.path
  if (moved) await moveFile(admission, file, path)
  if (input.metadata !== undefined)
    await checkAgainstSchema(services, tx, { project_id, resource_type: 'document', path, metadata: input.metadata })
  await checkStorage(services, project_id, 0, tx)

  const settings = chunkSettings(input)
  const document = await insertDocument(
    tx,
    {
      id: input.id,
      project_id,
      file_id: file.id,
      kind: 'document',
      status: 'pending',
      path,
      filename: file.filename,
      content_type: file.content_type,
      size: file.size as number,
      title: input.title ?? file.filename,
      metadata: input.metadata ?? null,
      tags: input.tags ?? {},
      ...effectiveSettings(settings, rule, { chunk_strategy: 'page' }),
    },
    { created_by: documentAuthor(caller) },
  )
  await enqueueAttempt(admission, document, settings)
  tx.emit(documentKind, 'created', document)
  return document
}

/** Moves a file to the path of its document. */
async function moveFile({ services, tx }: Admission, file: FileRow, path: string | null): Promise<void> {
  if (file.metadata !== null)
    await checkAgainstSchema(services, tx, {
      project_id: file.project_id,
      resource_type: 'file',
      path,
      metadata: file.metadata,
    })
  const moved = await fileKind.update(tx, file.id, { path, filename: file.filename })
  tx.emit(fileKind, 'updated', moved)
}

/**
 * Enqueues another ingestion of a document's file: deletes its chunks and replaces an active attempt, whose worker
 * loses the claim. The current text remains until a new one replaces it.
 */
export async function restartIngestion(
  admission: Admission,
  id: string,
  settings: PartialSettings,
): Promise<DocumentRow> {
  const { services, tx } = admission
  const document = await lockDocument(tx, id)
  if (!document) raise(documentKind.notFound, { meta: { id } })
  refuseReserved(document)
  refuseWithdrawn(document)
  const file = await fileKind.find(tx, document.file_id)
  if (!file) raise('FILE_NOT_FOUND', { meta: { id: document.file_id } })
  await requireReadable(tx, file, document.path)
  checkSyncSize(file, admission)
  await checkStorage(services, document.project_id, 0, tx)

  const effective = effectiveSettings(chunkSettings(settings), document)
  await removeChunks(tx, document.id)
  const pending = await updateDocument(tx, {
    ...document,
    ...effective,
    status: 'pending',
    error: null,
    chunk_count: 0,
    embedded_chunks: 0,
    total_chunks: null,
    total_pages: null,
    embed_since: null,
    embedding: null,
  })
  await enqueueAttempt(admission, pending, effective)
  return pending
}
