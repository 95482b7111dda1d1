import { Counter } from 'prom-client'
import { z } from 'zod'
import { newId } from '../../core/api/ids.ts'
import { isProjectDeleted } from '../../core/db/sql.ts'
import { withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { Outbox, Tx } from '../../core/db/writer.ts'
import { handler } from '../../core/jobs/handler.ts'
import { workQueue } from '../../core/jobs/queue.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { WriteBehind } from '../../core/process/write-behind.ts'
import { detailText, singleLine, storableId } from '../activity/entry-text.ts'
import { SEVERITIES, type Severity } from '../activity/model.ts'
import { recordActivityInTx } from '../activity/record.ts'
import { EXCEPTION_KIND_NAMES, EXCEPTION_KINDS, type ExceptionKind, type ExceptionRow, exceptionKind } from './model.ts'
import { type ExceptionReport, fileRows, resolveMatter } from './store.ts'

/** What is filed for people to look at. Never arguments, results or secrets. */
export type ExceptionFiling = {
  project_id: string
  kind: ExceptionKind
  /** Default: that of the kind. */
  severity?: Severity
  /** One line, cut at 500 characters. */
  title: string
  /** Facts of this occurrence; of more than 16 KiB what is short is kept. */
  detail?: object | null
  /** What occurrences of one matter have in common, within the kind; null never folds. */
  dedup_key: string | null
  orchestration_run_id?: string | null
  node_id?: string | null
  agent_id?: string | null
  guardrail_version?: string | null
}

const MOST = 5_000
const GATHER_MS = 20
const BATCH = 200
const RETRY_MS = 1000
const DETAIL_BYTES = 16_384
const KEY_CHARS = 400

export const exceptionsDropped = new Counter({
  name: 'muster_exceptions_dropped_total',
  help: 'Exceptions that were not filed: the buffer was full, or the database refused them',
  registers: [],
})

const bufferOf = processSingleton(
  services =>
    new WriteBehind<ExceptionReport>({
      what: 'exceptions',
      log: services.log,
      most: MOST,
      gatherMs: GATHER_MS,
      batch: BATCH,
      retryMs: RETRY_MS,
      write: (filings, chainOf) => services.write(tx => fileInto(tx, filings, chainOf)),
      dropped: count => exceptionsDropped.inc(count),
    }),
  buffer => buffer.close(),
)

const foldedBy = (kind: ExceptionKind, key: string): string => singleLine(`${kind}:${key}`).slice(0, KEY_CHARS)

const filingOf = (given: ExceptionFiling): ExceptionReport => ({
  id: newId(exceptionKind.prefix),
  project_id: given.project_id,
  kind: given.kind,
  severity: given.severity ?? EXCEPTION_KINDS[given.kind],
  title: singleLine(given.title),
  detail: detailText(given.detail, DETAIL_BYTES),
  // Of its kind alone: what an operator files must not fold into what the platform did.
  dedup_key: given.dedup_key === null ? null : foldedBy(given.kind, given.dedup_key),
  orchestration_run_id: storableId(given.orchestration_run_id),
  node_id: given.node_id == null ? null : singleLine(given.node_id),
  agent_id: storableId(given.agent_id),
  guardrail_version: given.guardrail_version == null ? null : singleLine(given.guardrail_version),
  occurrences: 1,
})

/**
 * Files an exception beside the work that gives reason to: written with others within a few hundredths of a second. Never
 * throws and is never waited for. For work without a transaction; a process that is killed loses what it had not written
 * yet. Work with a transaction uses `addException`.
 */
export function fileExceptionLater(services: Pick<Services, 'state' | 'log'>, filing: ExceptionFiling): void {
  try {
    bufferOf(services).add(filingOf(filing))
  } catch (error) {
    services.log.error({ err: error, kind: filing.kind, project_id: filing.project_id }, 'exception not filed')
    exceptionsDropped.inc()
  }
}

const text = z.string().nullable()

const filingQueue = workQueue('exception.file', {
  message: z.object({
    id: z.string(),
    project_id: z.string(),
    kind: z.enum(EXCEPTION_KIND_NAMES),
    severity: z.enum(SEVERITIES),
    title: z.string(),
    detail: text,
    dedup_key: text,
    orchestration_run_id: text,
    node_id: text,
    agent_id: text,
    guardrail_version: text,
    occurrences: z.int(),
  }),
  concern: 'delivery',
  project: ({ project_id }) => project_id,
  retry: { limit: 10, delaySeconds: 1, backoff: true, maxDelaySeconds: 300 },
  leaseSeconds: 10,
})

/**
 * Files an exception that commits with the producer's transaction: as a message, so that neither a failure nor the wait for
 * others that file the same matter reaches the producer. A worker files it, exactly once. Returns the id that it gets unless
 * it folds into another.
 */
export function fileExceptionInTx(outgoing: Pick<Outbox, 'send'>, given: ExceptionFiling): string {
  const filing = filingOf(given)
  outgoing.send(filingQueue, filing)
  return filing.id
}

export const filingHandler = handler(filingQueue, {}, async (filing, { services, complete }) => {
  try {
    await services.write(async tx => {
      await fileInto(tx, [filing])
      await injectFault(services, 'exception_filed')
      complete(tx)
    })
  } catch (error) {
    // Nobody is left to look at it.
    if (!isProjectDeleted(error)) throw error
  }
})

/** Those with the same key as one, with the facts of the last, in the order of their keys. */
function folded(filings: readonly ExceptionReport[]): ExceptionReport[] {
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
 * Files items; what is new is an event and an entry of the activity feed.
 * @param chainOf the triggers that led to one, where those are not the ones of the caller
 * @returns the items as they stand
 */
async function fileInto(
  tx: Tx,
  filings: readonly ExceptionReport[],
  chainOf: (place: number) => readonly string[] = () => [],
): Promise<readonly ExceptionRow[]> {
  const places = new Map(filings.map(({ id }, place) => [id, place]))
  const rows = await fileRows(tx, folded(filings))
  for (const row of rows) {
    const place = places.get(row.id)
    if (place === undefined) continue
    withTriggerChain(chainOf(place), () => tx.emit(exceptionKind, 'created', row))
    recordActivityInTx(tx, {
      project_id: row.project_id,
      kind: 'exception_created',
      severity: row.severity,
      summary: row.title,
      detail: { exception_kind: row.kind, severity: row.severity },
      orchestration_run_id: row.orchestration_run_id,
      agent_id: row.agent_id,
      ref_id: row.id,
    })
  }
  return rows
}

/** Files an item in a transaction that waits for it. `created` is false when it was folded into another. */
export async function fileExceptionNow(
  tx: Tx,
  filing: ExceptionFiling,
): Promise<{ row: ExceptionRow; created: boolean }> {
  const made = filingOf(filing)
  const [row] = await fileInto(tx, [made])
  return { row, created: row.id === made.id }
}

/** Closes what was filed of a matter that is over by itself. */
export async function closeMatter(tx: Tx, projectId: string, kind: ExceptionKind, key: string): Promise<void> {
  const row = await resolveMatter(tx, projectId, foldedBy(kind, key))
  if (row) tx.emit(exceptionKind, 'resolved', row)
}
