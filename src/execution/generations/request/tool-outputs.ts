import { z } from 'zod'
import type { Made } from '#core/api/idempotency.ts'
import { type Context, itemOperation, type OperationResult } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { freshBudget } from '#core/expressions/evaluate.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { checkToolSettings } from '#execution/agents/bindings.ts'
import { type AgentRow, agentKind, StepRules, StepToolChoice, toolIds } from '#execution/agents/model.ts'
import { mapOutput } from '#execution/tools/call.ts'
import type { Callable } from '#execution/tools/call-types.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
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
import { createdStatus, replayTurnResponse, respondWithTurn, responseMode, WaitQuery } from './respond.ts'
import { AcceptedTurn, GenerateResult } from './turn-result.ts'

export const ToolOutputs = z
  .array(
    z.strictObject({
      tool_call_id: z.string().min(1).max(255).describe('ID of the tool call'),
      output: z.unknown().describe('Output of the tool call, any JSON'),
    }),
  )
  .min(1)
  .max(128)
  .describe('Outputs of the pending tool calls, one for each')

const settings = {
  tool_choice: StepToolChoice.optional().describe('Tool choice of the model'),
  active_tool_ids: toolIds.optional().describe('IDs of the bound tools available to the model; empty for all'),
}

const Body = z
  .strictObject({
    tool_outputs: ToolOutputs,
    stream: z.boolean().optional().describe('Whether to respond with the event stream of the resumed turn'),
    tool_choice: settings.tool_choice.describe('Tool choice of the next step'),
    active_tool_ids: settings.active_tool_ids.describe(
      'IDs of the bound tools available in the next step; empty for all',
    ),
    step_rules: StepRules.optional().describe('Settings of single later steps'),
    defaults: z.strictObject(settings).optional().describe('Settings of all later steps'),
  })
  .meta({ id: 'ToolOutputsInput' })
export type ToolOutputsInput = z.output<typeof Body>

type SubmitContext = Pick<
  Context<{ wait?: boolean }>,
  'services' | 'caller' | 'query' | 'request' | 'record' | 'recheck' | 'client'
>

/** How the resumed turn is presented, and whether a structured answer may be streamed. */
export type SubmitResponse = { respond: typeof respondWithTurn; streamsObjects: boolean }
const DEFAULT_RESPONSE: SubmitResponse = { respond: respondWithTurn, streamsObjects: false }

/**
 * Stores the outputs of a paused turn's tool calls and resumes the turn.
 * @param generation read before the lock; the second of two concurrent submissions finds the turn resumed
 * @throws GENERATION_NOT_FOUND if the turn is not paused, GENERATION_CONTENT_UNAVAILABLE if its content was erased,
 *   VALIDATION_FAILED unless each pending call has one output, PROJECT_PAUSED, SESSION_CLOSED, SESSION_EXPIRED; with
 *   `wait` the failure of the turn
 */
export async function submitToolOutputs(
  context: SubmitContext,
  generation: GenerationRow,
  body: ToolOutputsInput,
  extraFields: Record<string, unknown> = {},
  { respond, streamsObjects } = DEFAULT_RESPONSE,
): Promise<OperationResult> {
  const { services, caller, query } = context
  const mode = responseMode(body.stream, query.wait ?? true)
  requirePaused(generation)
  const turn = await loadTurn(services.pool, generation.id)
  if (turn) requirePaused(turn.generation)
  const data = turn?.sealedData && openTurnData(services, generation, turn.sealedData)
  const { open } = turn ? readJournal(services, generation, turn.journal, generation.step_count) : { open: null }
  if (!turn || !data || !open)
    return raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: generation.id } })
  const { agent } = turn
  if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: generation.agent_id } })
  if (mode === 'stream' && agent.output_schema && !streamsObjects) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  checkToolSettings({ ...body, tool_choice: null }, agent.tool_bindings)
  checkToolSettings({ active_tool_ids: body.defaults?.active_tool_ids }, agent.tool_bindings)
  const { step, outcomes } = open
  const pending = [...step.tool_calls.keys()].filter(position => !outcomes.has(position))
  const entries = journalRows(
    services,
    generation,
    await outcomeEntries(services, clientTools(agent, turn.tools), step, pending, body),
  )
  const sealedData = sealTurnData(
    services,
    generation,
    withSubmittedSettings({ ...data, awaited: mode === 'wait' }, step.n, body),
  )
  return respond(
    context,
    mode,
    () =>
      services.write(async tx => {
        await lockUnpaused(tx, generation.project_id)
        const principal = principalRecord(caller)
        const mailbox = generation.conversation_id === null ? null : mailboxHooks.only()
        const enqueue = mailbox && (await mailbox.resume(tx, generation, principal))
        const locked = await generationKind.lock(tx, generation.id)
        requirePaused(locked)
        if (locked.journalled !== turn.generation.journalled) notFound(generation.id)
        const frames = await lastFrame(tx, generation.id)
        await context.client?.claim?.(tx, { generation_id: generation.id, after: frames })
        await resumeTurn(tx, locked, { entries, sealedData, streamed: mode === 'stream' })
        await turnOwnerOf(locked)?.resumed?.(tx, { ...locked, status: 'in_progress', required_action: null })
        if (enqueue) await enqueue()
        else tx.send(turnQueue, { generation_id: generation.id, project_id: generation.project_id })
        context.record(tx, createdStatus(mode), { made: { generation_id: generation.id, frames } })
        return { ...extraFields, generation_id: generation.id, trace_id: generation.trace_id, frames }
      }),
    generation.id,
  )
}

/** Responds to a repeated submission whose first response was lost. */
export const replayToolOutputs = (
  context: SubmitContext,
  { stream }: ToolOutputsInput,
  made: Made,
  extraFields?: object,
) => replayTurnResponse(context, responseMode(stream, context.query.wait ?? true), made, extraFields)

const notFound = (id: string): never => raise('GENERATION_NOT_FOUND', { meta: { id } })

function requirePaused({ id, status, content_redacted_at, content_mode }: GenerationRow): void {
  if (content_redacted_at !== null && content_mode === 'full')
    raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  if (status !== 'requires_action') notFound(id)
}

/**
 * Returns the turn data with the settings submitted with the outputs; `next` applies only to the step after the pause.
 */
function withSubmittedSettings(
  data: TurnData,
  paused: number,
  { tool_choice, active_tool_ids, step_rules, defaults }: ToolOutputsInput,
): TurnData {
  const next = tool_choice !== undefined || active_tool_ids !== undefined
  return {
    ...data,
    resumed: {
      ...(next ? { next: { step: paused + 1, tool_choice, active_tool_ids } } : {}),
      ...(step_rules ? { step_rules } : {}),
      ...(defaults ? { defaults } : {}),
    },
  }
}

/**
 * Returns the outcomes of the pending calls.
 * @throws VALIDATION_FAILED unless each call has one output, SERVICE_NOT_READY if no thread is free
 */
async function outcomeEntries(
  services: Services,
  definitions: ReadonlyMap<string, Callable>,
  step: OpenStep,
  pending: readonly number[],
  { tool_outputs }: ToolOutputsInput,
): Promise<Entry[]> {
  const byId = new Map(pending.map(position => [step.tool_calls[position].id, position]))
  const seen = new Set<string>()
  const invalid = (path: string, message: string) => raiseInvalid({ code: 'INVALID_VALUE', path, message })
  const entries: Entry[] = []
  for (const [index, { tool_call_id, output = null }] of tool_outputs.entries()) {
    const at = `tool_outputs[${index}]`
    const position = byId.get(tool_call_id)
    if (position === undefined) return invalid(`${at}.tool_call_id`, 'is not a pending tool call of the turn')
    if (seen.has(tool_call_id)) invalid(`${at}.tool_call_id`, 'is a duplicate')
    seen.add(tool_call_id)
    const { tool_name, args } = step.tool_calls[position]
    const definition = definitions.get(tool_name)
    const input = { ...(args as Record<string, unknown>), ...definition?.preset_parameters }
    const result = definition?.output_mapping
      ? await mapOutput(services, definition, { output, input }, freshBudget())
      : (output ?? null)
    if (Buffer.byteLength(JSON.stringify(result)) > services.config.GENERATION_TOOL_RESULT_MAX_BYTES)
      invalid(`${at}.output`, `must be at most ${services.config.GENERATION_TOOL_RESULT_MAX_BYTES} bytes`)
    entries.push({ n: step.n, position: position + 1, value: { result, error: null } })
  }
  const missing = pending.find(position => !seen.has(step.tool_calls[position].id))
  if (missing !== undefined)
    invalid('tool_outputs', `must contain an output for tool call ${step.tool_calls[missing].id}`)
  return entries
}

/**
 * Returns a generation of the agent in the project of the request. A shared agent also has generations in other
 * projects.
 * @throws GENERATION_NOT_FOUND
 */
async function requireTurnOfAgent(
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
  summary: 'Submit tool outputs of a generation',
  description:
    'Submits the outputs of the client tool calls of a paused turn and resumes it. Waits for the turn unless `wait=false`. The turn keeps the permissions of the principal that started it.',
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
    submitToolOutputs(context, await requireTurnOfAgent(context, context.params.generation_id), context.body),
  again: (context, made) => replayToolOutputs(context, context.body, made),
})
