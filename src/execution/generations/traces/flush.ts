import { z } from 'zod'
import { fileKind } from '#content/files/model.ts'
import { leafOf } from '#content/paths.ts'
import { deleteAllBytes, type StagedUpload, storageBackends } from '#content/storage/backends.ts'
import { injectFault } from '#core/base/fault-injection.ts'
import { newId } from '#core/base/ids.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { Batcher } from '#core/db/batcher.ts'
import { entityMailbox } from '#core/queues/queue.ts'
import { encodeSteps, type FileStep, stepsOfFile, toFileStep } from './file.ts'
import { traceFilePath } from './kind.ts'
import { deleteJournal, listTraceJournals, lockTraceFiles, setTraceFiles, type TraceJournal } from './store.ts'

const TraceRef = z.object({ trace_id: z.string(), project_id: z.string() })

/** Traces with settled steps that the process in which their turns settled did not flush. */
export const traceFlushQueue = entityMailbox('trace.flush', {
  message: TraceRef,
  key: message => message.trace_id,
  project: message => message.project_id,
  concern: 'generation',
  retry: { limit: 7, delaySeconds: 5, backoff: true, maxDelaySeconds: 640 },
})

/** Traces of one flush, which share the journal read and the commit. */
export const TRACES_PER_FLUSH = 50

/** Time for which traces are collected: a single trace takes a dozen statements, each trace of a large batch two. */
const COLLECT_MS = 250

/** Most traces waiting in a process; further ones are left to the sweep. */
const MAX_WAITING = 10_000

/** The new content of a trace's file; null if the file is unchanged. */
type FileDraft = { trace: TraceJournal; steps: FileStep[] | null }

/** Returns all stored steps of a trace from its file and the journal, ordered by generation. */
async function draftFile(services: Services, trace: TraceJournal): Promise<FileDraft> {
  const settled = trace.settled.filter(({ redacted }) => !redacted)
  if (trace.redacted || settled.length === 0) return { trace, steps: null }
  const written = trace.file ? await stepsOfFile(services, trace.file) : []
  if (!written) services.log.error({ trace_id: trace.id, file_id: trace.file?.id }, 'trace steps lost')
  const byGeneration = Map.groupBy(written ?? [], step => step.generation_id)
  for (const { id, steps } of settled)
    byGeneration.set(
      id,
      steps.map(step => toFileStep(id, step)),
    )
  return { trace, steps: trace.kept.flatMap(id => byGeneration.get(id) ?? []) }
}

/** Returns the generations whose journal rows are deleted: flushed ones, and redacted ones. */
const flushedGenerations = ({ trace, steps }: FileDraft) =>
  trace.settled.filter(({ redacted }) => redacted || steps !== null)

/**
 * Moves the settled steps of traces from the journal into their files. Each file is rebuilt from the current file and
 * the journal. A trace that changes meanwhile fails the flush, which is rolled back.
 */
export async function flushTraces(services: Services, traceIds: readonly string[]): Promise<void> {
  const started = performance.now()
  const store = storageBackends(services)
  const files: { trace: TraceJournal; id: string; staged: StagedUpload }[] = []
  const drafts: FileDraft[] = []
  try {
    for (const trace of await listTraceJournals(services.pool, traceIds)) {
      const made = await draftFile(services, trace)
      drafts.push(made)
      if (made.steps === null) continue
      // Staged bytes have a new file id, because bytes are found by the id they were staged for.
      const fileId = newId(fileKind.prefix)
      const staged = await store.stageBytes(encodeSteps(made.steps), { projectId: trace.project_id, fileId })
      files.push({ trace, id: trace.file?.id ?? fileId, staged })
    }
    const moved = drafts.flatMap(flushedGenerations)
    if (moved.length === 0) return
    await injectFault(services, 'trace_staged')
    await services.write(async tx => {
      const now = await lockTraceFiles(
        tx,
        files.map(({ trace }) => trace.id),
      )
      for (const { trace } of files)
        if (now.get(trace.id) !== (trace.file?.location ?? null))
          throw new Error(`trace ${trace.id} changed during its flush`)
      const deleted = await deleteJournal(
        tx,
        moved.map(({ id }) => id),
      )
      if (deleted !== moved.reduce((sum, { steps }) => sum + steps.length, 0))
        throw new Error('the journal changed during its flush')
      await setTraceFiles(
        tx,
        files.map(({ trace, id, staged }) => {
          const path = traceFilePath(trace.id)
          return { ...staged, id, trace_id: trace.id, project_id: trace.project_id, path, filename: leafOf(path) }
        }),
      )
      await store.commit(tx, ...files.map(({ staged }) => staged))
      await deleteAllBytes(
        tx,
        files.flatMap(({ trace }) => trace.file ?? []),
      )
    })
    await injectFault(services, 'trace_written')
    const duration_ms = Math.round(performance.now() - started)
    services.log.info({ traces: traceIds.length, files: files.length, duration_ms }, 'traces flushed')
  } finally {
    for (const { staged } of files) await staged.discard()
  }
}

/**
 * Flushes the traces of turns that settle in this process, in batches. A message per trace would cost as much as the
 * turn's own message. Nothing is lost with the process: the journal has the steps, and the sweep flushes the rest.
 * Traces that fail are sent to the queue, with its retries.
 */
export const traceFlusher = processSingleton(createTraceFlusher, flusher => flusher.close())

function createTraceFlusher(services: Services) {
  const { log, queues } = services
  const batches = new Batcher(flushBatch, { max: TRACES_PER_FLUSH, delayMs: COLLECT_MS })
  let closed = false

  async function flushBatch(refs: z.output<typeof TraceRef>[]): Promise<undefined[]> {
    const traces = new Map(refs.map(ref => [ref.trace_id, ref]))
    const problem = storageBackends(services).problem()
    if (problem) {
      log.error({ problem, traces: traces.size }, 'trace flush postponed')
      return []
    }
    try {
      await flushTraces(services, [...traces.keys()])
    } catch (error) {
      log.warn({ err: error, traces: traces.size }, 'trace flush failed, traces queued individually')
      await queues
        .send([...traces.values()].map(data => ({ queue: traceFlushQueue, data })))
        .catch(failure => log.error({ err: failure }, 'trace flush left to the sweep'))
    }
    return []
  }

  return {
    /** Adds a trace with steps of a settled turn. */
    add({ trace_id, project_id }: z.output<typeof TraceRef>) {
      if (!closed && batches.size < MAX_WAITING) void batches.add({ trace_id, project_id })
    },
    /** Flushes the waiting traces and stops. */
    close(): Promise<void> {
      closed = true
      return batches.close()
    },
  }
}
