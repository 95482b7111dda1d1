import type { Node } from '#automation/orchestrations/definition/model.ts'
import type { UsageDraft } from '#control/usage/meter.ts'
import type { Services } from '#core/base/services.ts'
import type { SpanCapture } from '#core/base/span-targets.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ToolRow } from '#execution/tools/model.ts'
import type { RunRow } from '../model.ts'
import type { LoadedRun } from '../store.ts'
import type { ClaimedNode, NodeExecutionRow } from './node-execution-store.ts'

/** Result of an advance for the worker that made it: claimed node executions and the run. */
export type AdvanceResult = {
  run: RunRow
  /** Node executions claimed by this process. */
  claimed: readonly NodeExecutionRow[]
  /** Tool of the project that the claimed node execution calls; null if it must be read. */
  tool: ToolRow | null
  /** The run for the next advance in one statement; null if it must be loaded. */
  cached: CachedRun | null
  /** Estimated time of the statement; null if times are exact. */
  estimated: string | null
}

/**
 * A run as this process wrote it last, with exactly one active node execution. The next advance need not read it,
 * provided no other transaction has changed it.
 */
export type CachedRun = {
  loaded: LoadedRun
  /** Its other node executions, which have ended; null if they are too many or too large to keep. */
  past: PastExecutions | null
  /** Value of performance.now() at the time `loaded.now`. */
  readAt: number
}

/** Ended node executions of a run, and the bytes of their inputs and outputs. */
export type PastExecutions = { rows: readonly NodeExecutionRow[]; bytes: number }

/** Content of an approval. */
export type ApprovalQuestion = {
  /** Proposed call; null for a decision without a call. */
  tool: { tool_id: string | null; tool_name: string; action?: string; arguments: Record<string, unknown> } | null
  reasoning?: string | null
  evidence?: Record<string, unknown> | null
  predicted_impact?: string | null
  expires_in: number
  policy_version?: string | null
  forbid_self_approval?: boolean
}

/** Outcome of a node execution by a worker. */
export type NodeWorkOutcome =
  | { artifact: unknown; label?: string; through?: boolean; called?: SuccessfulToolCall }
  /** An approval is required first; the call is made after it is approved. */
  | { approval: ApprovalQuestion }
  /** The node is polled again later. */
  | { pollAgainMs: number }

/** A successful tool call, recorded in the activity of the project. */
export type SuccessfulToolCall = { tool_id: string; tool_name: string; action: string }

/** Input of a node executor. */
export type NodeWork = {
  services: Services
  node: Node
  execution: ClaimedNode
  idempotencyKey: string
  /** Tool of the node, if the statement that claimed the execution has read it. */
  tool: ToolRow | null
  signal: AbortSignal
  /** Collects the usage of calls; it is written when the node execution ends. */
  addUsage: (draft: UsageDraft) => void
}

/** Ends the node execution in a transaction of the executor, so that its writes and the outcome commit together. */
export type EndNodeInTx = (tx: Tx, outcome: NodeWorkOutcome) => Promise<AdvanceResult | null>

/** The end of the work of this process on a node execution. */
export type NodeEnd = {
  execution: ClaimedNode
  outcome: NodeWorkOutcome | { error: unknown }
  /** Usage of the work, which is recorded even if the claim was lost. */
  used: readonly UsageDraft[]
  /** Value of performance.now() when the work started. */
  started: number
  /** Whether the caller may continue with another node execution of the run. */
  mayContinue: () => boolean
  /** Spans of the work for the target of the project. */
  capture: SpanCapture | null
  /**
   * Node executions that were claimed for the caller, whether or not the response of a commit arrived: if it is lost, they
   * are identified by these rows only.
   */
  following: ClaimedNode[]
}
