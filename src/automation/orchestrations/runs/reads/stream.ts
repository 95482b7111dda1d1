import { eventMessages, eventStream } from '#core/api/event-stream.ts'
import type { Context, OperationResult } from '#core/api/operation.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import type { Caller } from '#core/iam/caller.ts'
import { listExecutionsSince, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { onRunChanged } from '../engine/run-notifications.ts'
import { isRunTerminal, type NodeExecution, presentRun, type RunRow, runKind } from '../model.ts'
import { withCallbacks } from '../nodes/callback-token.ts'
import { presentNodeExecution, presentRunFor } from './present-run.ts'

/** A run is read after each notification and at least every POLL_MS, with a pause of at least PAUSE_MS. */
const POLL_MS = 2000
const PAUSE_MS = 100

/** Subscribers of run streams in this process, by run. */
const subscribers = processSingleton((services: Services) => {
  const byRun = new Map<string, Set<() => void>>()
  const notify = (all: Set<() => void> | undefined) => {
    for (const onChange of all ?? []) onChange()
  }
  const notifyAll = () => {
    for (const all of byRun.values()) notify(all)
  }
  onRunChanged(services, run => notify(byRun.get(run)), notifyAll)
  return (run: string, onChange: () => void) => {
    const all = byRun.get(run) ?? new Set()
    byRun.set(run, all.add(onChange))
    return () => {
      all.delete(onChange)
      if (all.size === 0 && byRun.get(run) === all) byRun.delete(run)
    }
  }
})

/** Presents a node execution without its possibly large fields. */
function executionSummary(row: NodeExecutionRow): Omit<NodeExecution, 'input' | 'output'> {
  const { input, output, ...presented } = presentNodeExecution(row)
  return presented
}

async function updateData(services: Services, caller: Caller, run: RunRow): Promise<string> {
  const [presented] = await withCallbacks(services, caller, [presentRun(run)])
  const { id, status, active_nodes, required_actions, updated_at } = presented
  return JSON.stringify({ id, status, active_nodes, required_actions, updated_at })
}

/** Node executions already sent to the client, and the creation time of the oldest that may still change. */
class SentExecutions {
  #since: string | null = null
  readonly #texts = new Map<string, string>()

  /** Returns the node executions that changed since they were last sent. */
  async changes(services: Services, runId: string): Promise<string[]> {
    const rows = await listExecutionsSince(services.pool, runId, this.#since)
    const open = rows.filter(({ applied, completed_at }) => !applied || completed_at === null)
    this.#since = (open[0] ?? rows.at(-1))?.created_at ?? this.#since
    const changed: string[] = []
    const listed = new Set(rows.map(({ id }) => id))
    for (const id of this.#texts.keys()) if (!listed.has(id)) this.#texts.delete(id)
    for (const row of rows) {
      const text = JSON.stringify(executionSummary(row))
      if (this.#texts.get(row.id) !== text) changed.push(text)
      this.#texts.set(row.id, text)
    }
    return changed
  }
}

/**
 * Streams the changes of a run as server-sent events with its revisions as IDs, from any web process. The stream of an
 * ended run is its final event.
 * @param seen last revision received by the client; nothing is sent while it is current
 */
export function streamRun(
  context: Pick<Context, 'services' | 'request' | 'recheck' | 'caller' | 'client'>,
  { id }: { id: string },
  seen: number,
): OperationResult {
  const { services } = context
  const format = context.client?.format ?? eventMessages
  const sent = new SentExecutions()
  let position = seen
  let readAt = 0
  let first = true
  return eventStream(context, {
    watch: onChange => subscribers(services)(id, onChange),
    position: () => position,
    refused: format.refused,
    async *look() {
      const early = readAt + PAUSE_MS - Date.now()
      if (early > 0) return early
      readAt = Date.now()
      const run = await runKind.find(services.pool, id)
      if (!run) return 'ended'
      const { revision } = run
      if (revision === position && !isRunTerminal(run)) {
        if (first) await sent.changes(services, id)
        first = false
        return POLL_MS
      }
      if (!(first && isRunTerminal(run))) {
        for (const data of await sent.changes(services, id))
          yield* format.frame({ seq: revision, event: 'node.updated', data })
        const data = await updateData(services, context.caller, run)
        yield* format.frame({ seq: revision, event: 'run.updated', data })
        if (format.ended?.()) return 'ended'
      }
      first = false
      position = revision
      if (!isRunTerminal(run)) return POLL_MS
      const data = JSON.stringify(await presentRunFor(services, context.caller, run))
      yield* format.frame({ seq: revision, event: 'run.settled', data })
      return 'ended'
    },
  })
}
