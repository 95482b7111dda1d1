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
