import type { RequestFacts } from '#core/api/call.ts'
import { srn } from '#core/api/kind.ts'
import { type AuditEntry, newAuditEntry } from '#core/writes/audit-entry.ts'
import type { FailedSignIns } from './store.ts'

/** Request data in the audit entry of a sign-in. */
export type SignInRequest = Partial<Pick<RequestFacts, 'id' | 'ip' | 'userAgent'>>

/** Returns the audit entry of a sign-in, which has no caller and therefore no entry from the pipeline. */
export const signInEntry = (
  action: string,
  status: number,
  username: string | null,
  userId: string | null,
  request: SignInRequest | null,
  detail: Record<string, unknown> = {},
): AuditEntry =>
  newAuditEntry({
    project_id: null,
    principal_type: userId ? 'user' : null,
    principal_id: userId,
    action,
    resource_srn: userId && srn(null, 'user', userId),
    resource_public_id: userId,
    status,
    request_id: request?.id ?? null,
    ip: request?.ip ?? null,
    user_agent: request?.userAgent?.slice(0, 512) ?? null,
    detail: { username, ...detail },
  })

/** Returns the audit entry of attempts that are counted together, with the address of the last one. */
export function failedSignInEntry({ action, username, user_id, attempts, since, ip }: FailedSignIns): AuditEntry {
  const entry = signInEntry(action, 401, username || null, user_id, { ip })
  return { ...entry, detail: { ...entry.detail, count: attempts, since } }
}
