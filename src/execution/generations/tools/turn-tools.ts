import type { ActivityKind } from '../../../control/activity/model.ts'
import { recordActivityLater } from '../../../control/activity/record.ts'
import { isBounded } from '../../../core/iam/authority.ts'
import type { Origin } from '../../../core/invoke/call.ts'
import type { JournalState } from '../journal/store.ts'
import { actingAuthority, actingCaller } from '../loop/acting-caller.ts'
import { reachableTools } from '../loop/step-settings.ts'
import type { TurnAttempt } from '../loop/turn-attempt.ts'
import type { TurnData } from '../model.ts'
import { turnOrigin } from '../request/create.ts'
import { executeToolCalls, type ToolCallResults } from './tool-calls.ts'
import { NO_TOOLS, openToolbox, type Toolbox, type TurnTool } from './toolbox.ts'
import { writeMemoryTool } from './write-memory.ts'

/** What the model of the turn can call, asked for once an attempt. Raises what `openToolbox` raises. */
export async function openTools(turn: TurnAttempt, work: TurnData, signal: AbortSignal): Promise<Toolbox> {
  const { agent, generation, loaded, services, steps } = turn
  const own = await writeMemoryTool(turn, work)
  if (!agent.tool_bindings?.length && !own) return NO_TOOLS
  const tools = await openToolbox(services, {
    agent,
    own,
    project_id: generation.project_id,
    tools: loaded.tools,
    reachable: reachableTools(agent, work, steps.length + 1),
    gate: agentOfRules(turn),
    context: work.tool_context ?? {},
    signal,
  })
  turn.generation = { ...generation, tool_surface: generation.tool_surface ?? tools.surface }
  // Once a turn, not with each worker that goes on with it.
  if (generation.attempt === 1)
    for (const { tool_name, ...about } of tools.unavailable)
      noteActivity(turn, 'tool_resolution_failed', `${tool_name} is not available`, { tool_name, ...about })
  return tools
}

/** Makes the calls of the step under way. Raises what `makeCalls` raises. */
export function callTools(
  turn: TurnAttempt,
  work: TurnData,
  open: NonNullable<JournalState['open']>,
  tools: ReadonlyMap<string, TurnTool>,
  signal: AbortSignal,
): Promise<ToolCallResults> {
  const { agent, generation, run, services } = turn
  return executeToolCalls({
    services,
    generation,
    work,
    ...open,
    tools,
    gate: agentOfRules(turn),
    turn: originOf(turn, work),
    caller: () => actingCaller(services, generation, agent),
    signal,
    aside: run.aside,
    bounded: isBounded(actingAuthority(generation, agent)),
    write: (entries, told) => turn.note(entries, told),
    meter: draft => void turn.calls.push(draft),
    executed: ({ callable: { id, name }, action }) =>
      noteActivity(turn, 'action_executed', `${name} was called`, {
        tool_id: id,
        tool_name: name,
        action: action ?? name,
      }),
  })
}

/** The agent as rules know it. */
const agentOfRules = ({ agent: { id, guardrail_ids, project_id }, generation }: TurnAttempt) => ({
  id,
  // Those of another project, which shares the agent, do not apply.
  guardrail_ids: project_id === generation.project_id ? guardrail_ids : null,
})

/** The turn as what its calls start knows it. */
function originOf({ generation, loaded }: TurnAttempt, { depth, occupied }: TurnData): Origin {
  const { id: generation_id, trace_id, conversation_id } = generation
  return {
    generation_id,
    trace_id,
    root_trace_id: loaded.rootTrace ?? trace_id,
    depth,
    conversations: conversation_id === null ? occupied : [...occupied, conversation_id],
    source: generation.source,
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
