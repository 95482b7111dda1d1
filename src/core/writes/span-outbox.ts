import { deflateRawSync } from 'node:zlib'
import { newId } from '../base/ids.ts'
import type { Services } from '../base/services.ts'
import { otlpSpan, type RootNote, type SpanCapture } from '../base/span-targets.ts'
import { currentCapture } from '../base/telemetry.ts'
import { ATTRIBUTE } from '../base/telemetry-names.ts'
import { sealedColumn } from '../db/sealed.ts'
import { type Fragment, sql } from '../db/sql.ts'
import { sealText } from '../secrets/sealed-text.ts'
import type { Outbox } from './writer.ts'

/**
 * Spans for the receivers of projects, written by the statement that settles their work: committed work has its spans, other work
 * has none. Without a target there is nothing to write.
 */

/** Row to which the content of spans is sealed. */
export const sealedForSpans = (id: string, project_id: string) => ({ kind: 'span_content', id, project_id })

export const spanContent = sealedColumn({ table: 'span_outbox', column: 'sealed_content', kind: 'span_content' })

/** Content of spans and their end user, by the ID of the span. */
export type SpanContent = Record<string, Readonly<Record<string, string>>>

export type SpanNote = RootNote & {
  /** The turn with which content and end user of the spans are erased. Without one they have neither. */
  turn?: { generation_id: string; trace_id: string; keepsContent: boolean }
  /** Whether only the root is written, because the other spans belong to another project. */
  rootOnly?: boolean
}

/** A row to insert. `work_id`: for a statement that settles several pieces of work. */
export type SpanRow = {
  id: string
  project_id: string
  spans: string
  span_count: number
  bytes: number
  sealed_content: string | null
  generation_id: string | null
  trace_id: string | null
  work_id: string | null
}

/** Returns the row of a unit of work; null without spans. Compression takes 50 us for ten spans. */
export function spanRow(
  box: Pick<Services, 'secrets'>,
  capture: SpanCapture,
  { turn, rootOnly = false, ...root }: SpanNote = {},
  work_id: string | null = null,
): SpanRow | null {
  const spans = capture.spans(root, rootOnly)
  if (spans.length === 0) return null
  const { project } = capture
  const id = newId('spans')
  const content: SpanContent = {}
  const shown = spans.map(span => {
    const { [ATTRIBUTE.user]: user, ...attributes } = span.attributes
    const own = { ...(turn?.keepsContent && span.content), ...(typeof user === 'string' && { [ATTRIBUTE.user]: user }) }
    if (turn && Object.keys(own).length > 0) content[span.spanId] = own
    return otlpSpan(user === undefined ? span : { ...span, attributes })
  })
  const packed = deflateRawSync(JSON.stringify(shown), { chunkSize: 4096 })
  const sealed =
    Object.keys(content).length > 0 ? sealText(box, JSON.stringify(content), sealedForSpans(id, project)) : null
  return {
    id,
    project_id: project,
    spans: packed.toString('base64'),
    span_count: spans.length,
    bytes: packed.length + (sealed?.length ?? 0),
    sealed_content: sealed,
    generation_id: turn?.generation_id ?? null,
    trace_id: turn?.trace_id ?? null,
    work_id,
  }
}

/** Returns a statement that inserts rows `r` that fulfil `guard` and whose project still has a target. */
export const insertSpanRows = (rows: readonly SpanRow[], guard: Fragment): Fragment => sql.fragment`
  insert into span_outbox (id, project_id, spans, span_count, bytes, sealed_content, generation_id, trace_id)
  select r.id, r.project_id, decode(r.spans, 'base64'), r.span_count, r.bytes, r.sealed_content, r.generation_id, r.trace_id
  from json_to_recordset(${JSON.stringify(rows)}::json) as r (id text, project_id text, spans text, span_count integer,
    bytes integer, sealed_content text, generation_id text, trace_id text, work_id text)
  where ${guard} and exists (select from telemetry_targets t where t.project_id = r.project_id)`

/**
 * Adds the spans of a unit of work to the write that settles it.
 * @param capture of the work; default of this async context
 */
export function addSpans(
  box: Pick<Services, 'secrets'>,
  outbox: Pick<Outbox, 'alongside' | 'afterCommit'>,
  note: SpanNote,
  capture: SpanCapture | null = currentCapture(),
): void {
  const row = capture && spanRow(box, capture, note)
  if (!row) return
  outbox.alongside(guard => insertSpanRows([row], guard))
  outbox.afterCommit(() => capture.close())
}
