import type { Request, Response } from 'express'
import { isProjectGone, isReferenceLost, sql } from '../db/sql.ts'
import type { Tx } from '../db/write.ts'
import {
  adminGate,
  listAllowed,
  listsSomewhere,
  mayEver,
  permitted,
  projectBinding,
  sees,
  targetName,
  visibleRows,
} from '../iam/access.ts'
import type { Caller } from '../iam/caller.ts'
import type { Services } from '../process/services.ts'
import { type AuditDraft, type AuditEntry, auditDetail, kept } from './audit.ts'
import { AppError, errorBody, invalid, raise } from './errors.ts'
import { etagOf, namesTag } from './etag.ts'
import {
  claimIdempotency,
  type IdempotencyClaim,
  type Kept,
  keepAnswer,
  keptAnswer,
  releaseIdempotency,
} from './idempotency.ts'
import { newId } from './ids.ts'
import { isIdOf, type Kind, type KindRow, kinds } from './kind.ts'
import { parsePage } from './lists.ts'
import {
  type Answer,
  answer,
  type Context,
  isAnswer,
  type Operation,
  type Received,
  type RequestFacts,
} from './operation.ts'
import { checkStorable, parse, storable } from './validate.ts'

/** What the pipeline asks of modules it must not import. */
export type Hooks = {
  /** Resolves a bearer token; null is 401. */
  authenticate(token: string, request: { ip: string | null }): Promise<Caller | null>
  /** Counts one request of a project key against the `requests` quotas of a project. Raises QUOTA_EXCEEDED. */
  countRequest(caller: Caller, projectId: string): Promise<void>
  /** Whether reads of the project are audited. */
  auditsReads(projectId: string): boolean | Promise<boolean>
  /** Takes the entry of a read; never waits. */
  recordRead(entry: AuditEntry): void
}

/** A request with what the first middleware noted. */
export type Wire = Request & { requestId: string; startedAt: number }

// Nobody reads the answer; it keeps what a client broke off from being logged as a fault of ours.
const CLIENT_GONE = new AppError('REQUEST_REJECTED', { status: 400, message: 'The client went away' })
const closedSignals = new WeakMap<Response, AbortSignal>()

/** Aborted when the client goes away. Made when asked for: few operations ask, and a signal costs more than a query's binding. */
function closedSignal(res: Response): AbortSignal {
  let signal = closedSignals.get(res)
  if (!signal) {
    const controller = new AbortController()
    if (res.closed) controller.abort(CLIENT_GONE)
    else res.once('close', () => controller.abort(CLIENT_GONE))
    signal = controller.signal
    closedSignals.set(res, signal)
  }
  return signal
}

const noTags: Record<string, string> = {}

const IDEMPOTENCY_KEY = /^[\x21-\x7e]{1,255}$/

/** One request on its way through the checks, in the order of conventions section 2. */
export class RequestRun {
  caller: Caller | undefined
  bodyIsText = false
  readonly services: Services
  readonly hooks: Hooks
  readonly operation: Operation
  readonly req: Wire
  /** Read once: Express parses it anew at every access. */
  readonly query: Record<string, unknown>
  readonly facts: RequestFacts
  readonly audit: AuditDraft
  private decided = false
  private recorded = false
  private resource: KindRow | undefined
  private project: string | null = null
  private body: unknown
  private idempotency: IdempotencyClaim | null = null
  private received: Received | null = null

  constructor(services: Services, hooks: Hooks, operation: Operation, req: Wire, res: Response) {
    this.services = services
    this.hooks = hooks
    this.operation = operation
    this.req = req
    this.query = req.query
    this.facts = {
      id: req.requestId,
      receivedAt: new Date(Date.now() - (performance.now() - req.startedAt)),
      ip: req.ip ?? null,
      userAgent: req.headers['user-agent'] ?? null,
      headers: req.headers,
      get closed() {
        return closedSignal(res)
      },
    }
    this.audit = {
      action: operation.action ?? '',
      project_id: null,
      resource_srn: null,
      resource_public_id: null,
      additional_checks: [],
      detail: {},
    }
  }

  async carryOut(identify: (req: Request) => Promise<Caller | null>): Promise<Answer> {
    try {
      return await this.steps(identify)
    } finally {
      await this.received
        ?.discard()
        .catch(error => this.services.log.error({ err: error, request_id: this.facts.id }, 'upload not discarded'))
    }
  }

  private async steps(identify: (req: Request) => Promise<Caller | null>): Promise<Answer> {
    const { operation, req } = this
    if (!operation.receive) this.readRawBody()
    if (operation.gate === 'public') {
      if (operation.receive) await this.receive()
    } else if (await this.holdsPass()) await this.loadPassed()
    else {
      const caller = await this.identified(identify)
      if (caller.credential.type === 'api_key' && caller.project_id)
        await this.hooks.countRequest(caller, caller.project_id)
      for (const value of Object.values(req.params))
        if (typeof value !== 'string' || !storable(value))
          raise('RESOURCE_NOT_FOUND', { meta: { id: String(value).slice(0, 200) } })
      try {
        // An upload names its project in its fields; only who could never be allowed is refused before they are read.
        if (operation.receive && operation.shape !== 'item') {
          this.refuseNever(caller, operation.action as string, operation.kind as Kind)
          await this.receive()
          await this.authorise(await this.identified(identify))
        } else await this.authorise(caller)
      } catch (error) {
        const kept = await this.keptForGone(error)
        if (kept) return this.replay(kept)
        throw error
      }
      if (caller.credential.type === 'api_key' && !caller.project_id && this.project)
        await this.hooks.countRequest(caller, this.project)
      if (operation.receive && operation.shape === 'item') {
        await this.receive()
        await this.authorise(await this.identified(identify))
      }
    }
    const context = this.context()
    if (operation.method === 'post') {
      const kept = await this.claim()
      if (kept) return this.replay(kept)
    }
    try {
      const given = operation.transaction
        ? await this.runInTransaction(context)
        : this.asAnswer(await operation.run(context as never))
      if (!operation.transaction) {
        await this.recordGiven(given)
        if (this.idempotency) {
          const { pool, secrets } = this.services
          // A stream cannot be given again: its key is free for another request.
          if (given.stream) await releaseIdempotency(pool, this.idempotency)
          else await keepAnswer(pool, secrets, this.idempotency, given.kept ?? given, operation.secretAnswer)
        }
      }
      return operation.method === 'get' &&
        operation.shape === 'item' &&
        given.status === 200 &&
        !operation.paged &&
        !given.stream
        ? this.conditional(given)
        : given
    } catch (error) {
      if (this.idempotency) await this.settleFailedIdempotency(error)
      throw error
    }
  }

  /** The caller as of now; asked again behind an upload, which may take longer than the rights of who began it. */
  private async identified(identify: (req: Request) => Promise<Caller | null>): Promise<Caller> {
    const caller = await identify(this.req)
    if (!caller) raise('UNAUTHORIZED')
    this.caller = caller
    return caller
  }

  /** Reads the body through the operation; its fields are then checked like those of a JSON body. */
  private async receive() {
    const { facts, operation, req, services } = this
    const received = await (operation.receive as NonNullable<Operation['receive']>)({
      req,
      params: req.params as Record<string, string>,
      query: this.query,
      services,
      caller: this.caller ?? null,
      project: this.project ?? this.caller?.project_id ?? null,
      resource: this.resource,
      closed: facts.closed,
    })
    this.received = received
    this.body = received.body
    if (!received.as) return
    this.caller = received.as.caller
    this.project = received.as.project
    this.decided = true
    this.audit.project_id = this.project
    if (operation.kind) this.audit.resource_srn = targetName({ kind: operation.kind, project_id: this.project })
  }

  private async holdsPass(): Promise<boolean> {
    const { operation, query, req, services } = this
    if (!operation.pass) return false
    return operation.pass({ params: req.params as Record<string, string>, query, services })
  }

  /** The item of a request that came with a pass for it. */
  private async loadPassed() {
    const kind = this.operation.kind as Kind
    const id = this.req.params[this.operation.param as string] as string
    const row = await (this.operation.find ?? kind.find)(this.services.pool, id)
    if (!row) raise(kind.notFound, { meta: { id } })
    this.resource = row
  }

  /** Refuses a caller that no resource could be allowed to. */
  private refuseNever(caller: Caller, action: string, kind: Kind) {
    if (mayEver(caller, action)) return
    this.decided = true
    this.audit.project_id = caller.project_id
    this.audit.resource_srn = targetName({ kind, project_id: caller.project_id })
    raise('FORBIDDEN', { meta: { action } })
  }

  /** The body must be a JSON object where there is one. */
  private readRawBody() {
    const { operation, req } = this
    if (operation.method === 'get') return
    const body: unknown = req.body === '' ? undefined : req.body
    if (body !== undefined && (typeof body !== 'object' || body === null || Array.isArray(body))) {
      raise('VALIDATION_FAILED', {
        message: 'Malformed request body: must be a JSON object',
        meta: { problems: [{ code: 'INVALID_TYPE', path: '', message: 'must be a JSON object' }] },
      })
    }
    this.body = body
  }

  /** Refuses a query or a body with what the database cannot hold. */
  private requireStorable() {
    const problem = checkStorable(this.query) ?? checkStorable(this.body)
    if (problem) invalid(problem)
  }

  private async authorise(caller: Caller): Promise<void> {
    const { operation } = this
    if (operation.gate === 'any') {
      this.decided = operation.action !== null
      if (operation.shape === 'item') await this.loadItem(caller)
      return
    }
    if (operation.gate === 'owner') {
      this.decided = true
      this.audit.resource_srn = operation.kind
        ? targetName({ kind: operation.kind, project_id: caller.project_id })
        : null
      operation.admit?.(caller, this.req.params as Record<string, string>)
      if (operation.shape === 'item') await this.loadItem(caller)
      if (operation.decide && operation.decide(caller, this.resource) !== 'allow')
        raise('FORBIDDEN', { meta: { action: operation.action } })
      return
    }
    this.decided = true
    const action = operation.action as string
    const kind = operation.kind as Kind
    if (operation.gate === 'admin') return this.authoriseAdmin(caller, action, operation.kind)
    if (operation.shape === 'item') return this.authoriseItem(caller, action, kind)
    if (operation.shape === 'create') return this.authoriseCreate(caller, action, kind)
    return this.authoriseList(caller, action, kind)
  }

  private async authoriseAdmin(caller: Caller, action: string, kind: Kind | null) {
    if (kind) this.audit.resource_srn = targetName({ kind })
    const id = this.operation.param ? this.req.params[this.operation.param] : undefined
    if (kind && id) {
      this.audit.resource_srn = `srn:*:${kind.name}:${id}`
      this.audit.resource_public_id = id as string
    }
    if (!adminGate(caller, action, kind ? { kind, row: id ? ({ id, project_id: null } as KindRow) : undefined } : null))
      raise('FORBIDDEN', { meta: { action } })
    if (this.operation.shape === 'item') await this.loadItem(caller)
  }

  /** A bound credential stays in its project; the refusal is noted under it (identity, 12). Raises API_KEY_PROJECT_SCOPE. */
  private keepToProject(caller: Caller, requested: string): void {
    if (caller.project_id === null || caller.project_id === requested) return
    this.audit.project_id = caller.project_id
    this.audit.detail.requested_project = kept(requested)
    projectBinding(caller, requested)
  }

  /** Finds the row; its project must be visible to the caller, else it is as if it did not exist. */
  private async loadItem(caller: Caller): Promise<KindRow> {
    const kind = this.operation.kind as Kind
    const id = this.req.params[this.operation.param as string] as string
    this.audit.resource_public_id = id
    if (kind.name === 'project') this.keepToProject(caller, id)
    const row = isIdOf(kind, id) ? await (this.operation.find ?? kind.find)(this.services.pool, id) : null
    if (!row || !this.mayKnow(caller, row)) raise(kind.notFound, { meta: { id } })
    this.resource = row
    this.project = row.project_id
    this.audit.project_id = row.project_id
    this.audit.resource_srn = targetName({ kind, row })
    return row
  }

  /** Owners know what is theirs whatever their policies say of its project. */
  private mayKnow(caller: Caller, row: KindRow): boolean {
    const { gate, decide } = this.operation
    return gate === 'owner' && decide ? decide(caller, row) !== 'hide' : sees(caller, row.project_id)
  }

  private async authoriseItem(caller: Caller, action: string, kind: Kind) {
    const id = this.req.params[this.operation.param as string] as string
    this.audit.resource_srn = `srn:${caller.project_id ?? '*'}:${kind.name}:${id}`
    if (!mayEver(caller, action)) {
      this.audit.project_id = caller.project_id
      this.audit.resource_public_id = id
      raise('FORBIDDEN', { meta: { action } })
    }
    const row = await this.loadItem(caller)
    if (!permitted(caller, action, { kind, row, requestTags: this.bodyTags() }))
      raise('FORBIDDEN', { meta: { action } })
  }

  private async authoriseCreate(caller: Caller, action: string, kind: Kind) {
    const body = (this.body ?? {}) as Record<string, unknown>
    this.refuseNever(caller, action, kind)
    const named = body.project_id
    if (named !== undefined && named !== null && typeof named !== 'string')
      invalid({ code: 'INVALID_TYPE', path: 'project_id', message: 'must be a string' })
    let project = typeof named === 'string' ? named : caller.project_id
    if (project === null && this.operation.projectOf) {
      this.requireStorable()
      project = await this.operation.projectOf(body, this.services, caller)
    }
    if (project === null)
      invalid({
        code: 'REQUIRED',
        path: 'project_id',
        message: 'is required with a credential that is bound to no project',
      })
    const path = await this.operation.pathOf?.(body, this.services, project)
    await this.enterProject(caller, project, { action, kind, path, tags: this.bodyTags() })
  }

  /** Judges a create or an act on a whole project, and remembers the project. */
  private async enterProject(
    caller: Caller,
    project: string,
    check: { action: string; kind: Kind; path?: string | null; tags?: Record<string, string> },
  ) {
    this.audit.resource_srn = targetName({ kind: check.kind, project_id: project })
    this.keepToProject(caller, project)
    this.audit.project_id = project
    if (
      !permitted(caller, check.action, {
        kind: check.kind,
        project_id: project,
        path: check.path,
        tags: check.tags ?? noTags,
        requestTags: check.tags,
      })
    ) {
      if (!(await this.projectExists(project))) this.audit.project_id = null
      raise('FORBIDDEN', { meta: { action: check.action } })
    }
    // A bound credential lives only as long as its project (foreign key), so only a named one is looked up.
    if (caller.project_id === null && !(await this.projectExists(project))) {
      this.audit.project_id = null
      raise('RESOURCE_NOT_FOUND', { meta: { id: project } })
    }
    this.project = project
  }

  private async projectExists(id: string): Promise<boolean> {
    if (!isIdOf(kinds.get('project'), id)) return false
    return await this.services.pool.exists(sql.unsafe`select 1 from projects where id = ${id}`)
  }

  private async authoriseList(caller: Caller, action: string, kind: Kind | null) {
    const named = this.query.project_id ?? (this.body as { project_id?: unknown } | undefined)?.project_id
    if (named !== undefined && typeof named !== 'string')
      invalid({ code: 'INVALID_TYPE', path: 'project_id', message: 'must be one string' })
    const project = named ?? caller.project_id
    if (!mayEver(caller, action)) {
      this.audit.project_id = caller.project_id
      raise('FORBIDDEN', { meta: { action } })
    }
    if (project === null) {
      if (kind && kind.name !== 'project' && !listsSomewhere(caller, action, kind.name))
        raise('FORBIDDEN', { meta: { action } })
      return
    }
    this.keepToProject(caller, project)
    if (!listAllowed(caller, action, kind?.name ?? '*', project)) raise('FORBIDDEN', { meta: { action } })
    if (caller.project_id === null && !(await this.projectExists(project)))
      raise('RESOURCE_NOT_FOUND', { meta: { id: project } })
    this.project = project
    this.audit.project_id = project
    this.audit.resource_srn = kind ? targetName({ kind, project_id: project }) : null
  }

  private bodyTags(): Record<string, string> | undefined {
    // The body of a tag route is the bag itself.
    const body = this.body as { tags?: unknown } | undefined
    const tags = this.operation.path.endsWith('/tags') ? body : body?.tags
    if (typeof tags !== 'object' || tags === null || Array.isArray(tags)) return undefined
    return Object.fromEntries(
      Object.entries(tags).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
    )
  }

  private context(): Context<unknown, unknown, KindRow | undefined> {
    const { operation, req, services, audit } = this
    const caller = this.caller as Caller
    this.requireStorable()
    const page = operation.paged
      ? parsePage(this.query, operation.pageSize)
      : { limit: operation.pageSize.default, offset: 0, from: null, to: null }
    const query = operation.query ? parse(operation.query, this.query) : {}
    if (operation.body && this.body === undefined && !operation.bodyOptional)
      invalid({ code: 'REQUIRED', path: '', message: 'a JSON body is required' })
    if (!operation.body && this.body !== undefined && Object.keys(this.body as object).length > 0) {
      invalid(
        Object.keys(this.body as object).map(path => ({
          code: 'UNKNOWN_PROPERTY',
          path,
          message: 'is not a known property',
        })),
      )
    }
    const body = operation.body ? (this.body === undefined ? undefined : parse(operation.body, this.body)) : undefined
    const check: Context['allowed'] = (action, target) => {
      const allowed = permitted(caller, action, { ...target, requestTags: target.tags })
      audit.additional_checks.push({ action, resource: targetName(target), allowed })
      return allowed
    }
    return {
      caller,
      params: req.params as Record<string, string>,
      query,
      body,
      resource: this.resource,
      project: this.project,
      page,
      visible: columns =>
        visibleRows(
          caller,
          { action: operation.action as string, type: operation.kind?.name ?? '*', project: this.project },
          columns,
        ),
      db: services.pool,
      tx: undefined as unknown as Tx,
      services,
      audit,
      request: this.facts,
      allow: (action, target) => {
        if (!check(action, target)) raise('FORBIDDEN', { meta: { action } })
      },
      allowed: check,
      record: (outgoing, status, resourceId) => {
        const entry = this.entry(status, resourceId ?? null)
        if (entry) outgoing.audit(entry)
        outgoing.afterCommit(() => {
          this.recorded = true
        })
      },
      allowTags: tags => {
        const action = operation.action as string
        if (!permitted(caller, action, { kind: operation.kind as Kind, row: this.resource, tags, requestTags: tags }))
          raise('FORBIDDEN', { meta: { action } })
      },
    }
  }

  private asAnswer(result: unknown): Answer {
    if (isAnswer(result)) return result
    const { answers, shape } = this.operation
    // Keys that are numbers come in their order, whatever the order they were written in.
    const status = shape === 'create' && answers[201] !== undefined ? 201 : Number(Object.keys(answers)[0])
    return answer(status, result)
  }

  /** Runs the operation; once more when another request deleted what it names between its checks and its writes. */
  private async runInTransaction(context: Context<unknown, unknown, KindRow | undefined>): Promise<Answer> {
    try {
      return await this.runOnce(context)
    } catch (error) {
      if (!isReferenceLost(error) || isProjectGone(error)) throw error
      if (await this.isResourceGone()) throw error
      return await this.runOnce(context)
    }
  }

  private async isResourceGone(): Promise<boolean> {
    const { kind, shape } = this.operation
    return shape === 'item' && !!kind && !!this.resource && !(await kind.find(this.services.pool, this.resource.id))
  }

  /**
   * What was thrown, as the refusal that the caller gets. A request that lost the race against the delete of its
   * project or of its resource is like one that came after it (identity, 3.5).
   */
  async refusal(error: unknown): Promise<AppError> {
    if (error instanceof AppError) return error
    if (isProjectGone(error)) return new AppError('RESOURCE_NOT_FOUND', { meta: { id: this.audit.project_id } })
    if (isReferenceLost(error) && (await this.isResourceGone().catch(() => false)))
      return new AppError((this.operation.kind as Kind).notFound, { meta: { id: this.resource?.id } })
    return new AppError('INTERNAL_ERROR', { cause: error })
  }

  private async runOnce(context: Context<unknown, unknown, KindRow | undefined>): Promise<Answer> {
    const { operation, services } = this
    const draft = { checks: this.audit.additional_checks.length, detail: { ...this.audit.detail } }
    return services
      .write(async tx => {
        // A transaction may be run again after a serialization failure; what it noted is noted anew.
        this.audit.additional_checks.length = draft.checks
        this.audit.detail = { ...draft.detail }
        context.tx = tx
        context.db = tx
        await this.checkIfMatch(tx)
        const given = this.asAnswer(await operation.run(context as never))
        this.noteChanges(context.body, given)
        const entry = this.entry(given.status, this.createdId(given))
        if (entry) tx.audit(entry)
        if (this.idempotency)
          await keepAnswer(tx, services.secrets, this.idempotency, given.kept ?? given, operation.secretAnswer)
        return given
      })
      .then(given => {
        this.recorded = true
        return given
      })
  }

  /** Names, without their values, the fields an update set that the record shows otherwise now (control, 5.4). */
  private noteChanges(body: unknown, given: Answer) {
    const { method, kind } = this.operation
    const row = this.resource
    if ((method !== 'patch' && method !== 'put') || !kind || !row || typeof body !== 'object' || body === null) return
    const after = given.body as Record<string, unknown> | null | undefined
    if (after?.id !== row.id) return
    const before = kind.present(row) as Record<string, unknown>
    const changes = Object.keys(body).filter(
      name => name in before && name in after && JSON.stringify(before[name]) !== JSON.stringify(after[name]),
    )
    if (changes.length > 0) this.audit.detail.changes = changes
  }

  /** Takes the row's lock and compares the tag the client read with the record as it stands (conventions, 6). */
  private async checkIfMatch(tx: Tx) {
    const wanted = this.req.headers['if-match']
    if (wanted === undefined || this.operation.shape !== 'item' || this.operation.method === 'post') return
    const kind = this.operation.kind as Kind
    const row = await kind.find(tx, (this.resource as KindRow).id, true)
    if (!row) raise(kind.notFound, { meta: { id: (this.resource as KindRow).id } })
    if (!namesTag(wanted, etagOf(JSON.stringify(kind.present(row))))) raise('PRECONDITION_FAILED')
  }

  /** Adds the record's tag; answers 304 to a client that already has it. */
  private conditional(given: Answer): Answer {
    const kind = this.operation.kind as Kind
    const row = this.resource as KindRow
    if ((given.body as { id?: string } | null)?.id !== row.id) return given
    const text = JSON.stringify(given.body)
    const record = JSON.stringify(kind.present(row))
    const tag = etagOf(record)
    const wanted = this.req.headers['if-none-match']
    const headers = { ...given.headers, ETag: tag }
    // An answer that adds a measured value to the record is worth sending although the record is the same.
    if (text === record && wanted !== undefined && namesTag(wanted, tag)) return answer(304, undefined, headers)
    this.bodyIsText = true
    return answer(200, text, headers)
  }

  private createdId(given: Answer): string | null {
    const id = (given.body as { id?: unknown } | null | undefined)?.id
    return this.operation.shape === 'create' && typeof id === 'string' ? id : null
  }

  private entry(status: number, createdId: string | null): AuditEntry | null {
    if (!this.decided || !this.caller) return null
    const { audit, caller, facts } = this
    return {
      id: newId('audit'),
      project_id: audit.project_id,
      principal_type: caller.principal.type,
      principal_id: caller.principal.id,
      action: audit.action,
      resource_srn: audit.resource_srn && kept(audit.resource_srn, 512),
      resource_public_id: audit.resource_public_id ? kept(audit.resource_public_id) : createdId,
      status,
      request_id: facts.id,
      ip: facts.ip,
      user_agent: facts.userAgent?.slice(0, 512) ?? null,
      detail: auditDetail(audit, caller),
      created_at: new Date().toISOString(),
    }
  }

  /** Writes the entry of a request whose operation holds no transaction of the pipeline's. */
  private async recordEntry(status: number, createdId: string | null) {
    const entry = this.recorded ? null : this.entry(status, createdId)
    this.recorded = true
    if (!entry) return
    try {
      await this.services
        .write(async tx => tx.audit(entry))
        .catch(error => {
          // The entry's event cannot be written for a project that is gone; the entry can, as one of the deployment.
          if (!isProjectGone(error)) throw error
          return this.services.write(async tx => tx.audit({ ...entry, project_id: null }))
        })
    } catch (error) {
      this.services.log.error({ err: error, request_id: this.facts.id }, 'audit entry not written')
    }
  }

  private recordGiven(given: Answer): Promise<void> {
    return this.operation.reads ? this.recordRead(given.status) : this.recordEntry(given.status, this.createdId(given))
  }

  private async recordRead(status: number) {
    const project = this.project
    if (!project || !this.decided) return
    if (!(await this.hooks.auditsReads(project))) return
    const entry = this.entry(status, null)
    if (entry) this.hooks.recordRead(entry)
  }

  /** A refused or failed request leaves its entry before the answer goes out (control, 5.3). */
  async recordRefusal(error: AppError) {
    if (!this.operation.reads) return this.recordEntry(error.status, null)
    if (this.audit.project_id && this.decided && (await this.hooks.auditsReads(this.audit.project_id))) {
      const entry = this.entry(error.status, null)
      if (entry) this.hooks.recordRead(entry)
    }
  }

  /** What identifies the request among those of its Idempotency-Key; null without a key that can be one. */
  private idempotencyRequest() {
    const key = this.req.headers['idempotency-key']
    if (!this.caller || typeof key !== 'string' || !IDEMPOTENCY_KEY.test(key)) return null
    return {
      credential_id: this.caller.credential.id,
      project_id: this.project,
      path: this.req.originalUrl.split('?', 1)[0],
      key,
      request: JSON.stringify([this.query, (this.received ? this.body : this.req.body) ?? null]),
    }
  }

  private async claim(): Promise<Kept | null> {
    if (this.req.headers['idempotency-key'] === undefined || !this.caller) return null
    const request = this.idempotencyRequest()
    if (!request)
      return invalid({
        code: 'INVALID_VALUE',
        path: 'Idempotency-Key',
        message: 'must be 1 to 255 visible ASCII characters',
      })
    const claimed = await claimIdempotency(this.services.pool, this.services.secrets, request)
    if (claimed.kind === 'replay') return claimed.answer
    this.idempotency = claimed.claim
    return null
  }

  /** The answer kept for a POST whose resource is not there: the first request may have deleted it. */
  private async keptForGone(error: unknown): Promise<Kept | null> {
    const { method, shape } = this.operation
    if (method !== 'post' || shape !== 'item' || !(error instanceof AppError) || error.status !== 404) return null
    // Nothing was ever answered to a body that cannot be stored, and one that is nested too deep cannot be written out.
    if (checkStorable(this.req.body)) return null
    const request = this.idempotencyRequest()
    return request && (await keptAnswer(this.services.pool, this.services.secrets, request))
  }

  private async replay(kept: Kept): Promise<Answer> {
    const given = answer(kept.status, kept.body, { ...kept.headers, 'Idempotency-Replayed': 'true' })
    this.audit.project_id ??= kept.project_id
    this.audit.detail.idempotency_replayed = true
    await this.recordGiven(given)
    return given
  }

  private async settleFailedIdempotency(error: unknown) {
    const claim = this.idempotency as IdempotencyClaim
    try {
      if (error instanceof AppError && error.status < 500) {
        await keepAnswer(
          this.services.pool,
          this.services.secrets,
          claim,
          { status: error.status, body: errorBody(error, this.services.config.DOCS_BASE_URL), headers: error.headers },
          false,
        )
      } else await releaseIdempotency(this.services.pool, claim)
    } catch (failure) {
      this.services.log.error({ err: failure }, 'idempotency answer not kept')
    }
  }
}
