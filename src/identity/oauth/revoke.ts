import type { RequestFacts } from '#core/api/call.ts'
import { srn } from '#core/api/kind.ts'
import { newAuditEntry } from '#core/writes/audit-entry.ts'
import type { Tx } from '#core/writes/writer.ts'
import { endGrant } from '../grants/store.ts'
import { principalsChanged } from '../principals/principals.ts'
import { grantKind } from './model.ts'

/** Reasons for a revocation by the protocol, without an API caller. */
export type RevokedBy = 'client' | 'refresh_reuse' | 'code_reuse' | 'device_code_reuse'

/** Revokes a grant: its tokens are refused from the next request on. Null if it had already ended. */
export async function revokeGrant(tx: Tx, id: string, reason: string) {
  const grant = await endGrant(tx, id, reason)
  if (grant) principalsChanged(tx, `grant:${id}`)
  return grant
}

/** Revokes a grant for the protocol endpoints, with the audit entry that the pipeline writes for operations. */
export async function revokeByProtocol(
  tx: Tx,
  id: string,
  reason: RevokedBy,
  request: Pick<RequestFacts, 'id' | 'ip' | 'userAgent'>,
): Promise<void> {
  const grant = await revokeGrant(tx, id, reason)
  if (!grant) return
  tx.audit(
    newAuditEntry({
      project_id: grant.project_id,
      action: 'oauth:RevokeGrant',
      resource_srn: srn(grant.project_id, grantKind.name, id),
      resource_public_id: id,
      request_id: request.id,
      ip: request.ip,
      user_agent: request.userAgent?.slice(0, 512) ?? null,
      detail: { kind: reason, user_id: grant.user_id },
    }),
  )
}
