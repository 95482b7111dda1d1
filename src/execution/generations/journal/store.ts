import { z } from 'zod'
import type { PricedUsage } from '../../../control/usage/price-usage.ts'
import { usagePart } from '../../../control/usage/store.ts'
import { type Fragment, jsonb, type Queryable, sql } from '../../../core/db/sql.ts'
import type { Services } from '../../../core/process/services.ts'
import type { GenerationRow, JournalStepRow, OpenStep, ToolCallOutcome } from '../model.ts'
import { type Frame, frameRows } from '../streams/frame-store.ts'

/** The step under way of a turn, so that another worker could go on in the middle of it. */

type Owner = Pick<GenerationRow, 'id' | 'project_id' | 'content_mode'>

export const JournalRow = z.object({ n: z.int(), position: z.int(), body: z.string().nullable() })
export type JournalRow = z.output<typeof JournalRow>

/** The model's answer is at position 0, its calls from 1 on; a call without an outcome has been started. */
export type Entry = { n: number; position: number; value: OpenStep | JournalStepRow | ToolCallOutcome | null }

export const journalTable = (mode: GenerationRow['content_mode']) =>
  sql.identifier([mode === 'none' ? 'generation_journal_unlogged' : 'generation_journal'])

const sealedFor = ({ id, project_id }: Owner, { n, position }: { n: number; position: number }) => ({
  kind: 'generation_journal',
  id: `${id}:${n}:${position}`,
  project_id,
})

/** Entries as the table has them; sealed where the content is not kept. */
export const journalRows = (services: Services, owner: Owner, entries: readonly Entry[]): JournalRow[] =>
  entries.map(({ n, position, value }) => {
    const text = value && JSON.stringify(value)
    const seal = owner.content_mode === 'none' && text !== null
    return { n, position, body: seal ? services.secrets.seal(text, sealedFor(owner, { n, position })) : text }
  })

/** The part of a statement that writes entries where a condition holds; an outcome takes the place of its start. */
export const journalInsert = (owner: Owner, rows: readonly JournalRow[], guard: Fragment): Fragment => sql.fragment`
  insert into ${journalTable(owner.content_mode)} as j (generation_id, n, position, body)
  select ${owner.id}, r.n, r.position, r.body
  from ${sql.unnest(
    rows.map(({ n, position, body }) => [n, position, body]),
    ['int4', 'int4', 'text'],
  )} as r (n, position, body) where ${guard}
  on conflict (generation_id, n, position) do update set body = coalesce(excluded.body, j.body)`

/** What the journal of a turn holds beside its settled steps. */
export type JournalState = {
  open: { step: OpenStep; started: Set<number>; outcomes: Map<number, ToolCallOutcome> } | null
  /** Settled steps with their content, of a turn whose content is not kept. */
  settled: ReadonlyMap<number, JournalStepRow>
}

/** Reads journal rows. What cannot be decrypted is as if it had not been written: null. */
export function readJournal(
  services: Services,
  owner: Owner,
  rows: readonly JournalRow[],
  stepCount: number,
): JournalState {
  const value = (row: JournalRow): any => {
    if (row.body === null || owner.content_mode === 'full') return row.body && JSON.parse(row.body)
    const opened = services.secrets.open(row.body, sealedFor(owner, row))
    return opened.ok ? JSON.parse(opened.value) : null
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

const owned = sql.type(z.object({ owned: z.int() }))

/**
 * Writes entries of the step under way, with frames. Returns false when the attempt no longer owns the turn.
 * @param first what is known of the turn since the model answered; given with the answer
 * @param calls usage of calls that are over
 */
export async function writeJournal(
  db: Queryable,
  generation: GenerationRow,
  rows: readonly JournalRow[],
  frames: Frame[],
  first: boolean,
  calls: readonly PricedUsage[],
): Promise<boolean> {
  const guard = sql.fragment`exists (select 1 from owned)`
  const known = first
    ? sql.fragment`, routing = ${jsonb(generation.routing)}, tool_surface = ${jsonb(generation.tool_surface)}`
    : sql.fragment``
  return (
    (await db.oneFirst(owned`
      with owned as (
          update generations set journalled = journalled + 1, updated_at = now() ${known}
          where id = ${generation.id} and attempt = ${generation.attempt} and journalled = ${generation.journalled}
            and status = 'in_progress' returning id),
        entries as (${journalInsert(generation, rows, guard)}),
        ${usagePart(calls, guard)}
        added as (${frames.length > 0 ? frameRows(generation.id, frames, guard) : sql.fragment`select 1 where false`})
      select count(*)::int as owned from owned`)) === 1
  )
}

/**
 * The part of a statement that closes the step under way. Where the content is not kept, the settled step stays behind,
 * sealed, until the end of the turn.
 */
export function journalClosed(owner: Owner, settled: JournalRow | null, n: number, guard: Fragment): Fragment[] {
  const from = settled ? 1 : 0
  return [
    sql.fragment`closed_calls as (
      delete from ${journalTable(owner.content_mode)} where generation_id = ${owner.id} and n = ${n} and position >= ${from} and ${guard})`,
    ...(settled ? [sql.fragment`kept_step as (${replacing(owner, settled, guard)})`] : []),
  ]
}

const replacing = (owner: Owner, { n, position, body }: JournalRow, guard: Fragment): Fragment => sql.fragment`
  insert into ${journalTable(owner.content_mode)} (generation_id, n, position, body)
  select ${owner.id}, ${n}::int, ${position}::int, ${body} where ${guard}
  on conflict (generation_id, n, position) do update set body = excluded.body`
