import { z } from 'zod'
import { raise } from '#core/base/errors.ts'
import { type Fragment, idStatement, jsonb, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type FileRow, raisePathConflict } from '../files/model.ts'
import { fileInsert, type NewFile } from '../files/store.ts'
import type { PageStarts } from '../index/chunks/pages.ts'
import { type ChunkOptions, type ChunkParts, chunkCtes, type NewChunk } from '../index/chunks/store.ts'
import { type DocumentAuthor, DocumentRow, DocumentVersionRow, documentKind, StoredText } from './model.ts'

const documentWithTextRow = sql.type(DocumentRow.extend({ content: z.string().nullable() }))
const textRow = sql.type(StoredText)
const versionRow = sql.type(DocumentVersionRow)

/** Columns of a new document; the other columns have defaults. */
export type NewDocument = Pick<
  DocumentRow,
  | 'id'
  | 'project_id'
  | 'file_id'
  | 'kind'
  | 'status'
  | 'path'
  | 'filename'
  | 'content_type'
  | 'size'
  | 'title'
  | 'metadata'
  | 'tags'
  | 'chunk_strategy'
  | 'chunk_unit'
  | 'chunk_size'
  | 'chunk_overlap'
> &
  Partial<Pick<DocumentRow, 'chunk_count' | 'embedded_chunks' | 'total_chunks' | 'total_pages' | 'embed_since'>>

/**
 * Inserts a document with version 1 and, if given, its text. Raises FILE_ALREADY_INGESTED if the file has another
 * document (documents_file_id_key).
 */
export async function insertDocument(
  db: Queryable,
  row: NewDocument,
  { text: content = null, created_by }: { text?: string | null; created_by: DocumentAuthor | null },
): Promise<DocumentRow> {
  const inserted = await db.maybeOne(documentKind.sql`
    with ${sql.join(documentCtes(row, { content, created_by }), sql.fragment`, `)}
    select * from made`)
  if (inserted) return inserted
  const document_id = await findDocumentOfFile(db, row.file_id)
  return raise('FILE_ALREADY_INGESTED', { meta: { file_id: row.file_id, document_id } })
}

/**
 * Inserts a document with its file, version 1, text and chunks in one statement. Raises NAME_CONFLICT with
 * `meta { path }` if the path exists (files_path).
 */
export async function insertTextDocument(
  db: Queryable,
  input: { file: NewFile & { sha256: Buffer }; row: NewDocument; text: string; created_by: DocumentAuthor },
  chunks: readonly NewChunk[],
  options: ChunkOptions,
): Promise<{ file: FileRow; document: DocumentRow }> {
  const { file, row, text: content, created_by } = input
  const owner = { project_id: row.project_id, document_id: row.id, search_language: null }
  const parts = chunkCtes(owner, chunks, options, sql.fragment`exists (select from made)`)
  const ctes = [
    sql.fragment`filed as (${fileInsert(file)} returning id)`,
    ...documentCtes(row, {
      content,
      created_by,
      space_id: parts.space_id,
      guard: sql.fragment`exists (select from filed)`,
    }),
    ...parts.ctes,
  ]
  const document = await db.maybeOne(documentKind.sql`with ${sql.join(ctes, sql.fragment`, `)} select * from made`)
  if (!document) return raisePathConflict(file.path)
  await parts.insertRest(db)
  const { created_at, updated_at } = document
  const sha256 = file.sha256.toString('hex')
  return { file: { ...file, sha256, document_id: row.id, actor_id: null, created_at, updated_at }, document }
}

/**
 * CTEs that insert a document (as `made`), version 1 and its text, if `guard` is true; no rows if the file has a
 * document (documents_file_id_key).
 */
function documentCtes(
  row: NewDocument,
  more: { content: string | null; created_by: DocumentAuthor | null; space_id?: number | null; guard?: Fragment },
): Fragment[] {
  const { content, created_by, space_id, guard = sql.fragment`true` } = more
  const textVersion = content === null ? null : 1
  return [
    sql.fragment`made as (
      insert into documents (id, project_id, file_id, kind, status, text_version, path, filename, content_type, size, title,
        metadata, tags, chunk_strategy, chunk_unit, chunk_size, chunk_overlap, chunk_count, embedded_chunks, total_chunks,
        total_pages, embed_since, space_id)
      select ${row.id}, ${row.project_id}, ${row.file_id}, ${row.kind}, ${row.status}, ${textVersion}, ${row.path},
        ${row.filename}, ${row.content_type}, ${row.size}, ${row.title}, ${jsonb(row.metadata)}, ${jsonb(row.tags)},
        ${row.chunk_strategy}, ${row.chunk_unit}, ${row.chunk_size}, ${row.chunk_overlap}, ${row.chunk_count ?? 0},
        ${row.embedded_chunks ?? 0}, ${row.total_chunks ?? null}, ${row.total_pages ?? null},
        ${row.embed_since ?? null}::timestamptz, ${space_id ?? 0}
      where ${guard}
      on conflict (file_id) do nothing
      returning *)`,
    sql.fragment`stored as (
      insert into document_texts (document_id, content) select id, ${content}::text from made where ${content !== null})`,
    sql.fragment`versioned as (
      insert into document_versions (document_id, version, title, path, metadata, tags, chunk_strategy, chunk_unit,
        chunk_size, chunk_overlap, text_version, created_by)
      select id, version, title, path, metadata, tags, chunk_strategy, chunk_unit, chunk_size, chunk_overlap, text_version,
        ${jsonb(created_by)}
      from made)`,
  ]
}

/** Returns the ID of the document of a file. Index documents_file_id_key. */
export const findDocumentOfFile = (db: Queryable, fileId: string): Promise<string | null> =>
  db.maybeOneFirst(idStatement`select id from documents where file_id = ${fileId}`)

/** Locks and returns a document; every write takes this lock. */
export const lockDocument = (db: Queryable, id: string): Promise<DocumentRow | null> => documentKind.find(db, id, true)

/** Returns a document, with its text if it is ready. Indexes: primary keys. */
export const findDocumentWithText = (
  db: Queryable,
  id: string,
): Promise<(DocumentRow & { content: string | null }) | null> =>
  db.maybeOne(documentWithTextRow`
    select t.*, x.content from documents t
    left join document_texts x on x.document_id = t.id and t.status = 'ready'
    where t.id = ${id}`)

/** Returns the document at an exact path, with its text if it is ready. Index documents_path. */
export const findDocumentByPath = (
  db: Queryable,
  projectId: string,
  path: string,
): Promise<(DocumentRow & { content: string | null }) | null> =>
  db.maybeOne(documentWithTextRow`
    select t.*, x.content from documents t
    left join document_texts x on x.document_id = t.id and t.status = 'ready'
    where t.project_id = ${projectId} and t.path = ${path} and t.kind = 'document'`)

/**
 * Updates all mutable columns of a locked document. With `version`, also inserts the state as a version; a tombstone is
 * a version without text. The CTEs of `more` run in the same statement.
 */
export async function updateDocument(
  db: Queryable,
  row: DocumentRow,
  version?: { tombstone?: boolean; created_by: DocumentAuthor | null },
  more: Partial<ChunkParts> = {},
): Promise<DocumentRow> {
  const { ctes = [], space_id = null, insertRest } = more
  const stored = await db.one(documentKind.sql`
    with ${sql.join([...ctes, documentUpdate(row, space_id)], sql.fragment`, `)}, archived as (
      insert into document_versions (document_id, version, tombstone, title, path, metadata, tags, chunk_strategy,
        chunk_unit, chunk_size, chunk_overlap, text_version, created_by)
      select id, version, ${version?.tombstone ?? false}::boolean, title, path, metadata, tags, chunk_strategy, chunk_unit,
        chunk_size, chunk_overlap, text_version, ${jsonb(version?.created_by)}
      from stored where ${version !== undefined}
    )
    select * from stored`)
  await insertRest?.(db)
  return stored
}

const documentUpdate = (row: DocumentRow, space_id: number | null): Fragment => sql.fragment`stored as (
      update documents set status = ${row.status}, version = ${row.version}, text_version = ${row.text_version},
        path = ${row.path}, filename = ${row.filename}, content_type = ${row.content_type}, size = ${row.size},
        title = ${row.title}, metadata = ${jsonb(row.metadata)}, tags = ${jsonb(row.tags)},
        chunk_strategy = ${row.chunk_strategy}, chunk_unit = ${row.chunk_unit}, chunk_size = ${row.chunk_size},
        chunk_overlap = ${row.chunk_overlap}, chunk_count = ${row.chunk_count}, embedded_chunks = ${row.embedded_chunks},
        total_chunks = ${row.total_chunks}, total_pages = ${row.total_pages}, error = ${jsonb(row.error)},
        embed_since = ${row.embed_since}::timestamptz, embedding = ${row.embedding}, search_language = ${row.search_language},
        charset = ${row.charset},
        space_id = coalesce(${space_id}::int, space_id), updated_at = now()
      where id = ${row.id} returning *)`

/** Returns the current text of a document in any status, or null. */
export const findDocumentText = (db: Queryable, id: string): Promise<StoredText | null> =>
  db.maybeOne(textRow`select content, pages from document_texts where document_id = ${id}`)

/**
 * Replaces the current text of a document. The old text moves to the version that introduced it; a restored text is
 * removed from its version, so that it is stored once. `before` is the locked row before the change; the caller writes
 * the new `text_version` with `updateDocument`.
 */
export const setDocumentText = (
  db: Queryable,
  before: Pick<DocumentRow, 'id' | 'text_version'>,
  { content, pages }: StoredText,
  textVersion: number,
) =>
  db.query(voidStatement`
    with replaced as (
      update document_versions v set content = t.content, pages = t.pages from document_texts t
      where t.document_id = ${before.id} and v.document_id = ${before.id} and v.version = ${before.text_version}
        and v.content is null
    ), given as (
      update document_versions set content = null, pages = null
      where document_id = ${before.id} and version = ${textVersion} and content is not null
    )
    insert into document_texts (document_id, content, pages) values (${before.id}, ${content}, ${jsonb(pages)})
    on conflict (document_id) do update set content = excluded.content, pages = excluded.pages`)

/** Stores the page starts of the current text of a document. */
export const setTextPages = (db: Queryable, id: string, pages: PageStarts | null) =>
  db.query(voidStatement`update document_texts set pages = ${jsonb(pages)} where document_id = ${id}`)

/**
 * CTEs that insert the first text of an ingested document and assign it and the resolved chunk settings to all existing
 * versions. The text counts as introduced by version 1: the caller sets `text_version` of the row to 1.
 */
export const firstTextCtes = (row: DocumentRow, { content, pages }: StoredText): Fragment[] => [
  sql.fragment`first_text as (
    insert into document_texts (document_id, content, pages) values (${row.id}, ${content}, ${jsonb(pages)}))`,
  sql.fragment`versions_with_text as (
    update document_versions set text_version = 1, chunk_strategy = ${row.chunk_strategy}, chunk_unit = ${row.chunk_unit},
      chunk_size = ${row.chunk_size}, chunk_overlap = ${row.chunk_overlap}
    where document_id = ${row.id} and text_version is null)`,
]

/** Deletes the ingestion attempt of a document; its worker loses the claim. */
export const endIngestion = (db: Queryable, documentId: string) =>
  db.query(voidStatement`delete from ingestion_attempts where document_id = ${documentId}`)

/** Returns a version with its text and pages; a tombstone has none. Index: primary key. */
export const findVersion = (db: Queryable, documentId: string, number: number): Promise<DocumentVersionRow | null> =>
  db.maybeOne(versionRow`
    select v.document_id, v.version, v.tombstone, v.title, v.path, v.metadata, v.tags, v.chunk_strategy, v.chunk_unit,
      v.chunk_size, v.chunk_overlap, v.text_version, v.created_by, v.created_at,
      case when not v.tombstone then coalesce(brought.content, live.content) end as content,
      coalesce(brought.pages, live.pages) as pages
    from document_versions v
    left join document_versions brought on brought.document_id = v.document_id and brought.version = v.text_version
    left join document_texts live on live.document_id = brought.document_id and brought.content is null
    where v.document_id = ${documentId} and v.version = ${number}`)

const textsRow = sql.type(documentKind.row.extend({ bytes: z.int().nullable(), content: z.string().nullable() }))

/**
 * Lists documents of a project by ID, unordered, with the text of ready ones and its length in UTF-8. Reads no text if
 * the total exceeds `maxBytes`. Indexes: primary keys.
 */
export const listDocumentTexts = (db: Queryable, projectId: string, ids: readonly string[], maxBytes: number) =>
  db.any(textsRow`
    select ${documentKind.columns}, octet_length(x.content) as bytes,
      case when sum(octet_length(x.content)) over () <= ${maxBytes} then x.content end as content
    from documents t left join document_texts x on x.document_id = t.id and t.status = 'ready'
    where t.id = any(${sql.array([...ids], 'text')}) and t.project_id = ${projectId}`)
