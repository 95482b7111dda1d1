import type { Attribution, UsageDraft } from '#control/usage/meter.ts'
import type { Origin } from '#core/api/call.ts'
import type { ToolContext } from '#core/api/tool-context.ts'
import type { EvaluationBudget } from '#core/expressions/evaluate.ts'
import type { Caller, PrincipalRecord } from '#core/iam/caller.ts'
import type { Consumer } from '../grants/grants.ts'
import type { ToolDefinition } from './model.ts'

/** Tool to call: a record, or an inline definition. */
export type Callable = ToolDefinition & {
  id: string | null
  /** Project whose configuration and secrets the tool uses. */
  project_id: string
  guardrail_ids: string[] | null
  /** Author of a record; an inline definition has the author of its container. */
  author?: PrincipalRecord | null
  /** Last change; absent without a row. */
  updated_at?: string
  /** Calling project, if it is another one. */
  consumer?: Consumer | null
}

/** Returns the tenant on whose behalf a tool is called. */
export const callingProject = ({ consumer, project_id }: Pick<Callable, 'consumer' | 'project_id'>): string =>
  consumer?.project_id ?? project_id

/** Limits of a call with its nested calls. */
export type Limits = {
  /** Deadline (performance.now). */
  until: number
  /** Remaining response bytes and calls, and the spent expression budget. */
  room: {
    bytes: number
    calls: number
    expressions: EvaluationBudget
    /** Response bytes retained by this call, and by all calls of its project in this process. */
    held: number
    project: { bytes: number }
  }
  signal?: AbortSignal
  /** Depth of enclosing pipelines and platform operations. */
  depth: number
}

/** Usage attribution of a call and its nested calls. */
export type CallMetering = Attribution & {
  /** Part of the platform that makes the call. */
  source:
    | 'agent'
    | 'orchestration'
    | 'trigger'
    | 'direct'
    | 'ingestion'
    | 'decider'
    | 'approval'
    | 'guardrail'
    | 'memory_rule'
    | 'evaluation'
    | 'task'
  /** Idempotency record of the call, equal for a repeated call; null if every call is counted. */
  record: string | null
  /** Collects usage that the caller records itself; without it usage is recorded separately. */
  add?: (draft: UsageDraft) => void
}

export type ToolCall = {
  /** Operation of a platform tool, or tool of an mcp server. */
  action: string | null
  input: Record<string, unknown>
  /** Returns the caller for the platform's own operations; null is unauthenticated. */
  caller: () => Promise<Caller | null>
  /** Whether platform operations may only read, as for calls by guardrails. */
  reading: boolean
  context: ToolContext
  /** Sent by http tools: a repeated call with the same key has no further effect, if the target supports it. */
  idempotencyKey: string | null
  /** Null outside agent turns. */
  turn: Origin | null
  /**
   * Whether guardrails or a person have already allowed this call; steps of a pipeline are still evaluated.
   * `throughout` exempts them as well, for calls by guardrails.
   */
  judged: boolean | 'throughout'
  /** Records the intent to make a call that must not be repeated; an error stops the call. */
  begin: (() => Promise<void>) | null
  /** Null if nothing is metered. */
  metering: CallMetering | null
  limits: Limits
}
