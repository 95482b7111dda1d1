import { dropAll } from '../../content/storage/stores.ts'
import { raise } from '../../core/api/errors.ts'
import type { Tx } from '../../core/db/write.ts'
import { followEnd } from './ended.ts'
import { type GenerationRow, generationKind, type TraceRow } from './model.ts'
import { redactEnvelopes, redactGenerations, redactTraces } from './purge-store.ts'
import { statesOf } from './store.ts'
import { traceKind } from './trace-kind.ts'
import { findTrace, subtree, takeTraceFiles } from './trace-store.ts'

type By = { type: string; id: string }

/** Raises GENERATION_ALREADY_IN_PROGRESS for a turn that runs or waits. */
function requireEnded(generations: readonly Pick<GenerationRow, 'id' | 'status'>[]): void {
  const open = generations.find(row => row.status === 'pending' || row.status === 'in_progress')
  if (open) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: open.id } })
}

/**
 * Erases a generation's content and keeps its skeleton; a second purge keeps the first stamp and emits nothing. A paused
 * turn ends failed with GENERATION_CONTENT_UNAVAILABLE. Raises GENERATION_ALREADY_IN_PROGRESS while it runs or waits.
 */
export async function purgeGeneration(tx: Tx, id: string, by: By): Promise<GenerationRow> {
  const row = await generationKind.lock(tx, id)
  requireEnded([row])
  const [redacted] = await redactGenerations(tx, [id], by)
  if (!redacted) return row
  await redactEnvelopes(tx, [id])
  tx.emit(generationKind, 'content_purged', redacted)
  if (row.status === 'requires_action') followEnd(tx, redacted)
  return redacted
}

/** The same for a trace, its descendants and all their generations. */
export async function purgeTrace(tx: Tx, id: string, by: By): Promise<TraceRow> {
  // Generations before traces, as a turn that ends locks them.
  const found = (await subtree(tx, id)).map(trace => trace.id)
  if (found.length === 0) raise('RESOURCE_NOT_FOUND', { meta: { id } })
  // Not to wait for a turn that runs.
  requireEnded(await statesOf(tx, found))
  const generations = await statesOf(tx, found, true)
  requireEnded(generations)
  const traces = await subtree(tx, id, true)
  const ids = traces.map(trace => trace.id)
  // One that was made meanwhile: nobody can make another while the traces are held.
  const later = (await statesOf(tx, ids)).find(row => !generations.some(known => known.id === row.id))
  if (later) raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: later.id } })
  const redactedGenerations = await redactGenerations(
    tx,
    generations.map(row => row.id),
    by,
  )
  await dropAll(tx, await takeTraceFiles(tx, ids))
  const redactedTraces = await redactTraces(tx, ids, by)
  await redactEnvelopes(
    tx,
    [...redactedGenerations, ...redactedTraces].map(row => row.id),
  )
  const paused = new Set(generations.filter(row => row.status === 'requires_action').map(row => row.id))
  for (const row of redactedGenerations) {
    tx.emit(generationKind, 'content_purged', row)
    if (paused.has(row.id)) followEnd(tx, row)
  }
  for (const row of redactedTraces) tx.emit(traceKind, 'content_purged', row)
  return (await findTrace(tx, id)) as TraceRow
}
