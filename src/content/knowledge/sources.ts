import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { Fragment, Queryable } from '#core/db/sql.ts'
import { type CallerFacts, principalFacts } from '#core/iam/caller.ts'
import { listProjects } from '#core/iam/row-filter.ts'
import type { SourceNumber, VectorColumns } from '../index/vectors/store.ts'
import type { Result, SearchInput } from './model.ts'

export const SEARCH_ACTION = 'knowledge:SearchKnowledge'

/** Caller and project of a search; without a project, all projects that the caller may search. */
export type SearchScope = { caller: CallerFacts; project: string | null }

/** Condition for visible rows over the columns of a row; null selects all rows of a project. */
export type RowFilter = ((columns: VectorColumns) => Fragment) | null

/** Visible rows of a source. `whole`: all or most ready rows are visible, so that filtering after a scan is cheap. */
export type SourceVisibility = { whole: boolean; filter: RowFilter }

/** Rows of a source that a search covers, determined once before the channels run. */
export type SourceSelection = SourceVisibility & {
  source: SearchSource
  /** Null for all projects, restricted by `filter`. */
  projects: readonly string[] | null
}

export type ReadOptions = { neighbors: number }

/**
 * Source of rows that a search ranks together: chunks of documents, and memories (registered by their module). Rows
 * have an ID, a project, a container that policies apply to, a tsvector with the lexeme of the project, and vectors in
 * knowledge_vectors.
 */
export type SearchSource = {
  type: Result['source_type']
  number: SourceNumber
  /** Resource type of the containers in policies. */
  resource: string
  /** Table of the rows, with columns id, project_id and tsv. */
  table: string
  /** Column of the container. */
  container: string
  /** Owner of a row `c`, for sources with rows of end users. */
  owner?: Fragment
  /** Returns the rows visible to caller and request, or `none`. */
  visible(services: Services, scope: SearchScope, request: SearchInput): Promise<SourceVisibility | 'none'>
  /** Query for the tsvectors of some visible rows, to estimate word frequencies. */
  sample(selection: SourceSelection): Fragment
  /** Reads visible rows by ID as results. */
  read(
    db: Queryable,
    scope: SearchScope,
    request: SearchInput,
    ids: readonly string[],
    options: ReadOptions,
  ): Promise<Map<string, Result>>
  /** Lists the first visible rows, for searches without a query. */
  list(db: Queryable, scope: SearchScope, request: SearchInput, options: ReadOptions): Promise<Result[]>
  /** Reads the times of the last changes, for sources that are ranked by recency. */
  readChangedAt?(db: Queryable, ids: readonly string[]): Promise<Map<string, Date>>
}

export const searchSources = extensionPoint<SearchSource>({
  name: 'search sources',
  folder: 'content/knowledge',
  description: 'Gives the passages of one kind of content to searches',
})

/** Returns the sources that a request covers, with their visible rows. */
export async function selectSources(
  services: Services,
  scope: SearchScope,
  request: SearchInput,
): Promise<SourceSelection[]> {
  const coversAll = !!request.query || isPresent(request.tags)
  const selectsDocuments =
    isPresent(request.document_ids) || isPresent(request.document_paths) || isPresent(request.metadata)
  const included: Record<Result['source_type'], boolean> = {
    document: request.include_documents && (coversAll || selectsDocuments),
    memory: request.include_memories && (coversAll || isPresent(request.memory_store_ids)),
  }
  const selections: SourceSelection[] = []
  for (const source of searchSources.all()) {
    if (!included[source.type]) continue
    const projects = projectsOf(scope, source.resource)
    const visible = projects?.length === 0 ? 'none' : await source.visible(services, scope, request)
    if (visible === 'none') continue
    selections.push({ source, projects, ...visible })
  }
  return selections
}

/** Whether a list, object or filter is set and not empty. */
export const isPresent = <T extends object>(value: T | undefined): value is T =>
  value !== undefined && Object.keys(value).length > 0

function projectsOf({ caller, project }: SearchScope, type: string): readonly string[] | null {
  if (project !== null) return [project]
  if (caller.layers.length === 0) return null
  const projects = listProjects(caller.layers, { action: SEARCH_ACTION, type, facts: principalFacts(caller) })
  return projects === 'all' ? null : projects
}
