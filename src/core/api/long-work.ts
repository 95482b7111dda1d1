import { z } from 'zod'
import { type Queryable, sql } from '../db/sql.ts'
import { extensionPoint } from '../declarations.ts'
import type { Caller } from '../iam/caller.ts'
import type { Services } from '../process/services.ts'
import type { RecordedFailure } from './errors.ts'
import { isIdOf, type KindRow, kinds } from './kind.ts'
import type { AllowTarget } from './operation.ts'

/** Records that stand for work that outlives its call, for surfaces that show it as a task. */

type Json = Record<string, unknown>

/** An input that work waits for, and the operation that takes it. */
export type AwaitedInput = {
  /** Names this input alone: a later one has another key. */
  key: string
  /** What a person is shown. */
  message: string
  /** Schema of an object whose properties are texts, numbers, booleans or choices. */
  form: Json
  /** Operation that takes the answer. */
  operation: string
  /** The permission that it asks for. */
  permission: { action: string; target: AllowTarget }
  /** Its arguments for an answer to the form. */
  accepted(content: Json): { operation?: string; args: Json }
  /** Its arguments when the person declines; null where that changes nothing. */
  declined(): { operation?: string; args: Json } | null
}

export type WorkState = {
  status: 'working' | 'input_required' | 'completed' | 'cancelled'
  /** One sentence about how the work stands. */
  message: string
  /** When it last moved; `updated_at` of the record where it is missing. */
  updated_at?: string
  /** At the end: what a caller that waited gets. */
  result?: WorkResult
  awaited?: readonly AwaitedInput[]
  progress?: { done: number; total: number | null }
}

export type WorkResult = { body: unknown } | { failure: RecordedFailure }

/** What a caller that waited gets of work that is over. */
export const longWorkResult = (failure: RecordedFailure | null | undefined, body: unknown): WorkResult =>
  failure ? { failure } : { body }

/** Work that is under way, with what it waits for. */
export const underWay = (message: string, awaited: readonly AwaitedInput[] = []): WorkState => ({
  status: awaited.length > 0 ? 'input_required' : 'working',
  message,
  awaited,
})

/** How work is looked at. */
export type WorkView = {
  services: Services
  caller: Caller
  /** The record as the reading operation answers it. */
  record: Json
}

/** The row of such a record. */
export type WorkRow = KindRow & { created_at: string; updated_at: string }

export type LongWork<Row extends WorkRow = any> = {
  /** Kind of the record. */
  kind: string
  /** Operations that read and cancel it. */
  read: string
  cancel: string | null
  /** Work that ends with the record gone: the operation that starts it, and its answer. */
  gone?: { operation: string; body: unknown; message: string }
  /** The arguments of both that name the record under an id; null where that takes a record that is gone. */
  args(id: string, services: Services): Json | Promise<Json | null>
  state(view: WorkView, row: Row): Promise<WorkState>
}

export const longWork = extensionPoint<LongWork>('long work')

/** The long work that an id is of. */
export const longWorkOf = (id: string): LongWork | undefined =>
  longWork.all().find(({ kind }) => isIdOf(kinds.get(kind), id))

const Revision = z.object({ id: z.string(), revision: z.string() })

/** What changes with each write of the records of long work, by id: one statement per kind. Those that are gone are missing. */
export async function revisionsOf(db: Queryable, ids: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const byKind = Map.groupBy(new Set(ids), id => longWorkOf(id)?.kind)
  const found = new Map<string, string>()
  for (const [kind, members] of byKind) {
    if (kind === undefined) continue
    const table = sql.identifier([kinds.get(kind).table])
    const rows = await db.any(sql.type(Revision)`
      select id, xmin::text as revision from ${table} where id = any(${sql.array(members, 'text')})`)
    for (const { id, revision } of rows) found.set(id, revision)
  }
  return found
}

/** A text that a person wrote as an object: text that is none becomes its `text`. */
export function parsedObject(text: unknown): object | null {
  const value = parsedText(text)
  return typeof value === 'object' ? value : { text: value }
}

/** A text that a person wrote as a value: an object where it is JSON of one. */
export function parsedText(text: unknown): unknown {
  if (typeof text !== 'string') return text
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : text
  } catch {
    return text
  }
}
