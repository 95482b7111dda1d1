import { z } from 'zod'
import { raise } from '../../core/api/errors.ts'
import { anyOf, booleanQuery, listTable, pageOf, textFilter } from '../../core/api/lists.ts'
import { type Context, itemOperation, type Operation, operation, streamed } from '../../core/api/operation.ts'
import { parse } from '../../core/api/validate.ts'
import { sql } from '../../core/db/sql.ts'
import { cancelTurn } from './abort.ts'
import { WaitQuery } from './answer.ts'
import {
  GENERATION_STATUSES,
  Generation,
  GenerationListed,
  GenerationPatch,
  type GenerationRow,
  generationKind,
  listedGeneration,
  presentGeneration,
  presentTrace,
  RetryInput,
  Trace,
  type TraceRow,
} from './model.ts'
import { purgeGeneration, purgeTrace } from './purge.ts'
import { retryGeneration } from './retry.ts'
import { Accepted, GenerateResult, generateOperation } from './run.ts'
import { findTrace, findTree, generationsOf, lockGeneration, mergeMetadata } from './store.ts'
import { lastEventId, streamTurn } from './stream.ts'
import { readSteps } from './trace-file.ts'
import { traceKind } from './trace-kind.ts'

const TREE_LIMIT = 1000

const idFilters = [
  'agent_id',
  'trace_id',
  'session_id',
  'conversation_id',
  'actor_id',
  'initiator_generation_id',
  'chain_id',
  'action_id',
  'source',
] as const

const listGenerations = operation({
  id: 'listGenerations',
  method: 'get',
  path: '/generations',
  summary: 'List generations, newest first',
  tag: 'Generations',
  action: 'generations:ListGenerations',
  lists: generationKind,
  query: z.object({
    status: anyOf(GENERATION_STATUSES),
    agent_version: z
      .string()
      .regex(/^\d{1,9}$/, 'must be a version number')
      .transform(Number)
      .optional(),
    agent_id: textFilter,
    trace_id: textFilter,
    session_id: textFilter,
    conversation_id: textFilter,
    actor_id: textFilter,
    initiator_generation_id: textFilter,
    chain_id: textFilter,
    action_id: textFilter,
    source: textFilter,
  }),
  answers: { 200: pageOf(GenerationListed) },
  async run(context) {
    const { query } = context
    return listTable<GenerationRow>(context, {
      table: 'generations',
      // Each id has an index ending in created_at; without one generations_project serves.
      where: [
        query.status && sql.fragment`t.status = any(${sql.array(query.status, 'text')})`,
        query.agent_version !== undefined && sql.fragment`t.agent_version = ${query.agent_version}`,
        ...idFilters.map(
          name => query[name] !== undefined && sql.fragment`${sql.identifier(['t', name])} = ${query[name] as string}`,
        ),
      ],
      present: listedGeneration,
    })
  },
})

const getGeneration = itemOperation(generationKind, {
  id: 'getGeneration',
  method: 'get',
  path: '/generations/{generation_id}',
  summary: 'Read a generation',
  tag: 'Generations',
  action: 'generations:GetGeneration',
  answers: { 200: Generation },
  run: async ({ resource }) => presentGeneration(resource),
})

const TranscriptStep = z.object({
  index: z.int(),
  text: z.string().nullable(),
  finish_reason: z.string().nullable(),
  model: z.string().nullable(),
  ai_provider_id: z.string().nullable(),
  tool_calls: z.array(z.record(z.string(), z.unknown())),
  tool_results: z.array(z.record(z.string(), z.unknown())),
  usage: z.record(z.string(), z.unknown()).nullable(),
  started_at: z.string(),
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
    knowledge: z.null(),
    steps: z.array(TranscriptStep),
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
  summary: 'Read what a generation was given, did and said, step by step',
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
      knowledge: null,
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

const streamGeneration = itemOperation(generationKind, {
  id: 'streamGeneration',
  method: 'get',
  path: '/generations/{generation_id}/stream',
  summary: 'Attach to the event stream of a turn; Last-Event-ID goes on where a connection broke',
  tag: 'Generations',
  action: 'generations:GetGeneration',
  answers: { 200: null },
  produces: 'text/event-stream',
  run: async context => {
    const after = lastEventId(context.request.headers['last-event-id'])
    return streamed('text/event-stream', streamTurn(context, context.resource, after), { 'Cache-Control': 'no-store' })
  },
})

const updateGeneration = itemOperation(generationKind, {
  id: 'updateGeneration',
  method: 'patch',
  path: '/generations/{generation_id}',
  summary: "Merge keys into a generation's metadata",
  tag: 'Generations',
  action: 'generations:UpdateGeneration',
  body: GenerationPatch,
  answers: { 200: Generation },
  raises: ['GENERATION_CONTENT_UNAVAILABLE'],
  async run({ tx, body, resource }) {
    const row = await lockGeneration(tx, resource.id)
    if (!row) raise('GENERATION_NOT_FOUND', { meta: { id: resource.id } })
    if (row.content_redacted_at || row.content_mode === 'none') raise('GENERATION_CONTENT_UNAVAILABLE')
    // The bag as it will stand is bounded too, or it would grow patch by patch.
    parse(GenerationPatch, { metadata: { ...row.metadata, ...body.metadata } })
    return presentGeneration(await mergeMetadata(tx, resource.id, body.metadata))
  },
})

const cancelGeneration = itemOperation(generationKind, {
  id: 'cancelGeneration',
  method: 'post',
  path: '/generations/{generation_id}/cancel',
  summary: 'End a turn that is not at its end',
  tag: 'Generations',
  action: 'generations:CancelGeneration',
  answers: { 200: Generation },
  async run({ tx, services, resource }) {
    await cancelTurn(tx, services, resource)
    return presentGeneration((await generationKind.find(tx, resource.id)) ?? resource)
  },
})

/** Generations under the names of their agents: a retry needs the right to run the agent. */
const runOfAgent = {
  ...generationKind,
  authorize: (row: GenerationRow) => ({ type: 'agent', id: row.agent_id }),
}

const retryOperation = itemOperation(runOfAgent, {
  id: 'retryGeneration',
  method: 'post',
  path: '/generations/{generation_id}/retry',
  summary: 'Run a failed generation again, as a new one that goes on from its settled steps',
  tag: 'Generations',
  action: 'agents:CreateAgentGeneration',
  alsoActions: ['files:DownloadFile'],
  query: WaitQuery,
  body: RetryInput,
  bodyOptional: true,
  answers: { 202: Accepted, 200: z.union([GenerateResult, z.record(z.string(), z.unknown())]) },
  produces: 'text/event-stream',
  raises: [
    'GENERATION_CONTENT_UNAVAILABLE',
    'GENERATION_ALREADY_IN_PROGRESS',
    'FILE_NOT_FOUND',
    'OUTPUT_SCHEMA_STREAMING_UNSUPPORTED',
    'PROJECT_PAUSED',
    'SESSION_CLOSED',
    'SESSION_EXPIRED',
    'AI_PROVIDER_NOT_FOUND',
    'AI_PROVIDER_MISCONFIGURED',
    'AI_PROVIDER_ERROR',
    'OUTPUT_SCHEMA_VALIDATION_FAILED',
    'GENERATION_FAILED',
    'RESOURCE_NOT_FOUND',
    'FILE_STORAGE_MISCONFIGURED',
  ],
  transaction: false,
  run: retryGeneration,
})

const purgeGenerationContent = itemOperation(generationKind, {
  id: 'purgeGenerationContent',
  method: 'delete',
  path: '/generations/{generation_id}/content',
  summary: 'Erase the content of a generation; its skeleton stays',
  tag: 'Generations',
  action: 'generations:PurgeGenerationContent',
  answers: { 200: Generation },
  raises: ['GENERATION_ALREADY_IN_PROGRESS'],
  run: async ({ tx, caller, resource }) => presentGeneration(await purgeGeneration(tx, resource.id, caller.principal)),
})

const listTraces = operation({
  id: 'listTraces',
  method: 'get',
  path: '/traces',
  summary: 'List traces, newest first',
  tag: 'Traces',
  action: 'traces:ListTraces',
  lists: traceKind,
  query: z.object({ agent_id: textFilter, root_trace_id: textFilter, roots_only: booleanQuery.optional() }),
  answers: { 200: pageOf(Trace) },
  run: async context =>
    listTable<TraceRow>(context, {
      table: 'traces',
      // Indexes traces_agent, traces_root, traces_project.
      where: [
        context.query.agent_id !== undefined && sql.fragment`t.agent_id = ${context.query.agent_id}`,
        context.query.root_trace_id !== undefined && sql.fragment`t.root_trace_id = ${context.query.root_trace_id}`,
        context.query.roots_only === true && sql.fragment`t.parent_trace_id is null`,
      ],
      present: presentTrace,
    }),
})

const getTrace = itemOperation(traceKind, {
  id: 'getTrace',
  method: 'get',
  path: '/traces/{trace_id}',
  summary: 'Read a trace',
  tag: 'Traces',
  action: 'traces:GetTrace',
  answers: { 200: Trace },
  run: async ({ resource }) => presentTrace(resource),
})

type Node = Record<string, unknown> & { children: Node[] }

const TraceNode = z
  .looseObject({ ...Trace.shape, children: z.array(z.record(z.string(), z.unknown())) })
  .meta({ id: 'TraceNode' })

/** The tree of a trace: whichever node is asked for, the whole of it from the root. */
async function tree(context: Context<{ include?: string }, undefined, TraceRow>): Promise<Node> {
  const { db, resource, query } = context
  const rows = await findTree(db, resource.root_trace_id ?? resource.id, TREE_LIMIT)
  const shown = rows.slice(0, TREE_LIMIT)
  const nodes = new Map<string, Node>(shown.map(row => [row.id, { ...presentTrace(row), children: [] }]))
  if (query.include === 'generations') {
    context.allow('generations:ListGenerations', { kind: generationKind, project_id: resource.project_id })
    const generations = Map.groupBy(await generationsOf(db, [...nodes.keys()]), row => row.trace_id)
    for (const [id, node] of nodes) node.generations = (generations.get(id) ?? []).map(listedGeneration)
  }
  for (const row of shown)
    if (row.parent_trace_id) nodes.get(row.parent_trace_id)?.children.push(nodes.get(row.id) as Node)
  const root = nodes.get(shown[0]?.id) as Node
  if (rows.length > TREE_LIMIT) root.truncated = true
  return root
}

const getTraceTree = itemOperation(traceKind, {
  id: 'getTraceTree',
  method: 'get',
  path: '/traces/{trace_id}/tree',
  summary: 'Read the whole tree a trace belongs to',
  tag: 'Traces',
  action: 'traces:GetTraceTree',
  alsoActions: ['generations:ListGenerations'],
  query: z.object({ include: z.enum(['generations']).optional() }),
  answers: { 200: TraceNode },
  run: context => tree(context),
})

const purgeTraceContent = itemOperation(traceKind, {
  id: 'purgeTraceContent',
  method: 'delete',
  path: '/traces/{trace_id}/content',
  summary: 'Erase the content of a trace, its descendants and their generations; skeletons stay',
  tag: 'Traces',
  action: 'traces:PurgeTraceContent',
  answers: { 200: Trace },
  raises: ['GENERATION_ALREADY_IN_PROGRESS'],
  run: async ({ tx, caller, resource }) => presentTrace(await purgeTrace(tx, resource.id, caller.principal)),
})

export const generationOperations: Operation[] = [
  generateOperation,
  listGenerations,
  getGeneration,
  getTranscript,
  streamGeneration,
  updateGeneration,
  cancelGeneration,
  retryOperation,
  purgeGenerationContent,
]

export const traceOperations: Operation[] = [listTraces, getTrace, getTraceTree, purgeTraceContent]
