import type { Attribution, UsageDraft } from '../../control/usage/meter.ts'
import type { ToolContext } from '../../core/api/tool-context.ts'
import type { EvaluationBudget } from '../../core/expressions/evaluate.ts'
import type { Caller, PrincipalRecord } from '../../core/iam/caller.ts'
import type { Origin } from '../../core/invoke/call.ts'
import type { Consumer } from '../shares/grants.ts'
import type { ToolDefinition } from './model.ts'

/** A tool that is called: a record, or one that a step holds. */
export type Callable = ToolDefinition & {
  id: string | null
  /** Whose configuration and secrets it is. */
  project_id: string
  guardrail_ids: string[] | null
  /** Of a record; a definition that another one holds is by the author of that. */
  author?: PrincipalRecord | null
  /** When it was changed last; absent of one that has no row. */
  updated_at?: string
  /** The project that calls it, where that is another one. */
  consumer?: Consumer | null
}

/** The project in whose name a tool is called. */
export const callingProject = ({ consumer, project_id }: Pick<Callable, 'consumer' | 'project_id'>): string =>
  consumer?.project_id ?? project_id

/** What a call may take, with everything that it calls in turn. */
export type Limits = {
  /** When it ends at the latest (performance.now). */
  until: number
  /** Bytes of answers and calls that are left, and what expressions have cost. */
  room: {
    bytes: number
    calls: number
    expressions: EvaluationBudget
    /** Bytes of answers that the call holds, and those of all calls of its project in this process. */
    held: number
    project: { bytes: number }
  }
  signal?: AbortSignal
  /** Pipelines and operations of the platform that the call is in. */
  depth: number
}

/** Whom a call, and what it calls in turn, is metered to. */
export type CallMetering = Attribution & {
  /** The part of the platform that calls. */
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
  /** What it is on record as, which a repeat of it is, too; null where each call is one of its own. */
  record: string | null
  /** Takes usage that its work writes itself; without it usage is written apart from the work. */
  add?: (draft: UsageDraft) => void
}

export type ToolCall = {
  /** Operation of a platform tool, tool of the server of an mcp tool. */
  action: string | null
  input: Record<string, unknown>
  /** In whose name the platform's own operations run; null is nobody. */
  caller: () => Promise<Caller | null>
  /** Operations of the platform may only read: what guardrails ask has no effect. */
  reading: boolean
  context: ToolContext
  /** Sent along by http tools: a call that is repeated under it has the effect of one, where the target keeps to that. */
  idempotencyKey: string | null
  /** Null outside the turns of agents. */
  turn: Origin | null
  /**
   * The guardrails have let this call pass, or a person has; those of the steps of a pipeline are asked still. `throughout`:
   * nor are they, for what guardrails call themselves.
   */
  judged: boolean | 'throughout'
  /** Puts on record that a call is about to be made that must not be made again; what it raises ends the call. */
  begin: (() => Promise<void>) | null
  /** Null where nothing is called. */
  metering: CallMetering | null
  limits: Limits
}
