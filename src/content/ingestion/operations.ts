import { z } from 'zod'
import { isIdOf } from '#core/api/kind.ts'
import { booleanQuery } from '#core/api/lists.ts'
import {
  type Context,
  itemOperation,
  type Operation,
  type OperationResult,
  operation,
  result,
} from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Queryable } from '#core/db/sql.ts'
import { Document, type DocumentRow, documentKind } from '../documents/model.ts'
import { fileKind } from '../files/model.ts'
import { checkEmbeddingSpend } from '../index/embeddings/embedder.ts'
import { filePath, PathError } from '../paths.ts'
import { completeIngestionCallback } from './callback.ts'
import { IngestInput, ReingestInput } from './model.ts'
import { restartIngestion, startIngestion } from './start-ingestion.ts'
import { isDocumentSettled, subscribeSettled } from './wait.ts'

const tag = 'Documents'

const waiting = {
  default: false,
  running: ['pending', 'processing'],
  done: ['ready'],
  failed: ['failed', 'withdrawn'],
  paused: [],
  poll: 'getDocumentStatus',
}

const WaitQuery = z.object({
  wait: booleanQuery
    .optional()
    .describe('Whether to respond only after the document is ready or has failed. Default false.'),
})

/**
 * Returns the requested path of the document for the first permission check, or null if it cannot be determined. The
 * check under the lock of the file is authoritative.
 */
async function pathOf(body: Record<string, unknown>, db: Queryable, project: string): Promise<string | null> {
  const { file_id, path_prefix } = body
  const file = typeof file_id === 'string' && isIdOf(fileKind, file_id) ? await fileKind.find(db, file_id) : null
  if (file?.project_id !== project) return null
  if (file.document_id !== null || typeof path_prefix !== 'string') return file.path
  try {
    return filePath(path_prefix, file.filename)
  } catch (error) {
    if (error instanceof PathError) return null
    throw error
  }
}

/**
 * Responds 202 with the admitted document; with `wait`, responds 201 after it settles, whatever the outcome.
 * @param admit inserts the attempt; its errors refuse the request
 */
async function respondToIngestion(
  { services, request, query }: Pick<Context<{ wait?: boolean }>, 'services' | 'request' | 'query'>,
  documentId: string,
  admit: () => Promise<DocumentRow>,
): Promise<OperationResult> {
  const waiter = query.wait ? subscribeSettled(services, documentId) : null
  let admitted: DocumentRow
  try {
    admitted = await admit()
  } catch (error) {
    waiter?.cancel()
    throw error
  }
  if (!waiter) return result(202, documentKind.present(admitted))
  return respondWhenSettled({ services, request }, documentId, waiter)
}

/** Responds with a document when it settles, or after SYNC_WAIT_SECONDS. Raises RESOURCE_NOT_FOUND. */
async function respondWhenSettled(
  { services, request }: Pick<Context, 'services' | 'request'>,
  documentId: string,
  waiter = subscribeSettled(services, documentId),
): Promise<OperationResult> {
  const document = await waiter.wait({
    closed: request.closed,
    withinMs: services.config.SYNC_WAIT_SECONDS * 1000,
  })
  if (!document)
    return raise('RESOURCE_NOT_FOUND', { message: `Document ${documentId} was deleted`, meta: { id: documentId } })
  return result(isDocumentSettled(document) ? 201 : 202, documentKind.present(document))
}

/** Returns the record from which a repeated request with the same Idempotency-Key is answered. */
const idempotencyRecord = (admitted: DocumentRow, wait: boolean) =>
  wait ? { made: { document_id: admitted.id } } : { body: documentKind.present(admitted) }

const RAISES = [
  'FILE_PARSE_FAILED',
  'UNSUPPORTED_FILE_TYPE',
  'FILE_TOO_LARGE_FOR_SYNC',
  'QUOTA_STORAGE_EXCEEDED',
  'QUOTA_EXCEEDED',
] as const

const ingestDocument = operation({
  id: 'ingestDocument',
  command: ['documents', 'ingest'],
  starts: { kind: 'document', field: 'document_id', bounded: true },
  method: 'post',
  path: '/documents/ingest',
  summary: 'Create a document from a file',
  description:
    'A worker converts the file by the matching ingestion rule, splits the text into chunks and embeds them. Poll the status of the document for progress.',
  tag,
  action: 'documents:IngestDocument',
  creates: documentKind,
  pathOf,
  query: WaitQuery,
  waiting,
  body: IngestInput,
  answers: { 202: Document, 201: Document },
  raises: ['FILE_NOT_FOUND', 'FILE_ALREADY_INGESTED', 'NAME_CONFLICT', ...RAISES],
  transaction: false,
  async run(context) {
    const { services, body, project, query, caller, allow, audit } = context
    const checks = audit.additional_checks.length
    const id = newId(documentKind.prefix)
    const wait = query.wait === true
    await checkEmbeddingSpend(services, project as string)
    return respondToIngestion(context, id, () =>
      services.write(async tx => {
        // The transaction may be repeated: discard the checks of the previous attempt.
        audit.additional_checks.length = checks
        const admitted = await startIngestion(
          { services, tx, caller, wait, allow },
          { ...body, id, project_id: project as string },
        )
        context.record(tx, wait ? 201 : 202, { id, ...idempotencyRecord(admitted, wait) })
        return admitted
      }),
    )
  },
  again: (context, { document_id }) => respondWhenSettled(context, document_id as string),
})

const reingestDocument = itemOperation(documentKind, {
  id: 'reingestDocument',
  command: ['documents', 'reingest'],
  starts: { kind: 'document', field: 'document_id', bounded: true },
  method: 'post',
  path: '/documents/{document_id}/ingest',
  summary: 'Ingest a document again',
  description:
    'Converts the file again, by the ingestion rule that currently matches. The chunks of the document are deleted immediately and searchable again when the new ones are ready; its text and versions are retained.',
  tag,
  action: 'documents:IngestDocument',
  query: WaitQuery,
  waiting,
  body: ReingestInput,
  bodyOptional: true,
  answers: { 202: Document, 201: Document },
  raises: [...RAISES],
  transaction: false,
  async run(context) {
    const { services, body, resource, query, caller } = context
    const wait = query.wait === true
    await checkEmbeddingSpend(services, resource.project_id)
    return respondToIngestion(context, resource.id, () =>
      services.write(async tx => {
        const admitted = await restartIngestion({ services, tx, caller, wait }, resource.id, body ?? {})
        context.record(tx, wait ? 201 : 202, idempotencyRecord(admitted, wait))
        return admitted
      }),
    )
  },
  again: (context, { document_id }) => respondWhenSettled(context, document_id as string),
})

export const ingestionOperations: Operation[] = [ingestDocument, reingestDocument, completeIngestionCallback]
