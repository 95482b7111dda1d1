import { z } from 'zod'
import type { Counts } from '#control/retention/erasure.ts'
import { namesOf } from '#core/api/entry-fields.ts'
import { columnFilter, equalsFilter } from '#core/api/filters.ts'
import { pickFields } from '#core/api/kind.ts'
import { booleanQuery, integerQuery, MAX_INTEGER } from '#core/api/lists.ts'
import { type Context, itemOperation, type Operation } from '#core/api/operation.ts'
import { parse } from '#core/api/validate.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { reachOf } from '#core/iam/authority.ts'
import { resource } from '#core/resources/resource.ts'
import type { Tx } from '#core/writes/writer.ts'
import { MemoryEntry, memoryEntryKind } from '#memory/entries/model.ts'
import { canReachMemory } from '#memory/reach.ts'
import { generationAccess } from './end-user.ts'
import { dryRun, purgeGeneration, purgeTraces } from './erase/purge.ts'
import {
  Annotations,
  GENERATION_STATUSES,
  Generation,
  GenerationListed,
  GenerationPatch,
  type GenerationRow,
  generationKind,
  Knowledge,
  RetryInput,
  Trace,
  type TraceRow,
} from './model.ts'
import { getGenerationRecovery } from './recovery/get-recovery.ts'
import { cancelTurn } from './request/cancel-turn.ts'
import { spendRefusals } from './request/create.ts'
import { generateOperation } from './request/generate-request.ts'
import { replayTurnResponse, responseMode, WaitQuery } from './request/respond.ts'
import { retryGeneration } from './request/retry.ts'
import { toolOutputsOperation } from './request/tool-outputs.ts'
import { AcceptedTurn, GenerateResult } from './request/turn-result.ts'
import { getGenerationStatistics } from './statistics.ts'
import { listGenerationsOfTraces, listMemoryEntriesOfTurn, mergeMetadata } from './store.ts'
import { anyTurnEvents, turnWaiting } from './streams/events.ts'
import { streamTurn } from './streams/stream.ts'
import {
  consumeStreamTicket,
  STREAM_PARAMETERS,
  StreamQuery,
  streamPosition,
  ticketOperation,
} from './streams/tickets.ts'
import { readSteps } from './traces/file.ts'
import { traceKind } from './traces/kind.ts'
import { getStepRequest } from './traces/step-request.ts'
import { findTrace, findTree } from './traces/store.ts'
import { hasTurn, hasTurnText, traceTurnFilters, turnFilters } from './turn-filters.ts'

const TREE_LIMIT = 1000

// Each id has an index ending in created_at; without one generations_project serves.
const generationFilters = {
  ...turnFilters,
  agent_version: columnFilter(
    integerQuery(0, MAX_INTEGER).optional().describe('Version of the agent that produced the generation'),
    version => sql.fragment`t.agent_version = ${version}`,
  ),
  agent_id: equalsFilter('agent_id'),
  trace_id: equalsFilter('trace_id'),
  session_id: equalsFilter('session_id'),
  conversation_id: equalsFilter('conversation_id'),
  actor_id: equalsFilter('actor_id'),
  initiator_generation_id: equalsFilter('initiator_generation_id'),
  chain_id: equalsFilter('chain_id'),
  orchestration_run_id: equalsFilter('orchestration_run_id'),
  node_id: equalsFilter('node_id'),
  trigger_id: equalsFilter('trigger_id'),
  action_id: equalsFilter('action_id'),
  source: equalsFilter('source'),
}

/** A generation with the memory entries that its turn and memory rules wrote. */
const GenerationRead = Generation.extend({
  memory_entries: z.array(MemoryEntry).describe('Memory entries written by the turn, oldest first, at most 100'),
}).meta({ id: 'GenerationWithMemory' })

const generations = resource(generationKind, { path: '/generations', tag: 'Generations' })
const traces = resource(traceKind, { path: '/traces', tag: 'Traces' })

const TranscriptStep = z.object({
  index: z.int(),
  text: z.string().nullable(),
  finish_reason: z.string().nullable(),
  model: z.string().nullable(),
  served_model: z
    .string()
    .nullable()
    .optional()
    .describe('Model that the vendor names in its answer. Null if it names none.'),
  service_tier: z
    .string()
    .nullable()
    .optional()
    .describe('Service tier that the vendor names in its answer. Null if it names none.'),
  ai_provider_id: z.string().nullable(),
  tool_calls: z.array(z.record(z.string(), z.unknown())),
  tool_results: z
    .array(z.record(z.string(), z.unknown()))
    .describe('Results of the tool calls, with the times of those that the platform made'),
  usage: z.record(z.string(), z.unknown()).nullable(),
  notes: z
    .array(z.record(z.string(), z.unknown()))
    .nullable()
    .optional()
    .describe('Changes of the request for its vendor, and its refusal to answer. Null if there were none.'),
  vendor_calls: z
    .array(z.record(z.string(), z.unknown()))
    .nullable()
    .optional()
    .describe('Calls that the vendor made itself, and their results. Null if there were none.'),
  annotations: Annotations.nullable().optional(),
  started_at: z.string(),
  answered_at: z.string().nullable().optional().describe('When the model had answered. Null if not recorded.'),
  completed_at: z.string(),
})

const Transcript = z
  .object({
    generation_id: z.string(),
    trace_id: z.string(),
    project_id: z.string(),
    agent_id: z.string(),
    agent_version: z.int().nullable(),
    status: z.enum(GENERATION_STATUSES),
    stop_reason: z.string().nullable(),
    started_at: z.string().nullable(),
    completed_at: z.string().nullable(),
    step_count: z.int(),
    input: z.array(z.record(z.string(), z.unknown())).nullable(),
    knowledge: Knowledge.nullable().describe('Search results given to the turn. Null without a search.'),
    steps: z.array(TranscriptStep).describe('Steps in order'),
    output: z
      .object({ content: z.string().nullable(), finish_reason: z.string().nullable(), object: z.unknown() })
      .nullable(),
    error: z.record(z.string(), z.unknown()).nullable(),
    content_redacted_at: z.string().nullable(),
    content_redacted_by_principal_type: z.string().nullable(),
    content_redacted_by_principal_id: z.string().nullable(),
  })
  .meta({ id: 'Transcript' })

const getTranscript = itemOperation(generationKind, {
  id: 'getGenerationTranscript',
  method: 'get',
  path: '/generations/{generation_id}/transcript',
  summary: 'Get a generation transcript',
  description:
    'Returns the texts and the tool calls with arguments and results, step by step. Erased content is omitted.',
  tag: 'Generations',
  action: 'generations:GetGeneration',
  alsoActions: ['traces:GetTrace'],
  answers: { 200: Transcript },
  raises: ['FILE_STORAGE_MISCONFIGURED'],
  async run(context) {
    const { db, resource: row, services } = context
    const trace = await findTrace(db, row.trace_id)
    if (trace) context.allow('traces:GetTrace', { kind: traceKind, row: trace })
    const hidden = row.content_redacted_at !== null
    const steps = hidden ? [] : await readSteps(services, row)
    const last = steps.findLast(step => step.text)
    return {
      generation_id: row.id,
      trace_id: row.trace_id,
      project_id: row.project_id,
      agent_id: row.agent_id,
      agent_version: row.agent_version,
      status: row.status,
      stop_reason: row.stop_reason,
      started_at: row.started_at,
      completed_at: row.completed_at,
      step_count: row.step_count,
      input: row.input,
      knowledge: row.knowledge,
      steps: steps.map(({ n, ...step }) => ({ index: n - 1, ...step })),
      output:
        steps.length === 0
          ? null
          : {
              content: last?.text ?? null,
              finish_reason: steps.at(-1)?.finish_reason ?? null,
              object: row.output?.object ?? null,
            },
      error: row.error,
      content_redacted_at: row.content_redacted_at,
      content_redacted_by_principal_type: row.content_redacted_by_principal_type,
      content_redacted_by_principal_id: row.content_redacted_by_principal_id,
    }
  },
})

const updateGeneration = itemOperation(generationKind, {
  id: 'updateGeneration',
  method: 'patch',
  path: '/generations/{generation_id}',
  summary: 'Update generation metadata',
  description: 'Merges the keys into the metadata; null removes a key. Other fields of a generation never change.',
  tag: 'Generations',
  action: 'generations:UpdateGeneration',
  body: GenerationPatch,
  answers: { 200: Generation },
  raises: ['GENERATION_CONTENT_UNAVAILABLE'],
  async run({ tx, body: { metadata }, resource }) {
    const row = await generationKind.lock(tx, resource.id)
    if (metadata === undefined) return generationKind.present(row)
    if (row.content_redacted_at || row.content_mode === 'none')
      raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: row.id } })
    // The merged metadata is limited too; otherwise it would grow patch by patch.
    parse(GenerationPatch, { metadata: { ...row.metadata, ...metadata } })
    return generationKind.present(await mergeMetadata(tx, resource.id, metadata))
  },
})

/** Generations authorized as their agent: a retry requires permission to run the agent. */
const generationAsAgent = {
  ...generationKind,
  authorize: (row: GenerationRow) => ({ type: 'agent', id: row.agent_id }),
}

const retryOperation = itemOperation(generationAsAgent, {
  id: 'retryGeneration',
  starts: { kind: 'generation', field: 'generation_id' },
  method: 'post',
  path: '/generations/{generation_id}/retry',
  summary: 'Retry a failed generation',
  description:
    'Creates a new generation that continues after the settled steps of the failed one. Settled steps are neither repeated nor billed again. The failed generation is unchanged.',
  tag: 'Generations',
  action: 'agents:CreateAgentGeneration',
  alsoActions: ['files:DownloadFile'],
  query: WaitQuery,
  body: RetryInput,
  bodyOptional: true,
  answers: { 202: AcceptedTurn, 200: z.union([GenerateResult, z.record(z.string(), z.unknown())]) },
  stream: anyTurnEvents,
  waiting: turnWaiting(false),
  raises: [
    'GENERATION_CONTENT_UNAVAILABLE',
    'GENERATION_ALREADY_IN_PROGRESS',
    'FILE_NOT_FOUND',
    'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
    'PROJECT_PAUSED',
    ...spendRefusals,
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
    'AI_PROVIDER_NOT_FOUND',
    'MODEL_ROUTE_NOT_FOUND',
    'AI_PROVIDER_MISCONFIGURED',
    'AI_PROVIDER_ERROR',
    'OUTPUT_SCHEMA_VALIDATION_FAILED',
    'GENERATION_FAILED',
    'RESOURCE_NOT_FOUND',
    'FILE_STORAGE_MISCONFIGURED',
    'AGENT_NOT_FOUND',
    'SHARE_CAP_EXCEEDED',
  ],
  transaction: false,
  run: retryGeneration,
  again: (context, made) => replayTurnResponse(context, responseMode(context.body?.stream, context.query.wait), made),
})

type TraceTreeNode = Record<string, unknown> & { children: TraceTreeNode[] }

const TraceNode = z
  .looseObject({
    ...Trace.shape,
    children: z.array(z.record(z.string(), z.unknown())).describe('Child traces'),
  })
  .meta({ id: 'TraceNode' })

const TreeQuery = z.object({
  include: z.enum(['generations']).optional().describe('Data of each node in addition to its trace'),
})

/** Returns the whole tree of a trace from its root. */
async function loadTree(context: Context<z.output<typeof TreeQuery>, undefined, TraceRow>): Promise<TraceTreeNode> {
  const { db, resource, query } = context
  const rows = await findTree(db, resource.root_trace_id ?? resource.id, TREE_LIMIT)
  const traces = rows.slice(0, TREE_LIMIT)
  const nodes = new Map<string, TraceTreeNode>(traces.map(row => [row.id, { ...traceKind.present(row), children: [] }]))
  if (query.include === 'generations') {
    context.allow('generations:ListGenerations', { kind: generationKind, project_id: resource.project_id })
    const fields = Object.keys(GenerationListed.shape)
    const byTrace = Map.groupBy(await listGenerationsOfTraces(db, [...nodes.keys()]), row => row.trace_id)
    for (const [id, node] of nodes) node.generations = (byTrace.get(id) ?? []).map(row => pickFields(row, fields))
  }
  for (const row of traces)
    if (row.parent_trace_id) nodes.get(row.parent_trace_id)?.children.push(nodes.get(row.id) as TraceTreeNode)
  const root = nodes.get(traces[0]?.id) as TraceTreeNode
  if (rows.length > TREE_LIMIT) root.truncated = true
  return root
}

const PurgeQuery = z.object({
  dry_run: booleanQuery.default(false).describe('Whether to count the affected records without erasing them'),
})

const PurgeCounts = z
  .object({
    dry_run: z.literal(true),
    counts: z.record(z.string(), z.int()).describe('Number of records that would lose content, by kind'),
  })
  .meta({ id: 'PurgeCounts' })

/** Purges content and adds the counts to the audit entry. Returns the counts for a dry run. */
async function purgeOrDryRun(
  { tx, query, audit }: Context<z.output<typeof PurgeQuery>, undefined, GenerationRow | TraceRow>,
  purge: (tx: Tx) => Promise<Counts>,
): Promise<z.output<typeof PurgeCounts> | null> {
  const counts = query.dry_run ? await dryRun(tx, purge) : await purge(tx)
  Object.assign(audit.detail, { counts, ...(query.dry_run && { dry_run: true }) })
  return query.dry_run ? { dry_run: true, counts } : null
}

export const generationOperations: Operation[] = [
  generateOperation,
  toolOutputsOperation,
  generations.list({
    summary: 'List generations',
    description: 'Newest first, without outputs.',
    alsoActions: ['generations:GetGeneration', 'traces:GetTrace'],
    entry: GenerationListed,
    also: [namesOf({ actor: { columns: ['name', 'external_id'] }, agent: { columns: ['name'] } })],
    filters: generationFilters,
    where: async context => [await hasTurnText(context, generationFilters)],
  }),
  getGenerationStatistics,
  generations.get({
    endUser: generationAccess,
    answers: { 200: GenerationRead },
    present: async ({ caller, resource, db }) => ({
      ...generationKind.present(resource),
      memory_entries: (await listMemoryEntriesOfTurn(db, resource.id))
        .filter(entry => canReachMemory(reachOf(caller), entry))
        .map(memoryEntryKind.present),
    }),
  }),
  getTranscript,
  getStepRequest,
  getGenerationRecovery,
  generations.action('stream', {
    method: 'get',
    summary: 'Stream generation events',
    endUser: { ...generationAccess, query: STREAM_PARAMETERS },
    description:
      'Resumes after the event given in the Last-Event-ID header. A settled turn returns its last event. Every reader gets the same events, regardless of who started the turn.',
    action: 'generations:GetGeneration',
    query: StreamQuery,
    answers: { 200: null },
    stream: anyTurnEvents,
    ticket: consumeStreamTicket,
    run: async context => streamTurn(context, context.resource, streamPosition(context) ?? 0),
  }),
  ticketOperation(generationKind, {
    id: 'createGenerationStreamTicket',
    command: ['generations', 'create-stream-ticket'],
    path: '/generations/{generation_id}/stream-tickets',
    summary: 'Create a generation stream ticket',
    tag: 'Generations',
    action: 'generations:GetGeneration',
    endUser: generationAccess,
  }),
  updateGeneration,
  generations.action('cancel', {
    summary: 'Cancel a generation',
    description:
      'Aborts work in flight. The generation fails with the stop reason `cancelled`; settled steps are retained.',
    answers: { 200: Generation },
    async run({ tx, services, resource }) {
      await cancelTurn(tx, services, resource)
      return generationKind.present((await generationKind.find(tx, resource.id)) ?? resource)
    },
  }),
  retryOperation,
  generations.action('content', {
    id: 'purgeGenerationContent',
    command: ['generations', 'purge-content'],
    method: 'delete',
    summary: 'Erase the content of a generation',
    description:
      'Erases prompts, outputs and tool results permanently; usage and timestamps are retained. With `dry_run`, returns only the counts.',
    action: 'generations:PurgeGenerationContent',
    query: PurgeQuery,
    answers: { 200: z.union([Generation, PurgeCounts]) },
    raises: ['GENERATION_ALREADY_IN_PROGRESS', 'CONTENT_ON_HOLD'],
    async run(context) {
      const { tx, services, caller, resource } = context
      const counts = await purgeOrDryRun(context, tx => purgeGeneration(tx, services, resource.id, caller.principal))
      return counts ?? generationKind.present(await generationKind.lock(tx, resource.id))
    },
  }),
]

export const traceOperations: Operation[] = [
  // By traces_agent, traces_root and traces_project.
  traces.list({
    summary: 'List traces',
    description:
      'Newest first. Filters by turns match the traces with a turn that started in the time range and satisfies all of them; they require `generations:ListGenerations`.',
    alsoActions: ['generations:ListGenerations', 'generations:GetGeneration'],
    filters: {
      ...traceTurnFilters,
      agent_id: equalsFilter('agent_id'),
      root_trace_id: equalsFilter('root_trace_id'),
      roots_only: columnFilter(
        booleanQuery.optional().describe('Whether to return only traces without a parent'),
        only => (only ? sql.fragment`t.parent_trace_id is null` : null),
      ),
    },
    where: async context => [await hasTurn(context)],
  }),
  traces.get(),
  traces.action('tree', {
    id: 'getTraceTree',
    method: 'get',
    summary: 'Get a trace tree',
    description: 'Returns the tree from its root, with the generations of each trace if requested.',
    action: 'traces:GetTraceTree',
    alsoActions: ['generations:ListGenerations'],
    query: TreeQuery,
    answers: { 200: TraceNode },
    run: loadTree,
  }),
  traces.action('content', {
    id: 'purgeTraceContent',
    command: ['traces', 'purge-content'],
    method: 'delete',
    summary: 'Erase the content of a trace',
    description:
      'Erases the content of the trace, its descendants and their generations permanently; the records, usage and timestamps are retained. With `dry_run`, returns only the counts.',
    action: 'traces:PurgeTraceContent',
    query: PurgeQuery,
    answers: { 200: z.union([Trace, PurgeCounts]) },
    raises: ['GENERATION_ALREADY_IN_PROGRESS', 'CONTENT_ON_HOLD'],
    async run(context) {
      const { tx, services, caller, resource } = context
      const purge = async (tx: Tx) =>
        (await purgeTraces(tx, services, resource.project_id, [resource.id], caller.principal)).counts
      return (await purgeOrDryRun(context, purge)) ?? traceKind.present((await findTrace(tx, resource.id)) as TraceRow)
    },
  }),
]
