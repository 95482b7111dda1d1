import { z } from 'zod'
import type { PricedUsage } from '#control/usage/price-usage.ts'
import { usagePart } from '#control/usage/store.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { injectedVersion } from '#core/base/fault-injection.ts'
import { knownFormat, withFormatVersion } from '#core/base/format-versions.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, jsonb, type Queryable, sql } from '#core/db/sql.ts'
import { type GenerationRow, JournalStepRow, type OpenStep, type ToolCallOutcome } from '../model.ts'
import { type Frame, frameRows } from '../streams/frame-store.ts'
import type { StepRequest } from './sent-request.ts'

/** Rows of the step in progress, from which another worker continues. */

type Owner = Pick<GenerationRow, 'id' | 'project_id' | 'content_mode'>

export const JournalRow = z.object({ n: z.int(), position: z.int(), body: z.string().nullable() })
export type JournalRow = z.output<typeof JournalRow>

/** The model answer is at position 0, its calls from 1 on; a call without a value has started and has no outcome. */
export type Entry = { n: number; position: number; value: OpenStep | JournalStepRow | ToolCallOutcome | null }

/** Version of the format of journal rows. */
const VERSION = 1

const versionOf = (services: Services): number => injectedVersion(services, 'turn_journal', VERSION)

export const journalTable = (mode: GenerationRow['content_mode']) =>
  sql.identifier([mode === 'none' ? 'generation_journal_unlogged' : 'generation_journal'])

const sealedFor = ({ id, project_id }: Owner, { n, position }: { n: number; position: number }) => ({
  kind: 'generation_journal',
  id: `${id}:${n}:${position}`,
  project_id,
})

/** Returns the rows of entries, sealed if the content is not stored. */
export const journalRows = (services: Services, owner: Owner, entries: readonly Entry[]): JournalRow[] =>
  entries.map(({ n, position, value }) => {
    const text = value && JSON.stringify(withFormatVersion(value, versionOf(services)))
    const seal = owner.content_mode === 'none' && text !== null
    return { n, position, body: seal ? services.secrets.seal(text, sealedFor(owner, { n, position })) : text }
  })

/** Insert of entries under a condition; an outcome replaces the start of its call. */
export const journalInsert = (owner: Owner, rows: readonly JournalRow[], guard: Fragment): Fragment => sql.fragment`
  insert into ${journalTable(owner.content_mode)} as j (generation_id, n, position, body)
  select ${owner.id}, r.n, r.position, r.body
  from ${sql.unnest(
    rows.map(({ n, position, body }) => [n, position, body]),
    ['int4', 'int4', 'text'],
  )} as r (n, position, body) where ${guard}
  on conflict (generation_id, n, position) do update set body = coalesce(excluded.body, j.body)`

/** Content of a turn's journal besides the settled steps. */
export type JournalState = {
  open: { step: OpenStep; started: Set<number>; outcomes: Map<number, ToolCallOutcome> } | null
  /** Settled steps with their content, for turns whose content is not stored. */
  settled: ReadonlyMap<number, JournalStepRow>
}

/**
 * Parses journal rows. Rows that cannot be decrypted count as absent.
 * @throws NewerFormatError
 */
export function readJournal(
  services: Services,
  owner: Owner,
  rows: readonly JournalRow[],
  stepCount: number,
): JournalState {
  const version = versionOf(services)
  const parse = (text: string): any =>
    knownFormat(parseExactJson(text) as object, version, `Journal of turn ${owner.id}`)
  const value = (row: JournalRow): any => {
    if (row.body === null || owner.content_mode === 'full') return row.body && parse(row.body)
    const opened = services.secrets.open(row.body, sealedFor(owner, row))
    return opened.ok ? parse(opened.value) : null
  }
  const settled = new Map<number, JournalStepRow>()
  const outcomes = new Map<number, ToolCallOutcome>()
  const started = new Set<number>()
  let step: OpenStep | null = null
  for (const row of rows) {
    if (row.n <= stepCount) settled.set(row.n, value(row))
    else if (row.position === 0) step = value(row)
    else if (row.body === null) started.add(row.position - 1)
    else outcomes.set(row.position - 1, value(row))
  }
  return { open: step && { step, started, outcomes }, settled }
}

/** Most bytes of the requests of one turn: a turn whose steps all differ would otherwise store megabytes. */
const MAX_REQUEST_BYTES = 1024 * 1024

/** Returns ctes with the insert of the request of a step, without its text if the requests of the turn are too large; none for null. */
export const requestCtes = ({ id }: Pick<Owner, 'id'>, request: StepRequest | null, guard: Fragment): Fragment[] =>
  request === null
    ? []
    : [
        sql.fragment`sent_request as (
          insert into step_requests (generation_id, n, body)
          select ${id}, ${request.n}::int, case when ${Buffer.byteLength(request.body)}::int
              + coalesce((select sum(octet_length(s.body)) from step_requests s where s.generation_id = ${id}), 0) <= ${MAX_REQUEST_BYTES}::int
            then ${request.body} end
          where ${guard}
          on conflict (generation_id, n) do update set body = excluded.body)`,
      ]

const ownedRow = sql.type(z.object({ owned: z.int() }))

/**
 * Writes entries of the step in progress, with frames. Returns false if the claim was lost.
 * @param answered set if the entries include the model answer: time of the first text, routing, tool surface and its request
 *   are then written too
 * @param calls usage of ended calls
 */
export async function writeJournal(
  db: Queryable,
  generation: GenerationRow,
  rows: readonly JournalRow[],
  frames: Frame[],
  answered: { request: StepRequest | null } | null,
  calls: readonly PricedUsage[],
): Promise<boolean> {
  const guard = sql.fragment`exists (select 1 from owned)`
  const firstColumns = answered
    ? sql.fragment`, first_text_at = ${generation.first_text_at}, routing = ${jsonb(generation.routing)}, tool_surface = ${jsonb(generation.tool_surface)}`
    : sql.fragment``
  return (
    (await db.oneFirst(ownedRow`
      with owned as (
          update generations set journalled = journalled + 1, updated_at = now() ${firstColumns}
          where id = ${generation.id} and attempt = ${generation.attempt} and journalled = ${generation.journalled}
            and status = 'in_progress' returning id),
        ${sql.join([...requestCtes(generation, answered?.request ?? null, guard), sql.fragment`entries as (${journalInsert(generation, rows, guard)})`], sql.fragment`, `)},
        ${usagePart(calls, guard)}
        added as (${frames.length > 0 ? frameRows(generation.id, frames, guard) : sql.fragment`select 1 where false`})
      select count(*)::int as owned from owned`)) === 1
  )
}

/**
 * Returns the ctes that delete the rows of the step in progress. If content is not stored, a sealed row of the settled
 * step replaces them until the turn settles.
 */
export function journalClosed(owner: Owner, settled: JournalRow | null, n: number, guard: Fragment): Fragment[] {
  const from = settled ? 1 : 0
  return [
    sql.fragment`closed_calls as (
      delete from ${journalTable(owner.content_mode)} where generation_id = ${owner.id} and n = ${n} and position >= ${from} and ${guard})`,
    ...(settled ? [sql.fragment`kept_step as (${settledStepUpsert(owner, settled, guard)})`] : []),
  ]
}

const settledStepUpsert = (owner: Owner, { n, position, body }: JournalRow, guard: Fragment): Fragment => sql.fragment`
  insert into ${journalTable(owner.content_mode)} (generation_id, n, position, body)
  select ${owner.id}, ${n}::int, ${position}::int, ${body} where ${guard}
  on conflict (generation_id, n, position) do update set body = excluded.body`

const abandonedStepsRow = sql.type(z.object({ steps: z.array(JournalStepRow), journal: z.array(JournalRow) }))

/** Returns the settled steps of a turn and the journal of its step in progress. By the primary keys. */
const loadAbandonedSteps = (db: Queryable, { id }: Pick<GenerationRow, 'id'>) =>
  db.one(abandonedStepsRow`
    select coalesce((
        select jsonb_agg(to_jsonb(s) - 'generation_id' order by s.n) from generation_steps s
        where s.generation_id = ${id}), '[]') as steps,
      (select coalesce(json_agg(j order by j.n, j.position), '[]') from (
        select n, position, body from generation_journal where generation_id = ${id}
        union all select n, position, body from generation_journal_unlogged where generation_id = ${id}) j) as journal`)

/** Fields of a step whose model call has ended, settled or not. */
export type AnsweredStep = Pick<JournalStepRow, 'model' | 'ai_provider_id' | 'usage' | 'served_model' | 'service_tier'>

/** Steps of a turn that is ended from outside: the settled ones, and the step in progress. */
export type AbandonedSteps = { steps: readonly AnsweredStep[]; open: JournalState['open'] }

/** Returns the step in progress of a turn; null without one. One statement, or none if nothing was journalled. */
export const findOpenStep = async (
  db: Queryable,
  services: Services,
  generation: GenerationRow,
): Promise<JournalState['open']> => (await findAbandonedSteps(db, services, generation)).open

/** Returns the steps of a turn for its end from outside; one statement, or none if nothing was journalled. */
export async function findAbandonedSteps(
  db: Queryable,
  services: Services,
  generation: GenerationRow,
): Promise<AbandonedSteps> {
  if (generation.journalled === 0) return { steps: [], open: null }
  const { steps, journal } = await loadAbandonedSteps(db, generation)
  const { open } = readJournal(services, generation, journal, generation.step_count)
  return { steps, open }
}
