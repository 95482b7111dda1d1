import { Counter } from 'prom-client'
import { newId } from '#core/base/ids.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { WriteBehind } from '#core/db/write-behind.ts'
import type { Outbox } from '#core/writes/writer.ts'
import { detailText, singleLine, storableId } from './entry-text.ts'
import { ACTIVITY_CHANNEL, ACTIVITY_KINDS, type ActivityKind, activityKind, type Severity } from './model.ts'
import { activityInsert, insertActivity, type NewActivityEntry } from './store.ts'

/** An entry to record: names, ids and outcomes, never arguments, results or secrets. */
export type ActivityEntry = {
  project_id: string
  kind: ActivityKind
  /** Defaults to the severity of the kind. */
  severity?: Severity
  /** One line, truncated to 500 characters. */
  summary: string
  /** Depends on the kind. Above 8 KiB only short fields are stored. */
  detail?: object | null
  orchestration_run_id?: string | null
  agent_id?: string | null
  generation_id?: string | null
  ref_id?: string | null
}

/** Most buffered entries, at most 80 MB. */
const MAX_BUFFERED = 10_000
const GATHER_MS = 20
const BATCH = 500
const RETRY_MS = 1000
const DETAIL_BYTES = 8192

export const activityDropped = new Counter({
  name: 'muster_activity_dropped_total',
  help: 'Activity entries dropped because the buffer was full or the database rejected them',
  registers: [],
})

const entryBuffer = processSingleton(
  ({ log, notifier, pool }) =>
    new WriteBehind<NewActivityEntry>({
      what: 'activity entries',
      log,
      most: MAX_BUFFERED,
      gatherMs: GATHER_MS,
      batch: BATCH,
      retryMs: RETRY_MS,
      write: async entries => {
        const projects = await insertActivity(pool, entries)
        notifier.notify(...projects.map(payload => ({ channel: ACTIVITY_CHANNEL, payload })))
      },
      dropped: count => activityDropped.inc(count),
    }),
  buffer => buffer.close(),
)

const toRow = (entry: ActivityEntry): NewActivityEntry => ({
  id: newId(activityKind.prefix),
  project_id: entry.project_id,
  kind: entry.kind,
  severity: entry.severity ?? ACTIVITY_KINDS[entry.kind],
  summary: singleLine(entry.summary),
  detail: detailText(entry.detail, DETAIL_BYTES),
  orchestration_run_id: storableId(entry.orchestration_run_id),
  agent_id: storableId(entry.agent_id),
  generation_id: storableId(entry.generation_id),
  ref_id: storableId(entry.ref_id),
})

/**
 * Buffers an entry, which is written in a batch within a few hundredths of a second. Never throws; an entry that cannot
 * be written is logged and counted. A killed process loses its buffered entries.
 */
export function recordActivityLater(services: Pick<Services, 'state' | 'log'>, entry: ActivityEntry): void {
  try {
    entryBuffer(services).add(toRow(entry))
  } catch (error) {
    services.log.error({ err: error, kind: entry.kind, project_id: entry.project_id }, 'activity entry not recorded')
    activityDropped.inc()
  }
}

/** Writes entries in the same transaction as the events that they mirror. */
export function recordActivityInTx(
  outbox: Pick<Outbox, 'alongside' | 'notify'>,
  ...entries: readonly ActivityEntry[]
): void {
  if (entries.length === 0) return
  const rows = entries.map(toRow)
  outbox.alongside(guard => activityInsert(rows, guard))
  for (const project_id of new Set(rows.map(row => row.project_id))) outbox.notify(ACTIVITY_CHANNEL, project_id)
}
