import type { AuditDraft } from '../api/audit.ts'
import type { IdempotencyClaim, Made } from '../api/idempotency.ts'
import type { KindRow } from '../api/kind.ts'
import type { Operation, StreamedBody, TargetGrant } from '../api/operation.ts'
import type { Queryable } from '../db/sql.ts'
import type { TenantContext } from '../db/tenant-context.ts'
import type { Caller } from '../iam/caller.ts'
import type { Services } from '../process/services.ts'
import type { Call } from './call.ts'

/** One call on its way through the steps; each step notes what the later ones and the audit entry need. */
export type Invocation = {
  readonly services: Services
  readonly operation: Operation
  readonly call: Call
  /** Where reads go before the operation runs: the caller's transaction, or the pool. */
  readonly db: Queryable
  readonly audit: AuditDraft
  /** Whose part of the connections the call takes from. */
  readonly tenancy: TenantContext
  caller: Caller | undefined
  /** An authorization decision was taken, so that there is an audit entry. */
  decided: boolean
  /** The entry is written, or commits with what the operation wrote. */
  recorded: boolean
  /** The row of an item operation. */
  resource: KindRow | undefined
  /** By what the row of another project was reached. */
  grant: TargetGrant | null
  /** The one project the call is about; null on lists over several and on global resources. */
  project: string | null
  body: unknown
  received: StreamedBody | null
  /** The claim of the call's key, with what a first request that was lost has made. */
  idempotency: (IdempotencyClaim & { made: Made | null }) | null
  /** The answer was kept with the change that it is about. */
  kept: boolean
  /** What the answer is made of was: a repeat can be answered by it. */
  noted: boolean
}

/** How long a call waits while others of its project hold all the connections that the project may have. */
export const MAX_REQUEST_WAIT_MS = 10_000

export function openInvocation(services: Services, operation: Operation, call: Call): Invocation {
  return {
    services,
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
    tenancy: { tenant: null, patienceMs: MAX_REQUEST_WAIT_MS },
    caller: undefined,
    decided: false,
    recorded: false,
    resource: undefined,
    grant: null,
    project: null,
    body: call.body,
    received: null,
    idempotency: null,
    kept: false,
    noted: false,
  }
}
