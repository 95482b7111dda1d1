import { z } from 'zod'
import { UsageTotals } from '../../control/usage/totals.ts'
import { RecordedFailure } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { record } from '../../core/api/record.ts'
import { sql } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'
import type { SessionKnowledge } from '../agents/knowledge.ts'
import type { StepRule, StopCondition, ToolChoice } from '../agents/model.ts'
import { RoutingRecord } from '../model-routes/model.ts'
import type { ModelMessage } from '../providers/model-messages.ts'

export const GENERATION_STATUSES = ['pending', 'in_progress', 'requires_action', 'completed', 'failed'] as const

const time = z.iso.datetime()

const redaction = {
  content_redacted_at: time.nullable(),
  content_redacted_by_principal_type: z.string().nullable(),
  content_redacted_by_principal_id: z.string().nullable(),
}

const ToolSurface = z
  .object({
    tools: z.int().describe('How many tools'),
    bytes: z.int().describe('Of names, descriptions and schemas, as JSON'),
    estimated_tokens: z.int().describe('Tokens that they take, estimated'),
  })
  .describe('What the model could call, before single steps narrowed it; null without tools')
export type ToolSurface = z.output<typeof ToolSurface>

/** What a memory rule made of a turn. */
const Extraction = z.object({
  candidates: z.int().describe('Facts found'),
  created: z.int().describe('Facts written'),
  superseded: z.int().describe('Memories that were replaced'),
  skipped: z.int().describe('Facts that were known already'),
  failed: z.int().describe('Facts that could not be written'),
  error: RecordedFailure.optional(),
})

/** A generation as lists show it; the single read adds output and required_action. */
export const GenerationListed = record('GenerationListed', {
  agent_id: z.string(),
  trace_id: z.string(),
  agent_version: z.int().nullable(),
  initiator_generation_id: z.string().nullable(),
  chain_id: z.string().nullable(),
  conversation_id: z.string().nullable(),
  session_id: z.string().nullable(),
  actor_id: z.string().nullable(),
  started_by_principal_type: z.string().nullable(),
  started_by_principal_id: z.string().nullable(),
  status: z.enum(GENERATION_STATUSES),
  stop_reason: z.string().nullable(),
  error: RecordedFailure.nullable(),
  usage: UsageTotals.nullable(),
  routing: RoutingRecord.nullable().describe('How the calls went by a model route; null without one'),
  tool_surface: ToolSurface.nullable(),
  extraction: z
    .record(z.string(), Extraction)
    .nullable()
    .describe('What memory rules made of the turn, by the ids of the rules; null before any has'),
  step_count: z.int(),
  action_id: z.string().nullable(),
  trigger_id: z.string().nullable().describe('Trigger that it goes back to'),
  orchestration_run_id: z.string().nullable().describe('Run whose node asked for it, or for a turn that it carries on'),
  node_id: z.string().nullable(),
  node_attempt: z.int().nullable(),
  source: z.string().nullable(),
  publisher_project_id: z
    .string()
    .nullable()
    .describe('Project that shares the agent; null for an agent of the project'),
  metadata: z.record(z.string(), z.unknown()).nullable(),
  ...redaction,
  started_at: time.nullable(),
  completed_at: time.nullable(),
  last_activity_at: time.nullable(),
})

export const Output = z.object({
  model: z.string(),
  content: z.string(),
  finish_reason: z.string(),
  object: z.unknown(),
})

export const Generation = GenerationListed.extend({
  output: Output.nullable(),
  required_action: z.record(z.string(), z.unknown()).nullable(),
}).meta({ id: 'Generation' })

export const RetryInput = z
  .strictObject({ stream: z.boolean().optional().describe('Answer with the event stream of the turn') })
  .meta({ id: 'RetryInput', example: { stream: false } })

export const GenerationPatch = z
  .strictObject({ metadata: MetadataBag.optional().describe('Keys to merge into the metadata') })
  .meta({ id: 'GenerationPatch' })

export const Trace = record('Trace', {
  agent_id: z.string(),
  file_id: z.string().nullable().describe('The file of its settled steps'),
  step_count: z.int(),
  parent_trace_id: z.string().nullable(),
  root_trace_id: z.string().nullable(),
  error: RecordedFailure.nullable(),
  notes: z.array(z.record(z.string(), z.unknown())),
  ...redaction,
})
export type TraceRow = z.output<typeof Trace>

/** What a turn is asked to end with. */
export const AbortRequest = RecordedFailure.extend({ stop_reason: z.enum(['error', 'cancelled']) })

/** One settled step of a turn, as the journal keeps it. */
export const JournalStepRow = z.object({
  n: z.int(),
  text: z.string().nullable(),
  finish_reason: z.string().nullable(),
  model: z.string().nullable(),
  ai_provider_id: z.string().nullable(),
  tool_calls: z.array(z.object({ id: z.string(), tool_name: z.string(), args: z.unknown() })),
  tool_results: z.array(
    z.object({
      tool_call_id: z.string(),
      tool_name: z.string(),
      result: z.unknown(),
      error: RecordedFailure.nullable(),
    }),
  ),
  usage: UsageTotals.nullable(),
  started_at: z.string(),
  completed_at: z.string(),
})
export type JournalStepRow = z.output<typeof JournalStepRow>

/** A step that the model has answered and whose calls are not all settled. */
export type OpenStep = Omit<JournalStepRow, 'tool_calls' | 'tool_results' | 'completed_at'> & {
  /** `args_error` says why `args` could not be read; they are the raw text then. */
  tool_calls: (JournalStepRow['tool_calls'][number] & { args_error?: string })[]
}

/** What became of a call. */
export type ToolCallOutcome = Pick<JournalStepRow['tool_results'][number], 'result' | 'error'>

/** What a turn was given of what its agent knows: what was found, and why it could not be searched. */
export const Knowledge = z.object({
  results: z.array(
    z.object({
      type: z.enum(['document', 'memory']),
      id: z.string().describe('A memory, or a chunk of a document'),
      score: z.number().nullable(),
    }),
  ),
  error: RecordedFailure.nullable(),
})
export type Knowledge = z.output<typeof Knowledge>

/** Settings of steps in place of the agent's. */
export type StepSettings = { tool_choice?: ToolChoice; active_tool_ids?: string[] }

/** What a turn works on until its end; sealed at rest. */
export type TurnData = {
  /** Null until the turn's source prepared them. */
  messages: ModelMessage[] | null
  /** What follows messages that are prepared later: steps of the turn that this one repeats. */
  settled: ModelMessage[]
  system_extra: string[]
  model: string | null
  tool_context: Record<string, string> | null
  guardrail_context: Record<string, unknown> | null
  /** What the request set, in place of the agent's settings. */
  overrides: StepSettings & {
    step_rules?: StepRule[]
    stop_conditions?: StopCondition[]
    output_schema?: object
    knowledge_config?: SessionKnowledge
  }
  /** What came with the tool outputs that the turn was last resumed by. */
  resumed: { next?: StepSettings & { step: number }; step_rules?: StepRule[]; defaults?: StepSettings }
  /** Conversations that wait for the turn. */
  occupied: readonly string[]
  /** Calls that may still nest below this one; at 0 the turn answers without a model call. */
  depth: number
  /** What the source remembers of its preparation (the last message seen, the speaker). */
  notes: Record<string, unknown>
  /** What the turn was given of what its agent knows, and the message that says so; null until it was searched. */
  knowledge: (Knowledge & { block: string | null }) | null
}

export const generationKind = kind({
  name: 'generation',
  prefix: 'gen',
  table: 'generations',
  countKept: true,
  notFound: 'GENERATION_NOT_FOUND',
  missing: 'GENERATION_NOT_FOUND',
  references: [{ kind: 'agent', column: 'agent_id', on_delete: 'force', grantable: true }],
  record: Generation,
  hidden: {
    input: z.array(z.custom<ModelMessage>()).nullable(),
    /** Whom the turn runs as. */
    authority: z.custom<PrincipalRecord>(),
    /** What is asked again when the turn starts. */
    permission: z.object({ action: z.string(), kind: z.string(), id: z.string() }).nullable(),
    /** The version that a turn outside a conversation was given when it was made; `agent_version` is the one it started with. */
    assigned_version: z.int().nullable(),
    /** Fence: every write of an attempt carries its number. */
    attempt: z.int(),
    /** Attempts lost since the last settled step. */
    lost_attempts: z.int(),
    handed_back: z.boolean(),
    abort: AbortRequest.nullable(),
    streamed: z.boolean(),
    shape: z.enum(['agent', 'conversation']),
    content_mode: z.enum(['full', 'none']),
    deadline_at: time.nullable(),
    /** Writes of the journal so far: with the attempt it says whether a claim has seen the last one. */
    journalled: z.int(),
    knowledge: Knowledge.nullable(),
  },
  events: ['started', 'requires_action', 'completed', 'failed', 'content_purged', 'chain_limit'],
  eventAliases: {
    requires_action: ['agents.generation.requires_action'],
    completed: ['agents.generation.completed'],
    failed: ['agents.generation.failed'],
    chain_limit: ['chains.budget_exhausted'],
  },
  eventNotes:
    'failed carries error, requires_action carries required_action; chain_limit, of the first turn of a chain, adds chain_id, root_generation_id, chain_size, limit, limit_source',
})

export type GenerationRow = z.output<typeof generationKind.row>

const codeAlone = ({ code }: RecordedFailure): RecordedFailure => ({ code, message: code })

/**
 * A settled generation as its content mode lets it be stored: with `none` a skeleton, stamped as never kept, which has no more of
 * an error than its code.
 */
export function storedForm(row: GenerationRow, now: string): GenerationRow {
  if (row.content_mode === 'full') return row
  return {
    ...row,
    error: row.error && codeAlone(row.error),
    output: null,
    input: null,
    metadata: null,
    content_redacted_at: now,
    content_redacted_by_principal_type: 'system',
    content_redacted_by_principal_id: 'zero_retention',
  }
}

/** The working state of turns that are not at their end outlives a change of the encryption key. */
const project = sql.fragment`(select g.project_id from generations g where g.id = generation_id)`
export const sealedTurnData = [
  ...['generation_work', 'generation_work_unlogged'].map(table =>
    sealedColumn({ table, column: 'sealed', kind: 'generation_work', id: sql.fragment`generation_id`, project }),
  ),
  sealedColumn({
    table: 'generation_journal_unlogged',
    column: 'body',
    kind: 'generation_journal',
    id: sql.fragment`generation_id || ':' || n || ':' || position`,
    project,
  }),
]
