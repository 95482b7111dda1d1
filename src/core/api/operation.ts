import type { IncomingMessage } from 'node:http'
import type { Readable } from 'node:stream'
import { z } from 'zod'
import type { Config } from '../../config.ts'
import type { Queryable } from '../db/sql.ts'
import type { Outbox, Tx } from '../db/writer.ts'
import { declarations } from '../declarations.ts'
import type { Caller } from '../iam/caller.ts'
import type { RowColumns, VisibleRows } from '../iam/row-filter.ts'
import type { Origin, RequestFacts } from '../invoke/call.ts'
import type { Services } from '../process/services.ts'
import type { AuditDraft } from './audit.ts'
import type { ErrorCode } from './errors.ts'
import type { Made, ReplayCondition } from './idempotency.ts'
import type { Kind, KindRow } from './kind.ts'
import type { EventStream } from './streams.ts'

/** Page and time bounds of a list, after validation. */
export type Page = { limit: number; offset: number; from: Date | null; to: Date | null }

/** An answer with a status or headers of its own. */
export type OperationResult = {
  status: number
  body?: unknown
  /** The body as JSON, where it was written out already. */
  text?: string
  headers?: Record<string, string>
  stream?: Readable
  contentType?: string
  /** What a repeat with the same Idempotency-Key gets instead: for an answer that must not be kept. */
  kept?: OperationResult
  /** What has to hold when the answer is kept for such repeats. */
  keptWhile?: ReplayCondition
}

const ANSWER = Symbol('answer')
export const result = (status: number, body?: unknown, headers?: Record<string, string>): OperationResult =>
  ({ [ANSWER]: true, status, body, headers }) as OperationResult
/** An answer whose body is streamed: server-sent events, NDJSON, bytes of a file. */
export const streamResult = (
  contentType: string,
  stream: Readable,
  headers?: Record<string, string>,
  status = 200,
): OperationResult => ({ [ANSWER]: true, status, stream, contentType, headers }) as unknown as OperationResult
export const isOperationResult = (value: unknown): value is OperationResult =>
  typeof value === 'object' && value !== null && ANSWER in value

/** A request whose operation reads the body itself, before it is given to the operation. */
export type StreamedRequest = {
  req: IncomingMessage
  params: Record<string, string>
  query: Record<string, unknown>
  services: Services
  /** Null at a public gate. */
  caller: Caller | null
  /** The project the request is known to be about before its body is read; null when the body names it. */
  project: string | null
  /** The row of an item operation. */
  resource: KindRow | undefined
  /** Aborted when the client goes away. */
  closed: AbortSignal
}

/** A body that was read as a stream: its fields, and what is held outside of the request's memory. */
export type StreamedBody = {
  body: Record<string, unknown>
  /** Called once at the end of the request, whatever became of it: drops what the operation did not take over. */
  discard(): Promise<void>
  /** At a public gate: in whose name and in which project the request acts; its audit entry says so. */
  as?: { caller: Caller; project: string }
}

/** What a second permission is about: a row, or everything of a kind in a project, there at a path when one is given. */
export type AllowTarget = {
  kind: Kind<any>
  row?: KindRow
  project_id?: string | null
  path?: string | null
  tags?: Record<string, string>
}

/** What lets a call act on a row of another project. */
export type TargetGrant = {
  /** The project that acts: the call is decided, counted and audited there. */
  project_id: string
  /** The row as the operation gets it. */
  row: KindRow
}

/** What an operation gets. `resource` is the row of the item it addresses; `tx` exists in writing operations. */
export type Context<Q = Record<string, unknown>, B = undefined, R = undefined, P = undefined> = {
  caller: Caller
  params: Record<string, string>
  query: Q
  body: B
  resource: R
  /** What `prepare` returned. */
  prepared: P
  /** The one project the request was authorised for; null on lists over several and on global resources. */
  project: string | null
  /** By what the operation acts on a row of another project; null on a row of its own. */
  grant: TargetGrant | null
  page: Page
  /** On lists: the rows the caller may see, over the columns given. */
  visible(columns: RowColumns): VisibleRows
  db: Queryable
  tx: Tx
  services: Services
  audit: AuditDraft
  request: RequestFacts
  /** The tag that the row must still have, of whatever surface; the pipeline checks it where it can. */
  ifMatch: string | undefined
  /** The turn of an agent that makes the call; null without one. */
  origin: Origin | null
  /** Asks again, for what goes on after its answer began: raises what the call would be refused with now. */
  recheck(): Promise<void>
  /** A second permission, on another resource or with other tags. Raises FORBIDDEN; the check is in the audit entry. */
  allow(action: string, target: AllowTarget): void
  /** The same decision without raising; used to filter. */
  allowed(action: string, target: AllowTarget): boolean
  /**
   * Writes the request's audit entry with a change that `run` makes itself, and what a repeat with the same Idempotency-Key
   * gets. Raises IDEMPOTENCY_IN_PROGRESS, at the commit, when another request has claimed the key.
   */
  record(outgoing: Outbox, status: number, given: RecordedCall): void
  /**
   * Notes for repeats, which `again` answers, what `run` has made so far, with the change `outgoing`; without one, what it is
   * about to do outside of the database.
   */
  noteMade(made: Made, outgoing?: Outbox): Promise<void>
  /** Names the effect of the request to others: the same for its repeats; null without an Idempotency-Key. */
  effectKey(): string | null
  /** For writes that change tags: the action must be allowed with the resulting tags too. */
  allowTags(tags: Record<string, string>): void
}

/**
 * What a change that an operation makes itself leaves for repeats: the answer, where it is known, or what `again` makes it of.
 * `id` is what the audit entry is about, where that is not the item.
 */
export type RecordedCall = { id?: string } & ({ body: unknown } | { made: Made })

/** How an operation's permission is decided: by policy, by the admin role, by ownership in its own code, for any credential, or not at all. */
export type Gate = 'policy' | 'admin' | 'owner' | 'any' | 'public'

/** What the owner gate decides: `hide` answers like an id that does not exist. */
export type GateVerdict = 'allow' | 'forbid' | 'hide'

export type Method = 'get' | 'post' | 'put' | 'patch' | 'delete'

/** How a client waits for long work: it reads `poll` until the status is one of those. */
export type WaitingGrant = {
  /** Whether the operation waits unless it is told. */
  default: boolean
  done: readonly string[]
  failed: readonly string[]
  /** The work waits for somebody. */
  paused: readonly string[]
  poll: string
}

/** One declaration of the API. From it come the route, the permission check, the audit entry, the OpenAPI path and the action catalogue. */
export type Operation = {
  id: string
  method: Method
  path: string
  summary: string
  description?: string
  /** Words of its command, where those that follow from method and path read badly. */
  command?: readonly string[]
  /** The operation that this one is by another path. */
  aliasOf?: string
  tag: string
  action: string | null
  /** Further actions the operation asks for; shown in the catalogue. */
  alsoActions: string[]
  gate: Gate
  /** The kind the action is about. */
  kind: Kind | null
  shape: 'item' | 'create' | 'list' | 'other'
  /** Path parameter that holds the item's id. */
  param: string | null
  /** Reads the item with more than its kind does, for an operation that needs it at once. */
  find: Kind['find'] | null
  /** Calls that need the item at the same time read it together: nobody changes the row they share. */
  joined: boolean
  paged: boolean
  /** False: `from` and `to` do not narrow the list. */
  timed: boolean
  /** Parameters of the query that `run` judges itself, with a code of its own: no statement gets them as they are. */
  judges: readonly string[]
  /** Default and largest page size. */
  pageSize: { default: number; max: number }
  query: z.ZodType | null
  body: z.ZodType | null
  /** The request may come without a body. */
  bodyOptional: boolean
  answers: Record<number, z.ZodType | null>
  /** Content type of a 200 that is not JSON; of one that is NDJSON the answer is a line. */
  produces?: string
  /** Other media types of the 200, which are texts, each with an example. */
  alsoProduces?: Readonly<Record<string, string>>
  /** Events that it answers with; on request where the body has a field `stream`. */
  stream?: EventStream
  /** Of work that goes on in the background: what its record says, and what reads that. */
  waiting?: WaitingGrant
  /** Operation that checks the same body and writes nothing. */
  checkedBy?: string
  raises: ErrorCode[]
  /** Statuses with which REQUEST_REJECTED is answered beside its own and those of a body that is refused. */
  rejects: number[]
  /** Creates of a kind with paths: the path that the raw body leads to, by which policies may allow it; null for none. */
  pathOf?: (body: Record<string, unknown>, db: Queryable, project: string) => string | null | Promise<string | null>
  /** The body may name a project; its schema says so. */
  namesProject: boolean
  /** Reads a body that is not JSON, or not only: an upload. `body` then checks the fields it gives. */
  receive?: (request: StreamedRequest) => Promise<StreamedBody>
  /** Media types of the body; JSON without it. */
  consumes: readonly string[]
  /** Largest JSON body; default HTTP_JSON_LIMIT_BYTES. */
  bodyLimit?: (config: Config) => number
  /** Longest time that the body takes at a public gate; default HTTP_ANONYMOUS_BODY_TIMEOUT_MS. */
  bodyTimeMs?: (config: Config) => number
  /** A credential of the operation's own, in the query: where it holds, no bearer is asked for and nothing is audited. */
  pass?: (request: Pick<StreamedRequest, 'params' | 'query' | 'services'>) => Promise<boolean>
  /**
   * Creates that are authorised as on a row that a field of the body names: its project is theirs, its name and tags are
   * those that policies see. An id that names nothing the caller may know of is left to `run`, in another project than it.
   */
  under?: ParentRoute
  /** Resolves the project of a create out of the raw body when it follows from a referenced id. */
  projectOf?: (body: Record<string, unknown>, db: Queryable, caller: Caller) => Promise<string | null>
  /** The decision of the owner gate, before the body is read. Without it `run` decides. `surface` is that of the call. */
  decide?: (caller: Caller, row: KindRow | undefined, surface: string) => GateVerdict
  /** False: `run` opens its own transactions through `services.write`. */
  transaction: boolean
  /** Changes nothing, whatever its method: it has no transaction and is audited where reads are. */
  reads: boolean
  /** Refuses a caller before anything is looked up. */
  admit?: (caller: Caller, params: Record<string, string>) => void
  /** The answer holds a secret: its stored idempotency answer is sealed. */
  secretAnswer: boolean
  /** Left out of platform tools, and of MCP tools unless `mcp` says otherwise. */
  internal: boolean
  /** Offered as an MCP tool, behind which a person or an explicit credential stands. */
  mcp: boolean
  /** The long work that a call starts. */
  starts: Starts | null
  /** Item operations: also on a row of another project that reaches the caller's. */
  granted: boolean
  /** Slow work that needs no connection, such as hashing, before the transaction in which `run` uses its result. */
  prepare: ((context: Context<never, never, never, never>) => Promise<unknown>) | null
  run(context: Context<never, never, never, never>): Promise<unknown>
  /**
   * Answers a repeat in place of a first request that was lost behind its commit: with what that has `made`, by waiting for it
   * or by going on with it. It makes nothing a second time.
   */
  again: ((context: Context<never, never, never, never>, made: Made) => Promise<unknown>) | null
}

export type ParentRoute = { kind: Kind<any, any>; field: string }

/**
 * Long work by the kind of its record. `field` names it in the answer, or in what is made of the answer of a caller that waits.
 * `bounded`: less can be waited for than made in the background.
 */
export type Starts = { kind: string; field: string; bounded?: true }

export type OperationBase<Q extends z.ZodType | undefined, B extends z.ZodType | undefined> = {
  id: string
  method: Method
  path: string
  summary: string
  description?: string
  command?: readonly string[]
  tag: string
  action?: string
  alsoActions?: string[]
  gate?: Gate
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
  raises?: ErrorCode[]
  rejects?: number[]
  paged?: boolean
  timed?: boolean
  judges?: readonly string[]
  pageSize?: { default: number; max: number }
  transaction?: boolean
  reads?: boolean
  admit?: Operation['admit']
  secretAnswer?: boolean
  internal?: boolean
  mcp?: boolean
  starts?: Starts
  granted?: boolean
}

type QueryOf<Q> = Q extends z.ZodType ? z.output<Q> : Record<string, never>
type BodyOf<B> = B extends z.ZodType ? z.output<B> : undefined

type Runs<Q extends z.ZodType | undefined, B extends z.ZodType | undefined, R, P> = {
  prepare?(context: Context<QueryOf<Q>, BodyOf<B>, R>): Promise<P>
  run(context: Context<QueryOf<Q>, BodyOf<B>, R, P>): Promise<unknown>
  again?(context: Context<QueryOf<Q>, BodyOf<B>, R, P>, made: Made): Promise<unknown>
}

type Shaped =
  | {
      creates: Kind<any>
      decide?(caller: Caller, row: KindRow | undefined, surface: string): GateVerdict
      projectOf?: Operation['projectOf']
      under?: ParentRoute
      pathOf?: Operation['pathOf']
    }
  | { lists: Kind<any> }
  | { about?: Kind<any> }

/** The tags of operations, with what each is about. */
export const operationTags = declarations<[name: string, about: string]>('tag', ([name]) => name)

/** Every operation of the process. */
export const operations = declarations<Operation>('operation', ({ id }) => id)

/**
 * Declares an operation on an item: the path ends in or passes through `{param}` (default `{<kind>_id}`), the row
 * is found, authorised and handed to `run` as `resource`.
 */
export function itemOperation<
  Row extends KindRow,
  Q extends z.ZodType | undefined = undefined,
  B extends z.ZodType | undefined = undefined,
  P = undefined,
>(
  target: Kind<Row, any>,
  declaration: OperationBase<Q, B> &
    Runs<Q, B, Row, P> & {
      param?: string
      find?: Kind<Row>['find']
      joined?: boolean
      decide?(caller: Caller, row: Row, surface: string): GateVerdict
    },
): Operation {
  return {
    ...base(declaration),
    kind: target as unknown as Kind,
    shape: 'item',
    param: declaration.param ?? `${target.name}_id`,
    find: (declaration.find ?? null) as Operation['find'],
    joined: declaration.joined ?? false,
    decide: declaration.decide as Operation['decide'],
    prepare: (declaration.prepare ?? null) as Operation['prepare'],
    run: declaration.run as Operation['run'],
    again: (declaration.again ?? null) as Operation['again'],
  }
}

/** Declares any other operation: `creates` a kind, `lists` a kind, or neither. */
export function operation<
  Q extends z.ZodType | undefined = undefined,
  B extends z.ZodType | undefined = undefined,
  P = undefined,
>(declaration: OperationBase<Q, B> & Runs<Q, B, undefined, P> & Shaped): Operation {
  const common = {
    ...base(declaration),
    param: null,
    find: null,
    joined: false,
    prepare: (declaration.prepare ?? null) as Operation['prepare'],
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
  if ('lists' in declaration)
    return {
      ...common,
      kind: declaration.lists as unknown as Kind,
      shape: 'list',
      paged: declaration.paged ?? true,
    }
  return {
    ...common,
    kind: ((declaration as { about?: Kind<any> }).about ?? null) as Kind | null,
    shape: 'other',
  }
}

function base(declaration: OperationBase<z.ZodType | undefined, z.ZodType | undefined>) {
  const gate = declaration.gate ?? 'policy'
  const reads = declaration.reads ?? declaration.method === 'get'
  if (gate === 'policy' && !declaration.action) throw new Error(`operation ${declaration.id} declares no action`)
  return {
    id: declaration.id,
    method: declaration.method,
    path: declaration.path,
    summary: declaration.summary,
    description: declaration.description,
    command: declaration.command,
    tag: declaration.tag,
    action: declaration.action ?? null,
    alsoActions: declaration.alsoActions ?? [],
    gate,
    paged: declaration.paged ?? false,
    timed: declaration.timed ?? true,
    judges: declaration.judges ?? [],
    pageSize: declaration.pageSize ?? { default: 50, max: 100 },
    query: declaration.query ?? null,
    body: declaration.body ?? null,
    bodyOptional: declaration.bodyOptional ?? false,
    answers: declaration.answers,
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
    raises: declaration.raises ?? [],
    rejects: declaration.rejects ?? [],
    transaction: declaration.transaction ?? !reads,
    reads,
    admit: declaration.admit,
    secretAnswer: declaration.secretAnswer ?? false,
    internal: declaration.internal ?? false,
    mcp: declaration.mcp ?? !declaration.internal,
    starts: declaration.starts ?? null,
    granted: declaration.granted ?? false,
  }
}

/** Whether a schema is of an object with a field, below what refines or transforms it. */
function hasField(schema: z.ZodType | undefined, name: string): boolean {
  if (schema instanceof z.ZodPipe) return hasField(schema.in as z.ZodType, name)
  return schema instanceof z.ZodObject && name in schema.shape
}
