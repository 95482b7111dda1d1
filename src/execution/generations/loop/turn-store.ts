import { z } from 'zod'
import type { PricedUsage } from '#control/usage/price-usage.ts'
import { usagePart } from '#control/usage/store.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { capturesUser } from '#core/base/telemetry.ts'
import { type Fragment, jsonb, type Queryable, rawFragment, rowFromJson, sql, voidStatement } from '#core/db/sql.ts'
import type { StatementWrite } from '#core/writes/writer.ts'
import type { AgentRow } from '#execution/agents/model.ts'
import { servedAgent } from '#execution/agents/served-version.ts'
import { type LoadedRoute, loadedRoute, routeOf, routeOfRow } from '#execution/model-routes/store.ts'
import { aiProviderKind, type ProviderRow } from '#execution/providers/model.ts'
import type { ToolRow } from '#execution/tools/model.ts'
import type { StepRequest } from '../journal/sent-request.ts'
import { JournalRow, journalClosed, journalInsert, journalTable, requestCtes } from '../journal/store.ts'
import { type GenerationRow, generationKind, JournalStepRow } from '../model.ts'
import { type Continuation, continuedCte, releasedInsert } from '../recovery/interruptions.ts'
import { isExecutedByHolder, turnDataTable } from '../store.ts'
import { type Frame, frameRows } from '../streams/frame-store.ts'
import { wireStep } from '../traces/store.ts'

/** Row of a turn with everything that its execution requires. Rows of other kinds are jsonb, with jsonb timestamps. */
const LoadedTurn = z.object({
  ...generationKind.row.shape,
  /** In the version of the turn, or in the version it gets if it starts now. */
  loaded_agent: z.custom<AgentRow>().nullable(),
  loaded_provider: z.custom<ProviderRow>().nullable(),
  loaded_route: loadedRoute,
  loaded_paused: z.boolean(),
  loaded_work: z.string().nullable(),
  loaded_holder: z.string().nullable(),
  loaded_executed: z.boolean(),
  loaded_steps: z.array(JournalStepRow),
  loaded_journal: z.array(JournalRow),
  /** json, because jsonb would reorder the keys of schemas. */
  loaded_tools: z.array(z.custom<ToolRow>()),
  loaded_frame: z.int(),
  loaded_root: z.string().nullable(),
  loaded_context: z.string().nullable(),
  loaded_user: z.string().nullish(),
})
const loadedTurnRow = sql.type(LoadedTurn)

/** From item of the agent that serves a turn `t`. */
export const servedAgentOfTurn = servedAgent(sql.fragment`t.agent_id`, {
  version: sql.fragment`coalesce(t.agent_version, t.assigned_version)`,
  key: sql.fragment`coalesce(t.actor_id, t.session_id, t.conversation_id)`,
})

/** A turn with everything that its execution requires. */
export type LoadedTurn = {
  generation: GenerationRow
  /** Null if deleted by the project that shared it. */
  agent: AgentRow | null
  provider: ProviderRow | null
  /** Null with a provider. */
  route: LoadedRoute | null
  paused: boolean
  sealedData: string | null
  /** The web process that created the turn in progress; null once a worker has claimed the turn. */
  holder: string | null
  /** Whether the holder executes the turn: it has neither paused nor been requeued since. */
  isExecutedByHolder: boolean
  steps: JournalStepRow[]
  journal: JournalRow[]
  /** Tools of the agent's project that its bindings refer to. */
  tools: ToolRow[]
  lastFrame: number
  /** Root of the trace tree; null if the turn's trace is the root. */
  rootTrace: string | null
  /** Context of the span that caused the turn, or its last resumption; null without telemetry. */
  traceContext: string | null
  /** External ID of its end user, if spans have it. */
  user?: string | null
}

/** Tools (`tl`) that the bindings of an agent `a` refer to, as from item with its condition. */
const boundTools = sql.fragment`tools tl where tl.project_id = a.project_id
  and tl.id in (select b ->> 'tool_id' from json_array_elements(a.tool_bindings) b)`

/** Select of turns (`t`) with everything that their execution requires. `agent`: from item of the agent that serves them. */
const turnSelect = (where: Fragment, agent: Fragment = servedAgentOfTurn): Fragment => sql.fragment`
    select ${generationKind.columns},
      case when a.id is not null then to_jsonb(a) end as loaded_agent,
      to_jsonb(pr) as loaded_provider,
      case when a.id is not null then ${routeOfRow('a')} end as loaded_route,
      p.paused_at is not null as loaded_paused,
      coalesce(w.sealed, wu.sealed) as loaded_work,
      w.holder as loaded_holder, coalesce(${isExecutedByHolder(sql.fragment`t`, sql.fragment`w`)}, false) as loaded_executed,
      coalesce((select jsonb_agg(to_jsonb(s) - 'generation_id' order by s.n) from generation_steps s where s.generation_id = t.id), '[]') as loaded_steps,
      case when t.journalled > 0 then (
        select coalesce(json_agg(j order by j.n, j.position), '[]') from (
          select n, position, body from generation_journal where generation_id = t.id
          union all select n, position, body from generation_journal_unlogged where generation_id = t.id) j) else '[]' end as loaded_journal,
      case when a.tool_bindings is not null then (
        select coalesce(json_agg(tl), '[]') from ${boundTools}) else '[]' end as loaded_tools,
      coalesce((select max(f.seq) from stream_frames f where f.generation_id = t.id), 0) as loaded_frame,
      (select tr.root_trace_id from traces tr where tr.id = t.trace_id) as loaded_root,
      w.trace_context as loaded_context
      ${capturesUser() ? sql.fragment`, (select ac.external_id from actors ac where ac.id = t.actor_id) as loaded_user` : sql.fragment``}
    from generations t
    left join ${agent} a on true
    join projects p on p.id = t.project_id
    left join lateral (select ${aiProviderKind.columns} from ai_providers t where t.id = a.ai_provider_id) pr on true
    left join generation_work w on w.generation_id = t.id
    left join generation_work_unlogged wu on wu.generation_id = t.id
    where ${where}`

/** Loads a turn to start or resume it, in one round trip; null if the generation was deleted. */
export async function loadTurn(db: Queryable, id: string): Promise<LoadedTurn | null> {
  const row = await db.maybeOne(loadedTurnRow`${turnSelect(sql.fragment`t.id = ${id}`)}`)
  return row && loadedTurn(row)
}

/** Load of a turn as json by a statement that reads its agent. */
export const turnJson = (id: string | Fragment, agent: Fragment): Fragment =>
  sql.fragment`(select to_json(l) from (${turnSelect(sql.fragment`t.id = ${id}`, agent)}) l)`

/** Returns a turn from json. */
export const turnFromJson = (json: object): LoadedTurn => loadedTurn(rowFromJson(json as z.output<typeof LoadedTurn>))

/** Most bytes of turn data, of the agent and of its tools that are loaded with a message. */
const MAX_PRELOADED_BYTES = rawFragment('32768')

/** Bytes of values that may be large. Not pg_column_size, which counts compressed values. */
const bytesOf = (alias: string, columns: readonly string[]): Fragment =>
  sql.fragment`${sql.join(
    columns.map(column => sql.fragment`coalesce(octet_length(${sql.identifier([alias, column])}::text), 0)`),
    sql.fragment` + `,
  )}`
const agentBytes = bytesOf('a', [
  'instructions',
  'provider_options',
  'output_schema',
  'knowledge_config',
  'tool_bindings',
  'stop_conditions',
  'step_rules',
  'boundary_policy',
  'context_policy',
  'description',
  'greeting',
  'suggestions',
  'a2a',
  'vendor_tools',
])
const toolBytes = bytesOf('tl', [
  'description',
  'parameters',
  'execute',
  'mcp',
  'actions',
  'preset_parameters',
  'pipeline',
  'output_mapping',
])

/**
 * Load of a turn as text by the claim of its message (`preload`), if it may start and is small. Other turns are loaded under
 * their message: what a merged message requested may be missing here. The start is fenced by the attempt. Sizes are compared
 * before anything is built: 8 tools of 330 KiB take 57 ms as json.
 */
export const loadWithMessage = (): Fragment => sql.fragment`
  select to_json(l)::text from (${turnSelect(sql.fragment`t.id = claimed.data ->> 'generation_id'
    and t.status = 'pending' and p.paused_at is null
    and octet_length(coalesce(w.sealed, wu.sealed)) <= ${MAX_PRELOADED_BYTES} and ${agentBytes} <= ${MAX_PRELOADED_BYTES}
    and (a.tool_bindings is null or json_array_length(a.tool_bindings) <= 16
      and coalesce((select sum(${toolBytes}) from ${boundTools}), 0) <= ${MAX_PRELOADED_BYTES})`)}) l`

/** Returns a turn from the text of `loadWithMessage`. */
export const readLoadedTurn = (text: string): LoadedTurn => turnFromJson(parseExactJson(text) as object)

function loadedTurn(row: z.output<typeof LoadedTurn>): LoadedTurn {
  const {
    loaded_agent,
    loaded_provider,
    loaded_route,
    loaded_paused,
    loaded_work,
    loaded_holder,
    loaded_executed,
    loaded_steps,
    loaded_journal,
    loaded_tools,
    loaded_frame,
    loaded_root,
    loaded_context,
    loaded_user,
    ...generation
  } = row
  return {
    generation,
    agent: loaded_agent,
    provider: loaded_provider,
    route: loaded_route,
    paused: loaded_paused,
    sealedData: loaded_work,
    holder: loaded_holder,
    isExecutedByHolder: loaded_executed,
    steps: loaded_steps.map(wireStep),
    journal: loaded_journal,
    tools: loaded_tools,
    lastFrame: loaded_frame,
    rootTrace: loaded_root,
    traceContext: loaded_context,
    user: loaded_user,
  }
}

/**
 * Claims a generation for an attempt, fenced by the attempt that was read, so that one of two workers succeeds, and by
 * the journal count, because a late statement of a lost worker may have changed the journal. A turn of a run that is
 * being stopped is not claimed. Prepared turn data and the first frame are written in the same statement.
 */
export function claimParts(claim: {
  generation: GenerationRow
  attempt: number
  lostAttempts: number
  startedAt: string
  agentVersion: number
  now: string
  sealedData: string | null
  hasHolder: boolean
  /** Null for the first claim. */
  continuation: Continuation | null
  frames: Frame[]
}): StatementWrite {
  const { generation } = claim
  const guard = sql.fragment`exists (select 1 from claimed)`
  const ctes = [
    sql.fragment`claimed as (
      update generations set status = 'in_progress', attempt = ${claim.attempt}, lost_attempts = ${claim.lostAttempts}, handed_back = false, model_retry_at = null,
        started_at = ${claim.startedAt}, agent_version = ${claim.agentVersion}, last_activity_at = coalesce(last_activity_at, ${claim.now}), updated_at = ${claim.now}
      where id = ${generation.id} and attempt = ${generation.attempt} and journalled = ${generation.journalled}
        and status in ('pending', 'in_progress')
        and (orchestration_run_id is null or not exists (
          select from orchestration_runs r
          where r.id = orchestration_run_id and orchestration_run_stopping(r.orchestration_id, r.parent_execution_id)))
      returning id)`,
  ]
  if (claim.sealedData !== null)
    ctes.push(sql.fragment`prepared as (
      update ${turnDataTable(generation.content_mode)} set sealed = ${claim.sealedData} where generation_id = ${generation.id} and ${guard})`)
  if (claim.hasHolder)
    ctes.push(
      sql.fragment`holder_cleared as (update generation_work set holder = null where generation_id = ${generation.id} and ${guard})`,
    )
  if (claim.continuation) ctes.push(continuedCte(generation, claim.continuation, guard))
  if (claim.frames.length > 0)
    ctes.push(sql.fragment`first_frames as (${frameRows(generation.id, claim.frames, guard)})`)
  return { ctes, guard, columns: sql.fragment`${claim.attempt}::int as attempt` }
}

const ownedRouteRow = sql.type(z.object({ owned: z.int(), route: loadedRoute }))

const stepInsert = (generationId: string, step: JournalStepRow, guard: Fragment): Fragment => sql.fragment`
  insert into generation_steps (generation_id, n, text, finish_reason, model, ai_provider_id, tool_calls, tool_results, usage, vendor_parts, notes, annotations, served_model, service_tier, started_at, answered_at, completed_at)
  select ${generationId}, ${step.n}::int, ${step.text}, ${step.finish_reason}, ${step.model}, ${step.ai_provider_id}, ${jsonb(step.tool_calls)},
    ${jsonb(step.tool_results)}, ${jsonb(step.usage)}, ${jsonb(step.vendor_parts ?? null)}, ${jsonb(step.notes ?? null)}, ${jsonb(step.annotations ?? null)},
    ${step.served_model ?? null}, ${step.service_tier ?? null}, ${step.started_at}::timestamptz, ${step.answered_at ?? null}::timestamptz, ${step.completed_at}::timestamptz
  where ${guard}`

/**
 * Journals a settled step of a turn that continues. Returns the current route of the agent for the next step, or
 * false if the claim was lost.
 */
export async function journalStep(
  db: Queryable,
  generation: GenerationRow,
  step: JournalStepRow,
  frames: Frame[],
  consumer: Parameters<typeof routeOf>[0],
  openEntries: OpenEntries,
  calls: readonly PricedUsage[],
  request: StepRequest | null,
): Promise<{ route: LoadedRoute | null } | false> {
  const guard = sql.fragment`exists (select 1 from owned)`
  const { owned, route } = await db.one(ownedRouteRow`
    with owned as (
        update generations set step_count = step_count + 1, journalled = journalled + 1, lost_attempts = 0, model_attempts = 0, last_activity_at = ${step.completed_at}, updated_at = ${step.completed_at},
          first_text_at = ${generation.first_text_at}, routing = ${jsonb(generation.routing)}, tool_surface = ${jsonb(generation.tool_surface)}
        where id = ${generation.id} and attempt = ${generation.attempt} and journalled = ${generation.journalled}
          and status = 'in_progress' returning id),
      counted as (update traces set step_count = step_count + 1, updated_at = ${step.completed_at} where id = ${generation.trace_id} and ${guard}),
      ${sql.join([...requestCtes(generation, request, guard), sql.fragment`journalled as (${stepInsert(generation.id, step, guard)})`], sql.fragment`, `)},
       ${closedParts(generation, openEntries, step.n, guard)}
      ${usagePart(calls, guard)}
      added as (${frames.length > 0 ? frameRows(generation.id, frames, guard) : sql.fragment`select 1 where false`})
    select count(*)::int as owned, ${routeOf(consumer)} as route from owned`)
  return owned === 1 && { route }
}

/**
 * Rows of the step in progress: null if the journal has none; otherwise the settled step that replaces them, if any.
 */
type OpenEntries = { settled: JournalRow | null } | null

const closedParts = (generation: GenerationRow, openEntries: OpenEntries, n: number, guard: Fragment): Fragment =>
  openEntries
    ? sql.fragment`${sql.join(journalClosed(generation, openEntries.settled, n, guard), sql.fragment`, `)},`
    : sql.fragment``

/**
 * Pauses a turn until its client submits tool outputs. Fenced by the attempt; also fails on a requested abort, which
 * would not be handled during the pause.
 */
export function pauseParts(
  generation: GenerationRow,
  after: GenerationRow,
  entries: readonly JournalRow[],
  frames: Frame[],
  request: StepRequest | null,
): StatementWrite {
  const guard = sql.fragment`exists (select 1 from paused)`
  const ctes = [
    sql.fragment`paused as (
      update generations set status = 'requires_action', journalled = journalled + 1, lost_attempts = 0, model_attempts = 0,
        required_action = ${jsonb(after.required_action)}, usage = ${jsonb(after.usage)}, routing = ${jsonb(after.routing)},
        tool_surface = ${jsonb(after.tool_surface)}, first_text_at = ${after.first_text_at},
        last_activity_at = ${after.last_activity_at}, updated_at = ${after.updated_at}
      where id = ${generation.id} and attempt = ${generation.attempt} and status = 'in_progress' and abort is null returning id)`,
    ...(entries.length > 0 ? [sql.fragment`entries as (${journalInsert(generation, entries, guard)})`] : []),
    ...requestCtes(generation, request, guard),
    ...(frames.length > 0 ? [sql.fragment`last_frames as (${frameRows(generation.id, frames, guard)})`] : []),
  ]
  return { ctes, guard, columns: sql.fragment`true as paused` }
}

/** Marks a trace as redacted unless it has a turn with stored content. By generations_trace. */
const redactionMark = (row: GenerationRow): Fragment => {
  const hasContent = sql.fragment`exists (
    select 1 from generations g where g.trace_id = traces.id and g.content_mode = 'full')`
  const columns = [
    'content_redacted_at',
    'content_redacted_by_principal_type',
    'content_redacted_by_principal_id',
  ] as const
  return sql.fragment`${sql.join(
    columns.map(name => {
      const column = sql.identifier([name])
      return sql.fragment`, ${column} = case when ${hasContent} then ${column} else coalesce(${column}, ${row[name]}) end`
    }),
    sql.fragment``,
  )}`
}

export type Settlement = {
  generation: GenerationRow
  /** The record after the write. */
  after: GenerationRow
  step: JournalStepRow | null
  frames: Frame[]
  /** Whether the journal may contain rows of the turn besides its settled steps. */
  journalled: boolean
  /** Request of the last step (`SentRequests`) that is not written. */
  request?: StepRequest | null
}

/** Settles a turn: the record, its trace, the last step, the turn data and the last frames. Fenced by the attempt. */
export function settlementParts({
  generation,
  after,
  step,
  frames,
  journalled,
  request = null,
}: Settlement): StatementWrite {
  const guard = sql.fragment`exists (select 1 from settled)`
  const ctes = [
    sql.fragment`settled as (
      update generations set status = ${after.status}, stop_reason = ${after.stop_reason}, error = ${jsonb(after.error)}, output = ${jsonb(after.output)},
        input = ${jsonb(after.input)}, usage = ${jsonb(after.usage)}, routing = ${jsonb(after.routing)}, tool_surface = ${jsonb(after.tool_surface)},
        required_action = null, step_count = ${after.step_count}, first_text_at = ${after.first_text_at}, completed_at = ${after.completed_at},
        last_activity_at = ${after.last_activity_at}, updated_at = ${after.updated_at}, metadata = ${generation.content_mode === 'none' ? jsonb(null) : sql.fragment`metadata`},
        content_redacted_at = ${after.content_redacted_at}, content_redacted_by_principal_type = ${after.content_redacted_by_principal_type},
        content_redacted_by_principal_id = ${after.content_redacted_by_principal_id}
      where id = ${generation.id} and attempt = ${generation.attempt} and status in ('pending', 'in_progress', 'requires_action')
      returning id)`,
    sql.fragment`traced as (
      update traces set step_count = step_count + ${step ? 1 : 0}, updated_at = ${after.updated_at}
        ${after.error ? sql.fragment`, error = ${jsonb(after.error)}` : sql.fragment``}
        ${after.content_redacted_at ? redactionMark(after) : sql.fragment``}
      where id = ${generation.trace_id} and ${guard} returning id)`,
    sql.fragment`closed as (delete from generation_work where generation_id = ${generation.id} and ${guard})`,
    ...(generation.content_mode === 'none'
      ? [
          sql.fragment`emptied as (delete from generation_work_unlogged where generation_id = ${generation.id} and ${guard})`,
        ]
      : []),
    ...(journalled
      ? [
          sql.fragment`unused as (delete from ${journalTable(generation.content_mode)} where generation_id = ${generation.id} and ${guard})`,
        ]
      : []),
    ...(step ? [sql.fragment`journalled as (${stepInsert(generation.id, step, guard)})`] : []),
    ...requestCtes(generation, request, guard),
    ...(frames.length > 0 ? [sql.fragment`last_frames as (${frameRows(generation.id, frames, guard)})`] : []),
  ]
  // After the lock of the trace, which notified processes take too.
  return { ctes, guard: sql.fragment`exists (select 1 from traced)`, columns: sql.fragment`true as settled` }
}

const heldRow = sql.type(z.object({ held: z.boolean() }))

/** Executes a fenced statement in an open transaction. Returns whether its guard held. */
export const executeFenced = (db: Queryable, { ctes, guard }: StatementWrite): Promise<boolean> =>
  db.oneFirst(heldRow`with ${sql.join(ctes, sql.fragment`, `)} select ${guard} as held`)

const foundRow = sql.type(z.object({ found: z.boolean() }))

/** Whether a write with a lost response was committed: only the attempt itself leaves the row in this state. */
export const isWritten = (db: Queryable, { id, attempt, status, journalled }: GenerationRow): Promise<boolean> =>
  db.oneFirst(foundRow`
    select exists (select from generations
      where id = ${id} and attempt = ${attempt} and status = ${status} and journalled = ${journalled}) as found`)

/**
 * Requeues a turn until its next attempt at a model call. Fenced by the attempt. Its records of earlier attempts are kept.
 */
export const modelWaitParts = ({
  id,
  attempt,
  routing,
  model_attempts,
  model_retry_at,
}: Pick<GenerationRow, 'id' | 'attempt' | 'routing' | 'model_attempts' | 'model_retry_at'>): StatementWrite => ({
  ctes: [
    sql.fragment`waiting as (
      update generations set handed_back = true, model_attempts = ${model_attempts}, model_retry_at = ${model_retry_at}, routing = ${jsonb(routing)}
      where id = ${id} and attempt = ${attempt} and status = 'in_progress' and abort is null returning id)`,
  ],
  guard: sql.fragment`exists (select 1 from waiting)`,
  columns: sql.fragment`true as waiting`,
})

/** Releases a turn in progress because the process stops; false if its claim was lost. */
export async function releaseGeneration(
  db: Queryable,
  generation: GenerationRow,
  instanceId: string,
): Promise<boolean> {
  const { rowCount } = await db.query(voidStatement`
    with released as (
      update generations set handed_back = true
      where id = ${generation.id} and attempt = ${generation.attempt} and status = 'in_progress' returning id, attempt)
    ${releasedInsert(sql.fragment`released`, instanceId)}`)
  return rowCount > 0
}

/** Requeues a turn in progress without counting the attempt as lost; false if its claim was lost. */
export async function requeueGeneration(db: Queryable, generation: GenerationRow): Promise<boolean> {
  const { rowCount } = await db.query(
    voidStatement`update generations set handed_back = true where id = ${generation.id} and attempt = ${generation.attempt} and status = 'in_progress'`,
  )
  return rowCount > 0
}
