import { extensionPoint } from '../declarations.ts'
import type { Caller } from '../iam/caller.ts'
import type { Services } from '../process/services.ts'
import type { RecordedFailure } from './errors.ts'
import type { KindRow } from './kind.ts'
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
  created_at: string
  updated_at: string
  /** At the end: what a caller that waited gets. */
  result: { body: unknown } | { failure: RecordedFailure } | null
  awaited: readonly AwaitedInput[]
  progress: { done: number; total: number | null } | null
}

/** How work is looked at. */
export type WorkView = {
  services: Services
  caller: Caller
  /** The record as the reading operation answers it. */
  record: Json
}

export type LongWork<Row extends KindRow = any> = {
  /** Kind of the record. */
  kind: string
  /** Operations that read and cancel it. */
  read: string
  cancel: string | null
  /** The arguments of both that name the record. */
  args(row: Row): Json
  state(view: WorkView, row: Row): Promise<WorkState>
}

export const longWork = extensionPoint<LongWork>('long work')

export const longWorkOf = (kind: string): LongWork | undefined => longWork.all().find(each => each.kind === kind)

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
