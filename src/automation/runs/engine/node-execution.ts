import type { UsageDraft } from '../../../control/usage/meter.ts'
import type { Tx } from '../../../core/db/writer.ts'
import type { Services } from '../../../core/process/services.ts'
import type { Node } from '../../orchestrations/model.ts'
import type { RunRow } from '../model.ts'
import type { LoadedRun } from '../store.ts'
import type { ClaimedNode, NodeExecutionRow } from './node-execution-store.ts'

/** What an advance leaves to whoever made it: attempts to make, and the run as it stands. */
export type AdvanceResult = {
  run: RunRow
  jobs: readonly NodeExecutionRow[]
  known: CachedRun | null
  /** The time that stands for that of the statement; null where times are exact. */
  estimated: string | null
}

/**
 * A run as this process has written it, with one attempt under way and nothing else. While nobody has changed it the next
 * advance need not read it.
 */
export type CachedRun = {
  loaded: LoadedRun
  /** When `loaded.now` was the time, by performance.now(). */
  readAt: number
}

/** What a person is asked about. */
export type ApprovalQuestion = {
  /** What the node would call; null where people decide about nothing that is called. */
  tool: { tool_id: string | null; tool_name: string; action?: string; arguments: Record<string, unknown> } | null
  reasoning?: string | null
  evidence?: Record<string, unknown> | null
  predicted_impact?: string | null
  expires_in: number
  policy_version?: string | null
  forbid_self_approval?: boolean
}

/** What came of an attempt that a worker made. */
export type NodeAttemptOutcome =
  | { artifact: unknown; label?: string; through?: boolean; called?: SuccessfulToolCall }
  /** A person is asked first; the call is made as it is approved. */
  | { ask: ApprovalQuestion }
  /** The node looks again later. */
  | { again: { ms: number } }

/** A call of a tool that succeeded, for the activity of the project. */
export type SuccessfulToolCall = { tool_id: string; tool_name: string; action: string }

/** What the work of an attempt is given. */
export type Attempt = {
  services: Services
  node: Node
  taken: ClaimedNode
  key: string
  signal: AbortSignal
  /** Takes what the call used; it is written with the end of the attempt. */
  use: (draft: UsageDraft) => void
}

/** Ends the attempt in a transaction of the work's own, so that what it wrote and its record are one. */
export type SettleInTx = (tx: Tx, outcome: NodeAttemptOutcome) => Promise<AdvanceResult | null>
