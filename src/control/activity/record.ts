import { Counter } from 'prom-client'
import { newId } from '../../core/api/ids.ts'
import type { Outbox } from '../../core/db/writer.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { WriteBehind } from '../../core/process/write-behind.ts'
import { detailText, singleLine, storableId } from './entry-text.ts'
import { ACTIVITY_CHANNEL, ACTIVITY_KINDS, type ActivityKind, activityKind, type Severity } from './model.ts'
import { entryRows, type NewActivityEntry, writeEntries } from './store.ts'

/** What is recorded of something that happened. Names, ids and outcomes: never arguments, results or secrets. */
export type ActivityEntry = {
  project_id: string
  kind: ActivityKind
  /** Default: that of the kind. */
  severity?: Severity
  /** One line, cut at 500 characters. */
  summary: string
  /** By kind; of more than 8 KiB what is short is kept. */
  detail?: object | null
  orchestration_run_id?: string | null
  agent_id?: string | null
  generation_id?: string | null
  ref_id?: string | null
}

/** Entries that wait to be written: 80 MB at the very most. */
const MOST = 10_000
const GATHER_MS = 20
const BATCH = 500
const RETRY_MS = 1000
const DETAIL_BYTES = 8192

export const entriesDropped = new Counter({
  name: 'muster_activity_dropped_total',
  help: 'Activity entries dropped: the buffer was full, or the database refused them',
  registers: [],
})

const bufferOf = processSingleton(
  ({ log, notifier, pool }) =>
    new WriteBehind<NewActivityEntry>({
      what: 'activity entries',
      log,
      most: MOST,
      gatherMs: GATHER_MS,
      batch: BATCH,
      retryMs: RETRY_MS,
      write: async entries => {
        const projects = await writeEntries(pool, entries)
        notifier.notify(...projects.map(payload => ({ channel: ACTIVITY_CHANNEL, payload })))
      },
      dropped: count => entriesDropped.inc(count),
    }),
  buffer => buffer.close(),
)

const made = (entry: ActivityEntry): NewActivityEntry => ({
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
 * Records what happened beside the work that did it: the entry is written with others within a few hundredths of a second,
 * after the fact. Never throws and is never waited for; an entry that cannot be written is logged and counted. A process
 * that is killed loses what it had not written yet.
 */
export function recordActivityLater(services: Pick<Services, 'state' | 'log'>, entry: ActivityEntry): void {
  try {
    bufferOf(services).add(made(entry))
  } catch (error) {
    services.log.error({ err: error, kind: entry.kind, project_id: entry.project_id }, 'activity entry not recorded')
    entriesDropped.inc()
  }
}

/** Records what happened in the transaction of what mirrors it as an event: written with that exactly once, or not at all. */
export function recordActivityInTx(outgoing: Pick<Outbox, 'alongside' | 'notify'>, entry: ActivityEntry): void {
  const row = made(entry)
  outgoing.alongside(guard => entryRows([row], guard))
  outgoing.notify(ACTIVITY_CHANNEL, entry.project_id)
}
