import type { Tx } from '../../core/db/writer.ts'
import { withMemoryOf } from '../../core/iam/authority.ts'
import type { Services } from '../../core/process/services.ts'
import type { ApprovalDesk, Proposal } from '../generations/tools/approval-desk.ts'
import { recordDeferredEvaluations } from '../guardrails/evaluation-records.ts'
import { expireDue } from './expire.ts'
import { insertItem } from './insert-approval.ts'
import type { ApprovalRow } from './model.ts'
import { digestOf } from './seal.ts'
import { pendingOf, rejectedBefore, requesterOf } from './store.ts'

/** Rounds in which another item of the same key is in the way and gone when it is looked for. */
const ROUNDS = 5

/**
 * Equal for equal calls of a tool by an agent, for the same end user in the same conversation, with the same context and in
 * the same name: what is decided for one is not executed for another.
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

/** Asks people for approvals of calls that guardrails do not let pass by themselves. */
export const guardrailDesk: ApprovalDesk = {
  async file(services, proposal) {
    const { generation, tool, action, args } = proposal
    const row = await services.write(tx => file(tx, services, proposal))
    const asked = { asked_by: generation.id, tool: tool.id ?? tool.name, action, args }
    recordDeferredEvaluations(services, asked, row.id)
    return { id: row.id, expires_at: row.expires_at }
  },
}

/** The pending item of an equal proposal, or a new one: of several that come at once one is filed. */
async function file(tx: Tx, services: Services, proposal: Proposal): Promise<ApprovalRow> {
  const { project_id } = proposal.generation
  const dedup_key = dedupKey(proposal)
  for (let round = 0; round < ROUNDS; round++) {
    const pending = await pendingOf(tx, project_id, dedup_key)
    // One whose time is over and that nobody has expired yet makes room.
    if (pending && !(await expireDue(tx, pending.id))) return pending
    const made = await insert(tx, services, proposal, dedup_key)
    if (made) return made
  }
  throw new Error(`no approval could be filed under ${dedup_key}`)
}

async function insert(tx: Tx, services: Services, proposal: Proposal, dedup_key: string): Promise<ApprovalRow | null> {
  const { generation, tool, action, args, tool_context, guardrail_context } = proposal
  const { project_id, authority, actor_id } = generation
  const { starters } = await requesterOf(tx, project_id, authority)
  return insertItem(
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
      previous_item_id: await rejectedBefore(tx, project_id, dedup_key),
      tool_type: tool.type,
      agent_version: generation.agent_version,
      conversation_id: generation.conversation_id,
      // What the call reads when it is made is what the turn would have read.
      authority: withMemoryOf(authority, { actor_id, shared: true }),
      permission: generation.permission,
      starters,
      forbid_self_approval: proposal.forbid_self_approval,
      content_mode: generation.content_mode,
    },
    {
      ...proposal,
      proposed: { tool_id: tool.id, tool_name: tool.name, action },
      frozen: { arguments: args, tool_context, guardrail_context },
    },
  )
}
