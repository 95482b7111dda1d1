import type { Problem } from '../../core/api/errors.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Caller } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import type { ToolDefinition } from './model.ts'

/** The node of a run that a call is made for. */
export type RunOfCall = {
  orchestration_run_id: string
  node_id: string | null
  /** Null where it is not known. */
  node_attempt?: number | null
}

/** The run that a turn or a use is attributed to; null outside of runs. */
export const runOfCall = (of: {
  orchestration_run_id?: string | null
  node_id?: string | null
  node_attempt?: number | null
}): RunOfCall | null => {
  const { orchestration_run_id = null, node_id = null, node_attempt = null } = of
  return orchestration_run_id === null ? null : { orchestration_run_id, node_id, node_attempt }
}

/** A call that is about to be made, as rules see it. */
export type GateRequest = {
  project_id: string
  /** Null outside the turns of agents. */
  agent: { id: string; guardrail_ids: string[] | null } | null
  /** `id` is null for a tool that is defined in a binding. */
  tool: { id: string | null; name: string; guardrail_ids: string[] | null }
  /** Of tools with one action the name of the tool. */
  action: string
  /** What will be executed; of a tool of another project without its presets, which are not shown here. */
  args: Record<string, unknown>
  generation_id: string | null
  /** Null outside of runs. */
  run: RunOfCall | null
  guardrail_context: Record<string, unknown> | null
  /** As whom tools are called that know the context; null without a credential. */
  caller: () => Promise<Caller | null>
  signal?: AbortSignal
}

export type Verdict =
  | { decision: 'execute' }
  | { decision: 'blocked' | 'tripwire'; reason: string }
  | {
      decision: 'route_to_approval'
      /** `<guardrail id>@<version>` of the rule that governs. */
      policy_version: string
      /** Seconds until the approval expires. */
      expires_in: number
      /** Whether whoever started the chain may not resolve it. */
      forbid_self_approval: boolean
    }

/** A tool as its author wrote it, whether a record or inline. */
export type GuardedTool = Pick<ToolDefinition, 'name' | 'type' | 'parameters' | 'preset_parameters'> & { id?: string }

/** The rules that calls of tools are held to. */
export type ToolGate = {
  /** Rejects when the rules cannot be read: the call is not made then. */
  judge: (services: Services, request: GateRequest) => Promise<Verdict>
  /**
   * Of each tool whether a rule may send its calls to a person, so that a model is asked for its reasons. Same order as
   * `tools`.
   */
  mayAsk: (
    services: Services,
    scope: { project_id: string; agent: GateRequest['agent']; tools: GateRequest['tool'][] },
  ) => Promise<boolean[]>
  /**
   * What may be a mistake where rules are attached to tools.
   * @param tools each with the field of the written record that a warning is about
   */
  warnings: (
    db: Queryable,
    guardrailIds: readonly string[],
    tools: readonly { tool: GuardedTool; path: string }[],
  ) => Promise<Problem[]>
}

export const toolGate = extensionPoint<ToolGate>('tool gate')

/**
 * Copies the guardrails of a project into another and notes the id of each copy, unless they have been copied before. What
 * has guardrails asks for it, so that a copy of it has them, too.
 */
export const guardrailCopies = extensionPoint<Cloneable['copy']>('guardrail copies')
