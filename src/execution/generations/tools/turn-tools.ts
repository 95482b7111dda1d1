import type { ActivityKind } from '#control/activity/model.ts'
import { recordActivityLater } from '#control/activity/record.ts'
import type { Origin } from '#core/api/call.ts'
import { isBounded } from '#core/iam/authority.ts'
import type { JournalState } from '../journal/store.ts'
import { actingAuthority, actingCaller } from '../loop/acting-caller.ts'
import { clientToolsOf } from '../loop/client-request.ts'
import { reachableTools } from '../loop/step-settings.ts'
import type { TurnAttempt } from '../loop/turn-attempt.ts'
import type { TurnData } from '../model.ts'
import { turnOrigin } from '../request/create.ts'
import { executeToolCalls, type ToolCallResults } from './tool-calls.ts'
import { NO_TOOLS, openToolbox, type Toolbox, type TurnTool } from './toolbox.ts'
import { updateStateTool } from './update-state.ts'
import { writeMemoryTool } from './write-memory.ts'

/** Opens the tools of the turn's model, once per attempt. Raises errors of `openToolbox`. */
export async function openTools(turn: TurnAttempt, data: TurnData, signal: AbortSignal): Promise<Toolbox> {
  const { agent, generation, loaded, services, steps } = turn
  const builtIn = await writeMemoryTool(turn, data)
  const updateState = updateStateTool(turn)
  const client = [...(updateState ? [updateState] : []), ...clientToolsOf(data.overrides, generation.project_id)]
  if (!agent.tool_bindings?.length && !builtIn && client.length === 0) return NO_TOOLS
  const tools = await openToolbox(services, {
    agent,
    builtIn,
    client,
    project_id: generation.project_id,
    tools: loaded.tools,
    reachable: reachableTools(agent, data, steps.length + 1),
    gate: agentOfRules(turn),
    context: data.tool_context ?? {},
    signal,
  })
  // Once per turn, not per attempt.
  if (generation.attempt === 1)
    for (const { tool_name, ...about } of tools.unavailable)
      noteActivity(turn, 'tool_resolution_failed', `${tool_name} is not available`, { tool_name, ...about })
  return tools
}

/** Makes the calls of the step in progress. Raises errors of `executeToolCalls`. */
export function callTools(
  turn: TurnAttempt,
  data: TurnData,
  open: NonNullable<JournalState['open']>,
  tools: ReadonlyMap<string, TurnTool>,
  signal: AbortSignal,
): Promise<ToolCallResults> {
  const { agent, generation, context, services } = turn
  return executeToolCalls({
    services,
    generation,
    data,
    ...open,
    tools,
    gate: agentOfRules(turn),
    turn: originOf(turn, data),
    caller: () => actingCaller(services, generation, agent),
    signal,
    releaseSlotWhile: context.releaseSlotWhile,
    labels: agent.end_user_activity === 'labels',
    bounded: isBounded(actingAuthority(generation, agent)),
    journal: (entries, events) => turn.journalCalls(entries, events),
    addUsage: draft => turn.addUsage(draft),
    onExecuted: ({ callable: { id, name }, action }) =>
      noteActivity(turn, 'action_executed', `${name} was called`, {
        tool_id: id,
        tool_name: name,
        action: action ?? name,
      }),
  })
}

/** Returns the agent as guardrails see it. */
const agentOfRules = ({ agent: { id, guardrail_ids, project_id }, generation }: TurnAttempt) => ({
  id,
  // Guardrails of a publisher do not apply in the consuming project.
  guardrail_ids: project_id === generation.project_id ? guardrail_ids : null,
})

/** Returns the turn as the origin of what its calls start. */
function originOf({ generation, loaded }: TurnAttempt, { depth, occupied }: TurnData): Origin {
  const { id: generation_id, trace_id, conversation_id } = generation
  return {
    generation_id,
    trace_id,
    root_trace_id: loaded.rootTrace ?? trace_id,
    depth,
    conversations: conversation_id === null ? occupied : [...occupied, conversation_id],
    ...turnOrigin(generation),
  }
}

function noteActivity(
  { services, generation }: TurnAttempt,
  kind: ActivityKind,
  summary: string,
  detail: { tool_id: string | null; [name: string]: unknown },
): void {
  const { project_id, agent_id, id: generation_id, orchestration_run_id, node_id } = generation
  const about = { orchestration_run_id, agent_id, generation_id, ref_id: detail.tool_id }
  recordActivityLater(services, {
    project_id,
    kind,
    summary,
    detail: node_id === null ? detail : { ...detail, node_id },
    ...about,
  })
}
