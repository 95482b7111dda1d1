import type { ToolContext } from '#core/api/tool-context.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import type { GenerationRow } from '../model.ts'

/** A call that a guardrail routed to approval; the model receives the status `pending_approval`. */
export type Proposal = {
  generation: GenerationRow
  /** `id` is null for a tool defined in a binding of the agent; `label` is the activity that end users see. */
  tool: { id: string | null; name: string; type: string; label?: string }
  action: string
  /** As evaluated by guardrails; presets are applied again when the call is made. */
  args: Record<string, unknown>
  reasoning: string | null
  evidence: Record<string, unknown> | null
  predicted_impact: string | null
  policy_version: string
  expires_in: number
  forbid_self_approval: boolean
  approver: 'operator' | 'end_user'
  end_user_arguments: readonly string[]
  tool_context: ToolContext | null
  guardrail_context: Record<string, unknown> | null
}

export type ApprovalDesk = {
  /** Creates an approval, or returns the pending approval of an equal proposal. */
  file: (services: Services, proposal: Proposal) => Promise<{ id: string; expires_at: string }>
}

export const approvalDesk = extensionPoint<ApprovalDesk>({
  name: 'approval desk',
  folder: 'execution/generations/tools',
  description: 'Files the approval of a tool call that a guardrail escalated',
})
