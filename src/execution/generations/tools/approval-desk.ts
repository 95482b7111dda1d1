import type { ToolContext } from '../../../core/api/tool-context.ts'
import { extensionPoint } from '../../../core/declarations.ts'
import type { Services } from '../../../core/process/services.ts'
import type { GenerationRow } from '../model.ts'

/** A call that a rule sent to a person, in place of which the model is told that it waits. */
export type Proposal = {
  generation: GenerationRow
  /** `id` is null for a tool that is defined in a binding of the agent's version. */
  tool: { id: string | null; name: string; type: string }
  action: string
  /** As guardrails judged them; presets are laid over them again when the call is made. */
  args: Record<string, unknown>
  reasoning: string | null
  evidence: Record<string, unknown> | null
  predicted_impact: string | null
  policy_version: string
  expires_in: number
  forbid_self_approval: boolean
  tool_context: ToolContext | null
  guardrail_context: Record<string, unknown> | null
}

export type ApprovalDesk = {
  /** Files the proposal, or returns the pending item of an equal one. */
  file: (services: Services, proposal: Proposal) => Promise<{ id: string; expires_at: string }>
}

export const approvalDesk = extensionPoint<ApprovalDesk>('approval desk')
