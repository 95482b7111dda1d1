import { listConsentable, targetName } from '../api/access.ts'
import type { Call, CallSurface } from '../api/call.ts'
import { endUserError } from '../api/end-user.ts'
import type { Kind, KindRow } from '../api/kind.ts'
import type { Operation, OperationResult, StreamedBody } from '../api/operation.ts'
import { AppError } from '../base/errors.ts'
import type { Services } from '../base/services.ts'
import { type Attributes, currentSpan } from '../base/telemetry.ts'
import { ATTRIBUTE, MUSTER } from '../base/telemetry-names.ts'
import { isPlanStale } from '../db/prepared-statements.ts'
import { isForeignKeyViolation, isProjectDeleted } from '../db/sql.ts'
import { withTenant } from '../db/tenant-context.ts'
import { withTriggerChain } from '../db/trigger-chain.ts'
import { insufficientScope } from '../iam/challenges.ts'
import { inCellOf } from '../services/cell.ts'
import { isCopied, untilCopied } from '../services/copies.ts'
import { asRunningCall } from '../services/running-calls.ts'
import { auditRefusal, recordDecision } from './audit-trail.ts'
import { authorize, refuseIfNeverAllowed } from './authorize.ts'
import { countEndUserCall, endUserResult, releaseStream, takeStream } from './end-user.ts'
import { executeEverywhere } from './everywhere.ts'
import { claimKey, replayResponse, responseForDeleted, storeRefusal } from './idempotent-replay.ts'
import { operationContext, requireObject } from './input.ts'
import { type Invocation, openInvocation } from './invocation.ts'
import { isFoundById, openPlaced } from './place.ts'
import { toRefusal } from './refusal-mapping.ts'
import {
  authenticateCaller,
  enterProject,
  itemId,
  loadItemByPass,
  requireCredentialProject,
  requireStorableParams,
} from './resolve.ts'
import { isResourceDeleted, run } from './run.ts'

/**
 * Executes a call of an operation, on any surface, in this order: caller, quota, row and project, permission, input,
 * idempotency, operation, audit entry.
 * @throws AppError only; an unexpected error is INTERNAL_ERROR with its cause
 */
export const invoke = async (services: Services, operation: Operation, call: Call): Promise<OperationResult> =>
  executeInvocation(await openPlaced(services, operation, call))

/** Executes a call whose invocation the surface also reads. */
export function executeInvocation(inv: Invocation): Promise<OperationResult> {
  if (inv.everywhere) return executeEverywhere(inv, inv.everywhere, executeInvocation)
  const execute = () => withTriggerChain(inv.call.chain, () => withTenant(inv.tenancy, () => runGuarded(inv)))
  if (!inv.services.cell) return execute()
  const { services } = inv
  return inCellOf(services, () => asRunningCall(services, async () => afterCopies(inv, await execute())))
}

/** Delays the response to a change of rows that are copied to the cells until they have it; after a second, a header says so. */
async function afterCopies({ operation, call, services }: Invocation, response: OperationResult) {
  const { kind, method, reads, gate, tag } = operation
  const isChange = method !== 'get' && !reads && !call.tx && services.cell?.number === 0
  // A sign-in changes nothing that permissions depend on, unless it creates its user.
  const isOfHome = kind
    ? kind.global || isCopied(kind.table)
    : gate === 'public' && tag === 'Users' && response.status === 201
  if (!services.cells || !isChange || !isOfHome || (await untilCopied(services.cells))) return response
  return { ...response, headers: { ...response.headers, [`${services.config.HEADER_PREFIX}Replication`]: 'behind' } }
}

async function runGuarded(inv: Invocation): Promise<OperationResult> {
  let response: OperationResult | undefined
  try {
    response = await runSteps(inv)
    return inv.caller?.end_user ? endUserResult(inv, response) : response
  } catch (error) {
    // The caller's transaction is rerun together with this call.
    if (inv.call.tx && isPlanStale(error)) throw error
    const refusal = withChallenge(inv, await refusalOf(inv, error))
    await auditRefusal(inv, refusal)
    throw inv.caller?.end_user && !inv.operation.endUser?.presented ? endUserError(refusal) : refusal
  } finally {
    const { log } = inv.services
    noteInSpan(inv)
    releaseStream(inv, response)
    await inv.received
      ?.discard()
      .catch(error => log.error({ err: error, request_id: inv.call.request.id }, 'upload discard failed'))
  }
}

/** Surfaces of calls that are part of other work, whose session or run the span has. */
const INNER_SURFACES: ReadonlySet<CallSurface> = new Set(['platform_tool', 'formation', 'trigger'])

/** Returns the session, conversation and run of a row, or that the row itself is. */
function subjectOf({ params }: Call, resource: KindRow | undefined): Attributes {
  const row = (resource ?? {}) as Record<string, unknown>
  const idOf = (name: 'session_id' | 'conversation_id' | 'orchestration_run_id'): string | null => {
    const id = params[name] === row.id ? row.id : row[name]
    return typeof id === 'string' ? id : null
  }
  return {
    [ATTRIBUTE.session]: idOf('session_id'),
    [ATTRIBUTE.conversation]: idOf('conversation_id'),
    [MUSTER.run]: idOf('orchestration_run_id'),
  }
}

/** Adds the call to the span that it is part of: of its request, or of the tool that makes it. */
function noteInSpan({ operation, call, caller, project, resource }: Invocation): void {
  const span = currentSpan()
  if (!span) return
  if (!INNER_SURFACES.has(call.surface)) span.share(subjectOf(call, resource))
  span.set({
    [MUSTER.operation]: operation.id,
    [MUSTER.surface]: call.surface,
    [MUSTER.principal]: caller && (caller.end_user ? 'actor' : caller.principal.type),
  })
  span.share({ [MUSTER.project]: project })
}

async function runSteps(inv: Invocation): Promise<OperationResult> {
  const { operation, call } = inv
  if (!operation.receive) requireObject(inv)
  if (operation.gate === 'public') {
    if (operation.receive) await receive(inv)
  } else if (await hasValidPass(inv)) await loadItemByPass(inv)
  else {
    try {
      await admit(inv)
    } catch (error) {
      const stored = await responseForDeleted(inv, error)
      if (stored) return replayResponse(inv, stored)
      // A refused caller does not learn from the answer of another cell that the item exists.
      const hides = error instanceof AppError && (error.status === 403 || error.status === 404)
      if (hides && inv.caller?.project_id === null && isFoundById(operation))
        await inv.services.cells?.requireReachable(itemId(inv))
      throw error
    }
  }
  const context = operationContext(inv, async read => {
    const recheck = openInvocation(inv.services, operation, call)
    // A call that started under a grant may complete after the grant ends.
    recheck.grant = inv.grant
    recheck.read = read
    recheck.mayBeCached = false
    const caller = await authenticateCaller(recheck)
    await authorize(recheck, caller)
    return caller
  })
  recordDecision(inv, context)
  if (operation.method === 'post' && !operation.reads) {
    const stored = await claimKey(inv)
    if (stored) {
      // Only `run` detects that a cached row has changed.
      if (inv.isCached) await context.recheck()
      return replayResponse(inv, stored)
    }
  }
  try {
    return await run(inv, context)
  } catch (error) {
    if (inv.idempotency) await storeRefusal(inv, error)
    throw error
  }
}

/** Checks caller, quota and permission. An upload is read in between, as soon as it could be allowed. */
async function admit(inv: Invocation): Promise<void> {
  const { operation, call } = inv
  const caller = await authenticateCaller(inv)
  if (caller.end_user) {
    await countEndUserCall(inv, caller.end_user)
    await takeStream(inv, caller.end_user)
  }
  await call.request.count?.in(caller, caller.project_id)
  requireStorableParams(call.params)
  if (operation.receive && operation.shape !== 'item') {
    // The project of an upload is in its fields; only a caller that can never be allowed is refused before the body is read.
    requireCredentialProject(inv, caller)
    await refuseIfNeverAllowed(inv, caller)
    await receive(inv)
    await authorize(inv, await authenticateCaller(inv))
  } else await authorize(inv, caller)
  await call.request.count?.in(caller, inv.project)
  if (operation.receive && operation.shape === 'item') {
    await receive(inv)
    await authorize(inv, await authenticateCaller(inv))
  }
}

/** Adds a challenge with the missing scopes if wider consent by the user of an OAuth token would allow the action. */
function withChallenge({ operation, call, caller, services }: Invocation, error: AppError): AppError {
  if (!error.grantLacks || !caller) return error
  const actions = [error.meta?.action as string, operation.action as string, ...operation.alsoActions]
  const scopes = [...(caller.credential.scopes ?? []), ...listConsentable(caller, actions)]
  return new AppError(error.code, {
    message: error.message,
    meta: error.meta,
    headers: insufficientScope(services.config, call.surface === 'mcp' ? '/mcp' : '', scopes),
  })
}

/** Reads the body by the operation's `receive`; its fields are then validated like a JSON body. */
async function receive(inv: Invocation): Promise<void> {
  const { call, operation, services } = inv
  if (!call.upload) throw new Error(`operation ${operation.id} accepts uploads only over HTTP`)
  const received: StreamedBody = await (operation.receive as NonNullable<Operation['receive']>)({
    req: call.upload,
    params: call.params,
    query: call.query,
    services,
    caller: inv.caller ?? null,
    project: inv.project ?? inv.caller?.project_id ?? null,
    resource: inv.resource,
    closed: call.request.closed,
  })
  inv.received = received
  inv.body = received.body
  if (!received.as) return
  inv.caller = received.as.caller
  enterProject(inv, received.as.project)
  inv.decided = true
  inv.audit.project_id = inv.project
  if (operation.kind) inv.audit.resource_srn = targetName({ kind: operation.kind, project_id: inv.project })
}

async function hasValidPass({ operation, call, services }: Invocation): Promise<boolean> {
  if (!operation.pass) return false
  return operation.pass({ params: call.params, query: call.query, services })
}

/**
 * Converts a thrown error to the refusal for the caller. If the project or resource was deleted concurrently, the refusal
 * is the same as after the delete.
 */
async function refusalOf(inv: Invocation, error: unknown): Promise<AppError> {
  const refusal = toRefusal(error, inv.services)
  if (refusal) return refusal
  if (isProjectDeleted(error)) return new AppError('RESOURCE_NOT_FOUND', { meta: { id: inv.audit.project_id } })
  if (isForeignKeyViolation(error) && (await isResourceDeleted(inv).catch(() => false)))
    return new AppError((inv.operation.kind as Kind).notFound, { meta: { id: inv.resource?.id } })
  return new AppError('INTERNAL_ERROR', { cause: error })
}
