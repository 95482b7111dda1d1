import { z } from 'zod'
import type { Config } from '../../config.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { etagMatches, etagOf } from '../../core/api/etag.ts'
import { columnFilter, oneOf, tagsFilter } from '../../core/api/filters.ts'
import { booleanQuery, pageOf, pageResult } from '../../core/api/lists.ts'
import { itemOperation, type Operation, operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { replacedTags, tagOperations } from '../../core/api/tags.ts'
import { sql } from '../../core/db/sql.ts'
import type { Services } from '../../core/process/services.ts'
import { listChunks } from '../chunks/store.ts'
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
  VersionPrecondition,
} from './model.ts'
import { removeDocument } from './remove.ts'
import { findDocumentByPath, findDocumentText, findDocumentWithText } from './store.ts'
import { applyDocumentChange, refuseReserved } from './update-document.ts'
import { restoreAsNewest, setDocumentTags, versionOf, withdrawDocument as withdraw } from './versions.ts'

const tag = 'Documents'
const documents = resource(documentKind, { path: '/documents', tag })

/** JSON may spell a character of the text with three times its bytes; the rest is metadata and tags. */
const bodyLimit = (config: Config): number => 3 * config.DOCUMENT_CONTENT_MAX_BYTES + 262_144

const createDocument = operation({
  id: 'createDocument',
  method: 'post',
  path: '/documents',
  summary: 'Make a document of a text',
  description: 'The text is cut into chunks and can be searched as soon as they are embedded.',
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

/** A document as one is read: with its text, and never waiting for an ingestion that stalled. */
async function read(services: Services, row: RowWithText) {
  const shown = await withStalledIngestionEnded(services, row)
  // It became ready after it was read: its text was not read with it.
  if (shown.status === 'ready' && row.status !== 'ready')
    row.content = (await findDocumentText(services.pool, row.id))?.content ?? null
  // In place, because the answer is tagged by the row that the pipeline has.
  Object.assign(row, shown)
  return { ...documentKind.present(row), content: row.content }
}

const getDocument = itemOperation(documentKind, {
  id: 'getDocument',
  method: 'get',
  path: '/documents/{document_id}',
  summary: 'Read one document with its text',
  description: 'The text is that of the current version, where the document has been ingested.',
  tag,
  action: 'documents:GetDocument',
  find: findDocumentWithText,
  answers: { 200: DocumentWithContent },
  async run({ request, resource, services }) {
    const shown = await read(services, resource as RowWithText)
    // A text never changes without its record: who has the record's tag has the text.
    const wanted = request.headers['if-none-match']
    const tag = etagOf(JSON.stringify(documentKind.present(resource)))
    return wanted !== undefined && etagMatches(wanted, tag) ? result(304, undefined, { ETag: tag }) : shown
  },
})

const getDocumentByPath = operation({
  id: 'getDocumentByPath',
  command: ['documents', 'get-by-path'],
  method: 'get',
  path: '/documents/by-path',
  summary: 'Read the document at an exact path with its text',
  description: 'The same document as by id, with its current text.',
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
        message: 'is required with a credential that is bound to no project',
      })
    const row = await findDocumentByPath(db, project, query.path)
    if (!row) {
      // Who may not read what is there does not learn whether something is.
      allow('documents:GetDocument', { kind: documentKind, project_id: project, path: query.path })
      return raise('RESOURCE_NOT_FOUND', {
        message: `There is no document at the path ${query.path}`,
        meta: { path: query.path, project_id: project },
      })
    }
    allow('documents:GetDocument', { kind: documentKind, row })
    return read(services, row)
  },
})

const updateDocument = itemOperation(documentKind, {
  id: 'updateDocument',
  method: 'patch',
  path: '/documents/{document_id}',
  summary: 'Change a document: its text, place, metadata, tags or chunks',
  description: 'A new text or place is the next version; chunks are made and embedded anew where the text changed.',
  tag,
  action: 'documents:UpdateDocument',
  body: DocumentPatch,
  bodyLimit,
  answers: { 200: Document },
  raises: ['NAME_CONFLICT', 'VERSION_CONFLICT', 'QUOTA_EXCEEDED'],
  transaction: false,
  async run(context) {
    const { tags, chunk_strategy, chunk_unit, chunk_size, chunk_overlap, ...wanted } = context.body
    const settings = { chunk_strategy, chunk_unit, chunk_size, chunk_overlap }
    const after = await applyDocumentChange(context, {
      ...wanted,
      ...(tags ? { tags: stored => replacedTags(stored, tags) } : {}),
      ...(Object.values(settings).some(value => value != null) ? { settings } : {}),
    })
    return documentKind.present(after)
  },
})

const deleteDocument = itemOperation(documentKind, {
  id: 'deleteDocument',
  method: 'delete',
  path: '/documents/{document_id}',
  summary: 'Delete a document with its versions and its file',
  description: 'Its chunks are no longer found from then on.',
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
  summary: 'Read how far the ingestion of a document is',
  description: 'Shows how far conversion and embedding are, and the recorded error of a failed ingestion.',
  tag,
  action: 'documents:GetDocument',
  answers: { 200: DocumentStatus },
  async run({ resource, services }) {
    const row = await withStalledIngestionEnded(services, resource)
    const { id, status, chunk_count, embedded_chunks, total_chunks, total_pages, error } = row
    return { id, status, chunk_count, embedded_chunks, total_chunks, total_pages, progress: progressOf(row), error }
  },
})

/** Percent of the chunks that are there. */
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
  summary: 'List the chunks of a document in their order',
  description: 'The pieces that searches find, each with its position in the text.',
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
  summary: 'List the versions of a document, newest first',
  description: 'Every change of the text or the place has made one.',
  tag,
  action: 'documents:GetDocument',
  paged: true,
  answers: { 200: pageOf(DocumentVersion) },
  // The primary key serves filter and order.
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
  summary: 'Read one version of a document with its text',
  description: 'The text as it was then, whatever was written since.',
  tag,
  action: 'documents:GetDocument',
  answers: { 200: DocumentVersionWithContent },
  async run({ db, params, resource }) {
    const { text_version: _text, pages: _pages, ...version } = await versionOf(db, resource.id, params.version)
    return version
  },
})

const restoreDocumentVersion = itemOperation(documentKind, {
  id: 'restoreDocumentVersion',
  method: 'post',
  path: `${versionPath}/restore`,
  summary: 'Make the state of a version the newest version; brings back a withdrawn document',
  description: 'Nothing is lost: the state before stays as a version. Chunks are made anew in the background.',
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
  summary: 'Take a document out of lists and searches without deleting it',
  description: 'Versions and file stay, and a restore of any version brings it back.',
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
  // documents_project serves the order; documents_path, documents_tags and documents_metadata their filters.
  documents.list({
    filters: {
      path_prefix: columnFilter(Directory.optional().describe('Documents at or below this directory'), path =>
        atOrBelow(sql.fragment`t.path`, path),
      ),
      status: oneOf('status', DOCUMENT_STATUSES),
      include_withdrawn: columnFilter(
        booleanQuery.optional().describe('Withdrawn documents too; default false'),
        () => null,
      ),
      metadata: columnFilter(metadataQuery.optional(), wanted => metadataCondition(sql.fragment`t.metadata`, wanted)),
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
