import { AppError } from '../api/errors.ts'
import type { Kind } from '../api/kind.ts'
import type { Operation, OperationResult, StreamedBody } from '../api/operation.ts'
import { isRerunRequest } from '../db/pool.ts'
import { isForeignKeyViolation, isProjectDeleted } from '../db/sql.ts'
import { withTenant } from '../db/tenant-context.ts'
import { withTriggerChain } from '../db/trigger-chain.ts'
import { isConsentable, targetName } from '../iam/access.ts'
import { insufficientScope } from '../iam/challenges.ts'
import type { Services } from '../process/services.ts'
import { auditRefusal } from './audit-trail.ts'
import { authorize, refuseIfNeverAllowed } from './authorize.ts'
import type { Call } from './call.ts'
import { countRequest } from './hooks.ts'
import { claimKey, replayResponse, responseForDeleted, storeRefusal } from './idempotent-replay.ts'
import { operationContext, requireObject } from './input.ts'
import { type Invocation, openInvocation } from './invocation.ts'
import { toRefusal } from './refusal-mapping.ts'
import {
  authenticateCaller,
  enterProject,
  loadItemByPass,
  requireCredentialProject,
  requireStorableParams,
} from './resolve.ts'
import { isResourceDeleted, run } from './run.ts'

/**
 * Carries out one call of an operation: caller, quota, row and project, permission, input, idempotency, the operation, the
 * audit entry, in this order and whatever surface the call came through.
 * @throws AppError alone; what was not foreseen is INTERNAL_ERROR with its cause
 */
export const invoke = (services: Services, operation: Operation, call: Call): Promise<OperationResult> =>
  executeInvocation(openInvocation(services, operation, call))

/** The same for an invocation that its surface keeps hold of. */
export const executeInvocation = (inv: Invocation): Promise<OperationResult> =>
  withTriggerChain(inv.call.chain, () => withTenant(inv.tenancy, () => guarded(inv)))

async function guarded(inv: Invocation): Promise<OperationResult> {
  try {
    return await steps(inv)
  } catch (error) {
    // The caller's transaction is run again, and this call with it.
    if (inv.call.tx && isRerunRequest(error)) throw error
    const refused = withChallenge(inv, await refusal(inv, error))
    await auditRefusal(inv, refused)
    throw refused
  } finally {
    const { log } = inv.services
    await inv.received
      ?.discard()
      .catch(error => log.error({ err: error, request_id: inv.call.request.id }, 'upload not discarded'))
  }
}

async function steps(inv: Invocation): Promise<OperationResult> {
  const { operation, call } = inv
  if (!operation.receive) requireObject(inv)
  if (operation.gate === 'public') {
    if (operation.receive) await receive(inv)
  } else if (await holdsPass(inv)) await loadItemByPass(inv)
  else {
    try {
      await admit(inv)
    } catch (error) {
      const kept = await responseForDeleted(inv, error)
      if (kept) return replayResponse(inv, kept)
      throw error
    }
  }
  const context = operationContext(inv, async () => {
    const again = openInvocation(inv.services, operation, call)
    // What began by a grant is finished when the grant ends.
    again.grant = inv.grant
    await authorize(again, await authenticateCaller(again))
  })
  if (operation.method === 'post') {
    const kept = await claimKey(inv)
    if (kept) return replayResponse(inv, kept)
  }
  try {
    return await run(inv, context)
  } catch (error) {
    if (inv.idempotency) await storeRefusal(inv, error)
    throw error
  }
}

/** Caller, quota and permission; an upload is read in between, as soon as it is known that it could be allowed. */
async function admit(inv: Invocation): Promise<void> {
  const { operation } = inv
  const caller = await authenticateCaller(inv)
  await count(inv, caller.project_id)
  requireStorableParams(inv)
  if (operation.receive && operation.shape !== 'item') {
    // An upload names its project in its fields; only who could never be allowed is refused before they are read.
    requireCredentialProject(inv, caller)
    await refuseIfNeverAllowed(inv, caller)
    await receive(inv)
    await authorize(inv, await authenticateCaller(inv))
  } else await authorize(inv, caller)
  if (!caller.project_id) await count(inv, inv.project)
  if (operation.receive && operation.shape === 'item') {
    await receive(inv)
    await authorize(inv, await authenticateCaller(inv))
  }
}

/** Names the scopes that an OAuth token lacks where its user may do more than was consented to. */
function withChallenge({ operation, call, caller, services }: Invocation, error: AppError): AppError {
  if (!error.grantLacks || !caller) return error
  const asked = [error.meta?.action as string, operation.action as string, ...operation.alsoActions]
  const scopes = [...(caller.credential.scopes ?? []), ...isConsentable(caller, asked)]
  return new AppError(error.code, {
    message: error.message,
    meta: error.meta,
    headers: insufficientScope(services.config, call.surface === 'mcp' ? '/mcp' : '', scopes),
  })
}

/**
 * A request of a project key counts against the quotas of its project. Other surfaces count where they come in, but MCP
 * requests of an unscoped key, whose project only the call names.
 */
async function count({ services, call, caller }: Invocation, project: string | null): Promise<void> {
  if (caller?.credential.type !== 'api_key' || project === null) return
  if (call.surface === 'rest' || (call.surface === 'mcp' && caller.project_id === null && !call.isCounted))
    await countRequest(services, caller, project)
}

/** Reads the body through the operation; its fields are then checked like those of a JSON body. */
async function receive(inv: Invocation): Promise<void> {
  const { call, operation, services } = inv
  if (!call.upload) throw new Error(`operation ${operation.id} takes uploads over HTTP only`)
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

async function holdsPass({ operation, call, services }: Invocation): Promise<boolean> {
  if (!operation.pass) return false
  return operation.pass({ params: call.params, query: call.query, services })
}

/**
 * What was thrown, as the refusal that the caller gets. A call that lost the race against the delete of its project or of
 * its resource is like one that came after it.
 */
async function refusal(inv: Invocation, error: unknown): Promise<AppError> {
  const known = toRefusal(error)
  if (known) return known
  if (isProjectDeleted(error)) return new AppError('RESOURCE_NOT_FOUND', { meta: { id: inv.audit.project_id } })
  if (isForeignKeyViolation(error) && (await isResourceDeleted(inv).catch(() => false)))
    return new AppError((inv.operation.kind as Kind).notFound, { meta: { id: inv.resource?.id } })
  return new AppError('INTERNAL_ERROR', { cause: error })
}
