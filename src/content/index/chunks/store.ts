import { z } from 'zod'
import { pageResult } from '#core/api/lists.ts'
import type { Context } from '#core/api/operation.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { currentSpace, type Space } from '../embeddings/space.ts'
import {
  hasVector,
  insertVectors,
  type NewVector,
  removeVectors,
  VECTOR_SOURCES,
  vectorInsert,
} from '../vectors/store.ts'
import { wordsLanguageExpr } from '../words/languages.ts'
import type { ChunkDraft } from './model.ts'

/** Vectors per statement: 5 MB with 1,024 dimensions, which take 40 ms to serialize. */
const VECTOR_BATCH = 1000

/** A chunk to insert; `words`: the words of its content (`indexTexts`). */
export type NewChunk = ChunkDraft & { id: string; words: string; vectors: Float32Array[] }

/** `space` is null if embeddings are not configured. */
export type ChunkOptions = { space: Space | null; textSearchConfig: string }

/** Document of chunks; `search_language` is its own language. */
type Owner = { project_id: string; document_id: string; search_language: string | null }

/**
 * Inserts chunks of a document with search words and vectors and updates counts and space of the document. One
 * statement, plus one per additional thousand vectors.
 */
export async function insertChunks(
  db: Queryable,
  owner: Owner,
  chunks: readonly NewChunk[],
  options: ChunkOptions,
): Promise<void> {
  if (chunks.length === 0) return
  const { ctes, space_id, insertRest } = chunkCtes(owner, chunks, options)
  const embedded = chunks.filter(({ vectors }) => vectors.length > 0).length
  await db.query(voidStatement`
    with ${sql.join(ctes, sql.fragment`, `)}
    update documents set space_id = ${space_id}, chunk_count = chunk_count + ${chunks.length},
      embedded_chunks = embedded_chunks + ${embedded}
    where id = ${owner.document_id}`)
  await insertRest(db)
}

/** CTEs that insert chunks, for a statement that writes the document. */
export type ChunkParts = {
  ctes: Fragment[]
  /** New space of the document; null leaves it unchanged. */
  space_id: number | null
  /** Inserts the vectors beyond the first thousand. */
  insertRest: (db: Queryable) => Promise<void>
}

/** Returns CTEs that insert chunks with search words and vectors if `guard` is true; none without chunks. */
export function chunkCtes(
  owner: Owner,
  chunks: readonly NewChunk[],
  { space, textSearchConfig }: ChunkOptions,
  guard: Fragment = sql.fragment`true`,
): ChunkParts {
  const vectors = space ? chunkVectorRows(owner, chunks, space) : []
  const ctes: Fragment[] = []
  if (chunks.length > 0)
    ctes.push(sql.fragment`written_chunks as (${chunkInsert(owner, chunks, textSearchConfig, guard)})`)
  if (vectors.length > 0)
    ctes.push(sql.fragment`written_vectors as (${vectorInsert(vectors.slice(0, VECTOR_BATCH), guard)})`)
  const insertRest = async (db: Queryable) => {
    for (let at = VECTOR_BATCH; at < vectors.length; at += VECTOR_BATCH)
      await insertVectors(db, vectors.slice(at, at + VECTOR_BATCH))
  }
  return { ctes, space_id: chunks.length > 0 ? (space?.id ?? 0) : null, insertRest }
}

const chunkInsert = (
  { document_id, project_id, search_language }: Owner,
  chunks: readonly NewChunk[],
  textSearchConfig: string,
  guard: Fragment,
): Fragment => sql.fragment`
    insert into document_chunks (id, document_id, project_id, chunk_index, page_number, char_start, char_end, content,
      context, tsv, tsv_config)
    select c.id, ${document_id}, ${project_id}, c.chunk_index, c.page_number, c.char_start, c.char_end, c.content,
      c.context, words_tsv(c.words, l.language, l.fallback, ${project_id}), l.tag
    from ${sql.unnest(
      chunks.map(chunk => [
        chunk.id,
        chunk.chunk_index,
        chunk.page_number,
        chunk.char_start,
        chunk.char_end,
        chunk.content,
        chunk.context,
        chunk.words,
      ]),
      ['text', 'int4', 'int4', 'int4', 'int4', 'text', 'text', 'text'],
    )} as c (id, chunk_index, page_number, char_start, char_end, content, context, words)
    cross join (${wordsLanguageExpr(sql.fragment`${search_language}::text`, sql.fragment`${project_id}`, textSearchConfig)}) l
    where ${guard}`

/** Returns rows of knowledge_vectors for chunks of a document. */
export const chunkVectorRows = (
  { project_id, document_id }: Omit<Owner, 'search_language'>,
  chunks: readonly Pick<NewChunk, 'id' | 'vectors'>[],
  space: Space,
): NewVector[] =>
  chunks.flatMap(({ id, vectors }) =>
    vectors.map((vector, segment) => ({
      project_id,
      source: VECTOR_SOURCES.document,
      container_id: document_id,
      ref_id: id,
      segment,
      space_id: space.id,
      vector,
    })),
  )

/** Deletes the chunks of a document and their vectors. Index document_chunks_document. */
export async function removeChunks(db: Queryable, documentId: string): Promise<void> {
  await removeVectors(db, { container_id: documentId })
  await db.query(voidStatement`delete from document_chunks where document_id = ${documentId}`)
}

type ListedChunk = {
  id: string
  chunk_index: number
  page_number: number | null
  char_start: number
  char_end: number
  content: string
  embedded: boolean
}

/**
 * Lists the chunks of a document in order, for responses; `embedded`: whether a search by meaning can find the chunk.
 * Indexes: document_chunks_document for the order, knowledge_vectors_ref for the vectors.
 */
export async function listChunks(context: Pick<Context, 'db' | 'page' | 'services'>, documentId: string) {
  const space = await currentSpace(context.services)
  return pageResult<ListedChunk>(context, {
    columns: sql.fragment`t.id, t.chunk_index, t.page_number, t.char_start, t.char_end, t.content,
      ${hasVector(VECTOR_SOURCES.document, sql.fragment`t.id`, space?.id ?? 0)} as embedded`,
    from: sql.fragment`document_chunks t`,
    rows: sql.fragment`t.document_id = ${documentId}`,
    order: sql.fragment`t.chunk_index`,
    // Reads texts and vectors only for the rows of the page.
    key: sql.fragment`t.id`,
    present: row => row,
  })
}

const UnembeddedChunk = z.object({
  id: z.string(),
  document_id: z.string(),
  chunk_index: z.int(),
  content: z.string(),
  context: z.string().nullable(),
})
export type UnembeddedChunk = z.output<typeof UnembeddedChunk>

const unembeddedRow = sql.type(UnembeddedChunk)

/**
 * Lists chunks of documents after a position; with `missingSpace`, only chunks without vectors of that space. Indexes:
 * document_chunks_document for the order, knowledge_vectors_ref for the vectors.
 */
export const listChunksToEmbed = (
  db: Queryable,
  missingSpace: Space | null,
  documentIds: readonly string[],
  after: Pick<UnembeddedChunk, 'document_id' | 'chunk_index'> | null,
  limit: number,
): Promise<readonly UnembeddedChunk[]> =>
  db.any(unembeddedRow`
    select c.id, c.document_id, c.chunk_index, c.content, c.context from document_chunks c
    where c.document_id = any(${sql.array([...documentIds], 'text')})
      ${after === null ? sql.fragment`` : sql.fragment`and (c.document_id, c.chunk_index) > (${after.document_id}, ${after.chunk_index})`}
      ${
        missingSpace === null
          ? sql.fragment``
          : sql.fragment`and not ${hasVector(VECTOR_SOURCES.document, sql.fragment`c.id`, missingSpace.id)}`
      }
    order by c.document_id, c.chunk_index limit ${limit}`)

/** Returns the IDs of chunks that still exist. */
export const findExistingChunks = async (db: Queryable, ids: readonly string[]): Promise<ReadonlySet<string>> =>
  new Set(await db.anyFirst(idStatement`select id from document_chunks where id = any(${sql.array([...ids], 'text')})`))
