import { extensionPoint } from '#core/base/declarations.ts'
import type { Problem } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import type { ToolDefinition } from './model.ts'

/** Run node that makes a call. */
export type RunOfCall = {
  orchestration_run_id: string
  node_id: string | null
  /** Null if unknown. */
  node_attempt?: number | null
}

/** Returns the run that a turn or a usage record belongs to; null outside of runs. */
export const runOfCall = (of: {
  orchestration_run_id?: string | null
  node_id?: string | null
  node_attempt?: number | null
}): RunOfCall | null => {
  const { orchestration_run_id = null, node_id = null, node_attempt = null } = of
  return orchestration_run_id === null ? null : { orchestration_run_id, node_id, node_attempt }
}

/** Pending call, as guardrails see it. */
export type GateRequest = {
  project_id: string
  /** Null outside agent turns. */
  agent: { id: string; guardrail_ids: string[] | null } | null
  /** `id` is null for an inline definition. */
  tool: { id: string | null; name: string; guardrail_ids: string[] | null }
  /** For tools with a single action the name of the tool. */
  action: string
  /** Arguments to execute; for a tool of another project without its private presets. */
  args: Record<string, unknown>
  generation_id: string | null
  /** Null outside of runs. */
  run: RunOfCall | null
  guardrail_context: Record<string, unknown> | null
  /** Returns the caller of context tools; null without a credential. */
  caller: () => Promise<Caller | null>
  signal?: AbortSignal
}

export type Verdict =
  | { decision: 'execute' }
  | { decision: 'blocked' | 'tripwire'; reason: string }
  | {
      decision: 'route_to_approval'
      /** Governing guardrail, `<guardrail id>@<version>`. */
      policy_version: string
      /** Lifetime of the approval in seconds. */
      expires_in: number
      /** Whether starters of the chain are excluded from resolving the approval. */
      forbid_self_approval: boolean
      /** Who resolves the approval besides holders of the permission. */
      approver: 'operator' | 'end_user'
      /** Names of the arguments that an approving end user sees. */
      end_user_arguments: readonly string[]
    }

/** Tool definition, of a record or inline. */
export type GuardedTool = Pick<ToolDefinition, 'name' | 'type' | 'parameters' | 'preset_parameters'> & { id?: string }

/** Guardrails that evaluate tool calls. */
export type ToolGate = {
  /** Evaluates a call. Rejects if the guardrails cannot be read, and the call is not made. */
  judge: (services: Services, request: GateRequest) => Promise<Verdict>
  /**
   * Returns for each of `tools` whether a guardrail may route its calls to an approval, so that the model is prompted
   * for its reasons.
   */
  mayAsk: (
    services: Services,
    scope: { project_id: string; agent: GateRequest['agent']; tools: GateRequest['tool'][] },
  ) => Promise<boolean[]>
  /**
   * Returns warnings about guardrails attached to tools.
   * @param tools each with the field of the written record for its warnings
   */
  warnings: (
    db: Queryable,
    guardrailIds: readonly string[],
    tools: readonly { tool: GuardedTool; path: string }[],
  ) => Promise<Problem[]>
}

export const toolGate = extensionPoint<ToolGate>({
  name: 'tool gate',
  folder: 'execution/tools',
  description: 'Judges tool calls by guardrails',
})

/**
 * Copies the guardrails of a project and records the id of each copy, unless they were copied. Called by cloneables
 * whose records have guardrails.
 */
export const guardrailCopies = extensionPoint<Cloneable['copy']>({
  name: 'guardrail copies',
  folder: 'execution/tools',
  description: 'Copies the guardrails of a project before the records that have them are copied',
})
