import { z } from 'zod'
import { UsageTotals } from '#control/usage/totals.ts'
import { kind } from '#core/api/kind.ts'
import { MetadataBag } from '#core/api/metadata.ts'
import { record } from '#core/api/record.ts'
import { RecordedFailure } from '#core/base/errors.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { sql } from '#core/db/sql.ts'
import type { PrincipalRecord } from '#core/iam/caller.ts'
import type { SessionKnowledge } from '../agents/knowledge.ts'
import type { StepRule, StopCondition, ToolChoice } from '../agents/model.ts'
import { RoutingRecord } from '../model-routes/model.ts'
import type {
  Annotation,
  ModelMessage,
  ModelRequest,
  VendorNote,
  VendorPart,
  VendorSettings,
} from '../providers/model-messages.ts'

export const GENERATION_STATUSES = ['pending', 'in_progress', 'requires_action', 'completed', 'failed'] as const

const time = z.iso.datetime()

const redaction = {
  content_redacted_at: time.nullable(),
  content_redacted_by_principal_type: z.string().nullable(),
  content_redacted_by_principal_id: z.string().nullable(),
}

const ToolSurface = z
  .object({
    tools: z.int().describe('Number of tools'),
    bytes: z.int().describe('Size of names, descriptions and schemas as JSON, in bytes'),
    estimated_tokens: z.int().describe('Estimated number of tokens'),
  })
  .describe('Tools available to the model, before restrictions of single steps. Null without tools.')
export type ToolSurface = z.output<typeof ToolSurface>

/** Result of a memory rule for a turn. */
const Extraction = z.object({
  candidates: z.int().describe('Number of facts found'),
  created: z.int().describe('Number of facts written'),
  superseded: z.int().describe('Number of memories replaced'),
  skipped: z.int().describe('Number of facts already stored'),
  failed: z.int().describe('Number of facts that could not be written'),
  error: RecordedFailure.optional(),
})

/** A generation in lists, without output and required_action. */
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
  routing: RoutingRecord.nullable().describe('Attempts at the targets of the model route. Null without a route.'),
  tool_surface: ToolSurface.nullable(),
  extraction: z
    .record(z.string(), Extraction)
    .nullable()
    .describe('Results of memory rules, by rule ID. Null before the first result.'),
  step_count: z.int(),
  action_id: z.string().nullable(),
  trigger_id: z.string().nullable().describe('ID of the trigger that led to the turn'),
  orchestration_run_id: z
    .string()
    .nullable()
    .describe('ID of the run whose node started the turn or the turn that it continues'),
  node_id: z.string().nullable(),
  node_attempt: z.int().nullable(),
  source: z
    .string()
    .nullable()
    .describe('Workload of the turn, such as `eval`, also of turns that it starts. Null for ordinary traffic.'),
  publisher_project_id: z
    .string()
    .nullable()
    .describe("ID of the project that shares the agent. Null for the project's own agents."),
  metadata: z.record(z.string(), z.unknown()).nullable(),
  ...redaction,
  started_at: time.nullable(),
  completed_at: time.nullable(),
  last_activity_at: time.nullable(),
})

/** Pages that a text cites. */
export const Annotations = z
  .array(
    z.object({
      type: z.literal('url_citation'),
      url: z.string(),
      title: z.string().nullable(),
      cited_text: z.string().nullable().describe('Text of the page, if the vendor gives it'),
      start_index: z.int().describe('Position of the citing text in the content'),
      end_index: z.int().describe('Position of its end'),
    }),
  )
  .describe('Web pages that the content cites')

export const Output = z.object({
  model: z.string(),
  content: z.string(),
  finish_reason: z.string(),
  object: z.unknown(),
  annotations: Annotations.optional(),
})

export const Generation = GenerationListed.extend({
  output: Output.nullable(),
  required_action: z.record(z.string(), z.unknown()).nullable(),
}).meta({ id: 'Generation' })

export const RetryInput = z
  .strictObject({ stream: z.boolean().optional().describe('Whether to respond with the event stream of the turn') })
  .meta({ id: 'RetryInput', example: { stream: false } })

export const GenerationPatch = z
  .strictObject({ metadata: MetadataBag.optional().describe('Keys to merge into the metadata; null removes a key') })
  .meta({ id: 'GenerationPatch' })

export const Trace = record('Trace', {
  agent_id: z.string(),
  file_id: z.string().nullable().describe('ID of the file with the settled steps'),
  step_count: z.int(),
  parent_trace_id: z.string().nullable(),
  root_trace_id: z.string().nullable(),
  error: RecordedFailure.nullable(),
  notes: z.array(z.record(z.string(), z.unknown())),
  ...redaction,
})
export type TraceRow = z.output<typeof Trace>

/** Failure and stop reason of a requested abort. */
export const AbortRequest = RecordedFailure.extend({ stop_reason: z.enum(['error', 'cancelled']) })

/** A settled step in the journal. */
export const JournalStepRow = z.object({
  n: z.int(),
  text: z.string().nullable(),
  finish_reason: z.string().nullable(),
  model: z.string().nullable(),
  served_model: z.string().nullish(),
  service_tier: z.string().nullish(),
  ai_provider_id: z.string().nullable(),
  tool_calls: z.array(z.object({ id: z.string(), tool_name: z.string(), args: z.unknown() })),
  tool_results: z.array(
    z.object({
      tool_call_id: z.string(),
      tool_name: z.string(),
      result: z.unknown(),
      error: RecordedFailure.nullable(),
      /** Times of the call, if it was made by the platform. */
      started_at: z.string().optional(),
      completed_at: z.string().optional(),
      /** Of a call that a lost or stopped worker had started: whether it was made again. */
      recovery: z.enum(['repeated', 'withheld']).optional(),
    }),
  ),
  usage: UsageTotals.nullable(),
  vendor_parts: z.array(z.custom<VendorPart>()).nullish(),
  /** The parts that are calls of the vendor and their results; only in transcripts, which have no other parts. */
  vendor_calls: z.array(z.custom<VendorPart>()).nullish(),
  notes: z.array(z.custom<VendorNote>()).nullish(),
  annotations: z.array(z.custom<Annotation>()).nullish(),
  started_at: z.string(),
  /** When the model had answered. */
  answered_at: z.string().nullish(),
  completed_at: z.string(),
})
export type JournalStepRow = z.output<typeof JournalStepRow>

/** A step whose model call has ended and whose tool calls have not all settled. */
export type OpenStep = Omit<JournalStepRow, 'tool_calls' | 'tool_results' | 'completed_at'> & {
  /** `args_error` is the reason why `args` could not be parsed; `args` is then the raw text. */
  tool_calls: (JournalStepRow['tool_calls'][number] & { args_error?: string })[]
}

/** Result or failure of a tool call. */
export type ToolCallOutcome = Omit<JournalStepRow['tool_results'][number], 'tool_call_id' | 'tool_name'>

/** Search results given to a turn, and the failure of the search. */
export const Knowledge = z.object({
  results: z.array(
    z.object({
      type: z.enum(['document', 'memory']),
      id: z.string().describe('ID of the memory, or of the chunk of the document'),
      document_id: z.string().optional().describe('ID of the document of the chunk'),
      score: z.number().nullable(),
    }),
  ),
  error: RecordedFailure.nullable(),
})
export type Knowledge = z.output<typeof Knowledge>

/** Settings of steps that override the settings of the agent. */
export type StepSettings = { tool_choice?: ToolChoice; active_tool_ids?: string[] }

/** Additions of a client of a chat protocol to a turn. */
export type ClientRequest = {
  /** Text given as a message of the user before the history. */
  instructions?: string
  tools?: ModelRequest['tools']
  /** Only settings in `request_settings` of the agent apply. */
  settings?: Partial<Pick<ModelRequest, 'temperature' | 'top_p' | 'seed' | 'stop'>> & VendorSettings
  /** Set if the vendor must not store the answers. */
  store?: false
  /** Lowers the limit of the agent. */
  max_output_tokens?: number
  /** Whether the stream and the result of the turn contain the reasoning of the model, which is not stored otherwise. */
  reasoning?: true
  /** Domains to which searches of the web by the vendor are narrowed, within the agent's domains. */
  search_domains?: string[]
  /** Fenced text given as a message of the user before the history. */
  context?: string
}

/** Working data of a turn until it settles; sealed at rest. */
export type TurnData = {
  /** Null until the turn's source has prepared them. */
  messages: ModelMessage[] | null
  /** Messages of steps settled by the turn that this one retries; they follow the prepared messages. */
  settled: ModelMessage[]
  system_extra: string[]
  model: string | null
  tool_context: Record<string, string> | null
  guardrail_context: Record<string, unknown> | null
  /**
   * How long the turn waits for a model that is overloaded or fails; absent for turns in the background. `caller`: as long as
   * its caller may wait. `none`: its caller repeats the request.
   */
  patience?: 'caller' | 'none'
  /** Whether a caller waits for the part of the turn that has started: the notification of its end then has the result. */
  awaited?: boolean
  /** Settings of the request that override the settings of the agent. */
  overrides: StepSettings & {
    step_rules?: StepRule[]
    stop_conditions?: StopCondition[]
    output_schema?: object
    knowledge_config?: SessionKnowledge
    client?: ClientRequest
  }
  /** State that the agent shares with its client at the start of the turn; null for none. */
  shared_state: unknown
  /** Settings submitted with the tool outputs that last resumed the turn. */
  resumed: { next?: StepSettings & { step: number }; step_rules?: StepRule[]; defaults?: StepSettings }
  /** Conversations whose mailboxes wait for the turn. */
  occupied: readonly string[]
  /** Remaining depth for nested turns; at 0 the turn completes without a model call. */
  depth: number
  /** Data of the source from its preparation (the last message seen, the speaker). */
  notes: Record<string, unknown>
  /** Recalled knowledge with the message that contains it; null before the search. */
  knowledge: (Knowledge & { block: string | null }) | null
  /** State of the conversation that bounds the context; null if it has none. */
  context: PromptContext | null
}

/** Summary of the messages that precede a prompt, and the bytes of a token in the last turn of the conversation. */
export type PromptContext = { summary: string | null; bytes_per_token: number | null }

/** `source` of the turns of evaluations, and of the turns and runs that they start. */
export const EVAL_SOURCE = 'eval'

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
    /** The principal whose permissions the turn has. */
    authority: z.custom<PrincipalRecord>(),
    /** The permission checked again when the turn starts. */
    permission: z.object({ action: z.string(), kind: z.string(), id: z.string() }).nullable(),
    /**
     * Agent version assigned when a turn outside a conversation is created; `agent_version` is the version at its
     * start.
     */
    assigned_version: z.int().nullable(),
    /** Fence: every write of an attempt has its number as a condition. */
    attempt: z.int(),
    /** Attempts lost since the last settled step. */
    lost_attempts: z.int(),
    handed_back: z.boolean(),
    /** Failed attempts at the model call of the step in progress. */
    model_attempts: z.int(),
    /** When a turn that waits for its model continues; null unless it waits. */
    model_retry_at: time.nullable(),
    abort: AbortRequest.nullable(),
    streamed: z.boolean(),
    shape: z.enum(['agent', 'conversation']),
    content_mode: z.enum(['full', 'none']),
    deadline_at: time.nullable(),
    /** When the first text of a streamed turn arrived. Not in the record: a field more in each event of a turn costs 25 bytes. */
    first_text_at: time.nullable(),
    /** Number of journal writes: with the attempt it shows whether a claim has read the last one. */
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
    'failed adds error; requires_action adds required_action; chain_limit, of the first turn of a chain, adds chain_id, root_generation_id, chain_size, limit, limit_source',
})

export type GenerationRow = z.output<typeof generationKind.row>

const codeOnly = ({ code }: RecordedFailure): RecordedFailure => ({ code, message: code })

/**
 * Returns a settled generation as its content mode allows it to be stored: with `none` without content, marked as never
 * stored, and with only the code of its error.
 */
export function storedForm(row: GenerationRow, now: string): GenerationRow {
  if (row.content_mode === 'full') return row
  return {
    ...row,
    error: row.error && codeOnly(row.error),
    output: null,
    input: null,
    metadata: null,
    content_redacted_at: now,
    content_redacted_by_principal_type: 'system',
    content_redacted_by_principal_id: 'zero_retention',
  }
}

/** Columns of turn data that are sealed again when the encryption key changes. */
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
