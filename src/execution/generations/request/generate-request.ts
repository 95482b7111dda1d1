import { z } from 'zod'
import { MetadataBag } from '#core/api/metadata.ts'
import { type Context, itemOperation } from '#core/api/operation.ts'
import { callerContext, ToolContextInput } from '#core/api/tool-context.ts'
import { timeIn } from '#core/base/clock.ts'
import { type ErrorCode, raise, raiseInvalid } from '#core/base/errors.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { checkToolSettings } from '#execution/agents/bindings.ts'
import { checkOverlay, KnowledgeOverlay } from '#execution/agents/knowledge.ts'
import {
  type AgentRow,
  agentKind,
  StepRules,
  StepToolChoice,
  TurnStopConditions,
  toolIds,
} from '#execution/agents/model.ts'
import type { TurnData } from '../model.ts'
import { agentTurnEvents, turnWaiting } from '../streams/events.ts'
import { requireContext } from '../tools/toolbox.ts'
import { findTrace } from '../traces/store.ts'
import { cachedAgents, createRequestedTurn, withCurrentAgent } from './cached-agents.ts'
import { AgentChanged, nestedTurnFields, precheckTurn, spendRefusals } from './create.ts'
import { findRunnableAgent, type RunnableAgent } from './create-store.ts'
import { resolveDocuments, type SentMessage, type UnresolvedMessage } from './message-documents.ts'
import { admitFiles } from './message-files.ts'
import {
  createdStatus,
  type ResponseMode,
  replayTurnResponse,
  respondWithTurn,
  responseMode,
  WaitQuery,
  waitOf,
} from './respond.ts'
import { extractToolOutputs, type MessageWithToolOutputs, resolveToolOutputs, ToolOutputPart } from './tool-parts.ts'
import { AcceptedTurn, GenerateResult } from './turn-result.ts'

export const MAX_MESSAGES_BYTES = 4 * 1024 * 1024

/** Text of a message of a history; blank ones are not sent to models. */
export const textField = z.string().max(262_144)

const id = z.string().min(1).max(255)
const type = <const T extends string>(value: T) => z.literal(value).describe('Type of the part')

const Document = z.strictObject({
  type: type('document'),
  document_id: id.describe('ID of a document of the project; its text is the content'),
})

/** A part of a user message. */
export const Part = z.discriminatedUnion('type', [
  z.strictObject({ type: type('text'), text: textField.describe('Text') }),
  z.strictObject({ type: type('file'), file_id: id.describe('ID of an image, audio or PDF file of the project') }),
  Document,
])

export const TurnMessage = z
  .strictObject({
    // `system` is accepted here to be rejected with a specific code.
    role: z.enum(['user', 'assistant', 'system']).describe('Author of the message; `system` is rejected'),
    content: z
      .union([textField, Document, z.array(Part).min(1).max(32)])
      .describe('Text, a document, or in a user message a list of texts, documents and files (images, audio and PDF)'),
  })
  .refine(({ role, content }) => role !== 'assistant' || !Array.isArray(content), {
    path: ['content'],
    message: 'must be a text or a document in an assistant message',
  })

/** A message of a generate request; only these may contain tool results. */
const RequestMessage = z
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
        'Text, a document, the result of a tool called before the model, or in a user message a list of texts, documents, tool results and files (images, audio and PDF)',
      ),
  })
  .refine(({ role, content }) => role !== 'assistant' || !Array.isArray(content), {
    path: ['content'],
    message: 'must be a text, a document or a tool result in an assistant message',
  })

const GenerateInput = z
  .strictObject({
    messages: z.array(RequestMessage).min(1).max(500).optional().describe('Conversation history, oldest first'),
    prompt: textField
      .refine(text => text.trim() !== '', 'must not be blank')
      .optional()
      .describe('Text appended as the last user message'),
    stream: z.boolean().optional().describe('Whether to respond with the event stream of the turn'),
    metadata: MetadataBag.nullish().describe('Your metadata of the generation'),
    action_id: id.optional().describe('Your label of the generation'),
    trace_id: z.string().min(1).optional().describe('ID of an existing trace of the project for the turn'),
    parent_trace_id: z.string().min(1).optional().describe('ID of the parent of the new trace'),
    root_trace_id: z.string().min(1).optional().describe('ID of the root of the parent trace'),
    max_call_depth: z.int().min(0).optional().describe('Maximum depth of nested agent calls'),
    tool_choice: StepToolChoice.optional().describe("Tool choice of the model; overrides the agent's setting"),
    active_tool_ids: toolIds
      .optional()
      .describe("IDs of the bound tools available to the model; overrides the agent's setting. Empty for all."),
    step_rules: StepRules.optional().describe('Settings of single steps; take precedence over rules of the agent'),
    stop_conditions: TurnStopConditions.optional().describe(
      "Conditions that end the turn in addition to max_steps; overrides the agent's setting",
    ),
    knowledge_config: KnowledgeOverlay.optional().describe(
      'Additional knowledge of the turn: lists and tags are added to the configuration of the agent, other values replace it. Requires `knowledge:SearchKnowledge` on the additions.',
    ),
    tool_context: ToolContextInput.nullish().describe('Keys and values sent as headers with tool calls'),
    guardrail_context: z
      .record(z.string(), z.unknown())
      .refine(value => Buffer.byteLength(JSON.stringify(value)) <= 64 * 1024, 'must be at most 64 KiB')
      .nullish()
      .describe('Value of `context` in guardrail expressions'),
    timeout_seconds: z.int().min(1).max(3600).optional().describe('Seconds after which the turn fails'),
  })
  .meta({ id: 'GenerateInput', example: { messages: [{ role: 'user', content: 'How long may I return an order?' }] } })

/** Failures of a turn, for callers that wait for it. */
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

/** Errors of tool calls that a request makes before its turn. */
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

/** Checks messages before their references are resolved. @throws SYSTEM_MESSAGE_NOT_ALLOWED, VALIDATION_FAILED */
function checkMessages({ messages = [], prompt }: Pick<Body, 'messages' | 'prompt'>): void {
  if (messages.some(message => message.role === 'system')) raise('SYSTEM_MESSAGE_NOT_ALLOWED')
  if (messages.length === 0 && prompt === undefined)
    raiseInvalid({ code: 'REQUIRED', path: 'messages', message: 'messages or prompt is required' })
  checkMessagesSize(messages)
}

/** @throws VALIDATION_FAILED for more than 4 MiB of messages */
export function checkMessagesSize(messages: readonly object[]): void {
  if (Buffer.byteLength(JSON.stringify(messages)) > MAX_MESSAGES_BYTES)
    raiseInvalid({ code: 'TOO_BIG', path: 'messages', message: 'must be at most 4 MiB in total' })
}

/** Refuses a blank newest message of the user. @throws VALIDATION_FAILED */
export function requireNewestText(messages: readonly UnresolvedMessage[]): void {
  const last = messages.at(-1)
  if (last?.role !== 'user') return
  const { content } = last
  const texts = typeof content === 'string' ? [content] : Array.isArray(content) ? content.map(textOfPart) : []
  if (texts.length > 0 && texts.every(text => text?.trim() === ''))
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: `messages[${messages.length - 1}].content`,
      message: 'must not be blank',
    })
}

/** Returns the text of a part; null for another part. */
const textOfPart = (part: { type: string; text?: string }): string | null =>
  part.type === 'text' ? (part.text ?? '') : null

/**
 * Returns the messages of the turn: the messages of the request with the texts of their documents, then the prompt as
 * the last user message. Raises errors of documents and files that the messages refer to.
 */
export async function messagesOf(
  context: Pick<Context<unknown, Pick<Body, 'messages' | 'prompt'>>, 'services' | 'allow' | 'body'>,
  projectId: string,
) {
  const { services, allow, body } = context
  const sent = (body.messages ?? []) as SentMessage[]
  if (body.prompt === undefined) requireNewestText(sent)
  const messages = await resolveDocuments(services.pool, allow, projectId, sent, MAX_MESSAGES_BYTES)
  if (messages !== sent) checkMessagesSize(messages)
  await admitFiles(services.pool, context, projectId, messages)
  return body.prompt === undefined ? messages : [...messages, { role: 'user' as const, content: body.prompt }]
}

/**
 * Returns the settings of a request that override the agent's.
 * @throws TOOL_NOT_FOUND, FORCED_TOOL_CHOICE_CANNOT_STOP
 */
function buildOverrides(
  agent: AgentRow,
  { tool_choice, active_tool_ids, step_rules, stop_conditions, knowledge_config }: Body,
): TurnData['overrides'] {
  const requested = { tool_choice, active_tool_ids, step_rules, stop_conditions }
  const settings = Object.fromEntries(Object.entries(requested).filter(([, value]) => value !== undefined))
  const overrides = { ...settings, ...(knowledge_config ? { knowledge_config } : {}) }
  if (Object.keys(settings).length === 0) return overrides
  const { tool_choice: agentChoice, stop_conditions: agentStops } = agent
  checkToolSettings({ tool_choice: agentChoice, stop_conditions: agentStops, ...settings }, agent.tool_bindings)
  return overrides
}

/** Checks the traces of a request and sets the root of the parent trace. */
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
      message: 'cannot be combined with parent_trace_id or root_trace_id',
    })
  if (root_trace_id && !parent_trace_id)
    raiseInvalid({ code: 'REQUIRED', path: 'parent_trace_id', message: 'is required when root_trace_id is set' })
  const find = async (id: string) => {
    const trace = await findTrace(db, id)
    if (!trace || trace.project_id !== project) raise('RESOURCE_NOT_FOUND', { meta: { id } })
    return trace
  }
  if (trace_id && (await find(trace_id)).content_redacted_at)
    raise('GENERATION_CONTENT_UNAVAILABLE', {
      message: `The content of trace ${trace_id} has been erased`,
      meta: { trace_id },
    })
  if (parent_trace_id) {
    const parent = await find(parent_trace_id)
    if (root_trace_id && root_trace_id !== (parent.root_trace_id ?? parent.id))
      raiseInvalid({ code: 'INVALID_VALUE', path: 'root_trace_id', message: 'must be the root of the parent trace' })
    body.root_trace_id = parent.root_trace_id ?? parent.id
  }
}

type GenerateContext = Context<z.output<typeof WaitQuery>, Body, AgentRow>

/** Checks a request and creates its turn; only then calls its tools. */
async function startTurn(context: GenerateContext, agent: RunnableAgent, mode: ResponseMode, generation_id: string) {
  const { body, services, caller } = context
  const project_id = context.project as string
  if (mode === 'stream' && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
  const overrides = buildOverrides(agent, body)
  const tool_context = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
  if (body.knowledge_config)
    await checkOverlay({ tx: services.pool, allow: context.allow }, agent, project_id, body.knowledge_config)
  await requireContext(services, agent, tool_context)
  await checkTraces(context)
  const { sent, pending } = extractToolOutputs((body.messages ?? []) as MessageWithToolOutputs[])
  // The calls cannot be undone.
  if (pending.length > 0 && agent.cached) throw new AgentChanged()
  let messages = await messagesOf({ ...context, body: { ...body, messages: sent } }, project_id)
  if (pending.length > 0) {
    await precheckTurn(services, { project_id, agent_id: agent.id }, agent)
    messages = await resolveToolOutputs(context, { project_id, agent, generation_id }, messages, pending)
    checkMessagesSize(messages)
  }
  const nested = nestedTurnFields(context.origin)
  // An explicit trace takes precedence over the trace of the initiator.
  if (body.trace_id) Object.assign(nested, { parent_trace_id: null, root_trace_id: null })
  const turn = {
    generation_id,
    project_id,
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
    deadline_at: body.timeout_seconds ? timeIn(body.timeout_seconds * 1000).toISOString() : null,
    authority: principalRecord(caller),
    streamed: mode === 'stream',
    ...waitOf(mode),
  }
  const addWrites = (outbox: Outbox) => context.record(outbox, createdStatus(mode), { made: { generation_id } })
  return createRequestedTurn(context, agent, turn, {
    isLocal: mode !== 'background' && pending.length === 0,
    addWrites,
  })
}

export const generateOperation = itemOperation(agentKind, {
  id: 'createAgentGeneration',
  starts: { kind: 'generation', field: 'generation_id' },
  method: 'post',
  path: '/agents/{agent_id}/generate',
  summary: 'Run an agent',
  tag: 'Generations',
  action: 'agents:CreateAgentGeneration',
  alsoActions: ['documents:GetDocument', 'files:DownloadFile', 'knowledge:SearchKnowledge', 'tools:CallTool'],
  find: (db, id) => findRunnableAgent(db, id),
  cache: cachedAgents,
  query: WaitQuery,
  body: GenerateInput,
  answers: { 202: AcceptedTurn, 200: GenerateResult },
  stream: agentTurnEvents,
  waiting: turnWaiting(false),
  granted: true,
  description:
    'Runs in the background unless `wait` or `stream` is set. An agent shared by another project runs in the project of the credential, which stores its content and is charged for its usage.',
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
    checkMessages(context.body)
    const mode = responseMode(context.body.stream, context.query.wait)
    const { AGENT_MAX_CALL_DEPTH } = context.services.config
    if ((context.body.max_call_depth ?? 0) > AGENT_MAX_CALL_DEPTH)
      raiseInvalid({ code: 'TOO_BIG', path: 'max_call_depth', message: `must be at most ${AGENT_MAX_CALL_DEPTH}` })
    return respondWithTurn(context, mode, generation_id =>
      withCurrentAgent(context, agent => startTurn(context, agent, mode, generation_id)),
    )
  },
  again: (context, made) => replayTurnResponse(context, responseMode(context.body.stream, context.query.wait), made),
})
