import { type FragmentSqlToken, sql } from 'slonik'
import { equalsAny, jsonb } from '../db/sql.ts'
import type { Layer } from './decide.ts'
import { globToLike } from './glob.ts'
import { conditionHolds, constantValue, matchesAction, type PrincipalFacts } from './match.ts'
import type { Condition, ResourcePattern } from './policy.ts'

/** Decisions on lists: the projects in which rows can be allowed, and the SQL condition of the allowed rows. */

export type ListRequest = {
  action: string
  type: string
  /** Additional type by which rows are named, for example the orchestration of a run. */
  parentType?: string
  facts: PrincipalFacts
}

/** Returns whether a condition is true for all rows of a list; null if it depends on tags. */
function constantTruth(condition: Condition, request: ListRequest): boolean | null {
  if (condition.source === 'ResourceTag') return null
  return conditionHolds(condition, constantValue(condition, { type: request.type, facts: request.facts }))
}

type ListStatement = { resources: readonly ResourcePattern[] | null; conditions: Condition[] }

/** Returns the statements of a layer that match a list, without constant conditions; null denies everything. */
function listStatements(layer: Layer, request: ListRequest): { allow: ListStatement[]; deny: ListStatement[] } | null {
  const allow: ListStatement[] = []
  const deny: ListStatement[] = []
  for (const document of layer.documents) {
    if (!document.valid) return null
    for (const statement of document.statements) {
      if (!matchesAction(statement, request.action)) continue
      const resources =
        statement.resources?.filter(
          ({ type }) => type === null || type === request.type || type === request.parentType,
        ) ?? null
      if (resources?.length === 0) continue
      const conditions: Condition[] = []
      let never = false
      for (const condition of statement.conditions) {
        const truth = constantTruth(condition, request)
        if (truth === null) conditions.push(condition)
        else if (!truth) never = true
      }
      if (!never) (statement.deny ? deny : allow).push({ resources, conditions })
    }
  }
  return { allow, deny }
}

/**
 * Returns the projects in which rows of a list can be allowed: `'all'` if no layer is limited to projects, otherwise their
 * ids. An empty list results in 403 for a list over all projects.
 */
export function listProjects(layers: readonly Layer[], request: ListRequest): 'all' | string[] {
  let remaining: string[] | null = null
  const denied = new Set<string>()
  for (const layer of layers) {
    const statements = listStatements(layer, request)
    if (!statements) return []
    const allowed = statements.allow.flatMap(s => s.resources?.map(r => r.project) ?? [null])
    if (!allowed.includes(null)) {
      const ids: Set<string> = new Set(allowed as string[])
      remaining = remaining ? remaining.filter(id => ids.has(id)) : [...ids]
    }
    for (const { resources, conditions } of statements.deny) {
      if (conditions.length > 0) continue
      if (resources === null) return []
      for (const pattern of resources) {
        if (pattern.id !== null || pattern.path !== null) continue
        if (pattern.project === null) return []
        denied.add(pattern.project)
      }
    }
  }
  return remaining?.filter(id => !denied.has(id)) ?? 'all'
}

/**
 * Whether a list in a project can contain allowed rows. False, which results in 403, if a layer has no Allow that can match
 * the type in the project, or a Deny without id, path or condition.
 */
export function listPossible(layers: readonly Layer[], request: ListRequest & { projectId: string }): boolean {
  const here = ({ project }: ResourcePattern) => project === null || project === request.projectId
  return layers.every(layer => {
    const statements = listStatements(layer, request)
    if (!statements) return false
    const covered = statements.deny.some(
      ({ resources, conditions }) =>
        conditions.length === 0 &&
        (resources === null ||
          resources.some(pattern => here(pattern) && pattern.id === null && pattern.path === null)),
    )
    return !covered && statements.allow.some(({ resources }) => resources === null || resources.some(here))
  })
}

/** Columns of the listed rows. Project, path and tags may be null; global rows are named `srn:*:...`. */
export type RowColumns = {
  project: FragmentSqlToken
  id: FragmentSqlToken
  path?: FragmentSqlToken
  /** jsonb object of strings. */
  tags?: FragmentSqlToken
  /** Id of the parent, for a request with `parentType`. */
  parent?: FragmentSqlToken
}

/** The condition of the rows visible to a caller; `all`: policies do not restrict it. */
export type VisibleRows = { rows: FragmentSqlToken; all: boolean }

type Filter = boolean | FragmentSqlToken

function anyFilter(filters: Filter[]): Filter {
  const parts = filters.filter(filter => filter !== false)
  if (parts.includes(true)) return true
  return joinFilters(parts as FragmentSqlToken[], sql.fragment` or `) ?? false
}

function allFilters(filters: Filter[]): Filter {
  const parts = filters.filter(filter => filter !== true)
  if (parts.includes(false)) return false
  return joinFilters(parts as FragmentSqlToken[], sql.fragment` and `) ?? true
}

function joinFilters(parts: FragmentSqlToken[], glue: FragmentSqlToken): FragmentSqlToken | null {
  if (parts.length < 2) return parts[0] ?? null
  return sql.fragment`(${sql.join(parts, glue)})`
}

/**
 * Returns the condition of the allowed rows of a list: true (no restriction), false (no rows) or a fragment with only
 * parameters as values. It is null for some excluded rows, so it must not be negated.
 * @param request.projectId set if the query is already limited to a project; project patterns are then evaluated here, not
 *   in SQL
 */
export function rowFilter(
  layers: readonly Layer[],
  request: ListRequest & { projectId?: string },
  columns: RowColumns,
): boolean | FragmentSqlToken {
  return allFilters(
    layers.map(layer => {
      const statements = listStatements(layer, request)
      if (!statements) return false
      const allow = effectFilter(statements.allow, request, columns)
      if (allow === false) return false
      const deny = effectFilter(statements.deny, request, columns)
      if (typeof deny === 'boolean') return deny ? false : allow
      // Comparisons with null columns make the Deny null: such a row is not denied.
      return allFilters([allow, sql.fragment`(${deny}) is not true`])
    }),
  )
}

/** Merges statements without tag conditions, so that a policy with many ids costs one comparison with an array. */
function effectFilter(
  statements: ListStatement[],
  request: ListRequest & { projectId?: string },
  columns: RowColumns,
): Filter {
  const plain = statements.filter(({ conditions }) => conditions.length === 0)
  if (plain.some(({ resources }) => resources === null)) return true
  return anyFilter([
    resourceFilter(
      plain.flatMap(({ resources }) => resources ?? []),
      request,
      columns,
    ),
    ...statements
      .filter(({ conditions }) => conditions.length > 0)
      .map(({ resources, conditions }) =>
        allFilters([
          resources === null || resourceFilter(resources, request, columns),
          ...conditions.map(condition => tagFilter(condition, columns)),
        ]),
      ),
  ])
}

type NamedRows = { every: boolean; ids: string[]; parents: string[]; paths: string[] }

function resourceFilter(
  patterns: readonly ResourcePattern[],
  request: ListRequest & { projectId?: string },
  columns: RowColumns,
): Filter {
  const anywhere: NamedRows = { every: false, ids: [], parents: [], paths: [] }
  const byProject = new Map<string, NamedRows>()
  for (const { project, type, id, path } of patterns) {
    let rows = anywhere
    if (project !== null && request.projectId !== project) {
      if (request.projectId !== undefined) continue
      rows = byProject.get(project) ?? { every: false, ids: [], parents: [], paths: [] }
      byProject.set(project, rows)
    }
    if (path !== null) {
      if (type === null || type === request.type) rows.paths.push(globToLike(path))
    } else if (id === null) rows.every = true
    else {
      if (type === null || type === request.type) rows.ids.push(id)
      if (type === null || type === request.parentType) rows.parents.push(id)
    }
  }
  if (anywhere.every) return true
  const whole = [...byProject].filter(([, rows]) => rows.every).map(([project]) => project)
  return anyFilter([
    whole.length > 0 && equalsAny(columns.project, whole),
    namedRowsFilter(anywhere, columns),
    ...[...byProject]
      .filter(([, rows]) => !rows.every)
      .map(([project, rows]) => allFilters([equalsAny(columns.project, [project]), namedRowsFilter(rows, columns)])),
  ])
}

function namedRowsFilter({ ids, parents, paths }: NamedRows, columns: RowColumns): Filter {
  return anyFilter([
    ids.length > 0 && equalsAny(columns.id, ids),
    parents.length > 0 && columns.parent !== undefined && equalsAny(columns.parent, parents),
    paths.length > 0 &&
      columns.path !== undefined &&
      sql.fragment`${columns.path} like any(${sql.array(paths, 'text')})`,
  ])
}

function tagFilter(condition: Condition, columns: RowColumns): Filter {
  if (!columns.tags) return condition.negated
  const test = tagTest(condition, columns.tags)
  return condition.negated ? sql.fragment`(${test}) is not true` : test
}

function tagTest({ tag, globs, equals }: Condition, tags: FragmentSqlToken): FragmentSqlToken {
  // Unlike a text comparison, containment has an index and selectivity statistics.
  if (globs.length === 0 && equals.length === 1) return sql.fragment`${tags} @> ${jsonb({ [tag]: equals[0] })}`
  const value = sql.fragment`(${tags} ->> ${tag}::text)`
  return globs.length > 0
    ? sql.fragment`${value} like any(${sql.array(globs.map(globToLike), 'text')})`
    : equalsAny(value, equals)
}
