import { eventMessage, eventStream } from '../../../core/api/event-stream.ts'
import type { Context, OperationResult } from '../../../core/api/operation.ts'
import type { Caller } from '../../../core/iam/caller.ts'
import { processSingleton } from '../../../core/process/process-singleton.ts'
import type { Services } from '../../../core/process/services.ts'
import { executionsSince, type NodeExecutionRow } from '../engine/node-execution-store.ts'
import { onRunChanged } from '../engine/run-notifications.ts'
import { isRunTerminal, type NodeExecution, presentRun, type RunRow, runKind } from '../model.ts'
import { withCallbacks } from '../nodes/callback-token.ts'
import { presentNodeExecution, presentRunFor } from './present-run.ts'

/** A run is read after every notification, and at least this often; never more often than that. */
const POLL_MS = 2000
const PAUSE_MS = 100

/** Who follows which run in this process. */
const followers = processSingleton((services: Services) => {
  const byRun = new Map<string, Set<() => void>>()
  const tell = (all: Set<() => void> | undefined) => {
    for (const news of all ?? []) news()
  }
  const tellAll = () => {
    for (const all of byRun.values()) tell(all)
  }
  onRunChanged(services, run => tell(byRun.get(run)), tellAll)
  return (run: string, news: () => void) => {
    const all = byRun.get(run) ?? new Set()
    byRun.set(run, all.add(news))
    return () => {
      all.delete(news)
      if (all.size === 0 && byRun.get(run) === all) byRun.delete(run)
    }
  }
})

/** An attempt without what may be large. */
function shownExecution(row: NodeExecutionRow): Omit<NodeExecution, 'input' | 'output'> {
  const { input, output, ...shown } = presentNodeExecution(row)
  return shown
}

async function shownUpdate(services: Services, caller: Caller, run: RunRow): Promise<string> {
  const [shown] = await withCallbacks(services, caller, [presentRun(run)])
  const { id, status, active_nodes, required_actions, updated_at } = shown
  return JSON.stringify({ id, status, active_nodes, required_actions, updated_at })
}

/** Attempts as a client knows them, and since when those began that may still change. */
class Known {
  #since: string | null = null
  readonly #texts = new Map<string, string>()

  /** The attempts that the client does not know so. */
  async news(services: Services, runId: string): Promise<string[]> {
    const rows = await executionsSince(services.pool, runId, this.#since)
    const open = rows.filter(({ applied, completed_at }) => !applied || completed_at === null)
    this.#since = (open[0] ?? rows.at(-1))?.created_at ?? this.#since
    const said: string[] = []
    const listed = new Set(rows.map(({ id }) => id))
    for (const id of this.#texts.keys()) if (!listed.has(id)) this.#texts.delete(id)
    for (const row of rows) {
      const text = JSON.stringify(shownExecution(row))
      if (this.#texts.get(row.id) !== text) said.push(text)
      this.#texts.set(row.id, text)
    }
    return said
  }
}

/**
 * What becomes of a run, as server-sent events under its revisions, from any web process. The stream of one that has ended
 * is its end.
 * @param seen the revision that the client has: while it is that of the run, the client knows how things are
 */
export function streamRun(
  context: Pick<Context, 'services' | 'request' | 'recheck' | 'caller'>,
  { id }: { id: string },
  seen: number,
): OperationResult {
  const { services } = context
  const known = new Known()
  let position = seen
  let readAt = 0
  let first = true
  return eventStream(context, {
    watch: news => followers(services)(id, news),
    position: () => position,
    async *look() {
      const early = readAt + PAUSE_MS - Date.now()
      if (early > 0) return early
      readAt = Date.now()
      const run = await runKind.find(services.pool, id)
      if (!run) return 'ended'
      const { revision } = run
      if (revision === position && !isRunTerminal(run)) {
        if (first) await known.news(services, id)
        first = false
        return POLL_MS
      }
      if (!(first && isRunTerminal(run))) {
        for (const text of await known.news(services, id)) yield eventMessage(revision, 'node.updated', text)
        yield eventMessage(revision, 'run.updated', await shownUpdate(services, context.caller, run))
      }
      first = false
      position = revision
      if (!isRunTerminal(run)) return POLL_MS
      yield eventMessage(revision, 'run.settled', JSON.stringify(await presentRunFor(services, context.caller, run)))
      return 'ended'
    },
  })
}
