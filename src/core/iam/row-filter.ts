import { type FragmentSqlToken, sql } from 'slonik'
import { equalsAny, jsonb } from '../db/sql.ts'
import type { Layer } from './decide.ts'
import { globToLike } from './glob.ts'
import { conditionHolds, constantValue, matchesAction, type PrincipalFacts } from './match.ts'
import type { Condition, ResourcePattern } from './policy.ts'

/** Decisions about lists: in which projects rows can be permitted, and the permitted rows as SQL. */

export type ListRequest = {
  action: string
  type: string
  /** second type under which every row is named too (an orchestration run under its orchestration) */
  parentType?: string
  facts: PrincipalFacts
}

/** Constant truth of a condition for every row of a list, or null when it depends on the row's tags. */
function constantTruth(condition: Condition, request: ListRequest): boolean | null {
  if (condition.source === 'ResourceTag') return null
  return conditionHolds(condition, constantValue(condition, { type: request.type, facts: request.facts }))
}

type ListStatement = { resources: readonly ResourcePattern[] | null; conditions: Condition[] }

/** What a layer says about a list: its matching statements with constant conditions folded away; null denies all. */
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
 * The projects in which rows of a list can be permitted: `'all'` when no layer names projects, else their ids. An empty
 * list is the 403 of a list without a named project.
 */
export function listProjects(layers: readonly Layer[], request: ListRequest): 'all' | string[] {
  let remaining: string[] | null = null
  const denied = new Set<string>()
  for (const layer of layers) {
    const said = listStatements(layer, request)
    if (!said) return []
    const allowed = said.allow.flatMap(s => s.resources?.map(r => r.project) ?? [null])
    if (!allowed.includes(null)) {
      const ids: Set<string> = new Set(allowed as string[])
      remaining = remaining ? remaining.filter(id => ids.has(id)) : [...ids]
    }
    for (const { resources, conditions } of said.deny) {
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
 * Whether a list in a named project can have permitted rows: false when some layer has no Allow that can match the type
 * there, or when a Deny without id, path or condition covers it: that is a 403.
 */
export function listPossible(layers: readonly Layer[], request: ListRequest & { projectId: string }): boolean {
  const here = ({ project }: ResourcePattern) => project === null || project === request.projectId
  return layers.every(layer => {
    const said = listStatements(layer, request)
    if (!said) return false
    const covered = said.deny.some(
      ({ resources, conditions }) =>
        conditions.length === 0 &&
        (resources === null ||
          resources.some(pattern => here(pattern) && pattern.id === null && pattern.path === null)),
    )
    return !covered && said.allow.some(({ resources }) => resources === null || resources.some(here))
  })
}

/** Columns of the listed rows. A row's project may be null (global rows are named `srn:*:...`), its path and tags too. */
export type RowColumns = {
  project: FragmentSqlToken
  id: FragmentSqlToken
  path?: FragmentSqlToken
  /** jsonb object of strings */
  tags?: FragmentSqlToken
  /** id of the parent, where the request names a parentType */
  parent?: FragmentSqlToken
}

/** A condition for the rows that a caller may see; `all`: policies leave none out. */
export type VisibleRows = { rows: FragmentSqlToken; all: boolean }

type Filter = boolean | FragmentSqlToken

function any(filters: Filter[]): Filter {
  const parts = filters.filter(filter => filter !== false)
  if (parts.includes(true)) return true
  return joined(parts as FragmentSqlToken[], sql.fragment` or `) ?? false
}

function all(filters: Filter[]): Filter {
  const parts = filters.filter(filter => filter !== true)
  if (parts.includes(false)) return false
  return joined(parts as FragmentSqlToken[], sql.fragment` and `) ?? true
}

function joined(parts: FragmentSqlToken[], glue: FragmentSqlToken): FragmentSqlToken | null {
  if (parts.length < 2) return parts[0] ?? null
  return sql.fragment`(${sql.join(parts, glue)})`
}

/**
 * The row filter of a list as a condition for `where`: true (no restriction), false (no row) or a fragment whose values
 * are all parameters. It is null for some rows that it leaves out, so it must not be negated.
 * @param request.projectId set when the query is already restricted to that project: project patterns are then decided
 *   here and not in SQL
 */
export function rowFilter(
  layers: readonly Layer[],
  request: ListRequest & { projectId?: string },
  columns: RowColumns,
): boolean | FragmentSqlToken {
  return all(
    layers.map(layer => {
      const said = listStatements(layer, request)
      if (!said) return false
      const allow = effectFilter(said.allow, request, columns)
      if (allow === false) return false
      const deny = effectFilter(said.deny, request, columns)
      if (typeof deny === 'boolean') return deny ? false : allow
      // Comparisons with null columns leave the Deny unknown: such a row is not denied.
      return all([allow, sql.fragment`(${deny}) is not true`])
    }),
  )
}

/** Statements without tag conditions are merged, so a policy that lists many ids costs one comparison with an array. */
function effectFilter(
  statements: ListStatement[],
  request: ListRequest & { projectId?: string },
  columns: RowColumns,
): Filter {
  const plain = statements.filter(({ conditions }) => conditions.length === 0)
  if (plain.some(({ resources }) => resources === null)) return true
  return any([
    resourceFilter(
      plain.flatMap(({ resources }) => resources ?? []),
      request,
      columns,
    ),
    ...statements
      .filter(({ conditions }) => conditions.length > 0)
      .map(({ resources, conditions }) =>
        all([
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
  return any([
    whole.length > 0 && equalsAny(columns.project, whole),
    namedRowsFilter(anywhere, columns),
    ...[...byProject]
      .filter(([, rows]) => !rows.every)
      .map(([project, rows]) => all([equalsAny(columns.project, [project]), namedRowsFilter(rows, columns)])),
  ])
}

function namedRowsFilter({ ids, parents, paths }: NamedRows, columns: RowColumns): Filter {
  return any([
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
  // Unlike a comparison of texts, containment has an index, and statistics that say how many rows it leaves.
  if (globs.length === 0 && equals.length === 1) return sql.fragment`${tags} @> ${jsonb({ [tag]: equals[0] })}`
  const value = sql.fragment`(${tags} ->> ${tag}::text)`
  return globs.length > 0
    ? sql.fragment`${value} like any(${sql.array(globs.map(globToLike), 'text')})`
    : equalsAny(value, equals)
}
