import { eventMessage, eventStream } from '../../core/api/event-stream.ts'
import type { Context, OperationResult } from '../../core/api/operation.ts'
import { processSingleton } from '../../core/process/process-singleton.ts'
import type { Services } from '../../core/process/services.ts'
import { encodeCursor } from './cursor.ts'
import { ACTIVITY_CHANNEL, activityKind } from './model.ts'
import { activityAfter, committedUntil, type FeedSelection, type Position } from './store.ts'

/** The feed is read after every notification, and at least this often. */
const POLL_MS = 2000
/** How soon again when there are entries behind a transaction that is not at its end. */
const UNSETTLED_MS = 100
const PAGE = 500

/** Who follows which project's feed in this process. */
const followers = processSingleton((services: Services) => {
  const byProject = new Map<string, Set<() => void>>()
  const tell = (all: Set<() => void> | undefined) => {
    for (const news of all ?? []) news()
  }
  services.notifications.listen(ACTIVITY_CHANNEL, project => tell(byProject.get(project)), {
    onReconnect: () => {
      for (const all of byProject.values()) tell(all)
    },
  })
  return (project: string, news: () => void) => {
    const all = byProject.get(project) ?? new Set()
    byProject.set(project, all.add(news))
    return () => {
      all.delete(news)
      if (all.size === 0 && byProject.get(project) === all) byProject.delete(project)
    }
  }
})

/**
 * The feed as events in the order of their times, from the entry behind `after`. An entry is shown once nothing older can
 * come: entries of a transaction have the time at which they were written and are seen when it commits, so one that is
 * shown too early would make a client that resumes behind it miss the other.
 */
export function streamFeed(
  context: Pick<Context, 'services' | 'request' | 'recheck'>,
  selection: FeedSelection,
  after: Position,
): OperationResult {
  const { services } = context
  let last = after
  return eventStream(context, {
    watch: news => followers(services)(selection.project, news),
    position: () => encodeCursor(last),
    async *look() {
      const settled = await committedUntil(services.pool)
      const rows = await activityAfter(services.pool, selection, last, PAGE)
      const shown = rows.filter(({ created_at }) => created_at < settled)
      for (const row of shown) {
        last = row
        yield eventMessage(encodeCursor(row), 'entry', JSON.stringify(activityKind.present(row)))
      }
      if (shown.length < rows.length) return UNSETTLED_MS
      return rows.length < PAGE ? POLL_MS : 0
    },
  })
}
