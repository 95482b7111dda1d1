import { z } from 'zod'
import { raise, raiseInvalid } from '../../../core/api/errors.ts'
import type { Made } from '../../../core/api/idempotency.ts'
import { type Context, itemOperation, type OperationResult } from '../../../core/api/operation.ts'
import { freshBudget } from '../../../core/expressions/evaluate.ts'
import { principalRecord } from '../../../core/iam/caller.ts'
import type { Services } from '../../../core/process/services.ts'
import { lockUnpaused } from '../../../identity/projects/pause.ts'
import { checkToolSettings } from '../../agents/bindings.ts'
import { type AgentRow, agentKind, StepRules, StepToolChoice, toolIds } from '../../agents/model.ts'
import { mapOutput } from '../../tools/call.ts'
import type { Callable } from '../../tools/call-types.ts'
import { type Entry, journalRows, readJournal } from '../journal/store.ts'
import { openTurnData, sealTurnData } from '../loop/turn-data.ts'
import { turnOwnerOf } from '../loop/turn-owner.ts'
import { loadTurn } from '../loop/turn-store.ts'
import { type GenerationRow, generationKind, type OpenStep, type TurnData } from '../model.ts'
import { resumeTurn } from '../store.ts'
import { anyTurnEvents, turnWaiting } from '../streams/events.ts'
import { lastFrame } from '../streams/frame-store.ts'
import { clientTools } from '../tools/toolbox.ts'
import { mailboxHooks } from './cancel-turn.ts'
import { turnQueue } from './create.ts'
import { turnFailures } from './generate-request.ts'
import { answerTurnAgain, createdStatus, respondWithTurn, responseMode, WaitQuery } from './respond.ts'
import { AcceptedTurn, GenerateResult } from './turn-result.ts'

export const ToolOutputs = z
  .array(
    z.strictObject({
      tool_call_id: z.string().min(1).max(255).describe('The call that was made'),
      output: z.unknown().describe('What it gave, any JSON'),
    }),
  )
  .min(1)
  .max(128)
  .describe('The outcome of each pending call, once')

const settings = {
  tool_choice: StepToolChoice.optional().describe('What the model has to do with its tools'),
  active_tool_ids: toolIds.optional().describe('Bound tools that it may call; an empty list is all'),
}

const Body = z
  .strictObject({
    tool_outputs: ToolOutputs,
    stream: z.boolean().optional().describe('Answer with the event stream of what follows'),
    tool_choice: settings.tool_choice.describe('What the model has to do with its tools in the next step'),
    active_tool_ids: settings.active_tool_ids.describe('Bound tools that the next step may call; an empty list is all'),
    step_rules: StepRules.optional().describe('Settings of steps that are still to come'),
    defaults: z.strictObject(settings).optional().describe('Settings of all steps that are still to come'),
  })
  .meta({ id: 'ToolOutputsInput' })
export type ToolOutputsInput = z.output<typeof Body>

type Submitted = Pick<Context<{ wait?: boolean }>, 'services' | 'caller' | 'query' | 'request' | 'record' | 'recheck'>

/**
 * Hands a paused turn what its client's calls gave, and lets it go on.
 * @param generation as it was read; of two concurrent submissions the other one finds it going on
 * @throws GENERATION_NOT_FOUND when it is not paused, GENERATION_CONTENT_UNAVAILABLE when its content was erased,
 *   VALIDATION_FAILED unless each pending call is answered once, PROJECT_PAUSED, SESSION_CLOSED, SESSION_EXPIRED; with `wait`
 *   what the turn failed with
 */
export async function submitToolOutputs(
  context: Submitted,
  generation: GenerationRow,
  body: ToolOutputsInput,
  shown: Record<string, unknown> = {},
): Promise<OperationResult> {
  const { services, caller, query } = context
  const mode = responseMode(body.stream, query.wait ?? true)
  requirePaused(generation)
  const turn = await loadTurn(services.pool, generation.id)
  if (turn) requirePaused(turn.generation)
  const work = turn?.sealedWork && openTurnData(services, generation, turn.sealedWork)
  const { open } = turn ? readJournal(services, generation, turn.journal, generation.step_count) : { open: null }
  if (!turn || !work || !open)
    return raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: generation.id } })
  const { agent } = turn
  if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: generation.agent_id } })
  if (mode === 'stream' && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  checkToolSettings({ ...body, tool_choice: null }, agent.tool_bindings)
  checkToolSettings({ active_tool_ids: body.defaults?.active_tool_ids }, agent.tool_bindings)
  const { step, outcomes } = open
  const pending = [...step.tool_calls.keys()].filter(position => !outcomes.has(position))
  const entries = journalRows(
    services,
    generation,
    answered(services, clientTools(agent, turn.tools), step, pending, body),
  )
  const sealedWork = sealTurnData(services, generation, resumed(work, step.n, body))
  return respondWithTurn(
    context,
    mode,
    () =>
      services.write(async tx => {
        await lockUnpaused(tx, generation.project_id)
        const principal = principalRecord(caller)
        const mailbox = generation.conversation_id === null ? null : mailboxHooks.only()
        const enter = mailbox && (await mailbox.resume(tx, generation, principal))
        const locked = await generationKind.lock(tx, generation.id)
        requirePaused(locked)
        if (locked.journalled !== turn.generation.journalled) notFound(generation.id)
        const frames = await lastFrame(tx, generation.id)
        await resumeTurn(tx, locked, { entries, sealedWork, streamed: mode === 'stream' })
        await turnOwnerOf(locked)?.resumed?.(tx, { ...locked, status: 'in_progress', required_action: null })
        if (enter) await enter()
        else tx.send(turnQueue, { generation_id: generation.id, project_id: generation.project_id })
        context.record(tx, createdStatus(mode), { made: { generation_id: generation.id, frames } })
        return { ...shown, generation_id: generation.id, trace_id: generation.trace_id, frames }
      }),
    generation.id,
  )
}

/** Answers a repeat of a submission that was lost: the turn goes on. */
export const submittedAgain = (context: Submitted, { stream }: ToolOutputsInput, made: Made, shown?: object) =>
  answerTurnAgain(context, responseMode(stream, context.query.wait ?? true), made, shown)

const notFound = (id: string): never => raise('GENERATION_NOT_FOUND', { meta: { id } })

function requirePaused({ id, status, content_redacted_at, content_mode }: GenerationRow): void {
  if (content_redacted_at !== null && content_mode === 'full')
    raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  if (status !== 'requires_action') notFound(id)
}

/** The settings that the outputs came with; those of the next step are for the one behind the paused one alone. */
function resumed(
  work: TurnData,
  paused: number,
  { tool_choice, active_tool_ids, step_rules, defaults }: ToolOutputsInput,
): TurnData {
  const next = tool_choice !== undefined || active_tool_ids !== undefined
  return {
    ...work,
    resumed: {
      ...(next ? { next: { step: paused + 1, tool_choice, active_tool_ids } } : {}),
      ...(step_rules ? { step_rules } : {}),
      ...(defaults ? { defaults } : {}),
    },
  }
}

/** The outcomes of the pending calls. Raises VALIDATION_FAILED unless each of them is there once. */
function answered(
  services: Services,
  definitions: ReadonlyMap<string, Callable>,
  step: OpenStep,
  pending: readonly number[],
  { tool_outputs }: ToolOutputsInput,
): Entry[] {
  const byId = new Map(pending.map(position => [step.tool_calls[position].id, position]))
  const seen = new Set<string>()
  const wrong = (path: string, message: string) => raiseInvalid({ code: 'INVALID_VALUE', path, message })
  const entries = tool_outputs.map(({ tool_call_id, output = null }, index): Entry => {
    const at = `tool_outputs[${index}]`
    const position = byId.get(tool_call_id)
    if (position === undefined) return wrong(`${at}.tool_call_id`, 'is no call that the turn waits for')
    if (seen.has(tool_call_id)) wrong(`${at}.tool_call_id`, 'is there twice')
    seen.add(tool_call_id)
    const { tool_name, args } = step.tool_calls[position]
    const definition = definitions.get(tool_name)
    const input = { ...(args as Record<string, unknown>), ...definition?.preset_parameters }
    const result = definition?.output_mapping
      ? mapOutput(services, definition, { output, input }, freshBudget())
      : (output ?? null)
    if (Buffer.byteLength(JSON.stringify(result)) > services.config.GENERATION_TOOL_RESULT_MAX_BYTES)
      wrong(`${at}.output`, 'is larger than a turn can keep')
    return { n: step.n, position: position + 1, value: { result, error: null } }
  })
  const left = pending.find(position => !seen.has(step.tool_calls[position].id))
  if (left !== undefined) wrong('tool_outputs', `lack the call ${step.tool_calls[left].id}`)
  return entries
}

/** The generation of an agent in the project that acts: a shared agent has some in others. Raises GENERATION_NOT_FOUND. */
async function turnOfAgent(
  { services, project, resource }: Pick<Context, 'services' | 'project'> & { resource: Pick<AgentRow, 'id'> },
  id: string,
): Promise<GenerationRow> {
  const row = await generationKind.find(services.pool, id)
  return row?.agent_id === resource.id && row.project_id === project ? row : notFound(id)
}

export const toolOutputsOperation = itemOperation(agentKind, {
  id: 'submitAgentToolOutputs',
  command: ['agents', 'submit-tool-outputs'],
  starts: { kind: 'generation', field: 'generation_id' },
  method: 'post',
  path: '/agents/{agent_id}/generate/{generation_id}/tool-outputs',
  summary: 'Hand a paused turn what the calls of its client tools gave, and let it go on',
  description: 'Waits for the turn unless `wait=false`. The turn goes on as whom it was started by.',
  tag: 'Generations',
  action: 'agents:CreateAgentGeneration',
  query: WaitQuery,
  body: Body,
  answers: { 202: AcceptedTurn, 200: z.union([GenerateResult, z.record(z.string(), z.unknown())]) },
  stream: anyTurnEvents,
  waiting: turnWaiting(true),
  granted: true,
  raises: [
    ...turnFailures,
    'AGENT_NOT_FOUND',
    'GENERATION_NOT_FOUND',
    'GENERATION_CONTENT_UNAVAILABLE',
    'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
    'TOOL_NOT_FOUND',
    'PROJECT_PAUSED',
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
  ],
  transaction: false,
  run: async context =>
    submitToolOutputs(context, await turnOfAgent(context, context.params.generation_id), context.body),
  again: (context, made) => submittedAgain(context, context.body, made),
})
