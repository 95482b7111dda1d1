import type { AuditDraft } from '../api/audit.ts'
import type { Call } from '../api/call.ts'
import type { IdempotencyClaim, Made } from '../api/idempotency.ts'
import type { KindRow } from '../api/kind.ts'
import type { Operation, StreamedBody, TargetGrant } from '../api/operation.ts'
import type { Services } from '../base/services.ts'
import type { Queryable } from '../db/sql.ts'
import type { TenantContext } from '../db/tenant-context.ts'
import type { Caller } from '../iam/caller.ts'
import type { Cells } from '../services/cells.ts'

/** The state of a call in the pipeline; each step sets fields for later steps and for the audit entry. */
export type Invocation = {
  readonly services: Services
  /** The cells in all of which a list is read; null for a call in one. */
  readonly everywhere: Cells | null
  readonly operation: Operation
  readonly call: Call
  /** Queryable for reads before the operation runs: the caller's transaction, or the pool. */
  readonly db: Queryable
  readonly audit: AuditDraft
  /** The tenant whose share of the connections the call uses. */
  readonly tenancy: TenantContext
  caller: Caller | undefined
  /** Whether an authorization decision was made, which requires an audit entry. */
  decided: boolean
  /** Whether the audit entry is written, or commits with the change of the operation. */
  recorded: boolean
  /** The row of an item operation. */
  resource: KindRow | undefined
  /** The row under which a create is authorized (`under`). */
  under: KindRow | null
  /** The row of the item if one statement has read it for several calls; null if it was deleted. */
  read: KindRow | null | undefined
  /** Whether the item may be from a cache of the process, and whether it is. */
  mayBeCached: boolean
  isCached: boolean
  /** The grant for a row of another project. */
  grant: TargetGrant | null
  /** The project of the call; null for lists over several projects and for global resources. */
  project: string | null
  body: unknown
  received: StreamedBody | null
  /** The claim of the call's key, with the records made by a lost first request. */
  idempotency: (IdempotencyClaim & { made: Made | null }) | null
  /** Releases the stream of an end user that the call opens. */
  releaseStream: (() => void) | null
  /** Whether the response was stored together with the change. */
  kept: boolean
  /** Whether the effects were recorded, so that a repeat can be answered from them. */
  noted: boolean
}

/** Maximum time a call waits while its project uses all connections of its share. */
export const MAX_REQUEST_WAIT_MS = 10_000

export function openInvocation(services: Services, operation: Operation, call: Call): Invocation {
  return {
    services,
    everywhere: null,
    operation,
    call,
    db: call.tx ?? services.pool,
    audit: {
      action: operation.action ?? '',
      project_id: null,
      resource_srn: null,
      resource_public_id: null,
      additional_checks: [],
      detail: call.surface === 'rest' ? {} : { surface: call.surface },
    },
    tenancy: { tenant: null, patienceMs: MAX_REQUEST_WAIT_MS, work: operation.id },
    caller: undefined,
    decided: false,
    recorded: false,
    resource: undefined,
    under: null,
    read: undefined,
    mayBeCached: call.tx === undefined,
    isCached: false,
    grant: null,
    project: null,
    body: call.body,
    received: null,
    idempotency: null,
    releaseStream: null,
    kept: false,
    noted: false,
  }
}
