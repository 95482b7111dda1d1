import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'
import { extensionPoint } from '#core/base/declarations.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'
import { waiters } from '#core/work/waiters.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { GenerationRow } from '../generations/model.ts'
import { APPROVERS } from '../guardrails/model.ts'

export const APPROVAL_ORIGINS = ['node', 'tool_call', 'task_transition'] as const
export const APPROVAL_STATUSES = ['pending', 'approved', 'rejected', 'expired'] as const

const jsonObject = z.record(z.string(), z.unknown())
const nullableText = z.string().nullable()

const ProposedAction = z
  .object({
    tool_id: z.string().nullable().describe('Null for a tool defined inline in a binding'),
    tool_name: z.string().describe('Name of the tool to call'),
    action: z.string().optional().describe('Action of the tool; for a tool with a single action the name of the tool'),
    arguments: jsonObject.nullable().describe('Arguments including presets; null if content is not stored'),
  })
  .meta({ id: 'ProposedAction' })

export const Execution = z
  .object({
    status: z.enum(['pending', 'running', 'succeeded', 'failed']),
    result_digest: z.string().nullable().describe('SHA-256 of the result as JSON, in hex'),
    error: RecordedFailure.nullable(),
    generation_id: z.string().nullable().describe('ID of the turn that continues with the result'),
    finished_at: z.string().nullable(),
  })
  .meta({ id: 'ApprovalExecution' })
export type Execution = z.output<typeof Execution>

export const Approval = record('Approval', {
  origin: z.enum(APPROVAL_ORIGINS).describe('Source of the approval'),
  status: z.enum(APPROVAL_STATUSES),
  proposed_action: ProposedAction.nullable().describe('Call to execute after approval, as proposed'),
  reasoning: nullableText.describe('Reasoning of the model'),
  evidence: jsonObject.nullable().describe('Evidence for the decision'),
  predicted_impact: nullableText.describe('Expected effect of the action'),
  expires_at: z.iso.datetime(),
  dedup_key: nullableText.describe('Key of equal calls of a tool by an agent'),
  orchestration_run_id: nullableText.describe('ID of the run that filed the approval'),
  node_id: nullableText,
  generation_id: nullableText.describe('ID of the turn that proposed the call'),
  session_id: nullableText,
  agent_id: nullableText,
  task_id: nullableText,
  task_transition: nullableText.describe('Task transition to decide on'),
  policy_version: nullableText.describe('Guardrail that required the approval, `<id>@<version>`'),
  previous_item_id: nullableText.describe('ID of the latest rejected approval with the same dedup_key'),
  approver: z
    .enum(APPROVERS)
    .describe(
      'Who may resolve it: operator — holders of `approvals:ResolveApproval`; end_user — also the end user of the session',
    ),
  title: nullableText.describe('Title for the end user. Null unless the end user may resolve it.'),
  shown_arguments: jsonObject
    .nullable()
    .describe('Arguments that the end user sees. Null unless the end user may resolve it.'),
  resolved_by: nullableText.describe('ID of the user whose credential resolved the approval'),
  resolved_by_actor_id: nullableText.describe('ID of the end user who resolved the approval'),
  resolution_reason: nullableText,
  edited_arguments: jsonObject.nullable().describe('Arguments approved instead of the proposed ones'),
  execution: Execution.nullable().describe('Outcome of the call; null if no call is made'),
})

export const ApproveInput = z
  .strictObject({
    // A value that is not an object has a separate error code.
    arguments: z
      .unknown()
      .optional()
      .describe('Arguments to execute instead of the proposed ones. Presets of the tool still apply.'),
  })
  .meta({ id: 'ApproveInput' })

export const RejectInput = z
  .strictObject({
    // A missing or blank reason has a separate error code.
    reason: z.unknown().optional().describe('Reason; reported to the model'),
  })
  .meta({ id: 'RejectInput' })

/** Maximum number of approvals in one request. */
const MAX_IDS = 50

export const ResolveApprovalInput = z
  .strictObject({
    ids: z
      .array(z.string().min(1).max(64))
      .min(1)
      .max(MAX_IDS)
      .describe('IDs of the approvals, resolved independently. At most 50.'),
    decision: z.enum(['approved', 'rejected']).describe('Decision for all of them'),
    reason: z.unknown().optional().describe('Reason; required for a rejection'),
  })
  .meta({ id: 'ApprovalsResolveInput' })

export const ResolvedApproval = z
  .object({
    results: z.array(
      z.object({
        id: z.string(),
        approval: Approval.nullable().describe('Approval after the decision; null if the decision was refused'),
        error: RecordedFailure.nullable().describe('Error that prevented the decision; null on success'),
      }),
    ),
  })
  .meta({ id: 'ApprovalsResolved' })

export const Recurrence = z
  .object({
    dedup_key: z.string().describe('Key that the approvals share'),
    agent_id: nullableText,
    tool_id: nullableText,
    count: z.int(),
    chain: z
      .array(
        z.object({
          id: z.string(),
          status: z.enum(APPROVAL_STATUSES),
          resolution_reason: nullableText,
          created_at: z.string(),
        }),
      )
      .describe('The newest 100 approvals, oldest first'),
    reasons: z.array(z.string()).describe('Reasons of the decisions'),
  })
  .meta({ id: 'ApprovalRecurrence' })

export const approvalKind = kind({
  name: 'approval',
  prefix: 'apr',
  table: 'approvals',
  notFound: 'APPROVAL_NOT_FOUND',
  missing: 'APPROVAL_NOT_FOUND',
  record: Approval,
  hidden: {
    tool_type: z.string().nullable(),
    agent_version: z.int().nullable(),
    conversation_id: z.string().nullable(),
    authority: z.custom<GenerationRow['authority']>().nullable(),
    permission: z.custom<GenerationRow['permission']>(),
    /** Users that took part in starting the work that filed the approval. */
    starters: z.array(z.string()),
    forbid_self_approval: z.boolean(),
    /** Names of the arguments that the end user sees. */
    end_user_arguments: z.array(z.string()),
    /** The turn that continues after the decision; null until then, and if there is none. */
    continuation_id: z.string().nullable(),
    content_mode: z.enum(['full', 'none']),
    sealed: z.string().nullable(),
  },
  computed: {
    shown_arguments: sql.fragment`case when t.approver = 'end_user' then (
      select coalesce(json_object_agg(shown.key, shown.value), '{}')
      from json_each(case when json_typeof(t.proposed_action -> 'arguments') = 'object' then t.proposed_action -> 'arguments' end) shown
      where shown.key = any(t.end_user_arguments)) end`,
  },
  events: ['created', 'approved', 'rejected', 'expired'],
})

/** Nodes and tasks that wait for the decision or expiry of an approval without a tool call. */
export const approvalWaiters = waiters<ApprovalRow>('approvals', 'execution/approvals')

/** What a decision changes in its transaction, so that the response is sent after it. */
export type ApprovalEffect = {
  /** Whether the approval has this effect. */
  applies(row: ApprovalRow): boolean
  /** Locks the affected row before the approval, in the order of its module. */
  lock(tx: Tx, row: ApprovalRow): Promise<unknown>
  /** Applies the decision. */
  apply(tx: Tx, services: Services, row: ApprovalRow): Promise<unknown>
}

/** Effects of decisions in later modules. Expiry has none: it notifies `approvalWaiters`. */
export const approvalEffects = extensionPoint<ApprovalEffect>({
  name: 'effects of approvals',
  folder: 'execution/approvals',
  description: 'Applies the decision of an approval to a row of a later module',
})

export type ApprovalRow = z.output<typeof approvalKind.row>

/**
 * Returns an approval as it may be stored elsewhere, such as in an event: without model content if the project stores
 * none.
 */
export const storableApproval = (row: ApprovalRow): ApprovalRow =>
  row.content_mode === 'full'
    ? row
    : {
        ...row,
        proposed_action: row.proposed_action && { ...row.proposed_action, arguments: null },
        reasoning: null,
        evidence: null,
        predicted_impact: null,
        edited_arguments: null,
        shown_arguments: row.shown_arguments && {},
      }

/** Returns the subject of an approval as the start of a sentence. */
export const proposalOf = ({ proposed_action, origin, node_id, task_transition }: ApprovalRow): string => {
  if (proposed_action) return `A call of ${proposed_action.tool_name}`
  if (origin === 'task_transition') return `The transition ${task_transition} of a task`
  return origin === 'node' ? `The node ${node_id} of a run` : 'A call of a tool'
}

/** Sealed call of an approval. */
export type Frozen = {
  /** Set if the arguments are edited ones. */
  edited?: boolean
  arguments: Record<string, unknown>
  tool_context: Record<string, string> | null
  guardrail_context: Record<string, unknown> | null
}

/** Sealed outcome of an approved call. `text` is the result as JSON, truncated. */
export type ApprovedCallOutcome = { text: string | null; digest: string | null; error: RecordedFailure | null }

export const sealedApprovals = [
  sealedColumn({ table: 'approvals', column: 'sealed', kind: 'approval' }),
  sealedColumn({
    table: 'approval_attempts',
    column: 'outcome',
    kind: 'approval_outcome',
    id: sql.fragment`approval_id`,
    project: sql.fragment`(select a.project_id from approvals a where a.id = approval_id)`,
  }),
]
