import { z } from 'zod'
import { etagMatches, etagOf } from '#core/api/etag.ts'
import { columnFilter, oneOf, tagsFilter } from '#core/api/filters.ts'
import { isIdOf } from '#core/api/kind.ts'
import { booleanQuery, pageOf, pageResult, textFilter } from '#core/api/lists.ts'
import { itemOperation, type Operation, operation, result } from '#core/api/operation.ts'
import { replacedTags, tagOperations } from '#core/api/tags.ts'
import type { Config } from '#core/base/config.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { sql, substring } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import type { Tx } from '#core/writes/writer.ts'
import { fileKind } from '../files/model.ts'
import { listChunks, removeChunks } from '../index/chunks/store.ts'
import { atOrBelow, Directory } from '../paths.ts'
import { createDocument as create, requestedDocumentPath } from './create.ts'
import { withStalledIngestionEnded } from './ingestion-hooks.ts'
import { metadataCondition, metadataQuery } from './metadata-filter.ts'
import {
  DOCUMENT_STATUSES,
  Document,
  DocumentChunk,
  DocumentInput,
  DocumentPatch,
  type DocumentRow,
  DocumentStatus,
  DocumentVersion,
  type DocumentVersionRow,
  DocumentVersionWithContent,
  DocumentWithContent,
  documentAuthor,
  documentKind,
  EMBEDDINGS,
  VersionPrecondition,
} from './model.ts'
import { findDocumentByPath, findDocumentText, findDocumentWithText } from './store.ts'
import { applyDocumentChange, refuseReserved } from './update-document.ts'
import { requireDocumentVersion, restoreAsNewest, setDocumentTags, withdrawDocument as withdraw } from './versions.ts'

const tag = 'Documents'
const documents = resource(documentKind, { path: '/documents', tag })

/** JSON escapes can triple the bytes of the text; the constant covers metadata and tags. */
const bodyLimit = (config: Config): number => 3 * config.DOCUMENT_CONTENT_MAX_BYTES + 262_144

const createDocument = operation({
  id: 'createDocument',
  method: 'post',
  path: '/documents',
  summary: 'Create a document from text',
  description:
    'The text is split into chunks, which are searchable by words immediately and by meaning once they are embedded.',
  tag,
  action: 'documents:CreateDocument',
  creates: documentKind,
  pathOf: requestedDocumentPath,
  body: DocumentInput,
  bodyLimit,
  answers: { 201: Document },
  raises: ['NAME_CONFLICT', 'QUOTA_STORAGE_EXCEEDED', 'QUOTA_EXCEEDED'],
  transaction: false,
  run: async context => documentKind.present(await create(context)),
})

type RowWithText = DocumentRow & { content: string | null }

/** Presents a document with its text, after failing a stalled ingestion. */
async function presentWithText(services: Services, row: RowWithText) {
  const current = await withStalledIngestionEnded(services, row)
  // The document became ready after the query, which did not return its text.
  if (current.status === 'ready' && row.status !== 'ready')
    row.content = (await findDocumentText(services.pool, row.id))?.content ?? null
  // In place: the ETag of the response is computed from this row.
  Object.assign(row, current)
  return { ...documentKind.present(row), content: row.content }
}

const getDocument = itemOperation(documentKind, {
  id: 'getDocument',
  method: 'get',
  path: '/documents/{document_id}',
  summary: 'Get a document with its text',
  description: 'The text of the current version; null until the document is ingested.',
  tag,
  action: 'documents:GetDocument',
  find: findDocumentWithText,
  answers: { 200: DocumentWithContent },
  async run({ request, resource, services }) {
    const presented = await presentWithText(services, resource as RowWithText)
    // The text never changes without the record, so the ETag of the record covers both.
    const ifNoneMatch = request.headers['if-none-match']
    const etag = etagOf(JSON.stringify(documentKind.present(resource)))
    return ifNoneMatch !== undefined && etagMatches(ifNoneMatch, etag)
      ? result(304, undefined, { ETag: etag })
      : presented
  },
})

const getDocumentByPath = operation({
  id: 'getDocumentByPath',
  command: ['documents', 'get-by-path'],
  method: 'get',
  path: '/documents/by-path',
  summary: 'Get a document by path',
  description: 'The document at an exact path, with its current text.',
  tag,
  action: 'documents:GetDocument',
  lists: documentKind,
  paged: false,
  query: z.object({ path: Directory.describe('Exact path of the document') }),
  answers: { 200: DocumentWithContent },
  raises: ['RESOURCE_NOT_FOUND'],
  async run({ allow, db, project, query, services }) {
    if (project === null)
      return raiseInvalid({
        code: 'REQUIRED',
        path: 'project_id',
        message: 'is required for credentials that are not bound to a project',
      })
    const row = await findDocumentByPath(db, project, query.path)
    if (!row) {
      // A caller without permission must not learn whether the path exists.
      allow('documents:GetDocument', { kind: documentKind, project_id: project, path: query.path })
      return raise('RESOURCE_NOT_FOUND', {
        message: `No document found at path ${query.path}`,
        meta: { path: query.path, project_id: project },
      })
    }
    allow('documents:GetDocument', { kind: documentKind, row })
    return presentWithText(services, row)
  },
})

const updateDocument = itemOperation(documentKind, {
  id: 'updateDocument',
  method: 'patch',
  path: '/documents/{document_id}',
  summary: 'Update a document',
  description:
    'A change of text, title, path, metadata, tags or chunk settings creates a version. If the text or the chunk settings change, the text is split and embedded again.',
  tag,
  action: 'documents:UpdateDocument',
  body: DocumentPatch,
  bodyLimit,
  answers: { 200: Document },
  raises: ['NAME_CONFLICT', 'VERSION_CONFLICT', 'QUOTA_EXCEEDED'],
  transaction: false,
  async run(context) {
    const { tags, chunk_strategy, chunk_unit, chunk_size, chunk_overlap, ...change } = context.body
    const settings = { chunk_strategy, chunk_unit, chunk_size, chunk_overlap }
    const after = await applyDocumentChange(context, {
      ...change,
      ...(tags ? { tags: stored => replacedTags(stored, tags) } : {}),
      ...(Object.values(settings).some(value => value != null) ? { settings } : {}),
    })
    return documentKind.present(after)
  },
})

/**
 * Deletes a locked document with its chunks, vectors, versions and file, and emits both delete events with the last
 * records. An active ingestion loses its claim.
 */
async function removeDocument(tx: Tx, row: DocumentRow): Promise<void> {
  tx.emit(documentKind, 'deleted', row)
  await removeChunks(tx, row.id)
  await documentKind.delete(tx, row.id)
  const file = await fileKind.find(tx, row.file_id, true)
  if (file) await fileKind.remove?.(tx, { ...file, document_id: row.id })
}

const deleteDocument = itemOperation(documentKind, {
  id: 'deleteDocument',
  method: 'delete',
  path: '/documents/{document_id}',
  summary: 'Delete a document',
  description: 'Deletes the document with its versions, chunks and file.',
  tag,
  action: 'documents:DeleteDocument',
  answers: { 204: null },
  raises: ['VALIDATION_FAILED'],
  async run({ resource, tx }) {
    const row = await documentKind.lock(tx, resource.id)
    refuseReserved(row)
    await removeDocument(tx, row)
  },
})

const getDocumentStatus = itemOperation(documentKind, {
  id: 'getDocumentStatus',
  method: 'get',
  path: '/documents/{document_id}/status',
  summary: 'Get ingestion progress of a document',
  description: 'Progress of conversion and embedding, and the error of a failed ingestion.',
  tag,
  action: 'documents:GetDocument',
  answers: { 200: DocumentStatus },
  async run({ resource, services }) {
    const row = await withStalledIngestionEnded(services, resource)
    const { id, status, chunk_count, embedded_chunks, total_chunks, total_pages, error } = row
    return { id, status, chunk_count, embedded_chunks, total_chunks, total_pages, progress: progressOf(row), error }
  },
})

/** Returns the percentage of chunks that are stored. */
function progressOf({ status, chunk_count, total_chunks }: DocumentRow): number | null {
  if (status === 'ready') return 100
  if (status === 'pending') return 0
  if (status !== 'processing' || total_chunks === null) return null
  return total_chunks === 0 ? 99 : Math.min(99, Math.floor((100 * chunk_count) / total_chunks))
}

const listDocumentChunks = itemOperation(documentKind, {
  id: 'listDocumentChunks',
  method: 'get',
  path: '/documents/{document_id}/chunks',
  summary: 'List document chunks',
  description: 'The searchable pieces of the document in order, each with its position in the text.',
  tag,
  action: 'documents:GetDocument',
  paged: true,
  timed: false,
  answers: { 200: pageOf(DocumentChunk) },
  run: context => listChunks(context, context.resource.id),
})

const versionPath = '/documents/{document_id}/versions/{version}'

const listDocumentVersions = itemOperation(documentKind, {
  id: 'listDocumentVersions',
  method: 'get',
  path: '/documents/{document_id}/versions',
  summary: 'List document versions',
  description: 'Newest first. Every change of text, title, path, metadata, tags or chunk settings creates a version.',
  tag,
  action: 'documents:GetDocument',
  paged: true,
  answers: { 200: pageOf(DocumentVersion) },
  // Index: primary key, for filter and order.
  run: context =>
    pageResult<Omit<DocumentVersionRow, 'content' | 'pages' | 'text_version'>>(context, {
      columns: sql.fragment`v.document_id, v.version, v.tombstone, v.title, v.path, v.metadata, v.tags, v.chunk_strategy,
        v.chunk_unit, v.chunk_size, v.chunk_overlap, v.created_by, v.created_at`,
      from: sql.fragment`document_versions v`,
      rows: sql.fragment`v.document_id = ${context.resource.id}`,
      time: sql.fragment`v.created_at`,
      order: sql.fragment`v.version desc`,
      present: row => row,
    }),
})

const getDocumentVersion = itemOperation(documentKind, {
  id: 'getDocumentVersion',
  method: 'get',
  path: versionPath,
  summary: 'Get a document version',
  description: 'The version with its text.',
  tag,
  action: 'documents:GetDocument',
  answers: { 200: DocumentVersionWithContent },
  async run({ db, params, resource }) {
    const {
      text_version: _text,
      pages: _pages,
      ...version
    } = await requireDocumentVersion(db, resource.id, params.version)
    return version
  },
})

const restoreDocumentVersion = itemOperation(documentKind, {
  id: 'restoreDocumentVersion',
  method: 'post',
  path: `${versionPath}/restore`,
  summary: 'Restore a document version',
  description:
    'Writes the state of the version as the newest version, and makes a withdrawn document available again. The previous state remains as a version.',
  tag,
  action: 'documents:UpdateDocument',
  body: VersionPrecondition,
  bodyOptional: true,
  answers: { 200: Document },
  raises: ['NAME_CONFLICT', 'VERSION_CONFLICT', 'PRECONDITION_FAILED', 'QUOTA_EXCEEDED'],
  transaction: false,
  run: async context =>
    documentKind.present(await restoreAsNewest(context, context.params.version, context.body?.expected_version)),
})

const withdrawDocument = itemOperation(documentKind, {
  id: 'withdrawDocument',
  method: 'post',
  path: '/documents/{document_id}/withdraw',
  summary: 'Withdraw a document',
  description:
    'Removes the document from lists and searches. Versions and file are retained; restoring a version makes it available again.',
  tag,
  action: 'documents:UpdateDocument',
  body: VersionPrecondition,
  bodyOptional: true,
  answers: { 200: Document },
  raises: ['VERSION_CONFLICT', 'PRECONDITION_FAILED'],
  run: async ({ body, caller, ifMatch, resource, tx }) =>
    documentKind.present(
      await withdraw(tx, resource.id, {
        expected_version: body?.expected_version,
        etag: ifMatch,
        created_by: documentAuthor(caller),
      }),
    ),
})

export const documentOperations: Operation[] = [
  createDocument,
  // Indexes: documents_project for the order; documents_path, documents_tags, documents_metadata and documents_embedding for the filters.
  documents.list({
    filters: {
      path_prefix: columnFilter(Directory.optional().describe('Documents at or below this directory'), path =>
        atOrBelow(sql.fragment`t.path`, path),
      ),
      search: columnFilter(textFilter.describe('Part of the title or path, case-insensitive; or an ID'), text =>
        isIdOf(documentKind, text)
          ? sql.fragment`t.id = ${text}`
          : sql.fragment`(t.title ilike ${substring(text)} or t.path ilike ${substring(text)})`,
      ),
      status: oneOf('status', DOCUMENT_STATUSES),
      embedding: oneOf('embedding', EMBEDDINGS),
      include_withdrawn: columnFilter(
        booleanQuery.optional().describe('Whether to include withdrawn documents. Default false.'),
        () => null,
      ),
      metadata: columnFilter(metadataQuery.optional(), filter => metadataCondition(sql.fragment`t.metadata`, filter)),
      tags: tagsFilter,
    },
    where: ({ query }) => [
      sql.fragment`t.kind = 'document'`,
      !query.status && !query.include_withdrawn && sql.fragment`t.status <> 'withdrawn'`,
    ],
  }),
  getDocumentByPath,
  getDocument,
  updateDocument,
  deleteDocument,
  getDocumentStatus,
  listDocumentChunks,
  ...tagOperations(documentKind, {
    path: '/documents/{document_id}',
    tag,
    read: 'documents:GetDocument',
    write: 'documents:UpdateDocument',
    event: null,
    setTags: (tx, row, tags, caller) => setDocumentTags(tx, row, tags, documentAuthor(caller)),
  }),
  listDocumentVersions,
  getDocumentVersion,
  restoreDocumentVersion,
  withdrawDocument,
]
