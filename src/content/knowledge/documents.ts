import { z } from 'zod'
import { tagCondition } from '#core/api/lists.ts'
import { allOf, equalsAny, type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { principalFacts } from '#core/iam/caller.ts'
import { rowFilter } from '#core/iam/row-filter.ts'
import { metadataCondition } from '../documents/metadata-filter.ts'
import { VECTOR_SOURCES } from '../index/vectors/store.ts'
import { atOrBelow } from '../paths.ts'
import { DocumentResult, type SearchInput } from './model.ts'
import { isPresent, type ReadOptions, SEARCH_ACTION, type SearchScope, type SearchSource } from './sources.ts'

/** Search source for chunks of ready documents. */

/** Returns the condition of caller and request on documents `d`; null selects all, `none` no documents. */
function documentCondition({ caller, project }: SearchScope, request: SearchInput): Fragment | null | 'none' {
  const permitted = rowFilter(
    caller.layers,
    { action: SEARCH_ACTION, type: 'document', facts: principalFacts(caller), projectId: project ?? undefined },
    {
      project: sql.fragment`d.project_id`,
      id: sql.fragment`d.id`,
      path: sql.fragment`d.path`,
      tags: sql.fragment`d.tags`,
    },
  )
  if (permitted === false) return 'none'
  const { document_ids, document_paths, metadata, tags } = request
  const conditions = [
    permitted !== true && sql.fragment`(${permitted})`,
    isPresent(document_ids) && sql.fragment`d.id = any(${sql.array(document_ids, 'text')})`,
    isPresent(document_paths) &&
      sql.fragment`(${sql.join(
        document_paths.map(path => atOrBelow(sql.fragment`d.path`, path)),
        sql.fragment` or `,
      )})`,
    isPresent(metadata) && metadataCondition(sql.fragment`d.metadata`, metadata),
    tagCondition(sql.fragment`d.tags`, tags),
  ].filter(condition => !!condition)
  return conditions.length === 0 ? null : allOf(conditions)
}

/** Compares a single project by equality, so that documents_project returns rows in order, without sorting. */
const inProjects = (projects: readonly string[] | null): Fragment | null =>
  projects && equalsAny(sql.fragment`d.project_id`, projects)

const searchable = sql.fragment`d.kind = 'document' and d.status = 'ready'`

/**
 * Condition that excludes chunks of documents being ingested, which are inserted before the document is ready. Index
 * documents_unsettled, restricted to the searched projects, so that bulk imports of other projects have no cost.
 */
const isSettled = (container: Fragment, projects: readonly string[] | null): Fragment =>
  sql.fragment`${container} not in (
    select d.id from documents d where ${allOf([sql.fragment`d.status in ('pending', 'processing')`, inProjects(projects)])})`

const SAMPLED_DOCUMENTS = 100

const resultColumns = (neighbors: number): Fragment => sql.fragment`
  'document' as source_type, c.content, d.project_id, d.tags, d.created_at, d.updated_at, d.id as document_id,
  c.id as chunk_id, d.file_id, c.chunk_index, c.page_number as page, d.path, d.filename, d.title, d.content_type, d.size,
  d.metadata${
    neighbors === 0
      ? sql.fragment``
      : sql.fragment`,
  ${adjacentText(sql.fragment`n.chunk_index between c.chunk_index - ${neighbors}::int and c.chunk_index - 1`)} as context_before,
  ${adjacentText(sql.fragment`n.chunk_index between c.chunk_index + 1 and c.chunk_index + ${neighbors}::int`)} as context_after`
  }`

/** Index document_chunks_document. */
const adjacentText = (where: Fragment): Fragment => sql.fragment`(
  select string_agg(n.content, e'\n' order by n.chunk_index) from document_chunks n
  where n.document_id = c.document_id and ${where})`

const resultRow = sql.type(
  z.object({ ...DocumentResult.shape, created_at: z.string(), updated_at: z.string() }) as z.ZodType<DocumentResult>,
)

export const documentSource: SearchSource = {
  type: 'document',
  number: VECTOR_SOURCES.document,
  resource: 'document',
  table: 'document_chunks',
  container: 'document_id',

  async visible(_services, scope, request) {
    const condition = documentCondition(scope, request)
    if (condition === 'none') return 'none'
    const projects = scope.project === null ? null : [scope.project]
    if (condition === null) return { whole: true, filter: ({ container }) => isSettled(container, projects) }
    return {
      whole: false,
      filter: ({ container }) => sql.fragment`${container} in (
        select d.id from documents d where ${allOf([searchable, inProjects(projects), condition])})`,
    }
  },

  /** First chunks of the newest documents. Indexes documents_project, document_chunks_document. */
  sample: ({ projects, filter }) => sql.fragment`
    select c.tsv from (
      select d.id from documents d
      where ${allOf([searchable, inProjects(projects), filter?.({ ref: sql.fragment`null::text`, container: sql.fragment`d.id`, owner: sql.fragment`''` })])}
      order by d.created_at desc, d.id desc limit ${SAMPLED_DOCUMENTS}
    ) d join document_chunks c on c.document_id = d.id and c.chunk_index = 0`,

  /** Indexes: primary keys. */
  async read(db, scope, request, ids, options) {
    const rows = await selectResults(db, scope, request, options, {
      where: sql.fragment`c.id = any(${sql.array([...ids], 'text')})`,
      order: sql.fragment``,
    })
    return new Map(rows.map(result => [result.chunk_id, result]))
  },

  /** Oldest first. Index documents_project, read backwards. */
  async list(db, scope, request, options) {
    const rows = await selectResults(db, scope, request, options, {
      where: inProjects(scope.project === null ? null : [scope.project]),
      order: sql.fragment`order by d.created_at, d.id, c.chunk_index limit ${request.limit}`,
    })
    return [...rows]
  },
}

async function selectResults(
  db: Queryable,
  scope: SearchScope,
  request: SearchInput,
  { neighbors }: ReadOptions,
  query: { where: Fragment | null; order: Fragment },
): Promise<readonly DocumentResult[]> {
  const condition = documentCondition(scope, request)
  if (condition === 'none') return []
  return db.any(resultRow`
    select ${resultColumns(neighbors)} from document_chunks c join documents d on d.id = c.document_id
    where ${allOf([query.where, searchable, condition])} ${query.order}`)
}
