import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { booleanQuery } from '../../core/api/lists.ts'
import {
  type Context,
  itemOperation,
  type Operation,
  type OperationResult,
  operation,
  result,
} from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { Document, type DocumentRow, documentKind } from '../documents/model.ts'
import { checkEmbeddingSpend } from '../embeddings/embedder.ts'
import { fileKind } from '../files/model.ts'
import { filePath, PathError } from '../paths.ts'
import { completeIngestionCallback } from './callback.ts'
import { failStalledIngestion } from './fail-ingestion.ts'
import { IngestInput, ReingestInput } from './model.ts'
import { restartIngestion, startIngestion } from './start-ingestion.ts'
import { isDocumentSettled, subscribeSettled } from './wait.ts'

const tag = 'Documents'

const waiting = {
  default: false,
  done: ['ready'],
  failed: ['failed', 'withdrawn'],
  paused: [],
  poll: 'getDocumentStatus',
}

const WaitQuery = z.object({
  wait: booleanQuery.optional().describe('`true`: answer once the document is ready or has failed'),
})

/** A document without the ingestion that has stalled; for whoever shows it. */
export const failIfStalled = async (services: Services, row: DocumentRow): Promise<DocumentRow> =>
  (await failStalledIngestion(services, row.id)) ? ((await documentKind.find(services.pool, row.id)) ?? row) : row

/**
 * The path that a document would get of the file that a body names, for the first permission check; null where there
 * is none to tell. The check under the file's lock decides.
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
 * Answers 202 with the admitted document, or waits for its end: 201 once it has settled, however it did.
 * @param admit makes the attempt; what it raises refuses the request
 */
async function answerIngestion(
  { services, request, query }: Pick<Context<{ wait?: boolean }>, 'services' | 'request' | 'query'>,
  documentId: string,
  admit: () => Promise<DocumentRow>,
): Promise<OperationResult> {
  const expected = query.wait ? subscribeSettled(services, documentId) : null
  let admitted: DocumentRow
  try {
    admitted = await admit()
  } catch (error) {
    expected?.cancel()
    throw error
  }
  if (!expected) return result(202, documentKind.present(admitted))
  return answerWaited({ services, request }, documentId, expected)
}

/** Answers with a document once it has settled, or after SYNC_WAIT_SECONDS. Raises RESOURCE_NOT_FOUND. */
async function answerWaited(
  { services, request }: Pick<Context, 'services' | 'request'>,
  documentId: string,
  expected = subscribeSettled(services, documentId),
): Promise<OperationResult> {
  const document = await expected.wait({
    closed: request.closed,
    withinMs: services.config.SYNC_WAIT_SECONDS * 1000,
  })
  if (!document) return raise('RESOURCE_NOT_FOUND', { message: 'The document was deleted', meta: { id: documentId } })
  return result(isDocumentSettled(document) ? 201 : 202, documentKind.present(document))
}

/** What an admission leaves for repeats. */
const recordedAs = (admitted: DocumentRow, wait: boolean) =>
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
  summary: 'Make a searchable document of a file',
  description:
    'The work goes on in a worker: conversion by the rule that applies, chunks, embeddings. The status of the document shows how far it is.',
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
    const { services, body, project, query, caller, allow } = context
    const id = newId('doc')
    const wait = query.wait === true
    await checkEmbeddingSpend(services, project as string)
    return answerIngestion(context, id, () =>
      services.write(async tx => {
        const admitted = await startIngestion(
          { services, tx, caller, wait, allow },
          { ...body, id, project_id: project as string },
        )
        context.record(tx, wait ? 201 : 202, { id, ...recordedAs(admitted, wait) })
        return admitted
      }),
    )
  },
  again: (context, { document_id }) => answerWaited(context, document_id as string),
})

const reingestDocument = itemOperation(documentKind, {
  id: 'reingestDocument',
  command: ['documents', 'reingest'],
  starts: { kind: 'document', field: 'document_id', bounded: true },
  method: 'post',
  path: '/documents/{document_id}/ingest',
  summary: 'Ingest the file of a document again',
  description:
    'By the rule that applies now. The text that the document has stays searchable until the new one is ready.',
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
    return answerIngestion(context, resource.id, () =>
      services.write(async tx => {
        const admitted = await restartIngestion({ services, tx, caller, wait }, resource.id, body ?? {})
        context.record(tx, wait ? 201 : 202, recordedAs(admitted, wait))
        return admitted
      }),
    )
  },
  again: (context, { document_id }) => answerWaited(context, document_id as string),
})

export const ingestionOperations: Operation[] = [ingestDocument, reingestDocument, completeIngestionCallback]
