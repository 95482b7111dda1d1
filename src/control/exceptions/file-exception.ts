import { Counter } from 'prom-client'
import { z } from 'zod'
import { injectFault } from '#core/base/fault-injection.ts'
import { newId } from '#core/base/ids.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { isProjectDeleted } from '#core/db/sql.ts'
import { withTriggerChain } from '#core/db/trigger-chain.ts'
import { WriteBehind } from '#core/db/write-behind.ts'
import { workQueue } from '#core/queues/queue.ts'
import { handler } from '#core/work/handler.ts'
import type { Outbox, Tx } from '#core/writes/writer.ts'
import { detailText, singleLine, storableId } from '../activity/entry-text.ts'
import { SEVERITIES, type Severity } from '../activity/model.ts'
import { recordActivityInTx } from '../activity/record.ts'
import { EXCEPTION_KIND_NAMES, EXCEPTION_KINDS, type ExceptionKind, type ExceptionRow, exceptionKind } from './model.ts'
import { type ExceptionReport, resolveByDedupKey, upsertExceptions } from './store.ts'

/** An exception to file: names, ids and outcomes, never arguments, results or secrets. */
export type ExceptionFiling = {
  project_id: string
  kind: ExceptionKind
  /** Defaults to the severity of the kind. */
  severity?: Severity
  /** One line, truncated to 500 characters. */
  title: string
  /** Data of this occurrence. Above 16 KiB only short fields are stored. */
  detail?: object | null
  /** Occurrences with the same key and kind are counted on one unresolved exception; null disables that. */
  dedup_key: string | null
  orchestration_run_id?: string | null
  node_id?: string | null
  agent_id?: string | null
  guardrail_version?: string | null
}

const MAX_BUFFERED = 5_000
const GATHER_MS = 20
const BATCH = 200
const RETRY_MS = 1000
const DETAIL_BYTES = 16_384
const KEY_CHARS = 400

export const exceptionsDropped = new Counter({
  name: 'muster_exceptions_dropped_total',
  help: 'Exceptions dropped because the buffer was full or the database rejected them',
  registers: [],
})

const exceptionBuffer = processSingleton(
  services =>
    new WriteBehind<ExceptionReport>({
      what: 'exceptions',
      log: services.log,
      most: MAX_BUFFERED,
      gatherMs: GATHER_MS,
      batch: BATCH,
      retryMs: RETRY_MS,
      write: (filings, chainOf) => services.write(tx => fileExceptions(tx, filings, chainOf)),
      dropped: count => exceptionsDropped.inc(count),
    }),
  buffer => buffer.close(),
)

const storedDedupKey = (kind: ExceptionKind, key: string): string => singleLine(`${kind}:${key}`).slice(0, KEY_CHARS)

const toReport = (filing: ExceptionFiling): ExceptionReport => ({
  id: newId(exceptionKind.prefix),
  project_id: filing.project_id,
  kind: filing.kind,
  severity: filing.severity ?? EXCEPTION_KINDS[filing.kind],
  title: singleLine(filing.title),
  detail: detailText(filing.detail, DETAIL_BYTES),
  // Scoped to the kind, so that manual filings are not counted on exceptions of the platform.
  dedup_key: filing.dedup_key === null ? null : storedDedupKey(filing.kind, filing.dedup_key),
  orchestration_run_id: storableId(filing.orchestration_run_id),
  node_id: filing.node_id == null ? null : singleLine(filing.node_id),
  agent_id: storableId(filing.agent_id),
  guardrail_version: filing.guardrail_version == null ? null : singleLine(filing.guardrail_version),
  occurrences: 1,
})

/**
 * Buffers an exception, which is written in a batch within a few hundredths of a second. Never throws. A killed process
 * loses its buffered exceptions; code with a transaction uses fileExceptionInTx.
 */
export function fileExceptionLater(services: Pick<Services, 'state' | 'log'>, filing: ExceptionFiling): void {
  try {
    exceptionBuffer(services).add(toReport(filing))
  } catch (error) {
    services.log.error({ err: error, kind: filing.kind, project_id: filing.project_id }, 'exception not filed')
    exceptionsDropped.inc()
  }
}

const nullableText = z.string().nullable()

const filingQueue = workQueue('exception.file', {
  message: z.object({
    id: z.string(),
    project_id: z.string(),
    kind: z.enum(EXCEPTION_KIND_NAMES),
    severity: z.enum(SEVERITIES),
    title: z.string(),
    detail: nullableText,
    dedup_key: nullableText,
    orchestration_run_id: nullableText,
    node_id: nullableText,
    agent_id: nullableText,
    guardrail_version: nullableText,
    occurrences: z.int(),
  }),
  concern: 'delivery',
  project: ({ project_id }) => project_id,
  retry: { limit: 10, delaySeconds: 1, backoff: true, maxDelaySeconds: 300 },
  leaseSeconds: 10,
})

/**
 * Sends an exception as a message with the caller's transaction; a worker files it exactly once. The message keeps
 * failures and lock waits on the same dedup key away from the caller. Returns the id of the exception, unless it is
 * counted on an existing one.
 */
export function fileExceptionInTx(outbox: Pick<Outbox, 'send'>, filing: ExceptionFiling): string {
  const report = toReport(filing)
  outbox.send(filingQueue, report)
  return report.id
}

export const filingHandler = handler(filingQueue, {}, async (filing, { services, complete }) => {
  try {
    await services.write(async tx => {
      await fileExceptions(tx, [filing])
      await injectFault(services, 'exception_filed')
      complete(tx)
    })
  } catch (error) {
    // An exception of a deleted project is dropped.
    if (!isProjectDeleted(error)) throw error
  }
})

/** Merges reports with the same key, keeping the last detail, and sorts them by key. */
function mergeReports(filings: readonly ExceptionReport[]): ExceptionReport[] {
  const byKey = new Map<string, ExceptionReport>()
  const single: ExceptionReport[] = []
  for (const filing of filings) {
    if (filing.dedup_key === null) {
      single.push(filing)
      continue
    }
    const key = `${filing.project_id} ${filing.dedup_key}`
    const first = byKey.get(key)
    if (!first) byKey.set(key, { ...filing })
    else {
      first.occurrences += filing.occurrences
      first.detail = filing.detail
    }
  }
  const inOrder = [...byKey].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, filing]) => filing)
  return [...inOrder, ...single]
}

/**
 * Files exceptions; each new one emits an event and an activity entry.
 * @param chainOf trigger chain of a filing by its index, if it is not the caller's chain
 * @returns the current rows
 */
async function fileExceptions(
  tx: Tx,
  filings: readonly ExceptionReport[],
  chainOf: (index: number) => readonly string[] = () => [],
): Promise<readonly ExceptionRow[]> {
  const indexById = new Map(filings.map(({ id }, index) => [id, index]))
  const rows = await upsertExceptions(tx, mergeReports(filings))
  for (const row of rows) {
    const index = indexById.get(row.id)
    if (index === undefined) continue
    withTriggerChain(chainOf(index), () => tx.emit(exceptionKind, 'created', row))
    recordActivityInTx(tx, {
      project_id: row.project_id,
      kind: 'exception_created',
      severity: row.severity,
      summary: row.title,
      detail: {
        exception_kind: row.kind,
        severity: row.severity,
        // The feed refers to the session itself where a person is requested.
        ...(row.kind === 'human_requested' && { session_id: row.detail?.session_id }),
      },
      orchestration_run_id: row.orchestration_run_id,
      agent_id: row.agent_id,
      ref_id: row.id,
    })
  }
  return rows
}

/** Files an exception in the caller's transaction. `created` is false if it was counted on an existing one. */
export async function fileExceptionNow(
  tx: Tx,
  filing: ExceptionFiling,
): Promise<{ row: ExceptionRow; created: boolean }> {
  const report = toReport(filing)
  const [row] = await fileExceptions(tx, [report])
  return { row, created: row.id === report.id }
}

/** Resolves the unresolved exception of a dedup key, without a user, because its cause is gone. */
export async function closeMatter(tx: Tx, projectId: string, kind: ExceptionKind, key: string): Promise<void> {
  const row = await resolveByDedupKey(tx, projectId, storedDedupKey(kind, key))
  if (row) tx.emit(exceptionKind, 'resolved', row)
}
