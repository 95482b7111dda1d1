import { z } from 'zod'
import { RecordedFailure } from '../../core/api/errors.ts'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { sql } from '../../core/db/sql.ts'
import type { PrincipalRecord } from '../../core/iam/caller.ts'
import { sealedColumn } from '../../core/secrets/sealed.ts'
import type { ModelMessage, ModelUsage } from '../providers/exchange.ts'

export const GENERATION_STATUSES = ['pending', 'in_progress', 'requires_action', 'completed', 'failed'] as const

const time = z.iso.datetime()

/** Tokens of a step, a turn, an aggregate. `input_tokens` = uncached + cached + cache writes. */
export const UsageTotals = z
  .object({
    cost_usd: z.number().nullable(),
    input_tokens: z.int(),
    uncached_input_tokens: z.int(),
    output_tokens: z.int(),
    cached_tokens: z.int(),
    cache_write_tokens: z.int(),
    reasoning_tokens: z.int(),
  })
  .meta({ id: 'UsageTotals' })

export type Usage = z.infer<typeof UsageTotals>

/** What a provider counted, as the wire's totals; cost is known only once prices are applied. */
export const totalsOf = (usage: ModelUsage): Usage => ({
  cost_usd: null,
  input_tokens: usage.input_tokens + usage.cached_tokens + usage.cache_write_tokens,
  uncached_input_tokens: usage.input_tokens,
  output_tokens: usage.output_tokens,
  cached_tokens: usage.cached_tokens,
  cache_write_tokens: usage.cache_write_tokens,
  reasoning_tokens: usage.reasoning_tokens,
})

/** The sum over the steps that were answered; null when none was counted. */
export function sumUsage(steps: readonly { usage: Usage | null }[]): Usage | null {
  const counted = steps.filter(step => step.usage !== null).map(step => step.usage as Usage)
  if (counted.length === 0) return null
  const sum = (key: Exclude<keyof Usage, 'cost_usd'>) => counted.reduce((total, usage) => total + usage[key], 0)
  return {
    cost_usd: null,
    input_tokens: sum('input_tokens'),
    uncached_input_tokens: sum('uncached_input_tokens'),
    output_tokens: sum('output_tokens'),
    cached_tokens: sum('cached_tokens'),
    cache_write_tokens: sum('cache_write_tokens'),
    reasoning_tokens: sum('reasoning_tokens'),
  }
}

const redaction = {
  content_redacted_at: time.nullable(),
  content_redacted_by_principal_type: z.string().nullable(),
  content_redacted_by_principal_id: z.string().nullable(),
}

/** A generation as lists show it; the single read adds output and required_action. */
export const GenerationListed = z
  .object({
    id: z.string(),
    project_id: z.string(),
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
    step_count: z.int(),
    action_id: z.string().nullable(),
    source: z.string().nullable(),
    metadata: z.record(z.string(), z.unknown()).nullable(),
    ...redaction,
    started_at: time.nullable(),
    completed_at: time.nullable(),
    last_activity_at: time.nullable(),
    created_at: time,
    updated_at: time,
  })
  .meta({ id: 'GenerationListed' })

export const Output = z.object({
  model: z.string(),
  content: z.string(),
  finish_reason: z.string(),
  object: z.unknown(),
})

export const Generation = z
  .object({
    ...GenerationListed.shape,
    output: Output.nullable(),
    required_action: z.record(z.string(), z.unknown()).nullable(),
  })
  .meta({ id: 'Generation' })

export const RetryInput = z.strictObject({ stream: z.boolean().optional() }).meta({ id: 'RetryInput' })

export const GenerationPatch = z.strictObject({ metadata: MetadataBag }).meta({ id: 'GenerationPatch' })

export const Trace = z
  .object({
    id: z.string(),
    project_id: z.string(),
    agent_id: z.string(),
    file_id: z.string().nullable(),
    step_count: z.int(),
    parent_trace_id: z.string().nullable(),
    root_trace_id: z.string().nullable(),
    error: RecordedFailure.nullable(),
    notes: z.array(z.record(z.string(), z.unknown())),
    ...redaction,
    created_at: time,
    updated_at: time,
  })
  .meta({ id: 'Trace' })

/** What a turn is asked to end with. */
export const AbortRequest = RecordedFailure.extend({ stop_reason: z.enum(['error', 'cancelled']) })

export type GenerationStatus = (typeof GENERATION_STATUSES)[number]

export type GenerationOutput = { model: string; content: string; finish_reason: string; object: unknown }

export type GenerationRow = {
  id: string
  project_id: string
  agent_id: string
  trace_id: string
  agent_version: number | null
  initiator_generation_id: string | null
  chain_id: string | null
  conversation_id: string | null
  session_id: string | null
  actor_id: string | null
  started_by_principal_type: string | null
  started_by_principal_id: string | null
  status: GenerationStatus
  stop_reason: string | null
  error: RecordedFailure | null
  output: GenerationOutput | null
  input: ModelMessage[] | null
  required_action: Record<string, unknown> | null
  usage: Usage | null
  step_count: number
  action_id: string | null
  source: string | null
  metadata: Record<string, unknown> | null
  content_redacted_at: string | null
  content_redacted_by_principal_type: string | null
  content_redacted_by_principal_id: string | null
  started_at: string | null
  completed_at: string | null
  last_activity_at: string | null
  created_at: string
  updated_at: string
  authority: PrincipalRecord
  permission: { action: string; kind: string; id: string } | null
  attempt: number
  lost_attempts: number
  handed_back: boolean
  abort: (RecordedFailure & { stop_reason: 'error' | 'cancelled' }) | null
  streamed: boolean
  shape: 'agent' | 'conversation'
  content_mode: 'full' | 'none'
  deadline_at: string | null
}

export type TraceRow = {
  id: string
  project_id: string
  agent_id: string
  file_id: string | null
  step_count: number
  parent_trace_id: string | null
  root_trace_id: string | null
  error: RecordedFailure | null
  notes: Record<string, unknown>[]
  content_redacted_at: string | null
  content_redacted_by_principal_type: string | null
  content_redacted_by_principal_id: string | null
  created_at: string
  updated_at: string
}

/** One settled step of a turn, as the journal keeps it. */
export type StepRow = {
  n: number
  text: string | null
  finish_reason: string | null
  model: string | null
  ai_provider_id: string | null
  tool_calls: { id: string; tool_name: string; args: unknown }[]
  tool_results: { tool_call_id: string; tool_name: string; result: unknown; error: RecordedFailure | null }[]
  usage: Usage | null
  started_at: string
  completed_at: string
}

/** What a turn works on until its end; sealed at rest. */
export type Work = {
  /** Null until the turn's source prepared them. */
  messages: ModelMessage[] | null
  /** What follows messages that are prepared later: steps of the turn that this one repeats. */
  settled: ModelMessage[]
  system_extra: string[]
  model: string | null
  tool_context: Record<string, string> | null
  /** Calls that may still nest below this one; at 0 the turn answers without a model call. */
  depth: number
  /** What the source remembers of its preparation (the last message seen, the speaker). */
  notes: Record<string, unknown>
}

export const listedGeneration = (row: GenerationRow) => ({
  id: row.id,
  project_id: row.project_id,
  agent_id: row.agent_id,
  trace_id: row.trace_id,
  agent_version: row.agent_version,
  initiator_generation_id: row.initiator_generation_id,
  chain_id: row.chain_id,
  conversation_id: row.conversation_id,
  session_id: row.session_id,
  actor_id: row.actor_id,
  started_by_principal_type: row.started_by_principal_type,
  started_by_principal_id: row.started_by_principal_id,
  status: row.status,
  stop_reason: row.stop_reason,
  error: row.error,
  usage: row.usage,
  step_count: row.step_count,
  action_id: row.action_id,
  source: row.source,
  metadata: row.metadata,
  content_redacted_at: row.content_redacted_at,
  content_redacted_by_principal_type: row.content_redacted_by_principal_type,
  content_redacted_by_principal_id: row.content_redacted_by_principal_id,
  started_at: row.started_at,
  completed_at: row.completed_at,
  last_activity_at: row.last_activity_at,
  created_at: row.created_at,
  updated_at: row.updated_at,
})

export const presentGeneration = (row: GenerationRow) => ({
  ...listedGeneration(row),
  output: row.output,
  required_action: row.required_action,
})

/** A settled generation as its content mode lets it be stored: with `none` a skeleton, stamped as never kept. */
export function storable(row: GenerationRow, now: string): GenerationRow {
  if (row.content_mode === 'full') return row
  return {
    ...row,
    error: null,
    output: null,
    input: null,
    metadata: null,
    content_redacted_at: now,
    content_redacted_by_principal_type: 'system',
    content_redacted_by_principal_id: 'zero_retention',
  }
}

export const presentTrace = (row: TraceRow) => ({
  id: row.id,
  project_id: row.project_id,
  agent_id: row.agent_id,
  // What is left in storage of a trace that keeps no content any more goes with its purge.
  file_id: row.content_redacted_at === null ? row.file_id : null,
  step_count: row.step_count,
  parent_trace_id: row.parent_trace_id,
  root_trace_id: row.root_trace_id,
  error: row.error,
  notes: row.notes,
  content_redacted_at: row.content_redacted_at,
  content_redacted_by_principal_type: row.content_redacted_by_principal_type,
  content_redacted_by_principal_id: row.content_redacted_by_principal_id,
  created_at: row.created_at,
  updated_at: row.updated_at,
})

export const generationKind = kind({
  name: 'generation',
  prefix: 'gen',
  table: 'generations',
  notFound: 'GENERATION_NOT_FOUND',
  missing: 'GENERATION_NOT_FOUND',
  references: [{ kind: 'agent', column: 'agent_id', on_delete: 'force' }],
  row: z.custom<GenerationRow>(),
  present: presentGeneration,
  events: ['started', 'requires_action', 'completed', 'failed', 'content_purged'],
  eventAliases: {
    requires_action: ['agents.generation.requires_action'],
    completed: ['agents.generation.completed'],
    failed: ['agents.generation.failed'],
  },
  eventNotes: 'failed carries error, requires_action carries required_action',
})

/** The bags and frames of turns that are not at their end outlive a change of the encryption key. */
export const sealedWork = ['generation_work', 'generation_work_unlogged'].map(table =>
  sealedColumn({
    table,
    column: 'sealed',
    kind: 'generation_work',
    id: sql.fragment`generation_id`,
    project: sql.fragment`(select g.project_id from generations g where g.id = generation_id)`,
  }),
)
