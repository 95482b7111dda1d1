import { z } from 'zod'
import { type ErrorCode, raise, raiseInvalid } from '../../../core/api/errors.ts'
import { newId } from '../../../core/api/ids.ts'
import { MetadataBag } from '../../../core/api/metadata.ts'
import { type Context, itemOperation } from '../../../core/api/operation.ts'
import { callerContext, ToolContextInput } from '../../../core/api/tool-context.ts'
import type { Outbox } from '../../../core/db/writer.ts'
import { principalRecord } from '../../../core/iam/caller.ts'
import { checkToolSettings } from '../../agents/bindings.ts'
import { checkOverlay, KnowledgeOverlay } from '../../agents/knowledge.ts'
import { type AgentRow, agentKind, StepRules, StepToolChoice, TurnStopConditions, toolIds } from '../../agents/model.ts'
import { generationKind, type TurnData } from '../model.ts'
import { agentTurnEvents, turnWaiting } from '../streams/events.ts'
import { requireContext } from '../tools/toolbox.ts'
import { findTrace } from '../traces/store.ts'
import { consumeShareForTurn } from './admission.ts'
import {
  createTurn,
  createTurnInOneStatement,
  nestedTurnFields,
  refuseEarly,
  spendRefusals,
  type TurnInput,
} from './create.ts'
import { findRunnableAgent, type RunnableAgent } from './create-store.ts'
import { type SentMessage, withDocuments } from './message-documents.ts'
import { admitFiles } from './message-files.ts'
import { answerTurnAgain, createdStatus, respondWithTurn, responseMode, WaitQuery } from './respond.ts'
import { type AskedMessage as Asked, ToolOutputPart, withoutToolOutputs, withToolOutputs } from './tool-parts.ts'
import { AcceptedTurn, GenerateResult } from './turn-result.ts'

export const MAX_MESSAGES_BYTES = 4 * 1024 * 1024

/** What a message says. */
export const textField = z.string().min(1).max(262_144)

const id = z.string().min(1).max(255)
const type = <const T extends string>(value: T) => z.literal(value).describe('What it is')

const Document = z.strictObject({
  type: type('document'),
  document_id: id.describe('Document of the project whose text it is'),
})

/** What a message of the user is made of. */
export const Part = z.discriminatedUnion('type', [
  z.strictObject({ type: type('text'), text: textField.describe('The text') }),
  z.strictObject({ type: type('file'), file_id: id.describe('Image, sound or PDF of the project') }),
  Document,
])

export const TurnMessage = z
  .strictObject({
    // A system entry has a code of its own, so it is let through to be named.
    role: z.enum(['user', 'assistant', 'system']).describe('Whose side it is on; `system` is refused'),
    content: z
      .union([textField, Document, z.array(Part).min(1).max(32)])
      .describe(
        'Text, a document whose text it is, or in a message of the user parts: texts, documents and files (images, sounds and PDF)',
      ),
  })
  .refine(({ role, content }) => role !== 'assistant' || !Array.isArray(content), {
    path: ['content'],
    message: 'must be a text or a document in a message of the assistant',
  })

/** A message that a turn is asked with; it alone may have results of tools for texts. */
const AskedMessage = z
  .strictObject({
    role: TurnMessage.shape.role,
    content: z
      .union([
        textField,
        z.discriminatedUnion('type', [Document, ToolOutputPart]),
        z
          .array(z.discriminatedUnion('type', [...Part.options, ToolOutputPart]))
          .min(1)
          .max(32),
      ])
      .describe(
        'Text; a document whose text it is; the result of a tool that is called before the model; or in a message of the user parts: texts, documents, results and files (images, sounds and PDF)',
      ),
  })
  .refine(({ role, content }) => role !== 'assistant' || !Array.isArray(content), {
    path: ['content'],
    message: 'must be a text, a document or the result of a tool in a message of the assistant',
  })

const GenerateInput = z
  .strictObject({
    messages: z.array(AskedMessage).min(1).max(500).optional().describe('What was said so far, oldest first'),
    prompt: textField.optional().describe('Appended as the last message of the user'),
    stream: z.boolean().optional().describe('Answer with the event stream of the turn'),
    metadata: MetadataBag.nullish().describe('Data of your own, kept on the generation'),
    action_id: id.optional().describe('Label of your own on the generation'),
    trace_id: z.string().min(1).optional().describe('Trace of the project to group the turn under'),
    parent_trace_id: z.string().min(1).optional().describe('Trace that the new trace is a child of'),
    root_trace_id: z.string().min(1).optional().describe('Root of the parent trace'),
    max_call_depth: z.int().min(0).optional().describe('Calls of agents that may nest below this one'),
    tool_choice: StepToolChoice.optional().describe(
      "What the model has to do with its tools, in place of the agent's setting",
    ),
    active_tool_ids: toolIds
      .optional()
      .describe("Bound tools that it may call, in place of the agent's setting; an empty list is all"),
    step_rules: StepRules.optional().describe('Settings of single steps; they go before those of the agent'),
    stop_conditions: TurnStopConditions.optional().describe(
      "What ends the turn besides max_steps, in place of the agent's setting",
    ),
    knowledge_config: KnowledgeOverlay.optional().describe(
      'What the turn reads beside what its agent knows: lists and tags are added, other values replaced. Needs `knowledge:SearchKnowledge` on what is added',
    ),
    tool_context: ToolContextInput.nullish().describe('Keys and values that calls of tools carry as headers'),
    guardrail_context: z
      .record(z.string(), z.unknown())
      .refine(value => Buffer.byteLength(JSON.stringify(value)) <= 64 * 1024, 'must be at most 64 KiB')
      .nullish()
      .describe('What guardrails read as `context`'),
    timeout_seconds: z.int().min(1).max(3600).optional().describe('The turn fails when it has not ended by then'),
  })
  .meta({ id: 'GenerateInput', example: { messages: [{ role: 'user', content: 'How long may I return an order?' }] } })

/** What a turn may fail with, for whoever waits for it. */
export const turnFailures = [
  'AI_PROVIDER_NOT_FOUND',
  'MODEL_ROUTE_NOT_FOUND',
  'AI_PROVIDER_MISCONFIGURED',
  'AI_PROVIDER_ERROR',
  'OUTPUT_SCHEMA_VALIDATION_FAILED',
  'TEXT_ENCODED_TOOL_CALL',
  'MISSING_TOOL_CONTEXT_KEY',
  'GENERATION_FAILED',
  'RESOURCE_NOT_FOUND',
] as const

/** What calls of tools are refused with that a request has made before its turn. */
const toolCallRefusals: ErrorCode[] = [
  'TOOL_CALL_NOT_SUPPORTED',
  'TOOL_DISPATCH_FAILED',
  'TOOL_EGRESS_BLOCKED',
  'TOOL_HTTP_ERROR',
  'TOOL_AUTH_FAILED',
  'SECRET_NOT_FOUND',
  'SECRET_NOT_DECRYPTABLE',
  'PIPELINE_STEP_FAILED',
  'PIPELINE_DEPTH_EXCEEDED',
]

type Body = z.output<typeof GenerateInput>

/** Raises what refuses the messages of a request whatever they name. */
export function checkMessages({ messages = [], prompt }: Pick<Body, 'messages' | 'prompt'>): void {
  if (messages.some(message => message.role === 'system')) raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  if (messages.length === 0 && prompt === undefined)
    raiseInvalid({ code: 'REQUIRED', path: 'messages', message: 'messages or prompt is required' })
  checkSize(messages)
}

/** Refuses messages that take too much room together. Raises VALIDATION_FAILED. */
export function checkSize(messages: readonly object[]): void {
  if (Buffer.byteLength(JSON.stringify(messages)) > MAX_MESSAGES_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'messages', message: 'must be at most 4 MiB in total' })
}

/**
 * The turn's messages: those sent, with the texts of their documents, then the prompt as a last user message. Raises what
 * refuses the documents and files that they name.
 */
export async function messagesOf(
  context: Pick<Context<unknown, Pick<Body, 'messages' | 'prompt'>>, 'services' | 'allow' | 'body'>,
  projectId: string,
) {
  const { services, allow, body } = context
  const sent = (body.messages ?? []) as SentMessage[]
  const messages = await withDocuments(services.pool, allow, projectId, sent, MAX_MESSAGES_BYTES)
  if (messages !== sent) checkSize(messages)
  await admitFiles(services.pool, context, projectId, messages)
  return body.prompt === undefined ? messages : [...messages, { role: 'user' as const, content: body.prompt }]
}

/** The settings of a request in place of the agent's. Raises TOOL_NOT_FOUND, FORCED_TOOL_CHOICE_CANNOT_STOP. */
function overridesOf(
  agent: AgentRow,
  { tool_choice, active_tool_ids, step_rules, stop_conditions, knowledge_config }: Body,
): TurnData['overrides'] {
  const given = { tool_choice, active_tool_ids, step_rules, stop_conditions }
  const settings = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
  const overrides = { ...settings, ...(knowledge_config ? { knowledge_config } : {}) }
  if (Object.keys(settings).length === 0) return overrides
  const { tool_choice: kept, stop_conditions: stops } = agent
  checkToolSettings({ tool_choice: kept, stop_conditions: stops, ...settings }, agent.tool_bindings)
  return overrides
}

/** Checks the traces a request names. */
async function checkTraces({
  db,
  project,
  body,
}: Pick<Context<unknown, Body>, 'db' | 'project' | 'body'>): Promise<void> {
  const { trace_id, parent_trace_id, root_trace_id } = body
  if (trace_id && (parent_trace_id || root_trace_id))
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'trace_id',
      message: 'does not go with parent_trace_id or root_trace_id',
    })
  if (root_trace_id && !parent_trace_id)
    raiseInvalid({ code: 'REQUIRED', path: 'parent_trace_id', message: 'is required with root_trace_id' })
  const find = async (id: string) => {
    const trace = await findTrace(db, id)
    if (!trace || trace.project_id !== project) raise('RESOURCE_NOT_FOUND', { meta: { id } })
    return trace
  }
  if (trace_id && (await find(trace_id)).content_redacted_at)
    raise('GENERATION_CONTENT_UNAVAILABLE', {
      message: `The content of the trace ${trace_id} has been erased`,
      meta: { trace_id },
    })
  if (parent_trace_id) {
    const parent = await find(parent_trace_id)
    if (root_trace_id && root_trace_id !== (parent.root_trace_id ?? parent.id))
      raiseInvalid({ code: 'INVALID_VALUE', path: 'root_trace_id', message: 'must be the root of the parent trace' })
    body.root_trace_id = parent.root_trace_id ?? parent.id
  }
}

export const generateOperation = itemOperation(agentKind, {
  id: 'createAgentGeneration',
  starts: { kind: 'generation', field: 'generation_id' },
  method: 'post',
  path: '/agents/{agent_id}/generate',
  summary: 'Run an agent: in the background, waited for, or streamed',
  tag: 'Generations',
  action: 'agents:CreateAgentGeneration',
  alsoActions: ['documents:GetDocument', 'files:DownloadFile', 'knowledge:SearchKnowledge', 'tools:CallTool'],
  find: findRunnableAgent,
  query: WaitQuery,
  body: GenerateInput,
  answers: { 202: AcceptedTurn, 200: GenerateResult },
  stream: agentTurnEvents,
  waiting: turnWaiting(false),
  granted: true,
  description:
    'An agent that another project shares runs in the project of the credential: what the turn says and costs is kept there.',
  raises: [
    'SYSTEM_MESSAGE_NOT_ALLOWED',
    'FILE_NOT_FOUND',
    'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
    'PROJECT_PAUSED',
    ...turnFailures,
    ...spendRefusals,
    'TOOL_NOT_FOUND',
    'FORCED_TOOL_CHOICE_CANNOT_STOP',
    'INVALID_TOOL_CONTEXT_KEY',
    'GENERATION_CONTENT_UNAVAILABLE',
    'AGENT_NOT_FOUND',
    'SHARE_CAP_EXCEEDED',
    ...toolCallRefusals,
  ],
  transaction: false,
  async run(context) {
    const { body, query, services, caller } = context
    const project_id = context.project as string
    const agent = context.resource as RunnableAgent
    checkMessages(body)
    const mode = responseMode(body.stream, query.wait)
    if (mode === 'stream' && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
    const { AGENT_MAX_CALL_DEPTH } = services.config
    if ((body.max_call_depth ?? 0) > AGENT_MAX_CALL_DEPTH)
      raiseInvalid({ code: 'TOO_BIG', path: 'max_call_depth', message: `must be at most ${AGENT_MAX_CALL_DEPTH}` })
    const overrides = overridesOf(agent, body)
    const tool_context = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
    if (body.knowledge_config)
      await checkOverlay({ tx: services.pool, allow: context.allow }, agent, project_id, body.knowledge_config)
    await requireContext(services, agent, tool_context)
    await checkTraces(context)
    const { sent, awaited } = withoutToolOutputs((body.messages ?? []) as Asked[])
    let messages = await messagesOf({ ...context, body: { ...body, messages: sent } }, project_id)
    const generation_id = newId(generationKind.prefix)
    if (awaited.length > 0) {
      await refuseEarly(services, { project_id, agent_id: agent.id }, agent)
      messages = await withToolOutputs(context, { project_id, agent, generation_id }, messages, awaited)
      checkSize(messages)
    }
    const nested = nestedTurnFields(context.origin)
    // It may be grouped under a trace of its own choice.
    if (body.trace_id) Object.assign(nested, { parent_trace_id: null, root_trace_id: null })
    const make = () => {
      const input: TurnInput = {
        generation_id,
        project_id,
        agent_id: agent.id,
        agent_version: agent.version,
        messages,
        metadata: body.metadata ?? null,
        action_id: body.action_id ?? null,
        trace_id: body.trace_id ?? null,
        parent_trace_id: body.parent_trace_id ?? null,
        root_trace_id: body.root_trace_id ?? null,
        depth: body.max_call_depth,
        overrides,
        tool_context,
        guardrail_context: body.guardrail_context ?? null,
        ...nested,
        deadline_at: body.timeout_seconds ? new Date(Date.now() + body.timeout_seconds * 1000).toISOString() : null,
        authority: principalRecord(caller),
        streamed: mode === 'stream',
        shape: 'agent',
      }
      const note = (outgoing: Outbox) => context.record(outgoing, createdStatus(mode), { made: { generation_id } })
      if (!context.grant) return createTurnInOneStatement(services, input, agent, note)
      return services.write(async tx => {
        await consumeShareForTurn(tx, services, project_id, agent)
        const made = await createTurn(tx, services, input)
        note(tx)
        return made
      })
    }
    return respondWithTurn(context, mode, make, generation_id)
  },
  again: (context, made) => answerTurnAgain(context, responseMode(context.body.stream, context.query.wait), made),
})
