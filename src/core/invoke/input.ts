import { createHash } from 'node:crypto'
import { isAllowed, listTargetOf, raiseForbidden, requirePermitted, targetName, visibleRows } from '../api/access.ts'
import { recordMade, storeWithChange } from '../api/idempotency.ts'
import type { Kind, KindRow } from '../api/kind.ts'
import { parsePage } from '../api/lists.ts'
import type { Context } from '../api/operation.ts'
import { parse, storabilityProblem } from '../api/validate.ts'
import { raise, raiseInvalid } from '../base/errors.ts'
import { allOf, sql } from '../db/sql.ts'
import type { Caller } from '../iam/caller.ts'
import type { Tx } from '../writes/writer.ts'
import { auditEntry } from './audit-trail.ts'
import { ownRows, shownClient } from './end-user.ts'
import type { Invocation } from './invocation.ts'

/** Step: validates the input of a call and builds the context of the operation. */

/** Requires that the body, if present, is a JSON object. Raises VALIDATION_FAILED. */
export function requireObject({ body }: Invocation): void {
  if (body !== undefined && (typeof body !== 'object' || body === null || Array.isArray(body)))
    raise('VALIDATION_FAILED', {
      message: 'Malformed request body: must be a JSON object',
      meta: { problems: [{ code: 'INVALID_TYPE', path: '', message: 'must be a JSON object' }] },
    })
}

/** Refuses a query or body that the database cannot store. Raises VALIDATION_FAILED. */
export function requireStorable({ call, body, operation }: Invocation): void {
  const { unvalidatedQuery } = operation
  const query =
    unvalidatedQuery.length === 0
      ? call.query
      : Object.fromEntries(Object.entries(call.query).filter(([name]) => !unvalidatedQuery.includes(name)))
  const problem = storabilityProblem(query) ?? storabilityProblem(body)
  if (problem) raiseInvalid(problem)
}

function parseBody({ operation, body }: Invocation): unknown {
  if (operation.body) {
    if (body !== undefined) return parse(operation.body, body)
    if (!operation.bodyOptional) raiseInvalid({ code: 'REQUIRED', path: '', message: 'is required as a JSON body' })
    return undefined
  }
  const unknown = Object.keys((body as object | undefined) ?? {})
  if (unknown.length > 0)
    raiseInvalid(unknown.map(path => ({ code: 'UNKNOWN_PROPERTY', path, message: 'is not a known property' })))
  return undefined
}

/** Validates query and body and returns the context of the operation. Raises VALIDATION_FAILED. */
export function operationContext(
  inv: Invocation,
  recheck: Context['recheck'],
): Context<unknown, unknown, KindRow | undefined> {
  const { operation, call, services, audit, db } = inv
  const caller = inv.caller as Caller
  requireStorable(inv)
  const page = operation.paged
    ? parsePage(call.query, operation.pageSize)
    : { limit: operation.pageSize.default, offset: 0, from: null, to: null }
  const query = operation.query ? parse(operation.query, call.query) : {}
  const body = parseBody(inv)
  const check: Context['allowed'] = (action, target) => {
    const allowed = isAllowed(caller, action, { ...target, requestTags: target.tags })
    audit.additional_checks.push({ action, resource: targetName(target), allowed })
    return allowed
  }
  const listTarget = { action: operation.action as string, ...listTargetOf(operation.kind), project: inv.project }
  const parent = operation.kind?.parent && {
    parent: sql.fragment`${sql.identifier(['t', operation.kind.parent.column])}`,
  }
  return {
    caller,
    params: call.params,
    query,
    body,
    resource: inv.resource,
    under: inv.under,
    prepared: undefined,
    project: inv.project,
    grant: inv.grant,
    page,
    visible: columns => {
      const permitted = visibleRows(caller, listTarget, { ...parent, ...columns })
      if (!caller.end_user) return permitted
      return { rows: allOf([permitted.rows, ownRows(operation, caller.end_user)]), all: false }
    },
    db,
    tx: undefined as unknown as Tx,
    services,
    audit,
    request: call.request,
    surface: call.surface,
    ifMatch: call.ifMatch,
    origin: call.origin ?? null,
    client: shownClient(inv, caller),
    recheck,
    allow: (action, target) => {
      if (!check(action, target)) raiseForbidden(caller, action, target)
    },
    allowed: check,
    record: (outbox, status, effect) => {
      if (operation.secretAnswer && 'body' in effect)
        throw new Error(`operation ${operation.id} would store its response unsealed`)
      const entry = auditEntry(inv, status, effect.id ?? null)
      if (entry) outbox.audit(entry)
      if (inv.idempotency) outbox.alongside(storeWithChange(inv.idempotency, { status, ...effect }))
      outbox.afterCommit(() => {
        inv.recorded = true
        inv.kept = 'body' in effect
        inv.noted = 'made' in effect
        if ('made' in effect) call.onMade?.(effect.made)
      })
    },
    noteMade: async (made, outbox) => {
      const { idempotency } = inv
      if (!idempotency) return
      if (outbox) outbox.alongside(storeWithChange(idempotency, { made }))
      else await recordMade(db, idempotency, made)
    },
    effectKey: () => {
      if (!inv.idempotency) return null
      const { credential_id, path, key } = inv.idempotency
      return createHash('sha256')
        .update(JSON.stringify([credential_id, path, key]))
        .digest('hex')
    },
    allowTags: tags => {
      const action = operation.action as string
      const target = { kind: operation.kind as Kind, row: inv.resource, tags, requestTags: tags }
      requirePermitted(caller, action, target)
    },
  }
}
