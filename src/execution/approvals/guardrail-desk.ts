import type { Services } from '#core/base/services.ts'
import { withMemoryOf } from '#core/iam/authority.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ApprovalDesk, Proposal } from '../generations/tools/approval-desk.ts'
import { recordDeferredEvaluations } from '../guardrails/evaluation-records.ts'
import { expireDue } from './expire.ts'
import { insertApproval } from './insert-approval.ts'
import type { ApprovalRow } from './model.ts'
import { digestOf } from './seal.ts'
import { findLatestRejected, findPending, loadRequester } from './store.ts'

/** Attempts to insert while another approval with the same key expires or is resolved concurrently. */
const MAX_ATTEMPTS = 5

/**
 * Returns the deduplication key of a proposal: equal for the same tool call by the same agent, end user, conversation,
 * context and principal. A decision never applies to a call of another principal.
 */
function dedupKey({ generation, tool, action, args, tool_context }: Proposal): string {
  const { project_id, agent_id, actor_id, session_id, conversation_id, authority } = generation
  const { type, id, via, bounds = [] } = authority
  return digestOf({
    project: project_id,
    agent: agent_id,
    tool: tool.id ?? `inline:${tool.name}`,
    action,
    arguments: args,
    actor: actor_id,
    session: session_id,
    conversation: conversation_id,
    tool_context,
    principal: { type, id, via: via && { type: via.type, id: via.id }, bounds },
  })
}

/** Title for the end user, who must not see the name of the tool, without a label of its binding. */
const END_USER_TITLE = 'Confirmation required'

/** Files approvals for calls that guardrails route to a person. */
export const guardrailDesk: ApprovalDesk = {
  async file(services, proposal) {
    const { generation, tool, action, args } = proposal
    const row = await services.write(tx => fileApproval(tx, services, proposal))
    const subject = { subject_id: generation.id, tool: tool.id ?? tool.name, action, args }
    recordDeferredEvaluations(services, subject, row.id)
    return { id: row.id, expires_at: row.expires_at }
  },
}

/** Returns the pending approval of an equal proposal, or a new one. Concurrent proposals file a single approval. */
async function fileApproval(tx: Tx, services: Services, proposal: Proposal): Promise<ApprovalRow> {
  const { project_id } = proposal.generation
  const dedup_key = dedupKey(proposal)
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const pending = await findPending(tx, project_id, dedup_key)
    // A due approval that the sweep has not expired yet is expired here.
    if (pending && !(await expireDue(tx, pending.id))) return pending
    const inserted = await insert(tx, services, proposal, dedup_key)
    if (inserted) return inserted
  }
  throw new Error(`no approval could be filed under ${dedup_key}`)
}

async function insert(tx: Tx, services: Services, proposal: Proposal, dedup_key: string): Promise<ApprovalRow | null> {
  const { generation, tool, action, args, tool_context, guardrail_context } = proposal
  const { project_id, authority, actor_id } = generation
  const { starters } = await loadRequester(tx, project_id, authority)
  const isForEndUser = proposal.approver === 'end_user' && generation.session_id !== null && actor_id !== null
  return insertApproval(
    tx,
    services,
    {
      project_id,
      origin: 'tool_call',
      dedup_key,
      orchestration_run_id: generation.orchestration_run_id,
      node_id: generation.node_id,
      generation_id: generation.id,
      session_id: generation.session_id,
      agent_id: generation.agent_id,
      policy_version: proposal.policy_version,
      previous_item_id: await findLatestRejected(tx, project_id, dedup_key),
      tool_type: tool.type,
      agent_version: generation.agent_version,
      conversation_id: generation.conversation_id,
      // The approved call reads the same memory as the turn.
      authority: withMemoryOf(authority, { actor_id, shared: true }),
      permission: generation.permission,
      starters,
      forbid_self_approval: proposal.forbid_self_approval,
      approver: isForEndUser ? 'end_user' : 'operator',
      title: isForEndUser ? (tool.label ?? END_USER_TITLE) : null,
      end_user_arguments: isForEndUser ? [...proposal.end_user_arguments] : [],
      content_mode: generation.content_mode,
    },
    {
      ...proposal,
      proposed: { tool_id: tool.id, tool_name: tool.name, action },
      frozen: { arguments: args, tool_context, guardrail_context },
    },
  )
}
