import { Counter } from 'prom-client'
import { z } from 'zod'
import { injectFault } from '#core/base/fault-injection.ts'
import type { Services } from '#core/base/services.ts'
import { sql } from '#core/db/sql.ts'
import { entityMailbox, queueMessage, workQueue } from '#core/queues/queue.ts'
import { logAttempt } from '#core/work/attempt.ts'
import { handler, schedule } from '#core/work/handler.ts'
import type { Tx } from '#core/writes/writer.ts'
import { valuesToMask } from '#identity/secrets/resolve.ts'
import { fileExceptionInTx } from '../exceptions/file-exception.ts'
import { retryDelayMs } from '../webhooks/deliver.ts'
import type { TargetRow } from './model.ts'
import { otlpBody, postSpans, type Receipt, readSpans } from './send.ts'
import {
  dropExcess,
  findTarget,
  listDueProjects,
  listOldestSpans,
  type OutboxRow,
  recordExported,
  recordFailedExport,
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
/** Statuses of a request that fails whenever it is sent: part of the spans may be the reason. */
const REFUSED_STATUSES = [400, 413, 422]

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
    while (!stopping.aborted && performance.now() < until)
      if (!(await exportBatch(services, project_id, signal))) return
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

/** Sends the oldest spans of a project. Returns whether to send more now. */
async function exportBatch(services: Services, project_id: string, signal: AbortSignal): Promise<boolean> {
  const { pool, log } = services
  const target = await findTarget(pool, project_id)
  const rows = target ? await listOldestSpans(pool, project_id) : []
  if (!target || rows.length === 0) return false
  const started = performance.now()
  await injectFault(services, `${exportQueue.name}/claimed`)
  const { receipt, sent, dropped } = await sendRows(services, target, rows, signal)
  if (signal.aborted) return false
  await injectFault(services, `${exportQueue.name}/ending`)
  const lost = countSpans(dropped)
  if (sent.length > 0) {
    const ids = [...sent, ...dropped].map(({ id }) => id)
    if (lost === 0) await recordExported(pool, project_id, { ids, dropped: 0 })
    else
      await services.write(async tx => {
        await recordExported(tx, project_id, { ids, dropped: lost })
        fileDropped(tx, { project_id, spans: lost })
      })
    projectSpans.inc({ outcome: 'exported' }, countSpans(sent))
    projectSpans.inc({ outcome: 'dropped' }, lost)
  }
  const fields = { project_id, spans: countSpans(sent), dropped: lost, status_code: receipt.status_code }
  if (receipt.ok) {
    logAttempt(log, exportQueue.name, started, { ...fields, outcome: 'exported', decision: 'done' })
    return true
  }
  const delayMs = Math.min(MAX_BACKOFF_MS, retryDelayMs(Math.min(target.failures + 1, 20)))
  await recordFailedExport(pool, project_id, { error: errorOf(receipt), delayMs })
  logAttempt(log, exportQueue.name, started, { ...fields, outcome: 'failed', decision: 'retry', next_ms: delayMs })
  return false
}

const countSpans = (rows: readonly OutboxRow[]): number => rows.reduce((sum, { span_count }) => sum + span_count, 0)

const errorOf = ({ status_code, response_body }: Receipt): string =>
  status_code === null ? response_body : `${status_code} ${response_body}`.trim()

/** Refused rows after which a receiver that has accepted none counts as failing. */
const MAX_REFUSED = 3

type Sent = { receipt: Receipt; sent: readonly OutboxRow[]; dropped: readonly OutboxRow[] }

/**
 * Sends rows in one request. If the receiver refuses its content, the halves are sent: a row that it refuses is dropped once it has
 * accepted another one, and must not hold up the others. A receiver that accepts none may only be configured wrongly.
 */
async function sendRows(
  services: Services,
  target: TargetRow,
  rows: readonly OutboxRow[],
  signal: AbortSignal,
): Promise<Sent> {
  let values: Promise<string[]> | null = null
  const secrets = () => {
    values ??= valuesToMask(services, target.project_id)
    return values
  }
  const texts = new Map((await readSpans(services, target, rows, secrets)).map(({ id, spans }) => [id, spans]))
  const sent: OutboxRow[] = []
  const refused: OutboxRow[] = []
  /** Returns the receipt that ends the batch; null to continue. */
  const send = async (some: readonly OutboxRow[]): Promise<Receipt | null> => {
    const body = otlpBody(some.map(({ id }) => texts.get(id) as string))
    const receipt = await postSpans(services, target, body, signal)
    if (receipt.ok) {
      sent.push(...some)
      return null
    }
    if (!REFUSED_STATUSES.includes(receipt.status_code ?? 0)) return receipt
    if (some.length === 1) {
      refused.push(...some)
      return sent.length === 0 && refused.length >= MAX_REFUSED ? receipt : null
    }
    const half = Math.ceil(some.length / 2)
    return (await send(some.slice(0, half))) ?? send(some.slice(half))
  }
  const failed = await send(rows)
  const isRefused = sent.length === 0 && refused.length > 0
  const receipt = failed ?? (isRefused ? REFUSED : ACCEPTED)
  return { receipt, sent, dropped: sent.length > 0 ? refused : [] }
}

const ACCEPTED: Receipt = { ok: true, status_code: 200, response_body: '' }
const REFUSED: Receipt = { ok: false, status_code: null, response_body: 'the receiver refuses all spans' }

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
