import { Counter } from 'prom-client'
import { z } from 'zod'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import { entityMailbox, queueMessage, workQueue } from '#core/queues/queue.ts'
import { logAttempt } from '#core/work/attempt.ts'
import { handler, schedule } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { fileExceptionInTx } from '../exceptions/file-exception.ts'
import { retryDelayMs } from '../webhooks/deliver.ts'
import type { TargetRow } from './model.ts'
import { otlpBody, postSpans, type Receipt, readSpans, rejectedIn } from './send.ts'
import {
  dropExcess,
  findTarget,
  listDueProjects,
  listOldestSpans,
  listOtherRows,
  type OutboxRow,
  recordDropped,
  recordExported,
  recordFailedExport,
  recordRefusedBatch,
} from './store.ts'

/** Time between two checks for due requests. */
const SWEEP_SECONDS = 5
/** Time between two checks of its limits. */
const TRIM_SECONDS = 60
/** Requests at the same time of a worker, of one project at most one: a slow receiver has one of them. */
const CONCURRENCY = 50
/** Longest delay after a failed request. */
const MAX_BACKOFF_MS = 300_000
/** Time that a worker sends spans of one project before it serves others. */
const TURN_MS = 20_000

export const projectSpans = new Counter({
  name: 'muster_project_spans_total',
  help: 'Spans for the receivers of projects, by outcome (exported, dropped)',
  labelNames: ['outcome'],
  registers: [],
})

const exportQueue = entityMailbox('telemetry.export', {
  message: z.object({ project_id: z.string() }),
  key: ({ project_id }) => project_id,
  project: ({ project_id }) => project_id,
  concern: 'delivery',
  // The sweep sends another.
  retry: { limit: 0 },
})

const sweepQueue = workQueue('telemetry.sweep', {
  message: z.object({ trims: z.boolean() }),
  concern: 'delivery',
  retry: { limit: 0 },
})

export const exportHandler = handler(
  exportQueue,
  { concurrency: CONCURRENCY },
  async ({ project_id }, { services, signal, stopping }) => {
    const until = performance.now() + TURN_MS
    const turn: ExportTurn = { signal, stopping, drops: 0 }
    while (!stopping.aborted && performance.now() < until) if (!(await exportBatch(services, project_id, turn))) return
  },
)

export const sweepHandler = handler(sweepQueue, { concurrency: 1 }, async ({ trims }, { services }) => {
  if (trims) await trimOutbox(services)
  const due = await listDueProjects(services.pool)
  if (due.length > 0) await services.queues.send(due.map(project_id => queueMessage(exportQueue, { project_id })))
})

export const schedules = [
  schedule(
    'telemetry export',
    SWEEP_SECONDS,
    sweepQueue,
    { trims: false },
    sql.fragment`exists (select from span_outbox)`,
  ),
  schedule(
    'telemetry limits',
    TRIM_SECONDS,
    sweepQueue,
    { trims: true },
    sql.fragment`exists (select from span_outbox)`,
  ),
]

/** Units that are dropped when they are refused, after the receiver has accepted another: it may begin to refuse all. */
const MAX_DROPS = 10

/** `drops`: units that may still be dropped when they are refused. */
type ExportTurn = { signal: AbortSignal; stopping: AbortSignal; drops: number }

/**
 * Sends the oldest spans of a project in one request, whose outcome is recorded before the next. Returns whether to send more now. If
 * the receiver refuses the content, the next request has half of the rows, and after each success twice as many.
 */
async function exportBatch(services: Services, project_id: string, turn: ExportTurn): Promise<boolean> {
  const { pool, log } = services
  const target = await findTarget(pool, project_id)
  const rows = target ? await listOldestSpans(pool, target) : []
  if (!target || rows.length === 0) return false
  const started = performance.now()
  const logged = (fields: Parameters<typeof logAttempt>[3]) => logAttempt(log, exportQueue.name, started, fields)
  await injectFault(services, `${exportQueue.name}/claimed`)
  const receipt = await sendRows(services, target, rows, turn)
  if (receipt === null) return false
  await injectFault(services, `${exportQueue.name}/ending`)
  const fields = { project_id, spans: countSpans(rows), status_code: receipt.status_code }
  if (receipt.ok) {
    await recordSent(services, target, rows, receipt, turn)
    logged({ ...fields, outcome: 'exported', decision: 'done' })
    return true
  }
  const isRefused = isRefusal(receipt)
  if (isRefused && rows.length > 1) {
    await recordRefusedBatch(pool, target, Math.ceil(rows.length / 2))
    logged({ ...fields, outcome: 'refused', decision: 'retry', next_ms: 0 })
    return true
  }
  if (isRefused && turn.drops === 0) await sendOthers(services, target, rows[0], turn)
  if (isRefused && turn.drops === 0 && turn.stopping.aborted) return false
  if (isRefused && turn.drops > 0) {
    turn.drops--
    await drop(services, target, rows[0])
    logged({ ...fields, outcome: 'refused', decision: 'drop' })
    return true
  }
  const delayMs = Math.min(MAX_BACKOFF_MS, retryDelayMs(Math.min(target.failures + 1, 20)))
  await recordFailedExport(pool, target, { error: isRefused ? REFUSED : errorOf(receipt), delayMs })
  logged({ ...fields, outcome: 'failed', decision: 'retry', next_ms: delayMs })
  return false
}

const countSpans = (rows: readonly OutboxRow[]): number => rows.reduce((sum, { span_count }) => sum + span_count, 0)

const errorOf = ({ status_code, response_body }: Receipt): string =>
  status_code === null ? response_body : `${status_code} ${response_body}`.trim()

/** Sends rows in one request; null if the worker stops before the receiver answers. */
async function sendRows(
  services: Services,
  target: TargetRow,
  rows: readonly OutboxRow[],
  { signal, stopping }: ExportTurn,
): Promise<Receipt | null> {
  const texts = await readSpans(services, target, rows, stopping)
  if (texts === null) return null
  const receipt = await postSpans(services, target, otlpBody(texts), signal)
  return signal.aborted ? null : receipt
}

async function recordSent(
  services: Services,
  target: TargetRow,
  rows: readonly OutboxRow[],
  receipt: Receipt,
  turn: ExportTurn,
): Promise<void> {
  turn.drops = MAX_DROPS
  const spans = countSpans(rows)
  const rejected = rejectedIn(receipt, spans)
  if (!rejected) await recordExported(services.pool, target, rows)
  else
    await services.write(async tx => {
      await recordExported(tx, target, rows, rejected)
      fileDropped(tx, { project_id: target.project_id, spans: rejected.spans })
    })
  projectSpans.inc({ outcome: 'exported' }, spans - (rejected?.spans ?? 0))
  projectSpans.inc({ outcome: 'dropped' }, rejected?.spans ?? 0)
}

/**
 * Sends other rows than a refused one until one is accepted: a row that is refused must not hold up the others, but a receiver that
 * accepts none may only be configured wrongly.
 */
async function sendOthers(services: Services, target: TargetRow, refused: OutboxRow, turn: ExportTurn): Promise<void> {
  for (const row of await listOtherRows(services.pool, target, refused.id)) {
    const receipt = turn.stopping.aborted ? null : await sendRows(services, target, [row], turn)
    if (receipt?.ok) return recordSent(services, target, [row], receipt, turn)
    if (!receipt || !isRefusal(receipt)) return
  }
}

/** Whether a request fails whenever it is sent: part of the spans may be the reason. */
const isRefusal = ({ status_code }: Receipt): boolean => [400, 413, 422].includes(status_code ?? 0)

const REFUSED = 'the receiver refuses all spans'

/** Drops a row that the receiver refuses while it accepts another. */
async function drop(services: Services, target: TargetRow, row: OutboxRow): Promise<void> {
  const { project_id } = target
  const spans = row.span_count
  const isDropped = await services.write(async tx => {
    const found = await recordDropped(tx, target, row)
    if (found) fileDropped(tx, { project_id, spans })
    return found
  })
  if (isDropped) projectSpans.inc({ outcome: 'dropped' }, spans)
}

/** Files one exception for all drops of a project. */
const fileDropped = (tx: Tx, { project_id, spans }: { project_id: string; spans: number }): void => {
  const title = 'Spans for the telemetry target of the project were dropped'
  fileExceptionInTx(tx, { project_id, kind: 'telemetry_dropped', title, detail: { spans }, dedup_key: project_id })
}

/** Drops spans beyond the limits of the outbox. */
async function trimOutbox(services: Services): Promise<void> {
  const dropped = await services.write(async tx => {
    const found = await dropExcess(tx)
    for (const each of found) fileDropped(tx, each)
    return found
  })
  projectSpans.inc(
    { outcome: 'dropped' },
    dropped.reduce((sum, { spans }) => sum + spans, 0),
  )
}
