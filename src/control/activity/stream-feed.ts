import { eventMessage, eventStream } from '#core/api/event-stream.ts'
import type { Context, OperationResult } from '#core/api/operation.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { encodeCursor } from './cursor.ts'
import { ACTIVITY_CHANNEL, activityKind } from './model.ts'
import { committedUntil, type FeedPosition, type FeedSelection, listActivityAfter } from './store.ts'

/** Longest interval between two reads of the feed; a notification triggers one earlier. */
const POLL_MS = 2000
/** Delay of the next read while an open transaction may still add older entries. */
const UNCOMMITTED_MS = 100
const PAGE = 500

/** Feed subscriptions of this process, by project. */
const feedSubscriptions = processSingleton((services: Services) => {
  const byProject = new Map<string, Set<() => void>>()
  const notifyAll = (listeners: Set<() => void> | undefined) => {
    for (const listener of listeners ?? []) listener()
  }
  services.notifications.listen(ACTIVITY_CHANNEL, project => notifyAll(byProject.get(project)), {
    onReconnect: () => {
      for (const listeners of byProject.values()) notifyAll(listeners)
    },
  })
  return (project: string, listener: () => void) => {
    const listeners = byProject.get(project) ?? new Set()
    byProject.set(project, listeners.add(listener))
    return () => {
      listeners.delete(listener)
      if (listeners.size === 0 && byProject.get(project) === listeners) byProject.delete(project)
    }
  }
})

/**
 * Streams the entries after `after` in order of time. An entry is sent once no older entry can still commit: entries
 * carry the time of their insert but become visible at commit, so a client that resumes after an entry sent too early
 * would miss the older one.
 */
export function streamFeed(
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  selection: FeedSelection,
  after: FeedPosition,
): OperationResult {
  const { services } = context
  let last = after
  return eventStream(context, {
    watch: listener => feedSubscriptions(services)(selection.project, listener),
    position: () => encodeCursor(last),
    async *look() {
      const committed = await committedUntil(services.pool)
      const rows = await listActivityAfter(services.pool, selection, last, PAGE)
      const sendable = rows.filter(({ created_at }) => created_at < committed)
      for (const row of sendable) {
        last = row
        yield eventMessage(encodeCursor(row), 'entry', JSON.stringify(activityKind.present(row)))
      }
      if (sendable.length < rows.length) return UNCOMMITTED_MS
      return rows.length < PAGE ? POLL_MS : 0
    },
  })
}
