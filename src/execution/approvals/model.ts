import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'
import type { GenerationRow } from '../generations/model.ts'

export const APPROVAL_ORIGINS = ['node', 'tool_call', 'task_transition'] as const
export const APPROVAL_STATUSES = ['pending', 'approved', 'rejected', 'expired'] as const

const anObject = z.record(z.string(), z.unknown())
const name = z.string().nullable()

export const ProposedAction = z
  .object({
    tool_id: z.string().nullable().describe('Null for a tool that is defined in a binding'),
    tool_name: z.string().describe('Tool that is to be called'),
    action: z.string().optional().describe('Of tools with one action the name of the tool'),
    arguments: anObject.nullable().describe('With presets; null where no content is kept'),
  })
  .meta({ id: 'ProposedAction' })

export const Execution = z
  .object({
    status: z.enum(['pending', 'running', 'succeeded', 'failed']),
    result_digest: z.string().nullable().describe('SHA-256 of the result as JSON, in hex'),
    error: RecordedFailure.nullable(),
    generation_id: z.string().nullable().describe('The turn that carries on with the result'),
    finished_at: z.string().nullable(),
  })
  .meta({ id: 'ApprovalExecution' })
export type Execution = z.output<typeof Execution>

export const Approval = record('Approval', {
  origin: z.enum(APPROVAL_ORIGINS).describe('What asked for it'),
  status: z.enum(APPROVAL_STATUSES),
  proposed_action: ProposedAction.nullable().describe('What is executed once it is approved, as it was proposed'),
  reasoning: name.describe('Why, in the words of the model'),
  evidence: anObject.nullable().describe('What the decision is based on'),
  predicted_impact: name.describe('What the action is expected to change'),
  expires_at: z.iso.datetime(),
  dedup_key: name.describe('The same for equal calls of a tool by an agent'),
  orchestration_run_id: name.describe('The run in which it was asked for'),
  node_id: name,
  generation_id: name.describe('The turn that proposed it'),
  session_id: name,
  agent_id: name,
  task_id: name,
  task_transition: name.describe('Transition of the task that it decides'),
  policy_version: name.describe('The guardrail that asked, `<id>@<version>`'),
  previous_item_id: name.describe('The latest rejected item of the same dedup_key'),
  resolved_by: name.describe('User behind the credential that resolved it'),
  resolution_reason: name,
  edited_arguments: anObject.nullable().describe('What was approved in place of the proposed arguments'),
  execution: Execution.nullable().describe('What became of the call; null where none is made'),
})

export const ApproveInput = z
  .strictObject({
    // What is no object has a code of its own.
    arguments: z
      .unknown()
      .optional()
      .describe('Arguments to execute in place of the proposed ones; presets of the tool replace them again'),
  })
  .meta({ id: 'ApproveInput' })

export const RejectInput = z
  .strictObject({
    // What is missing or blank has a code of its own.
    reason: z.unknown().optional().describe('Why; the model is told'),
  })
  .meta({ id: 'RejectInput' })

/** Items of one request. */
const MOST = 50

export const ResolveApprovalInput = z
  .strictObject({
    ids: z.array(z.string().min(1).max(64)).min(1).max(MOST).describe('Approvals to resolve, each by itself'),
    decision: z.enum(['approved', 'rejected']).describe('What becomes of all of them'),
    reason: z.unknown().optional().describe('Why; a rejection needs one'),
  })
  .meta({ id: 'ApprovalsResolveInput' })

export const ResolvedApproval = z
  .object({
    results: z.array(
      z.object({
        id: z.string(),
        approval: Approval.nullable().describe('The approval after the decision; null where it was refused'),
        error: RecordedFailure.nullable().describe('Why it was not resolved'),
      }),
    ),
  })
  .meta({ id: 'ApprovalsResolved' })

export const Recurrence = z
  .object({
    dedup_key: z.string().describe('What the approvals have in common'),
    agent_id: name,
    tool_id: name,
    count: z.int(),
    chain: z
      .array(
        z.object({
          id: z.string(),
          status: z.enum(APPROVAL_STATUSES),
          resolution_reason: name,
          created_at: z.string(),
        }),
      )
      .describe('The newest 100, oldest first'),
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
    /** Users who had a part in starting what asks. */
    starters: z.array(z.string()),
    forbid_self_approval: z.boolean(),
    content_mode: z.enum(['full', 'none']),
    sealed: z.string().nullable(),
  },
  events: ['created', 'approved', 'rejected', 'expired'],
})

export type ApprovalRow = z.output<typeof approvalKind.row>

/** An item as it may be kept elsewhere, such as in an event: without what the model said where no content is kept. */
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
      }

/** What an item proposes, as the start of a sentence. */
export const proposalOf = ({ proposed_action, origin, node_id, task_transition }: ApprovalRow): string => {
  if (proposed_action) return `A call of ${proposed_action.tool_name}`
  if (origin === 'task_transition') return `The transition ${task_transition} of a task`
  return origin === 'node' ? `The node ${node_id} of a run` : 'A call of a tool'
}

/** What a resolved item goes on with; sealed at rest. */
export type Frozen = {
  /** Set where the arguments are those that were approved in place of the proposed ones. */
  edited?: boolean
  arguments: Record<string, unknown>
  tool_context: Record<string, string> | null
  guardrail_context: Record<string, unknown> | null
}

/** What came of a call; sealed at rest. `text` is the result as JSON, or its start. */
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
