import type { Caller } from '../iam/caller.ts'
import { storableText } from './storable-text.ts'

/** One line of the audit log. */
export type AuditEntry = {
  id: string
  project_id: string | null
  principal_type: 'user' | 'api_key' | null
  principal_id: string | null
  action: string
  resource_srn: string | null
  resource_public_id: string | null
  status: number
  request_id: string | null
  ip: string | null
  user_agent: string | null
  detail: Record<string, unknown> | null
  created_at: string
}

/** What a request gathers for its entry while it is decided and carried out. */
export type AuditDraft = {
  action: string
  project_id: string | null
  resource_srn: string | null
  resource_public_id: string | null
  additional_checks: { action: string; resource: string; allowed: boolean }[]
  detail: Record<string, unknown>
  /** The operation counts the request and audits it together with others: it gets no entry of its own. */
  counted?: boolean
}

/** Text of a request as an entry keeps it: its first `max` characters, without what the database cannot hold. */
export const auditText = (text: string, max = 200): string => storableText(text.slice(0, max))

/** The entry's detail: what the caller's credential adds, then what the request gathered; null when empty. */
export function auditDetail(draft: AuditDraft, caller: Caller): Record<string, unknown> | null {
  const detail: Record<string, unknown> = { ...draft.detail }
  if (draft.additional_checks.length > 0) detail.additional_checks = draft.additional_checks
  if (caller.credential.type === 'run') detail.run_as = caller.principal
  else if (caller.credential.client_id !== undefined) detail.oauth_client_id = caller.credential.client_id
  return Object.keys(detail).length > 0 ? detail : null
}
