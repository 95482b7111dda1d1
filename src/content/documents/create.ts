import { createHash } from 'node:crypto'
import type { z } from 'zod'
import { checkStorage } from '#control/quotas/storage.ts'
import type { Context } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { fileKind } from '../files/model.ts'
import { effectiveSettings } from '../index/chunks/chunk-settings.ts'
import { Filename, filePath, leafOf, normalizePath, PathError, writablePath } from '../paths.ts'
import { checkAgainstSchema } from '../schemas/check.ts'
import { type DocumentInput, type DocumentRow, documentAuthor, documentKind } from './model.ts'
import { chunkCounts, splitAndEmbed } from './split-and-embed.ts'
import { insertTextDocument } from './store.ts'

/**
 * Creates a ready document from text: inserts file, text, version 1 and chunks in one transaction. The text is stored
 * once; the content of the file is its UTF-8 encoding.
 */
export async function createDocument(
  context: Context<Record<string, unknown>, z.output<typeof DocumentInput>>,
): Promise<DocumentRow> {
  const { body, caller, services } = context
  const project_id = context.project as string
  const { content, title = null, metadata = null, tags = {} } = body
  const size = textSize(content, services.config.DOCUMENT_CONTENT_MAX_BYTES, 'content')
  const id = newId(documentKind.prefix)
  const { path, filename } = placeOf(body, id)
  if (body.path == null) context.allow('documents:CreateDocument', { kind: documentKind, project_id, path, tags })
  const settings = effectiveSettings(body, { chunk_strategy: 'whole' })
  await checkStorage(services, project_id, size)
  const split = await splitAndEmbed(
    services,
    { project_id, document_id: id },
    { text: { content, pages: null }, settings, title },
  )
  const file_id = newId(fileKind.prefix)
  const sha256 = createHash('sha256').update(content).digest()
  const shared = { project_id, path, filename, content_type: 'text/plain', size }

  return services.write(async tx => {
    if (body.metadata !== undefined)
      await checkAgainstSchema(services, tx, { project_id, resource_type: 'document', path, metadata })
    const { file, document } = await insertTextDocument(
      tx,
      {
        file: { ...shared, id: file_id, sha256, storage: 'text', location: null, metadata: null, tags: {} },
        row: {
          ...shared,
          id,
          file_id,
          kind: 'document',
          status: 'ready',
          title,
          metadata,
          tags,
          ...settings,
          ...chunkCounts(services, split),
        },
        text: content,
        created_by: documentAuthor(caller),
      },
      split.chunks,
      { space: split.space, textSearchConfig: services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG },
    )
    tx.emit(fileKind, 'created', file)
    tx.emit(documentKind, 'created', document)
    context.record(tx, 201, { id, body: documentKind.present(document) })
    return document
  })
}

/** Returns the UTF-8 size of the text in the request field `field`. Raises VALIDATION_FAILED above `maxBytes`. */
export function textSize(text: string, maxBytes: number, field: string): number {
  const size = Buffer.byteLength(text)
  if (size > maxBytes)
    raiseInvalid({
      code: 'TOO_LARGE',
      path: field,
      message: `makes the text ${size} bytes; at most ${maxBytes} are allowed`,
    })
  return size
}

/** Returns the last segment of a path as a filename. Raises VALIDATION_FAILED if it is invalid. */
export function fileNameOf(path: string): string {
  const name = leafOf(path)
  if (!Filename.safeParse(name).success)
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'path',
      message: 'must have a last segment of at most 255 bytes',
    })
  return name
}

/** Returns path and filename of a new document. */
function placeOf({ path, filename }: { path?: string | null; filename?: string | null }, id: string) {
  if (path != null) return { path, filename: filename ?? fileNameOf(path) }
  const name = filename ?? `${id}.txt`
  try {
    return { path: writablePath(filePath(null, name)), filename: name }
  } catch (error) {
    if (!(error instanceof PathError)) throw error
    return raiseInvalid({ code: error.code, path: 'filename', message: error.message })
  }
}

/** Returns the path requested by an unvalidated body, for policies; null without one or if it is invalid. */
export function requestedDocumentPath(body: Record<string, unknown>): string | null {
  const { path, filename } = body
  try {
    if (typeof path === 'string') return normalizePath(path)
    return typeof filename === 'string' ? filePath(null, filename) : null
  } catch (error) {
    if (error instanceof PathError) return null
    throw error
  }
}
