import { systemClock } from '../base/clock.ts'
import { newId } from '../base/ids.ts'

/** Prefix of IDs of audit entries, whose kind is declared by a later area. */
export const AUDIT_PREFIX = 'audit'

/** An entry of the audit log. */
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

/** Fields that every entry states; the defaults of the others suit work without principal and request. */
type Stated = 'project_id' | 'action' | 'resource_srn' | 'resource_public_id' | 'detail'

/** Returns an entry with a new ID. The event of the entry has its fields in this order. */
export const newAuditEntry = ({
  project_id,
  principal_type = null,
  principal_id = null,
  action,
  resource_srn,
  resource_public_id,
  status = 200,
  request_id = null,
  ip = null,
  user_agent = null,
  detail,
  created_at = systemClock.now().toISOString(),
}: Pick<AuditEntry, Stated> & Partial<Omit<AuditEntry, Stated | 'id'>>): AuditEntry => ({
  id: newId(AUDIT_PREFIX),
  project_id,
  principal_type,
  principal_id,
  action,
  resource_srn,
  resource_public_id,
  status,
  request_id,
  ip,
  user_agent,
  detail,
  created_at,
})
