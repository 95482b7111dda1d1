import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { fileKind } from '../../../content/files/model.ts'
import { leafOf } from '../../../content/paths.ts'
import { deleteAllBytes, type StagedUpload, storageBackends } from '../../../content/storage/backends.ts'
import { newId } from '../../../core/api/ids.ts'
import { withoutTenant } from '../../../core/db/tenant-context.ts'
import { entityMailbox } from '../../../core/jobs/queue.ts'
import { injectFault } from '../../../core/process/fault-injection.ts'
import { processSingleton } from '../../../core/process/process-singleton.ts'
import type { Services } from '../../../core/process/services.ts'
import type { FileStep } from './file.ts'
import { encodeSteps, stepsOfFile, toFileStep } from './file.ts'
import { traceFilePath } from './path.ts'
import { dropJournal, type Journals, lockTraceFiles, readJournals, setTraceFiles } from './store.ts'

const Written = z.object({ trace_id: z.string(), project_id: z.string() })

/** Traces with settled steps in the journal that the process in which their turns ended did not write. */
export const traceFlushQueue = entityMailbox('trace.flush', {
  message: Written,
  key: message => message.trace_id,
  project: message => message.project_id,
  concern: 'generation',
  retry: { limit: 7, delaySeconds: 5, backoff: true, maxDelaySeconds: 640 },
})

/** Traces that one call writes: reading the journal and the commit are shared. */
export const TRACES_AT_ONCE = 50

/** How long traces gather: one alone takes a dozen statements, more than its turn; of many at once each takes two. */
const GATHER_MS = 250

/** Traces that wait in a process at most; further ones are left to the sweep. */
const MAX_WAITING = 10_000

/** The file of a trace as it is to be; null when the trace keeps the one it has. */
type Draft = { trace: Journals; steps: FileStep[] | null }

/** All steps of a trace that are kept: of generations in their order, those of the file and those of the journal. */
async function draft(services: Services, trace: Journals): Promise<Draft> {
  const settled = trace.settled.filter(({ redacted }) => !redacted)
  if (trace.redacted || settled.length === 0) return { trace, steps: null }
  const written = trace.file ? await stepsOfFile(services, trace.file) : []
  if (!written) services.log.error({ trace_id: trace.id, file_id: trace.file?.id }, 'the steps of a trace are lost')
  const byGeneration = Map.groupBy(written ?? [], step => step.generation_id)
  for (const { id, steps } of settled)
    byGeneration.set(
      id,
      steps.map(step => toFileStep(id, step)),
    )
  return { trace, steps: trace.kept.flatMap(id => byGeneration.get(id) ?? []) }
}

/** The generations whose rows of the journal go: those that are in the file, and those that keep no content. */
const movedOf = ({ trace, steps }: Draft) => trace.settled.filter(({ redacted }) => redacted || steps !== null)

/**
 * Moves settled steps of traces from the journal into their files: each file is written anew, from the
 * one there was and the journal. A trace that changed meanwhile fails the call and is left as it was.
 */
export async function flushTraces(services: Services, traceIds: readonly string[]): Promise<void> {
  const started = performance.now()
  const store = storageBackends(services)
  const files: { trace: Journals; id: string; staged: StagedUpload }[] = []
  const drafts: Draft[] = []
  try {
    for (const trace of await readJournals(services.pool, traceIds)) {
      const made = await draft(services, trace)
      drafts.push(made)
      if (made.steps === null) continue
      // Bytes are found by the id they were staged for: never by one that has some.
      const fileId = newId(fileKind.prefix)
      const staged = await store.stageBytes(encodeSteps(made.steps), { projectId: trace.project_id, fileId })
      files.push({ trace, id: trace.file?.id ?? fileId, staged })
    }
    const moved = drafts.flatMap(movedOf)
    if (moved.length === 0) return
    await injectFault(services, 'trace_staged')
    await services.write(async tx => {
      const now = await lockTraceFiles(
        tx,
        files.map(({ trace }) => trace.id),
      )
      for (const { trace } of files)
        if (now.get(trace.id) !== (trace.file?.location ?? null))
          throw new Error(`trace ${trace.id} changed while it was written`)
      const dropped = await dropJournal(
        tx,
        moved.map(({ id }) => id),
      )
      if (dropped !== moved.reduce((sum, { steps }) => sum + steps.length, 0))
        throw new Error('the journal changed while it was written')
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
    const ms = Math.round(performance.now() - started)
    services.log.info({ traces: traceIds.length, files: files.length, ms }, 'steps of traces written')
  } finally {
    for (const { staged } of files) await staged.discard()
  }
}

/**
 * Writes the traces of the turns that end in this process, those of many at once. A message for each would cost as much
 * as the turn's own: the journal has the steps until they are written, so nothing is lost with the process, and the sweep
 * finds what is left. What cannot be written here goes on as messages, with their retries.
 */
export const traceFlusher = processSingleton(openTraceWriter, writer => writer.close())

function openTraceWriter(services: Services) {
  const { log, queues } = services
  const waiting = new Map<string, z.output<typeof Written>>()
  const closing = new AbortController()
  let running: Promise<void> | null = null

  const writeNext = async () => {
    if (waiting.size < TRACES_AT_ONCE) await sleep(GATHER_MS, undefined, { signal: closing.signal }).catch(() => {})
    const batch = [...waiting.values()].slice(0, TRACES_AT_ONCE)
    for (const { trace_id } of batch) waiting.delete(trace_id)
    const problem = storageBackends(services).problem()
    if (problem) {
      log.error({ problem, traces: batch.length }, 'steps of traces stay in the journal')
      return
    }
    try {
      await flushTraces(
        services,
        batch.map(({ trace_id }) => trace_id),
      )
    } catch (error) {
      log.warn({ err: error, traces: batch.length }, 'steps of traces not written, they go on one by one')
      await queues.send(batch.map(data => ({ queue: traceFlushQueue, data })))
    }
  }
  const run = async () => {
    try {
      while (waiting.size > 0) await writeNext()
    } catch (error) {
      log.error({ err: error }, 'traces are left to the sweep')
    } finally {
      running = null
    }
  }
  return {
    /** The trace has steps of a turn that has ended. */
    add({ trace_id, project_id }: z.output<typeof Written>) {
      if (closing.signal.aborted || waiting.size === MAX_WAITING) return
      waiting.set(trace_id, { trace_id, project_id })
      running ??= withoutTenant(run)
    },
    /** Writes what waits, and ends. */
    async close() {
      closing.abort()
      await running
    },
  }
}
