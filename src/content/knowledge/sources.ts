import type { Fragment, Queryable } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'
import { type CallerFacts, principalFacts } from '../../core/iam/caller.ts'
import { listProjects } from '../../core/iam/row-filter.ts'
import type { Services } from '../../core/process/services.ts'
import type { SourceNumber, VectorColumns } from '../vectors/store.ts'
import type { Result, SearchInput } from './model.ts'

export const SEARCH_ACTION = 'knowledge:SearchKnowledge'

/** Who searches, and where: one project, or every project that the caller may search. */
export type SearchScope = { caller: CallerFacts; project: string | null }

/** Rows of a source that a search may see, as a condition over the row and what contains it; null sees all of a project. */
export type RowFilter = ((columns: VectorColumns) => Fragment) | null

/** What a search may see of a source; `whole` is all of it that is ready, or most, so that what is hidden costs little. */
export type SourceVisibility = { whole: boolean; filter: RowFilter }

/** What one search asks of a source: fixed once, before any channel runs. */
export type SourceSelection = SourceVisibility & {
  source: SearchSource
  /** Null: of every project, as far as `filter` goes. */
  projects: readonly string[] | null
}

export type ReadOptions = { neighbors: number }

/**
 * Where rows come from that a search ranks together: chunks of documents, and memories once their module brings them.
 * Rows have an id, a project, a container that policies are about, a tsvector with the lexeme of their project, and
 * vectors in knowledge_vectors.
 */
export type SearchSource = {
  type: Result['source_type']
  number: SourceNumber
  /** The type that policies name the containers by. */
  resource: string
  /** Table of the rows, with columns id, project_id and tsv, and the column of the container. */
  table: string
  container: string
  /** Whose a row `c` is within its container, for sources whose rows are of end users. */
  owner?: Fragment
  /** What of the projects the caller and the request leave; `none` when nothing is. */
  visible(services: Services, scope: SearchScope, request: SearchInput): Promise<SourceVisibility | 'none'>
  /** The lexemes of some rows that the search may see, each once a row: how common words are. */
  sample(selection: SourceSelection): Fragment
  /** Rows as results, by id, those alone that may be seen. */
  read(
    db: Queryable,
    scope: SearchScope,
    request: SearchInput,
    ids: readonly string[],
    options: ReadOptions,
  ): Promise<Map<string, Result>>
  /** Without a query: the first rows in the source's own order. */
  list(db: Queryable, scope: SearchScope, request: SearchInput, options: ReadOptions): Promise<Result[]>
  /** When rows were last changed, for sources whose old rows count less. */
  changedAt?(db: Queryable, ids: readonly string[]): Promise<Map<string, Date>>
}

/** The kinds of rows that searches cover. */
export const searchSources = extensionPoint<SearchSource>('search sources')

/** Which sources a request asks, with what it may see of them. */
export async function selectionsOf(
  services: Services,
  scope: SearchScope,
  request: SearchInput,
): Promise<SourceSelection[]> {
  const ranks = !!request.query || isPresent(request.tags)
  const documents = isPresent(request.document_ids) || isPresent(request.document_paths) || isPresent(request.metadata)
  const asked: Record<Result['source_type'], boolean> = {
    document: request.include_documents && (ranks || documents),
    memory: request.include_memories && (ranks || isPresent(request.memory_store_ids)),
  }
  const chosen: SourceSelection[] = []
  for (const source of searchSources.all()) {
    if (!asked[source.type]) continue
    const projects = projectsOf(scope, source.resource)
    const visible = projects?.length === 0 ? 'none' : await source.visible(services, scope, request)
    if (visible === 'none') continue
    chosen.push({ source, projects, ...visible })
  }
  return chosen
}

/** An empty list, bag or filter says nothing. */
export const isPresent = <T extends object>(value: T | undefined): value is T =>
  value !== undefined && Object.keys(value).length > 0

function projectsOf({ caller, project }: SearchScope, type: string): readonly string[] | null {
  if (project !== null) return [project]
  if (caller.layers.length === 0) return null
  const projects = listProjects(caller.layers, { action: SEARCH_ACTION, type, facts: principalFacts(caller) })
  return projects === 'all' ? null : projects
}
