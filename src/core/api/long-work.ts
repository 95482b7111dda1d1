import { z } from 'zod'
import { extensionPoint } from '../base/declarations.ts'
import type { RecordedFailure } from '../base/errors.ts'
import { parseExactJson } from '../base/exact-json.ts'
import type { Services } from '../base/services.ts'
import { type Queryable, sql } from '../db/sql.ts'
import type { Caller } from '../iam/caller.ts'
import { isIdOf, type KindRow, kinds } from './kind.ts'
import type { AllowTarget } from './operation.ts'

/** Records of work that outlives its call, for surfaces that present it as a task. */

type Json = Record<string, unknown>

/** An input that work waits for, and the operation that submits it. */
export type AwaitedInput = {
  /** Unique key of this input; a later input has a different key. */
  key: string
  /** Question for the person. */
  message: string
  /** Schema of an object whose properties are strings, numbers, booleans or enums. */
  form: Json
  /** Operation that submits the answer. */
  operation: string
  /** Permission required by the operation. */
  permission: { action: string; target: AllowTarget }
  /** Returns the arguments for a filled-in form. */
  accepted(content: Json): { operation?: string; args: Json }
  /** Returns the arguments if the person declines; null if that has no effect. */
  declined(): { operation?: string; args: Json } | null
}

export type WorkState = {
  status: 'working' | 'input_required' | 'completed' | 'cancelled'
  /** One sentence about the progress of the work. */
  message: string
  /** Time of the last progress; default `updated_at` of the record. */
  updated_at?: string
  /** Result for a waiting caller, once the work is settled. */
  result?: WorkResult
  awaited?: readonly AwaitedInput[]
  progress?: { done: number; total: number | null }
}

export type WorkResult = { body: unknown } | { failure: RecordedFailure }

/** Returns the result of settled work for a waiting caller. */
export const longWorkResult = (failure: RecordedFailure | null | undefined, body: unknown): WorkResult =>
  failure ? { failure } : { body }

/** Returns the state of work in progress, with the inputs it waits for. */
export const workInProgress = (message: string, awaited: readonly AwaitedInput[] = []): WorkState => ({
  status: awaited.length > 0 ? 'input_required' : 'working',
  message,
  awaited,
})

/** Context in which the state of work is read. */
export type WorkView = {
  services: Services
  caller: Caller
  /** The record as returned by the `read` operation. */
  record: Json
}

/** The row of a record of long work. */
export type WorkRow = KindRow & { created_at: string; updated_at: string }

export type LongWork<Row extends WorkRow = any> = {
  /** Kind of the record. */
  kind: string
  /** Operations that read and cancel it. */
  read: string
  cancel: string | null
  /** For work that deletes its own record: the operation that starts it, and the result. */
  gone?: { operation: string; body: unknown; message: string }
  /** Returns the arguments of `read` and `cancel` for an id; null if they depend on a record that no longer exists. */
  args(id: string, services: Services): Json | Promise<Json | null>
  state(view: WorkView, row: Row): Promise<WorkState>
}

export const longWork = extensionPoint<LongWork>({
  name: 'long work',
  folder: 'core/api',
  description: 'Says how work that outlives its request is read and cancelled, for protocols with tasks',
})

/** Returns the type of long work that an id belongs to. */
export const longWorkOf = (id: string): LongWork | undefined =>
  longWork.all().find(({ kind }) => isIdOf(kinds.get(kind), id))

const Revision = z.object({ id: z.string(), revision: z.string() })

/** Returns the revision of records of long work, by id, with one statement per kind. Deleted records are absent. */
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

/** Parses text written by a person as a JSON object; other text becomes the field `text` of an object. */
export function parseAsObject(text: unknown): object | null {
  const value = parseIfObject(text)
  return typeof value === 'object' ? value : { text: value }
}

/** Parses text written by a person if it is a JSON object; other values are returned unchanged. */
export function parseIfObject(text: unknown): unknown {
  if (typeof text !== 'string') return text
  try {
    const value: unknown = parseExactJson(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : text
  } catch {
    return text
  }
}
