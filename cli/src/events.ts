import type { Event } from './call.ts'
import { EXIT } from './failure.ts'
import { timeText } from './render.ts'
import { type OutputSettings, visible } from './terminal.ts'

/** Returns an event as a line for people. */
export function eventLine({ event, data }: Event, settings: OutputSettings): string {
  const record = data?.run ?? data?.node ?? data ?? {}
  const time = record.created_at ?? record.updated_at
  const parts = [
    time ? timeText(time, { isUtc: settings.isUtc }) : '',
    event,
    record.kind ?? '',
    record.severity ?? '',
    record.node_id ?? '',
    record.status ?? '',
    record.summary ?? record.content ?? record.message ?? record.choices?.[0]?.delta?.content ?? '',
    record.generation_id ?? record.id ?? '',
  ]
  return parts
    .filter(Boolean)
    .map(each => visible(typeof each === 'string' ? each : JSON.stringify(each)))
    .join('  ')
}

/** Returns the exit code of a stream that ends with an event. */
export function exitCodeOfEvent({ event, data }: Event): number {
  if (event === 'error') return EXIT.workFailed
  const status = data?.run?.status ?? data?.status
  if (event === 'requires_action') return EXIT.workWaits
  if (event === 'run.settled' || event === 'operation')
    return ['failed', 'cancelled', 'expired'].includes(status) ? EXIT.workFailed : EXIT.done
  return EXIT.done
}
