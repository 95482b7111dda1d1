import { storableText } from '../base/storable-text.ts'
import type { Caller } from '../iam/caller.ts'

/** The audit entry of a request in progress, filled in by authorization and by the operation. */
export type AuditDraft = {
  action: string
  project_id: string | null
  resource_srn: string | null
  resource_public_id: string | null
  additional_checks: { action: string; resource: string; allowed: boolean }[]
  detail: Record<string, unknown>
  /** Whether the operation audits the request in an aggregate entry; it gets no individual one. */
  counted?: boolean
}

/** Terms of a decision of a person. */
export type Decision = {
  /** Outcome, such as `approved`. */
  decision: string
  reason?: string | null
  /** Names of the arguments or fields that the person changed or filled in. Values may be secrets or erasable content. */
  edited?: string[]
  [term: string]: string | string[] | null | undefined
}

/** Returns the first `max` characters of a request text, without characters that PostgreSQL cannot store. */
export const auditText = (text: string, max = 200): string => storableText(text.slice(0, max))

/** Returns the detail of an entry: the request's own, extended by facts of the credential. Null if empty. */
export function auditDetail(draft: AuditDraft, caller: Caller): Record<string, unknown> | null {
  const detail: Record<string, unknown> = { ...draft.detail }
  if (draft.additional_checks.length > 0) detail.additional_checks = draft.additional_checks
  if (caller.end_user) Object.assign(detail, { actor_id: caller.end_user.actor_id, jti: caller.end_user.jti })
  if (caller.credential.type === 'run') detail.run_as = caller.principal
  else if (caller.credential.client_id !== undefined) detail.oauth_client_id = caller.credential.client_id
  return Object.keys(detail).length > 0 ? detail : null
}

/** Maximum length of a reason, and number of names, in an entry. */
const MAX_REASON = 2000
const MAX_EDITED = 50

/**
 * Returns the terms of a decision for the audit entry. The reason of an end user is omitted: it is erasable content, which an
 * entry must not keep.
 */
export function decisionDetail({ reason, edited, ...terms }: Decision, { end_user }: Caller): Record<string, unknown> {
  return {
    ...Object.fromEntries(Object.entries(terms).filter(([, value]) => value !== undefined)),
    ...(edited && { edited: edited.slice(0, MAX_EDITED).map(name => auditText(name)) }),
    ...(reason && !end_user && { reason: auditText(reason, MAX_REASON) }),
  }
}
