import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { z } from 'zod'
import type { Config } from '../base/config.ts'
import { declarations } from '../base/declarations.ts'
import type { ErrorCode, Problem } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import type { Queryable } from '../db/sql.ts'
import type { Caller } from '../iam/caller.ts'
import type { RowColumns, VisibleRows } from '../iam/row-filter.ts'
import type { Outbox, Tx } from '../writes/writer.ts'
import { type Across, isAcross, NEWEST_FIRST, type SharedRead, withMissingCells } from './across.ts'
import type { AuditDraft, Decision } from './audit.ts'
import type { CallSurface, ClientInput, Origin, RequestFacts } from './call.ts'
import { type Deprecation, describedOperation } from './deprecation.ts'
import type { EndUserAccess } from './end-user.ts'
import type { Made, ReplayCondition } from './idempotency.ts'
import type { Kind, KindRow } from './kind.ts'
import type { EventStream } from './streams.ts'

/** Returns the name of an operation as a tool: `getAgent` as `get-agent`. */
export const toolNameOf = (id: string): string =>
  id.replace(/[A-Z]/g, letter => `-${letter.toLowerCase()}`).replace(/^-/, '')

/** Validated page and time bounds of a list. */
export type Page = { limit: number; offset: number; from: Date | null; to: Date | null }

/** A response with explicit status or headers. */
export type OperationResult = {
  status: number
  body?: unknown
  /** The body as JSON text, if it is already serialized. */
  text?: string
  headers?: Record<string, string>
  stream?: Readable
  contentType?: string
  /** Response for repeats with the same Idempotency-Key, if this one must not be stored. */
  kept?: OperationResult
  /** Condition for storing the response for repeats. */
  keptWhile?: ReplayCondition
}

const RESULT = Symbol('result')
export const result = (status: number, body?: unknown, headers?: Record<string, string>): OperationResult =>
  ({ [RESULT]: true, status, body, headers }) as OperationResult
/** Returns a response with a streamed body: server-sent events, NDJSON, bytes of a file. */
export const streamResult = (
  contentType: string,
  stream: Readable,
  headers?: Record<string, string>,
  status = 200,
): OperationResult => ({ [RESULT]: true, status, stream, contentType, headers }) as unknown as OperationResult
export const isOperationResult = (value: unknown): value is OperationResult =>
  typeof value === 'object' && value !== null && RESULT in value

/** A request whose body is read by `receive` before the operation runs. */
export type StreamedRequest = {
  req: IncomingMessage
  params: Record<string, string>
  query: Record<string, unknown>
  services: Services
  /** Null for public operations. */
  caller: Caller | null
  /** Project of the request; null if only the body contains it. */
  project: string | null
  /** The row of an item operation. */
  resource: KindRow | undefined
  /** Aborted when the client disconnects. */
  closed: AbortSignal
}

/** A body read as a stream: its fields, and data stored outside the memory of the request. */
export type StreamedBody = {
  body: Record<string, unknown>
  /** Discards data that the operation did not take over. Called once at the end of the request, whatever its outcome. */
  discard(): Promise<void>
  /** For public operations: caller and project under which the request runs and is audited. */
  as?: { caller: Caller; project: string }
}

/** Target of an additional permission: a row, or all rows of a kind in a project, optionally at a path. */
export type AllowTarget = {
  kind: Kind<any>
  row?: KindRow
  project_id?: string | null
  path?: string | null
  tags?: Record<string, string>
}

/** A grant that permits a call on a row of another project. */
export type TargetGrant = {
  /** The acting project, in which the call is authorized, counted and audited. */
  project_id: string
  /** The row in the form in which the operation receives it. */
  row: KindRow
}

/** The context of an operation. `resource` is the row of the addressed item; `tx` exists in writing operations. */
export type Context<Q = Record<string, unknown>, B = undefined, R = undefined, P = undefined> = {
  caller: Caller
  params: Record<string, string>
  query: Q
  body: B
  resource: R
  /** For creates with `under`: its row as read for the authorization, not locked; null if the caller cannot see it. */
  under: KindRow | null
  /** The result of `prepare`. */
  prepared: P
  /** The authorized project; null for lists over several projects and for global resources. */
  project: string | null
  /** The grant for a row of another project; null for a row of the own project. */
  grant: TargetGrant | null
  page: Page
  /** For lists: returns the condition of the rows visible to the caller, over the given columns. */
  visible(columns: RowColumns): VisibleRows
  db: Queryable
  tx: Tx
  services: Services
  audit: AuditDraft
  request: RequestFacts
  surface: CallSurface
  /** The entity tag required by If-Match, on any surface; the pipeline checks it where it can. */
  ifMatch: string | undefined
  /** The agent turn that makes the call; null if there is none. */
  origin: Origin | null
  /** What the client of a protocol mount adds; null on other surfaces. */
  client: ClientInput | null
  /**
   * Repeats the authorization during a streamed response and returns the current caller. Raises the current refusal.
   * @param read the current row of the item, null if it was deleted; without it the row is read
   */
  recheck(read?: KindRow | null): Promise<Caller>
  /** Requires an additional permission, which the audit entry records. Raises FORBIDDEN. */
  allow(action: string, target: AllowTarget): void
  /** Whether an additional permission is allowed; used to filter. */
  allowed(action: string, target: AllowTarget): boolean
  /**
   * Writes the audit entry of the request, and the response for repeats with the same Idempotency-Key, with a change made by
   * `run` in its own transaction. Raises IDEMPOTENCY_IN_PROGRESS on commit if another request has claimed the key.
   */
  record(outbox: Outbox, status: number, call: RecordedCall): void
  /**
   * Records for repeats, which `again` answers, the effects of `run` so far, with the change of `outbox`; without an outbox,
   * its pending effects outside the database.
   */
  noteMade(made: Made, outbox?: Outbox): Promise<void>
  /** Returns the key of the request's effects for other systems, equal for repeats; null without an Idempotency-Key. */
  effectKey(): string | null
  /** For changes of tags: requires that the action is also allowed with the resulting tags. */
  allowTags(tags: Record<string, string>): void
}

/**
 * The effects of a change for repeats: the response, if known, or the records from which `again` rebuilds it. `id` is the
 * resource of the audit entry, if that is not the item.
 */
export type RecordedCall = { id?: string } & ({ body: unknown } | { made: Made })

/** Declares that facts are read in each cell, of which one response is made in the first. */
export const combined = <Q, Facts>(
  read: (context: Context<Q>) => Promise<Facts>,
  present: (facts: readonly Facts[], context: Context<Q>) => unknown,
): SharedRead<Facts> => ({ read, present })

/** How an operation is authorized: by policy, by the admin role, by ownership, for any credential, or without one. */
export type Gate = 'policy' | 'admin' | 'owner' | 'any' | 'public'

/** The verdict of the owner gate; `hide` responds as for an unknown id. */
export type GateVerdict = 'allow' | 'forbid' | 'hide'

export type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'

/** How a client waits for long work: it polls `poll` while the status is in `running`. */
export type WaitingGrant = {
  /** Whether the operation waits by default. */
  default: boolean
  /** Statuses in which the work continues. A client stops at a status that is in none of these lists. */
  running: readonly string[]
  done: readonly string[]
  failed: readonly string[]
  /** Statuses in which the work waits for input. */
  paused: readonly string[]
  poll: string
}

/** The declaration of an operation: source of its route, permission check, audit entry, OpenAPI path and action. */
/** Input of the checks of a create that need no database. `project`: project, or tenant if there is none yet. */
export type ValidateInput<B = any> = { services: Services; project: string; body: B }

export type WarningInput<B = any> = Pick<ValidateInput<B>, 'services' | 'body'>

/** Rows of items that a process has read. */
export type CachedRows = { get(id: string): KindRow | undefined; set(row: any): void }

export type Operation = {
  id: string
  method: Method
  path: string
  summary: string
  description?: string
  deprecated: Deprecation | null
  /** Words of its command, if the words derived from method and path are unsuitable. */
  command?: readonly string[]
  /** Id of the operation of which this one is an alias. */
  aliasOf?: string
  tag: string
  action: string | null
  /** Additional actions that the operation may require; listed in the catalogue. */
  alsoActions: string[]
  gate: Gate
  /**
   * Whether definitions and other background work may call it. Default true only for gate `policy`, which checks the
   * permissions of authors and the project; with another gate, only if its response is limited by both, or public.
   */
  byDefinitions: boolean
  /** The kind that the action applies to. */
  kind: Kind | null
  shape: 'item' | 'create' | 'list' | 'other'
  /** Path parameter with the id of the item. */
  param: string | null
  /** Reads the item with additional columns, in place of the kind's `find`. */
  find: Kind['find'] | null
  /**
   * Rows that the process has read, which authorize a call without a statement; after a refusal the row is read. `run` must detect
   * that the row has changed.
   */
  cache: ((services: Services) => CachedRows) | null
  /** Whether concurrent calls share one read of the item; `run` must not modify the row. */
  joined: boolean
  paged: boolean
  /** Whether `from` and `to` filter the list. */
  timed: boolean
  /** Query parameters that `run` validates, with a specific error code; no statement receives the raw values. */
  unvalidatedQuery: readonly string[]
  /** Default and largest page size. */
  pageSize: { default: number; max: number }
  /**
   * How a deployment with cells answers a call without a project from all of them; null for one cell, which the IDs in the call
   * name, otherwise the first. Default the order newest first of a list without path parameters.
   */
  across: Across | null
  query: z.ZodType | null
  body: z.ZodType | null
  /** Whether the request may omit the body. */
  bodyOptional: boolean
  answers: Record<number, z.ZodType | null>
  /** Content type of a 200 that is not JSON. For NDJSON, the schema describes a line. */
  produces?: string
  /** Alternative text media types of the 200, each with an example. */
  alsoProduces?: Readonly<Record<string, string>>
  /** Events of a streamed response; on request if the body has a field `stream`. */
  stream?: EventStream
  /** How to wait for the background work that it starts. */
  waiting?: WaitingGrant
  /** Operation that validates the same body without writing. */
  checkedBy?: string
  /**
   * The checks of a create beyond the schema of its body that need no database: raises their refusals. Validation of
   * templates calls it; `run` makes the same checks.
   */
  validate?(input: ValidateInput): unknown
  /**
   * Returns the warnings about the body of a create that need no database. Formations call it with a body that may lack
   * fields.
   */
  warnings?(input: WarningInput): Problem[]
  raises: ErrorCode[]
  /** Additional statuses of REQUEST_REJECTED, besides its default and the statuses of a refused body. */
  rejects: number[]
  /** For creates of a kind with paths: returns the path of the new row from the raw body, for policies, or null. */
  pathOf?: (
    body: Record<string, unknown>,
    db: Queryable,
    project: string,
    caller: Caller,
  ) => string | null | Promise<string | null>
  /** Whether the body has a field `project_id`, according to its schema. */
  namesProject: boolean
  /** Reads a body that is not, or not only, JSON, such as an upload; `body` then validates the resulting fields. */
  receive?: (request: StreamedRequest) => Promise<StreamedBody>
  /** Media types of the body; JSON without it. */
  consumes: readonly string[]
  /** Largest JSON body; default HTTP_JSON_LIMIT_BYTES. */
  bodyLimit?: (config: Config) => number
  /** Time limit of the body of a public operation; default HTTP_ANONYMOUS_BODY_TIMEOUT_MS. */
  bodyTimeMs?: (config: Config) => number
  /** Whether the query contains a valid operation-specific credential; then no bearer is required and nothing is audited. */
  pass?: (request: Pick<StreamedRequest, 'params' | 'query' | 'services'>) => Promise<boolean>
  /**
   * For reads of an item: consumes a ticket in the query, and returns the bearer credential that it stands for; null for
   * 401.
   */
  ticket?: (services: Services, ticket: string, itemId: string) => Promise<string | null>
  /**
   * For creates authorized on a parent row, referenced by a field of the body: its project, name and tags apply. `run`
   * refuses an id that is unknown or invisible to the caller.
   */
  under?: ParentRoute
  /** Returns the project of a create from the raw body, if it follows from a referenced id. */
  projectOf?: (body: Record<string, unknown>, db: Queryable, caller: Caller) => Promise<string | null>
  /** Returns the verdict of the owner gate, before the body is read; without it, `run` decides. */
  decide?: (caller: Caller, row: KindRow | undefined, surface: string) => GateVerdict
  /** Whether `run` gets a transaction; otherwise it opens its own through `services.write`. */
  transaction: boolean
  /** Whether it is a read, whatever its method: it has no transaction, and is audited only if reads are audited. */
  reads: boolean
  /**
   * Whether `run` of a read may read a replica through `context.db`, as it may of every list with a large offset. It sees every
   * change committed before `run`; decisions on permissions and limits must not depend on it.
   */
  replica: boolean
  /** Refuses a caller before any lookup. */
  admit?: (caller: Caller, params: Record<string, string>, services: Services) => void | Promise<void>
  /** Whether the response contains a secret: its stored response is sealed. */
  secretAnswer: boolean
  /** Whether it is excluded from platform tools, and from MCP tools unless `mcp` is set. */
  internal: boolean
  /** Whether it is available as an MCP tool, which acts for a person or an explicit credential. */
  mcp: boolean
  /** Parameters that calls by a platform tool take from the tool context of a turn: the key by parameter. */
  contextParameters: Readonly<Record<string, string>>
  /** The long work that a call starts. */
  starts: Starts | null
  /** Whether an item operation also applies to rows that other projects grant. */
  granted: boolean
  /** What end users may do with it by their tokens; null refuses them. */
  endUser: EndUserAccess | null
  /** Does slow work that needs no connection, such as hashing, before the transaction of `run`. */
  prepare: ((context: Context<never, never, never, never>) => Promise<unknown>) | null
  /**
   * For decisions of people: returns the terms that the audit entry records, also if the decision is refused. `resource` is
   * the row before it.
   */
  decision: ((context: Context<never, never, never, never>) => Decision) | null
  run(context: Context<never, never, never, never>): Promise<unknown>
  /**
   * Answers a repeat after the first request was lost following its commit: rebuilds the response from `made`, waits for the
   * work or resumes it. Must not repeat the effects.
   */
  again: ((context: Context<never, never, never, never>, made: Made) => Promise<unknown>) | null
}

export type ParentRoute = {
  kind: Kind<any, any>
  field: string
  /**
   * Reads the row, with more than its kind has, for `run`: a create that needs more of its parent saves a round trip. The body is
   * not validated, and the caller may not be allowed to see the row. Default `find` of the kind.
   */
  find?: (db: Queryable, id: string, body: Record<string, unknown>, caller: Caller) => Promise<KindRow | null>
}

/**
 * Long work by the kind of its record. `field` is the field of the response that contains its id, also for a caller that
 * waits. `bounded`: waiting has a lower limit than background work.
 */
export type Starts = { kind: string; field: string; bounded?: true }

export type OperationBase<Q extends z.ZodType | undefined, B extends z.ZodType | undefined> = {
  id: string
  method: Method
  path: string
  summary: string
  description?: string
  deprecated?: Deprecation
  command?: readonly string[]
  tag: string
  action?: string
  alsoActions?: string[]
  gate?: Gate
  byDefinitions?: boolean
  query?: Q
  body?: B
  bodyOptional?: boolean
  answers: Record<number, z.ZodType | null>
  produces?: string
  alsoProduces?: Operation['alsoProduces']
  stream?: EventStream
  waiting?: WaitingGrant
  checkedBy?: string
  receive?: Operation['receive']
  consumes?: readonly string[]
  bodyLimit?: Operation['bodyLimit']
  bodyTimeMs?: Operation['bodyTimeMs']
  pass?: Operation['pass']
  ticket?: Operation['ticket']
  raises?: ErrorCode[]
  rejects?: number[]
  paged?: boolean
  timed?: boolean
  unvalidatedQuery?: readonly string[]
  pageSize?: { default: number; max: number }
  across?: Across | null
  transaction?: boolean
  reads?: boolean
  replica?: boolean
  admit?: Operation['admit']
  secretAnswer?: boolean
  internal?: boolean
  mcp?: boolean
  contextParameters?: Operation['contextParameters']
  starts?: Starts
  granted?: boolean
  endUser?: EndUserAccess
}

type QueryOf<Q> = Q extends z.ZodType ? z.output<Q> : Record<string, never>
type BodyOf<B> = B extends z.ZodType ? z.output<B> : undefined

type RunHandlers<Q extends z.ZodType | undefined, B extends z.ZodType | undefined, R, P> = {
  validate?(input: ValidateInput<BodyOf<B>>): unknown
  warnings?(input: WarningInput<BodyOf<B>>): Problem[]
  prepare?(context: Context<QueryOf<Q>, BodyOf<B>, R>): Promise<P>
  decision?(context: Context<QueryOf<Q>, BodyOf<B>, R>): Decision
  run(context: Context<QueryOf<Q>, BodyOf<B>, R, P>): Promise<unknown>
  again?(context: Context<QueryOf<Q>, BodyOf<B>, R, P>, made: Made): Promise<unknown>
}

type ShapeOptions =
  | {
      creates: Kind<any>
      decide?(caller: Caller, row: KindRow | undefined, surface: string): GateVerdict
      projectOf?: Operation['projectOf']
      under?: ParentRoute
      pathOf?: Operation['pathOf']
    }
  | { lists: Kind<any> }
  | { about?: Kind<any> }

/** The tags of operations, with their descriptions. */
export const operationTags = declarations<[name: string, about: string]>('tag', ([name]) => name)

/** All operations of the process. */
export const operations = declarations<Operation>('operation', ({ id }) => id)

/**
 * Declares an operation on an item: the path contains `{param}` (default `{<kind>_id}`); `run` receives the authorized row
 * as `resource`.
 */
export function itemOperation<
  Row extends KindRow,
  Q extends z.ZodType | undefined = undefined,
  B extends z.ZodType | undefined = undefined,
  P = undefined,
>(
  target: Kind<Row, any>,
  declaration: OperationBase<Q, B> &
    RunHandlers<Q, B, Row, P> & {
      param?: string
      find?: Kind<Row>['find']
      cache?: Operation['cache']
      joined?: boolean
      decide?(caller: Caller, row: Row, surface: string): GateVerdict
    },
): Operation {
  return {
    ...commonFields(declaration),
    kind: target as unknown as Kind,
    shape: 'item',
    param: declaration.param ?? `${target.name}_id`,
    find: (declaration.find ?? null) as Operation['find'],
    cache: declaration.cache ?? null,
    joined: declaration.joined ?? false,
    decide: declaration.decide as Operation['decide'],
    prepare: (declaration.prepare ?? null) as Operation['prepare'],
    decision: (declaration.decision ?? null) as Operation['decision'],
    run: declaration.run as Operation['run'],
    again: (declaration.again ?? null) as Operation['again'],
  }
}

/** Declares an operation that `creates` a kind, `lists` a kind, or does neither. */
export function operation<
  Q extends z.ZodType | undefined = undefined,
  B extends z.ZodType | undefined = undefined,
  P = undefined,
>(declaration: OperationBase<Q, B> & RunHandlers<Q, B, undefined, P> & ShapeOptions): Operation {
  const common = {
    ...commonFields(declaration),
    param: null,
    find: null,
    cache: null,
    joined: false,
    prepare: (declaration.prepare ?? null) as Operation['prepare'],
    decision: (declaration.decision ?? null) as Operation['decision'],
    run: declaration.run as Operation['run'],
    again: (declaration.again ?? null) as Operation['again'],
  }
  if ('creates' in declaration)
    return {
      ...common,
      kind: declaration.creates as unknown as Kind,
      shape: 'create',
      decide: declaration.decide,
      projectOf: declaration.projectOf,
      under: declaration.under,
      pathOf: declaration.pathOf,
    }
  if ('lists' in declaration) {
    const kind = declaration.lists as unknown as Kind
    const paged = declaration.paged ?? true
    const isSpread = declaration.across === undefined && paged && !kind.global && !declaration.path.includes('{')
    return {
      ...common,
      ...(isSpread ? acrossFields(declaration.answers, { order: NEWEST_FIRST }) : {}),
      kind,
      shape: 'list',
      paged,
    }
  }
  return {
    ...common,
    kind: ((declaration as { about?: Kind<any> }).about ?? null) as Kind | null,
    shape: 'other',
  }
}

function commonFields(declaration: OperationBase<z.ZodType | undefined, z.ZodType | undefined>) {
  const gate = declaration.gate ?? 'policy'
  const reads = declaration.reads ?? declaration.method === 'get'
  if (declaration.endUser && gate !== 'policy')
    throw new Error(`operation ${declaration.id} is open to end users without a policy`)
  if (declaration.replica && !reads) throw new Error(`operation ${declaration.id} would write to a replica`)
  if (gate === 'policy' && !declaration.action) throw new Error(`operation ${declaration.id} declares no action`)
  return {
    id: declaration.id,
    method: declaration.method,
    path: declaration.path,
    summary: declaration.summary,
    description: describedOperation(declaration.id, declaration.description, declaration.deprecated),
    deprecated: declaration.deprecated ?? null,
    command: declaration.command,
    tag: declaration.tag,
    action: declaration.action ?? null,
    alsoActions: declaration.alsoActions ?? [],
    gate,
    byDefinitions: declaration.byDefinitions ?? gate === 'policy',
    paged: declaration.paged ?? false,
    timed: declaration.timed ?? true,
    unvalidatedQuery: declaration.unvalidatedQuery ?? [],
    pageSize: declaration.pageSize ?? { default: 50, max: 100 },
    query: declaration.query ?? null,
    body: declaration.body ?? null,
    bodyOptional: declaration.bodyOptional ?? false,
    ...acrossFields(declaration.answers, declaration.across ?? null),
    produces: declaration.stream ? 'text/event-stream' : declaration.produces,
    alsoProduces: declaration.alsoProduces,
    stream: declaration.stream,
    waiting: declaration.waiting,
    checkedBy: declaration.checkedBy,
    namesProject: hasField(declaration.body, 'project_id'),
    receive: declaration.receive,
    consumes: declaration.consumes ?? ['application/json'],
    bodyLimit: declaration.bodyLimit,
    bodyTimeMs: declaration.bodyTimeMs,
    pass: declaration.pass,
    ticket: declaration.ticket,
    validate: (declaration as Pick<Operation, 'validate'>).validate,
    warnings: (declaration as Pick<Operation, 'warnings'>).warnings,
    raises: declaration.raises ?? [],
    rejects: declaration.rejects ?? [],
    transaction: declaration.transaction ?? !reads,
    reads,
    replica: declaration.replica ?? false,
    admit: declaration.admit,
    secretAnswer: declaration.secretAnswer ?? false,
    internal: declaration.internal ?? false,
    mcp: declaration.mcp ?? !declaration.internal,
    contextParameters: declaration.contextParameters ?? {},
    starts: declaration.starts ?? null,
    granted: declaration.granted ?? false,
    endUser: declaration.endUser ?? null,
  }
}

const acrossFields = (answers: Operation['answers'], across: Across | null) => ({
  across,
  answers: isAcross(across) && answers[200] ? { ...answers, 200: withMissingCells(answers[200]) } : answers,
})

/** Whether a schema, without its refinements and transforms, is an object with a field. */
function hasField(schema: z.ZodType | undefined, name: string): boolean {
  if (schema instanceof z.ZodPipe) return hasField(schema.in as z.ZodType, name)
  return schema instanceof z.ZodObject && name in schema.shape
}
