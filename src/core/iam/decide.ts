/**
 * The permission engine (identity, section 6): one set of pure functions decides every request, whatever the surface.
 * It knows no module and no table; callers bring layers of compiled documents, names and tags.
 */
import { type FragmentSqlToken, sql } from 'slonik'
import { isOneOf } from '../db/sql.ts'
import {
  type CompiledDocument,
  type CompiledStatement,
  type Condition,
  canonicalType,
  globMatches,
  globToLike,
  type ResourcePattern,
  splitName,
} from './policy.ts'

export {
  type Catalogue,
  type CompiledDocument,
  canonicalActions,
  canonicalType,
  checkPolicyDocument,
  compileDocument,
  type PolicyDocument,
  type PolicyProblem,
  type PolicyStatement,
} from './policy.ts'

/** One set of documents that has to allow by itself. No layer at all is the admin: everything is allowed. */
export type Layer = { kind: 'user' | 'key' | 'grant' | 'trigger' | 'agent'; documents: CompiledDocument[] }

/** What principal conditions are compared with. */
export type PrincipalFacts = {
  principal_id: string
  principal_type: 'user' | 'api_key'
  credential_type: 'user' | 'api_key' | 'oauth_token' | 'run'
}

export type Tags = Readonly<Record<string, string>>

export type DecisionRequest = {
  /** canonical `<module>:<Action>` */
  action: string
  /** the srn names of one resource: by id, and by path (or parent) where it has one */
  names: string[]
  /** type segment of the target, for ResourceType conditions */
  type: string
  /** tags of the resource; several sets when each of them has to be allowed (stored and resulting, container and own) */
  resourceTags?: Tags | null | readonly (Tags | null)[]
  /** tags in the request body, on create and tag writes */
  requestTags?: Tags
  facts: PrincipalFacts
}

export type ListRequest = {
  action: string
  type: string
  /** second type under which every row is named too (an orchestration run under its orchestration) */
  parentType?: string
  facts: PrincipalFacts
}

type Name = { project: string; type: string; id: string }
type Context = { type: string; requestTags?: Tags; facts: PrincipalFacts | null }

function matchesAction(statement: CompiledStatement, action: string): boolean {
  if (statement.everyAction || statement.exact.has(action)) return true
  for (const prefix of statement.prefixes) if (action.startsWith(prefix)) return true
  return false
}

function matchesName(pattern: ResourcePattern, name: Name): boolean {
  if (pattern.project !== null && pattern.project !== name.project) return false
  if (pattern.type !== null && pattern.type !== name.type) return false
  if (pattern.path !== null) return name.id.startsWith('/') && globMatches(pattern.path, name.id)
  return pattern.id === null || pattern.id === name.id
}

function matchesResource(statement: CompiledStatement, names: readonly Name[]): boolean {
  if (statement.resources === null) return true
  for (const pattern of statement.resources) for (const name of names) if (matchesName(pattern, name)) return true
  return false
}

function tagValue(tags: Tags | null | undefined, key: string): string | undefined {
  return tags && Object.hasOwn(tags, key) ? tags[key] : undefined
}

function holds(condition: Condition, context: Context, resourceTags: Tags | null | undefined): boolean {
  const value =
    condition.source === 'ResourceTag' ? tagValue(resourceTags, condition.tag) : constantValue(condition, context)
  return compare(condition, value)
}

/** Value of a key that does not depend on the resource's tags. */
function constantValue(condition: Condition, context: Context): string | undefined {
  switch (condition.source) {
    case 'RequestTag':
      return tagValue(context.requestTags, condition.tag)
    case 'ResourceType':
      return context.type
    case 'PrincipalId':
      return context.facts?.principal_id
    case 'PrincipalType':
      return context.facts?.principal_type
    case 'CredentialType':
      return context.facts?.credential_type
    default:
      return undefined
  }
}

function compare(condition: Condition, value: string | undefined): boolean {
  if (value === undefined) return condition.negated
  if (condition.equals.includes(value)) return !condition.negated
  for (const glob of condition.globs) if (globMatches(glob, value)) return !condition.negated
  return condition.negated
}

function matches(
  statement: CompiledStatement,
  action: string,
  names: readonly Name[],
  context: Context,
  resourceTags: Tags | null | undefined,
): boolean {
  if (!matchesAction(statement, action) || !matchesResource(statement, names)) return false
  for (const condition of statement.conditions) if (!holds(condition, context, resourceTags)) return false
  return true
}

function layerAllows(
  layer: Layer,
  action: string,
  names: readonly Name[],
  context: Context,
  resourceTags: Tags | null | undefined,
): boolean {
  let allowed = false
  for (const document of layer.documents) {
    if (!document.valid) return false
    for (const statement of document.statements) {
      if (!statement.deny && allowed) continue
      if (!matches(statement, action, names, context, resourceTags)) continue
      if (statement.deny) return false
      allowed = true
    }
  }
  return allowed
}

/** Parsed names, or null when one is not a name: nothing can be allowed on that. */
function parseNames(names: readonly string[]): Name[] | null {
  const parsed: Name[] = []
  for (const name of names) {
    const segments = splitName(name)
    if (!segments) return null
    parsed.push(segments)
  }
  return parsed.length > 0 ? parsed : null
}

function isTagSets(tags: DecisionRequest['resourceTags']): tags is readonly (Tags | null)[] {
  return Array.isArray(tags)
}

/**
 * The full decision on one resource: every layer must allow, a Deny anywhere in a layer denies it. A resource with several
 * names is allowed by an Allow on any of them and denied by a Deny on any of them. With several tag sets every set must be
 * allowed. Names that are not `srn:` names are denied.
 */
export function decide(layers: readonly Layer[], request: DecisionRequest): boolean {
  if (layers.length === 0) return true
  const names = parseNames(request.names)
  if (!names) return false
  const { action, resourceTags } = request
  if (isTagSets(resourceTags) && resourceTags.length > 0) {
    for (const tags of resourceTags)
      for (const layer of layers) if (!layerAllows(layer, action, names, request, tags)) return false
    return true
  }
  const tags = isTagSets(resourceTags) ? undefined : resourceTags
  for (const layer of layers) if (!layerAllows(layer, action, names, request, tags)) return false
  return true
}

/**
 * Whether some resource somewhere could be allowed for this action (6.6, step 1). False is the same 403 for every id, so
 * it also answers for an unconditional Deny on everything.
 */
export function couldAllow(layers: readonly Layer[], action: string): boolean {
  return layers.every(layer => {
    let allowed = false
    for (const document of layer.documents) {
      if (!document.valid) return false
      for (const statement of document.statements) {
        if (!matchesAction(statement, action)) continue
        if (!statement.deny) allowed = true
        else if (statement.resources === null && statement.conditions.length === 0) return false
      }
    }
    return allowed
  })
}

/** Whether every layer has an Allow whose resource pattern can match something in the project (6.5), whatever its action. */
export function projectVisible(layers: readonly Layer[], projectId: string): boolean {
  return layers.every(
    layer =>
      layer.documents.every(document => document.valid) &&
      layer.documents.some(document =>
        document.statements.some(
          statement =>
            !statement.deny &&
            (statement.resources === null ||
              statement.resources.some(pattern => pattern.project === null || pattern.project === projectId)),
        ),
      ),
  )
}

/** Constant truth of a condition for every row of a list, or null when it depends on the row's tags. */
function constantTruth(condition: Condition, request: ListRequest): boolean | null {
  if (condition.source === 'ResourceTag') return null
  return compare(condition, constantValue(condition, { type: request.type, facts: request.facts }))
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
 * list is the 403 of a list without a named project (6.6).
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
 * there, or when a Deny without id, path or condition covers it (the 403 of 6.6).
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
 * The row filter of a list (6.6) as a condition for `where`: true (no restriction), false (no row) or a fragment whose
 * values are all parameters. It answers null for some rows it leaves out, so it must not be negated.
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
    whole.length > 0 && isOneOf(columns.project, whole),
    namedRowsFilter(anywhere, columns),
    ...[...byProject]
      .filter(([, rows]) => !rows.every)
      .map(([project, rows]) => all([isOneOf(columns.project, [project]), namedRowsFilter(rows, columns)])),
  ])
}

function namedRowsFilter({ ids, parents, paths }: NamedRows, columns: RowColumns): Filter {
  return any([
    ids.length > 0 && isOneOf(columns.id, ids),
    parents.length > 0 && columns.parent !== undefined && isOneOf(columns.parent, parents),
    paths.length > 0 &&
      columns.path !== undefined &&
      sql.fragment`${columns.path} like any(${sql.array(paths, 'text')})`,
  ])
}

function tagFilter(condition: Condition, columns: RowColumns): Filter {
  if (!columns.tags) return condition.negated
  const value = sql.fragment`(${columns.tags} ->> ${condition.tag}::text)`
  const test =
    condition.globs.length > 0
      ? sql.fragment`${value} like any(${sql.array(condition.globs.map(globToLike), 'text')})`
      : isOneOf(value, condition.equals)
  return condition.negated ? sql.fragment`(${test}) is not true` : test
}

/**
 * The event gate of webhooks and event triggers (5.5): whether the document explicitly allows the event. Event patterns and
 * `*` match, action patterns do not. There is no principal at the gate: conditions on one find the key missing.
 * @param event.aliases further names the event is known under; a pattern may match any of them
 */
export function eventAllowed(
  document: CompiledDocument,
  event: { name: string; aliases?: readonly string[]; srn: string; type: string; tags: Tags | null },
): boolean {
  const names = parseNames([event.srn])
  if (!document.valid || !names) return false
  const context: Context = { type: event.type, facts: null }
  let allowed = false
  for (const statement of document.statements) {
    const matched = [event.name, ...(event.aliases ?? [])].some(name =>
      matches(statement, name, names, context, event.tags),
    )
    if (!matched) continue
    if (statement.deny) return false
    allowed = true
  }
  return allowed
}

export type LayerExplanation = {
  kind: Layer['kind']
  decision: 'allow' | 'deny' | 'none'
  /** position in the layer, null when no statement decided */
  document_index: number | null
  /** position in the document, null when no statement decided or the document does not parse */
  statement_index: number | null
}

/**
 * Per layer, what it says about a request and which statement decided: the first matching Deny, else the first matching
 * Allow. Type spellings in names are folded. With several tag sets the least favourable one is explained.
 */
export function explain(layers: readonly Layer[], request: DecisionRequest): LayerExplanation[] {
  const names = (parseNames(request.names) ?? []).map(name => ({ ...name, type: canonicalType(name.type) }))
  const { resourceTags } = request
  const sets = isTagSets(resourceTags) && resourceTags.length > 0 ? resourceTags : [resourceTags as Tags | null]
  const rank = { deny: 0, none: 1, allow: 2 }
  return layers.map(layer =>
    sets
      .map(tags => explainLayer(layer, request.action, names, request, tags))
      .reduce((worst, next) => (rank[next.decision] < rank[worst.decision] ? next : worst)),
  )
}

function explainLayer(
  layer: Layer,
  action: string,
  names: Name[],
  context: Context,
  tags: Tags | null | undefined,
): LayerExplanation {
  const { kind } = layer
  let explanation: LayerExplanation = { kind, decision: 'none', document_index: null, statement_index: null }
  for (const [document_index, document] of layer.documents.entries()) {
    if (!document.valid) return { kind, decision: 'deny', document_index, statement_index: null }
    for (const statement of document.statements) {
      if (!matches(statement, action, names, context, tags)) continue
      const decision = statement.deny ? 'deny' : 'allow'
      if (statement.deny) return { kind, decision, document_index, statement_index: statement.index }
      if (explanation.decision === 'none')
        explanation = { kind, decision, document_index, statement_index: statement.index }
    }
  }
  return explanation
}
