import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import type { ApprovalDesk, Proposal } from '../generations/proposals.ts'
import { releaseEvaluations } from '../guardrails/records.ts'
import { expireNow } from './expire.ts'
import { insertItem } from './item.ts'
import type { ApprovalRow } from './model.ts'
import { digestOf } from './seal.ts'
import { pendingOf, rejectedBefore } from './store.ts'

/** Rounds in which another item of the same key is in the way and gone when it is looked for. */
const ROUNDS = 5

/** Equal for equal calls of a tool by an agent. */
const dedupKey = ({ generation, tool, action, args }: Proposal): string =>
  digestOf({
    project: generation.project_id,
    agent: generation.agent_id,
    tool: tool.id ?? `inline:${tool.name}`,
    action,
    arguments: args,
  })

/** Asks people for approvals of calls that guardrails do not let pass by themselves. */
export const desk: ApprovalDesk = {
  async file(services, proposal) {
    const { generation, tool, action, args } = proposal
    const starter = await callerForPrincipal(services, generation.authority, generation.project_id)
    const row = await services.write(tx => file(tx, services, proposal, starter?.user.id ?? null))
    const asked = { asked_by: generation.id, tool: tool.id ?? tool.name, action, args }
    releaseEvaluations(services, asked, row.id)
    return { id: row.id, expires_at: row.expires_at }
  },
}

/** The pending item of an equal proposal, or a new one: of several that come at once one is filed. */
async function file(tx: Tx, services: Services, proposal: Proposal, started_by: string | null): Promise<ApprovalRow> {
  const { project_id } = proposal.generation
  const dedup_key = dedupKey(proposal)
  for (let round = 0; round < ROUNDS; round++) {
    const pending = await pendingOf(tx, project_id, dedup_key)
    // One whose time is over and that nobody has expired yet makes room.
    if (pending && !(await expireNow(tx, pending.id))) return pending
    const made = await insert(tx, services, proposal, { dedup_key, started_by })
    if (made) return made
  }
  throw new Error(`no approval could be filed under ${dedup_key}`)
}

async function insert(
  tx: Tx,
  services: Services,
  proposal: Proposal,
  { dedup_key, started_by }: { dedup_key: string; started_by: string | null },
): Promise<ApprovalRow | null> {
  const { generation, tool, action, args, tool_context, guardrail_context } = proposal
  const { project_id } = generation
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
      authority: generation.authority,
      permission: generation.permission,
      started_by,
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
