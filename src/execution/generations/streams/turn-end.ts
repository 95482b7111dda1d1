import type { RecordedFailure } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { openText, sealForNotification } from '#core/secrets/sealed-text.ts'
import type { Outbox } from '#core/writes/writer.ts'
import type { GenerationRow } from '../model.ts'

/** Notifies web processes of frames and ends: `<generation id> frames` or `<generation id> settled [<seq> <end>]`. */
export const TURN_CHANNEL = 'muster_turns'

/** The end of a turn in its notification, sealed, or as this process made it; with the number of its last frame. */
export type AnnouncedEnd = { seq: number } & ({ sealed: string } | { turn: AnsweredTurn })

type SealedEnd = Extract<AnnouncedEnd, { sealed: string }>

/** A settled or paused turn as its row and last frame have it: `result` or, if it failed, `failure`. */
export type TurnEndState = GenerationRow & { result: object | null; failure: RecordedFailure | null }

/** A turn that completed or paused, as its notification has it. */
type AnsweredTurn = Pick<GenerationRow, 'id' | 'trace_id' | 'status' | 'content_mode'> & {
  result: object
  failure: null
}

/** A settled or paused turn as a waiting caller gets it. */
export type TurnEnd = TurnEndState | AnsweredTurn

/** For the part of a turn that ends with a frame. */
const sealOf = (id: string, seq: number) => ({ kind: 'turn_end', id: `${id}:${seq}`, project_id: null })

/** Notifies waiting callers of the end of a turn, which they read unless the notification has it. */
export const notifyEnd = (outbox: Outbox, id: string, end: SealedEnd | null = null): void =>
  outbox.notify(TURN_CHANNEL, end ? `${id} settled ${end.seq} ${end.sealed}` : `${id} settled`)

/**
 * Returns the end of a turn for its notification, with the data of its last frame; null if it does not fit. Of a failed turn
 * callers read the row, which has the failure in another form than the frame.
 */
export function sealEnd(
  services: Services,
  { id, trace_id, status, content_mode }: GenerationRow,
  { seq, data }: { seq: number; data: object },
): SealedEnd | null {
  if (status === 'failed') return null
  const head = JSON.stringify({ trace_id, status, content_mode })
  const sealed = sealForNotification(services, `${head}\n${JSON.stringify(data)}`, sealOf(id, seq))
  return sealed === null ? null : { seq, sealed }
}

/** Returns the end of a turn for callers in this process; undefined as for `sealEnd`. */
export const localEnd = (
  { id, trace_id, status, content_mode }: GenerationRow,
  { seq, data }: { seq: number; data: object },
): AnnouncedEnd | undefined =>
  status === 'failed' ? undefined : { seq, turn: { id, trace_id, status, content_mode, result: data, failure: null } }

/** Returns an announced end; null if this deployment did not make it. */
export function openEnd(services: Services, id: string, end: AnnouncedEnd): AnsweredTurn | null {
  if ('turn' in end) return end.turn
  const text = openText(services, end.sealed, sealOf(id, end.seq))
  if (text === null) return null
  const [head, result] = text.split('\n')
  return { id, ...parseExactJson(head), result: parseExactJson(result), failure: null }
}
